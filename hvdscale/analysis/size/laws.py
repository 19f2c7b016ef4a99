"""How batch, steps and rate grow with size: one law a quantity, over the cells of several workloads.

Steps to a target give S_min, B_crit and the batch of 20 % overhead (critical_batch_fit). The metric at the end of each
trial's own budget, or of the one asked for, gives the best batch and the best rate there: where a bowl over both is
lowest, or without one, where a valley over the batches is (best_batch).

The bowl is a quadratic of the cost in log B and log rate around its lowest point, by least squares over the best
seventh, quarter and half of all trials. This uses every trial near the bottom, as runs off the best batch say much
(arXiv 2607.01487); a valley of the lowest cost at each batch uses one a batch. The value is the median of the three.
The interval is the hull of theirs, each Student's by the delta method, and of where the bottom goes as the part shrinks
to a point, as if it moved in proportion to the part's radius, give or take half of that way. A bottom that moves with
the part fitted, as a lopsided bowl's does, and a flat one have wide intervals. They hold the truth as often as they say
for bowls that are about alike on both sides; where one side is 2.5 times as steep as the other and trials are noisy, in
85 % (tools/coverage). Where an interval reaches beyond the batches or rates that were run, it is open on that side."""
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
from ..intervals import CONFIDENCE, Estimate, student_quantile
from ..report_data import JobResults, Options, Section
from ..studies import Study, are_searched, better, with_metric
from ..trials import JobKey
from .power_law import PowerLaw, SizePoint, fit_power_law
from .sizes import Size, SizeCell, cells_of

# what laws are of: key -> (words, unit)
QUANTITIES = {"overhead": ("batch of 20% overhead", "examples"), "steps": ("steps at 20% overhead", "steps"),
              "b_crit": ("critical batch size", "examples"), "s_min": ("fewest steps", "steps"),
              "best_batch": ("best batch", "examples"), "best_rate": ("best learning rate", "1")}
OF_STEPS = ("overhead", "steps", "b_crit", "s_min")

# the bowl
SHARES = (1 / 7, 1 / 4, 1 / 2)      # of the trials, those with the lowest costs
SHRINK = 1 / ((SHARES[-1] / SHARES[0]) ** 0.5 - 1)      # the radius of a part goes with the root of its share
LEAST_BOWLS = 2                     # of these parts whose fit has a lowest point
UNKNOWNS = 6
LEAST_TRIALS = 12                   # in each part
LEAST_VALUES = 3                    # different batches, and rates, in each part


@dataclass(frozen=True, eq=False)
class CellResult:
    """What was found in one cell."""

    cell: SizeCell
    fit: CriticalBatchFit | None    # to its steps to the target; None: no target, or too few batches met it
    batches: np.ndarray             # of each trial with a value of the metric, shape (trials,)
    rates: np.ndarray
    costs: np.ndarray               # smaller is better
    basin: tuple[Estimate, Estimate] | None     # (batch, rate) where the bowl over both is lowest, see basin_of
    valley: Valley | None           # of the lowest cost at each batch; None: fewer than LEAST_FITTED batches
    confidence: float

    def estimate(self, quantity: str) -> Estimate | None:
        """A quantity of QUANTITIES; None: not measured here."""
        if quantity == "steps":
            return steps_at_overhead(self.fit, self.confidence) if self.fit else None
        if quantity in OF_STEPS:
            found: Estimate | None = getattr(self.fit, quantity) if self.fit else None
            return found
        if self.basin is not None:
            batch, rate = self.basin
            return batch if quantity == "best_batch" else rate
        return self.valley.best if self.valley and quantity == "best_batch" else None


@dataclass(frozen=True, eq=False)
class SizeLaws:
    """The laws of several cells."""

    names: tuple[str, ...]                  # of the sizes
    cells: tuple[CellResult, ...]
    quantities: Mapping[str, PowerLaw]      # those of QUANTITIES that some cell has, by key
    metric: tuple[str, bool] | None         # (column, whether smaller is better) at a budget; None: none was compared
    budget: Budget | None
    confidence: float


def laws_of(groups: Sequence[JobResults], studies: Sequence[Study], sizes: Sequence[Size], budget: Budget | None = None,
            options: Options = Options()) -> SizeLaws:
    """The laws over the cells of these studies, whose trials the groups have, too.

    budget  at which the best batch is sought; None: each trial's own Steps are held against the first target of each
    workload; the metric at a budget is that of the first target, or the first validation metric of which it is known
    which way is better. UsageError as cells_of raises it."""
    sections = {group.workload: section for group in reversed(groups) for section in reversed(group.sections)
                if section.target}
    metric, cells = _metric(sections, studies), cells_of(studies, sizes)
    parts = Counter(cell.workload for cell in cells)
    found = tuple(_result(cell, sections.get(cell.workload), parts[cell.workload] == 1, metric, budget, options)
                  for cell in cells)
    names = tuple(size.name for size in sizes)
    points = {key: [SizePoint(one.cell.sizes, estimate, one.cell.label) for one in found
                    if (estimate := one.estimate(key))] for key in QUANTITIES}
    laws = {key: fit_power_law(names, own, options.confidence) for key, own in points.items() if own}
    return SizeLaws(names, found, laws, metric, budget, options.confidence)


