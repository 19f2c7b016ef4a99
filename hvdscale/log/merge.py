"""Several files in one: the segments of a log that has ended, and many logs, their trials numbered apart, each with
the log that it came from.

    merge(["runs/w1.h5", "runs/w8.h5"], "runs/all.h5")     -> (log, trials renumbered) of each
"""

import contextlib
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LogError
from ..system.files import remove, sync_directory, temporary_name
from ..system.lock import Lock
from . import segments
from .check import check
from .compact_file import CompactFile
from .files import make_directory, refuse_taken, superblock
from .reader import Log, LogTable, absent, join_columns, read_log
from .schema import SOURCE, TABLES, LogColumn

PER_SEGMENT = ("id", "segment", "segments", "host", "changes")      # attributes that need not agree between segments
_SOURCE = tuple(column.name for column in SOURCE)


def is_finished(path: str) -> bool:
    """Whether a log is one closed file, with nothing left beside it of its segments."""
    return not superblock(path).flags and not segments.beside(path)


REPLACED = "another process has replaced it, so this file system keeps no locks between hosts"


def finish_segments(path: str, log_id: str, last: int) -> None:
    """Merges the segments of a log that nobody writes into its first file, then removes the others. OSError where they
    are not of this id up to this number, as read again: a host may see for long what another one has replaced."""
    with read_log(path) as log:
        if (log.segments[-1].log_id, log.segments[-1].number) != (log_id, last):
            raise OSError(REPLACED)
        write_log(temporary := temporary_name(path), log, merged_attributes(log))
        others = [segment.path for segment in segments.later(log.segments[0])]
    show(temporary, path, others)


def write_log(path: str, log: Log, attributes: Mapping[str, Any]) -> None:
    with CompactFile(path, attributes) as out:
        for table in log.tables:
            for name, spec in table.specs.items():
                out.add_column(table.name, spec)
                out.add(table.name, name, table.read(name))


def merged_attributes(log: Log) -> dict[str, Any]:
    """Root attributes of all segments as one: the first's, with ``changes`` where a later one has another commit."""
    every = [part.attributes for part in log.parts]
    changes = dict(every[0].get("changes", {}))
    for before, attributes in itertools.pairwise(every):
        changed = {k: v for k, v in attributes.items() if k not in PER_SEGMENT and before.get(k) != v}
        if changed:
            changes[f"segment {attributes['segment']}"] = changed
    merged = {**every[0], "segment": 0, "segments": max(log.segments[-1].number + 1, log.segments[0].stands_for)}
    return {**merged, "changes": changes} if changes else merged


def show(temporary: str, path: str, others: Iterable[str]) -> None:
    """Puts a finished file in the place of a log; ``others``, the segments merged into it, are removed."""
    try:
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise
    sync_directory(path)
    for other in others:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(other)


def merge(paths: Iterable[str | os.PathLike[str]], out: str, overwrite: bool = False, take_over: bool = False
          ) -> list[tuple[Log, int]]:
    """Writes the logs' rows, log by log, into the new file ``out``; gives each log and how many trials got another id.

    Columns are those of all logs together, NaN where one lacks them. A trial whose id is taken by an earlier log gets
    the next free one; ``source`` and ``source_trial`` keep where it came from. Raises LogError where ``out`` exists and
    is not to be overwritten, where one log is given twice, or where one does not pass ``check``.
    """
    paths = list(paths)
    with new_log(out, {"merged": len(paths)}, overwrite, take_over) as file:
        with contextlib.ExitStack() as opened:
            logs = [opened.enter_context(check(path)) for path in paths]
            seen: dict[str, str] = {}
            for log in logs:
                other = seen.setdefault(log_id := log.segments[0].log_id, log.path)
                if other != log.path:
                    raise LogError(f"{log.path}: is a copy of {other} (both have the id {log_id}); give one of the two")
            numbers = renumbered([log.trials["id"] for log in logs])
            _write(logs, numbers, file)
    return [(log, int((log.trials["id"] != new).sum())) for log, new in zip(logs, numbers)]


@contextlib.contextmanager
def new_log(path: str | os.PathLike[str], attributes: Mapping[str, Any], overwrite: bool = False,
            take_over: bool = False) -> Iterator[CompactFile]:
    """The one writer of a closed log, with root attributes to add, which is there when ``with`` ends without an error.
    LogError where there is one that is not to be overwritten or is being written, or none can be written.

    take_over   write even where the file system refuses locks
    """
    path = os.fspath(path)
    make_directory(path)
    with Lock.take(path, take_over):
        refuse_taken(path, overwrite)
        try:
            identity = {"id": uuid.uuid4().hex, "segment": 0, "segments": 1}
            with CompactFile(temporary := temporary_name(path), {**identity, **attributes}) as file:
                yield file
            show(temporary, path, segments.beside(path))
        except OSError as error:
            raise LogError(f"{path}: cannot be written: {error.strerror or error}; nothing of it was left") from error


def renumbered(ids: list[np.ndarray]) -> list[np.ndarray]:
    """New trial ids for each log: as they were, but where an earlier log has the id, the next free number."""
    taken = np.empty(0, np.int64)
    highest = max((int(i.max()) for i in ids if len(i)), default=-1)
    out = []
    for old in ids:
        clash = np.isin(old, taken)
        new = old.copy()
        new[clash] = highest + 1 + np.arange(clash.sum())
        highest += int(clash.sum())
        taken = np.concatenate([taken, new])
        out.append(new)
    return out


def _write(logs: Sequence[Log], numbers: Sequence[np.ndarray], out: CompactFile) -> None:
    for place, name in enumerate(TABLES):
        tables = [log.tables[place] for log in logs]
        for spec in joined(name, (table.specs.values() for table in tables)):
            out.add_column(name, spec)
            out.add(name, spec.name, np.concatenate([
                _values(log, table, spec, new) for log, table, new in zip(logs, tables, numbers)]))
        if name == "trials":
            for column, kept in zip(SOURCE, zip(*map(source_of, logs))):
                out.add_column(name, column)
                out.add(name, column.name, np.concatenate(kept))


def joined(table: str, logs: Iterable[Iterable[LogColumn]]) -> list[LogColumn]:
    """The columns of a table of all logs together, in order; those that say where a trial came from are left out."""
    every = join_columns(table, ({spec.name: spec for spec in log} for log in logs))
    return [spec for name, spec in every.items() if name not in _SOURCE]


def _values(log: Log, table: LogTable, spec: LogColumn, new: np.ndarray) -> np.ndarray:
    """A column of one log as it goes into the merged file: trials under their new ids."""
    if spec.name not in table:
        return absent(spec.type, table.rows)
    values = table.read(spec.name)
    if (table.name, spec.name) != ("trials", "id") and spec.name != "trial":
        return values
    order = np.argsort(log.trials["id"])
    return new[order][np.searchsorted(log.trials["id"][order], values)]


def source_of(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Where each trial of a log came from: JSON and the id there; what an earlier merge noted stays."""
    attributes = {name: value for name, value in log.attributes.items() if name not in ("segment", "segments")}
    text = json.dumps({"path": log.path, **attributes})
    source, trial = np.full(log.trials.rows, text, dtype=object), log.trials["id"]
    if _SOURCE[0] in log.trials:
        source = np.where(log.trials[_SOURCE[0]] != "", log.trials[_SOURCE[0]], source)
        trial = log.trials[_SOURCE[1]]
    return source, trial
