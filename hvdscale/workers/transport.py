"""The transports, which join the workers that a launcher started.

    workers = form(stall_seconds=120, transport="auto")
"""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

from ..errors import WorkersError
from .group import SingleWorker, Workers
from .launch import launched
from .orphans import refuse_launcher_in_torchrun, stop_without_launcher


def _by_horovod(launcher: str, processes: int, stall_seconds: float) -> Workers:
    from . import horovod
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        return horovod.join(launcher, processes, stall_seconds)
    from .elastic import ElasticWorkers
    hvd = horovod.load_horovod(launcher, processes, stall_seconds)
    return ElasticWorkers(hvd, stall_seconds) if hvd else SingleWorker()


def _by_torch(launcher: str, processes: int, stall_seconds: float) -> Workers:
    if processes == 1 and launcher != "torchrun":
        return SingleWorker()
    from . import torch_distributed
    return torch_distributed.join(stall_seconds)


class Transport(NamedTuple):
    """The launcher whose processes no other transport joins, and how it joins those of any launcher."""

    launcher: str
    join: Callable[[str, int, float], Workers]


TRANSPORTS = {"horovod": Transport("horovodrun", _by_horovod), "torch": Transport("torchrun", _by_torch)}


def form(stall_seconds: float, transport: str = "auto", divided: bool = False) -> Workers:
    """The worker group of this process, which from now on stops when its launcher has ended; raises WorkersError.

    divided  whether it may be divided; Horovod then looks for new groups in each of its cycles
    """
    if divided:
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    started = launched()
    if started is None:
        return SingleWorker()
    refuse_launcher_in_torchrun()
    stop_without_launcher(stall_seconds)
    return TRANSPORTS[choose(transport, started[0])].join(*started, stall_seconds)


def choose(transport: str, launcher: str) -> str:
    """A key of TRANSPORTS, for ``auto`` by the launcher and by whether Horovod is installed, as on all ranks alike.
    Raises WorkersError for one that is unknown, or does not join the launcher's processes."""
    only = next((name for name, one in TRANSPORTS.items() if one.launcher == launcher), None)
    if transport == "auto":
        return only or ("torch" if importlib.util.find_spec("horovod") is None else "horovod")
    if transport not in TRANSPORTS:
        raise WorkersError(f"transport = {transport!r} is none of auto, {', '.join(TRANSPORTS)}")
    if only not in (None, transport):
        raise WorkersError(f"transport = {transport!r} does not join the processes of {launcher}: set auto, or start "
                           f"them with {'torchrun, ' if transport == 'torch' else ''}mpirun or srun")
    return transport
