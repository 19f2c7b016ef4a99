"""The best of a metric under budgets, in tables and sentences.

    found = best_under(studies, "val/error", True, [Budget(10, "epochs"), Budget(5000, "steps")])
    print(as_text(budgets_table(found)), *budgets_said(found), sep="\\n")
"""
from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ...analysis.base_rates import BaseRates
from ...analysis.budgets import BestUnder, Budget, BudgetPoint, EarlyEnd, TrialKind
from ...formatting.numbers import capital, in_brackets, listed, number, span
from ..columns import BATCH, SHALLUE, metric_name
from ..file_names import column_name
from ..table import Cell, Column, Row, Table, count_cell, number_cell

MARK = "+"              # marks a best value of a trial that ended before the budget was spent


def budgets_table(found: BestUnder | None) -> Table | None:
    """By batch the best value under each budget; None for None."""
    if found is None:
        return None
    columns = (BATCH, Column("feasible", "feasible", "1", "trials finite up to their stop; below: INFEASIBLE ones"),
               *(Column(_key(budget), f"best {heading(budget)}", "1", f"the best {found.column} at any evaluation "
                        f"{heading(budget)} of any feasible trial: the best of them all; below: the interval of the "
                        "median best of as many", SHALLUE) for budget in found.budgets))
    rows = []
    for points in zip(*found.rows):
        keys = tuple(dict.fromkeys(key for point in points for key in point.keys))
        lost = points[0].diverged
        feasible = max(point.feasible for point in points)
        rows.append(Row((count_cell(points[0].global_batch), count_cell(feasible, f"{lost} div." if lost else ""),
                         *map(best_cell, points)), keys, ()))
    title = f"Best {metric_name(found.column)} under a budget"
    return Table(f"budgets-{column_name(found.column)}", title, columns,
                 tuple(rows), notes(found), warnings=warnings(found))


def trials_table(found: BestUnder | None) -> Table | None:
    """Behind each best value its trial and step, and the median best of fewer trials; None for None."""
    if found is None:
        return None
    columns = (
        Column("budget", "budget"), BATCH, Column("best", "best", "1", "of the trial named", SHALLUE),
        Column("step", "at step", "steps", "of the first evaluation with it"), Column("trial", "trial"),
        Column("short", "ended before", "1", "feasible trials that ended before the budget was spent"),
        *(Column(f"best_of_{part}", f"best of {words}", "1", "the median over all subsets of this size of the feasible "
                 "trials of the best in each; below: how many")
          for part, words in (("quarter", "a quarter"), ("half", "half"))))
    rows = tuple(Row((
        Cell(heading(budget).removeprefix("within ")), count_cell(point.global_batch), number_cell(point.value),
        Cell("n/a" if point.trial is None else f"{point.step:,.0f}", point.step), Cell(_trial(point)),
        count_cell(point.short), _of_n(point, 4),
        _of_n(point, 2)), point.keys, ()) for budget, points in zip(found.budgets, found.rows) for point in points)
    return Table(f"budget-trials-{column_name(found.column)}",
                 f"Trials behind the best {metric_name(found.column)} under a budget", columns, rows, notes(found),
                 warnings=warnings(found))


def budgets_said(found: BestUnder | None) -> tuple[str, ...]:
    """For each budget, at which batch the metric is best and how the smallest and the largest fare; () for None."""
    return tuple(_said(found, budget, points) for budget, points in zip(found.budgets, found.rows)) if found else ()


def _said(found: BestUnder, budget: Budget | None, points: Sequence[BudgetPoint]) -> str:
    known = [point for point in points if point.trial is not None]
    if not known:
        return f"No trial measured the {metric_name(found.column)} {heading(budget)}."
    sign = 1 if found.minimizes else -1
    best = min(known, key=lambda point: sign * point.value)
    ends = [f"{number(point.value)} at batch {point.global_batch:,}" for point in dict.fromkeys((known[0], known[-1]))
            if point is not best]
    interval = in_brackets(best.best.low, best.best.high)
    said = (f"Best {metric_name(found.column)} {heading(budget)}: {number(best.value)}{interval} at batch "
            f"{best.global_batch:,}" + (f"; {listed(ends)}." if ends else "."))
    short = [point.global_batch for point in known if point.best_is_short]
    if short:
        said += (f" {capital(at_batches(short, points))} the best trial had not spent the budget when it ended, "
                 f"{ends_said(best_ends(known))}, and might have bettered it.")
    return said


def best_ends(points: Sequence[BudgetPoint]) -> set[EarlyEnd]:
    """How the best trials of these points ended, of those that ended before the budget was spent."""
    return set().union(*(point.outcomes.ends([point.trial]) for point in points
                         if point.trial is not None and point.best_is_short))


