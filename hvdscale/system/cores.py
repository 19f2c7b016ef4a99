"""The cores of this machine, and how busy they are."""
from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import time
from functools import lru_cache

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing
LOST = 0.1              # the share of its time without a core from which on a rank was on a busy host


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
    """Measures how much of this process's time other processes took, of a host that it shares with ``workers`` alike.

    Waits alone would not show that: threads of the workers may wait for each other, as those of Horovod do, which ask
    over and over whether the other ranks are there.
    """

    def __init__(self, workers: int):
        self._cores = usable_cores()
        self._workers = min(workers, len(self._cores))      # on these cores: a launcher may have bound each to its own
        self._before = self._read()

    @property
    def seconds(self) -> float:
        """Since the last call of lap."""
        return time.monotonic() - self._before[0]

    def lap(self) -> float:
        """The share of the time since the last call in which threads of this process waited for a core, or that others
        had of its part of the cores, whichever is less; 0 where the kernel does not say."""
        before, self._before = self._before, self._read()
        wall, used, waited, busy = (now - then for then, now in zip(before, self._before))
        part = len(self._cores) / self._workers
        return max(0.0, min(waited, (busy / self._workers - used) / part) / wall) if wall else 0.0

    def _read(self) -> tuple[float, float, float, float]:
        """The seconds by the clock, those of this process on cores and of its threads waiting, and of all on cores."""
        waited = 0
        for thread in glob.glob("/proc/self/task/*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError), open(thread) as file:    # it may have ended
                waited += int(file.read().split()[1])
        busy, cores = 0, {f"cpu{number}" for number in self._cores}
        with contextlib.suppress(OSError, ValueError), open("/proc/stat") as file:
            for name, *ticks in map(str.split, file):
                busy += sum(map(int, [*ticks[:3], *ticks[5:8]])) if name in cores else 0        # without idle ones
        return time.monotonic(), time.process_time(), waited / 1e9, busy / os.sysconf("SC_CLK_TCK")
