"""The files of one log. No log is ever reopened: each process start writes its own segment, readers take them as one.

    w8.h5, w8.1.h5, w8.2.h5, ...      segments 0, 1, 2 share the attribute ``id`` and are numbered by ``segment``

A merged file replaces ``segments`` of them (its attribute), so that leftovers of a merge cut short are passed over.
A file that is named like a segment but has another id is another log.
"""

import contextlib
import glob
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import LogError
from ..formatting.numbers import counted
from .files import open_file, reading

_NUMBERED = re.compile(r"\.[1-9]\d*")          # what follows the stem in a later segment's name
MOST_NAMED = 8                  # folders with logs
SETTLED_NS = 2_000_000_000      # after which a folder that changes has another time of change, on any file system


@dataclass(frozen=True)
class Segment:
    """One file of a log: where it is, its number, and how many segments it replaces."""

    path: str
    log_id: str
    number: int
    stands_for: int


def describe(path: str) -> Segment:
    """The segment that a file says it is; LogError where it is no log, FileNotFoundError where it is missing."""
    file, attributes = open_file(path)
    file.close()
    with reading(path):
        return of_attributes(path, attributes)


def of_attributes(path: str, attributes: Mapping[str, Any]) -> Segment:
    return Segment(path, str(attributes.get("id")), int(attributes.get("segment") or 0),
                   int(attributes.get("segments") or 1))


def candidates(path: str) -> list[tuple[int, str]]:
    """Files named like later segments of ``path``: (number in the name, path), in order."""
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    names: list[str] = []
    with contextlib.suppress(OSError):
        status = os.stat(folder or ".")
        listed = _numbered_in if time.time_ns() - status.st_mtime_ns > SETTLED_NS else _numbered_in.__wrapped__
        names = [other for other in listed(folder or ".", status.st_ino, status.st_mtime_ns)
                 if other.startswith(f"{stem}.")]
    numbers = [(other.removeprefix(stem).removesuffix(extension), os.path.join(folder, other)) for other in names]
    return sorted((int(number[1:]), other) for number, other in numbers if _NUMBERED.fullmatch(number))


@lru_cache(maxsize=8)
def _numbered_in(folder: str, inode: int, changed_ns: int) -> list[str]:
    """The names in a folder that may be of later segments: listed once for the thousands of logs that it may have."""
    return [name for name in os.listdir(folder) if re.search(r"\.[1-9]", name)]


def later(first: Segment, named: Iterable[tuple[int, str]] | None = None) -> list[Segment]:
    """The segments after the first file's own, in order, leftovers of its merge included, among the ``candidates``
    (None: those there are now)."""
    found = []
    for _, name in candidates(first.path) if named is None else named:
        try:
            found.append(describe(name))
        except LogError as error:
            raise LogError(f"{error} (its name makes it a file of the log {first.path})") from error
    return sorted((s for s in found if s.log_id == first.log_id and s.number > 0), key=lambda s: s.number)


def beside(path: str) -> list[str]:
    """The files of the later segments of a log that is to be overwritten; none where it cannot be read."""
    try:
        return [segment.path for segment in later(describe(path))]
    except (LogError, FileNotFoundError):
        return []


def rest(first: Segment, named: Iterable[tuple[int, str]]) -> list[Segment]:
    """The files that hold the log's rows beside the first, in order, among the ``candidates`` as they were before it
    was opened; LogError if one is missing."""
    path = first.path
    segments = [s for s in later(first, named) if s.number >= first.stands_for]
    for expected, segment in enumerate(segments, start=first.stands_for):
        if segment.number != expected:
            raise LogError(f"{path}: file {expected} of the log is missing: {segment.path} is file {segment.number}; "
                           f"put it back beside {path}, or let 'hvdscale-log repair {path}' leave it out")
    return segments


def find_logs(paths: Iterable[str | os.PathLike[str]], below: bool = False) -> list[str]:
    """The logs among files, patterns and directories, each once, in order; of a directory, all its *.h5 files, with
    ``below`` also those of its folders. A file that cannot be read counts, so that reading it says why."""
    names: list[str] = []
    for path in expand(paths):
        files = os.path.join(glob.escape(path), "**" if below else "", "*.h5")
        names += sorted(glob.glob(files, recursive=below)) if os.path.isdir(path) else [path]
    return list(dict.fromkeys(first_of(name) if _NUMBERED.search(name) else name for name in names))


def logs_in(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The same; LogError where there is none, and as ``refuse_outer`` says."""
    for folder in filter(os.path.isdir, expand(paths)):
        refuse_outer(folder)
    names = find_logs(paths)
    if not names:
        raise no_logs(paths)
    return names


def refuse_outer(path: str) -> None:
    """LogError where a directory has no log of its own while those in it have: what lies apart is not mixed unasked."""
    within = []
    for folder, inner, _ in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        count = len(find_logs([folder]))
        if count and folder == path:
            return
        within += [f"\n  {folder}: {counted(count, 'log')}"] if count else []
    if within:
        more = f"\n  and {len(within) - MOST_NAMED} more" if len(within) > MOST_NAMED else ""
        raise LogError(f"no logs (*.h5) in {path} itself, but in directories in it; name those that are meant:"
                       f"{''.join(within[:MOST_NAMED])}{more}")


def no_logs(paths: Iterable[str | os.PathLike[str]]) -> LogError:
    return LogError(f"no logs (*.h5) in {', '.join(map(str, paths)) or 'an empty list of paths'}; 'hvdscale-log "
                    "import' makes logs of what other programs wrote")


def expand(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The paths, with each pattern replaced by its matches in order, as a shell does; LogError for one without any."""
    names: list[str] = []
    for path in (os.fspath(one) for one in paths):
        found = [path] if os.path.lexists(path) or not glob.has_magic(path) else sorted(glob.glob(path))
        if not found:
            raise LogError(f"{path}: there is no such log, and no file matches it as a pattern; hvdscale-log ls lists "
                           "the logs of a folder")
        names += found
    return names


def first_of(path: str) -> str:
    """The first file of the log that ``path`` belongs to, where it lies beside it; else ``path`` itself."""
    stem, extension = os.path.splitext(path)
    stem, number = os.path.splitext(stem)
    first = stem + extension
    if _NUMBERED.fullmatch(number or extension) and os.path.exists(first):
        with contextlib.suppress(LogError, FileNotFoundError):
            segment = describe(path)
            if segment.number and describe(first).log_id == segment.log_id:
                return first
    return path
