"""hvdscale-scale: one job at several worker counts, then the report."""
from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from ..analysis.shares import share_of
from ..errors import HvdscaleError, UsageError
from ..formatting.numbers import counted
from ..formatting.progress import quiet
from ..plan.job import refuse_changes
from ..plan.settings import OPTIONS, Settings
from ..system.cores import usable_cores
from ..training.series import (INSTEAD, PLACES, PROBE, SeriesRun, carry_out, ended, finished_logs, refuse_edited,
                               runs_of, runs_to_measure, worker_hours)
from ..workers.launch import LAUNCHERS, find_launcher, most_workers, refuse_too_many
from .common import (CONTEXT, CommandOfTwo, echo, hosts_option, ledger_option, paths, rerun_option, slow_imports,
                     version_option, whole_numbers, width_option, within_option)
from .plan import workers_of
from .train import Grouped, asked, key_options

LEAST_REPEATS = 2       # at each of the first worker counts, where runs are to decide


class ScaleCommand(Grouped, CommandOfTwo):
    words = {"script": "scale_script:main"}


@click.command(cls=ScaleCommand, context_settings=CONTEXT,
               few="--workers --repeats --out --probe --until --against --decide --at-most --overwrite --config --set "
                   "--local-batch --global-batch --lr --lr-rule --optimizer --budget --target --data-dir --device")
@click.option("--workers", "counts", default="1,2,4,8", show_default=True, metavar="LIST", help="worker counts")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="runs at each worker count, with consecutive seeds")
@click.option("--out", required=True, metavar="DIR", shell_complete=paths, help="folder for the logs and the report")
@click.option("--probe", is_flag=True, help=f"throughput only: {PROBE['steps']} steps each, no evaluation")
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
@width_option
@version_option
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
        from ..report.runs import make
        from .compare import read_all
        from ..report.output import refuse_no_folder
    loss = _check_until(until, at_most, probe, overwrite, deciding)
    if deciding != bool(against) or ledger and not deciding:
        raise UsageError("--decide, --against BASE and --ledger: the first two belong together, and the third to them")
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
            raise UsageError(f"--probe has {PROBE['steps']} steps at each worker count; leave out --{name}")
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


def _check_until(until: str | None, at_most: float | None, probe: bool, overwrite: bool, deciding: bool) -> float:
    if deciding and (until or probe or overwrite):
        raise UsageError("--decide runs to the target until it is decided; leave out --until, --probe and --overwrite")
    if until is None:
        if at_most is not None and not deciding:
            raise UsageError(f"--at-most {at_most:g} bounds what --until runs; give --until, such as 10%")
        return 0.0
    if probe:
        raise UsageError("--until probes by itself where that decides; leave out --probe")
    if overwrite:
        raise UsageError("--until decides by all runs in --out; in place of --overwrite choose another --out")
    share = share_of("--until", until)
    if not 0 < share < 1:
        raise UsageError(f"--until {until}: is an expected loss between 0 and 100%, such as 10%")
    return share


@dataclass
class Series:
    """What the runs of a series share, and how they are carried out."""

    workload: str
    keys: dict
    launcher: str | None
    hosts: str | None
    overwrite: bool

    def carry_out(self, runs: Sequence[SeriesRun]) -> None:
        todo = [run for run in runs if self.overwrite or not ended(run, self.workload)]
        accept, first = self.keys.get("accept_changes", False), {}
        if len(todo) < len(runs):
            accepted = refuse_edited([run for run in runs if run not in todo], self.workload, self.keys, accept, echo)
            todo = [replace(run, keys={**run.keys, "accepted": accepted}) for run in todo] if accepted else todo
            echo(f"{len(runs) - len(todo)} of {len(runs)} runs are already finished; --overwrite runs them again")
        for number, run in enumerate(todo, 1):
            echo(f"\n[{number}/{len(todo)}] {counted(run.workers, 'worker')}, seed {run.keys.get('seed', 0)}: "
                 f"{run.log}")
            known = number > 1 and todo[number - 2].workers == run.workers
            try:
                job = carry_out(run, self.workload, self.launcher, self.hosts, _make_printer(with_plan=not known))
            except KeyboardInterrupt:
                echo("\nthe same command resumes here", err=True)
                raise
            first = first or job
            refuse_changes(first, job, accept, todo[0].log, INSTEAD)        # it may be edited meanwhile


