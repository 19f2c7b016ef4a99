"""The tables of a section: by worker count, by global batch, where a step's time goes, and gradient noise.

    for table in tables_of(section):
        print(as_text(table))
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...analysis.intervals import Estimate
from ...analysis.noise import LEAST_STEPS, NoiseScale
from ...analysis.curves import Curve
from ...analysis.report_data import Section
from ...analysis.speedup import Series, compare
from ...analysis.step_breakdown import NAMES
from ...analysis.steps import RunCell
from ...formatting.numbers import listed, number, percent, ratio, span, spread, whole
from ...plan.batch_schedule import BatchSchedule
from ..columns import (BATCH, EXAMPLES, MCCANDLISH, NOISE, PERFECT, POLLUX, QUARTERS, SHALLUE, STATISTICAL, STEPS,
                       SYSTEM, TOKENS)
from ..table import Cell, Column, Row, Table, Write, count_cell, interval_cell, keys_of, number_cell, steps_cell
from . import words
from .ranks import rank_table
from .regimes import BIAS_NOTE, meanings_said

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
PRODUCT = Column("efficiency", "their product", "1", "statistical x system efficiency = (T0 / T) / (W / W0)", POLLUX,
                 spare=True)
COST = Column("worker_seconds", "worker-seconds", "worker-seconds", "W T: what is paid for")
GAINED = "{0} at this constant batch over {0} of the growing one"
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
WAITING = Column("communication_share", "share waiting", "1", "mean of communication_seconds over the sum of the parts",
                 spare=True)
UNBOUNDED = "?"     # a noise scale whose |G|^2 came out as 0 or less


def tables_of(section: Section) -> tuple[Table, ...]:
    """Every table of a section: a table a series, cells in no series, and by global batch."""
    tables = [_series_table(section, series) for series in section.series]
    by_batch = [_batch_table(section, section.batches)] if section.batches else []
    alone = [_alone_table(section)] if section.alone else []
    tables += by_batch + alone if section.searches else alone + by_batch
    tables += [_growing_table(section)] if section.target and section.workload.batch_schedule else []
    tables += [_parts_table(section)] if section.parts else []
    by_rank = rank_table(section)
    tables += [by_rank] if by_rank else []
    tables += [_noise_table(section)] if section.noise else []
    tables += [_noise_groups_table(section)] if any(noise.groups for _, noise in section.noise) else []
    return tuple(tables)


def _series_table(section: Section, series: Series) -> Table:
    title = f"By worker count: {section.target or 'throughput'} ({words.series_kind(series)})"
    columns: tuple[Column, ...] = (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS, SYSTEM, THROUGHPUT)
    ratios: tuple[str, ...] = ("system_efficiency", "throughput_speedup")
    write = _cell_columns if section.target else _speed_columns
    if section.target:
        columns = (WORKERS, BATCH, MET, STEPS, SECONDS, replace(SPEED, spare=True), STEP_SPEEDUP, STATISTICAL, SYSTEM,
                   PRODUCT, TIME_SPEEDUP)
        ratios = "step_speedup", "statistical_efficiency", "system_efficiency", "product", "time_speedup"
    rows = tuple(_row((*write(point.cell), *(_ratio_cell(getattr(point, name), point.cell, series.baseline)
                                             for name in ratios)), point.cell, series.baseline)
                 for point in series.points)
    return Table(words.series_name(series), title, columns, rows, words.series_notes(section, series),
                 warnings=words.series_warnings(section, series))


def _alone_table(section: Section) -> Table:
    columns = ((WORKERS, BATCH, MET, STEPS, SECONDS, SPEED) if section.target else
               (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS))
    write = _cell_columns if section.target else _speed_columns
    where = "In no scaling series" if section.series else "Measured at one worker count only"
    why = () if section.series else (
        "A speedup needs a second worker count at the same examples a worker (weak) or global batch (strong).",)
    return Table("alone", f"{where}: {section.target or 'throughput'}{words.of_searches(section, section.alone)}",
                 columns, tuple(_row(write(cell), cell) for cell in section.alone),
                 (*why, *words.cell_notes(section, section.alone)),
                 warnings=words.cell_warnings(section, section.alone))


def _batch_table(section: Section, batches: Curve) -> Table:
    cells = [point.cell for point in batches.measured]
    counted = [TOKENS] * any(cell.tokens.runs for cell in cells)
    columns = (BATCH, RAN_AT, MET, STEPS, EXAMPLES, *counted, STATISTICAL, PERFECT)
    rows = tuple(_row((
        count_cell(point.global_batch), _ran_at(point.cell), _met(point.cell),
        _estimate(point.steps, point.cell, whole), _estimate(point.examples, point.cell),
        *(_estimate(point.cell.tokens, point.cell) for _ in counted),
        _ratio_cell(point.statistical_efficiency, point.cell, cells[0]),
        Cell(("yes" if point.perfect else "no") if point.steps.met else "not met" if point.cell.runs else "diverged")),
        point.cell, cells[0]) for point in batches.measured)
    notes = ("Ratios are to the smallest batch. A seed that ran at several worker counts counts once: same updates.",
             *meanings_said(section.options.perfect_within, section.options.useful_within),
             *[BIAS_NOTE] * (len(cells) > 2),
             *words.cell_notes(section, cells, times=False))
    of_what = words.of_searches(section, cells) or " (all worker counts)"
    return Table("batches", f"By global batch: {section.target}{of_what}", columns, rows, notes,
                 warnings=words.cell_warnings(section, cells, times=False))


def _growing_table(section: Section) -> Table:
    """The runs whose batch grows beside those at its smallest and its largest batch."""
    counted = [TOKENS] * any(cell.tokens.runs for cell in section.cells)
    columns = (WORKERS, BATCH, MET, STEPS, EXAMPLES, *counted, SECONDS, COST,
               replace(STEP_SPEEDUP, formula=GAINED.format("S")),
               replace(STATISTICAL, formula=GAINED.format("B S"), title="examples, ratio", short=""),
               replace(TIME_SPEEDUP, formula=GAINED.format("T"), title="time and cost, ratio"))
    rows: list[Row] = []
    alone: list[int] = []
    for cell in section.cells:
        beside = [one for one in section.constant if one.workers == cell.workers]
        alone += [] if beside else cell.workers
        rows.append(_row(_growing_columns(cell, counted) + (Cell(""),) * 3, cell))
        for one in beside:
            gained = compare(cell, one, section.options.confidence)
            ratios = gained.step_speedup, gained.statistical_efficiency, gained.time_speedup
            rows.append(_row((*_growing_columns(one, counted),
                              *(_ratio_cell(value, cell, one) for value in ratios)), one))
    batches = BatchSchedule.of_pairs(section.workload.batch_schedule)
    missing = [f"At W = {listed(alone)} no run had a constant batch of {batches.smallest:,} or {batches.largest:,}, so "
               "that what the growing batch bought is unknown."] * bool(alone)
    return Table("growing-batch", f"What the growing batch bought: {section.target}", columns, tuple(rows), (
        f"Batch {batches}, beside the constant smallest and largest batch at the same workers. Ratios above 1: the "
        "growing batch needed fewer steps, fewer examples, or less time and cost.", *missing,
        *words.cell_notes(section, section.cells)))


def _growing_columns(cell: RunCell, counted: Sequence[Column]) -> tuple[Cell, ...]:
    return (_workers(cell), _batch(cell), _met(cell), _estimate(cell.steps, cell, whole),
            _estimate(cell.examples, cell), *(_estimate(cell.tokens, cell) for _ in counted),
            _estimate(cell.seconds, cell),
            _estimate(cell.seconds.scaled(cell.workers[0]), cell))


def _parts_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, RUNS, PARTED, STEP_MS, *PART_MS, WAITING)
    rows = []
    for cell, parts in section.parts:
        times = (1000 * parts.seconds * share for share in (1, *(getattr(parts, name) for name in NAMES)))
        rows.append(_row((_workers(cell), _batch(cell), Cell(*_runs(cell)), count_cell(parts.steps),
                          *map(number_cell, times),
                          Cell(percent(parts.communication), parts.communication)), cell))
    notes = ("The median step of each run on rank 0; the parts are their mean shares of a step, times the median; the "
             "mean over runs. Data: getting the batch; compute: the model and the optimizer; waiting: for the "
             "allreduce, slower workers included. Times to target use the mean step.",)
    return Table("step-time", f"Where a step's time goes{_whose(section)}", columns, tuple(rows), notes,
                 warnings=tuple(words.crowded_warnings([cell for cell, _ in section.parts])))


def _whose(section: Section) -> str:
    return f": runs to {section.target}" if section.target else ""


def _noise_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, RUNS, MEASURED, NOISE, *QUARTERS, GRAD_SQNORM, COV_TRACE)
    rows = tuple(_row((count_cell(cell.workers[0]), _batch(cell), count_cell(len(cell.samples.seeds)),
                       count_cell(noise.whole.steps), *map(_noise_scale, (noise.whole, *noise.quarters)),
                       *_square_norms(noise.whole)), cell)
                 for cell, noise in section.noise)
    shown = [scale for _, noise in section.noise for scale in (noise.whole, *noise.quarters)]
    notes = ["tr(Sigma) / |G|^2, from the square norms of the workers' own gradients (at one worker: of parts of its "
             "batch) and of the reduced one; over all measured steps of a run and by quarters of them. It usually "
             "grows in training, as |G|^2 falls.",
             f"Intervals: {section.options.confidence:.0%} (Fieller) for the steps measured; it holds "
             "nothing of the spread between seeds.", *_unbounded_notes(shown)]
    if any(scale.steps < LEAST_STEPS for scale in shown):
        notes.append(f"n/a: a quarter has fewer than {LEAST_STEPS} measured steps, too few for an interval.")
    return Table("noise-scale", f"Gradient noise scale, in examples{_whose(section)}", columns, rows, tuple(notes))


def _noise_groups_table(section: Section) -> Table:
    columns = (WORKERS, BATCH, LAYER_GROUP, NOISE, GRAD_SQNORM, COV_TRACE)
    found = [(cell, name, scale) for cell, noise in section.noise for name, scale in noise.groups.items()]
    rows = tuple(_row((count_cell(cell.workers[0]), _batch(cell), Cell(name, name),
                       _noise_scale(scale), *_square_norms(scale)), cell) for cell, name, scale in found)
    notes = ("A part is a top-level module of the model; |G|^2 and tr(Sigma) of the parts add up to the model's.",
             *_unbounded_notes([scale for *_, scale in found]))
    return Table("noise-scale-parts", f"Gradient noise scale by part of the model, in examples{_whose(section)}",
                 columns, rows, notes)


def _unbounded_notes(scales: Sequence[NoiseScale]) -> list[str]:
    notes = []
    if any(math.isinf(scale.high) for scale in scales):
        notes.append("An interval without an upper end: the steps measured do not distinguish |G|^2 from 0. More of "
                     "them (a smaller noise_every) or a larger batch would.")
    if any(math.isinf(scale.noise_scale) for scale in scales):
        notes.append(f"{UNBOUNDED} the estimate of |G|^2 came out below 0.")
    return notes


def _noise_scale(scale: NoiseScale) -> Cell:
    shown = UNBOUNDED if math.isinf(scale.noise_scale) else number(scale.noise_scale)
    return Cell(shown, scale.noise_scale, scale.low, scale.high, span(scale.low, scale.high))


def _square_norms(scale: NoiseScale) -> tuple[Cell, ...]:
    return tuple(map(number_cell, (scale.grad_sqnorm, scale.cov_trace)))


def _row(cells: Iterable[Cell], cell: RunCell, baseline: RunCell | None = None) -> Row:
    lost = tuple(trial.key for trial in cell.diverged)
    return Row(tuple(cells), keys_of(cell), lost, keys_of(baseline) if baseline is not None else ())


def _cell_columns(cell: RunCell) -> tuple[Cell, ...]:
    return (_workers(cell), _batch(cell), _met(cell), _estimate(cell.steps, cell, whole),
            _estimate(cell.seconds, cell), interval_cell(cell.examples_per_second))


def _speed_columns(cell: RunCell) -> tuple[Cell, ...]:
    timed = {run.last_step for run in cell.runs}
    return (_workers(cell), _batch(cell), Cell(*_runs(cell), below=_lost(cell)),
            Cell(spread(timed), max(timed, default=0)), interval_cell(cell.examples_per_second),
            interval_cell(cell.step_seconds))


def _batch(cell: RunCell) -> Cell:
    return Cell(cell.batches.in_brief(), cell.global_batch)


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


def _estimate(estimate: Estimate, cell: RunCell, write: Write = number) -> Cell:
    if not cell.runs:
        return Cell("diverged", math.nan, math.nan, math.nan)
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
