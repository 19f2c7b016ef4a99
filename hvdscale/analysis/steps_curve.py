"""Steps to target S at any global batch, for plans: measured, between batches, beyond them, or predicted.

S is as measured at the batches that met the target. Between two of them it may lie anywhere from straight on
logarithmic axes to straight in 1 / B, as S_min (1 + B_crit / B) is (McCandlish et al. 2018, arXiv 1812.06162). Beyond
them it follows the curve fitted to all of them; without one it is that through the last batch with the gradient noise
scale for B_crit, which is a prediction; else it falls by no more than within the last two batches. The uncertainty is
carried by draws. Where these batches do not tell an upper end of B_crit, steps above them are open: between perfect
scaling and the curve of its low end.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from .critical_batch_fit import fit_critical_batch, steps_at
from .intervals import CONFIDENCE, Estimate
from .step_time import BOUNDED, DRAWS, EXTRAPOLATED, INTERPOLATED, MARKS, MEASURED, TOLD_APART, levels

PREDICTED = "predicted"         # by the gradient noise scale
NOISE_WITHIN = 4.0              # factor that holds B_crit / noise scale, of most workloads (McCandlish et al. 2018)
LOWEST = 10.0                   # an interval open downwards (met at the first evaluation) is taken to end at a tenth
ORDER = (*MARKS[:3], PREDICTED, BOUNDED)


@dataclass(frozen=True)
class StepsPoint:
    """Steps to target at one global batch."""

    global_batch: int
    steps: Estimate
    seeds: int = 0                          # that ran the setting; 0: not known
    met: int = 0                            # of them
    searched: bool = False                  # the steps are the fewest of a search, whichever seeds met
    trials: tuple[tuple[str, int], ...] = ()

    @property
    def unmet(self):
        """The share of the seeds that did not meet."""
        return 1 - self.met / self.seeds if self.seeds else 0.0


@dataclass(frozen=True, eq=False)
class Steps:
    """S at one batch: value, draws of shape (draws,), how it is known, the variance of its logarithm that comes of
    leaving the batches that were run, the point where it was measured, and whether it is open (StepsCurve.open_above).
    """

    value: float
    draws: np.ndarray
    mark: str
    extrapolation: float = 0.0
    point: StepsPoint | None = None
    open: bool = False

    @property
    def beyond(self):
        """Whether the batch lies beyond those that met the target."""
        return self.mark in (EXTRAPOLATED, PREDICTED)

    def interval(self, confidence):
        """Its ends: as measured, else quantiles of the draws."""
        return (self.point.steps.low, self.point.steps.high) if self.point else quantiles(self.draws, confidence)


@dataclass(frozen=True, eq=False)
class StepsCurve:
    """S at any batch. Without points S is in units of S_min, or where there is no B_crit either, of S itself."""

    points: tuple[StepsPoint, ...]          # by batch
    critical: np.ndarray | None             # draws of B_crit, shape (draws,): of the fit, else the noise scale
    examples: np.ndarray | None = None      # draws of S_min B_crit of the fit, likewise; None: there is no fit
    shape: np.ndarray | None = None         # draws of its p, likewise
    confidence: float = CONFIDENCE
    draws: int = DRAWS
    seed: int = 0

    @property
    def relative(self):
        """Whether S is known but for a factor."""
        return not self.points

    @property
    def predicted(self):
        """Whether B_crit is the noise scale."""
        return self.critical is not None and self.examples is None

    @property
    def open_above(self):
        """Whether the batches do not tell where steps stop falling: B_crit may be TOLD_APART times the largest that
        met, or was not fitted."""
        return bool(self.met) and not self.predicted and (
            self.critical is None or self.critical_ends[1] > TOLD_APART * self.met[-1].global_batch)

    @cached_property
    def met(self) -> tuple[StepsPoint, ...]:
        """The points that met the target."""
        return tuple(point for point in self.points if point.steps.met and point.steps.value > 0)

    def at(self, batch) -> Steps:
        """S at a global batch: inf where it is not known to meet the target at all."""
        if self.relative:
            factor = np.ones(self.draws) if self.critical is None else 1 + self.critical / batch
            return Steps(float(np.median(factor)), factor, MEASURED if self.critical is None else PREDICTED,
                         log_variance(factor))
        same = [point for point in self.points if point.global_batch == batch]
        if same:
            return Steps(same[0].steps.value, self._of(same[0]), MEASURED, point=same[0])
        below = [point for point in self.met if point.global_batch < batch]
        above = [point for point in self.met if point.global_batch > batch]
        if below and above:
            return self._between(below[-1], above[0], batch)
        beside = (below or above or [None])[-1 if below else 0]
        if beside is None or self._lost_beyond(beside, bool(below)):
            return Steps(np.inf, np.full(self.draws, np.inf), EXTRAPOLATED)
        return self._beyond(beside, batch)

    @property
    def critical_batch(self):
        """The median of B_crit; None where it is not known."""
        return None if self.critical is None else float(np.median(self.critical))

    @property
    def critical_ends(self):
        """The ends of B_crit; None where it is not known."""
        if self.critical is None:
            return None
        tail = (1 - self.confidence) / 2
        with np.errstate(invalid="ignore"):             # between two that are inf
            low, high = np.quantile(self.critical, (tail, 1 - tail), method="hazen")
        return float(low), np.inf if np.isnan(high) else float(high)

    def _lost_beyond(self, beside, above):
        """Whether a batch above (or below) this one did not meet the target."""
        lost = [point.global_batch for point in self.points if point not in self.met]
        return any((batch > beside.global_batch) == above for batch in lost)

    def _between(self, left, right, batch):
        ends = left.global_batch, right.global_batch
        straight = np.log(batch / ends[0]) / np.log(ends[1] / ends[0])
        inverse = (1 / ends[0] - 1 / batch) / (1 / ends[0] - 1 / ends[1])

        def steps(first, last, share):
            return (first ** (1 - straight) * last ** straight) ** share * (
                first + (last - first) * inverse) ** (1 - share)
        draws = self._of(left), self._of(right)
        known = np.isfinite(draws).all(0)
        share = np.random.default_rng([self.seed, 7]).uniform(size=self.draws)
        drawn = np.full(self.draws, np.inf)
        drawn[known] = steps(draws[0][known], draws[1][known], share[known])
        return Steps(steps(left.steps.value, right.steps.value, 0.5), drawn, INTERPOLATED)

    def _beyond(self, beside, batch):
        above = batch > beside.global_batch
        if self.critical is not None:
            shape = 1.0 if self.shape is None else self.shape
            factor = np.divide(*(steps_at(one, 1.0, self.critical, shape) for one in (batch, beside.global_batch)))
        else:
            factor = (beside.global_batch / batch) ** self._slope(above)
        value, drawn = beside.steps.value * float(np.median(factor)), self._of(beside) * factor
        if self.examples is not None:
            curve = steps_at(batch, self.examples, self.critical, self.shape)
            value, drawn = float(np.median(curve)), np.where(np.isinf(drawn), np.inf, curve)
        return Steps(value, drawn, PREDICTED if self.predicted else EXTRAPOLATED, log_variance(factor),
                     open=above and self.open_above)

    def _slope(self, above):
        """Draws of how the steps fall beyond the batches: as a power of the batch that is anywhere between that of the
        last two batches and none above them, and between that of the first two and 1 below. Returns diminish."""
        share = np.random.default_rng([self.seed, 3]).uniform(size=self.draws)
        if len(self.met) < 2:
            return share
        left, right = self.met[-2:] if above else self.met[:2]
        with np.errstate(invalid="ignore", divide="ignore"):        # where one was not met
            slope = np.log(self._of(left) / self._of(right)) / np.log(right.global_batch / left.global_batch)
        slope = np.clip(np.where(np.isfinite(slope), slope, 1 if above else 0), 0, 1)
        return share * slope if above else 1 - share * (1 - slope)

    def _of(self, point):
        """Draws of a point's steps: log-normal on each side of the value, as wide as its interval."""
        estimate = point.steps
        if not estimate.met or estimate.value == 0:
            return np.full(self.draws, estimate.value)
        random = np.random.default_rng([self.seed, 4, point.global_batch])
        deviate = random.permutation(ndtri(levels(self.draws)))
        low, high = (value if end != end else end for value, end in
                     ((estimate.value, estimate.low), (estimate.value, estimate.high)))
        down = np.log(estimate.value / max(low, estimate.value / LOWEST))
        up = np.log(high / estimate.value) if high < np.inf else down
        drawn = estimate.value * np.exp(deviate / ndtri(0.5 + self.confidence / 2) * np.where(deviate < 0, down, up))
        if np.isinf(high):
            drawn[deviate > -ndtri(max(point.unmet, (1 - self.confidence) / 2))] = np.inf
        elif point.unmet:           # of a search: whether a seed meets says nothing of the fewest steps
            drawn[random.permutation(levels(self.draws)) < point.unmet] = np.inf
        return drawn


