"""hvdscale-scale script: how far does a training script scale, as it is?"""

import glob
import os
from functools import partial

import click

from ..errors import HvdscaleError, UsageError
from ..formatting.numbers import counted
from ..formatting.screen import Progress, quiet
from ..watch.runner import TRACED, ScriptRequest, threads_of
from ..workers.launch import LAUNCHERS, find_launcher, place, refuse_too_many
from .common import (CONTEXT, Command, echo, general_options, hosts_option, paths, rerun_option, slow_imports,
                     whole_numbers)
from .scripts import check_batch, module_option, path_of


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("script", shell_complete=paths)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@module_option
@click.option("--workers", "counts", metavar="LIST", help="worker counts  [default: 1,2,4, or what a launcher started]")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="runs at each worker count")
@click.option("--out", required=True, metavar="DIR", shell_complete=paths, help="folder for the logs and the report")
@click.option("--batch", type=click.IntRange(min=1), help="examples of a worker's update (weak scaling); {local} in "
              "the script's arguments becomes it")
@click.option("--global-batch", type=click.IntRange(min=1), help="examples of an update of all workers (strong "
              "scaling); {local} in the script's arguments becomes a worker's share of it")
@click.option("--updates", type=click.IntRange(min=5), default=50, show_default=True, help="updates to time in a run")
@click.option("--warm-up", type=click.IntRange(min=1), default=10, show_default=True, help="untimed updates before")
@click.option("--profile", is_flag=True, help=f"trace {TRACED} more updates of each rank, for "
              "ui.perfetto.dev; the report names the operators that take longest")
@click.option("--seconds", type=click.FloatRange(min=1), default=300, show_default=True, help="time limit of a run")
@click.option("--launcher", default="torchrun", show_default=True, help=f"auto, {', '.join(LAUNCHERS)}")
@hosts_option
@rerun_option
@general_options
def main(script, arguments, module, counts, repeats, out, batch, global_batch, updates, warm_up, profile, seconds,
         launcher, hosts, overwrite):
    """Time SCRIPT, a training script with DistributedDataParallel or Horovod, as it is at several worker counts, and
    report speedup, efficiency and where the time goes.

    The script's own arguments come after --, in which {workers} becomes the number of workers and {rank} the rank. It
    runs in the working folder, as torchrun would run it, and is ended after some updates. If interrupted, the same
    command resumes. Under torchrun, mpirun, srun or horovodrun it is timed at the number of workers that they started.
    The report has all logs of --out.

    \b
      hvdscale-scale script train.py --out runs/mine
      hvdscale-scale script train.py --workers 1,2,4,8 --repeats 2 --batch 32 --out runs/weak -- --batch-size {local}
      hvdscale-scale script train.py --global-batch 256 --out runs/strong -- --batch-size {local}
      srun -n 16 hvdscale-scale script train.py --out runs/mine

    Exit codes: 0 all runs were timed, 1 some were not, 2 misuse.
    """
    with slow_imports():
        from ..report.pages import make
        from ..report.output import refuse_no_folder
        from ..scaling.runs import carry_out, carry_out_launched, keys_of
        from ..training.series import ended, repeated
    process = place()
    launched = process.size > 1 or process.launcher is not None and counts is None
    counts = [process.size] if launched else whole_numbers("--workers", counts or "1,2,4", "worker counts", 1)
    script = path_of(script, module)
    if batch and global_batch:
        raise UsageError(f"--batch {batch} and --global-batch {global_batch}: give --batch for weak scaling, where the "
                         "examples a worker stay, or --global-batch for strong scaling, where those of all stay")
    check_batch(arguments, global_batch, counts, "--global-batch", batch)
    refuse_no_folder(out)
    threads = threads_of(process.local_size if launched else max(counts))
    asked = ScriptRequest(script, arguments, updates, seconds, threads, warm_up, batch, global_batch, module=module,
                          profile=profile)
    if not launched:
        launcher = find_launcher(launcher)
        refuse_too_many(max(counts), launcher, hosts)
    runs = repeated(counts, repeats, out, lambda workers, repeat: keys_of(asked, workers))
    todo, say = [run for run in runs if overwrite or not ended(run)], quiet if process.rank else echo
    if len(todo) < len(runs):
        say(f"{len(runs) - len(todo)} of {len(runs)} runs are already finished; --overwrite runs them again")
    failures = 0
    for number, run in enumerate(todo, 1):
        say(f"[{number}/{len(todo)}] {counted(run.workers, 'worker')}: {run.log}")
        try:
            tell = quiet if process.rank else Progress(partial(echo, err=True))
            remarks = carry_out_launched(run, asked, process, tell) if launched else carry_out(
                run, asked, launcher, hosts, tell)
            for remark in remarks:
                say(f"  note: {remark}")
        except HvdscaleError as error:
            failures += 1
            echo(f"  Error: {error}; what it printed: {run.output}", err=True)
        except KeyboardInterrupt:
            echo("\nthe same command resumes here", err=True)
            raise
    if process.rank:
        return
    if logs := glob.glob(os.path.join(glob.escape(out), "w*-r*.h5")):
        echo()
        make(sorted(logs), out=os.path.join(out, "report"), echo=echo)
    if failures:
        raise HvdscaleError(f"{counted(failures, 'run')} of {len(runs)} could not be timed; their errors are above")
