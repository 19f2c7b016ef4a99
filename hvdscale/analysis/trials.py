"""Trials read from logs, and which of them are comparable.

    trials = read_trials(read_log("runs/w8.h5"))
    by_workload(trials)   -> {JobKey: (Trial, ...)}: mixed workloads are grouped, never mixed

Runs whose batch changes are a workload of their own, so that a study over batch sizes never takes them in.

A *setting* is everything but the seed that determines a trial's updates, plus the spacing of evaluations. Trials of
one setting that differ only by seed are repeats, as are those of unknown seed. The worker count is not part of a
setting: it does not change the updates. Where a trial changed its worker count partway, only its steps count; its times
are treated as not measured.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..log.check import refuse_unsound
from ..log.nans import count_nans
from ..log.plan_text import plan_at
from ..log.reader import Log, Table
from ..log.schema import PRUNED, UNKNOWN_SEED, Status
from ..plan.batch_schedule import BatchSchedule
from ..plan.scaling import TUNED
from ..plan.shards import fewest_passes
from .grouping import group_by
from .learning import LossCourse, read_courses
from .noise import NoiseSteps, read_noise
from .step_breakdown import StepParts, read_parts

# entries of a plan's problem that older logs lack, and that are null where they do not apply
LATER_FIELDS = ("batch_schedule", "batch_lr_factors", "batch_updates", "plateau")
_ENCODER = json.JSONEncoder(sort_keys=True)
_READ = ("id", "status", "stop_reason", "dataset", "model", "optimizer", "global_batch", "workers", "seed", "plan")

SeedKey = tuple[int, str, int]


def seed_key(seed: int, trial: tuple[str, int]) -> SeedKey:
    """What runs are grouped and paired by: equal for those of one seed, and for no others where it is unknown.

    trial   log and id
    """
    return (seed, *trial) if seed == UNKNOWN_SEED else (seed, "", 0)


@dataclass(frozen=True, order=True)
class JobKey:
    """What two trials of the same job have in common."""

    dataset: str
    model: str
    model_args: str             # JSON; "": none
    optimizer: str
    train_examples: int         # 0: unknown
    batch_schedule: tuple[tuple[int, int], ...] = ()    # (first step, batch); empty where the batch is constant
    version: str = ""           # of the job; "" where there is only one, see versions.py

    @property
    def at_constant_batch(self) -> JobKey:
        """The same job with a batch that does not change."""
        return replace(self, batch_schedule=())

    def __str__(self) -> str:
        batch = f", batch {BatchSchedule.of_pairs(self.batch_schedule)}" if self.batch_schedule else ""
        size = f", {self.train_examples:,} training examples" if self.train_examples else ""
        version = f", version {self.version}" if self.version else ""
        args = json.loads(self.model_args or "{}")
        if isinstance(args, dict):
            args = ", ".join(f"{name}={value}" for name, value in args.items())
        return f"{self.dataset}/{self.model}{f' ({args})' * bool(args)}, {self.optimizer}{size}{batch}{version}"


@dataclass(frozen=True, eq=False)
class Trial:
    """One run, from one log. Arrays have one entry per evaluation, in step order."""

    log: str
    id: int
    status: Status
    stop_reason: str
    workload: JobKey
    global_batch: int
    workers: int                # at its start
    worker_counts: tuple[int, ...]  # of all its process starts
    seed: int                   # UNKNOWN_SEED: see seed_key
    plan: Mapping[str, Any]
    setting: str                # JSON; equal for repeats
    step: np.ndarray            # steps done
    train_seconds: np.ndarray   # NaN: not measured
    metrics: Mapping[str, np.ndarray]   # by split/metric
    timed_steps: int            # in /steps; read only where there is no evaluation after step 0
    timed_seconds: float        # spent in them; NaN: not measured
    step_parts: StepParts | None    # None: its steps were not timed in parts
    noise: NoiseSteps | None        # None: the noise scale was not measured
    tokens: np.ndarray | None = None    # that losses counted up to each evaluation; None: examples were counted
    losses: LossCourse | None = None    # None: too few steps, or not read
    started: float = np.nan             # its first process, in seconds since 1970; NaN: unknown

    @property
    def key(self) -> tuple[str, int]:
        """The log and the id, by which trials are ordered."""
        return self.log, self.id

    @property
    def seed_key(self) -> SeedKey:
        """Equal for trials of one seed, see the function."""
        return seed_key(self.seed, self.key)

    @property
    def target(self) -> str | None:
        """Its plan's target, as text; None: no target."""
        return self.measurement.get("target") or None

    @property
    def sweep(self) -> Mapping[str, Any]:
        """Its place in a metaparameter search: ``plan["sweep"]``; empty where it belongs to none."""
        return self.plan.get("sweep") or {}

    @property
    def branch(self) -> Mapping[str, Any]:
        """Its place among the branches of a run: ``plan["branch"]``; empty where it is none."""
        return self.plan.get("branch") or {}

    @cached_property
    def study(self) -> tuple[JobKey, int, str] | None:
        """Equal for the trials of one metaparameter search, however many it has so far; None: it belongs to none."""
        names = ("study", "space", "objective", "targets", "prune_keep", "seed")
        return self.sweep and (self.workload, self.global_batch,
                               json.dumps([self.sweep.get(name) for name in names])) or None

    @cached_property
    def batches(self) -> BatchSchedule:
        """The global batch of every step."""
        return BatchSchedule.of_problem(self.plan.get("problem") or {}, self.global_batch)

    @property
    def pruned(self) -> bool:
        """Whether its study stopped it."""
        return self.status == Status.INCOMPLETE and is_pruning(self.stop_reason)

    @property
    def measurement(self) -> Mapping[str, Any]:
        """The part of its plan on evaluation and stopping."""
        return self.plan.get("measurement") or {}

    @cached_property
    def nan_counts(self) -> dict[str, int]:
        """The number of evaluations at which a measured metric was NaN, by ``split/metric``."""
        return count_nans(self.metrics, self.measurement)

    def rows_with(self, column: str) -> np.ndarray:
        """The evaluations that measured a metric, by index: a row where it is NaN is no evaluation of it."""
        return np.flatnonzero(~np.isnan(self.metrics[column]))

    @property
    def execution(self) -> Mapping[str, Any]:
        """The part of its plan on workers and devices."""
        return self.plan.get("execution") or {}

    @property
    def crowded(self) -> bool:
        """Whether its host had fewer cores than workers, including the workers of a sweep's other trials."""
        return self.execution.get("local_workers", 0) > self.execution.get("cores", np.inf)

    @cached_property
    def last_step(self) -> int:
        """The last step that its log has."""
        return max(int(self.step[-1]) if len(self.step) else 0, self.timed_steps)

    @property
    def examples_per_second(self) -> float:
        """Over all its steps; NaN where none was timed."""
        seconds = self.timed_seconds if self.timed_steps else self.train_seconds[-1] if len(self.step) else np.nan
        return self.batches.examples_before(self.last_step) / seconds if seconds > 0 else np.nan

    def without_times(self) -> Trial:
        """The trial as if nothing had been timed."""
        return replace(self, train_seconds=np.full(len(self.step), np.nan), timed_seconds=np.nan, step_parts=None)

    def step_seconds_by_batch(self) -> dict[int, float]:
        """The mean step at each of its batches; where the batch changes, between the evaluations at each, if two."""
        if self.batches.is_constant:
            return {self.global_batch: self.global_batch / self.examples_per_second}
        spent: dict[int, tuple[float, float]] = {}
        for start, end, batch in self.batches.pieces():
            inside = np.flatnonzero((self.step >= start) & (self.step <= end) & np.isfinite(self.train_seconds))
            if len(inside) > 1:
                steps, seconds = (float(np.ptp(values[inside])) for values in (self.step, self.train_seconds))
                before = spent.get(batch, (0.0, 0.0))
                spent[batch] = before[0] + steps, before[1] + seconds
        return {batch: seconds / steps for batch, (steps, seconds) in spent.items() if seconds > 0}

    def passes_at(self, batch: int) -> int:
        """Passes of a worker over a step of one of its batches."""
        accumulate = int(self.execution.get("accumulate") or 1)
        if batch == self.global_batch:
            return accumulate
        ghost_batch = self.plan["problem"].get("ghost_batch") or batch
        most = self.execution.get("local_batch") or batch
        return fewest_passes(batch, ghost_batch, self.workers, most, accumulate)


