"""The gradient noise scale beside the measured critical batch, in a finding and a table.

    view = View(find_noise(noise_against(target, measured, fit.b_crit)))
"""
from __future__ import annotations

import math
from functools import partial

from ...analysis.intervals import Estimate
from ...analysis.noise_against import NoiseAgainst, NoisePoint, as_estimate
from ...formatting.numbers import number, ratio
from ..columns import BATCH, NOISE, QUARTERS
from ..findings import Finding
from ..table import Cell, Table, count_cell, known_cell
from .regimes import SCALING, as_fitted


def find_noise(found: NoiseAgainst) -> Finding:
    """The two figures and their ratio, in a sentence, and how far to trust the one."""
    if found.chosen is None:
        return SCALING.find("noise_unknown")
    one_end, sharp = one_ended(found.b_crit), found.ratio.low == found.ratio.low
    return SCALING.find(
        "noise_against", scale=as_estimate(found.chosen.noise.whole), batch=found.chosen.global_batch,
        steps=f"the steps to {found.target}" if found.target else "the steps", open=not is_bounded(found.b_crit),
        one_end=one_end, ratio=found.ratio, critical=as_fitted(found.b_crit) if is_bounded(found.b_crit) else None,
        verdict=_judge(found.ratio) if sharp or not one_end else None)


def is_bounded(b_crit: Estimate) -> bool:
    """Whether a critical batch has an end at all: NaN and the interval from 0 to inf have none."""
    return b_crit.low > 0 or b_crit.high < math.inf


def one_ended(b_crit: Estimate) -> str:
    """``at least 250``, ``at most 250`` of a critical batch whose interval has one end alone; empty of any other."""
    if math.isinf(b_crit.high):
        return f"at least {number(b_crit.low, 2)}"
    return f"at most {number(b_crit.high, 2)}" if b_crit.low == 0 else ""


def _judge(found: Estimate) -> str:
    """What the ratio of the noise scale to the critical batch says of the guess."""
    if not found.low == found.low:
        return "with no interval for the ratio"
    if found.low <= 1 <= found.high:
        return "the intervals leave open whether they differ"
    if found.low >= 0.5 and found.high <= 2:
        return "within a factor of 2"
    return f"surely too {'large' if found.low > 1 else 'small'} a guess"


def noise_against_table(found: NoiseAgainst) -> Table:
    """By batch the noise scale, its quarters, and it over the measured critical batch."""
    b_crit = known_cell(found.b_crit)
    return SCALING.table("noise-against", found.points, {
        BATCH: lambda point: count_cell(point.global_batch),
        NOISE: lambda point: known_cell(as_estimate(point.noise.whole)),
        **{column: partial(_quarter, at=at) for at, column in enumerate(QUARTERS)},
        "critical_batch": lambda point: b_crit,
        "noise_over_critical": lambda point: known_cell(point.ratio, ratio)}, lambda point: point.keys,
        notes=(SCALING.say("noise_of_all"), SCALING.say("noise_published")), what=found.target)


def _quarter(point: NoisePoint, at: int) -> Cell:
    return known_cell(as_estimate(point.noise.quarters[at]))
