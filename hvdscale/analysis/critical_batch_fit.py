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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
    make_draws: Callable[[], np.ndarray] = field(repr=False)

    @cached_property
    def draws(self) -> np.ndarray:
        """Draws of E_min = S_min B_crit (in examples), B_crit and p that represent their uncertainty: shape (DRAWS, 3);
        B_crit is inf as often as its intervals are open above."""
        return self.make_draws()

    def steps(self, batch: ArrayLike) -> Any:
        """S at a batch, or an array of them; NaN where the batches show only one asymptote."""
        if not 0 < self.b_crit.value < np.inf:
            return np.full(np.shape(batch), np.nan)[()]
        return steps_at(batch, self.s_min.value * self.b_crit.value, self.b_crit.value, self.shape.value)


def steps_at(batch: ArrayLike, least_examples: ArrayLike, b_crit: ArrayLike, shape: ArrayLike) -> np.ndarray:
    """S = E_min (B^-p + B_crit^-p)^(1/p); broadcasts, and B_crit may be inf (perfect scaling)."""
    shape = np.asarray(shape)
    with np.errstate(divide="ignore"):
        inner = np.logaddexp(-shape * np.log(batch), -shape * np.log(b_crit))
    return least_examples * np.exp(inner / shape)


def fit_critical_batch(batches: Sequence[float], estimates: Sequence[Estimate], confidence: float = CONFIDENCE,
                       shapes: Sequence[float] = SHAPES) -> CriticalBatchFit | None:
    """The curve fitted to steps at global batches, smallest first, with p of ``shapes``; None: few points met."""
    met = [SettingPoint(batch, one, confidence) for batch, one in zip(batches, estimates) if one.met and one.value > 0]
    weighted = [point for point in met if np.isfinite(point.deviation)]
    points = weighted if len(weighted) >= LEAST_POINTS else met
    if len(points) < LEAST_POINTS:
        return None
    kept = points[:_count_before_rise(points)] if points is weighted else points
    return _fit(kept, points is weighted, tuple(int(point.batch) for point in points[len(kept):]), confidence,
                np.asarray(shapes, float))


class SettingPoint:
    """One batch: log S midway between two evaluations, the standard deviation that its interval implies (NaN: none),
    and half the distance of the two evaluations, on the logarithm, with the luck that all batches share (inf: the one
    before is unknown)."""

    def __init__(self, batch: float, estimate: Estimate, confidence: float) -> None:
        between = estimate.value if np.isnan(estimate.before) else (estimate.value + estimate.before) / 2
        self.batch, self.runs = float(batch), estimate.runs
        self.log_steps = float(np.log(between))
        self.half_grid = float(np.hypot(np.log(estimate.value / between), estimate.shared))
        if np.isnan(estimate.before) and (estimate.low == 0 or estimate.runs == 1):
            self.half_grid = np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = np.log([np.float64(between) / estimate.low, estimate.high / np.float64(between)])
        sides = sides[np.isfinite(sides)] if estimate.runs > 1 else sides[:0]
        self.deviation = float(np.sqrt((sides ** 2).mean()) / normal_quantile(confidence)) if sides.any() else np.nan


def _count_before_rise(points: Sequence[SettingPoint]) -> int:
    """The number of points before a significant rise; at least LEAST_POINTS. A tail rises where its mean log S lies
    RISES standard errors above the last block of the decreasing regression of the points before. The clearest tail is
    left out with the batch before it, where the rise may begin while the curve still falls."""
    logs = np.array([point.log_steps for point in points])
    variance = float(np.mean([point.deviation ** 2 for point in points]))
    most, kept = RISES, len(logs)
    for first in range(LEAST_POINTS, len(logs)):
        falling = -isotonic(-logs[None, :first])[0]
        size = np.count_nonzero(falling == falling[-1])
        rise = (logs[first:].mean() - falling[-1]) / np.sqrt(variance * (1 / (len(logs) - first) + 1 / size))
        if rise > most:
            most, kept = rise, max(LEAST_POINTS, first - 1)
    return kept


