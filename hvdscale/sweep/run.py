"""A sweep on one group of workers, from its file to its end."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..config import Settings
from ..display import Quiet
from ..ends import DONE, PREEMPTED
from ..errors import LogError, UsageError
from ..job import read_data
from ..launch import Process
from ..log.lock import this_process
from ..workers import Lone
from ..workload import Data, Workload
from ..workloads import find
from .estimate import estimates, table
from .farm import Farm, Shard, Standing
from .file import Study, Sweep, check_same
from .finish import Finisher
from .ledger import Ledger, Owner, put
from .progress import Progress
from .studies import Settled, plan_of, settle_study
from .trial import Trials


def sweep_with(asked, group: Lone, number: int, here: Process, signals) -> tuple[int, Callable[[], bool]]:
    """Carry out this group's share of the sweep, or estimate it; gives the exit code, and whether other groups of the
    launch are still at work.

    asked  see cli.tune.Asked;  number  of the group, of which the first prints. Raises HvdscaleError, on all its ranks.
    """
    sweep, out = asked.sweep, None if asked.mode == "dry-run" else asked.out
    with group.together("the sweep"):
        workload = find(sweep.workload)
        wanted = wanted_studies(sweep, asked.only)
        if out is not None and group.rank == 0:
            keep_record(out, sweep)
    with group.together("the data"):
        layers = (wanted[0].layer, asked.free)
        data = read_data(workload, Settings.build(workload.defaults, *layers))
    with group.together("the studies"):
        studies = settle_all(sweep, wanted, workload, data, asked.free, out) if group.rank == 0 else []
    studies = group.gather(studies, "studies")[0]
    groups = here.size // group.size
    if asked.mode == "dry-run":
        if number == 0:
            _estimate(studies, sweep, data, group, groups)
        return DONE, lambda: True
    signals.watch()
    owner = Owner.take(out, asked.take_over) if group.rank == 0 else None
    if owner:
        owner.job = here.job
    standing = Standing(studies, Ledger(out))
    speaks = number == 0 and group.rank == 0
    display = Progress(standing, asked.terminal) if speaks else Quiet()
    finisher = Finisher(out, standing, display.say) if speaks else None
    if speaks:
        display.say(introduction(asked.path, out, studies, standing, groups, group.size))
    trials = Trials(out, sweep.workload, data, group, owner.name if owner else "", signals)
    farm = Farm(standing, trials, group, owner, Shard(*asked.shard), display, _ticks(display, finisher), signals)
    try:
        finished = farm.work()
        with group.together("the log"):
            trials.close()
    except BaseException:
        trials.let_go()
        raise
    if owner:
        owner.release()
    with group.together("the studies' logs"):
        if speaks:
            display.show()
            _conclude(finisher, standing, display, out, finished)
    return DONE if finished else PREEMPTED, lambda: not at_work(asked, here)


def at_work(asked, here: Process) -> bool:
    """Whether another process of the launch carries out a trial."""
    ledger, this = Ledger(asked.out), this_process()
    return any(claim["job"] == here.job and (claim["host"], claim["pid"]) != (this["host"], this["pid"])
               for study in asked.sweep.studies for claim in ledger.running(study.name).values())


def report_status(asked) -> int:
    """Collect what there is of a sweep, and say where it stands; gives the exit code."""
    sweep, out = asked.sweep, asked.out
    if not os.path.isdir(os.path.join(out, "trials")):
        raise LogError(f"{out}: no trial of a sweep has begun there")
    keep_record(out, sweep)
    way = find(sweep.workload).metrics.get(sweep.objective.partition("/")[2], "min")
    studies = [Settled(sweep, study, 0, 0, way == "min", (), ()) for study in wanted_studies(sweep, asked.only)]
    standing = Standing(studies, Ledger(out))
    display = Progress(standing, asked.terminal)
    display.show()
    _conclude(Finisher(out, standing, display.say), standing, display, out, True)
    return 0


def wanted_studies(sweep: Sweep, only: dict[str, list[str]]) -> list[Study]:
    """The studies that --only names; raises UsageError where there is none such."""
    for word, of_study in (("batch", lambda s: str(s.global_batch)), ("optimizer", lambda s: s.optimizer)):
        known = list(dict.fromkeys(map(of_study, sweep.studies)))
        for value in only.get(word, ()):
            if value not in known:
                raise UsageError(f"--only {word}={value}: the sweep has {', '.join(known)}")
    return [study for study in sweep.studies
            if str(study.global_batch) in only.get("batch", [str(study.global_batch)])
            and study.optimizer in only.get("optimizer", [study.optimizer])]


def keep_record(out: str, sweep: Sweep) -> None:
    """Write OUT/sweep.json; raises UsageError where another sweep is there."""
    path, record = os.path.join(out, "sweep.json"), sweep.record()
    known = _recorded(out)
    if known is not None:
        try:
            check_same(known, sweep)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    if known != json.loads(json.dumps(record)):
        put(path, json.dumps(record, indent=1))


def _recorded(out: str) -> dict | None:
    path = os.path.join(out, "sweep.json")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: cannot be read: {error}") from None


def settle_all(sweep: Sweep, wanted: Sequence[Study], workload: Workload, data: Data, free: dict,
               out: str | None) -> list[Settled]:
    """The studies settled, with a plan for each of their first draws; raises UsageError where one cannot be."""
    studies = [settle_study(sweep, replace(study, layer={**study.layer, **free}), workload, len(data.train), out)
               for study in wanted]
    for settled in studies:
        for number in range(settled.study.trials):
            plan_of(settled, number, workload, len(data.train), len(data.val))
    return studies


def introduction(path: str, out: str, studies: Sequence[Settled], standing: Standing, groups: int, size: int) -> str:
    """What is about to be done."""
    sweep = studies[0].sweep
    done = sum(len(standing.ledger.results(settled.name)) for settled in studies)
    searched = ", ".join(dict.fromkeys(parameter.name for settled in studies for parameter in settled.space))
    aim = (f"steps to {' and '.join(map(str, sweep.targets))}" if sweep.objective == "steps"
           else f"the best {sweep.objective}")
    lines = [f"{path}: {sweep.workload}, {len(studies)} studies, each of {studies[0].study.trials} feasible trials",
             f"  searched    {searched}: for {aim}",
             f"  workers     {groups} group{'s' * (groups > 1)} of {size}",
             f"  folder      {out}" + (f": {done} trials are done already" if done else "")]
    if sweep.prune:
        lines.append(f"  pruning     exact: the {sweep.prune_keep} fewest steps of each study stay what they would be")
    return "\n".join(lines)


def _estimate(studies, sweep, data, group, groups) -> None:
    found = list(estimates(studies, sweep.workload, data, group))
    if group.rank == 0:
        print(table(found, groups))


def _ticks(display: Quiet, finisher: Finisher | None) -> Callable[[], None]:
    def tick() -> None:
        if finisher is not None:
            display.tick()
            finisher.tick()
    return tick


def _conclude(finisher: Finisher, standing: Standing, display: Progress, out: str, finished: bool) -> None:
    written = finisher.end()
    missing = {name: sum(number not in standing.ledger.results(name) for number in standing.wanted(settled))
               for name, settled in standing.studies.items()}
    if any(missing.values()):
        said = ", ".join(f"{count} of {name}" for name, count in missing.items() if count)
        why = "other jobs may be at them, else the same command goes on" if finished else "the same command goes on"
        display.say(f"not done: {said}; {why}")
    if written:
        display.say(f"tuned: {written[0]}\nnext: hvdscale-report {out}")
