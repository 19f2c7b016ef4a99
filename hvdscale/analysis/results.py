"""The two tables of the published analysis (Shallue et al. 2019, batch_science/measurement_utils.py), for any logs.

    steps_to_result(study, Target.parse("val/error<0.01"), published(study, 100)).steps
    best_measurements(study, "val/error", True, [Budget.parse("10 epochs")], published(study, 100))[0].value

As published, the trials are the first ``num_trials`` COMPLETE ones by id. The steps to a result are those of the
earliest measurement strictly beyond the goal, ties by trial id. The best measurement is the best value under a budget
of steps or of examples, B times steps. Missing and NaN measurements are ignored, and so are INFEASIBLE and INCOMPLETE
trials. Of equal best values the published table takes any; here it is the one with the fewest steps, then of the first
trial.

Ours differ in two ways. ``Study.searched`` includes pruned trials, up to their last step, and INFEASIBLE trials that
met the target before they diverged are counted. In the archive nothing is pruned, so there both agree. budgets.py has
intervals and each trial's own best.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..target import Target
from .grouping import group_by
from .studies import KEPT_BYTES, Envelope, Study, best_values, envelope, envelope_of, last_measured, promising
from .trials import JobKey

if TYPE_CHECKING:
    from .budgets import Budget


def published(study: Study, num_trials: int | None = None) -> np.ndarray:
    """The trials that the published analysis takes, bool of shape (trials,): the first ``num_trials`` COMPLETE ones
    without repeats of a search's winner. UsageError where there are fewer."""
    complete = study.complete & ~study.repeat
    if num_trials is None:
        return complete
    rows = np.flatnonzero(complete)
    if len(rows) < num_trials:
        raise UsageError(f"{study}: {num_trials} COMPLETE trials wanted, but there are {len(rows)}; ask for at "
                         f"most {len(rows)}")
    first = np.zeros(len(study), bool)
    first[rows[:num_trials]] = True
    return first


class _OfTrials:
    """A result of one trial among some trials of a study."""

    study: Study
    among: np.ndarray
    trial: int | None

    @property
    def global_batch(self) -> int:
        """B of the study."""
        return self.study.global_batch

    @property
    def key(self) -> tuple[str, int] | None:
        """The log and the id of its trial."""
        return None if self.trial is None else self.study.key(self.trial)

    @property
    def trials(self) -> int:
        """The number of trials considered."""
        return int(self.among.sum())


@dataclass(frozen=True, eq=False)
class StepsToResult(_OfTrials):
    """The earliest measurement among some trials that meets a target; ties are the first trial's.

    among   bool, shape (trials,): which trials
    reached bool, shape (trials,): the trials of the study that ever met it, among those or not
    trial   index into the study; None: no trial met it
    steps   done at that measurement; inf: no trial met it
    before  steps at that trial's last evaluation before that measured the metric; NaN: unknown, or no trial met it
    value   the measurement; NaN: no trial met it
    beyond  the fewest steps at which a trial that did not meet it last measured it; NaN: all met, or none measured it
    """

    study: Study
    target: Target
    among: np.ndarray
    reached: np.ndarray
    trial: int | None
    steps: float
    before: float
    value: float
    beyond: float

    @property
    def met(self) -> int:
        """The number of them that met it."""
        return int((self.among & self.reached).sum())

    @property
    def pruned(self) -> int:
        """The number of them that the search stopped."""
        return int((self.among & self.study.pruned).sum())

    @property
    def infeasible(self) -> int:
        """The number of the study's trials that diverged."""
        return int((self.study.infeasible & ~self.study.repeat).sum())

    @property
    def met_before_diverging(self) -> int:
        """The number of those that met the target before."""
        return int((self.study.infeasible & ~self.study.repeat & self.reached).sum())


@dataclass(frozen=True, eq=False)
class BestMeasurement(_OfTrials):
    """The best measurement of some trials under a budget. Of equals, the one with the fewest steps (seconds under a
    budget in seconds), then the first trial's.

    among   bool, shape (trials,): which trials
    budget  None: unlimited
    value   NaN: no measurement under the budget
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


class StudyMetric:
    """One metric of a study among some of its trials: what all targets and budgets need is computed once. KeyError
    without the metric.

    among   bool, shape (trials,); None: ``Study.searched``
    """

    def __init__(self, study: Study, column: str, minimizes: bool, among: np.ndarray | None = None) -> None:
        self.study, self.column, self.minimizes = study, column, minimizes
        self.among = study.searched if among is None else among
        self._values, self._step = (study.evaluations.read(name) for name in (column, "step"))

    @cached_property
    def anything(self) -> bool:
        """Whether any of the study's evaluations measured the metric."""
        return not np.isnan(self._values).all()

    @cached_property
    def _promising(self) -> np.ndarray:
        return promising(self.study.evaluations, self._values, self._step, self.minimizes, self.among)

    @cached_property
    def by_steps(self) -> Envelope:
        """The envelope along the steps."""
        return envelope_of(self.study.evaluations, self._values, self._step, self.minimizes, self._promising)

    @cached_property
    def by_seconds(self) -> Envelope:
        """The envelope along the seconds."""
        return envelope(self.study, self.column, self.minimizes, self.among, "train_seconds")

    @cached_property
    def bests(self) -> np.ndarray:
        """The best of each trial of the study; NaN: none."""
        return best_values(self.study.evaluations, self._values, self.minimizes)

    def steps_to(self, target: Target) -> StepsToResult:
        """The fewest steps to a target on this metric."""
        reached = target.met_by(self.bests)
        found, first = self.by_steps, self.study.evaluations.first
        points = np.flatnonzero(target.met_by(found.value))
        if not len(points):
            last = last_measured(self.study.evaluations, self._values, first[1:])[self.among & ~reached]
            beyond = float(self._step[last[last >= 0]].min(initial=np.inf))
            return StepsToResult(self.study, target, self.among, reached, None, np.inf, np.nan, np.nan,
                                 beyond if np.isfinite(beyond) else np.nan)
        rows = self._promising[self._step[self._promising] == found.step[points[0]]]
        row = int(rows[target.met_by(self._values[rows]).argmax()])     # the first trial's
        trial = int(self.study.evaluations.trial(row))
        own = slice(first[trial], row)
        before = self._step[own][~np.isnan(self._values[own])][-1:] if self._step[row] > 0 else [0.0]
        return StepsToResult(self.study, target, self.among, reached, trial, float(self._step[row]),
                             float(before[0]) if len(before) else np.nan, float(self._values[row]), np.nan)

    def best_under(self, budget: Budget | None) -> BestMeasurement:
        """The best under a budget; UsageError for epochs where the logs do not have the size of one."""
        axis, limit = ("step", np.inf) if budget is None else (budget.axis, budget.limit(self.study.workload))
        found = self.by_seconds if axis == "train_seconds" else self.by_steps
        spent = found.along * self.study.global_batch if axis == "examples" else found.along
        at = int(np.searchsorted(spent, limit, "right")) - 1
        none = BestMeasurement(self.study, self.column, self.minimizes, budget, self.among, np.nan, np.nan, None)
        return none if at < 0 else replace(none, value=float(found.value[at]), step=float(found.step[at]),
                                           trial=int(found.trial[at]))


