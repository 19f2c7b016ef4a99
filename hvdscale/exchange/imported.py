"""A new log written column by column in bounded memory, for imports: after an error nothing of it is left.

    with BulkLog("archive.h5", columns(metrics=["val/error"]), {"imported": {...}}) as out:
        out.add("evaluations", "step", steps)             the column's next rows; columns need not be in step

    with ImportedLog(path, {"kind": "archive", "from": source}) as out:             columns are created when first met
        ids = out.trials(points, {"dataset": "mnist", "global_batch": [...], ...})      new ids in order
        out.evaluations(ids, rows, step, examples, {"val/error": ...})                  of these trials, concatenated
"""
from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ..errors import LogError
from ..log import segments
from ..log.compact_file import CompactFile
from ..log.directions import better
from ..log.files import make_directory, refuse_taken
from ..log.merge import show
from ..log.schema import SOURCE, LogColumn, column_of, columns
from ..system.files import temporary_name, writing
from ..system.lock import Lock

METADATA = LogColumn("metadata", "text", "1", "metadata.json of the trial, as it was", optional=True)
MOST_MESSAGES, MOST_BYTES = 100, 30_000     # of messages in an attribute; HDF5 has room for twice that


@dataclass
class Seen:
    """What was imported or exported so far."""

    trials: int = 0
    evaluations: int = 0
    studies: int = 0
    own: int = 0                    # trials that are not from an archive, so that the layout lacks some of their data
    wrong: list[str] = field(default_factory=list)      # messages about wrong files, one each
    others: list[str] = field(default_factory=list)     # files that do not belong to the layout
    notes: list[str] = field(default_factory=list)      # on suspicious values


class BulkLog(CompactFile):
    """The only writer of a new log, which is created when ``with`` ends without an error; LogError if it exists, is
    being written, or cannot be written.

    columns     each table's (schema.columns); for more see ``add_column``
    overwrite   replace an existing log;  take_over: write even without file locks
    """

    def __init__(self, path, columns: Mapping[str, Sequence[LogColumn]], attributes: Mapping | None = None, *,
                 overwrite: bool = False, take_over: bool = False):
        self.path = os.fspath(path)
        make_directory(self.path)
        self._lock = Lock.take(self.path, take_over)
        try:
            refuse_taken(self.path, overwrite)
            identity = {"id": uuid.uuid4().hex, "segment": 0, "segments": 1}
            with writing(self.path):
                super().__init__(temporary_name(self.path), {**identity, **(attributes or {})})
        except BaseException:
            self._lock.release()
            raise
        for table, specs in columns.items():
            for spec in specs:
                self.add_column(table, spec)

    def close(self):
        with writing(self.path):
            super().close()
            show(self._target, self.path, segments.beside(self.path))
        self._lock.release()

    def _abandon(self):
        super()._abandon()
        with contextlib.suppress(OSError):
            self._lock.release()

    def _raise_if_full(self):
        if error := self._sink.error:
            raise LogError(f"{self.path}: cannot be written: {error.strerror or error}; nothing of it was left")


class ImportedLog(BulkLog):
    def __init__(self, path, imported: Mapping, **how):
        spec = columns()
        spec["trials"] += (*SOURCE, METADATA)
        super().__init__(path, spec, {"imported": dict(imported)}, **how)
        self.better: dict[str, str] = {}    # of metrics whose names do not say which way they get better
        self.errors: dict[str, tuple[float, float]] = {}        # see widen
        self._metadata: list[str] = []      # goes behind all other texts, so that who reads names skips it

    def close(self):
        self.add("trials", METADATA.name, self._metadata)
        super().close()

    def trials(self, points: Sequence[Mapping[str, float]], given: Mapping[str, Any], time: float = np.nan
               ) -> np.ndarray:
        """Add trials; returns their ids.

        points  each trial's metaparameters;  time: their start, in seconds since 1970
        given   columns of /trials, a list each, or a value of all: status, stop_reason, dataset, model, optimizer,
                global_batch, seed, budget_steps, plan; optionally workers, accumulation, those of SOURCE and METADATA
        """
        size, before = len(points), self.rows("trials", "id")
        ids = before + np.arange(size)
        rest = {"local_batch": given["global_batch"], "accumulation": 1, "ghost_batch": 0, "workers": 1,
                "source": "", "source_trial": given["seed"], "metadata": ""}
        values = {"id": ids, **rest, **given}
        self._metadata += _repeat(values.pop("metadata"), size)
        for name, value in values.items():
            self.add("trials", name, _repeat(value, size))
        self._add_measured("trials", before, size, {
            f"metaparameters/{name}": np.array([point.get(name, np.nan) for point in points], float)
            for name in dict.fromkeys(chain.from_iterable(points))})
        for name, value in {"trial": ids, "first_step": 0, "workers": given.get("workers", 1), "host": "",
                            "device": "", "time": time, "previous_end": ""}.items():
            self.add("restarts", name, _repeat(value, size))
        return ids

    def evaluations(self, ids: np.ndarray, rows: Sequence[int], step: np.ndarray, examples: np.ndarray,
                    values: Mapping[str, np.ndarray], train_seconds: np.ndarray | None = None):
        """Add the concatenated evaluations of trials; ``rows``: the number of each; times are NaN unless given."""
        widen(self.errors, values)
        before = self.rows("evaluations", "trial")
        self.add("evaluations", "trial", np.repeat(ids, rows))
        self.add("evaluations", "step", step)
        self.add("evaluations", "examples", examples)
        self.add("evaluations", "train_seconds", np.full(len(step), np.nan) if train_seconds is None else train_seconds)
        self._add_measured("evaluations", before, len(step), values)

    def _add_measured(self, table: str, before: int, rows: int, values: Mapping[str, np.ndarray]):
        """Add rows of metaparameters or metrics; a new one is absent in the rows ``before``, any other is in these."""
        for name in values:
            if (table, name) not in self._columns:
                way = self.better.get(name) or better(name) if table == "evaluations" else ""
                self.add_column(table, column_of(table, name, way), before)
        for of, name in self._columns:
            if of == table and "/" in name:
                self.add(table, name, values[name] if name in values else np.full(rows, np.nan))


def skipped_note(wrong: Sequence[str]) -> dict:
    """The root attribute ``skipped``: how many trials or lines an import skipped, and the first messages."""
    first = list(wrong[:MOST_MESSAGES])
    sizes = accumulate(len(json.dumps(message)) + 2 for message in first)
    return {"count": len(wrong), "first": first[:sum(size <= MOST_BYTES for size in sizes)]}


def widen(ranges: dict[str, tuple[float, float]], columns: Mapping[str, np.ndarray]):
    for name, values in columns.items():
        if name.endswith("/error"):
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = float(np.fmin.reduce(values, initial=low)), float(np.fmax.reduce(values, initial=high))


def beyond_errors(ranges: Mapping[str, tuple[float, float]]) -> list[str]:
    return [f"{name} has values from {low:g} to {high:g}; the share of wrong answers lies between 0 and 1. Is it in "
            "percent, or another metric?" for name, (low, high) in ranges.items() if low < 0 or high > 1]


def _repeat(values, size):
    if isinstance(values, str):
        return [values] * size
    return values if isinstance(values, list) else np.broadcast_to(values, size)
