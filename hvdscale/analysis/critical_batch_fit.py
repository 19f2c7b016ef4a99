"""The critical batch size B_crit and the fewest steps S_min, fitted to steps to target by global batch.

The curve is S = S_min (1 + (B_crit / B)^p)^(1/p). Its asymptotes, S B = S_min B_crit for small batches and S = S_min
for large ones, cross at B_crit whatever the shape p, so B_crit = E_min / S_min holds for each (McCandlish et al. 2018,
arXiv 1812.06162, section 2.3). p = 1 is their hyperbola; a sharp knee is the limit of large p. A hyperbola forced on a
sharper curve puts S_min too low, so p is fitted too, from 1/2 to 8. Beside B_crit come the batch of 50 % efficiency, at
which B S = 2 E_min (B_crit itself where p = 1), and that of 20 % overhead, B S = 1.2 E_min (Zhang et al. 2024, arXiv
2410.21676).

The fit is least squares of log S, with S midway between the evaluation that met the target and the one before. Points
count equally, except for those whose interval is more than twice as wide as the median one: the width of an interval
depends on where its value came out, so weighting by width would lift the curve. The variance about the curve is
estimated from the residuals, and from the points' own intervals, which count as OWN_FREEDOM residuals as long as the
residuals do not refute them (F test, 10 %), else as one. Intervals are profiles of the sum of squares over the other
parameters; where that leaves too few degrees of freedom (four single runs), they are the hull over all shapes. An
interval is open where the points do not reach: perfect scaling throughout only bounds B_crit from below, a plateau from
above. The evaluation grid may shift all batches alike, which no residual shows: half of it widens S_min's interval.

Where S rises significantly with the largest batches, the curve does not hold: they are left out, and named.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import fdtrc, ndtri, stdtrit

from .intervals import CONFIDENCE, Estimate

LEAST_POINTS = 3
HYPERBOLA = 1.0         # the shape of McCandlish et al.
SHAPES = tuple(float(shape) for shape in np.geomspace(0.5, 8, 17))
REACH = 300.0           # B_crit is sought this factor beyond the batches; an interval that reaches further is open
GRID = 240              # values of B_crit that are searched
CLOSE = 61              # and in each closer grid
DRAWS = 1000
OWN_FREEDOM = 3         # residuals that the points' own intervals count as
REFUTED = 0.10          # level of the F test at which the residuals refute the points' own intervals
RISES = 2.5             # standard errors by which a tail must lie above the batches before it
OVERHEAD = 0.20


@dataclass(frozen=True, eq=False)
class CriticalBatchFit:
    """The curve that fits best.

    s_min, b_crit   with intervals that are open, to 0 or inf, where the points do not reach; so are the values where
                    perfect scaling alone fits best (S_min 0, B_crit inf), or a plateau alone (B_crit 0)
    half_efficient  the batch at which B S = 2 E_min;  overhead  that at which B S = 1.2 E_min
    shape           p; its value is 1 where it was not fitted
    rms_log2        of log2(S / curve) over the points
    spread          standard deviation about the curve over the one that the points' own intervals imply; NaN: unknown
    lack_of_fit     p-value of the residuals against the points' own intervals (F test); NaN: unknown
    points          that it was fitted to
    left_out        batches of a rising tail, which were not
    draws           S_min B_crit (E_min, in examples), B_crit and p, which carry their uncertainty: shape (DRAWS, 3).
                    B_crit is inf as often as its intervals are open above.
    """

    s_min: Estimate
    b_crit: Estimate
    half_efficient: Estimate
    overhead: Estimate
    shape: Estimate
    rms_log2: float
    points: int
    spread: float
    lack_of_fit: float
    left_out: tuple[int, ...]
    draws: np.ndarray = field(repr=False)

    def steps(self, batch):
        """S of a batch, or of an array of them; NaN where one end of the curve is not seen at all."""
        if not 0 < self.b_crit.value < np.inf:
            return np.full(np.shape(batch), np.nan)[()]
        return steps_at(batch, self.s_min.value * self.b_crit.value, self.b_crit.value, self.shape.value)


def steps_at(batch, least_examples, b_crit, shape):
    """S = E_min (B^-p + B_crit^-p)^(1/p); broadcasts, and B_crit may be inf (perfect scaling)."""
    with np.errstate(divide="ignore"):
        inner = np.logaddexp(-shape * np.log(batch), -shape * np.log(b_crit))
    return least_examples * np.exp(inner / shape)


def fit_critical_batch(batches, estimates, confidence=CONFIDENCE, shapes=SHAPES) -> CriticalBatchFit | None:
    """The curve through estimates of steps at global batches, smallest first; None where fewer than LEAST_POINTS met.

    shapes  the grid of p to choose from; (HYPERBOLA,) fixes p = 1
    """
    met = [_Point(batch, one, confidence) for batch, one in zip(batches, estimates) if one.met and one.value > 0]
    weighted = [point for point in met if np.isfinite(point.deviation)]
    points = weighted if len(weighted) >= LEAST_POINTS else met
    if len(points) < LEAST_POINTS:
        return None
    kept = points[:_before_a_rise(points)] if points is weighted else points
    return _fit(kept, points is weighted, tuple(int(point.batch) for point in points[len(kept):]), confidence,
                np.asarray(shapes, float))


class _Point:
    """One batch: log S midway between two evaluations, the standard deviation that its interval implies (NaN: none),
    and half the distance of the two evaluations, on the logarithm."""

    def __init__(self, batch, estimate, confidence):
        between = estimate.value if np.isnan(estimate.before) else (estimate.value + estimate.before) / 2
        self.batch, self.runs = float(batch), estimate.runs
        self.log_steps, self.half_grid = float(np.log(between)), float(np.log(estimate.value / between))
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = np.log([np.float64(between) / estimate.low, estimate.high / np.float64(between)])
        sides = sides[np.isfinite(sides)] if estimate.runs > 1 else sides[:0]
        self.deviation = float(np.sqrt((sides ** 2).mean()) / ndtri(0.5 + confidence / 2)) if sides.any() else np.nan


def _before_a_rise(points):
    """How many points, from the smallest batch on, precede a significant rise; at least LEAST_POINTS.

    A tail rises where its mean log S lies RISES standard errors above the level before it: the last block of the
    decreasing regression of the points before (pool adjacent violators). Of several such tails the clearest is taken,
    with the batch before it, where the rise may begin unseen while the curve still falls.
    """
    logs = np.array([point.log_steps for point in points])
    variance = float(np.mean([point.deviation ** 2 for point in points]))
    rises = {first: (logs[first:].mean() - level) / np.sqrt(variance * (1 / (len(logs) - first) + 1 / size))
             for first in range(LEAST_POINTS, len(logs)) for level, size in [_last_level(logs[:first])]}
    clearest = max(rises, key=rises.get, default=None)
    return max(LEAST_POINTS, clearest - 1) if rises and rises[clearest] > RISES else len(logs)


def _last_level(logs):
    """(mean, size) of the last block of the decreasing regression of logs."""
    blocks = []
    for value in logs:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (value, size), (before, count) = blocks.pop(), blocks.pop()
            blocks.append(((value * size + before * count) / (size + count), size + count))
    return blocks[-1]


class _Surface:
    """The sum of squares by x = log(B_crit) and the shape p; log S_min takes its best value.

    x, shapes   the grid that is searched, with ``levels`` (log S_min) and ``squares`` of shape (x, shapes)
    best        (x, p) of the least sum of squares
    end         -1 or 1 where the least lies at the lower or upper end of x, else 0
    """

    def __init__(self, points, weighted, shapes):
        self.batches, self.logs = (np.array([getattr(one, name) for one in points]) for name in ("batch", "log_steps"))
        self.deviations = np.array([one.deviation for one in points])
        self.weights = np.ones(len(points))
        if weighted:
            middle = np.median(self.deviations)
            self.weights = np.where(self.deviations > 2 * middle, middle / self.deviations, 1.0) ** 2
        self.x = np.linspace(np.log(self.batches.min() / REACH), np.log(self.batches.max() * REACH), GRID)
        self.shapes = shapes
        self.levels, squares = self.at(self.x[:, None], shapes)
        self.squares = squares
        row, column = np.unravel_index(squares.argmin(), squares.shape)
        ends = squares[[0, -1]].min(1) <= squares.min() + 1e-12         # perfect scaling or a plateau fits as well
        self.end = -1 if ends[0] else 1 if ends[1] else 0
        self.best = self._refined(row, column)
        if self.end:
            row = 0 if self.end < 0 else GRID - 1
            self.best = self.x[row], shapes[squares[row].argmin()]
        self.level, self.least = (float(one) for one in self.at(*self.best))

    def at(self, x, shape):
        """(log S_min, sum of squares) that go with x and shapes; broadcasts."""
        rest = self.rest(x, shape)
        level = rest @ self.weights / self.weights.sum()
        return level, (rest - np.expand_dims(level, -1)) ** 2 @ self.weights

    def rest(self, x, shape):
        """log S less the curve of S_min = 1, shape (..., points)."""
        x, shape = np.asarray(x)[..., None], np.asarray(shape)[..., None]
        return self.logs - np.logaddexp(0, shape * (x - np.log(self.batches))) / shape

    def _refined(self, row, column):
        """The least between grid points, by grids ever finer; the shape by its logarithm."""
        x, shape = self.x[row], np.log(self.shapes[column])
        ends = np.log(self.shapes[[0, -1]])
        widths = np.array([self.x[1] - self.x[0], np.ptp(ends) / max(1, len(self.shapes) - 1)])
        offsets = np.linspace(-1, 1, 9)
        for _ in range(24):
            xs, shapes = x + widths[0] * offsets, np.clip(shape + widths[1] * offsets, *ends)
            _, squares = self.at(xs[:, None], np.exp(shapes))
            row, column = np.unravel_index(squares.argmin(), squares.shape)
            x, shape, widths = xs[row], shapes[column], widths / 2
        return x, np.exp(shape)


class _Region:
    """The x and shapes whose sum of squares exceeds the least by at most root ** 2, on a grid around them.
    Intervals are its ends.

    levels, excess  log S_min and the sum of squares over the least, shape (x, shapes)
    """

    def __init__(self, surface, root):
        self.surface = surface
        self.x, self.shapes, self.levels, squares = surface.x, surface.shapes, surface.levels, surface.squares
        for _ in range(3):
            inside = squares - surface.least <= root ** 2
            self.x = _closer(self.x, inside.any(1), surface.best[0], CLOSE)
            self.shapes = np.exp(_closer(np.log(self.shapes), inside.any(0), np.log(surface.best[1]), len(self.shapes)))
            self.levels, squares = surface.at(self.x[:, None], self.shapes)
        self.excess = np.maximum(squares - surface.least, 0)
        self.inside = self.excess <= root ** 2
        self.half = np.sqrt(np.maximum(root ** 2 - self.excess, 0) / surface.weights.sum())
        self.open_below, self.open_above = (bool(self.x[at] == surface.x[at] and self.inside[at].any())
                                            for at in (0, -1))

    def b_crit(self):
        """The interval of B_crit."""
        return self._of_x(0.0, 0.0, 0.0)

    def of_excess(self, share):
        """That of the batch at which B S = (1 + share) E_min: B_crit ((1 + share)^p - 1)^(1/p), and (1 + share) B_crit
        of a knee, which the largest shape includes."""
        def shift(shape):
            return np.log((1 + share) ** shape - 1) / shape
        upper = np.where(np.isclose(self.shapes, SHAPES[-1]), np.log1p(share), shift(self.shapes))
        return self._of_x(shift(self.surface.best[1]), shift(self.shapes), upper)

    def _of_x(self, best, lower, upper):
        """Of x plus a shift: at the best shape, and least and most by shape."""
        value = {-1: -np.inf, 0: self.surface.best[0] + best, 1: np.inf}[self.surface.end]
        low, high = (np.where(self.inside, self.x[:, None] + one, np.nan) for one in (lower, upper))
        return self._estimate(value, -np.inf if self.open_below else _least(low, value),
                              np.inf if self.open_above else -_least(-high, -value))

    def s_min(self, half_grid):
        """The interval of S_min, wider by half the distance of evaluations on both sides."""
        level, half = self.surface.level, self.half + half_grid
        levels = np.where(self.inside, self.levels, np.nan)
        return self._estimate(-np.inf if self.surface.end > 0 else level,
                              -np.inf if self.open_above else _least(levels - half, level - half_grid),
                              -_least(-levels - half, -level - half_grid))

    def shape(self):
        """The interval of p."""
        found = np.where(self.inside.any(0), np.log(self.shapes), np.nan)
        best = np.log(self.surface.best[1])
        return self._estimate(best, _least(found, best), -_least(-found, -best))

    def _estimate(self, value, low, high):
        return Estimate(*(float(np.exp(one)) for one in (value, low, high)), len(self.surface.batches))


def _closer(grid, inside, best, count):
    """A grid of ``count`` points between those next to the ones inside, or around the best where none is."""
    at = np.flatnonzero(inside) if inside.any() else np.searchsorted(grid, best)
    return np.linspace(grid[max(np.min(at) - 1, 0)], grid[min(np.max(at) + 1, len(grid) - 1)], count)


def _least(values, other):
    """The least of the values that are not NaN, and of the other."""
    return np.nanmin(np.append(values, other))


def _fit(points, weighted, left_out, confidence, shapes):
    surface, count = _Surface(points, weighted, shapes), len(points)
    if len(shapes) > 1 and count - 3 + OWN_FREEDOM * weighted < 2:      # the shape cannot be fitted beside the spread
        return _hull([_fit(points, weighted, left_out, confidence, shapes[[at]]) for at in range(len(shapes))],
                     _fit(points, weighted, left_out, confidence, np.array([HYPERBOLA])), shapes)
    freedom = residual_freedom = count - 2 - (len(shapes) > 1)
    squares, own, lack = surface.least, np.nan, np.nan
    if weighted:
        own = float((surface.weights * surface.deviations ** 2).mean())
        counted = OWN_FREEDOM
        if residual_freedom:
            ratio = squares / residual_freedom / own
            lack = float(fdtrc(residual_freedom, sum(point.runs - 1 for point in points), ratio))
            counted = OWN_FREEDOM if fdtrc(residual_freedom, OWN_FREEDOM, ratio) > REFUTED else 1
        freedom, squares = freedom + counted, squares + counted * own
    variance = squares / freedom
    half_grid = float(np.median([point.half_grid for point in points]))
    region = _Region(surface, float(stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(variance)))
    residuals = surface.rest(*surface.best) - surface.level
    return CriticalBatchFit(
        region.s_min(half_grid), region.b_crit(), region.of_excess(1.0), region.of_excess(OVERHEAD), region.shape(),
        float(np.sqrt((residuals ** 2).mean()) / np.log(2)), count, float(np.sqrt(variance / own)), lack, left_out,
        _draws(surface, variance, freedom, half_grid))


def _draws(surface, variance, freedom, half_grid):
    """E_min, B_crit and p, shape (DRAWS, 3): B_crit as its profile's intervals at all levels have it (a confidence
    distribution); p by the likelihood beside it; the level as Student's t about the mean that goes with both."""
    random = np.random.Generator(np.random.Philox(key=surface.end + 1))
    deviation = np.sqrt(variance)
    wanted = deviation * stdtrit(freedom, random.permutation((np.arange(DRAWS) + 0.5) / DRAWS))
    region = _Region(surface, np.abs(wanted).max())
    x = np.where(wanted < 0, _ends(region, -wanted, -1), _ends(region, wanted, 1)).clip(min=surface.x[0])
    seen = x.clip(max=surface.x[-1])            # beyond, S B is the same
    excess = region.excess[np.searchsorted(region.x, seen).clip(max=CLOSE - 1)] / max(variance, 1e-30)
    density = (1 + excess / freedom) ** (-(freedom + 1) / 2)
    share = np.cumsum(density, axis=1) / density.sum(1, keepdims=True)
    shape = region.shapes[(random.random((DRAWS, 1)) > share).sum(1).clip(max=len(region.shapes) - 1)]
    level = surface.at(seen, shape)[0] + half_grid * random.uniform(-1, 1, DRAWS)
    level += (deviation / np.sqrt(surface.weights.sum()) * random.standard_t(freedom, DRAWS)).clip(-300, 300)   # of exp
    return np.stack([np.exp(level + seen), np.exp(x), shape], axis=1)