def points_of(section) -> tuple[tuple[StepsPoint, ...], np.ndarray | None]:
    """(points, the fit's draws or None) of a section's table by batch: of repeats of a setting each."""
    cells = [point.cell for point in section.batches.points if point.cell.runs]
    points = tuple(StepsPoint(cell.global_batch, cell.steps, len(cell.samples.seeds), cell.met, cell.searched,
                              tuple(run.trial.key for run in cell.runs)) for cell in cells)
    return points, _draws_of(section.batches.regimes and section.batches.regimes.fit)


def points_of_curve(curve) -> tuple[tuple[StepsPoint, ...], np.ndarray | None]:
    """Likewise of a curve over studies, see analysis.curves.curve_of: of the fewest steps of a search each."""
    points = tuple(StepsPoint(point.global_batch, point.steps, searched=True,
                              trials=() if point.best is None else (point.study.key(point.best),))
                   for point in curve.points)
    return points, _draws_of(curve.regimes.fit)


def points_of_both(section, curve) -> tuple[tuple[StepsPoint, ...], np.ndarray | None]:
    """Likewise of a section some of whose batches were searched: those as the curve has them, with the seeds of the
    best trial; the fit through all."""
    searched = {point.global_batch for point in curve.points}
    own = {point.global_batch: point for point in points_of(section)[0]}
    points = [_with_seeds(point, own.get(point.global_batch)) for point in points_of_curve(curve)[0]
              if point.global_batch in searched]
    points += [point for batch, point in own.items() if batch not in searched]
    points.sort(key=lambda point: point.global_batch)
    fit = fit_critical_batch([point.global_batch for point in points], [point.steps for point in points],
                             section.options.confidence)
    return tuple(points), _draws_of(fit)