AsVersion = Callable[[JobKey, Mapping[str, Any]], JobKey]      # a workload as that of a trial of this plan


def only_version(workload: JobKey, plan: Mapping[str, Any]) -> JobKey:
    """The workload, where versions of its job are not kept apart."""
    return workload


def read_trials(log: Log, as_version: AsVersion = only_version) -> list[Trial]:
    """Every trial of a log, by id.

    as_version  see versions.py; by default runs of one name are of one workload
    Raises LogError where the rows contradict each other, or a plan's entries are of the wrong type.
    """
    refuse_unsound(log)
    table = log.trials
    ids = table["id"]
    evaluations = _Slices(log.evaluations, ids, by_step=True)
    values = {name: evaluations.column(name) for name in log.evaluations.columns if "/" in name}
    step, seconds = evaluations.column("step"), evaluations.column("train_seconds")
    timed = _count_timed_steps(log, [at.stop > at.start and step[at.stop - 1] > 0 for at in evaluations.rows])
    parts, noise, losses = read_parts(log), read_noise(log), read_courses(log)
    tokens = _count_tokens(log, [step[at] for at in evaluations.rows])
    starts = _Slices(log.restarts, ids)
    workers, times = starts.column("workers").tolist(), starts.column("time")
    rows = _Rows(log.path, table, as_version)
    return [rows.trial(row, tuple(sorted(set(workers[starts.rows[row]]))), timed[row], parts,
                       noise, losses, step[at], seconds[at],
                       {name: column[at] for name, column in values.items()}, tokens[row],
                       float(times[starts.rows[row]].min(initial=np.inf)))
            for row in np.argsort(ids, kind="stable").tolist() for at in [evaluations.rows[row]]]


