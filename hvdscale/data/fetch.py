"""Data sets with a public address, from published.toml: their files, checksums, terms, and layout in a folder; fetched
into a folder, verified, in the layout that their workload reads. Training never downloads any.

Existing files are verified and never overwritten. A download resumes where it broke off, and is renamed only once it is
verified: until then it is NAME.part; NAME.part.version says which version of the file it belongs to. An unpacked
archive leaves a receipt, ARCHIVE.unpacked, which lists its files.
"""

import hashlib
import http.client
import importlib.resources
import json
import os
import re
import shlex
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from ..errors import DataError, UsageError
from ..formatting.numbers import byte_size
from ..plan.settings import read_toml
from ..system.files import whole_file, write_whole, writing
from ..system.inputs import sha256_of
from ..system.lock import BUSY, flock

CHUNK = 2**18
WAIT_SECONDS = 1.0              # before reconnecting
HEADERS = {"User-Agent": "hvdscale-data", "Accept-Encoding": "identity"}
NETWORK = (OSError, http.client.HTTPException)
Progress = Callable[[str, int, "int | None"], None]         # a file's name, bytes so far, total bytes if known
ANOTHER = "it is damaged or another file. Move it away and run the command again"
DAMAGED = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, ValueError)


@dataclass(frozen=True)
class PublishedFile:
    """A file as it is published, with its addresses in the order to try, and its size in bytes, if known."""

    name: str
    addresses: tuple[str, ...]
    sha256: str
    size: int | None = None


class DownloadError(DataError):
    """A file that could not be downloaded; the message has the error at each address."""


class _Broken(Exception):
    """An address that failed or sent an incomplete file; the message says why."""


@dataclass(frozen=True)
class Archive:
    """A published archive, unpacked and then removed; members: pattern -> name in the folder, or a subfolder/."""

    file: PublishedFile
    members: dict[str, str]
    count: int                  # of files unpacked


@dataclass(frozen=True)
class DataSet:
    """A data set that ``hvdscale-data fetch`` downloads; the file has what each field is."""

    title: str
    files: tuple[PublishedFile | Archive, ...]
    terms: str
    command: str
    joined: dict[str, list[str]] = field(default_factory=dict)

    @property
    def published(self) -> tuple[PublishedFile, ...]:
        return tuple(file.file if isinstance(file, Archive) else file for file in self.files)


def _data_set(title: str, terms: str, command: str, bases: list[str], files: str = "", archives: list[dict] = [],
              joined: dict[str, list[str]] = {}) -> DataSet:
    def published(path: str, sha256: str, size: int | None) -> PublishedFile:
        return PublishedFile(path.rpartition("/")[2], tuple(base + path for base in bases), sha256, size)
    return DataSet(title, (
        *(published(name, sha256, int(size)) for name, size, sha256 in map(str.split, files.splitlines())),
        *(Archive(published(one["path"], one["sha256"], one.get("size")), one["members"],
                  one.get("count", len(one["members"]))) for one in archives)), terms, command, joined)


with importlib.resources.as_file(importlib.resources.files(__package__) / "published.toml") as _path:
    _TABLES = read_toml(_path)
BY_HAND: dict[str, str] = _TABLES.pop("by_hand")
DATA_SETS = {name: _data_set(**table) for name, table in _TABLES.items()}


def fetch(name: str, folder: Path, say: Callable[[str], None], progress: Progress, timeout: float = 60.0) -> None:
    """Fetch the data set into the folder; raises UsageError, or DataError that lists what to copy by hand."""
    data_set = find(name)
    try:
        for file in data_set.files:
            if isinstance(file, Archive):
                say(f"  {_fetch_archive(file, folder, progress, timeout)}")
            elif _is_there(file, folder / file.name):
                say(f"  {file.name}: already there, verified")
            else:
                say(f"  {file.name}: {byte_size(download(file, folder, progress, timeout).stat().st_size)}, verified")
        for joined, parts in data_set.joined.items():
            say(f"  {_join(folder / joined, [folder / part for part in parts])}")
    except DownloadError as error:
        raise DataError(f"{name}: {error}\n{_explain_by_hand(name, data_set, folder)}") from None
    command = data_set.command.format(folder=shlex.quote(str(folder)))
    say(f"{name} is complete in {folder} (terms: {data_set.terms}). Next:\n  {command}")


