"""Writing a log so that it can be read at any moment, also after the writer was killed or the disk is full.

    log = LogWriter("runs/w8.h5", metrics=("val/error",), metaparameters=("learning_rate",))
    log.append("trials", id=0, status=Status.RUNNING, ...)
    log.append("steps", trial=0, step=1, loss=2.3, lr=0.1, step_seconds=0.01)      # buffered
    log.flush()                                                                    # before an evaluation
    log.set_status(0, Status.COMPLETE, "target met")
    log.finish()                                                                   # one compact file
    log.abandon()                                                                  # instead, after a LogError

The file is made under another name and shown once it is in HDF5's SWMR mode, in which a file that is never closed can
be read. Rows are written first, then ``committed_rows``, so what readers trust is whole.
"""

import contextlib
import errno
import itertools
import operator
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import h5py
import numpy as np

from ..errors import LogError
from ..system.files import remove, rename_new, sync_directory, temporary_name
from ..system.lock import Lock, is_file
from . import segments
from .compact_file import Texts
from .files import BOUNDS, SafeFile, create_column, first_line, make_directory, refuse_taken, write_root_attributes
from .merge import REPLACED, finish_segments
from .schema import TABLES, Status, columns

CHUNK_ROWS = {"trials": 128, "restarts": 32, "evaluations": 512, "steps": 1024}
HEAP_CHUNK = 32768               # bytes of /text
ROOM_BYTES = 1 << 18             # more than one new chunk of each column takes, with HDF5's own tables
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogWriter:
    """The one writer of a log; see the module's synopsis.

    path            the log's first file; a resumed log continues in the next segment beside it
    metrics ... ranks   all columns, declared before the first row: see ``schema.columns``
    attributes      root attributes to add: commit, versions (a dict), ...
    overwrite       replace a log that is there; resume: continue it
    take_over       continue where the file system refuses locks
    flush_seconds   rows reach the file at the first ``append`` after this time, or before it where the next would be
                    too late

    Raises LogError where the log exists and neither is asked, is being written, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, metrics: Iterable[str] | Mapping[str, str],
                 metaparameters: Iterable[str] = (), optional: Collection[str] = (),
                 ranks: int = 0, attributes: Mapping[str, Any] | None = None, overwrite: bool = False,
                 take_over: bool = False, resume: bool = False, flush_seconds: float = 1.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.path = os.fspath(path)
        self._columns = columns(metaparameters, metrics, optional, ranks)
        self._flush_seconds, self._clock = flush_seconds, clock
        self._texts = Texts()
        convert: dict[str, Callable[[Any], Any]] = {"int": _int64, "float": float, "text": self._texts.span,
                                                    "status": Status}
        self._fields = {table: tuple((c.name, convert[c.type], c.type == "float") for c in spec)
                        for table, spec in self._columns.items()}
        # buffered rows by column, a list each
        self._cells: dict[str, list[list[Any]]] = {table: [[] for _ in spec] for table, spec in self._columns.items()}
        self._written = {table: 0 for table in TABLES}
        self._texts_written = 0         # bytes
        self._name_kept = False         # by the disk
        self._trial_rows: dict[int, int] = {}
        self._dead = ""
        self._file: Any = None          # an h5py.File while the segment is open
        self._datasets: dict[str, list[h5py.Dataset]] = {}
        self._last_flush = self._last_append = clock()
        make_directory(self.path)
        self._lock = Lock.take(self.path, take_over)
        try:
            self._open(attributes or {}, overwrite, resume)
        except BaseException:
            self.abandon()
            raise

    def append(self, table: str, **values: Any) -> None:
        """Adds one row: text as str, status as Status. A float column left out is NaN. Raises TypeError for a column
        that the log has not, KeyError for one that is missing: slips of the caller."""
        self._require_alive()
        row, used = [], 0
        for name, convert, may_miss in self._fields[table]:
            if name in values:
                row.append(convert(values[name]))
                used += 1
            elif may_miss:
                row.append(np.nan)
            else:
                raise KeyError(f"a row of {table} needs {name}")
        if used != len(values):
            unknown = set(values) - {name for name, _, _ in self._fields[table]}
            raise TypeError(f"{table} has no column {', '.join(sorted(unknown))}")
        if table == "trials":
            self._trial_rows[values["id"]] = self._written[table] + len(self._cells[table][0])
        for cells, value in zip(self._cells[table], row):
            cells.append(value)
        now = self._clock()
        gap, self._last_append = now - self._last_append, now
        if now + gap - self._last_flush >= self._flush_seconds:
            self.flush()

    def extend(self, table: str, rows: int, **columns: Any) -> None:
        """Adds rows given by column: a sequence of numbers of the column's type, or one number for all rows. A float
        column left out is NaN. Nothing is flushed."""
        self._require_alive()
        for (name, _, _), cells in zip(self._fields[table], self._cells[table]):
            given = columns.get(name, np.nan)
            cells.extend(itertools.repeat(given, rows) if isinstance(given, (int, float)) else given)

    def set_status(self, trial: int, status: Status, stop_reason: str) -> None:
        """Rewrites the status of a trial of this segment, the reason first, and flushes."""
        row = self._trial_rows[trial]
        span = self._texts.span(stop_reason)
        self.flush()
        with self._writing():
            for name, value in (("stop_reason", span), ("status", Status(status))):
                _write(self._file[f"trials/{name}"], row, [value])
                self._file.flush()

    def flush(self, sync: bool = False) -> None:
        """Writes the buffered rows, then says how many are whole. ``sync`` also has the disk keep them (fsync)."""
        with self._writing():
            changed = [table for table in TABLES if self._cells[table][0]]
            if changed or self._texts.end > self._texts_written:
                with self._room(self._texts.end - self._texts_written + sum(
                        len(cells[0]) * len(cells) * 16 for cells in self._cells.values())):
                    _write(self._file["text"], self._texts_written, np.frombuffer(self._texts.take(), np.uint8))
                    self._texts_written = self._texts.end
                    for table in changed:
                        first = self._written[table]
                        self._written[table] += len(self._cells[table][0])
                        for dataset, cells in zip(self._datasets[table], self._cells[table]):
                            _write(dataset, first, cells)
                            cells.clear()
                    self._flush_file(sync)
                for table in changed:
                    _write(self._file[f"{table}/committed_rows"], 0, [self._written[table]])
            if changed or sync:
                self._flush_file(sync)
            if sync and not self._name_kept:
                sync_directory(self.segment_path)
                self._name_kept = True
        self._last_flush = self._clock()

    def finish(self) -> None:
        """The clean end: all segments become one compact file, by way of another name, and the lock is given back.
        LogError where that fails; the segments are then as readable as before."""
        self.flush()
        with self._writing():
            if not is_file(self._descriptor, self.segment_path):
                raise OSError(REPLACED)
            self._file.close()
            self._file, self._datasets = None, {}
            finish_segments(self.path, self.log_id, self._number)
        self._dead = f"{self.path}: the log is finished"
        self._lock.release()

    def abandon(self) -> None:
        """Leaves the log as it is and releases the lock; never raises, safe to call twice.

        HDF5 may crash or spoil the file when it closes one that it failed to write, so its descriptor is first pointed
        to /dev/null: what HDF5 still writes, now or when the process ends, goes nowhere. (Left open, it would also be
        taken for the next file that gets its inode.)
        """
        self._dead = self._dead or f"{self.path}: the log was abandoned"
        with contextlib.suppress(Exception):
            if self._file:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, self._descriptor, inheritable=False)
                os.close(null)
                self._file.close()
        with contextlib.suppress(OSError):
            self._lock.release()

    def _open(self, attributes: Mapping[str, Any], overwrite: bool, resume: bool) -> None:
        """Makes the segment's file and shows it; an old log goes only when the new one is there."""
        refuse_taken(self.path, overwrite or resume)
        old: list[segments.Segment] = []
        if os.path.lexists(self.path):
            try:
                first = segments.describe(self.path)
                old = [first, *segments.later(first)]
            except LogError:
                if resume:              # what is overwritten need not be a log that can be read
                    raise
        self.segment_path = self.path
        if resume and old:                  # under the first name that no file has, after all that are there
            stem, extension = os.path.splitext(self.path)
            self.segment_path = f"{stem}.{max([0, *dict(segments.candidates(self.path))]) + 1}{extension}"
        last = old[-1] if old and resume else None
        self._number = max(last.number + 1, old[0].stands_for) if last else 0
        self.log_id = last.log_id if last else attributes.get("id") or uuid.uuid4().hex
        temporary = temporary_name(self.path)
        with self._writing(), contextlib.ExitStack() as failed:
            failed.callback(remove, temporary)
            self._save_empty(temporary, {"id": self.log_id, "segment": self._number, "segments": 1, **attributes})
            self._file = h5py.File(temporary, "r+", libver=BOUNDS, locking=False)
            self._descriptor = self._file.id.get_vfd_handle()
            self._datasets = {table: [self._file[table][c.name] for c in spec] for table, spec in self._columns.items()}
            with self._room(0):
                self._file.swmr_mode = True
                self._file.flush()
            if not resume:
                for segment in old[:0:-1]:
                    os.unlink(segment.path)
            if overwrite:
                os.replace(temporary, self.segment_path)
            else:
                rename_new(temporary, self.segment_path)
            failed.pop_all()

    def _save_empty(self, path: str, attributes: Mapping[str, Any]) -> None:
        sink = SafeFile(path)
        with contextlib.closing(sink), h5py.File(sink, "w", libver=BOUNDS) as file:
            write_root_attributes(file, attributes)
            for table, spec in self._columns.items():
                group = file.create_group(table)
                for column in spec:
                    create_column(group, column, 0, maxshape=(None,), chunks=(CHUNK_ROWS[table],))
                group.create_dataset("committed_rows", data=np.zeros(1, np.int64))
            file.create_dataset("text", (0,), "u1", maxshape=(None,), chunks=(HEAP_CHUNK,))
        if sink.error:
            raise sink.error

    def _flush_file(self, sync: bool) -> None:
        self._file.flush()
        if sync:
            os.fsync(self._descriptor)

    @contextlib.contextmanager
    def _room(self, buffered: int) -> Iterator[None]:
        """Takes room on the disk for what HDF5 is about to write, and gives it back: a full disk fails here, where it
        does no harm. A file system that cannot do that is let be."""
        try:
            os.posix_fallocate(self._descriptor, self._file.id.get_filesize(), ROOM_BYTES + 2 * buffered)
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) in FULL:
                raise
        yield
        os.ftruncate(self._descriptor, self._file.id.get_filesize())

    def _require_alive(self) -> None:
        if self._dead:
            raise LogError(self._dead)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Whatever fails inside ends the writer with a LogError that names path and cause."""
        self._require_alive()
        try:
            yield
        except LogError as error:
            self._dead = str(error)
            self.abandon()
            raise
        except (KeyError, OSError, RuntimeError, ValueError) as error:      # h5py raises any where a write fails
            self._dead = f"{self.path}: cannot be written any more: {first_line(error)}"
            self.abandon()
            raise LogError(self._dead) from error


def _write(dataset: h5py.Dataset, first: int, rows: Sequence[Any] | np.ndarray) -> None:
    """Writes rows from ``first`` on; room is made a chunk at a time, so that the file's own tables seldom change."""
    values, space = np.asarray(rows, dataset.dtype), dataset.id.get_space()
    if (end := first + len(values)) > space.shape[0]:
        step = dataset.chunks[0]
        dataset.resize(-(-end // step) * step, axis=0)
        space = dataset.id.get_space()
    space.select_hyperslab((first, *[0] * (values.ndim - 1)), values.shape)
    dataset.id.write(h5py.h5s.create_simple(values.shape), space, values)       # dataset[first:end] takes twice as long


def _int64(value: SupportsIndex) -> int:
    value = operator.index(value)
    if not -2**63 <= value < 2**63:
        raise OverflowError(f"{value} does not fit the log's 64-bit integers")
    return value
