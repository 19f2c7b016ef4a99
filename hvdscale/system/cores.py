"""The cores of this machine."""
from __future__ import annotations

import os


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on, by the system's numbers."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
