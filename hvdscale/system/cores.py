"""The cores of this machine, and how busy they are."""
from __future__ import annotations

import math
import os
import platform
import re
from functools import lru_cache

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing


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


def seconds_without_core() -> float:
    """How long this process's main thread has waited for a core since it began, although it could run; NaN where the
    kernel does not count it."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return math.nan