def by_workload(trials: Iterable[Trial]) -> dict[JobKey, tuple[Trial, ...]]:
    """Trials grouped by workload; workloads in order of name, trials by log and id."""
    groups = group_by(sorted(trials, key=lambda trial: trial.key), lambda trial: trial.workload)
    return {workload: tuple(groups[workload]) for workload in sorted(groups)}


class _Rows:
    """The rows of /trials, to be converted to trials."""

    def __init__(self, path: str, table: Table, as_version: AsVersion) -> None:
        self.path, self.as_version = path, as_version
        self.metaparameters = [name for name in table.columns if name.startswith("metaparameters/")]
        self.columns = {name: table[name].tolist() for name in (*_READ, *self.metaparameters)}
        self.workloads: dict[JobKey, JobKey] = {}

    def trial(self, row: int, worker_counts: tuple[int, ...], timed: tuple[int, float], parts: Mapping[int, StepParts],
              noise: Mapping[int, NoiseSteps], losses: Mapping[int, LossCourse], step: np.ndarray,
              train_seconds: np.ndarray, metrics: Mapping[str, np.ndarray], tokens: np.ndarray | None,
              started: float) -> Trial:
        """The trial of one row; ``parts``, ``noise`` and ``losses`` are those of all trials, by id."""
        number, status, reason, dataset, model, optimizer, batch, workers, seed, text = (
            self.columns[name][row] for name in _READ)
        plan = plan_at(self.path, number, text)
        problem = {name: value for name, value in (plan.get("problem") or {}).items()
                   if value is not None or name not in LATER_FIELDS}
        workload = self.as_version(workload_of(dataset, model, optimizer, plan), plan)
        workload = self.workloads.setdefault(workload, workload)
        problem.pop("seed", None)
        if plan.get("sweep"):
            problem |= {name: value for name, value in _as_tuned(problem, batch).items() if name in problem}
        if not problem.keys() - {"train_examples"}:     # an imported log: only its metaparameters are known
            problem |= {name: self.columns[name][row] for name in self.metaparameters}
        grid = {name: value for name, value in (plan.get("measurement") or {}).items()
                if name == "eval_every_examples" and value is not None}
        eval_every = (plan.get("measurement") or {}).get("eval_every")
        setting = _json({"problem": problem, "eval_every": eval_every, "global_batch": batch, **grid})
        trial = Trial(self.path, number, Status(status), reason, workload, batch, workers, worker_counts, seed, plan,
                      setting, step, train_seconds, metrics, *timed, parts.get(number), noise.get(number), tokens,
                      losses.get(number), started if np.isfinite(started) else np.nan)
        return trial if len(worker_counts) < 2 else trial.without_times()


