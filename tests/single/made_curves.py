"""Searches and repeats of curves whose parameters are known, many at once: what intervals are tested on.

A trial's steps are exp(cost of its point + noise of its seed) times what brings the median best-of-n to the curve.
Points are scrambled Sobol points, as a search draws them; those beyond a cliff diverge and are drawn anew.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from hvdscale.analysis.intervals import pooled
from hvdscale.analysis.minimum import best_of
from hvdscale.analysis.steps import estimate

BITS = 20


@dataclass(frozen=True)
class Landscape:
    """log(steps) over a space of metaparameters, 0 at its best point.

    kind   "bowl": smooth; "cliff": steps go as 1 / learning rate up to where it diverges; "ridge": learning rate and
           momentum make up for each other
    range  log(steps) of the worst points, about
    noise  standard deviation of log(steps) over seeds
    """

    kind: str
    dimensions: int
    range: float
    noise: float

    def cost(self, points):
        """float array, shape (..., trials); inf: diverged."""
        z = points - 0.55
        rest = self.range * 0.5 ** np.arange(1, self.dimensions + 1)
        if self.kind == "bowl":
            return 3 * (rest * z ** 2).sum(-1)
        if self.kind == "ridge":
            along, across = z[..., 0] - z[..., 1], z[..., 0] + z[..., 1]
            return (self.range * np.abs(across) ** 1.5 + 0.2 * self.range * along ** 2
                    + (rest[2:] * z[..., 2:] ** 2).sum(-1))
        cost = -self.range * z[..., 0] + (rest[1:] * z[..., 1:] ** 2).sum(-1)
        return np.where(z[..., 0] > 0, np.inf, cost)

    def __str__(self):
        return f"{self.kind}, {self.dimensions} metaparameters, range {self.range:g}, noise {self.noise:g}"

    def searches(self, n, count, random):
        """log(steps) of ``count`` searches of n feasible trials each, (count, n)."""
        draws = n if self.kind != "cliff" else 3 * n
        cost = self.cost(scrambled(self.dimensions, draws, count, random))
        feasible = np.isfinite(cost)
        order = np.argsort(~feasible, axis=1, kind="stable")[:, :n]
        cost = np.take_along_axis(cost, order, 1)
        return cost + self.noise * random.standard_normal(cost.shape)


def scrambled(dimensions, points, count, random):
    """``count`` scrambles of the Sobol sequence, (count, points, dimensions); see sweep.space.scrambled_sobol."""
    whole = qmc.Sobol(dimensions, scramble=False).random_base2(max(0, points - 1).bit_length())[:points]
    digits = ((whole * 2**BITS).astype(np.int64)[..., None] >> np.arange(BITS)[::-1] & 1).astype(np.float32)
    matrix = np.tril(random.integers(0, 2, (count, dimensions, BITS, BITS)), -1) + np.eye(BITS)
    shift = random.integers(0, 2, (count, 1, dimensions, BITS))
    mixed = np.einsum("cdij,ndj->cndi", matrix.astype(np.float32), digits, optimize=True)
    return (np.rint(mixed).astype(np.int64) + shift) % 2 @ 0.5 ** np.arange(1, BITS + 1)


@lru_cache(maxsize=None)
def median_best(landscape, n, searches=8000):
    """log of the median best-of-n of a landscape, and quantiles of log(steps) of one trial, at 0, 1, ..., 100 %."""
    random = np.random.default_rng([n, landscape.dimensions])
    found = [landscape.searches(n, 1000, random) for _ in range(searches // 1000)]
    return float(np.median([one.min(1) for one in found])), np.quantile(found[0], np.linspace(0, 1, 101))


@dataclass(frozen=True)
class Searches:
    """Searches of one batch whose median best-of-n is known: arrays of shape (searches, trials)."""

    steps: np.ndarray           # as read at evaluations; inf: not met within the budget
    before: np.ndarray
    last: np.ndarray
    true: float                 # median best-of-n of the steps at which the target was met
    read: float                 # and of the steps as they were read


def searches_of(landscape, n, count, random, *, true=1000.0, spacing=0.02, censored=0.0, prune_keep=None) -> Searches:
    """Made searches.

    spacing   of evaluations, as a share of the true steps
    censored  share of trials that do not meet the target within the budget
    """
    centre, quantiles = median_best(landscape, n)
    log_steps = landscape.searches(n, count, random)
    every = spacing * true
    budget = np.ceil(true * np.exp(quantiles[round(100 * (1 - censored))] - centre) / every) * every
    met_at = true * np.exp(log_steps - centre)
    steps = np.ceil(met_at / every) * every
    last = np.full(steps.shape, budget)
    if prune_keep and prune_keep < n:
        for trial in range(prune_keep, n):
            kept = np.sort(steps[:, :trial], axis=1)[:, prune_keep - 1]
            last[:, trial] = np.minimum(budget, kept)
    unmet = steps > last
    return Searches(np.where(unmet, np.inf, steps), np.where(unmet, np.nan, steps - every), last, true,
                    float(np.ceil(true / every) * every))


@dataclass(frozen=True)
class Known:
    """What a made sweep was made of, at its batches."""

    batches: np.ndarray
    s_min: float
    b_crit: float

    @property
    def steps(self):
        """S at each batch."""
        return self.s_min * (1 + self.b_crit / self.batches)

    def perfect_until(self, within=0.25):
        """The largest batch whose B S is within tolerance of the smallest."""
        examples = self.batches * self.steps
        return self.batches[examples <= (1 + within) * examples.min()].max()

    def maximum_useful(self, within=0.2):
        """The smallest batch whose S is within tolerance of the fewest."""
        return self.batches[self.steps <= (1 + within) * self.steps.min()].min()


def known_curve(random, batches=2 ** np.arange(4, 14)) -> Known:
    """A curve whose both ends lie among the batches."""
    return Known(batches, float(np.exp(random.uniform(np.log(100), np.log(2000)))), float(2 ** random.uniform(6, 11)))


def searched(known, landscape, n, random, **settings):
    """An Estimate for each batch of a sweep that searched n trials at each."""
    made = searches_of(landscape, n, len(known.batches), random, true=1000.0, **settings)
    return [best_of(steps, before, last).scaled(true / 1000) for steps, before, last, true in
            zip(made.steps, made.before, made.last, known.steps)]


def repeated(known, seeds, noise, random, spacing=0.02):
    """An Estimate for each batch of a sweep that ran one setting under so many seeds at each, spreads pooled."""
    steps = known.steps[:, None] * np.exp(noise * random.standard_normal((len(known.batches), seeds)))
    every = spacing * known.steps[:, None]
    steps = np.ceil(steps / every) * every
    before = np.maximum(steps - every, 0.0)
    pool, pool_before = pooled(steps), pooled(before)
    return [estimate(one, other, (), pool, pool_before) for one, other in zip(steps, before)]
