"""The run's rows in its log, written by rank 0; on the other ranks the same calls do nothing.

A log that cannot be written does not stop rank 0 alone: it is noted here, voted on at the next step, and all leave.
"""
from __future__ import annotations

import json
import platform
import socket
import subprocess
import time
from collections.abc import Iterable

from . import __version__
from .ends import Start
from .errors import LogError
from .log.schema import Status
from .log.writer import LogWriter
from .plan import Plan
from .step import StepResult
from .target import SPLITS

TRIAL = 0       # a training run's log holds one trial
PARTS = ("data_seconds", "compute_seconds", "communication_seconds")


class Silent:
    """The journal of the ranks above 0."""

    path = log_id = ""
    failure: LogError | None = None

    def evaluation(self, step: int, examples: int, train_seconds: float, measured: dict[str, float]) -> None:
        """One row of /evaluations."""

    def step(self, step: int, lr: float, result: StepResult) -> None:
        """One row of /steps; ``step`` counts it."""

    def flush(self, sync: bool = False) -> None:
        """Bring all rows into the file, before a pause in which none follow; ``sync``: and onto the disk."""

    def end(self, status: Status, reason: str) -> None:
        """The trial's end; the last row."""

    def close(self) -> None:
        """Make the log whole, nothing follows."""

    def let_go(self) -> None:
        """Leave the log as it stands for another process, or another journal, to go on with."""


class Journal(Silent):
    """Rank 0's: opens the log and writes the trial's first rows; raises LogError where that cannot be done.

    group  versions of what joins the workers;  noise  see noise.log_columns
    start  where the run starts, and whether in a log that is there
    """

    def __init__(self, path: str, plan: Plan, asked: dict, metrics: Iterable[str], overwrite: bool, take_over: bool,
                 group: dict[str, str], noise: dict[str, tuple[str, ...]], start: Start):
        self.path = path
        settled = plan.metaparameters()
        self._parts = PARTS if plan.device == "cpu" else PARTS[:1]
        self._writer = LogWriter(path, metrics=[f"{split}/{metric}" for split in SPLITS for metric in metrics],
                                 metaparameters=tuple(settled),
                                 optional_steps=(*self._parts, *noise["optional_steps"]),
                                 layer_groups=noise["layer_groups"],
                                 attributes={"versions": {**versions(), **group}, **commit()}, overwrite=overwrite,
                                 take_over=take_over, resume=start.log_goes_on)
        self.log_id = self._writer.log_id
        self._writer.append(
            "trials", id=TRIAL, status=Status.RUNNING, stop_reason="", dataset=plan.dataset, model=plan.model,
            optimizer=plan.optimizer, global_batch=plan.global_batch, local_batch=plan.local_batch,
            accumulation=plan.accumulate, ghost_batch=plan.ghost_batch, workers=plan.workers, seed=plan.seed,
            budget_steps=plan.budget_steps, plan=json.dumps(plan.as_record(asked)),
            **{f"metaparameters/{name}": value for name, value in settled.items()})
        self._writer.append("restarts", trial=TRIAL, first_step=start.step, workers=plan.workers,
                            host=socket.gethostname(), device=plan.device, time=time.time(),
                            previous_end=start.previous_end)
        self._writer.flush(sync=True)

    def evaluation(self, step, examples, train_seconds, measured):
        self._write(self._writer.append, "evaluations", trial=TRIAL, step=step, examples=examples,
                    train_seconds=train_seconds, **measured)
        self.flush()

    def step(self, step, lr, result):
        parts = {name: getattr(result, name) for name in self._parts}
        self._write(self._writer.append, "steps", trial=TRIAL, step=step, loss=result.loss, lr=lr,
                    step_seconds=result.step_seconds, **parts, **result.noise)

    def flush(self, sync=False):
        self._write(self._writer.flush, sync)

    def end(self, status, reason):
        self._write(self._writer.set_status, TRIAL, status, reason)

    def close(self):
        if self.failure is None:
            self._write(self._writer.finish)

    def let_go(self):
        self._writer.abandon()

    def _write(self, what, *row, **values):
        if self.failure is None:
            try:
                what(*row, **values)
            except LogError as error:
                self.failure = error
                self._writer.abandon()


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    import numpy
    import torch
    return {"hvdscale": __version__, "python": platform.python_version(), "torch": torch.__version__,
            "numpy": numpy.__version__}


def commit() -> dict[str, str]:
    """The commit of the repository that the job is started in, with + where files differ from it; nothing elsewhere."""
    try:
        said = subprocess.run(["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"], text=True,
                              capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {"commit": said.stdout.strip()} if said.returncode == 0 else {}
