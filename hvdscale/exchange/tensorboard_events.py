"""A log as TensorBoard's event files: each trial is a run. Needs tensorboard, but neither torch nor TensorFlow.

    export_events("w8.h5", "tb/w8")     then: tensorboard --logdir tb

An event's time is the trial's start, where it is known, and the training seconds since. NaN is left out.
"""
from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from heapq import merge
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import UsageError
from ..log.reader import Log, LogTable
from ..log.schema import UNKNOWN_SEED
from ..system.importing import import_extra
from .exported import exporting

NEED = "--as tensorboard"
QUEUE = 1000                    # events that the writer's thread may lag behind
ABOUT = ("dataset", "model", "optimizer", "global_batch", "workers", "seed")
SECONDS = "evaluations/train_seconds"


def export_events(path, out, progress: Callable[[float], None] = lambda share: None) -> tuple[int, int]:
    """Write a run for each trial of the log into the new folder ``out``, see ``exporting``; returns how many trials and
    scalars. Raises UsageError without tensorboard, and for a name that it cannot write to."""
    modules = [import_extra(f"tensorboard.{name}", NEED) for name in (
        "summary.writer.event_file_writer", "compat.proto.event_pb2", "compat.proto.summary_pb2",
        "plugins.hparams.summary_v2")]
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{out}: TensorBoard writes to no folder whose name is not UTF-8; choose another") from None
    with ExitStack() as ends, exporting(path, out) as (log, folder):
        # without tracebacks from the writers' threads: what these raise, as for a full disk, the writers raise again
        ends.callback(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda raised: None
        ids, scalars = log.trials["id"], 0
        for row, trial in enumerate(ids.tolist()):
            workers, batch = (log.trials[name][row] for name in ("workers", "global_batch"))
            scalars += _write(os.path.join(folder, f"w{workers}-b{batch}-trial{trial}"), log, row, *modules)
            progress((row + 1) / len(ids))
        return len(ids), scalars


def _write(folder: str, log: Log, row: int, files: Any, events: Any, summaries: Any, plugin: Any) -> int:
    trial, scalars = int(log.trials["id"][row]), 0
    times = log.restarts["time"][log.restarts["trial"] == trial]
    start = 0.0 if np.isnan(times).all() else float(np.nanmin(times))           # 0: unknown, as of an imported log
    writer = files.EventFileWriter(folder, max_queue_size=QUEUE)
    try:
        hparams = plugin.hparams_pb(_hparams(log, row), trial_id=str(trial), start_time_secs=start)
        writer.add_event(events.Event(wall_time=start, summary=hparams))
        for step, seconds, values in _rows(log, trial):
            found = [summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.add_event(events.Event(wall_time=start + seconds, step=step, summary=summaries.Summary(value=found)))
            scalars += len(found)
        writer.flush()              # raises what the writer's thread has met; close does not
    finally:
        writer.close()
    return scalars


def _hparams(log: Log, row: int) -> dict[str, Any]:
    found = {}
    for name in (*ABOUT, *(name for name in log.trials if name.startswith("metaparameters/"))):
        value = log.trials[name][row]
        value = value.item() if isinstance(value, np.generic) else value
        if not (name == "seed" and value == UNKNOWN_SEED or isinstance(value, float) and math.isnan(value)):
            found[name.removeprefix("metaparameters/")] = value
    return found


def _rows(log: Log, trial: int) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(step, seconds since the start, scalars by tag) of the trial's evaluations and steps, in order."""
    evaluations, steps = log.evaluations, log.steps
    measured = {SECONDS: "train_seconds", **{name: name for name in evaluations if "/" in name}}
    of_step = {f"steps/{name}": name for name in steps if steps.specs[name].type == "float"}
    return merge(
        _rows_of(evaluations, trial, measured, np.nan_to_num(evaluations.of_trial("train_seconds", trial))),
        _rows_of(steps, trial, of_step, np.nancumsum(steps.of_trial("step_seconds", trial))), key=itemgetter(0))


def _rows_of(table: LogTable, trial: int, columns: Mapping[str, str], seconds: np.ndarray
             ) -> Iterator[tuple[int, float, dict[str, float]]]:
    values = {tag: table.of_trial(name, trial).tolist() for tag, name in columns.items()}
    for at, step in enumerate(table.of_trial("step", trial).tolist()):
        yield step, seconds[at], {tag: column[at] for tag, column in values.items() if not math.isnan(column[at])}
