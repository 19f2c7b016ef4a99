"""Apply the rules of ``log.check`` to CSV tables while they are read in chunks.

    left_out = LeftOut(None)            the first fault is a LogError; LeftOut([]): collect faulty trials instead
    rules = TableRules(left_out)
    rules.take_trials(path, columns, lines)
    rules.take("evaluations", path, columns, lines)     each chunk of the table
    rules.end(path, has_restarts)                       missing evaluations
"""
from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from ..log.check import Ends, Rows, disordered, faults_of_rows, faults_of_trials, unfinished, unstarted
from .archive_files import WrongFile

OVERLAP = "; --overlap first or last says which rows stay where steps are repeated"


class LeftOut:
    """Trials that an import skips, and the messages about them and about lines without a known trial.

    messages  a list to extend; None: skipping is not allowed, and the first message is raised as WrongFile
    """

    def __init__(self, messages: list[str] | None):
        self.trials: set[int] = set()
        self.messages = messages
        self._lines: set[str] = set()

    def add(self, trial: int | None, message: str):
        """Skip a trial; None: only the line that the message names."""
        if self.messages is None:
            raise WrongFile(f"{message}; --skip-broken leaves out what is wrong")
        if trial in self.trials or message in self._lines:
            return
        self.messages.append(message)
        if trial is None:
            self._lines.add(message)
        else:
            self.trials.add(trial)


class TableRules:
    """Applies the rules to chunks of tables. trials: /trials as arrays by column, after take_trials."""

    def __init__(self, left_out: LeftOut):
        self._left_out, self.trials = left_out, Rows("trials", 0, {})
        self._last: dict[str, dict[str, np.ndarray]] = {}       # by table: each trial's last row so far
        self._seen: dict[str, np.ndarray] = {}                  # by table: which trials have rows

    def take_trials(self, path: str, columns: Mapping[str, np.ndarray], lines: np.ndarray):
        """Check all of /trials."""
        self.trials = Rows("trials", len(lines), columns)
        for fault in faults_of_trials(self.trials):
            self._leave_out(path, lines, fault, fault.rows)
        self._ends = Ends(self.trials["id"])

    def take(self, name: str, path: str, columns: Mapping[str, np.ndarray], lines: np.ndarray):
        """Check a chunk of another table, with the line number of each row; all its trials are known."""
        places = self._ends.places(columns["trial"])
        last = self._last.setdefault(name, {
            column: np.zeros(self.trials.rows, values.dtype) for column, values in columns.items()})
        seen = self._seen.setdefault(name, np.zeros(self.trials.rows, bool))
        again = np.unique(places)
        again = again[seen[again]]              # trials continued from an earlier chunk, with their last rows
        table = Rows(name, len(again) + len(lines), {
            column: np.concatenate([last[column][again], values]) for column, values in columns.items()})
        for fault in faults_of_rows(SimpleNamespace(trials=self.trials, evaluations=table), table):
            hint = OVERLAP if np.array_equal(np.sort(disordered(table, "step", True)), fault.rows) else ""
            self._leave_out(path, lines, fault, fault.rows[fault.rows >= len(again)], len(again), hint)
        if name == "evaluations":
            self._ends.add(columns["trial"], columns["step"])
        seen[places] = True
        for column, values in columns.items():
            last[column][places] = values       # keeps the last of several

    def end(self, path: str, has_restarts: bool):
        """Check what is known only after all tables; ``path``: of the evaluations."""
        none = np.zeros(self.trials.rows, bool)
        last = self._last.get("evaluations", {})
        for fault in unfinished(self.trials, self._ends, self._seen.get("steps", none),
                                lambda row, column: float(last[column][row]) if column in last else np.nan):
            self._leave_out(path, None, fault, fault.rows)
        started = self.trials["id"][self._seen.get("restarts", none)]
        for fault in unstarted(self.trials, started) if has_restarts else ():
            self._leave_out(path, None, fault, fault.rows)

    def _leave_out(self, path, lines, fault, rows, before=0, hint=""):
        for row in rows.tolist():
            line = f":{lines[row - before]}" if lines is not None else ""
            self._left_out.add(fault.trial(row), f"{path}{line}: trial {fault.trial(row)}{fault.say(row, '')}{hint}")
