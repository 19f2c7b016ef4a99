"""Tables as records, and the three ways of writing them: aligned text, CSV, and values for JSON.

    for table in tables_of(section):
        print(as_text(table))
"""
from __future__ import annotations

import csv
import io
import math
import textwrap
from dataclasses import dataclass, replace

from ..analysis.step_breakdown import NAMES
from ..formatting.escaping import as_cell
from ..formatting.numbers import RANGE, finite, listed, number, percent, ratio, span, spread, whole
from ..formatting.text_table import Heading, TextTable, on_one_line
from . import words

WIDTH = 100


@dataclass(frozen=True)
class Column:
    """A column: its key in CSV and JSON, its heading, and how its numbers come about."""

    key: str
    title: str
    unit: str = "1"
    formula: str = ""
    source: str = ""
    short: str = ""             # heading where the full one is too wide
    scaled: bool = False        # its interval is another column's, times a known factor
    spare: bool = False         # follows from other columns: left out of a text that would be too wide


@dataclass(frozen=True)
class Cell:
    """One value. ``shown`` is what people read; value, low and high are as computed, None where it is text alone."""

    shown: str
    value: float | int | str | None = None
    low: float | None = None
    high: float | None = None
    below: str = ""             # smaller, under it: the interval


@dataclass(frozen=True)
class Row:
    """Cells, and where they come from: trials as (log, id)."""

    cells: tuple[Cell, ...]
    trials: tuple[tuple[str, int], ...]             # that the estimates are of
    diverged: tuple[tuple[str, int], ...]           # repeats of them that were lost
    baseline: tuple[tuple[str, int], ...] = ()      # that the ratios are to


