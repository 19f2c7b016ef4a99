"""Where the time of a step goes: its parts by worker count and by rank."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...analysis.step_breakdown import ELSEWHERE, SHARE, WORK, RankTimes, StepParts
from ...analysis.step_breakdown import NAMES as STEP_PARTS
from ...analysis.step_breakdown import RANK_NAMES as NAMES
from ...analysis.steps import RunCell
from ...formatting.numbers import counted, number, percent
from ..document import Figures, Finding, Part
from ..drawing import BLUE, CROWDED_COUNT, GREEN, HOVER, ORANGE, Axes, explain, label_axes, set_ticks, shade
from ..subject import Subject
from ..table import Cell, keys_of
from ..texts import SCALING
from .cells import COLUMNS, crowded_warnings, mark_of, runs_cell, table_of_cells
from .workers import series_kind, series_name

PARTS = {"communication": "waiting"}    # what columns call a part of a step, where that is not its name
MOST_BARS = 10
LEAST_SEEN = 0.005      # of the highest bar
MOST_ROWS = 16          # ranks of a worker count that the table names


def step_parts(subject: Subject) -> Iterator[Part]:
    yield table_of_cells("step-time", subject.parts, "workers global_batch", {
        "runs": lambda row: runs_cell(row[0], lost=False), "timed_steps": lambda row: row[1].steps,
        "step_ms": lambda row: 1000 * row[1].seconds,
        **{SCALING.column("part_ms", f"{name}_ms", part=name, what=PARTS.get(name, name)):
           partial(lambda name, row: 1000 * row[1].seconds * getattr(row[1], name), name) for name in STEP_PARTS},
        "communication_share": lambda row: Cell(percent(row[1].communication), row[1].communication)},
        of=itemgetter(0), notes=(SCALING.say("step_parts"),),
        warnings=crowded_warnings([cell for cell, _ in subject.parts]), what=subject.target, parts=True)
    parts_of = {id(cell): (cell, parts) for cell, parts in subject.parts}
    shown = [(series, [parts_of[id(point.cell)] for point in series.points if id(point.cell) in parts_of])
             for series in subject.series]
    yield Figures(lambda: [
        SCALING.figure("step-time", partial(_draw_parts, parts), keys_of(cell for cell, _ in parts),
                       name=series_name(series), series=series_kind(series))
        for series, parts in shown if 1 < len(parts) <= MOST_BARS])
    (few, before), (many, after) = subject.parts[0], subject.parts[-1]
    where, there = (counted(cell.workers[0], "worker") + mark_of(cell) for cell in (many, few))
    if few is not many and few.workers == many.workers:
        where, there = f"{where}, batch {many.batches.in_brief()}", f"batch {few.batches.in_brief()}"
    yield SCALING.find("parts", where=where, ms=1000 * after.seconds, waiting=after.communication, data=after.data,
                       there=there if few is not many else None, ms_there=1000 * before.seconds,
                       waiting_there=before.communication, data_there=before.data)


def _draw_parts(parts: Sequence[tuple[RunCell, StepParts]], axes: Axes) -> None:
    heights = {label: (color, [1000 * one.seconds * getattr(one, name) for _, one in parts])
               for name, color, label in (("compute", BLUE, "computing"), ("data", GREEN, "getting data"),
                                          ("communication", ORANGE, "waiting for communication, and its share"))}
    _draw_bars(axes, heights, max(one.seconds for _, one in parts), "workers W", "milliseconds a step (mean)",
               lambda at: COLUMNS["workers"](parts[round(at)][0]).shown)
    for at, (_, one) in enumerate(parts):
        axes.annotate(percent(one.communication), (at, 1000 * one.seconds), xytext=(0, 2), textcoords="offset points",
                      ha="center", va="bottom", fontsize=8)
    if any(cell.oversubscribed for cell, _ in parts):
        explain(axes, CROWDED_COUNT)


def ranks(subject: Subject) -> Iterator[Part]:
    """The parts of a step by rank; what grew, then what each worker count's ranks show, the most workers first."""
    timed = [(cell, parts.ranks) for cell, parts in subject.parts if parts.ranks]
    if not timed:
        return
    yield SCALING.table(
        "ranks", [(cell, times, rank) for cell, times in timed for rank in range(min(times.ranks, MOST_ROWS))], {
            "workers": lambda row: row[0].workers[0], "global_batch": lambda row: row[0].global_batch,
            "rank": lambda row: Cell(str(row[2]), row[2]),
            **{SCALING.column("rank_ms", f"{name}_ms", part=name, name=name, rest=name == ELSEWHERE):
               partial(lambda name, row: 1000 * row[1].seconds[name][row[2]], name) for name in NAMES},
            "typical_ms": lambda row: 1000 * row[1].typical[row[2]],
            **{name: partial(lambda name, row: 1000 * _kept(row[0], "profile", row[2], {}).get(name[:-3], np.nan), name)
               for name in ("hidden_ms", "exposed_ms", "late_ms") if any(_kept(cell, "profile") for cell, _ in timed)}},
        lambda row: row[0].keys,
        notes=(SCALING.say("rank_parts"), SCALING.say("ranks_left_out", most=MOST_ROWS) if any(
            times.ranks > MOST_ROWS for _, times in timed) else ""))
    (few, first), (many, last) = timed[0], timed[-1]
    if 1 < last.ranks <= MOST_ROWS:
        yield Figures(lambda: [SCALING.figure("step-time-by-rank", partial(_draw_ranks, last), many.keys,
                                              workers=many.workers[0])])
    if len(timed) > 1:
        grew = last.step - first.step
        changes = sorted(((round(last.mean(name) - first.mean(name), 9), name) for name in NAMES if name != "step"),
                         key=lambda one: -abs(one[0]))
        parts = [f"{name} {'+' if change >= 0 else '-'}{number(1000 * abs(change))}" for change, name in changes[:3]]
        yield SCALING.find("step_grew", ms=1000 * abs(grew), more=grew >= 0, workers=many.workers[0],
                           few=few.workers[0], parts=", ".join(parts))
    causes: dict[str, Finding] = {}
    for one in (one for cell, times in reversed(timed) for one in _find_causes(cell, times)):
        causes.setdefault(one.kind, one)
    yield from causes.values()
    yield from (one for cell, _ in timed for one in _find_profile(cell))


