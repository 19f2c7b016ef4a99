"""Trials read from logs, and which of them are comparable: by_workload groups them and never mixes two workloads.

Runs whose batch changes are a workload of their own, so that a study over batch sizes never takes them in.

A *setting* is everything but the seed that determines a trial's updates, plus the spacing of evaluations. Trials whose
settings differ at most in that spacing are repeats, also those of unknown seed, but not other programs' runs of which
nothing is known: each has its own. The worker count is not part of a setting: it does not change the updates. Where a
trial changed its worker count partway, only its steps count; its times are treated as not measured."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from ..log.check import refuse_unsound
from ..log.reader import Log
from ..log.schema import UNKNOWN_SEED, Status
from ..plan.batch_schedule import BatchSchedule
from ..plan.scaling import TUNED
from ..plan.shards import fewest_passes
from ..system.cores import LOST
from .jobs import ONE_VERSION, JobKey, Versions
from .noise import NoiseSteps, read_noise
from .step_breakdown import LONG, LossCourse, StepParts, read_parts, read_steps
from .studies import METAPARAMETER, Evaluations, Kept, TrialRows, group_by, rows_of_each, seed_key

NO_ROWS = np.empty(0, np.int64)
Sync = tuple[int, int]      # replicas M, and the steps H between their synchronizations
EVERY_STEP: Sync = 1, 0     # of synchronous training
# entries of a plan's problem that older logs lack, and that are null where they do not apply
LATER_FIELDS = ("batch_schedule", "batch_lr_factors", "batch_updates", "plateau", "exact")


class Trial:
    """One run, from one log. Arrays have one entry per evaluation, in step order.

    cut_short     INCOMPLETE in its log, and counts as far as it was evaluated
    workers       at its start; ``worker_counts``: of all its process starts
    problem, execution, measurement, measured, sweep, branch    parts of its plan, empty where it has none: of what it
                  measured beside steps and times (see timings.py), its place in a search, and among branches of a run
    target        its plan's, as text; None: no target
    sync          replicas, and the steps between their synchronizations
    setting       JSON; ``alike``: it without the spacing of evaluations, equal for repeats
    step          steps done; ``train_seconds`` in them, NaN: not measured; ``metrics`` by split/metric
    step_parts    None: its steps were not timed in parts; ``noise``, None: the noise scale was not measured
    examples_per_second     over all its steps; NaN where none was timed
    tokens        that losses counted up to each evaluation; None: examples were counted
    losses        None: too few steps, or not read
    gpu           of its first process, by name; "": unknown, or none
    started       its first process, in seconds since 1970; NaN: unknown
    slowing       its mean step over that of its first ones; NaN: too short to tell
    is_probe      whether it only timed a few steps, which a whole run may slow down after
    without_core  the share of its time in which the rank that fared worst waited for a core; 0 where that is unknown
    lacked_cores  whether its host had fewer cores than workers, a sweep's other trials included
    crowded       whether its host lacked cores, or they were kept busy
    study         equal for the trials of one metaparameter search, however many it has so far; None: it has none"""

    def __init__(self, rows: TrialRows, row: int, step: np.ndarray, train_seconds: np.ndarray,
                 metrics: Mapping[str, np.ndarray], step_parts: StepParts | None, noise: NoiseSteps | None,
                 timed_steps: int, timed_seconds: float, tokens: np.ndarray | None, worker_counts: tuple[int, ...],
                 started: float, gpu: str, losses: LossCourse | None = None, slowing: float = np.nan,
                 waited: float = 0.0) -> None:
        self.log, self.id, self.plan = rows.path, int(rows.id[row]), rows.plans[row]
        self.workload = rows.workloads[rows.workload[row]]      # the same object for all that share it
        self.key, self.seed = (self.log, self.id), int(rows.seed[row])
        self.seed_key = seed_key(self.seed, self.key)
        self.status, self.pruned = Status(int(rows.status[row])), bool(rows.pruned[row])
        self.cut_short, self.worker_counts = bool(rows.cut_short[row]), worker_counts
        self.global_batch, self.workers = int(rows.global_batch[row]), int(rows.table["workers"][row])
        self.problem, self.execution, self.measurement, self.measured, self.sweep, self.branch = (
            self.plan.get(name) or {} for name in "problem execution measurement measured sweep branch".split())
        self.target: str | None = self.measurement.get("target") or None
        self.batches, local = BatchSchedule.of_problem(self.problem, self.global_batch), self.problem.get("local_steps")
        self.sync = (local["replicas"], local["sync_every"]) if local else EVERY_STEP
        self.step, self.train_seconds, self.metrics, self.started, self.gpu = step, train_seconds, metrics, started, gpu
        self.step_parts, self.noise, self.losses = step_parts, noise, losses
        self.slowing, self.is_probe, self.tokens = slowing, 0 < timed_steps < LONG, tokens
        self.last_step = max(int(step[-1]) if len(step) else 0, timed_steps)
        evaluated = train_seconds[-1] if len(step) else np.nan
        seconds = timed_seconds if timed_steps else evaluated
        self.examples_per_second = self.batches.examples_before(self.last_step) / seconds if seconds > 0 else np.nan
        self.lacked_cores = self.execution.get("local_workers", 0) > self.execution.get("cores", np.inf)
        self.without_core = max([waited, *(self.measured.get("without_core") or [])])
        self.crowded = self.lacked_cores or self.without_core > LOST
        described = self._describe_setting(rows, row)
        spacing = {name: self.measurement.get(name) for name in ("eval_every", "eval_every_examples")}
        self.setting = json.dumps(described | spacing, sort_keys=True)
        self.alike = self.setting if self.problem.get("plateau") else json.dumps(described, sort_keys=True)
        of_study = [self.sweep.get(name) for name in ("study", "space", "objective", "targets", "prune_keep", "seed")]
        self.study = (self.workload, self.global_batch, json.dumps(of_study)) if self.sweep else None

    def _describe_setting(self, rows: TrialRows, row: int) -> dict[str, Any]:
        """What determines the updates; of an imported log only the metaparameters are known."""
        source = rows.table["source"][row] if "source" in rows.table else ""
        drawn = {METAPARAMETER + name: float(values[row]) for name, values in rows.metaparameters.items()}
        problem = {name: value for name, value in self.problem.items()
                   if (value is not None or name not in LATER_FIELDS) and name != "seed"}
        if self.sweep:          # as under the rule ``tuned`` with the same updates
            tuned = dict(lr_rule=TUNED, base_lr=problem.get("peak_lr"), base_batch=self.global_batch, lr_factor=1.0)
            problem |= {name: value for name, value in tuned.items() if name in problem}
        if not problem.keys() - {"train_examples", "config"}:
            problem |= drawn
        known = self.plan.get("search") is not None or problem.keys() - {"train_examples", *drawn} or not np.isnan(
            list(drawn.values())).all()
        alone = not known and self.seed == UNKNOWN_SEED and '"imported": "runs"' in source
        return {"problem": problem, "global_batch": self.global_batch, "own": self.key if alone else None}

    def rows_with(self, column: str) -> np.ndarray:
        """The evaluations that measured a metric, by index: a row where it is NaN is no evaluation of it."""
        return np.flatnonzero(~np.isnan(self.metrics[column]))

    def but(self, **changed: Any) -> Trial:
        """The same with other values of these attributes."""
        found = copy(self)
        vars(found).update(changed)
        return found

    def without_times(self) -> Trial:
        return self.but(train_seconds=np.full(len(self.step), np.nan), examples_per_second=np.nan, step_parts=None,
                        slowing=np.nan)

    def step_times(self) -> list[tuple[int, int, float]]:
        """(batch, a worker's passes over it, seconds of the mean step) of each of its batches; where the batch changes,
        of those between the evaluations at each, if two."""
        accumulate = int(self.execution.get("accumulate") or 1)
        if self.batches.is_constant:
            return [(self.global_batch, accumulate, self.global_batch / self.examples_per_second)]
        ghost_batch, most = self.problem.get("ghost_batch"), self.execution.get("local_batch")
        spent: dict[tuple[int, int], np.ndarray] = {}       # steps, seconds
        for start, end, batch in self.batches.pieces():
            passes = accumulate if batch == self.global_batch else fewest_passes(
                batch, ghost_batch or batch, self.workers, most or batch, accumulate)
            inside = np.flatnonzero((self.step >= start) & (self.step <= end) & np.isfinite(self.train_seconds))
            if len(inside) > 1:
                ends = [np.ptp(values[inside]) for values in (self.step, self.train_seconds)]
                spent[batch, passes] = spent.get((batch, passes), np.zeros(2)) + ends
        return [(*key, float(seconds / steps)) for key, (steps, seconds) in spent.items() if seconds > 0]


def read_trials(log: Log, versions: Versions = ONE_VERSION) -> list[Trial]:
    """Every trial of a log, by id; LogError where rows contradict each other or a plan's entries are mistyped."""
    refuse_unsound(log)
    rows = TrialRows(log, versions)
    order = np.argsort(rows.id, kind="stable")
    evaluations = Evaluations(rows.sources_of([order]), Kept())
    step, seconds = evaluations.read("step").astype(int), evaluations.read("train_seconds")
    metrics = {name: evaluations.read(name) for name in evaluations.columns}
    waited = np.nan_to_num(evaluations.read("waited_seconds") / seconds)
    own = [slice(*ends) for ends in zip(evaluations.first[:-1], evaluations.first[1:])]
    parts, steps = read_parts(log), read_steps(log)
    noise = read_noise(log) if "local_sqnorm" in log.steps.columns else {}
    starts, restarts, table = rows_of_each(log.restarts["trial"]), log.restarts, log.steps
    unevaluated = [not step[at][-1:].any() for at in own]       # after step 0
    tokens = table["tokens"] if table.rows and "tokens" in table.columns else None
    rows_of = rows_of_each(table["trial"]) if table.rows and (tokens is not None or any(unevaluated)) else {}

    found = []
    for number, row, at, is_timed in zip(rows.id[order].tolist(), order.tolist(), own, unevaluated):
        start, timed = starts.get(number, NO_ROWS), rows_of.get(number, NO_ROWS)
        began = restarts["time"][start]
        length = (int(table["step"][timed].max()), float(table["step_seconds"][timed].sum())
                  ) if is_timed and len(timed) else (0, 0.0)
        trial = Trial(rows, row, step[at], seconds[at], {name: values[at] for name, values in metrics.items()},
                      parts.get(number), noise.get(number), *length,
                      None if tokens is None else _count_tokens(table["step"][timed], tokens[timed], step[at]),
                      tuple(np.unique(restarts["workers"][start]).tolist()),
                      float(began.min()) if np.isfinite(began).any() else np.nan,
                      "".join(restarts["device"][start[:1]]).removeprefix("cpu"),
                      **{"waited": float(waited[at][-1:].sum()), **steps.get(number, {})})
        found.append(trial.without_times() if rows.untimed[row] else trial)
    return found


def _count_tokens(step: np.ndarray, tokens: np.ndarray, evaluated: np.ndarray) -> np.ndarray | None:
    """The tokens up to each evaluated step, from those of each step; None where a step lacks them."""
    order = np.argsort(step, kind="stable")
    seen = np.concatenate([[0.0], np.cumsum(tokens[order])])
    whole = np.array_equal(step[order], np.arange(1, len(seen))) and np.max(evaluated, initial=0) < len(seen)
    return seen[evaluated] if whole and np.isfinite(seen[-1]) else None


def by_workload(trials: Iterable[Trial]) -> dict[JobKey, tuple[Trial, ...]]:
    """Trials grouped by workload; workloads in order of name, trials by log and id."""
    groups = group_by(sorted(trials, key=lambda trial: trial.key), lambda trial: trial.workload)
    return {workload: tuple(groups[workload]) for workload in sorted(groups)}


def parameters_of(plan: Mapping[str, Any]) -> int:
    """The number of the model's parameters; 0: not known."""
    count = ((plan.get("job") or {}).get("model") or {}).get("count")
    return count if isinstance(count, int) else 0