@dataclass(frozen=True)
class Table:
    """A table with its title in words."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()     # how to read it
    target: object = None           # of what is about another target than its page, or about one where that has none
    warnings: tuple[str, ...] = ()  # what its numbers cannot be trusted for; stands right under it


TOO_WIDE = 10           # ratio of its ends from which on an interval says nothing
TARGET = "target"           # a column of every CSV
SHALLUE = "Shallue et al. 2019, arXiv 1811.03600"
POLLUX = "Qiao et al. 2021, arXiv 2008.12260"
WORKERS = Column("workers", "workers", "1", "W: workers at the trial's start", short="W")
BATCH = Column("global_batch", "batch", "examples", "B: examples averaged into one step by all workers")
MET = Column("met", "met", "1", "seeds that met the target / seeds that ran; COMPLETE trials of the setting that "
             "stands for the cell; below: INFEASIBLE trials of that setting (div.); of a search: feasible trials that "
             "met it / feasible trials")
RUNS = Column("runs", "runs", "1", "seeds that ran; COMPLETE trials")
STEPS = Column("steps_to_target", "steps to target", "steps", "S: steps done at the first evaluation that meets the "
               "target, geometric mean over seeds, the median where a seed did not meet; of a search the median best "
               "of as many trials as every batch has", SHALLUE)
SECONDS = Column("seconds_to_target", "seconds to target", "seconds",
                 "T = S B / x: train_seconds at that evaluation, evaluation left out, geometric mean over seeds")
SPEED = Column("examples_per_second", "examples per second", "examples/second",
               "x = S B / T, geometric mean over seeds; over all steps of a run that did not meet")
STEP_SPEEDUP = Column("step_speedup", "step speedup", "1", "S0 / S", SHALLUE, scaled=True, spare=True)
STATISTICAL = Column("statistical_efficiency", "statistical efficiency", "1", "(S0 B0) / (S B)", POLLUX, "stat. effic.")
SYSTEM = Column("system_efficiency", "system efficiency", "1", "(x / x0) / (W / W0)", "", "system effic.")
PRODUCT = Column("efficiency", "their product", "1", "statistical x system efficiency = (T0 / T) / (W / W0)", POLLUX,
                 scaled=True, spare=True)
TIME_SPEEDUP = Column("time_speedup", "time speedup", "1", "T0 / T")
EXAMPLES = Column("examples_to_target", "examples to target", "examples", "B S", SHALLUE)
PERFECT = Column("perfect_scaling", "perfect scaling", "1", "B S within its tolerance of the smallest B S", SHALLUE)
RAN_AT = Column("workers", "workers", "1", "W: the worker counts that ran this batch")
TIMED = Column("timed_steps", "steps timed", "steps", "steps of one run")
STEP_SECONDS = Column("step_seconds", "seconds per step", "seconds", "B / x")
THROUGHPUT = Column("throughput_speedup", "throughput speedup", "1", "x / x0", scaled=True)
PARTED = Column("timed_steps", "steps timed", "steps", "steps of all these runs")
STEP_MS = Column("step_ms", "median step, ms", "milliseconds", "geometric mean over runs of the median of step_seconds")
PART_MS = tuple(Column(f"{name}_ms", f"{'waiting' if name == 'communication' else name}, ms", "milliseconds",
                       f"its share of a step, times the median step; the share: mean of {name}_seconds over the sum of "
                       "the parts, over steps, then over runs") for name in NAMES)
MCCANDLISH = "McCandlish et al. 2018, arXiv 1812.06162, appendix A.1"
MEASURED = Column("measured_steps", "steps measured", "steps", "steps of all these runs, one run a seed, in which the "
                  "two square norms were measured")
GRAD_SQNORM = Column("grad_sqnorm", "|G|^2", "1", "mean over measured steps of (B |G_B|^2 - n mean|G_r|^2) / (B - n); "
                     "local_sqnorm: mean|G_r|^2 over the shares of a step, weighted by their examples; n: mean of "
                     "their example counts; reduced_sqnorm: |G_B|^2", MCCANDLISH)
COV_TRACE = Column("cov_trace", "tr(Sigma)", "1", "mean over measured steps of (mean|G_r|^2 - |G_B|^2) / (1/n - 1/B)",
                   MCCANDLISH)
NOISE = Column("noise_scale", "noise scale", "examples", "tr(Sigma) / |G|^2, each averaged over steps first; Fieller's "
               "interval, variances from differences of neighbouring measured steps", MCCANDLISH)
QUARTERS = tuple(Column(f"noise_scale_quarter_{at}", f"{word} quarter", "examples", "the noise scale over the "
                        f"{word} quarter of each run's measured steps", MCCANDLISH)
                 for at, word in enumerate(("first", "second", "third", "last"), 1))
LAYER_GROUP = Column("layer_group", "part", "1", "parameters of this top-level part of the model alone")
WAITING = Column("communication_share", "share waiting", "1", "mean of communication_seconds over the sum of the parts")


def tables_of(section) -> tuple[Table, ...]:
    """Every table of a section: a table a series, cells in no series, and by global batch."""
    series_table = _series_table if section.target else _throughput_table
    tables = [series_table(section, series) for series in section.series]
    by_batch = [_batch_table(section)] if section.batches and section.batches.points else []
    alone = [_alone_table(section)] if section.alone else []
    tables += by_batch + alone if section.searches else alone + by_batch
    if section.parts:
        tables.append(_parts_table(section))
    if section.noise:
        tables.append(_noise_table(section))
    if any(noise.groups for _, noise in section.noise):
        tables.append(_noise_groups_table(section))
    return tuple(tables)


def as_text(table) -> str:
    """The table in plain ASCII columns under its title, values above their intervals, warnings and notes wrapped.

    Where it is wider than WIDTH, headings are shortened, then intervals that follow from others left out, then the
    widest of the rest written on two lines, as far as it takes.
    """
    drawn = TextTable(*_texts(table))
    drawn.narrow(WIDTH)
    return _under_title(table, drawn.lines(), (*table.warnings, *table.notes, *_dropped_notes(drawn.dropped)))


def as_short_text(table, warnings) -> str:
    """The table with each interval behind its value where there is room, and with these warnings alone; where it is
    too wide, spare columns are left out, then intervals stand under their values."""
    lines = on_one_line(*_texts(table, "({})".format), WIDTH)
    if lines is None:
        headings, rows = _texts(table)
        kept = [at for at, heading in enumerate(headings) if not heading.spare]
        drawn = TextTable([headings[at] for at in kept], [[row[at] for at in kept] for row in rows])
        drawn.narrow(WIDTH)
        lines = drawn.lines()
    return _under_title(table, lines, warnings)


def _texts(table, word=str):
    """(headings, rows) for a TextTable; ``word`` writes what stands under a value and is no interval."""
    headings = [Heading(column.title, column.short, column.scaled, column.spare) for column in table.columns]
    return headings, [[_entry(cell, word) for cell in row.cells] for row in table.rows]


def _entry(cell, word):
    below = cell.below if not cell.below or RANGE.search(cell.below) or cell.below[0] in "<>" else word(cell.below)
    return "\n".join(filter(None, (cell.shown, below)))


def _under_title(table, lines, notes):
    out = [*textwrap.wrap(table.title, WIDTH), "", *lines]
    for note in notes:
        out += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(out) + "\n"


def _dropped_notes(headings):
    return [f"{listed(heading.title for heading in headings).capitalize()}: the interval, left out here, is that of "
            "the ratio beside times a known factor."] if headings else []


def as_csv(table, target=None) -> str:
    """The table as CSV at full precision; KEY_low and KEY_high beside a value with an interval, inf: not met.

    target  of the page that the table is on; the last column has it, empty where there is none
    """
    apart = all(column.key != TARGET for column in table.columns)
    ranged = [any(row.cells[at].low is not None for row in table.rows) for at in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for column, wide in zip(table.columns, ranged)
                     for name in ((column.key, f"{column.key}_low", f"{column.key}_high") if wide else (column.key,))]
                    + ["trials", *[TARGET] * apart])
    for row in table.rows:
        values = []
        for cell, wide in zip(row.cells, ranged):
            value = cell.shown if cell.value is None else cell.value
            values.append(as_cell(value) if isinstance(value, str) else value)
            values += [math.nan if end is None else end for end in (cell.low, cell.high)] if wide else []
        behind = as_cell("; ".join(f"{log}:{trial}" for log, trial in row.trials))
        writer.writerow([*values, behind, *[as_cell(str(table.target or target or ""))] * apart])
    return out.getvalue()


def as_values(table) -> dict:
    """The table for JSON: every cell with its value, interval and reading, every row with its trials."""
    return {
        "name": table.name, "title": table.title, "notes": [*table.warnings, *table.notes],
        "warnings": list(table.warnings),
        "columns": [{"key": c.key, "title": c.title, "unit": c.unit, "formula": c.formula, "source": c.source}
                    for c in table.columns],
        "rows": [{"cells": {c.key: _cell_values(cell) for c, cell in zip(table.columns, row.cells)},
                  "trials": trial_list(row.trials), "diverged_trials": trial_list(row.diverged),
                  "baseline_trials": trial_list(row.baseline)}
                 for row in table.rows],
    }


def trial_list(keys) -> list[dict]:
    """Trials for JSON."""
    return [{"log": log, "trial": trial} for log, trial in keys]


def _cell_values(cell):
    values = {"shown": cell.shown, "value": finite(cell.value)}
    if cell.low is not None:
        values |= {"low": finite(cell.low), "high": finite(cell.high)}
    return values


def _series_table(section, series):
    speed = replace(SPEED, spare=True)
    columns = (WORKERS, BATCH, MET, STEPS, SECONDS, speed, STEP_SPEEDUP, STATISTICAL, SYSTEM, PRODUCT, TIME_SPEEDUP)
    rows = tuple(_row((*_cell_columns(point.cell), *(_ratio(point, value, series) for value in (
        point.step_speedup, point.statistical_efficiency, point.system_efficiency, point.product,
        point.time_speedup))), point.cell, series.baseline) for point in series.points)
    return Table(words.series_name(series), words.series_title(series, section.target), columns, rows,
                 words.series_notes(section, series), warnings=words.series_warnings(section, series))


def _throughput_table(section, series):
    columns = (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS, SYSTEM, THROUGHPUT)
    rows = tuple(_row((*_speed_columns(point.cell), _ratio(point, point.system_efficiency, series),
                       _ratio(point, point.throughput_speedup, series)), point.cell, series.baseline)
                 for point in series.points)
    return Table(words.series_name(series), words.series_title(series, None), columns, rows,
                 words.series_notes(section, series), warnings=words.series_warnings(section, series))


def _alone_table(section):
    columns = ((WORKERS, BATCH, MET, STEPS, SECONDS, SPEED) if section.target else
               (WORKERS, BATCH, RUNS, TIMED, SPEED, STEP_SECONDS))
    write = _cell_columns if section.target else _speed_columns
    rows = tuple(_row(write(cell), cell) for cell in section.alone)
    return Table("alone", words.alone_title(section), columns, rows, words.alone_notes(section),
                 warnings=words.cell_warnings(section, section.alone))


def _batch_table(section):
    columns = (BATCH, RAN_AT, MET, STEPS, EXAMPLES, STATISTICAL, PERFECT)
    rows = []
    for point in section.batches.points:
        cell = point.cell
        rows.append(_row((
            _count(cell.global_batch), _ran_at(cell), _met(cell),
            _estimate(cell.steps, cell, whole), _estimate(point.examples, cell),
            _ratio_cell(point.statistical_efficiency, cell, section.batches.points[0].cell),
            Cell(("yes" if point.perfect else "no") if cell.steps.met else _unmet(cell))),
            cell, section.batches.points[0].cell))
    cells = [point.cell for point in section.batches.points]
    return Table("batches", words.batch_title(section), columns, tuple(rows), words.batch_notes(section),
                 warnings=words.cell_warnings(section, cells, times=False))


def _parts_table(section):
    columns = (WORKERS, BATCH, RUNS, PARTED, STEP_MS, *PART_MS, WAITING)
    rows = []
    for cell, parts in section.parts:
        times = (1000 * parts.seconds * share for share in (1, *(getattr(parts, name) for name in NAMES)))
        rows.append(_row((_workers(cell), _count(cell.global_batch), Cell(*_runs(cell)), _count(parts.steps),
                          *(Cell(number(time), time) for time in times),
                          Cell(percent(parts.communication), parts.communication)), cell))
    return Table("step-time", words.parts_title(section), columns, tuple(rows), words.parts_notes(section),
                 warnings=words.parts_warnings(section))


def _noise_table(section):
    columns = (WORKERS, BATCH, RUNS, MEASURED, NOISE, *QUARTERS, GRAD_SQNORM, COV_TRACE)
    rows = tuple(_row((_count(cell.workers[0]), _count(cell.global_batch), _count(len(cell.samples.seeds)),
                       _count(noise.whole.steps), *map(_noise_scale, (noise.whole, *noise.quarters)),
                       *_square_norms(noise.whole)), cell)
                 for cell, noise in section.noise)
    return Table("noise-scale", words.noise_title(section), columns, rows, words.noise_notes(section))


def _noise_groups_table(section):
    columns = (WORKERS, BATCH, LAYER_GROUP, NOISE, GRAD_SQNORM, COV_TRACE)
    rows = tuple(_row((_count(cell.workers[0]), _count(cell.global_batch), Cell(name, name), _noise_scale(scale),
                       *_square_norms(scale)), cell)
                 for cell, noise in section.noise for name, scale in noise.groups.items())
    return Table("noise-scale-parts", words.noise_groups_title(section), columns, rows,
                 words.noise_groups_notes(section))


def _noise_scale(scale):
    shown = words.UNBOUNDED if math.isinf(scale.noise_scale) else number(scale.noise_scale)
    return Cell(shown, scale.noise_scale, scale.low, scale.high, span(scale.low, scale.high))


def _square_norms(scale):
    return tuple(Cell(number(value), value) for value in (scale.grad_sqnorm, scale.cov_trace))


def _row(cells, cell, baseline=None):
    lost = tuple(trial.key for trial in cell.diverged)
    return Row(tuple(cells), keys_of(cell), lost, keys_of(baseline) if baseline is not None else ())


def keys_of(cell) -> tuple[tuple[str, int], ...]:
    """The trials that a cell's estimates come from: (log, id)."""
    return tuple(run.trial.key for run in cell.runs)


