"""Files and folders written whole or not at all, and never through a link.

    with whole_file(path) as file: file.write(...)      the file is at ``path`` once ``with`` has ended without an error
    write_whole(path, "text")
    with writing(path, DataError): ...                  what the disk refuses is an error that names the path
"""
from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import HvdscaleError, LogError

TEMPORARY = ".tmp"                        # a file is made under this ending and then renamed


def new_descriptor(path: str | os.PathLike) -> int:
    """A new file, open for reading and writing, in the place of what is there: a link goes, and where it leads nothing
    is written, since folders of logs come from others, too."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def new_file(path: str | os.PathLike, sync: bool = True) -> Iterator[BinaryIO]:
    """Likewise, open for writing bytes; removed again where an error is raised inside ``with``.

    sync  also have the disk keep it (fsync)
    """
    try:
        with open(new_descriptor(path), "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, temporary: str | os.PathLike | None = None,
               sync: bool = True) -> Iterator[BinaryIO]:
    """A new file, open for writing bytes, that takes the place of ``path`` when ``with`` ends without an error.

    temporary  its name until then, which the next attempt overwrites after a kill, where only one process writes
               ``path`` at a time; None: a name that no other process takes
    sync       also have the disk keep it (fsync)
    """
    temporary = temporary or temporary_name(path)
    with new_file(temporary, sync) as file:
        yield file
    try:
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    if sync:
        sync_directory(path)


def write_whole(path: str | os.PathLike, content: str | bytes, sync: bool = True) -> None:
    r"""Put a file in the place of what is there, whole or not at all; raises OSError where it cannot be written.

    Text is UTF-8; bytes of a file's name in it that are not are written as in Python, \udcff.
    """
    with whole_file(path, sync=sync) as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def temporary_name(path: str | os.PathLike) -> str:
    """A hidden name beside ``path`` that no other process takes."""
    folder, name = os.path.split(os.fspath(path))
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike, prefix: str | None = None) -> Iterator[str]:
    """A new folder under another name, which becomes ``path`` when ``with`` ends without an error, and else is removed.

    prefix  that the other name begins with
    """
    above, name = os.path.split(os.fspath(path))
    folder = tempfile.mkdtemp(prefix=prefix or f".{name}.", dir=above or ".")
    try:
        os.chmod(folder, 0o777 & ~_umask())             # mkdtemp lets its owner alone in
        yield folder
        os.rename(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def writing(path: str | os.PathLike, refused: type[HvdscaleError] = LogError) -> Iterator[None]:
    """Turns what the disk refuses into an error that names what was to be written."""
    try:
        yield
    except OSError as error:
        raise refused(f"{path}: cannot be written: {error.strerror or error}") from error


def sync_directory(path: str | os.PathLike) -> None:
    """Has the disk keep the name of a file that was made or renamed; a file system that cannot is let be."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
