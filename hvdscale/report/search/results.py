"""The published analysis' tables, by workload: steps to target by batch, and the best measured under budgets.

    for results in results_of(studies, lambda workload: targets, budgets):
        for table in tables_of_results(results):
            print(as_text(table))
"""
from __future__ import annotations

import math

from ...analysis.budgets import Budget
from ...analysis.results import BestMeasurement, Results, StepsToResult
from ...formatting.numbers import counted, listed, number
from ..columns import BATCH, SHALLUE
from ..file_names import column_name
from ..table import Cell, Column, Row, Table, TrialKeys, count_cell, number_cell
from .budgets import heading
from .words import not_by

FEWEST = Column("fewest_steps", "steps to target", "steps", "steps done at the earliest evaluation of any of the "
                "trials that meets the target; below, and as lower end: at the one before, which did not", SHALLUE)
TRIAL = Column("trial", "trial", "1", "its trial, the first of equals")
VALUE = Column("value", "measured there", "1", "the metric at that evaluation")
MET = Column("met", "met", "1", "trials that met the target / COMPLETE and pruned trials", SHALLUE)
LOST = Column("infeasible", "diverged", "1", "INFEASIBLE trials, which are not among them")
BEFORE = Column("met_before_diverging", "met, then diverged", "1", "INFEASIBLE trials that met the target before")
PRUNED = Column("pruned", "pruned", "1", "of the trials those that their search stopped")
TRIED = Column("trials", "trials", "1", "COMPLETE and pruned trials")
BEST = "the best of the metric at any evaluation of any of the trials {}; below: after how many steps"


def tables_of_results(results: Results) -> tuple[Table, ...]:
    """For each target the steps to it, for each metric the best of it."""
    return (*(steps_table(rows) for _, rows in results.steps), *(best_table(rows) for _, rows in results.best))


def steps_table(rows: tuple[StepsToResult, ...]) -> Table:
    """Steps to one target, of the studies of one workload."""
    target, workload = rows[0].target, rows[0].study.workload
    pruned = any(row.pruned for row in rows)
    columns = (BATCH, FEWEST, TRIAL, VALUE, MET, *[PRUNED] * pruned, LOST, BEFORE)
    warnings = ("Trials that met the target and diverged later do not count for the steps.",) * any(
        row.met_before_diverging for row in rows)
    name = f"steps-to-result-{column_name(target.column)}-{target.value:g}"
    return Table(name, f"{workload}: fewest steps to {target}",
                 columns, tuple(_steps_row(row, pruned) for row in rows), (_choice_note(pruned),), warnings=warnings)


def best_table(rows: tuple[tuple[BestMeasurement, ...], ...]) -> Table:
    """The best of one metric under each budget, a row for each study of one workload."""
    first = rows[0]
    budgets = [one.budget for one in first]
    columns = (BATCH, TRIED, *(_best_column(budget) for budget in budgets))
    way = "smallest" if first[0].minimizes else "largest"
    title = f"{first[0].study.workload}: {way} {first[0].column}"
    if any(budgets):
        title += f" {listed('at all' if budget is None else f'within {budget}' for budget in budgets)}"
    notes = (_choice_note(any((one.among & one.study.pruned).any() for one, *_ in rows)),)
    return Table(f"best-measurement-{column_name(first[0].column)}", title, columns, tuple(
        Row((count_cell(row[0].global_batch), count_cell(row[0].trials), *map(_best, row)),
            tuple(dict.fromkeys(key for one in row for key in _keys(one))), ()) for row in rows), notes)


def _choice_note(pruned: bool) -> str:
    return ("Of COMPLETE trials and of those that their search stopped; repeats of a search's winner are left out."
            if pruned else "Of COMPLETE trials; repeats of a search's winner are left out.")


def _steps_row(row: StepsToResult, pruned: bool) -> Row:
    trial = Cell("none") if row.key is None else Cell(f"{row.key[1]}", row.key[1])
    cells = (count_cell(row.global_batch), _steps(row), trial, number_cell(row.value),
             Cell(f"{row.met:,}/{row.trials:,}", row.met), *[count_cell(row.pruned)] * pruned,
             count_cell(row.infeasible), count_cell(row.met_before_diverging))
    return Row(cells, _keys(row), ())


def _steps(row: StepsToResult) -> Cell:
    if row.trial is not None:
        return Cell(f"{row.steps:,.0f}", row.steps, row.before, row.steps, not_by(row.before))
    if not row.trials:
        return Cell("diverged" if row.infeasible else "n/a", math.nan, math.nan, math.nan)
    if math.isnan(row.beyond):
        return Cell("never measured", math.nan, math.nan, math.nan)
    return Cell("not met", math.inf, row.beyond, math.inf, f"> {row.beyond:,.0f}")


def _best_column(budget: Budget | None) -> Column:
    within = heading(budget)
    if budget is None:
        return Column("best", "best value", "1", BEST.format(within), SHALLUE)
    key = f"best_{within}".replace(" ", "_").replace(",", "")
    return Column(key, within, "1", BEST.format(within), SHALLUE)


def _best(one: BestMeasurement) -> Cell:
    if one.trial is None:
        return Cell("n/a", math.nan)
    return Cell(number(one.value, 4), one.value, below=counted(int(one.step), "step"))


def _keys(one: StepsToResult | BestMeasurement) -> TrialKeys:
    return () if one.key is None else (one.key,)
