"""The tables of searches over metaparameters: what each study did, and the best points found.

    for table in tables_of_searches(section.searches):
        print(as_text(table))
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from ...analysis.grouping import group_by
from ...analysis.search import Search
from ...formatting.numbers import percent
from ...plan.search_space import STEPS_TO_TARGET, DrawEnd
from ..columns import BATCH
from ..table import Cell, Table, TrialKeys, count_cell, number_cell
from ..texts import Cells
from . import words
from .words import SEARCH


def tables_of_searches(searches: Sequence[Search]) -> tuple[Table, ...]:
    """For each objective the table of its studies, and one of their best points for each set of dimensions."""
    tables = []
    for objective in dict.fromkeys(search.objective for search in searches):
        found = [search for search in searches if search.objective == objective]
        tables += [_search_table(found), *_points_tables(found)]
    return tuple(tables)


def _search_table(searches: Sequence[Search]) -> Table:
    of_space: Cells = {"nearest_bound": _nearest, "still_improving": _improving}
    return SEARCH.table("search", searches, {
        BATCH: lambda search: count_cell(search.global_batch), "draws": _draws,
        "feasible": lambda search: count_cell(len(search.feasible)), "diverged": _diverged, "pruned": _pruned,
        "best_trial": _best_trial,
        "fewest_steps" if searches[0].objective == STEPS_TO_TARGET else "best_value": _best_value,
        **(of_space if words.points_differ(searches) else {})}, _behind, diverged=_diverged_of,
        file=_name("search", searches), goal=_goal(searches), notes=words.notes(searches),
        warnings=words.warnings(searches))


def _points_tables(searches: Sequence[Search]) -> Iterator[Table]:
    spaces = group_by((search for search in searches if search.best),
                      lambda search: tuple(one.name for one in search.space))
    for at, (names, found) in enumerate(spaces.items()):
        idle = any(len(search.bounds) < len(names) for search in found)
        yield SEARCH.table("best-points", found, {
            BATCH: lambda search: count_cell(search.global_batch),
            **{SEARCH.column("dimension", name, title=re.sub("[_.]", " ", name)): partial(_point, name=name)
               for name in names}}, _behind, diverged=_diverged_of, goal=_goal(searches),
            file=_name("best-points", searches) + (f"-{at + 1}" if at else ""), notes=[SEARCH.say("idle")] * idle)


def _goal(searches: Sequence[Search]) -> str:
    return str(searches[0].target or f"best {searches[0].objective}")


def _name(name: str, searches: Sequence[Search]) -> str:
    """For files: search, or search-val-error for another objective."""
    return name if searches[0].objective == STEPS_TO_TARGET else f"{name}-{searches[0].objective.replace('/', '-')}"


def _behind(search: Search) -> TrialKeys:
    behind = (search.best.trial, *search.repeats) if search.best else ()
    return tuple(trial.key for trial in behind if trial)


def _diverged_of(search: Search) -> TrialKeys:
    return tuple(draw.trial.key for draw in search.of_kind(DrawEnd.DIVERGED) if draw.trial)


def _draws(search: Search) -> Cell:
    failed = len(search.of_kind(DrawEnd.FAILED))
    return count_cell(len(search.draws), f"{failed} failed" * bool(failed))


def _diverged(search: Search) -> Cell:
    diverged = len(search.of_kind(DrawEnd.DIVERGED))
    return count_cell(diverged, percent(search.diverged_share) if diverged else "")


def _pruned(search: Search) -> Cell:
    pruned, share = len(search.of_kind(DrawEnd.PRUNED)), search.saved_share
    saved = f"{percent(share)} saved" if pruned and share == share else ""
    return Cell("off", 0) if search.prune_keep is None else count_cell(pruned, saved)


def _best_trial(search: Search) -> Cell:
    return Cell(str(search.best.number), search.best.number) if search.best else Cell("none")


def _best_value(search: Search) -> Cell:
    best = search.best
    if best is None:
        return Cell("not met" if search.objective == STEPS_TO_TARGET else "n/a", math.nan)
    if search.objective == STEPS_TO_TARGET:
        return Cell(f"{best.value:,.0f}", best.value, best.before, best.value, words.not_by(best.before))
    return number_cell(best.value, f"step {best.step:,.0f}")


def _nearest(search: Search) -> Cell:
    bound = search.nearest
    if bound is None:
        return Cell("n/a", math.nan)
    flag = f" {words.FLAG}" if bound.near else ""
    return Cell(f"{percent(bound.distance)} {words.end_name(bound)}{flag}", bound.distance, below=bound.parameter.name)


def _improving(search: Search) -> Cell:
    share, half = search.lowered, search.half
    if half is None or share != share or not (half.known or search.improving):
        return Cell("n/a", math.nan)
    shown = "from none" if math.isinf(half.low) else f"{'' if half.known else 'over '}{percent(share)}"
    return Cell(shown + (f" {words.FLAG}" if search.improving else ""), share,
                below=f"{half.n} to {len(search.curve)}")


def _point(search: Search, name: str) -> Cell:
    """The best value of a dimension."""
    bound = next((bound for bound in search.bounds if bound.parameter.name == name), None)
    if bound is None:
        return Cell("n/a")
    parameter, shown = bound.parameter, words.format_value(bound.parameter, bound.value)
    value = bound.value if isinstance(bound.value, (int, float, str)) else None
    if parameter.values:
        return Cell(shown, value, below=f"of {len(parameter.values)}")
    ends = [words.format_value(parameter, end) for end in (parameter.low, parameter.high)]
    return Cell(shown, value, parameter.low, parameter.high, "-".join(ends))
