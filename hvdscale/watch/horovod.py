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
    def follow(module: ModuleType) -> None:
        def init(*_, **__):
            if module.size() < watch.workers:
                watch.tell("remark", ALONE)
        for name in COMBINE:
            if hasattr(module, name):
                watch.patches.replace(module, name, counting(watch))
        watch.patches.after(module, "init", init)
        watch.patches.before(module.optimizer._DistributedOptimizer, "synchronize",
                             lambda optimizer, *_, **__: watch.tell("reducing", optimizer))
    watch.patches.when_imported("horovod.torch", follow)
