"""A broken log made whole again: a copy of all that can be read, in its place; the broken files are kept beside.

What a log says twice is restored: columns of /trials from the plans, a missing row of /restarts from its trial. Rows
that then still break an invariant of ``check`` are left out.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import h5py
import numpy as np

from ..errors import LogError
from ..system.files import temporary_name
from ..system.lock import Lock
from . import segments
from .check import IN_PLAN, ORDERED, UnsoundRows, check, check_rows, contradictions, disordered
from .files import TYPES, Stored, open_file, part_of, reading, superblock
from .merge import merged_attributes, show, write_log
from .plan_text import read_plan
from .reader import Log, Part, absent, begun_trials, column_spec, decode
from .schema import INTERRUPTED, KNOWN, SCHEMA, SOURCE, TABLES, UNKNOWN_SEED, LogColumn, Status, column_of

BROKEN = ".broken"
LOST = np.iinfo(np.int64).min           # an integer that could not be read; no column has a use for it
LOST_TEXTS = {"plan": "{}"}             # of a column of texts; else an empty one
UNKNOWN = "unknown: the log was damaged here"


@dataclass
class Repair:
    """What came of a repair: rows kept per table, in words what was lost and restored, and where the originals are."""

    lost: list[str]
    restored: list[str] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    originals: list[str] = field(default_factory=list)


def repair(path: str, take_over: bool = False) -> Repair | None:
    """Replaces the log by one clean file of all rows that can be read, which passes ``check``; None where it is one
    already. A trial still RUNNING becomes INCOMPLETE: nobody writes it. LogError where there is nothing of that kind,
    and all is left as it was."""
    lock = Lock.take(path, take_over)
    try:
        with contextlib.suppress(LogError), check(path) as log:
            if len(log.segments) == 1 and not superblock(path).flags and Status.RUNNING not in log.trials["status"]:
                return None
        parts, names, lost = _salvage(path)
        log, done = Log(path, parts), Repair(lost)
        mend(log, done)
        if lost and not log.trials.rows:
            raise LogError(_nothing_saved(path, lost))
        attributes = merged_attributes(log)
        if log.segments[0].path != path:
            attributes["id"] = uuid.uuid4().hex      # the first file is lost: what lies beside it is not read again
        write_log(temporary := temporary_name(path), log, attributes)
        try:
            check(temporary).close()
        except LogError as error:
            os.unlink(temporary)
            raise LogError(f"{path}: nothing can be saved: what can be read of it contradicts itself "
                           f"({str(error).removeprefix(f'{temporary}: ')})") from error
        log.close()
        done.kept, done.originals = {table.name: table.rows for table in log.tables}, [_keep(name) for name in names]
        show(temporary, path, [name for name in names if name != path])
        return done
    except OSError as error:
        raise LogError(f"{path}: cannot be repaired: {error.strerror or error}") from error
    finally:
        lock.release()


def _salvage(path: str) -> tuple[list[SalvagedPart], list[str], list[str]]:
    """(what can be read of each of a log's files, in the order of the segments; the files; what is lost, in words)."""
    parts: list[SalvagedPart] = []
    names, lost = [], []
    for name in [*filter(os.path.exists, [path]), *(name for _, name in segments.candidates(path))]:
        try:
            part = SalvagedPart(name)
        except LogError as error:
            lost.append(str(error).partition("; 'hvdscale-log repair")[0])
            names.append(name)
            continue
        number, first = part.segment.number, (parts or [part])[0].segment
        is_here = part.segment.log_id == first.log_id and bool(number or name == path)      # not another log's
        if is_here:
            names.append(name)
        if is_here and (not parts or number >= first.stands_for):       # else left over from a merge: in the first file
            lost += part.lost
            parts.append(part)
        else:
            part.close()
    if not names:
        raise LogError(f"{path}: there is no such log")
    if not parts:
        raise LogError(_nothing_saved(names[0], lost))
    return sorted(parts, key=lambda part: part.segment.number), names, lost


def _nothing_saved(path: str, lost: Sequence[str]) -> str:
    """One line on where the file was cut off, or what was wrong first."""
    first, *others = lost
    cut = ""
    with contextlib.suppress(LogError, FileNotFoundError):
        cut = superblock(path).cut
    more = f" ({len(others)} more)" if others else ""
    return f"{path}: nothing can be saved: " + (cut or first.removeprefix(f"{path}: ") + more)


MAY_MISS = ("metaparameters/", "layer_groups/", "ranks/")     # columns of these, too, a row need not have


class SalvagedPart(Part):
    """A reader.Part of a file that may be damaged anywhere: rows up to the first that cannot be read.

    A row needs all its entries but those of optional columns and MAY_MISS, which become NaN, and of texts; one of
    /trials needs none, as they may be known from elsewhere: see mend.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost: list[str] = []
        self.file, self.attributes = open_file(path, tolerant=True)
        self.size, self._claimed = superblock(path).size, 0
        with reading(path):
            self.segment = segments.of_attributes(path, self.attributes)
        self.rows, self.columns = {}, {}
        self._specs, self._datasets = {}, {}
        self._values: dict[tuple[str, str], np.ndarray] = {}
        for table in TABLES:
            self._read_table(table)
        # ids of trials that cannot be read are those of /restarts, where each trial has its first row in turn
        started = self._values["restarts", "trial"]
        in_turn = started[np.sort(np.unique(started, return_index=True)[1])]
        if LOST in self._values["trials", "id"] and len(in_turn) == self.rows["trials"]:
            self._values["trials", "id"] = in_turn
        self.rows["trials"] = begun_trials(self)

    def read(self, table: str, name: str, first: int = 0, stop: int | None = None) -> np.ndarray:
        return self._values[table, name][:self.rows[table]][first:stop]

    def _read_table(self, table: str) -> None:
        specs = {column.name: column for column in SCHEMA[table] if not column.optional}
        self._add_found_columns(table, specs)
        for name in [name for name in specs if any(name.startswith(f"{above}/") for above in specs)]:
            self.lost.append(f"{self.path}: {table}/{name}, which lies in a column")        # as its name was damaged
            del specs[name]
        rows = self._committed(table, specs)
        values = {name: self._read_column(table, spec, rows) for name, spec in specs.items()}
        can_miss = {column.name for column in (*SCHEMA[table], *SOURCE) if column.optional}
        needed = [name for name in specs if name not in can_miss and not name.startswith(MAY_MISS)]
        ending = (max if table == "trials" else min)(needed, key=lambda name: len(values[name]))
        whole = len(values[ending])
        if whole < rows:
            self.lost.append(f"{self.path}: {rows - whole} of {rows} rows of {table}, where {table}/{ending} ends")
        self.rows[table], self.columns[table] = whole, list(specs)
        self._specs |= {(table, name): spec for name, spec in specs.items()}
        for name, column in values.items():
            if len(column) < whole:
                self.lost.append(f"{self.path}: {whole - len(column)} of {whole} entries of {table}/{name}")
                column = np.concatenate([column, lost_entries(specs[name], whole - len(column))])
            self._values[table, name] = column[:whole]

    def _add_found_columns(self, table: str, specs: dict[str, LogColumn]) -> None:
        """Adds the columns that the file has of a table; each group is opened once, as links may go in a circle."""
        places, seen = [table], set()
        for place in places:
            names = []
            with self._noting(place):
                group = part_of(self.path, self.file, place)
                if not isinstance(group, Stored) and (address := h5py.h5o.get_info(group).addr) not in seen:
                    names = list(h5py.Group(group))
                    seen.add(address)
            for name in (f"{place}/{name}" for name in names if name != "committed_rows"):
                with self._noting(name):
                    item = part_of(self.path, self.file, name)
                    if isinstance(item, Stored):
                        column = name.removeprefix(f"{table}/")
                        found = column_spec(column, item)
                        known = column_of(table, column) if "/" in column else KNOWN[table].get(column)
                        specs[column] = replace(known, better=found.better) if known else found
                    else:
                        places.append(name)

    def _committed(self, table: str, specs: Iterable[str]) -> int:
        """Rows that were whole when written; of a closed file, whose columns have no more, also from their lengths."""
        with self._noting(f"{table}/committed_rows"):
            dataset = part_of(self.path, self.file, f"{table}/committed_rows")
            if dataset.rows_within(1, self.size):
                return int(dataset.read(0, 1)[0])
        if superblock(self.path).flags:
            return 0
        lengths = []
        for name in specs:
            with contextlib.suppress(LogError), reading(self.path):
                lengths.append(part_of(self.path, self.file, f"{table}/{name}").shape[0])
        return min(lengths, default=0)

    def _read_column(self, table: str, spec: LogColumn, committed: int) -> np.ndarray:
        with self._noting(f"{table}/{spec.name}"):
            dataset = part_of(self.path, self.file, f"{table}/{spec.name}")
            rows = dataset.rows_within(min(committed, dataset.shape[0]), self.size)
            self.claim(f"{table}/{spec.name}", dataset, spec.type, rows)
            step = dataset.chunk_rows() or max(rows, 1)
            pieces = [dataset.read(0, 0)]       # those before the first chunk that cannot be read
            with contextlib.suppress(OSError):
                for first in range(0, rows, step):
                    pieces.append(dataset.read(first, min(first + step, rows)))
            values = np.concatenate(pieces)
            if spec.type == "text":
                return self._texts(values, LOST_TEXTS.get(spec.name, ""))
            return values.astype(TYPES[spec.type], copy=False)
        return absent(spec.type, 0)

    def _texts(self, spans: np.ndarray, lost_text: str) -> np.ndarray:
        """The texts; ``lost_text`` for one that is not whole."""
        out = np.full(len(spans), lost_text, dtype=object)
        with self._noting("text"):
            heap = part_of(self.path, self.file, "text")
            size = heap.rows_within(heap.shape[0], self.size)
            self.claim("text", heap, "int", size)
            whole = (spans >= 0).all(axis=1) & (spans <= size).all(axis=1) & (spans.sum(axis=1) <= size)
            out[whole] = decode(self.path, h5py.Dataset(heap.id), spans[whole])
            if not whole.all():
                self.lost.append(f"{self.path}: {(~whole).sum()} texts")
        return out

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            with reading(self.path):
                yield
        except LogError as error:
            said = f"{self.path}: {what}: " + str(error.__cause__ or error).removeprefix(f"{self.path}: ")
            if said not in self.lost:
                self.lost.append(said)


def _keep(name: str) -> str:
    """Keeps a file under another name, which no file has; the same bytes where the file system can, else a copy."""
    names = (f"{name}{BROKEN}{number or ''}" for number in itertools.count())
    kept = next(free for free in names if not os.path.lexists(free))
    try:
        os.link(name, kept)
    except OSError:
        shutil.copy2(name, kept)
    return kept


def lost_entries(column: LogColumn, rows: int) -> np.ndarray:
    """The value of a column's entries that could not be read."""
    if column.name in LOST_TEXTS:
        return np.full(rows, LOST_TEXTS[column.name], object)
    return np.full(rows, LOST) if column.type == "int" else absent(column.type, rows)


def mend(log: Log, done: Repair) -> None:
    """Has in memory those of a log's rows that keep all invariants of ``check``; LogError where those it lacks have no
    rows to leave out."""
    for table in log.tables:
        dict(table)
    trials, restarts = log.trials, log.restarts
    _restore_columns(log, done)
    status, reason = trials["status"], trials["stop_reason"]
    running = status == Status.RUNNING                      # so interrupted, as its writer is gone
    reason[running & (reason == "")] = INTERRUPTED
    status[running] = Status.INCOMPLETE
    if (silent := reason == "").any():
        reason[silent] = UNKNOWN
        done.lost.append(f"{log.path}: {silent.sum()} of {trials.rows} entries of trials/stop_reason")
    missing = ~np.isin(trials["id"], restarts["trial"])
    if missing.any():
        known = {"trial": trials["id"][missing], "first_step": 0, "workers": trials["workers"][missing],
                 "previous_end": UNKNOWN}
        for name, spec in restarts.specs.items():
            added = lost_entries(spec, int(missing.sum()))
            added[:] = known.get(name, added)
            restarts.change(name, np.concatenate([restarts[name], added]))
        done.restored.append(f"{log.path}: {missing.sum()} rows of restarts, without host, device and time")
    for name, column, strict in ORDERED:
        table = getattr(log, name)
        falls = np.sort(disordered(table, column, strict))[::-1]
        if len(falls):
            begin = dict(zip(table["trial"][falls].tolist(), falls.tolist()))
            ends = np.array([begin.get(trial, table.rows) for trial in table["trial"].tolist()])
            named = ", ".join(map(str, sorted(begin)[:5])) + (" and others" if len(begin) > 5 else "")
            _drop(log, name, np.arange(table.rows) >= ends, f"{name}/{column} goes back in trial {named}", done)
    seeds = trials["seed"]
    seeds[seeds == LOST] = UNKNOWN_SEED
    while True:
        try:
            return check_rows(log)
        except UnsoundRows as error:
            _drop(log, error.table, error.wrong, str(error).removeprefix(f"{log.path}: "), done)


def _drop(log: Log, name: str, wrong: np.ndarray, why: str, done: Repair) -> None:
    table = getattr(log, name)
    done.lost.append(f"{log.path}: {wrong.sum()} of {table.rows} rows of {name}: {why}")
    for column in table:
        table.change(column, table[column][~wrong])


def _restore_columns(log: Log, done: Repair) -> None:
    """Where a column of /trials and the plan differ, the plan is right, as damage seldom leaves it JSON; a plan that
    cannot be read becomes an empty one."""
    trials, lost = log.trials, 0
    restored: Counter[str] = Counter()
    columns = [name for name in IN_PLAN if name in trials]
    for row, text in enumerate(trials["plan"]):
        try:
            planned = dict(contradictions({name: trials[name][row] for name in columns}, read_plan(text, True)))
            for name, value in planned.items():
                if isinstance(value, str) != (trials.specs[name].type == "text"):
                    raise TypeError
                trials[name][row] = value
            restored.update(planned.keys())
        except (LogError, TypeError, ValueError, OverflowError):        # of a value that the column has no place for
            trials["plan"][row], lost = LOST_TEXTS["plan"], lost + 1
    if lost:
        done.lost.append(f"{log.path}: {lost} of {trials.rows} plans")
    for name, count in restored.items():
        done.restored.append(f"{log.path}: {count} of {trials.rows} entries of trials/{name}, from the plans")
