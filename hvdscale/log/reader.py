"""Reading a log, whatever state it is in: closed, being written, or left by a process that was killed.

    with read_log("runs/w8.h5") as log:                the whole set of segments is one log
        log.evaluations["val/error"]                   float array, one entry a row
        log.trials["plan"]                             object array of str

Rows are in order of writing. A process that resumed a trial at step S supersedes what earlier segments say about later
steps of that trial; of a trial's rows in /trials the latest segment's counts.
"""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import h5py
import numpy as np

from ..errors import LogError
from ..system import lock
from ..target import SPLITS
from . import segments
from .files import NO_END, TYPES, Stored, Superblock, attribute_of, open_file, part_of, reading, superblock
from .schema import KNOWN, SCHEMA, SOURCE, TABLES, LogColumn, Status, column_of

SMALL = 4 << 20     # bytes: logs up to this size are read whole and closed, so that a thousand of them can be read
SMALL_HEAP = 1 << 20        # bytes of /text that are kept, as every column of texts asks for some
KINDS = {"int": "iu", "float": "f", "status": "iu", "text": "iu"}
DENSEST = 1100              # bytes that one byte of gzip may expand to (1,032), and some more
SMALL_BYTES = 1 << 20       # columns up to this size are not held against their file's
SMALL_ROWS, ROW_BYTES = 1 << 20, 2      # a row takes at least so many bytes of the file, in a table of more rows
HELD_BYTES, DENSE = 1 << 27, 64         # a file's columns have this many bytes, or this many times as many as the file
FEW_ROWS = 1 << 16          # of a table; as many of a column are read at once
ATTEMPTS = 5        # a log that is merged while it is read is read again
TRIES = 3           # a file that is being written may be met in the middle of a write
OPTIONAL = {table: {column.name: column.type for column in (*spec, *(SOURCE if table == "trials" else ()))
                    if column.optional} for table, spec in SCHEMA.items()}


