"""CUDA where torch sees none: what a script asks of a GPU is done on the CPU. With a GPU nothing is replaced.

Only the script's own calls find CUDA available, so that libraries choose the CPU. With an empty CUDA_VISIBLE_DEVICES
the script finds none either.
"""
from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import _AllReduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _device

from .lines import TORCH, called_by_script, is_own, line_of_call, relative
from .listener import Watch

INSTEAD = "torch sees no GPU here, so what the script asks of CUDA ran on the CPU (first {}, {})."
REFUSED = "{}: {!r} needs a GPU, and torch sees none on this machine ({}); start the doctor where there are GPUs"
OF_CUDA = re.compile("cuda|nvidia|nvtx|accelerator device", re.IGNORECASE)
OF_TORCH = (AssertionError, AttributeError, ImportError, RuntimeError, TypeError, ValueError)
WARNINGS = ("'pin_memory' argument is set as true", ".*CUDA is not available")     # that a GPU would spare the script
LONGEST = 200           # characters of an error
OF_GPUS = ("device_ids", "output_device")
NEW = ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
NAME = "no GPU: the CPU"
SKIPPED = ("synchronize", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated", "init",
           "reset_max_memory_cached", "reset_accumulated_memory_stats", "set_rng_state", "set_rng_state_all",
           "set_per_process_memory_fraction", "set_stream")
MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def missing() -> bool:
    return not torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def on_cpu(value: Any) -> Any:
    """The CPU in place of a CUDA device, however that is written, or of an index; any other value as it is."""
    if isinstance(value, (str, torch.device)):
        return type(value)("cpu") if str(value).partition(":")[0] == "cuda" else value
    return "cpu" if isinstance(value, int) and not isinstance(value, bool) else value


def install(watch: Watch) -> None:
    if not missing():
        return
    patches, redirect, known = watch.patches, Redirect(watch), _device._device_constructors()

    def load_on_cpu(given):
        if isinstance(given["map_location"], (type(None), str, torch.device, dict)):
            given["map_location"] = "cpu"                       # as nothing else can be had here

    def for_script(value):
        def make(original):
            def ask(*args, **options):
                return value if called_by_script() else original(*args, **options)
            return ask
        return make
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message)
        patches.on_undo(functools.partial(list.remove, warnings.filters, warnings.filters[0]))      # type: ignore

    for owner in (torch, torch.fft):
        for name, value in list(vars(owner).items()):       # that make a tensor on a device that is named
            if not isinstance(value, type) and callable(value) and not name.startswith("_") and (
                    name.endswith("_like") or value in known):
                redirect.device(owner, name)
    for name in NEW:
        redirect.device(torch.Tensor, name)
    for owner, name in ((torch.Tensor, "to"), (torch.nn.Module, "to"), (_device.DeviceContext, "__init__"),
                        (torch.Generator, "__new__")):
        redirect.device(owner, name, at=1)
    for owner in (dist, dist.device_mesh):
        redirect.device(owner, "init_device_mesh", at=0, name_of="device_type")
    # scalers are enabled as on CUDA, their default
    patches.changing(torch.amp.GradScaler, "__init__", lambda given: given.update(device=on_cpu(given["device"])))
    patches.changing(torch, "load", load_on_cpu)
    patches.around(torch.nn.SyncBatchNorm, "forward", synchronize_norm)
    patches.replace(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda _: lambda *_: None)

    for name in ("cuda", "pin_memory"):
        redirect.call(torch.Tensor, name, lambda tensor, *_, **__: tensor)
    redirect.call(torch.Tensor, "record_stream", lambda *_, **__: None)
    for owner in (torch.cuda, torch.accelerator):
        patches.replace(owner, "is_available", for_script(True))
        patches.replace(owner, "device_count", for_script(watch.local_workers))
    patches.replace(torch.accelerator, "current_accelerator", for_script(torch.device("cuda")))
    for owner, answers in answers_of_cuda().items():
        for name in filter(vars(owner).__contains__, answers):          # torch's versions have others
            redirect.call(owner, name, answers[name])
    for name, made in {"Event": Event, "Stream": CpuStream, "device": Device}.items():
        patches.put(torch.cuda, name, functools.update_wrapper(         # with the name and signature of the original
            type(name, (made,), {}), getattr(torch.cuda, name), updated=()))


