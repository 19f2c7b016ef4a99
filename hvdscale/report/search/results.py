"""The published analysis' table of steps to a target by batch; budgets.py has the best measured under budgets.

    print(as_text(steps_table([steps_to_result(study, target) for study in studies])))
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...analysis.results import StepsToResult
from ..columns import BATCH
from ..file_names import column_name
from ..table import Cell, Column, Table, count_cell, number_cell
from .words import SEARCH, not_by

Cells = dict[Column | str, Callable[[StepsToResult], Cell]]


def steps_table(rows: Sequence[StepsToResult]) -> Table:
    """Steps to one target, of the studies of one workload."""
    target, workload = rows[0].reached.target, rows[0].study.workload
    pruned = any(row.pruned for row in rows)
    stopped: Cells = {SEARCH.column("pruned_of_all", "pruned"): lambda row: count_cell(row.pruned)}
    return SEARCH.table("steps-to-result", rows, {
        BATCH: lambda row: count_cell(row.study.global_batch), SEARCH.column("fewest_of_all", "fewest_steps"): _steps,
        "trial": lambda row: Cell("none") if row.key is None else Cell(f"{row.key[1]}", row.key[1]),
        "value": lambda row: number_cell(row.value), "met": lambda row: Cell(f"{row.met:,}/{row.trials:,}", row.met),
        **(stopped if pruned else {}), "infeasible": lambda row: count_cell(row.infeasible),
        "met_before_diverging": lambda row: count_cell(row.met_before_diverging)},
        lambda row: () if row.key is None else (row.key,), workload=str(workload), what=target,
        file=f"steps-to-result-{column_name(target.column)}-{target.value:g}",
        notes=(SEARCH.say("of_complete", pruned=pruned),),
        warnings=[SEARCH.say("met_then_diverged")] * any(row.met_before_diverging for row in rows))


def _steps(row: StepsToResult) -> Cell:
    if row.trial is not None:
        return Cell(f"{row.steps:,.0f}", row.steps, row.before, row.steps, not_by(row.before))
    if not row.trials:
        return Cell("diverged" if row.infeasible else "n/a", math.nan, math.nan, math.nan)
    if math.isnan(row.beyond):
        return Cell("never measured", math.nan, math.nan, math.nan)
    return Cell("not met", math.inf, row.beyond, math.inf, f"> {row.beyond:,.0f}")
