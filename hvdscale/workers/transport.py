"""The transports, which join the workers that a launcher started.

    workers = form(stall_seconds=120, transport="auto")
"""

import importlib.util
import os

from ..errors import WorkersError
from .group import SingleWorker, Workers, starting
from .launch import launched, place
from .orphans import refuse_launcher_in_torchrun, stop_without_launcher

LAUNCHERS = {"horovod": "horovodrun", "torch": "torchrun"}          # by transport: whose processes no other joins


def form(stall_seconds: float, transport: str = "auto", divided: bool = False) -> Workers:
    """The worker group of this process, which from now on stops when its launcher has ended; raises WorkersError.
    ``divided``: whether it may be; Horovod then looks for new groups in each of its cycles."""
    if divided:
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    if (started := launched()) is None:
        return SingleWorker()
    refuse_launcher_in_torchrun()
    stop_without_launcher(stall_seconds)
    launcher, processes = started
    if choose(transport, launcher) == "torch":
        if processes == 1 and launcher != "torchrun":
            return SingleWorker()
        from .torch_distributed import TorchWorkers, find_store, forget_address
        here = place()
        with starting(stall_seconds, "torch.distributed"):
            workers = TorchWorkers(find_store(here, stall_seconds), here, stall_seconds)
        if here.rank == 0:
            forget_address(here)
        return workers
    from .horovod import HorovodWorkers, check_joined, load_horovod
    if not (hvd := load_horovod(launcher, processes, stall_seconds)):
        return SingleWorker()
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        from .elastic import ElasticWorkers
        return ElasticWorkers(hvd, stall_seconds)
    with starting(stall_seconds, "Horovod"):
        hvd.init()
    check_joined(launcher, processes, hvd.size())           # otherwise each would be alone
    return HorovodWorkers(hvd, stall_seconds)


def choose(transport: str, launcher: str) -> str:
    """A key of LAUNCHERS, for ``auto`` by the launcher and by whether Horovod is installed, as on all ranks alike.
    Raises WorkersError for one that is unknown, or does not join the launcher's processes."""
    only = next((name for name, one in LAUNCHERS.items() if one == launcher), None)
    if transport == "auto":
        return only or ("torch" if importlib.util.find_spec("horovod") is None else "horovod")
    if transport not in LAUNCHERS:
        raise WorkersError(f"transport = {transport!r} is none of auto, {', '.join(LAUNCHERS)}")
    if only not in (None, transport):
        raise WorkersError(f"transport = {transport!r} does not join the processes of {launcher}: set auto, or start "
                           f"them with {'torchrun, ' if transport == 'torch' else ''}mpirun or srun")
    return transport
