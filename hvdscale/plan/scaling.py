"""Learning-rate scaling rules: the ratio of the global batch to the base batch -> the factor on the learning rate.

linear    factor r: k steps at batch n are close to one step at batch kn and k times the rate (Goyal et al. 2017, 2.1)
sqrt      factor sqrt(r), which holds the variance of the update fixed (Krizhevsky 2014, arXiv:1404.5997, section 5)
none      factor 1
power:P   factor r**P
"""
from __future__ import annotations

from ..errors import UsageError

EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}
TUNED = "tuned"


def exponent(rule: str) -> float:
    """The power of the batch ratio that the rule applies; raises UsageError for a rule that is none."""
    if rule in EXPONENTS:
        return EXPONENTS[rule]
    word, _, written = rule.partition(":")
    try:
        if word != "power":
            raise ValueError
        power = float(written)
        if not abs(power) <= 10:
            raise ValueError
        return power
    except ValueError:
        raise UsageError(f"lr_rule = {rule!r} is none of linear, sqrt, none, tuned and power:P (P from -10 to 10, "
                         "such as power:0.7)") from None


def lr_factor(rule: str, batch_ratio: float, largest: float | None = None) -> float:
    """What the rule multiplies the base learning rate by at B/B0 = batch_ratio, at most ``largest``."""
    factor = batch_ratio ** exponent(rule)
    return factor if largest is None else min(factor, largest)
