"""A log written in pieces, column by column, in bounded memory whatever its size: what imports write.

    with BulkLog("archive.h5", columns(metrics=["val/error"]), {"imported": {...}}) as out:
        out.add("evaluations", "step", steps)             the column's next rows; columns go on each at its own pace
        out.add("trials", "dataset", ["mnist", "mnist"])
    # here the log is there, closed and compressed; after an error inside nothing is left

Rows are gathered into chunks, which threads compress while more is gathered.
"""
from __future__ import annotations

import contextlib
import io
import os
import tempfile
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import h5py
import numpy as np

from ..errors import LogError
from ..log import segments
from ..log.closed_file import CHUNK_ROWS, SMALL_BYTES, show
from ..log.files import BOUNDS, TYPES, create_column, make_directory, write_attribute, write_root_attributes
from ..log.schema import TABLES, Column
from ..system.cores import usable_cores
from ..system.files import TEMPORARY, new_descriptor, writing
from ..system.lock import Lock
from .deflate import pack

HEAP_CHUNK = 1 << 20                # bytes of /text
SHARED_TEXTS, SHARED_BYTES = 4096, 1 << 25      # of texts that are remembered, so that a repeated one is stored once
WAITING = 8                         # chunks for each thread that may wait to be written


class SafeFile(io.RawIOBase):
    """A new file that HDF5 can always write to: ``error`` is set once the disk refused something.

    HDF5 crashes the process, later and for good, when a write fails (see ``files.create``). So it is told that all went
    well: what follows the failure stays in memory, and is read from there, until HDF5 has closed the file.
    """

    def __init__(self, path: str):
        super().__init__()
        self.error: OSError | None = None
        self._descriptor = new_descriptor(path)
        self._at = self._end = 0
        self._kept: list[tuple[int, bytes]] = []

    def write(self, data):
        """All of ``data``, on the disk or, after a failure, in memory."""
        view, at = memoryview(data).cast("B"), self._at
        self._at += len(view)
        self._end = max(self._end, self._at)
        rest = view
        while len(rest) and self.error is None:
            try:
                written = os.pwrite(self._descriptor, rest, self._at - len(rest))
            except OSError as error:
                self.error = error
            else:
                rest = rest[written:]
        if self.error is not None:
            self._kept.append((at, bytes(view)))
        return len(view)

    def readinto(self, buffer):
        """What was written there; zeros where nothing was."""
        view = memoryview(buffer).cast("B")
        got = os.preadv(self._descriptor, [view], self._at)
        view[got:] = bytes(len(view) - got)
        for at, data in self._kept:
            first, last = max(at, self._at), min(at + len(data), self._at + len(view))
            if first < last:
                view[first - self._at:last - self._at] = data[first - at:last - at]
        self._at += len(view)
        return len(view)

    def seek(self, offset, whence=io.SEEK_SET):
        """As of any file."""
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self):
        """As of any file."""
        return self._at

    def truncate(self, size=None):
        """HDF5 cuts the file to the end that it counts on."""
        self._end = self._at if size is None else size
        self._try(os.ftruncate, self._descriptor, self._end)
        return self._end

    def seekable(self):
        """Yes."""
        return True

    def readable(self):
        """Yes."""
        return True

    def writable(self):
        """Yes."""
        return True

    def sync(self):
        """Has the disk keep it."""
        self._try(os.fsync, self._descriptor)

    def close(self):
        """Closes the real file."""
        if not self.closed:
            self._try(os.close, self._descriptor)
        super().close()

    def _try(self, act, *arguments):
        try:
            if self.error is None or act is os.close:
                act(*arguments)
        except OSError as error:
            self.error = self.error or error


