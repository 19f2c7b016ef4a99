"""The two tables of the published analysis (Shallue et al. 2019, batch_science/measurement_utils.py), of any logs.

    steps_to_result(study, Target.parse("val/error<0.01"), published(study, 100)).steps
    best_measurements(study, "val/error", True, [Budget.parse("10 epochs")], published(study, 100))[0].value

As published, the trials are the first ``num_trials`` COMPLETE ones by id; the steps to a result are those of the
earliest measurement strictly beyond the goal, ties by trial id; the best measurement is the best value under a budget
of steps or of examples, B times steps. A measurement that is not there or NaN counts for nothing, and neither does an
INFEASIBLE or INCOMPLETE trial. Of equal best values the published table takes any: here it is that of the fewest steps,
then of the first trial.

Ours differ in two ways. ``searched`` also takes what a search has pruned, which is known to meet a target or not up to
its last step; and INFEASIBLE trials that met the target before they diverged are counted. In the archive nothing is
pruned, so there the two are one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..target import Target
from .studies import Envelope, Outcomes, Study, envelope, outcomes
from .trials import Workload

if TYPE_CHECKING:
    from .budgets import Budget


def published(study: Study, num_trials: int | None = None) -> np.ndarray:
    """The trials that the published analysis takes, bool of shape (trials,): the COMPLETE ones, repeats of a search's
    winner left out; of them the first ``num_trials``. UsageError where there are fewer."""
    complete = study.complete & ~study.repeat
    if num_trials is None:
        return complete
    rows = np.flatnonzero(complete)
    if len(rows) < num_trials:
        raise UsageError(f"{study}: {num_trials} COMPLETE trials are asked for, and there are {len(rows)}; give at "
                         f"most {len(rows)}")
    first = np.zeros(len(study), bool)
    first[rows[:num_trials]] = True
    return first


def searched(study: Study) -> np.ndarray:
    """The trials that a study's best is taken over, bool of shape (trials,): COMPLETE and pruned ones, repeats of a
    search's winner left out."""
    return study.feasible & ~study.repeat


@dataclass(frozen=True, eq=False)
class StepsToResult:
    """The earliest measurement among some trials that meets a target; ties are the first trial's.

    among   bool, shape (trials,): which trials
    trial   index into the study; None: no trial met it
    """

    study: Study
    target: Target
    among: np.ndarray
    outcomes: Outcomes
    trial: int | None

    @property
    def global_batch(self) -> int:
        return self.study.global_batch

    @property
    def steps(self) -> float:
        """Steps done there; inf: no trial met it."""
        return np.inf if self.trial is None else float(self.outcomes.steps[self.trial])

    @property
    def before(self) -> float:
        """Steps at that trial's evaluation before, which did not meet; 0: it was the first; NaN: no trial met it."""
        return np.nan if self.trial is None else float(self.outcomes.before[self.trial])

    @cached_property
    def value(self) -> float:
        """What was measured there; NaN: no trial met it."""
        if self.trial is None:
            return np.nan
        return float(self.study.evaluations.read(self.target.column)[self.outcomes.row[self.trial]])

    @property
    def seconds(self) -> float:
        """Spent in those steps, evaluation left out; inf: no trial met it, NaN: not measured."""
        return np.inf if self.trial is None else float(self.outcomes.seconds[self.trial])

    @property
    def beyond(self) -> float:
        """The least that a trial which did not meet it was run for; NaN: every one did, or there is none."""
        unmet = self.outcomes.last_step[self.among & ~self.outcomes.met]
        return float(unmet.min()) if len(unmet) else np.nan

    @property
    def key(self) -> tuple[str, int] | None:
        """The log and the id of its trial."""
        return None if self.trial is None else self.study.key(self.trial)

    @property
    def trials(self) -> int:
        """Trials that were looked at."""
        return int(self.among.sum())

    @property
    def met(self) -> int:
        """Of them those that met it."""
        return int((self.among & self.outcomes.met).sum())

    @property
    def pruned(self) -> int:
        """Of them those that the search stopped."""
        return int((self.among & self.study.pruned).sum())

    @property
    def infeasible(self) -> int:
        """Trials of the study that diverged."""
        return int((self.study.infeasible & ~self.study.repeat).sum())

    @property
    def met_before_diverging(self) -> int:
        """Of those the ones that met the target before."""
        return int((self.study.infeasible & ~self.study.repeat & self.outcomes.met).sum())


