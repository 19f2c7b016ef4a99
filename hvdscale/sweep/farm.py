"""A group's share of a sweep: it takes trials from the ledger, one by one, until none is left for it. All groups of all
jobs share one ledger, so their number does not affect the outcome.

A trial is trained as by hvdscale-train, with its rows in its group's log. It writes checkpoints to OUT/checkpoints by
time only. It may resume in another group's log; its pieces list them.
"""

import contextlib
import gc
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import (CheckpointError, ExitCode, FaultError, HvdscaleError, LogError, PlanError, TrialsError,
                      WorkerLostError, WorkersError)
from ..log.schema import INTERRUPTED, PRUNED, Status
from ..log.writer import LogWriter
from ..plan.job import without_lines
from ..plan.search_space import DrawEnd
from ..training.checkpoint import CheckpointFolder, Checkpoints, FolderCheckpoints, listed, read
from ..training.display import Display
from ..training.loop import train
from ..training.prepare import Job, prepare
from ..training.resume import shared
from ..training.run_log import NoLog, RunLog, open_log
from ..training.snapshot import Outcome, RunState, Start, Stop
from ..workers.group import Workers
from ..workload import Data
from .ledger import FIRST_REPEAT, DrawResult, Ledger, Owner
from .pruning import StudyState, failed_alike, threshold, winner
from .studies import Study

POLL_SECONDS, FLUSH_SECONDS = 0.5, 10.0     # the latter between writes of a long trial's rows, at evaluations
STEP_EXAMPLES = 32      # assumed fixed cost of a step in examples, until trials were timed
Claim = tuple[str, int, int]        # a trial that this group has claimed: study, number, attempt
WAIT, NONE = "wait", "none"
LOOK_SECONDS = 0.5      # between two reads of the other groups' results


class TrialLog(RunLog):
    """A trial's rows in /trials, /restarts and /evaluations, but no steps: written at checkpoints and at its end."""

    starts_on_disk = False
    _waited = math.nan              # the share without a core at the last step that looked at the host

    def __init__(self, writer: LogWriter, trial: int, job: Job, record: dict, start: Start, more: dict, study: Study,
                 result: DrawResult):
        super().__init__(writer, trial, job.plan, record, start, more)
        self.sweep, self.minimizes, self.result = study.sweep, study.minimizes, result

    def place(self):
        result = self.result
        return {**super().place(), "pieces": list(map(list, result.pieces)), "steps": result.steps, "best": result.best}

    def evaluation(self, step, examples, train_seconds, measured):
        super().evaluation(step, examples, train_seconds, {**measured, "waited_seconds": self._waited * train_seconds})
        result = self.result
        for target in self.sweep.targets:
            if str(target) not in result.steps and target.met_by(measured[target.column]):
                result.steps[str(target)] = step
        value = math.nan if self.sweep.by_steps else measured[self.sweep.objective]
        if not math.isnan(value):
            better = min if self.minimizes else max
            result.best = value if math.isnan(result.best) else better(result.best, value)

    def flush(self, sync=False):
        if sync:                                # otherwise unnecessary: a killed trial resumes a checkpoint
            super().flush(sync)

    def step(self, step, lr, result):
        self.result.last_step = step
        if not math.isnan(waits := result.measured["without_core_seconds"]):
            self._waited = waits / result.step_seconds

    def end(self, status, reason):
        super().end(status, reason)
        self.flush(sync=True)                   # on disk before its result


class TrialCheckpoints(FolderCheckpoints):
    """A trial's checkpoints: by time, and when a signal stops it."""

    def keeps_end(self, stop):
        return stop.exit_code == ExitCode.PREEMPTED

    end = Checkpoints.end


class StopVote:
    """A rank's vote at a step: to stop at a signal, or if the trial can no longer be among the best. If an evaluation
    at or beyond the threshold did not meet the target, no later one can."""

    def __init__(self, threshold: Callable[[], float], stopping: Callable[[], bool]):
        self._threshold, self._stopping = threshold, stopping
        self._seen, self._looked, self._known = -1, -math.inf, math.inf

    def __call__(self, done: RunState) -> set[str]:
        if self._stopping():
            return {"signal"}
        if done.evaluated == self._seen:
            return set()
        self._seen, now = done.evaluated, time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            with contextlib.suppress(LogError):     # raised on all ranks together before the next trial
                self._known = self._threshold()
        return {"prune"} if done.evaluated >= self._known else set()


class TrialFolder(CheckpointFolder):
    """A trial's checkpoint folder, created with the first one."""

    def __init__(self, path: str):
        self.path = path

    def place(self, step):
        os.makedirs(self.path, exist_ok=True)
        return super().place(step)


def _kind(stop: Stop, result: DrawResult, study: Study) -> DrawEnd:
    if stop.status == Status.INFEASIBLE:
        return DrawEnd.DIVERGED
    if stop.reason.startswith(PRUNED):
        return DrawEnd.PRUNED
    if stop.status != Status.COMPLETE:
        return DrawEnd.FAILED
    targets = study.sweep.targets
    return DrawEnd.MET if targets and str(targets[-1]) in result.steps else DrawEnd.BUDGET


