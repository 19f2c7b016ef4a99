"""Files of data sets as they lie on disk: plain, gzip or xz, in a folder, a sub-folder of it, or a tar archive there.

    found = collect(folder, ("train.bin", "test.bin"), ("cifar-100-binary",), ("cifar-100-binary.tar.gz",))
    content = found["train.bin"].content                   its bytes, unpacked; a name without a file is not in found
    digests = check_digests(found, SHA1, "cifar_100", "sha1")

What is wrong with a file is a DataError that names it.
"""
from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import DataError
from ...formatting.numbers import list_first

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
ENDINGS = ("", ".gz", ".xz")
LISTED = 8                  # names in a message
DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class Found:
    """A file of a data set.

    where    as messages name it: its path, or archive and member
    content  its bytes, unpacked
    """

    where: str
    content: bytes


def collect(folder: Path, names: Iterable[str], subfolders: Iterable[str] = (),
            archives: Iterable[str] = ()) -> dict[str, Found]:
    """The files of these names that there are, with any of ENDINGS: in the folder, else in a sub-folder, else in an
    archive there. Raises DataError naming a file that cannot be read."""
    found = {}
    places = [folder, *(folder / name for name in subfolders)]
    for name in names:
        there = [path for place in places for ending in ENDINGS if os.path.exists(path := place / f"{name}{ending}")]
        files = [path for path in there if os.path.isfile(path)]
        if there:
            found[name] = read_file((files or there)[0])
    for archive in (folder / name for name in archives):
        lacking = set(names) - set(found)
        if lacking and os.path.isfile(archive):
            found.update(_members(archive, lacking))
    return found


def read_file(path: Path) -> Found:
    """The file, unpacked where its bytes are gzip or xz, whatever its name; raises DataError where it cannot be."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    for packing, magic, unpack in (("gzip", GZIP, gzip.decompress), ("xz", XZ, _unpack_xz)):
        if content.startswith(magic):
            try:
                return Found(str(path), unpack(content))
            except DAMAGED as error:
                raise DataError(f"{path}: its {packing} data ends early or is damaged ({error}); fetch it "
                                "again") from None
    return Found(str(path), content)


def _unpack_xz(content: bytes) -> bytes:
    """All streams of the file; what is neither a stream nor padding raises LZMAError, as lzma.decompress does not."""
    parts = []
    while content:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        parts.append(stream.decompress(content))
        if not stream.eof:
            raise EOFError("the end of the stream is missing")
        content = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _members(archive: Path, names: set[str]) -> dict[str, Found]:
    """The archive's regular files of these names, in whatever folder; nothing is unpacked to disk."""
    found = {}
    try:
        with open(archive, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    name = PurePosixPath(member.name).name
                    if member.isreg() and name in names:
                        found[name] = Found(f"{archive}: {member.name}", members.extractfile(member).read())
            while stream.read(1 << 20):         # to the end, where gzip has its checksum
                pass
    except DAMAGED as error:
        raise DataError(f"{archive}: cannot be read, ends early or is damaged ({error}); fetch it again") from None
    return found


def check_digests(found: Mapping[str, Found], published: Mapping[str, Mapping[str, str]], dataset: str,
                  algorithm: str) -> dict[str, str]:
    """The digest of each file's content, in hexadecimal.

    Raises DataError for a file that is certainly another than its name says: its digest is that of another published
    file, or of another file here.

    published  data set -> file name -> digest
    """
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
        holders[digest] = file.where
        digests[name] = digest
    return digests


def said_of(digests: Mapping[str, str], published: Mapping[str, str], missing: list[str],
            algorithm: str) -> tuple[dict, tuple[str, ...]]:
    """What a log keeps of the files, and what the user is told of them: the record and the notes of Data.

    The record has a digest of all files, which tells copies of a data set apart: the first 12 digits of what
    ``sha1sum FILES | sha1sum`` prints (or md5sum), of unpacked files in the order of the names; and what is missing.
    """
    listed = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    record = {f"files_{algorithm}": hashlib.new(algorithm, listed.encode(), usedforsecurity=False).hexdigest()[:12]}
    notes = []
    if missing:
        record["missing"] = missing
        notes.append(f"does without {', '.join(missing)} (--allow-missing)")
    unlike = [name for name, digest in digests.items() if digest != published[name]]
    if unlike:
        notes.append(f"not the published bytes, as {algorithm} shows: {', '.join(unlike)}")
    return record, tuple(notes)


def holding(folder: Path) -> str:
    """What a folder holds, to be said where something is not in it."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return "there is no such folder"
    except NotADirectoryError:
        return "it is a file, not a folder"
    except (OSError, ValueError) as error:
        return f"it cannot be listed: {getattr(error, 'strerror', None) or error}"
    return f"it holds {list_first(names, LISTED)}" if names else "it is empty"