def ends_said(ends: Collection[EarlyEnd], their: str = "its") -> str:
    """``at its target or stopped by its search``: see analysis.budgets.BudgetOutcomes.ends."""
    words = {EarlyEnd.OWN_TARGET: f"at {their} target", EarlyEnd.OWN_BUDGET: f"at the end of {their} own budget",
             EarlyEnd.PRUNED: f"stopped by {their} search"}
    return listed((said for end, said in words.items() if end in ends), "or")


def at_batches(batches: Sequence[int], points: Sequence[BudgetPoint]) -> str:
    """``at batch 8 and 16``; ``at every batch`` where it is all of the points'."""
    if len(batches) > 1 and set(batches) == {point.global_batch for point in points}:
        return "at every batch"
    return f"at batch {listed(f'{batch:,}' for batch in batches)}"


def notes(found: BestUnder) -> tuple[str, ...]:
    """How to read the tables."""
    return (f"Intervals: {found.confidence:.0%}, of the median best of n trials: what another search of the same "
            "size would find.",)


def warnings(found: BestUnder) -> tuple[str, ...]:
    """Of the tables: trials that ended early, and batches with more trials than others."""
    said = []
    if any(point.best_is_short for points in found.rows for point in points):
        ends = ends_said(best_ends([point for points in found.rows for point in points]))
        said.append(f"{MARK} of a trial that ended before the budget was spent, {ends}: with all of it, it might have "
                    "been better.")
    fewest = min((point.feasible for points in found.rows for point in points), default=0)
    most = max((point.feasible for points in found.rows for point in points), default=0)
    if fewest < most:
        said.append(f"Batches have {fewest} to {most} trials with a value: more trials find a better best.")
    return tuple(said)


def best_cell(point: BudgetPoint) -> Cell:
    """The best value of a batch, with its interval."""
    if point.trial is None:
        return Cell("n/a", math.nan, math.nan, math.nan)
    mark = f" {MARK}" if point.best_is_short else ""
    return Cell(f"{number(point.value)}{mark}", point.value, point.best.low, point.best.high,
                span(point.best.low, point.best.high))


def _of_n(point: BudgetPoint, parts: int) -> Cell:
    n = point.feasible // parts
    if not n:
        return Cell("n/a", math.nan)
    return number_cell(point.curve[n - 1].low, f"of {n}")


def _trial(point: BudgetPoint) -> str:
    if point.trial is None:
        return "n/a"
    log, trial = point.outcomes.study.key(point.trial)
    return f"{log}:{trial}{f' {MARK}' if point.outcomes.kind[point.trial] == TrialKind.SHORT else ''}"


def heading(budget: Budget | None) -> str:
    """``within 10 epochs``."""
    return "over the whole run" if budget is None else f"within {budget}"


def _key(budget: Budget | None) -> str:
    return "best" if budget is None else f"best_{str(budget).replace(' ', '_').replace(',', '').replace('.', 'p')}"


def base_rates_table(*found_maps: BaseRates | None) -> Table | None:
    """By batch the best base rate of each map; None where there is none."""
    maps = [found for found in found_maps if found is not None and found.best]
    if not maps:
        return None
    columns = [BATCH]
    for found in maps:
        within = heading(found.budget)
        columns += [Column(f"{_key(found.budget)}_value", f"best {within}", "1", found.column),
                    Column(f"{_key(found.budget)}_log2_rate", f"log2 of its rate, {within}", "1",
                           "log2 of lr / (1 - momentum) / B" if found.effective else "log2 of lr / B",
                           "Masters & Luschi 2018, arXiv 1804.07612")]
    rows = []
    for batch in sorted({int(found.global_batch[at]) for found in maps for at in found.best}):
        at = [next((at for at in found.best if found.global_batch[at] == batch), None) for found in maps]
        cells = [cell for found, one in zip(maps, at) for cell in (
            (Cell("n/a"), Cell("n/a")) if one is None else
            (Cell(number(found.value[one]) + (f" {MARK}" if found.kind[one] == TrialKind.SHORT else ""),
                  float(found.value[one])),
             Cell(f"{found.log2_rate[one]:.1f}", float(found.log2_rate[one]))))]
        rows.append(Row((count_cell(batch), *cells),
                        tuple(found.key(one) for found, one in zip(maps, at) if one is not None), ()))
    short = any(found.kind[at] == TrialKind.SHORT for found in maps for at in found.best)
    return Table(f"base-rates-{column_name(maps[0].column)}",
                 f"Best learning rate per example by batch: {metric_name(maps[0].column)}", tuple(columns), tuple(rows),
                 (f"{MARK} of a trial that ended before the budget was spent.",) if short else ())
