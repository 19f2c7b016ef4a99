"""The best of a metric under budgets, in tables and findings.

    found = best_under(studies, "val/error", True, [Budget(10, "epochs"), Budget(5000, "steps")])
    print(as_text(budgets_table(found)), *sentences_of(find_budgets(found)), sep="\n")
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from ...analysis.base_rates import BaseRates
from ...analysis.budgets import BestUnder, Budget, BudgetPoint, EarlyEnd, TrialKind
from ...formatting.numbers import in_brackets, listed, number, span
from ..columns import BATCH, metric_name
from ..file_names import column_name
from ..findings import Finding
from ..table import Cell, Table, count_cell, keys_of, no_cell, number_cell
from ..texts import Cells
from .words import SEARCH

MARK = "+"              # marks a best value of a trial that ended before the budget was spent


def budgets_table(found: BestUnder) -> Table:
    """By batch the best value under each budget."""
    def best(points: Sequence[BudgetPoint], at: int) -> Cell:
        return best_cell(points[at])
    columns: Cells = {SEARCH.column("best_within", _key(budget), within=heading(budget), metric=found.column):
                      partial(best, at=at) for at, budget in enumerate(found.budgets)}
    return SEARCH.table("budgets", zip(*found.rows), {
        BATCH: lambda points: count_cell(points[0].global_batch),
        SEARCH.column("feasible_of_all", "feasible"): lambda points: count_cell(
            max(point.feasible for point in points), f"{points[0].diverged} div." if points[0].diverged else ""),
        **columns}, keys_of, file=f"budgets-{column_name(found.column)}", notes=notes(found), warnings=warnings(found),
        metric=metric_name(found.column))


def trials_table(found: BestUnder) -> Table:
    """Behind each best value its trial and step, and the median best of fewer trials."""
    return SEARCH.table(
        "budget-trials", [(budget, point) for budget, points in zip(found.budgets, found.rows) for point in points], {
            SEARCH.column("budget_name", "budget"): lambda row: Cell(heading(row[0]).removeprefix("within ")),
            BATCH: lambda row: count_cell(row[1].global_batch),
            SEARCH.column("best_of_trial", "best"): lambda row: number_cell(row[1].value),
            "step": lambda row: Cell("n/a" if row[1].trial is None else f"{row[1].step:,.0f}", row[1].step),
            SEARCH.column("trial_name", "trial"): lambda row: Cell(_trial(row[1])),
            "short": lambda row: count_cell(row[1].short),
            SEARCH.column("best_of_part", "best_of_quarter", part="a quarter"): lambda row: _of_n(row[1], 4),
            SEARCH.column("best_of_part", "best_of_half", part="half"): lambda row: _of_n(row[1], 2)},
        lambda row: row[1].keys, file=f"budget-trials-{column_name(found.column)}", notes=notes(found),
        warnings=warnings(found), metric=metric_name(found.column))


def find_budgets(found: BestUnder) -> tuple[Finding, ...]:
    """For each budget, at which batch the metric is best and how the smallest and the largest fare."""
    return tuple(_find_best(found, budget, points) for budget, points in zip(found.budgets, found.rows))


def _find_best(found: BestUnder, budget: Budget | None, points: Sequence[BudgetPoint]) -> Finding:
    known = [point for point in points if point.trial is not None]
    metric, within = metric_name(found.column), heading(budget)
    if not known:
        return SEARCH.find("budget_unmeasured", metric=metric, within=within)
    best = min(known, key=lambda point: point.value if found.minimizes else -point.value)
    ends = [SEARCH.say("budget_end", value=point.value, batch=point.global_batch)
            for point in dict.fromkeys((known[0], known[-1])) if point is not best]
    short = [point.global_batch for point in known if point.best_is_short]
    return SEARCH.find("budget", metric=metric, within=within, value=best.value, batch=best.global_batch, ends=ends,
                       interval=in_brackets(best.best.low, best.best.high),
                       short=at_batches(short, points) if short else "", how=describe_ends(best_ends(known)))


def best_ends(points: Sequence[BudgetPoint]) -> set[EarlyEnd]:
    """How the best trials of these points ended, of those that ended before the budget was spent."""
    return set().union(*(point.outcomes.ends([point.trial]) for point in points
                         if point.trial is not None and point.best_is_short))


def describe_ends(ends: Collection[EarlyEnd], their: str = "its") -> str:
    """``at its target or stopped by its search``: see analysis.budgets.BudgetOutcomes.ends."""
    words = {EarlyEnd.OWN_TARGET: f"at {their} target", EarlyEnd.OWN_BUDGET: f"at the end of {their} own budget",
             EarlyEnd.PRUNED: f"stopped by {their} search"}
    return listed((said for end, said in words.items() if end in ends), "or")


def at_batches(batches: Sequence[int], points: Sequence[BudgetPoint]) -> str:
    """``at batch 8 and 16``; ``at every batch`` where it is all of the points'."""
    return SEARCH.say("at_batches", batches=list(batches),
                      all=len(batches) > 1 and set(batches) == {point.global_batch for point in points})


def notes(found: BestUnder) -> tuple[str, ...]:
    """How to read the tables."""
    return (SEARCH.say("budget_intervals", confidence=found.confidence),)


def warnings(found: BestUnder) -> Iterator[str]:
    """Of the tables: trials that ended early, and batches with more trials than others."""
    points = [point for points in found.rows for point in points]
    if any(point.best_is_short for point in points):
        yield SEARCH.say("short_best", mark=MARK, ends=describe_ends(best_ends(points)))
    fewest, most = (end((point.feasible for point in points), default=0) for end in (min, max))
    if fewest < most:
        yield SEARCH.say("uneven", fewest=str(fewest), most=str(most))


def best_cell(point: BudgetPoint) -> Cell:
    """The best value of a batch, with its interval."""
    if point.trial is None:
        return no_cell()
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

    def of_map(batch: int, found: BaseRates, write: Callable[[BaseRates, int], Cell]) -> Cell:
        at = _best_at(found, batch)
        return Cell("n/a") if at is None else write(found, at)
    columns: Cells = {}
    for found in maps:
        within, key = heading(found.budget), _key(found.budget)
        columns |= {
            SEARCH.column("base_value", f"{key}_value", within=within, metric=found.column):
                partial(of_map, found=found, write=_base_value),
            SEARCH.column("base_rate", f"{key}_log2_rate", within=within, effective=found.effective):
                partial(of_map, found=found, write=lambda found, at: Cell(
                    f"{found.log2_rate[at]:.1f}", float(found.log2_rate[at])))}
    short = any(found.kind[at] == TrialKind.SHORT for found in maps for at in found.best)
    return SEARCH.table(
        "base-rates", sorted({int(found.global_batch[at]) for found in maps for at in found.best}),
        {BATCH: count_cell, **columns},
        lambda batch: tuple(found.key(at) for found in maps for at in [_best_at(found, batch)] if at is not None),
        file=f"base-rates-{column_name(maps[0].column)}", notes=[SEARCH.say("short_best", mark=MARK)] * short,
        metric=metric_name(maps[0].column))


def _best_at(found: BaseRates, batch: int) -> int | None:
    """The row of the best trial of a batch."""
    return next((at for at in found.best if found.global_batch[at] == batch), None)


def _base_value(found: BaseRates, at: int) -> Cell:
    mark = f" {MARK}" if found.kind[at] == TrialKind.SHORT else ""
    return Cell(f"{number(found.value[at])}{mark}", float(found.value[at]))