def _find_causes(cell: RunCell, times: RankTimes) -> Iterator[Finding]:
    """Each cause at one worker count; what a pause adds to a part is said of the pause, if that is said."""
    at, late = counted(cell.workers[0], "worker") + mark_of(cell), times.outlier(["data"])
    line = _kept(cell, "line", times.pause.rank) if times.pause else ""
    pause = times.pause if times.pause and (times.pause.every or not cell.oversubscribed or (
        line and times.pause.part == ELSEWHERE)) else None
    if pause:
        yield SCALING.find("pause", rank=pause.rank, at=at, ms=1000 * pause.seconds, every=pause.every or None,
                           steps=pause.steps, elsewhere=pause.part == ELSEWHERE, part=pause.part, share=pause.share,
                           typical=1000 * times.typical[pause.rank], line=line)
    for kind, names in (("slow_rank", WORK), ("busy_rank", (ELSEWHERE,)), ("late_rank", ("data",))):
        found = times.outlier(names)
        if found and not (pause and pause.part in names):
            yield SCALING.find(kind, rank=found[0], at=at, ms=1000 * found[1], others=1000 * found[2])
    if not late and times.mean("data") > SHARE * times.step and not (pause and pause.part == "data"):
        yield SCALING.find("short_loader", at=at, share=times.mean("data") / times.step, ms=1000 * times.mean("data"))
    if times.ranks > 1 and times.mean("waiting") > SHARE * times.step:
        yield SCALING.find("transfer", at=at, ms=1000 * times.transfer, apart=1000 * times.spread)


def _kept(cell: RunCell, name: str, rank: int = 0, default: Any = None) -> Any:
    """What the newest run that has it kept of a rank: what torch's trace says, or the line of long updates."""
    return next((kept[rank] for run in reversed(cell.runs) if (kept := run.trial.measured.get(name))), default)


def _find_profile(cell: RunCell) -> Iterator[Finding]:
    if first := _kept(cell, "profile"):
        operators = [f"{name} ({number(1000 * seconds)} ms)" for name, seconds in first["operators"]]
        yield SCALING.find("profile", at=counted(cell.workers[0], "worker") + mark_of(cell), operators=operators,
                           communication=1000 * first["communication"] if cell.workers[0] > 1 else None,
                           exposed=1000 * first["exposed"])


def _draw_ranks(times: RankTimes, axes: Axes) -> None:
    names = [name for name in NAMES if name != "step"]
    heights = {name: (ORANGE if name == "waiting" else shade(at, len(names)), 1000 * times.seconds[name])
               for at, name in enumerate(names)}
    _draw_bars(axes, heights, times.step, "rank", "milliseconds a step (means)")


def _draw_bars(axes: Axes, heights: Mapping[str, tuple[str, Any]], most: float, across: str, up: str, *ticks: Any
               ) -> None:
    """Parts, by label, of steps of at most ``most`` seconds, on each other, each with its milliseconds; named where one
    is high enough to see."""
    bottoms: Any = 0.0
    for label, (color, high) in heights.items():
        bars = axes.bar(range(len(high)), high, bottom=bottoms, width=0.62, linewidth=0, color=color,
                        label=label if max(high) > 1000 * LEAST_SEEN * most else None)
        for bar, height in zip(bars, high):
            bar.set_gid(f"{HOVER}{label.partition(',')[0]}: {number(height)} ms")
        bottoms = bottoms + np.asarray(high)
    set_ticks(axes.xaxis, range(len(bottoms)), *ticks)
    axes.grid(False, axis="x")
    axes.set_ylim(0, 1.1 * bottoms.max())
    label_axes(axes, across, up)
