"""Studies as columns: the trials of one workload at one global batch, from one or more logs.

Rows of logs are read once for studies and for trials one by one alike (trials.py): what /trials says, and the
evaluations of groups of its rows, ordered by trial, lazily and a column at a time. So this works for one trial and for
200,000; the logs must stay open meanwhile."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ..errors import LogError, UsageError
from ..log import directions
from ..log.plan_text import OF_SEARCH, plan_at, read_plan
from ..log.reader import Log
from ..log.schema import CUT_SHORT, LARGER, PRUNED, SMALLER, UNKNOWN_SEED, Status
from ..target import Target
from .jobs import ONE_VERSION, JobKey, Versions

BLOCK_ROWS = 1 << 19        # of /evaluations, searched at a time for where trials begin
GAP_ROWS = 1 << 16          # longest gap between two stretches of a study that is read through rather than skipped
KEPT_BYTES = 64 << 20       # cached columns, over all studies of one call of studies_of
KEPT_COLUMNS = 3            # cached however large they are
METAPARAMETER = "metaparameters/"
OTHER_WAY = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
SeedKey = tuple[int, str, int]
Kept = OrderedDict[tuple["Evaluations", str], np.ndarray]       # the most recently used columns


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in their order; keys in order of first appearance."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def rows_of_each(keys: np.ndarray) -> dict[int, np.ndarray]:
    """The rows at which a column of integers has each of its values, in their order; the values from the least on."""
    order = np.argsort(keys, kind="stable")
    values, first = np.unique(keys[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, first[1:])))


def seed_key(seed: int, trial: tuple[str, int]) -> SeedKey:
    """What runs are grouped and paired by: equal for those of one seed, and for no others where it is unknown."""
    return (seed, *trial) if seed == UNKNOWN_SEED else (seed, "", 0)


class TrialRows:
    """The rows of a log's /trials as columns, with what their plans say; plans that are alike are read once. Untimed
    trials changed their worker count partway, so that their times apply to no single count."""

    def __init__(self, log: Log, versions: Versions = ONE_VERSION) -> None:
        table = log.trials
        self.path, self.table, self.evaluations = log.path, table, log.evaluations
        self.id, self.seed, self.budget_steps, self.global_batch, self.plan_texts = (
            table[name] for name in ("id", "seed", "budget_steps", "global_batch", "plan"))
        self.metaparameters = {name.removeprefix(METAPARAMETER): np.asarray(table[name], float)
                               for name in table.columns if name.startswith(METAPARAMETER)}
        stopped = table["status"] == Status.INCOMPLETE
        self.pruned, self.cut_short = (
            stopped & np.array([reason.startswith(why) for reason in table["stop_reason"]], bool)
            for why in (PRUNED, CUT_SHORT))
        self.status = np.where(self.cut_short, Status.COMPLETE, table["status"]).astype(np.int8)    # it counts as ended
        known: dict[tuple[str, ...], int] = {}
        rows = zip(*(table[name].tolist() for name in ("dataset", "model", "optimizer", "plan")))
        alike = np.array([known.setdefault(row, len(known)) for row in rows], np.int64)
        first = self.id[np.unique(alike, return_index=True)[1]]
        plans = [plan_at(log.path, number, row[-1]) for number, row in zip(first.tolist(), known)]
        self.plans = [plans[at] for at in alike]
        self.repeat, self.branch, self.replicas = np.array([(
            bool((plan.get("sweep") or {}).get("repeat")), bool(plan.get("branch")),
            bool((plan.get("problem") or {}).get("local_steps")) and not plan.get("sweep")) for plan in plans],
            bool).reshape(-1, 3)[alike].T
        trial = np.unique([log.restarts["trial"], log.restarts["workers"]], axis=1)[0]      # once for each worker count
        self.untimed = np.isin(self.id, trial[1:][trial[1:] == trial[:-1]])
        numbers: dict[JobKey, int] = {}
        of_plan = [numbers.setdefault(versions.workload_of(dataset, model, optimizer, plan), len(numbers))
                   for (dataset, model, optimizer, _), plan in zip(known, plans)]
        self.workloads, self.workload = list(numbers), np.array(of_plan, np.int64)[alike]

    def sources_of(self, groups: Sequence[np.ndarray]) -> list[SourceRows]:
        """Where the evaluations of groups of rows are: stretches of consecutive rows of one trial in /evaluations."""
        group, place = np.full(len(self.id), -1), np.zeros(len(self.id), np.int64)
        for number, own in enumerate(groups):
            group[own], place[own] = number, np.arange(len(own))
        table, stretches = self.evaluations, [np.empty((2, 0), np.int64)]
        for begin in range(0, table.rows, BLOCK_ROWS):
            trial = np.asarray(table.read("trial", begin, min(begin + BLOCK_ROWS, table.rows)))
            at = np.concatenate([[0], np.flatnonzero(trial[1:] != trial[:-1]) + 1])
            stretches.append(np.stack([trial[at], at + begin]))
        ids, first = np.concatenate(stretches, axis=1)
        asked = np.isin(ids, self.id[group >= 0])
        ids, first, count = ids[asked], first[asked], np.diff(first, append=table.rows)[asked]
        by_id = np.argsort(self.id)
        row = by_id[np.searchsorted(self.id, ids, sorter=by_id)]
        order = np.lexsort((first, place[row], group[row]))
        row, first, count = row[order], first[order], count[order]
        ends = np.searchsorted(group[row], np.arange(len(groups) + 1))
        return [SourceRows(self, own, np.bincount(place[row[at]], count[at], len(own)).astype(np.int64), first[at],
                           count[at]) for own, at in zip(groups, map(slice, ends[:-1], ends[1:]))]


@dataclass(frozen=True, eq=False)
class SourceRows:
    """Where the evaluations of a study's trials, ``own`` of the rows of /trials, are in one log."""

    rows: TrialRows
    own: np.ndarray
    counts: np.ndarray      # of each trial
    first: np.ndarray       # of each stretch of consecutive rows of one trial, in order of trial, then of row
    count: np.ndarray       # likewise

    def read(self, name: str) -> np.ndarray:
        """The study's rows of a column, float64, by trial; NaN where the log does not have it."""
        table, untimed = self.rows.evaluations, self.rows.untimed[self.own]
        if name not in table.columns or not len(self.first):
            return np.full(int(self.counts.sum()), np.nan)
        by_row = np.argsort(self.first)
        begins, ends = self.first[by_row], (self.first + self.count)[by_row]
        apart = np.flatnonzero(begins[1:] - ends[:-1] > GAP_ROWS)
        starts, skipped = begins[apart + 1], np.cumsum(np.append(begins[0], begins[apart + 1] - ends[apart]))
        values = np.concatenate([np.asarray(table.read(name, *map(int, each)), float) for each in zip(
            np.append(begins[0], starts), np.append(ends[apart], ends[-1]))])
        moved = self.first - skipped[np.searchsorted(starts, self.first, "right")]
        values = values[np.repeat(moved + self.count - self.count.cumsum(), self.count) + np.arange(self.count.sum())]
        return np.where(np.repeat(untimed, self.counts), np.nan, values) if name == "train_seconds" else values


