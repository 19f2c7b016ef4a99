"""Checkpoints: rank 0 writes the run's state to a temporary file, renames it, and keeps the newest few; and a model's
state dict in a file, which --save-model writes and --init-from reads.

    DIR/step-40.pt      plain values and tensors by torch.save; read with weights_only, so no code in it is executed
    DIR/outcome         JSON: how the last run here ended (launchers lose exit codes); absent during a run

The log's rows are synced to disk before a checkpoint is renamed, so a log never lacks rows that precede a checkpoint.
"""

import contextlib
import io
import json
import os
import pickle
import re
import time
import zipfile
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..data.splits import random_state
from ..errors import CheckpointError, ExitCode, HvdscaleError, LogError, UsageError
from ..formatting.numbers import list_first
from ..log.schema import Status
from ..plan.plan import Plan
from ..system.files import clear_leavings, remove, whole_file, write_whole
from ..system.inputs import input_text, open_input, read_input, refusal
from ..system.lock import Lock, describe, holder
from ..system.outputs import MODEL, Kind, refuse_foreign
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workloads.files import reading
from .display import Display
from .run_log import RunLog
from .snapshot import RunState, Start, Stop, capture, restore, state_of_all

FORMAT = 1
OUTCOME = "outcome"
ENDED = Kind("how a run ended", lambda head: head.lstrip()[:1] == b"{")
OF_FOLDER = re.compile(rf"step-\d+\.pt|{OUTCOME}|run\.lock")          # names of its files
FINAL = (ExitCode.DIVERGED, ExitCode.PREEMPTED)
SHOWN = 8           # names of each kind listed in an error


def listed(folder: str) -> list[tuple[int, str]]:
    """Step and path of each checkpoint in the folder, newest first; empty if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    found = [(re.fullmatch(r"step-(\d+)\.pt", name), name) for name in names]
    return sorted(((int(match[1]), os.path.join(folder, name)) for match, name in found if match), reverse=True)


def read(path: str) -> dict:
    """The state in a checkpoint; raises CheckpointError if it is missing, damaged or of an unknown format."""
    try:
        data = io.BytesIO(read_input(path))
        with zipfile.ZipFile(data) as parts:
            damaged = parts.testzip()               # torch does not verify the checksums
        data.seek(0)
        state = None if damaged else torch.load(data, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: {refusal(error)}") from None
    except pickle.UnpicklingError:                  # torch's message suggests loading it anyway
        raise CheckpointError(f"{path}: holds more than plain values and tensors, so it is not loaded") from None
    except Exception as error:                      # of zipfile and torch, of many types
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: is damaged or not a checkpoint: {reason}") from None
    if damaged:
        raise CheckpointError(f"{path}: is damaged: the checksum of {damaged} is wrong")
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{path}: is a torch file, but not a checkpoint of hvdscale-train")
    if state["format"] != FORMAT:
        raise CheckpointError(f"{path}: has checkpoint format {state['format']}, but this hvdscale reads {FORMAT}")
    return state


def read_plan(path: str) -> dict | None:
    """The plan in a checkpoint, without reading its tensors; None if it cannot be read (``read`` says why)."""
    with contextlib.suppress(Exception):            # as in ``read``
        open_input(path).close()
        return json.loads(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["plan"])
    return None


def write(path: str, state: dict) -> None:
    """Write a checkpoint whole or not at all; raises CheckpointError."""
    try:
        with whole_file(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:        # torch raises RuntimeError if the disk is full
        reason = error.strerror if isinstance(error, OSError) else f"the disk may be full ({error})".splitlines()[0]
        raise CheckpointError(f"{path}: cannot be written: {reason}") from None


def load_weights(model: nn.Module, path: str) -> None:
    """Load a file's state dict into the model; raises UsageError naming what does not match."""
    with reading(f"--init-from {path}", UsageError):
        data = read_input(path)
    try:
        given = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:           # of many types, and torch's message suggests loading it anyway
        given = None
    if not isinstance(given, dict) or not all(isinstance(values, Tensor) for values in given.values()):
        raise UsageError(f"--init-from {path}: is not a plain state dict of names and tensors, as "
                         "torch.save(model.state_dict(), FILE) writes")

    wanted = model.state_dict()
    shapes = [f"{name} {tuple(given[name].shape)} where the model has {tuple(wanted[name].shape)}"
              for name in wanted.keys() & given.keys() if given[name].shape != wanted[name].shape]
    wrong = [f"it {what} {list_first(sorted(names), SHOWN)}{also}" for what, names, also in (
        ("has no", wanted.keys() - given.keys(), ""),
        ("has", given.keys() - wanted.keys(), ", which the model lacks"), ("has other shapes:", shapes, "")) if names]
    if wrong:
        hint = ""
        if given and all(name.startswith("module.") for name in given):
            hint = "; DistributedDataParallel adds the prefix module.: save its .module.state_dict()"
        raise UsageError(f"--init-from {path} does not fit the model: {'; '.join(wrong)}{hint}")
    model.load_state_dict(given)


