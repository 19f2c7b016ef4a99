"""Does a larger batch reach a worse solution, given enough training? A test for a large-batch penalty.

    found = quality_of(studies, "val/error", True, Budget(50000, "steps"))
    found.p_value, found.worse_from, found.worse_by.value

What is compared is the best value of the metric within a budget, the best of as many trials at every batch (the median
over all subsets of that size where a batch has more), as Shallue et al. 2019 (sections 4.6 and 4.7) do by eye.

The null hypothesis: how good the best of n trials is has nothing to do with the batch, so that every order of the
batches is as likely. That holds whatever the distribution of the trials is, and counts all of its causes in: the search
being finite, the seeds, the evaluations. The statistic is the share of the squares about the mean that a
rise in steps, never falling, explains (isotonic regression; Bartholomew 1959, Biometrika 46), the p-value the share of
the orders (of all, or of ORDERS drawn) in which it is as large. It asks for a penalty only: a metric that betters with
the batch gives a p-value near 1. Where some batches have three times the noise of others, the level of 5 % was seen to
become one of up to 10 %. A penalty under a budget of epochs may be one of too few steps; see budgets.py. In as many
steps a small batch sees fewer examples: where it had not finished, that the metric betters with the batch says nothing.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from scipy.special import stdtrit

from .budgets import Budget, Point, best_under, held_to
from .intervals import CONFIDENCE, Estimate
from .search import best_of_n
from .studies import Study

LEVEL = 0.05                # p-values at or below are a penalty
POWER = 0.8                 # of the rise that is called detectable
LEAST_TRIALS = 5            # feasible ones, for a batch to take part
LEAST_BATCHES = 4           # of three, no order is rarer than one in six
ORDERS = 9999
MOST_AT_ONCE = 1 << 17      # numbers of a pass over the orders
ENUMERATED = 7              # batches of which all orders are taken
LATE = 0.9                  # of a trial's last step: a best value after it may have gone on
# why nothing can be told
NO_METRIC, BATCHES, STOPPED, UNFINISHED = "no metric", "batches", "stopped", "unfinished"


@dataclass(frozen=True, eq=False)
class Quality:
    """What became of the best value with the batch.

    points      every batch, with its own interval
    compared    indices of those that are compared, n trials of each
    best        their medians best of n: shape (compared,)
    p_value     NaN: cannot tell, for the reason ``why``
    worse_from  the batch from which on it is worse; None: no penalty was found
    worse_by    the mean from there on less that before, above 0, with Student's interval, which does not include the
                choice of the batch; as a share: worse_share
    betters     whether the metric betters with the batch, by the same test turned round
    detectable  the even rise from the smallest to the largest batch that would be found in POWER of such sweeps; NaN
                where it betters
    """

    workload: object
    column: str
    minimizes: bool
    budget: Budget | None
    points: tuple[Point, ...]
    compared: tuple[int, ...]
    n: int
    best: np.ndarray
    p_value: float
    worse_from: int | None
    worse_by: Estimate
    betters: bool
    detectable: float
    why: str
    confidence: float

    @property
    def batches(self) -> tuple[int, ...]:
        """Those compared."""
        return tuple(self.points[at].global_batch for at in self.compared)

    @property
    def penalty(self) -> bool:
        """Whether there is one."""
        return self.p_value <= LEVEL

    @property
    def worse_share(self) -> float:
        """The penalty as a share of the mean best before it."""
        before = self.best[[batch < self.worse_from for batch in self.batches]].mean() if self.worse_from else np.nan
        return abs(self.worse_by.value / before) if before else np.nan

    @property
    def left_out(self) -> tuple[int, ...]:
        """Batches of too few trials."""
        return tuple(point.global_batch for at, point in enumerate(self.points) if point.feasible < LEAST_TRIALS)

    @property
    def short(self) -> tuple[int, ...]:
        """Batches whose best trial, or most trials, ended before the budget was spent."""
        return tuple(point.global_batch for point in self.points if point.feasible
                     and (point.best_is_short or 2 * point.short > point.feasible))

    @property
    def late(self) -> tuple[int, ...]:
        """Batches whose best value came at the end of its trial: a larger budget may better it."""
        return tuple(point.global_batch for point in self.points if point.trial is not None and
                     point.step > LATE * _last_step(point, self.budget))


def quality_of(studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None = None,
               confidence=CONFIDENCE) -> Quality | None:
    """The test on the studies of one workload; None where none has the metric.

    budget  None: each trial as long as it was to run
    """
    found = best_under(studies, column, minimizes, [budget], confidence)
    if found is None:
        return None
    [points] = found.rows
    compared = tuple(at for at, point in enumerate(points) if point.feasible >= LEAST_TRIALS)
    n = min((points[at].feasible for at in compared), default=0)
    costs = np.array([_best_of(points[at], n) for at in compared])

    def told(p_value=np.nan, worse_from=None, worse_by=Estimate(*[np.nan] * 3, 0), betters=False, detectable=np.nan,
             why=""):
        return Quality(found.workload, column, minimizes, budget, points, compared, n, costs if minimizes else -costs,
                       p_value, worse_from, worse_by, betters, detectable, why, confidence)
    if len(compared) < LEAST_BATCHES:
        return told(why=BATCHES if any(point.feasible for point in points) else NO_METRIC)
    if told().short:
        return told(why=STOPPED)
    p_value = rise_p_value(costs)
    worse_from, worse_by = (None, Estimate(*[np.nan] * 3, 0))
    if p_value <= LEVEL:
        at, worse_by = split(costs, confidence)
        worse_from = points[compared[at]].global_batch
    betters = p_value > 0.5 and rise_p_value(-costs) <= LEVEL
    if betters and _unfinished(points[compared[0]], column, budget):
        return told(why=UNFINISHED)
    spread = np.nan if betters else costs.std(ddof=1)
    return told(p_value, worse_from, worse_by, betters, float(detectable_rise(len(costs)) * spread))


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nearest that never falls, by squares, of each row: max over j <= i of min over k >= i of mean(j..k)."""
    rows, count = values.shape
    sums = np.concatenate([np.zeros((rows, 1)), np.cumsum(values, 1)], axis=1)
    start, stop = np.arange(count)[:, None], np.arange(count)[None]
    lengths = np.where(stop >= start, stop - start + 1, 1)
    means = np.where(stop >= start, (sums[:, None, 1:] - sums[:, :-1, None]) / lengths, np.inf)
    least = np.minimum.accumulate(means[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.where(start <= stop, least, -np.inf).max(1)


def rise_share(values: np.ndarray) -> np.ndarray:
    """The share of each row's squares about its mean that its isotonic regression explains; 0 where all are equal."""
    about = ((values - values.mean(1, keepdims=True)) ** 2).sum(1)
    fitted = isotonic(values)
    explained = ((fitted - fitted.mean(1, keepdims=True)) ** 2).sum(1)
    return np.divide(explained, about, out=np.zeros(len(values)), where=about > 1e-24 * (values ** 2).sum(1))


def rise_p_value(values: np.ndarray) -> float:
    """The share of the orders of the values in which they rise as much as they do."""
    count = len(values)
    if count <= ENUMERATED:
        orders = np.array(list(permutations(range(count))))
    else:
        random = np.random.Generator(np.random.Philox(key=count))
        orders = random.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)
        orders = np.concatenate([np.arange(count)[None], orders])           # their own order is one of all
    parts = np.array_split(orders, 1 + len(orders) * count ** 2 // MOST_AT_ONCE)
    shares = np.concatenate([rise_share(values[part]) for part in parts])
    return float(np.mean(shares >= rise_share(values[None])[0] - 1e-9))


def split(values: np.ndarray, confidence=CONFIDENCE) -> tuple[int, Estimate]:
    """Where two means, the second the larger, fit best: the first index of the second, and by how much it is larger."""
    count = len(values)
    gains = [at * (count - at) / count * max(0.0, values[at:].mean() - values[:at].mean()) ** 2
             for at in range(1, count)]
    at = int(np.argmax(gains)) + 1
    left = np.concatenate([values[:at] - values[:at].mean(), values[at:] - values[at:].mean()])
    rise = float(values[at:].mean() - values[:at].mean())
    half = stdtrit(count - 2, 0.5 + confidence / 2) * math.sqrt(
        (left ** 2).sum() / (count - 2) * (1 / at + 1 / (count - at)))
    return at, Estimate(rise, float(rise - half), float(rise + half), count)


@lru_cache
def detectable_rise(count: int, simulated=1000) -> float:
    """The even rise over so many batches that is found in POWER of sweeps, in deviations of the best at one batch,
    taken as normal."""
    random = np.random.Generator(np.random.Philox(key=count))
    noise = random.standard_normal((simulated, count))
    bound = np.quantile(rise_share(noise), 1 - LEVEL)
    slope = np.linspace(0, 1, count)
    low, high = 0.0, 64.0
    while high - low > 0.02:
        middle = (low + high) / 2
        found = np.mean(rise_share(noise + middle * slope) > bound) >= POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def _best_of(point, n):
    """The median best of n, as a cost: smaller is better."""
    values = point.held.value[point.held.searched]
    [found] = best_of_n((values if point.minimizes else -values).tolist(), [False] * len(values), [n])
    return found.low


def _unfinished(point, column, budget):
    """Whether more training would have bettered the best of a batch: it came at the end of the budget, or its trials
    went on to a value outside its interval. Under a budget of epochs the small batches make the most steps."""
    if budget is not None and budget.unit in ("epochs", "examples"):
        return False
    sign = 1 if point.minimizes else -1
    whole = held_to(point.held.study, column, point.minimizes)
    reached, end = (sign * whole.value[whole.searched]).min(), min(sign * point.best.low, sign * point.best.high)
    return point.step > LATE * _last_step(point, budget) or bool(reached < end)


def _last_step(point, budget):
    evaluations = point.held.study.evaluations
    last = evaluations.read("step")[evaluations.first[point.trial + 1] - 1]
    return min(last, budget.amount) if budget is not None and budget.unit == "steps" else last
