"""How batch, steps and rate grow with size: one law a quantity, over the cells of several workloads.

    laws = laws_of(groups, studies, sizes_of(["parameters=([0-9.]+M)"]))
    laws.quantities["b_crit"].law.exponents["parameters"]

Steps to a target give S_min, B_crit and the batch of 20 % overhead (critical_batch_fit). The metric at the end of each
trial's own budget, or of the one asked for, gives the best batch and the best rate there: where a bowl over both is
lowest (basin), or without one, where a valley over the batches is (best_batch).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...log.schema import SMALLER
from ..best_batch import Valley, valley_of
from ..best_points import LEARNING_RATE
from ..budgets import Budget, outcomes_under
from ..critical_batch_fit import OVERHEAD, CriticalBatchFit
from ..curves import curve_of
from ..intervals import Estimate
from ..metric_direction import better
from ..report_data import JobResults, Options, Section
from ..studies import Study, are_searched, with_metric
from ..trials import JobKey
from .basin import Basin, basin_of
from .power_law import PowerLaw, SizePoint, fit_power_law
from .sizes import Size, SizeCell, cells_of

# what laws are of: key -> (words, unit)
QUANTITIES = {"overhead": ("batch of 20% overhead", "examples"), "steps": ("steps at 20% overhead", "steps"),
              "b_crit": ("critical batch size", "examples"), "s_min": ("fewest steps", "steps"),
              "best_batch": ("best batch", "examples"), "best_rate": ("best learning rate", "1")}
OF_STEPS = ("overhead", "steps", "b_crit", "s_min")


@dataclass(frozen=True, eq=False)
class CellResult:
    """What was found in one cell.

    fit     to its steps to the target; None: no target, or too few batches met it
    batches of each trial with a value of the metric, with its rates and costs (smaller is better), shape (trials,)
    basin   the bowl over both; None: too few trials, or none
    valley  of the lowest cost at each batch; None: fewer than LEAST_FITTED batches
    """

    cell: SizeCell
    fit: CriticalBatchFit | None
    batches: np.ndarray
    rates: np.ndarray
    costs: np.ndarray
    basin: Basin | None
    valley: Valley | None
    confidence: float

    def estimate(self, quantity: str) -> Estimate | None:
        """A quantity of QUANTITIES; None: not measured here."""
        if quantity == "steps":
            return steps_at_overhead(self.fit, self.confidence) if self.fit else None
        if quantity in OF_STEPS:
            found: Estimate | None = getattr(self.fit, quantity) if self.fit else None
            return found
        if self.basin is not None:
            return self.basin.batch if quantity == "best_batch" else self.basin.rate
        return self.valley.best if self.valley and quantity == "best_batch" else None


@dataclass(frozen=True, eq=False)
class SizeLaws:
    """The laws of several cells.

    names       of the sizes
    quantities  those of QUANTITIES that some cell has, by key
    metric      (column, whether smaller is better) of the best batch and rate; None: none was compared
    """

    names: tuple[str, ...]
    cells: tuple[CellResult, ...]
    quantities: Mapping[str, PowerLaw]
    metric: tuple[str, bool] | None
    budget: Budget | None
    confidence: float


def laws_of(groups: Sequence[JobResults], studies: Sequence[Study], sizes: Sequence[Size], budget: Budget | None = None,
            options: Options = Options()) -> SizeLaws:
    """The laws over the cells of these studies, whose trials the groups have, too.

    budget  at which the best batch is sought; None: each trial's own
    Steps are held against the first target of each workload; the metric at a budget is that of the first target, or
    the first validation metric of which it is known which way is better. UsageError as cells_of raises it.
    """
    sections = {group.workload: section for group in reversed(groups) for section in reversed(group.sections)
                if section.target}
    metric, cells = _metric(sections, studies), cells_of(studies, sizes)
    parts = Counter(cell.workload for cell in cells)
    found = []
    for cell in cells:
        section = sections.get(cell.workload)
        fit = _fit_of(cell, section, options, parts[cell.workload] == 1) if section else None
        found.append(_result(cell, fit, metric, budget, options))
    names = tuple(size.name for size in sizes)
    quantities = {}
    for key in QUANTITIES:
        points = [SizePoint(one.cell.sizes, estimate, one.cell.label) for one in found
                  if (estimate := one.estimate(key))]
        if points:
            quantities[key] = fit_power_law(names, points, options.confidence)
    return SizeLaws(names, tuple(found), quantities, metric, budget, options.confidence)


def _metric(sections: Mapping[JobKey, Section], studies: Sequence[Study]) -> tuple[str, bool] | None:
    """(column, whether smaller is better) that is compared at a budget."""
    for section in sections.values():
        if section.target:
            return section.target.column, section.target.minimizes
    columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
    return next(((name, better(name, ()) == SMALLER) for name in columns if better(name, ())), None)


def _fit_of(cell: SizeCell, section: Section, options: Options, whole: bool) -> CriticalBatchFit | None:
    """The fit to the steps of a cell; ``whole``: it is all of its workload."""
    if whole and not are_searched(cell.studies):
        return section.batches.regimes.fit if section.batches else None
    curve = curve_of(cell.studies, section.target, options) if section.target else None
    return curve.regimes.fit if curve else None


def _result(cell: SizeCell, fit: CriticalBatchFit | None, metric: tuple[str, bool] | None, budget: Budget | None,
            options: Options) -> CellResult:
    parts = [_costs(study, *metric, budget) for study in with_metric(cell.studies, metric[0])
             ] if metric and are_searched(cell.studies) else []
    batches, rates, costs = np.concatenate(parts, axis=1) if parts else np.empty((3, 0))
    distinct, lowest = lowest_by(batches, costs)
    return CellResult(cell, fit, batches, rates, costs, basin_of(batches, rates, costs, options.confidence),
                      valley_of(distinct.astype(int).tolist(), lowest, options.confidence), options.confidence)


def steps_at_overhead(fit: CriticalBatchFit, confidence: float) -> Estimate:
    """The steps at the batch that needs a share OVERHEAD more examples than the fewest; open where B_crit is."""
    def steps(least: np.ndarray, b_crit: np.ndarray, shape: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return (1 + OVERHEAD) * least / (b_crit * ((1 + OVERHEAD) ** shape - 1) ** (1 / shape))
    value = steps(*np.array([fit.s_min.value * fit.b_crit.value, fit.b_crit.value, fit.shape.value]))
    low, high = np.nanquantile(steps(*fit.draws.T), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)), fit.points)


def lowest_by(values: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values, the lowest cost at each)."""
    distinct = np.unique(values)
    return distinct, np.array([costs[values == value].min() for value in distinct])


def _costs(study: Study, column: str, minimizes: bool, budget: Budget | None) -> np.ndarray:
    """Batch, learning rate and cost of each trial that the best is taken over: shape (3, trials)."""
    found = outcomes_under(study, column, minimizes, budget)
    costs = found.value[found.searched] * (1 if minimizes else -1)
    return np.stack([np.full(len(costs), float(study.global_batch)),
                     study.metaparameter(LEARNING_RATE)[found.searched], costs])
