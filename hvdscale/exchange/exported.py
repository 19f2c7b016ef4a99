"""A log as tables of other programs and as TensorBoard's event files, and the folder that every export writes.

    export_tables("w8.h5", "w8")        trials.csv, restarts.csv, evaluations.csv, steps.csv, log.json
    export_parquet("w8.h5", "w8")       the same tables for pandas, polars, DuckDB, Spark and others; needs pyarrow
    export_events("w8.h5", "tb/w8")     each trial is a run: tensorboard --logdir tb; needs neither torch nor TensorFlow

In CSV numbers are written without loss, missing values and unknown seeds as empty cells, a status by its name. log.json
and the metadata of Parquet have units, meanings and root attributes. An event's time is the trial's start, where it is
known, and the training seconds since; NaN is left out.
"""

import contextlib
import csv
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LogError, UsageError
from ..formatting.screen import as_cell
from ..log.check import refuse_unsound
from ..log.reader import Log, LogTable, read_log
from ..log.schema import UNKNOWN_SEED, LogColumn, Status
from ..system.importing import import_extra
from ..system.files import whole_folder, writing

FORMAT = "hvdscale-csv"
ROWS, GROUP = 1 << 15, 1 << 18          # of CSV written at a time; of a row group of Parquet
OF_FILE = ("format", "version", "segment", "segments")      # root attributes that belong to the file, not the log
PARQUET = "--as parquet", "--as csv does without it"
NEED = "--as tensorboard"
QUEUE = 1000                    # events that the writer's thread may lag behind
ABOUT = ("dataset", "model", "optimizer", "global_batch", "workers", "seed")
SECONDS = "evaluations/train_seconds"
Progress = Callable[[float], None]


@contextlib.contextmanager
def exporting(path, out) -> Iterator[tuple[Log, str]]:
    """The log, and a temporary folder that is renamed to ``out`` on success and removed otherwise; LogError if ``out``
    exists or cannot be written, and for invalid /trials."""
    out = os.fspath(out).rstrip("/") or "/"
    with read_log(path) as log:
        if os.path.lexists(out):
            raise LogError(f"{out}: exists already; choose another name, or remove it")
        with writing(out):
            os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
            with whole_folder(out) as folder:
                refuse_unsound(log, trials_only=True)
                yield log, folder


def export_tables(path, out, progress: Progress = lambda share: None) -> dict[str, int]:
    """Write the log's tables into the new folder ``out``, see ``exporting``; returns the number of rows of each."""
    with exporting(path, out) as (log, folder):
        about = {"format": FORMAT, "version": 1,
                 "attributes": {name: value for name, value in log.attributes.items() if name not in OF_FILE},
                 "columns": {table.name: [[c.name, c.type, c.unit, c.meaning, c.better] for c in table.specs.values()]
                             for table in log.tables}}
        Path(folder, "log.json").write_text(json.dumps(about, indent=1, ensure_ascii=False), "utf-8")
        return _write_each(log, folder, _write_csv, progress)


def export_parquet(path, out, progress: Progress = lambda share: None) -> dict[str, int]:
    """Write the tables as export_tables does; raises UsageError without pyarrow."""
    arrow, parquet = (import_extra(name, *PARQUET) for name in ("pyarrow", "pyarrow.parquet"))
    with exporting(path, out) as (log, folder):
        return _write_each(log, folder, partial(_write_parquet, arrow, parquet), progress)


def _write_each(log: Log, folder: str, write: Callable[[Log, LogTable, str], Iterator[int]], progress: Progress
                ) -> dict[str, int]:
    """Write each table to a file; ``write`` gives the number of rows of each piece that it has written."""
    total, done = max(1, sum(table.rows for table in log.tables)), 0
    for table in log.tables:
        for rows in write(log, table, os.path.join(folder, table.name)):
            done += rows
            progress(done / total)
    return {table.name: table.rows for table in log.tables}


