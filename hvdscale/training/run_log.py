"""The run's rows in its log, written by rank 0; on the other ranks the same calls do nothing.

If the log cannot be written, rank 0 must not stop alone: it keeps the failure and votes to stop at the next step, so
all ranks leave together.
"""

import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from .. import __version__
from ..errors import LogError
from ..log.schema import DIRECTIONS, Status
from ..log.writer import LogWriter
from ..plan.plan import Plan
from ..plan.settle import with_averaged
from ..system.ancestors import startup_seconds
from ..system.version import commit_of
from ..target import SPLITS
from ..update.step import StepResult
from .snapshot import Start

TRIAL = 0       # a training run's log holds one trial


def open_log(path: str, plan: Plan, metrics: Mapping[str, str], group: dict[str, str], more: Iterable[str] = (),
             optional: Iterable[str] = (), **how: bool | float) -> LogWriter:
    """A log for trials of plans like this one; group: versions of the transport; how: see LogWriter."""
    metrics, commit = with_averaged(metrics, plan.average), commit_of(".")
    versions = {"hvdscale": __version__, "python": platform.python_version(), "torch": torch.__version__,
                "numpy": np.__version__, **group}
    columns = {f"{split}/{name}": DIRECTIONS[way] for split in SPLITS for name, way in metrics.items()}
    return LogWriter(path, metrics=columns, metaparameters=(*plan.metaparameters(), *more),
                     optional=("startup_seconds", *optional),
                     attributes={"versions": versions, **({"commit": commit} if commit else {})}, **how)


class RunLog:
    """Rank 0's rows of one trial in an open log, of which it writes the first at once; raises LogError if it cannot."""

    failure: LogError | None = None     # why the log could not be written; later rows are dropped
    starts_on_disk = True           # whether the first rows are written at once

    def __init__(self, writer: LogWriter, trial: int, plan: Plan, record: dict, start: Start,
                 more: Mapping[str, float] = {}):
        self.path, self.log_id = writer.path, writer.log_id
        self._writer, self._trial = writer, trial
        writer.append("trials", id=trial, status=Status.RUNNING, stop_reason="", dataset=plan.dataset, model=plan.model,
                      optimizer=plan.optimizer, global_batch=plan.global_batch, local_batch=plan.local_batch,
                      accumulation=plan.accumulate, ghost_batch=plan.ghost_batch, workers=plan.workers, seed=plan.seed,
                      budget_steps=plan.budget_steps, plan=json.dumps(record),
                      **{f"metaparameters/{name}": value for name, value in {**plan.metaparameters(), **more}.items()})
        writer.append("restarts", trial=trial, first_step=start.step, workers=plan.workers, host=socket.gethostname(),
                      device=torch.cuda.get_device_name() if plan.device == "cuda" else plan.device, time=time.time(),
                      previous_end=start.previous_end, startup_seconds=startup_seconds())
        if self.starts_on_disk:
            writer.flush(sync=True)

    def place(self) -> dict:
        return {"path": os.path.abspath(self.path), "id": self.log_id}

    def evaluation(self, step: int, examples: int, train_seconds: float, measured: Mapping[str, float]) -> None:
        self._write("append", "evaluations", trial=self._trial, step=step, examples=examples,
                    train_seconds=train_seconds, **measured)
        self.flush()

    def step(self, step: int, lr: float, result: StepResult) -> None:
        """Add one row to /steps; ``step`` counts the steps including this one."""
        self._write("append", "steps", trial=self._trial, step=step, loss=result.loss, lr=lr,
                    step_seconds=result.step_seconds, **result.measured)

    def flush(self, sync: bool = False) -> None:
        self._write("flush", sync)

    def end(self, status: Status, reason: str) -> None:
        self._write("set_status", self._trial, status, reason)

    def close(self) -> None:
        self._write("finish")

    def let_go(self) -> None:
        """Leave the log unfinished, for another process or attempt to continue."""
        self._writer.abandon()

    def _write(self, method: str, *row, **values):
        if self.failure is None:
            try:
                getattr(self._writer, method)(*row, **values)
            except LogError as error:
                self.failure = error
                self._writer.abandon()


class NoLog(RunLog):
    path, log_id, _trial = "", "", TRIAL

    def _write(self, *row, **values):
        pass

    __init__ = let_go = _write
