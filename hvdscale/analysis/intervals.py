"""Intervals of geometric means over repeats, and of their ratios, by the tests that README.rst names.

Steps, seconds and examples a second are positive and multiply (time = steps x seconds a step), so all is done on
logarithms. A target is met somewhere between two evaluations, so an interval of steps or seconds is a hull: of the
interval at the evaluation that met, and of that at the one before."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from .defaults import CONFIDENCE

OWN_FROM = 5                # repeats from which a sample's own spread is used
GROWTHS = np.linspace(-3, 3, 121)   # powers of the batch that a pooled variance may grow with
GROWS_FROM = 4              # batches
GROWS_AT = 0.2              # probability of a growth where there is none: a missed one costs coverage, this little
SHARED_AT = 0.2             # likewise of luck that seeds share between samples
LEAST_BETWEEN = 0.01        # of the deviations between repeats of a series
FAR = 1.5                   # times
EXPECTATIONS = 50
NONE = (np.nan, np.nan)     # the interval of one run, whose spread is unknown
Ends = tuple[Any, Any]      # (low, high): numbers, or arrays where the values have leading axes


@dataclass(frozen=True)
class Estimate:
    """A value over repeats, their geometric mean, with its interval; with unmet runs, the median that counts them as
    inf. inf: most did not meet; NaN: not measured. It is extrapolated from those that met the target soonest where
    pruning hid it or there were too few trials."""

    value: float
    low: float                  # NaN where there is only one run
    high: float                 # inf where a run did not meet
    runs: int                   # independent repeats: seeds
    beyond: float = np.nan      # lower bound on a value that was not met: the least that an unmet run reached
    before: float = np.nan      # at the evaluation before, so that the target was met between the two; NaN: unknown
    extrapolated: bool = False
    shared: float = 0.0         # half-width, on the logarithm, of what the luck of the seeds shifts all batches by

    @classmethod
    def unknown(cls, runs: int = 0) -> Estimate:
        return cls(np.nan, *NONE, runs)

    @property
    def met(self) -> bool:
        return bool(np.isfinite(self.value))

    def mapped(self, grow: Callable[[float], float]) -> Estimate:
        """The estimate of a growing function of the quantity."""
        return Estimate(grow(self.value), grow(self.low), grow(self.high), self.runs, grow(self.beyond),
                        grow(self.before), self.extrapolated, self.shared)

    def scaled(self, factor: float) -> Estimate:
        return self.mapped(lambda end: end * factor)


@dataclass(frozen=True, eq=False)
class Spread:
    """Variance of logarithms, a number or an array over the samples' leading axes, and its degrees of freedom."""

    variance: float | np.ndarray
    freedom: float              # 0: unknown
    growth: float = 0.0         # the power of the batch that the variance goes with
    base: float = 1.0           # the batch that it is of
    shared: tuple[float, int] = (0.0, 0)    # the part that a seed's luck adds to all samples, its degrees of freedom
    apart: float = 0.0          # the variance of what shifts a sample as a whole, as the hour in which its repeats ran

    def at(self, batch: float) -> Spread:
        return replace(self, variance=self.variance * (batch / self.base) ** self.growth, base=batch
                       ) if self.growth else self

    @property
    def deviation(self) -> float | np.ndarray:
        return np.sqrt(self.variance)

    @property
    def of_repeats(self) -> dict[str, float] | None:
        """The deviations between repeats of a series and within one, where the first is larger and LEAST_BETWEEN."""
        parts = {"between": self.shared[0] ** 0.5, "within": float(np.sqrt(np.max(self.variance - self.shared[0])))}
        return parts if parts["between"] > max(parts["within"], LEAST_BETWEEN) else None


UNKNOWN = Spread(np.nan, 0)


@dataclass(frozen=True)
class Pools:
    """Pooled spreads by the name of the measurement, a field of steps.Samples: of one cell, and of a ratio by seed."""

    cell: Mapping[str, Spread] = field(default_factory=dict)
    paired: Mapping[str, Spread] = field(default_factory=dict)

    def of(self, name: str, paired: bool = False) -> Spread:
        """The spread of a cell's repeats, or of a ratio of two of the same updates; UNKNOWN where no cell has two."""
        return (self.paired if paired else self.cell).get(name, UNKNOWN)


