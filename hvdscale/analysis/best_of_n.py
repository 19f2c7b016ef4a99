"""The fewest steps of n trials, with an interval.

The fewest steps of a search are a minimum over random draws. What is estimated is the *median best-of-n*: the median,
over repeated searches, of the steps that the best of n draws needs. The smallest of n trials estimates it without
median bias. It is the quantile of one trial's steps at which the cumulative hazard H is ln(2) / n, because
(1 - F)^n = exp(-n H) = 1/2.

The best of n of N trials, n < N, is the median over all subsets of n. It lies above the smallest trials, where a search
may have pruned: a pruned trial is only known to need more than its last step. The value is then the quantile of the
Kaplan-Meier curve (1958), which counts each trial up to its last step. Where that curve ends too early, the value is
extrapolated on the tail below, from the trials that met the target.

The interval. Sort the trials by steps: H grows from each to the next by E / r. E has a standard exponential
distribution, whatever the distribution of the steps, and r is the number of trials not yet ended (Renyi 1953; with
censoring, Nelson 1972). So H at the smallest trials is drawn, and each draw gives a quantile:

    between two trials    on the line between them, without a model
    below the smallest    x1 - sigma (sqrt(H1) - sqrt(H)), x = log(steps): the tail x0 + sigma H^(1/a) near the minimum
                          x0 of a smooth optimum; a = 2 is half of four metaparameters that matter (de Haan 1981, JASA)
    above the largest     on the same tail

sigma comes from the distances of the LOWEST smallest trials, in units of those drawn (as Weissman 1978, JASA 73).
Location and scale cancel, so the interval is exact where the tail is. A target is met somewhere between two
evaluations: the lower end uses steps drawn from that range, the upper end the steps of the later evaluation.

Alternatives covered less. A bootstrap of the minimum covers half of what it claims, since it never goes below the
smallest trial; drawing half as many does not help. Order statistics alone have no lower end. A log-normal fit to all
trials covered none of 50, since most trials say little about the best. Other seeds of the best point show the noise of
that point, not of the search. tools/coverage has the figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .intervals import CONFIDENCE, Ends, Estimate

LOWEST = 5              # smallest trials that set the tail's scale, as many as a search keeps from pruning
SHAPE = 2.0             # a
DRAWS = 4000
MOST_DRAWN = 400_000   # trials over all draws; with more trials, fewer draws


def best_of(steps: ArrayLike, before: ArrayLike, last: ArrayLike, *, pruned: ArrayLike | None = None,
            n: int | None = None, confidence: float = CONFIDENCE) -> Estimate:
    """The median best-of-n of one search's trials, arrays of shape (trials,): steps to target.

    steps   at the evaluation that met; inf: never
    before  at the evaluation before, NaN where it is unknown; ignored where never met
    last    the last step of a trial that did not meet, pruned or not; NaN: not measured
    pruned  whether the search stopped it, so that it might have met later; default: none
    n       number of trials; default: all. Of more than there are: extrapolated on the tail below the smallest ones

    The value is the median over all subsets of n, so the smallest where n is all; inf: not met. If only one trial met,
    the interval is 0 to inf. The lower end is at least one spacing of evaluations, where known, as no target is
    detected sooner."""
    steps, before, last = (np.asarray(values, float) for values in (steps, before, last))
    n = len(steps) if n is None else n
    if n < 1:
        raise ValueError(f"best of {n} of {len(steps)} trials: give a number from 1 on")
    met = np.isfinite(steps)
    if not met.any():
        return _estimate_unmet(last)
    reached, last = last, np.where(np.isnan(last), 0.0, last)
    pruned = np.zeros(len(steps), bool) if pruned is None else np.asarray(pruned, bool) & ~met
    ends, middle = _interval(steps, before, last, n, confidence, lambda values: np.log(np.maximum(values, 0.5)))
    low, high = np.exp(ends)
    if n > len(steps):
        value = float(np.exp(min(middle, ends[1])))
        return Estimate(value, float(low) if low >= 1 else 0.0, float(high), len(steps), extrapolated=True)
    value = _median_best(steps, n)
    earlier = _median_best(np.where(met & ~np.isnan(before), before, steps), n)
    extrapolated = False
    if value != _median_best(np.where(pruned, last, steps), n):     # the Kaplan-Meier share of unmet trials at 2^(-1/n)
        has_met, order = _sort_trials(steps, last)
        staying = np.cumprod(np.where(has_met, 1 - 1 / np.arange(len(steps), 0, -1), 1.0))
        fallen = order[has_met & (staying <= 2 ** (-1 / n) + 1e-12)]
        extrapolated = not len(fallen)
        value, earlier = max(float(np.exp(middle)), float(steps[met].max())), np.nan
        if not extrapolated:
            value, earlier = float(steps[fallen[0]]), float(before[fallen[0]])
    beyond = np.nan if np.isfinite(value) else _estimate_unmet(reached[~met]).beyond
    later = met & (before > 0)
    if low > 0 and later.any():
        low = max(low, (steps[later] - before[later]).min())
    low, high = min(low, value), max(high, value)
    return Estimate(value, float(low) if low >= 1 else 0.0, float(high), len(steps), beyond,
                    earlier if earlier < value < np.inf else np.nan, extrapolated)


def _estimate_unmet(last: np.ndarray) -> Estimate:
    """Of trials that did not meet the target; known from below where any of them measured the metric."""
    return Estimate(np.inf, 0.0, np.inf, len(last), float(np.fmin.reduce(last, initial=np.nan)))


def smallest_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Of the median best of all of at least two uncensored values of any sign, on a linear scale."""
    (low, high), _ = _interval(values, values, values, len(values), confidence, np.asarray)
    return float(min(low, values.min())), float(max(high, values.min()))


