"""Files opened for reading: regular ones alone, and nobody waits for a pipe or a device.

    with open_input("runs.toml") as file: file.read()       bytes; OSError that names the file for what is no file
    input_text("runs.toml")                                 its text, in UTF-8
"""
from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

NO_FILE = "is not a regular file"
LARGEST = 1 << 34               # bytes of a file that is read whole


def open_input(path: str | os.PathLike[str], follow: bool = True, buffering: int = -1) -> BinaryIO:
    """The file, open for reading bytes; raises OSError for a folder, a pipe, a device or a socket.

    follow  whether a link is followed; otherwise it is an OSError, too
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:                      # a null character in the name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:                # a socket, and a link that is not to be followed
        if error.errno in (errno.ENXIO, errno.ELOOP):
            raise OSError(error.errno, NO_FILE, path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, NO_FILE, path)
        return open(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: str | os.PathLike[str], most: int = LARGEST, follow: bool = True) -> bytes:
    """A file's bytes; raises OSError as ``open_input`` does, and for more than ``most`` bytes."""
    with open_input(path, follow, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"has {size:,} bytes, more than the {most:,} that such a file may have", path)
        return file.read()


def refusal(error: OSError) -> str:
    """Why a file was not read, in words that follow its name."""
    return error.strerror if error.strerror and error.strerror.startswith(("is ", "has ")) else (
        f"cannot be read: {error.strerror or error}")


def input_text(path: str | os.PathLike[str], most: int = LARGEST) -> str:
    """A file's text in UTF-8; raises OSError as ``read_input`` does, and UnicodeDecodeError."""
    return read_input(path, most).decode("utf-8")
