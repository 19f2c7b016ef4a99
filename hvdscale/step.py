"""One optimizer update from the exact mean gradient over the global batch, the same code at 1 worker as at 8.

Each worker adds up the gradients of the sum of its examples' losses, pass by pass; the sum over the workers is then
divided by the number of examples, so uneven shares, short batches and accumulation all give the same mean.
"""
from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from .dropout import Masks
from .gradients import GradientBuffer
from .plan import Plan
from .shards import group_bounds
from .workers import Lone
from .workload import Split, Workload

# why the loop may be left before its budget; a vote of any rank, at any step, counts for all
VOTES = ("signal", "seconds", "log")


@dataclass(frozen=True)
class StepResult:
    """What a step gave: mean loss before the update, votes cast, and the seconds of its parts (None: not measured)."""

    loss: float
    votes: tuple[str, ...]
    step_seconds: float
    data_seconds: float | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None


class DataParallelStep:
    """Takes the plan's steps with a model and its optimizer; a call is a collective."""

    def __init__(self, plan: Plan, workload: Workload, train: Split, model: nn.Module, optimizer: torch.optim.Optimizer,
                 workers: Lone, device: torch.device):
        self.plan, self.workload, self.train, self.model, self.optimizer = plan, workload, train, model, optimizer
        self.device, self.stream = device, plan.stream
        self.buffer = GradientBuffer(model, 2 + len(VOTES), workers, int(plan.bucket_mib * 2**20))
        self.masks = Masks(plan.seed, device)
        self.masks.attach(model)
        # step size -> this rank's passes; sizes differ only where an epoch ends with a short batch
        self._passes = lru_cache(lambda size: plan.passes(size, workers.rank))
        self._groups = lru_cache(lambda size: group_bounds(size, plan.ghost_batch))

    def __call__(self, step: int, lr: float, votes: set[str]) -> StepResult:
        """The update that follows ``step`` done steps, at this learning rate; none where the loss is not finite."""
        started = time.perf_counter()
        tail, data_seconds = self._gradients(step, votes)
        computed = time.perf_counter()
        loss, count, *counted = self.buffer.sum_(tail)
        communicated = time.perf_counter()
        if math.isfinite(loss):
            if count != self.plan.global_batch:
                self.buffer.gradients.mul_(self.plan.global_batch / count)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        ended = time.perf_counter()
        agreed = tuple(vote for vote, ranks in zip(VOTES, counted) if ranks)
        seconds = (ended - started,)
        if self.device.type == "cpu":
            communication = communicated - computed
            seconds = (ended - started, data_seconds, ended - started - data_seconds - communication, communication)
        return StepResult(loss * self.plan.global_batch / count, agreed, *seconds)

    def warm_up(self, passes: int) -> None:
        """Compute and reduce gradients of the first step without an update, so that the clock starts on warm caches.

        Leaves parameters, buffers and random streams as they were.
        """
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            for _ in range(passes):
                self.buffer.sum_(self._gradients(0, set())[0])
        for buffer, values in before:
            buffer.copy_(values)

    def _gradients(self, step: int, votes: set[str]) -> tuple[list[float], float]:
        """Compute this rank's sums of gradients; gives the tail to reduce with them, and seconds of getting examples.

        Losses are divided by the nominal global batch first: at a mean's scale no narrow type overflows.
        """
        self.buffer.begin()
        size = self.stream.size(step)
        bounds = self._passes(size)
        loss_sum, count, data_seconds = 0.0, 0, 0.0
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:])):
            if start == stop:
                continue
            before = time.perf_counter()
            batch = self.train.take(self.stream.indices(step, start, stop)).to(self.device)
            data_seconds += time.perf_counter() - before
            self.masks.at(step, self._groups(size), start, stop)
            total, examples = self.workload.loss(self.model, batch, self.plan.label_smoothing)
            total = total / self.plan.global_batch
            self.buffer.backward(total, last_pass=number == self.plan.accumulate - 1)
            loss_sum, count = loss_sum + total.item(), count + examples
        return [loss_sum, count, *(float(vote in votes) for vote in VOTES)], data_seconds