def _median_best(values: np.ndarray, n: int) -> float:
    """The median, over all subsets of n of these values, of each subset's smallest; halfway between two of them, inf
    where one is. Of the C(N, n) subsets, C(N, n) - C(N - j, n) contain one of the j smallest values."""
    count, subsets = len(values), math.comb(len(values), n)
    first = next(j for j in range(count) if 2 * (subsets - math.comb(count - j - 1, n)) >= subsets)
    second = next(j for j in range(first, count) if 2 * (subsets - math.comb(count - j - 1, n)) > subsets)
    low, high = np.partition(values, (first, second))[[first, second]]
    return float(low if first == second else (low + high) / 2)


def _sort_trials(steps: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whether each met, order) of trials by their last step; among equals, those that met come first."""
    met = np.isfinite(steps)
    order = np.lexsort((~met, np.where(met, steps, last)))
    return met[order], order


@dataclass(frozen=True)
class BestOf:
    """The median over all subsets of ``n`` trials of the best in each: between low and high, as pruning leaves it."""

    n: int
    low: float
    high: float

    @property
    def known(self) -> bool:
        return self.low == self.high


def best_of_n(costs: Sequence[float], censored: Sequence[bool] = (), sizes: Sequence[int] | None = None,
              negated: bool = False) -> tuple[BestOf, ...]:
    """The median over all subsets of n of the smallest cost in each, by default for n = 1, 2, ..., all.

    censored  whether the given cost is only a lower bound: it bounds the median as given from below, as inf from above
    negated   whether costs are negated values, so that the curve is of the values"""
    least = np.asarray(costs, float)
    most = np.where(censored, np.inf, least) if any(censored) else least
    ends = [(n, _median_best(least, n), _median_best(most, n)) for n in sizes or range(1, len(least) + 1)]
    return tuple(BestOf(n, -above, -below) if negated else BestOf(n, below, above) for n, below, above in ends)


def _interval(values: np.ndarray, before: np.ndarray, last: np.ndarray, n: int, confidence: float,
              scale: Callable[[np.ndarray], np.ndarray]) -> tuple[Ends, float]:
    """(ends of the interval, median) of the quantile at H = ln(2) / n, on ``scale``; -inf and inf: unknown."""
    met, order = _sort_trials(values, last)
    smallest, expected = np.flatnonzero(met), len(values) * np.log(2) / n
    smallest = smallest[:int(LOWEST + expected + 5 * np.sqrt(expected))]
    if len(smallest) == 1:
        return (-np.inf, np.inf), scale(values[order][smallest])[0]
    pivot = _Pivot(tuple((len(values) - smallest).tolist()), n)
    values, before = values[order][smallest], np.nan_to_num(before[order][smallest])
    drawn = np.sort(scale(values - pivot.between * (values - before)), axis=1) if (before < values).any() else None
    tail, read = (1 - confidence) / 2, scale(values)[None]
    low, high = (pivot.quantiles(x) for x in (read if drawn is None else drawn, read))
    ends = np.quantile(low, tail, method="inverted_cdf"), np.quantile(high, 1 - tail, method="inverted_cdf")
    return ends, np.median(high)


@lru_cache(maxsize=256)
class _Pivot:
    """Draws of H at the smallest trials, and the weights of a quantile that follow; arrays have one entry per draw."""

    def __init__(self, at_risk: tuple[int, ...], n: int) -> None:
        """at_risk  the number of trials that had not ended yet, at each of the smallest"""
        random = np.random.Generator(np.random.Philox(key=len(at_risk)))
        draws = max(DRAWS // 8, min(DRAWS, MOST_DRAWN // len(at_risk)))
        hazard = np.cumsum(random.standard_exponential((draws, len(at_risk))) / at_risk, axis=1)
        self.between = random.random((draws, len(at_risk)))     # where between two evaluations a target was met
        wanted, root = np.log(2) / n, hazard[:, :LOWEST] ** (1 / SHAPE)
        self.tail = (wanted ** (1 / SHAPE) - root[:, 0]) / (root - root[:, :1]).mean(1)
        self.trials_below = (hazard < wanted).sum(1)
        self.right = np.clip(self.trials_below, 1, len(at_risk) - 1)
        rows = np.arange(draws)
        left, right = hazard[rows, self.right - 1], hazard[rows, self.right]
        self.share = (wanted - left) / (right - left)

    def quantiles(self, x: np.ndarray) -> np.ndarray:
        """The quantile of each draw. x: values of the smallest trials, sorted, of shape (DRAWS or 1, trials)."""
        rows = np.arange(len(x)) if len(x) > 1 else 0
        left, right = x[rows, self.right - 1], x[rows, self.right]
        line = left + self.share * (right - left)
        tail = x[:, 0] + (x[:, :LOWEST] - x[:, :1]).mean(1) * self.tail
        below, above = self.trials_below == 0, self.trials_below == x.shape[1]
        return np.where(below, tail, np.where(above, np.maximum(tail, x[:, -1]), line))
