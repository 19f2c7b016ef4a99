"""The training loop: evaluate on the plan's grid, stop when the target is met or the budget is spent, else take a step.

A decision is taken by all ranks together: a rank's wish to leave travels as a vote in the step's own allreduce.
"""
from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ..log.schema import PRUNED, Status
from ..plan.plan import Plan
from ..target import SPLITS
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workload import Data, Workload
from .checkpoint import Checkpoints
from .display import Quiet
from .evaluate import Evaluator
from .outcome import DIVERGED, DONE, FAILED, PREEMPTED, Outcome, Stop
from .run_log import Silent
from .snapshot import Progress


def run(plan: Plan, workload: Workload, data: Data, model: nn.Module, optimizer: torch.optim.Optimizer,
        workers: Workers, device: torch.device, journal: Silent, display: Quiet, checkpoints: Checkpoints,
        wish: Callable[[Progress], set[str]] | None = None) -> Outcome:
    """Carry out the plan from where the checkpoints say; what was measured is in the journal when this returns.

    wish  what this rank votes for at the next step, after what is done; signals are its, too. None: signals alone
    """
    take_step = DataParallelStep(plan, workload, data.train, model, optimizer, workers, device)
    evaluate = Evaluator(workload, data.evaluated(plan.train_eval_examples), plan.eval_batch, workers, device,
                         plan.precision, plan.loader_workers)
    rest = tuple(split for split in SPLITS if split not in plan.eval_splits)
    schedule, stream = plan.schedule, plan.stream
    take_step.warm_up(plan.untimed_passes)
    done = checkpoints.restore(model, optimizer, take_step)
    clock = Clock(device, done)

    stop, agreed = None, ()
    noting = votes_by_signal() if wish is None else contextlib.nullcontext(set())
    with noting as votes, contextlib.closing(take_step.feed), contextlib.closing(evaluate.loader):
        while True:
            if stop is None and done.steps == plan.budget_steps > 0:
                stop = Stop(Status.COMPLETE, f"budget of {done.steps} steps spent", DONE)
            due = plan.evaluates_at(done.steps) if stop is None else stop.status == Status.COMPLETE
            due = due and done.evaluated != done.steps
            if due and not _finite(model, workers):
                stop = Stop(Status.INFEASIBLE, f"diverged: parameters are not finite at step {done.steps}", DIVERGED)
            if due and plan.eval_every:
                journal.flush()
                done.evaluated, done.measured = done.steps, evaluate(model, SPLITS if stop else plan.eval_splits)
                if _meets(plan, done.measured) and (stop is None or stop.status == Status.COMPLETE):
                    done.measured |= {} if stop else evaluate(model, rest)
                    stop = Stop(Status.COMPLETE, f"target {plan.target} met at step {done.steps}", DONE)
                journal.evaluation(done.steps, stream.examples_before(done.steps), done.seconds, done.measured)
                display.evaluation(done.steps, done.measured)
            if stop:
                break
            checkpoints.commit(done, model, optimizer, take_step, agreed)
            if checkpoints.due(done.steps, agreed):
                checkpoints.save(done, model, optimizer, take_step)
            lr = schedule.lr_at(done.steps)
            with clock:
                wishes = _wishes(plan, workers, done, journal, checkpoints) | (wish(done) if wish else set())
                result = take_step(done.steps, lr, votes | wishes)
            done.steps, agreed = done.steps + 1, result.votes
            journal.step(done.steps, lr, result)
            display.step(done.steps, stream.examples_before(done.steps), done.seconds, result.loss)
            stop = _stop_by_step(done.steps, result, plan)
        journal.end(stop.status, stop.reason)
        if checkpoints.keeps_end(stop):
            checkpoints.save(done, model, optimizer, take_step)
    return Outcome(stop, done.steps, done.measured, done.evaluated)


def _wishes(plan: Plan, workers: Workers, done: Progress, journal: Silent, checkpoints: Checkpoints) -> set[str]:
    """What this rank votes for at this step."""
    wishes = checkpoints.wishes() | ({"log"} if journal.failure is not None else set())
    if plan.budget_seconds is not None and workers.rank == 0 and done.seconds >= plan.budget_seconds:
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
    if "prune" in result.votes:
        return Stop(Status.INCOMPLETE, f"{PRUNED} after step {step}", DONE)
    if "seconds" in result.votes:
        return Stop(Status.COMPLETE, f"budget of {plan.budget_seconds:g} s spent at step {step}", DONE)
    return None


def _finite(model: nn.Module, workers: Workers) -> bool:
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
    """Counts the seconds inside ``with clock:`` blocks as done, the device's queued work included."""

    def __init__(self, device: torch.device, done: Progress):
        self._device, self._done = device, done

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._done.seconds += time.perf_counter() - self._started