class Evaluations:
    """The evaluations of some trials: rows in order of trial, then of step.

    first    int64, shape (trials + 1,): trial i has the rows first[i]:first[i + 1]; ``counts`` are their numbers
    specs    what the first log that has a column says of it, by name
    columns  split/metric that any of its logs has"""

    def __init__(self, sources: Sequence[SourceRows], kept: Kept) -> None:
        self.counts = np.concatenate([source.counts for source in sources])
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        tables = [source.rows.evaluations for source in sources]
        self.specs = {name: spec for table in reversed(tables) for name, spec in table.specs.items()}
        self.columns = tuple(dict.fromkeys(name for table in tables for name in table.columns if "/" in name))
        self.outcomes: dict[Target, Outcomes] = {}      # see outcomes
        self._sources, self._kept = sources, kept

    def read(self, name: str) -> np.ndarray:
        """A column, float64 of shape (rows,): "step", "examples", "train_seconds" or one of ``columns``; NaN in trials
        of a log without it; KeyError where none has it."""
        if "/" in name and name not in self.columns:
            raise KeyError(f"there is no {name}; there are {', '.join(self.columns) or 'no metrics'}")
        kept = self._kept
        if (self, name) not in kept:
            values = np.concatenate([source.read(name) for source in self._sources])[self._order]
            values.flags.writeable = False
            kept[self, name] = values
            while len(kept) > KEPT_COLUMNS and sum(one.nbytes for one in kept.values()) > KEPT_BYTES:
                kept.popitem(last=False)
        kept.move_to_end((self, name))
        return kept[self, name]

    @cached_property
    def _order(self) -> slice | np.ndarray:
        """Sorts the rows of each trial by step."""
        step = np.concatenate([source.read("step") for source in self._sources])
        if np.isin(np.flatnonzero(step[1:] <= step[:-1]) + 1, self.first).all():
            return slice(None)
        trial = np.repeat(np.arange(len(self.counts)), self.counts)
        order = np.lexsort((step, trial))
        twice = np.flatnonzero((np.diff(trial[order]) == 0) & (np.diff(step[order]) == 0))
        if len(twice):
            row = order[twice[0]]
            path, number = [(one.rows.path, id) for one in self._sources for id in one.rows.id[one.own]][trial[row]]
            raise LogError(f"{path}: trial {number}: evaluations/step is {step[row]:.0f} twice; two runs may have been "
                           "given one trial id")
        return order


