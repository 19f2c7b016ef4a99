"""The critical batch size B_crit and the fewest steps S_min, fitted to steps to target by global batch.

The curve is S = S_min (1 + (B_crit / B)^p)^(1/p), with p from 1/2 to 8; README.rst says why. A sharp knee is the limit
of large p. Two more batches are reported: that of 50 % efficiency, at which B S = 2 E_min (B_crit itself where p = 1),
and that of 20 % overhead, at which B S = 1.2 E_min (Zhang et al. 2024, arXiv 2410.21676).

The fit is least squares on log S, with S midway between the evaluation that met the target and the one before, where
that is known. Points have equal weight, except those whose interval is more than twice as wide as the median one. The
width of an interval depends on its value, so weighting by width would lift the curve. The variance around the curve is
estimated from the residuals and from the points' own intervals. These count as OWN_FREEDOM residuals unless the
residuals refute them (F test, 10 %); then as one. Intervals are profiles of the sum of squares over the other
parameters. Where that leaves too few degrees of freedom (four single runs), they are the hull over all shapes. An
interval is open where the points do not reach: perfect scaling throughout only bounds B_crit from below, a plateau from
above. So does a best fit at the softest shape whose B_crit lies beyond the batches: from below. The evaluation grid may
shift all batches alike, and so may the luck of the seeds, which no residual shows: half of it and the luck widen the
interval of S_min. Where the grid of most points is unknown, that interval has no lower end.

Where S rises significantly at the largest batches, the curve does not apply: these batches are left out and listed.
Where a power of the batch past RISES_PAST times B_crit only seems to fit better, intervals hold those with it as
well."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from .intervals import CONFIDENCE, Estimate, isotonic, normal_quantile, student_quantile

LEAST_POINTS = 3
HYPERBOLA = 1.0         # the shape of McCandlish et al.
SHAPES = tuple(float(shape) for shape in np.geomspace(0.5, 8, 17))
REACH = 300.0           # B_crit is searched up to this factor beyond the batches; a longer interval is open
GRID = 240              # values of B_crit in the first grid
CLOSE = 61              # and in each finer one
DRAWS = 1000
OWN_FREEDOM = 3         # degrees of freedom of the points' own intervals
REFUTED = 0.10          # level of the F test at which the residuals refute the points' own intervals
RISES = 2.5             # standard errors by which a rising tail must lie above the batches before it
OVERHEAD = 0.20
LEAST_TREND = 4         # batches from which the noise may be seen to grow with them
TREND = 4.0             # standard errors of its growth
RISES_PAST = 4.0        # times B_crit, beyond which steps may rise slowly
# by so many variances such a rise lowers the sum of squares where intervals hold it: of S_min, which it hides most
LIKELY, LIKELY_OF_S_MIN = 1.5, 0.75
WIDENED = "s_min", "b_crit", "half_efficient", "overhead"       # estimates whose intervals hold those of other curves


@dataclass(frozen=True, eq=False)
class CriticalBatchFit:
    """The curve that fits best. Intervals are open, to 0 or inf, where the points do not reach. Where perfect scaling
    alone fits best, S_min is 0 and B_crit inf; where a plateau alone does, B_crit is 0."""

    s_min: Estimate
    b_crit: Estimate
    half_efficient: Estimate        # the batch at which B S = 2 E_min
    overhead: Estimate              # the batch at which B S = 1.2 E_min
    shape: Estimate                 # p; its value is 1 where it was not fitted
    rms_log2: float                 # of log2(S / curve) over the points
    points: int                     # number of batches in the fit
    spread: float                   # deviation around the curve, relative to that of the points' own intervals, or NaN
    lack_of_fit: float              # p-value of the residuals against the points' own intervals (F test), or NaN
    left_out: tuple[int, ...]       # batches of a rising tail, not in the fit
    # of E_min = S_min B_crit (in examples), B_crit and p that represent their uncertainty: shape (DRAWS, 3), made once.
    # B_crit is inf as often as its intervals are open above
    draws: Callable[[], np.ndarray] = field(repr=False)

    def steps(self, batch: ArrayLike) -> Any:
        """S at a batch, or an array of them; NaN where the batches show only one asymptote."""
        if not 0 < self.b_crit.value < np.inf:
            return np.full(np.shape(batch), np.nan)[()]
        return steps_at(batch, self.s_min.value * self.b_crit.value, self.b_crit.value, self.shape.value)


def steps_at(batch: ArrayLike, least_examples: ArrayLike, b_crit: ArrayLike, shape: ArrayLike) -> np.ndarray:
    """S = E_min (B^-p + B_crit^-p)^(1/p); broadcasts, and B_crit may be inf (perfect scaling)."""
    shape = np.asarray(shape)
    with np.errstate(divide="ignore"):
        return least_examples * np.exp(np.logaddexp(-shape * np.log(batch), -shape * np.log(b_crit)) / shape)


def fit_critical_batch(batches: Sequence[float], estimates: Sequence[Estimate], confidence: float = CONFIDENCE,
                       shapes: Sequence[float] = SHAPES) -> CriticalBatchFit | None:
    """The curve fitted to steps at global batches, smallest first, with p of ``shapes``; None: few points met."""
    met = [SettingPoint(batch, one, confidence) for batch, one in zip(batches, estimates) if one.met and one.value > 0]
    weighted = [point for point in met if np.isfinite(point.deviation)]
    points = weighted if len(weighted) >= LEAST_POINTS else met
    if len(points) < LEAST_POINTS:
        return None
    # a tail rises where its mean log S lies RISES standard errors above the last block of the decreasing regression of
    # the points before; the clearest is left out with the batch before it, where the rise may begin while the curve
    # still falls
    logs, most, before = np.array([point.log_steps for point in points]), RISES, len(points)
    variance = float(np.mean([point.deviation ** 2 for point in points]))       # NaN without all deviations: no tail
    for first in range(LEAST_POINTS, len(logs)):
        falling = -isotonic(-logs[None, :first])[0]
        size = np.count_nonzero(falling == falling[-1])
        rise = (logs[first:].mean() - falling[-1]) / np.sqrt(variance * (1 / (len(logs) - first) + 1 / size))
        if rise > most:
            most, before = rise, max(LEAST_POINTS, first - 1)
    kept, left_out = points[:before], tuple(int(point.batch) for point in points[before:])

    if len(shapes) == 1 or len(kept) - 3 + OWN_FREEDOM * (points is weighted) >= 2:
        return _fit(kept, left_out, confidence, shapes)
    # too few points to fit the shape and a spread
    hyperbola, *fits = (_fit(kept, left_out, confidence, [shape]) for shape in (HYPERBOLA, *shapes))

    @cache
    def draws() -> np.ndarray:
        return np.stack([fit.draws() for fit in fits])[np.arange(DRAWS) % len(fits), np.arange(DRAWS)]
    widest: dict[str, Any] = {name: _widen([getattr(one, name) for one in (hyperbola, *fits)]) for name in WIDENED}
    return replace(hyperbola, **widest, draws=draws,
                   shape=Estimate(HYPERBOLA, float(shapes[0]), float(shapes[-1]), len(kept)))


class SettingPoint:
    """One batch: log S midway between two evaluations, the standard deviation that its interval implies (NaN: none),
    and half the distance of the two evaluations, on the logarithm, with the luck that all batches share (inf: the one
    before is unknown)."""

    def __init__(self, batch: float, estimate: Estimate, confidence: float) -> None:
        between = estimate.value if np.isnan(estimate.before) else (estimate.value + estimate.before) / 2
        self.batch, self.runs, self.log_steps = float(batch), estimate.runs, float(np.log(between))
        self.half_grid = float(np.hypot(np.log(estimate.value / between), estimate.shared))
        if np.isnan(estimate.before) and (estimate.low == 0 or estimate.runs == 1):
            self.half_grid = np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = np.log([np.float64(between) / estimate.low, estimate.high / np.float64(between)])
        sides = sides[np.isfinite(sides)] if estimate.runs > 1 else sides[:0]
        self.deviation = float(np.sqrt((sides ** 2).mean()) / normal_quantile(confidence)) if sides.any() else np.nan


def weigh(deviations: np.ndarray, along: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(weights, the variance that the points' own intervals imply) of points with these deviations of the logarithm:
    equal weights, except for those whose deviation is more than twice the median one. Where deviations surely grow or
    fall as a power of ``along``, weights follow that power."""
    if along is not None and len(along) >= LEAST_TREND:
        logs, x = np.log(deviations), np.log(along) - np.log(along).mean()
        slope = logs @ x / (x @ x)
        trend, rest = np.exp(slope * x), logs - logs.mean() - slope * x
        if slope ** 2 * (x @ x) > TREND ** 2 * (rest @ rest) / (len(x) - 2) and np.ptp(logs) > 0.01:
            return trend ** -2, float((trend ** -2 * deviations ** 2).mean())
    usual = np.median(deviations)
    weights = np.where(deviations > 2 * usual, usual / np.maximum(deviations, 1e-300), 1.0) ** 2
    return weights, float((weights * deviations ** 2).mean())


