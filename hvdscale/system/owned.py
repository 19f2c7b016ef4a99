"""What lies where other users may write, too: it is trusted only if it is this user's own.

    require_own_folder(path, "TMPDIR names another place")
    read_own(path)
"""
from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import HvdscaleError


def require_own_folder(path: Path, remedy: str) -> None:
    """Raise HvdscaleError for a folder in which another user may have put something; FileNotFoundError without one."""
    status, above = os.lstat(path), os.stat(path.parent).st_mode
    mode = stat.S_IMODE(status.st_mode)
    for wrong, what in (
            (stat.S_ISLNK(status.st_mode), "is a link"),
            (not stat.S_ISDIR(status.st_mode), "is not a folder"),
            (status.st_uid != os.getuid(), _other_owner(status)),
            (mode & 0o077, f"is open to other users (mode {mode:04o})"),
            (above & stat.S_IWOTH and not above & stat.S_ISVTX, f"can be replaced by any user (mode "
             f"{stat.S_IMODE(above):04o} of the folder above)")):
        if wrong:
            raise HvdscaleError(f"{path} {what}, and is not used: a folder of yours with mode 0700 is needed, since "
                                f"code is run from it. Remove it, or {remedy}")


def read_own(path: Path) -> str:
    """The text of a file; raises OSError where it is a link or another user's."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid():
            raise PermissionError(0, f"{path.name} {_other_owner(status)}")
        return file.read()


def _other_owner(status: os.stat_result) -> str:
    return f"belongs to user {status.st_uid}, not to you ({os.getuid()})"
