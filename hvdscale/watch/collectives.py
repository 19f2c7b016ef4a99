"""torch.distributed: the backend that can be had here, and the calls that combine what the ranks have."""
from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from .listener import Watch

COMBINE = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object",
           "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_reduce_coalesced",
           "send", "isend")
OVER_GLOO = "{}, which needs a GPU for each worker, of which this machine has {}: the process group ran over Gloo"
OWN_WORKERS = ("the script starts its workers itself (torch.multiprocessing.spawn). The doctor starts them, as "
               "torchrun does: call the function of one worker where RANK is set")
HOOK = "DistributedDataParallel has a communication hook"


def install(watch: Watch) -> None:
    """Watch the process group; a backend that needs more GPUs than there are becomes Gloo."""
    patches = watch.patches

    def joining(original):
        signature = inspect.signature(original)

        def init_process_group(*args, **options):
            given, gpus = signature.bind(*args, **options), torch.cuda.device_count()
            backend = given.arguments.get("backend")
            if backend is not None and "nccl" in str(backend) and gpus < watch.local_workers:
                watch.tell("remark", OVER_GLOO.format(backend, gpus))
                given.arguments["backend"] = "gloo"
                given.arguments.pop("device_id", None)
            return original(*given.args, **given.kwargs)
        return init_process_group

    def counting(original):
        def combine(*args, **options):
            watch.tell("combined", original.__name__)
            return original(*args, **options)
        return combine

    def noting_wrapper(original):
        def wrap(wrapper, *args, **options):
            original(wrapper, *args, **options)
            watch.tell("wrapped", bool(wrapper.broadcast_buffers))
        return wrap

    def noting_hook(original):
        def register(*args, **options):
            watch.tell("remark", HOOK)
            return original(*args, **options)
        return register

    def refusing(original):
        def spawn(*args, **options):
            raise SystemExit(OWN_WORKERS)
        return spawn
    for owner in (dist, distributed_c10d):
        patches.replace(owner, "init_process_group", joining)
        for name in COMBINE:
            if hasattr(owner, name):
                patches.replace(owner, name, counting)
    patches.replace(DistributedDataParallel, "__init__", noting_wrapper)
    patches.replace(DistributedDataParallel, "register_comm_hook", noting_hook)
    patches.replace(torch.multiprocessing, "spawn", refusing)
