"""A log as one closed, compressed file, written column by column in bounded memory: what ``finish``, ``merge``,
``repair`` and imports write.

    with CompactFile(path, attributes) as out:              after an error inside nothing is left
        out.add_column("steps", spec)
        out.add("steps", spec.name, values)               the column's next rows; each column advances at its own pace

Rows are gathered into chunks, which threads compress while more is gathered.
"""
from __future__ import annotations

import contextlib
import functools
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np

from ..system.cores import usable_cores
from .files import BOUNDS, TYPES, SafeFile, create_column, write_attribute, write_root_attributes
from .schema import TABLES, LogColumn

SMALL_BYTES = 512                # a column up to this size is stored as it is
CHUNK_ROWS = 1 << 16
HEAP_CHUNK = 1 << 20                # bytes of /text
SHARED_TEXTS, SHARED_BYTES = 4096, 1 << 25      # of texts that are remembered, so that a repeated one is stored once
HEAP = LogColumn("text", "bytes", "", "")       # of all texts, one after another
WAITING = 8                         # chunks for each thread that may wait to be written
_Bytes = bytes | memoryview
STORED = 7.0            # bits of entropy a byte, as if they were independent, from which a plane is stored as it is
SAMPLED = 16            # bytes between those that are sampled for it
LONGEST = 65535         # bytes of a stored block (RFC 1951, 3.2.4)
HEADER, LAST = b"\x78\x01", b"\x01\x00\x00\xff\xff"         # RFC 1950, 2.2; an empty stored block that ends the stream


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
        self._threads = len(usable_cores())
        self._texts = Texts()
        self._waiting: deque[tuple[_GrowingColumn, int, Future[bytes]]] = deque()
        self._columns: dict[tuple[str, str], _GrowingColumn] = {}
        self._file: Any = None              # an h5py.File
        self._sink = SafeFile(path)
        self._pool = ThreadPoolExecutor(self._threads)
        with contextlib.ExitStack() as failed:
            failed.callback(self._abandon)
            self._file = h5py.File(self._sink, "w", libver=BOUNDS)
            write_root_attributes(self._file, attributes)
            for table in TABLES:
                self._file.create_group(table)
            failed.pop_all()
        self._heap = _GrowingColumn(self._file, HEAP, self._write)

    def add_column(self, table: str, spec: LogColumn, rows: int = 0) -> None:
        """One more column, of which the first ``rows`` rows are absent: NaN, or empty texts."""
        column = self._columns[table, spec.name] = _GrowingColumn(self._file[table], spec, self._write)
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
            column.finish()
        self._drain(0)
        for table in TABLES:
            rows = {name: column.rows for (of, name), column in self._columns.items() if of == table}
            if len(set(rows.values())) > 1:
                raise ValueError(f"the columns of {table} have not the same number of rows: {rows}")
            self._file[table].create_dataset("committed_rows", data=np.full(1, max(rows.values(), default=0), np.int64))
        self._file.close()
        self._sink.sync()
        self._sink.close()
        self._raise_if_full()
        self._pool.shutdown()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.ExitStack() as failed:
            failed.callback(self._abandon)
            if kind is None:
                self.close()
                failed.pop_all()

    def _abandon(self) -> None:
        """Leaves nothing behind; never raises, safe to call twice."""
        self._pool.shutdown(cancel_futures=True)
        for close in (self._file, self._sink):
            with contextlib.suppress(Exception):
                close.close()
        with contextlib.suppress(OSError):
            os.unlink(self._target)

    def _extend(self, column: _GrowingColumn, values: np.ndarray) -> None:
        column.extend(values)
        self._raise_if_full()

    def _write(self, column: _GrowingColumn, first: int, values: np.ndarray) -> None:
        self._waiting.append((column, first, self._pool.submit(pack, values)))
        self._drain(WAITING * self._threads)

    def _drain(self, leave: int) -> None:
        while len(self._waiting) > leave or (self._waiting and self._waiting[0][2].done()):
            column, first, packed = self._waiting.popleft()
            column.dataset.id.write_direct_chunk((first,) + (0,) * (column.dataset.ndim - 1), packed.result())

    def _raise_if_full(self) -> None:
        if self._sink.error is not None:
            raise self._sink.error


