"""A training script, run in this process as Python would run it; and the files that it opens for writing."""
from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

import torch

from .devices import need_of_gpu
from .listener import Watch

PACKAGE = os.path.dirname(os.path.dirname(__file__))
ROOMS = ("watch", "doctor", "scaling")
OURS = (*(os.path.join(PACKAGE, room, "") for room in ROOMS), runpy.__file__, "<frozen runpy>")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def run_script(script: str, arguments: Sequence[str], module: bool = False) -> BaseException | None:
    """Run the script to its end; the error that it ended with, if any. sys.argv and sys.path become the script's.

    module  as python -m would, from the working folder
    """
    path = os.path.abspath(script)
    sys.argv = [script, *arguments]
    sys.path[:] = [os.getcwd() if module else os.path.dirname(path), *(one for one in sys.path if one)]
    try:
        if module:
            name = script.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        return error
    return None


def note_files(watch: Watch) -> None:
    """Tell the path of each file that is opened for writing, without links."""
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


def failure_of(error: BaseException | None) -> str:
    """What the script's error says: its traceback without the frames of this package, or what it exited with; "" where
    it ended well."""
    if error is None or isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code}" if isinstance(error.code, int) else str(error.code)
    return need_of_gpu(error) or _own_traceback(error)


def _own_traceback(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    seen: list[traceback.TracebackException] = []
    while told is not None and told not in seen:
        seen.append(told)
        told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(OURS)]
        told = told.__cause__ or told.__context__
    return "".join(seen[0].format())
