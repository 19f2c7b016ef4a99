"""The tables of a section: by worker count, by global batch, where a step's time goes, and gradient noise.

    for table in tables_of(section):
        print(as_text(table))
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ...analysis.intervals import Estimate
from ...analysis.noise import LEAST_STEPS, NoiseScale
from ...analysis.curves import Curve
from ...analysis.report_data import Section
from ...analysis.speedup import Series, SpeedupPoint, compare
from ...analysis.step_breakdown import NAMES, StepParts
from ...analysis.steps import RunCell
from ...formatting.numbers import number, percent, ratio, span, spread, whole
from ...plan.batch_schedule import BatchSchedule
from ..columns import BATCH, EXAMPLES, NOISE, PERFECT, QUARTERS, STATISTICAL, STEPS, SYSTEM, TOKENS
from ..table import Cell, Column, Table, TrialKeys, Write, count_cell, interval_cell, no_cell, number_cell, steps_cell
from ..texts import Cells
from ..view import present
from . import words
from .ranks import rank_table
from .regimes import SCALING

UNBOUNDED = "?"     # a noise scale whose |G|^2 came out as 0 or less
PARTS = {"communication": "waiting"}    # what columns call a part of a step, where that is not its name


def tables_of(section: Section) -> tuple[Table, ...]:
    """Every table of a section: a table a series, cells in no series, and by global batch."""
    by_batch = [_batch_table(section, section.batches)] if section.batches else []
    alone = [_alone_table(section)] if section.alone else []
    return (*(_series_table(section, series) for series in section.series),
            *(by_batch + alone if section.searches else alone + by_batch),
            *present(_growing_table(section) if section.target and section.workload.batch_schedule else None,
                     _parts_table(section) if section.parts else None, rank_table(section),
                     _noise_table(section) if section.noise else None,
                     _noise_groups_table(section) if any(noise.groups for _, noise in section.noise) else None))


def _lost_of(cell: RunCell) -> TrialKeys:
    return tuple(trial.key for trial in cell.diverged)


def _table_of_cells(name: str, rows: Iterable[Any], cells: Cells, **words: Any) -> Table:
    """A table whose rows begin with the cell that they are of."""
    return SCALING.table(name, rows, cells, lambda row: row[0].keys, diverged=lambda row: _lost_of(row[0]), **words)


def _point(section: Section) -> Cells:
    """The columns of a worker count's cell: to the target, or without one of its throughput."""
    cells: Cells = {"workers": _workers, BATCH: _batch}
    if section.target:
        return cells | {"met": _met, STEPS: lambda cell: _estimate(cell.steps, cell, whole),
                        "seconds_to_target": lambda cell: _estimate(cell.seconds, cell),
                        "examples_per_second": lambda cell: interval_cell(cell.examples_per_second)}
    return cells | {"runs": lambda cell: _runs(cell, _lost(cell)), "timed_steps": _timed,
                    "examples_per_second": lambda cell: interval_cell(cell.examples_per_second),
                    "step_seconds": lambda cell: interval_cell(cell.step_seconds)}


def _timed(cell: RunCell) -> Cell:
    timed = {run.last_step for run in cell.runs}
    return Cell(spread(timed), max(timed, default=0))


def _series_table(section: Section, series: Series) -> Table:
    baseline = series.baseline

    def of_cell(point: SpeedupPoint, fill: Callable[[RunCell], Cell]) -> Cell:
        return fill(point.cell)

    def of_ratio(point: SpeedupPoint, name: str) -> Cell:
        return _ratio_cell(getattr(point, name), point.cell, baseline)
    ratios: dict[Column | str, str] = {SYSTEM: "system_efficiency", "throughput_speedup": "throughput_speedup"}
    if section.target:
        ratios = {"step_speedup": "step_speedup", STATISTICAL: "statistical_efficiency", SYSTEM: "system_efficiency",
                  "efficiency": "product", "time_speedup": "time_speedup"}
    cells: Cells = {key: partial(of_cell, fill=fill) for key, fill in _point(section).items()}
    return SCALING.table(
        "series", series.points, cells | {key: partial(of_ratio, name=name) for key, name in ratios.items()},
        lambda point: point.cell.keys, diverged=lambda point: _lost_of(point.cell),
        baseline=lambda point: baseline.keys, file=words.series_name(series), spare=bool(section.target),
        notes=words.series_notes(section, series), warnings=words.series_warnings(section, series),
        what=section.target or "throughput", series=words.series_kind(series))


