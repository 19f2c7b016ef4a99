"""A log as TensorBoard's event files. Needs tensorboard, but neither torch nor TensorFlow.

    export_events("w8.h5", "tb/w8")     then: tensorboard --logdir tb

Each trial is a run, named by its workers, batch and id. Scalars by step are ``<split>/<metric>`` of its evaluations,
``evaluations/train_seconds``, and the columns of its steps, such as ``steps/loss``; metaparameters are TensorBoard's
hparams. An event's time is the trial's start and the training seconds since, evaluation left out; of an imported log,
whose start is unknown, the seconds alone. TensorBoard keeps 32 bits of a scalar; NaN is left out.
"""
from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import UsageError
from ..log.reader import Log, LogTable
from ..log.schema import UNKNOWN_SEED, Status
from ..system.importing import import_extra
from .exported import exporting, metaparameters_of, row_of, start_seconds

NEED = "--as tensorboard"
QUEUE = 1000                    # events that the writer's thread may lag behind
ABOUT = ("dataset", "model", "optimizer", "global_batch", "workers", "seed")
SECONDS = "evaluations/train_seconds"


@dataclass(frozen=True)
class Written:
    """The number of runs and of scalars written."""

    trials: int
    scalars: int


def export_events(path, out, progress: Callable[[float], None] = lambda share: None) -> Written:
    """Write a run for each trial of the log into the new folder ``out``, see ``exporting``.

    Raises UsageError without tensorboard, and for a name that it cannot write to.
    """
    writer = _Writer()
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{out}: TensorBoard writes to no folder whose name is not UTF-8; choose another") from None
    with exporting(path, out) as (log, folder), _silent_threads():
        ids, scalars = log.trials["id"], 0
        for row, trial in enumerate(ids.tolist()):
            workers, batch = (log.trials[name][row] for name in ("workers", "global_batch"))
            scalars += writer.write(os.path.join(folder, f"w{workers}-b{batch}-trial{trial}"), log, row)
            progress((row + 1) / len(ids))
        return Written(len(ids), scalars)


@contextmanager
def _silent_threads() -> Iterator[None]:
    """Without tracebacks from the writer's thread: what it raises, such as for a full disk, the writer raises again."""
    before, threading.excepthook = threading.excepthook, lambda raised: None
    try:
        yield
    finally:
        threading.excepthook = before


class _Writer:
    """TensorBoard's own writer and messages; raises UsageError where they cannot be imported."""

    def __init__(self) -> None:
        self._files: Any = import_extra("tensorboard.summary.writer.event_file_writer", NEED)
        self._event: Any = import_extra("tensorboard.compat.proto.event_pb2", NEED).Event
        self._summary: Any = import_extra("tensorboard.compat.proto.summary_pb2", NEED).Summary
        self._hparams: Any = import_extra("tensorboard.plugins.hparams.summary_v2", NEED)
        self._metadata: Any = import_extra("tensorboard.plugins.hparams.metadata", NEED)
        self._data: Any = import_extra("tensorboard.plugins.hparams.plugin_data_pb2", NEED)
        status: Any = import_extra("tensorboard.plugins.hparams.api_pb2", NEED)
        self._ends = {Status.RUNNING: status.STATUS_RUNNING, Status.COMPLETE: status.STATUS_SUCCESS,
                      Status.INCOMPLETE: status.STATUS_FAILURE, Status.INFEASIBLE: status.STATUS_FAILURE}

    def write(self, folder: str, log: Log, row: int) -> int:
        """Write a trial's run; returns the number of its scalars."""
        trial, status = int(log.trials["id"][row]), Status(int(log.trials["status"][row]))
        start, scalars = start_seconds(log, trial), 0
        last = start
        writer = self._files.EventFileWriter(folder, max_queue_size=QUEUE)
        try:
            hparams = self._hparams.hparams_pb(_hparams(log, row), trial_id=str(trial), start_time_secs=start)
            writer.add_event(self._event(wall_time=start, summary=hparams))
            for step, seconds, values in merge(_evaluations(log, trial), _steps(log, trial), key=itemgetter(0)):
                found = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
                writer.add_event(self._event(wall_time=start + seconds, step=step,
                                             summary=self._summary(value=found)))
                scalars, last = scalars + len(found), max(last, start + seconds)
            if status != Status.RUNNING:
                writer.add_event(self._event(wall_time=last, summary=self._end(status, last)))
            writer.flush()              # raises what the writer's thread has met; close does not
        finally:
            writer.close()
        return scalars

    def _end(self, status: Status, seconds: float) -> Any:
        """What says how a trial ended, in the form of the hparams plugin; its own maker would import TensorFlow."""
        data = self._data.HParamsPluginData(session_end_info=self._data.SessionEndInfo(
            status=self._ends[status], end_time_secs=seconds))
        value = self._summary.Value(tag=self._metadata.SESSION_END_INFO_TAG, tensor=self._metadata.NULL_TENSOR,
                                    metadata=self._metadata.create_summary_metadata(data))
        return self._summary(value=[value])


def _hparams(log: Log, row: int) -> dict[str, Any]:
    one = row_of(log, row)
    about = {name: one[name] for name in ABOUT if (name, one[name]) != ("seed", UNKNOWN_SEED)}
    return {**about, **metaparameters_of(one)}


Row = tuple[int, float, Mapping[str, float]]        # step, seconds since the start, scalars by tag


def _evaluations(log: Log, trial: int) -> Iterator[Row]:
    """What was measured at each evaluation."""
    columns = {name: name for name in log.evaluations if "/" in name}
    seconds = log.evaluations.of_trial("train_seconds", trial)
    yield from _events(log.evaluations, trial, {SECONDS: "train_seconds", **columns}, np.nan_to_num(seconds))


def _steps(log: Log, trial: int) -> Iterator[Row]:
    """What was measured of each step."""
    columns = {f"steps/{name}": name for name in log.steps if log.steps.specs[name].type == "float"}
    seconds = np.nancumsum(log.steps.of_trial("step_seconds", trial))
    yield from _events(log.steps, trial, columns, seconds)


def _events(table: LogTable, trial: int, columns: Mapping[str, str], seconds: np.ndarray) -> Iterator[Row]:
    values = {tag: table.of_trial(name, trial).tolist() for tag, name in columns.items()}
    for at, step in enumerate(table.of_trial("step", trial).tolist()):
        yield step, seconds[at], {tag: column[at] for tag, column in values.items()
                                  if not math.isnan(column[at])}
