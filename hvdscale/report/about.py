"""What a report's views are made from: the studies of one workload and one target, and what was asked.

    view_of(About(studies, target, section, StudyRequest(budgets=(Budget.parse("10 epochs"),))))
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..analysis.budgets import Budget
from ..analysis.curves import Curve, curve_of
from ..analysis.defaults import RULE_WITHIN
from ..analysis.grouping import group_by
from ..analysis.report_data import JobResults, Options, Section
from ..analysis.rules import RULES, Rule, RuleCosts, rules_along, rules_of
from ..analysis.shares import Tolerance
from ..analysis.studies import Study
from ..analysis.trials import JobKey, Trial
from ..formatting.progress import Tell
from ..target import Target

if TYPE_CHECKING:               # which reports without laws over size need not wait for
    from ..analysis.size.borrowed import BorrowedLaw
    from ..analysis.size.sizes import Size


@dataclass(frozen=True)
class StudyRequest:
    """What the user wants to see of studies, beside the targets.

    budgets       under which the best of the target's metric is shown
    compare       publications that curves are laid beside
    paper         whose figures are made, as far as the logs have data for them
    rules         of the learning rate, held against the tuned optimum
    rule_within   the share of steps more than that optimum at which a rule loses
    branch_tolerance    of the loss of branches; None: that of their own plans
    sizes         over which laws are fitted
    laws          from elsewhere, over these sizes, whose cost is shown
    """

    budgets: tuple[Budget, ...] = ()
    compare: tuple[str, ...] = ()
    paper: str | None = None
    rules: tuple[Rule, ...] = RULES
    rule_within: float = RULE_WITHIN
    branch_tolerance: Tolerance | None = None
    sizes: tuple[Size, ...] = ()
    laws: tuple[BorrowedLaw, ...] = ()


@dataclass(frozen=True, eq=False)
class About:
    """The studies of one workload and one target, and what several views need of them."""

    studies: tuple[Study, ...]          # by global batch
    target: Target
    section: Section                    # of the same trials
    asked: StudyRequest = StudyRequest()
    others: tuple[Target, ...] = ()     # of the same metric, which have pages of their own
    first: bool = True                  # of its metric: then its page has the figures that all its targets share
    known: dict[Hashable, Any] = field(default_factory=dict)   # what was worked out for any of the workload's targets

    @property
    def options(self) -> Options:
        """Of the analysis."""
        return self.section.options

    @property
    def workload(self) -> JobKey:
        """What they are studies of."""
        return self.studies[0].workload

    @property
    def curve(self) -> Curve:
        """Steps to the target by batch."""
        return self.curve_to(self.target)

    def curve_to(self, target: Target) -> Curve:
        """The same to another target of the metric."""
        found: Curve = self.once((curve_of, target), lambda: curve_of(self.studies, target, self.options))
        return found

    @property
    def costs(self) -> RuleCosts | None:
        """What learning-rate rules cost."""
        found: RuleCosts | None = self.once((rules_of, self.target), lambda: rules_of(
            self.curve, self.asked.rules, self.asked.rule_within))
        return found

    def once(self, key: Hashable, find: Callable[[], object]) -> Any:
        """What ``find`` gives, worked out once for all targets of the workload."""
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]


def with_costs(abouts: Sequence[About], asked: StudyRequest, ruled: bool = True) -> Iterator[About]:
    """Each of them once its costs are known, or left out; all cores work on those of the ones that follow."""
    costs = rules_along([about.curve for about in abouts], asked.rules, asked.rule_within) if ruled else repeat(None)
    for about, found in zip(abouts, costs):
        about.known[rules_of, about.target] = found
        yield about


@dataclass(frozen=True, eq=False)
class AboutAll:
    """What chapters are made from, which are about several workloads.

    repeats   sections of no studies
    groups    all sections by workload
    branches  trials that are branches of a run, in no group
    """

    abouts: Sequence[About]
    repeats: Sequence[Section]
    studies: Sequence[Study]
    asked: StudyRequest
    options: Options
    tell: Tell
    groups: Sequence[JobResults]
    branches: Sequence[Trial]

    @property
    def first(self) -> dict[JobKey, About]:
        """The first of each workload's."""
        return {workload: found[0] for workload, found in group_by(self.abouts, lambda about: about.workload).items()}
