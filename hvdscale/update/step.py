"""One optimizer update from the exact mean gradient over the global batch, by the same code at 1 worker and at 8.

Each worker adds up the gradients of its examples' summed losses, pass by pass. The sum over the workers is then divided
by the number of examples, so uneven shares, short batches and accumulation all give the same mean.
"""

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from ..data.loading import Feed
from ..data.splits import OwnGenerators, refuse_not_finite
from ..errors import FaultError, HvdscaleError, WorkloadError, describe_raised
from ..modules.ghost_groups import GhostGroups
from ..modules.running_statistics import Buffers, Statistics
from ..log.schema import STEP_PARTS
from ..plan.plan import Plan
from ..plan.shards import Pass, group_bounds
from ..system.cores import CoreClock, without_core
from ..workers.group import WorkerLostError, Workers
from ..workload import Split, Workload, bound_loss
from .gradients import COLUMNS, ExactBuffer, GradientBuffer, GradientNoise, why_not_measured
from .optimizers import WeightAverage, clip_, evaluation_weights, follow_batch
from .precision import PARAMETERS, LossScale, autocast

# the votes a rank may cast at the end of a step: reasons to leave the loop, to write a checkpoint or commit in memory,
# a change of hosts, and a fault in its share
VOTES = ("signal", "seconds", "log", "prune", "checkpoint", "commit", "hosts", "fault")

CARRY = 1024        # a count is sent as thousands and units, as a float cannot hold a large count of tokens exactly


class StepResult(NamedTuple):
    """The result of a step."""

    loss: float                                                     # the mean before the update
    votes: tuple[str, ...]                                          # that were cast
    step_seconds: float
    measured: Mapping[str, float]           # by column: see log_columns
    by_rank: Sequence[float]                # the seconds of each worker for its data, then those for its passes
    count: float                            # of the examples or tokens in the mean


def log_columns(plan: Plan, model: nn.Module) -> tuple[str, ...]:
    """The optional columns of /steps that such a run has."""
    noise = () if not plan.noise_steps or why_not_measured(plan, model) else COLUMNS
    parts = STEP_PARTS if plan.device == "cpu" else STEP_PARTS[:1]
    local = plan.local_steps or {}
    counts = ["without_core_seconds"] + [name for name, counted in (
        ("global_batch", not plan.batches.is_constant), ("tokens", plan.train_tokens is not None),
        ("loss_scale", plan.scales_loss), ("skipped_updates", plan.scales_loss),
        ("replica_distance", local), ("outer_step", local), ("exchange_error", "exchange" in local)) if counted]
    return *counts, *parts, *noise


def measured_of(plan: Plan, step: int, count: float) -> dict[str, float]:
    """The values of a step that follow from what was counted in it and from the plan, by column."""
    found = {} if plan.train_tokens is None else {"tokens": count}
    return found if plan.batches.is_constant else {**found, "global_batch": plan.batches.at(step)}


class Sums(NamedTuple):
    """Of a rank's passes, or of all workers'."""

    loss: float             # the sum of losses over the nominal batch
    count: float            # what the loss gave
    examples: float         # computed

    def tail(self) -> list[float]:
        # scalars that a reduction in float32 adds up exactly, the loss apart
        return [self.loss, *divmod(self.count, CARRY), *divmod(self.examples, CARRY)]


SUMS = len(Sums(0.0, 0, 0).tail())


