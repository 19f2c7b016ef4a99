"""hvdscale-scale: one job at several worker counts, then the report."""
from __future__ import annotations

import os
from dataclasses import replace

import click

from ..errors import UsageError
from ..formatting.numbers import counted
from ..plan.job import refuse_changes
from ..plan.settings import OPTIONS, Settings
from ..system.cores import usable_cores
from ..training.series import INSTEAD, PLACES, PROBE, carry_out, ended, refuse_edited, runs_of
from ..workers.launch import LAUNCHERS, find_launcher, refuse_too_many
from .common import (CONTEXT, CommandOfTwo, echo, hosts_option, rerun_option, slow_imports, version_option,
                     whole_numbers, width_option)
from .completion import paths
from .train import Grouped, asked, key_options


class ScaleCommand(Grouped, CommandOfTwo):
    """The command, with its options under headings, and hvdscale-scale script."""

    word, module = "script", "hvdscale.cli.scale_script"


@click.command(cls=ScaleCommand, context_settings=CONTEXT)
@click.option("--workers", "counts", default="1,2,4,8", show_default=True, metavar="LIST", help="worker counts")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True,
              help="runs at each worker count, with consecutive seeds")
@click.option("--out", required=True, metavar="DIR", shell_complete=paths, help="folder for the logs and the report")
@click.option("--probe", is_flag=True, help=f"throughput only: {PROBE['steps']} steps each, no evaluation")
@click.option("--launcher", default="auto", show_default=True, help=f"auto, {', '.join(LAUNCHERS)}")
@hosts_option
@rerun_option
@key_options(without=PLACES)
@width_option
@version_option
def main(workload, counts, repeats, out, probe, launcher, hosts, overwrite, **given):
    """Run WORKLOAD at several worker counts and report speedup and efficiency.

    By default scaling is weak: the local batch is fixed and the global batch grows. With --global-batch it is strong.
    All other options are those of hvdscale-train. If interrupted, the same command resumes.

    \b
      hvdscale-scale digits/fc --workers 1,2,4 --repeats 3 --out runs/digits

    A training script is timed as it is:

    \b
      hvdscale-scale script train.py --batch 32 --out runs/mine -- --batch-size {local}
      hvdscale-scale script --help
    """
    with slow_imports():                # which --help can do without
        from ..report.make import make
        from ..report.output import refuse_no_folder
    counts = whole_numbers("--workers", counts, "worker counts", 1)
    refuse_no_folder(out)
    workload, layers = asked(workload, **given)
    keys = Settings.build({}, *layers).asked()
    for name, instead in (("log", "--out says where logs go"), ("overwrite", "use the option --overwrite"),
                          ("checkpoint", "a checkpoint folder belongs to one run")):
        if name in keys:
            raise UsageError(f"{name} cannot be set for a series of runs: {instead}")
    for name in OPTIONS["budget"]:
        if probe and given[name] is not None:
            raise UsageError(f"--probe has {PROBE['steps']} steps at each worker count; leave out --{name}")
    if probe and repeats > 1:
        raise UsageError("--probe runs each worker count once; leave out --repeats")
    if launcher != "srun" and "SLURM_JOB_ID" not in os.environ:
        # the same threads per worker at every count: one worker must not use all cores, or nothing speeds up
        keys.setdefault("threads", max(1, len(usable_cores()) // max(counts)))
    launcher = find_launcher(launcher)
    refuse_too_many(max(counts), launcher, hosts)
    runs = runs_of(counts, repeats, probe, keys, out)
    todo = [run for run in runs if overwrite or not ended(run, workload)]
    accept, first = keys.get("accept_changes", False), {}
    if len(todo) < len(runs):
        accepted = refuse_edited([run for run in runs if run not in todo], workload, keys, accept, click.echo)
        todo = [replace(run, keys={**run.keys, "accepted": accepted}) for run in todo] if accepted else todo
        click.echo(f"{len(runs) - len(todo)} of {len(runs)} runs are already finished; --overwrite runs them again")
    for number, run in enumerate(todo, 1):
        click.echo(f"\n[{number}/{len(todo)}] {counted(run.workers, 'worker')}, seed "
                   f"{run.keys.get('seed', 0)}: {run.log}")
        known = number > 1 and todo[number - 2].workers == run.workers
        try:
            job = carry_out(run, workload, launcher, hosts, _make_printer(with_plan=not known))
        except KeyboardInterrupt:
            click.echo("\nthe same command resumes here", err=True)
            raise
        first = first or job
        refuse_changes(first, job, accept, todo[0].log, INSTEAD)        # it may be edited meanwhile
    click.echo()
    make([run.log for run in runs], out=os.path.join(out, "report"), echo=echo)


def _make_printer(with_plan: bool):
    """A function that prints a run's lines, except its log and next command, and its plan unless ``with_plan``."""
    started = with_plan

    def show(line: str) -> None:
        nonlocal started
        started = started or line.startswith(("step", "Error"))
        if started and not line.startswith(("log: ", "next: ")):
            click.echo(f"  {line}")
    return show


if __name__ == "__main__":
    main()
