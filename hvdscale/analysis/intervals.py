"""Intervals of geometric means over repeats, and of their ratios.

Steps, seconds and examples a second are positive and multiply (time = steps x seconds a step), so all is done on
logarithms: Student's t (1908) for one sample, Welch's (1947) for the ratio of two, Student's paired t where both
samples are the same updates under the same seeds. The steps at which a target is met are known only to lie between two
evaluations, so intervals of steps and seconds are hulls: of the interval of what was read at the evaluation that met,
and of what was read at the one before.
"""
from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
NONE = (np.nan, np.nan)     # one run says nothing of its spread


def geometric_mean(values):
    """exp(mean(log(values))) over the last axis; inf where a value is inf, 0 where one is 0."""
    with np.errstate(invalid="ignore"):
        return np.exp(_logs(values).mean(-1))


def geometric_median(values):
    """The median of values, shape (n,), halfway on a log scale where n is even; inf counts as the largest."""
    ordered = np.sort(np.asarray(values, float))
    return float(geometric_mean(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]))


def mean_interval(values, confidence=CONFIDENCE):
    """Ends (low, high) of the t interval of the geometric mean over the last axis; NaN for fewer than two values."""
    logs = _logs(values)
    count = logs.shape[-1]
    if count < 2:
        return NONE
    return _around(logs.mean(-1), logs.var(-1, ddof=1) / count, count - 1, confidence)


def ratio_interval(above, below, confidence=CONFIDENCE):
    """Ends of Welch's interval of geometric_mean(above) / geometric_mean(below), independent samples."""
    above, below = _logs(above), _logs(below)
    if min(above.shape[-1], below.shape[-1]) < 2:
        return NONE
    parts = [sample.var(-1, ddof=1) / sample.shape[-1] for sample in (above, below)]
    freedom = [sample.shape[-1] - 1 for sample in (above, below)]
    variance = parts[0] + parts[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        welch = variance ** 2 / (parts[0] ** 2 / freedom[0] + parts[1] ** 2 / freedom[1])   # Welch-Satterthwaite
    freedom = np.where(variance > 0, welch, sum(freedom))
    return _around(above.mean(-1) - below.mean(-1), variance, freedom, confidence)


def paired_ratio_interval(above, below, confidence=CONFIDENCE):
    """Ends of the t interval of the geometric mean of above / below, samples paired by position."""
    return mean_interval(np.asarray(above, float) / np.asarray(below, float), confidence)


def hull(*intervals):
    """The smallest interval that holds all these, leaving out those that are not known."""
    ends = np.array(intervals, float)
    if np.isnan(ends).all():
        return NONE
    return float(np.nanmin(ends[:, 0])), float(np.nanmax(ends[:, 1]))


def _logs(values):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, float))


def _around(centre, variance, freedom, confidence):
    half = stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(variance)
    return np.exp(centre - half), np.exp(centre + half)
