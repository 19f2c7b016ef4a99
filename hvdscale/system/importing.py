"""Objects of the user's own, named module:object."""
from __future__ import annotations

import glob
import importlib
import os
import sys
from types import ModuleType

from ..errors import StoppedError, UsageError, describe_raised


def import_object(name: str, what: str):
    """The object of a module on the path or in the working directory; raises UsageError saying where it was looked for.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())         # as `python -m` has it: a job's file lies where its command is typed
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module}.".startswith(f"{missing}."):          # one that the module imports
            raise UsageError(f"{what} {name!r} cannot be imported: {describe_raised(error)}") from None
        raise UsageError(f"{what} {name!r} cannot be imported: {error}, {_where_it_is_not(module)}") from None
    except (ImportError, SyntaxError) as error:
        raise UsageError(f"{what} {name!r} cannot be imported: {error}") from None
    except StoppedError:
        raise
    except Exception as error:                  # the module is the user's: anything
        raise UsageError(f"{what} {name!r} cannot be imported: {describe_raised(error)}") from None
    if not hasattr(found, attribute):
        raise UsageError(f"{what} {name!r} cannot be imported: {module} has no {attribute!r}; it defines "
                         f"{', '.join(_defined_in(found)) or 'nothing'}")
    return getattr(found, attribute)


def _defined_in(module: ModuleType) -> list[str]:
    """The names of a module's own classes, functions and values, in their order."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and
            not isinstance(value, ModuleType) and
            (not hasattr(value, "__qualname__") or value.__module__ == module.__name__)]


def _where_it_is_not(module: str) -> str:
    """The places where the module is missing, and how to have it found elsewhere."""
    here, given = os.getcwd(), os.environ.get("PYTHONPATH")
    file = os.path.join(*module.split(".")) + ".py"
    near = next((path[:-len(file) - 1] for path in sorted(glob.glob(os.path.join("*", file)))), "FOLDER")
    return (f"neither in this folder ({here}) nor in PYTHONPATH ({given or 'not set'}) nor installed. Run the command "
            f"in the folder that holds {file}, or name that: PYTHONPATH={near}")
