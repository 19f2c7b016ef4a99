"""Objects of the user's own, named module:object."""
from __future__ import annotations

import importlib
import os
import sys

from .errors import UsageError


def import_object(name: str, what: str):
    """The object of a module on the path or in the working directory; raises UsageError saying what was looked for."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())         # as `python -m` has it: a job's file lies where its command is typed
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{what} {name!r} cannot be imported: {error}") from None