def _cell_columns(cell):
    return (_workers(cell), _count(cell.global_batch), _met(cell), _estimate(cell.steps, cell, whole),
            _estimate(cell.seconds, cell), _speed(cell.examples_per_second))


def _speed_columns(cell):
    timed = {run.last_step for run in cell.runs}
    return (_workers(cell), _count(cell.global_batch), Cell(*_runs(cell), below=_lost(cell)),
            Cell(spread(timed), max(timed, default=0)), _speed(cell.examples_per_second),
            _speed(cell.step_seconds))


def _workers(cell):
    return Cell(words.workers_marked(cell), cell.workers[0])


def _ran_at(cell):
    every = ",".join(map(str, cell.workers))
    return Cell(every if len(every) < 12 else f"{cell.workers[0]}-{cell.workers[-1]}", every)


def _count(value):
    return Cell(f"{value:,}", value)


def _runs(cell):
    seeds = len(cell.samples.seeds)
    return f"{seeds}{words.ONE_RUN if seeds == 1 and not cell.searched else ''}", seeds


def _met(cell):
    if cell.searched:
        met = sum(run.met for run in cell.draws)
        return Cell(f"{met}/{len(cell.draws)}", met)
    seeds, _ = _runs(cell)
    return Cell(f"{cell.met}/{seeds}", cell.met, below=_lost(cell))


