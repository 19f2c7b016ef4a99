"""Download a published file: resume where it broke off, verify it, and only then rename it.

A partial download is NAME.part; NAME.part.version says which version of the file it belongs to.
"""

import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..formatting.numbers import byte_size
from ..system.inputs import sha256_of
from ..system.files import write_whole
from ..system.lock import BUSY, flock

CHUNK = 2**18
WAIT_SECONDS = 1.0              # before reconnecting
HEADERS = {"User-Agent": "hvdscale-data", "Accept-Encoding": "identity"}
NETWORK = (OSError, http.client.HTTPException)

Progress = Callable[[str, int, "int | None"], None]         # a file's name, bytes so far, total bytes if known


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
                found = sha256_of(part.path)
                if found != file.sha256:
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
        self.path, self._version_path = path, path.with_name(f"{path.name}.version")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
        if flock(self._file.fileno()) in BUSY:          # a file system may have no locks
            self._file.close()
            raise DataError(f"{path}: is being written by another process; wait for it to end")
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size and not self._version_path.exists():
            self._file.close()
            raise DataError(f"{path}: is not a download that was interrupted, and not continued; move it away")
        if not path.exists():
            self._file.close()
            raise DataError(f"{path}: another process has just finished it; run the command again")

    @property
    def version(self) -> str:
        """The server's name for the version of these bytes; empty if it gave none."""
        try:
            return self._version_path.read_text()
        except OSError:
            return ""

    def start(self, version: str) -> None:
        self.discard()
        with writing(self.path):
            write_whole(self._version_path, version)

    def append(self, chunk: bytes) -> None:
        with writing(self.path):
            while chunk:
                written = self._file.write(chunk)
                self.size += written
                chunk = chunk[written:]

    def discard(self) -> None:
        self._file.truncate(0)
        self.size = 0

    def finish(self, target: Path) -> Path:
        with writing(self.path):
            os.fsync(self._file.fileno())
            os.replace(self.path, target)
            self._version_path.unlink(missing_ok=True)
        return target

    def close(self) -> None:
        if self.size == 0:
            self.path.unlink(missing_ok=True)
            self._version_path.unlink(missing_ok=True)
        self._file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a DataError that says how much space is free."""
    try:
        yield
    except OSError as error:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        free = byte_size(shutil.disk_usage(there).free)
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
    response = _open(part, file, address, timeout)
    if response is None:
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
        if part.version:
            headers["If-Range"] = part.version
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
