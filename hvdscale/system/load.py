"""How busy this machine is."""
from __future__ import annotations

import os

from .cores import usable_cores

BUSY = 2.0              # processes that want to run, by core, from which on waiting tells nothing


def describe_load() -> str:
    """``load 22 on 2 cores`` where more wants to run than this machine has cores for; else empty."""
    load, cores = os.getloadavg()[0], len(usable_cores())
    return f"load {load:.0f} on {cores} cores" if load > BUSY * cores else ""
