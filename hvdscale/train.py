"""The training loop: evaluate on the plan's grid, stop when the target is met or the budget is spent, else take a step.

A decision is taken by all ranks together: a rank's wish to leave travels as a vote in the step's own allreduce.
"""
from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from .display import Quiet
from .errors import UsageError
from .evaluate import Evaluator
from .journal import Silent
from .log.schema import Status
from .plan import Plan
from .step import DataParallelStep
from .streams import stream_key
from .target import SPLITS
from .workers import Lone
from .workload import Data, Workload

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
DONE, FAILED, DIVERGED, PREEMPTED = 0, 1, 3, 75


class Stop(NamedTuple):
    """Why the loop was left: the trial's status, the reason in words, the command's exit code."""

    status: Status
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Outcome:
    """How a run ended, after how many steps, and what its last evaluation measured."""

    stop: Stop
    step: int
    measured: dict[str, float]


def make_model(workload: Workload, plan: Plan, device: torch.device) -> nn.Module:
    """The model as the seed makes it, the same in every precision: drawn in fp32 on the CPU; raises UsageError."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(stream_key(plan.seed, "model"))
        try:
            model = workload.build(**plan.model_args)
        except (TypeError, KeyError, ValueError, RuntimeError) as error:
            raise UsageError(f"{workload.name} does not take model_args = {plan.model_args}: {error}") from None
    return model.to(device=device, dtype=DTYPES[plan.precision])


def share_model(model: nn.Module, workers: Lone) -> None:
    """Give all ranks rank 0's parameters; processors of different kinds may draw different last bits."""
    with torch.no_grad():
        flat = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(workers.broadcast_(flat, "model"), model.parameters())


def run(plan: Plan, workload: Workload, data: Data, model: nn.Module, optimizer: torch.optim.Optimizer, workers: Lone,
        device: torch.device, journal: Silent, display: Quiet) -> Outcome:
    """Carry out the plan; what was measured is in the journal when this returns."""
    share_model(model, workers)
    take_step = DataParallelStep(plan, workload, data.train, model, optimizer, workers, device)
    splits = {"train": data.train.first(plan.train_eval_examples), "val": data.val, "test": data.test}
    evaluate = Evaluator(workload, splits, plan.eval_batch, workers, device)
    rest = tuple(split for split in SPLITS if split not in plan.eval_splits)
    schedule, stream, clock = plan.schedule, plan.stream, Clock(device)
    take_step.warm_up(plan.untimed_passes)

    step, stop, measured = 0, None, {}
    with votes_by_signal() as votes:
        while True:
            if stop is None and step == plan.budget_steps > 0:
                stop = Stop(Status.COMPLETE, f"budget of {step} steps spent", DONE)
            due = plan.evaluates_at(step) if stop is None else stop.status == Status.COMPLETE
            if due and not _finite(model, workers):
                stop = Stop(Status.INFEASIBLE, f"diverged: parameters are not finite at step {step}", DIVERGED)
            if due and plan.eval_every:
                journal.flush()
                measured = evaluate(model, SPLITS if stop else plan.eval_splits)
                if _meets(plan, measured) and (stop is None or stop.status == Status.COMPLETE):
                    measured |= {} if stop else evaluate(model, rest)
                    stop = Stop(Status.COMPLETE, f"target {plan.target} met at step {step}", DONE)
                journal.evaluation(step, stream.examples_before(step), clock.seconds, measured)
                display.evaluation(step, measured)
            if stop:
                break
            votes |= _wishes(plan, workers, clock, journal)
            lr = schedule.lr_at(step)
            with clock:
                result = take_step(step, lr, votes)
            step += 1
            journal.step(step, lr, result)
            display.step(step, stream.examples_before(step), clock.seconds, result.loss)
            stop = _stop_by_step(step, result, plan)
    journal.end(stop.status, stop.reason)
    return Outcome(stop, step, measured)


def _wishes(plan: Plan, workers: Lone, clock: Clock, journal: Silent) -> set[str]:
    """What this rank votes for."""
    wishes = {"log"} if journal.failure is not None else set()
    if plan.budget_seconds is not None and workers.rank == 0 and clock.seconds >= plan.budget_seconds:
        wishes.add("seconds")
    return wishes


def _meets(plan: Plan, measured: dict[str, float]) -> bool:
    """Whether an evaluation ends the run."""
    target = plan.stop_target
    return target is not None and not plan.keep_going and bool(target.met_by(measured[target.column]))


def _stop_by_step(step, result, plan) -> Stop | None:
    """Whether a step's outcome ends the run; the same on all ranks."""
    if not math.isfinite(result.loss):
        return Stop(Status.INFEASIBLE, f"diverged: the loss is {result.loss} at step {step}", DIVERGED)
    if "log" in result.votes:
        return Stop(Status.INCOMPLETE, "the log could not be written", FAILED)
    if "signal" in result.votes:
        return Stop(Status.INCOMPLETE, f"stopped by a signal after step {step}", PREEMPTED)
    if "seconds" in result.votes:
        return Stop(Status.COMPLETE, f"budget of {plan.budget_seconds:g} s spent at step {step}", DONE)
    return None


def _finite(model: nn.Module, workers: Lone) -> bool:
    """Whether all parameters are finite on all ranks; a collective."""
    with torch.no_grad():
        bad = torch.tensor([float(sum(not p.isfinite().all() for p in model.parameters()))])
    return workers.sum_(bad, "finite").item() == 0


@contextlib.contextmanager
def votes_by_signal() -> Iterator[set[str]]:
    """A set of votes, to which SIGTERM, SIGINT and SIGUSR1 add ``signal`` instead of ending the process."""
    votes: set[str] = set()
    previous = {number: signal.signal(number, lambda *_: votes.add("signal"))
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield votes
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Clock:
    """Seconds spent inside ``with clock:`` blocks, the device's queued work included."""

    def __init__(self, device: torch.device):
        self.seconds, self._device = 0.0, device

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._started
