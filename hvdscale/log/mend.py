"""The rows saved from a damaged log, made to agree with each other: what ``repair`` writes has to pass ``check``.

    mended = mend(log)      -> Mended: its tables can be written as those of a Log; what was lost and restored in words

What a log says twice is restored: columns of /trials from the plans, a missing row of /restarts from its trial. Rows
that then still break an invariant of ``check`` are left out.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..errors import LogError
from .check import IN_PLAN, ORDERED, UnsoundRows, check_rows, contradictions, disordered, parse_plan
from .files import TYPES
from .reader import Log, LogTable, absent
from .schema import UNKNOWN_SEED, LogColumn, Status

LOST = np.iinfo(np.int64).min           # an integer that could not be read; no column has a use for it
LOST_TEXTS = {"plan": "{}"}             # of a column of texts; else an empty one
INTERRUPTED = "interrupted: the process that wrote the log ended without a word"
UNKNOWN = "unknown: the log was damaged here"


def lost_entries(column: LogColumn, rows: int) -> np.ndarray:
    """The value of a column's entries that could not be read."""
    if column.name in LOST_TEXTS:
        return np.full(rows, LOST_TEXTS[column.name], object)
    return np.full(rows, LOST) if column.type == "int" else absent(column.type, rows)


class MendedTable(LogTable):
    """A table whose rows are in memory and can be changed."""

    def __init__(self, table: LogTable) -> None:
        self.name, self.specs, self.rows = table.name, table.specs, table.rows
        self._read = {name: table.read(name).astype(object if spec.type == "text" else TYPES[spec.type])
                      for name, spec in table.specs.items()}

    def drop(self, wrong: np.ndarray) -> None:
        """Leaves out the rows where ``wrong`` is true."""
        self._read = {name: values[~wrong] for name, values in self._read.items()}
        self.rows -= int(wrong.sum())

    def add(self, rows: int, **values: Any) -> None:
        """Adds rows; what is not given is lost."""
        for name, spec in self.specs.items():
            added = lost_entries(spec, rows)
            added[:] = values.get(name, added)
            self._read[name] = np.concatenate([self._read[name], added])
        self.rows += rows


class Mended:
    """A log's tables in memory, and in words what was lost and what was restored of their rows."""

    def __init__(self, log: Log) -> None:
        self.path = log.path
        self.lost: list[str] = []
        self.restored: list[str] = []
        self.tables = tuple(map(MendedTable, log.tables))
        self.trials, self.restarts, self.evaluations, self.steps = self.tables

    def drop(self, name: str, wrong: np.ndarray, why: str) -> None:
        """Leaves out rows of a table and says so."""
        table = getattr(self, name)
        self.lost.append(f"{self.path}: {wrong.sum()} of {table.rows} rows of {name}: {why}")
        table.drop(wrong)


def mend(log: Log) -> Mended:
    """The log's rows that keep all invariants of ``check``; LogError where those it lacks have no rows to leave out."""
    mended = Mended(log)
    for restore in (_plans, _endings, _restarts):
        restore(mended)
    seeds = mended.trials["seed"]
    seeds[seeds == LOST] = UNKNOWN_SEED
    for name, column, strict in ORDERED:
        _drop_disordered(mended, name, column, strict)
    while True:
        try:
            check_rows(mended)
            return mended
        except UnsoundRows as error:
            mended.drop(error.table, error.wrong, str(error).removeprefix(f"{log.path}: "))


def _plans(log: Mended) -> None:
    """Where a column of /trials and the plan differ, the plan is right, as damage seldom leaves it JSON; a plan that
    cannot be read becomes an empty one."""
    trials, lost = log.trials, 0
    restored: Counter[str] = Counter()
    columns = [name for name in IN_PLAN if name in trials]
    for row, text in enumerate(trials["plan"]):
        try:
            planned = dict(contradictions({name: trials[name][row] for name in columns}, parse_plan(text)))
            for name, value in planned.items():
                if isinstance(value, str) != (trials.specs[name].type == "text"):
                    raise TypeError
                trials[name][row] = value
            restored.update(planned.keys())
        except (LogError, TypeError, ValueError, OverflowError):        # of a value that the column has no place for
            trials["plan"][row], lost = LOST_TEXTS["plan"], lost + 1
    if lost:
        log.lost.append(f"{log.path}: {lost} of {trials.rows} plans")
    for name, count in restored.items():
        log.restored.append(f"{log.path}: {count} of {trials.rows} entries of trials/{name}, from the plans")


def _endings(log: Mended) -> None:
    """A trial that still runs was interrupted, as its writer is gone; one that has ended has a reason."""
    status, reason = log.trials["status"], log.trials["stop_reason"]
    running = status == Status.RUNNING
    reason[running & (reason == "")] = INTERRUPTED
    status[running] = Status.INCOMPLETE
    if (silent := reason == "").any():
        reason[silent] = UNKNOWN
        log.lost.append(f"{log.path}: {silent.sum()} of {log.trials.rows} entries of trials/stop_reason")


def _restarts(log: Mended) -> None:
    """A trial without a row in /restarts gets one of what is known."""
    missing = ~np.isin(log.trials["id"], log.restarts["trial"])
    if missing.any():
        log.restarts.add(int(missing.sum()), trial=log.trials["id"][missing], first_step=0,
                         workers=log.trials["workers"][missing], previous_end=UNKNOWN)
        log.restored.append(f"{log.path}: {missing.sum()} rows of restarts, without host, device and time")


def _drop_disordered(log: Mended, name: str, column: str, strict: bool) -> None:
    """Of a trial whose rows go back, those that lie below an earlier row go, or those above a later one: the fewer."""
    table = getattr(log, name)
    trials = np.unique(table["trial"][disordered(table, column, strict)])
    wrong = np.zeros(table.rows, bool)
    for trial in trials:
        rows = np.flatnonzero((table["trial"] == trial) & ~np.isnan(table[column]))
        values = table[column][rows]
        highest, lowest = np.maximum.accumulate(values), np.minimum.accumulate(values[::-1])[::-1]
        exceeds = np.greater_equal if strict else np.greater
        below, above = exceeds(highest[:-1], values[1:]), exceeds(values[:-1], lowest[1:])
        wrong[rows[1:][below] if below.sum() <= above.sum() else rows[:-1][above]] = True
    if wrong.any():
        log.drop(name, wrong, f"{name}/{column} goes back in trial {', '.join(map(str, trials[:5]))}"
                 f"{' and others' if len(trials) > 5 else ''}")