class BulkLog:
    """The one writer of a new log; see the module's synopsis.

    path        the log; it appears, whole, when ``with`` ends without an error
    columns     each table's (schema.columns); more may be added while none of their rows is late: see ``add_column``
    attributes  root attributes to add
    overwrite   replace a log that is there;  take_over: go on where the file system refuses locks
    threads     that compress; None: one a core that this process may use

    Raises LogError where the log exists, is being written, or cannot be written.
    """

    def __init__(self, path, columns: Mapping[str, Sequence[Column]], attributes: Mapping | None = None, *,
                 overwrite: bool = False, take_over: bool = False, threads: int | None = None):
        self.path = os.fspath(path)
        self._temporary = self.path + TEMPORARY
        self._sink, self._file = None, None
        self._threads = threads or len(usable_cores())
        self._texts: dict[str, tuple[int, int]] = {}
        self._remembered = 0
        self._spool, self._spooled = None, 0
        self._spans: dict[tuple[str, str], list[np.ndarray]] = {}
        self._waiting: deque[tuple[_Piecewise, int, Future]] = deque()
        make_directory(self.path)
        self._lock = Lock.take(self.path, take_over)
        self._pool = ThreadPoolExecutor(self._threads)
        try:
            if os.path.lexists(self.path) and not overwrite:
                raise LogError(f"{self.path}: exists already; choose another name, or --overwrite it")
            self._open({"id": uuid.uuid4().hex, "segment": 0, "segments": 1, **(attributes or {})})
            self._columns = {(table, column.name): _Piecewise(self._file[table], column)
                             for table in TABLES for column in columns[table]}
            self._heap = _Piecewise(self._file, HEAP)
        except BaseException:
            self._abandon()
            raise

    def add(self, table: str, name: str, values, shared: bool = True):
        """The next rows of a column: an array, or str of a text column.

        shared  of texts: the same are met again and again, and are stored once. Others come to lie behind all shared
                ones, so that who reads names does not read them; until then they are in a file without a name
        """
        column = self._columns[table, name]
        if column.spec.type == "text":
            if not shared:
                self._spans.setdefault((table, name), []).append(self._put_aside(values))
                return
            values = self._store(values)
        self._extend(column, np.asarray(values, TYPES[column.spec.type]))

    def add_column(self, table: str, spec: Column, rows: int):
        """One more column, of which the first ``rows`` rows are absent: NaN, or empty texts."""
        column = self._columns[table, spec.name] = _Piecewise(self._file[table], spec)
        absent = np.zeros((1, 2), np.int64) if spec.type == "text" else np.full(1, np.nan)
        for first in range(0, rows, CHUNK_ROWS):
            size = min(CHUNK_ROWS, rows - first)
            self._extend(column, np.repeat(absent, size, 0))

    def note(self, name: str, value):
        """One more root attribute."""
        write_attribute(self._file, name, value)
        self._raise_if_full()

    def rows(self, table: str, name: str) -> int:
        """How many rows the column has so far."""
        return self._columns[table, name].rows

    def close(self):
        """Writes what is left, closes and shows the log."""
        self._take_back()
        for column in (*self._columns.values(), self._heap):
            column.finish(self._write)
        self._drain(0)
        for table in TABLES:
            rows = {name: column.rows for (of, name), column in self._columns.items() if of == table}
            if len(set(rows.values())) > 1:
                raise ValueError(f"the columns of {table} have not the same number of rows: {rows}")
            self._file[table].create_dataset("committed_rows", data=np.full(1, max(rows.values(), default=0), np.int64))
        self._file.close()
        if self._spool is not None:
            self._spool.close()
        self._sink.sync()
        self._sink.close()
        self._raise_if_full()
        self._pool.shutdown()
        show(self._temporary, self.path, segments.beside(self.path))
        self._lock.release()

    def __enter__(self) -> BulkLog:
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._abandon()
            return
        try:
            with writing(self.path):
                self.close()
        except BaseException:
            self._abandon()
            raise

    def _open(self, attributes):
        try:
            self._sink = SafeFile(self._temporary)
        except OSError as error:
            raise LogError(f"{self.path}: cannot be written here: {error.strerror}") from error
        self._file = h5py.File(self._sink, "w", libver=BOUNDS)
        write_root_attributes(self._file, attributes)
        for table in TABLES:
            self._file.create_group(table)

    def _abandon(self):
        """Leaves nothing behind; never raises, safe to call twice."""
        self._pool.shutdown(cancel_futures=True)
        for close in (self._file, self._sink, self._spool):
            with contextlib.suppress(Exception):
                close.close()
        with contextlib.suppress(OSError):
            if self._sink is not None:
                os.unlink(self._temporary)
        with contextlib.suppress(OSError):
            self._lock.release()

    def _store(self, texts) -> np.ndarray:
        """Where the texts stand in /text: int64 of shape (rows, 2)."""
        spans, data, end = np.empty((len(texts), 2), np.int64), [], self._heap.rows
        for row, text in enumerate(texts):
            span = self._texts.get(text)
            if span is None:
                encoded = text.encode("utf-8", "replace")
                span = (end, len(encoded))
                end += len(encoded)
                data.append(encoded)
                self._remembered += len(text)
                if len(self._texts) >= SHARED_TEXTS or self._remembered > SHARED_BYTES:
                    self._texts.clear()
                    self._remembered = len(text)
                self._texts[text] = span
            spans[row] = span
        if data:
            self._extend(self._heap, np.frombuffer(b"".join(data), np.uint8))
        return spans

    def _put_aside(self, texts) -> np.ndarray:
        """Where the texts will stand behind the shared ones."""
        encoded = [text.encode("utf-8", "replace") for text in texts]
        lengths = np.array([len(text) for text in encoded], np.int64)
        starts = self._spooled + np.cumsum(lengths) - lengths
        try:
            if self._spool is None:
                self._spool = tempfile.TemporaryFile(dir=os.path.dirname(self.path) or ".", buffering=0)
            data = memoryview(b"".join(encoded))
            while len(data):
                data = data[self._spool.write(data):]
        except OSError as error:
            raise self._refusal(error) from error
        self._spooled += int(lengths.sum())
        return np.stack([starts, lengths], 1)

    def _take_back(self):
        """Appends what was put aside to /text."""
        first = self._heap.rows
        if self._spool is not None:
            self._spool.seek(0)
            while data := self._spool.read(HEAP_CHUNK):
                self._extend(self._heap, np.frombuffer(data, np.uint8))
        for key, pieces in self._spans.items():
            self._extend(self._columns[key], np.concatenate(pieces) + np.array([first, 0]))

    def _extend(self, column, values):
        column.extend(values, self._write)
        self._raise_if_full()

    def _write(self, column, first, values):
        """Has a chunk compressed, and writes those that are done."""
        self._waiting.append((column, first, self._pool.submit(pack, values)))
        self._drain(WAITING * self._threads)

    def _drain(self, leave: int):
        while len(self._waiting) > leave or (self._waiting and self._waiting[0][2].done()):
            column, first, packed = self._waiting.popleft()
            column.put(first, packed.result())

    def _raise_if_full(self):
        if self._sink.error is not None:
            raise self._refusal(self._sink.error)

    def _refusal(self, error) -> LogError:
        return LogError(f"{self.path}: cannot be written: {error.strerror or error}; nothing of it was left")


