"""CSV in, by one reader: a table of numbers at once, else cell by cell, which finds what is wrong and where.

    table = CsvText(read_input("a.csv"), "a.csv")           header, separator, and the bytes of whole lines
    table.numbers()                                         float64, shape (rows, columns); None: some cell is none
    table.columns(["int", "float"], wrong)                  columns by name, and the line of each row

Integers may be 32.0 or 1e3.
"""

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal

import numpy as np

from ..formatting.numbers import counted
from ..formatting.screen import of_cell
from ..log.check import Rows
from ..log.schema import UNKNOWN_SEED, Status
from .files import LARGEST_INT, WrongFile, number_of

SEPARATORS = (",", ";", "\t")
LONGEST_CELL = 1 << 28          # characters; a plan can be long
EXACT = 2**53                   # integers below it are exact as floats
GAPS = {"seed": UNKNOWN_SEED, "budget_steps": 0, "accumulation": 1, "ghost_batch": 0}   # what is not known counts as
GAP = np.frombuffer(b"nan", np.uint8)           # what an empty cell is read as
FLAGS = {"true": True, "yes": True, "false": False, "no": False}
TYPES = {"int": np.int64, "float": np.float64, "status": np.int8, "text": object}


class CsvText:
    """A CSV file: its header, and the bytes of its whole lines; ``cut``: a last line without an end, perhaps torn."""

    def __init__(self, data: bytes, name: str) -> None:
        data = data.removeprefix(b"\xef\xbb\xbf")
        if b"\n" not in data:
            data = data.replace(b"\r", b"\n")                   # as old spreadsheets end lines
        lines = data.count(b"\n")
        end = data.find(b"\n") + 1 or len(data)
        self.name, head = name, self._text_of(data[:end], 1, name)
        self.separator = next((mark for mark in SEPARATORS if mark in head), ",")
        try:
            self.header = tuple(map(of_cell, next(csv.reader([head], strict=True, delimiter=self.separator), ())))
        except csv.Error as error:
            raise WrongFile(f"{name}:1: is not CSV: {error}") from None
        last = data.rfind(b"\n") + 1
        self.lines, self.cut = memoryview(data)[end:max(end, last)], data[last:]
        self.rows, self.last_line = max(0, lines - 1), lines + 1

    def end_last_line(self) -> None:
        """Take the last line for a whole one, unless it lacks cells, as a torn one does."""
        if self.last_line > 1 and self.cut.count(self.separator.encode()) >= len(self.header) - 1:
            self.lines, self.rows = memoryview(bytes(self.lines) + self.cut + b"\n"), self.rows + 1
        self.cut = b""

    def numbers(self, *others: "CsvText") -> np.ndarray | None:
        """The numbers of all rows, and of those of others with this header, as float() reads each, NaN for an empty
        cell: float64, shape (rows, columns). None where some cell may be none, or quoted, or beyond float64, and where
        a line has another number of cells."""
        tables = (self, *others)
        shape = sum(table.rows for table in tables), len(self.header)
        if not shape[0]:
            return np.empty(shape)
        mark, text = self.separator.encode(), b"".join([b"\n", *(table.lines for table in tables)])
        text = text.replace(b"\r\n", b"\n")
        if b'"' in text or len(self.header) < 2 and b"\n\n" in text or text.isspace():
            return None
        letters = np.frombuffer(text, np.uint8)
        ends = (letters == ord(mark)) | (letters == ord("\n"))
        gaps = np.flatnonzero(ends[1:] & ends[:-1]) + 1             # where a cell is empty
        filled = io.BytesIO(np.insert(letters, np.repeat(gaps, len(GAP)), np.tile(GAP, len(gaps))))
        try:
            found = np.loadtxt(io.TextIOWrapper(filled, "utf-8"), delimiter=self.separator, comments=None, ndmin=2)
        except ValueError:
            return None
        return found if found.shape == shape and not np.isinf(found).any() else None

    def columns(self, kinds: Sequence[str], wrong: Callable[[list[str], str], object] | None = None,
                numbers: np.ndarray | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The columns by name, of the kinds int, float, status or text, and the line of each row; ``wrong`` takes cells
        and fault of one that is left out; None: it is raised as WrongFile. ``numbers``: of all rows, if they were
        read."""
        if numbers is None and {*kinds} <= {"int", "float"}:
            numbers = self.numbers()
        if numbers is not None:
            values = [whole_numbers(column) if kind == "int" else column for kind, column in zip(kinds, numbers.T)]
            if all(column is not None for column in values):
                return dict(zip(self.header, values)), np.arange(2, 2 + self.rows)
        csv.field_size_limit(LONGEST_CELL)
        text = io.StringIO(self._text_of(self.lines, 2, self.name), newline="")
        reader = csv.reader(text, strict=True, delimiter=self.separator)
        converts, good, lines = [CONVERTERS[kind] for kind in kinds], [], []
        while True:
            row: list[str] = []
            try:
                row = next(reader)
                if not row:                             # an empty line
                    continue
                if len(row) != len(self.header):
                    raise WrongFile(f"has {counted(len(row), 'cell')} where the header has {len(self.header)}")
                good.append([convert(text, name) for convert, text, name in zip(converts, row, self.header)])
                lines.append(1 + reader.line_num)
            except StopIteration:
                break
            except (csv.Error, WrongFile) as error:
                what = "" if isinstance(error, WrongFile) else "is not CSV: "
                fault = f"{self.name}:{1 + reader.line_num}: {what}{error}"
                if wrong is None:
                    raise WrongFile(fault) from None
                wrong(row, fault)
        columns = zip(*good) if good else [()] * len(kinds)
        return {name: np.array(column, TYPES[kind]) for name, kind, column in zip(self.header, kinds, columns)}, \
            np.array(lines, int)

    def cut_off(self) -> str:
        text = self.cut.decode("utf-8", "replace")
        return (f"{self.name}:{self.last_line}: the last line, {text[:40]!r}, has no line end, so it may be cut off; "
                "complete it and end it with a line end")

    @staticmethod
    def _text_of(data: bytes | memoryview, line: int, name: str) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            line += bytes(data[:error.start]).count(b"\n")
            raise WrongFile(f"{name}:{line}: is not text in UTF-8: {error}") from None


def whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """The values as int64; None where one is no integer, or so large that its float may be that of another."""
    if not (np.abs(values) < EXACT).all():
        return None
    whole = values.astype(np.int64)
    return whole if (whole == values).all() else None


def is_missing(text: str) -> bool:
    """Whether a cell is empty or NaN: not measured, or diverged."""
    return text.strip().lower().lstrip("+-") in ("", "nan")


def integer_of(text: str) -> int:
    """The integer in a text, also of 1e3 or 100.0; raises ValueError if there is none."""
    if "_" in text:
        raise ValueError
    try:
        return int(text)
    except ValueError:
        if abs(float(text)) < 2**64 and Decimal(text) == int(Decimal(text)):
            return int(Decimal(text))
        raise


def _integer(text: str, name: str) -> int:
    if name in GAPS and is_missing(text):
        return GAPS[name]
    try:
        value = integer_of(text)
    except ValueError:
        raise _wrong(name, text, "an integer") from None
    if not -LARGEST_INT - 1 <= value <= LARGEST_INT:
        raise _wrong(name, text, "an integer of 64 bits")
    return value


def _float(text: str, name: str) -> float:
    if text.lower() == "nan" and name.startswith("metaparameters/"):
        raise _wrong(name, text, "a number; a cell is empty where it is not known")
    if ("/" in name or name == "search") and text.strip().lower() in FLAGS:
        return float(FLAGS[text.strip().lower()])
    number = math.nan if is_missing(text) else number_of(text)
    if number is None:
        raise _wrong(name, text, f"a number{'; decimals have a point' if ',' in text else ''}")
    if math.isinf(number) and "inf" not in text.lower():
        raise _wrong(name, text, "a number of 64 bits, which end at 1.8e308")
    return number


def _status(text: str, name: str) -> int:
    if text not in Status.__members__:
        raise _wrong(name, text, f"a status ({', '.join(Status.__members__)})")
    return Status[text]


def _wrong(name: str, text: str, kind: str) -> WrongFile:
    return WrongFile(f"{name} is {text[:40]!r}, not {kind}")


CONVERTERS = {"int": _integer, "float": _float, "status": _status, "text": lambda text, name: of_cell(text)}


class CsvRows(Rows):
    """A table as it was read: arrays by column, and the line of each row."""

    def __init__(self, name: str, path: str, columns: Mapping[str, np.ndarray], lines: np.ndarray):
        super().__init__(name, len(lines), columns)
        self.path, self.lines = path, lines

    def keep(self, rows: np.ndarray):
        self.update({name: values[rows] for name, values in self.items()})
        self.lines, self.rows = self.lines[rows], int(rows.sum())

    def drop(self, trials: Collection[int]):
        if trials and self.rows:
            self.keep(~np.isin(self["id" if self.name == "trials" else "trial"], list(trials)))


def repeats(trial: np.ndarray, step: np.ndarray, keep: str) -> np.ndarray:
    """Rows that go back over steps of their trial, as a resumed trial's do: bool, of each row. ``keep``: "first" or
    "last", with which the rows before it end."""
    way = 1 if keep == "first" else -1
    order = np.argsort(trial, kind="stable")[::way]
    trial, step = trial[order], way * step[order]
    wrong = np.zeros(len(order), bool)
    for rows in np.split(np.arange(len(order)), np.flatnonzero(np.diff(trial)) + 1):
        wrong[order[rows[1:]]] = step[rows[1:]] <= np.maximum.accumulate(step[rows])[:-1]
    return wrong