def steps_to_result(study: Study, target: Target, among: np.ndarray | None = None) -> StepsToResult:
    """The fewest steps to the target among the trials, by default ``Study.searched``; KeyError without its metric."""
    return StudyMetric(study, target.column, target.minimizes, among).steps_to(target)


def best_measurements(study: Study, column: str, minimizes: bool, budgets: Sequence[Budget | None] = (None,),
                      among: np.ndarray | None = None) -> tuple[BestMeasurement, ...]:
    """The best value under each budget among the trials, by default ``Study.searched``.

    KeyError without the metric; UsageError for epochs where the logs do not have the size of one.
    """
    return tuple(map(StudyMetric(study, column, minimizes, among).best_under, budgets))


@dataclass(frozen=True, eq=False)
class Results:
    """Both tables of one workload, by global batch.

    steps   for each target that any of its studies measured: the studies' steps to it
    best    for each metric of these targets and its direction: the studies' best under each of the budgets
    """

    workload: JobKey
    steps: tuple[tuple[Target, tuple[StepsToResult, ...]], ...]
    best: tuple[tuple[tuple[str, bool], tuple[tuple[BestMeasurement, ...], ...]], ...]


def results_of(studies: Sequence[Study], targets_of: Callable[[JobKey], Sequence[Target]],
               budgets: Sequence[Budget | None] = (None,),
               among_of: Callable[[Study], np.ndarray] = attrgetter("searched")) -> Iterator[Results]:
    """The tables of every workload, one at a time; each column of a study is read once.

    targets_of  the targets of a workload; those whose metric none of its studies measured are skipped
    budgets     of the best measurements; () leaves them out
    among_of    the trials of a study, such as ``lambda study: published(study, 100)``
    """
    for workload, found in _by_workload(studies).items():
        targets = tuple(dict.fromkeys(targets_of(workload)))
        metrics = tuple(dict.fromkeys((target.column, target.minimizes) for target in targets))
        steps: dict[Target, list[StepsToResult]] = {target: [] for target in targets}
        best: dict[tuple[str, bool], list[tuple[BestMeasurement, ...]]] = {metric: [] for metric in metrics}
        known: set[tuple[str, bool]] = set()
        for study, own in _read_ahead(found, metrics):
            among = among_of(study)
            for metric in own:
                measured = StudyMetric(study, *metric, among)
                known |= {metric} if measured.anything else set()
                for target in targets:
                    if (target.column, target.minimizes) == metric:
                        steps[target].append(measured.steps_to(target))
                best[metric].append(tuple(map(measured.best_under, budgets)))
        yield Results(workload,
                      tuple((target, tuple(rows)) for target, rows in steps.items()
                            if (target.column, target.minimizes) in known),
                      tuple((metric, tuple(rows)) for metric, rows in best.items() if metric in known and budgets))


def _read_ahead(studies: Iterable[Study], metrics: Sequence[tuple[str, bool]]
                ) -> Iterator[tuple[Study, list[tuple[str, bool]]]]:
    """(study, those of the metrics that its logs have). The columns of the next study are read while one is processed.
    """
    def read(study: Study) -> tuple[Study, list[tuple[str, bool]]]:
        own = [metric for metric in metrics if metric[0] in study.evaluations.columns]
        if 8 * study.evaluations.rows * (1 + len(own)) < KEPT_BYTES // 4:       # else they would not be kept
            for column in dict.fromkeys(("step", *(column for column, _ in own))):
                study.evaluations.read(column)
        return study, own

    with ThreadPoolExecutor(1) as pool:
        coming: Future[tuple[Study, list[tuple[str, bool]]]] | None = None
        for study in studies:
            now, coming = coming, pool.submit(read, study)
            if now:
                yield now.result()
        if coming:
            yield coming.result()


def _by_workload(studies: Iterable[Study]) -> dict[JobKey, list[Study]]:
    """The studies of each workload by batch; workloads in order of name."""
    return group_by(sorted(studies, key=lambda study: (study.workload, study.global_batch)),
                    lambda study: study.workload)
