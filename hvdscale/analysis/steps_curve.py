"""Steps to target S at any global batch, for plans: measured, interpolated, extrapolated, or predicted.

At batches that met the target, S is as measured. Between two of them it lies between a straight line on logarithmic
axes and one in 1 / B, as S_min (1 + B_crit / B) is (McCandlish et al. 2018, arXiv 1812.06162). Beyond them it follows
the curve fitted to all of them. Without a fit, it follows the curve through the last batch with the gradient noise
scale as B_crit, which is a prediction. Without either, it falls no faster than between the last two batches. Draws
represent the uncertainty. Where the batches do not bound B_crit from above, steps beyond them are open: between perfect
scaling and the curve of the lower end of B_crit.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from .critical_batch_fit import fit_critical_batch, steps_at
from .curves import Curve, CurvePoint
from .drawn import Drawn, levels, log_variance, quantiles
from .intervals import CONFIDENCE, UNKNOWN, Estimate, Spread, normal_quantile
from .report_data import Section
from .step_time import ASSUMED, DETERMINED, DRAWS, EXTRAPOLATED, INTERPOLATED, MARKS, MEASURED
from .steps import RunCell

PREDICTED = "predicted"         # from the gradient noise scale
NOISE_WITHIN = 4.0              # B_crit / noise scale is within this factor for most workloads (McCandlish et al. 2018)
LOWEST = 10.0                   # an interval open below (met at the first evaluation) is assumed to end at a tenth
ORDER = (*MARKS[:3], PREDICTED, ASSUMED)


@dataclass(frozen=True)
class StepsPoint:
    """Steps to target at one global batch."""

    global_batch: int
    steps: Estimate
    seeds: int = 0                          # number that ran the setting; 0: unknown
    met: int = 0                            # number of them that met the target
    searched: bool = False                  # the steps are the fewest of a search, whichever seeds met
    trials: tuple[tuple[str, int], ...] = ()
    spread: Spread = UNKNOWN                # of log S between runs of a setting
    late: tuple[float, ...] = ()            # of the seeds that stand apart, how many times the steps of the others

    @property
    def unmet(self) -> float:
        """The share of the seeds that did not meet the target."""
        return 1 - self.met / self.seeds if self.seeds else 0.0


@dataclass(frozen=True, eq=False)
class StepsAt(Drawn):
    """S at one batch.

    mark           how it is known, of ORDER
    extrapolation  variance of log S due to leaving the batches that were run
    point          where it was measured; None: it was not
    open           see StepsCurve.open_above
    """

    mark: str
    extrapolation: float = 0.0
    point: StepsPoint | None = None
    open: bool = False

    @property
    def beyond(self) -> bool:
        """Whether the batch lies beyond those that met the target."""
        return self.mark in (EXTRAPOLATED, PREDICTED)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The ends of its interval: as measured, else quantiles of the draws."""
        return (self.point.steps.low, self.point.steps.high) if self.point else quantiles(self.draws, confidence)


