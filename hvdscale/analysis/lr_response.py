"""Steps to a target as a function of the learning rate at one batch, from all trials of a search.

Below the best rate, half the rate takes about twice the steps; above it, steps rise to a cliff. So with u =
log(rate / best rate) the logarithm of the steps is modeled as

    log S = log S_best + log((k exp(-l u) + l exp(k u)) / (l + k)) + noise

with its minimum at u = 0 and slopes that approach -l (near -1) and k. A factor r on u and 1 / r on the logarithm makes
the minimum sharper or blunter. The logistic noise covers everything but the rate: the other metaparameters as the
search drew them, and the seed. So a loss compares rates with the others drawn alike.

Each trial puts log S in an interval: between the two evaluations around the target; above its last step where it did
not meet it; above the budget where it diverged. The six unknowns have a broad prior and are drawn from their posterior,
by importance sampling in rounds (Cappe et al. 2004, population Monte Carlo). With few trials, most of them censored, a
best fit alone would say little.

A valley has no wide flat top: fitted to one, it is too narrow, and to a cliff, too smooth. So what it claims of a rate
to be surely lost, the trials around that rate have to confirm, see ``trials_confirm``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .intervals import Estimate

LEAST_MET = 4               # trials that met the target, below which nothing is fitted
VOTES, INWARD = 4, 25       # see trials_confirm
INSIDE = 0.95               # share of the draws of the best rate that must lie between the rates tried
DRAWS = 1000                # of the posterior
_PROPOSED, _ROUNDS = 500, 20            # points per round, and the most rounds, until the effective sample size
_ENOUGH = 0.2                           # reaches this share of the points; then a last round
_LAST, _LAST_ROUNDS = 2000, 3           # of this many points, repeated while its effective size is too small
_LEAST_EFFECTIVE = 40       # effective sample size below which weights are tempered
_FREEDOM = 5
# mean and standard deviation of the logarithms of l, k, r and the noise's scale
_PRIOR = np.array([[0.0, 0.5], [np.log(2), 0.8], [0.0, 0.8], [np.log(0.15), 0.8]])
_LEAST_BETWEEN = 0.3        # least standard deviation between batches
_BEYOND = np.log(4)         # how far outside the rates tried the best may lie
_BLOCK = 30_000             # points times trials that are processed together
_FLOOR = np.float32(np.exp(-50.0))      # least likelihood of a trial, so that no single trial can rule out a point
_STEEP = np.float32(60.0)   # an exponent beyond which that floor is reached


@dataclass(frozen=True, eq=False)
class Landscape:
    """Posterior draws given the trials of a batch, as logarithms, of shape (DRAWS,)."""

    best: np.ndarray            # the best rate
    steps: np.ndarray           # at the best rate
    shape: np.ndarray           # rows of l, k, r and the noise's scale: shape (4, DRAWS)
    lowest: float               # log of the lowest rate tried
    highest: float
    trials: int                 # their number

    @property
    def bracketed(self) -> bool:
        """Whether the best rate certainly lies between those tried."""
        return bool(np.mean((self.best > self.lowest) & (self.best < self.highest)) >= INSIDE)

    def tried(self, log_rate: float) -> bool:
        """Whether a rate lies between those tried, give or take a tenth of a doubling."""
        return self.lowest - 0.07 <= log_rate <= self.highest + 0.07

    def optimum(self, confidence: float) -> Estimate:
        return _estimate(np.exp(self.best), confidence, self.trials)

    def losses(self, log_rates: ArrayLike) -> np.ndarray:
        """Steps at rates over steps at the best rate, at least 1: shape (rates, DRAWS), (DRAWS,) for a single one."""
        return np.exp(np.minimum(valley(np.asarray(log_rates)[..., None] - self.best, *np.exp(self.shape[:3])), 100))

    def loss(self, log_rate: float, confidence: float) -> Estimate:
        return _estimate(self.losses(log_rate), confidence, self.trials)


def valley(u: np.ndarray, below: float | np.ndarray, above: float | np.ndarray, sharp: float | np.ndarray = 1.0
           ) -> np.ndarray:
    """log((k exp(-l r u) + l exp(k r u)) / (l + k)) / r with l, k, r = below, above, sharp: 0 at its minimum u = 0."""
    total = np.log(below + above)
    return np.logaddexp(np.log(above) - total - below * sharp * u, np.log(below) - total + above * sharp * u) / sharp


def landscapes_of(batches: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> list[Landscape | None]:
    """The landscapes of batches of one workload. A first fit of each alone gives the mean of the common prior on their
    shape (l, k, r and the noise), and the spread between batches its width; then all are fitted again."""
    alone = [landscape_of(*batch, rough=True) for batch in batches]
    shapes, prior = np.array([one.shape for one in alone if one is not None]), _PRIOR
    if len(shapes) > 1:
        means = shapes.mean(2)
        between = means.var(0, ddof=1) - shapes.var(2).mean(0)
        prior = np.stack([means.mean(0), np.sqrt(np.maximum(between, _LEAST_BETWEEN ** 2))], axis=1)
    return [one and landscape_of(*batch, prior, one) for batch, one in zip(batches, alone)]


def landscape_of(log_rate: np.ndarray, before: np.ndarray, steps: np.ndarray, prior: np.ndarray = _PRIOR,
                 start: Landscape | None = None, rough: bool = False) -> Landscape | None:
    """The landscape of the trials of one search; None where fewer than LEAST_MET met the target, or all used one rate.

    before    steps at the last evaluation known not to have met; 0: none
    steps     at the one that met; inf: none did
    start     the landscape of the same trials under another prior, from which sampling starts
    rough     whether means and standard deviations suffice, without ends of intervals"""
    if np.isfinite(steps).sum() < LEAST_MET or np.ptp(log_rate) == 0:
        return None
    low, high = np.log(np.maximum(before, 0.5)), np.log(np.maximum(steps, 1.0))
    low = np.where(low < high, low, high - 1e-3)        # met at step 0: a very short interval
    trials, random = _CensoredTrials(np.asarray(log_rate, float), low, high, prior), np.random.default_rng(0)
    if start is None:
        points = trials.draw_prior(random)
        likely = trials.likelihood(points)              # their density is the prior's
    else:
        points, likely = np.column_stack([start.best, start.steps, *start.shape]), np.zeros(DRAWS)
    for points_drawn, rounds in ((_PROPOSED, _ROUNDS), (_LAST, 0 if rough else _LAST_ROUNDS)):
        for number in range(rounds):
            points, likely = trials.draw_around(points, likely, number, points_drawn)
            if _effective_number(likely) >= _ENOUGH * _PROPOSED:
                break
    weight = np.exp(likely - likely.max())
    best, fewest, *shape = points[random.choice(len(points), DRAWS, p=weight / weight.sum())].T
    return Landscape(best, fewest, np.array(shape), float(np.min(log_rate)), float(np.max(log_rate)), len(log_rate))


def trials_confirm(landscape: Landscape, log_rate: float, rates: np.ndarray, before: np.ndarray, steps: np.ndarray,
                   more: float) -> bool:
    """Whether the trials themselves show that a rate needs over ``more`` times the steps of the best one: all of those
    farther out, one in INWARD of all trials just inside, and at least VOTES, needed more than that. The best rate's
    steps are the fitted ones, or the second fewest of the trials where these are more: on a wide flat top and beside a
    cliff the fit's lowest point is too low."""
    out = np.sign(log_rate - np.median(landscape.best)) * (rates - log_rate)
    voting = max(VOTES, int((out >= 0).sum()) + max(1, len(rates) // INWARD))
    least = np.where(np.isfinite(steps), steps, before)[np.argsort(-out)][:voting]
    return bool((least > more * max(np.exp(np.median(landscape.steps)), np.partition(steps, 1)[1])).all())


class _CensoredTrials:
    """The trials as intervals of log S, and their likelihood at points: rows of best, steps and the shape.

    columns    rates, lower ends and upper ends, each of shape (trials, 1), those that met first; the number that met"""

    def __init__(self, log_rate: np.ndarray, low: np.ndarray, high: np.ndarray, prior: np.ndarray) -> None:
        met, self.prior = np.isfinite(high), prior
        self.box = np.array([[log_rate.min() - _BEYOND, log_rate.max() + _BEYOND], [high.min() - 2, high.min() + 2]])
        rates, low, high = (np.concatenate([values[met], values[~met]])[:, None].astype(np.float32)
                            for values in (log_rate, low, high))
        self.columns = rates, low, high, int(met.sum())

    def draw_prior(self, random: np.random.Generator) -> np.ndarray:
        lowest, highest = self.box.T
        return np.column_stack([random.uniform(lowest, highest, (_PROPOSED, 2)),
                                self.prior[:, 0] + self.prior[:, 1] * random.standard_normal((_PROPOSED, 4))])

    def draw_around(self, points: np.ndarray, log_weight: np.ndarray, number: int, count: int
                    ) -> tuple[np.ndarray, np.ndarray]:
        """``count`` new points around the weighted ones, by Student's t, and the logarithms of their weights. Weights
        are first flattened until their effective number is _LEAST_EFFECTIVE."""
        power = 1.0
        while _effective_number(power * log_weight) < _LEAST_EFFECTIVE and power >= 0.01:
            power *= 0.6
        weight = np.exp(power * (log_weight - log_weight.max()))
        weight /= weight.sum()
        mean = weight @ points
        centered = points - mean
        root = np.linalg.cholesky(1.2 * (centered.T * weight @ centered) + 1e-6 * np.eye(points.shape[1]))
        drawn, density = _draw_students_t(number, count, len(root))
        points = mean + drawn @ root.T
        return points, self.posterior(points) - density

    def likelihood(self, points: np.ndarray) -> np.ndarray:
        """The log likelihood, shape (points,), in blocks of points whose arrays fit in the processor's cache."""
        blocks = len(points) * len(self.columns[0]) // _BLOCK + 1
        return np.concatenate([_log_likelihood(block, *self.columns) for block in np.array_split(points, blocks)])

    def posterior(self, points: np.ndarray) -> np.ndarray:
        inside = ((points[:, :2] >= self.box[:, 0]) & (points[:, :2] <= self.box[:, 1])).all(1)
        prior = -0.5 * (((points[:, 2:] - self.prior[:, 0]) / self.prior[:, 1]) ** 2).sum(1)
        return np.where(inside, self.likelihood(points) + prior, -np.inf)


def _log_likelihood(points: np.ndarray, log_rate: np.ndarray, low: np.ndarray, high: np.ndarray, met: int
                    ) -> np.ndarray:
    """The log likelihood of points, shape (points, 6), given trials, shape (trials, 1), of which the first ``met`` met.
    In single precision, with as few exponentials and logarithms as possible, as most of a report's time may be spent
    here. With E = exp((x - middle) / scale), the logistic distribution has 1 / (1 + E) above x. The formula of
    ``valley`` is written as the logarithm of 1 + exp(ratio), with the ratio of its two terms."""
    best, fewest, *shape = points.T
    below, above, sharp, scale = np.exp(shape)
    constant = fewest + (np.log(below) - np.log(below + above)) / sharp - above * best
    ratio, slope, constant, above, inverse, scale = (values.astype(np.float32) for values in (
        np.log(above) - np.log(below) + (below + above) * sharp * best, (below + above) * sharp, constant, above,
        1 / sharp, 1 / scale))
    ratio = ratio - slope * log_rate
    middle = np.abs(ratio)
    np.log1p(np.exp(np.negative(middle, out=middle), out=middle), out=middle)
    middle += np.maximum(ratio, 0, out=ratio)
    middle *= inverse
    middle += np.multiply(above, log_rate, out=ratio)
    middle += constant
    share_below = _odds(low, middle, scale)
    likely = 1 / (1 + share_below)
    share_above = _odds(high[:met], middle[:met], scale)
    likely[:met] *= (share_above - share_below[:met]) / (1 + share_above)
    return np.log(np.maximum(likely, _FLOOR, out=likely), out=likely).sum(0, dtype=float)


def _odds(at: np.ndarray, middle: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """E of _log_likelihood."""
    found = at - middle
    found *= scale
    return np.exp(np.minimum(found, _STEEP, out=found), out=found)


def _effective_number(log_weight: np.ndarray) -> float:
    """The effective number of weighted points (Kish 1965)."""
    weight = np.exp(log_weight - log_weight.max())
    return float(weight.sum() ** 2 / (weight ** 2).sum())


@lru_cache(maxsize=64)
def _draw_students_t(number: int, count: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """The draws of a round, the same for every landscape: shape (count, dimensions), and their log density without its
    constant, shape (count,)."""
    random = np.random.default_rng(number)
    drawn = random.standard_normal((count, dimensions))
    drawn /= np.sqrt(random.chisquare(_FREEDOM, count) / _FREEDOM)[:, None]
    return drawn, -(_FREEDOM + dimensions) / 2 * np.log1p((drawn ** 2).sum(1) / _FREEDOM)


def _estimate(draws: np.ndarray, confidence: float, trials: int) -> Estimate:
    low, value, high = np.quantile(draws, [0.5 - confidence / 2, 0.5, 0.5 + confidence / 2])
    return Estimate(float(value), float(low), float(high), trials)
