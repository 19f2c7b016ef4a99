"""What a report is asked for, from the values that a user gives: the options of hvdscale-report, or the arguments of
Runs.report. And what its views are made from: of a page a workload held against one target, of a chapter all workloads.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..analysis.budgets import Budget
from ..analysis.curves import Curve, curve_of
from ..analysis.defaults import (CONFIDENCE, CROSSINGS, FIRST, LOSS_WITHIN, PERFECT_WITHIN, RULES, RULE_WITHIN,
                                 USEFUL_WITHIN, Options, Tolerance, confidence_of, share_of)
from ..analysis.published import read as read_published
from ..analysis.report_data import JobResults, Section
from ..analysis.rules import RULES as COMMON_RULES, Rule, RuleCosts
from ..analysis.studies import Study, group_by
from ..analysis.timings import timings_of
from ..analysis.trials import JobKey, Trial
from ..analysis.worker_plan import Request, WorkerPlan, plans_of
from ..errors import UsageError
from ..formatting.screen import Tell
from ..log.schema import Status
from ..target import Target
from .document import Document, Part
from .texts import GENERAL

if TYPE_CHECKING:
    from ..analysis.size.laws import BorrowedLaw
    from ..analysis.size.sizes import Size

PAPER = "shallue2019"           # whose figures can be made
NAMES = {"budgets": "budget", "rules": "rule"}          # of options that may be given several times
Texts = str | Iterable[str]
Share = float | str             # 0.1 or "10%"


@dataclass(frozen=True)
class ReportRequest(Options):
    """What the user wants of a report: the options of the analysis, and what to see of studies beside the targets."""

    budgets: tuple[Budget, ...] = ()        # under which the best of the target's metric is shown
    compare: tuple[str, ...] = ()           # publications that curves are laid beside
    paper: str | None = None                # whose figures are made, as far as the logs have data for them
    rules: tuple[Rule, ...] = COMMON_RULES          # of the learning rate, held against the tuned optimum
    rule_within: float = RULE_WITHIN        # the share of steps more than that optimum at which a rule loses
    branch_tolerance: Tolerance | None = None       # of the loss of branches; None: that of their own plans
    sizes: tuple[Size, ...] = ()            # over which laws are fitted
    laws: tuple[BorrowedLaw, ...] = ()      # from elsewhere, over these sizes, whose cost is shown


def request_of(*, budgets: Texts = (), compare: Texts = (), paper: str | None = None, rules: Texts = RULES,
               rule_within: Share = RULE_WITHIN, perfect_within: Share = PERFECT_WITHIN,
               useful_within: Share = USEFUL_WITHIN, loss_within: Share = LOSS_WITHIN, trials: int | None = None,
               confidence: float = CONFIDENCE, branch_tolerance: Share | None = None, crossing: str = FIRST,
               sizes: Texts = (), laws: Texts = (), spell: Callable[[str], str] = str) -> ReportRequest:
    """The request; raises UsageError for a value that means nothing.

    spell   how a message writes an argument's name, such as ``--rule-within`` for rule_within
    """
    if trials is not None and trials < 1:
        raise UsageError(f"{spell('trials')} {trials}: is a number of trials, 1 or more")
    if crossing not in CROSSINGS:
        raise UsageError(f"{spell('crossing')} {crossing}: is {' or '.join(CROSSINGS)}")
    if paper not in (None, PAPER):
        raise UsageError(f"{spell('paper')} {paper}: there is no such paper; choose one of {PAPER}")
    budgets, compare, rules, sizes, laws = ((texts,) if isinstance(texts, str) else tuple(texts)
                                            for texts in (budgets, compare, rules, sizes, laws))
    for name in compare:
        read_published(name)
    if laws and not sizes:
        raise UsageError(f"{spell('law')} {laws[0]!r}: needs the sizes of the workloads, too, such as "
                         f"{spell('size')} parameters")
    parsed: dict[str, Any] = {name: share_of(spell(name), str(value)) for name, value in (
        ("perfect_within", perfect_within), ("useful_within", useful_within), ("rule_within", rule_within))}
    parsed |= {name: Tolerance.parse(str(value), spell(name)) for name, value in (
        ("loss_within", loss_within), ("branch_tolerance", branch_tolerance)) if value is not None}
    if sizes:
        from ..analysis.size.laws import BorrowedLaw                # which other reports need not wait for
        from ..analysis.size.sizes import sizes_of
        parsed |= {"sizes": sizes_of(sizes), "laws": tuple(map(BorrowedLaw.parse, laws))}
    every_budget = [part for text in budgets for part in re.split(r"(?<=[a-z])\s*,", text)]     # after a unit
    return ReportRequest(confidence=confidence_of(confidence, spell("confidence")), trials=trials, crossing=crossing,
                         compare=compare, paper=paper, budgets=tuple(dict.fromkeys(map(Budget.parse, every_budget))),
                         rules=tuple(dict.fromkeys(map(Rule.parse, rules))), **parsed)


def targets_of(targets: Target | str | Iterable[Target | str]) -> tuple[Target, ...]:
    """Targets from one or several, each a Target or a text such as ``val/error<0.01``; raises UsageError."""
    several = [targets] if isinstance(targets, (str, Target)) else targets
    return tuple(one if isinstance(one, Target) else Target.parse(one) for one in several)


@dataclass(frozen=True, eq=False)
class Subject(Section):
    """A section with the studies of the same trials, and what several views need of them."""

    studies: tuple[Study, ...] = ()         # of its workload, by global batch
    asked: ReportRequest = ReportRequest()
    held: bool = False                      # searches, or more evaluations than trials are made of, against its target
    others: tuple[Target, ...] = ()         # of the same metric, which have pages of their own
    first: bool = True                      # of its metric: its page has the figures that all its targets share
    known: dict[Hashable, Any] = field(default_factory=dict)        # worked out for any of the workload's targets

    @property
    def goal(self) -> Target:
        assert self.target is not None
        return self.target

    @property
    def curve(self) -> Curve:
        return self.curve_to(self.goal)

    def curve_to(self, target: Target) -> Curve:
        return self.once((curve_of, target), lambda: curve_of(self.studies, target, self.asked))

    @property
    def costs(self) -> RuleCosts | None:
        return self.known.get((RuleCosts, self.goal))

    def once(self, key: Hashable, find: Callable[[], Any]) -> Any:
        """What ``find`` gives, worked out once for all targets of the workload."""
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]

    @cached_property
    def plan(self) -> WorkerPlan | None:
        """How many workers to take of the counts that were run, ended and timed or not; None: there is no choice."""
        timed = {one.workers for one in timings_of(self.trials).found}
        if not self.target or len(timed) < 2:
            return None
        group = JobResults(self.workload, self.trials, (replace(self, noise=()),))
        unknown = {one.workers for one in self.trials if one.status in (Status.RUNNING, Status.INCOMPLETE)
                   or one.status == Status.COMPLETE and math.isnan(one.examples_per_second)}
        [plan] = plans_of(group, Request(tuple(sorted(timed | unknown)), confidence=self.options.confidence))
        return plan if isinstance(plan, WorkerPlan) and len(plan.options) > 1 else None


View = Callable[[Subject], Iterable[Part]]


def of_metric(show: Callable[[Subject, str, bool], Iterable[Part]], subject: Subject) -> Iterable[Part]:
    """What a view shows of the target's metric and its better way, worked out once for all targets of the metric."""
    metric = subject.goal.column, subject.goal.minimizes
    return subject.once((show, *metric), lambda: tuple(show(subject, *metric)))


