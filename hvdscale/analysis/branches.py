"""The critical batch along a run: how far the batch may grow at a point of training before the loss suffers (Merrill
et al. 2025, arXiv 2505.23971).

    critical_factor((1, 2, 4, 8), losses, Tolerance(0.01))      -> k, with its interval over data orders

From a checkpoint of a run at batch B, branches train at k B, with the rate scaled by a rule, for the same number of
examples. k passes if its loss is at most the tolerance above the smallest loss of any smaller k. The critical
batch is k B for the largest k that passes. That is as published: the rate times k for SGD and sqrt(k) for Adam, losses
smoothed with weight 0.5, a tolerance of 0.01 nats. This is from the abstract and from descriptions by others, who say
that the authors reset the optimizer's state in a branch and warm the rate up again, which is not done here.

Four things differ, for workloads smaller than a language model's pre-training. The loss is evaluated on fixed examples,
at the same numbers of examples for every k: a step's own loss is of its own batch and precedes its update, so it would
favor small batches where steps are few. Branches are repeated under several orders of the data. Between the last k
that passes and the next one, k is interpolated linearly to where the excess loss reaches the tolerance. A relative
tolerance is a share of the smallest loss.

The interval is that of the crossing of Student's t bands. The order of the data is common to all k, so an excess is a
paired difference, between k and the best smaller k. Under fewer than OWN_FROM orders its variance is that of a two-way
layout of orders and factors, pooled over factors. How the excess grows between two factors is not known: the low end is
interpolated in log k, the high end in k^2."""

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from ..formatting.numbers import percent
from ..log.schema import Status
from ..plan.batch_schedule import BatchSchedule
from .defaults import Tolerance
from .intervals import CONFIDENCE, OWN_FROM, Estimate, residual_squares, student_quantile
from .noise import noise_scale
from .studies import group_by
from .trials import Trial

DEFAULT_TOLERANCE = "5%"    # of the loss; language models have one in nats: plan/branches.py
SMOOTHING = 0.5             # weight of the newest evaluation
LEAST_FACTORS = 2
OF_RUN = ("base", "base_batch", "rule", "metric", "length")      # what branches of one run have in common
NO_RAMP = ("No growing batch follows: at no checkpoint but the last does the interval of the critical batch "
           "begin at twice the run's batch or above; more --orders narrow it.")
LOST = 2.0                  # times the loss at its checkpoint, above which a branch counts as diverged
STEEPEST = 2.0              # the highest power of k as which the excess loss may grow between two factors


class Excess:
    """The loss of each k over the smallest of any smaller k, from losses of shape (orders, factors), factors growing;
    inf: diverged. Arrays of shape (factors,).

    mean     over orders; 0 at the first k, inf where some order diverged
    error    standard error of the mean, of ``freedom`` degrees; 0 at the first k, NaN of one order
    best     the smallest mean loss of any smaller k; at the first k its own
    allowed  the tolerance there"""

    def __init__(self, losses: np.ndarray, tolerance: Tolerance) -> None:
        orders, factors = losses.shape
        means = losses.mean(0)
        best = np.array([0, *(np.argmin(means[:k]) for k in range(1, factors))])
        self.best, self.mean = means[best], np.where(np.isfinite(means), means - means[best], np.inf)
        self.allowed = np.array([tolerance.at(one) for one in self.best])
        self.within = self.mean <= self.allowed
        variance, self.freedom = np.full(factors, np.nan), 1        # of a difference, by factor
        table = losses[:, np.isfinite(losses).all(0)]
        if orders >= OWN_FROM:
            with np.errstate(invalid="ignore"):
                variance, self.freedom = (losses - losses[:, best]).var(0, ddof=1), orders - 1
        elif min(table.shape) > 1:
            squares, self.freedom = residual_squares(table)
            variance = np.full(factors, 2 * squares / self.freedom)
        self.error = np.where((np.arange(factors) > 0) & np.isfinite(self.mean), np.sqrt(variance / orders), 0.0)

    def bands(self, confidence: float) -> tuple[np.ndarray, np.ndarray]:
        half = student_quantile(self.freedom, confidence) * self.error
        return self.mean - half, self.mean + half


def smoothed(values: np.ndarray) -> float:
    """The exponential moving average at the end of a series; NaN of none."""
    if not len(values):
        return np.nan
    return float(reduce(lambda average, value: (1 - SMOOTHING) * average + SMOOTHING * value, values))