def pooled(samples: Iterable[ArrayLike], batches: Sequence[float] = ()) -> Spread:
    """The spread within samples of shape (..., n): their sums of squares over the sum of their (n - 1), without those
    of a single repeat, or with a value that is not positive. With ``batches`` it may grow with them."""
    with np.errstate(invalid="ignore"):
        return joined([(logs.var(-1) * logs.shape[-1], logs.shape[-1] - 1)
                       if logs.shape[-1] else (0.0, 0) for logs in map(logarithms, samples)], batches)


def pooled_censored(samples: Sequence[np.ndarray], reached: Sequence[ArrayLike], batches: Sequence[float] = ()
                    ) -> Spread:
    """Likewise of samples in which some runs (inf) are only known to lie beyond what they ``reached``: without them,
    the spread of those that met comes out small. Log-normal, by expectation and maximization (Tobin 1958). A sample in
    which a run went on to FAR times the least of the others is left out: such a run did not just end too early."""
    pairs = [(logarithms(own), np.broadcast_to(logarithms(end), np.shape(own))) for own, end in zip(samples, reached)]
    unmet = [own == np.inf for own, _ in pairs]
    ends = [np.where(out, end, own) for (own, end), out in zip(pairs, unmet)]
    some = [at for at, out in enumerate(unmet) if len(out) > 1 and not out.all() and np.isfinite(ends[at]).all()
            and (ends[at][out] < ends[at].min() + np.log(FAR)).all()]
    spread, freedom = pooled(samples, batches), sum(len(samples[at]) - 1 for at in some)
    met = float(np.mean([~one for at in some for one in unmet[at]] or [1.0]))
    if met == 1 or freedom * met < 1:
        return spread
    means = [own.mean() for own in ends]
    variance = max(sum(float(ends[at].var() * len(ends[at])) for at in some) / freedom, 1e-8)
    for _ in range(EXPECTATIONS):
        squares = 0.0
        for at in some:
            beyond = (ends[at] - means[at]) / variance ** 0.5
            hazard = np.exp(-beyond ** 2 / 2 - scipy.special.log_ndtr(-beyond)) / (2 * np.pi) ** 0.5
            own = np.where(unmet[at], means[at] + variance ** 0.5 * hazard, ends[at])
            within = np.where(unmet[at], variance * (1 + hazard * (beyond - hazard)), 0.0)
            means[at] = own.mean()
            squares += float(((own - means[at]) ** 2 + within).sum())
        variance = squares / freedom
    return replace(spread, variance=variance, freedom=freedom * met)


def pooled_paired(tables: Iterable[ArrayLike]) -> Spread:
    """The spread of the ratio of two samples of one table of shape (..., samples, seeds): twice the residual variance
    of a two-way layout. For two samples it is the paired t's own variance."""
    return joined((2 * squares, freedom) for squares, freedom in map(residual_squares, map(logarithms, tables)))


def residual_squares(logs: np.ndarray) -> tuple[np.ndarray, int]:
    """(sum of squares without the means of samples and of seeds, its freedom) of shape (..., samples, seeds)."""
    with np.errstate(invalid="ignore"):
        means = logs.mean(-1, keepdims=True) + logs.mean(-2, keepdims=True) - logs.mean((-2, -1), keepdims=True)
        return ((logs - means) ** 2).sum((-2, -1)), (logs.shape[-2] - 1) * (logs.shape[-1] - 1)


def crossed(spread: Spread, samples: Sequence[np.ndarray], batches: Sequence[float]) -> Spread:
    """A pooled spread where the samples are of the same seeds, in the same order, whose luck they may share. Where an F
    test shows that they do, the mean squares of a two-way layout give the variance of a run, and its degrees of freedom
    (Satterthwaite 1946)."""
    logs = logarithms(samples)
    logs = logs[:, np.isfinite(logs).all(0)]
    count, seeds = logs.shape
    if min(count, seeds) < 2:
        return spread
    logs = (logs - logs.mean(1, keepdims=True)) * (np.asarray(batches) / spread.base)[:, None] ** (-spread.growth / 2)
    squares, of_rest = residual_squares(logs)
    of_seeds, rest = count * (logs.mean(0) ** 2).sum() / (seeds - 1), squares / of_rest
    if not of_seeds > rest * scipy.special.fdtri(seeds - 1, of_rest, 1 - SHARED_AT):
        return spread
    parts = np.array([of_seeds / count, rest * (1 - 1 / count)])
    freedom = parts.sum() ** 2 / (parts ** 2 / np.array([1, count - 1]) / (seeds - 1)).sum()
    return replace(spread, variance=float(parts.sum()), freedom=float(freedom),
                   shared=(float(of_seeds - rest) / count, seeds - 1))


