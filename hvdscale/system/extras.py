"""Packages that only some users need."""
from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import HvdscaleError, UsageError


def import_extra(module: str, need: str, otherwise: str = "", package: str = "",
                 refused: type[HvdscaleError] = UsageError) -> ModuleType:
    """A module of a package that hvdscale does not bring; ``refused`` naming the package where it is not installed.

    need        what needs it, such as ``to_pandas()``
    otherwise   what does without it
    package     its name for pip, if it is not that of the module
    """
    package = package or module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise refused(f"{need} needs {package}, which cannot be imported ({error}): pip install {package}"
                      f"{f'; {otherwise}' if otherwise else ''}") from None
