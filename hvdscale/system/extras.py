"""Packages that only some users need."""
from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import UsageError


def import_extra(module: str, need: str, otherwise: str = "") -> ModuleType:
    """A module of a package that hvdscale does not bring; UsageError naming the package where it is not installed.

    need        what needs it, such as ``to_pandas()``
    otherwise   what does without it
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{need} needs {package}, which cannot be imported ({error}): pip install {package}"
                         f"{f'; {otherwise}' if otherwise else ''}") from None
