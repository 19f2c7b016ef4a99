"""The gradient noise scale beside the measured critical batch, in sentences and a table.

    print(*noise_said(noise_against(workload, target, measured, hyperbola.b_crit)), sep="\\n")
"""
from __future__ import annotations

import math

from ..analysis.noise_against import as_estimate
from .numbers import in_brackets, number, ratio, span
from .tables import BATCH, MCCANDLISH, NOISE, QUARTERS, Cell, Column, Row, Table

# noise scale over critical batch in their table of run averages: 900/200, 4,000/500, 2,000/900, 30k/15k; 2/40, 10/200
AGREEMENT = ("McCandlish et al. 2018 found it 2 to 8 times too large on four sets of images, 20 times too small for "
             "two autoencoders; Merrill et al. 2025 orders of magnitude too small in language pre-training. Where "
             "they differ, the steps are the measurement.")


def noise_said(found) -> tuple[str, ...]:
    """The two figures, their ratio, how the noise scale went over training, and what is known of the agreement."""
    if found is None:
        return ()
    if found.chosen is None:
        return ("The gradient noise scale was measured, but |G|^2 is not told from 0 at any batch: it says nothing of "
                "the critical batch. More measured steps (a smaller noise_every) would.",)
    scale = as_estimate(found.chosen.noise.whole)
    said = f"The noise scale says {_with_ends(scale)} examples (batch {found.chosen.global_batch:,}, all of training)"
    if not math.isfinite(found.b_crit.value):
        return (f"{said}; the critical batch that it predicts was not measured{_target(found)}, so it stands alone. "
                f"{AGREEMENT.split('. ')[0]}.", *_course_said(found))
    found_ratio = found.ratio
    return (f"{said}, the steps{_target(found)} say {_with_ends(found.b_crit)}: {ratio(found_ratio.value)} times"
            f"{in_brackets(found_ratio.low, found_ratio.high, ratio)}, {_verdict(found_ratio)}. {AGREEMENT}",
            *_course_said(found))


def _verdict(found):
    if not found.low == found.low:
        return "with no interval for the ratio"
    if found.low <= 1 <= found.high:
        return "which the intervals do not tell from agreement"
    if found.low >= 0.5 and found.high <= 2:
        return "within a factor of 2"
    return "surely too large a prediction" if found.low > 1 else "surely too small a prediction"


def _course_said(found):
    """How the noise scale went over training."""
    quarters = found.chosen.noise.quarters
    shown = [number(one.noise_scale) if math.isfinite(one.noise_scale) else None for one in quarters]
    if None in shown or len(shown) < 2:
        return ()
    first, last = quarters[0], quarters[-1]
    grew = ("it grew" if first.high < last.low else "it fell" if last.high < first.low else
            "no change is sure")
    return (f"Over training, by quarters of its measured steps: {', '.join(shown)}; {grew} (first "
            f"{span(first.low, first.high) or 'n/a'}, last {span(last.low, last.high) or 'n/a'}). A batch chosen by "
            "it would be that of the late part.",) if grew == "it grew" else (
        f"Over training, by quarters of its measured steps: {', '.join(shown)}; {grew}.",)


def _with_ends(estimate):
    return f"{number(estimate.value)}{in_brackets(estimate.low, estimate.high)}"


def _target(found):
    return f" to {found.target}" if found.target else ""


def noise_against_table(found) -> Table | None:
    """By batch the noise scale, its quarters, and it over the measured critical batch; None for None."""
    if found is None:
        return None
    columns = (BATCH, NOISE, *QUARTERS,
               Column("critical_batch", "measured B_crit", "examples", "of S = S_min (1 + B_crit / B) fitted to the "
                      "steps to target", MCCANDLISH.replace(", appendix A.1", "")),
               Column("noise_over_critical", "noise scale / B_crit", "1", "their ratio; intervals added as squares of "
                      "logarithms"))
    b_crit = _cell(found.b_crit)
    rows = tuple(Row((Cell(f"{point.global_batch:,}", point.global_batch),
                      *(_cell(as_estimate(one)) for one in (point.noise.whole, *point.noise.quarters)), b_crit,
                      _cell(point.ratio, ratio)), point.keys, ()) for point in found.points)
    return Table("noise-against", f"Noise scale beside the measured critical batch: {found.target}", columns, rows,
                 ("The critical batch is of all batches together; its intervals and those of the noise scale hold "
                  "different things: the search's chance and the steps measured.",))


def _cell(estimate, write=number):
    if not math.isfinite(estimate.value):
        return Cell("n/a", math.nan, math.nan, math.nan)
    return Cell(write(estimate.value), estimate.value, estimate.low, estimate.high,
                span(estimate.low, estimate.high, write))
