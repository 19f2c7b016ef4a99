"""A listener that times the updates of a script: the parts of each, on this rank.

    clock = Clock(warm_up=10, updates=50, finish=leave)
    with watching([clock], details=False):
        runpy.run_path("train.py", run_name="__main__")
    clock.timed()                       # after finish, or the script's own end

An update ends with the step of the optimizer that stepped first. Its parts: getting the batch (inside the loader); the
forward pass, up to the backward pass; the backward pass, up to its last gradient; waiting, from there to the end of
the pass, as DistributedDataParallel then waits for its reduction, and inside the script's own collectives and those of
Horovod's optimizer; the optimizer's step. What DistributedDataParallel transfers during the backward pass is no
waiting. The clock is that of hvdscale.record, time.monotonic; on a GPU all but the batch is timed by events on its
stream, so that no update waits for the GPU.
"""

import contextlib
import math
import sys
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import torch

from ..log.schema import RANK_PARTS
from ..system.cores import CoreClock
from ..watch.lines import line_of
from ..watch.listener import Listener

INNERMOST = ("waiting", "backward", "forward", "optimizer")     # parts that may lie in a later one
# apart: it begins an epoch or follows an evaluation, so that it takes longer than others
COUNTED = ("examples", "tokens", "batches", "passes", "apart")
Mark = Any                      # seconds, or an event on a GPU's stream
LONG = 2                        # times the typical update: such are looked into
LEAST = 5                       # updates by which that is known
LOOK_SECONDS = 0.005            # between looks
MOST_OFTEN = 0.5                # of the lines seen: one is named if this share of them, and at least LEAST / 2
SM = 1                          # NVML's number of the clock that computing has, and bits of what may hold it down
SLOWED = {0x04: "its power limit", 0x60: "heat", 0x88: "its hardware"}


