"""The runs of hvdscale-scale, one after the other: all that were asked for, or those that decide."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from ..analysis.compare import compare_trials
from ..analysis.decide import worst
from ..analysis.decision.sequence import LEAST, OPEN
from ..analysis.next_runs import MOST_ROUNDS, decide_until
from ..analysis.worker_plan import Request
from ..errors import HvdscaleError, UsageError
from ..formatting.numbers import counted
from ..formatting.screen import quiet
from ..plan.job import refuse_changes
from ..report.plan.make import make_plan
from ..report.plan.words import describe_next
from ..training.series import (INSTEAD, SeriesRun, carry_out, ended, finished_logs, refuse_edited, runs_of,
                               runs_to_measure, worker_hours)
from .common import echo
from .compare import read_all, say_decision, write_decision


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
