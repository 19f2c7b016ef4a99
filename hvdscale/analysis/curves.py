"""Steps to a target by global batch, from studies or from repeats: one curve per workload and target.

    curve = curve_of(studies, Target.parse("val/error<0.01"))
    [(point.global_batch, point.steps.value) for point in curve.points], curve.regimes.maximum_useful
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..target import Target
from .best_of_n import best_of, best_of_more, common_trials
from .intervals import CONFIDENCE, Estimate
from .options import Options
from .regimes import Regimes, regimes_of
from .speedup import step_speedup
from .steps import RunCell
from .studies import Study, outcomes
from .trials import JobKey


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


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """One global batch: the trials of its search, without repeats of the winner.

    steps                 the median best-of-n at the curve's n, see best_of_n.best_of; inf: not met; NaN: no trial
    best                  index into the study of the trial with the fewest, the first of equals; None: none met
    trials                number of feasible trials: COMPLETE, or pruned
    met                   number of those that met the target
    infeasible            number of trials that diverged
    met_before_diverging  number of those that had met the target before; not in any estimate
    """

    global_batch: int
    steps: Estimate
    best: int | None
    study: Study
    trials: int
    met: int
    infeasible: int
    met_before_diverging: int


@dataclass(frozen=True, eq=False)
class Curve:
    """The points of a workload and target by batch, and their regimes: of searches, or of repeats."""

    workload: JobKey
    target: Target
    points: tuple[CurvePoint | BatchPoint, ...]
    regimes: Regimes
    confidence: float
    n: int | None = None                            # trials that each batch's steps are the best of; None: repeats
    left_out: tuple[tuple[int, int], ...] = ()      # (batch, feasible trials) of those with fewer than asked for

    @property
    def batches(self) -> tuple[int, ...]:
        """The global batches, smallest first."""
        return tuple(point.global_batch for point in self.points)

    @property
    def searched(self) -> tuple[CurvePoint, ...]:
        """The points that come from studies."""
        return tuple(point for point in self.points if isinstance(point, CurvePoint))

    @property
    def measured(self) -> tuple[BatchPoint, ...]:
        """The points that come from repeats."""
        return tuple(point for point in self.points if isinstance(point, BatchPoint))

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """(log, id) of the trial with the fewest steps at each batch that was searched."""
        return tuple(point.study.key(point.best) for point in self.searched if point.best is not None)

    @property
    def label(self) -> str:
        """The workload and the target, in words."""
        return f"{self.workload}: {self.target}"


def curve_of(studies: Sequence[Study], target: Target, options: Options = Options()) -> Curve | None:
    """The curve of one workload's studies; None where no study has the target's metric.

    The fewest steps fall with the number of trials, so all batches use the same n, see best_of_n.common_trials.
    """
    studies = sorted((study for study in studies if target.column in study.evaluations.columns),
                     key=lambda study: study.global_batch)
    if not studies:
        return None
    counts = {study.global_batch: int(study.searched.sum()) for study in studies}
    n, left_out = common_trials(counts, options.trials)
    points = tuple(point_of(study, target, options.confidence, n) for study in studies
                   if study.global_batch not in left_out)
    return Curve(studies[0].workload, target, points, _regimes_of(points, options), options.confidence, n,
                 tuple(left_out.items()))


def curve_of_cells(workload: JobKey, target: Target, cells: Iterable[RunCell], options: Options = Options()
                   ) -> Curve | None:
    """The curve of cells of one global batch each, over all worker counts; None without any."""
    cells = sorted(cells, key=lambda cell: cell.global_batch)
    if not cells:
        return None
    regimes = _regimes_of(cells, options)
    points = tuple(BatchPoint(cell, cell.examples, step_speedup(cell, cells[0], options.confidence).scaled(
        cells[0].mean_batch / cell.mean_batch), perfect) for cell, perfect in zip(cells, regimes.perfect))
    return Curve(workload, target, points, regimes, options.confidence)


def _regimes_of(points: Sequence[RunCell | CurvePoint], options: Options) -> Regimes:
    return regimes_of([point.global_batch for point in points], [point.steps for point in points],
                      options.perfect_within, options.useful_within, options.confidence)


def point_of(study: Study, target: Target, confidence: float = CONFIDENCE, n: int | None = None) -> CurvePoint:
    """One study measured against a target: the median best of n of its trials, by default of all."""
    reached = outcomes(study, target)
    feasible = np.flatnonzero(study.searched)
    diverged = study.infeasible & ~study.repeat
    met = feasible[reached.met[feasible]]
    best = int(met[reached.steps[met].argmin()]) if len(met) else None
    return CurvePoint(study.global_batch, steps_of_best(study, target, n, confidence), best, study, len(feasible),
                      len(met), int(diverged.sum()), int((diverged & reached.met).sum()))


def steps_of_best(study: Study, target: Target, n: int | None = None, confidence: float = CONFIDENCE) -> Estimate:
    """The median best of n of a study's feasible trials, by default of all; extrapolated where there are fewer."""
    reached, feasible = outcomes(study, target), np.flatnonzero(study.searched)
    if not len(feasible):
        return Estimate.unknown()
    trials = reached.steps[feasible], reached.before[feasible], reached.last_step[feasible]
    if n is not None and n > len(feasible):
        return best_of_more(*trials, n, confidence)
    return best_of(*trials, pruned=study.pruned[feasible], n=n, confidence=confidence)
