"""Do larger batches reach a worse solution, given enough training? A test for a large-batch penalty.

It compares the best value of the metric within a budget, taken over the same number of trials at every batch. Where a
batch has more trials, that is the median over all subsets of that size. Shallue et al. 2019 (sections 4.6 and 4.7) do
so by eye.

Null hypothesis: the best of n trials does not depend on the batch, so every order of the batches is equally likely.
This holds for any distribution of the trials, and includes all noise: the finite search, the seeds, the evaluations.
The statistic is the share of the squares around the mean explained by a non-decreasing step function (isotonic
regression; Bartholomew 1959, Biometrika 46). The p-value is the share of the orders (all, or ORDERS random ones) in
which it is as large. A fall before the rise hides it, so from LEAST_FITTED batches on a second statistic is tried: by
how much a valley fits better than a curve that only falls, see best_batch.py. The p-value is the first's or twice the
second's, the smaller; of sweeps without a penalty 5 to 7.5 % have one at 5 %. The test is one-sided: a metric that only
improves with the batch gives a p-value near 1. Where some batches have three times the noise of others, the 5 % level
was seen to become up to 10 %. A penalty under a budget of epochs may come from too few steps; see budgets.py. In the
same number of steps a small batch sees fewer examples. So if it had not finished, an improvement proves nothing."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import permutations

import numpy as np

from .best_batch import LEAST_FITTED, Valley, valley_of, valley_rise
from .best_of_n import best_of_n
from .budgets import Budget, BudgetPoint, best_under
from .intervals import CONFIDENCE, Estimate, isotonic, student_quantile
from .studies import Study, last_measured
from .trials import JobKey

LEVEL = 0.05                # p-values at or below are a penalty
POWER = 0.8                 # of the test for the rise that is called detectable
LEAST_TRIALS = 5            # feasible trials for a batch to be compared
LEAST_BATCHES = 4           # with three, no order is rarer than one in six
ORDERS = 1999
SIMULATED = 1000            # sweeps, for the rise that is called detectable
MOST_AT_ONCE = 1 << 12      # numbers in one pass over the orders; what curves make of them stays in the cache
ENUMERATED = 7              # up to this number of batches, all orders are tried
LATE = 0.9                  # of a trial's last step: a best value after it may still have been improving
# why there is no result
NO_METRIC, BATCHES, STOPPED, UNFINISHED = "no metric", "batches", "stopped", "unfinished"


@dataclass(frozen=True, eq=False)
class Quality:
    workload: JobKey
    column: str
    minimizes: bool
    budget: Budget | None
    points: tuple[BudgetPoint, ...]     # every batch, with its own interval
    compared: tuple[int, ...]           # indices of those that are compared, n trials each
    n: int
    best: np.ndarray                    # their medians best of n: shape (compared,)
    confidence: float
    p_value: float = np.nan             # NaN: no result, for the reason ``why``
    worse_from: int | None = None       # the first batch with a penalty; None: no penalty was found
    worse_by: Estimate = Estimate.unknown()     # the mean from there on minus that from the best batch to it, above 0
    improves: bool = False              # whether the metric improves with the batch, by the test in the other direction
    detectable: float = np.nan          # linear rise that is found in POWER of such sweeps; NaN where it improves
    why: str = ""
    valley: Valley | None = None        # fitted to the medians as costs; None: too few batches, or no test

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(self.points[at].global_batch for at in self.compared)

    @property
    def penalty(self) -> bool:
        return self.p_value <= LEVEL

    @property
    def best_at(self) -> int:
        return int(self.best.argmin() if self.minimizes else self.best.argmax())

    @property
    def apart(self) -> bool:
        """Whether the interval of the largest batch lies wholly on the worse side of that of the best one."""
        best, largest = (self.points[self.compared[at]].best for at in (self.best_at, -1))
        return largest.low > best.high if self.minimizes else largest.high < best.low

    @property
    def worse_share(self) -> float:
        if not self.worse_from:
            return np.nan
        before = self.best[_find_lowest(self.valley):self.batches.index(self.worse_from)].mean()
        return abs(self.worse_by.value / before) if before else np.nan

    @property
    def left_out(self) -> tuple[int, ...]:
        return tuple(point.global_batch for at, point in enumerate(self.points) if point.feasible < LEAST_TRIALS)

    @property
    def short(self) -> tuple[int, ...]:
        """Batches whose best trial, or most trials, ended before they spent the budget."""
        return tuple(point.global_batch for point in self.points if point.feasible
                     and (point.best_is_short or 2 * point.short > point.feasible))

    @property
    def late(self) -> tuple[int, ...]:
        """Batches whose best value came at the end of its trial: a larger budget may improve it."""
        return tuple(point.global_batch for point in self.points if point.trial is not None and
                     point.step > LATE * _last_step(point, self.column, self.budget))


def quality_of(studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None = None,
               confidence: float = CONFIDENCE) -> Quality | None:
    """The test on the studies of one workload; None where none has the metric. budget: None: each trial's own."""
    found = best_under(studies, column, minimizes, [budget], confidence)
    if found is None:
        return None
    [points] = found.rows
    compared = tuple(at for at, point in enumerate(points) if point.feasible >= LEAST_TRIALS)
    n = min((points[at].feasible for at in compared), default=0)
    costs = np.array([best_of_n(points[at].costs.tolist(), sizes=[n])[0].low for at in compared])

    none = Quality(found.workload, column, minimizes, budget, points, compared, n, costs if minimizes else -costs,
                   confidence)
    if len(compared) < LEAST_BATCHES:
        return replace(none, why=BATCHES if any(point.feasible for point in points) else NO_METRIC)
    if none.short:
        return replace(none, why=STOPPED)
    batches = none.batches
    p_value = rise_p_value(costs)
    if p_value > LEVEL and len(batches) >= LEAST_FITTED:
        p_value = min(p_value, 2 * rise_p_value(costs, partial(valley_rise, batches)))
    whole = replace(none, valley=valley_of(batches, costs, confidence), p_value=p_value)
    if p_value > LEVEL and rise_p_value(-costs) <= LEVEL:
        smallest, largest = points[compared[0]], points[compared[-1]]
        seen, most = (point.global_batch * _last_step(point, column, budget) for point in (smallest, largest))
        if seen < LATE * most and _is_unfinished(smallest, column, budget):
            return replace(none, why=UNFINISHED)
        return replace(whole, improves=True)
    whole = replace(whole, detectable=float(detectable_rise(len(costs)) * costs.std(ddof=1)))
    if whole.p_value > LEVEL:
        return whole
    lowest = min(_find_lowest(whole.valley), len(costs) - 2)
    at, worse_by = split(costs[lowest:], confidence)
    return replace(whole, worse_from=batches[lowest + at], worse_by=worse_by)