def _write_csv(log: Log, table: LogTable, path: str) -> Iterator[int]:
    with open(f"{path}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(as_cell, table.specs))
        for rows, pieces in _pieces(table, ROWS):
            writer.writerows(zip(*map(_format_cells, pieces, table.specs.values())))
            yield rows


def _write_parquet(arrow: Any, parquet: Any, log: Log, table: LogTable, path: str) -> Iterator[int]:
    types = {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string(), "status": arrow.string()}
    fields = [arrow.field(name, types[spec.type], metadata={
        "unit": spec.unit, "meaning": spec.meaning, **({"better": spec.better} if spec.better else {})})
        for name, spec in table.specs.items()]
    schema = arrow.schema(fields, metadata={"hvdscale": json.dumps(log.attributes)})
    with (open(f"{path}.parquet", "wb") as file,                # arrow's names are UTF-8
          parquet.ParquetWriter(file, schema) as writer):
        for rows, pieces in _pieces(table, GROUP):
            arrays = [arrow.array(_plain_values(values, spec), types[spec.type])
                      for values, spec in zip(pieces, table.specs.values())]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            yield rows


def _pieces(table: LogTable, size: int) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
    for first in range(0, table.rows, size):
        stop = min(first + size, table.rows)
        yield stop - first, (table.read(name, first, stop) for name in table)


def _format_cells(values: np.ndarray, spec: LogColumn) -> list:
    if spec.type == "float":
        return ["" if math.isnan(value) else repr(value) for value in values.tolist()]
    if spec.type == "text":
        return [as_cell(text) for text in values]
    return np.asarray(_plain_values(values, spec)).tolist()


def _plain_values(values: np.ndarray, spec: LogColumn) -> np.ndarray | list:
    """A column as other programs have it: a status by its name, an unknown seed as None, all else as it is."""
    if spec.type == "status":
        return [Status(value).name for value in values.tolist()]
    if spec.name == "seed":
        return [None if seed == UNKNOWN_SEED else seed for seed in values.tolist()]
    return values


def export_events(path, out, progress: Progress = lambda share: None) -> dict[str, int]:
    """Write a run for each trial of the log into the new folder ``out``, see ``exporting``; returns how many runs and
    scalars. Raises UsageError without tensorboard, and for a name that it cannot write to."""
    modules = [import_extra(f"tensorboard.{name}", NEED) for name in (
        "summary.writer.event_file_writer", "compat.proto.event_pb2", "compat.proto.summary_pb2",
        "plugins.hparams.summary_v2")]
    try:
        os.fspath(out).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{out}: TensorBoard writes to no folder whose name is not UTF-8; choose another") from None
    with contextlib.ExitStack() as ends, exporting(path, out) as (log, folder):
        # without tracebacks from the writers' threads: what these raise, as for a full disk, the writers raise again
        ends.callback(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda raised: None
        ids, scalars = log.trials["id"], 0
        for row, trial in enumerate(ids.tolist()):
            workers, batch = (log.trials[name][row] for name in ("workers", "global_batch"))
            scalars += _write_events(os.path.join(folder, f"w{workers}-b{batch}-trial{trial}"), log, row, *modules)
            progress((row + 1) / len(ids))
        return {"runs": len(ids), "scalars": scalars}


def _write_events(folder: str, log: Log, row: int, files: Any, events: Any, summaries: Any, plugin: Any) -> int:
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
    """(step, seconds since the start, scalars by tag) of the trial's steps, then of its evaluations."""
    evaluations, steps = log.evaluations, log.steps
    of_step = {f"steps/{name}": name for name in steps if steps.specs[name].type == "float"}
    measured = {SECONDS: "train_seconds", **{name: name for name in evaluations if "/" in name}}
    for table, tags, seconds in (
            (steps, of_step, np.nancumsum(steps.of_trial("step_seconds", trial))),
            (evaluations, measured, np.nan_to_num(evaluations.of_trial("train_seconds", trial)))):
        values = {tag: table.of_trial(name, trial).tolist() for tag, name in tags.items()}
        for at, step in enumerate(table.of_trial("step", trial).tolist()):
            yield step, seconds[at], {tag: column[at] for tag, column in values.items() if not math.isnan(column[at])}