def decide(series: Series, counts: Sequence[int], can_start: Sequence[int], repeats: int, out: str, loss: float,
           at_most: float | None, room: float) -> None:
    """Run at the fewest workers, then what decides, until the expected loss is low enough; then the plan."""
    from ..analysis.next_runs import decide_until
    from ..analysis.worker_plan import Request
    from ..report.plan.make import make_plan
    from ..report.plan.words import describe_next
    request = Request(tuple(counts), global_batch=series.keys.get("global_batch"))

    def plan(**more):
        return make_plan(finished_logs(out), [], request, **{"echo": quiet, **more})[0]

    def measure(wanted):
        try:
            series.carry_out(runs_to_measure(wanted, series.workload, series.keys, local_batch, out))
        except UsageError:              # of another job, which no other measurement would change
            raise
        except HvdscaleError as error:
            echo(f"  note: {error}\n  note: left out of what may be measured")
            return None
        return plan()
    if earlier := [SeriesRun(0, log, {}) for log in finished_logs(out)]:
        refuse_edited(earlier, series.workload, series.keys, series.keys.get("accept_changes", False), echo)
    series.carry_out(runs_of(list(can_start[:2]), repeats, False, series.keys, out))
    first = plan()
    local_batch, spent = first.times.timings.most_local, worker_hours(finished_logs(out))
    for found in decide_until(measure, first, loss, (at_most or math.inf) - spent, room):
        echo(f"\n{describe_next(found)}")
    echo()
    plan(echo=echo, out=os.path.join(out, "plan"))


def decide_against(series: Series, counts: Sequence[int], base: Sequence, against: str, out: str, within: float,
                   ledger: str | None, at_most: float) -> None:
    """Run a seed after the other, the baseline's first, until it is decided; ends with the exit code."""
    from ..analysis.compare import compare_trials
    from ..analysis.decide import worst
    from ..analysis.decision.sequence import LEAST, OPEN
    from ..analysis.next_runs import MOST_ROUNDS
    from .compare import read_all, say_decision, write_decision
    few = [count for count in counts if len({trial.seed_key for trial in base if trial.workers == count}) < LEAST]
    if few:
        raise UsageError(f"--against {against}: has fewer than {LEAST} runs at {counted(few[0], 'worker')}; run more, "
                         "or choose other --workers")
    series.keys.setdefault("seed", max(min(trial.seed for trial in base), 0))
    for repeat in range(LEAST, MOST_ROUNDS + 1):
        series.carry_out(runs_of(list(counts), repeat, False, series.keys, out))
        comparisons = compare_trials(base, read_all(out))
        echo()
        found = say_decision(comparisons, within, ledger=ledger, both=False)
        spent = worker_hours(finished_logs(out))
        if worst(found) != OPEN or spent * (1 + 1 / repeat) > at_most:
            break
    for name in ("decision.json", "decision.xml"):
        code = write_decision(os.path.join(out, name), comparisons, (against, out), found, within, ledger)
    click.get_current_context().exit(code)


def _make_printer(with_plan: bool):
    """A function that prints a run's lines, except its log and next command, and its plan unless ``with_plan``."""
    started = with_plan

    def show(line: str) -> None:
        nonlocal started
        started = started or line.startswith(("step", "Error"))
        if started and not line.startswith(("log: ", "next: ")):
            echo(f"  {line}")
    return show


if __name__ == "__main__":
    main()
