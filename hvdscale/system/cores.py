"""The cores of this machine."""
from __future__ import annotations

import os
import platform
import re
from functools import lru_cache


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
