"""Tables as records, and the three ways of writing them: aligned text, CSV, and values for JSON."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from ..analysis.intervals import Estimate
from ..formatting.numbers import finite, number, span
from ..formatting.screen import USUAL, as_cell, printable, terminal_width, wrap
from ..formatting.text_table import Heading, lines_within
from ..target import Target

TOO_WIDE = 10           # ratio of its ends from which on an interval says nothing
NO_INTERVAL = "no interval"
WIDE = f"No interval: so few runs or trials leave its ends more than a factor {TOO_WIDE} apart."
TARGET = "target"           # a column of every CSV
TrialKeys = tuple[tuple[str, int], ...]     # (log, id) each
Write = Callable[[float], str]
SPLIT_NAMES = {"train": "training", "val": "validation"}


@dataclass(frozen=True)
class Column:
    """A column: its key in CSV and JSON, its heading, and how its numbers come about."""

    key: str
    title: str
    unit: str = "1"
    formula: str = ""
    source: str = ""
    short: str = ""             # heading where the full one is too wide
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
    cells: tuple[Cell, ...]
    trials: TrialKeys           # that the estimates are of
    diverged: TrialKeys         # repeats of them that were lost
    baseline: TrialKeys = ()    # that the ratios are to


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()     # how to read it
    target: Target | None = None    # of what is about another target than its page, or about one where that has none
    warnings: tuple[str, ...] = ()  # what its numbers cannot be trusted for; printed right under it


def as_text(table: Table, notes: Iterable[str] | None = None) -> str:
    """The table in plain ASCII columns under its title, each interval behind its value where there is room, and notes
    under it, by default its warnings and notes. Where it is too wide, spare columns are left out; then intervals go
    under their values, the widest on two lines."""
    headings = [Heading(column.title, column.short, column.spare) for column in table.columns]
    rows = [["\n".join(filter(None, (printable(cell.shown, lines=False), cell.below))) for cell in row.cells]
            for row in table.rows]
    out = [wrap(table.title), "", *lines_within(terminal_width() or USUAL, headings, rows)]
    for note in (*table.warnings, *table.notes) if notes is None else notes:
        out.append(wrap(note, "  "))
    return "\n".join(out) + "\n"


def as_csv(table: Table, target: Target | None = None) -> str:
    """The table as CSV at full precision; KEY_low and KEY_high beside a value with an interval, inf: not met; the last
    column has the target, by default that of the page that the table is on."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(record_keys(table))
    for record in as_records(table, target):
        record["trials"] = "; ".join(f"{log}:{trial}" for log, trial in record["trials"])
        writer.writerow(as_cell(value) if isinstance(value, str) else value for value in record.values())
    return out.getvalue()


def record_keys(table: Table) -> list[str]:
    """See as_records; a column that counts trials is ``trials_count``."""
    names = ["trials_count" if column.key == "trials" else column.key for column in table.columns]
    keys = [key for name, wide in zip(names, _ranged(table)) for key in (
        (name, f"{name}_low", f"{name}_high") if wide else (name,))]
    return list(dict.fromkeys((*keys, "trials", TARGET)))


def as_records(table: Table, target: Target | None = None) -> list[dict[str, Any]]:
    """The rows at full precision, each a value by key; KEY_low and KEY_high beside a value with an interval, inf: not
    met, NaN: unknown; ``trials``: the (log, id) behind it; ``target``: its own, or that of its page."""
    ranged, found = _ranged(table), []
    for row in table.rows:
        values: list[Any] = []
        for cell, wide in zip(row.cells, ranged):
            values.append(cell.shown if cell.value is None else cell.value)
            values += [math.nan if end is None else end for end in (cell.low, cell.high)] if wide else []
        found.append(dict(zip(record_keys(table), (*values, row.trials, str(table.target or target or "")))))
    return found


def _ranged(table: Table) -> list[bool]:
    return [any(row.cells[at].low is not None for row in table.rows) for at in range(len(table.columns))]


