"""What a command is doing, said once that takes longer than a moment: ``4 s: drawing figure 3 of 62``."""
from __future__ import annotations

import time
from collections.abc import Callable

CLOCK: Callable[[], float] = time.monotonic     # of what is given no other
AFTER, EVERY, MOST = 2.0, 0.2, 30.0     # seconds before a line; share of the time passed, and at most, before another
Tell = Callable[..., object]        # takes what is being done, and ``long``: it takes long by itself


class Progress:
    """Lines that grow rarer as it takes longer; of what takes long by itself, at once."""

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