class Redirect:
    """Calls that take the CPU in place of CUDA."""

    def __init__(self, watch: Watch):
        self.watch, self._told = watch, False

    def tell(self, owner: Any, name: str) -> None:
        """Say once that there is no CUDA here, with the call that asked first."""
        if not self._told and not torch.compiler.is_compiling() and (line := line_of_call()):
            self._told = True
            of = getattr(owner, "__name__", "")
            self.watch.tell("instead", INSTEAD.format(of if name.startswith("__") else f"{of}.{name}", line))

    def device(self, owner: Any, name: str, at: int | None = None, name_of: str = "device") -> None:
        """Have a function take the CPU where it is given CUDA, by name or at that place of its arguments."""
        def make(original):
            def call(*args, **options):
                if name_of in options and (place := on_cpu(options[name_of])) is not options[name_of]:
                    options[name_of] = place
                    self.tell(owner, name)
                if at is not None and len(args) > at and (place := on_cpu(args[at])) is not args[at]:
                    args = (*args[:at], place, *args[at + 1:])
                    self.tell(owner, name)
                return original(*args, **options)
            return call
        self.watch.patches.replace(owner, name, make)

    def call(self, owner: Any, name: str, answer: Callable) -> None:
        """Have a function answer without CUDA; torch itself relies on some to fail."""
        def make(original):
            def call(*args, **options):
                if isinstance(owner, ModuleType) and sys._getframe(1).f_code.co_filename.startswith(TORCH):
                    return original(*args, **options)
                if not isinstance(owner, ModuleType) or called_by_script():
                    self.tell(owner, name)
                return answer(*args, **options)
            return call
        self.watch.patches.replace(owner, name, make)


def leave_gpus_out(given: dict[str, Any]) -> None:
    """Leave out what names GPUs to a wrapper or a collective, where there are none."""
    for name in OF_GPUS if missing() else ():
        given.pop(name, None)


def need_of_gpu(error: BaseException) -> str:
    """A line on the script's call that needs CUDA, where an error is for the lack of it; empty for another one."""
    if not missing() or not isinstance(error, OF_TORCH) or not OF_CUDA.search(str(error)):
        return ""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    if not own or str(own[-1].line).startswith(("raise ", "assert ")):
        return ""
    why = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST, placeholder=" ...")
    return REFUSED.format(f"{relative(own[-1].filename)}:{own[-1].lineno}", own[-1].line, why)


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


def answers_of_cuda() -> dict[ModuleType, dict[str, Callable]]:
    """By module the functions that cannot answer without a GPU, and what they answer here."""
    current = [0]

    def choose(device: Any = None, *_: Any) -> None:
        index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        current[0] = index or 0

    def always(value: Any) -> Callable:
        return lambda *_, **__: value
    nothing, stream = always(None), always(CpuStream())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    properties = SimpleNamespace(name=NAME, major=0, minor=0, total_memory=memory, multi_processor_count=1)
    of_cuda = {**dict.fromkeys(SKIPPED, nothing), "set_device": choose, "current_device": lambda: current[0],
               "current_stream": stream, "default_stream": stream, "stream": Device, "get_device_name": always(NAME),
               "get_device_properties": always(properties), "get_device_capability": always((0, 0)),
               "mem_get_info": always((memory, memory)), "memory_summary": always(""),
               "get_rng_state": lambda *_, **__: torch.get_rng_state(), "initial_seed": torch.initial_seed}
    of_accelerator = {**dict.fromkeys((*SKIPPED, "empty_cache"), nothing), **dict.fromkeys(MEMORY, always(0)),
                      **dict.fromkeys(("set_device_index", "set_device_idx"), choose), "current_stream": stream,
                      **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: current[0])}
    of_nvtx = dict.fromkeys(("range_push", "range_pop", "mark"), nothing)
    return {torch.cuda: of_cuda, torch.accelerator: of_accelerator, torch.cuda.nvtx: of_nvtx}


def synchronize_norm(original: Callable, module: torch.nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    """Batch-norm in training over the examples of the module's process group; ``input``: (N, C, ...)."""
    if not module.training or not dist.is_initialized():
        return original(module, input)
    group = module.process_group or dist.group.WORLD
    over, shape = [at for at in range(input.dim()) if at != 1], [1, -1, *[1] * (input.dim() - 2)]
    count = torch.tensor([float(input.numel() // input.size(1))])
    dist.all_reduce(count, group=group)
    mean = _AllReduce.apply(dist.ReduceOp.SUM, group, input.sum(over)) / count
    from_mean = input - mean.view(shape)
    variance = _AllReduce.apply(dist.ReduceOp.SUM, group, from_mean.square().sum(over)) / count
    if module.track_running_stats:
        module.num_batches_tracked.add_(1)
        factor = 1 / module.num_batches_tracked.item() if module.momentum is None else module.momentum
        module.running_mean.lerp_(mean.detach(), factor)
        module.running_var.lerp_(variance.detach() * count / (count - 1), factor)       # the unbiased one
    normal = from_mean * torch.rsqrt(variance + module.eps).view(shape)
    return normal if module.weight is None else normal * module.weight.view(shape) + module.bias.view(shape)
