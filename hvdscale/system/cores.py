"""The cores of this machine, and how busy they are."""

import contextlib
import glob
import os
import platform
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing
CONTROL_GROUPS, GROUPS_OF_THIS = "/sys/fs/cgroup", "/proc/self/cgroup"
WITHHELD = {"throttled_time": 1e-9, "throttled_usec": 1e-6}     # by the first and the second version of control groups
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
    """Measures how busy others keep a host that ``workers`` share alike, of which this process is one. Waits alone
    would not show that: the workers' threads wait for each other, too, such as Horovod's, which ask over and over
    whether the other ranks are there."""

    def __init__(self, workers: int):
        self._cores = usable_cores()
        self._workers = min(workers, len(self._cores))      # on these cores: a launcher may have bound each to its own
        self._first = self._read()

    def look(self) -> tuple[float, float]:
        """Of the time so far the share in which threads of this process waited for a core, and its part of what others
        had of the cores: the mean over the host's workers is their share. Zeros where the kernel does not say."""
        wall, used, waited, busy = (now - then for then, now in zip(self._first, self._read()))
        part = wall * len(self._cores) / self._workers
        return (waited / wall, (busy / self._workers - used) / part) if busy else (0.0, 0.0)

    def _read(self) -> tuple[float, float, float, float]:
        """The clock's seconds, those of this process on cores and of its threads waiting, and those of all on cores."""
        waited, busy, names = 0, 0, {f"cpu{number}" for number in self._cores}
        for path in glob.glob("/proc/self/task/*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:    # it may have ended
                waited += int(file.read().split()[1])
        with contextlib.suppress(OSError, ValueError), open("/proc/stat") as file:
            for name, *ticks in map(str.split, file):
                busy += sum(map(int, [*ticks[:3], *ticks[5:8]])) if name in names else 0        # without idle ones
        busy = busy / os.sysconf("SC_CLK_TCK") + withheld_seconds()
        return time.monotonic(), time.process_time(), waited / 1e9, busy


def withheld_seconds() -> float:
    """The seconds of cores that a quota has withheld from this process's control group and those above it."""
    seconds = 0.0
    with contextlib.suppress(OSError), open(GROUPS_OF_THIS) as groups:
        for _, controllers, path in (line.rstrip().split(":", 2) for line in groups):
            if "cpu" in controllers.split(",") or not controllers:
                root = Path(CONTROL_GROUPS, "cpu" if controllers else "")
                for folder in [root / path[1:], *(root / path[1:]).parents]:
                    with contextlib.suppress(OSError), open(folder / "cpu.stat") as file:
                        seconds += sum(WITHHELD.get(name, 0.0) * int(value) for name, value in map(str.split, file))
    return seconds


def without_core(looks: Sequence[tuple[float, float]], workers: int) -> float:
    """The share of the time in which a worker waited for a core that others had, on the host that fared worst, by the
    looks of all ranks, ``workers`` of them on each host."""
    hosts = [tuple(zip(*looks[at:at + workers])) for at in range(0, len(looks), workers)]
    return max(0.0, *(min(max(waited), sum(others) / len(others)) for waited, others in hosts))
