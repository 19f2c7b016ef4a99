"""Trials read from logs, and which of them are comparable: by_workload groups them and never mixes two workloads.

Runs whose batch changes are a workload of their own, so that a study over batch sizes never takes them in.

A *setting* is everything but the seed that determines a trial's updates, plus the spacing of evaluations. Trials of one
setting that differ only by seed are repeats, as are those of unknown seed, but not other programs' runs of which
nothing is known: each has its own. The worker count is not part of a setting: it does not change the updates. Where a
trial changed its worker count partway, only its steps count; its times are treated as not measured."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..log.check import refuse_unsound
from ..log.reader import Log
from ..log.schema import UNKNOWN_SEED, Status
from ..plan.batch_schedule import BatchSchedule
from ..plan.scaling import TUNED
from ..plan.shards import fewest_passes
from ..system.cores import LOST
from .grouping import group_by, rows_of_each
from .jobs import ONE_VERSION, JobKey, Versions, as_json_text
from .noise import NoiseSteps, read_noise
from .step_breakdown import LONG, LossCourse, StepParts, read_parts, read_steps
from .studies import METAPARAMETER, Evaluations, Kept, SeedKey, TrialRows, seed_key

NO_ROWS = np.empty(0, np.int64)
Sync = tuple[int, int]      # replicas M, and the steps H between their synchronizations
EVERY_STEP: Sync = 1, 0     # of synchronous training
# entries of a plan's problem that older logs lack, and that are null where they do not apply
LATER_FIELDS = ("batch_schedule", "batch_lr_factors", "batch_updates", "plateau", "exact")


def _part_of_plan(name: str) -> Any:
    def read(trial: Trial) -> Mapping[str, Any]:
        return trial.plan.get(name) or {}
    return property(read)


@dataclass(frozen=True, eq=False)
class Trial:
    """One run, from one log. Arrays have one entry per evaluation, in step order."""

    log: str
    id: int
    status: Status
    pruned: bool                # INCOMPLETE, as its search stopped it
    cut_short: bool             # INCOMPLETE in its log, and counts as far as it was evaluated
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
    step_parts: StepParts | None    # None: its steps were not timed in parts
    noise: NoiseSteps | None        # None: the noise scale was not measured
    timed_steps: int = 0        # in /steps; read only where there is no evaluation after step 0
    timed_seconds: float = 0.0  # spent in them; NaN: not measured
    tokens: np.ndarray | None = None    # that losses counted up to each evaluation; None: examples were counted
    losses: LossCourse | None = None    # None: too few steps, or not read
    started: float = np.nan             # its first process, in seconds since 1970; NaN: unknown
    slowing: float = np.nan             # its mean step over that of its first ones; NaN: too short to tell
    waited: float = 0.0                 # the share of its steps in which a worker waited for a core that others had

    # parts of its plan; empty where it has none
    problem = _part_of_plan("problem")
    execution = _part_of_plan("execution")
    measurement = _part_of_plan("measurement")
    measured = _part_of_plan("measured")        # beside steps and times; see analysis/timings.py
    sweep = _part_of_plan("sweep")              # its place in a metaparameter search
    branch = _part_of_plan("branch")            # its place among the branches of a run

    @property
    def key(self) -> tuple[str, int]:
        return self.log, self.id

    @property
    def seed_key(self) -> SeedKey:
        return seed_key(self.seed, self.key)

    @property
    def target(self) -> str | None:
        """Its plan's target, as text; None: no target."""
        return self.measurement.get("target") or None

    @cached_property
    def study(self) -> tuple[JobKey, int, str] | None:
        """Equal for the trials of one metaparameter search, however many it has so far; None: it belongs to none."""
        names = ("study", "space", "objective", "targets", "prune_keep", "seed")
        return self.sweep and (self.workload, self.global_batch,
                               json.dumps([self.sweep.get(name) for name in names])) or None

    @cached_property
    def batches(self) -> BatchSchedule:
        return BatchSchedule.of_problem(self.problem, self.global_batch)

    @property
    def sync(self) -> Sync:
        found = self.problem.get("local_steps")
        return (found["replicas"], found["sync_every"]) if found else EVERY_STEP

    def rows_with(self, column: str) -> np.ndarray:
        """The evaluations that measured a metric, by index: a row where it is NaN is no evaluation of it."""
        return np.flatnonzero(~np.isnan(self.metrics[column]))

    @property
    def crowded(self) -> bool:
        """Whether its host had fewer cores than workers, a sweep's other trials included, or they were kept busy."""
        return self.lacked_cores or self.without_core > LOST

    @property
    def lacked_cores(self) -> bool:
        return self.execution.get("local_workers", 0) > self.execution.get("cores", np.inf)

    @property
    def without_core(self) -> float:
        """The share of its time in which the rank that fared worst waited for a core; 0 where that is unknown."""
        return max([self.waited, *(self.measured.get("without_core") or [])])

    @cached_property
    def last_step(self) -> int:
        return max(int(self.step[-1]) if len(self.step) else 0, self.timed_steps)

    @property
    def is_probe(self) -> bool:
        """Whether it only timed a few steps, which a whole run may slow down after."""
        return 0 < self.timed_steps < LONG

    @property
    def examples_per_second(self) -> float:
        """Over all its steps; NaN where none was timed."""
        evaluated = self.train_seconds[-1] if len(self.step) else np.nan
        seconds = self.timed_seconds if self.timed_steps else evaluated
        return self.batches.examples_before(self.last_step) / seconds if seconds > 0 else np.nan

    def without_times(self) -> Trial:
        return replace(self, train_seconds=np.full(len(self.step), np.nan), timed_seconds=np.nan, step_parts=None,
                       slowing=np.nan)

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
        ghost_batch = self.problem.get("ghost_batch") or batch
        most = self.execution.get("local_batch") or batch
        return fewest_passes(batch, ghost_batch, self.workers, most, accumulate)