def _metric(sections: Mapping[JobKey, Section], studies: Sequence[Study]) -> tuple[str, bool] | None:
    """(column, whether smaller is better) that is compared at a budget."""
    for section in sections.values():
        if section.target:
            return section.target.column, section.target.minimizes
    columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
    return next(((name, better(name, ()) == SMALLER) for name in columns if better(name, ())), None)


def _result(cell: SizeCell, section: Section | None, whole: bool, metric: tuple[str, bool] | None,
            budget: Budget | None, options: Options) -> CellResult:
    """What is found in a cell; ``whole``: it is all of its workload, whose results the section has."""
    searched = are_searched(cell.studies)
    curve = section.batches if section else None
    if section and section.target and (searched or not whole):
        curve = curve_of(cell.studies, section.target, options)
    parts = [np.empty((3, 0))]
    if metric and searched:
        column, minimizes = metric
        for study in with_metric(cell.studies, column):
            outcomes = outcomes_under(study, column, minimizes, budget)
            own = outcomes.value[outcomes.searched] * (1 if minimizes else -1)
            parts.append(np.stack([np.full(len(own), float(study.global_batch)),
                                   study.metaparameter(LEARNING_RATE)[outcomes.searched], own]))
    batches, rates, costs = np.concatenate(parts, axis=1)
    distinct, lowest = lowest_by(batches, costs)
    return CellResult(cell, curve.regimes.fit if curve else None, batches, rates, costs,
                      basin_of(batches, rates, costs, options.confidence),
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


def basin_of(batches: np.ndarray, rates: np.ndarray, costs: np.ndarray, confidence: float = CONFIDENCE
             ) -> tuple[Estimate, Estimate] | None:
    """(batch, rate) at the bottom of the bowl of trials, arrays of shape (trials,); None: too few there, or no bowl."""
    known = np.isfinite(costs) & np.isfinite(rates) & (rates > 0)
    logs, costs = np.log(np.column_stack([batches[known], rates[known]])), costs[known]
    order = np.argsort(costs, kind="stable")
    parts = [order[:int(np.ceil(share * len(costs)))] for share in SHARES]
    found = [one for one in (_lowest_point(logs[part], costs[part], confidence) for part in parts) if one]
    if len(found) < LEAST_BOWLS:
        return None
    places, halves = (np.array([one[at] for one in found]) for at in (0, 1))
    ahead = (places[0] - places[-1]) * SHRINK       # how far the bottom goes on as the part shrinks to a point
    around = halves[0] + np.abs(ahead) / 2
    low = np.minimum((places - halves).min(0), places[0] + ahead - around)
    high = np.maximum((places + halves).max(0), places[0] + ahead + around)
    low, high = np.where(low < logs.min(0), -np.inf, low), np.where(high > logs.max(0), np.inf, high)
    ends = np.exp(np.stack([np.median(places, 0), low, high]))
    batch, rate = (Estimate(float(value), float(least), float(most), len(parts[-1])) for value, least, most in ends.T)
    return batch, rate


def _lowest_point(logs: np.ndarray, costs: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray] | None:
    """(place, half-width of its interval) of the lowest point of a quadratic, in logarithms; None: it has none."""
    if len(costs) < LEAST_TRIALS or min(len(np.unique(one)) for one in logs.T) < LEAST_VALUES:
        return None
    middle = logs.mean(0)
    x, y = (logs - middle).T
    design = np.column_stack([np.ones(len(x)), x, y, x ** 2, y ** 2, x * y])
    if np.linalg.matrix_rank(design) < UNKNOWNS:
        return None
    beta = np.linalg.lstsq(design, costs, rcond=None)[0]
    hessian = np.array([[2 * beta[3], beta[5]], [beta[5], 2 * beta[4]]])
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        return None
    place = -np.linalg.solve(hessian, beta[1:3])
    u, v = place
    # the gradient of the cost at the place, by each unknown: what moves the place by minus its solution
    moves = -np.linalg.solve(hessian, np.array([[0, 1, 0, 2 * u, 0, v], [0, 0, 1, 0, 2 * v, u]]))
    freedom = len(costs) - UNKNOWNS
    variance = float(((costs - design @ beta) ** 2).sum()) / freedom
    covariance = moves @ np.linalg.inv(design.T @ design) @ moves.T * variance
    return place + middle, student_quantile(freedom, confidence) * np.sqrt(np.diag(covariance))