def _tried_again(read: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Part that reads its file; LogError where that fails, of a file that is being written three times."""
    @wraps(read)
    def tried(part: Part, *what: Any) -> Any:
        for left in reversed(range(TRIES)):
            try:
                with reading(part.path):
                    return read(part, *what)
            except LogError:
                if not (left and os.path.isfile(part.path) and superblock(part.path).flags):
                    raise
    return tried


@dataclass(eq=False)
class Part:
    """One file of a log, open for reading, with the columns and the number of rows that are whole in each table."""

    path: str

    @_tried_again
    def __post_init__(self) -> None:
        self.file, self.attributes = open_file(self.path)
        self.segment = segments.of_attributes(self.path, self.attributes)
        self._heap: Any = None      # the texts, once one was asked for: an h5py.Dataset, or the bytes of a small one
        self._specs: dict[tuple[str, str], LogColumn] = {}              # of the columns that were looked at
        self._datasets: dict[tuple[str, str], Stored] = {}          # open, since HDF5 keeps chunks only of such
        self._claimed = 0           # bytes of these, unpacked
        self.rows: dict[str, int] = {}
        self.columns: dict[str, Sequence[str]] = {}
        for table in TABLES:
            name = f"{table}/committed_rows"
            dataset = part_of(self.path, self.file, name)
            if dataset.shape != (1,) or dataset.dtype.kind not in "iu":
                raise LogError(f"{self.path}: {name} holds {dataset.dtype} entries in the shape {dataset.shape}, not "
                               "one number of rows")
            self.rows[table] = int(dataset.read(0, 1)[0])
            if self.rows[table] < 0:
                raise LogError(f"{self.path}: {name} is {self.rows[table]}")

        found: list[str] = []       # the names of all but links, after the rows that count, as columns grow

        def note(name: bytes, link: h5py.h5l.LinkInfo) -> None:
            if link.type == h5py.h5l.TYPE_HARD:
                found.append(name.decode("utf-8", "surrogateescape"))
        self.file.id.links.visit(note, info=True)
        groups = {name.rpartition("/")[0] for name in found}
        for table in TABLES:
            names = [name.removeprefix(f"{table}/") for name in found
                     if name.startswith(f"{table}/") and name not in groups and name != f"{table}/committed_rows"]
            for column in SCHEMA[table]:
                if not column.optional and column.name not in names:
                    raise LogError(f"{self.path}: {table} has no column {column.name}; is it a log of another program?")
            self.columns[table] = names

        state = superblock(self.path)
        self.size = state.size
        if state.size < state.end:
            self._refuse_lost_rows(state)
        self.rows["trials"] = begun_trials(self)

    @_tried_again
    def spec(self, table: str, name: str) -> LogColumn:
        """A column as the file has it, its dataset open from now on. LogError where it holds what does not belong there
        or says another unit than the schema's, and where it has less rows than were committed."""
        if (table, name) not in self._specs:
            what, rows = f"{table}/{name}", self.rows[table]
            dataset = part_of(self.path, self.file, what, is_known=True)
            wanted = KNOWN[table].get(name)
            found = column_spec(name, dataset, wanted)
            if "/" in name and (table == "steps" or (found.type, found.unit) != ("float", "1")):     # as others are
                wanted = column_of(table, name)
            self.claim(what, dataset, found.type, rows)
            if wanted and found.type != wanted.type:
                raise LogError(f"{self.path}: {what} holds {found.type} entries ({dataset.dtype}) where {wanted.type} "
                               "belongs")
            if wanted and found.unit and found.unit != wanted.unit:
                raise LogError(f"{self.path}: {what} is in {found.unit} where {wanted.unit} belongs; units are not "
                               "converted, as nothing says that the rest of the log is in them")
            if dataset.shape[0] < rows:
                raise LogError(f"{self.path}: {what} has {dataset.shape[0]} rows where {rows} were committed; "
                               f"'hvdscale-log repair {self.path}' saves what is left")
            self._specs[table, name], self._datasets[table, name] = found, dataset
        return self._specs[table, name]

    @_tried_again
    def read(self, table: str, name: str, first: int = 0, stop: int | None = None) -> np.ndarray:
        """Whole rows of a column, all or those of first:stop: int64, float64, int8 (status) or an object array of str
        (text)."""
        kind, rows = self.spec(table, name).type, self.rows[table]
        values = self._datasets[table, name].read(first, rows if stop is None else min(stop, rows))
        if kind != "text":
            return values.astype(TYPES[kind], copy=False)
        if self._heap is None:
            heap = part_of(self.path, self.file, "text")
            self.claim("text", heap, "int", NO_END)
            size = heap.shape[0]
            self._heap = heap.read(0, size) if size <= SMALL_HEAP else h5py.Dataset(heap.id)
        return decode(self.path, self._heap, values)

    def close(self) -> None:
        self.file.close()
        self._datasets.clear()
        self._heap = None

    def claim(self, what: str, dataset: Stored, kind: str, rows: int) -> None:
        """LogError before any of these rows of a column is read where it holds what no column of its kind does, and
        where it claims more than its bytes in the file can expand to, or a file of this size has, or all columns
        together do: reading it would take memory out of all proportion."""
        dtype, shape, of_row = dataset.dtype, dataset.shape, (2,) if kind == "text" else ()
        if dtype.kind not in KINDS[kind] or not shape or shape[1:] != of_row:
            raise LogError(f"{self.path}: {what} holds {dtype} entries in the shape {shape}, as no column of a log "
                           "does")
        rows = min(rows, shape[0])
        size = rows * dtype.itemsize * math.prod(of_row)
        if size > SMALL_BYTES and size > DENSEST * (there := min(dataset.id.get_storage_size(), self.size)):
            raise LogError(f"{self.path}: {what} claims {rows:,} rows, but has {there:,} bytes in the file; "
                           f"'hvdscale-log repair {self.path}' saves what there is")
        if rows > SMALL_ROWS and rows * ROW_BYTES > self.size and what != "text":
            raise LogError(f"{self.path}: {what} claims {rows:,} rows, but the file has {self.size:,} bytes; a row "
                           f"takes {ROW_BYTES} or more")
        self._claimed += size
        if self._claimed > HELD_BYTES + DENSE * self.size:
            raise LogError(f"{self.path}: its columns claim over {self._claimed:,} bytes, but the file has "
                           f"{self.size:,}; no log is so dense")

    def _refuse_lost_rows(self, state: Superblock) -> None:
        """A live file that was cut off reads as zeros there, so where it is short, each column is looked at."""
        for table, rows in self.rows.items():
            for name in self.columns[table]:
                whole = part_of(self.path, self.file, f"{table}/{name}").rows_within(rows, state.size)
                if whole < rows:
                    raise LogError(f"{self.path}: is truncated: {state.size} of {state.end} bytes are there, with "
                                   f"{whole} of {rows} rows of {table}/{name}; "
                                   f"'hvdscale-log repair {self.path}' saves what is left")


def begun_trials(part: Part) -> int:
    """A part's rows of /trials without RUNNING ones at its end that no other table names: the tables are committed one
    after the other, so a writer killed in between leaves a trial that never began."""
    ids, status = part.read("trials", "id"), part.read("trials", "status")
    if not len(ids) or status[-1] != Status.RUNNING or ids[-1] in (named := part.read("restarts", "trial")):
        return len(ids)
    named = np.concatenate([named, part.read("evaluations", "trial"), part.read("steps", "trial")])
    begun = np.isin(ids, named) | (status != Status.RUNNING)
    return int(begun.nonzero()[0].max(initial=-1)) + 1


def column_spec(name: str, dataset: Stored, known: LogColumn | None = None) -> LogColumn:
    """A column as its dataset says it is: its type, unit, meaning, unless the schema knows it, and which way a metric
    gets better."""
    meaning = known.meaning if known and "/" not in name and h5py.h5a.exists(dataset.id, b"meaning") else None
    unit, meaning, better = (str(value or "") for value in (
        attribute_of(dataset.id, "unit"), meaning or attribute_of(dataset.id, "meaning"),
        "/" in name and attribute_of(dataset.id, "better")))
    kind = "int" if dataset.dtype.kind in "iu" else "float"
    if len(dataset.shape) == 2:
        kind = "text"
    elif dataset.dtype == np.int8 or isinstance(dataset.type, h5py.h5t.TypeEnumID):
        kind = "status"
    return LogColumn(name, kind, unit, meaning, better=better)


def in_order(table: str, columns: Iterable[str]) -> list[str]:
    """The names of a table's columns: in the schema's order, then metrics by split, then whatever else there is."""
    first = [*KNOWN[table], *SPLITS]
    place = {name: at for at, name in enumerate(first)}
    return sorted(columns, key=lambda name: (place.get(name.partition("/")[0], len(first)), name))


def join_columns(table: str, found: Iterable[Mapping[str, LogColumn]]) -> dict[str, LogColumn]:
    """The columns of a table of several files, in order; one that more have as the first says it is."""
    every: dict[str, LogColumn] = {}
    for specs in found:
        every = {**specs, **every}
    return {name: every[name] for name in in_order(table, every)}


def decode(path: str, heap: Any, spans: np.ndarray) -> np.ndarray:
    """The texts at ``spans`` (int64, shape (rows, 2): first byte, bytes) of the heap, as an object array of str.

    heap    uint8, shape (bytes,): an array, or an h5py.Dataset
    Raises LogError for a text outside the heap, and for texts that share bytes, which could take any memory.
    """
    if len(spans) == 0:
        return np.empty(0, dtype=object)
    starts, lengths = spans[:, 0], spans[:, 1]
    first, end = int(starts.min()), int((starts + lengths).max())
    if min(first, lengths.min()) < 0 or max(end, starts.max()) > len(heap):         # the sum may have overflowed
        row = int(((starts < 0) | (lengths < 0) | (starts > len(heap) - lengths)).argmax())
        raise LogError(f"{path}: a text of {lengths[row]} bytes at byte {starts[row]} (row {row}) lies outside /text, "
                       f"which has {len(heap)} bytes")
    data, places = memoryview(heap[first:end]), list(map(tuple, spans.tolist()))
    texts = dict.fromkeys(places, "")
    if (several := sum(length for _, length in texts)) > len(data):
        raise LogError(f"{path}: texts of {several:,} bytes lie in {len(data):,} bytes of /text, as no log's do")
    for start, length in texts:
        texts[start, length] = str(data[start - first:start - first + length], "utf-8", "replace")
    out = np.empty(len(places), dtype=object)
    out[:] = [texts[place] for place in places]
    return out


class Columns(Mapping[str, np.ndarray]):
    """Column name -> array, read when asked for and kept. Iterating gives the columns' names."""

    columns: tuple[str, ...]
    _read: dict[str, np.ndarray]

    def read(self, name: str) -> np.ndarray:
        """A column, not kept."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._read:
            self._read[name] = self.read(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns


class LogTable(Columns):
    """One table of a log; ``rows`` is the number of rows, ``len``, as of any mapping, that of columns. An optional
    column that a log, or a segment, does not have reads as NaN (a text as empty); any other is a KeyError."""

    def __init__(self, name: str, parts: Sequence[Part], keep: np.ndarray | None = None) -> None:
        """keep    row numbers to keep of the parts' rows, laid end to end, in the order wanted; None: all."""
        self.name, self._read = name, {}
        # the first of the files that have each column
        self.owners = {column: part for part in reversed(parts) for column in part.columns[name]}
        self.columns = tuple(in_order(name, self.owners))
        self.rows = sum(part.rows[name] for part in parts) if keep is None else len(keep)
        self._parts, self._keep = parts, keep

    @cached_property
    def specs(self) -> dict[str, LogColumn]:
        return {name: self.owners[name].spec(self.name, name) for name in self.columns}

    def read(self, name: str, first: int = 0, stop: int | None = None) -> np.ndarray:
        """A column, or rows first:stop of it, not kept: for one pass over a log larger than memory."""
        if name in self._read:
            return self._read[name][first:stop]
        if name not in self.columns:
            if name in OPTIONAL[self.name]:
                return absent(OPTIONAL[self.name][name], self.rows)[first:stop]
            raise KeyError(f"the log's {self.name} have no column {name!r}; there are {', '.join(self.columns)}")
        if len(self._parts) == 1:
            return self._parts[0].read(self.name, name, first, stop)
        if stop is not None:
            return self[name][first:stop]
        joined = np.concatenate([part.read(self.name, name) if name in part.columns[self.name]
                                 else absent(self.specs[name].type, part.rows[self.name]) for part in self._parts])
        return joined if self._keep is None else joined[self._keep]

    def change(self, name: str, values: np.ndarray) -> None:
        """Other rows of a column in memory, of which all columns are to have as many."""
        self._read[name], self.rows = values, len(values)

    def of_trial(self, name: str, trial: int) -> np.ndarray:
        """A trial's values of a column, in the log's order; of many rows no others are read where its own lie together.
        """
        order, trials = self._by_trial
        first, stop = (int(np.searchsorted(trials, trial, side)) for side in ("left", "right"))
        if order is None and self.rows > FEW_ROWS:
            return self.read(name, first, stop)
        return self[name][slice(first, stop) if order is None else order[first:stop]]

    @cached_property
    def _by_trial(self) -> tuple[np.ndarray | None, np.ndarray]:
        """The order of the rows by trial, None if they are in it already; and the trials in it."""
        trials = self["trial"]
        if (trials[1:] >= trials[:-1]).all():
            return None, trials
        order = np.argsort(trials, kind="stable")
        return order, trials[order]


def absent(kind: str, rows: int) -> np.ndarray:
    """What a column reads as where a segment lacks it: NaN, or an empty text."""
    if kind == "text":
        return np.full(rows, "", dtype=object)
    return np.full(rows, Status.RUNNING, np.int8) if kind == "status" else np.full(rows, np.nan)


class Log(AbstractContextManager["Log"]):
    """A whole log: its root attributes and its four tables. ``read_log`` or ``open_log`` makes it."""

    def __init__(self, path: str, parts: Sequence[Part]) -> None:
        self.path = path
        self.segments = [part.segment for part in parts]
        self.parts = parts
        self.attributes, self.size = parts[0].attributes, sum(part.size for part in parts)
        self.tables = tuple(LogTable(name, parts, _rows_that_count(name, parts) if len(parts) > 1 else None)
                            for name in TABLES)
        self.trials, self.restarts, self.evaluations, self.steps = self.tables

    def writer(self) -> dict[str, Any] | None:
        """The living process that writes it (host, pid, job), or None: then RUNNING trials were interrupted."""
        return lock.holder(self.path)

    def close(self, *_: object) -> None:
        """Closes the files; columns that were read stay."""
        for part in self.parts:
            part.close()

    __exit__ = close


def read_log(path: str | os.PathLike[str]) -> Log:
    """The log whose first file is ``path``, with all its segments: read at once up to 4 MiB, else its files stay open
    until ``close``. Raises LogError, naming the file, where one is missing, empty, not a log, of a newer schema,
    truncated or damaged."""
    log = open_log(path)
    try:
        for table in log.tables:            # so that none of its columns is found to be wrong later
            table.specs
        if log.size <= SMALL:
            for table in log.tables:
                for name in table.columns:
                    table[name]
            log.close()
    except BaseException:
        log.close()
        raise
    return log


def open_log(path: str | os.PathLike[str]) -> Log:
    """Opens a log like ``read_log``, but its columns are neither read nor looked at until they are asked for."""
    path = os.fspath(path)
    for _ in range(ATTEMPTS):
        parts: list[Part] = []
        try:
            named = segments.candidates(path)       # before the first is opened: they go after it is replaced
            parts.append(Part(path))
            if parts[0].segment.number:
                raise LogError(f"{path}: is file {parts[0].segment.number} of a log, not its first, file 0; name the "
                               "first one, the rest is found beside it")
            for segment in segments.rest(parts[0].segment, named) if named else ():
                parts.append(Part(segment.path))
            return Log(path, parts)
        except BaseException as error:
            for part in parts:
                part.close()
            if not isinstance(error, FileNotFoundError):
                raise
            missing = error                         # a segment that was listed is gone: the log was just merged
    raise LogError(f"{path}: there is no such log") from missing


def _rows_that_count(table: str, parts: Sequence[Part]) -> np.ndarray | None:
    """Numbers of the rows to keep, the parts' rows laid end to end; None where all count."""
    if table == "restarts":
        return None
    if table == "trials":
        return latest_rows(np.concatenate([part.read("trials", "id") for part in parts]))
    return current_rows([(part.read(table, "trial"), part.read(table, "step")) for part in parts],
                        [(part.read("restarts", "trial"), part.read("restarts", "first_step")) for part in parts])


def latest_rows(ids: np.ndarray) -> np.ndarray:
    """The last row of each id, in the order in which the ids first appear."""
    _, first = np.unique(ids, return_index=True)
    _, last_from_end = np.unique(ids[::-1], return_index=True)
    return (len(ids) - 1 - last_from_end)[np.argsort(first)]


def current_rows(rows: Sequence[tuple[np.ndarray, np.ndarray]], restarts: Sequence[tuple[np.ndarray, np.ndarray]]
                 ) -> np.ndarray:
    """Numbers of the rows that no later segment supersedes, the segments' rows laid end to end: it supersedes what
    earlier ones say of a trial's steps after first_step, and from its own first row on, as it logs step 0 once more.

    rows        per segment: trial and step, int arrays of shape (rows,)
    restarts    per segment: trial and first_step, int arrays of shape (restarts,)
    """
    offsets = np.cumsum([0] + [len(trial) for trial, _ in rows])
    keep = [np.arange(offsets[-1] - len(rows[-1][0]), offsets[-1])]
    ids, first_lost = np.empty(0, np.int64), np.empty(0, np.int64)      # per trial: the first step that is superseded
    for number in range(len(rows) - 2, -1, -1):
        keys = np.concatenate([ids, restarts[number + 1][0], rows[number + 1][0]])
        values = np.concatenate([first_lost, restarts[number + 1][1] + 1, rows[number + 1][1]])
        order = np.lexsort((values, keys))
        ids, first = np.unique(keys[order], return_index=True)
        first_lost = values[order][first]
        trial, step = rows[number]
        current = np.ones(len(trial), bool)
        if len(ids):
            place = np.minimum(np.searchsorted(ids, trial), len(ids) - 1)
            current = (ids[place] != trial) | (step < first_lost[place])
        keep.append(offsets[number] + np.flatnonzero(current))
    return np.concatenate(keep[::-1])
