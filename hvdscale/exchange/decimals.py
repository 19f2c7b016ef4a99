"""Parse numbers in CSV lines, a block of lines at a time, to exactly the values of float().

    block = Block(lines, columns)         raises CellsError with the line
    block.floats(3), block.counts(0)      the columns; a gap is NaN
    block.unusual(3)                      cells that repr() would write differently: {row: text}

Decimals with a point, up to 18 digits and no exponent are parsed by vector arithmetic, 8 digits at a time in a machine
word (as in simdjson; Langdale & Lemire 2019, arXiv:1902.08318). An integer of digits below 2^53 divided by a power of
ten up to 10^22 is rounded once, hence correctly (Clinger 1990). With more digits the quotient is computed with the
x87's 64-bit significand and rounded again, which is correct except near midpoints. Those cells and all other spellings
are passed to float(). float() on every cell makes an import about five times slower.
"""
from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from ..errors import LogError

COMMA, NEWLINE, POINT, ZERO = b",\n.0"
PAD = b"0" * 24                         # so that words ending in the first cells start in the text
EXACT, SURE = 2**53, 10**15             # integers exact as floats; decimals of fewer digits than this are unique
TENS, WHOLE_TENS = 10.0 ** np.arange(23), np.array([10**k for k in range(19)], np.uint64)
WIDE = np.longdouble if np.finfo(np.longdouble).nmant == 63 else None
WIDE_TENS = np.cumprod([1] + [10] * 22, dtype=np.longdouble)
ONES = np.array([2**64 - 2**(8 * (8 - k)) for k in range(9)], np.uint64)       # masks for a word's last k bytes


class Block:
    """Lines of ``columns`` cells each, as bytes, without header and quotes; each ends in a newline.

    Raises CellsError for a line with another number of cells.
    """

    def __init__(self, lines: bytes, columns: int):
        self._bytes = PAD + lines
        self._text = text = np.frombuffer(self._bytes, np.uint8)
        marks = np.flatnonzero((text - ZERO) > 9)           # non-digits
        mark = text[marks]
        ends_at = np.flatnonzero((mark == COMMA) | (mark == NEWLINE))
        self._ends = marks[ends_at]
        _check_lines(mark[ends_at] == NEWLINE, columns)
        self.rows, self.columns = len(self._ends) // columns, columns
        self._starts = np.empty_like(self._ends)
        self._starts[:1], self._starts[1:] = len(PAD), self._ends[:-1] + 1
        others = np.diff(ends_at, prepend=-1) - 1           # non-digits in each cell; plain cells have at most a point
        has_point = (others == 1) & (mark[ends_at - 1] == POINT)
        self._point = np.where(has_point, marks[ends_at - 1], self._ends)
        self._plain = (others == 0) | has_point
        self._words = np.ndarray(len(text) - 7, "<u8", self._bytes, strides=(1,))
        self._cells = {}

    def cell(self, row: int, column: int) -> str:
        at = row * self.columns + column
        return self._bytes[self._starts[at]:self._ends[at]].decode("utf-8", "replace")

    def floats(self, column: int) -> np.ndarray:
        """The column as float64; NaN for a gap and for anything but a number (see ``unusual``)."""
        return self._read(column)[0]

    def unusual(self, column: int) -> dict[int, str]:
        """Cells that repr() of their value would write differently, by row; a gap, "", is usual for NaN."""
        return self._read(column)[1]

    def counts(self, column: int) -> tuple[np.ndarray, dict[int, str]]:
        """The column as int64, and cells that str() of the value would write differently.

        A cell that is not a non-negative integer is -1 and unusual.
        """
        starts, ends, point, plain = self._of_column(column)
        size = ends - starts
        plain &= (point == ends) & (size >= 1) & (size <= 16)
        values = self._digits(ends, np.minimum(size, 8)).astype(np.int64)
        if size.max(initial=0) > 8:
            values += self._digits(ends - 8, np.clip(size - 8, 0, 8)).astype(np.int64) * 10**8
        usual = plain & ((size == 1) | (self._text[starts] != ZERO))
        unusual = {}
        for row in np.flatnonzero(~usual):
            text = self.cell(row, column)
            values[row] = _integer(text)
            if str(values[row]) != text:
                unusual[int(row)] = text
        return values, unusual

    def _of_column(self, column):
        """Start, end and point (or end) of each of the column's cells, and whether it is plain."""
        return tuple(np.ascontiguousarray(values[column::self.columns])
                     for values in (self._starts, self._ends, self._point, self._plain))

    def _read(self, column):
        if column not in self._cells:
            self._cells[column] = self._measurements(column)
        return self._cells[column]

    def _measurements(self, column):
        starts, ends, point, plain = self._of_column(column)
        whole = point - starts                                              # digits before the point
        after = np.maximum(ends - point - 1, 0)                             # and after it
        most = int(after.max(initial=0))
        plain &= (whole >= 1) & (whole <= 8) & (after <= 22)
        digits = self._digits(ends, np.minimum(after, 8))
        for skipped in (8, 16):
            if most > skipped:
                part = self._digits(ends - skipped, np.clip(after - skipped, 0, 8))
                plain &= part <= 900 * 10**(16 - skipped)                   # keeps the sum below 2^63
                digits += part * np.uint64(10**skipped)
        if whole.max(initial=0) > 1:
            before = self._digits(point, np.clip(whole, 0, 8))
        else:
            before = (self._text[point - 1] - ZERO).astype(np.uint64)
        if most > 10:
            plain &= (before == 0) | (whole + after <= 18)
        shift = np.where(plain, after, 0)
        digits += before * WHOLE_TENS[np.minimum(shift, 18)]
        values, known = _quotient(digits, shift)
        known &= plain
        usual = known & (after >= 1) & ((whole == 1) | (self._text[starts] != ZERO))
        usual &= (after == 1) | (self._text[ends - 1] != ZERO)
        usual &= (values >= 1e-4) | (digits == 0)
        unclear = np.flatnonzero(usual & (digits >= SURE))
        if len(unclear):
            usual[unclear] = _shortest(digits[unclear], shift[unclear], values[unclear])
        gap = starts == ends
        values[gap] = np.nan
        return values, self._look_closely(column, values, ~(usual | gap), known)

    def _look_closely(self, column, values, rows, known):
        """Parse cells that are not ``known`` by float(), and return those of the rows that repr() writes differently.
        """
        unusual = {}
        for row in np.flatnonzero(rows):
            text = self.cell(row, column)
            if not known[row]:
                values[row] = _number(text)
            if np.isnan(values[row]) or repr(float(values[row])) != text:
                unusual[int(row)] = text
        return unusual

    def _digits(self, ends, count):
        """The numbers of ``count`` digits, 0 to 8, that end before ``ends``, as uint64."""
        word = self._words[ends - 8] & ONES[count]
        word &= np.uint64(0x0F0F0F0F0F0F0F0F)
        for factor, shift, mask in ((2561, 8, 0x00FF00FF00FF00FF), (6553601, 16, 0x0000FFFF0000FFFF),
                                    (42949672960001, 32, 0xFFFFFFFF)):
            word *= np.uint64(factor)
            word >>= np.uint64(shift)
            word &= np.uint64(mask)
        return word


