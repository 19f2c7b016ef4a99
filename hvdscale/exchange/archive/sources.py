"""Where the studies of a published archive are: in a folder, or in a tar file that is read once.

    for study in Folder("batch_science").studies():        study.file, study.trials, study.wrong
    for study in Tar("batch_science.tar.bz2").studies():   the same, its files in memory
"""

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ...errors import LogError, UsageError
from ...system.inputs import open_input, refusal

OPENERS = {b"BZh": bz2.open, b"\x1f\x8b": gzip.open,               # by a compressed file's first bytes; zeros after it
           b"\xfd7zXZ\0": partial(lzma.open, format=lzma.FORMAT_XZ)}       # would be the start of another in a .lzma
LARGEST = {"study.json": 4 << 20, "metadata.json": 4 << 20, "measurements.csv": 1 << 30}
LARGEST_STUDY = 4 << 30                 # bytes of a study's files in a tar file, held in memory
EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE)
ROOT = "batch_science"                  # the published archive's top folder
GROUPS = ("mnist_subsets", "imagenet_subsets", "solution_quality")      # of data sets, in the published archive
FILES = ("metadata.json", "measurements.csv")
TarFile = tuple[tuple[str, ...], str, str, tarfile.TarInfo]         # folders of the study, trial or "", file name


class TrialFiles(NamedTuple):
    """A trial's two files, as contents or paths."""

    folder: str             # for messages
    id: int
    metadata: bytes | str | None
    measurements: bytes | str | None


@dataclass
class ArchiveStudy:
    folders: tuple[str, ...]
    where: str
    file: bytes | str | None        # study.json, or its path; None: missing
    trials: list[TrialFiles]
    wrong: list[str] = field(default_factory=list)


def is_folder(name: str) -> bool:
    """Whether a name can be a folder of an archive and contains no path."""
    return bool(re.fullmatch(r"[\w+-][\w.+@=, -]*", name)) and len(name.encode()) < 256


