"""Without a GPU: what torch.cuda and torch.accelerator answer, all of which is without effect; and SyncBatchNorm,
which torch has not on the CPU, with the same mean, variance and gradients over all ranks' examples."""
from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import _AllReduce

NAME = "no GPU: the CPU"
SKIPPED = ("synchronize", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated", "init",
           "reset_max_memory_cached", "reset_accumulated_memory_stats", "set_rng_state", "set_rng_state_all",
           "set_per_process_memory_fraction", "set_stream")
SKIPPED_BY_ACCELERATOR = ("synchronize", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "set_stream",
                          "empty_cache")
MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class Event(torch.cpu.Event):
    """A point in time; an event of CUDA."""

    def __init__(self, *_: Any, **__: Any):
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        return (end_event.seconds - self.seconds) * 1e3


class CpuStream(torch.cpu.Stream):
    def __init__(self, *_: Any, **__: Any):
        self.device = torch.device("cpu")

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """All that came before has been done."""


class Device(contextlib.nullcontext):
    """The one device."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()


CLASSES: dict[str, type] = {"Event": Event, "Stream": CpuStream, "device": Device}


def answers() -> dict[ModuleType, dict[str, Callable]]:
    """By module the functions that cannot answer without a GPU, and what they answer here."""
    current = [0]

    def choose(device: Any = None, *_: Any) -> None:
        index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        current[0] = index or 0

    def nothing(*_: Any, **__: Any) -> None:
        return None
    stream, memory = CpuStream(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    properties = SimpleNamespace(name=NAME, major=0, minor=0, total_memory=memory, multi_processor_count=1)
    of_cuda = {**dict.fromkeys(SKIPPED, nothing), "set_device": choose, "current_device": lambda: current[0],
               "current_stream": lambda *_, **__: stream, "default_stream": lambda *_, **__: stream,
               "stream": Device, "get_device_name": lambda *_, **__: NAME,
               "get_device_properties": lambda *_, **__: properties, "get_device_capability": lambda *_, **__: (0, 0),
               "mem_get_info": lambda *_, **__: (memory, memory), "memory_summary": lambda *_, **__: "",
               "get_rng_state": lambda *_, **__: torch.get_rng_state(), "initial_seed": torch.initial_seed}
    of_accelerator = {**dict.fromkeys(SKIPPED_BY_ACCELERATOR, nothing), **dict.fromkeys(MEMORY, lambda *_, **__: 0),
                      **dict.fromkeys(("set_device_index", "set_device_idx"), choose),
                      **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: current[0]),
                      "current_stream": lambda *_, **__: stream}
    of_nvtx = dict.fromkeys(("range_push", "range_pop", "mark"), nothing)
    found: dict[ModuleType, dict[str, Callable]] = {
        torch.cuda: of_cuda, torch.accelerator: of_accelerator, torch.cuda.nvtx: of_nvtx}
    return {owner: {name: answer for name, answer in one.items() if hasattr(owner, name)}
            for owner, one in found.items()}


def synchronize_norm(original: Callable, module: torch.nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    """Batch-norm in training over the examples of the module's process group; ``input``: (N, C, ...)."""
    if not module.training or not dist.is_initialized():
        return original(module, input)
    group = module.process_group or dist.group.WORLD
    over = [at for at in range(input.dim()) if at != 1]
    shape = [1, -1, *[1] * (input.dim() - 2)]
    count = torch.tensor([float(input.numel() // input.size(1))])
    dist.all_reduce(count, group=group)
    mean = _AllReduce.apply(dist.ReduceOp.SUM, group, input.sum(over)) / count
    from_mean = input - mean.view(shape)
    variance = _AllReduce.apply(dist.ReduceOp.SUM, group, from_mean.square().sum(over)) / count
    _track(module, mean.detach(), variance.detach() * count / (count - 1))
    normal = from_mean * torch.rsqrt(variance + module.eps).view(shape)
    return normal if module.weight is None else normal * module.weight.view(shape) + module.bias.view(shape)


@torch.no_grad()
def _track(module: torch.nn.SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Add to the running statistics; ``variance``: unbiased."""
    if module.running_mean is None or module.running_var is None or module.num_batches_tracked is None:
        return
    module.num_batches_tracked.add_(1)
    factor = 1 / module.num_batches_tracked.item() if module.momentum is None else module.momentum
    module.running_mean.lerp_(mean, factor)
    module.running_var.lerp_(variance, factor)
