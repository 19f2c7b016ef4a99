"""Trial files in the published layout, metadata.json and measurements.csv, read in batches; a wrong file is no error.

    batch = read_trials([TrialFiles("mnist/.../7", 7, metadata, measurements), ...])
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ...log.check import Ends, Rows, faults_of_rows, unfinished
from ...log.plan_text import MOST, format_value
from ...log.schema import Status
from ...target import ALIASES
from ..csv_file import CsvText, table_of_numbers, whole_numbers
from ..files import (LARGEST_INT, METRIC, RENAMED, WrongFile, as_float, file_bytes, is_number, json_of, parameter_name,
                     text_of, whole_number)

BLOCK_BYTES = 1 << 19               # of files parsed together: fits a core's cache
LARGEST = {"study.json": 4 << 20, "metadata.json": 4 << 20, "measurements.csv": 1 << 30}
# the archive's parameters that are always numbers
NUMBERS = ("learning_rate", "momentum", "label_smoothing", *RENAMED)
STATUSES = {status.name: status for status in Status if status != Status.RUNNING}
Item = TypeVar("Item")


class TrialFiles(NamedTuple):
    """A trial's two files, as contents or paths."""

    folder: str             # for messages
    id: int
    metadata: bytes | str | None
    measurements: bytes | str | None


def read_trials(trials: Sequence[TrialFiles], budget_steps: int = 0) -> tuple[list[ReadTrial], list[str]]:
    """The trials with valid files, in order, and messages about the others; ``budget_steps``: of a COMPLETE trial; 0:
    those that its metadata.json has."""
    wrong: list[str] = []
    found: list[ReadTrial] = []
    for trial in trials:
        try:
            found.append(ReadTrial(trial))
        except WrongFile as error:
            wrong.append(str(error))
    for group in pieces(found, BLOCK_BYTES, lambda one: len(one.lines), lambda one, first: one.header == first.header):
        _parse(group)
    _apply_rules([one for one in found if not one.wrong], budget_steps)
    return [one for one in found if not one.wrong], wrong + [one.wrong for one in found if one.wrong]


def pieces(items: Iterable[Item], most: int, size_of: Callable[[Item], int],
           belong: Callable[[Item, Item], bool] = lambda item, first: True) -> Iterator[list[Item]]:
    """The items in lists of up to ``most`` in size, in which all belong with the first."""
    piece: list[Item] = []
    size = 0
    for item in items:
        more = size_of(item)
        if piece and (size + more > most or not belong(item, piece[0])):
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += more
    if piece:
        yield piece


@functools.lru_cache(64)
def column_names(header: tuple[str, ...]) -> list[str]:
    """The log's names of a file's columns: ALIASES, unless the log's own name occurs too; raises WrongFile."""
    found = []
    for name in header:
        split, _, metric = name.partition("/")
        alias = f"{split}/{ALIASES.get(metric, metric)}"
        if name != "step" and not METRIC.fullmatch(name):
            raise WrongFile(f"{name!r} is neither step nor split/metric, such as val/error (letters, digits, . + - _)")
        found.append(alias if metric and alias not in header else name)
        if found.count(found[-1]) > 1:
            raise WrongFile(f"two columns are named {name!r}")
    return found


