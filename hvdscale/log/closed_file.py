"""A log as one closed file in the place of its segments: what ``finish``, ``merge`` and ``repair`` leave."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..system.files import remove, sync_directory, temporary_name
from . import segments
from .check import LogTables
from .compact_file import CompactFile
from .files import superblock
from .reader import Log, read_log

PER_SEGMENT = ("id", "segment", "segments", "host", "changes")      # attributes that need not agree between segments


def write_log(path: str, log: LogTables, attributes: Mapping[str, Any]) -> None:
    """Copies a log's tables into a new compact file."""
    with CompactFile(path, attributes) as out:
        for table in log.tables:
            for name, spec in table.specs.items():
                out.add_column(table.name, spec)
                out.add(table.name, name, table.read(name))


def is_finished(path: str) -> bool:
    """Whether a log is one closed file, with nothing left beside it of its segments."""
    return not superblock(path).flags and not segments.beside(path)


def finish_segments(path: str) -> None:
    """Merges the segments of a log that nobody writes into its first file, then removes the others."""
    with read_log(path) as log:
        write_log(temporary := temporary_name(path), log, merged_attributes(log))
        others = [segment.path for segment in segments.later(log.segments[0])]
    show(temporary, path, others)


def merged_attributes(log: Log) -> dict[str, Any]:
    """Root attributes of all segments as one: the first's, with ``changes`` where a later one has another commit."""
    first, *rest = (part.attributes for part in log.parts)
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
