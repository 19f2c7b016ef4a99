"""A training script, run in this process as Python would run it."""
from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from .devices import need_of_gpu

PACKAGE = os.path.dirname(os.path.dirname(__file__))
ROOMS = ("watch", "doctor", "scaling")
OURS = (*(os.path.join(PACKAGE, room, "") for room in ROOMS), runpy.__file__, "<frozen runpy>")


def run_script(script: str, arguments: Sequence[str], module: bool = False) -> BaseException | None:
    """Run the script, or as python -m would the ``module``, to its end; the error that it ended with, if any."""
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


def failure_of(error: BaseException | None) -> str:
    """The script's traceback without the frames of this package, or what it exited with; "" where it ended well."""
    if error is None or isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code}" if isinstance(error.code, int) else str(error.code)
    if need := need_of_gpu(error):
        return need
    told: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    seen: list[traceback.TracebackException] = []
    while told is not None and told not in seen:
        seen.append(told)
        told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(OURS)]
        told = told.__cause__ or told.__context__
    return "".join(seen[0].format())
