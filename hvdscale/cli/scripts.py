"""What the commands have in common that run a script as it is: its name, and the marks in its arguments."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import UsageError
from ..system.inputs import open_input, refusal
from ..watch.runner import GLOBAL, LOCAL, MARK, RANK, WORKERS

MARKS = LOCAL, GLOBAL, WORKERS, RANK

module_option = click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as of python -m")


def path_of(script: str, module: bool = False) -> str:
    """The file of a script, or of a module by its name; raises UsageError where there is none, or one to wait for."""
    base = script.replace(".", "/")
    wanted = [f"{base}.py", f"{base}/__main__.py"] if module else [script]
    found = next((one for one in wanted if Path(one).is_file()), wanted[0])
    try:
        open_input(found).close()
    except OSError as error:
        raise UsageError(f"{script}: there is no file {' or '.join(wanted)}; a module is looked for from the working "
                         "folder" if module else f"{script}: {refusal(error)}") from None
    return found


def marks_of(arguments: Sequence[str]) -> set[str]:
    """The marks in a script's arguments; raises UsageError for one that is not known."""
    found = {mark for one in arguments for mark in MARK.findall(one) if not mark.startswith("{{")}
    for mark in sorted(found - {*MARKS}):
        raise UsageError(f"{mark} is no mark: the script's arguments may have {', '.join(MARKS)}; write {{{mark}}} for "
                         f"an argument that is {mark} itself")
    return found
