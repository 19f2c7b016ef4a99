"""How busy this machine is."""
from __future__ import annotations

import math
import os

from .cores import usable_cores

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing


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
