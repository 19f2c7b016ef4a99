"""Do larger batches reach a worse solution, given enough training? A test for a large-batch penalty.

It compares the best value of the metric within a budget, taken over the same number of trials at every batch. Where a
batch has more trials, that is the median over all subsets of that size. Shallue et al. 2019 (sections 4.6 and 4.7) do
so by eye.

Null hypothesis: the best of n trials does not depend on the batch, so every order of the batches is equally likely.
This holds for any distribution of the trials, and includes all noise: the finite search, the seeds, the evaluations.
The statistic is the share of the squares around the mean explained by a non-decreasing step function (isotonic
regression; Bartholomew 1959, Biometrika 46). The p-value is the share of the orders (all, or ORDERS random ones) in
which it is as large. A fall before the rise hides it, so from LEAST_FITTED batches on a second statistic is tried: by
how much a valley fits better than a curve that only falls, see below. The p-value is the first's or twice the
second's, the smaller; of sweeps without a penalty 5 to 7.5 % have one at 5 %. The test is one-sided: a metric that only
improves with the batch gives a p-value near 1. Where some batches have three times the noise of others, the 5 % level
was seen to become up to 10 %. A penalty under a budget of epochs may come from too few steps; see budgets.py. In the
same number of steps a small batch sees fewer examples. So if it had not finished, an improvement proves nothing.

The best batch at a fixed budget: a valley in log2 of the batch, fitted to the best values.

A curve c + l (m - x)^p left of its lowest point m and c + r (x - m)^q right of it is fitted by least squares, with
x = log2(B), l and r not below 0, p and q of POWERS: two walls of any steepness, a flat floor between, or one wall.

The interval of the best batch does not rest on that shape. For each batch the values are fitted by any curve that falls
up to it and rises from it (isotonic regression; Bartholomew 1959, Biometrika 46). Where that fits as well as the best
such curve, to what Fisher's F of the valley's residuals allows, the optimum may lie anywhere between the two batches
beside it."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import permutations

import numpy as np
import scipy

from .best_of_n import best_of_n
from .budgets import Budget, BudgetPoint, best_under
from .defaults import Tolerance
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
LEAST_FITTED = 6            # batches: a valley has 4 parameters
POWERS = (1.5, 3.0, 6.0)
PLACES = 41                 # of the lowest point that are tried, from the smallest to the largest batch
# why there is no result
NO_METRIC, BATCHES, STOPPED, UNFINISHED = "no metric", "batches", "stopped", "unfinished"


class Valley:
    """A valley fitted to costs by batch, smallest first, smaller costs being better.

    best    at its lowest point or, of a floor that is flat to what the residuals show, in its middle; ends of 0 and
            inf: it may lie at the smallest or the largest batch run, or beyond
    lowest  the cost at its lowest point
    fitted  the costs at the batches run, shape (batches,)"""

    def __init__(self, batches: Sequence[int], costs: np.ndarray, confidence: float) -> None:
        self.batches, curves = tuple(batches), _Curves(tuple(batches))
        squares, _, (left, right) = curves.fit(costs[:, None])
        at, freedom = int(squares[:, 0].argmin()), len(costs) - 4
        noise = squares[at, 0] / freedom
        low, high = _ends_of_lowest(np.log2(batches), costs, noise * scipy.special.fdtri(1, freedom, confidence))
        self._place, self._powers = float(curves.place[at]), curves.powers[at]
        self._walls = walls = float(left[at, 0]), float(right[at, 0])
        self.lowest = float(costs.mean() - walls[0] * curves.left[at].mean() - walls[1] * curves.right[at].mean())
        value, low, high = (float(2 ** one) for one in (self._place, min(low, self._place), max(high, self._place)))
        floor = self.below(self.lowest + noise ** 0.5) if batches[0] < value < batches[-1] else None
        middle = (floor[0] * floor[1]) ** 0.5 if floor else value
        self.best, self.fitted = Estimate(float(np.clip(middle, low, high)), low, high, len(costs)), self.at(batches)

    def at(self, batches: np.ndarray | Sequence[float]) -> np.ndarray:
        x = np.log2(np.asarray(batches, float)) - self._place
        sides = [wall * np.maximum(side, 0) ** power for wall, power, side in zip(self._walls, self._powers, (-x, x))]
        return self.lowest + sides[0] + sides[1]

    def within(self, tolerance: Tolerance) -> tuple[float, float]:
        """The smallest and the largest batch, within those run, whose fitted cost is within tolerance of the lowest."""
        return self.below(self.lowest + tolerance.at(self.lowest)) or (self.best.value, self.best.value)

    def below(self, cost: float) -> tuple[float, float] | None:
        """The smallest and the largest batch, within those run, whose fitted cost is at most this; None: none is."""
        batches = np.geomspace(self.batches[0], self.batches[-1], 2000)
        inside = batches[self.at(batches) <= cost]
        return (float(inside[0]), float(inside[-1])) if len(inside) else None


class Quality:
    """The test on the best values under a budget by batch; None: each trial's own.

    points      every batch, with its own interval; ``compared``: the indices of those compared, n trials each
    best        their medians best of n, shape (compared,); ``best_at``: the index of the best
    left_out    batches with too few trials; ``short``: whose best trial, or most trials, ended before they spent the
                budget
    p_value     NaN: no result, for the reason ``why``; at most LEVEL: a ``penalty``
    worse_from  the first batch with a penalty; None: none was found
    worse_by    the mean from there on minus that from the best batch to it, above 0; ``worse_share``: as a share
    improves    whether the metric improves with the batch, by the test in the other direction
    detectable  linear rise that is found in POWER of such sweeps; NaN where it improves
    valley      fitted to the medians as costs; None: too few batches, or no test"""

    def __init__(self, workload: JobKey, column: str, minimizes: bool, budget: Budget | None,
                 points: Sequence[BudgetPoint], confidence: float) -> None:
        self.workload, self.column, self.minimizes, self.budget = workload, column, minimizes, budget
        self.points, self.confidence = points, confidence
        self.compared = tuple(at for at, point in enumerate(points) if point.feasible >= LEAST_TRIALS)
        self.batches = tuple(points[at].global_batch for at in self.compared)
        self.left_out = tuple(point.global_batch for point in points if point.feasible < LEAST_TRIALS)
        self.short = tuple(point.global_batch for point in points if point.feasible
                           and (point.best_is_short or 2 * point.short > point.feasible))
        self.n = min((points[at].feasible for at in self.compared), default=0)
        costs = np.array([best_of_n(points[at].costs.tolist(), sizes=[self.n])[0].low for at in self.compared])
        self.best, self.best_at = costs if minimizes else -costs, int(costs.argmin()) if len(costs) else 0
        self.p_value = self.detectable = self.worse_share = math.nan
        self.worse_from: int | None = None
        self.worse_by, self.improves, self.why = Estimate.unknown(), False, ""
        self.valley: Valley | None = None
        if len(costs) < LEAST_BATCHES:
            self.why = BATCHES if any(point.feasible for point in points) else NO_METRIC
        elif self.short:
            self.why = STOPPED
        else:
            self._test(costs)
        self.penalty = self.p_value <= LEVEL

    def _test(self, costs: np.ndarray) -> None:
        p_value = rise_p_value(costs)
        if p_value > LEVEL and len(costs) >= LEAST_FITTED:
            p_value = min(p_value, 2 * rise_p_value(costs, partial(valley_rise, self.batches)))
        if p_value > LEVEL and rise_p_value(-costs) <= LEVEL:
            smallest, largest = (self.points[self.compared[at]] for at in (0, -1))
            seen, most = (point.global_batch * _last_step(point, self.column, self.budget)
                          for point in (smallest, largest))
            if seen < LATE * most and _is_unfinished(smallest, self.column, self.budget):
                self.why = UNFINISHED
                return
            self.improves = True
        self.p_value, self.valley = p_value, valley_of(self.batches, costs, self.confidence)
        if not self.improves:
            self.detectable = float(detectable_rise(len(costs)) * costs.std(ddof=1))
        if p_value <= LEVEL:
            lowest = int(self.valley.fitted.argmin()) if self.valley else 0
            first = min(lowest, len(costs) - 2)
            at, self.worse_by = split(costs[first:], self.confidence)
            self.worse_from, before = self.batches[first + at], self.best[lowest:first + at].mean()
            self.worse_share = abs(self.worse_by.value / before) if before else math.nan

    @property
    def apart(self) -> bool:
        """Whether the interval of the largest batch lies wholly on the worse side of that of the best one."""
        best, largest = (self.points[self.compared[at]].best for at in (self.best_at, -1))
        return largest.low > best.high if self.minimizes else largest.high < best.low

    @property
    def late(self) -> tuple[int, ...]:
        """Batches whose best value came at the end of its trial: a larger budget may improve it."""
        return tuple(point.global_batch for point in self.points if point.trial is not None and
                     point.step > LATE * _last_step(point, self.column, self.budget))


def quality_of(studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None = None,
               confidence: float = CONFIDENCE) -> Quality | None:
    """The test on the studies of one workload; None where none has the metric."""
    found = best_under(studies, column, minimizes, [budget], confidence)
    return Quality(found.workload, column, minimizes, budget, found.rows[0], confidence) if found else None


def rise_share(values: np.ndarray) -> np.ndarray:
    """The share of each row's squares around its mean explained by its isotonic regression; 0 where all are equal."""
    about, fitted = ((values - values.mean(1, keepdims=True)) ** 2).sum(1), isotonic(values)
    explained = ((fitted - fitted.mean(1, keepdims=True)) ** 2).sum(1)
    return np.divide(explained, about, out=np.zeros(len(values)), where=about > 1e-24 * (values ** 2).sum(1))


