"""Branches of a run, one after the other on one group of workers; see plan/branches.py.

    OUT/base.h5                 the base run, and its checkpoints in OUT/checkpoints
    OUT/at500-k4-r2.h5          the branch at step 500, 4 times the batch, with the second order of the data
    OUT/branches.h5             all branches, once they have ended

A branch with a finished log is not repeated, so an interrupted command resumes. The base run resumes from its newest
checkpoint, a branch from the one that it starts from.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace

from ..analysis.branches import DEFAULT_TOLERANCE, NO_RAMP, branched_of, ramp_of, smoothed
from ..analysis.trials import read_trials
from ..errors import CheckpointError, ExitCode, LogError, PlanError
from ..formatting.numbers import counted, number
from ..formatting.screen import say
from ..formatting.toml import value_as_toml
from ..log.files import refuse_taken
from ..log.merge import merge
from ..log.reader import read_log
from ..log.schema import Status
from ..plan.branches import (BranchRequest, Branch, Origin, branch_name, branches_at, layers_of, metric_of,
                             refuse_other_problem, rule_of, steps_at, tolerance_of)
from ..plan.job import refuse_changes
from ..plan.plan import Plan, Problem
from ..plan.scaling import TUNED
from ..plan.schedule import FALLING
from ..plan.settings import Settings, tuned_for
from ..plan.settle import Place, settle
from ..system.files import write_whole
from ..system.outputs import Kind, refuse_foreign
from ..workers.group import Workers
from ..workloads import find
from .checkpoint import Checkpoints, FolderCheckpoints, listed, read
from .display import NoDisplay
from .loop import train
from .outputs import open_display, open_folder, open_run_log
from .prepare import Job, current_job, prepare, read_data, settings_of
from .resume import find_start, shared
from .series import FINISHED, INSTEAD, refuse_another
from .snapshot import Outcome, RunState, Start

RESUMES = "stopped by a signal; the same command resumes here"
ALL = "branches"                # the name of the log of all of them
KEPT = 1_000_000                # checkpoints of the base run: all
SCHEDULE = "schedule.toml"
OF_GROUPS = ("betas", "eps", "momentum", "weight_decay")        # of a parameter group, as branches set them

Ended = tuple[Mapping, int, Mapping]            # a branch's record, status and job


def refuse_others(out: str) -> None:
    """Raise an error where a file of the folder that a command would replace is none of its own."""
    for name in ("base", ALL):
        refuse_taken(os.path.join(out, f"{name}.h5"))
    refuse_foreign(os.path.join(out, SCHEDULE),
                   Kind("a file of hvdscale-branch", lambda head: b"\nbatch_schedule = " in head))


class Branching:
    """The base run and its branches. layers: the strongest last; source: the folder of another run's checkpoints, which
    replaces the base run; shard: (i, n), every n-th branch, from the i-th"""

    def __init__(self, name: str, layers: list[dict], asked: BranchRequest, out: str, source: str | None,
                 shard: tuple[int, int], overwrite: bool, workers: Workers):
        self.name, self.layers, self.asked, self.out, self.source = name, layers, asked, out, source
        self.shard, self.overwrite, self.workers = shard, overwrite, workers
        self.checkpoints = source or os.path.join(out, "checkpoints")
        self.accepted: dict[str, str] = {}

    def _log(self, name: str) -> str:
        return os.path.join(self.out, f"{name}.h5")

    def carry_out(self, dry_run: bool = False) -> int:
        """Run what is left, or only foresee it; returns the exit code, the same on all ranks."""
        with self.workers.together("the settings"):
            self.workload = find(self.name)
            self.settings = settings_of(self.workload, self.layers)
            refuse_others(self.out)
        with self.workers.together("the data"):
            self.data = read_data(self.workload, self.settings)
            self.job = current_job(self.name, self.workload, self.data, self.settings.model_args)
        planned: list[Origin] = []
        if self.source is None:
            job = self._prepare_base()
            if dry_run:
                open_display(job, "none: a dry run", self.workers)
                planned = [Origin(job.plan, "", step) for step in self._steps]
            elif (code := self._run_base(job)) != ExitCode.DONE:
                if code == ExitCode.PREEMPTED:
                    self._say(RESUMES)
                return code
        found: list[Branch] = []
        with self.workers.together("the checkpoints"):
            if self.workers.rank == 0:
                metric = metric_of(self.asked, self.workload.metrics)
                tolerance = tolerance_of(self.asked, self.workload.metrics, DEFAULT_TOLERANCE)
                for origin in planned or self._origins():
                    rule = rule_of(self.asked, origin.problem.optimizer)
                    found += branches_at(self.asked, origin, rule, metric, tolerance)
        found = self.workers.gather(found, "branches")[0]
        with self.workers.together("the branches"):
            for path, then in {branch.origin.path: branch.origin.job for branch in found}.items():
                self.accepted |= refuse_changes(then, self.job, self.settings.accept_changes, path, INSTEAD)
            for branch in found:            # what any would raise, before the first one
                if branch.order == 1:
                    self._settled(settings_of(self.workload, self._layers(branch)))
        if not dry_run:
            return self._run_all(found)
        self._introduce(found, len(found))
        examples = sum(branch.record["length"] for branch in found)
        steps = dict.fromkeys(branch.origin.step for branch in found)
        self._say(f"  at steps {', '.join(map(str, steps))}: {examples:,} training examples in all, "
                  f"beside {counted(self.asked.evaluations, 'evaluation')} of each")
        return ExitCode.DONE

    def _say(self, text: str) -> None:
        if self.workers.rank == 0:
            say(text)

    # the base run

    def _run_base(self, job: Job) -> int:
        with open_folder(job, self.workers) as folder:
            start = find_start(job.settings, job.plan, self.workers)
            if start.ended:
                return start.ended.exit_code
            return self._train(job, start, {}, lambda run_log, display: FolderCheckpoints(
                start, job.plan, folder, run_log, display, self.workers, self._steps)).stop.exit_code

    def _prepare_base(self) -> Job:
        """The job that ends at the last checkpoint, with the schedule of the user's own budget."""
        with self.workers.together("the base run"):
            plan = self._settled(self.settings)
            self._steps = steps_at(self.asked, plan.budget_steps)
            own = dict(steps=max(self._steps), target="none", log=self._log("base"), resume="auto",
                       checkpoint=self.checkpoints, keep_checkpoints=KEPT)
            if plan.decay in FALLING:
                own["decay_steps"] = plan.decay_steps
            if plan.plateau:
                own["decay_metric"] = plan.plateau["metric"]
            if self.overwrite:
                own |= {"overwrite": True, "resume": "none"}
        return prepare(self.name, [*self.layers, own], self.workers, self.data)

    def _settled(self, settings: Settings) -> Plan:
        plan = settle(settings, self.workload, len(self.data.train), len(self.data.val), Place(self.workers.size),
                      self.data.train_tokens)
        if plan.local_steps:
            raise PlanError("branches are of a synchronous run, and sync_every is set; leave it out")
        return plan

    def _train(self, job: Job, start: Start, more: Mapping, checkpoints: Callable[..., Checkpoints]) -> Outcome:
        """Train a job with its log; ``checkpoints`` makes the loop's, from the log and the display."""
        with open_run_log(job, self.workers, start, more) as run_log:
            display = NoDisplay() if more else open_display(job, run_log.path, self.workers, start)
            kept = checkpoints(run_log, display)
            outcome = train(job, run_log, display, self.workers, kept)
            run_log.close()
        kept.end(outcome.stop)
        if run_log.failure is not None:
            raise LogError(str(run_log.failure))
        return outcome

    # its branches

    def _origins(self) -> list[Origin]:
        paths = dict(listed(self.checkpoints))
        steps = self.asked.at or (sorted(paths) if self.source else self._steps)
        for step in steps:
            if step not in paths:
                raise CheckpointError(f"{self.checkpoints}: has no checkpoint of step {step}; there are "
                                      f"{', '.join(map(str, sorted(paths))) or 'none'}")
        return [origin_of(paths[step]) for step in steps]

    def _layers(self, branch: Branch) -> list[dict]:
        layers = self.layers
        if self.settings.lr_rule == TUNED:
            batch = branch.origin.problem.global_batch
            layers = [tuned_for(self.settings.metaparameters, self.workload.name, batch), *layers]
        return layers_of(branch, layers, self.asked.evaluations)

    def _run_all(self, found: list[Branch]) -> int:
        if own := found[self.shard[0]::self.shard[1]]:
            self._introduce(own, len(found))
        merged: dict[str, Ended] = {}                   # those in the log of all, which are not run again
        if not (self.overwrite or self.workers.rank) and os.path.exists(self._log(ALL)):
            merged = _ended_in(self._log(ALL))
        for at, branch in enumerate(own, 1):
            with self.workers.together("the logs of branches"):
                ended = self.workers.rank == 0 and not self.overwrite and self._ended(branch, merged)
            if self.workers.gather(ended, "ended")[0]:
                continue
            outcome = self._run(branch)
            if outcome.stop.exit_code == ExitCode.PREEMPTED:
                self._say(RESUMES)
                return ExitCode.PREEMPTED
            self._say(f"[{at}/{len(own)}] step {branch.origin.step}, batch {branch.factor * branch.origin.batch} "
                      f"(k = {branch.factor}), order {branch.order}: {self._result(branch, outcome)}")
        with self.workers.together("the log of all branches"):
            if self.workers.rank == 0:
                paths = [self._log(branch.name) for branch in found if branch.name not in merged]
                if paths and all(self._ended(branch, merged) for branch in found):   # another shard's may be to come
                    merge([*([self._log(ALL)] if merged else []), *paths], self._log(ALL), overwrite=True)
                    for path in paths:
                        os.unlink(path)
                if os.path.exists(self._log(ALL)):
                    self._propose()
        self._say(f"next: hvdscale-report {self.out}")
        return ExitCode.DONE

    def _propose(self) -> None:
        """Say which growing batch the branches, which have all ended, allow, and write it as settings."""
        with read_log(self._log(ALL)) as log:
            runs = branched_of(read_trials(log))
        for run in runs:
            ramp, path = ramp_of(run), os.path.join(self.out, SCHEDULE)
            if ramp is None:
                self._say(NO_RAMP)
                continue
            write_whole(path, f"# {ramp}\nbatch_schedule = {value_as_toml(ramp.batches.pairs)}\n"
                              f"lr_rule = {value_as_toml(run.rule)}\n")
            self._say(f"{ramp}: hvdscale-train {self.name} --config {path}")

    def _introduce(self, own: list[Branch], count: int) -> None:
        record = own[0].record
        whole = f" of {count}" if len(own) < count else ""
        self._say(f"branches: {counted(len(own), 'branch', 'branches')}{whole}, {record['length']:,} examples each, at "
                  f"{', '.join(map(str, self.asked.factors))} times batch {record['base_batch']}; rate by the rule "
                  f"{record['rule']}; {record['metric']} within {record['tolerance']}")

    def _result(self, branch: Branch, outcome: Outcome) -> str:
        if outcome.stop.status == Status.INFEASIBLE:
            return outcome.stop.reason
        metric = branch.record["metric"]
        with read_log(self._log(branch.name)) as log:
            values = log.evaluations[metric][log.evaluations["step"] > 0]
        return f"{metric} {number(smoothed(values), 4)}"

    def _ended(self, branch: Branch, merged: Mapping[str, Ended]) -> bool:
        path, found = self._log(ALL), merged.get(branch.name)
        if found is None:
            path = self._log(branch.name)
            with contextlib.suppress(LogError, KeyError, ValueError):
                found = next(iter(_ended_in(path).values()), None)
        if found is None:
            return False
        record, status, job = found
        refuse_another("branch", path, {name: record.get(name) for name in branch.record}, branch.record)
        self.accepted |= refuse_changes(job, self.job, self.settings.accept_changes, path, INSTEAD)
        return status in FINISHED

    def _run(self, branch: Branch) -> Outcome:
        with self.workers.together("the settings"):
            layers = [*self._layers(branch),
                      {"log": self._log(branch.name), "overwrite": True, "accepted": self.accepted}]
        job = prepare(self.name, layers, self.workers, self.data)
        with self.workers.together("the checkpoint"):
            problem = json.loads(json.dumps(job.plan.as_record({})))["problem"]
            refuse_other_problem(problem, json.loads(json.dumps(asdict(branch.origin.problem))))
            start = Start()
            if self.workers.rank == 0:
                state, own = read(branch.origin.path), job.optimizer.state_dict()["param_groups"]
                groups = [{**group, **{name: mine[name] for name in OF_GROUPS if name in mine}}
                          for group, mine in zip(state["optimizer"]["param_groups"], own)]
                start.state = {**state, "optimizer": {**state["optimizer"], "param_groups": groups},
                               "progress": asdict(RunState())}
        start = shared(start, self.workers)
        return self._train(job, start, {"branch": dict(branch.record)}, lambda *_: Checkpoints(start))