def read_trials(log: Log, versions: Versions = ONE_VERSION) -> list[Trial]:
    """Every trial of a log, by id; LogError where rows contradict each other or a plan's entries are mistyped."""
    refuse_unsound(log)
    rows = TrialRows(log, versions)
    order = np.argsort(rows.id, kind="stable")
    ids = rows.id[order]
    evaluations = Evaluations(rows.sources_of([order]), Kept())
    step, seconds = evaluations.read("step").astype(int), evaluations.read("train_seconds")
    metrics = {name: evaluations.read(name) for name in evaluations.columns}
    waited = np.nan_to_num(evaluations.read("waited_seconds") / seconds)
    own = [slice(*ends) for ends in zip(evaluations.first[:-1], evaluations.first[1:])]
    lengths = _read_lengths(log, ids, [step[at] for at in own])
    parts, noise, steps = read_parts(log), read_noise(log), read_steps(log)
    starts, restarts = rows_of_each(log.restarts["trial"]), log.restarts
    columns = [rows.table[name].tolist() if name in rows.table else [""] * len(ids)
               for name in ("id", "global_batch", "workers", "seed", "source")]
    drawn = {METAPARAMETER + name: values.tolist() for name, values in rows.metaparameters.items()}
    found = []
    for at, row in enumerate(order.tolist()):
        number, batch, workers, seed, source = (column[row] for column in columns)
        start, plan, mine = starts.get(number, NO_ROWS), rows.plan(row), own[at]
        began, alone = restarts["time"][start], seed == UNKNOWN_SEED and '"imported": "runs"' in source
        setting = _setting_of(plan, batch, {name: values[row] for name, values in drawn.items()},
                              [log.path, number] if alone else None)
        trial = Trial(log.path, number, Status(int(rows.status[row])), bool(rows.pruned[row]),
                      bool(rows.cut_short[row]), rows.workload(row), batch, workers,
                      tuple(np.unique(restarts["workers"][start]).tolist()), seed, plan, setting,
                      step[mine], seconds[mine], {name: values[mine] for name, values in metrics.items()},
                      parts.get(number), noise.get(number), *lengths[at],
                      **{"waited": float(waited[mine][-1:].sum()), **steps.get(number, {})},
                      started=float(began.min()) if np.isfinite(began).any() else np.nan)
        found.append(trial.without_times() if rows.untimed[row] else trial)
    return found


def by_workload(trials: Iterable[Trial]) -> dict[JobKey, tuple[Trial, ...]]:
    """Trials grouped by workload; workloads in order of name, trials by log and id."""
    groups = group_by(sorted(trials, key=lambda trial: trial.key), lambda trial: trial.workload)
    return {workload: tuple(groups[workload]) for workload in sorted(groups)}


def _setting_of(plan: Mapping[str, Any], batch: int, metaparameters: Mapping[str, float], own: Any) -> str:
    """The setting of a trial, see the module's docstring; of an imported log only its metaparameters are known."""
    problem = {name: value for name, value in (plan.get("problem") or {}).items()
               if (value is not None or name not in LATER_FIELDS) and name != "seed"}
    if plan.get("sweep"):       # as under the rule ``tuned`` with the same updates
        tuned = {"lr_rule": TUNED, "base_lr": problem.get("peak_lr"), "base_batch": batch, "lr_factor": 1.0}
        problem |= {name: value for name, value in tuned.items() if name in problem}
    if not problem.keys() - {"train_examples", "config"}:
        problem |= metaparameters
    known = plan.get("search") is not None or problem.keys() - {"train_examples", *metaparameters} or any(
        not np.isnan(value) for value in metaparameters.values())
    measured = {name: (plan.get("measurement") or {}).get(name) for name in ("eval_every", "eval_every_examples")}
    return as_json_text({"problem": problem, **measured, "global_batch": batch, "own": None if known else own})


def parameters_of(plan: Mapping[str, Any]) -> int:
    """The number of the model's parameters; 0: not known."""
    model = (plan.get("job") or {}).get("model")
    count = model.get("count") if isinstance(model, Mapping) else None
    return count if isinstance(count, int) else 0


def _read_lengths(log: Log, ids: np.ndarray, evaluated: Sequence[np.ndarray]
                  ) -> list[tuple[int, float, np.ndarray | None]]:
    """Of each trial, evaluated at these steps: (steps, seconds) in /steps where it was not evaluated after step 0, else
    (0, 0.0); and the tokens up to each evaluation, None where a step lacks them."""
    timed, table, found = [not at[-1:].any() for at in evaluated], log.steps, []
    tokens = table["tokens"] if table.rows and "tokens" in table.columns else None
    rows_of = rows_of_each(table["trial"]) if table.rows and (tokens is not None or any(timed)) else {}
    for number, at, is_timed in zip(ids.tolist(), evaluated, timed):
        own, length, seen = rows_of.get(number, NO_ROWS), (0, 0.0), None
        if is_timed and len(own):
            length = int(np.max(table["step"][own])), float(np.sum(table["step_seconds"][own]))
        if tokens is not None:
            rows = own[np.argsort(table["step"][own], kind="stable")]
            seen = np.concatenate([[0.0], np.cumsum(tokens[rows])])
            whole = np.array_equal(table["step"][rows], np.arange(1, len(seen))) and np.max(at, initial=0) < len(seen)
            seen = seen[at] if whole and np.isfinite(seen[-1]) else None
        found.append((*length, seen))
    return found
