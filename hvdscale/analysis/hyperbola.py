"""S = S_min (1 + B_crit / B) through steps to target by global batch (McCandlish et al. 2018, arXiv 1812.06162).

Fitted to log S by least squares, S midway between the evaluation that met and the one before where that is known: as
read at the one that met it would be too large by half their spacing, at every batch alike. Points weigh alike, but for
those with an interval more than twice as wide as the middle one: the width of an interval goes with where its value
came out, as that of the fewest steps of a search is narrow where they are many, so that weights by width lift the
curve. The spread about the curve is that of the residuals and of the points' own intervals, which count as OWN_FREEDOM
residuals; misfit thus widens what comes out. Intervals are profiles of the sum of squares, so an end that the points
do not reach is open: points that scale perfectly tell that B_crit is at least so large, points of a plateau that it is
at most so. Draws have these very quantiles, so they carry no prior on B_crit: what is open goes to perfect scaling.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri, stdtrit

from .intervals import CONFIDENCE, Estimate

LEAST_POINTS = 3
REACH = 300.0           # B_crit is sought so far beyond the batches; what it may exceed is taken for unbounded
GRID = 400
DRAWS = 1000
OWN_FREEDOM = 1


@dataclass(frozen=True, eq=False)
class Hyperbola:
    """The curve that fits best.

    s_min, b_crit  with intervals that are open, to 0 or inf, where the points do not reach; so are the values where the
                   points are best fitted by perfect scaling alone (S_min 0, B_crit inf), or by a plateau (B_crit 0)
    rms_log2       of log2(S / curve) over the points
    spread         standard deviation about the curve over the one that the points' own intervals claim; NaN: they claim
                   none. Below 1 the intervals are wider than need be: what is not on the curve only adds to it.
    points         that it is through
    draws          pairs of S_min B_crit (the examples that few a step need) and B_crit that carry their uncertainty,
                   shape (DRAWS, 2): S = S_min B_crit (1 / B + 1 / B_crit). B_crit is inf as often as it is open above.
    """

    s_min: Estimate
    b_crit: Estimate
    rms_log2: float
    points: int
    spread: float
    draws: np.ndarray = field(repr=False)

    def steps(self, batch):
        """S of a batch, or of an array of them; NaN where one end of the curve is not seen at all."""
        if not 0 < self.b_crit.value < np.inf:
            return np.full(np.shape(batch), np.nan)[()]
        return self.s_min.value * (1 + self.b_crit.value / np.asarray(batch, float))


def hyperbola_of(batches, estimates, confidence=CONFIDENCE) -> Hyperbola | None:
    """The hyperbola through estimates of steps at global batches; None with fewer than LEAST_POINTS that met."""
    found = [(batch, _midway(one), one) for batch, one in zip(batches, estimates) if one.met and one.value > 0]
    weighted = [(*point[:2], deviation) for *point, one in found if one.runs > 1
                for deviation in [_deviation(point[1], one, confidence)] if np.isfinite(deviation)]
    chosen = weighted if len(weighted) >= LEAST_POINTS else found
    if len(chosen) < LEAST_POINTS:
        return None
    batches, steps, deviations = zip(*chosen)
    return _fit(np.array(batches, float), np.array(steps), np.array(deviations) if chosen is weighted else None,
                confidence)


def _midway(estimate):
    """S between the evaluation that met and the one before."""
    return estimate.value if np.isnan(estimate.before) else (estimate.value + estimate.before) / 2


def _deviation(steps, estimate, confidence):
    """Standard deviation of log S that an interval stands for; NaN where it says nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = np.log([np.float64(steps) / estimate.low, estimate.high / np.float64(steps)])
    sides = sides[np.isfinite(sides)]
    return float(np.sqrt((sides ** 2).mean()) / ndtri(0.5 + confidence / 2)) if sides.any() else np.nan