def steps_to_result(study: Study, target: Target, among: np.ndarray | None = None) -> StepsToResult:
    """The fewest steps to the target among the trials, by default those of ``searched``; KeyError without its metric.
    """
    among = searched(study) if among is None else among
    found = outcomes(study, target)
    steps = np.where(among, found.steps, np.inf)
    trial = int(steps.argmin()) if len(steps) else 0
    return StepsToResult(study, target, among, found, trial if len(steps) and steps[trial] < np.inf else None)


@dataclass(frozen=True, eq=False)
class BestMeasurement:
    """The best that any of some trials measured under a budget; of equals the one of the fewest steps, or seconds where
    the budget is in such, then the first trial's.

    among   bool, shape (trials,): which trials
    budget  None: all that was run
    value   NaN: nothing was measured under it
    step    of that measurement; NaN likewise
    trial   index into the study; None likewise
    """

    study: Study
    column: str
    minimizes: bool
    budget: Budget | None
    among: np.ndarray
    value: float
    step: float
    trial: int | None

    @property
    def global_batch(self) -> int:
        return self.study.global_batch

    @property
    def trials(self) -> int:
        """Trials that were looked at."""
        return int(self.among.sum())

    @property
    def key(self) -> tuple[str, int] | None:
        """The log and the id of its trial."""
        return None if self.trial is None else self.study.key(self.trial)


def best_measurements(study: Study, column: str, minimizes: bool, budgets: Sequence[Budget | None] = (None,),
                      among: np.ndarray | None = None) -> tuple[BestMeasurement, ...]:
    """The best value under each budget among the trials, by default those of ``searched``.

    KeyError without the metric; UsageError for epochs where the logs do not say how many examples one has.
    """
    among = searched(study) if among is None else among
    envelopes: dict[str, Envelope] = {}

    def under(budget):
        along = "train_seconds" if budget is not None and budget.axis == "train_seconds" else "step"
        if along not in envelopes:
            envelopes[along] = envelope(study, column, minimizes, among, along)
        found, limit = envelopes[along], np.inf if budget is None else budget.limit(study.workload)
        x = found.along * study.global_batch if budget is not None and budget.axis == "examples" else found.along
        at = int(np.searchsorted(x, limit, "right")) - 1
        point = (float(found.value[at]), float(found.step[at]), int(found.trial[at])) if at >= 0 else (
            np.nan, np.nan, None)
        return BestMeasurement(study, column, minimizes, budget, among, *point)
    return tuple(map(under, budgets))


@dataclass(frozen=True, eq=False)
class Results:
    """Both tables of one workload, by global batch.

    steps   for each target that any of its studies measured: the studies' steps to it
    best    for each metric of these targets, with its direction: the studies' best under each of the budgets
    """

    workload: Workload
    steps: tuple[tuple[Target, tuple[StepsToResult, ...]], ...]
    best: tuple[tuple[tuple[str, bool], tuple[tuple[BestMeasurement, ...], ...]], ...]


def results_of(studies: Sequence[Study], targets_of: Callable[[Workload], Sequence[Target]],
               budgets: Sequence[Budget | None] = (None,),
               among_of: Callable[[Study], np.ndarray] = searched) -> Iterator[Results]:
    """The tables of every workload, one after the other; each column of a study is read once.

    targets_of  the targets of a workload; one whose metric none of its studies measured is passed over
    budgets     of the best measurements; () leaves them out
    among_of    the trials of a study: ``searched``, or such as ``lambda study: published(study, 100)``
    """
    for workload, found in _by_workload(studies).items():
        targets = tuple(dict.fromkeys(targets_of(workload)))
        metrics = tuple(dict.fromkeys((target.column, target.minimizes) for target in targets))
        steps: dict = {target: [] for target in targets}
        best: dict = {metric: [] for metric in metrics}
        measured = set()
        for study in found:
            among = among_of(study)
            for metric in metrics:
                column = metric[0]
                if column not in study.evaluations.columns:
                    continue
                if not np.isnan(study.evaluations.read(column)).all():
                    measured.add(metric)
                for target in targets:
                    if (target.column, target.minimizes) == metric:
                        steps[target].append(steps_to_result(study, target, among))
                if budgets:
                    best[metric].append(best_measurements(study, *metric, budgets, among))
        yield Results(workload,
                      tuple((target, tuple(rows)) for target, rows in steps.items()
                            if (target.column, target.minimizes) in measured),
                      tuple((metric, tuple(rows)) for metric, rows in best.items() if metric in measured and rows))


def _by_workload(studies):
    found: dict[Workload, list[Study]] = {}
    for study in sorted(studies, key=lambda study: (study.workload, study.global_batch)):
        found.setdefault(study.workload, []).append(study)
    return found