def count_own(freedom: int, ratio: float) -> int:
    """Degrees of freedom that the points' own intervals count as: one where the residuals refute them, by the ratio of
    their variance, of so many degrees of freedom, to that of the intervals."""
    return OWN_FREEDOM if scipy.special.fdtrc(freedom, OWN_FREEDOM, ratio) > REFUTED else 1


class _Surface:
    """The sum of squares by x = log(B_crit) and the shape p, at the best log S_min for each.

    x, shapes   the grid, with ``squares`` of shape (x, shapes)
    own         the variance that the points' own intervals imply; NaN: unknown
    best        (x, p) of the minimum ``least``, with log S_min ``level`` and ``residuals`` of log S
    end         -1 or 1 where the minimum lies at the lower or upper end of x, else 0"""

    def __init__(self, points: Sequence[SettingPoint], shapes: Sequence[float], rises: bool = False) -> None:
        self.rises, self.weights, self.own = rises, np.ones(len(points)), np.nan
        self.batches, self.logs, deviations = np.array([[getattr(point, name) for point in points]
                                                        for name in ("batch", "log_steps", "deviation")])
        if np.isfinite(deviations).all():
            self.weights, self.own = weigh(deviations, self.batches)
        self.x = np.linspace(np.log(self.batches.min() / REACH), np.log(self.batches.max() * REACH), GRID)
        self.shapes = np.asarray(shapes, float)
        _, self.squares, _ = self.at(self.x[:, None], self.shapes)
        row, column = np.unravel_index(self.squares.argmin(), self.squares.shape)
        x, log_shape, self.end = self.x[row], np.log(self.shapes[column]), 0

        # between grid points, by successively finer grids
        ends = np.log(self.shapes[[0, -1]])
        widths = np.array([self.x[1] - self.x[0], np.ptp(ends) / max(1, len(self.shapes) - 1)])
        for _ in range(24):
            xs, log_shapes = (middle + width * np.linspace(-1, 1, 9) for middle, width in zip((x, log_shape), widths))
            log_shapes = np.clip(log_shapes, *ends)
            _, squares, _ = self.at(xs[:, None], np.exp(log_shapes))
            row, column = np.unravel_index(squares.argmin(), squares.shape)
            x, log_shape, widths = xs[row], log_shapes[column], widths / 2
        self.best = float(x), float(np.exp(log_shape))

        at_ends = self.squares[[0, -1]].min(1) <= self.squares.min() + 1e-12
        if at_ends.any():               # perfect scaling or a plateau fits as well
            self.end, at = (-1, 0) if at_ends[0] else (1, GRID - 1)
            self.best = float(self.x[at]), float(self.shapes[self.squares[at].argmin()])
        level, least, self.residuals = self.at(*self.best)
        self.level, self.least = float(level), float(least)

    def at(self, x: ArrayLike, shape: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(log S_min, sum of squares, residuals of shape (..., points)) at x and shapes; broadcasts."""
        x, shape = np.asarray(x)[..., None], np.asarray(shape)[..., None]
        rest = self.logs - np.logaddexp(0, shape * (x - np.log(self.batches))) / shape
        if self.rises:          # by the power of the batch past RISES_PAST times B_crit that fits best, if positive
            past = np.maximum(0, np.log(self.batches) - x - np.log(RISES_PAST))
            around = past - np.expand_dims(past @ self.weights / self.weights.sum(), -1)
            slope = (around * rest) @ self.weights / np.maximum(around ** 2 @ self.weights, 1e-12)
            rest = rest - np.maximum(slope, 0)[..., None] * past
        level = rest @ self.weights / self.weights.sum()
        residuals = rest - np.expand_dims(level, -1)
        return level, residuals ** 2 @ self.weights, residuals


class _Region:
    """The x and shapes whose sum of squares exceeds the minimum by at most root ** 2, on a grid around them; intervals
    are its ends. ``levels`` and ``excess`` are log S_min and the sum of squares minus the minimum, shape (x,
    shapes)."""

    def __init__(self, surface: _Surface, root: float) -> None:
        self.surface, self.x, self.shapes, squares = surface, surface.x, surface.shapes, surface.squares
        best, counts = (surface.best[0], np.log(surface.best[1])), (CLOSE, len(self.shapes))
        for _ in range(3):      # grids that span those inside and their neighbors, or the best's where none is inside
            inside, grids = squares - surface.least <= root ** 2, [self.x, np.log(self.shapes)]
            for axis, grid in enumerate(grids):
                own = np.flatnonzero(inside.any(1 - axis))
                at = own if len(own) else np.searchsorted(grid, [best[axis]])
                grids[axis] = np.linspace(grid[max(at[0] - 1, 0)], grid[min(at[-1] + 1, len(grid) - 1)], counts[axis])
            self.x, self.shapes = grids[0], np.exp(grids[1])
            self.levels, squares, _ = surface.at(self.x[:, None], self.shapes)
        self.excess = np.maximum(squares - surface.least, 0)
        self.inside = self.excess <= root ** 2
        self.half = np.sqrt(np.maximum(root ** 2 - self.excess, 0) / surface.weights.sum())
        self.open_below, self.open_above = (bool(self.x[at] == surface.x[at] and self.inside[at].any())
                                            for at in (0, -1))

    def estimates(self, half_grid: float) -> dict[str, Estimate]:
        """Those of a fit by name; S_min widened on both sides by half the spacing of evaluations, inf: open below."""
        surface, shape, x = self.surface, self.surface.best[1], self.x[:, None]
        value = surface.end * np.inf if surface.end else surface.best[0]
        ends: dict[str, Any] = {"s_min": (surface.level, self.levels - self.half, self.levels + self.half),
                                "shape": (np.log(shape), np.log(self.shapes), np.log(self.shapes)),
                                "b_crit": (value, x, x)}
        # B S = (1 + share) E_min at B_crit ((1 + share)^p - 1)^(1/p); the largest p includes a sharp knee: (1 + share)
        for name, share in (("half_efficient", 1.0), ("overhead", OVERHEAD)):
            of_best, lower = (np.log((1 + share) ** each - 1) / each for each in (shape, self.shapes))
            upper = np.where(np.isclose(self.shapes, SHAPES[-1]), np.log1p(share), lower)
            ends[name] = value + of_best, x + lower, x + upper

        for name, (best, lower, upper) in ends.items():
            _, lower, upper = np.broadcast_arrays(self.inside, lower, upper)
            low, high = lower.min(where=self.inside, initial=best), upper.max(where=self.inside, initial=best)
            if name == "s_min":
                best = -np.inf if surface.end > 0 else best
                low = -np.inf if self.open_above else low - half_grid
                high += half_grid if np.isfinite(half_grid) else 0.0
            elif name != "shape":
                low, high = -np.inf if self.open_below else low, np.inf if self.open_above else high
            best, low, high = np.exp([best, low, high]).tolist()
            ends[name] = Estimate(best, low, high, len(surface.batches))
        return ends


def _fit(points: Sequence[SettingPoint], left_out: tuple[int, ...], confidence: float, shapes: Sequence[float]
         ) -> CriticalBatchFit:
    """See fit_critical_batch; left_out are batches that the points do not include."""
    surface, count = _Surface(points, shapes), len(points)
    freedom = residual_freedom = count - 2 - (len(shapes) > 1)
    squares, own, lack, weighted = surface.least, surface.own, np.nan, not np.isnan(surface.own)
    if weighted:
        counted = OWN_FREEDOM
        if residual_freedom:
            ratio = squares / residual_freedom / own
            lack = float(scipy.special.fdtrc(residual_freedom, sum(point.runs - 1 for point in points), ratio))
            counted = count_own(residual_freedom, ratio)
        freedom, squares = freedom + counted, squares + counted * own
    half_grid = float(np.median([point.half_grid for point in points]))
    variance = max(squares / freedom, 0.0 if weighted or np.isinf(half_grid) else half_grid ** 2 / 3)   # of rounding
    found = _Region(surface, float(student_quantile(freedom, confidence) * np.sqrt(variance))).estimates(half_grid)
    if weighted and freedom > 2:
        rising = _Surface(points, shapes, rises=True)
        gain = surface.least - rising.least
        if gain > LIKELY_OF_S_MIN * variance:
            risen = _Region(rising, float(student_quantile(freedom - 1, confidence) * np.sqrt(
                (rising.least + counted * own) / (freedom - 1)))).estimates(half_grid)
            names = WIDENED if gain > LIKELY * variance else ["s_min"]
            found |= {name: _widen([found[name], risen[name]]) for name in names}
    if len(shapes) > 1 and surface.best[1] <= shapes[0] * (1 + 1e-6) and found["b_crit"].value > surface.batches.max():
        found["s_min"] = replace(found["s_min"], low=0.0)       # a softer curve would end farther out
        found["b_crit"] = replace(found["b_crit"], high=np.inf)
    return CriticalBatchFit(**found, rms_log2=float(np.sqrt((surface.residuals ** 2).mean()) / np.log(2)), points=count,
                            spread=float(np.sqrt(variance / own)), lack_of_fit=lack, left_out=left_out,
                            draws=cache(partial(_draw_curves, surface, variance, freedom, half_grid)))


def _draw_curves(surface: _Surface, variance: float, freedom: float, half_grid: float) -> np.ndarray:
    """Draws of E_min, B_crit and p, shape (DRAWS, 3). B_crit has the distribution whose quantiles are the ends of its
    profile intervals (a confidence distribution). p is drawn from the likelihood given B_crit, the level from Student's
    t around its mean given both."""
    random, deviation = np.random.Generator(np.random.Philox(key=surface.end + 1)), np.sqrt(variance)
    wanted = deviation * scipy.special.stdtrit(freedom, random.permutation((np.arange(DRAWS) + 0.5) / DRAWS))
    region, roots = _Region(surface, np.abs(wanted).max()), np.abs(wanted)
    ends = []
    for way, is_open in ((-1, region.open_below), (1, region.open_above)):      # where the least excess reaches roots
        beyond = (region.x - surface.best[0]) * way > 0
        grid = np.append(surface.best[0], region.x[beyond][::way])
        known = np.maximum.accumulate(np.append(0.0, np.sqrt(region.excess.min(1))[beyond][::way]))
        ends.append(np.where(roots >= known[-1], way * np.inf if is_open else grid[-1], np.interp(roots, known, grid)))
    x = np.where(wanted < 0, *ends).clip(min=surface.x[0])

    seen = x.clip(max=surface.x[-1])            # beyond it, S B does not change
    excess = region.excess[np.searchsorted(region.x, seen).clip(max=CLOSE - 1)] / max(variance, 1e-30)
    density = (1 + excess / freedom) ** (-(freedom + 1) / 2)
    share = np.cumsum(density, axis=1) / density.sum(1, keepdims=True)
    shape = region.shapes[(random.random((DRAWS, 1)) > share).sum(1).clip(max=len(region.shapes) - 1)]
    level = surface.at(seen, shape)[0] + (half_grid if np.isfinite(half_grid) else 0.0) * random.uniform(-1, 1, DRAWS)
    level += (deviation / np.sqrt(surface.weights.sum()) * random.standard_t(freedom, DRAWS)).clip(-300, 300)   # of exp
    return np.stack([np.exp(level + seen), np.exp(x), shape], axis=1)


def _widen(found: Sequence[Estimate]) -> Estimate:
    """The first, with an interval that holds those of all."""
    return replace(found[0], low=min(one.low for one in found), high=max(one.high for one in found))
