"""The tables of a curve of steps to the target by batch: its points, and what was fitted to them.

    print(as_text(curve_table(curve)))
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import Curve, CurvePoint
from ...analysis.intervals import Estimate
from ...formatting.numbers import listed, number, whole
from ...target import Target
from ..columns import BATCH, EXAMPLES, PERFECT
from ..search.words import best_of_each, best_of_interval
from ..table import Cell, Table, Write, count_cell, interval_cell, no_cell, number_cell, steps_cell
from .regimes import SCALING

NEVER = "never measured"


def curve_table(curve: Curve) -> Table:
    """Steps and examples to the target at each batch."""
    options = curve.regimes.options
    perfect = dict(zip((point.global_batch for point in curve.judged), curve.regimes.perfect))
    lost = [f"{point.global_batch:,} ({point.met_before_diverging:,})" for point in curve.searched
            if point.met_before_diverging]
    notes = [SCALING.say("best_intervals", interval=best_of_interval(curve.confidence)),
             SCALING.say("meanings", perfect=options.perfect_within, useful=options.useful_within),
             *[SCALING.say("bias")] * (len(curve.points) > 2)]
    return SCALING.table("curve", curve.searched, {
        BATCH: lambda point: count_cell(point.global_batch),
        SCALING.column("met_of_search", "met"): lambda point: Cell(
            f"{point.met:,}/{point.trials:,}", point.met, below=f"{point.infeasible:,} div." * (point.infeasible > 0)),
        "best_of": lambda point: count_cell(curve.n) if curve.n and point.trials else Cell("n/a", math.nan),
        SCALING.column("best_steps", "steps_to_target"): lambda point: _value(point, point.steps, whole),
        EXAMPLES: lambda point: _value(point, point.steps.scaled(point.global_batch), number),
        PERFECT: lambda point: Cell({True: "yes", False: "no", None: "cut off"}[perfect.get(point.global_batch)]
                                    if point.steps.met else
                                    "not met" if _is_measured(point) else NEVER)},
        lambda point: point.keys, notes=notes,
        warnings=[SCALING.say("met_then_diverged", batches=lost)] * bool(lost), what=curve.target,
        best=best_of_each(curve.confidence))


def _value(point: CurvePoint, estimate: Estimate, write: Write) -> Cell:
    if not point.trials:
        return no_cell("diverged" if point.infeasible else "n/a")
    return steps_cell(estimate, write) if _is_measured(point) else no_cell(NEVER)


def _is_measured(point: CurvePoint) -> bool:
    """Whether any trial measured the target's metric."""
    return point.steps.met or not math.isnan(point.steps.beyond)


def fit_table(fit: CriticalBatchFit | None, target: Target | None,
              trials: Sequence[tuple[str, int]] = ()) -> Table | None:
    """All that was fitted, for files; None for None.

    trials  (log, id) of those behind the points
    """
    if fit is None:
        return None
    return SCALING.table("critical-batch", [fit], {
        "b_crit": lambda fit: interval_cell(fit.b_crit), "s_min": lambda fit: interval_cell(fit.s_min),
        "overhead_batch": lambda fit: interval_cell(fit.overhead),
        "half_efficient_batch": lambda fit: interval_cell(fit.half_efficient),
        "shape": lambda fit: interval_cell(fit.shape), "rms_log2": lambda fit: number_cell(fit.rms_log2),
        "lack_of_fit": lambda fit: number_cell(fit.lack_of_fit),
        SCALING.column("fitted_batches", "batches"): lambda fit: number_cell(fit.points),
        "left_out": lambda fit: Cell(listed(fit.left_out) or "none")}, lambda fit: tuple(trials), what=target)
