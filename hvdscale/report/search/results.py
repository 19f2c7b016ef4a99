"""The published analysis' table of steps to a target by batch; budgets.py has the best measured under budgets.

    print(as_text(steps_table([steps_to_result(study, target) for study in studies])))
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...analysis.results import StepsToResult
from ..columns import BATCH, SHALLUE
from ..file_names import column_name
from ..table import Cell, Column, Row, Table, count_cell, number_cell
from .words import not_by

FEWEST = Column("fewest_steps", "steps to target", "steps", "steps done at the earliest evaluation of any of the "
                "trials that meets the target; below, and as lower end: at the one before, which did not", SHALLUE)
TRIAL = Column("trial", "trial", "1", "its trial, the first of equals")
VALUE = Column("value", "measured there", "1", "the metric at that evaluation")
MET = Column("met", "met", "1", "trials that met the target / COMPLETE and pruned trials", SHALLUE)
LOST = Column("infeasible", "diverged", "1", "INFEASIBLE trials, which are not among them")
BEFORE = Column("met_before_diverging", "met, then diverged", "1", "INFEASIBLE trials that met the target before")
PRUNED = Column("pruned", "pruned", "1", "of the trials those that their search stopped")


def steps_table(rows: Sequence[StepsToResult]) -> Table:
    """Steps to one target, of the studies of one workload."""
    target, workload = rows[0].reached.target, rows[0].study.workload
    pruned = any(row.pruned for row in rows)
    columns = (BATCH, FEWEST, TRIAL, VALUE, MET, *[PRUNED] * pruned, LOST, BEFORE)
    warnings = ("Trials that met the target and diverged later do not count for the steps.",) * any(
        row.met_before_diverging for row in rows)
    name = f"steps-to-result-{column_name(target.column)}-{target.value:g}"
    among = " and of those that their search stopped" * pruned
    return Table(name, f"{workload}: fewest steps to {target}", columns, tuple(_steps_row(row, pruned) for row in rows),
                 (f"Of COMPLETE trials{among}; repeats of a search's winner are left out.",), warnings=warnings)


def _steps_row(row: StepsToResult, pruned: bool) -> Row:
    trial = Cell("none") if row.key is None else Cell(f"{row.key[1]}", row.key[1])
    cells = (count_cell(row.study.global_batch), _steps(row), trial, number_cell(row.value),
             Cell(f"{row.met:,}/{row.trials:,}", row.met), *[count_cell(row.pruned)] * pruned,
             count_cell(row.infeasible), count_cell(row.met_before_diverging))
    return Row(cells, () if row.key is None else (row.key,), ())


def _steps(row: StepsToResult) -> Cell:
    if row.trial is not None:
        return Cell(f"{row.steps:,.0f}", row.steps, row.before, row.steps, not_by(row.before))
    if not row.trials:
        return Cell("diverged" if row.infeasible else "n/a", math.nan, math.nan, math.nan)
    if math.isnan(row.beyond):
        return Cell("never measured", math.nan, math.nan, math.nan)
    return Cell("not met", math.inf, row.beyond, math.inf, f"> {row.beyond:,.0f}")
