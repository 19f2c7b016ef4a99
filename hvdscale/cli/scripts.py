"""What the commands have in common that run a script as it is: its name, and the batch marked in its arguments."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from ..errors import UsageError
from ..formatting.numbers import counted
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


def check_batch(arguments: Sequence[str], batch: int | None, counts: Iterable[int], option: str = "--batch",
                local: int | None = None) -> None:
    """UsageError where the arguments mark a batch that is not given, or do not mark the global one that is; where that
    does not divide by a number of workers; and for a mark that is not known. ``option`` gives the global batch, another
    the ``local`` one."""
    found = {mark for one in arguments for mark in MARK.findall(one) if not mark.startswith("{{")}
    for mark in sorted(found - {*MARKS}):
        raise UsageError(f"{mark} is no mark: the script's arguments may have {', '.join(MARKS)}; write {{{mark}}} for "
                         f"an argument that is {mark} itself")
    marked = next((mark for mark in (LOCAL, GLOBAL) if mark in found), "")
    if marked and not (batch or local):
        share = "a worker's share of " if marked == LOCAL else ""
        raise UsageError(f"{marked} is {share}the global batch: give that by {option}, such as {option} 32"
                         + (", or a worker's by --batch" if option != "--batch" else ""))
    if batch and not marked:
        raise UsageError(f"{option} {batch}: mark where the local batch is in the script's arguments, such as "
                         f"-- --batch-size {LOCAL}, or {GLOBAL} for a script that divides it itself"
                         + ("" if option != "--batch" else "; without it, only what holds at any batch is checked"))
    for workers in counts if batch else ():
        if batch % workers:
            raise UsageError(f"{option} {batch} does not divide by {counted(workers, 'worker')}; take a multiple of "
                             f"{workers}, or another number of workers")
