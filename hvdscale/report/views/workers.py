"""By worker count: tables of the series and of cells in none, what more workers or a growing batch buy, where the time
of a step goes, figures."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ...analysis.intervals import Estimate
from ...analysis.report_data import Section
from ...analysis.speedup import WEAK, Series, SpeedupPoint
from ...analysis.step_breakdown import ELSEWHERE, NAMES as STEP_PARTS, RANK_NAMES, SHARE, WORK, RankTimes, StepParts
from ...analysis.steps import RunCell
from ...analysis.studies import group_by
from ...formatting.numbers import capital, counted, exact, number, percent
from ...plan.batch_schedule import BatchSchedule
from ..document import Figures, Finding, Part
from ..drawing import (BLUE, CROWDED_COUNT, GREEN, HOVER, MUTED, ORANGE, Axes, Figure, decimal_ticks, draw_line,
                       ends_of, explain, fraction, is_positive, label_axes, log2_axis, mark_estimate, set_ticks, shade)
from ..subject import Subject
from ..table import Cell, Table, keys_of
from ..texts import SCALING, Cells
from .cells import (COLUMNS, crowded_warnings, describe_cells, mark_of, of_searches, problems_of_points, ratio_cell,
                    runs_cell, table_of_cells, tuned_by)

MOST_ALONE = 3      # points of no series that are told one by one
SMALL = 0.15            # an efficiency below it is shown on a log scale
PARTS = {"communication": "waiting"}    # what columns call a part of a step, where that is not its name
MOST_BARS = 10
LEAST_SEEN = 0.005      # of the highest bar
MOST_ROWS = 16          # ranks of a worker count that the table names
# columns of the cells of worker counts: to a target, without one, and where the batch grows
TO_TARGET = "workers global_batch met steps_to_target seconds_to_target examples_per_second"
OF_SPEED = "workers global_batch runs timed_steps examples_per_second step_seconds"
GROWING = ("workers global_batch met steps_to_target examples_to_target tokens_to_target seconds_to_target "
           "worker_seconds")
BY_BATCH = "global_batch ran_at met steps_to_target examples_to_target tokens_to_target"


def series_name(series: Series) -> str:
    """For file names: weak-32, strong-256."""
    return f"{series.kind}-{exact(float(series.size)).replace(',', '')}"


def series_kind(series: Series) -> str:
    """``weak scaling, 32 examples a worker``."""
    if series.kind == WEAK:
        return f"weak scaling, {exact(float(series.size))} examples a worker"
    return f"strong scaling, global batch {series.points[0].cell.batches.in_brief()}"


def by_workers(subject: Subject) -> Iterator[Part]:
    several = Counter(series.kind for series in subject.series)
    for series in subject.series:
        first, last, gained = series.points[0], series.points[-1], series.points[-1].throughput_speedup
        kind = capital(series_kind(series) if several[series.kind] > 1 else f"{series.kind} scaling")
        if subject.target:
            yield from _find_speedup(subject, series, kind)
        elif not math.isnan(gained.value):
            yield SCALING.find("throughput", gained, series=kind, first=first.workers, last=last.workers,
                               mark=mark_of(last.cell) or mark_of(first.cell), speedup=gained,
                               efficiency=last.system_efficiency.value, slow=first.cell.examples_per_second.value,
                               fast=last.cell.examples_per_second.value)
        yield _series_table(subject, series)
    batches = None
    if subject.batches:
        confidence, perfect, cells = subject.options.confidence, subject.batches.perfect, subject.batches.cells
        batches = table_of_cells("batches", cells, BY_BATCH, {
            "statistical_efficiency": lambda cell: ratio_cell(
                SpeedupPoint(cell, cells[0], confidence).statistical_efficiency, cell, cells[0]),
            "perfect_scaling": lambda cell: (perfect.get(cell.global_batch, "cut off") if cell.steps.met else
                                             "not met" if cell.runs else "diverged")},
            section=subject, times=False, baseline=lambda cell: cells[0].keys, notes=(
                SCALING.say("by_batch"),
                SCALING.say("meanings", perfect=subject.options.perfect_within, useful=subject.options.useful_within),
                SCALING.say_if("bias", len(cells) > 2)),
            searched=of_searches(subject, cells) or " (all worker counts)")
    alone = _cells_alone(subject) if subject.alone else ()
    yield from (batches, *alone) if subject.searches else (*alone, batches)
    yield Figures(partial(_figures, subject))


def _figures(section: Section) -> Iterator[Figure]:
    for series in section.series:
        points = [point for point in series.points if point.cell.runs]
        target = section.target if any(point.cell.steps.met for point in points) else None
        for kind, draw in (("speedup", _draw_speedup), ("efficiency", _draw_efficiency)) if points else ():
            yield SCALING.figure(kind, partial(draw, points, bool(target), series.points[0].workers),
                                 keys_of(point.cell for point in points), target=target,
                                 name=f"{kind}-{series_name(series)}", series=series_kind(series),
                                 confidence=section.options.confidence,
                                 crowded=any(point.cell.oversubscribed for point in points))


def _find_speedup(subject: Subject, series: Series, kind: str) -> Iterator[Finding]:
    timed = [point for point in series.points if not math.isnan(point.time_speedup.value)]
    if len(timed) > 1:
        best, last = min(timed, key=lambda point: point.cell.seconds.value), timed[-1]
        statistical, system = last.statistical_efficiency.value, last.system_efficiency.value
        apart = max(statistical, system) >= 1.2 * min(statistical, system)      # more than by chance
        greater = "statistics" if statistical < system else "the system"
        yield SCALING.find("speedup", last.time_speedup, series=kind, first=timed[0].workers, last=last.workers,
                           mark=mark_of(last.cell) or mark_of(timed[0].cell), speedup=last.time_speedup,
                           product=last.efficiency.value,
                           greater=greater if apart and 0 < statistical * system < 0.95 else "")
        if best is not last and not subject.plan:
            yield SCALING.find("shortest", best.cell.seconds, workers=best.workers, seconds=best.cell.seconds,
                               mark=mark_of(best.cell))
    if unmet := [f"W = {point.workers:,}" + (
            f" by half of the seeds or more ({point.cell.met:,} of {len(point.cell.samples.seeds):,} did)"
            if point.cell.met else "") for point in series.points if point.cell.runs and not point.cell.steps.met]:
        yield SCALING.find("unmet", series=kind, target=subject.target, where=unmet)
    if lost := [point.workers for point in series.points if not point.cell.runs]:
        yield SCALING.find("all_diverged", series=kind, workers=lost)


def _cells_alone(section: Section) -> Iterator[Part]:
    speeds = [f"{number(cell.examples_per_second.value)} examples per second{mark_of(cell)}"
              if not math.isnan(cell.examples_per_second.value) else "" for cell in section.alone]
    most = MOST_ALONE if any(speeds) else 1
    for cell, speed in zip(section.alone, speeds) if len(speeds) <= most else ():
        kind = "alone" if cell.steps.met else "alone_unmet"
        if not (cell.runs and section.target):
            kind = "alone_speed" if cell.runs else "alone_diverged"
        unsaid = section.alone if section.searches and cell is section.alone[-1] else ()    # its table is not shown
        where = f"{counted(cell.workers[0], 'worker')}, global batch {cell.batches.in_brief()}"
        yield SCALING.find(kind, None, crowded_warnings(unsaid), where=where, target=section.target,
                           speed=speed or "no time is known",
                           steps=cell.steps.value if cell.steps.met else cell.steps.beyond,
                           seconds=cell.seconds.value if speed and kind == "alone" else None)
    yield table_of_cells("alone", section.alone, TO_TARGET if section.target else OF_SPEED, section=section,
                         notes=[SCALING.say_if("one_count", not section.series)], series=bool(section.series),
                         searched=of_searches(section, section.alone))


def _series_table(section: Section, series: Series) -> Table:
    baseline, *_ = cells = [point.cell for point in series.points]
    ratios = (("step_speedup", "statistical_efficiency", "system_efficiency", "efficiency", "time_speedup")
              if section.target else ("system_efficiency", "throughput_speedup"))
    columns: Cells = {name: partial(lambda name, point: ratio_cell(getattr(point, name), point.cell, baseline), name)
                      for name in ratios}
    tuned = tuned_by(section, cells)
    searched = {one.name for found in tuned.values() for search in found for one in search.space}
    problems = "; ".join(problems_of_points(series.points, searched if len(tuned) == len(cells) else ()))
    return table_of_cells(
        "series", series.points, TO_TARGET if section.target else OF_SPEED, columns, of=attrgetter("cell"),
        section=section, baseline=lambda point: baseline.keys, file=series_name(series), spare=bool(section.target),
        notes=(SCALING.say("series", weak=series.kind == WEAK, workers=baseline.workers[0]),
               SCALING.say_if("paired", len({cell.updates for cell in cells}) < len(cells))),
        warnings=(SCALING.say_if("problems", problems, problems=problems),
                  SCALING.say_if("baseline_unmet", section.target and not baseline.steps.met,
                                 workers=baseline.workers[0])), series=series_kind(series))


def _draw_speedup(points: Sequence[SpeedupPoint], to_target: bool, least: int, axes: Axes) -> None:
    shown = [point for point in points if is_positive(point.throughput_speedup.value)]
    workers, ideal = [point.workers for point in points], [point.worker_ratio for point in points]
    log2_axis(axes, "x", workers)
    ratios = [ratio for point in points for ratio in (point.throughput_speedup, point.time_speedup)]
    log2_axis(axes, "y", [1, *ideal, *(ratio.value for ratio in ratios)], ends_of(ratios))
    axes.yaxis.set_major_formatter(fraction)
    draw_line(axes, zip(workers, ideal), MUTED, "--", 1.2, label="ideal")
    _shade_loss(axes, [(p.workers, p.throughput_speedup.value, p.worker_ratio) for p in shown], ORANGE, "the system")
    _shade_loss(axes, [(p.workers, p.time_speedup.value, p.throughput_speedup.value) for p in shown
                       if to_target and is_positive(p.time_speedup.value)], BLUE, "statistics")
    _plot_ratio(axes, points, "throughput_speedup", ORANGE, "s", "examples per second")
    if to_target:
        _plot_ratio(axes, points, "time_speedup", BLUE, "o", "time to target")
    label_axes(axes, "workers W", f"speedup over {counted(least, 'worker')}")


def _shade_loss(axes: Axes, points: Sequence[tuple[float, float, float]], color: str, what: str) -> None:
    """Shade where the first of two values lies below the second, up to where their lines cross; nothing above it."""
    if not any(value < 0.995 * most for _, value, most in points):         # which one sees
        return
    x, value, most = np.log(points).T
    gap = most - value
    at = np.flatnonzero(gap[:-1] * gap[1:] < 0)
    along = np.sort(np.append(x, x[at] + gap[at] / (gap[at] - gap[at + 1]) * (x[at + 1] - x[at])))
    value, most = np.exp(np.interp(along, x, value)), np.exp(np.interp(along, x, most))
    axes.fill_between(np.exp(along), np.minimum(value, most), most, color=color, alpha=0.15, linewidth=0,
                      label=f"lost to {what}")


def _draw_efficiency(points: Sequence[SpeedupPoint], to_target: bool, _: int, axes: Axes) -> None:
    kinds = [("system_efficiency", ORANGE, "s", "system efficiency", 1.0)]
    if to_target:
        kinds = [("statistical_efficiency", GREEN, "^", "statistical efficiency", 1 / 1.04),
                 ("system_efficiency", ORANGE, "s", "system efficiency", 1.04),
                 ("efficiency", BLUE, "o", "their product", 1.0)]
    log2_axis(axes, "x", [point.workers for point in points])
    axes.axhline(1, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
    for kind in kinds:
        _plot_ratio(axes, points, *kind)
    ratios: list[Estimate] = [getattr(point, name) for point in points for name, *_ in kinds]
    top = max([1.0, *(end for one in ratios for end in (one.value, one.high) if math.isfinite(end))])
    values = [ratio.value for ratio in ratios if is_positive(ratio.value)]
    if values and min(values) < SMALL:
        axes.set_yscale("log")
        ends = [max(min(values) / 4, ratio.low) for ratio in ratios]
        axes.set_ylim(min([*values, *ends]) / 1.3, 1.3 * min(top, 4 * max(values)))
        decimal_ticks(axes.yaxis, axes.get_ylim())
    else:
        axes.set_ylim(0, 1.08 * min(top, 2 * max([1, *values])))
    label_axes(axes, "workers W", "efficiency")


def _plot_ratio(axes: Axes, points: Sequence[SpeedupPoint], name: str, color: str, marker: str, label: str,
                aside: float = 1.0) -> None:
    """A line through a ratio at each worker count, with marks; statistics do not depend on the host."""
    found: list[tuple[SpeedupPoint, Estimate]] = [(point, getattr(point, name)) for point in points]
    draw_line(axes, ((point.workers * aside, ratio.value) for point, ratio in found if is_positive(ratio.value)), color)
    for point, ratio in found:
        mark_estimate(axes, point.workers, ratio, color, marker, label,
                      name != "statistical_efficiency" and point.cell.oversubscribed, aside)


def growing_batch(subject: Subject) -> Iterator[Part]:
    rows: list[tuple[RunCell, SpeedupPoint | None, RunCell]] = []       # a cell, its ratios, and to what they are
    alone: list[int] = []
    if not subject.target:
        return
    for cell in subject.cells:
        beside = [(one, SpeedupPoint(cell, one, subject.options.confidence), cell) for one in subject.constant
                  if one.workers == cell.workers]
        alone += [] if beside else cell.workers
        rows += [(cell, None, cell), *beside]

    def gained(row: tuple[RunCell, SpeedupPoint | None, RunCell], name: str) -> Cell:
        cell, point, grown = row
        return ratio_cell(getattr(point, name), grown, cell) if point else Cell("")
    batches = BatchSchedule.of_pairs(subject.workload.batch_schedule)
    yield table_of_cells("growing-batch", rows, GROWING, {
        "step_speedup": partial(gained, name="step_speedup"),
        SCALING.column("examples_ratio", "statistical_efficiency"): partial(gained, name="statistical_efficiency"),
        "time_speedup": partial(gained, name="time_speedup")}, of=itemgetter(0),
        what=subject.target, gained=True, notes=(
            SCALING.say("growing_ratios", batches=str(batches)),
            SCALING.say_if("growing_alone", alone, workers=alone, smallest=batches.smallest,
                           largest=batches.largest), *describe_cells(subject, subject.cells)[0]))
    most = max((cell.workers for _, point, cell in rows if point), default=())
    for one, point, cell in rows:
        if point and cell.workers == most and not math.isnan(point.time_speedup.value):
            yield SCALING.find("growing", point.time_speedup, workers=cell.workers[0], speedup=point.time_speedup,
                               batch=one.global_batch, examples=1 / point.statistical_efficiency.value)


# Where the time of a step goes: its parts by worker count, and by rank

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
    yield Figures(lambda: [SCALING.figure("step-time", partial(_draw_parts, parts), keys_of(cell for cell, _ in parts),
                                          name=f"step-time-{series_name(series)}", series=series_kind(series))
                           for series, parts in shown if 1 < len(parts) <= MOST_BARS])
    (few, before), (many, after) = subject.parts[0], subject.parts[-1]
    where, there = (counted(cell.workers[0], "worker") + mark_of(cell) for cell in (many, few))
    if few is not many and few.workers == many.workers:
        where, there = f"{where}, batch {many.batches.in_brief()}", f"batch {few.batches.in_brief()}"
    yield SCALING.find("parts", where=where, ms=1000 * after.seconds, waiting=after.communication, data=after.data,
                       there=there if few is not many else None, ms_there=1000 * before.seconds,
                       waiting_there=before.communication, data_there=before.data)
    if timed := [(cell, parts.ranks) for cell, parts in subject.parts if parts.ranks]:
        yield from _parts_by_rank(timed)


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


def _parts_by_rank(timed: Sequence[tuple[RunCell, RankTimes]]) -> Iterator[Part]:
    """The parts of a step by rank; what grew, then what each worker count's ranks show, the most workers first."""
    yield SCALING.table(
        "ranks", [(cell, times, rank) for cell, times in timed for rank in range(min(times.ranks, MOST_ROWS))],
        {"workers": lambda row: row[0].workers[0], "global_batch": lambda row: row[0].global_batch,
         "rank": lambda row: Cell(str(row[2]), row[2]),
         **{SCALING.column("rank_ms", f"{name}_ms", part=name, name=name, rest=name == ELSEWHERE): partial(
             lambda name, row: 1000 * row[1].seconds[name][row[2]], name) for name in RANK_NAMES},
         "typical_ms": lambda row: 1000 * row[1].typical[row[2]],
         **{name: partial(lambda name, row: 1000 * _kept(row[0], "profile", row[2], {}).get(name[:-3], np.nan), name)
            for name in ("hidden_ms", "exposed_ms", "late_ms") if any(_kept(cell, "profile") for cell, _ in timed)}},
        lambda row: row[0].keys, notes=(SCALING.say("rank_parts"), SCALING.say_if(
            "ranks_left_out", any(times.ranks > MOST_ROWS for _, times in timed), most=MOST_ROWS)))
    (few, first), (many, last) = timed[0], timed[-1]
    if 1 < last.ranks <= MOST_ROWS:
        yield Figures(lambda: [SCALING.figure("step-time-by-rank", partial(_draw_ranks, last), many.keys,
                                              workers=many.workers[0])])
    if len(timed) > 1:
        grew = last.step - first.step
        changes = sorted(((round(last.mean(name) - first.mean(name), 9), name) for name in RANK_NAMES
                          if name != "step"), key=lambda one: -abs(one[0]))
        parts = [f"{name} {'+' if change >= 0 else '-'}{number(1000 * abs(change))}" for change, name in changes[:3]]
        yield SCALING.find("step_grew", ms=1000 * abs(grew), more=grew >= 0, workers=many.workers[0],
                           few=few.workers[0], parts=", ".join(parts))
    causes = group_by((one for cell, times in reversed(timed) for one in _find_causes(cell, times)), attrgetter("kind"))
    yield from (first for first, *_ in causes.values())
    for cell, _ in timed:
        if first := _kept(cell, "profile"):
            operators = [f"{name} ({number(1000 * seconds)} ms)" for name, seconds in first["operators"]]
            yield SCALING.find("profile", at=counted(cell.workers[0], "worker") + mark_of(cell), operators=operators,
                               communication=1000 * first["communication"] if cell.workers[0] > 1 else None,
                               exposed=1000 * first["exposed"])


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


def _draw_ranks(times: RankTimes, axes: Axes) -> None:
    names = [name for name in RANK_NAMES if name != "step"]
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
