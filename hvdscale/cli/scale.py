"""hvdscale-scale: one job at several worker counts, then the report."""

import math
import os

import click

from ..analysis.defaults import PROBE_STEPS, share_of
from ..errors import UsageError
from ..plan.settings import OPTIONS, PLACES, Settings
from ..system.cores import usable_cores
from ..workers.launch import LAUNCHERS, find_launcher, most_workers, refuse_too_many
from .common import (CONTEXT, Command, echo, general_options, hosts_option, ledger_option, paths, rerun_option,
                     slow_imports, whole_numbers, within_option)
from .plan import workers_of
from .train import Grouped, asked, key_options

LEAST_REPEATS = 2       # at each of the first worker counts, where runs are to decide


class ScaleCommand(Grouped, Command):
    """It ends as described in common, and its options are under headings."""


@click.command(cls=ScaleCommand, context_settings=CONTEXT, words={"script": "scale_script:main"},
               few="--workers --repeats --out --probe --until --against --decide --at-most --overwrite --config --set "
                   "--local-batch --global-batch --lr --lr-rule --optimizer --budget --target --data-dir --device")
@click.option("--workers", "counts", default="1,2,4,8", show_default=True, metavar="LIST", help="worker counts")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="runs at each worker count, with consecutive seeds")
@click.option("--out", required=True, metavar="DIR", shell_complete=paths, help="folder for the logs and the report")
@click.option("--probe", is_flag=True, help=f"throughput only: {PROBE_STEPS} steps each, no evaluation")
@click.option("--until", metavar="LOSS", help="decide among --workers: run what most lowers the expected loss against "
              "the fastest for its worker-hours, until it is at most this, such as 10%")
@click.option("--at-most", type=click.FloatRange(min=0, min_open=True), metavar="HOURS",
              help="with --until or --decide: worker-hours of all runs in --out, by what is expected before each")
@click.option("--against", metavar="BASE", shell_complete=paths, help="with --decide: a baseline's logs")
@click.option("--decide", "deciding", is_flag=True, help="run until the job is better, worse or like --against, at "
              "its worker counts or --workers; exit codes as of hvdscale-report compare --decide")
@within_option
@ledger_option
@click.option("--launcher", default="auto", show_default=True, help=f"auto, {', '.join(LAUNCHERS)}")
@hosts_option
@rerun_option
@key_options(without=PLACES)
@general_options
def main(workload, counts, repeats, out, probe, until, at_most, against, deciding, within, ledger, launcher, hosts,
         overwrite, **given):
    """Run WORKLOAD at several worker counts and report speedup and efficiency.

    By default scaling is weak: the local batch is fixed and the global batch grows. With --global-batch it is strong.
    All other options are those of hvdscale-train. If interrupted, the same command resumes.

    \b
      hvdscale-scale digits/fc --workers 1,2,4 --repeats 3 --out runs/digits

    How many workers, by as few runs as decide it:

    \b
      hvdscale-scale digits/fc --workers 1-16 --until 10% --out runs/digits

    Whether a change is better, by as few runs as decide it:

    \b
      hvdscale-scale job:workload --against base/ --decide --ledger base.json --out runs/change

    A training script is timed as it is:

    \b
      hvdscale-scale script train.py --batch 32 --out runs/mine -- --batch-size {local}
      hvdscale-scale script --help
    """
    with slow_imports():                # which --help can do without
        from ..report.pages import make
        from ..report.output import refuse_no_folder
        from ..training.series import runs_of
        from .compare import read_all
        from .series import Series, decide, decide_against
    loss = 0.0 if until is None else share_of("--until", until)
    for wrong, said in (
            (deciding and (until or probe or overwrite),
             "--decide runs to the target until it is decided; leave out --until, --probe and --overwrite"),
            (at_most and not (until or deciding),
             f"--at-most {at_most or 0:g} bounds what --until runs; give --until, such as 10%"),
            (until and probe, "--until probes by itself where that decides; leave out --probe"),
            (until and overwrite,
             "--until decides by all runs in --out; in place of --overwrite choose another --out"),
            (until and not 0 < loss < 1, f"--until {until}: is an expected loss between 0 and 100%, such as 10%"),
            (deciding != bool(against) or ledger and not deciding,
             "--decide, --against BASE and --ledger: the first two belong together, and the third to them")):
        if wrong:
            raise UsageError(said)
    base = read_all(against) if deciding else ()
    if base and click.get_current_context().get_parameter_source("counts").name == "DEFAULT":
        counts = ",".join(map(str, sorted({trial.workers for trial in base})))
    counts = list(workers_of(counts)) if until else whole_numbers("--workers", counts, "worker counts", 1)
    refuse_no_folder(out)
    workload, layers = asked(workload, **given)
    keys = Settings.build({}, *layers).asked()
    for name, instead in (("log", "--out says where logs go"), ("overwrite", "use the option --overwrite"),
                          ("checkpoint", "a checkpoint folder belongs to one run")):
        if name in keys:
            raise UsageError(f"{name} cannot be set for a series of runs: {instead}")
    for name in OPTIONS["budget"]:
        if probe and given[name] is not None:
            raise UsageError(f"--probe has {PROBE_STEPS} steps at each worker count; leave out --{name}")
    room = most_workers(hosts) if until else max(counts)
    can_start = [count for count in counts if count <= room]
    if not can_start:
        raise UsageError(f"--workers {min(counts)}: there is room for {room:.0f}; name more --hosts")
    if launcher != "srun" and "SLURM_JOB_ID" not in os.environ:
        # the same threads per worker at every count: one worker must not use all cores, or nothing speeds up
        keys.setdefault("threads", max(1, len(usable_cores()) // max(can_start)))
    launcher = find_launcher(launcher)
    refuse_too_many(max(can_start), launcher, hosts)
    series = Series(workload, keys, launcher, hosts, overwrite)
    if until:
        return decide(series, counts, can_start, max(repeats, LEAST_REPEATS), out, loss, at_most, room)
    if deciding:
        return decide_against(series, counts, base, against, out, share_of("--within", within), ledger,
                              at_most or math.inf)
    runs = runs_of(counts, repeats, probe, keys, out)
    series.carry_out(runs)
    echo()
    make([run.log for run in runs], out=os.path.join(out, "report"), echo=echo)


if __name__ == "__main__":
    main()
