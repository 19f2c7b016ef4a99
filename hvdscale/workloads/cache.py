"""The folder for what is made of data sets once; one process of a host makes it while the others wait.

    place = cache_folder(cache_dir) / "tokens" / key
    with alone(place): ...
"""
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DataError


def cache_folder(cache_dir: str | None) -> Path:
    """Where it is kept; None: hvdscale in $XDG_CACHE_HOME or ~/.cache."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hvdscale")


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """With no other process of the host in this place; the kernel gives the lock beside it back when a process dies.

    Raises DataError where the file system refuses locks, OSError where nothing can be written.
    """
    with open(f"{place}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise DataError(f"{place.parent}: this file system refuses locks ({error.strerror}), by which one process "
                            "of a host works for all; name another folder: --set cache_dir=DIR") from None
        yield
