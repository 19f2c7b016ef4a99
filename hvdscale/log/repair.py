"""A broken log made whole again: a copy of all that can be read, in its place; the broken files are kept beside.

    repair("runs/w8.h5")     -> Repair(kept={"steps": 512, ...}, lost=["..."], originals=["runs/w8.h5.broken"])
"""
from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from dataclasses import dataclass

import numpy as np

from ..errors import LogError
from . import segments
from .compact import merged_attributes, show, write_log
from .files import TEMPORARY, open_file, part_of, read_attribute, reading, rows_within, superblock
from .lock import Lock
from .reader import SCHEMA, Log, absent, begun_trials, column_specs, decode, read_log
from .schema import SOURCE, TABLES, Status

BROKEN = ".broken"
INTERRUPTED = "interrupted: the process that wrote the log ended without a word"


@dataclass(frozen=True)
class Repair:
    """What came of a repair: rows kept per table, what was lost in words, and where the original files are."""

    kept: dict[str, int]
    lost: list[str]
    originals: list[str]


def repair(path: str, take_over: bool = False) -> Repair | None:
    """Replaces the log by one clean file of all rows that can be read; None where it is one already.

    A trial still RUNNING becomes INCOMPLETE: nobody writes it. Raises LogError where nothing can be read, and leaves
    everything as it was.
    """
    lock = Lock.take(path, take_over)
    try:
        if _is_clean(path):
            return None
        names, lost = _files(path)
        parts = _salvage(names, lost)
        log = Log(path, parts)
        _end_running(log)
        last = max(part.segment.number for part in parts)
        first = log.segments[0]
        attributes = {**merged_attributes(log), "segments": max(last + 1, first.stands_for)}
        if first.path != path:
            attributes["id"] = uuid.uuid4().hex      # the first file is lost: what lies beside it is not read again
        write_log(path + TEMPORARY, log, attributes)
        kept = {table.name: table.rows for table in log.tables}
        log.close()
        originals = [_keep(name) for name in names]
        show(path + TEMPORARY, path, [name for name in names if name != path])
        return Repair(kept, lost, originals)
    except OSError as error:
        raise LogError(f"{path}: cannot be repaired: {error.strerror or error}") from error
    finally:
        lock.release()


def _is_clean(path) -> bool:
    """Whether the log is one closed file that reads well and says how its trials ended."""
    try:
        with read_log(path) as log:
            log.load()
            return len(log.segments) == 1 and not superblock(path).flags and Status.RUNNING not in log.trials["status"]
    except LogError:
        return False


def _files(path) -> tuple[list[str], list[str]]:
    """The files that may hold the log's rows, and a word on those that cannot be opened."""
    names, lost = [path] if os.path.exists(path) else [], []
    if not names and not segments.candidates(path):
        raise LogError(f"{path}: there is no such log")
    for _, name in segments.candidates(path):
        try:
            if segments.describe(name).number:
                names.append(name)
        except LogError as error:
            lost.append(f"{error}")
            names.append(name)
    return names, lost


def _salvage(names, lost) -> list[SalvagedPart]:
    """What can be read of each file, in the order of the segments; those of another log are left out of ``names``."""
    parts = []
    for name in list(names):
        try:
            part = SalvagedPart(name)
        except LogError as error:
            if str(error) not in lost:
                lost.append(str(error))
            continue
        if parts and part.segment.log_id != parts[0].segment.log_id:
            names.remove(name)
            part.close()
            continue
        if parts and part.segment.number < parts[0].segment.stands_for:
            part.close()                             # left over from a merge: its rows are in the first file
            continue
        lost += part.lost
        parts.append(part)
    if not parts:
        raise LogError("; ".join(lost) + "; nothing can be saved")
    return sorted(parts, key=lambda part: part.segment.number)


# columns of these, too, a row need not have
MAY_MISS = ("metaparameters/", "layer_groups/")


