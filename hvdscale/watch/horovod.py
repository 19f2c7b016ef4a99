"""Horovod's calls that combine what the ranks have, once the script has imported it."""
from __future__ import annotations

from types import ModuleType

from .collectives import counting
from .listener import Watch

COMBINE = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_",
           "grouped_allreduce_async", "grouped_allreduce_async_", "allgather", "allgather_async", "allgather_object",
           "alltoall", "alltoall_async", "reducescatter", "reducescatter_async")
ALONE = ("Horovod made a group of one for each worker, so they trained alone: start the doctor as the script is "
         "started, by horovodrun or mpirun")


def install(watch: Watch) -> None:
    """Tell the script's own collectives; those of DistributedOptimizer are its way to step."""
    def noting_size(original):
        def init(*args, **options):
            result = original(*args, **options)
            import horovod.torch
            if horovod.torch.size() < watch.workers:
                watch.tell("remark", ALONE)
            return result
        return init

    def noting_reduction(original):
        def synchronize(optimizer, *args, **options):
            watch.tell("reducing", optimizer)
            return original(optimizer, *args, **options)
        return synchronize

    def follow(module: ModuleType) -> None:
        for name in COMBINE:
            if hasattr(module, name):
                watch.patches.replace(module, name, counting(watch))
        watch.patches.replace(module, "init", noting_size)
        watch.patches.replace(module.optimizer._DistributedOptimizer, "synchronize", noting_reduction)
    watch.patches.when_imported("horovod.torch", follow)
