"""Trials out of logs, and which of them may be compared.

    trials = read_trials(read_log("runs/w8.h5"))
    by_workload(trials)   -> {Workload: (Trial, ...)}: mixed workloads are grouped, never mixed

A *setting* is all that determines a trial's course but its seed, with the spacing of evaluations; trials of one setting
that differ by seed alone are repeats. The worker count is no part of it: it does not change the updates. A trial that
changed its worker count on the way tells of steps alone: its times, of no one count, are as if not measured.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..log.check import refuse_unsound
from ..log.nans import count_nans
from ..log.plan_text import plan_at, read_plan
from ..log.schema import PRUNED, Status
from ..plan.scaling import TUNED
from .noise import NoiseSteps, read_noise
from .step_breakdown import StepParts, read_parts

_ENCODER = json.JSONEncoder(sort_keys=True)
_READ = ("id", "status", "stop_reason", "dataset", "model", "optimizer", "global_batch", "workers", "seed", "plan")


@dataclass(frozen=True, order=True)
class Workload:
    """What must agree for two trials to be about the same job."""

    dataset: str
    model: str
    model_args: str             # JSON; "" where there are none
    optimizer: str
    train_examples: int         # 0: not in the log

    def __str__(self):
        size = f", {self.train_examples:,} training examples" if self.train_examples else ""
        args = json.loads(self.model_args or "{}")
        if isinstance(args, dict):
            args = ", ".join(f"{name}={value}" for name, value in args.items())
        return f"{self.dataset}/{self.model}{f' ({args})' * bool(args)}, {self.optimizer}{size}"


@dataclass(frozen=True, eq=False)
class Trial:
    """One run, from one log. Arrays have one entry an evaluation, in step order."""

    log: str
    id: int
    status: Status
    stop_reason: str
    workload: Workload
    global_batch: int
    workers: int                # at its start
    worker_counts: tuple[int, ...]  # of all its process starts
    seed: int
    plan: Mapping
    setting: str                # JSON; equal for repeats
    step: np.ndarray            # steps done
    train_seconds: np.ndarray   # NaN: not measured
    metrics: Mapping            # split/metric -> values
    timed_steps: int            # steps in /steps, read only where there is no evaluation after step 0
    timed_seconds: float        # spent in them; NaN: not measured
    step_parts: StepParts | None    # None: its steps were not timed in parts
    noise: NoiseSteps | None        # None: the noise scale was not measured

    @property
    def key(self):
        """Trials are ordered by log, then by id."""
        return self.log, self.id

    @property
    def target(self):
        """The target of its plan, as text; None where it had none."""
        return self.measurement.get("target") or None

    @property
    def sweep(self) -> Mapping:
        """Its place in a study of metaparameters: ``plan["sweep"]``; empty where it is in none."""
        return self.plan.get("sweep") or {}

    @cached_property
    def study(self) -> tuple | None:
        """Equal for the trials of one study of metaparameters, of which there may come to be more; None: it is in none.
        """
        names = ("study", "space", "objective", "targets", "prune_keep", "seed")
        return self.sweep and (self.workload, self.global_batch,
                               json.dumps([self.sweep.get(name) for name in names])) or None

    @property
    def pruned(self) -> bool:
        """Whether its study stopped it."""
        return self.status == Status.INCOMPLETE and tells_of_pruning(self.stop_reason)

    @property
    def measurement(self):
        return self.plan.get("measurement") or {}

    @cached_property
    def nan_counts(self) -> dict[str, int]:
        """At how many of its evaluations a metric that was measured was NaN, by ``split/metric``."""
        return count_nans(self.metrics, self.measurement)

    @property
    def execution(self):
        return self.plan.get("execution") or {}

    @property
    def crowded(self) -> bool:
        """Whether its host had fewer cores than workers, those of other trials of a sweep included."""
        return self.execution.get("local_workers", 0) > self.execution.get("cores", np.inf)

    @cached_property
    def last_step(self):
        """Steps after which the trial was last seen."""
        return max(int(self.step[-1]) if len(self.step) else 0, self.timed_steps)

    @property
    def examples_per_second(self):
        """Over all its steps; NaN where no time was taken."""
        seconds = self.timed_seconds if self.timed_steps else self.train_seconds[-1] if len(self.step) else np.nan
        return self.global_batch * self.last_step / seconds if seconds > 0 else np.nan


def read_trials(log) -> list[Trial]:
    """Every trial of a log, by id.

    log  what log.reader.read_log gives: .path, and .trials, .evaluations, .steps as mappings of columns with .rows
    Raises LogError where the rows contradict each other, or a plan has entries of other types than it is written with.
    """
    refuse_unsound(log)
    table = log.trials
    ids = table["id"]
    evaluations = _Slices(log.evaluations, ids, by_step=True)
    values = {name: evaluations.column(name) for name in log.evaluations.columns if "/" in name}
    step, seconds = evaluations.column("step"), evaluations.column("train_seconds")
    timed = _timed(log, [at.stop > at.start and step[at.stop - 1] > 0 for at in evaluations.rows])
    parts, noise = read_parts(log), read_noise(log)
    starts = _Slices(log.restarts, ids)
    workers = starts.column("workers").tolist()
    rows = _Rows(log.path, table)
    return [rows.trial(row, tuple(sorted(set(workers[starts.rows[row]]))), timed[row], parts,
                       noise, step[at], seconds[at], {name: column[at] for name, column in values.items()})
            for row in np.argsort(ids, kind="stable").tolist() for at in [evaluations.rows[row]]]


def by_workload(trials) -> dict[Workload, tuple[Trial, ...]]:
    """Trials grouped by workload; workloads in order of name, trials by log and id."""
    groups = {}
    for trial in sorted(trials, key=lambda trial: trial.key):
        groups.setdefault(trial.workload, []).append(trial)
    return {workload: tuple(groups[workload]) for workload in sorted(groups)}


class _Rows:
    """The rows of /trials, made into trials."""

    def __init__(self, path, table):
        self.path = path
        self.metaparameters = [name for name in table.columns if name.startswith("metaparameters/")]
        self.columns = {name: table[name].tolist() for name in (*_READ, *self.metaparameters)}
        self.workloads = {}

    def trial(self, row, worker_counts, timed, parts, noise, *measured) -> Trial:
        """One row's trial; ``parts`` and ``noise`` of all of them."""
        number, status, reason, dataset, model, optimizer, batch, workers, seed, text = (
            self.columns[name][row] for name in _READ)
        plan = plan_at(self.path, number, text)
        problem = dict(plan.get("problem") or {})
        workload = workload_of(dataset, model, optimizer, plan)
        workload = self.workloads.setdefault(workload, workload)
        problem.pop("seed", None)
        if plan.get("sweep"):
            problem |= {name: value for name, value in _as_tuned(problem, batch).items() if name in problem}
        if not problem.keys() - {"train_examples"}:     # from elsewhere: its metaparameters are all that is known
            problem |= {name: self.columns[name][row] for name in self.metaparameters}
        eval_every = (plan.get("measurement") or {}).get("eval_every")
        setting = _json({"problem": problem, "eval_every": eval_every, "global_batch": batch})
        trial = Trial(self.path, number, Status(status), reason, workload, batch, workers, worker_counts, seed, plan,
                      setting, *measured, *timed, parts.get(number), noise.get(number))
        return trial if len(worker_counts) < 2 else replace(
            trial, train_seconds=np.full(len(trial.step), np.nan), timed_seconds=np.nan, step_parts=None)