def save_weights(model: nn.Module, path: str) -> None:
    """Write the model's state dict, whole or not at all; raises CheckpointError, also for another file there."""
    refuse_foreign(path, MODEL, CheckpointError)
    write(path, {name: values.detach().cpu() for name, values in model.state_dict().items()})


def refuse_unwritable(path: str) -> None:
    """Raise UsageError if ``save_weights`` could not write, or would replace another file; called before training."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        reason = "is a folder" if os.path.isdir(path) else f"{folder} is not a writable folder"
        raise UsageError(f"--save-model {path}: {reason}")
    refuse_foreign(path, MODEL)


def final_outcome(folder: str) -> str | None:
    """How an earlier start of this launch of torchrun ended for good, in words; None: it did not, or was none. torchrun
    starts workers again whatever their exit code. A signal outside the steps (ERROR) is no end: torchrun sends it to
    the others when it has lost a worker."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        outcome = json.loads(input_text(os.path.join(folder, OUTCOME)))
        launch = os.environ["TORCHELASTIC_RUN_ID"], os.environ.get("SLURM_JOB_ID")
        if (outcome["torchrun"], outcome["job"]) == launch and outcome["exit_code"] in FINAL and (
                outcome["status"] != "ERROR"):
            return f"{outcome['status']}: {outcome['reason']}"
    return None


class CheckpointFolder(contextlib.AbstractContextManager):
    """The folder of a run's checkpoints, locked by rank 0 until the context ends. Raises CheckpointError if another run
    holds it."""

    def __init__(self, path: str, take_over: bool = False):
        self.path, run = path, os.path.join(path, "run")
        try:
            os.makedirs(path, exist_ok=True)
            clear_leavings(path)
            self._outcome = os.path.join(path, OUTCOME)
            refuse_foreign(self._outcome, ENDED, CheckpointError)
            self._lock = Lock.take(run, take_over)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be used for checkpoints: {error.strerror}") from None
        except LogError as error:
            owner = holder(run)
            raise CheckpointError(f"{path}: another run writes its checkpoints there: {describe(owner)}; wait for it "
                                  "to end, or choose another folder" if owner else str(error)) from None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._outcome)

    def place(self, step: int) -> str:
        return os.path.join(self.path, f"step-{step}.pt")

    def newest(self) -> str | None:
        return next((path for _, path in listed(self.path)), None)

    def note_outcome(self, stop: Stop, **more: object) -> None:
        """Write DIR/outcome; an error of the disk is ignored, as the log says the same."""
        self._note(stop.status.name, stop.reason, stop.exit_code, **more)

    def note_error(self, error: HvdscaleError, **more: object) -> None:
        """Write DIR/outcome with the status ERROR, unless the run that holds the folder has written one."""
        if not os.path.exists(self._outcome):
            self._note("ERROR", str(error), error.exit_code, **more)

    def _note(self, status: str, reason: str, exit_code: int, **more: object) -> None:
        launch = {"torchrun": os.environ["TORCHELASTIC_RUN_ID"]} if "TORCHELASTIC_RUN_ID" in os.environ else {}
        with contextlib.suppress(OSError, CheckpointError):
            outcome = {"status": status, "reason": reason, "exit_code": exit_code,
                       "job": os.environ.get("SLURM_JOB_ID"), "checkpoint": self.newest(), **launch, **more}
            write_whole(self._outcome, json.dumps(outcome, indent=1, ensure_ascii=False) + "\n")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Checkpoints:
    """The loop's interface to checkpoints; this base class, without a folder, writes none."""

    failure: CheckpointError | None = None      # why the newest state was not written; None: it was, or was not to be

    def __init__(self, start: Start):
        self._start = start

    def restore(self, take_step: DataParallelStep) -> RunState:
        """Restore the state that the run resumes from, if any, and release it."""
        state, self._start.state = self._start.state, None
        return RunState() if state is None else restore(state, take_step)

    def wishes(self) -> set[str]:
        """This rank's votes at the next step: ``checkpoint`` if one is due by its clock."""
        return set()

    def due(self, step: int, votes: tuple[str, ...]) -> bool:
        """Whether one is due now, after ``step`` steps, given the votes of the last step."""
        return False

    def keep(self, done: RunState, take_step: DataParallelStep, votes: tuple[str, ...]) -> None:
        """Save the run's current state if due, given the votes of the last step; a collective."""
        if self.due(done.steps, votes):
            self.save(done, take_step)

    def save(self, done: RunState, take_step: DataParallelStep) -> None:
        """Save the run's current state; a collective."""

    def keeps_end(self, stop: Stop) -> bool:
        """Whether to save the state of a run that has stopped."""
        return stop.status != Status.INFEASIBLE

    def end(self, stop: Stop) -> None:
        """Record how the run ended."""


