"""One table's CSV file.

    file = CsvFile("mine", "trials", LeftOut(None))         the header: separator, names
    rows = file.read({"id": "int", ...})                    a CsvRows: columns, and the line of each row

The separator is a comma, or a semicolon or tab where the header has no comma. A byte-order mark is skipped. Integers
may be written as 32.0, as pandas does, or 1e3; flags among metaparameters and metrics as True, False, yes or no.
"""
from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from ..formatting.escaping import of_cell
from ..log.schema import UNKNOWN_SEED, Status
from .cells import SEPARATORS, integer_of, is_missing, number_of, read_rows, table_of_numbers, whole_numbers
from .csv_rules import CsvRows, LeftOut
from .files import LARGEST_INT, WrongFile, cut_off_message

ROWS = 1 << 15                  # read at a time
LONGEST_HEADER = 4 << 20        # characters
STATUSES = {status.name: status for status in Status}
GAPS = {"seed": UNKNOWN_SEED, "budget_steps": 0, "accumulation": 1, "ghost_batch": 0}   # what is not known counts as
FLAGS = {"true": True, "yes": True, "false": False, "no": False}
TYPES = {"int": np.int64, "float": np.float64, "status": np.int8, "text": object}


class CsvFile:
    """One table's file; no rows if it does not exist. done: characters that have been read."""

    def __init__(self, source: str, table: str, left: LeftOut):
        self._left = left
        self.table, self.path = table, os.path.join(source, f"{table}.csv")
        self.exists = os.path.lexists(self.path)
        self.size = os.path.getsize(self.path) if self.exists else 0
        self.done, self.header, self._separator = 0, (), ","
        if not self.exists:
            return
        if not os.path.isfile(self.path):
            raise WrongFile(f"{self.path}: is not a regular file")
        with self._open() as file:
            head = file.readline(LONGEST_HEADER)
            self._separator = next((mark for mark in SEPARATORS if mark in head), ",")
            self.rename(map(of_cell, next(csv.reader([head], strict=True, delimiter=self._separator), ())))

    def rename(self, header: Iterable[str]) -> None:
        """Name the columns; raises WrongFile where two have one name."""
        self.header = tuple(header)
        twice = [name for at, name in enumerate(self.header) if name in self.header[:at]]
        if twice:
            raise WrongFile(f"{self.path}:1: two columns are named {twice[0]!r}")

    def require(self, names):
        """Raise WrongFile unless the file has exactly these columns."""
        if self.exists and sorted(names) != sorted(self.header):
            differ = sorted(set(names) ^ set(self.header))[0]
            raise WrongFile(f"{self.path}:1: {differ!r} is not both a column here and in log.json")

    def read(self, types: Mapping[str, str], tell: Callable[[], object]) -> CsvRows:
        """All rows; tell: called after each piece."""
        kinds = [types[name] for name in self.header]
        pieces = [self._read_cells((), kinds)]
        if self.exists:
            with self._open() as file:
                for piece in self._pieces(self._lines(file), kinds):
                    pieces.append(piece)
                    tell()
        columns = {name: np.concatenate([values.pop(name) for values, _ in pieces]) for name in self.header}
        return CsvRows(self.table, self.path, columns, np.concatenate([lines for _, lines in pieces]))

    def _open(self):
        return open(self.path, encoding="utf-8-sig", newline="", errors="strict")

    def _lines(self, file) -> Iterator[str]:
        """The file's lines, tracking progress; a last one without a line end is left out or refused."""
        number, before = 0, ""
        try:
            for number, line in enumerate(file, 1):
                self.done += len(line)
                if line.endswith(("\n", "\r")):
                    before = line
                    yield line
                else:
                    whole, others = (next(csv.reader([text], delimiter=self._separator), []) for text in (line, before))
                    trial = self._trial_of(whole[:-1], self._trial_of(others))      # its last cell may be cut off
                    self._left.add(trial, cut_off_message(self.path, number, line))
        except UnicodeDecodeError as error:
            raise WrongFile(f"{self.path}:{number + 1}: is not UTF-8 text: {error}") from None

    def _pieces(self, lines: Iterator[str], kinds) -> Iterator[tuple[dict, np.ndarray]]:
        """Some rows at a time: of a table of numbers at once, where each cell is one; else cell by cell."""
        rows = read_rows(lines, len(kinds), 0, self._separator)
        next(rows, None)
        if not all(kind in ("int", "float") for kind in kinds):
            while some := list(itertools.islice(rows, ROWS)):
                yield self._read_cells(some, kinds)
            return
        before = 1
        while texts := list(itertools.islice(lines, ROWS)):
            yield self._read_numbers(texts, kinds, before) or self._read_cells(
                read_rows(texts, len(kinds), before, self._separator), kinds)
            before += len(texts)

    def _read_numbers(self, lines: list[str], kinds, before: int) -> tuple[dict, np.ndarray] | None:
        found = table_of_numbers("".join(lines).replace(self._separator, ","), len(lines), len(kinds))
        if found is None:
            return None
        values = {name: whole_numbers(column) if kind == "int" else column.copy()      # a view would keep them all
                  for name, kind, column in zip(self.header, kinds, found.T)}
        if any(column is None for column in values.values()):
            return None
        return values, np.arange(before + 1, before + 1 + len(lines))

    def _read_cells(self, rows, kinds) -> tuple[dict, np.ndarray]:
        """The rows without those that are wrong, of which the first cell that is wrong is named."""
        converts = [{"int": self._integer, "float": self._float, "status": self._status, "text": _text}[kind]
                    for kind in kinds]
        good, lines = [], []
        for line, row, wrong in rows:
            try:
                if wrong:
                    raise WrongFile(wrong)
                good.append([convert(text, name) for convert, text, name in zip(converts, row, self.header)])
                lines.append(line)
            except WrongFile as error:
                self._left.add(self._trial_of(row), f"{self.path}:{line}: {error}")
        columns = zip(*good) if good else [()] * len(kinds)
        return {name: np.array(column, TYPES[kind]) for name, kind, column in zip(self.header, kinds, columns)}, \
            np.array(lines, int)

    def _trial_of(self, row, otherwise=None) -> int | None:
        try:
            trial = integer_of(row[self.header.index("id" if self.table == "trials" else "trial")])
        except (IndexError, ValueError):
            return otherwise
        return trial if abs(trial) <= LARGEST_INT else None

    def _integer(self, text: str, name: str) -> int:
        if name in GAPS and is_missing(text):
            return GAPS[name]
        try:
            value = integer_of(text)
        except ValueError:
            raise _wrong(name, text, "an integer") from None
        if not -LARGEST_INT - 1 <= value <= LARGEST_INT:
            raise _wrong(name, text, "an integer of 64 bits")
        return value

    def _float(self, text: str, name: str) -> float:
        if text.lower() == "nan" and name.startswith("metaparameters/"):
            raise _wrong(name, text, "a number; a cell is empty where it is not known")
        if "/" in name and text.strip().lower() in FLAGS:
            return float(FLAGS[text.strip().lower()])
        try:
            return number_of(text) if text.strip() else np.nan
        except OverflowError:
            raise _wrong(name, text, "a number of 64 bits, which end at 1.8e308") from None
        except ValueError:
            point = "; decimals have a point" if "," in text else ""
            raise _wrong(name, text, f"a number{point}") from None

    def _status(self, text: str, name: str) -> int:
        if text not in STATUSES:
            raise _wrong(name, text, f"a status ({', '.join(STATUSES)})")
        return int(STATUSES[text])


def _text(text: str, name: str) -> str:
    return of_cell(text)


def _wrong(name: str, text: str, kind: str) -> WrongFile:
    return WrongFile(f"{name} is {text[:40]!r}, not {kind}")


def repeats(trial: np.ndarray, step: np.ndarray, keep: str) -> np.ndarray:
    """Rows that go back over steps of their trial, as those of a resumed trial do: bool, of each row.

    keep    "first": of two rows the first stays; "last": the last, with which those before it end
    """
    way = 1 if keep == "first" else -1
    order = np.argsort(trial, kind="stable")[::way]
    trial, step = trial[order], way * step[order]
    wrong = np.zeros(len(order), bool)
    for rows in np.split(np.arange(len(order)), np.flatnonzero(np.diff(trial)) + 1):
        wrong[order[rows[1:]]] = step[rows[1:]] <= np.maximum.accumulate(step[rows])[:-1]
    return wrong