def _check_lines(is_newline, columns):
    """Raise CellsError unless exactly every ``columns``-th separator is a line end."""
    wrong = np.ones(len(is_newline), bool)
    wrong[:] = is_newline
    wrong[columns - 1::columns] ^= True
    if wrong.any():
        at = int(wrong.argmax())
        line = int(is_newline[:at].sum())
        first = int(np.flatnonzero(is_newline)[line - 1]) + 1 if line else 0
        last = at + int(is_newline[at:].argmax()) if is_newline[at:].any() else len(is_newline) - 1
        raise CellsError(line, last - first + 1, columns)
    if len(is_newline) % columns:
        raise CellsError(len(is_newline) // columns, len(is_newline) % columns, columns)


class CellsError(LogError):
    """A line, counted from 0, with another number of cells than the header."""

    def __init__(self, line: int, cells: int, columns: int):
        super().__init__(f"has {cells} cells where the header has {columns}")
        self.line = line


def _quotient(digits, shift):
    """digits / 10^shift, and where it is certainly rounded correctly."""
    values = digits.astype(np.float64) / TENS[shift]
    large = np.flatnonzero(digits >= EXACT)
    sure = np.ones(len(values), bool)
    if len(large) and WIDE:
        wide = digits[large].astype(WIDE) / WIDE_TENS[shift[large]]
        values[large] = wide.astype(np.float64)
        significand = np.ndarray((len(large), 2), "<u8", wide.tobytes())[:, 0]
        sure[large] = (significand & np.uint64(0x7FF)) != 0x400
    else:
        sure[large] = False
    return values, sure


def _shortest(digits, shift, values):
    """Where digits / 10^shift, of 16 digits or more, is certainly what repr() writes for the value: the nearest of the
    shortest decimals that are read as it.
    """
    if not WIDE:
        return np.zeros(len(digits), bool)
    near = np.abs(values.astype(WIDE) * WIDE_TENS[shift] - digits.astype(WIDE)) < 0.49      # the product errs by 0.01
    near &= digits < 10**17
    for shorter in (digits // np.uint64(10), digits // np.uint64(10) + np.uint64(1)):
        other, sure = _quotient(shorter, shift - 1)
        near &= sure & (other != values)
    return near


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


def _number(text: str) -> float:
    try:
        return number_of(text)
    except (ValueError, OverflowError):
        return np.nan


def _integer(text: str) -> int:
    """The integer in the text; -1 if there is none or it does not fit."""
    try:
        return value if abs(value := integer_of(text)) < 2**63 else -1
    except ValueError:
        return -1