@dataclass(eq=False)
class Study:
    """The trials of one workload at one global batch, ordered by log, then by id: arrays of shape (trials,).

    feasible  whether a trial was finite up to its stop: COMPLETE, or pruned; ``infeasible``: it diverged
    searched  whether a study's best is taken over a trial: it is feasible, and not a repeat of the winner"""

    workload: JobKey
    global_batch: int
    logs: tuple[str, ...]       # paths
    log: np.ndarray             # index into logs
    id: np.ndarray
    status: np.ndarray          # int8, log.schema.Status
    pruned: np.ndarray          # bool: INCOMPLETE because its search stopped it
    repeat: np.ndarray          # bool: a search's winner under another seed; not part of the search
    seed: np.ndarray
    budget_steps: np.ndarray    # 0: the budget is not in steps
    metaparameters: Mapping[str, np.ndarray]    # float64 by name; NaN: the trial has none
    evaluations: Evaluations = field(repr=False)
    plan_texts: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        self.infeasible = self.status == Status.INFEASIBLE
        self.feasible = (self.status == Status.COMPLETE) | self.pruned
        self.searched = self.feasible & ~self.repeat

    def metaparameter(self, name: str) -> np.ndarray:
        """Of each trial; NaN: it has none."""
        return self.metaparameters.get(name, np.full(len(self), np.nan))

    def key(self, trial: int) -> tuple[str, int]:
        return self.logs[self.log[trial]], int(self.id[trial])

    def seed_key(self, trial: int) -> SeedKey:
        return seed_key(int(self.seed[trial]), self.key(trial))

    def plan(self, trial: int) -> Mapping[str, Any]:
        """A trial's plan: all that was settled before its first step; empty where its log has none."""
        return read_plan(self.plan_texts[trial])

    def __len__(self) -> int:
        return len(self.id)

    def __str__(self) -> str:
        return f"{self.workload}, batch {self.global_batch:,}"


