"""Files that the script opens for writing."""
from __future__ import annotations

import os
import sys

import torch

from .listener import Watch

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(watch: Watch) -> None:
    """Tell each file's path, without links."""
    watching = [True]                   # an audit hook cannot be removed
    watch.patches.on_undo(watching.clear)

    def note(path) -> None:
        watch.tell("written", os.path.realpath(os.fsdecode(path)))

    def hook(event: str, args: tuple) -> None:
        if watching and event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int) and (
                args[2] & WRITING):
            note(args[0])

    def save(obj, f, *_, **__):         # writes from C++, which raises no event
        if isinstance(f, (str, os.PathLike)):
            note(f)
    sys.addaudithook(hook)
    watch.patches.before(torch, "save", save)
