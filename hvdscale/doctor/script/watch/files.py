"""Files that the script writes outside of the copy that it runs in."""
from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from .watcher import Watcher, replace

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(watcher: Watcher, inside: Path) -> None:
    """Note each file that is opened for writing elsewhere; temporary, cache and device files are left out."""
    left_out = tuple(os.path.join(os.path.realpath(folder), "") for folder in (
        inside, watcher.folder, tempfile.gettempdir(), "/dev", "/proc", Path.home() / ".cache"))
    written = watcher.record.written

    def note(path) -> None:
        path = os.path.realpath(os.fsdecode(path))
        if not path.startswith(left_out) and path not in written:
            written.append(path)

    def hook(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int) and args[2] & WRITING:
            note(args[0])

    def saving(original):               # writes from C++, which raises no event
        def save(values, file, *args, **options):
            if isinstance(file, (str, os.PathLike)):
                note(file)
            return original(values, file, *args, **options)
        return save
    sys.addaudithook(hook)
    replace(torch, "save", saving)