def encode(value: Any) -> Any:
    """A value as JSON can hold it, with null for NaN and infinity; what has an interval as value, low and high."""
    if hasattr(value, "low"):
        return pick(value, "value low high")
    if isinstance(value, Mapping):
        return {name: str(one) if isinstance(one, Mapping) else encode(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(one) for one in value]
    value = value.item() if isinstance(value, np.generic) else value
    return finite(value) if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def pick(record: object, names: str) -> dict[str, Any]:
    """Fields of a record for JSON: ``workers accumulation=passes`` gives workers, and passes as accumulation."""
    pairs = (name.rpartition("=")[::2] for name in names.split())
    return {new or name: encode(getattr(record, name)) for new, name in pairs}


def as_values(table: Table) -> dict[str, object]:
    return {
        **pick(table, "name title"), "notes": [*table.warnings, *table.notes], **pick(table, "warnings"),
        "columns": [pick(column, "key title unit formula source") for column in table.columns],
        "rows": [{"cells": {column.key: pick(cell, "shown value low high" if cell.low is not None else "shown value")
                            for column, cell in zip(table.columns, row.cells)},
                  "trials": trial_list(row.trials), "diverged_trials": trial_list(row.diverged),
                  "baseline_trials": trial_list(row.baseline)} for row in table.rows]}


def trial_list(keys: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"log": log, "trial": trial} for log, trial in keys]


def keys_of(parts: Iterable[Any]) -> TrialKeys:
    """The trials behind several points, cells or spaces, each once."""
    return tuple(dict.fromkeys(key for one in parts for key in one.keys))


def cell_of(value: Any, below: str = "", write: Write = number) -> Cell:
    """How a table shows a count, a measurement, an estimate with its interval as ``write`` writes it, a text, a truth;
    of a Cell, itself. ``below``: what goes under a number."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, (str, bool, np.bool_)):
        return Cell(value if isinstance(value, str) else "yes" if value else "no")
    if hasattr(value, "low"):
        return Cell(write(value.value), value.value, value.low, value.high, span(value.low, value.high, write))
    value = int(value) if isinstance(value, Integral) else value
    return Cell(f"{value:,}" if isinstance(value, int) else number(value), value, below=below)


def bare_cell(estimate: Estimate, write: Write = number) -> Cell:
    return Cell(write(estimate.value), estimate.value, estimate.low, estimate.high)


def known_cell(estimate: Estimate, write: Write = number) -> Cell:
    """The cell of a finite value; ``n/a`` for any other."""
    return cell_of(estimate, write=write) if math.isfinite(estimate.value) else no_cell()


def no_cell(shown: str = "n/a", below: str = "") -> Cell:
    """A word where other rows have a value with its interval."""
    return Cell(shown, math.nan, math.nan, math.nan, below)


def steps_cell(estimate: Estimate, write: Write = number) -> Cell:
    """An estimate that may be known from below alone: ``> 300``, not met. Under its value goes its interval, or that
    so few trials or seeds give none; of one run, which has none, the evaluation before, which did not meet."""
    shown, below = write(estimate.value), span(estimate.low, estimate.high, write)
    if not estimate.met:
        shown, below = "n/a" if math.isnan(estimate.beyond) else f"> {write(estimate.beyond)}", "not met"
    elif estimate.runs == 1 and math.isnan(estimate.low):
        below = f"> {write(estimate.before)}" if estimate.before > 0 else ""
    elif as_shown(estimate) is not estimate:
        below = NO_INTERVAL
    return Cell(shown, estimate.value, estimate.low, estimate.high, below)


def as_shown(estimate: Estimate) -> Estimate:
    """The estimate without an interval where tables refuse it one, for figures."""
    wide = math.isfinite(estimate.high) and estimate.high > TOO_WIDE * estimate.low and estimate.runs > 1
    none = estimate.met and (wide or estimate.low == 0 and math.isinf(estimate.high))
    return replace(estimate, low=math.nan, high=math.nan) if none else estimate


def metric_name(metric: str) -> str:
    """``validation error`` for val/error."""
    split, name = metric.split("/", 1)
    return f"{SPLIT_NAMES.get(split, split)} {name.replace('_', ' ')}"
