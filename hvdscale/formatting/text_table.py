"""Tables as aligned lines of plain text, narrowed as far as it takes.

    print("\\n".join(aligned([("study", "trials"), ("mnist-64", "100")], left=(0,))))

    fits, lines = narrowed([Heading("examples per second", short="ex./s")], [["1,130\\n1,090-1,160"]], 100)
    print("\\n".join(lines))
"""

import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from .numbers import RANGE
from .screen import wrap

GAP, INDENT = "  ", "    "
HEADING_WIDTH = 11
BLOCK_SECONDS = 0.25            # between two blocks of a table that grows


@dataclass(frozen=True)
class Heading:
    """Over a column of a table."""

    title: str
    short: str = ""             # where the full one is too wide
    spare: bool = False         # follows from other columns


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (), width: int | None = None) -> list[str]:
    """The rows as lines, each column as wide as its longest entry, which may have several lines.

    left   indices of the columns that start at the left; the others end at the right
    width  of a line; what is wider is in parts, one under the other, that each begin with the first column
    """
    cells = [[entry.split("\n") for entry in row] for row in rows]
    widths = [max(len(line) for lines in column for line in lines) for column in zip(*cells)]
    parts = [[line for row in cells for line in _lines([row[at] for at in part], [widths[at] for at in part],
                                                       [place for place, at in enumerate(part) if at in left])]
             for part in _parts(widths, width)]
    return [line for part in parts for line in ["", *part]][1:]


class GrowingTable:
    """Rows shown as they come, some together, under headings and in columns that never become narrower.

    headings    one a column; the last column is left out until a row has an entry there
    width       of a line; a row that is wider continues in indented lines
    """

    def __init__(self, headings: Sequence[str], show: Callable[[str], None],
                 clock: Callable[[], float] = time.monotonic, width: int | None = None):
        self._headings, self._show, self._clock, self._width = headings, show, clock, width
        self._rows: list[Sequence[str]] = []
        self._widths = [0] * (len(headings) - 1)
        self._headed, self._shown_at = 0, clock()

    def add(self, rows: Iterable[Sequence[str]]) -> None:
        self._rows += rows
        if self._clock() - self._shown_at >= BLOCK_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        if any(row[-1] for row in self._rows):
            self._widths += [0] * (len(self._headings) - len(self._widths))
        columns = len(self._widths)
        rows = [self._headings, *self._rows] if self._headed < columns else self._rows
        self._widths = [max(wide, *map(len, column)) for wide, column in zip(self._widths, zip(*rows))]
        parts = _parts(self._widths, self._width and self._width - len(INDENT), again=())
        lines = []
        for row in rows:
            line, *more = [GAP.join(row[at].ljust(self._widths[at]) for at in part).rstrip() for part in parts]
            lines += [line, *(wrap(text, INDENT, whole=True) for text in more if text)]
        self._show("\n".join(lines))
        self._rows, self._headed, self._shown_at = [], columns, self._clock()


def narrowed(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> tuple[bool, list[str]]:
    """(whether a table is no wider than this, its lines): headings, a rule, and entries that end at the right, whose
    later lines are intervals. Where it is too wide, headings are short, then the widest intervals on two lines; where
    that is not enough, intervals stay whole, and it is in parts, as in ``aligned``."""
    whole = [[row[at].split("\n") for row in rows] for at in range(len(headings))]
    for titles in ([heading.title for heading in headings], [heading.short or heading.title for heading in headings]):
        heads = [textwrap.wrap(title, HEADING_WIDTH) or [""] for title in titles]
        widest = [max(len(line) for lines in (head, *column) for line in lines) for head, column in zip(heads, whole)]
        if _total(widest) <= width:
            break
    cells, widths = list(whole), list(widest)
    while _total(widths) > width:
        tried = [[[shown, *RANGE.sub("-\n", "".join(below)).split("\n")] for shown, *below in column]
                 for column in cells]
        gains = [wide - max(len(line) for lines in (head, *column) for line in lines)
                 for wide, head, column in zip(widths, heads, tried)]
        at = gains.index(max(gains))            # the column that this makes narrowest
        if gains[at] <= 0:
            cells, widths = whole, widest
            break
        cells[at], widths[at] = tried[at], widths[at] - gains[at]
    lines = []
    for columns in _parts(widths, width):
        own = [widths[at] for at in columns]
        lines += ["", *_lines([heads[at] for at in columns], own, bottom=True), "-" * _total(own)]
        for row in zip(*(cells[at] for at in columns)):
            lines += _lines(row, own)
    return _total(widths) <= width, lines[1:]


def lines_within(width: int, headings: Sequence[Heading], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines, no wider than this if they can be: each interval behind its value, in brackets what is none;
    then without spare columns; then as ``narrowed`` has them, under their values."""
    beside = []
    for column in zip(*rows):
        parts = [entry.partition("\n")[::2] for entry in column]
        parts = [(value, below if not below or RANGE.search(below) or below[0] in "<>" else f"({below})")
                 for value, below in parts]
        ends, rest = (max(map(len, texts)) for texts in zip(*parts))
        beside.append([f"{value:>{ends}} {below:<{rest}}" if rest else value for value, below in parts])
    joined, every = [*zip(*beside)], range(len(headings))
    kept = [at for at in every if not headings[at].spare]
    for columns, found in ((every, joined), (kept, joined), (kept, rows)):
        fits, lines = narrowed([headings[at] for at in columns], [[row[at] for at in columns] for row in found], width)
        if fits:
            break
    return lines


def _total(widths):
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _parts(widths, width, again=(0,)):
    """Columns' indices, in as many parts as lines of ``width`` take (None: one); later ones begin with ``again``."""
    parts = [list(range(len(widths)))[:1]]
    for at in range(1, len(widths)):
        if width and len(parts[-1]) > len(again) and _total([widths[other] for other in (*parts[-1], at)]) > width:
            parts.append([*again])
        parts[-1].append(at)
    return parts


def _lines(cells, widths, left=(), bottom=False):
    deep = max(map(len, cells))
    padded = [[""] * (deep - len(cell)) + cell if bottom else cell + [""] * (deep - len(cell)) for cell in cells]
    lines = [GAP.join(cell[row].ljust(wide) if at in left else cell[row].rjust(wide)
                      for at, (cell, wide) in enumerate(zip(padded, widths))).rstrip() for row in range(deep)]
    return [line for line in lines if line]