@dataclass(frozen=True, eq=False)
class StepsCurve:
    """S at any batch. Without points, S is in units of S_min; without B_crit too, of S itself."""

    points: tuple[StepsPoint, ...]          # by batch
    critical: np.ndarray | None             # draws of B_crit, shape (draws,): of the fit, else of the noise scale
    examples: np.ndarray | None = None      # draws of S_min B_crit of the fit; None: there is no fit
    shape: np.ndarray | None = None         # draws of its p, likewise
    confidence: float = CONFIDENCE
    draws: int = DRAWS

    @property
    def relative(self) -> bool:
        """Whether S is only known up to a factor."""
        return not self.points

    @property
    def predicted(self) -> bool:
        """Whether B_crit is predicted by the noise scale."""
        return self.critical is not None and self.examples is None

    @property
    def open_above(self) -> bool:
        """Whether it is unknown where steps stop falling: B_crit was not fitted, or may be DETERMINED times the largest
        batch that met."""
        ends = self.critical_ends
        return bool(self.met) and not self.predicted and (
            ends is None or ends[1] > DETERMINED * self.met[-1].global_batch)

    @cached_property
    def met(self) -> tuple[StepsPoint, ...]:
        """The points that met the target."""
        return tuple(point for point in self.points if point.steps.met and point.steps.value > 0)

    def at(self, batch: int) -> StepsAt:
        """S at a global batch: inf where the target may not be met at all."""
        if self.relative:
            factor = np.ones(self.draws) if self.critical is None else 1 + self.critical / batch
            return StepsAt(float(np.median(factor)), factor, MEASURED if self.critical is None else PREDICTED,
                           log_variance(factor))
        same = [point for point in self.points if point.global_batch == batch]
        if same:
            return self.measured(same[0])
        below = [point for point in self.met if point.global_batch < batch]
        above = [point for point in self.met if point.global_batch > batch]
        if below and above:
            return self._interpolate(below[-1], above[0], batch)
        beside = below[-1] if below else above[0] if above else None
        if beside is None or self._is_lost_beyond(beside, bool(below)):
            return StepsAt(np.inf, np.full(self.draws, np.inf), EXTRAPOLATED)
        return self._extrapolate(beside, batch)

    def measured(self, point: StepsPoint) -> StepsAt:
        """S as a point has it."""
        return StepsAt(point.steps.value, self._draw_point(point), MEASURED, point=point)

    @property
    def critical_batch(self) -> float | None:
        """The median of B_crit; None where it is unknown."""
        return None if self.critical is None else float(np.median(self.critical))

    @property
    def critical_ends(self) -> tuple[float, float] | None:
        """The ends of B_crit's interval; None where it is unknown."""
        if self.critical is None:
            return None
        tail = (1 - self.confidence) / 2
        with np.errstate(invalid="ignore"):             # between two that are inf
            low, high = np.quantile(self.critical, (tail, 1 - tail), method="hazen")
        return float(low), np.inf if np.isnan(high) else float(high)

    def _is_lost_beyond(self, beside: StepsPoint, above: bool) -> bool:
        """Whether a batch above (or below) this one did not meet the target."""
        lost = [point.global_batch for point in self.points if point not in self.met]
        return any((batch > beside.global_batch) == above for batch in lost)

    def _interpolate(self, left: StepsPoint, right: StepsPoint, batch: int) -> StepsAt:
        ends = left.global_batch, right.global_batch
        straight = np.log(batch / ends[0]) / np.log(ends[1] / ends[0])
        inverse = (1 / ends[0] - 1 / batch) / (1 / ends[0] - 1 / ends[1])

        def steps(first: Any, last: Any, share: Any) -> Any:
            return (first ** (1 - straight) * last ** straight) ** share * (
                first + (last - first) * inverse) ** (1 - share)
        draws = self._draw_point(left), self._draw_point(right)
        known = np.isfinite(draws).all(0)
        share = np.random.default_rng([0, 7]).uniform(size=self.draws)
        drawn = np.full(self.draws, np.inf)
        drawn[known] = steps(draws[0][known], draws[1][known], share[known])
        return StepsAt(steps(left.steps.value, right.steps.value, 0.5), drawn, INTERPOLATED)

    def _extrapolate(self, beside: StepsPoint, batch: int) -> StepsAt:
        above = batch > beside.global_batch
        shape = 1.0 if self.shape is None else self.shape
        if self.critical is None:
            factor = (beside.global_batch / batch) ** self._draw_slope(above)
        else:
            factor = np.divide(*(steps_at(one, 1.0, self.critical, shape) for one in (batch, beside.global_batch)))
        value, drawn = beside.steps.value * float(np.median(factor)), self._draw_point(beside) * factor
        if self.critical is not None and self.examples is not None:
            curve = steps_at(batch, self.examples, self.critical, shape)
            value, drawn = float(np.median(curve)), np.where(np.isinf(drawn), np.inf, curve)
        return StepsAt(value, drawn, PREDICTED if self.predicted else EXTRAPOLATED, log_variance(factor),
                       open=above and self.open_above)

    def _draw_slope(self, above: bool) -> np.ndarray:
        """Draws of the power of the batch with which steps fall beyond the batches. As returns diminish, it lies
        between that of the last two batches and 0 above them, and between that of the first two and 1 below."""
        share = np.random.default_rng([0, 3]).uniform(size=self.draws)
        if len(self.met) < 2:
            return share
        left, right = self.met[-2:] if above else self.met[:2]
        with np.errstate(invalid="ignore", divide="ignore"):        # where one was not met
            ratio = self._draw_point(left) / self._draw_point(right)
            slope = np.log(ratio) / np.log(right.global_batch / left.global_batch)
        slope = np.clip(np.where(np.isfinite(slope), slope, 1 if above else 0), 0, 1)
        return share * slope if above else 1 - share * (1 - slope)

    def _draw_point(self, point: StepsPoint) -> np.ndarray:
        """Draws of a point's steps: log-normal on each side of the value, as wide as its interval."""
        estimate = point.steps
        if not estimate.met or estimate.value == 0:
            return np.full(self.draws, estimate.value)
        random = np.random.default_rng([0, 4, point.global_batch])
        deviate = random.permutation(scipy.special.ndtri(levels(self.draws)))
        low, high = (value if end != end else end for value, end in
                     ((estimate.value, estimate.low), (estimate.value, estimate.high)))
        down = np.log(estimate.value / max(low, estimate.value / LOWEST))
        up = np.log(high / estimate.value) if high < np.inf else down
        drawn = estimate.value * np.exp(deviate / normal_quantile(self.confidence) * np.where(deviate < 0, down, up))
        if np.isinf(high):
            drawn[deviate > -scipy.special.ndtri(max(point.unmet, (1 - self.confidence) / 2))] = np.inf
        elif point.unmet:           # of a search: whether a seed meets is independent of the fewest steps
            drawn[random.permutation(levels(self.draws)) < point.unmet] = np.inf
        return drawn


