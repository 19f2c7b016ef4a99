"""What is decided of a candidate, in sentences and for JSON."""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ..analysis.decide import RUNS, Decided, Floor, best_floor, chances_to_pass, worst
from ..analysis.decision.sequence import MOST_MORE, OPEN
from ..formatting.numbers import capital, percent
from .compare import COMPARE, GOALS, NAMES
from .table import BATCH, Cell, Table, count_cell, encode, pick


def decision_lines(found: Sequence[Decided], within: float, ledger: str | None, both: bool = True) -> list[str]:
    """The decision, a line a cell, and what the chance is of."""
    return [COMPARE.say("decision", decision=worst(found), within=within),
            *(f"{place_of(one)}: {describe(one, both)}" for one in found),
            COMPARE.say("chance_of_all" if ledger else "chance_alone", ledger=ledger)]


def place_of(one: Decided) -> str:
    """Its workers and batch."""
    return COMPARE.say("place", workers=one.cell.workers, batch=one.cell.global_batch)


def describe(one: Decided, both: bool = True) -> str:
    """What is decided of a cell, by what runs, and how many more decide.

    both  whether more runs can be of the baseline, too
    """
    more = _count(one.runs_more) if one.decision == OPEN and not np.isnan(one.runs_more).any() else ""
    return COMPARE.say(
        "decided", measure=NAMES[one.measure], target=one.measure in GOALS and one.comparison.target,
        decision=one.decision, ratio=None if one.reason else one.ratio, before=one.sides.runs[0],
        after=one.sides.runs[1], why=one.reason and COMPARE.say(f"why_{one.reason}"),
        unmet=any(one.unmet) and one.unmet,
        chance=percent(one.chance) if one.decision != OPEN and not one.reason else "", more=more, both=both,
        hours=one.hours if more and math.isfinite(one.hours) else None,
        smallest=one.smallest if 0 < one.smallest < math.inf else None)


def _count(ends: tuple[float, float]) -> str:
    """``3 to 5``, ``38 to over 50``."""
    return capital(" to ".join(dict.fromkeys(f"{end:.0f}" if math.isfinite(end) else f"over {MOST_MORE}"
                                             for end in ends)))


def decision_values(found: Sequence[Decided], within: float, ledger: str | None) -> dict[str, object]:
    """The same for JSON; of all cells the worst."""
    return {"decision": worst(found), "chance": max(one.chance for one in found), "within": within, "ledger": ledger,
            "runs_more": encode([*np.max([one.runs_more for one in found], 0)]),
            "smallest_difference": encode(max(one.smallest for one in found)),
            "decisions": [{
                **pick(one.comparison, "workload target"), **pick(one.cell, "workers global_batch"),
                **pick(one, "measure decision"), "reason": one.reason or None, **pick(one, "chance"),
                **pick(one.ratio, "ratio=value low high"), **pick(one.sides, "runs"),
                **pick(one, "unmet runs_more smallest_difference=smallest loss worker_hours=hours")} for one in found]}


def noise_table(found: Sequence[Floor]) -> Table:
    """What so many runs of each see, a measure a row."""
    def seen(one: Floor, at: int) -> Cell:
        return _share(one.smallest[at])
    return COMPARE.table("noise", found, {
        **({"workers": lambda one: count_cell(one.cell.workers[0]),
            BATCH: lambda one: count_cell(one.cell.global_batch)} if len({id(one.cell) for one in found}) > 1 else {}),
        "measure": lambda one: Cell(one.measure, one.measure), "spread": lambda one: _share(one.spread),
        **{COMPARE.column("seen", f"seen_{runs}", runs=runs): partial(seen, at=at) for at, runs in enumerate(RUNS)},
        "seen_steps": lambda one: _share(one.as_steps[RUNS.index(3)])}, lambda one: one.cell.keys)


def noise_lines(found: Sequence[Floor]) -> list[str]:
    """What sees a change with the fewest runs; MLPerf's check."""
    best = best_floor(found)
    lines = [COMPARE.say("fewest", measure=best.measure, share=best.as_steps[RUNS.index(3)], hours=best.hours)
             if best else COMPARE.say("blind")]
    for one in {id(one.cell): one for one in found}.values():
        chances = [f"{percent(chance)} after {more} more" if more else f"{percent(chance)} as it is"
                   for more, chance in chances_to_pass(one.cell, one.workload).items()]
        lines += [COMPARE.say("pass", batch=one.cell.global_batch, chances=chances)] if chances else []
    return lines


def _share(value: float) -> Cell:
    return Cell(percent(value) if math.isfinite(value) else "n/a", value)