def _alone_table(section: Section) -> Table:
    why = [] if section.series else [SCALING.say("one_count")]
    return SCALING.table("alone", section.alone, _point(section), lambda cell: cell.keys, diverged=_lost_of,
                         notes=(*why, *words.cell_notes(section, section.alone)),
                         warnings=words.cell_warnings(section, section.alone), series=bool(section.series),
                         what=section.target or "throughput", searched=words.of_searches(section, section.alone))


def _batch_table(section: Section, batches: Curve) -> Table:
    cells = [point.cell for point in batches.measured]
    tokens: Cells = {TOKENS: lambda point: _estimate(point.cell.tokens, point.cell)}
    notes = (SCALING.say("by_batch"),
             SCALING.say("meanings", perfect=section.options.perfect_within, useful=section.options.useful_within),
             *[SCALING.say("bias")] * (len(cells) > 2), *words.cell_notes(section, cells, times=False))
    return SCALING.table("batches", batches.measured, {
        BATCH: lambda point: count_cell(point.global_batch),
        SCALING.column("ran_at", "workers"): lambda point: _ran_at(point.cell), "met": lambda point: _met(point.cell),
        STEPS: lambda point: _estimate(point.steps, point.cell, whole),
        EXAMPLES: lambda point: _estimate(point.examples, point.cell),
        **(tokens if any(cell.tokens.runs for cell in cells) else {}),
        STATISTICAL: lambda point: _ratio_cell(point.statistical_efficiency, point.cell, cells[0]),
        PERFECT: lambda point: Cell(("yes" if point.perfect else "no") if point.steps.met else
                                    "not met" if point.cell.runs else "diverged")},
        lambda point: point.cell.keys, diverged=lambda point: _lost_of(point.cell),
        baseline=lambda point: cells[0].keys, notes=notes,
        warnings=words.cell_warnings(section, cells, times=False), what=section.target,
        searched=words.of_searches(section, cells) or " (all worker counts)")


def _growing_table(section: Section) -> Table:
    """The runs whose batch grows beside those at its smallest and its largest batch."""
    rows: list[tuple[RunCell, SpeedupPoint | None, RunCell]] = []       # a cell, its ratios, and to what they are
    alone: list[int] = []
    for cell in section.cells:
        beside = [one for one in section.constant if one.workers == cell.workers]
        alone += [] if beside else cell.workers
        rows += [(cell, None, cell), *((one, compare(cell, one, section.options.confidence), cell) for one in beside)]

    def gained(row: tuple[RunCell, SpeedupPoint | None, RunCell], name: str) -> Cell:
        cell, point, grown = row
        return _ratio_cell(getattr(point, name), grown, cell) if point else Cell("")
    tokens: Cells = {TOKENS: lambda row: _estimate(row[0].tokens, row[0])}
    batches = BatchSchedule.of_pairs(section.workload.batch_schedule)
    missing = [SCALING.say("growing_alone", workers=alone, smallest=batches.smallest, largest=batches.largest)]
    return _table_of_cells("growing-batch", rows, {
        "workers": lambda row: _workers(row[0]), BATCH: lambda row: _batch(row[0]), "met": lambda row: _met(row[0]),
        STEPS: lambda row: _estimate(row[0].steps, row[0], whole),
        EXAMPLES: lambda row: _estimate(row[0].examples, row[0]),
        **(tokens if any(cell.tokens.runs for cell in section.cells) else {}),
        "seconds_to_target": lambda row: _estimate(row[0].seconds, row[0]),
        "worker_seconds": lambda row: _estimate(row[0].seconds.scaled(row[0].workers[0]), row[0]),
        "step_speedup": partial(gained, name="step_speedup"),
        SCALING.column("examples_ratio", STATISTICAL.key): partial(gained, name="statistical_efficiency"),
        "time_speedup": partial(gained, name="time_speedup")},
        what=section.target, gained=True, notes=(
            SCALING.say("growing_ratios", batches=str(batches)), *missing * bool(alone),
            *words.cell_notes(section, section.cells)))


def _parts_table(section: Section) -> Table:
    def part(row: tuple[RunCell, StepParts], name: str) -> Cell:
        return number_cell(1000 * row[1].seconds * getattr(row[1], name))
    return _table_of_cells("step-time", section.parts, {
        "workers": lambda row: _workers(row[0]), BATCH: lambda row: _batch(row[0]), "runs": lambda row: _runs(row[0]),
        "timed_steps": lambda row: count_cell(row[1].steps), "step_ms": lambda row: number_cell(1000 * row[1].seconds),
        **{SCALING.column("part_ms", f"{name}_ms", part=name, what=PARTS.get(name, name)): partial(part, name=name)
           for name in NAMES},
        "communication_share": lambda row: Cell(percent(row[1].communication), row[1].communication)},
        notes=(SCALING.say("step_parts"),),
        warnings=words.crowded_warnings([cell for cell, _ in section.parts]), what=section.target, parts=True)