def rise_p_value(values: np.ndarray, rise: Callable[[np.ndarray], np.ndarray] = rise_share) -> float:
    """The share of the orders of the values in which they rise at least as much as in their own."""
    count = len(values)
    if count <= ENUMERATED:
        orders = np.array(list(permutations(range(count))))         # the first is their own
    else:
        random = np.random.Generator(np.random.Philox(key=count))
        orders = np.vstack([np.arange(count), random.permuted(np.tile(np.arange(count), (ORDERS, 1)), axis=1)])
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
    noise = np.random.Generator(np.random.Philox(key=count)).standard_normal((SIMULATED, count))
    bound, slope = np.quantile(rise_share(noise), 1 - LEVEL), np.linspace(0, 1, count)
    low, high = 0.0, 64.0
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if np.mean(rise_share(noise + middle * slope) > bound) >= POWER else (middle, high)
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


def valley_of(batches: Sequence[int], costs: np.ndarray, confidence: float = CONFIDENCE) -> Valley | None:
    """The valley of costs by batch; None of fewer than LEAST_FITTED batches."""
    return Valley(batches, costs, confidence) if len(batches) >= LEAST_FITTED else None


def valley_rise(batches: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """By what share of the squares left a rise beyond the best batch improves the fit of each row of costs."""
    squares, falling, _ = _Curves(tuple(batches)).fit(rows.T)
    about = ((rows - rows.mean(1, keepdims=True)) ** 2).sum(1)
    improves = falling.min(0) / np.maximum(squares.min(0), 1e-12 * about + 1e-300) - 1
    return np.where(about > 1e-24 * (rows ** 2).sum(1), improves, 0.0)


class _Curves:
    """All valleys tried at some batches: arrays of shape (curves,) and (curves, batches)."""

    def __init__(self, batches: tuple[int, ...]) -> None:
        x = np.log2(batches)
        places = np.linspace(x[0], x[-1], PLACES)
        self.powers = [(p, q) for p in POWERS for q in POWERS for _ in places]
        self.place = np.tile(places, len(POWERS) ** 2)
        p, q = np.array(self.powers).T[:, :, None]
        aside = x - self.place[:, None]
        self.left, self.right = np.maximum(-aside, 0) ** p, np.maximum(aside, 0) ** q

    def fit(self, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """(squares left, those without a right wall, (left, right) walls) of each curve: shape (curves, columns)."""
        costs = costs - costs.mean(0)
        left, right = (side - side.mean(1, keepdims=True) for side in (self.left, self.right))
        ll, rr, lr = ((a * b).sum(1)[:, None] for a, b in ((left, left), (right, right), (left, right)))
        ly, ry, yy = left @ costs, right @ costs, (costs ** 2).sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            alone = [np.where(own > 0, np.maximum(of / own, 0), 0) for of, own in ((ly, ll), (ry, rr))]
            off = ll * rr - lr ** 2
            both = (ly * rr - ry * lr) / off, (ry * ll - ly * lr) / off
        proper = (off > 1e-9 * ll * rr) & (both[0] >= 0) & (both[1] >= 0)
        falling, rising = yy - alone[0] * ly, yy - alone[1] * ry
        use_left = falling <= rising
        walls = (np.where(proper, both[0], np.where(use_left, alone[0], 0)),
                 np.where(proper, both[1], np.where(use_left, 0, alone[1])))
        return np.maximum(yy - walls[0] * ly - walls[1] * ry, 0), falling, walls


def _ends_of_lowest(x: np.ndarray, costs: np.ndarray, allowed: float) -> tuple[float, float]:
    """Between which of x the lowest point lies, -inf and inf for beyond them: beside those that may be the lowest
    batch, where a fit that has them so leaves at most ``allowed`` more squares than the best one."""
    squares = []        # of the two isotonic fits beside each, of which those below the value there are pooled with it
    for at, cost in enumerate(costs):
        beside = np.concatenate([-isotonic(-costs[None, :at])[0], isotonic(costs[None, at + 1:])[0]])
        others, order = np.delete(costs, at), np.argsort(beside, kind="stable")
        floors = (cost + np.append(0, np.cumsum(others[order]))) / np.arange(1, len(costs) + 1)
        fits = np.maximum(beside, floors[:, None])
        squares.append(float((((fits - others) ** 2).sum(1) + (floors - cost) ** 2).min()))
    may = np.flatnonzero(np.array(squares) <= min(squares) + allowed)
    around = np.concatenate([[-np.inf], x, [np.inf]])
    return float(around[may[0]]), float(around[may[-1] + 2])
