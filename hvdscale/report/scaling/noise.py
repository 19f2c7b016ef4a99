"""The gradient noise scale beside the measured critical batch, in sentences and a table.

    print(*noise_said(noise_against(workload, target, measured, fit.b_crit)), sep="\\n")
"""
from __future__ import annotations

import math

from ...analysis.intervals import Estimate
from ...analysis.noise_against import NoiseAgainst, as_estimate
from ...formatting.numbers import in_brackets, number, ratio
from ..columns import BATCH, MCCANDLISH, NOISE, QUARTERS
from ..table import Cell, Column, Row, Table, Write, count_cell, interval_cell
from .regimes import as_fitted

# noise scale over critical batch in their table of run averages: 900/200, 4,000/500, 2,000/900, 30k/15k; 2/40, 10/200
AGREEMENT = ("McCandlish et al. 2018 found the noise scale 2 to 8 times too large on four sets of images, 20 times too "
             "small for two autoencoders; Merrill et al. 2025 orders of magnitude too small in language pre-training.")
CAUTION = "As published, it may be 8 times too large or far too small; the steps are the measurement."


def noise_said(found: NoiseAgainst | None) -> tuple[str, ...]:
    """The two figures and their ratio, in a sentence, and how far to trust the one; () for None."""
    if found is None:
        return ()
    if found.chosen is None:
        return ("The gradient noise scale was measured, but |G|^2 cannot be distinguished from 0 at any batch. More "
                "measured steps (a smaller noise_every) are needed.",)
    scale = (f"The noise scale, {_with_ends(as_estimate(found.chosen.noise.whole))} examples at batch "
             f"{found.chosen.global_batch:,},")
    steps = f"the steps to {found.target}" if found.target else "the steps"
    if not is_bounded(found.b_crit):
        return (f"{scale} is a guess at the critical batch, which {steps} do not bound. {CAUTION}",)
    if one_ended(found.b_crit):
        verdict = f": {_verdict(found.ratio)}" if found.ratio.low == found.ratio.low else ""
        return (f"{scale} is a guess at the critical batch, which {steps} only show to be {one_ended(found.b_crit)}"
                f"{verdict}. {CAUTION}",)
    return (f"{scale} is {_with_ends(found.ratio, ratio)} times the critical batch that {steps} give, "
            f"{as_fitted(found.b_crit)}: {_verdict(found.ratio)}. {CAUTION}",)


def is_bounded(b_crit: Estimate) -> bool:
    """Whether a critical batch has an end at all: NaN and the interval from 0 to inf have none."""
    return b_crit.low > 0 or b_crit.high < math.inf


def one_ended(b_crit: Estimate) -> str:
    """``at least 250``, ``at most 250`` of a critical batch whose interval has one end alone; empty of any other."""
    if math.isinf(b_crit.high):
        return f"at least {number(b_crit.low, 2)}"
    return f"at most {number(b_crit.high, 2)}" if b_crit.low == 0 else ""


def _verdict(found: Estimate) -> str:
    if not found.low == found.low:
        return "with no interval for the ratio"
    if found.low <= 1 <= found.high:
        return "the intervals leave open whether they differ"
    if found.low >= 0.5 and found.high <= 2:
        return "within a factor of 2"
    return "surely too large a guess" if found.low > 1 else "surely too small a guess"


def _with_ends(estimate: Estimate, write: Write = number) -> str:
    return f"{write(estimate.value)}{in_brackets(estimate.low, estimate.high, write)}"


def noise_against_table(found: NoiseAgainst | None) -> Table | None:
    """By batch the noise scale, its quarters, and it over the measured critical batch; None for None."""
    if found is None:
        return None
    columns = (BATCH, NOISE, *QUARTERS,
               Column("critical_batch", "measured B_crit", "examples", "E_min / S_min of S = S_min (1 + "
                      "(B_crit / B)^p)^(1/p) fitted to the steps to target", MCCANDLISH.replace(", appendix A.1", "")),
               Column("noise_over_critical", "noise scale / B_crit", "1", "their ratio; intervals added as squares of "
                      "logarithms"))
    b_crit = _cell(found.b_crit)
    rows = tuple(Row((count_cell(point.global_batch),
                      *(_cell(as_estimate(one)) for one in (point.noise.whole, *point.noise.quarters)), b_crit,
                      _cell(point.ratio, ratio)), point.keys, ()) for point in found.points)
    return Table("noise-against", f"Noise scale beside the measured critical batch: {found.target}", columns, rows,
                 ("The critical batch is of all batches together; its intervals and those of the noise scale hold "
                  "different things: the search's chance and the steps measured.", AGREEMENT))


def _cell(estimate: Estimate, write: Write = number) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell("n/a", math.nan, math.nan, math.nan)
    return interval_cell(estimate, write)