def studies_of(logs: Iterable[Log], versions: Versions = ONE_VERSION) -> tuple[Study, ...]:
    """Every study of logs that refuse_unsound passes, by workload, then by global batch, without branches, and without
    replicas beside synchronous runs; LogError where a plan's entries are mistyped. Evaluations.read raises it where a
    trial has a step twice."""
    kept, found = Kept(), dict[tuple[JobKey, int], list[SourceRows]]()
    for log in sorted(logs, key=lambda log: log.path):
        rows = TrialRows(log, versions)
        order = np.lexsort((rows.id, rows.global_batch, rows.workload))
        order = order[~rows.branch[order]]
        changes = np.diff(rows.workload[order]).astype(bool) | np.diff(rows.global_batch[order]).astype(bool)
        groups = np.split(order, np.flatnonzero(changes) + 1) if len(order) else []
        groups = [own if rows.replicas[own].all() else own[~rows.replicas[own]] for own in groups]
        for source in rows.sources_of(groups):
            first = source.own[0]
            found.setdefault((rows.workloads[rows.workload[first]], int(rows.global_batch[first])), []).append(source)

    studies = []
    for (workload, batch), sources in sorted(found.items(), key=itemgetter(0)):
        parts = [(source.rows, source.own) for source in sources]
        columns = {name: np.concatenate([getattr(rows, name)[own] for rows, own in parts])
                   for name in ("id", "status", "pruned", "repeat", "seed", "budget_steps", "plan_texts")}
        drawn = {name: np.concatenate([rows.metaparameters[name][own] if name in rows.metaparameters else
                                       np.full(len(own), np.nan) for rows, own in parts])
                 for name in sorted({name for rows, _ in parts for name in rows.metaparameters})}
        of_log = np.repeat(np.arange(len(parts)), [len(own) for _, own in parts])
        studies.append(Study(workload, batch, tuple(rows.path for rows, _ in parts), of_log, **columns,
                             metaparameters=drawn, evaluations=Evaluations(sources, kept)))
    return tuple(studies)


def are_searched(studies: Sequence[Study]) -> bool:
    """Whether the trials are draws of metaparameters, rather than repeats of one setting."""
    return any(study.plan(0).get(part) for study in studies if len(study) for part in OF_SEARCH)


def are_ends_alone(trials: Iterable[tuple[int, np.ndarray]]) -> bool:
    """Whether a fixed budget is all that trials, (global batch, steps of evaluations), show, not how many steps a
    target takes: each was evaluated once after step 0, all at the same step or after the same examples to 1 %."""
    found = [(batch, steps[steps > 0]) for batch, steps in trials]
    if len(found) <= len({batch for batch, _ in found}) or any(len(steps) != 1 for _, steps in found):
        return False
    spent = np.array([(float(steps[0]), batch * float(steps[0])) for batch, steps in found])
    return bool((spent.max(0) <= spent.min(0) * [1, 1.01]).any())


def show_ends_alone(studies: Sequence[Study]) -> bool:
    return are_ends_alone((study.global_batch, steps) for study in studies for steps in np.split(
        study.evaluations.read("step"), study.evaluations.first[1:-1]))


def with_metric(studies: Iterable[Study], column: str) -> tuple[Study, ...]:
    """The studies whose logs have a metric."""
    return tuple(study for study in studies if column in study.evaluations.columns)


def is_measured(studies: Sequence[Study], column: str) -> bool:
    return any(not np.isnan(study.evaluations.read(column)).all() for study in with_metric(studies, column))


class Outcomes:
    """Each trial measured against a target, see Target.met_by: arrays of shape (trials,).

    steps      done at the first evaluation that meets it; inf: never (censored at last_step)
    before     at the last evaluation before that measured the metric; NaN: unknown, or never met
    last_step  at the last evaluation that measured the metric; NaN: there was none
    row        of the evaluation that meets it; -1: never"""

    def __init__(self, evaluations: Evaluations, target: Target) -> None:
        values, step = evaluations.read(target.column), evaluations.read("step")
        self.row = _first_in_trial(target.met_by(values), evaluations.first)
        self.met, self.steps = self.row >= 0, take(step, self.row, np.inf)
        self.before = np.where(self.steps == 0, 0.0, take(step, last_measured(evaluations, values, self.row)))
        self.last_step = take(step, last_measured(evaluations, values, evaluations.first[1:]))


