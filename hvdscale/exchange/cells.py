"""CSV files: the numbers of a whole table at once, or row by row and cell by cell, which finds what is wrong.

    table_of_numbers("0,0.9\n50,\n", rows=2, columns=2)     -> [[0.0, 0.9], [50.0, nan]]; None: read it row by row
    read_rows(lines, columns=2, before=1)                   -> (2, ["0", "0.9"], ""), (3, ["50", ""], "")
    number_of("1e-3"), integer_of("32.0")                   -> 0.001, 32

Large tables are read by pyarrow where it is installed, else by numpy: to the same bits, in up to five times the time.
"""
from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from importlib.util import find_spec

import numpy as np

from ..formatting.numbers import counted

SEPARATORS = (",", ";", "\t")
LONGEST_CELL = 1 << 28          # characters; a plan can be long
EXACT = 2**53                   # integers below it are exact as floats
LARGE = 1 << 16                 # bytes; a smaller table is read before pyarrow is imported
# what an empty cell is written as for numpy; twice, as two of them share a comma
GAPS = ((",,", ",nan,"), (",,", ",nan,"), (",\n", ",nan\n"), ("\n,", "\nnan,"))


def table_of_numbers(lines: str, rows: int, columns: int) -> np.ndarray | None:
    """The numbers of some lines, each as float() reads it, NaN for an empty cell: float64, shape (rows, columns).

    None where some cell may be none, or quoted, or beyond float64, and where a line has another number of cells.
    """
    if '"' in lines:
        return None
    lines = lines.replace("\r\n", "\n")
    if not rows or lines.isspace():
        return None if rows else np.empty((0, columns))
    fast = len(lines) >= LARGE and find_spec("pyarrow") is not None
    try:
        found = _read_by_pyarrow(lines, columns) if fast else _read_by_numpy(lines)
    except ValueError:
        return None
    return found if found.shape == (rows, columns) and not np.isinf(found).any() else None


def _read_by_pyarrow(lines: str, columns: int) -> np.ndarray:
    import pyarrow
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv
    names = list(map(str, range(columns)))
    types = dict.fromkeys(names, pyarrow.float64())
    table = read_csv(pyarrow.py_buffer(lines.encode()), ReadOptions(use_threads=False, column_names=names),
                     ParseOptions(quote_char=False), ConvertOptions(column_types=types, null_values=[""]))
    return np.stack([column.to_numpy() for column in table.columns]).T


def _read_by_numpy(lines: str) -> np.ndarray:
    lines = f"\n{lines}"
    for gap, filled in GAPS:
        lines = lines.replace(gap, filled)
    return np.loadtxt(io.StringIO(lines), delimiter=",", comments=None, ndmin=2)


def whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """The values as int64; None where one is no integer, or so large that its float may be that of another."""
    if not (np.abs(values) < EXACT).all():
        return None
    whole = values.astype(np.int64)
    return whole if (whole == values).all() else None


def read_rows(lines: Iterable[str], columns: int | None, before: int, separator: str = ","
              ) -> Iterator[tuple[int, list[str], str]]:
    """Each row: the number of its last line, its cells, and what is wrong with it as CSV, or "".

    columns  that a row has to have; None: any number
    before   lines of the file that precede these
    """
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(lines, strict=True, delimiter=separator)
    while True:
        row, wrong = [], ""
        try:
            row = next(reader)
            if columns is not None and len(row) != columns:
                wrong = other_count(row, columns)
        except csv.Error as error:
            wrong = f"is not CSV: {error}"
        except StopIteration:
            return
        yield before + reader.line_num, row, wrong


def other_count(row: list[str], columns: int) -> str:
    """The message that a row has another number of cells than the header."""
    return f"has {counted(len(row), 'cell')} where the header has {columns}"


def is_missing(text: str) -> bool:
    """Whether a cell is empty or NaN: not measured, or diverged."""
    return text.strip().lower().lstrip("+-") in ("", "nan")


def number_of(text: str) -> float:
    """The number in a text; raises ValueError if there is none, OverflowError if it is beyond float64."""
    number = float(_refuse_underscores(text))
    if math.isinf(number) and "inf" not in text.lower():
        raise OverflowError
    return number


def integer_of(text: str) -> int:
    """The integer in a text, also of 1e3 or 100.0; raises ValueError if there is none."""
    try:
        return int(_refuse_underscores(text))
    except ValueError:
        if not abs(float(text)) < 2**64:
            raise
        whole = Decimal(_refuse_underscores(text))
        if whole != int(whole):
            raise
        return int(whole)


def _refuse_underscores(text: str) -> str:
    """The text; raises ValueError for underscores between digits, which Python accepts."""
    if "_" in text:
        raise ValueError
    return text
