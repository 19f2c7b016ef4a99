"""Files of data sets on disk: plain, gzip or xz, in a folder, one of its sub-folders, or a tar archive there; and the
cache of what is made of them. Errors are DataErrors that name the file.

    found = collect(folder, ("train.bin", "test.bin"), ("cifar-100-binary",), ("cifar-100-binary.tar.gz",))
    place = cache_folder(cache_dir) / "tokens" / key
    with alone(place): ...                                  one process per host prepares while the others wait
"""

import contextlib
import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..errors import DataError, HvdscaleError
from ..formatting.numbers import list_first
from ..plan.settings import read_toml
from ..system.inputs import open_input, refusal
from ..system.lock import flock

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
ENDINGS = ("", ".gz", ".xz")
LISTED = 8                  # names in a message
DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class Found:
    """A file of a data set: ``where`` it is, path or archive and member, for messages; its ``content``, unpacked."""

    where: str
    content: bytes


def collect(folder: Path, names: Iterable[str], subfolders: Iterable[str] = (),
            archives: Iterable[str] = ()) -> dict[str, Found]:
    """The existing files of these names, with any of ENDINGS, in the folder, else a sub-folder, else an archive."""
    found, places = {}, [folder, *(folder / name for name in subfolders)]
    for name in names:
        paths = [path for place in places for ending in ENDINGS if os.path.exists(path := place / f"{name}{ending}")]
        if paths:
            found[name] = read_file(max(paths, key=os.path.isfile))         # the first of them that is one
    for archive in (folder / name for name in archives):
        lacking = set(names) - set(found)
        if lacking and os.path.isfile(archive):
            found.update(_members(archive, lacking))
    return found


@contextlib.contextmanager
def reading(path: Path | str, refused: type[HvdscaleError] = DataError) -> Iterator[None]:
    """Turn what the disk refuses into an error that names the file or folder."""
    try:
        yield
    except OSError as error:
        raise refused(f"{path}: {refusal(error)}") from None


def unpacked(file: BinaryIO) -> BinaryIO:
    """The uncompressed content of an open file: gzip and xz are recognised by their first bytes."""
    magic = file.read(len(XZ))
    file.seek(0)
    if magic.startswith(GZIP):
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file) if magic == XZ else file


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The raw file and its uncompressed content; errors become DataErrors that name the file."""
    try:
        with open_input(path) as raw:
            yield raw, unpacked(raw)
    except DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: {refusal(error)}") from None
        raise DataError(f"{path}: its compressed data ends early or is damaged ({error}); fetch it again") from None


def read_file(path: Path) -> Found:
    """The file, unpacked if its first bytes are those of gzip or xz; raises DataError if it cannot be read."""
    with opened(path) as (_, file):
        return Found(str(path), file.read())


def _members(archive: Path, names: set[str]) -> dict[str, Found]:
    found = {}
    try:
        with open_input(archive) as file:
            stream = unpacked(file)
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    name = PurePosixPath(member.name).name
                    if member.isreg() and name in names:
                        found[name] = Found(f"{archive}: {member.name}", members.extractfile(member).read())
            while stream.read(1 << 20):         # to the end, so gzip verifies its checksum
                pass
    except DAMAGED as error:
        raise DataError(f"{archive}: cannot be read, ends early or is damaged ({error}); fetch it again") from None
    return found


def published_digests(algorithm: str) -> dict[str, dict[str, str]]:
    """Data set -> file -> the digest of its content."""
    return read_toml(str(Path(__file__).with_name("digests.toml")))[algorithm]


def verify(found: Mapping[str, Found], dataset: str, missing: list[str], algorithm: str
           ) -> tuple[dict, tuple[str, ...]]:
    """The ``record`` and ``notes`` of Data on its files; raises DataError for the content of another published file, or
    the same in two here.

    The record lists missing files and identifies this copy of the data set: the first 12 digits of ``sha1sum FILES |
    sha1sum`` (or md5sum), of unpacked files sorted by name.
    """
    published = published_digests(algorithm)
    owners = {digest: (owner, name) for owner, files in published.items() for name, digest in files.items()}
    digests, holders = {}, {}
    for name, file in found.items():
        digest = hashlib.new(algorithm, file.content, usedforsecurity=False).hexdigest()
        owner, original = owners.get(digest, (dataset, name))
        if (owner, original) != (dataset, name):
            raise DataError(f"{file.where}: holds {original} of {owner}, as its {algorithm} shows, not {name} of "
                            f"{dataset}; put the right file there")
        if digest in holders:
            raise DataError(f"{file.where}: has the same bytes as {holders[digest]}; put the right file there")
        holders[digest], digests[name] = file.where, digest
    listed = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    record = {f"files_{algorithm}": hashlib.new(algorithm, listed.encode(), usedforsecurity=False).hexdigest()[:12]}
    notes = []
    if missing:
        record["missing"] = missing
        notes.append(f"does without {', '.join(missing)} (--allow-missing)")
    if unlike := [name for name, digest in digests.items() if digest != published.get(dataset, {}).get(name, digest)]:
        notes.append(f"not the published bytes, as {algorithm} shows: {', '.join(unlike)}")
    return record, tuple(notes)


def describe_folder(folder: Path) -> str:
    """What a folder contains, for errors about something missing in it."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return "there is no such folder"
    except NotADirectoryError:
        return "it is a file, not a folder"
    except (OSError, ValueError) as error:
        return f"it cannot be listed: {getattr(error, 'strerror', None) or error}"
    return f"it holds {list_first(names, LISTED)}" if names else "it is empty"


def cache_folder(cache_dir: str | None) -> Path:
    """The cache folder; None: hvdscale in $XDG_CACHE_HOME or ~/.cache. Raises DataError if there is no home folder."""
    if cache_dir:
        return Path(os.path.expanduser(cache_dir))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise DataError("there is no home folder to keep what is made of the data set; name a folder: "
                        "--set cache_dir=DIR")
    return Path(home, "hvdscale")


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """Lock this path against other processes of the host; raises DataError, or OSError if it cannot."""
    with open(f"{place}.lock", "w") as file:
        if (refusal := flock(file.fileno(), wait=True)) is not None:
            raise DataError(f"{place.parent}: this file system refuses locks ({os.strerror(refusal)}), by which one "
                            "process of a host works for all; name another folder: --set cache_dir=DIR")
        yield