def outcomes(study: Study, target: Target) -> Outcomes:
    """Each trial measured against a target; kept for many views. KeyError without its metric."""
    kept = study.evaluations.outcomes
    if target not in kept:
        kept[target] = Outcomes(study.evaluations, target)
    return kept[target]


def last_measured(evaluations: Evaluations, values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The last row of each trial, before the given one (-1: no row), at which a metric was measured; -1: none."""
    measured = np.flatnonzero(~np.isnan(values))
    found = np.append(measured, -1)[np.searchsorted(measured, before) - 1]
    return np.where(found >= evaluations.first[:-1], found, -1)


def best_metric(study: Study, column: str, minimizes: bool, most: float = np.inf, along: str = "step"
                ) -> tuple[np.ndarray, np.ndarray]:
    """(the best value of each trial up to ``most`` steps, or other units, the first step with it): float64, shape
    (trials,); NaN: none. KeyError without the metric."""
    evaluations = study.evaluations
    values = evaluations.read(column)
    if most < np.inf:
        values = np.where(evaluations.read(along) <= most, values, np.nan)
    best, some = np.full(len(study), np.nan), evaluations.counts > 0
    if some.any():
        best[some] = (np.fmin if minimizes else np.fmax).reduceat(values, evaluations.first[:-1][some])
    row = _first_in_trial(values == np.repeat(best, evaluations.counts), evaluations.first)
    return best, take(evaluations.read("step"), row)


def _first_in_trial(chosen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The first chosen row of each trial; -1: none. chosen: bool, shape (rows,)."""
    rows = np.append(np.flatnonzero(chosen), len(chosen))
    found = rows[np.searchsorted(rows, first[:-1])]
    return np.where(found < first[1:], found, -1)


def take(values: np.ndarray, rows: np.ndarray, missing: float = np.nan) -> np.ndarray:
    """values[rows], or ``missing`` where the row is -1."""
    return np.append(values, missing)[rows]


def better(column: str, sources: Sequence[Log | Study]) -> str:
    """SMALLER or LARGER, as logs or studies declare for the column ``split/metric``, else by its name; "": unknown."""
    declared = {spec.better for source in sources if (spec := source.evaluations.specs.get(column))} - {""}
    if len(declared) == 1:
        return declared.pop()
    return "" if declared else directions.better(column)


def best_value(values: np.ndarray, minimizes: bool) -> float:
    """The best of the finite values; NaN where there are none."""
    return float((np.fmin if minimizes else np.fmax).reduce(values[np.isfinite(values)], initial=np.nan))


def check_direction(target: Target, logs: Sequence[Log]) -> None:
    """Raise UsageError for a target that a metric meets by getting worse; unknown metrics pass."""
    way = better(target.column, logs)
    if way and target.minimizes != (way == SMALLER):
        meant = replace(target, comparison=OTHER_WAY[target.comparison])
        raise UsageError(f"target {str(target)!r}: a {way} {target.column} is better, but this target asks for a "
                         f"{LARGER if way == SMALLER else SMALLER} one; write {str(meant)!r}")


def scales_with_momentum(study: Study) -> bool:
    """Whether its trials have momentum, so that the effective learning rate is eta / (1 - momentum)."""
    return bool(np.nan_to_num(study.metaparameter("momentum")).any())


def rates_of(study: Study) -> np.ndarray:
    """The effective learning rate eta / (1 - momentum) of each trial, eta without momentum; NaN: unknown."""
    return effective_rate(study.metaparameter("learning_rate"), np.nan_to_num(study.metaparameter("momentum")))


def effective_rate(lr: ArrayLike, momentum: ArrayLike) -> np.ndarray:
    """eta / (1 - momentum); NaN where that is not above 0 and finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.asarray(lr, float) / (1 - np.asarray(momentum, float))
    return np.where((rate > 0) & np.isfinite(rate), rate, np.nan)
