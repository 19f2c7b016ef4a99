"""The fewest steps of n trials, with an interval.

The fewest steps of a search are a minimum over its draws, and draws are chance. What is estimated is the *median
best-of-n*: the number of steps that the best of n draws of the same search needs at most in half of all searches. The
smallest of n trials is an estimate of it without a bias of the median. It is the quantile of one trial's steps at which
the cumulative hazard H is ln(2) / n, because (1 - F)^n = exp(-n H) = 1/2.

The best of fewer trials than there are, n of N, is the median over all subsets of n. It lies beyond the smallest
trials, where a search may have pruned: a pruned trial is only known to need more than its last step. Its value is then
the quantile of the Kaplan-Meier curve (1958), which counts each trial as long as it ran; where even that does not reach
so far, it is extrapolated on the tail below, from the trials that met the target.

The interval. Of trials in order of their steps, H grows from each to the next by E / r: E of the standard exponential
distribution, whatever that of the steps is, and r the trials not yet ended (Renyi 1953; of censored ones, Nelson 1972).
So H at the smallest trials is drawn, and each draw gives a quantile:

    between two trials    on the line between them, which asks for no model
    below the smallest    x1 - sigma (sqrt(H1) - sqrt(H)), x = log(steps): the tail x0 + sigma H^(1/a) near the least
                          x0 of a smooth optimum, where a is half the number of the metaparameters that matter (de Haan
                          1981, JASA 76); a = 2 here, of four
    above the largest     on the same tail

with sigma from the distances of the LOWEST smallest trials, in units of those drawn (as Weissman 1978, JASA 73):
location and scale cancel, so that the interval is exact where the tail is. The evaluations say only between which two
the target was met: the lower end is of steps drawn from there, the upper end of those that were read.

Why this one: a bootstrap of the minimum covers half of what it claims, since it never goes below the smallest trial,
with half as many drawn, too; order statistics alone have no lower end; a log-normal fit to all trials covers nothing of
50, since most trials say little of the best. Other seeds of the best point tell the noise of one point, not of the
search. tools/coverage has the figures.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from .intervals import CONFIDENCE, Estimate

LOWEST = 5              # trials that tell the scale of the tail, as many as a search keeps from pruning
SHAPE = 2.0             # a
DRAWS = 4000
MOST_DRAWN = 400_000   # trials in all draws together: of the best of few of many trials, fewer draws are made


def best_of(steps, before, last, *, pruned=None, n=None, confidence=CONFIDENCE) -> Estimate:
    """The median best-of-n of one search's trials: steps to target.

    steps   float array, shape (trials,): at the evaluation that met; inf: never
    before  float array, shape (trials,): at the evaluation before, 0 where it was the first; not read where never met
    last    float array, shape (trials,): how far a trial went that did not meet, pruned ones too
    pruned  bool array, shape (trials,): whether the search stopped it, so that it might have met later; default: none
    n       trials of the search that is meant, at most as many as there are; by default all

    The value is the median over all subsets of n, so the smallest where n is all; inf: it did not meet. With one trial
    that met, an interval of 0 to inf: nothing is known. The lower end is at least one distance of evaluations, where
    that is known, as no target is read sooner.
    """
    steps, before, last = (np.asarray(values, float) for values in (steps, before, last))
    n = _checked(n, len(steps))
    met = np.isfinite(steps)
    if not met.any():
        return Estimate(np.inf, 0.0, np.inf, len(steps), float(last.min()))
    pruned = np.zeros(len(steps), bool) if pruned is None else np.asarray(pruned, bool) & ~met
    ends, middle = _interval(steps, before, last, n, confidence, _log)
    low, high = np.exp(ends)
    value, earlier = _median_best(steps, n), _median_best(np.where(met, before, np.inf), n)
    extrapolated = False
    if value != _median_best(np.where(pruned, last, steps), n):
        value, earlier = _product_limit(steps, before, last, n)
        extrapolated = np.isinf(value)
        if extrapolated:
            value, earlier = max(float(np.exp(middle)), float(steps[met].max())), np.nan
    beyond = np.nan if np.isfinite(value) else float(last[~met].min())
    later = met & (before > 0)
    if low > 0 and later.any():
        low = max(low, (steps[later] - before[later]).min())
    low, high = min(low, value), max(high, value)
    return Estimate(value, float(low) if low >= 1 else 0.0, float(high), len(steps), beyond,
                    earlier if np.isfinite(value) else np.nan, extrapolated)


def common_trials(counts: Mapping[int, int], asked: int | None = None) -> tuple[int | None, dict[int, int]]:
    """(n, batches left out with their counts): how many trials every batch's steps are to be the best of.

    The fewest steps of n trials fall with n: batches compared at different n would bend the curve. n is the smallest
    count, or the number asked for; then the batches with fewer are left out. None: there is no trial at all.

    counts  feasible trials by global batch; a batch without any has no steps, and does not count
    """
    if asked is not None:
        return asked, {batch: count for batch, count in counts.items() if count < asked}
    return min((count for count in counts.values() if count), default=None), {}


def smallest_interval(values, *, n=None, confidence=CONFIDENCE) -> tuple[float, float]:
    """Ends of the interval of the median best-of-n of values that all are known, on a linear scale; any sign."""
    values = np.asarray(values, float)
    n = _checked(n, len(values))
    (low, high), _ = _interval(values, values, values, n, confidence, np.asarray)
    value = _median_best(values, n)
    return float(min(low, value)), float(max(high, value))


def _checked(n, count):
    n = count if n is None else n
    if not 1 <= n <= count:
        raise ValueError(f"best of {n} of {count} trials: 1 to {count} can be told of")
    return n


def _median_best(values, n):
    first, second = middle_ranks(len(values), n)
    ordered = np.partition(values, (first, second))
    return float(ordered[first] if first == second else (ordered[first] + ordered[second]) / 2)


def _product_limit(steps, before, last, n):
    """(steps, steps before) of the first trial at which the Kaplan-Meier share that has not met is down to 2^(-1/n);
    inf where it never is."""
    met, order = _in_order(steps, last)
    staying = np.cumprod(np.where(met, 1 - 1 / np.arange(len(steps), 0, -1), 1.0))
    found = np.flatnonzero(met & (staying <= 2 ** (-1 / n) + 1e-12))
    return (float(steps[order[found[0]]]), float(before[order[found[0]]])) if len(found) else (np.inf, np.nan)


def _in_order(steps, last):
    """(whether each met, order) of trials by how far they went; of equals those that met come first."""
    met = np.isfinite(steps)
    order = np.lexsort((~met, np.where(met, steps, last)))
    return met[order], order


def middle_ranks(count: int, n: int) -> tuple[int, int]:
    """Of the smallest in each subset of n, put in order, the ranks among all ``count`` of the two in the middle.

    Of the C(count, n) subsets, C(count, n) - C(count - j, n) hold one of the j smallest.
    """
    subsets = math.comb(count, n)
    first = next(j for j in range(count) if 2 * (subsets - math.comb(count - j - 1, n)) >= subsets)
    return first, next(j for j in range(first, count) if 2 * (subsets - math.comb(count - j - 1, n)) > subsets)


def _log(steps):
    return np.log(np.maximum(steps, 0.5))


def _interval(values, before, last, n, confidence, scale):
    """(ends of the interval, median) of the quantile at H = ln(2) / n, on ``scale``; -inf and inf: nothing is known."""
    met, order = _in_order(values, last)
    smallest = np.flatnonzero(met)
    expected = len(values) * np.log(2) / n
    smallest = smallest[:int(LOWEST + expected + 5 * np.sqrt(expected))]
    if len(smallest) == 1:
        return (-np.inf, np.inf), scale(values[order][smallest])[0]
    pivot = _pivot(tuple((len(values) - smallest).tolist()), n)
    values, before = values[order][smallest], before[order][smallest]
    drawn = np.sort(scale(values - pivot.between * (values - before)), axis=1) if (before < values).any() else None
    tail = (1 - confidence) / 2
    read = scale(values)[None]
    low, high = (pivot.quantiles(x) for x in (read if drawn is None else drawn, read))
    ends = np.quantile(low, tail, method="inverted_cdf"), np.quantile(high, 1 - tail, method="inverted_cdf")
    return ends, np.median(high)


class _Pivot:
    """Draws of H at the smallest trials, and what follows of them for a quantile; arrays have one entry a draw.

    between  shares of one, where between two evaluations a target was met: shape (DRAWS, trials)
    """

    def __init__(self, at_risk, n):
        random = np.random.Generator(np.random.Philox(key=len(at_risk)))
        draws = max(DRAWS // 8, min(DRAWS, MOST_DRAWN // len(at_risk)))
        hazard = np.cumsum(random.standard_exponential((draws, len(at_risk))) / at_risk, axis=1)
        self.between = random.random((draws, len(at_risk)))
        wanted = np.log(2) / n
        root = hazard[:, :LOWEST] ** (1 / SHAPE)
        self.tail = (wanted ** (1 / SHAPE) - root[:, 0]) / (root - root[:, :1]).mean(1)
        self.trials_below = (hazard < wanted).sum(1)
        self.right = np.clip(self.trials_below, 1, len(at_risk) - 1)
        rows = np.arange(draws)
        left, right = hazard[rows, self.right - 1], hazard[rows, self.right]
        self.share = (wanted - left) / (right - left)

    def quantiles(self, x):
        """The quantile of each draw. x: the smallest trials' in order, shape (DRAWS or 1, trials)."""
        rows = np.arange(len(x)) if len(x) > 1 else 0
        left, right = x[rows, self.right - 1], x[rows, self.right]
        line = left + self.share * (right - left)
        tail = x[:, 0] + (x[:, :LOWEST] - x[:, :1]).mean(1) * self.tail
        below, above = self.trials_below == 0, self.trials_below == x.shape[1]
        return np.where(below, tail, np.where(above, np.maximum(tail, x[:, -1]), line))


@lru_cache(maxsize=256)
def _pivot(at_risk, n):
    """Of trials of which so many had not ended."""
    return _Pivot(at_risk, n)
