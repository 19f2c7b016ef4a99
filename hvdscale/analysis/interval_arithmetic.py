"""Estimates of independent quantities multiplied and divided: halves of intervals add up as squares, on a log scale."""
from __future__ import annotations

import numpy as np

from .steps import Estimate


def times(one: Estimate, other: Estimate) -> Estimate:
    """The product; without an interval where one of them has none. An end that is open stays open.

    inf, above what is known of both, where the second is inf.
    """
    value = one.value * other.value
    if other.value == np.inf:
        return Estimate(value, one.low * other.low, np.inf, min(one.runs, other.runs), one.value * other.beyond)
    if not 0 < value < np.inf:
        return Estimate(value, np.nan, np.nan, min(one.runs, other.runs))
    with np.errstate(divide="ignore"):
        down, up = (np.sqrt(sum(np.log(getattr(each, end) / each.value) ** 2 for each in (one, other)))
                    for end in ("low", "high"))
    return Estimate(float(value), float(value * np.exp(-down)), float(value * np.exp(up)), min(one.runs, other.runs))


def over(above: Estimate, below: Estimate) -> Estimate:
    """The ratio; inf, above what is known, where ``above`` was not met, NaN where ``below`` was not."""
    if not np.isfinite(below.value) or below.value <= 0:
        return Estimate(np.nan, np.nan, np.nan, below.runs)
    if above.value == np.inf:
        return Estimate(np.inf, above.low / below.high, np.inf, above.runs, above.beyond / below.value)
    with np.errstate(divide="ignore"):
        low, value, high = 1 / np.array([below.high, below.value, below.low])
    return times(above, Estimate(value, low, high, below.runs))
