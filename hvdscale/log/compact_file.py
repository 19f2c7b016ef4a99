"""A log as one closed, compressed file, written column by column in bounded memory: what ``finish``, ``merge``,
``repair`` and imports write.

    with CompactFile(path, attributes) as out:              after an error inside nothing is left
        out.add_column("steps", spec)
        out.add("steps", spec.name, values)               the column's next rows; each column advances at its own pace
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from .files import BOUNDS, TYPES, create_column, write_attribute, write_root_attributes
from .safe_file import SafeFile
from .schema import TABLES, LogColumn

SMALL_BYTES = 512                # a column up to this size is stored as it is
CHUNK_ROWS = 1 << 16
SHARED_TEXTS, SHARED_BYTES = 4096, 1 << 25      # of texts that are remembered, so that a repeated one is stored once
HEAP = LogColumn("text", "bytes", "", "")       # of all texts, one after another


class Texts:
    """Texts on their way into /text, one after another; one that is repeated is stored once, while it is remembered."""

    def __init__(self) -> None:
        self.end = 0                    # bytes of all
        self._waiting: list[bytes] = []
        self._spans: dict[str, tuple[int, int]] = {}
        self._remembered = 0            # letters

    def span(self, text: str) -> tuple[int, int]:
        """Where the text will be: its first byte, and how many it has."""
        if text not in self._spans:
            data = text.encode("utf-8", "replace")
            self._waiting.append(data)
            self._remembered += len(text)
            if len(self._spans) >= SHARED_TEXTS or self._remembered > SHARED_BYTES:
                self._spans, self._remembered = {}, len(text)
            self._spans[text] = self.end, len(data)
            self.end += len(data)
        return self._spans[text]

    def take(self) -> bytes:
        """The bytes of the texts that came since it was last called."""
        data, self._waiting = b"".join(self._waiting), []
        return data


class CompactFile(contextlib.AbstractContextManager["CompactFile"]):
    """The one writer of a closed file of a log, with root attributes to add; OSError where it cannot be written."""

    def __init__(self, path: str, attributes: Mapping[str, Any]) -> None:
        self._target = path
        self._texts = Texts()
        self._columns: dict[tuple[str, str], _GrowingColumn] = {}
        self._file: Any = None              # an h5py.File
        self._sink = SafeFile(path)
        try:
            self._file = h5py.File(self._sink, "w", libver=BOUNDS)
            write_root_attributes(self._file, attributes)
            for table in TABLES:
                self._file.create_group(table)
        except BaseException:
            self._abandon()
            raise
        self._heap = _GrowingColumn(self._file, HEAP)

    def add_column(self, table: str, spec: LogColumn, rows: int = 0) -> None:
        """One more column, of which the first ``rows`` rows are absent: NaN, or empty texts."""
        column = self._columns[table, spec.name] = _GrowingColumn(self._file[table], spec)
        absent = np.zeros((1, 2), np.int64) if spec.type == "text" else np.full(1, np.nan)
        for first in range(0, rows, CHUNK_ROWS):
            self._extend(column, np.repeat(absent, min(CHUNK_ROWS, rows - first), 0))

    def add(self, table: str, name: str, values: Any) -> None:
        """The next rows of a column: an array, or str of a text column."""
        column = self._columns[table, name]
        if column.spec.type == "text":
            values = np.array([self._texts.span(text) for text in values], np.int64).reshape(-1, 2)
            self._extend(self._heap, np.frombuffer(self._texts.take(), np.uint8))
        self._extend(column, np.asarray(values, TYPES[column.spec.type]))

    def note(self, name: str, value: Any) -> None:
        write_attribute(self._file, name, value)
        self._raise_if_full()

    def rows(self, table: str, name: str) -> int:
        return self._columns[table, name].rows

    def close(self) -> None:
        for column in (*self._columns.values(), self._heap):
            column.write(last=True)
        for table in TABLES:
            rows = {name: column.rows for (of, name), column in self._columns.items() if of == table}
            if len(set(rows.values())) > 1:
                raise ValueError(f"the columns of {table} have not the same number of rows: {rows}")
            self._file[table].create_dataset("committed_rows", data=np.full(1, max(rows.values(), default=0), np.int64))
        self._file.close()
        self._sink.sync()
        self._sink.close()
        self._raise_if_full()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self.close()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Leaves nothing behind; never raises, safe to call twice."""
        for close in (self._file, self._sink):
            with contextlib.suppress(Exception):
                close.close()
        with contextlib.suppress(OSError):
            os.unlink(self._target)

    def _extend(self, column: _GrowingColumn, values: np.ndarray) -> None:
        column.extend(values)
        self._raise_if_full()

    def _raise_if_full(self) -> None:
        if self._sink.error is not None:
            raise self._sink.error


class _GrowingColumn:
    """One column on its way into the file: rows are gathered until there is a chunk of them."""

    def __init__(self, group: h5py.Group, spec: LogColumn) -> None:
        self.spec, self.rows = spec, 0
        self._group = group
        self._dataset: Any = None           # an h5py.Dataset, once rows were written
        self._written = 0
        self._waiting: list[np.ndarray] = []

    def extend(self, values: np.ndarray) -> None:
        self._waiting.append(values)
        self.rows += len(values)
        if self.rows - self._written >= CHUNK_ROWS:
            self.write()

    def write(self, last: bool = False) -> None:
        """Writes what waits; of a column that has no more, in one chunk, or where it has few bytes, as they are."""
        kind = TYPES[self.spec.type]
        none = np.empty((0, 2) if self.spec.type == "text" else 0, kind)
        values = self._waiting[0] if len(self._waiting) == 1 else np.concatenate([none, *self._waiting])
        if self._dataset is None:
            layout: dict[str, Any] = {} if last else {"maxshape": (None,)}
            if not last or values.nbytes > SMALL_BYTES:
                layout |= {"chunks": (min(len(values), CHUNK_ROWS),), "compression": "gzip", "compression_opts": 1,
                           "shuffle": kind.itemsize > 1}
            self._dataset = create_column(self._group, self.spec, self.rows, **layout)
        elif len(values):
            self._dataset.resize(self.rows, axis=0)
        if len(values):
            self._dataset[self._written:] = values
        self._waiting, self._written = [], self.rows