def workload_of(dataset: str, model: str, optimizer: str, plan: Mapping[str, Any]) -> JobKey:
    """The workload of a trial, without the model arguments that its study searches."""
    problem = plan.get("problem") or {}
    return JobKey(dataset, model, _json(_fixed_args(problem.get("model_args"), plan.get("sweep"))), optimizer,
                  int(problem.get("train_examples") or 0), tuple(map(tuple, problem.get("batch_schedule") or ())))


def parameters_of(plan: Mapping[str, Any]) -> int:
    """The number of the model's parameters; 0: not known."""
    model = (plan.get("job") or {}).get("model")
    count = model.get("count") if isinstance(model, Mapping) else None
    return count if isinstance(count, int) else 0


def is_pruning(stop_reason: str) -> bool:
    """Whether an INCOMPLETE trial's stop reason is that its study pruned it."""
    return stop_reason.startswith(PRUNED)


def _as_tuned(problem: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The learning-rate entries of a plan under the rule ``tuned`` with the same updates as this trial of a study."""
    return {"lr_rule": TUNED, "base_lr": problem.get("peak_lr"), "base_batch": batch, "lr_factor": 1.0}


def _fixed_args(model_args: Any, sweep: Mapping[str, Any] | None) -> Any:
    """The model's arguments without those that a study searches."""
    if not sweep or not isinstance(model_args, Mapping):
        return model_args
    searched = {parameter["name"] for parameter in sweep["space"]}
    return {name: value for name, value in model_args.items() if f"model_args.{name}" not in searched}


def _json(value: Any) -> str:
    return _ENCODER.encode(value) if value else ""


def _count_timed_steps(log: Log, evaluated: Sequence[bool]) -> list[tuple[int, float]]:
    """(steps, seconds) in /steps of each trial that was not evaluated after step 0; (0, 0.0) for the others."""
    if all(evaluated) or not log.steps.rows:
        return [(0, 0.0)] * len(evaluated)
    slices = _Slices(log.steps, log.trials["id"])
    step, seconds = slices.column("step"), slices.column("step_seconds")
    return [(0, 0.0) if known else (int(np.max(step[rows], initial=0)), float(np.sum(seconds[rows])))
            for known, rows in zip(evaluated, slices.rows)]


def _count_tokens(log: Log, evaluated: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """The tokens in each trial's steps up to these; None where a step lacks them."""
    if not log.steps.rows or "tokens" not in log.steps.columns:
        return [None] * len(evaluated)
    slices, found = _Slices(log.steps, log.trials["id"], by_step=True), []
    step, tokens = slices.column("step"), slices.column("tokens")
    for rows, at in zip(slices.rows, evaluated):
        seen = np.concatenate([[0.0], np.cumsum(tokens[rows])])
        whole = bool(np.array_equal(step[rows], np.arange(1, len(seen)))) and np.max(at, initial=0) < len(seen)
        found.append(seen[at] if whole and np.isfinite(seen[-1]) else None)
    return found


class _Slices:
    """A table's rows by trial: ``column(name)[rows[i]]`` are those of ids[i]."""

    def __init__(self, table: Table, ids: np.ndarray, by_step: bool = False) -> None:
        self.table = table
        trial = table["trial"]
        self.order = np.lexsort((table["step"], trial)) if by_step else np.argsort(trial, kind="stable")
        ordered = trial[self.order]
        self.rows = [slice(*ends) for ends in zip(np.searchsorted(ordered, ids, "left"),
                                                  np.searchsorted(ordered, ids, "right"))]

    def column(self, name: str) -> np.ndarray:
        return self.table[name][self.order]
