"""Files written whole or not at all, and never through a link."""
from __future__ import annotations

import contextlib
import os

TEMPORARY = ".tmp"                        # a file is made under this ending and then renamed


def new_file(path: str):
    """A new file, open for writing bytes, in the place of what is there: a link goes, and where it leads nothing is
    written, since folders of logs come from others, too."""
    return open(new_descriptor(path), "wb")


def new_descriptor(path: str) -> int:
    """Likewise, open for reading and writing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def write_whole(path: str | os.PathLike, content: str | bytes, sync: bool = False):
    """Put a file in the place of what is there, whole or not at all; raises OSError where it cannot be written.

    sync  also have the disk keep it (fsync)
    """
    temporary = f"{os.fspath(path)}.{os.getpid()}{TEMPORARY}"
    try:
        with new_file(temporary) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def sync_directory(path: str):
    """Has the disk keep the name of a file that was made or renamed; a file system that cannot is let be."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