@dataclass(frozen=True, eq=False)
class Whole:
    """What chapters are made from, which are about several workloads."""

    subjects: Sequence[Subject]         # whose studies are held against their target
    repeats: Sequence[Section]          # of no studies
    studies: Sequence[Study]
    asked: ReportRequest
    tell: Tell
    groups: Sequence[JobResults]        # all sections by workload
    branches: Sequence[Trial]           # of runs, in no group

    @property
    def first(self) -> dict[JobKey, Subject]:
        return {workload: found[0] for workload, found in group_by(self.subjects, lambda one: one.workload).items()}


def describe_unused(targets: Sequence[Target], asked: ReportRequest, found: Document, branched: bool) -> Iterator[str]:
    """Which options that were given play no part in a report, and why."""
    usual = ReportRequest()

    def shows(kind: str) -> bool:
        return any(table.name.startswith(kind) for shown in found.shown for table in (*shown.tables, *shown.details))
    intervals = (cell for shown in found.shown for table in shown.tables for row in table.rows for cell in row.cells
                 if cell.low is not None and not math.isnan(cell.low))
    given = {"--target": bool(targets), **{f"--{NAMES.get(name, name).replace('_', '-')}": value != getattr(usual, name)
                                           for name, value in vars(asked).items()}}
    parts: tuple[tuple[str, Callable[[], bool], tuple[str, ...]], ...] = (
        ("target", lambda: any(shown.target for shown in found.shown),
         ("--target", "--perfect-within", "--useful-within", "--crossing")),
        ("search", lambda: shows("lr-rules"), ("--rule", "--rule-within")),
        ("search", lambda: shows("curve"), ("--trials",)), ("budget", lambda: shows("budgets"), ("--budget",)),
        ("valley", lambda: shows("quality"), ("--loss-within",)), ("branch", lambda: branched, ("--branch-tolerance",)),
        ("interval", lambda: any(intervals), ("--confidence",)))
    for why, used, options in parts:
        unused = [name for name in options if given[name]]
        if unused and not used():
            yield GENERAL.say("unused", options=unused, **{why: True})