def _with_seeds(point, own):
    """A search's point with the seeds that ran its best trial's setting, where the section's own point is of it."""
    if own is None or not set(point.trials) & set(own.trials):
        return point
    return replace(point, seeds=own.seeds, met=own.met)


def _draws_of(fit):
    """See CriticalBatchFit.draws; None where there is no fit."""
    return None if fit is None else fit.draws


def steps_curve(points: Sequence[StepsPoint], fit=None, *, noise=None, confidence=CONFIDENCE, draws=DRAWS,
                seed=0) -> StepsCurve:
    """The curve of these points.

    fit    draws of the curve fitted to them (CriticalBatchFit.draws), of any number, or None
    noise  draws of the noise scale, which stands for B_crit where there is no fit, of any number, or None
    """
    examples, critical, shape = (None, noise, None) if fit is None else np.asarray(fit, float).T
    if critical is not None:            # evenly by B_crit, so that its quantiles stay
        taken = np.argsort(critical)[(levels(draws) * len(critical)).astype(int)]
        taken = np.random.default_rng([seed, 5]).permutation(taken)
        critical, examples, shape = (None if one is None else np.asarray(one, float)[taken]
                                     for one in (critical, examples, shape))
    points = tuple(sorted(points, key=lambda point: point.global_batch))
    return StepsCurve(points, critical, examples, shape, confidence, draws, seed)


def noise_draws(scale, low=np.nan, high=np.nan, confidence=CONFIDENCE, draws=DRAWS, seed=0):
    """Draws of B_crit from a noise scale with its interval, within a factor NOISE_WITHIN of it; shape (draws,)."""
    random = np.random.default_rng([seed, 6])
    quantile = ndtri(0.5 + confidence / 2)
    measured, model = (random.permutation(ndtri(levels(draws))) / quantile for _ in range(2))
    down = np.log(scale / low) if 0 < low <= scale else np.log(NOISE_WITHIN) if low == 0 else 0.0
    up = np.log(high / scale) if scale <= high < np.inf else np.log(NOISE_WITHIN) if np.isinf(high) else 0.0
    return scale * np.exp(measured * np.where(measured < 0, down, up) + model * np.log(NOISE_WITHIN))


def quantiles(draws, confidence):
    """Ends of the central share of draws; inf where so many are inf."""
    ordered = np.sort(draws)
    tail = (1 - confidence) / 2
    last = len(ordered) - 1
    return float(ordered[int(np.floor(tail * last))]), float(ordered[int(np.ceil((1 - tail) * last))])


def log_variance(draws):
    known = draws[np.isfinite(draws) & (draws > 0)]
    return float(np.log(known).var()) if len(known) else 0.0