def _ends(region, roots, way):
    """The x above (way 1) or below (-1) the best at which the root of the least excess over shapes has grown to these,
    of their shape; way * inf where it never does."""
    best = region.surface.best[0]
    beyond = (region.x - best) * way > 0
    known = np.sqrt(region.excess.min(1))[beyond][::way]
    grid, known = np.append(best, region.x[beyond][::way]), np.maximum.accumulate(np.append(0.0, known))
    is_open = region.open_above if way > 0 else region.open_below
    return np.where(roots >= known[-1], way * np.inf if is_open else grid[-1], np.interp(roots, known, grid))


def _hull(fits, hyperbola, shapes):
    """The hyperbola's values with the intervals that hold those of all shapes, and draws from all of them."""
    def held(name):
        ends = [getattr(one, name) for one in fits]
        value = getattr(hyperbola, name)
        return Estimate(value.value, min(one.low for one in ends), max(one.high for one in ends), value.runs)
    names = ("s_min", "b_crit", "half_efficient", "overhead")
    drawn = np.stack([one.draws for one in fits])[np.arange(DRAWS) % len(fits), np.arange(DRAWS)]
    return CriticalBatchFit(*map(held, names), Estimate(HYPERBOLA, shapes[0], shapes[-1], hyperbola.points),
                            hyperbola.rms_log2, hyperbola.points, hyperbola.spread, hyperbola.lack_of_fit,
                            hyperbola.left_out, drawn)
