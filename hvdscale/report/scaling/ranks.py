"""What the times of every rank say: which part grew with the workers, which rank is slow, what starves."""
from __future__ import annotations

import numpy as np

from ...analysis.rank_times import ELSEWHERE, NAMES, SHARE, WORK, RankTimes
from ...analysis.report_data import Section
from ...analysis.steps import RunCell
from ...formatting.numbers import counted, number, percent
from ..columns import BATCH
from ..drawing import ORANGE, Axes, Figure, set_ticks, shade
from ..findings import Finding
from ..table import Cell, Column, Row, Table, count_cell, keys_of, number_cell

TITLES = {"step": "step", "data": "data", "forward": "forward", "backward": "backward", "waiting": "waiting",
          "optimizer": "optimizer", ELSEWHERE: "elsewhere"}
WORKERS = Column("workers", "workers", "1", "W: workers at the trial's start", short="W")
RANK = Column("rank", "rank", "1", "index of the worker")
MS = tuple(Column(f"{name}_ms", f"{TITLES[name]}, ms", "milliseconds", f"median over steps, mean over runs, of "
                  f"{'the step less the other parts' if name == ELSEWHERE else f'ranks/<rank>/{name}_seconds'}")
           for name in NAMES)
MOST_ROWS = 16          # ranks of a worker count that the table names

Timed = tuple[RunCell, RankTimes]


def timed_of(section: Section) -> list[Timed]:
    """The cells whose ranks timed their steps, by worker count."""
    return [(cell, parts.ranks) for cell, parts in section.parts if parts.ranks]


def rank_findings(section: Section) -> list[Finding]:
    """What grew, then what each worker count's ranks show, the most workers first."""
    timed = timed_of(section)
    found = [_growth(timed[0], timed[-1])] if len(timed) > 1 else []
    seen: set[str] = set()
    for cell, times in reversed(timed):
        for kind, said in _causes(cell, times):
            if kind not in seen:
                seen.add(kind)
                found.append(Finding(said))
    return found


def _growth(before: Timed, after: Timed) -> Finding:
    (few, first), (many, last) = before, after
    grew = last.step - first.step
    changes = sorted(((last.mean(name) - first.mean(name), TITLES[name]) for name in NAMES if name != "step"),
                     key=lambda one: -abs(one[0]))
    said = ", ".join(f"{name} {_signed(change)}" for change, name in changes[:3])
    return Finding(f"A step takes {_ms(abs(grew))} ms {'more' if grew >= 0 else 'less'} at "
                   f"{counted(many.workers[0], 'worker')} than at {few.workers[0]}: {said}.")


def _causes(cell: RunCell, times: RankTimes) -> list[tuple[str, str]]:
    """(kind, sentence) of each cause at one worker count."""
    found = []
    at = counted(cell.workers[0], "worker")
    slow, busy = times.outlier(WORK), times.outlier([ELSEWHERE])
    if slow:
        found.append(("slow", f"Rank {slow[0]} is slow at {at}: {_ms(slow[1])} ms of computing a step, the others "
                              f"{_ms(slow[2])}; they wait for it."))
    if busy:
        found.append(("serial", f"Rank {busy[0]} alone spends {_ms(busy[1])} ms a step outside of data, passes and "
                                f"optimizer at {at}, the others {_ms(busy[2])}; they wait for it."))
    late = times.outlier(["data"])
    if late:
        found.append(("late", f"Rank {late[0]} waits longer for data at {at}: {_ms(late[1])} ms a step, the others "
                              f"{_ms(late[2])}."))
    elif times.mean("data") > SHARE * times.step:
        found.append(("data", f"The loader is short at {at}: {percent(times.mean('data') / times.step)} of a step "
                              f"({_ms(times.mean('data'))} ms) waits for data; more loader workers may help."))
    if times.ranks > 1 and times.mean("waiting") > SHARE * times.step:
        found.append(("waiting", f"Of the waiting at {at}, at most {_ms(times.transfer)} ms a step is transfer; ranks "
                                 f"arrive {_ms(times.spread)} ms apart."))
    return found


def rank_table(section: Section) -> Table | None:
    """The parts of a step by rank; None where the ranks timed nothing."""
    timed = timed_of(section)
    if not timed:
        return None
    rows = [Row((count_cell(cell.workers[0]), count_cell(cell.global_batch), Cell(str(rank), rank),
                 *(number_cell(1000 * times.seconds[name][rank]) for name in NAMES)), keys_of(cell), ())
            for cell, times in timed for rank in range(min(times.ranks, MOST_ROWS))]
    left_out = [f"Of more than {MOST_ROWS} ranks the first are listed."] * any(
        times.ranks > MOST_ROWS for _, times in timed)
    return Table("ranks", "By rank: where a step's time goes", (WORKERS, BATCH, RANK, *MS), tuple(rows), (
        "Medians over steps on each rank. Data: inside the loader. Forward: up to the backward pass. Backward: up to "
        "its last gradient. Waiting: from there to the end of the pass, which is what the backward pass does not hide "
        "of the reduction, and inside the script's own collectives; waits for slower ranks included. Elsewhere: the "
        "rest, such as what the script prints or saves. What a step grew by are differences of their means over ranks.",
        *left_out))


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
        axes.set_xlabel("rank")
        axes.set_ylabel("milliseconds a step (medians)")
    return Figure(
        "step-time-by-rank", f"Where a step's time goes, by rank\n{counted(cell.workers[0], 'worker')}",
        "Medians of the parts of a step on each rank. The rank that waits least is the one that the others wait for.",
        "median over steps, mean over runs, of ranks/<rank>/..._seconds", "", keys_of(cell), draw)


def _ms(seconds: float) -> str:
    return number(1000 * seconds)


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{number(1000 * abs(seconds))}"