class DataParallelStep:
    """Takes the plan's steps with a model and its optimizer; each call is a collective. replica: of a plan of several,
    the number of the one whose share of each step is taken, by its own workers"""

    def __init__(self, plan: Plan, workload: Workload, train: Split, model: nn.Module, optimizer: torch.optim.Optimizer,
                 workers: Workers, device: torch.device, average: WeightAverage | None = None, replica: int = 0):
        self.plan, self.train, self.model, self.optimizer = plan, train, model, optimizer
        self.average = average
        self.loss = bound_loss(workload, plan.label_smoothing)
        self.workers, self.device, self.stream = workers, device, plan.stream
        self.ghosts = GhostGroups(plan.seed, workers, device)
        self.ghosts.attach(model)
        self.statistics = Statistics(model, plan.group_by_group)
        self.noise = GradientNoise(plan, model, workers.rank)
        self._timed = 4 * workers.size      # see _share
        self._host, self._looks = CoreClock(plan.local_workers), False
        tail = SUMS + len(VOTES) + self._timed + self.noise.size
        if plan.exact:
            self.buffer: GradientBuffer = ExactBuffer(model, tail, workers, self.statistics.size, 1 + self.noise.size)
        else:
            self.buffer = GradientBuffer(
                model, tail, workers, int(plan.bucket_mib * 2**20), self.statistics.size,
                torch.float16 if plan.compression == "fp16" else None,
                flat=plan.scales_loss or plan.clip_norm is not None)
        self.statistics.collect_in(self.buffer.statistics)
        self.scale, self._autocast = LossScale(plan.loss_scale), autocast(plan.precision, device)
        self._buffers = self.statistics.group if plan.group_by_group else contextlib.nullcontext
        # step -> its examples, and those that a replica would have if it were not short
        self._size = lru_cache(plan.stream.size)
        self._nominal = lru_cache(lambda step: plan.batches.at(step) // plan.replicas)
        # step size -> its ghost groups and this rank's passes; sizes differ where the batch changes or an epoch ends
        self._groups = lru_cache(lambda size: group_bounds(size, plan.ghost_batch))
        self._passes = lru_cache(lambda size: tuple(part for part in plan.passes_of(replica, size)[workers.rank]
                                                    if part.stop > part.start))
        self.feed = Feed(train, self.stream, lambda step: self._passes(self._size(step)), device,
                         plan.loader_workers, PARAMETERS[plan.precision])

    def __call__(self, step: int, lr: float, votes: set[str]) -> StepResult:
        """Make the update after ``step`` steps, at this learning rate; no update if the loss is not finite. Raises the
        same HvdscaleError on all ranks if some rank's share cannot be computed (FaultError on that rank only if the
        others wait for it in a shared ghost group), DataError if a batch has values that are not finite, WorkloadError
        if a parameter gets no gradient."""
        started = time.perf_counter()
        # at the host: four times while the steps double, and in the last one
        self._looks = step % 2 ** max(0, step.bit_length() - 3) == 0 or step == self.plan.budget_steps - 1
        fault, tail, data_seconds = self._share(step, votes)
        computed = time.perf_counter()
        (loss, count, examples), agreed, timed, sqnorms = self._reduce(tail)
        communicated = time.perf_counter()
        self._raise_together(step, agreed, fault, loss, examples)
        if count == 0:
            raise WorkloadError(f"the counts returned by loss add up to 0 at step {step}, so its batch has no mean; a "
                                "count is the number of examples or tokens in the sum")
        noise, scale, skipped = {}, self.scale.value, self.scale.left_out
        if math.isfinite(loss):
            noise = self.noise.columns(self.buffer, sqnorms, count, self.scale.value)
            self._update(step, lr, count)
            if self.average:
                self.average.update(step, self._size(step))
        ended = time.perf_counter()
        size = self.workers.size
        measured = {"data_seconds": data_seconds, "without_core_seconds": math.nan, **noise}
        if self._looks:
            busy = without_core([*zip(timed[2 * size:3 * size], timed[3 * size:])], self.plan.local_workers)
            measured["without_core_seconds"] = busy * (ended - started)
        if self.device.type == "cpu":                               # a GPU is still working, so the rest is unknown
            communication = communicated - computed
            measured |= {"compute_seconds": ended - started - data_seconds - communication,
                         "communication_seconds": communication}
        if self.plan.scales_loss:
            measured |= {"loss_scale": scale, "skipped_updates": float(self.scale.left_out - skipped)}
        return StepResult(loss * self._nominal(step) / count, agreed, ended - started,
                          measured | measured_of(self.plan, step, count), timed[:2 * size], count)

    def warm_up(self, passes: int) -> None:
        """Compute and reduce gradients of the first step, to warm up, and leave all as it was; raises as steps do."""
        with OwnGenerators(self.device), Buffers(self.model).kept():
            for _ in range(passes):
                fault, tail, _ = self._share(0, set())
                (loss, _, examples), agreed, *_ = self._reduce(tail)
                self._raise_together(0, agreed, fault, loss, examples)

    def evaluated(self) -> contextlib.AbstractContextManager:
        """A context in which the model has the weights to evaluate."""
        return evaluation_weights(self.model, self.optimizer)

    def finish(self) -> None:
        """Leave the last weights in the model, at the end of a run."""

    def close(self) -> None:
        self.feed.loader.close()

    def state(self) -> dict:
        return {"loss_scale": dict(vars(self.scale)), **({"average": self.average.state()} if self.average else {})}

    def restore(self, state: dict) -> None:
        vars(self.scale).update(state["loss_scale"])
        if self.average:
            self.average.restore(state["average"])

    def _share(self, step: int, votes: set[str]) -> tuple[Exception | None, list[float], float]:
        """Compute this rank's share of the gradients; returns a fault or None, the tail to reduce, seconds of data. A
        fault is sent as a vote, so that all ranks raise it, unless a reduction inside a pass waits for this rank."""
        started, fault, sums, data_seconds = time.perf_counter(), None, Sums(0.0, 0, 0), 0.0
        parts = self._passes(self._size(step))
        try:
            self._before(step)
            self.buffer.begin(self.noise.begin(step))
            sums, data_seconds = self._gradients(step, parts, self.feed.batches(step))
        except WorkerLostError:
            raise
        except (Exception, SystemExit) as error:
            if any(part.shared for part in parts) and self.workers.size > 1:
                raise FaultError(f"rank {self.workers.rank} of {self.workers.size}: step {step}: "
                                 f"{describe_raised(error)}") from error
            fault = error
        else:
            fault = self._unused(step)
        self.buffer.finish()
        sqnorms = self.noise.tail(sums.count, self.scale.value)
        votes = votes | ({"fault"} if fault else set())
        timed = [0.0] * self._timed
        timed[self.workers.rank::self.workers.size] = (data_seconds, time.perf_counter() - started - data_seconds,
                                                       *(self._host.look() if self._looks else (0.0, 0.0)))
        return fault, [*sums.tail(), *(float(vote in votes) for vote in VOTES), *timed, *sqnorms], data_seconds

    def _reduce(self, tail: list[float]) -> tuple[Sums, tuple[str, ...], list[float], list[float]]:
        """Sum gradients and tail; returns the sums, the votes, what was timed by rank and the squared norms."""
        loss, thousands, units, thousand_examples, unit_examples, *rest = self.buffer.sum_(tail)
        sums = Sums(loss, CARRY * thousands + units, CARRY * thousand_examples + unit_examples)
        agreed = tuple(vote for vote, ranks in zip(VOTES, rest) if ranks)
        rest = rest[len(VOTES):]
        return sums, agreed, rest[:self._timed], rest[self._timed:]

    def _before(self, step: int) -> None:
        """Compute the extra gradients that the noise scale needs."""
        if (part := self.noise.first(step)) is not None:
            self.buffer.begin()
            sums, _ = self._gradients(step, (part,), self.feed.read(step, part))
            self.buffer.finish()
            self.noise.keep(self.buffer.gradients, sums.count)

    def _gradients(self, step: int, parts: tuple[Pass, ...], batches: Iterable) -> tuple[Sums, float]:
        """Add up the gradients of the passes; returns their sums and the seconds of data. Losses are first divided by
        the step's nominal global batch, so that no sum over workers overflows."""
        groups, nominal = self._groups(self._size(step)), self._nominal(step)
        loss_sum, count, computed, waited = 0.0, 0, 0, self.feed.loader.seconds
        for number, (part, batch) in enumerate(zip(parts, batches)):
            self.ghosts.at(step, groups, part)
            if self.plan.group_by_group:
                self.ghosts.seed_generators()
            with self._buffers():
                with self._autocast:
                    total, counted = self.loss(self.model, batch)
                total = total / nominal
                scaled = total * self.scale.value if self.plan.scales_loss else total
                self.buffer.backward(scaled, last_pass=number == len(parts) - 1)
            loss, size = total.item(), part.stop - part.start
            self.buffer.end_pass(lambda: [loss, *self.noise.tail(counted, self.scale.value, size)])
            loss_sum, count, computed = loss_sum + loss, count + counted, computed + size
        return Sums(loss_sum, count, computed), self.feed.loader.seconds - waited

    def _update(self, step: int, lr: float, count: int) -> None:
        factor = self._nominal(step) / count
        if self.plan.scales_loss:
            factor /= self.scale.value
            if not self.scale.accepts(self.buffer.gradients):
                return
        if factor != 1:
            torch._foreach_mul_(self.buffer.parts, factor)
        if self.statistics.size:
            self.statistics.merge((len(self._groups(self._size(step))) - 1) // self.plan.replicas)
        if self.plan.clip_norm is not None:
            clip_(self.buffer.gradients, self.plan.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("rate_share", 1.0)
        if self.plan.batch_updates:
            follow_batch(self.optimizer, self.plan.updates_at(step))
        self.optimizer.step()

    def _raise_together(self, step: int, agreed: tuple[str, ...], fault: Exception | None, loss: float,
                        examples: float) -> None:
        """Raise some rank's fault on all ranks, or that together they did not compute each of the examples once."""
        if "fault" in agreed:
            self.workers.raise_together(f"step {step}", fault)
        if examples != (size := self._size(step) // self.plan.replicas):
            raise HvdscaleError(f"step {step} has {size} examples, but all workers together computed {examples:g}: the "
                                "update was not made. This is an error of hvdscale; please report it with the plan")
        if not math.isfinite(loss):
            with self.workers.together("inputs"):
                for part in self._passes(self._size(step)):
                    visits = self.stream.visits(step, part.start, part.stop)
                    refuse_not_finite(self.train.take(visits), visits, f"at step {step}, in training")

    def _unused(self, step: int) -> WorkloadError | None:
        missing = {id(parameter) for parameter in self.buffer.without_gradient()}
        if not missing or self.plan.unused_parameters == "zeros" or not self._passes(self._size(step)):
            return None
        names = [name for name, parameter in self.model.named_parameters() if id(parameter) in missing]
        return WorkloadError(f"{', '.join(names)}: no gradient at step {step}, as the loss does not depend on "
                             f"{'it' if len(names) == 1 else 'them'}. Freeze parameters that are not "
                             "trained (requires_grad_(False)), or set unused_parameters=zeros to use zero gradients")
