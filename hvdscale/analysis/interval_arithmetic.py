"""Products and ratios of independent estimates: half-widths of intervals add in quadrature, on a log scale."""
from __future__ import annotations

import numpy as np

from .intervals import NONE, Estimate


def times(one: Estimate, other: Estimate) -> Estimate:
    """The product; without an interval where one of them has none. An open end stays open.

    Where the second is inf, the product is inf, with the product of the known bounds as its lower bound ``beyond``.
    """
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