PointsAndFit = tuple[tuple[StepsPoint, ...], "np.ndarray | None"]       # points, draws of the fit through them or None
StepsOf = Callable[[Section], PointsAndFit]


def points_of(section: Section) -> PointsAndFit:
    """(points, draws of the fit or None) of a section's table by batch."""
    return points_of_curve(section.batches) if section.batches else ((), None)


def points_of_curve(curve: Curve) -> PointsAndFit:
    """Likewise of a curve: each of a search's fewest steps, or of a setting's repeats."""
    points = tuple(StepsPoint(point.global_batch, point.steps, searched=True, trials=point.keys)
                   if isinstance(point, CurvePoint) else point_of_cell(point.cell)
                   for point in curve.judged if isinstance(point, CurvePoint) or point.cell.runs)
    return points, curve.regimes.fit.draws if curve.regimes.fit else None


def point_of_cell(cell: RunCell) -> StepsPoint:
    """The point of a cell's runs."""
    return StepsPoint(cell.global_batch, cell.steps, len(cell.samples.seeds), cell.met, cell.searched, cell.keys,
                      cell.pools.of("steps").at(cell.global_batch), tuple(cell.apart.values()))


def points_of_both(section: Section, curve: Curve) -> PointsAndFit:
    """Likewise for a section with some batches from searches: those of the curve, with the seeds of the best trial, and
    the section's own for the others; the fit is through all."""
    own = {point.global_batch: point for point in points_of(section)[0]}
    points = [_add_seeds(point, own.get(point.global_batch)) for point in points_of_curve(curve)[0]]
    points += [point for batch, point in own.items() if batch not in curve.batches]
    points.sort(key=lambda point: point.global_batch)
    fit = fit_critical_batch([point.global_batch for point in points], [point.steps for point in points],
                             section.options.confidence)
    return tuple(points), fit.draws if fit else None


def _add_seeds(point: StepsPoint, own: StepsPoint | None) -> StepsPoint:
    """A search's point with the seeds of its best trial's setting, where the section's own point is of that setting."""
    if own is None or not set(point.trials) & set(own.trials):
        return point
    return replace(point, seeds=own.seeds, met=own.met, spread=own.spread, late=own.late)


def steps_curve(points: Sequence[StepsPoint], fit: ArrayLike | None = None, *, noise: ArrayLike | None = None,
                confidence: float = CONFIDENCE, draws: int = DRAWS) -> StepsCurve:
    """The curve of these points.

    fit    draws of the curve fitted to them (CriticalBatchFit.draws), any number, or None
    noise  draws of the noise scale, the prediction of B_crit where there is no fit, any number, or None
    """
    points = tuple(sorted(points, key=lambda point: point.global_batch))

    def pick(critical: np.ndarray) -> np.ndarray:       # evenly by B_crit, to keep its quantiles
        picked = np.argsort(critical)[(levels(draws) * len(critical)).astype(int)]
        return np.random.default_rng([0, 5]).permutation(picked)
    if fit is not None:
        fitted = np.asarray(fit, float)
        examples, critical, shape = fitted[pick(fitted[:, 1])].T
        return StepsCurve(points, critical, examples, shape, confidence, draws)
    predicted = None if noise is None else np.asarray(noise, float)
    return StepsCurve(points, None if predicted is None else predicted[pick(predicted)], confidence=confidence,
                      draws=draws)


def noise_draws(scale: float, low: float = np.nan, high: float = np.nan, confidence: float = CONFIDENCE,
                draws: int = DRAWS) -> np.ndarray:
    """Draws of B_crit, within a factor NOISE_WITHIN of a noise scale with its interval; shape (draws,)."""
    random = np.random.default_rng([0, 6])
    measured, model = (random.permutation(scipy.special.ndtri(levels(draws))) / normal_quantile(confidence)
                       for _ in range(2))
    down = np.log(scale / low) if 0 < low <= scale else np.log(NOISE_WITHIN) if low == 0 else 0.0
    up = np.log(high / scale) if scale <= high < np.inf else np.log(NOISE_WITHIN) if np.isinf(high) else 0.0
    return scale * np.exp(measured * np.where(measured < 0, down, up) + model * np.log(NOISE_WITHIN))