def _ended_in(path: str) -> dict[str, Ended]:
    with read_log(path) as log:
        return {branch_name(plan["branch"]): (plan["branch"], status, plan.get("job") or {})
                for status, plan in zip(log.trials["status"], map(json.loads, log.trials["plan"]))}


def origin_of(path: str) -> Origin:
    """What branches need to know of a checkpoint; raises CheckpointError."""
    state = read(path)
    plan = json.loads(state["plan"])
    problem = plan["problem"]
    planned = Problem(**{field.name: _as_planned(problem.get(field.name)) for field in fields(Problem)})
    schedule = planned.schedule.after(state["progress"].get("followed", ()))
    return Origin(replace(planned, decay_at=schedule.decay_at), state["log"]["id"], state["progress"]["steps"],
                  plan.get("job") or {}, path)


def _as_planned(value):
    return tuple(map(_as_planned, value)) if isinstance(value, list) else value


def layers_of_run(folder: str) -> tuple[str, dict]:
    """The workload and the settings of the run that wrote the checkpoints in a folder, from its log."""
    if not (there := listed(folder)):
        raise CheckpointError(f"{folder}: has no checkpoint to branch from")
    with read_log(read(there[0][1])["log"]["path"]) as log:
        asked = dict(json.loads(log.trials["plan"][-1])["asked"])
    asked.pop("accept_changes", None)           # what that run accepted
    return asked.pop("workload"), asked