def workload_of(dataset: str, model: str, optimizer: str, plan: Mapping) -> Workload:
    """The workload of a trial: the model's arguments that a study searches are no part of it."""
    problem = plan.get("problem") or {}
    return Workload(dataset, model, _json(_fixed_args(problem.get("model_args"), plan.get("sweep"))), optimizer,
                    int(problem.get("train_examples") or 0))


def tells_of_pruning(stop_reason: str) -> bool:
    """Whether an INCOMPLETE trial's reason says that its study stopped it."""
    return stop_reason.startswith(PRUNED)


def _as_tuned(problem, batch):
    """What a plan under the rule ``tuned`` says of the rate where it makes the same updates as this one of a study."""
    return {"lr_rule": TUNED, "base_lr": problem.get("peak_lr"), "base_batch": batch, "lr_factor": 1.0}


def _fixed_args(model_args, sweep):
    """The model's arguments but for those that a study searches."""
    if not sweep or not isinstance(model_args, Mapping):
        return model_args
    searched = {parameter["name"] for parameter in sweep["space"]}
    return {name: value for name, value in model_args.items() if f"model_args.{name}" not in searched}


def parse_plan(text: str) -> Mapping:
    """The plan of a trial's row; empty where the text is none. LogError where an entry is not what it should be."""
    return read_plan(text)


def _json(value):
    return _ENCODER.encode(value) if value else ""


def _timed(log, evaluated):
    """(steps, seconds) in /steps of each trial that was not evaluated after step 0, else (0, 0.0)."""
    if all(evaluated) or not log.steps.rows:
        return [(0, 0.0)] * len(evaluated)
    slices = _Slices(log.steps, log.trials["id"])
    step, seconds = slices.column("step"), slices.column("step_seconds")
    return [(0, 0.0) if known else (int(np.max(step[rows], initial=0)), float(np.sum(seconds[rows])))
            for known, rows in zip(evaluated, slices.rows)]


class _Slices:
    """A table's rows by trial: ``column(name)[rows[i]]`` is what belongs to ids[i]."""

    def __init__(self, table, ids, by_step=False):
        self.table = table
        trial = table["trial"]
        self.order = np.lexsort((table["step"], trial)) if by_step else np.argsort(trial, kind="stable")
        ordered = trial[self.order]
        self.rows = [slice(*ends) for ends in zip(np.searchsorted(ordered, ids, "left"),
                                                  np.searchsorted(ordered, ids, "right"))]

    def column(self, name):
        return self.table[name][self.order]
