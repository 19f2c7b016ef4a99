"""What a command prints while it works: on a terminal it overwrites its last line, elsewhere lines now and then."""

import shutil
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from .escaping import printable

BAR_WIDTH = 24
CLOCK: Callable[[], float] = time.monotonic     # of what is given no other
AFTER, EVERY, MOST = 2.0, 0.2, 30.0     # seconds before a line; share of the time passed, and at most, before another
Tell = Callable[..., object]        # takes what is being done, and ``long``: it takes long by itself


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


class Progress:
    """What a command is doing, ``4 s: drawing figure 3 of 62``: lines that grow rarer as it takes longer; of what takes
    long by itself, at once."""

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] | None = None) -> None:
        self._say, self._clock = say, clock or CLOCK
        self._start = self._last = self._clock()

    def __call__(self, what: str, long: bool = False) -> None:
        now = self._clock()
        if long or now - self._last >= max(AFTER, min(EVERY * (now - self._start), MOST)):
            self._last = now
            self._say(f"{now - self._start:.0f} s: {what}")


def quiet(what: str, long: bool = False) -> None:
    """Print nothing."""


def time_left(seconds: float) -> str:
    """``1:38 left``."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{seconds:02d} left"