def find(name: str) -> DataSet:
    """The data set of this name; raises UsageError that lists the known ones, or says how to get this one."""
    if name in BY_HAND:
        raise UsageError(f"{name} {BY_HAND[name]}")
    if name not in DATA_SETS:
        raise UsageError(f"there is no data set {name!r} to fetch; choose one of {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def _is_there(file: PublishedFile, path: Path) -> bool:
    if not os.path.lexists(path):
        return False
    if (found := sha256_of(path)) != file.sha256:
        raise DataError(f"{path}: has SHA-256 {found}, not the published {file.sha256}; {ANOTHER}")
    return True


def _fetch_archive(archive: Archive, folder: Path, progress: Progress, timeout: float) -> str:
    """Fetch and unpack an archive, each wanted member under a temporary name until it is whole; a line on it."""
    path = folder / archive.file.name
    receipt = path.with_name(f"{path.name}.unpacked")
    if _is_unpacked(receipt):
        return f"{path.name}: already unpacked into {archive.count} files"
    if not _is_there(archive.file, path):
        download(archive.file, folder, progress, timeout)
    sizes = {}
    try:
        for member, size, stream, done in _members(path):
            name = next((name for pattern, name in archive.members.items() if fnmatchcase(member, pattern)), None)
            if name is not None:
                name += member.rpartition("/")[2] if name.endswith("/") else ""
                sizes[name] = size if _is_kept(folder / name, size, stream) else _write([stream], folder / name)
            progress(f"unpacking {path.name}", done, path.stat().st_size)
    except DAMAGED as error:
        raise DataError(f"{path}: cannot be unpacked: {error}") from None
    if len(sizes) != archive.count:
        raise DataError(f"{path}: has {len(sizes)} of {archive.count} expected files: {', '.join(sizes)}")
    with keeping(receipt):
        write_whole(receipt, json.dumps(sizes, indent=1))     # before the archive is removed
        path.unlink()
    return f"{path.name}: unpacked into {len(sizes)} files, {byte_size(sum(sizes.values()))}, and removed"


def _is_unpacked(receipt: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        sizes = json.loads(receipt.read_text())
        return all((receipt.parent / name).stat().st_size == size for name, size in sizes.items())
    return False


def _members(path: Path) -> Iterator[tuple[str, int, BinaryIO, int]]:
    """Names, sizes and contents of an archive's files, with the bytes of the archive read so far."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for entry in packed.infolist():
                if not entry.is_dir():
                    with packed.open(entry) as stream:
                        yield entry.filename, entry.file_size, stream, entry.header_offset + entry.compress_size
        return
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as packed:
        for entry in packed:
            if entry.isfile():
                yield entry.name, entry.size, packed.extractfile(entry), file.tell()


def _is_kept(path: Path, size: int, stream: BinaryIO) -> bool:
    if not path.exists():
        return False
    _refuse_another(path, size)
    digest = hashlib.sha256()
    while chunk := stream.read(2**20):
        digest.update(chunk)
    if sha256_of(path) != digest.hexdigest():
        raise DataError(f"{path}: differs from the data set's file; {ANOTHER}")
    return True


def _refuse_another(path: Path, size: int) -> None:
    if path.exists() and path.stat().st_size != size:
        raise DataError(f"{path}: has {path.stat().st_size:,} bytes, but the data set's file has {size:,}; {ANOTHER}")


def _write(streams: Iterable[BinaryIO], path: Path) -> int:
    with keeping(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as out:
            for stream in streams:
                shutil.copyfileobj(stream, out, 2**20)
            return out.tell()


def _join(path: Path, parts: list[Path]) -> str:
    """Concatenate text files into one if it is missing; returns a line on what was done."""
    names = ", ".join(part.name for part in parts)
    _refuse_another(path, sum(part.stat().st_size for part in parts))
    if path.exists():
        return f"{path.name}: already there, joined from {names}"
    with ExitStack() as opened:
        _write([opened.enter_context(open(part, "rb")) for part in parts], path)
    return f"{path.name}: joined from {names}"


def _explain_by_hand(name: str, data_set: DataSet, folder: Path) -> str:
    lines = ["Run the command again to resume, or copy these files from a machine with a network:"]
    for published in data_set.published:
        path = folder / published.name
        if not path.exists() and not _is_unpacked(path.with_name(f"{path.name}.unpacked")):
            size = f"{byte_size(published.size)}, " if published.size else ""
            lines.append(f"  {path}    ({size}SHA-256 {published.sha256}, from {published.addresses[0]})")
    unpack = " and unpack" if any(isinstance(file, Archive) for file in data_set.files) else ""
    return "\n".join([*lines, f"then run this to verify{unpack} them without a network:",
                      f"  hvdscale-data fetch {name} --data-dir {shlex.quote(str(folder))}"])


def download(file: PublishedFile, folder: Path, progress: Progress, timeout: float = 60.0,
             wait: Callable[[float], None] = time.sleep) -> Path:
    """Download the file into the folder, which is created if missing; resumes a partial download. Raises DownloadError
    if no address has the whole file with the published checksum, and DataError if the disk is full or another process
    is fetching the same file. timeout: seconds without a byte that break a connection"""
    part = _PartialFile(folder / f"{file.name}.part")
    try:
        failures = []
        for address in file.addresses:
            try:
                _receive_all(part, file, address, progress, timeout, wait)
                if (found := sha256_of(part.path)) != file.sha256:
                    part.discard()
                    raise _Broken(f"the download has SHA-256 {found}, not the published {file.sha256}; it was removed")
                return part.finish(folder / file.name)
            except _Broken as broken:
                failures.append(f"{address}: {broken}")
        kept = f"\n  {byte_size(part.size)} of it are kept in {part.path}" if part.size else ""
        raise DownloadError(f"{file.name} could not be fetched:\n  " + "\n  ".join(failures) + kept)
    finally:
        part.close()


class _PartialFile:
    """A partial download, open and locked; raises DataError where it cannot be written."""

    def __init__(self, path: Path):
        self.path, self.version_path = path, path.with_name(f"{path.name}.version")
        with writing(path, DataError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)
        if flock(self._file.fileno()) in BUSY:          # a file system may have no locks
            self._file.close()
            raise DataError(f"{path}: is being written by another process; wait for it to end")
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size and not self.version_path.exists():
            self._file.close()
            raise DataError(f"{path}: is not a download that was interrupted, and not continued; move it away")
        if not path.exists():
            self._file.close()
            raise DataError(f"{path}: another process has just finished it; run the command again")

    def start(self, version: str) -> None:
        """Begin anew; ``version``: the server's name for that of the file, empty if it gave none."""
        self.discard()
        with keeping(self.path):
            write_whole(self.version_path, version)

    def append(self, chunk: bytes) -> None:
        with keeping(self.path):
            while chunk:
                written = self._file.write(chunk)
                self.size += written
                chunk = chunk[written:]

    def discard(self) -> None:
        self._file.truncate(0)
        self.size = 0

    def finish(self, target: Path) -> Path:
        with keeping(self.path):
            os.fsync(self._file.fileno())
            os.replace(self.path, target)
            self.version_path.unlink(missing_ok=True)
        return target

    def close(self) -> None:
        if self.size == 0:
            self.path.unlink(missing_ok=True)
            self.version_path.unlink(missing_ok=True)
        self._file.close()


@contextmanager
def keeping(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a DataError that says how much space is free."""
    try:
        yield
    except OSError as error:
        free = byte_size(shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free)
        raise DataError(f"{path}: cannot be written: {error.strerror or error} ({free} are free). What was downloaded "
                        "so far is kept; fix this and run the command again") from None


def _receive_all(part: _PartialFile, file: PublishedFile, address: str, progress: Progress, timeout: float,
                 wait: Callable[[float], None]) -> None:
    """Receive what is missing, over any number of connections as long as each one gets further."""
    furthest = part.size
    while file.size is None or part.size != file.size:
        try:
            return _receive(part, file, address, progress, timeout)
        except _Broken:
            if part.size <= furthest:
                raise
            furthest = part.size
            wait(WAIT_SECONDS)


def _receive(part: _PartialFile, file: PublishedFile, address: str, progress: Progress, timeout: float) -> None:
    if file.size is not None and part.size > file.size:
        part.discard()
    if (response := _open(part, file, address, timeout)) is None:
        return
    with response:
        if response.status == http.client.PARTIAL_CONTENT:
            first, total = _range(response)
            if first != part.size:
                raise _Broken(f"does not send the bytes from {part.size:,} on, as requested")
        else:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
        if None not in (total, file.size) and total != file.size:
            raise _Broken(f"the file there has {total:,} bytes, not the published {file.size:,}; it is another file or "
                          "another version")
        if response.status != http.client.PARTIAL_CONTENT:
            part.start(_version(response))
        total = file.size if total is None else total
        rest, free = (total or 0) - part.size, shutil.disk_usage(part.path.parent).free
        if rest > free:
            raise DataError(f"{part.path}: {byte_size(rest)} are missing, but only {byte_size(free)} are free on the "
                            "disk; free some space or choose another folder with --data-dir, then run the command "
                            "again")
        progress(file.name, part.size, total)
        while chunk := _read(response):
            part.append(chunk)
            progress(file.name, part.size, total)
            if total is not None and part.size > total:
                part.discard()
                raise _Broken(f"sends more than {total:,} bytes")
        if total is not None and part.size < total:
            raise _Broken(f"the connection ended after {part.size:,} of {total:,} bytes")


def _open(part: _PartialFile, file: PublishedFile, address: str, timeout: float) -> http.client.HTTPResponse | None:
    headers = dict(HEADERS)
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        with suppress(OSError):
            if version := part.version_path.read_text():
                headers["If-Range"] = version
    try:
        return urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and part.size and file.size is None:
            if error.headers.get("Content-Range", "").endswith(f"/{part.size}"):
                return None
            part.discard()
            return _open(part, file, address, timeout)
        raise _Broken(f"HTTP error {error.code} {error.reason}") from None
    except NETWORK as error:
        raise _Broken(_reason(error)) from None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except NETWORK as error:
        raise _Broken(f"the connection broke: {_reason(error)}") from None


def _range(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """First byte and total size from the header Content-Range (RFC 9110, section 14.4)."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _version(response: http.client.HTTPResponse) -> str:
    """The validator for the header If-Range: a strong ETag, or else the date (RFC 9110, section 13.1.5)."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _reason(error: Exception) -> str:
    error = getattr(error, "reason", error) if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"