def _find_lowest(valley: Valley | None) -> int:
    """The index of the batch at which a valley is lowest; 0 without one."""
    return int(valley.fitted.argmin()) if valley else 0


def rise_share(values: np.ndarray) -> np.ndarray:
    """The share of each row's squares around its mean explained by its isotonic regression; 0 where all are equal."""
    about = ((values - values.mean(1, keepdims=True)) ** 2).sum(1)
    fitted = isotonic(values)
    explained = ((fitted - fitted.mean(1, keepdims=True)) ** 2).sum(1)
    return np.divide(explained, about, out=np.zeros(len(values)), where=about > 1e-24 * (values ** 2).sum(1))


def rise_p_value(values: np.ndarray, rise: Callable[[np.ndarray], np.ndarray] = rise_share) -> float:
    """The share of the orders of the values in which they rise at least as much as in their own."""
    count = len(values)
    if count <= ENUMERATED:
        orders = np.array(list(permutations(range(count))))         # the first is their own
    else:
        random = np.random.Generator(np.random.Philox(key=count))
        orders = random.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)
        orders = np.concatenate([np.arange(count)[None], orders])
    parts = np.array_split(orders, 1 + len(orders) * count // MOST_AT_ONCE)
    rises = np.concatenate([rise(values[part]) for part in parts])
    return float(np.mean(rises >= rises[0] * (1 - 1e-9) - 1e-9))


def split(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[int, Estimate]:
    """The split into two means, the second larger, that fits best: (first index of the second, the difference, with
    Student's interval, without the uncertainty of the split)."""
    count = len(values)
    gains = [at * (count - at) / count * max(0.0, values[at:].mean() - values[:at].mean()) ** 2
             for at in range(1, count)]
    at = int(np.argmax(gains)) + 1
    left = np.concatenate([values[:at] - values[:at].mean(), values[at:] - values[at:].mean()])
    rise = float(values[at:].mean() - values[:at].mean())
    half = math.nan if count < 3 else student_quantile(count - 2, confidence) * math.sqrt(
        (left ** 2).sum() / (count - 2) * (1 / at + 1 / (count - at)))
    return at, Estimate(rise, float(rise - half), float(rise + half), count)


@lru_cache
def detectable_rise(count: int) -> float:
    """The linear rise over the batches that is found in POWER of sweeps, in standard deviations of the best at one."""
    random = np.random.Generator(np.random.Philox(key=count))
    noise = random.standard_normal((SIMULATED, count))
    bound = np.quantile(rise_share(noise), 1 - LEVEL)
    slope = np.linspace(0, 1, count)
    low, high = 0.0, 64.0
    while high - low > 0.02:
        middle = (low + high) / 2
        found = np.mean(rise_share(noise + middle * slope) > bound) >= POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def _is_unfinished(point: BudgetPoint, column: str, budget: Budget | None) -> bool:
    """Whether more training would have improved the best of a batch: it came at the end of the budget, or its trials
    later reached a value outside its interval. False under budgets of epochs, where small batches take the most
    steps."""
    if budget is not None and budget.unit in ("epochs", "examples"):
        return False
    sign = 1 if point.minimizes else -1
    reached = BudgetPoint(point.study, column, point.minimizes).costs.min()
    end = min(sign * point.best.low, sign * point.best.high)
    return point.step > LATE * _last_step(point, column, budget) or bool(reached < end)


def _last_step(point: BudgetPoint, column: str, budget: Budget | None) -> float:
    """The last step within the budget at which the best trial measured the metric; inf without a trial."""
    if point.trial is None:
        return math.inf
    evaluations = point.study.evaluations
    row = last_measured(evaluations, evaluations.read(column), evaluations.first[1:])[point.trial]
    last = float(evaluations.read("step")[row])
    return min(last, budget.amount) if budget is not None and budget.unit == "steps" else last
