"""Whether a change is better, worse or alike, by a test that may be looked at after every run.

A confidence sequence holds the true difference d of mean logarithms at all numbers of runs at once, with probability
1 - a (Robbins 1970; Howard et al. 2021, Ann. Statist. 49). With unknown variance it is Lai's (1976), as a mixture over
the difference in standard deviations, normal with variance G (Wang & Ramdas 2023, arXiv 2310.03722): the likelihood
ratio of Student's t with f degrees of freedom, of a difference whose variance is s^2 / m, is

    E(d) = (1 + m G)^(-1/2) ((1 + t^2 / f) / (1 + t^2 / (f (1 + m G))))^((f + 1) / 2),      t = (y - x - d) sqrt(m) / s

E is a martingale of mean 1 at the true d, so it ever exceeds 1 / a with probability a at most (Ville 1939). All d with
E(d) < 1 / a are the interval

    y - x -+ s sqrt(f (r - 1) / (m (1 - r / (1 + m G)))),      r = (sqrt(1 + m G) / a)^(2 / (f + 1)); all if r > 1 + m G

Independent samples of n and k runs: m = n k / (n + k), f = n + k - 2. It assumes that both sides spread alike: of 30
changes that only triple the spread, one is kept in about one loop in eight. Where seeds are the same on both sides,
PAIRED of the error is for the differences of n pairs, m = n and f = n - 1; both intervals hold.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

MIXTURE = 16.0      # G
PAIRED = 0.3        # share of the error
FINEST = 1e-8       # variance of a logarithm that is taken for none
LEAST = 3           # runs of each side that a decision takes: of two, both may be unlucky alike
POWER = 0.8
DRAWS, MOST_MORE = 200, 50      # of runs to come; how many of each are foreseen
BETTER, WORSE, ALIKE, OPEN = DECISIONS = ("better", "worse", "alike", "open")


@dataclass(frozen=True, eq=False)
class Sides:
    """Logarithms of a measurement that is better if lower, of both sides: arrays of shape (..., runs)."""

    before: np.ndarray
    after: np.ndarray
    pairs: int = 0                      # so many runs at the beginning of each side are of the same seeds
    rough: float | np.ndarray = 0.0     # variance that the spacing of evaluations adds to each

    @property
    def runs(self) -> tuple[int, int]:
        """Of the baseline, of the candidate."""
        return self.before.shape[-1], self.after.shape[-1]

    @property
    def difference(self) -> np.ndarray:
        return self.after.mean(-1) - self.before.mean(-1)

    def tests(self, error: float = 1.0) -> list[tuple[np.ndarray, np.ndarray, int, float]]:
        """(difference, its variance, f, half-width in deviations) of independent samples, and of pairs where there are
        enough."""
        (n, k), rough = self.runs, np.maximum(self.rough, FINEST)
        squares, m, freedom = self.before.var(-1) * n + self.after.var(-1) * k, n * k / (n + k), n + k - 2
        share = 1 - PAIRED * (self.pairs > 0)
        found = [(self.difference, (squares / freedom + rough) / m, freedom, reach(m, freedom, error * share))]
        if (m := self.pairs) >= LEAST:
            apart = self.after[..., :m] - self.before[..., :m]
            variance = (apart.var(-1, ddof=1) + 2 * rough) / m
            found.append((apart.mean(-1), variance, m - 1, reach(m, m - 1, error * PAIRED)))
        return found

    def interval(self, error: float) -> np.ndarray:
        """Ends of the difference, shape (2, ...)."""
        lows, highs = zip(*((centre - reached * np.sqrt(variance), centre + reached * np.sqrt(variance))
                            for centre, variance, _, reached in self.tests(error)))
        return np.sort([np.max(lows, 0), np.min(highs, 0)], 0)

    def decide(self, error: float, within: float) -> np.ndarray:
        """DECISIONS by index, of shape (...); of at least LEAST runs of each.

        within  the share up to which both are alike
        """
        (low, high), near = self.interval(error), np.log1p(within)
        return np.select([(low >= -near) & (high <= near), high < 0, low > 0], [2, 0, 1], 3)

    def chance(self, decision: str, within: float) -> float:
        """The smallest error at which they are decided so; of OPEN at which they would be better or worse."""
        wanted = (0, 1) if decision == OPEN else (DECISIONS.index(decision),)
        low, high = float(np.log(1e-12)), 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if int(self.decide(float(np.exp(middle)), within)) in wanted else (middle, high)
        return float(np.exp(high))

    def smallest(self, error: float) -> float:
        """The smallest difference, as a share, that so many runs show with probability POWER; inf: none."""
        return min(smallest_difference(reached, variance, freedom)
                   for _, variance, freedom, reached in self.tests(error))

    def runs_more(self, error: float, within: float, both: bool) -> tuple[float, float]:
        """Quartiles of the number of runs more that decide if the difference and the spread are as they seem; inf: more
        than MOST_MORE.

        both  of each side; else of the candidate alone
        """
        random, draws = np.random.default_rng([0, 13]), np.full(DRAWS, np.inf)
        (_, own, *_), *pairs = [(centre, variance * m) for (centre, variance, *_), m in zip(self.tests(), (
            np.prod(self.runs) / sum(self.runs), self.pairs))]
        alike = max(float(own - pairs[0][1] / 2), 0.0) if pairs else 0.0        # what a seed's luck adds on both sides
        luck, *new = random.standard_normal((3, DRAWS, MOST_MORE))
        mean, all_paired = self.before.mean(), both and self.runs == (self.pairs, self.pairs)
        more = [at + np.sqrt(alike) * luck + np.sqrt(np.maximum(own - alike, 0)) * each for at, each in zip(
            (mean, mean + self.difference), new)]
        for count in range(1, MOST_MORE + 1):
            before, after = (np.concatenate([np.broadcast_to(side, (DRAWS, len(side))), each[:, :count]], -1)
                             for side, each in zip((self.before, self.after), more))
            sides = Sides(before if both else self.before, after, self.pairs + count * all_paired, self.rough)
            draws[(sides.decide(error, within) < DECISIONS.index(OPEN)) & np.isinf(draws)] = count
        low, high = np.sort(draws)[[DRAWS // 4, 3 * DRAWS // 4]]
        return float(low), float(high)


def reach(m: float, freedom: int, error: float) -> float:
    """How many standard errors the confidence sequence reaches to either side; inf: it is all numbers."""
    grown = 1 + m * MIXTURE
    r = np.exp((0.5 * np.log(grown) - np.log(error)) * 2 / (freedom + 1))
    return float(np.sqrt(freedom * (r - 1) / (1 - r / grown))) if r < grown else np.inf


def smallest_difference(reached: float, variance: float | np.ndarray, freedom: float) -> float:
    """The share that shows beyond so many standard errors with probability POWER; inf: none."""
    if not np.isfinite(reached):
        return np.inf
    return float(np.expm1(scipy.special.nctdtrinc(freedom, 1 - POWER, reached) * np.sqrt(variance)))
