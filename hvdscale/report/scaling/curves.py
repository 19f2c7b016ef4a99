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
from ..columns import BATCH, EXAMPLES, PERFECT, SHALLUE
from ..search.words import best_of_each, best_of_interval
from ..table import Cell, Column, Row, Table, Write, count_cell, interval_cell, number_cell, steps_cell
from .regimes import BIAS_NOTE, meanings_said

ASYMPTOTES = "McCandlish et al. 2018, arXiv 1812.06162, section 2.3"
CURVE = "S = S_min (1 + (B_crit / B)^p)^(1/p)"
FITTED = (
    Column("b_crit", "B_crit", "examples", f"E_min / S_min, where the asymptotes of {CURVE} cross", ASYMPTOTES),
    Column("s_min", "S_min", "steps", f"of {CURVE}: its plateau", ASYMPTOTES),
    Column("overhead_batch", "batch of 20% overhead", "examples", "where B S = 1.2 E_min, E_min = S_min B_crit",
           "Zhang et al. 2024, arXiv 2410.21676"),
    Column("half_efficient_batch", "batch of 50% efficiency", "examples", "where B S = 2 E_min", ASYMPTOTES),
    Column("shape", "shape p", "1", f"of {CURVE}; 1: the hyperbola; fitted from 1/2 to 8"),
    Column("rms_log2", "rms in log2", "1", "root mean square of log2(S / curve) over the batches fitted"),
    Column("lack_of_fit", "lack of fit", "1", "p-value of the F test of the residuals against the points' intervals"),
    Column("batches", "batches", "1", "that were fitted"),
    Column("left_out", "left out", "1", "batches at which steps rise again"))
MET = Column("met", "met", "1", "feasible trials that met the target / feasible trials; below: INFEASIBLE ones")
STEPS = Column("steps_to_target", "steps to target", "steps", "S: steps done at the first evaluation that meets the "
               "target, the median best of n trials; below: its interval", SHALLUE)
NEVER = "never measured"
BEST_OF = Column("best_of", "best of", "trials", "n: trials of each search that batches are compared at")


def curve_table(curve: Curve | None) -> Table | None:
    """Steps and examples to the target at each batch; None for None."""
    if curve is None:
        return None
    rows = tuple(Row((
        count_cell(point.global_batch),
        Cell(f"{point.met:,}/{point.trials:,}", point.met, below=f"{point.infeasible:,} div." * (point.infeasible > 0)),
        count_cell(curve.n) if curve.n and point.trials else Cell("n/a", math.nan),
        _value(point, point.steps, whole), _value(point, point.steps.scaled(point.global_batch), number),
        Cell(("yes" if perfect else "no") if point.steps.met else "not met" if _is_measured(point) else NEVER)),
        () if point.best is None else (point.study.key(point.best),), ())
                 for point, perfect in zip(curve.searched, curve.regimes.perfect))
    lost = [f"{point.global_batch:,} ({point.met_before_diverging:,})" for point in curve.searched
            if point.met_before_diverging]
    regimes = curve.regimes
    notes = (f"Intervals: {best_of_interval(curve.confidence)}",
             *meanings_said(regimes.perfect_within, regimes.useful_within), *[BIAS_NOTE] * (len(curve.points) > 2))
    warnings = (f"Met the target and diverged later, in no estimate: trials at batch {listed(lost)}.",) * bool(lost)
    return Table("curve", f"By global batch: {curve.target} ({best_of_each(curve.confidence)})",
                 (BATCH, MET, BEST_OF, STEPS, EXAMPLES, PERFECT), rows, notes, warnings=warnings)


def _value(point: CurvePoint, estimate: Estimate, write: Write) -> Cell:
    if not point.trials:
        return Cell("diverged" if point.infeasible else "n/a", math.nan, math.nan, math.nan)
    return steps_cell(estimate, write) if _is_measured(point) else Cell(NEVER, math.nan, math.nan, math.nan)


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
    estimates = (fit.b_crit, fit.s_min, fit.overhead, fit.half_efficient, fit.shape)
    cells = [*map(interval_cell, estimates), *map(number_cell, (fit.rms_log2, fit.lack_of_fit, fit.points))]
    return Table("critical-batch", f"The curve fitted to steps by global batch: {target}", FITTED,
                 (Row((*cells, Cell(listed(fit.left_out) or "none")), tuple(trials), ()),), ())