class SweepState:
    """The state of the studies according to the ledger at the time of the call. Methods raise LogError."""

    def __init__(self, studies: Sequence[Study], ledger: Ledger):
        self.studies, self.ledger = {study.name: study for study in studies}, ledger
        self.closed: set[str] = set()       # studies that have their log: see collect
        self._states: dict[str, tuple[Mapping[int, DrawResult], StudyState]] = {}      # each of these results

    def of(self, study: Study) -> StudyState:
        results, spec = self.ledger.results(study.name), study.spec
        known, state = self._states.get(study.name, (None, None))
        if state is None or known is not results:
            state = StudyState(spec.trials, spec.max_draws, study.target, study.sweep.keep)
            self._states[study.name] = results, state
        return state.extend(results)

    def winner(self, study: Study) -> DrawResult | None:
        return winner(self.of(study).results, study.target, study.minimizes)

    def repeats(self, study: Study) -> range:
        """Numbers of the winner's repeats, once the winner is final."""
        best = self.winner(study) if self.of(study).done else None
        if best is None:
            return range(0)
        first = FIRST_REPEAT + 100 * best.number + 1
        return range(first, first + study.sweep.repeats)

    def open(self, study: Study) -> list[int]:
        """Numbers of the trials that certainly belong to the study, and have no result."""
        state, results = self.of(study), self.ledger.results(study.name)
        return [number for number in (*range(len(state.results), state.limit), *self.repeats(study))
                if number not in results]

    def threshold(self, study: Study, number: int) -> float:
        """The number of steps at which a trial may be stopped, as known now; see pruning.threshold."""
        keep = None if number >= FIRST_REPEAT else study.sweep.keep
        return threshold(self.ledger.results(study.name), number, study.target, keep)

    def expected_seconds(self) -> dict[str, float]:
        """Each study's expected seconds a trial: the mean of finished ones, else scaled from other studies by size."""
        states = {name: self.of(study) for name, study in self.studies.items()}
        known = {name: state.seconds / state.timed for name, state in states.items() if state.timed}
        sizes = {name: max(1, study.budget_steps) * (study.spec.global_batch + STEP_EXAMPLES)
                 for name, study in self.studies.items()}
        rate = sum(known.values()) / sum(sizes[name] for name in known) if known else 1.0
        return {name: known.get(name, rate * sizes[name]) for name in self.studies}


