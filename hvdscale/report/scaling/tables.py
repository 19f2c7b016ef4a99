"""The tables of a section: by worker count, by global batch, where a step's time goes, and gradient noise.

    for table in tables_of(section):
        print(as_text(table))
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...analysis.intervals import Estimate
from ...analysis.noise import NoiseScale
from ...analysis.regimes import BatchPoint
from ...analysis.report_data import Section
from ...analysis.speedup import Point, Series
from ...analysis.step_breakdown import NAMES
from ...analysis.steps import Cell as RunCell
from ...formatting.numbers import number, percent, ratio, span, spread, whole
from ..columns import BATCH, EXAMPLES, MCCANDLISH, NOISE, PERFECT, POLLUX, QUARTERS, SHALLUE, STEPS
from ..table import Cell, Column, Row, Table, Write, count_cell, interval_cell, keys_of, number_cell, steps_cell
from . import words

WORKERS = Column("workers", "workers", "1", "W: workers at the trial's start", short="W")
MET = Column("met", "met", "1", "seeds that met the target / seeds that ran; COMPLETE trials of the setting that "
             "stands for the cell; below: INFEASIBLE trials of that setting (div.); of a search: feasible trials that "
             "met it / feasible trials")
RUNS = Column("runs", "runs", "1", "seeds that ran; COMPLETE trials")
SECONDS = Column("seconds_to_target", "seconds to target", "seconds",
                 "T = S B / x: train_seconds at that evaluation, evaluation left out, geometric mean over seeds")
SPEED = Column("examples_per_second", "examples per second", "examples/second",
               "x = S B / T, geometric mean over seeds; over all steps of a run that did not meet")
STEP_SPEEDUP = Column("step_speedup", "step speedup", "1", "S0 / S", SHALLUE, spare=True)
STATISTICAL = Column("statistical_efficiency", "statistical efficiency", "1", "(S0 B0) / (S B)", POLLUX, "stat. effic.")
SYSTEM = Column("system_efficiency", "system efficiency", "1", "(x / x0) / (W / W0)", "", "system effic.")
PRODUCT = Column("efficiency", "their product", "1", "statistical x system efficiency = (T0 / T) / (W / W0)", POLLUX,
                 spare=True)
TIME_SPEEDUP = Column("time_speedup", "time speedup", "1", "T0 / T")
RAN_AT = Column("workers", "workers", "1", "W: the worker counts that ran this batch")
TIMED = Column("timed_steps", "steps timed", "steps", "steps of one run")
STEP_SECONDS = Column("step_seconds", "seconds per step", "seconds", "B / x")
THROUGHPUT = Column("throughput_speedup", "throughput speedup", "1", "x / x0")
PARTED = Column("timed_steps", "steps timed", "steps", "steps of all these runs")
STEP_MS = Column("step_ms", "median step, ms", "milliseconds", "geometric mean over runs of the median of step_seconds")
PART_MS = tuple(Column(f"{name}_ms", f"{'waiting' if name == 'communication' else name}, ms", "milliseconds",
                       f"its share of a step, times the median step; the share: mean of {name}_seconds over the sum of "
                       "the parts, over steps, then over runs") for name in NAMES)
MEASURED = Column("measured_steps", "steps measured", "steps", "steps of all these runs, one run a seed, in which the "
                  "two square norms were measured")
GRAD_SQNORM = Column("grad_sqnorm", "|G|^2", "1", "mean over measured steps of (B |G_B|^2 - n mean|G_r|^2) / (B - n); "
                     "local_sqnorm: mean|G_r|^2 over the shares of a step, weighted by their examples; n: mean of "
                     "their example counts; reduced_sqnorm: |G_B|^2", MCCANDLISH)
COV_TRACE = Column("cov_trace", "tr(Sigma)", "1", "mean over measured steps of (mean|G_r|^2 - |G_B|^2) / (1/n - 1/B)",
                   MCCANDLISH)
LAYER_GROUP = Column("layer_group", "part", "1", "parameters of this top-level part of the model alone")
WAITING = Column("communication_share", "share waiting", "1", "mean of communication_seconds over the sum of the parts")


def tables_of(section: Section) -> tuple[Table, ...]:
    """Every table of a section: a table a series, cells in no series, and by global batch."""
    series_table = _series_table if section.target else _throughput_table
    tables = [series_table(section, series) for series in section.series]
    by_batch = [_batch_table(section, section.batches.points)] if section.batches and section.batches.points else []
    alone = [_alone_table(section)] if section.alone else []
    tables += by_batch + alone if section.searches else alone + by_batch
    if section.parts:
        tables.append(_parts_table(section))
    if section.noise:
        tables.append(_noise_table(section))
    if any(noise.groups for _, noise in section.noise):
        tables.append(_noise_groups_table(section))
    return tuple(tables)


def _series_table(section: Section, series: Series) -> Table:
    speed = replace(SPEED, spare=True)
    columns = (WORKERS, BATCH, MET, STEPS, SECONDS, speed, STEP_SPEEDUP, STATISTICAL, SYSTEM, PRODUCT, TIME_SPEEDUP)
    rows = tuple(_row((*_cell_columns(point.cell), *(_ratio(point, value, series) for value in (
        point.step_speedup, point.statistical_efficiency, point.system_efficiency, point.product,
        point.time_speedup))), point.cell, series.baseline) for point in series.points)
    return Table(words.series_name(series), words.series_title(series, section.target), columns, rows,
                 words.series_notes(section, series), warnings=words.series_warnings(section, series))


def _throughput_table(section: Section, series: Series) -> Table:
    columns = (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS, SYSTEM, THROUGHPUT)
    rows = tuple(_row((*_speed_columns(point.cell), _ratio(point, point.system_efficiency, series),
                       _ratio(point, point.throughput_speedup, series)), point.cell, series.baseline)
                 for point in series.points)
    return Table(words.series_name(series), words.series_title(series, None), columns, rows,
                 words.series_notes(section, series), warnings=words.series_warnings(section, series))


def _alone_table(section: Section) -> Table:
    columns = ((WORKERS, BATCH, MET, STEPS, SECONDS, SPEED) if section.target else
               (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS))
    write = _cell_columns if section.target else _speed_columns
    rows = tuple(_row(write(cell), cell) for cell in section.alone)
    return Table("alone", words.alone_title(section), columns, rows, words.alone_notes(section),
                 warnings=words.cell_warnings(section, section.alone))


def _batch_table(section: Section, points: Sequence[BatchPoint]) -> Table:
    columns = (BATCH, RAN_AT, MET, STEPS, EXAMPLES, STATISTICAL, PERFECT)
    rows = []
    for point in points:
        cell = point.cell
        rows.append(_row((
            count_cell(cell.global_batch), _ran_at(cell), _met(cell),
            _estimate(cell.steps, cell, whole), _estimate(point.examples, cell),
            _ratio_cell(point.statistical_efficiency, cell, points[0].cell),
            Cell(("yes" if point.perfect else "no") if cell.steps.met else _unmet(cell))),
            cell, points[0].cell))
    cells = [point.cell for point in points]
    return Table("batches", words.batch_title(section, points), columns, tuple(rows),
                 words.batch_notes(section, points), warnings=words.cell_warnings(section, cells, times=False))


def _parts_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, RUNS, PARTED, STEP_MS, *PART_MS, WAITING)
    rows = []
    for cell, parts in section.parts:
        times = (1000 * parts.seconds * share for share in (1, *(getattr(parts, name) for name in NAMES)))
        rows.append(_row((_workers(cell), count_cell(cell.global_batch), Cell(*_runs(cell)), count_cell(parts.steps),
                          *map(number_cell, times),
                          Cell(percent(parts.communication), parts.communication)), cell))
    return Table("step-time", words.parts_title(section), columns, tuple(rows), words.parts_notes(section),
                 warnings=words.parts_warnings(section))


def _noise_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, RUNS, MEASURED, NOISE, *QUARTERS, GRAD_SQNORM, COV_TRACE)
    rows = tuple(_row((count_cell(cell.workers[0]), count_cell(cell.global_batch), count_cell(len(cell.samples.seeds)),
                       count_cell(noise.whole.steps), *map(_noise_scale, (noise.whole, *noise.quarters)),
                       *_square_norms(noise.whole)), cell)
                 for cell, noise in section.noise)
    return Table("noise-scale", words.noise_title(section), columns, rows, words.noise_notes(section))


def _noise_groups_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, LAYER_GROUP, NOISE, GRAD_SQNORM, COV_TRACE)
    rows = tuple(_row((count_cell(cell.workers[0]), count_cell(cell.global_batch), Cell(name, name),
                       _noise_scale(scale), *_square_norms(scale)), cell)
                 for cell, noise in section.noise for name, scale in noise.groups.items())
    return Table("noise-scale-parts", words.noise_groups_title(section), columns, rows,
                 words.noise_groups_notes(section))


def _noise_scale(scale: NoiseScale) -> Cell:
    shown = words.UNBOUNDED if math.isinf(scale.noise_scale) else number(scale.noise_scale)
    return Cell(shown, scale.noise_scale, scale.low, scale.high, span(scale.low, scale.high))


def _square_norms(scale: NoiseScale) -> tuple[Cell, ...]:
    return tuple(map(number_cell, (scale.grad_sqnorm, scale.cov_trace)))


def _row(cells: Iterable[Cell], cell: RunCell, baseline: RunCell | None = None) -> Row:
    lost = tuple(trial.key for trial in cell.diverged)
    return Row(tuple(cells), keys_of(cell), lost, keys_of(baseline) if baseline is not None else ())


def _cell_columns(cell: RunCell) -> tuple[Cell, ...]:
    return (_workers(cell), count_cell(cell.global_batch), _met(cell), _estimate(cell.steps, cell, whole),
            _estimate(cell.seconds, cell), interval_cell(cell.examples_per_second))


def _speed_columns(cell: RunCell) -> tuple[Cell, ...]:
    timed = {run.last_step for run in cell.runs}
    return (_workers(cell), count_cell(cell.global_batch), Cell(*_runs(cell), below=_lost(cell)),
            Cell(spread(timed), max(timed, default=0)), interval_cell(cell.examples_per_second),
            interval_cell(cell.step_seconds))


def _workers(cell: RunCell) -> Cell:
    return Cell(words.workers_marked(cell), cell.workers[0])


def _ran_at(cell: RunCell) -> Cell:
    every = ",".join(map(str, cell.workers))
    return Cell(every if len(every) < 12 else f"{cell.workers[0]}-{cell.workers[-1]}", every)


def _runs(cell: RunCell) -> tuple[str, int]:
    seeds = len(cell.samples.seeds)
    return f"{seeds}{words.ONE_RUN if seeds == 1 and not cell.searched else ''}", seeds


def _met(cell: RunCell) -> Cell:
    if cell.searched:
        met = sum(run.met for run in cell.draws)
        return Cell(f"{met}/{len(cell.draws)}", met)
    seeds, _ = _runs(cell)
    return Cell(f"{cell.met}/{seeds}", cell.met, below=_lost(cell))


def _lost(cell: RunCell) -> str:
    return f"{len(cell.diverged)} div." if cell.diverged else ""


def _unmet(cell: RunCell) -> str:
    """What to say where there is no number: nothing ran to an end, or it never met the target."""
    return "not met" if cell.runs else "diverged"


def _estimate(estimate: Estimate, cell: RunCell, write: Write = number) -> Cell:
    """Steps, seconds or examples to target."""
    if not cell.runs:
        return Cell("diverged", math.nan, math.nan, math.nan)
    found = steps_cell(estimate, write)
    some = math.isinf(estimate.value) and cell.met          # of the seeds
    return replace(found, below=span(estimate.low, estimate.high, write)) if some else found


def _ratio(point: Point, value: Estimate, series: Series) -> Cell:
    return _ratio_cell(value, point.cell, series.baseline)


def _ratio_cell(value: Estimate, cell: RunCell, baseline: RunCell) -> Cell:
    shown = ratio(value.value)
    if value.value != value.value:
        shown = ("diverged" if not cell.runs else "not met" if math.isinf(cell.steps.value) else
                 "no baseline" if cell is not baseline and not baseline.steps.met else "n/a")
    return Cell(shown, value.value, value.low, value.high, span(value.low, value.high, ratio))
