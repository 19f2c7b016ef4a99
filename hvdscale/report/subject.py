"""What views are made from: of a page a workload held against one target, of a chapter all workloads."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..analysis.curves import Curve, curve_of
from ..analysis.grouping import group_by
from ..analysis.report_data import JobResults, Section
from ..analysis.rules import RuleCosts
from ..analysis.timings import timings_of
from ..analysis.studies import Study
from ..analysis.trials import JobKey, Trial
from ..analysis.worker_plan import Request, WorkerPlan, plans_of
from ..formatting.screen import Tell
from ..target import Target
from .document import Part
from .request import ReportRequest


@dataclass(frozen=True, eq=False)
class Subject(Section):
    """A section with the studies of the same trials, and what several views need of them."""

    studies: tuple[Study, ...] = ()         # of its workload, by global batch
    asked: ReportRequest = ReportRequest()
    held: bool = False                      # searches, or more evaluations than trials are made of, against its target
    others: tuple[Target, ...] = ()         # of the same metric, which have pages of their own
    first: bool = True                      # of its metric: its page has the figures that all its targets share
    known: dict[Hashable, Any] = field(default_factory=dict)        # worked out for any of the workload's targets

    @classmethod
    def of(cls, section: Section, **more: Any) -> Subject:
        return cls(**{one.name: getattr(section, one.name) for one in fields(section)}, **more)

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
        """How many workers to take of the counts that were run; None where there is no choice."""
        counts = tuple(sorted({one.workers for one in timings_of(self.trials).found}))
        if not self.target or len(counts) < 2:
            return None
        group = JobResults(self.workload, self.trials, (replace(self, noise=()),))
        [plan] = plans_of(group, Request(counts, confidence=self.options.confidence))
        return plan if isinstance(plan, WorkerPlan) and len(plan.options) > 1 else None


View = Callable[[Subject], Iterable[Part]]


def of_metric(show: Callable[[Subject, str, bool], Iterable[Part]]) -> View:
    """A view of the target's metric and its better way, worked out once for all targets of the metric."""
    def view(subject: Subject) -> Iterable[Part]:
        metric = subject.goal.column, subject.goal.minimizes
        return subject.once((show, *metric), lambda: tuple(show(subject, *metric)))
    return view


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
        by_workload = group_by(self.subjects, lambda one: one.workload)
        return {workload: found[0] for workload, found in by_workload.items()}
