"""hvdscale-doctor script: why does a training script's loss change with the number of workers?"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from ..errors import UsageError
from ..formatting.numbers import counted
from ..formatting.screen import Screen
from ..watch.runner import GLOBAL, LOCAL, ScriptRequest, threads_of
from .common import (CONTEXT, Command, checks_option, echo, format_option, run_word, slow_imports, version_option,
                     width_option)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as of python -m")
@click.option("--batch", type=click.IntRange(min=1), help="the global batch of both runs; in the script's arguments "
              "{local} becomes a worker's share of it, and {global} the whole")
@click.option("--workers", type=click.IntRange(min=2), default=2, show_default=True,
              help="workers of the second run; under a launcher, as many as it started")
@click.option("--updates", type=click.IntRange(min=1), default=4, show_default=True,
              help="updates to watch before the epoch is cut short, so that evaluation and the next epoch are seen")
@click.option("--seconds", type=click.FloatRange(min=1), default=300, show_default=True,
              help="time limit of each of the two runs")
@click.option("--seed/--no-seed", default=True, show_default=True,
              help="seed each rank's generators by its rank before the script begins, for a script that does not")
@checks_option
@format_option
@width_option
@version_option
def command(script, arguments, module, batch, workers, updates, seconds, seed, checks, wanted):
    """Find out why the loss of SCRIPT, a training script with DistributedDataParallel, changes with the number of
    workers: run it unmodified on one worker and on several, watch, and compare.

    Alone, the doctor starts the workers as torchrun would; or start it by torchrun, mpirun, srun or horovodrun. The
    script's own arguments come after --, in which {workers} becomes the number of workers and {rank} the rank. The
    script runs in a copy of the working folder, for a few updates; where torch sees no GPU, what it asks of CUDA runs
    on the CPU.

    \b
      hvdscale-doctor script train.py
      hvdscale-doctor script train.py --batch 32 -- --epochs 3 --batch-size {local}
      torchrun --nproc-per-node 2 --no-python hvdscale-doctor script train.py -- --epochs 3
      hvdscale-doctor script train.py --checks gradient,examples --format junit > doctor.xml

    Exit codes: 0 no finding failed, 1 a finding or the script failed, 2 misuse, 4 no finding failed, but the training
    gradient or examples were not seen, or something differs without a cause that was seen.
    """
    with slow_imports():
        from ..doctor.formats import checks_of
        from ..doctor.script.examine import CHECKS, examine, render
        from ..workers.launch import place, refuse_too_many
        from ..workers.orphans import refuse_launcher_in_torchrun, stop_without_launcher
    process = place()
    refuse_launcher_in_torchrun()
    stop_without_launcher(seconds)
    if process.size == 1:
        refuse_too_many(workers, "torchrun", None, {})
    workers = process.size if process.size > 1 else workers
    script = _path_of(script, module)
    check_batch(arguments, batch, workers)
    checked = checks_of(checks, tuple(CHECKS))
    asked = ScriptRequest(script, arguments, updates, seconds, threads_of(max(workers, process.local_size)),
                          global_batch=batch, seeded=seed, module=module)
    report(lambda say: examine(asked, workers, process, say, checked), render, wanted, process.rank)


def report(examine: Callable, render: Callable, wanted: str, rank: int = 0) -> None:
    """Examine, print what was found as ``wanted``, and exit."""
    from ..doctor.formats import TEXT, render_for_machines
    from ..doctor.script.runs import ScriptError
    from ..training.display import on_terminal
    started, screen = time.monotonic(), Screen(sys.stderr, on_terminal(sys.stderr) and rank == 0, (0.0, 0.0))
    try:
        examination = examine(lambda what: screen.line(what, time.monotonic()) if screen.terminal else None)
    except ScriptError as error:
        screen.erase()
        if printed := error.traceback.rstrip("\n"):
            echo(printed, err=True)
        raise
    screen.erase()
    if examination is not None:
        print(render(examination, time.monotonic() - started, on_terminal(sys.stdout)) if wanted == TEXT else
              render_for_machines(wanted, examination.about, examination.findings, examination.code,
                                  examination.unseen_training))
        sys.exit(examination.code)


def _path_of(script: str, module: bool) -> str:
    """The script's file; raises UsageError where there is none."""
    base = script.replace(".", "/")
    wanted = [f"{base}.py", f"{base}/__main__.py"] if module else [script]
    found = next((one for one in wanted if Path(one).is_file()), None)
    if found is None:
        why = "; a module is looked for from the working folder" if module else ""
        raise UsageError(f"{script}: there is no file {' or '.join(wanted)}{why}")
    return found


def check_batch(arguments: tuple[str, ...], batch: int | None, workers: int) -> None:
    """Raise UsageError for a batch that is not marked in the arguments, cannot be shared out, or is not given."""
    marked = next((mark for mark in (LOCAL, GLOBAL) if any(mark in one for one in arguments)), "")
    if marked and batch is None:
        share = "a worker's share of " if marked == LOCAL else ""
        raise UsageError(f"{marked} is {share}the global batch: give that by --batch, such as --batch 32")
    if batch is not None and not marked:
        raise UsageError(f"--batch {batch}: mark where the local batch is in the script's arguments, such as "
                         f"-- --batch-size {LOCAL}, or {GLOBAL} for a script that divides it itself; without "
                         "--batch, only what holds at any batch is checked")
    if batch is not None and batch % workers:
        raise UsageError(f"--batch {batch} does not divide by {counted(workers, 'worker')}; take a multiple of "
                         f"{workers}")


main = partial(run_word, command, "script")
