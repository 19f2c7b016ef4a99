"""Join the workers that a launcher started, by Horovod or by torch.distributed.

    workers = form(stall_seconds=120, transport="auto")
"""
from __future__ import annotations

import importlib.util
import os

from ..errors import WorkersError
from .group import SingleWorker, Workers
from .launch import launched
from .orphans import refuse_launcher_in_torchrun, stop_without_launcher


def form(stall_seconds: float, transport: str = "auto") -> Workers:
    """The worker group of this process, which from now on stops when its launcher has ended.

    Raises WorkersError where the processes of a launch cannot be joined.
    """
    started = launched()
    if started is None:
        return SingleWorker()
    refuse_launcher_in_torchrun()
    stop_without_launcher(stall_seconds)
    launcher, processes = started
    if choose(transport, launcher) == "horovod":
        if os.environ.get("HOROVOD_ELASTIC") == "1":
            from . import elastic
            return elastic.join(launcher, processes, stall_seconds)
        from . import horovod
        return horovod.join(launcher, processes, stall_seconds)
    if processes == 1 and launcher != "torchrun":
        return SingleWorker()
    from . import torch_distributed
    return torch_distributed.join(stall_seconds)


def choose(transport: str, launcher: str) -> str:
    """horovod or torch, for ``auto`` by the launcher and by whether Horovod is installed, as on all ranks alike.

    Raises WorkersError for a transport that does not join the launcher's processes.
    """
    only = {"torchrun": "torch", "horovodrun": "horovod"}.get(launcher)
    if transport == "auto":
        return only or ("torch" if importlib.util.find_spec("horovod") is None else "horovod")
    if only not in (None, transport):
        raise WorkersError(f"transport = {transport!r} does not join the processes of {launcher}: set auto, or start "
                           f"them with {'torchrun, ' if transport == 'torch' else ''}mpirun or srun")
    return transport
