"""The cache folder for prepared data sets; one process per host prepares while the others wait.

    place = cache_folder(cache_dir) / "tokens" / key
    with alone(place): ...
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError
from ...system.lock import flock


def cache_folder(cache_dir: str | None) -> Path:
    """The cache folder; None: hvdscale in $XDG_CACHE_HOME or ~/.cache. Raises DataError if there is no home folder."""
    if cache_dir:
        return Path(os.path.expanduser(cache_dir))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise DataError("there is no home folder to keep what is made of the data set; name a folder: "
                        "--set cache_dir=DIR")
    return Path(home, "hvdscale")


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Lock this path against other processes of the host, until the process dies; raises DataError, or OSError if the
    lock file cannot be written."""
    with open(f"{place}.lock", "w") as file:
        refusal = flock(file.fileno(), wait=True)
        if refusal is not None:
            raise DataError(f"{place.parent}: this file system refuses locks ({os.strerror(refusal)}), by which one "
                            "process of a host works for all; name another folder: --set cache_dir=DIR")
        yield
