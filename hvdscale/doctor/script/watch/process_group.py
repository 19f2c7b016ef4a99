"""torch.distributed: the backend that can be had here, and the calls that combine what the ranks have."""
from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from .watcher import Watcher, replace

COMBINE = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object",
           "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_reduce_coalesced",
           "send", "isend")
OVER_GLOO = "{}, which needs a GPU for each worker, of which this machine has {}: the process group ran over Gloo"
OWN_WORKERS = ("the script starts its workers itself (torch.multiprocessing.spawn). The doctor starts them, as "
               "torchrun does: call the function of one worker where RANK is set")
HOOK = "DistributedDataParallel has a communication hook"


def install(watcher: Watcher, local_workers: int) -> None:
    """Watch the process group; a backend that needs more GPUs than there are becomes Gloo."""
    remarks = watcher.record.remarks

    def joining(original):
        def init_process_group(backend=None, *args, **options):
            gpus = torch.cuda.device_count()
            if backend is not None and "nccl" in str(backend) and gpus < local_workers:
                remarks.append(OVER_GLOO.format(backend, gpus))
                backend = "gloo"
            return original(backend, *args, **options)
        return init_process_group

    def counting(original):
        def combine(*args, **options):
            watcher.record.combined.append((watcher.record.fetched, original.__name__))
            return original(*args, **options)
        return combine

    def noting_hook(original):
        def register(*args, **options):
            remarks.append(HOOK)
            return original(*args, **options)
        return register
    for owner in (dist, distributed_c10d):
        replace(owner, "init_process_group", joining)
        for name in COMBINE:
            if hasattr(owner, name):
                replace(owner, name, counting)
    replace(DistributedDataParallel, "register_comm_hook", noting_hook)
    replace(torch.multiprocessing, "spawn", _refuse)


def _refuse(original):
    def spawn(*args, **options):
        raise SystemExit(OWN_WORKERS)
    return spawn