class _GrowingColumn:
    """One column on its way into the file: rows that wait for a whole chunk, and where the next one goes;
    ``write(column, first row, values)`` is called for each chunk."""

    def __init__(self, group: h5py.Group, spec: LogColumn,
                 write: Callable[[_GrowingColumn, int, np.ndarray], None]) -> None:
        self.spec, self.rows = spec, 0
        self._group, self._write = group, write
        self.dataset: Any = None           # an h5py.Dataset, once there is a chunk
        self._chunk = HEAP_CHUNK if spec is HEAP else CHUNK_ROWS
        self._waiting = [np.empty((0, 2) if spec.type == "text" else 0, TYPES[spec.type])]

    def extend(self, values: np.ndarray) -> None:
        self._waiting.append(values)
        full, self.rows = self.rows // self._chunk, self.rows + len(values)
        if self.rows // self._chunk > full:
            values = np.concatenate(self._waiting)
            rest = len(values) % self._chunk
            self._put(values[:len(values) - rest])
            self._waiting = [values[len(values) - rest:]]

    def finish(self) -> None:
        """The last chunk; a column of few bytes is stored as it is."""
        values = np.concatenate(self._waiting)
        if self.dataset is None and values.nbytes <= SMALL_BYTES:
            create_column(self._group, self.spec, self.rows)[...] = values
        elif len(values):
            self._chunk = self._chunk if self.dataset else len(values)
            self._put(values)

    def _put(self, values: np.ndarray) -> None:
        """Write rows; the file's chunks are all of one size, the last one filled up."""
        if self.dataset is None:
            self.dataset = create_column(self._group, self.spec, 0, **{
                "chunks": (self._chunk,), "compression": "gzip", "compression_opts": 1,
                "shuffle": values.itemsize > 1, "maxshape": (None,)})
        done = self.dataset.shape[0]
        self.dataset.resize(done + len(values), axis=0)
        values = np.pad(values, [(0, -len(values) % self._chunk), *[(0, 0)] * (values.ndim - 1)])
        for first in range(0, len(values), self._chunk):
            self._write(self, done + first, values[first:first + self._chunk])


def pack(values: np.ndarray) -> bytes:
    """The zlib stream (RFC 1950) of the values' bytes; of entries of more than one byte, plane by plane (shuffled):
    what HDF5's shuffle and gzip filters would make, at a multiple of their speed.

    The planes of a measurement's low digits are as good as random, and a search for repetitions finds nothing there:
    such planes are stored as they are. The rest are deflated as level 1 of gzip does it, a plane of one byte throughout
    (of small counts, of gaps) once for all that are like it. (Of measurements of 6 digits: 5 to 8 times as fast as
    level 1 throughout, at the same size.)
    """
    size = values.dtype.itemsize
    planes = np.ascontiguousarray(np.ascontiguousarray(values).view(np.uint8).reshape(-1, size).T)
    parts = [part for plane in planes for part in _packed(plane, values.dtype.kind)]
    return b"".join([HEADER, *parts, LAST, struct.pack(">I", zlib.adler32(planes.data))])


def _packed(plane: np.ndarray, kind: str) -> list[_Bytes]:
    if len(plane) and (plane == plane[0]).all():
        return _constant(int(plane[0]), len(plane))
    counts = np.bincount(plane[::SAMPLED], minlength=256)
    share = counts[counts > 0] / counts.sum()
    if kind == "f" and -(share * np.log2(share)).sum() > STORED:        # other numbers repeat in patterns
        blocks = [plane.data[start:start + LONGEST] for start in range(0, len(plane), LONGEST)]
        return [part for block in blocks for part in (struct.pack("<BHH", 0, len(block), 0xFFFF ^ len(block)), block)]
    return _deflated(plane.data)


@functools.lru_cache(64)
def _constant(byte: int, size: int) -> list[_Bytes]:
    return _deflated(memoryview(bytes([byte]) * size))


def _deflated(data: memoryview) -> list[_Bytes]:
    """Blocks of their own that end on a whole byte, and are not the stream's last."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return [packer.compress(data), packer.flush(zlib.Z_FULL_FLUSH)]