def _noise_table(section: Section) -> Table:
    def quarter(row: tuple[RunCell, Any], at: int) -> Cell:
        return _noise_scale(row[1].quarters[at])
    shown = [scale for _, noise in section.noise for scale in (noise.whole, *noise.quarters)]
    few = any(scale.steps < LEAST_STEPS for scale in shown)
    return _table_of_cells("noise-scale", section.noise, {
        "workers": lambda row: count_cell(row[0].workers[0]), BATCH: lambda row: _batch(row[0]),
        "runs": lambda row: count_cell(len(row[0].samples.seeds)),
        "measured_steps": lambda row: count_cell(row[1].whole.steps), NOISE: lambda row: _noise_scale(row[1].whole),
        **{column: partial(quarter, at=at) for at, column in enumerate(QUARTERS)},
        "grad_sqnorm": lambda row: number_cell(row[1].whole.grad_sqnorm),
        "cov_trace": lambda row: number_cell(row[1].whole.cov_trace)},
        what=section.target, notes=(
            SCALING.say("noise_scale"),
            SCALING.say("noise_intervals", confidence=section.options.confidence), *_unbounded_notes(shown),
            *[SCALING.say("noise_few", least=LEAST_STEPS)] * few))


def _noise_groups_table(section: Section) -> Table:
    found = [(cell, name, scale) for cell, noise in section.noise for name, scale in noise.groups.items()]
    return _table_of_cells("noise-scale-parts", found, {
        "workers": lambda row: count_cell(row[0].workers[0]), BATCH: lambda row: _batch(row[0]),
        "layer_group": lambda row: Cell(row[1], row[1]), NOISE: lambda row: _noise_scale(row[2]),
        "grad_sqnorm": lambda row: number_cell(row[2].grad_sqnorm),
        "cov_trace": lambda row: number_cell(row[2].cov_trace)},
        what=section.target,
        notes=(SCALING.say("noise_parts"), *_unbounded_notes(scale for *_, scale in found)))


def _unbounded_notes(scales: Iterable[NoiseScale]) -> Iterator[str]:
    scales = list(scales)
    if any(math.isinf(scale.high) for scale in scales):
        yield SCALING.say("noise_no_end")
    if any(math.isinf(scale.noise_scale) for scale in scales):
        yield SCALING.say("noise_negative", mark=UNBOUNDED)


def _noise_scale(scale: NoiseScale) -> Cell:
    shown = UNBOUNDED if math.isinf(scale.noise_scale) else number(scale.noise_scale)
    return Cell(shown, scale.noise_scale, scale.low, scale.high, span(scale.low, scale.high))


def _batch(cell: RunCell) -> Cell:
    return Cell(cell.batches.in_brief(), cell.global_batch)


def _workers(cell: RunCell) -> Cell:
    return Cell(words.workers_marked(cell), cell.workers[0])


def _ran_at(cell: RunCell) -> Cell:
    every = ",".join(map(str, cell.workers))
    return Cell(every if len(every) < 12 else f"{cell.workers[0]}-{cell.workers[-1]}", every)


def _runs(cell: RunCell, below: str = "") -> Cell:
    seeds = len(cell.samples.seeds)
    return Cell(f"{seeds}{words.ONE_RUN * (seeds == 1 and not cell.searched)}", seeds, below=below)


def _met(cell: RunCell) -> Cell:
    if cell.searched:
        met = sum(run.met for run in cell.draws)
        return Cell(f"{met}/{len(cell.draws)}", met)
    return Cell(f"{cell.met}/{_runs(cell).shown}", cell.met, below=_lost(cell))


def _lost(cell: RunCell) -> str:
    return f"{len(cell.diverged)} div." if cell.diverged else ""


def _estimate(estimate: Estimate, cell: RunCell, write: Write = number) -> Cell:
    if not cell.runs:
        return no_cell("diverged")
    if math.isnan(estimate.value):
        return Cell("n/a", estimate.value, estimate.low, estimate.high, "not measured")
    found = steps_cell(estimate, write)
    some = math.isinf(estimate.value) and cell.met          # of the seeds
    return replace(found, below=span(estimate.low, estimate.high, write)) if some else found


def _ratio_cell(value: Estimate, cell: RunCell, baseline: RunCell) -> Cell:
    shown = ratio(value.value)
    if value.value != value.value:
        shown = ("diverged" if not cell.runs else "not met" if math.isinf(cell.steps.value) else
                 "no baseline" if cell is not baseline and not baseline.steps.met else "n/a")
    return Cell(shown, value.value, value.low, value.high, span(value.low, value.high, ratio))
