"""hvdscale-doctor resume: is a script that is stopped and started again the one that was not stopped?"""
from __future__ import annotations

from functools import partial

import click

from ..errors import UsageError
from ..watch.runner import ScriptRequest, threads_of
from .common import (CONTEXT, Command, checks_option, format_option, run_word, slow_imports, version_option,
                     width_option)
from .doctor_script import check_batch, report


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
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
@width_option
@version_option
def command(script, arguments, stop, again, how, workers, then, batch, updates, seconds, in_save, in_place, checks,
            wanted):
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
        from ..doctor.resume.examine import CHECKS, examine
        from ..doctor.resume.runs import ResumeRequest
        from ..workers.launch import place
    process = place()
    if process.size > 1:
        raise UsageError("hvdscale-doctor resume starts the workers itself, on this machine: start it without a "
                         "launcher")
    for count in (workers, then or workers):
        check_batch(arguments, batch, count)
    checked = checks_of(checks, tuple(CHECKS))
    asked = ScriptRequest(script, arguments, updates, seconds, threads_of(max(workers, then or 1)), global_batch=batch)
    request = ResumeRequest(asked, again, stop, how, updates, workers, then or workers, in_save, in_place)
    report(lambda say: examine(request, process, say, checked), lambda found, *how: found.render(*how), wanted)


main = partial(run_word, command, "resume")
