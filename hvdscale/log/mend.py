"""The rows saved from a damaged log, made to agree with each other: what ``repair`` writes has to pass ``check``.

    mended = mend(log)      -> Mended: its tables can be written as those of a Log; what was lost and restored in words

What a log says twice is restored: columns of /trials from the plans, a missing row of /restarts from its trial. Rows
that then still break an invariant of ``check`` are left out.
"""
from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LogError
from .check import IN_PLAN, ORDERED, UnsoundRows, check_rows, contradictions, disordered, parse_plan
from .files import TYPES
from .reader import Log, Table, absent
from .schema import UNKNOWN_SEED, Column, Status

LOST = np.iinfo(np.int64).min           # an integer that could not be read; no column has a use for it
LOST_TEXTS = {"plan": "{}"}             # of a column of texts; else an empty one
UNKNOWN = "unknown: the log was damaged here"


def lost_entries(column: Column, rows: int) -> np.ndarray:
    """The value of a column's entries that could not be read."""
    if column.name in LOST_TEXTS:
        return np.full(rows, LOST_TEXTS[column.name], object)
    return np.full(rows, LOST) if column.type == "int" else absent(column.type, rows)


class MendedTable(Table):
    """A table whose rows are in memory and can be changed."""

    def __init__(self, table: Table) -> None:
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
            plan = parse_plan(text)
            planned = dict(contradictions({name: trials[name][row] for name in columns}, plan))
            _refuse_other_types(trials, planned)
        except LogError:
            trials["plan"][row], lost = LOST_TEXTS["plan"], lost + 1
            continue
        for name, value in planned.items():
            trials[name][row] = value
        restored.update(planned.keys())
    if lost:
        log.lost.append(f"{log.path}: {lost} of {trials.rows} plans")
    for name, count in restored.items():
        log.restored.append(f"{log.path}: {count} of {trials.rows} entries of trials/{name}, from the plans")


def _refuse_other_types(trials: MendedTable, planned: Mapping[str, Any]) -> None:
    for name, value in planned.items():
        if not isinstance(value, str if trials.specs[name].type == "text" else (int, float)):
            raise LogError(f"the plan has {value!r} as {name}")


def _endings(log: Mended) -> None:
    """A trial that has ended has a reason."""
    silent = (log.trials["status"] != Status.RUNNING) & (log.trials["stop_reason"] == "")
    if silent.any():
        log.trials["stop_reason"][silent] = UNKNOWN
        log.lost.append(f"{log.path}: {silent.sum()} of {log.trials.rows} entries of trials/stop_reason")


def _restarts(log: Mended) -> None:
    """A trial without a row in /restarts gets one of what is known."""
    missing = ~np.isin(log.trials["id"], log.restarts["trial"])
    if missing.any():
        log.restarts.add(int(missing.sum()), trial=log.trials["id"][missing], first_step=0,
                         workers=log.trials["workers"][missing], previous_end=UNKNOWN)
        log.restored.append(f"{log.path}: {missing.sum()} rows of restarts, without host, device and time")


def _drop_disordered(log: Mended, name: str, column: str, strict: bool) -> None:
    """Of a trial whose rows go back, the most rows that do not are kept."""
    table = getattr(log, name)
    trials = np.unique(table["trial"][disordered(table, column, strict)])
    wrong = np.zeros(table.rows, bool)
    for trial in trials:
        rows = np.flatnonzero((table["trial"] == trial) & ~np.isnan(table[column]))
        wrong[rows] = True
        wrong[rows[longest_rise(table[column][rows].tolist(), strict)]] = False
    if wrong.any():
        log.drop(name, wrong, f"{name}/{column} goes back in trial {', '.join(map(str, trials[:5]))}"
                 f"{' and others' if len(trials) > 5 else ''}")


def longest_rise(values: Sequence[float], strict: bool) -> list[int]:
    """Places of the most values that rise (``strict``: never equal) from one to the next (patience sorting)."""
    find = bisect_left if strict else bisect_right
    lowest: list[float] = []                # of the rises of each length: the lowest last value, and its place
    ends: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        length = find(lowest, value)
        before.append(ends[length - 1] if length else -1)
        lowest[length:length + 1], ends[length:length + 1] = [value], [place]
    rise, place = [], ends[-1] if ends else -1
    while place >= 0:
        rise.append(place)
        place = before[place]
    return rise[::-1]
