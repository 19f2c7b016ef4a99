"""One table's CSV file, read in chunks of rows with the line number of each.

    file = CsvFile("mine", "trials", LeftOut(None))         the header: separator, names
    for values, lines in file.read({"id": "int", ...}): ...

The separator is a comma, or a semicolon or tab where the header has no comma. A byte-order mark is skipped. Integers
may be written as 32.0, as pandas does, or 1e3; flags among metaparameters and metrics as True, False, yes or no.
"""
from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..formatting.escaping import of_cell
from ..log.schema import UNKNOWN_SEED, Status
from .archive_files import LARGEST_INT, WrongFile, cut_off_message
from .csv_rules import LeftOut
from .decimals import Block, CellsError, integer_of, is_missing, number_of

ROWS = 1 << 15                  # converted at a time
LINES = 4 << 20                 # bytes of lines read at a time
LONGEST_CELL = 1 << 28          # characters; a plan can be long
SEPARATORS = (",", ";", "\t")
STATUSES = {status.name: status for status in Status}
GAPS = {"seed": UNKNOWN_SEED, "budget_steps": 0, "accumulation": 1, "ghost_batch": 0}   # what is not known counts as
FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class CsvFile:
    """One table's file; no rows if it does not exist."""

    def __init__(self, source: str, table: str, left: LeftOut):
        self._left, self._trial = left, None                # the trial of the last row read
        self.table, self.path = table, os.path.join(source, f"{table}.csv")
        self.exists = os.path.lexists(self.path)
        self.size = os.path.getsize(self.path) if self.exists else 0
        self.done, self.header, self._separator = 0, (), ","
        self._superseded = np.empty(0, np.int64)            # lines of repeated steps, see keep_steps
        if not self.exists:
            return
        if not os.path.isfile(self.path):
            raise WrongFile(f"{self.path}: is not a regular file")
        with self._open() as file:
            head = file.readline(LINES)
            self._separator = next((mark for mark in SEPARATORS if mark in head), ",")
            file.seek(0)
            self.rename(map(of_cell, next(self._reader(file), ())))

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

    def read(self, types: Mapping[str, str]) -> Iterator[tuple[dict, np.ndarray]]:
        """Chunks of rows, {column: array, or list of str}, with the line number of each row."""
        if not self.exists:
            return
        kinds = [types[name] for name in self.header]
        plain = all(kind in ("int", "float") for kind in kinds) and self._separator == "," and not self._has_quotes()
        for values, lines in self._blocks(kinds) if plain and not self._left.is_allowed else self._rows(kinds):
            again = np.isin(lines, self._superseded)
            yield (select(values, ~again), lines[~again]) if again.any() else (values, lines)

    def keep_steps(self, keep: str, types: Mapping[str, str]) -> int:
        """Leave out, from now on, rows that repeat steps of a trial; returns their number.

        keep    "first": the rows that came first stay; "last": those that came last, as of a trial that was resumed
        """
        read = [(values["trial"], values["step"], lines) for values, lines in self.read(types)]
        self.done = 0
        if read:
            trial, step, lines = map(np.concatenate, zip(*read))
            self._superseded = lines[repeats(trial, step, keep)]
        return len(self._superseded)

    def _open(self):
        return open(self.path, encoding="utf-8-sig", newline="", errors="strict")

    def _reader(self, lines):
        return csv.reader(lines, strict=True, delimiter=self._separator)

    def _has_quotes(self) -> bool:
        with open(self.path, "rb") as file:
            return any(b'"' in piece or b"\r" in piece for piece in iter(lambda: file.read(LINES), b""))

    def _blocks(self, kinds):
        """Read a table of numbers only, many lines at a time."""
        with open(self.path, "rb") as file:
            file.readline()
            first = 2
            while lines := file.read(LINES) + file.readline():
                if not lines.endswith(b"\n"):
                    last = lines.rpartition(b"\n")[2].decode("utf-8", "replace")
                    self._left.add(None, cut_off_message(self.path, first + lines.count(b"\n"), last))
                try:
                    block = Block(lines, len(kinds))
                except CellsError as error:
                    raise WrongFile(f"{self.path}:{first + error.line}: {error}") from None
                values = {name: self._column(block, at, kind, first)
                          for at, (name, kind) in enumerate(zip(self.header, kinds))}
                self.done = file.tell()
                yield values, np.arange(first, first + block.rows)
                first += block.rows

    def _column(self, block, at, kind, first):
        if kind == "float":
            values, odd = block.floats(at), block.unusual(at)
            for row, text in odd.items():
                if values[row] != values[row] and not is_missing(text):
                    values[row] = self._float(text, first + row, at)
            return values
        values, odd = block.counts(at)
        for row, text in odd.items():
            values[row] = self._integer(text, first + row, at)
        return values

    def _rows(self, kinds):
        csv.field_size_limit(LONGEST_CELL)
        with self._open() as file:
            reader = self._reader(self._lines(file))
            next(reader, None)
            while rows := list(itertools.islice(self._valid_rows(reader, kinds), ROWS)):
                yield {name: self._values(kind, at, rows) for at, (name, kind) in enumerate(zip(self.header, kinds))}, \
                    np.array([line for line, _ in rows])

    def _lines(self, file):
        """The file's lines, tracking progress; a last line without line end is skipped or refused."""
        for number, line in enumerate(file, 1):
            self.done += len(line)
            if line.endswith(("\n", "\r")):
                yield line
            else:
                complete = next(csv.reader([line], delimiter=self._separator), [])[:-1]     # the last may be truncated
                self._left.add(self._trial_of(complete, self._trial), cut_off_message(self.path, number, line))

    def _trial_of(self, row, otherwise=None) -> int | None:
        try:
            trial = integer_of(row[self.header.index("id" if self.table == "trials" else "trial")])
        except (IndexError, ValueError):
            return otherwise
        return trial if abs(trial) <= LARGEST_INT else None

    def _valid_rows(self, reader, kinds):
        """Rows with their line numbers; wrong ones are skipped or refused."""
        while True:
            row = ()
            try:
                row = next(reader, None)
                if row is None:
                    return
                if len(row) != len(kinds):
                    raise WrongFile(f"{self.path}:{reader.line_num}: has {len(row)} cells where the header has "
                                    f"{len(kinds)}")
                self._trial = self._trial_of(row)
                if self._left.is_allowed:
                    for at, kind in enumerate(kinds):
                        self._values(kind, at, [(reader.line_num, row)])
            except csv.Error as error:
                self._left.add(None, f"{self.path}:{reader.line_num}: is not CSV: {error}")
            except UnicodeDecodeError as error:
                raise WrongFile(f"{self.path}:{reader.line_num}: is not CSV: {error}") from None
            except WrongFile as error:
                self._left.add(self._trial_of(row), str(error))
            else:
                yield reader.line_num, row

    def _values(self, kind, at, rows):
        if kind == "text":
            return [of_cell(row[at]) for _, row in rows]
        convert = {"int": self._integer, "float": self._float, "status": self._status}[kind]
        values = [convert(row[at], line, at) for line, row in rows]
        return np.array(values, {"int": np.int64, "float": np.float64, "status": np.int8}[kind])

    def _integer(self, text, line, at) -> int:
        if self.header[at] in GAPS and is_missing(text):
            return GAPS[self.header[at]]
        try:
            value = integer_of(text)
        except ValueError:
            raise self._wrong(line, at, text, "an integer") from None
        if not -LARGEST_INT - 1 <= value <= LARGEST_INT:
            raise self._wrong(line, at, text, "an integer of 64 bits")
        return value

    def _float(self, text, line, at) -> float:
        if text.lower() == "nan" and self.header[at].startswith("metaparameters/"):
            raise self._wrong(line, at, text, "a number; a cell is empty where it is not known")
        if "/" in self.header[at] and text.strip().lower() in FLAGS:
            return float(FLAGS[text.strip().lower()])
        try:
            return number_of(text) if text.strip() else np.nan
        except OverflowError:
            raise self._wrong(line, at, text, "a number of 64 bits, which end at 1.8e308") from None
        except ValueError:
            point = "; decimals have a point" if "," in text else ""
            raise self._wrong(line, at, text, f"a number{point}") from None

    def _status(self, text, line, at) -> int:
        if text not in STATUSES:
            raise self._wrong(line, at, text, f"a status ({', '.join(STATUSES)})")
        return int(STATUSES[text])

    def _wrong(self, line, at, text, kind) -> WrongFile:
        return WrongFile(f"{self.path}:{line}: {self.header[at]} is {text[:40]!r}, not {kind}")


def select(values: Mapping[str, np.ndarray | list[str]], keep: np.ndarray) -> dict[str, np.ndarray | list[str]]:
    """The rows of a chunk where ``keep`` is true."""
    return {name: list(itertools.compress(given, keep)) if isinstance(given, list) else given[keep]
            for name, given in values.items()}


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
