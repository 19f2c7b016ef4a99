"""A log as one closed, compressed file: what ``finish``, ``merge`` and ``repair`` write.

    with CompactFile(path, attributes) as out:
        out.add("steps", spec, values)
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..system.files import sync_directory
from . import segments
from .check import LogTables
from .files import TYPES, create, create_column, save
from .reader import Log, read_log
from .schema import TABLES, Column

SMALL_BYTES = 512                # a column up to this size is stored as it is
CHUNK_ROWS = 1 << 16
PER_SEGMENT = ("id", "segment", "segments", "host", "changes")      # attributes that need not agree between segments


class CompactFile:
    """A file that is made in memory, column by column; the disk has it when ``with`` ends."""

    def __init__(self, path: str, attributes: Mapping[str, Any]) -> None:
        self.path = path
        self._file = create(attributes)
        self._rows: dict[str, int] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._heap = bytearray()
        for table in TABLES:
            self._file.create_group(table).create_dataset("committed_rows", data=np.zeros(1, np.int64))

    def add(self, table: str, spec: Column, values: np.ndarray) -> None:
        """A whole column; text as an object array of str."""
        if spec.type == "text":
            values = self._store(values)
        values = np.ascontiguousarray(values, TYPES[spec.type])
        self._rows[table] = len(values)
        dataset = create_column(self._file[table], spec, len(values), **_layout(values))
        if len(values):
            dataset[...] = values

    def _store(self, texts: np.ndarray) -> np.ndarray:
        """Puts each text once on the heap; where they stand, int64 of shape (rows, 2)."""
        spans = np.empty((len(texts), 2), np.int64)
        for row, text in enumerate(texts):
            span = self._spans.get(text)
            if span is None:
                data = text.encode("utf-8", "replace")
                span = self._spans[text] = (len(self._heap), len(data))
                self._heap += data
            spans[row] = span
        return spans

    def close(self) -> None:
        """Writes the texts and row counts, closes and syncs."""
        heap = np.frombuffer(bytes(self._heap), np.uint8)
        self._file.create_dataset("text", data=heap, **_layout(heap))
        for table in TABLES:
            self._file[table]["committed_rows"][0] = self._rows.get(table, 0)
        save(self._file, self.path, sync=True)

    def __enter__(self) -> CompactFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def _layout(values: np.ndarray) -> dict[str, Any]:
    """Compressed in chunks, bytes of equal weight side by side (shuffle), or as it is where that saves nothing."""
    if values.nbytes <= SMALL_BYTES:
        return {}
    chunk = min(len(values), CHUNK_ROWS if values.ndim else 1)
    return {"chunks": (chunk,), "compression": "gzip", "compression_opts": 1, "shuffle": values.itemsize > 1}


def write_log(path: str, log: LogTables, attributes: Mapping[str, Any]) -> None:
    """Copies a log's tables into a new compact file."""
    with CompactFile(path, attributes) as out:
        for table in log.tables:
            for name, spec in table.specs.items():
                out.add(table.name, spec, table.read(name))


def finish_segments(path: str, temporary: str) -> None:
    """Merges the segments of a log that nobody writes into its first file, then removes the others."""
    with read_log(path) as log:
        write_log(temporary, log, merged_attributes(log))
        others = [segment.path for segment in segments.later(log.segments[0])]
    show(temporary, path, others)


def merged_attributes(log: Log) -> dict[str, Any]:
    """Root attributes of all segments as one: the first's, with ``changes`` where a later one has another commit."""
    first, *rest = log.part_attributes
    changes = dict(first.get("changes", {}))
    before = first
    for attributes in rest:
        changed = {k: v for k, v in attributes.items() if k not in PER_SEGMENT and before.get(k) != v}
        if changed:
            changes[f"segment {attributes['segment']}"] = changed
        before = attributes
    last = log.segments[-1]
    merged = {**first, "segment": 0, "segments": max(last.number + 1, log.segments[0].stands_for)}
    return {**merged, "changes": changes} if changes else merged


def show(temporary: str, path: str, others: Iterable[str]) -> None:
    """Puts a finished file in the place of a log; ``others``, the segments that it stands for, go."""
    os.replace(temporary, path)
    sync_directory(path)
    for other in others:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(other)