def pooled_repeats(samples: Sequence[np.ndarray]) -> Spread:
    """A pooled spread; where repeats of a series of samples differ by more than runs within one, that of both."""
    spread = pooled(samples)
    both = crossed(spread, samples, [1.0]) if len(set(map(len, samples))) == 1 else spread
    return both if both.of_repeats else spread


def joined(parts: Iterable[tuple[float | np.ndarray, float]], batches: Sequence[float] = ()) -> Spread:
    """The spread from pairs of a sum of squares and its degrees of freedom; see ``pooled``."""
    found = [(squares, freedom, batch) for (squares, freedom), batch in zip(parts, batches or repeat(1.0))
             if freedom and np.isfinite(squares).all()]
    if not found:
        return UNKNOWN
    total, growth, base = sum(freedom for _, freedom, _ in found), 0.0, 1.0
    positive = [one for one in found if np.all(one[0] > 0)]
    if len({batch for *_, batch in positive}) >= GROWS_FROM:        # by maximum likelihood of chi-squared sums
        squares, freedom, batch = map(np.array, zip(*positive))
        middle = float(np.exp(np.log(batch) @ freedom / freedom.sum()))
        deviance = freedom.sum() * np.log(np.exp(-np.outer([0.0, *GROWTHS], np.log(batch / middle))) @ squares)
        best = int(deviance.argmin())
        if deviance[0] - deviance[best] > scipy.special.chdtri(1, GROWS_AT):        # a likelihood ratio test
            growth, base = float(GROWTHS[best - 1]), middle
    return Spread(sum(own * (base / size) ** growth for own, _, size in found) / total, total, growth, base)


def geometric_mean(values: ArrayLike) -> np.ndarray:
    """exp(mean(log(values))) over the last axis; inf where a value is inf, 0 where one is 0."""
    with np.errstate(invalid="ignore"):
        return np.exp(logarithms(values).mean(-1))


def mean_ratio(above: ArrayLike, below: ArrayLike) -> float:
    return float(geometric_mean(above) / geometric_mean(below))


def geometric_median(values: ArrayLike) -> float:
    """The median of values, shape (n,), halfway on a log scale where n is even; inf counts as the largest."""
    return float(np.exp(np.median(logarithms(values))))


def mean_interval(values: ArrayLike, pool: Spread = UNKNOWN, confidence: float = CONFIDENCE) -> Ends:
    """Ends of the t interval of the geometric mean over the last axis; NaN for fewer than two values."""
    low, high = difference_interval([logarithms(values)], [pool], confidence)
    return np.exp(low), np.exp(high)


def ratio_interval(above: ArrayLike, below: ArrayLike, pool: Spread = UNKNOWN, confidence: float = CONFIDENCE,
                   pool_below: Spread | None = None) -> Ends:
    """Ends of the interval of geometric_mean(above) / geometric_mean(below), of independent samples."""
    low, high = difference_interval([logarithms(above), logarithms(below)], [pool, pool_below or pool], confidence)
    return np.exp(low), np.exp(high)


def difference_interval(samples: Sequence[np.ndarray], pools: Sequence[Spread], confidence: float = CONFIDENCE) -> Ends:
    """Ends of the interval of the mean of one sample, or of its difference from that of a second, independent one; NaN
    for single values. Student's, with the pool's degrees of freedom, where all use the pooled spread; else Welch's."""
    if min(sample.shape[-1] for sample in samples) < 2:
        return NONE
    spreads = [own if own.freedom and one.shape[-1] < OWN_FROM else Spread(one.var(-1, ddof=1), one.shape[-1] - 1)
               for one, own in zip(samples, pools)]
    parts = [spread.variance / one.shape[-1] + own.apart for spread, own, one in zip(spreads, pools, samples)]
    variance: float | np.ndarray = sum(parts)
    freedom: float | np.ndarray = pools[0].freedom
    if any(spread is not own for spread, own in zip(spreads, pools)):
        with np.errstate(invalid="ignore", divide="ignore"):        # Welch-Satterthwaite
            freedom = variance ** 2 / sum(part ** 2 / spread.freedom for part, spread in zip(parts, spreads))
        freedom = np.where(variance > 0, freedom, sum(spread.freedom for spread in spreads))
    middle = samples[0].mean(-1) - sum(one.mean(-1) for one in samples[1:])
    half = student_quantile(freedom, confidence) * np.sqrt(variance)
    return middle - half, middle + half