HEAP = Column("text", "bytes", "1", "the texts, one after another")


class _Piecewise:
    """One column on its way into the file: rows that wait for a whole chunk, and where the next one goes."""

    def __init__(self, group: h5py.Group, spec: Column):
        self.spec, self.rows = spec, 0
        self._group, self._dataset = group, None
        self._chunk = HEAP_CHUNK if spec is HEAP else CHUNK_ROWS
        self._pieces: list[np.ndarray] = []
        self._gathered = self._begun = 0

    def extend(self, values: np.ndarray, write):
        """``write(column, first row, values)`` is called for each whole chunk."""
        self.rows += len(values)
        while len(values):
            piece = values[:self._chunk - self._gathered]
            self._pieces.append(piece)
            self._gathered += len(piece)
            values = values[len(piece):]
            if self._gathered == self._chunk:
                self._flush(write)

    def finish(self, write):
        """The last chunk; a column of few bytes is stored as it is."""
        if self._dataset is None:
            values = self._joined()
            if values.nbytes <= SMALL_BYTES:
                dataset = self._create(len(values), {})
                if len(values):
                    dataset[...] = values
                return
            self._chunk = len(values)
        if self._gathered:
            self._flush(write)

    def put(self, first: int, packed: bytes):
        """Writes a compressed chunk."""
        self._dataset.id.write_direct_chunk((first,) + (0,) * (self._dataset.ndim - 1), packed)

    def _flush(self, write):
        if self._dataset is None:
            self._dataset = self._create(0, {
                "chunks": (self._chunk,), "maxshape": (None,), "compression": "gzip", "compression_opts": 1,
                "shuffle": self._joined().itemsize > 1})
        values = self._joined()
        if len(values) < self._chunk:               # the file's chunks are all of one size
            rest = np.zeros((self._chunk - len(values), *values.shape[1:]), values.dtype)
            values = np.concatenate([values, rest])
        self._dataset.resize(self._begun + self._gathered, axis=0)
        write(self, self._begun, values)
        self._begun += self._gathered
        self._pieces, self._gathered = [], 0

    def _joined(self) -> np.ndarray:
        if not self._pieces:
            shape = (0, 2) if self.spec.type == "text" else (0,)
            return np.empty(shape, np.uint8 if self.spec is HEAP else TYPES[self.spec.type])
        self._pieces = [np.concatenate(self._pieces) if len(self._pieces) > 1 else self._pieces[0]]
        return self._pieces[0]

    def _create(self, rows, layout) -> h5py.Dataset:
        if self.spec is HEAP:
            return self._group.create_dataset(HEAP.name, (rows,), "u1", **layout)
        return create_column(self._group, self.spec, rows, **layout)
