"""Files opened for reading: regular ones alone, so that nobody waits for a pipe; where others may write, own ones.

    with open_input("runs.toml") as file: file.read()       bytes; OSError that names the file for what is no file
    input_text("runs.toml")                                 its text, in UTF-8
    require_own_folder(path, "TMPDIR names another place")
"""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import DataError, HvdscaleError

NO_FILE = "is not a regular file"
LARGEST = 1 << 34               # bytes of a file that is read whole


def open_input(path: str | os.PathLike[str], follow: bool = True, buffering: int = -1) -> BinaryIO:
    """The file, open for reading bytes; raises OSError for a folder, a pipe, a device or a socket, and for a link
    unless links are to be followed."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:                      # a null character in the name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:                # a socket, and a link that is not to be followed
        if error.errno in (errno.ENXIO, errno.ELOOP):
            link = not follow and error.errno == errno.ELOOP
            raise OSError(error.errno, "is a symbolic link" if link else NO_FILE, path) from None
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


def input_text(path: str | os.PathLike[str]) -> str:
    """A file's text in UTF-8; raises OSError as ``read_input`` does, and UnicodeDecodeError."""
    return read_input(path).decode("utf-8")


def refusal(error: OSError) -> str:
    """Why a file was not read, in words that follow its name."""
    return error.strerror if error.strerror and error.strerror.startswith(("is ", "has ")) else (
        f"cannot be read: {error.strerror or error}")


def sha256_of(path: str | os.PathLike, refused: type[HvdscaleError] = DataError) -> str:
    """The SHA-256 of a file, in hexadecimal; raises ``refused`` where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_input(path) as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise refused(f"{path}: {refusal(error)}") from None
    return digest.hexdigest()


def require_own_folder(path: Path, remedy: str) -> None:
    """Raise HvdscaleError for a folder in which another user may have put something; FileNotFoundError without one."""
    status, above = os.lstat(path), os.stat(path.parent).st_mode
    mode = stat.S_IMODE(status.st_mode)
    for wrong, what in (
            (stat.S_ISLNK(status.st_mode), "is a link"), (not stat.S_ISDIR(status.st_mode), "is not a folder"),
            (status.st_uid != os.getuid(), _other_owner(status)),
            (mode & 0o077, f"is open to other users (mode {mode:04o})"),
            (above & stat.S_IWOTH and not above & stat.S_ISVTX, f"can be replaced by any user (mode "
             f"{stat.S_IMODE(above):04o} of the folder above)")):
        if wrong:
            raise HvdscaleError(f"{path} {what}, and is not used: a folder of yours with mode 0700 is needed, since "
                                f"code is run from it. Remove it, or {remedy}")


def read_own(path: Path) -> str:
    """The text of a file; raises OSError where it is a link or another user's."""
    with open_input(path, follow=False) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid():
            raise PermissionError(0, f"{path.name} {_other_owner(status)}")
        return file.read().decode()


def _other_owner(status: os.stat_result) -> str:
    return f"belongs to user {status.st_uid}, not to you ({os.getuid()})"