class Farm:
    """One group's work. All its ranks make the same calls; only rank 0 has an owner in the ledger, and calls ``tick``
    now and then. It waits for running trials of the same launch, which may need a replacement or another attempt, but
    not for those of other jobs. accepted: earlier jobs that count as this one"""

    def __init__(self, state: SweepState, data: Data, group: Workers, owner: Owner | None, display: Display,
                 tick: Callable[[], None], stopping: Callable[[], bool], accepted: Mapping[str, str] = {}):
        self.state, self.data, self.group, self.owner = state, data, group, owner
        self.display, self.tick, self.stopping, self.accepted = display, tick, stopping, dict(accepted)
        searched = {parameter.name for study in state.studies.values() for parameter in study.space}
        self._tables = sorted(name for name in searched if "." in name)
        self._writer: LogWriter | None = None
        self._begun, self._result, self._started = 0, DrawResult(-1), 0.0       # trials; of the one that runs

    def work(self) -> bool:
        """Run trials until none is left for this group; False if a signal stopped it. Raises LogError if the ledger or
        the log fails, TrialsError if all trials of a study fail alike, WorkerLostError or FaultError if the group is
        broken."""
        gc.freeze()         # what there is stays: gc.collect before each trial skips it
        while True:
            task: Claim | str = WAIT
            with self.group.together("the ledger"):
                if self.group.rank == 0:
                    with self.state.ledger.one_look():
                        self.tick()
                        task = self._next()
            gathered = self.group.gather((task, self.stopping()), "task")
            task = gathered[0][0]
            if any(stop for _, stop in gathered):
                if isinstance(task, tuple):
                    self._release(*task)
                return False
            if isinstance(task, tuple):
                if not self._carry_out(*task):
                    return False
            elif task == WAIT:
                time.sleep(POLL_SECONDS)
            else:
                return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.finish()
            self._writer = None

    def let_go(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def _next(self) -> Claim | str:
        """Claim the next trial, if any, from the study with the longest trials first."""
        state, waits = self.state, False
        expected = state.expected_seconds()
        for name in sorted(state.studies, key=lambda name: (-expected[name], name)):
            finished, running = state.ledger.results(name), state.ledger.running(name)
            if reason := failed_alike(finished.values()):
                raise TrialsError(f"{name}: all of its {len(finished)} trials failed alike: {reason}\nFix this, take "
                                  "them back with --retry, and start again")
            for number in state.open(state.studies[name]):
                if number in running:
                    continue
                if (attempt := state.ledger.claim(name, number, self.owner)) is not None:
                    return name, number, attempt
                if state.ledger.lost(name, number):
                    state.ledger.record(name, DrawResult(number, DrawEnd.LOST, "the process that ran it was killed, "
                                                         "time after time", owner=self.owner.name))
                waits = True
            waits = waits or any(claim["job"] == self.owner.job for claim in running.values())
        return WAIT if waits else NONE

    def _carry_out(self, name: str, number: int, attempt: int) -> bool:
        """Run the trial to its end; False if a signal stopped it, so that another group may claim it."""
        study = self.state.studies[name]
        folder = os.path.join(self.state.ledger.out, "checkpoints", f"{name}-{number}")
        try:
            result = self._run(study, number, folder)
        except (WorkerLostError, FaultError) as error:
            if self.group.size == 1:
                raise
            self.group.reform()             # if a rank is lost for good, the others end here
            errors = self.group.gather(str(error) if isinstance(error, FaultError) else "", "what went wrong")
            result = self._end(study, DrawEnd.FAILED, next(filter(None, errors), str(error)))
        except BaseException:
            self._release(name, number, attempt)
            raise
        if result is None:
            self._release(name, number, attempt)
        elif self.group.rank == 0:
            self.state.ledger.record(name, result)
            shutil.rmtree(folder, ignore_errors=True)
        return result is not None

    def _run(self, study: Study, number: int, folder: str) -> DrawResult | None:
        """Run a trial, with its checkpoints in the folder; returns its result, None if a signal has stopped it. Raises
        errors that are not the trial's fault, WorkerLostError or FaultError if ranks diverge."""
        self._result = DrawResult(number, owner=self.owner.name if self.owner else "")
        self._started = time.monotonic()
        gc.collect()        # the last trial's model is in reference cycles and would stay for many trials
        gc.freeze()         # so do other trials' results
        layers = study.layers(number, folder)
        if self.accepted:
            layers[-1]["accepted"] = self.accepted
        try:
            outcome = self._train(prepare(study.sweep.workload, layers, self.group, self.data), study, number, folder)
        except (WorkersError, FaultError, LogError, CheckpointError, PlanError):
            raise                               # not the trial's fault: its plan was settled before
        except HvdscaleError as error:
            return self._end(study, DrawEnd.FAILED, str(error))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
            if self.group.size > 1:
                raise FaultError(reason) from error
            return self._end(study, DrawEnd.FAILED, reason)
        if outcome.stop.exit_code == ExitCode.PREEMPTED:
            return None
        self._result.last_step = outcome.step
        return self._end(study, _kind(outcome.stop, self._result, study), outcome.stop.reason)

    def _end(self, study: Study, kind: DrawEnd, reason: str) -> DrawResult:
        result = self._result
        result.kind, result.reason, result.seconds = kind, reason, time.monotonic() - self._started
        result.steps = {str(target): result.steps_to(str(target)) for target in study.sweep.targets}
        return result

    def _train(self, job: Job, study: Study, number: int, folder: str) -> Outcome:
        start = self._start(folder)
        with self.group.together("the log"):
            run_log = self._run_log(job, study, number, start)
        first = self.group.rank == 0
        checkpoints = TrialCheckpoints(replace(start, in_folder=True), job.plan, TrialFolder(folder) if first else None,
                                       run_log, self.display, self.group)
        vote = StopVote(lambda: self.state.threshold(study, number) if first else math.inf, self.stopping)
        outcome = train(job, run_log, self.display, self.group, checkpoints, vote)
        with self.group.together("the log"):
            if run_log.failure is not None:
                raise run_log.failure
        return outcome

    def _start(self, folder: str) -> Start:
        found = Start()
        for step, path in listed(folder) if self.group.rank == 0 else ():
            with contextlib.suppress(CheckpointError):
                found = Start(checkpoint=path, step=step, state=read(path), previous_end=INTERRUPTED)
                break
        start = shared(found, self.group)
        if start.state is not None:
            log = start.state["log"]
            self._result = replace(self._result, pieces=tuple(map(tuple, log["pieces"])), steps=dict(log["steps"]),
                                   best=log["best"], last_step=start.step)
        return start

    def _run_log(self, job: Job, study: Study, number: int, start: Start) -> RunLog:
        if self.group.rank:
            return NoLog()
        if self._writer is None:
            path = os.path.join(self.state.ledger.out, "logs", f"{self.owner.name}.h5")
            self._writer = open_log(path, job.plan, job.workload.metrics, self.group.versions(), self._tables,
                                    optional=("waited_seconds",), flush_seconds=FLUSH_SECONDS)
        trial, self._begun = self._begun, self._begun + 1
        record = {**job.plan.as_record({"workload": study.sweep.workload, **job.settings.asked()}),
                  "job": without_lines(job.plan.job), "sweep": study.record(number)}
        point = study.points[study.draw_of(number)[0]]
        searched = {name: float(point[name]) if isinstance(point.get(name), (int, float)) else math.nan
                    for name in self._tables}
        run_log = TrialLog(self._writer, trial, job, record, start, searched, study, self._result)
        self._result.pieces += ((os.path.basename(self._writer.path), trial),)
        return run_log

    def _release(self, name: str, number: int, attempt: int) -> None:
        if self.group.rank == 0:
            self.state.ledger.release(name, number, attempt)