def _lost(cell):
    return f"{len(cell.diverged)} div." if cell.diverged else ""


def _unmet(cell):
    """What to say where there is no number: nothing ran to an end, or it never met the target."""
    return "not met" if cell.runs else "diverged"


def _estimate(estimate, cell, write=number):
    """Steps, seconds or examples to target."""
    if not cell.runs:
        return Cell("diverged", math.nan, math.nan, math.nan)
    if math.isinf(estimate.value):
        shown = f"> {write(estimate.beyond)}" if estimate.beyond == estimate.beyond else "n/a"
        return Cell(shown, estimate.value, estimate.low, estimate.high,
                    span(estimate.low, estimate.high, write) if cell.met else "not met")
    return Cell(write(estimate.value), estimate.value, estimate.low, estimate.high, interval_of(estimate, write))


def interval_of(estimate, write=number) -> str:
    """What stands under its value: its interval, or that so few trials or seeds give none worth the name."""
    if estimate.low == 0 and math.isinf(estimate.high):
        return "no interval"
    if math.isfinite(estimate.high) and estimate.high > TOO_WIDE * estimate.low and estimate.runs > 1:
        return f"{estimate.runs} are too few"
    return span(estimate.low, estimate.high, write)


def _speed(estimate):
    return Cell(number(estimate.value), estimate.value, estimate.low, estimate.high, span(estimate.low, estimate.high))


def _ratio(point, value, series):
    return _ratio_cell(value, point.cell, series.baseline)


def _ratio_cell(value, cell, baseline):
    shown = ratio(value.value)
    if value.value != value.value:
        shown = ("diverged" if not cell.runs else "not met" if math.isinf(cell.steps.value) else
                 "no baseline" if cell is not baseline and not baseline.steps.met else "n/a")
    return Cell(shown, value.value, value.low, value.high, span(value.low, value.high, ratio))
