"""Imports of the user's own objects, and of packages that only some users need."""

import glob
import importlib
import os
import sys
from types import ModuleType

from ..errors import HvdscaleError, StoppedError, UsageError, describe_raised


def import_object(name: str, what: str):
    """The object of a module on the path or in the working directory; raises UsageError naming where it looked."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())         # as `python -m` has it: a job's file lies where its command is typed
    try:
        found = importlib.import_module(module)
    except StoppedError:
        raise
    except (Exception, SystemExit) as error:    # the module is the user's: anything
        raise UsageError(f"{what} {name!r} cannot be imported: {_why_not(module, error)}") from None
    if not hasattr(found, attribute):
        defined = [own for own, value in vars(found).items() if not isinstance(value, ModuleType)
                   and not own.startswith("_") and (not hasattr(value, "__qualname__") or value.__module__ == module)]
        raise UsageError(f"{what} {name!r} cannot be imported: {module} has no {attribute!r}; it defines "
                         f"{', '.join(defined) or 'nothing'}")
    return getattr(found, attribute)


def _why_not(module: str, error: Exception | SystemExit) -> str:
    """Why the module was not imported; of one that is nowhere, where it was looked for and how it is found."""
    if isinstance(error, SystemExit):
        return f"{describe_raised(error)}; under if __name__ == '__main__' it would run in a script alone"
    if isinstance(error, (ImportError, SyntaxError)) and not isinstance(error, ModuleNotFoundError):
        return str(error)
    if not (isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")):
        return describe_raised(error)           # such as a module that it imports itself
    here, given = os.getcwd(), os.environ.get("PYTHONPATH")
    file = os.path.join(*module.split(".")) + ".py"
    near = next((path[:-len(file) - 1] for path in sorted(glob.glob(os.path.join("*", file)))), "FOLDER")
    return (f"{error}, neither in this folder ({here}) nor in PYTHONPATH ({given or 'not set'}) nor installed. Run the "
            f"command in the folder that holds {file}, or name that: PYTHONPATH={near}")


def import_extra(module: str, need: str, otherwise: str = "", package: str = "",
                 refused: type[HvdscaleError] = UsageError) -> ModuleType:
    """A module of a package that hvdscale does not bring; ``refused`` naming the package where it is not installed, by
    its name for pip if that is not the module's, what needs it, such as ``to_pandas()``, and what otherwise does."""
    package = package or module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise refused(f"{need} needs {package}, which cannot be imported ({error}): pip install {package}"
                      f"{f'; {otherwise}' if otherwise else ''}") from None
