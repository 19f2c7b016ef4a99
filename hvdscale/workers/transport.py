"""Join the workers that a launcher started.

    workers = form(stall_seconds=120)
"""
from __future__ import annotations

from .group import Workers
from .launch import launched
from .single import SingleWorker


def form(stall_seconds: float) -> Workers:
    """The worker group of this process; raises WorkersError where the processes of a launch cannot be joined."""
    started = launched()
    if started is None:
        return SingleWorker()
    from . import horovod
    return horovod.join(*started, stall_seconds)
