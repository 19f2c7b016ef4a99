"""torch.distributed: the backend that can be had here, the calls that combine what the ranks have, Horovod's among
them, and parameters that are divided among the ranks."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from .devices import leave_gpus_out
from .listener import Watch
from .remarks import ALONE, HOOK, JOINED, JOINED_BY_ACTIVE, TENSOR_PARALLEL

COMBINE = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object",
           "all_gather_into_tensor", "all_gather_single", "reduce_scatter", "reduce_scatter_tensor",
           "reduce_scatter_single", "all_to_all", "all_to_all_single", "all_reduce_coalesced", "send", "isend")
OF_HOROVOD = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce",
              "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "allgather",
              "allgather_async", "allgather_object", "alltoall", "alltoall_async", "reducescatter",
              "reducescatter_async")
SHARDING = {"FullyShardedDataParallel": ("torch.distributed.fsdp.fully_sharded_data_parallel",),
            TENSOR_PARALLEL: ("torch.distributed.tensor.parallel.api", "torch.distributed.tensor.parallel"),
            "fully_shard": ("torch.distributed.fsdp._fully_shard._fully_shard", "torch.distributed.fsdp._fully_shard",
                            "torch.distributed.fsdp")}          # by name, the modules of torch that have it
OVER_GLOO = "{}, which needs a GPU for each worker, of which this machine has {}: the process group ran over Gloo"
MEETING = ("MASTER_ADDR", "MASTER_PORT")
BY_ADDRESS = ("env://", "tcp://", "file://")


def install(watch: Watch) -> None:
    """Watch the process group, in which a backend that needs more GPUs than there are becomes Gloo; sharding; and the
    script's own collectives of Horovod, as those of DistributedOptimizer are its way to step."""
    patches, meeting = watch.patches, {name: os.environ[name] for name in MEETING if name in os.environ}

    def make_group(original, *args, **options):
        given, gpus = inspect.signature(original).bind(*args, **options), torch.cuda.device_count()
        backend, device = given.arguments.get("backend"), given.arguments.get("device_id")
        if gpus < watch.local_workers and ("nccl" in str(backend) or getattr(device, "type", "") == "cuda"):
            watch.tell("remark", OVER_GLOO.format(backend or "nccl", gpus))
            given.arguments["backend"] = "gloo"
            given.arguments.pop("device_id", None)
        with _at(meeting, given.arguments, watch.workers):
            return original(*given.args, **given.kwargs)

    def wrapped(_, wrapper, *__, **___):
        watch.tell("wrapped", bool(wrapper.broadcast_buffers), wrapper.process_group.size())

    def joining(_, joinables, enable=True, throw_on_early_termination=False, **options):
        watch.tell("remark", JOINED if options.get("divide_by_initial_world_size", True) else JOINED_BY_ACTIVE)

    def reached(part):
        """A pass has reached a sharded parameter; what is not reduced after it stays, and the next pass adds to it."""
        gradient = part.unsharded_param.grad if hasattr(part, "_unsharded_param") else None
        if gradient is not None:
            kept, before = getattr(part, "_watched", (None, None))
            first = part.unsharded_accumulated_grad is None and kept is not gradient
            watch.tell("gradient", part.sharded_param, gradient - before if kept is gradient else gradient, first)
            part._watched = gradient, gradient.clone()
    patches.changing(distributed_c10d, "barrier", leave_gpus_out)
    for name in ("init_process_group", "new_group"):
        patches.around(distributed_c10d, name, make_group)
    for name in filter(vars(distributed_c10d).__contains__, COMBINE):
        patches.around(distributed_c10d, name, counting(watch))
    for name in filter(vars(dist).__contains__, ("barrier", "init_process_group", "new_group", *COMBINE)):
        patches.put(dist, name, getattr(distributed_c10d, name))        # the same: P2POp takes no other isend
    patches.around(dist.Work, "wait", counting(watch, "awaited"))
    patches.changing(DistributedDataParallel, "__init__", leave_gpus_out)
    patches.after(DistributedDataParallel, "__init__", wrapped)
    patches.before(Join, "__init__", joining)
    patches.before(DistributedDataParallel, "register_comm_hook", lambda *_, **__: watch.tell("remark", HOOK))
    for name, modules in SHARDING.items():
        for module in modules:
            patches.when_imported(module, functools.partial(_note_sharding, watch, name))
    if watch.details:
        patches.when_imported("torch.distributed.fsdp._fully_shard._fsdp_param", lambda module: patches.before(
            module.FSDPParam, "accumulate_unsharded_grad_if_needed", reached))
    if not torch.cuda.is_available():               # Gloo cannot divide while it sums
        patches.when_imported("torch.distributed.fsdp._fully_shard._fsdp_collectives", lambda module: patches.changing(
            module, "_get_gradient_divide_factors", lambda given: given.update(force_sum_reduction_for_comms=True)))
    patches.when_imported("horovod.torch", functools.partial(_follow_horovod, watch))


def _note_sharding(watch: Watch, name: str, module) -> None:
    owner, called = (getattr(module, name), "__init__") if inspect.isclass(getattr(module, name)) else (module, name)
    watch.patches.before(owner, called, lambda *_, **__: watch.tell("sharded", name))


def _follow_horovod(watch: Watch, module) -> None:
    def init(*_, **__):
        if module.size() < watch.workers:
            watch.tell("remark", ALONE)
    for name in filter(vars(module).__contains__, OF_HOROVOD):
        watch.patches.around(module, name, counting(watch))
    watch.patches.after(module, "init", init)
    watch.patches.around(module.optimizer._DistributedOptimizer, "synchronize", counting(watch, "reducing"))


def counting(watch: Watch, event: str = "combined") -> Callable:
    """What is done around a call that waits for other ranks: it is told that the call begins, and that it has ended."""
    def combine(original, *args, **options):
        watch.tell(event, original.__name__ if event == "combined" else args[0])
        try:
            return original(*args, **options)
        finally:
            watch.tell("combination_ends")
    return combine


@contextlib.contextmanager
def _at(meeting: Mapping[str, str], asked: dict, workers: int) -> Iterator[None]:
    """Have the group of all workers meet where the launcher has them meet, whatever address the script names."""
    method, size = asked.get("init_method"), asked.get("world_size", -1)
    if not meeting or asked.get("store") or size not in (-1, workers) or method and not method.startswith(BY_ADDRESS):
        yield
        return
    asked.pop("init_method", None)
    named = {name: os.environ.get(name) for name in MEETING}
    os.environ.update(meeting)
    try:
        yield
    finally:
        for name, value in named.items():
            os.environ.update({name: value}) if value else os.environ.pop(name)
