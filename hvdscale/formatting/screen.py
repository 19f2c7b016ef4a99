"""What is printed: text from elsewhere as a terminal can be given it, in lines as wide as the terminal; and while a
command works, on a terminal its last line over and over, elsewhere lines now and then."""

import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

NARROWEST, WIDEST = 60, 160
USUAL = 100             # characters, where there is no terminal
BAR_WIDTH = 24
CLOCK = time.monotonic      # of Progress
AFTER, EVERY, MOST = 2.0, 0.2, 30.0     # seconds before a line; share of the time passed, and at most, before another
Tell = Callable[..., object]        # takes what is being done, and ``long``: it takes long by itself

_PLAIN, _ONE_LINE = re.compile(r"[^\n\t -~]"), re.compile("[^ -~]")         # what needs a look
# of the characters that are neither control nor format, those without a shape: fillers, selectors of variants
_SHAPELESS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0"
                        "\U000e0100-\U000e01ef]")
# how a cell begins that a spreadsheet would work out, be there apostrophes before it; numbers do not begin so
_FORMULA = r"(?:[=@\t\r]|[+-](?:[^\d.\s]|.*[(|!]))"


def printable(text: str, lines: bool = True) -> str:
    r"""The text with control and format characters, what Unicode has not assigned, and bytes of a file's name that are
    not text written as in Python: \x1b, \u202e, \u200b. ``lines``: whether tabs and line feeds stay."""
    return (_PLAIN if lines else _ONE_LINE).sub(_show, text)


def _show(found: re.Match[str]) -> str:
    letter = found[0]
    seen = letter.isprintable() or unicodedata.category(letter) == "Zs"
    return letter if seen and not _SHAPELESS.match(letter) else letter.encode("unicode_escape").decode()


def say(text: str = "", err: bool = False) -> None:
    """Print on stdout or stderr what may hold names and messages from others' files: the one way to print."""
    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


def as_cell(text: str) -> str:
    """The text as a cell of CSV that no spreadsheet takes for a formula: behind an apostrophe where it begins so."""
    return f"'{text}" if re.match(f"'*{_FORMULA}", text) else text


def of_cell(text: str) -> str:
    """The text that ``as_cell`` was given."""
    return text[1:] if re.match(f"'+{_FORMULA}", text) else text


def terminal_width() -> int | None:
    """Characters of a line, by COLUMNS, which a command's --width sets, else by the system; None where COLUMNS is not
    set and stdout is no terminal."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return max(NARROWEST, min(columns, WIDEST)) if columns else None


def wrap(text: str, start: str = "", whole: bool = False) -> str:
    """The text in lines behind ``start``, such as "- "; words stay whole, so that a long file name may stick out.
    ``whole``: keep it on one line where there is no terminal."""
    return textwrap.fill(printable(text), terminal_width() or (sys.maxsize if whole else USUAL), initial_indent=start,
                         subsequent_indent=" " * len(start), break_long_words=False, break_on_hyphens=False)


class Screen:
    """Where progress is shown.

    terminal  whether what is printed can be taken back
    every     seconds between two drawings: on a terminal, elsewhere
    drawn     when the last one was, by the caller's clock
    """

    def __init__(self, out: TextIO, terminal: bool, every: tuple[float, float], drawn: float = -float("inf")):
        self.terminal, self.drawn = terminal, drawn
        self._out, self._every = out, every[0] if terminal else every[1]
        self._erasure = ""                      # what takes back the last drawing

    def due(self, now: float) -> bool:
        return now - self.drawn >= self._every

    def say(self, text: str) -> None:
        self.erase()
        print(printable(text), file=self._out, flush=True)

    def line(self, text: str, now: float, share: float | None = None) -> None:
        """Draw one line; on a terminal behind a bar of the share that is done, if given."""
        self.drawn = now
        if not self.terminal:
            self.say(text)
            return
        if share is not None:
            filled = int(BAR_WIDTH * share)
            text = f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {text}"
        self._erasure = "\r\x1b[K"
        columns, _ = shutil.get_terminal_size()
        self._out.write(self._erasure + printable(text)[:columns - 1])              # one more would wrap
        self._out.flush()

    def block(self, lines: Sequence[str], now: float) -> None:
        """Draw lines, on a terminal the last ones that fit."""
        self.drawn = now
        if not self.terminal:
            self.say("\n".join(lines))
            return
        columns, rows = shutil.get_terminal_size()
        lines = [printable(line)[:columns - 1] for line in lines[-(rows - 1):]]
        self.say("\n".join(lines))
        self._erasure = f"\x1b[{len(lines)}A\x1b[J"

    def erase(self) -> None:
        self._out.write(self._erasure)
        self._out.flush()
        self._erasure = ""


@dataclass
class Progress:
    """What a command is doing, ``4 s: drawing figure 3 of 62``: lines that grow rarer as it takes longer; of what takes
    long by itself, at once."""

    say: Callable[[str], object]
    start: float = field(default_factory=lambda: CLOCK())
    told: float = 0.0           # seconds from the start to the last line

    def __call__(self, what: str, long: bool = False) -> None:
        passed = CLOCK() - self.start
        if long or passed - self.told >= max(AFTER, min(EVERY * passed, MOST)):
            self.told = passed
            self.say(f"{passed:.0f} s: {what}")


def quiet(what: str, long: bool = False) -> None:
    """Print nothing."""


def time_left(seconds: float) -> str:
    """``1:38 left``."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{seconds:02d} left"
