"""The tables of searches over metaparameters: what each study did, and the best points found.

    for table in tables_of_searches(section.searches):
        print(as_text(table))
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from ...analysis.grouping import group_by
from ...analysis.search import Bound, Search
from ...formatting.numbers import percent
from ...plan.search_space import STEPS_TO_TARGET, DrawEnd
from ..columns import BATCH, SHALLUE
from ..table import Cell, Column, Row, Table, count_cell, number_cell
from . import words

DRAWS = Column("draws", "draws", "1", "points drawn whose trials ended; below: those that failed")
FEASIBLE = Column("feasible", "feasible", "1", "draws whose trial was finite up to its stop")
LOST = Column("diverged", "diverged", "1", "INFEASIBLE trials; below: their share of the draws")
STOPPED = Column("pruned", "pruned", "1", "trials that the search stopped; below: the steps saved at most, as a share: "
                 "sum over them of budget - last step, over that sum and the steps of all draws")
BEST_TRIAL = Column("best_trial", "best trial", "1", "number of the draw of the best value, the first of equals",
                    SHALLUE)
FEWEST = Column("fewest_steps", "fewest steps", "steps", "steps done at the first evaluation of the best trial that "
                "meets the target; below, and as lower end: at the one before, which did not", SHALLUE)
BEST_VALUE = Column("best_value", "best value", "1", "the best at any evaluation of any feasible trial; below: where")
NEAREST = Column("nearest_bound", "nearest bound", "1", "the least of min(p, 1 - p) over dimensions, p: where the best "
                 "point lies between the bounds, in the scale of the search; of discrete values by their rank")
IMPROVING = Column("still_improving", "still improving", "1", "1 - m(N) / m(N // 2), m(n): the median of the best over "
                   "all subsets of n of the N feasible trials; below: N // 2 to N; a pruned one is known only to need "
                   "more than its last step")


def tables_of_searches(searches: Sequence[Search]) -> tuple[Table, ...]:
    """For each objective the table of its studies, and one of their best points for each set of dimensions."""
    tables = []
    for objective in dict.fromkeys(search.objective for search in searches):
        found = [search for search in searches if search.objective == objective]
        tables += [_search_table(found), *_points_tables(found)]
    return tuple(tables)


def _search_table(searches: Sequence[Search]) -> Table:
    of_space = ((NEAREST, _nearest), (IMPROVING, _improving)) if words.points_differ(searches) else ()
    columns = (BATCH, DRAWS, FEASIBLE, LOST, STOPPED, BEST_TRIAL,
               FEWEST if searches[0].objective == STEPS_TO_TARGET else BEST_VALUE, *(column for column, _ in of_space))
    rows = tuple(_row((count_cell(search.global_batch), *_draws(search), *_best(search),
                       *(cell(search) for _, cell in of_space)), search) for search in searches)
    return Table(_name("search", searches), f"Search: {_goal(searches)}", columns, rows, words.notes(searches),
                 warnings=words.warnings(searches))


def _points_tables(searches: Sequence[Search]) -> Iterator[Table]:
    spaces = group_by((search for search in searches if search.best),
                      lambda search: tuple(one.name for one in search.space))
    title = f"Best point found, with the bounds of its space under each value: {_goal(searches)}"
    for at, (names, found) in enumerate(spaces.items()):
        columns = (BATCH, *(Column(name, re.sub("[_.]", " ", name), "1", "of the best trial; below: the bounds of the "
                                   "space, or how many values it has") for name in names))
        rows = []
        for search in found:
            bounds = {bound.parameter.name: _point(bound) for bound in search.bounds}
            rows.append(_row((count_cell(search.global_batch), *(bounds.get(name, Cell("n/a")) for name in names)),
                             search))
        idle = any(len(search.bounds) < len(names) for search in found)
        notes = ("n/a: does nothing beside the other values of the point.",) if idle else ()
        yield Table(_name("best-points", searches) + (f"-{at + 1}" if at else ""), title, columns, tuple(rows), notes)


def _goal(searches: Sequence[Search]) -> str:
    return str(searches[0].target or f"best {searches[0].objective}")


def _name(name: str, searches: Sequence[Search]) -> str:
    """For files: search, or search-val-error for another objective."""
    return name if searches[0].objective == STEPS_TO_TARGET else f"{name}-{searches[0].objective.replace('/', '-')}"


def _row(cells: Iterable[Cell], search: Search) -> Row:
    behind = (search.best.trial, *search.repeats) if search.best else ()
    return Row(tuple(cells), tuple(trial.key for trial in behind if trial),
               tuple(draw.trial.key for draw in search.of_kind(DrawEnd.DIVERGED) if draw.trial))


def _draws(search: Search) -> tuple[Cell, ...]:
    failed, diverged, pruned = (len(search.of_kind(end)) for end in (DrawEnd.FAILED, DrawEnd.DIVERGED, DrawEnd.PRUNED))
    share = search.saved_share
    saved = f"{percent(share)} saved" if pruned and share == share else ""
    return (count_cell(len(search.draws), f"{failed} failed" if failed else ""), count_cell(len(search.feasible)),
            count_cell(diverged, percent(search.diverged_share) if diverged else ""),
            Cell("off", 0) if search.prune_keep is None else count_cell(pruned, saved))


def _best(search: Search) -> tuple[Cell, Cell]:
    best = search.best
    if best is None:
        return Cell("none"), Cell("not met" if search.objective == STEPS_TO_TARGET else "n/a", math.nan)
    trial = Cell(f"{best.number}", best.number)
    if search.objective == STEPS_TO_TARGET:
        return trial, Cell(f"{best.value:,.0f}", best.value, best.before, best.value, words.not_by(best.before))
    return trial, number_cell(best.value, f"step {best.step:,.0f}")


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


def _point(bound: Bound) -> Cell:
    parameter, shown = bound.parameter, words.value_said(bound.parameter, bound.value)
    value = bound.value if isinstance(bound.value, (int, float, str)) else None
    if parameter.values:
        return Cell(shown, value, below=f"of {len(parameter.values)}")
    ends = [words.value_said(parameter, end) for end in (parameter.low, parameter.high)]
    return Cell(shown, value, parameter.low, parameter.high, "-".join(ends))