class _Profile:
    """The least squares of a curve by x = log(B_crit): S_min takes the weighted mean of what is left of log S."""

    def __init__(self, batches, steps, deviations):
        self.batches, self.log_steps = batches, np.log(steps)
        self.weights = np.ones(len(batches))
        if deviations is not None:
            middle = np.median(deviations)
            self.weights = np.where(deviations > 2 * middle, middle / deviations, 1.0) ** 2
        self.grid = np.linspace(np.log(batches.min() / REACH), np.log(batches.max() * REACH), GRID)
        _, squares = self.at(self.grid)
        at = int(squares.argmin())
        self.open = -1 if at == 0 else 1 if at == GRID - 1 else 0       # the end of the grid that fits best
        self.best = self.grid[at] if self.open else float(minimize_scalar(
            lambda x: self.at(x)[1], bounds=self.grid[[at - 1, at + 1]], method="bounded", options={"xatol": 1e-9}).x)
        self.least = float(self.at(self.best)[1])
        self.roots = np.sqrt(np.maximum(squares - self.least, 0))       # nearly straight on each side of the best

    def rest(self, x):
        """log S less the curve of S_min = 1, shape (..., points)."""
        return self.log_steps - np.log1p(np.exp(np.asarray(x))[..., None] / self.batches)

    def at(self, x):
        """(log S_min, sum of squares) that go with x."""
        rest = self.rest(x)
        mean = rest @ self.weights / self.weights.sum()
        return mean, (rest - np.expand_dims(mean, -1)) ** 2 @ self.weights

    def within(self, root):
        """The x whose sum of squares exceeds the least by at most root ** 2: (low, high), -inf or inf where open."""
        return tuple(float(self.ends(root, way)) for way in (-1, 1))

    def ends(self, roots, way):
        """The x above (way 1) or below (-1) the best at which the sum of squares has grown by roots ** 2, of their
        shape; way * inf where it never does."""
        beyond = (self.grid - self.best) * way > 0
        grid, known = np.append(self.best, self.grid[beyond][::way]), np.append(0.0, self.roots[beyond][::way])
        known = np.maximum.accumulate(known)
        return np.where(roots >= known[-1], way * np.inf, np.interp(roots, known, grid))


def _fit(batches, steps, deviations, confidence):
    profile, count = _Profile(batches, steps, deviations), len(batches)
    freedom, squares, own = count - 2, profile.least, np.nan
    if deviations is not None:
        own = float((profile.weights * deviations ** 2).mean())
        freedom, squares = freedom + OWN_FREEDOM, squares + OWN_FREEDOM * own
    variance = squares / freedom
    root = float(stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(variance))
    low, high = profile.within(root)
    x = np.linspace(*np.clip((low, high), profile.grid[0], profile.grid[-1]), GRID)
    means, squares = profile.at(x)
    half = np.sqrt(np.maximum(root ** 2 - (squares - profile.least), 0) / profile.weights.sum())
    best = float(profile.at(profile.best)[0])
    s_min = (0.0 if profile.open > 0 else best, 0.0 if high == np.inf else min(best, (means - half).min()),
             max(best, (means + half).max()))
    b_crit = ({-1: -np.inf, 0: profile.best, 1: np.inf}[profile.open], low, high)
    s_min = (s_min[0] and np.exp(s_min[0]), s_min[1] and np.exp(s_min[1]), np.exp(s_min[2]))
    residuals = profile.rest(profile.best) - best
    return Hyperbola(Estimate(*map(float, s_min), count), Estimate(*map(float, np.exp(b_crit)), count),
                     float(np.sqrt((residuals ** 2).mean()) / np.log(2)), count, float(np.sqrt(variance / own)),
                     _draws(profile, variance, freedom))


def _draws(profile, variance, freedom):
    """Pairs of S_min B_crit and B_crit, shape (DRAWS, 2): B_crit as its profile's intervals at all levels have it (a
    confidence distribution), the level as Student's t about the mean that goes with it."""
    random = np.random.Generator(np.random.Philox(key=profile.open + 1))
    roots = np.sqrt(variance) * stdtrit(freedom, random.permutation((np.arange(DRAWS) + 0.5) / DRAWS))
    x = np.where(roots < 0, profile.ends(-roots, -1), profile.ends(roots, 1)).clip(min=profile.grid[0])
    seen = x.clip(max=profile.grid[-1])         # beyond, S B is the same
    level = (np.sqrt(variance / profile.weights.sum()) * random.standard_t(freedom, DRAWS)).clip(-300, 300)    # of exp
    return np.exp(np.stack([profile.at(seen)[0] + level + seen, x], axis=1))
