"""The table of a curve of searches: steps to the target by batch.

    print(as_text(curve_table(curve)))
"""
from __future__ import annotations

import math

from ..analysis.curves import Curve
from .numbers import listed, number, whole
from .search import best_of_each, best_of_interval
from .tables import BATCH, EXAMPLES, PERFECT, SHALLUE, Cell, Column, Row, Table, interval_of

MET = Column("met", "met", "1", "feasible trials that met the target / feasible trials; below: INFEASIBLE ones")
STEPS = Column("steps_to_target", "steps to target", "steps", "S: steps done at the first evaluation that meets the "
               "target, the fewest of the trials; below: the interval of the median best of as many", SHALLUE)


def curve_table(curve: Curve | None) -> Table | None:
    """Steps and examples to the target at each batch; None for None."""
    if curve is None:
        return None
    rows = tuple(Row((Cell(f"{point.global_batch:,}", point.global_batch), _met(point),
                      _value(point, point.steps, whole), _value(point, point.steps.scaled(point.global_batch), number),
                      Cell(("yes" if perfect else "no") if point.steps.met else "not met")), _keys(point), ())
                 for point, perfect in zip(curve.points, curve.regimes.perfect))
    lost = [f"{point.global_batch:,} ({point.met_before_diverging:,})" for point in curve.points
            if point.met_before_diverging]
    notes = [f"Under a value: {best_of_interval(curve.confidence)}"]
    if lost:
        notes.append(f"Trials that met the target and diverged later are in no estimate: batch {listed(lost)}.")
    return Table("curve", f"By global batch: {curve.target} ({best_of_each(curve.confidence)})",
                 (BATCH, MET, STEPS, EXAMPLES, PERFECT), rows, tuple(notes))


def _met(point):
    return Cell(f"{point.met:,}/{point.trials:,}", point.met, below=f"{point.infeasible:,} div." if point.infeasible
                else "")


def _value(point, estimate, write):
    if not point.trials:
        return Cell("diverged" if point.infeasible else "n/a", math.nan, math.nan, math.nan)
    if not estimate.met:
        return Cell(f"> {write(estimate.beyond)}" if estimate.beyond == estimate.beyond else "not met", estimate.value,
                    estimate.low, estimate.high, "not met")
    return Cell(write(estimate.value), estimate.value, estimate.low, estimate.high, interval_of(estimate, write))


def _keys(point):
    return () if point.best is None else (point.study.key(point.best),)