def critical_factor(factors: Sequence[float], losses: np.ndarray, tolerance: Tolerance,
                    confidence: float = CONFIDENCE) -> Estimate:
    """The largest k whose loss is within the tolerance, with its interval, from ``factors``, the k, growing, and losses
    of shape (orders, factors), see Excess.

    inf with ``beyond``, the largest k, where all pass. The low end is 0 where even the second k may not pass, as
    batches below the smallest were not tried. Both ends are NaN for one order."""
    found = Excess(losses, tolerance)
    k, orders, largest = np.asarray(factors, float), len(losses), float(factors[-1])
    # above the tolerance; just beyond a k that is the best so far the excess is 0
    mean, lower, upper = (np.maximum(one, 0.0) - found.allowed for one in (found.mean, *found.bands(confidence)))
    value = _last_within(k, mean, 1.0, 0.0)
    low = high = np.nan
    if orders > 1:
        high = _last_within(k, lower, STEEPEST, 1.0)
        first = next((at for at, one in enumerate(upper) if at > 0 and not one <= 0), None)
        low = largest if first is None else min(_between(k, upper, first - 1, 0.0, 0.0), largest)
        low = 0.0 if low < factors[1] else low
    return Estimate(value, low, high, orders, largest if np.isinf(value) else np.nan)


def _last_within(k: np.ndarray, over: np.ndarray, power: float, diverged: float) -> float:
    """Where ``over`` passes 0 after the last factor at which it does not exceed 0; inf: nowhere. See _between."""
    at = max((at for at, one in enumerate(over) if one <= 0), default=0)
    return np.inf if at == len(over) - 1 else _between(k, over, at, power, diverged)


def _between(k: np.ndarray, over: np.ndarray, at: int, power: float, diverged: float) -> float:
    """Where ``over`` passes 0 between a factor and the next, linear in k^power (0: in log k); to where it is infinite,
    the share ``diverged`` of the way."""
    below, above = over[at], over[at + 1]
    share = -below / (above - below) if np.isfinite(above) else diverged
    if power == 0:
        return float(k[at] * (k[at + 1] / k[at]) ** share)
    return float((k[at] ** power + share * (k[at + 1] ** power - k[at] ** power)) ** (1 / power))


class BranchPoint:
    """The branches of a checkpoint, by order of the data and by factor k, with the losses at their ends.

    step, examples  done by then in the base run
    losses          smoothed: shape (orders, factors); ``allowed``: the tolerance there, in the metric's unit
    critical        the critical batch in examples, see critical_factor
    noise           over the branches of the largest k that passes; None: not measured"""

    def __init__(self, ends: Sequence[tuple[Trial, float]], factors: Sequence[int], tolerance: Tolerance,
                 confidence: float) -> None:
        branch, self.factors = ends[0][0].branch, tuple(factors)
        self.step, self.examples = branch["step"], branch["examples"]
        self.losses = np.array([loss for _, loss in ends], float).reshape(-1, len(factors))
        self.allowed = tolerance.at(float(self.losses.mean(0).min()))
        self.critical = critical_factor(factors, self.losses, tolerance, confidence).scaled(branch["base_batch"])
        passed = int(np.flatnonzero(Excess(self.losses, tolerance).within)[-1])
        measured = [trial.noise for trial, _ in ends[passed::len(factors)] if trial.noise is not None]
        self.noise = noise_scale(measured, confidence) if measured else None
        self.keys = tuple(trial.key for trial, _ in ends)
        self.diverged = tuple(trial.key for trial, loss in ends if np.isinf(loss))


class Branched:
    """The branches of one run, by checkpoint.

    base        id of its log; ``base_batch``: its global batch
    rule        by which the rate followed the batch
    metric      whose values are the losses
    length      examples of a branch"""

    def __init__(self, trials: Sequence[Trial], tolerance: Tolerance | None, confidence: float) -> None:
        branch, self.workload, self.confidence = trials[0].branch, trials[0].workload, confidence
        self.base, self.base_batch, self.rule, self.metric, self.length = (branch[name] for name in OF_RUN)
        self.tolerance = tolerance or Tolerance.parse(str(branch.get("tolerance", DEFAULT_TOLERANCE)))
        by_step = group_by(trials, lambda trial: int(trial.branch["step"]))
        self.points = tuple(point for step in sorted(by_step) if (point := self._point(by_step[step])))
        self.keys = tuple(key for point in self.points for key in point.keys)

    def _point(self, trials: Sequence[Trial]) -> BranchPoint | None:
        """None where no order has all factors of the checkpoint, of which there must be two."""
        table = {(trial.branch["order"], trial.branch["factor"]): (trial, loss) for trial in trials
                 if (loss := _loss(trial, self.metric)) is not None}
        factors = sorted({factor for _, factor in table})
        orders = [order for order in sorted({order for order, _ in table}) if all((order, k) in table for k in factors)]
        if not orders or len(factors) < LEAST_FACTORS:
            return None
        ends = [table[order, factor] for order in orders for factor in factors]
        return BranchPoint(ends, factors, self.tolerance, self.confidence)


