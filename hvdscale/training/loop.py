"""The training loop: evaluate on the plan's grid, stop when the target is met or the budget is spent, else take a step.

All ranks decide together: a rank that wants to stop votes in the step's own allreduce.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator

import torch

from ..errors import ExitCode, HvdscaleError
from ..log.schema import PRUNED, Status
from ..plan.settle import AVERAGED
from ..system.hangup import has_readers, heed, note_stop, take_postponed
from ..target import SPLITS
from ..workers.group import Workers
from .checkpoint import Checkpoints
from .display import Display
from .prepare import Job
from .run_log import RunLog
from .snapshot import Outcome, RunState, Start, Stop


def train(job: Job, run_log: RunLog, display: Display, workers: Workers, checkpoints: Checkpoints | None = None,
          wish: Callable[[RunState], set[str]] | None = None) -> Outcome:
    """Carry out the job's plan from where the checkpoints say; all measurements are in the log when it returns. An
    error ends the trial INCOMPLETE there. Raises WorkerLostError if a worker is lost.

    wish  returns this rank's votes at the next step, given the progress, and handles signals; None: signals are votes
    """
    checkpoints = checkpoints or Checkpoints(Start())

    def break_off(reason: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        run_log.end(Status.INCOMPLETE, reason)
        checkpoints.end(Stop(Status.INCOMPLETE, reason, exit_code))

    workers.watch(break_off)
    try:
        return run(Loop(job, run_log, display, workers, checkpoints, wish))
    except HvdscaleError as error:
        break_off(str(error), error.exit_code)
        raise
    except (Exception, SystemExit) as error:
        break_off(f"{type(error).__name__}: {error}")
        raise
    finally:
        display.end()
        workers.watch(lambda reason: None)          # the outcome stays as it was recorded


class Loop:
    """The parts of the loop, and its progress. Each part may return a reason to stop, the same on all ranks."""

    def __init__(self, job: Job, run_log: RunLog, display: Display, workers: Workers, checkpoints: Checkpoints,
                 wish: Callable[[RunState], set[str]] | None):
        self.plan, self.stream, self.device = job.plan, job.plan.stream, job.device
        self.model, self.average, self.workers = job.model, job.average, workers
        self.run_log, self.display, self.checkpoints = run_log, display, checkpoints
        self.take_step, self.evaluator = job.start(workers)
        self.take_step.warm_up(self.plan.untimed_passes)
        self.done = checkpoints.restore(self.take_step)
        display.resume(self.done.measured)
        self.schedule = self.plan.schedule.after(self.done.followed)
        self.wish, self.signals = wish, set()
        self.agreed = tuple(self._seconds_spent())          # the seconds that are restored are rank 0's on all ranks

    def close(self) -> None:
        self.evaluator.loader.close()
        self.take_step.close()

    def budget_spent(self) -> Stop | None:
        step, plan = self.done.steps, self.plan
        if step == plan.budget_steps > 0:
            return Stop(Status.COMPLETE, f"budget of {step} steps spent", ExitCode.DONE)
        if "seconds" in self.agreed:
            return Stop(Status.COMPLETE, f"budget of {plan.budget_seconds:g} s spent at step {step}", ExitCode.DONE)
        return None

    def _seconds_spent(self) -> set[str]:
        budget = self.plan.budget_seconds
        return {"seconds"} if budget is not None and self.done.seconds >= budget else set()

    def evaluate(self, stop: Stop | None) -> Stop | None:
        """Evaluate at the steps of the plan, and at the end of a complete run; returns why to stop, if at all."""
        done, plan = self.done, self.plan
        if not (plan.evaluates_at(done.steps) if stop is None else stop.status == Status.COMPLETE):
            return stop
        if done.evaluated == done.steps:        # by the process that wrote the checkpoint
            return self._target_met(stop)
        with torch.no_grad(), self.take_step.evaluated():
            bad = torch.tensor([1.0 - all(p.sum().isfinite() or p.isfinite().all() for p in self.model.parameters())])
        if self.workers.sum_(bad, "finite").item():
            stop = Stop(Status.INFEASIBLE, f"diverged: parameters are not finite at step {done.steps}",
                        ExitCode.DIVERGED)
        if plan.eval_every:
            self.run_log.flush()
            started = time.perf_counter()
            done.evaluated, done.measured = done.steps, self._measure(SPLITS if stop else plan.eval_splits)
            before, stop = stop, self._target_met(stop)
            if stop and before is None:         # the last evaluation has all splits
                done.measured |= self._measure(tuple(split for split in SPLITS if split not in plan.eval_splits))
            self.run_log.evaluation(done.steps, self.stream.examples_before(done.steps), done.seconds, done.measured)
            self.display.evaluation(done.steps, done.measured, time.perf_counter() - started)
            self._follow_plateau()
        return stop

    def _follow_plateau(self) -> None:
        """Reduce the rate where the plan's plateau decay, which follows evaluations on the grid after warmup, does."""
        done, plan, followed = self.done, self.plan, self.done.followed
        counts = done.steps >= max(1, plan.schedule.falls_from) and plan.on_grid(done.steps)
        if plan.plateau is None or not counts or followed and followed[-1][0] == done.steps:
            return
        metric, before = plan.plateau["metric"], self.schedule.lr_at(done.steps)
        done.followed = (*followed, (done.steps, done.measured[metric]))
        self.schedule = plan.schedule.after(done.followed)
        if (lr := self.schedule.lr_at(done.steps)) != before:
            self.display.plateau(done.steps, metric, before, lr)

    def _measure(self, splits: tuple[str, ...]) -> dict[str, float]:
        with self.take_step.evaluated():
            found = self.evaluator(self.model, splits)
        if self.average:
            with self.average.applied():
                averaged = self.evaluator(self.model, splits)
            found |= {column.replace("/", f"/{AVERAGED}", 1): value for column, value in averaged.items()}
        return found

    def _target_met(self, stop: Stop | None) -> Stop | None:
        plan, done, target = self.plan, self.done, self.plan.stop_target
        if target is None or plan.keep_going or (stop and stop.status != Status.COMPLETE) or (
                not target.met_by(done.measured[target.column])):
            return stop
        return Stop(Status.COMPLETE, f"target {plan.target} met at step {done.steps}", ExitCode.DONE)

    def step(self) -> Stop | None:
        done, lr = self.done, self.schedule.lr_at(self.done.steps)
        started, votes = time.perf_counter(), self.signals | self.checkpoints.wishes()
        if not has_readers():
            votes.add("signal")
        if self.run_log.failure is not None:
            votes.add("log")
        if self.workers.rank == 0:
            votes |= self._seconds_spent()
        if self.wish:
            votes |= self.wish(done)
        try:
            result = self.take_step(done.steps, lr, votes)
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)             # its queued work counts
            done.seconds += time.perf_counter() - started
        done.steps, self.agreed = done.steps + 1, result.votes
        self.run_log.step(done.steps, lr, result)
        self.display.ranks(result.step_seconds, result.by_rank, result.measured["without_core_seconds"])
        if self.plan.scales_loss:
            self.display.scaled(result.measured["loss_scale"], self.take_step.scale.left_out)
        self.display.step(done.steps, done.seconds, result.loss)
        if not math.isfinite(result.loss):
            return Stop(Status.INFEASIBLE, f"diverged: the loss is {result.loss} at step {done.steps}",
                        ExitCode.DIVERGED)
        for vote, reason, exit_code in result.votes and (
                ("log", "the log could not be written", ExitCode.FAILED),
                ("signal", f"stopped by a signal after step {done.steps}", ExitCode.PREEMPTED),
                ("prune", f"{PRUNED} after step {done.steps}", ExitCode.DONE)):
            if vote in result.votes:
                return Stop(Status.INCOMPLETE, reason, exit_code)
        return None

    def end(self, stop: Stop) -> None:
        """Save the final state if checkpoints are kept, then record the outcome: no log says COMPLETE before."""
        if self.checkpoints.keeps_end(stop):
            self.checkpoints.save(self.done, self.take_step)
        self.take_step.finish()
        self.run_log.end(stop.status, stop.reason)


def run(loop: Loop) -> Outcome:
    with contextlib.nullcontext() if loop.wish else votes_by_signal(loop.signals), contextlib.closing(loop):
        stop = loop.evaluate(loop.budget_spent())
        while stop is None:
            loop.checkpoints.keep(loop.done, loop.take_step, loop.agreed)
            stop = loop.evaluate(loop.step() or loop.budget_spent())
        loop.end(stop)
        if stop.exit_code == ExitCode.PREEMPTED:
            note_stop()             # other ranks' signals may come later
    return Outcome(stop, loop.done.steps, loop.done.measured, loop.done.evaluated)


@contextlib.contextmanager
def votes_by_signal(votes: set[str]) -> Iterator[None]:
    """A context in which the signals of STOPPING are votes and do not end the process."""
    previous = heed(lambda *_: votes.add("signal"))
    if take_postponed():
        votes.add("signal")
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
