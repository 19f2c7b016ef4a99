"""What the times of every rank say: which part grew with the workers, which rank is slow, what starves."""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ...analysis.rank_times import ELSEWHERE, NAMES, SHARE, WORK, RankTimes
from ...analysis.report_data import Section
from ...analysis.steps import RunCell
from ...formatting.numbers import counted, number
from ..columns import BATCH
from ..drawing import ORANGE, Axes, Figure, label_axes, set_ticks, shade
from ..findings import Finding
from ..table import Cell, Table, count_cell, number_cell
from .regimes import SCALING

TITLES = {"step": "step", "data": "data", "forward": "forward", "backward": "backward", "waiting": "waiting",
          "optimizer": "optimizer", ELSEWHERE: "elsewhere"}
MOST_ROWS = 16          # ranks of a worker count that the table names

Timed = tuple[RunCell, RankTimes]


def timed_of(section: Section) -> list[Timed]:
    """The cells whose ranks timed their steps, by worker count."""
    return [(cell, parts.ranks) for cell, parts in section.parts if parts.ranks]


def rank_findings(section: Section) -> list[Finding]:
    """What grew, then what each worker count's ranks show, the most workers first."""
    timed = timed_of(section)
    found = [_find_growth(timed[0], timed[-1])] if len(timed) > 1 else []
    for cell, times in reversed(timed):
        found += [one for one in _find_causes(cell, times) if one.kind not in {other.kind for other in found}]
    return found


def _find_growth(before: Timed, after: Timed) -> Finding:
    (few, first), (many, last) = before, after
    grew = last.step - first.step
    changes = sorted(((last.mean(name) - first.mean(name), TITLES[name]) for name in NAMES if name != "step"),
                     key=lambda one: -abs(one[0]))
    return SCALING.find("step_grew", ms=1000 * abs(grew), more=grew >= 0, workers=many.workers[0], few=few.workers[0],
                        parts=", ".join(f"{name} {_signed(change)}" for change, name in changes[:3]))


def _find_causes(cell: RunCell, times: RankTimes) -> Iterator[Finding]:
    """Each cause at one worker count: an outlier among the ranks is (rank, its seconds, those of the others)."""
    at, late = counted(cell.workers[0], "worker"), times.outlier(["data"])
    for kind, found in (("slow_rank", times.outlier(WORK)), ("busy_rank", times.outlier([ELSEWHERE])),
                        ("late_rank", late)):
        if found:
            yield SCALING.find(kind, rank=found[0], at=at, ms=1000 * found[1], others=1000 * found[2])
    if not late and times.mean("data") > SHARE * times.step:
        yield SCALING.find("short_loader", at=at, share=times.mean("data") / times.step, ms=1000 * times.mean("data"))
    if times.ranks > 1 and times.mean("waiting") > SHARE * times.step:
        yield SCALING.find("transfer", at=at, ms=1000 * times.transfer, apart=1000 * times.spread)


def rank_table(section: Section) -> Table | None:
    """The parts of a step by rank; None where the ranks timed nothing."""
    timed = timed_of(section)
    if not timed:
        return None

    def part(row: tuple[RunCell, RankTimes, int], name: str) -> Cell:
        return number_cell(1000 * row[1].seconds[name][row[2]])
    rows = [(cell, times, rank) for cell, times in timed for rank in range(min(times.ranks, MOST_ROWS))]
    left_out = any(times.ranks > MOST_ROWS for _, times in timed)
    return SCALING.table("ranks", rows, {
        "workers": lambda row: count_cell(row[0].workers[0]), BATCH: lambda row: count_cell(row[0].global_batch),
        "rank": lambda row: Cell(str(row[2]), row[2]),
        **{SCALING.column("rank_ms", f"{name}_ms", part=TITLES[name], name=name, rest=name == ELSEWHERE):
           partial(part, name=name) for name in NAMES}}, lambda row: row[0].keys,
        notes=(SCALING.say("rank_parts"), *[SCALING.say("ranks_left_out", most=MOST_ROWS)] * left_out))


def rank_figure(section: Section) -> Figure | None:
    """The parts of a step on each rank, at the most workers; None where the ranks timed nothing, or are too many."""
    cell, times = next(iter(reversed(timed_of(section))), (None, None))
    if cell is None or times is None or not 1 < times.ranks <= MOST_ROWS:
        return None
    names = [name for name in NAMES if name != "step"]

    def draw(axes: Axes) -> None:
        bottoms = np.zeros(times.ranks)
        for at, name in enumerate(names):
            heights = 1000 * times.seconds[name]
            axes.bar(range(times.ranks), heights, bottom=bottoms, width=0.62, linewidth=0, label=TITLES[name],
                     color=ORANGE if name == "waiting" else shade(at, len(names)))
            bottoms = bottoms + heights
        set_ticks(axes.xaxis, range(times.ranks))
        axes.grid(False, axis="x")
        axes.set_ylim(0, 1.1 * bottoms.max())
        label_axes(axes, "rank", "milliseconds a step (medians)")
    return SCALING.figure("step-time-by-rank", draw, cell.keys, workers=cell.workers[0])


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{number(1000 * abs(seconds))}"
