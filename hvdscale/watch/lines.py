"""Where in the script a call was made."""

import importlib.util
import os
import sys
import sysconfig
from functools import cache
from types import FrameType

OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_torch = importlib.util.find_spec("torch")                  # which is not imported here
if _torch is None or _torch.origin is None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")
TORCH = os.path.join(os.path.dirname(_torch.origin), "")
SYMPY = os.path.join(os.path.dirname(os.path.dirname(TORCH)), "sympy", "")                # which torch.compile uses
relative = cache(os.path.relpath)           # as seen at first, whatever folder the script goes into
LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))


def line_of_call() -> str:
    """``train.py:12``: the innermost line of the running call that is the script's own; empty where none is."""
    return line_of(sys._getframe(1))


def line_of(frame: FrameType | None) -> str:
    """The same of what is running at a frame."""
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def called_by_script() -> bool:
    """Whether the function that asks this was called by the script itself, and not by a library or this package."""
    return is_own(sys._getframe(2).f_code.co_filename)


def caller(through: str) -> str:
    """The file from which the running call comes, but for this package and the module ``through``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((OURS, through)):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


def called_by_library(through: str) -> bool:
    """Whether it comes from torch or the standard library."""
    name = caller(through)
    return name.startswith((TORCH, SYMPY)) or name.startswith(LIBRARY[:1]) and "site-packages" not in name


@cache
def is_own(path: str) -> bool:
    """Whether a file is neither of a library nor of this package; names such as <string> are none."""
    return os.path.isabs(path) and not path.startswith((OURS, *LIBRARY)) and "site-packages" not in path
