"""The cores of this machine, and how busy they are."""
from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from functools import lru_cache

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing
LOST = 0.1              # the share of its time without a core from which on a rank was on a busy host
LOOK_SECONDS = 0.1      # from one look at it to the next


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on, by the system's numbers."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


@lru_cache(maxsize=1)
def processor_name() -> str:
    """The processor's model, or else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^model name\s*: (.+)$", file.read(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def describe_load() -> str:
    """``load 22 on 2 cores`` where more wants to run than this machine has cores for; else empty."""
    load, cores = os.getloadavg()[0], len(usable_cores())
    return f"load {load:.0f} on {cores} cores" if load > BUSY * cores else ""


class CoreClock:
    """Measures how long this process's main thread waits for a core that others have, on a host of ``workers`` alike.

    While the process uses its part of the cores it waits for its own threads alone, such as Horovod's, which asks over
    and over whether the other ranks are there.
    """

    def __init__(self, workers: int):
        self._part = max(1.0, len(usable_cores()) / workers)
        self._first = self._newest = self._read()

    def is_due(self) -> bool:
        """Whether the last look at the share is LOOK_SECONDS old, and a fifth of all the time."""
        now = time.monotonic()
        return now - self._newest[0] > max(LOOK_SECONDS, (now - self._first[0]) / 5)

    def share(self) -> float:
        """The share of the time so far; 0 where the kernel does not count it."""
        self._newest = self._read()
        wall, used, waited = (now - then for then, now in zip(self._first, self._newest))
        return max(0.0, min(waited, self._part * wall - used)) / wall if wall else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/schedstat") as file:
            return time.monotonic(), time.process_time(), int(file.read().split()[1]) / 1e9
        return time.monotonic(), 0.0, 0.0