def weigh(deviations: np.ndarray, along: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(weights, the variance that the points' own intervals imply) of points with these deviations of the logarithm:
    equal weights, except for those whose deviation is more than twice the median one. Where deviations surely grow or
    fall as a power of ``along``, weights follow that power."""
    if along is not None and len(along) >= LEAST_TREND:
        logs, x = np.log(deviations), np.log(along) - np.log(along).mean()
        slope = logs @ x / (x @ x)
        trend = np.exp(slope * x)
        rest = logs - logs.mean() - slope * x
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

    x, shapes   the grid, with ``levels`` (log S_min) and ``squares`` of shape (x, shapes)
    own         the variance that the points' own intervals imply; NaN: unknown
    best        (x, p) of the minimum
    end         -1 or 1 where the minimum lies at the lower or upper end of x, else 0"""

    def __init__(self, points: Sequence[SettingPoint], weighted: bool, shapes: np.ndarray, rises: bool = False) -> None:
        self.rises = rises
        self.batches, self.logs = (np.array([getattr(one, name) for one in points]) for name in ("batch", "log_steps"))
        self.deviations = np.array([one.deviation for one in points])
        self.weights = np.ones(len(points))
        self.own = np.nan
        if weighted:
            self.weights, self.own = weigh(self.deviations, self.batches)
        self.x = np.linspace(np.log(self.batches.min() / REACH), np.log(self.batches.max() * REACH), GRID)
        self.shapes = shapes
        self.levels, squares = self.at(self.x[:, None], shapes)
        self.squares = squares
        row, column = map(int, np.unravel_index(squares.argmin(), squares.shape))
        ends = squares[[0, -1]].min(1) <= squares.min() + 1e-12         # perfect scaling or a plateau fits as well
        self.end, self.best = 0, self._refine(row, column)
        if ends.any():
            self.end, row = (-1, 0) if ends[0] else (1, GRID - 1)
            self.best = float(self.x[row]), float(shapes[squares[row].argmin()])
        self.level, self.least = (float(one) for one in self.at(*self.best))

    def at(self, x: ArrayLike, shape: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """(log S_min, sum of squares) at x and shapes; broadcasts."""
        rest = self.rest(x, shape)
        if self.rises:          # by the power of the batch past RISES_PAST times B_crit that fits best, if positive
            past = np.maximum(0, np.log(self.batches) - np.asarray(x)[..., None] - np.log(RISES_PAST))
            around = past - np.expand_dims(past @ self.weights / self.weights.sum(), -1)
            slope = (around * rest) @ self.weights / np.maximum(around ** 2 @ self.weights, 1e-12)
            rest = rest - np.maximum(slope, 0)[..., None] * past
        level = rest @ self.weights / self.weights.sum()
        return level, (rest - np.expand_dims(level, -1)) ** 2 @ self.weights

    def rest(self, x: ArrayLike, shape: ArrayLike) -> np.ndarray:
        """log S minus the log of the curve with S_min = 1, shape (..., points)."""
        x, shape = np.asarray(x)[..., None], np.asarray(shape)[..., None]
        return self.logs - np.logaddexp(0, shape * (x - np.log(self.batches))) / shape

    def _refine(self, row: int, column: int) -> tuple[float, float]:
        """The minimum between grid points, by successively finer grids; the shape by its logarithm."""
        x, shape = float(self.x[row]), np.log(self.shapes[column])
        ends = np.log(self.shapes[[0, -1]])
        widths = np.array([self.x[1] - self.x[0], np.ptp(ends) / max(1, len(self.shapes) - 1)])
        offsets = np.linspace(-1, 1, 9)
        for _ in range(24):
            xs, shapes = x + widths[0] * offsets, np.clip(shape + widths[1] * offsets, *ends)
            _, squares = self.at(xs[:, None], np.exp(shapes))
            row, column = map(int, np.unravel_index(squares.argmin(), squares.shape))
            x, shape, widths = float(xs[row]), shapes[column], widths / 2
        return float(x), float(np.exp(shape))


class _Region:
    """The x and shapes whose sum of squares exceeds the minimum by at most root ** 2, on a grid around them; intervals
    are its ends. ``levels`` and ``excess`` are log S_min and the sum of squares minus the minimum, shape (x,
    shapes)."""

    def __init__(self, surface: _Surface, root: float) -> None:
        self.surface = surface
        self.x, self.shapes, self.levels, squares = surface.x, surface.shapes, surface.levels, surface.squares
        for _ in range(3):
            inside = squares - surface.least <= root ** 2
            self.x = _refine_grid(self.x, inside.any(1), surface.best[0], CLOSE)
            log_shapes = _refine_grid(np.log(self.shapes), inside.any(0), np.log(surface.best[1]), len(self.shapes))
            self.shapes = np.exp(log_shapes)
            self.levels, squares = surface.at(self.x[:, None], self.shapes)
        self.excess = np.maximum(squares - surface.least, 0)
        self.inside = self.excess <= root ** 2
        self.half = np.sqrt(np.maximum(root ** 2 - self.excess, 0) / surface.weights.sum())
        self.open_below, self.open_above = (bool(self.x[at] == surface.x[at] and self.inside[at].any())
                                            for at in (0, -1))

    def of_excess(self, share: float) -> Estimate:
        """The interval of the batch at which B S = (1 + share) E_min: B_crit ((1 + share)^p - 1)^(1/p). The largest
        shape includes a sharp knee, where it is (1 + share) B_crit."""
        def shift(shape: float | np.ndarray) -> Any:
            return np.log((1 + share) ** shape - 1) / shape
        upper = np.where(np.isclose(self.shapes, SHAPES[-1]), np.log1p(share), shift(self.shapes))
        return self.b_crit(shift(self.surface.best[1]), shift(self.shapes), upper)

    def b_crit(self, best: Any = 0.0, lower: Any = 0.0, upper: Any = 0.0) -> Estimate:
        """The interval of B_crit, of x plus a shift: at the best shape, and the least and the largest by shape."""
        value = self.surface.best[0] + best if not self.surface.end else self.surface.end * np.inf
        low, high = (np.where(self.inside, self.x[:, None] + one, np.nan) for one in (lower, upper))
        return self._estimate(value, -np.inf if self.open_below else _least(low, value),
                              np.inf if self.open_above else -_least(-high, -value))

    def s_min(self, half_grid: float) -> Estimate:
        """The interval of S_min, widened on both sides by half the spacing of evaluations; inf: open below."""
        level, above = self.surface.level, half_grid if np.isfinite(half_grid) else 0.0
        levels = np.where(self.inside, self.levels, np.nan)
        return self._estimate(-np.inf if self.surface.end > 0 else level,
                              -np.inf if self.open_above else _least(levels - self.half - half_grid, level - half_grid),
                              -_least(-levels - self.half - above, -level - above))

    def shape(self) -> Estimate:
        found = np.where(self.inside.any(0), np.log(self.shapes), np.nan)
        best = np.log(self.surface.best[1])
        return self._estimate(best, _least(found, best), -_least(-found, -best))

    def _estimate(self, value: float, low: float, high: float) -> Estimate:
        return Estimate(float(np.exp(value)), float(np.exp(low)), float(np.exp(high)), len(self.surface.batches))


def _refine_grid(grid: np.ndarray, inside: np.ndarray | np.bool_, best: float, count: int) -> np.ndarray:
    """A grid of ``count`` points that spans those inside and their neighbors, or the best's where none is inside."""
    at = np.flatnonzero(inside) if inside.any() else np.array([np.searchsorted(grid, best)])
    return np.linspace(grid[max(at[0] - 1, 0)], grid[min(at[-1] + 1, len(grid) - 1)], count)


def _least(values: np.ndarray, other: float) -> float:
    """The least of the values that are not NaN and of the other."""
    return float(np.nanmin(np.append(values, other)))


def _fit(points: Sequence[SettingPoint], weighted: bool, left_out: tuple[int, ...], confidence: float,
         shapes: np.ndarray) -> CriticalBatchFit:
    """See fit_critical_batch; left_out are batches that the points do not include."""
    surface, count = _Surface(points, weighted, shapes), len(points)
    if len(shapes) > 1 and count - 3 + OWN_FREEDOM * weighted < 2:      # too few points to fit the shape and a spread
        hyperbola, *fits = (_fit(points, weighted, left_out, confidence, np.array([shape]))
                            for shape in (HYPERBOLA, *shapes))
        widest: dict[str, Any] = {name: _widen(getattr(one, name) for one in (hyperbola, *fits))
                                  for name in ("s_min", "b_crit", "half_efficient", "overhead")}

        def make_draws() -> np.ndarray:
            return np.stack([one.draws for one in fits])[np.arange(DRAWS) % len(fits), np.arange(DRAWS)]
        return replace(hyperbola, **widest, make_draws=make_draws,
                       shape=Estimate(HYPERBOLA, float(shapes[0]), float(shapes[-1]), count))
    freedom = residual_freedom = count - 2 - (len(shapes) > 1)
    squares, own, lack = surface.least, surface.own, np.nan
    if weighted:
        counted = OWN_FREEDOM
        if residual_freedom:
            ratio = squares / residual_freedom / own
            lack = float(scipy.special.fdtrc(residual_freedom, sum(point.runs - 1 for point in points), ratio))
            counted = count_own(residual_freedom, ratio)
        freedom, squares = freedom + counted, squares + counted * own
    half_grid = float(np.median([point.half_grid for point in points]))
    variance = max(squares / freedom, 0.0 if weighted or np.isinf(half_grid) else half_grid ** 2 / 3)   # of rounding
    regions = of_s_min = [_Region(surface, float(student_quantile(freedom, confidence) * np.sqrt(variance)))]
    if weighted and freedom > 2:
        rising = _Surface(points, weighted, shapes, rises=True)
        if (gain := surface.least - rising.least) > LIKELY_OF_S_MIN * variance:
            of_s_min = [*regions, _Region(rising, float(student_quantile(freedom - 1, confidence) * np.sqrt(
                (rising.least + counted * own) / (freedom - 1))))]
            regions = of_s_min if gain > LIKELY * variance else regions
    residuals = surface.rest(*surface.best) - surface.level
    s_min, b_crit = _widen(one.s_min(half_grid) for one in of_s_min), _widen(one.b_crit() for one in regions)
    half_efficient, overhead = (_widen(one.of_excess(share) for one in regions) for share in (1.0, OVERHEAD))
    if len(shapes) > 1 and surface.best[1] <= shapes[0] * (1 + 1e-6) and b_crit.value > surface.batches.max():
        s_min, b_crit = replace(s_min, low=0.0), replace(b_crit, high=np.inf)    # a softer curve would end farther out
    return CriticalBatchFit(
        s_min, b_crit, half_efficient, overhead, regions[0].shape(),
        float(np.sqrt((residuals ** 2).mean()) / np.log(2)), count, float(np.sqrt(variance / own)), lack, left_out,
        partial(_draw_curves, surface, variance, freedom, half_grid))


def _draw_curves(surface: _Surface, variance: float, freedom: float, half_grid: float) -> np.ndarray:
    """Draws of E_min, B_crit and p, shape (DRAWS, 3). B_crit has the distribution whose quantiles are the ends of its
    profile intervals (a confidence distribution). p is drawn from the likelihood given B_crit, the level from Student's
    t around its mean given both."""
    random = np.random.Generator(np.random.Philox(key=surface.end + 1))
    deviation = np.sqrt(variance)
    wanted = deviation * scipy.special.stdtrit(freedom, random.permutation((np.arange(DRAWS) + 0.5) / DRAWS))
    region = _Region(surface, np.abs(wanted).max())
    x = np.where(wanted < 0, _find_ends(region, -wanted, -1), _find_ends(region, wanted, 1)).clip(min=surface.x[0])
    seen = x.clip(max=surface.x[-1])            # beyond it, S B does not change
    excess = region.excess[np.searchsorted(region.x, seen).clip(max=CLOSE - 1)] / max(variance, 1e-30)
    density = (1 + excess / freedom) ** (-(freedom + 1) / 2)
    share = np.cumsum(density, axis=1) / density.sum(1, keepdims=True)
    shape = region.shapes[(random.random((DRAWS, 1)) > share).sum(1).clip(max=len(region.shapes) - 1)]
    level = surface.at(seen, shape)[0] + (half_grid if np.isfinite(half_grid) else 0.0) * random.uniform(-1, 1, DRAWS)
    level += (deviation / np.sqrt(surface.weights.sum()) * random.standard_t(freedom, DRAWS)).clip(-300, 300)   # of exp
    return np.stack([np.exp(level + seen), np.exp(x), shape], axis=1)


def _find_ends(region: _Region, roots: np.ndarray, way: int) -> np.ndarray:
    """The x above (way 1) or below (-1) the best at which the root of the least excess over shapes reaches these roots;
    way * inf where it never does."""
    best = region.surface.best[0]
    beyond = (region.x - best) * way > 0
    known = np.sqrt(region.excess.min(1))[beyond][::way]
    grid, known = np.append(best, region.x[beyond][::way]), np.maximum.accumulate(np.append(0.0, known))
    is_open = region.open_above if way > 0 else region.open_below
    return np.where(roots >= known[-1], way * np.inf if is_open else grid[-1], np.interp(roots, known, grid))


def _widen(estimates: Iterable[Estimate]) -> Estimate:
    """The first, with an interval that holds those of all."""
    found = list(estimates)
    return replace(found[0], low=min(one.low for one in found), high=max(one.high for one in found))