class SalvagedPart:
    """As reader.Part, but of a file that may be damaged anywhere: rows up to the first that cannot be read.

    A row needs all its entries but those of optional columns and MAY_MISS, which become NaN, and of texts.
    """

    def __init__(self, path: str):
        self.path, self.lost = path, []
        self.file = open_file(path, tolerant=True)
        self._size = superblock(path).size
        with reading(path):
            self.segment = segments.of_file(path, self.file)
            self.attributes = {name: read_attribute(value) for name, value in self.file.attrs.items()}
        self.rows, self.columns, self._values = {}, {}, {}
        for table in TABLES:
            self._read_table(table)
        self.rows["trials"] = begun_trials(self)

    def read(self, table: str, name: str) -> np.ndarray:
        """All whole rows of a column."""
        return self._values[table, name][:self.rows[table]]

    def close(self):
        """Lets the file go."""
        self.file.close()

    def _read_table(self, table):
        specs = {column.name: column for column in SCHEMA[table] if not column.optional}
        with self._noting(table):
            specs |= column_specs(part_of(self.path, self.file, table))
        rows = self._committed(table, specs)
        values = {name: self._read_column(table, spec, rows) for name, spec in specs.items()}
        can_miss = {column.name for column in (*SCHEMA[table], *SOURCE) if column.optional}
        needed = [name for name in specs if name not in can_miss and not name.startswith(MAY_MISS)]
        shortest = min(needed, key=lambda name: len(values[name]))
        whole = len(values[shortest])
        if whole < rows:
            self.lost.append(f"{self.path}: {rows - whole} of {rows} rows of {table}, where {table}/{shortest} ends")
        self.rows[table], self.columns[table] = whole, specs
        for name, column in values.items():
            if len(column) < whole:
                self.lost.append(f"{self.path}: {whole - len(column)} of {whole} entries of {table}/{name}")
                column = np.concatenate([column, absent(specs[name].type, whole - len(column))])
            self._values[table, name] = column[:whole]

    def _committed(self, table, specs) -> int:
        """Rows that were whole when written; of a closed file, whose columns have no more, also from their lengths."""
        with self._noting(f"{table}/committed_rows"):
            dataset = part_of(self.path, self.file, f"{table}/committed_rows")
            if rows_within(dataset, 1, self._size):
                return int(dataset[0])
        if superblock(self.path).flags:
            return 0
        with self._noting(table):
            return min(len(part_of(self.path, self.file, f"{table}/{name}")) for name in specs)
        return 0

    def _read_column(self, table, spec, committed) -> np.ndarray:
        """As many of the committed rows as can be read."""
        with self._noting(f"{table}/{spec.name}"):
            dataset = part_of(self.path, self.file, f"{table}/{spec.name}")
            rows = rows_within(dataset, min(committed, len(dataset)), self._size)
            values = _read_up_to(dataset, rows)
            return self._texts(values, "{}" if spec.name == "plan" else "") if spec.type == "text" else values
        return absent(spec.type, 0)

    def _texts(self, spans, lost_text) -> np.ndarray:
        """The texts; where one is not whole, ``lost_text`` from there on."""
        out, whole = np.full(len(spans), lost_text, dtype=object), 0
        with self._noting("text"):
            heap = part_of(self.path, self.file, "text")
            size = rows_within(heap, len(heap), self._size)
            bad = (spans < 0).any(axis=1) | (spans.sum(axis=1) > size)
            whole = int(bad.argmax()) if bad.any() else len(spans)
            out[:whole] = decode(heap, spans[:whole])
            if whole < len(spans):
                self.lost.append(f"{self.path}: {len(spans) - whole} texts")
        return out

    @contextlib.contextmanager
    def _noting(self, what):
        """Notes whatever cannot be read instead of failing."""
        try:
            with reading(self.path):
                yield
        except LogError as error:
            said = str(error.__cause__ or error).removeprefix(f"{self.path}: ")
            self.lost.append(f"{self.path}: {what}: {said}")


def _read_up_to(dataset, rows) -> np.ndarray:
    """The first ``rows`` rows, or those before the first chunk that cannot be read."""
    try:
        return dataset[:rows]
    except OSError:
        good = []
        for first in range(0, rows, dataset.chunks[0] if dataset.chunks else rows):
            try:
                good.append(dataset[first:min(first + dataset.chunks[0], rows)] if dataset.chunks else dataset[:0])
            except OSError:
                break
        return np.concatenate(good) if good else dataset[:0]


def _end_running(log):
    """Trials that still run are INCOMPLETE: their writer is gone."""
    status, reason = log.trials["status"], log.trials["stop_reason"]
    running = status == Status.RUNNING
    reason[running & (reason == "")] = INTERRUPTED
    status[running] = Status.INCOMPLETE


def _keep(name) -> str:
    """Keeps a file under another name, which no file has; the same bytes where the file system can, else a copy."""
    for number in ("", *range(1, 1000)):
        kept = f"{name}{BROKEN}{number}"
        if os.path.lexists(kept):
            continue
        try:
            os.link(name, kept)
        except OSError:
            shutil.copy2(name, kept)
        return kept
    raise LogError(f"{name}: has a thousand {BROKEN} copies already; remove them")