class ReadTrial(CsvText):
    """A trial's two files: what is wrong with them, or ""; step (int64) and values (float64 by column of the log), both
    set by _parse; of metadata.json text, id, status, steps, and as point the numeric "parameters", under our names."""

    def __init__(self, trial: TrialFiles):
        data = file_bytes(trial.measurements, f"{trial.folder}/measurements.csv", LARGEST["measurements.csv"])
        super().__init__(data, f"{trial.folder}/measurements.csv")
        self.wrong = ""
        if not data.strip():
            raise WrongFile(f"{self.name}: is empty, without even a header")
        if self.cut:
            raise WrongFile(self.cut_off())
        try:
            self.names = column_names(self.header)
        except WrongFile as error:
            raise WrongFile(f"{self.name}:1: {error}") from None
        if "step" not in self.names:
            raise WrongFile(f"{self.name}:1: there is no column step")
        self.step, self.values, self.places = np.empty(0, np.int64), {}, np.arange(2, 2 + self.rows)
        self._read_metadata(trial)

    def _read_metadata(self, trial: TrialFiles) -> None:
        name = f"{trial.folder}/metadata.json"
        self.text = text_of(trial.metadata, name, LARGEST["metadata.json"], follow=False)
        data = json_of(self.text, name, dict)
        self.id = whole_number(data.get("trial_id"), 0, name, "trial_id", LARGEST_INT)
        if self.id != trial.id:
            raise WrongFile(f"{name}: trial_id is {self.id} in the folder of trial {trial.id}")
        if data.get("status") not in [*STATUSES]:
            raise WrongFile(f"{name}: status is {format_value(data.get('status'))}, not one of {', '.join(STATUSES)}")
        self.status = STATUSES[data["status"]]
        steps = data.get("steps")
        self.steps = steps if type(steps) is int and 0 <= steps <= MOST else None
        parameters = data.get("parameters", {})
        if not isinstance(parameters, dict):
            raise WrongFile(f"{name}: parameters is {format_value(parameters)}, not an object")
        self.point = {}
        for key, value in parameters.items():
            number = is_number(value)
            if (number or key in NUMBERS) and not (number and abs(value) < math.inf):
                raise WrongFile(f"{name}: {key} is {format_value(value)}, not a finite number")
            if number:
                self.point[parameter_name(key, name)] = as_float(value, f"{name}: {key}")

    def take(self, step: np.ndarray, columns: Iterable[np.ndarray]):
        self.step, self.rows = step, len(step)
        self.values = {name: values for name, values in zip(self.names, columns) if name != "step"}


def _parse(tables: list[ReadTrial]):
    """Read the numbers of files with the same header together; where some cell may be wrong, each file by itself."""
    names = tables[0].names
    lines = b"".join(table.lines for table in tables)
    numbers = table_of_numbers(lines, sum(table.rows for table in tables), len(names), tables[0].separator)
    step = None if numbers is None else whole_numbers(numbers[:, names.index("step")])
    if step is None and len(tables) > 1:
        for table in tables:
            _parse([table])
    elif step is None:
        try:
            columns, tables[0].places = tables[0].columns(["int" if name == "step" else "float" for name in names])
            tables[0].take(columns["step"], columns.values())
        except WrongFile as error:          # of the first cell that does not fit its column
            tables[0].wrong = str(error)
    else:
        ends = np.cumsum([table.rows for table in tables])[:-1]
        for table, steps, columns in zip(tables, np.split(step, ends), np.split(numbers.T, ends, axis=1)):
            table.take(steps, columns)


def _apply_rules(found: list[ReadTrial], budget_steps: int):
    """Mark files whose evaluations break the rules of a log, and COMPLETE trials that were not evaluated to their end;
    one of 0 steps was only timed, so that an archive has no evaluations of it."""
    ids = np.arange(len(found))
    rows = np.array([one.rows for one in found], int)
    first = np.cumsum(rows) - rows
    trials = Rows("trials", len(ids), {
        "id": ids, "status": np.array([one.status for one in found], int), "plan": ["{}"] * len(ids),
        "budget_steps": np.array([budget_steps or one.steps or 0 for one in found], np.int64)})
    evaluations = Rows("evaluations", int(rows.sum()), {
        "trial": np.repeat(ids, rows), "step": np.concatenate([np.empty(0, int), *(one.step for one in found)])})
    for fault in faults_of_rows(trials, evaluations):
        for row in fault.rows.tolist():
            one = found[fault.trial(row)]
            one.wrong = one.wrong or f"{one.name}:{one.places[row - first[fault.trial(row)]]}{fault.say(row, '')}"
    ends = Ends(ids)
    ends.add(evaluations["trial"], evaluations["step"])
    timed = np.array([one.steps == 0 for one in found], bool)
    said = "its budget is" if budget_steps else "its metadata.json says"
    for fault in unfinished(trials, ends, timed, lambda row, column: np.nan, said):
        for row in fault.rows.tolist():
            one = found[row]
            one.wrong = one.wrong or f"{one.name}: trial {one.id}{fault.say(row, '')}"
