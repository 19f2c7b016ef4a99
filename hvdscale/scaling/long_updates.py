"""Where in the script an update is that takes far longer than the others, such as where it saves."""
from __future__ import annotations

import sys
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable

from ..watch.lines import line_of

LONG = 2                # times the typical update
LEAST = 5               # updates by which that is known
LOOK_SECONDS = 0.005    # between looks
MOST_OFTEN = 0.5        # of the lines that were seen: a line is named if this share of them, and at least LEAST / 2


class LongUpdates(threading.Thread):
    """Looks, while an update lasts LONG times the typical one, where it is; only another thread can see that."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        super().__init__(name="long updates", daemon=True)
        self.lines: Counter[str] = Counter()
        self.ended = threading.Event()
        self._waits, self._script = waits, threading.get_ident()
        self._began, self._line = time.monotonic(), ""
        self._lengths: list[float] = []

    def update_ends(self, counts: bool) -> None:
        """Note the update's length, and where it was seen if it is one of those that count."""
        now = time.monotonic()
        insort(self._lengths, now - self._began)
        if self._line and counts:
            self.lines[self._line] += 1
        self._began, self._line = now, ""

    def run(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            lasted, updates = time.monotonic() - self._began, len(self._lengths)
            known = updates >= LEAST and not self._line
            if known and lasted > LONG * self._lengths[updates // 2] and not self._waits():
                self._line = line_of(sys._current_frames()[self._script])

    def describe(self, rank: int) -> list[str]:
        """The line at which the rank mostly was, in words, if there is one."""
        for line, times in self.lines.most_common(1):
            if times >= max(LEAST / 2, MOST_OFTEN * self.lines.total()):
                return [f"rank {rank} was at {line} in {times} updates that took over {LONG} times the typical one"]
        return []