class UpdateClock(Listener):
    """Times updates after ``warm_up`` of them, and calls ``finish`` after ``updates`` more."""

    def __init__(self, warm_up: int, updates: int, finish: Callable[[], object], local_workers: int = 1):
        self.warm_up, self.updates, self._finish = warm_up, updates, finish
        self.made, self.optimizer, self.rate = 0, "", math.nan      # the optimizer's class, its learning rate at first
        self.device, self._mark = torch.device("cpu"), time.monotonic
        self.remarks: list[str] = []
        self.remark = self.instead = self.remarks.append        # events
        self.parameters = 0             # of the model, as its optimizers have them; 0: not known
        self._counted: set[torch.optim.Optimizer] = set()
        self._sharded, self._reduces = False, False     # the latter: at the end of a pass, over several ranks
        self._used = math.nan, math.nan         # at the first of them: seconds, joules
        self._local_workers, self._cores = local_workers, CoreClock(local_workers)
        self._first: torch.optim.Optimizer | None = None
        # what lasted from when to when, or was counted, up to each "step"; flat, as this is done within the step
        self._events: list[tuple[str, Any, Mark]] = []
        self._began: Mark = None                # when this update did; None: before the first has ended
        self._open: dict[str, Mark] = {}        # parts that have begun
        self._apart, self._last_gradient = False, None          # of this update and of this pass
        self.long = LongUpdates(lambda: "waiting" in self._open or "backward" in self._open and (
            self._last_gradient is not None))

    def timed(self) -> dict[str, list[float]]:
        """The seconds of RANK_PARTS, and COUNTED, of each update that was timed."""
        self.long.ended.set()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        rows, update = [], []
        for event in self._events:
            update.append(event)
            if event[0] == "step" and len(rows) < self.updates:
                rows.append(self._spent(update))
                update = []
        return {name: [row[name] for row in rows] for name in (*RANK_PARTS, *COUNTED)}

    def used(self) -> dict[str, Any]:
        """Since the first update that is timed the look at the host, see CoreClock, and the GPU's watts; at the end of
        it what ask_driver knows of the clock. None: unknown."""
        (since, joules), now = self._used, ask_driver(self.device)
        watts = (now.get("joules", math.nan) - joules) / (time.monotonic() - since)
        return {"look": self._cores.look(), "watts": watts if math.isfinite(watts) else None,
                "clock": now.get("clock"), "slowed_by": now.get("slowed_by")}

    def _spent(self, update: Sequence[tuple[str, Any, Mark]]) -> dict[str, float]:
        """Seconds of each part, and what was counted. A moment counts once, in the innermost part: a wait in a pass is
        waiting, and a pass in the optimizer's step, whose closure makes it, is no part of that step."""
        _, began, ended = update[-1]
        spent = {name: sum(more for one, more, _ in update if one == name) for name in ("data", *COUNTED)}
        inner: list[Span] = []
        for part in INNERMOST:
            of_part = united([(self._seconds(began, since), self._seconds(began, to))
                              for name, since, to in update if name == part])
            spent[part] = sum(end - begin - within(inner, begin, end) for begin, end in of_part)
            inner = united([*inner, *of_part])
        return {**spent, "step": self._seconds(began, ended)}

    @staticmethod
    def _event() -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def _seconds(begin: Mark, end: Mark) -> float:
        return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1000

    def _begin(self, part: str, *_: Any) -> None:
        if self._began is not None:
            self._open[part] = self._mark()

    def _end(self, part: str, *_: Any, at: Mark = None) -> None:
        began = self._open.pop(part, None)
        if began is not None:
            self._events.append((part, began, self._mark() if at is None else at))

    def mode(self, training: bool) -> None:
        if not training:
            self.iteration_begins(None)

    def iteration_begins(self, iterator: Any) -> None:
        self._apart = True
        self._events.append(("apart", 1, None))

    def batch_wanted(self, iterator: Any) -> None:
        self._wanted = time.monotonic()

    def batch(self, iterator: Any, index: Any, data: Any) -> None:
        counts = time.monotonic() - self._wanted, 1, *size_of(data)
        self._events += [(name, more, None) for name, more in zip(("data", "batches", "examples", "tokens"), counts)]

    forward_begins = partialmethod(_begin, "forward")
    step_begins = partialmethod(_begin, "optimizer")
    combination_ends = writes = partialmethod(_end, "waiting")

    def pass_begins(self, roots: Sequence[torch.Tensor]) -> None:
        self._end("forward")
        self._events.append(("passes", 1, None))
        self._last_gradient = None
        self._begin("backward")
        root = next((one for one in roots if one.requires_grad), None) if self._reduces else None
        if self._began is not None and root is not None:
            # what is queued as the pass begins runs at its end, before what DistributedDataParallel queues once it has
            # all gradients, which waits for the reduction
            queue = torch.autograd.Variable._execution_engine.queue_callback
            root.register_hook(lambda _: queue(lambda: setattr(self, "_last_gradient", self._mark())))

    def wrapped(self, broadcast_buffers: bool, ranks: int) -> None:
        self._reduces = self._reduces or ranks > 1

    def pass_ends(self, roots: Sequence[torch.Tensor], line: str) -> None:
        last = self._last_gradient
        self._end("backward", at=last)
        if last is not None:
            self._events.append(("waiting", last, self._mark()))

    def combined(self, call: object) -> None:
        if "waiting" not in self._open:         # a collective awaits its own work
            self._begin("waiting")

    reducing = awaited = combined

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._counted or self.made == 1:
            self._look_at(optimizer)
        self._end("optimizer")
        if optimizer is not self._first:
            return
        self.made += 1
        mark = self._mark()
        if self._began is None:
            self.long.start()
        else:
            self.long.update_ends(self.made > self.warm_up and not self._apart)
        self._events.append(("step", self._began, mark))
        if self._began is None or self.made <= self.warm_up:
            self._events.clear()
        self._began, self._apart = mark, False
        self._open.clear()
        if self.made == self.warm_up:
            self._used = time.monotonic(), ask_driver(self.device).get("joules", math.nan)
            self._cores = CoreClock(self._local_workers)
        if self.made >= self.warm_up + self.updates:
            self._finish()

    def _look_at(self, optimizer: torch.optim.Optimizer) -> None:
        group, first = optimizer.param_groups[0], self._first
        # again where Horovod wraps one that has stepped to make the state which is broadcast
        if first is None or self.made == 1 and optimizer is not first and (
                group["params"][0] is first.param_groups[0]["params"][0]):
            self._first, self.rate = optimizer, float(group["lr"])
            self.optimizer = type(optimizer).__name__.removeprefix("Distributed").lower()
            if group["params"][0].device.type == "cuda":
                self.device, self._mark = group["params"][0].device, self._event
        self._counted.add(optimizer)
        if not self._sharded:
            self.parameters = sum(parameter.numel() for parameter in {
                parameter for one in self._counted for group in one.param_groups for parameter in group["params"]})

    def sharded(self, by: str) -> None:
        self._sharded, self._reduces, self.parameters = True, True, 0


