"""hvdscale-doctor script: why does a training script's loss change with the number of workers? hvdscale-doctor resume:
is one that is stopped and started again the one that was not stopped?"""

import sys
import time
from collections.abc import Callable

import click

from ..errors import UsageError
from ..formatting.screen import Screen
from ..watch.runner import ScriptRequest, threads_of
from ..workers.launch import on_terminal
from .common import CONTEXT, Command, checks_option, echo, format_option, general_options, slow_imports
from .scripts import check_batch, module_option, path_of


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@module_option
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
@general_options
def script(script, arguments, module, batch, workers, updates, seconds, seed, checks, wanted):
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
        from ..doctor.script.examine import CHECKS, examine
        from ..workers.launch import place, refuse_too_many
        from ..workers.orphans import refuse_launcher_in_torchrun, stop_without_launcher
    process = place()
    refuse_launcher_in_torchrun()
    stop_without_launcher(seconds)
    if process.size == 1:
        refuse_too_many(workers, "torchrun", None, {})
    workers, script = process.size if process.size > 1 else workers, path_of(script, module)
    check_batch(arguments, batch, (workers,))
    checked = checks_of(checks, tuple(CHECKS))
    asked = ScriptRequest(script, arguments, updates, seconds, threads_of(max(workers, process.local_size)),
                          global_batch=batch, seeded=seed, module=module)
    report(lambda say: examine(asked, workers, process, say, checked), wanted, process.rank)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--stop", type=click.IntRange(min=1), default=6, show_default=True, help="the update after which the "
              "script is stopped; where it has saved nothing by then, that of its first checkpoint")
@click.option("--again", default="", metavar="ARGUMENTS", help="what the script needs to be started again, such as "
              "'--resume run/last.pt'; without it, it is started as before")
@click.option("--how", type=click.Choice(["kill", "term", "int", "usr1"]), default="kill", show_default=True,
              help="the signal that stops it, to all ranks")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="workers of each run")
@click.option("--then", type=click.IntRange(min=1), help="workers of the run that is started again  [default: as many]")
@click.option("--batch", type=click.IntRange(min=1), help="the global batch; in the script's arguments {local} becomes "
              "a worker's share of it, and {global} the whole")
@click.option("--updates", type=click.IntRange(min=1), default=8, show_default=True,
              help="updates to compare after the stop; more, up to a later checkpoint")
@click.option("--seconds", type=click.FloatRange(min=1), default=300, show_default=True, help="time limit of each run")
@click.option("--in-save", is_flag=True, help="also kill the script while it saves: in a file, and between two")
@click.option("--in-place", is_flag=True, help="run also where the folder is too large to copy, or files outside of it "
              "are written")
@checks_option
@format_option
@general_options
def resume(script, arguments, updates, seconds, batch, workers, then, checks, wanted, **given):
    """Find out whether SCRIPT, stopped and started again, is the run that was not stopped: run it unmodified twice
    without a stop, once to update --stop, and once more from what it saved, watch, and compare.

    The script's own arguments come after --, with {workers}, {local} and {global} as in `hvdscale-doctor script`. Each
    run is in a copy of the working folder; the last one has that of the run which was stopped.

    \b
      hvdscale-doctor resume train.py --stop 6 -- --epochs 3 --ckpt run/
      hvdscale-doctor resume train.py --again "--resume run/last.pt" -- --epochs 3
      hvdscale-doctor resume train.py --workers 2 --then 1 --batch 32 -- --batch-size {local}

    Exit codes: 0 no finding failed, 1 a finding or the script failed, 2 misuse, 4 no finding failed, but the load of a
    checkpoint, the parameters or the examples were not seen.
    """
    with slow_imports():
        from ..doctor.formats import checks_of
        from ..doctor.resume.examine import CHECKS, ResumeRequest, examine
        from ..workers.launch import place
    if place().size > 1:
        raise UsageError("hvdscale-doctor resume starts the workers itself, on this machine: start it without a "
                         "launcher")
    then = then or workers
    check_batch(arguments, batch, (workers, then))
    checked, script = checks_of(checks, tuple(CHECKS)), path_of(script)
    asked = ResumeRequest(script, arguments, updates, seconds, threads_of(max(workers, then)), global_batch=batch,
                          workers=workers, then=then, **given)
    report(lambda say: examine(asked, say, checked), wanted)


def report(examine: Callable, wanted: str, rank: int = 0) -> None:
    from ..doctor.formats import TEXT, render_for_machines
    from ..doctor.script.runs import ScriptError
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
        print(examination.render(time.monotonic() - started, on_terminal(sys.stdout)) if wanted == TEXT else
              render_for_machines(wanted, {"verdict": examination.verdict, **examination.about}, examination.findings,
                                  examination.code, examination.unseen_training))
        sys.exit(examination.code)