def branched_of(trials: Iterable[Trial], tolerance: Tolerance | None = None, confidence: float = CONFIDENCE
                ) -> tuple[Branched, ...]:
    """The branched runs among trials, by their own plans' tolerance unless one is given; of others none."""
    by_run = group_by((trial for trial in trials if trial.branch),
                      lambda trial: (trial.workload, *(trial.branch[name] for name in OF_RUN)))
    return tuple(run for own in by_run.values() if (run := Branched(own, tolerance, confidence)).points)


def _loss(trial: Trial, metric: str) -> float | None:
    """The smoothed loss at a branch's end; inf: it diverged, None: it has not ended."""
    if trial.status == Status.INFEASIBLE:
        return np.inf
    after = trial.step > 0
    if trial.status != Status.COMPLETE or metric not in trial.metrics or not after.any():
        return None
    values = trial.metrics[metric]
    loss, start = smoothed(values[after]), values[~after]
    lost = not np.isfinite(loss) or len(start) > 0 and loss > start[0] + (LOST - 1) * abs(start[0])
    return np.inf if lost else loss


class Ramp:
    """A batch that doubles along a run, at each checkpoint to the next of these batches, and what it is predicted to
    save.

    pairs          (examples, batch), the first at 0
    examples       up to which the saving is predicted; ``steps``: at the run's own batch, for these examples
    fewer_steps    share of the run's, for the same progress as at its own batch; ``more_examples`` likewise

    At batch B an example makes B_crit / (B_crit + B) of the progress that it makes at a small batch (McCandlish et al.
    2018, arXiv 1812.06162, equation 2.11). So what the run makes between two checkpoints takes (B_crit + B) over
    (B_crit + B0) times its examples, with the first one's critical batch for B_crit, and its ends for the ends."""

    def __init__(self, found: Branched, batches: Sequence[int]) -> None:
        points, last = found.points[:-1], found.points[-1]
        lengths = np.diff([0, *(point.examples for point in found.points)])
        (steps, examples), (most_steps, most_examples), (least_steps, least_examples) = (
            _spent(lengths, np.array(batches), np.array([np.nan, *(getattr(point.critical, end) for point in points)]))
            for end in ("value", "low", "high"))
        self.pairs = ((0, found.base_batch), *((point.examples, batch) for point, batch, before in zip(
            points, batches[1:], batches) if batch > before))
        self.batches, self.examples, self.steps = BatchSchedule.by_examples(self.pairs), last.examples, last.step
        self.fewer_steps = Estimate(1 - steps, 1 - most_steps, 1 - least_steps, 1)
        self.more_examples = Estimate(examples - 1, least_examples - 1, most_examples - 1, 1)

    def __str__(self) -> str:
        fewer, more = (f"{percent(one.value)} ({percent(one.low)} to {percent(one.high)})"
                       for one in (self.fewer_steps, self.more_examples))
        return (f"batch {self.batches}, predicted to take {fewer} fewer steps than batch {self.pairs[0][1]:,} for the "
                f"progress of its first {self.steps:,} steps, with {more} more examples")


def ramp_of(found: Branched) -> Ramp | None:
    """The batch that doubles at each checkpoint as often as the low end of its critical batch allows; None: at none."""
    batches = [found.base_batch]
    for point in found.points[:-1]:
        batches.append(batches[-1])
        while point.critical.low >= 2 * batches[-1]:
            batches[-1] *= 2
    return Ramp(found, batches) if batches[-1] > found.base_batch else None


def _spent(lengths: np.ndarray, batches: np.ndarray, critical: np.ndarray) -> tuple[float, float]:
    """(steps, examples) over those of the first batch; one entry a piece of the run, inf: no upper end."""
    base = batches[0]
    with np.errstate(invalid="ignore"):
        more = np.where(np.isinf(critical) | (batches == base), 1.0, (critical + batches) / (critical + base))
    return float((lengths * more * base / batches).sum() / lengths.sum()), float((lengths * more).sum() / lengths.sum())