class Folder:
    """An archive in a folder. Links are not followed: one from elsewhere must not expose this machine's other files."""

    def __init__(self, root: str):
        def order(found):
            *workload, batch = found[0] or ("",)
            return workload, _trial_id(batch) or 0, batch           # which is a number
        self.root, self.others = root, []
        self._found = sorted(self._study_folders(), key=order)
        self._read = 0

    def share(self) -> float:
        return self._read / max(1, len(self._found))

    def studies(self) -> Iterator[ArchiveStudy]:
        for folders, path in self._found:
            study = ArchiveStudy(_inner(folders), path, os.path.join(path, "study.json"), [])
            for entry in os.scandir(path):
                if not entry.is_dir(follow_symlinks=False):
                    if entry.name != "study.json":
                        self.others.append(entry.path + " (a link)" * entry.is_symlink())
                elif _trial_id(entry.name) is None:
                    study.wrong.append(f"{entry.path}: is not a trial number")
                else:
                    files = (os.path.join(entry.path, name) for name in FILES)
                    study.trials.append(TrialFiles(entry.path, int(entry.name), *files))
            study.trials.sort(key=lambda trial: trial.id)
            self._read += 1
            yield study

    def _study_folders(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Folders with a study.json, up to six levels deep, and folders of trials that lack it."""
        waiting = [((), self.root)]
        while waiting:
            folders, path = waiting.pop()
            try:
                entries = list(os.scandir(path))
            except OSError as error:
                raise LogError(f"{path}: cannot be read: {error.strerror}") from error
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            if any(entry.name == "study.json" for entry in entries) or any(
                    _trial_id(name) is not None and os.path.isfile(os.path.join(path, name, FILES[0]))
                    for name in names[:3]):
                yield folders, path
            elif len(folders) < 6:
                self.others += [f"{entry.path} (a link)" for entry in entries if entry.is_symlink()]
                waiting += [((*folders, name), os.path.join(path, name)) for name in names]


def _trial_id(name: str) -> int | None:
    return int(name) if re.fullmatch(r"0|[1-9][0-9]{0,17}", name) else None


def _inner(folders):
    """The folders below the archive's top folder."""
    while folders and folders[0] in (".", ROOT):
        folders = folders[1:]
    return folders


class Tar:
    """An archive in a tar file, read once from start to end without unpacking to disk."""

    def __init__(self, path: str):
        self.path, self.others = path, []
        try:
            self._raw = open_input(path)
        except OSError as error:
            raise UsageError(f"{path}: {refusal(error)}") from error
        self._size = os.path.getsize(path)

    def share(self) -> float:
        """Of the file, read so far: the number of trials is not known before its end."""
        return 1.0 if self._raw.closed or not self._size else self._raw.tell() / self._size

    def studies(self) -> Iterator[ArchiveStudy]:
        try:
            opened = next((opened for magic, opened in OPENERS.items() if self._raw.peek(6).startswith(magic)), None)
            with (self._raw, opened(self._raw) if opened else self._raw as file,
                  tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as tar):
                yield from self._of(tar)
        except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RecursionError, TypeError,
                ValueError) as error:
            raise LogError(f"{self.path}: is not a tar file, or is damaged: {error}") from error

    def _of(self, tar: tarfile.TarFile) -> Iterator[ArchiveStudy]:
        done: set[tuple[str, ...]] = set()
        for folders, files in groupby(self._files(tar), itemgetter(0)):
            if folders in done:
                raise LogError(f"{self.path}: the files of {'/'.join(folders)} are not contiguous in it; unpack it, "
                               "and import the folder")
            done.add(folders)
            yield self._study(tar, folders, files)

    def _files(self, tar: tarfile.TarFile) -> Iterator[TarFile]:
        while (member := tar.next()) is not None:
            tar.members.clear()                     # tarfile would keep all of them
            if place := self._place(member):
                yield *place, member

    def _study(self, tar: tarfile.TarFile, folders: tuple[str, ...], files: Iterable[TarFile]) -> ArchiveStudy:
        found: dict[str, dict[str, bytes]] = {"": {}}           # by trial, "" of the study, and name
        where, wrong, size = f"{self.path}: {'/'.join(folders)}", [], 0
        for _, trial, name, member in files:
            fault = next((text for broken, text in (
                (member.name.startswith("/") or ".." in member.name.split("/"), "leads out of the archive"),
                (not member.isreg() or member.issparse(), "is not a regular file, but a link or the like"),
                (trial and _trial_id(trial) is None, f"{trial} is not a trial number"),
                (member.size > LARGEST[name], f"has {member.size} bytes; it may have {LARGEST[name]}"),
                (name in found.get(trial, ()), "is there twice")) if broken), "")
            if fault:
                wrong.append(f"{self.path}: {member.name}: {fault}")
                continue
            size += member.size
            if size > LARGEST_STUDY:
                raise LogError(f"{where}: has more than {LARGEST_STUDY >> 30} GiB of files, too many to hold at once; "
                               "unpack it, and import the folder")
            found.setdefault(trial, {})[name] = tar.extractfile(member).read()
        trials = [TrialFiles(f"{where}/{trial}", trial, *(found[str(trial)].get(name) for name in FILES))
                  for trial in sorted(int(trial) for trial in found if trial)]
        return ArchiveStudy(folders, where, found[""].get("study.json"), trials, wrong)

    def _place(self, member) -> tuple[tuple[str, ...], str, str] | None:
        """(folders of the study, trial or "", file name); None for a file that does not belong to the layout."""
        if member.isdir():
            return None
        parts = [part for part in member.name.split("/") if part not in ("", ".")] or [""]
        name = parts[-1]
        depth = 1 if name == "study.json" else 2
        if name not in LARGEST or len(parts) <= depth:
            self.others.append(f"{self.path}: {member.name}")
            return None
        folders = _inner(tuple(parts[:-depth]))
        if len(folders) == 5 and folders[0] not in GROUPS and not member.name.startswith("./"):
            folders = folders[1:]               # the tar file contains the folder itself
        return folders[-5:], parts[-2] if depth == 2 else "", name


class _Member(tarfile.TarInfo):
    """A member of a tar file; an invalid or huge header is an error, not the end of the file."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        """As in tarfile, but ReadError if the file ends without a block of zeros."""
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}; it is cut off, or was changed") from error
        if found.type in EXTENDED and found.size > 1 << 20:         # held in memory
            raise tarfile.ReadError(f"a header of {found.size} bytes")
        return found
