"""The published analysis' table of steps to a target by batch; budgets.py has the best measured under budgets.

    print(as_text(steps_table([result_of(study, target) for study in studies])))
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...analysis.curves import SearchResult
from ..columns import BATCH
from ..file_names import column_name
from ..table import Cell, Table, count_cell, no_cell, number_cell
from ..texts import Cells
from .words import SEARCH, not_by


def steps_table(rows: Sequence[SearchResult]) -> Table:
    """Steps to one target, of the studies of one workload."""
    target, workload = rows[0].reached.target, rows[0].study.workload
    pruned = any(row.pruned for row in rows)
    stopped: Cells = {SEARCH.column("pruned_of_all", "pruned"): lambda row: count_cell(row.pruned)}
    return SEARCH.table("steps-to-result", rows, {
        BATCH: lambda row: count_cell(row.global_batch), SEARCH.column("fewest_of_all", "fewest_steps"): _steps,
        "trial": _trial,
        "value": lambda row: number_cell(row.value), "met": lambda row: Cell(f"{row.met:,}/{row.trials:,}", row.met),
        **(stopped if pruned else {}), "infeasible": lambda row: count_cell(row.infeasible),
        "met_before_diverging": lambda row: count_cell(row.met_before_diverging)},
        lambda row: row.keys, workload=str(workload), what=target,
        file=f"steps-to-result-{column_name(target.column)}-{target.value:g}",
        notes=(SEARCH.say("of_complete", pruned=pruned),),
        warnings=[SEARCH.say("met_then_diverged")] * any(row.met_before_diverging for row in rows))


def _trial(row: SearchResult) -> Cell:
    [(_, number)] = row.keys or [("", None)]
    return Cell("none" if number is None else f"{number}", number)


def _steps(row: SearchResult) -> Cell:
    if row.best is not None:
        return Cell(f"{row.fewest:,.0f}", row.fewest, row.before, row.fewest, not_by(row.before))
    if not row.trials:
        return no_cell("diverged" if row.infeasible else "n/a")
    if math.isnan(row.beyond):
        return no_cell("never measured")
    return Cell("not met", math.inf, row.beyond, math.inf, f"> {row.beyond:,.0f}")