def ask_driver(device: torch.device) -> dict[str, Any]:
    """What a GPU's driver knows of it: the joules since it was loaded, the clock as a share of its highest, and what
    holds that down; {} on a CPU and without nvidia-ml-py."""
    found: dict[str, Any] = {}
    if device.type == "cuda":
        with contextlib.suppress(Exception):            # whatever fails, the run is timed all the same
            import pynvml
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
            found["joules"] = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000        # from Volta on
            found["clock"] = pynvml.nvmlDeviceGetClockInfo(gpu, SM) / pynvml.nvmlDeviceGetMaxClockInfo(gpu, SM)
            reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            found["slowed_by"] = [words for bits, words in SLOWED.items() if reasons & bits]
    return found


Span = tuple[float, float]


def united(spans: Sequence[Span]) -> list[Span]:
    """The spans in order, those that overlap as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            begin, last = found.pop()
            end = max(end, last)
        found.append((begin, end))
    return found


def within(spans: Sequence[Span], begin: float, end: float) -> float:
    """How much of the spans lies between two times."""
    return sum(max(0.0, min(end, to) - max(begin, since)) for since, to in spans)


def size_of(data: Any) -> tuple[int, int]:
    """The examples and tokens of a batch: the length of its first tensor, and its size where it may be of token ids."""
    if isinstance(data, torch.Tensor):
        ids = data.dim() == 2 and not data.is_floating_point() and data.dtype != torch.bool
        return len(data) if data.dim() else 0, data.numel() if ids else 0
    if hasattr(data, "values") and callable(data.values):
        data = list(data.values())
    sizes = map(size_of, data if isinstance(data, (list, tuple)) else ())
    return next((size for size in sizes if size[0]), (0, 0))


class LongUpdates(threading.Thread):
    """Looks, while an update lasts LONG times the typical one, where it is; only another thread can see that."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        super().__init__(name="long updates", daemon=True)
        self.lines: Counter[str] = Counter()
        self.ended, self._waits, self._script = threading.Event(), waits, threading.get_ident()
        self._began, self._line = time.monotonic(), ""
        self._lengths: list[float] = []

    def update_ends(self, counts: bool) -> None:
        """Note the update's length, and where it was seen if it is one of those that count."""
        now = time.monotonic()
        insort(self._lengths, now - self._began)
        if self._line and counts:
            self.lines[self._line] += 1
        self._began, self._line = now, ""

    def run(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            lasted, updates = time.monotonic() - self._began, len(self._lengths)
            known = updates >= LEAST and not self._line
            if known and lasted > LONG * self._lengths[updates // 2] and not self._waits():
                self._line = line_of(sys._current_frames()[self._script])

    def line(self) -> str:
        """The line at which it mostly was; "" if there is none."""
        [(line, times)] = self.lines.most_common(1) or [("", 0)]
        return line if times >= max(LEAST / 2, MOST_OFTEN * self.lines.total()) else ""
