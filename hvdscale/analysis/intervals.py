"""Intervals of geometric means over repeats, and of their ratios.

Steps, seconds and examples a second are positive and multiply (time = steps x seconds a step), so all is done on
logarithms: Student's t (1908) for one sample, Welch's (1947) for the ratio of two, Student's paired t where both
samples are the same updates under the same seeds. Two or three repeats hardly tell their own spread, so it is pooled
over samples that may be taken to spread alike (see Spread). The steps at which a target is met are known only to lie
between two evaluations, so intervals of steps and seconds are hulls: of the interval of what was read at the evaluation
that met, and of what was read at the one before.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
OWN_FROM = 5                # repeats from which a sample's own spread is used
NONE = (np.nan, np.nan)     # one run says nothing of its spread


@dataclass(frozen=True)
class Estimate:
    """A value over repeats with its interval, both inf-aware.

    value  geometric mean; with unmet runs the median that counts them as inf; inf: most did not meet; NaN: not measured
    low    ends of the interval; NaN where one run leaves nothing to say
    high   inf where a run did not meet
    runs   repeats that count as independent: seeds
    beyond where not met: the value is above this, the least that an unmet run reached; else NaN
    before what was read at the evaluation before, so that the target was met between the two; NaN: not known
    extrapolated    pruning hid the value: it comes from the trials that met the target sooner
    """

    value: float
    low: float
    high: float
    runs: int
    beyond: float = np.nan
    before: float = np.nan
    extrapolated: bool = False

    @property
    def met(self):
        return bool(np.isfinite(self.value))

    def scaled(self, factor):
        """The estimate of ``factor`` times the quantity."""
        ends = (end * factor for end in (self.low, self.high))
        return Estimate(self.value * factor, *ends, self.runs, self.beyond * factor, self.before * factor,
                        self.extrapolated)


@dataclass(frozen=True, eq=False)
class Spread:
    """Variance of logarithms, a number or an array over the samples' leading axes, and its degrees of freedom."""

    variance: float | np.ndarray
    freedom: int                # 0: not known

    @property
    def deviation(self):
        """The standard deviation of the logarithms."""
        return np.sqrt(self.variance)


UNKNOWN = Spread(np.nan, 0)


def pooled(samples) -> Spread:
    """The spread within samples: their sums of squares over the sum of their (n - 1).

    samples  arrays of shape (..., n); those of one repeat, or with a value that has no logarithm, are left out
    """
    with np.errstate(invalid="ignore"):
        return joined([(logs.var(-1) * logs.shape[-1], logs.shape[-1] - 1)
                       for logs in map(_logs, samples) if logs.shape[-1] > 1])


def pooled_paired(tables) -> Spread:
    """The spread of the ratio of two samples of one table: twice what is left after means of samples and of seeds.

    tables  arrays of shape (..., samples, seeds): one seed a column. Sums of squares over those of
            (samples - 1)(seeds - 1), the residual of a two-way layout; of two samples, the paired t's own variance.
    """
    parts = []
    for logs in map(_logs, tables):
        with np.errstate(invalid="ignore"):
            means = logs.mean(-1, keepdims=True) + logs.mean(-2, keepdims=True) - logs.mean((-2, -1), keepdims=True)
            left = logs - means
        parts.append((2 * (left ** 2).sum((-2, -1)), (logs.shape[-2] - 1) * (logs.shape[-1] - 1)))
    return joined(parts)


def joined(parts):
    """The spread of sums of squares, given as pairs of a sum and its degrees of freedom."""
    parts = [(squares, freedom) for squares, freedom in parts if freedom and np.isfinite(squares).all()]
    freedom = sum(own for _, own in parts)
    return Spread(sum(squares for squares, _ in parts) / freedom, freedom) if freedom else UNKNOWN


def geometric_mean(values):
    """exp(mean(log(values))) over the last axis; inf where a value is inf, 0 where one is 0."""
    with np.errstate(invalid="ignore"):
        return np.exp(_logs(values).mean(-1))


def geometric_median(values):
    """The median of values, shape (n,), halfway on a log scale where n is even; inf counts as the largest."""
    ordered = np.sort(np.asarray(values, float))
    return float(geometric_mean(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]))


def mean_interval(values, pool=UNKNOWN, confidence=CONFIDENCE):
    """Ends (low, high) of the t interval of the geometric mean over the last axis; NaN for fewer than two values.

    pool  the spread that stands in for the values' own where they are fewer than OWN_FROM
    """
    logs = _logs(values)
    if logs.shape[-1] < 2:
        return NONE
    spread = _spread_of(logs, pool)
    return _around(logs.mean(-1), spread.variance / logs.shape[-1], spread.freedom, confidence)


def ratio_interval(above, below, pool=UNKNOWN, confidence=CONFIDENCE):
    """Ends of the interval of geometric_mean(above) / geometric_mean(below), independent samples; NaN for single ones.

    With one pooled spread on both sides Student's, of the pool's degrees of freedom; else Welch's.
    """
    samples = _logs(above), _logs(below)
    if min(logs.shape[-1] for logs in samples) < 2:
        return NONE
    spreads = [_spread_of(logs, pool) for logs in samples]
    parts = [spread.variance / logs.shape[-1] for spread, logs in zip(spreads, samples)]
    variance = parts[0] + parts[1]
    if spreads[0] is spreads[1]:
        freedom = pool.freedom
    else:
        with np.errstate(invalid="ignore", divide="ignore"):        # Welch-Satterthwaite
            freedom = variance ** 2 / sum(part ** 2 / spread.freedom for part, spread in zip(parts, spreads))
        freedom = np.where(variance > 0, freedom, sum(spread.freedom for spread in spreads))
    return _around(samples[0].mean(-1) - samples[1].mean(-1), variance, freedom, confidence)


def paired_ratio_interval(above, below, pool=UNKNOWN, confidence=CONFIDENCE):
    """Ends of the t interval of the geometric mean of above / below, samples paired by position; see pooled_paired."""
    return mean_interval(np.asarray(above, float) / np.asarray(below, float), pool, confidence)


def quotient(above: Estimate, below: Estimate) -> tuple[float, float]:
    """Ends of the interval of a quotient of two estimates that are independent, 0 and inf where theirs are open.

    By the distances of each value from its own ends, on a log scale (MOVER: Zou & Donner 2008, Statist. Med. 27).
    """
    (a, a_low, a_high), (b, b_low, b_high) = (_logs([one.value, one.low, one.high]) for one in (above, below))
    return (float(np.exp(a - b - np.hypot(a - a_low, b_high - b))),
            float(np.exp(a - b + np.hypot(a_high - a, b - b_low))))


def hull(*intervals):
    """The smallest interval that holds all these, leaving out those that are not known."""
    ends = np.array(intervals, float)
    if np.isnan(ends).all():
        return NONE
    return float(np.nanmin(ends[:, 0])), float(np.nanmax(ends[:, 1]))


def _spread_of(logs, pool):
    """What stands for the spread of a sample: the pool, or its own where it has repeats enough or there is no pool."""
    count = logs.shape[-1]
    return Spread(logs.var(-1, ddof=1), count - 1) if count >= OWN_FROM or not pool.freedom else pool


def _logs(values):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, float))


def _around(centre, variance, freedom, confidence):
    half = stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(variance)
    return np.exp(centre - half), np.exp(centre + half)