def hull(*intervals: Ends) -> tuple[float, float]:
    """The smallest interval that contains all of these; unknown ones are left out."""
    ends = np.array(intervals, float)
    return NONE if np.isnan(ends).all() else (float(np.nanmin(ends[:, 0])), float(np.nanmax(ends[:, 1])))


def hull_over_grid(above: np.ndarray, below: np.ndarray, interval: Callable[[np.ndarray, np.ndarray, int], Ends]
                   ) -> tuple[float, float]:
    """The interval of a ratio, widened for the spacing of evaluations: either side may be as low as at the one before,
    its second row. The last argument of ``interval`` is 1 where a sample is at the evaluation before."""
    (a, a_before), (b, b_before) = above, below
    return hull(interval(a, b, 0), interval(a_before, b, 1) if a_before.min() > 0 else (0.0, 0.0),
                interval(a, b_before, 1) if b_before.min() > 0 else (np.inf, np.inf))


def logarithms(values: ArrayLike) -> np.ndarray:
    """Natural logarithms; -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, float))


def student_quantile(freedom: ArrayLike, confidence: float) -> Any:
    """How many standard errors an interval reaches to either side by Student's t; a number, or an array of them."""
    return scipy.special.stdtrit(freedom, 0.5 + confidence / 2)


def normal_quantile(confidence: float) -> float:
    """How many standard deviations an interval of a normal distribution reaches to either side."""
    return float(scipy.special.ndtri(0.5 + confidence / 2))


def isotonic(values: np.ndarray) -> np.ndarray:
    """The non-decreasing least-squares fit of each row (isotonic regression; Bartholomew 1959, Biometrika 46): max over
    j <= i of min over k >= i of mean(j..k)."""
    count, found = values.shape[1], np.full(values.shape, -np.inf)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, 1)], axis=1)
    for first in range(count):
        means = (sums[:, first + 1:] - sums[:, first:first + 1]) / np.arange(1, count - first + 1)
        found[:, first:] = np.maximum(found[:, first:], np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1])
    return found


def rank_deviate(values: ArrayLike, costs: ArrayLike) -> float:
    """How strongly costs rise with values, in standard deviations under chance: Spearman's rank correlation times
    sqrt(n - 1), ties by mean rank. For two distinct values, the rank-sum test. 0 where either are all equal."""
    ranks: list[np.ndarray] = []
    for column in (values, costs):
        _, group, count = np.unique(np.asarray(column, float), return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[group])
    if (np.ptp(ranks, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(np.array(ranks))[0, 1] * np.sqrt(ranks[0].size - 1))


def times(one: Estimate, other: Estimate) -> Estimate:
    """The product of independent estimates; without an interval where one of them has none. An open end stays open.
    Half-widths of intervals add in quadrature, on a log scale (MOVER: Zou & Donner 2008, Statist. Med. 27). Where the
    second is inf, the product is inf, with the product of the known bounds as its lower bound ``beyond``."""
    value = one.value * other.value
    if other.value == np.inf:
        return Estimate(value, one.low * other.low, np.inf, min(one.runs, other.runs), one.value * other.beyond)
    if not 0 < value < np.inf:
        return Estimate(value, *NONE, min(one.runs, other.runs))
    with np.errstate(divide="ignore"):
        down, up = (np.sqrt(sum(np.log(getattr(each, end) / each.value) ** 2 for each in (one, other)))
                    for end in ("low", "high"))
    return Estimate(float(value), float(value * np.exp(-down)), float(value * np.exp(up)), min(one.runs, other.runs))


def over(above: Estimate, below: Estimate) -> Estimate:
    """The ratio; inf with a lower bound where ``above`` was not met, NaN where ``below`` was not."""
    if not np.isfinite(below.value) or below.value <= 0:
        return Estimate.unknown(below.runs)
    if above.value == np.inf:
        return Estimate(np.inf, above.low / below.high, np.inf, above.runs, above.beyond / below.value)
    with np.errstate(divide="ignore"):
        low, value, high = 1 / np.array([below.high, below.value, below.low])
    return times(above, Estimate(value, low, high, below.runs))
