"""Steps to a target by global batch, from studies or from repeats: one curve per workload and target.

A search may be cut off by the rates that it tried: the best rate of a batch lies beyond all of them. Steps fall towards
the best rate, about as its inverse. So where a batch's steps still fall over the upper (or lower) half of the rates
tried, by a rank correlation that chance exceeds once in ten times, and at most BEYOND trials lie beyond the best one,
more would be found farther out, and the batch's steps are too many. Trials that diverged count as beyond: they show
where the rates end.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TypeVar

import numpy as np

from ..log.schema import Status
from ..target import Target
from .base_rates import effective_rate, rates_of
from .best_of_n import best_of, common_trials
from .defaults import CONFIDENCE, Options
from .intervals import Estimate
from .regimes import Regimes, regimes_of
from .search import rank_deviate
from .speedup import divide
from .steps import STEPS, RunCell
from .studies import Outcomes, Study, outcomes, with_metric
from .trials import JobKey, Trial

BEYOND = 2                  # the trials beyond the best one, at most, of a search that is cut off
FALLS = 1.28                # standard deviations of the rank correlation
LEAST = 5                   # trials in a half
Batched = TypeVar("Batched", bound="RunCell | CurvePoint | BatchPoint")


@dataclass(frozen=True, eq=False)
class BatchPoint:
    """One global batch: repeats of its best setting, over all worker counts."""

    cell: RunCell
    examples: Estimate                  # B S, to target
    statistical_efficiency: Estimate    # relative to the smallest batch
    perfect: bool                       # B S is within tolerance of the smallest B S

    @property
    def global_batch(self) -> int:
        return self.cell.global_batch

    @property
    def steps(self) -> Estimate:
        return self.cell.steps

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return self.cell.keys


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """One global batch that was searched, against a target: its feasible trials, without repeats of the winner.

    The fewest steps of these trials are those of the published analysis (batch_science/measurement_utils.py of Shallue
    et al. 2019) where nothing was pruned: of the earliest measurement beyond the goal, ties by trial id. INFEASIBLE
    trials that met the target before they diverged do not count."""

    study: Study
    reached: Outcomes
    best: int | None            # index into the study of the trial with the fewest steps, the first of equals
    steps: Estimate = Estimate.unknown()    # the median best-of-n at the curve's n, if asked for; inf: not met

    @property
    def global_batch(self) -> int:
        return self.study.global_batch

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return () if self.best is None else (self.study.key(self.best),)

    @property
    def fewest(self) -> float:
        """Steps of the best trial; inf: none met."""
        return np.inf if self.best is None else float(self.reached.steps[self.best])

    @property
    def before(self) -> float:
        """Steps of the best trial at the evaluation before that measured the metric; NaN: unknown, or none met."""
        return np.nan if self.best is None else float(self.reached.before[self.best])

    @property
    def value(self) -> float:
        """The metric where the best trial met the target; NaN: none met."""
        evaluations = self.study.evaluations
        return np.nan if self.best is None else float(
            evaluations.read(self.reached.target.column)[self.reached.row[self.best]])

    @property
    def beyond(self) -> float:
        """Where none met, the fewest steps at which a trial last measured the metric; NaN: none did, or one met."""
        last = self.reached.last_step[self.study.searched] if self.best is None else np.empty(0)
        return float(np.fmin.reduce(last, initial=np.nan))

    @property
    def trials(self) -> int:
        """The number of feasible trials: COMPLETE, or pruned."""
        return int(self.study.searched.sum())

    @property
    def met(self) -> int:
        return int((self.study.searched & self.reached.met).sum())

    @property
    def pruned(self) -> int:
        return int((self.study.searched & self.study.pruned).sum())

    @property
    def infeasible(self) -> int:
        return int((self.study.infeasible & ~self.study.repeat).sum())

    @property
    def met_before_diverging(self) -> int:
        """The number of those that had met the target before; not in any estimate."""
        return int((self.study.infeasible & ~self.study.repeat & self.reached.met).sum())


@dataclass(frozen=True, eq=False)
class Curve:
    """The points of a workload and target by batch, of searches or repeats, and the regimes of the ``judged`` ones."""

    workload: JobKey
    target: Target
    points: tuple[CurvePoint | BatchPoint, ...]
    regimes: Regimes
    confidence: float
    n: int | None = None                            # trials that each batch's steps are the best of; None: repeats
    left_out: tuple[tuple[int, int], ...] = ()      # (batch, feasible trials) of those with fewer than asked for
    cut: int | None = None                          # the batch from which on searches are cut off; None: none is

    @property
    def judged(self) -> tuple[CurvePoint | BatchPoint, ...]:
        return _below(self.cut, self.points)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(point.global_batch for point in self.points)

    @property
    def searched(self) -> tuple[CurvePoint, ...]:
        return tuple(point for point in self.points if isinstance(point, CurvePoint))

    @property
    def measured(self) -> tuple[BatchPoint, ...]:
        return tuple(point for point in self.points if isinstance(point, BatchPoint))

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return tuple(key for point in self.searched for key in point.keys)


def curve_of(studies: Sequence[Study], target: Target, options: Options = Options()) -> Curve | None:
    """The curve of one workload's studies, all at one n, see common_trials; None: no study has the target's metric."""
    studies = with_metric(studies, target.column)
    if not studies:
        return None
    counts = {study.global_batch: int(study.searched.sum()) for study in studies}
    n, left_out = common_trials(counts, options.trials)
    points = tuple(point_of(study, target, options.confidence, n) for study in studies
                   if study.global_batch not in left_out)
    cut = cut_from([point.global_batch for point in points], map(_is_point_cut, points))
    return Curve(studies[0].workload, target, points, _regimes_of(_below(cut, points), options), options.confidence, n,
                 tuple(left_out.items()), cut)


def _below(cut: int | None, points: Iterable[Batched]) -> tuple[Batched, ...]:
    """The points, or cells, below the batch from which on a search is cut off."""
    return tuple(point for point in points if cut is None or point.global_batch < cut)


def is_cut(rates: np.ndarray, steps: np.ndarray, diverged: np.ndarray) -> bool | None:
    """Whether one batch's best rate lies beyond those of its feasible trials and of those that ``diverged``, see above;
    None: no trial met the target."""
    if not np.isfinite(steps).any():
        return None
    best = rates[steps.argmin()]
    for way in (1, -1):
        beyond = np.count_nonzero(way * np.append(rates, diverged) > way * best)
        half = way * rates >= way * np.median(rates)
        if beyond <= BEYOND and half.sum() >= LEAST and rank_deviate(way * rates[half], steps[half]) < -FALLS:
            return True
    return False


def cut_from(batches: Sequence[int], cut: Iterable[bool | None]) -> int | None:
    """The batch from which on most batches are cut, the largest too; None: there is none."""
    known = [(batch, one) for batch, one in zip(batches, cut) if one is not None]
    for at, (batch, one) in enumerate(known):
        rest = [other for _, other in known[at:]]
        if one and rest[-1] and sum(rest) > len(rest) / 2:
            return batch
    return None


def _is_point_cut(point: CurvePoint) -> bool | None:
    study, rates = point.study, np.log(rates_of(point.study))
    searched, diverged = (one & ~study.repeat & ~np.isnan(rates) for one in (study.feasible, study.infeasible))
    return is_cut(rates[searched], point.reached.steps[searched], rates[diverged])


def _is_cell_cut(cell: RunCell) -> bool | None:
    if not cell.searched:
        return False
    diverged = [trial for trial in cell.considered if trial.status == Status.INFEASIBLE]
    of_draws, of_diverged = (np.log([_rate_of(trial) for trial in trials])
                             for trials in ([run.trial for run in cell.draws], diverged))
    steps = np.array([run.steps for run in cell.draws])
    return is_cut(of_draws, steps, of_diverged) if not np.isnan(of_draws).any() else False


def _rate_of(trial: Trial) -> float:
    """The effective learning rate; NaN: unknown."""
    problem = trial.plan.get("problem") or {}
    return float(effective_rate(problem.get("peak_lr") or np.nan, problem.get("momentum") or 0.0))


def curve_of_cells(workload: JobKey, target: Target, cells: Iterable[RunCell], options: Options = Options()
                   ) -> Curve | None:
    """The curve of cells of one global batch each, over all worker counts; None without any."""
    cells = sorted(cells, key=lambda cell: cell.global_batch)
    if not cells:
        return None
    cut = cut_from([cell.global_batch for cell in cells], map(_is_cell_cut, cells))
    regimes = _regimes_of(_below(cut, cells), options)
    points = tuple(BatchPoint(cell, cell.examples, divide(cells[0], cell, STEPS, options.confidence).scaled(
        cells[0].mean_batch / cell.mean_batch), perfect)
        for cell, perfect in zip(cells, chain(regimes.perfect, repeat(False))))
    return Curve(workload, target, points, regimes, options.confidence, cut=cut)


def _regimes_of(points: Sequence[RunCell | CurvePoint | BatchPoint], options: Options) -> Regimes:
    return regimes_of([point.global_batch for point in points], [point.steps for point in points], options)


def result_of(study: Study, target: Target) -> CurvePoint:
    """One study's search against a target, without the median best-of-n; KeyError without its metric."""
    reached, feasible = outcomes(study, target), np.flatnonzero(study.searched)
    met = feasible[reached.met[feasible]]
    return CurvePoint(study, reached, int(met[reached.steps[met].argmin()]) if len(met) else None)


def point_of(study: Study, target: Target, confidence: float = CONFIDENCE, n: int | None = None) -> CurvePoint:
    """The same with the median best of n of its trials, by default of all."""
    return replace(result_of(study, target), steps=steps_of_best(study, target, n, confidence))


def steps_of_best(study: Study, target: Target, n: int | None = None, confidence: float = CONFIDENCE) -> Estimate:
    """The median best of n of a study's feasible trials, by default of all; extrapolated where there are fewer."""
    reached, feasible = outcomes(study, target), np.flatnonzero(study.searched)
    if not len(feasible):
        return Estimate.unknown()
    return best_of(reached.steps[feasible], reached.before[feasible], reached.last_step[feasible],
                   pruned=study.pruned[feasible], n=n, confidence=confidence)