class FolderCheckpoints(Checkpoints):
    """Checkpoints in a folder, which only rank 0 holds; also at these steps."""

    def __init__(self, start: Start, plan: Plan, folder: CheckpointFolder | None, run_log: RunLog, display: Display,
                 workers: Workers, at: tuple[int, ...] = ()):
        super().__init__(start)
        self.at = at
        self.plan, self.folder, self.run_log, self.display, self.workers = plan, folder, run_log, display, workers
        self.failures: list[str] = []
        self._kept_at, self._last = start.step if start.in_folder else None, time.monotonic()
        if folder is not None:
            for path in self._beyond_kept(start.step) if start.in_folder else [path for _, path in listed(folder.path)]:
                remove(path)

    def wishes(self):
        every = self.plan.checkpoint_seconds
        due = self.workers.rank == 0 and every is not None and time.monotonic() - self._last >= every
        return {"checkpoint"} if due else set()

    def due(self, step, votes):
        every = self.plan.checkpoint_every
        return step != self._kept_at and (
            self._kept_at is None or (every > 0 and step % every == 0) or "checkpoint" in votes or step in self.at)

    def save(self, done, take_step):
        if done.steps == self._kept_at:
            return
        started = time.monotonic()
        generators = self.workers.gather(random_state(take_step.device), "checkpoint")
        of_step = state_of_all(take_step, self.workers, keep=self.folder is not None)
        if self._kept_at is None:                   # fail at the first step if checkpoints cannot be written
            with self.workers.together("the first checkpoint"):
                self._write(done, generators, take_step, of_step)
        else:
            try:
                self._write(done, generators, take_step, of_step)
                self.failure = None
            except CheckpointError as error:
                self.failure = error
                self.failures.append(str(error))
                self.display.say(f"Warning: {error}; the newest checkpoint is {self.folder.newest()}")
        self._kept_at, self._last = done.steps, time.monotonic()
        self.display.checkpoint(self._last - started)

    def _write(self, done, generators, take_step, of_step) -> None:
        if self.folder is None:
            return
        self.run_log.flush(sync=True)
        if self.run_log.failure is not None:
            done = replace(done, evaluated=-1, measured={})     # its evaluation may not be in the log
        state = {**capture(done, take_step, of_step), "random": generators, "format": FORMAT,
                 "plan": json.dumps(self.plan.as_record({})), "log": self.run_log.place()}
        write(self.folder.place(done.steps), state)
        # later ones are damaged, or belong to steps that are being retaken
        for path in [path for at, path in listed(self.folder.path) if at > done.steps] + self._beyond_kept(done.steps):
            remove(path)

    def _beyond_kept(self, step: int) -> list[str]:
        """The checkpoints up to this step but for the newest ones, which are kept."""
        return [path for at, path in listed(self.folder.path) if at <= step][self.plan.keep_checkpoints:]

    def end(self, stop):
        if self.folder is not None:
            if self.failures:
                self.display.say(f"{len(self.failures)} of the checkpoints could not be written; the newest is "
                                 f"{self.folder.newest()}")
            self.folder.note_outcome(stop, log=self.run_log.path, failed_checkpoints=self.failures)
