"""The rules of ``log.check`` for tables from CSV files, whose rows have lines.

    left_out = LeftOut(None)                            the first fault is a LogError; LeftOut([]): leave out its trial
    table = CsvRows("trials", path, columns, lines)     table["id"], table.rows
    apply_rules({"trials": table, ...}, left_out)
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import SimpleNamespace

import numpy as np

from ..log.check import Ends, Fault, Rows, disordered, faults_of_rows, faults_of_trials, unfinished, unstarted
from .files import WrongFile

OVERLAP = "; --overlap first or last says which rows stay where steps are repeated"


class LeftOut:
    """Trials that an import skips, and the messages about them and about lines without a known trial.

    messages  a list to extend; None: skipping is not allowed, and the first message is raised as WrongFile
    """

    def __init__(self, messages: list[str] | None):
        self.trials: set[int] = set()
        self.messages = messages

    def add(self, trial: int | None, message: str):
        """Skip a trial; None: only the line that the message names."""
        if self.messages is None:
            raise WrongFile(f"{message}; --skip-broken leaves out what is wrong")
        if trial in self.trials:
            return
        self.messages.append(message)
        if trial is not None:
            self.trials.add(trial)


class CsvRows(Rows):
    """A table as it was read: arrays by column, and the line of each row."""

    def __init__(self, name: str, path: str, columns: Mapping[str, np.ndarray], lines: np.ndarray):
        super().__init__(name, len(lines), columns)
        self.path, self.lines = path, lines

    def keep(self, rows: np.ndarray):
        """Drop the rows where a bool array is False."""
        self.update({name: values[rows] for name, values in self.items()})
        self.lines, self.rows = self.lines[rows], int(rows.sum())

    def drop(self, trials: Collection[int]):
        """Drop the rows of some trials."""
        if trials and self.rows:
            self.keep(~np.isin(self["id" if self.name == "trials" else "trial"], list(trials)))


def apply_rules(tables: Mapping[str, CsvRows], left: LeftOut):
    """Leave out, or refuse, each trial that breaks a rule."""
    trials, evaluations = tables["trials"], tables["evaluations"]
    for table in tables.values():
        table.drop(left.trials)
    _leave_out(tables, left, trials, faults_of_trials(trials))
    for table in (evaluations, tables["restarts"], tables["steps"]):
        _leave_out(tables, left, table, faults_of_rows(SimpleNamespace(trials=trials, evaluations=evaluations), table))
    ends = Ends(trials["id"])
    places, rows = ends.add(evaluations["trial"], evaluations["step"])
    last = dict(zip(places.tolist(), rows.tolist()))

    def value_at(row: int, column: str) -> float:
        return float(evaluations[column][last[row]]) if column in evaluations else np.nan
    _leave_out(tables, left, evaluations, [
        *unfinished(trials, ends, np.isin(trials["id"], tables["steps"]["trial"]), value_at),
        *unstarted(trials, tables["restarts"]["trial"])])


def _leave_out(tables: Mapping[str, CsvRows], left: LeftOut, table: CsvRows, faults: Iterable[Fault]):
    """Leave out the trials of faults that are met in a table."""
    known = len(left.trials)
    repeated = np.sort(disordered(table, "step", True)) if table.name in ("evaluations", "steps") else None
    for fault in faults:
        hint = OVERLAP if repeated is not None and np.array_equal(repeated, fault.rows) else ""
        for row in fault.rows.tolist():
            place = f"{table.path}:{table.lines[row]}" if fault.table is table else table.path
            left.add(fault.trial(row), f"{place}: trial {fault.trial(row)}{fault.say(row, '')}{hint}")
    for other in tables.values() if len(left.trials) > known else ():
        other.drop(left.trials)
