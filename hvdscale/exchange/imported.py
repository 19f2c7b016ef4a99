"""A new log written by an import, in bounded memory.

    with imported_log(path, {"kind": "archive", "from": source}) as out:            columns are created when first met
        ids = out.trials(points, {"dataset": "mnist", "global_batch": [...], ...})      new ids in order
        out.evaluations(ids, rows, step, examples, {"val/error": ...})                  of these trials, concatenated
"""
from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ..log.compact_file import CompactFile
from ..log.directions import better
from ..log.merge import new_log
from ..log.schema import SOURCE, LogColumn, column_of, columns

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


@contextlib.contextmanager
def imported_log(path, imported: Mapping, **how: bool) -> Iterator[ImportedLog]:
    """See ``new_log``; ``imported``: that root attribute."""
    with new_log(path, {"imported": dict(imported)}, **how) as file:
        log = ImportedLog(file)
        yield log
        file.add("trials", METADATA.name, log.metadata)


class ImportedLog:
    def __init__(self, file: CompactFile):
        self.file = file
        self.better: dict[str, str] = {}    # of metrics whose names do not say which way they get better
        self.errors: dict[str, tuple[float, float]] = {}        # see widen
        self.metadata: list[str] = []       # goes behind all other texts, so that who reads names skips it
        self._measured: dict[str, list[str]] = {"trials": [], "evaluations": []}        # names of columns
        for table, specs in columns().items():
            for spec in (*specs, *((*SOURCE, METADATA) if table == "trials" else ())):
                file.add_column(table, spec)

    def trials(self, points: Sequence[Mapping[str, float]], given: Mapping[str, Any], time: float = np.nan
               ) -> np.ndarray:
        """Add trials; returns their ids.

        points  each trial's metaparameters;  time: their start, in seconds since 1970
        given   columns of /trials, a list each, or a value of all: status, stop_reason, dataset, model, optimizer,
                global_batch, seed, budget_steps, plan; optionally workers, accumulation, those of SOURCE and METADATA
        """
        size, before = len(points), self.file.rows("trials", "id")
        ids = before + np.arange(size)
        rest = {"local_batch": given["global_batch"], "accumulation": 1, "ghost_batch": 0, "workers": 1,
                "source": "", "source_trial": given["seed"], "metadata": ""}
        values = {"id": ids, **rest, **given}
        self.metadata += _repeat(values.pop("metadata"), size)
        for name, value in values.items():
            self.file.add("trials", name, _repeat(value, size))
        self._add_measured("trials", before, size, {
            f"metaparameters/{name}": np.array([point.get(name, np.nan) for point in points], float)
            for name in dict.fromkeys(chain.from_iterable(points))})
        for name, value in {"trial": ids, "first_step": 0, "workers": given.get("workers", 1), "host": "",
                            "device": "", "time": time, "previous_end": ""}.items():
            self.file.add("restarts", name, _repeat(value, size))
        return ids

    def evaluations(self, ids: np.ndarray, rows: Sequence[int], step: np.ndarray, examples: np.ndarray,
                    values: Mapping[str, np.ndarray], train_seconds: np.ndarray | None = None):
        """Add the concatenated evaluations of trials; ``rows``: the number of each; times are NaN unless given."""
        widen(self.errors, values)
        before = self.file.rows("evaluations", "trial")
        self.file.add("evaluations", "trial", np.repeat(ids, rows))
        self.file.add("evaluations", "step", step)
        self.file.add("evaluations", "examples", examples)
        self.file.add("evaluations", "train_seconds",
                      np.full(len(step), np.nan) if train_seconds is None else train_seconds)
        self._add_measured("evaluations", before, len(step), values)

    def _add_measured(self, table: str, before: int, rows: int, values: Mapping[str, np.ndarray]):
        """Add rows of metaparameters or metrics; a new one is absent in the rows ``before``, any other is in these."""
        known = self._measured[table]
        for name in values:
            if name not in known:
                way = self.better.get(name) or better(name) if table == "evaluations" else ""
                self.file.add_column(table, column_of(table, name, way), before)
                known.append(name)
        for name in known:
            self.file.add(table, name, values[name] if name in values else np.full(rows, np.nan))


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
    values = [values] * size if isinstance(values, str) else values
    return values if isinstance(values, list) else np.broadcast_to(values, size)
