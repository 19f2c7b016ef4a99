"""Studies as columns: the trials of one workload at one global batch, from one or more logs.

    for study in studies_of([read_log("sweeps/mnist/nesterov-b64.h5")]):
        reached = outcomes(study, Target.parse("val/error<0.01"))
        reached.steps[study.feasible].min()

A study has one entry per trial. Its evaluations are ordered by trial and read lazily, a column at a time. So it works
for one trial and for 200,000 alike; the logs must stay open while it is used.
"""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import LogError
from ..log.check import refuse_unsound_trials
from ..log.plan_text import plan_at, read_plan
from ..log.reader import Log, Table
from ..log.schema import Status
from ..target import Target
from .trials import AsVersion, JobKey, SeedKey, is_pruning, only_version, seed_key, workload_of

BLOCK_ROWS = 1 << 19        # of /evaluations, searched at a time for where trials begin
GAP_ROWS = 1 << 16          # longest gap between two stretches of a study that is read through rather than skipped
KEPT_BYTES = 64 << 20       # cached columns, over all studies of one call of studies_of
KEPT_COLUMNS = 3            # cached however large they are
METAPARAMETER = "metaparameters/"


@dataclass(frozen=True, eq=False)
class Study:
    """The trials of one workload at one global batch, ordered by log, then by id: arrays of shape (trials,)."""

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

    @cached_property
    def complete(self) -> np.ndarray:
        """Whether a trial reached its budget, or the target at which it stops."""
        return self.status == Status.COMPLETE

    @cached_property
    def infeasible(self) -> np.ndarray:
        """Whether a trial diverged."""
        return self.status == Status.INFEASIBLE

    @cached_property
    def feasible(self) -> np.ndarray:
        """Whether a trial was finite up to its stop: COMPLETE, or pruned."""
        return self.complete | self.pruned

    @cached_property
    def searched(self) -> np.ndarray:
        """Whether a study's best is taken over a trial: it is feasible, and not a repeat of the winner."""
        return self.feasible & ~self.repeat

    def metaparameter(self, name: str) -> np.ndarray:
        """A metaparameter of each trial; NaN: it has none."""
        return self.metaparameters.get(name, np.full(len(self), np.nan))

    def key(self, trial: int) -> tuple[str, int]:
        """The log and the id of a trial."""
        return self.logs[self.log[trial]], int(self.id[trial])

    def seed_key(self, trial: int) -> SeedKey:
        """Equal for trials of one seed, see trials.seed_key."""
        return seed_key(int(self.seed[trial]), self.key(trial))

    def plan(self, trial: int) -> Mapping[str, Any]:
        """A trial's plan: all that was settled before its first step; empty where its log has none."""
        return read_plan(self.plan_texts[trial])

    def __len__(self) -> int:
        return len(self.id)

    def __str__(self) -> str:
        return f"{self.workload}, batch {self.global_batch:,}"


class Evaluations:
    """The evaluations of a study's trials: rows in order of trial, then of step.

    first    int64, shape (trials + 1,): trial i has the rows first[i]:first[i + 1]
    columns  split/metric that any of its logs has
    """

    def __init__(self, sources: Sequence[_Source], names: Sequence[tuple[str, np.ndarray]], kept: _Kept) -> None:
        self.first = np.concatenate([[0], np.cumsum(np.concatenate([source.counts for source in sources]))])
        self.columns = tuple(dict.fromkeys(name for source in sources for name in source.table.columns if "/" in name))
        self.outcomes: dict[Target, Outcomes] = {}          # see the function
        self._sources, self._names, self._kept = sources, names, kept
        self._order: slice | np.ndarray | None = None       # sorts the rows of each trial by step, once known

    @property
    def rows(self) -> int:
        """The number of evaluations."""
        return int(self.first[-1])

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of evaluations of each trial."""
        return np.diff(self.first)

    def read(self, name: str) -> np.ndarray:
        """A column, float64 of shape (rows,): "step", "examples", "train_seconds" or one of ``columns``.

        NaN in trials of a log that has no such metric; KeyError where none has it.
        """
        if "/" in name and name not in self.columns:
            raise KeyError(f"there is no {name}; there are {', '.join(self.columns) or 'no metrics'}")
        return self._kept.get((self, name), lambda: self._read(name))

    def trial(self, rows: np.ndarray | int) -> Any:
        """The trial of each of these rows."""
        return np.searchsorted(self.first, rows, "right") - 1

    def _read(self, name: str) -> np.ndarray:
        if self._order is None and name != "step":
            self.read("step")
        values = self._concatenate(name)
        if self._order is None:
            straight = np.isin(np.flatnonzero(values[1:] <= values[:-1]) + 1, self.first).all()
            self._order = slice(None) if straight else self._sort(values)
        return values[self._order]

    def _sort(self, step: np.ndarray) -> np.ndarray:
        """The order of rows by trial and step; LogError where a trial has a step twice."""
        trial = self.trial(np.arange(self.rows))
        order = np.lexsort((step, trial))
        twice = np.flatnonzero((trial[order][1:] == trial[order][:-1]) & (step[order][1:] == step[order][:-1]))
        if len(twice):
            row = order[twice[0]]
            path, number = [(path, one) for path, ids in self._names for one in ids][trial[row]]
            raise LogError(f"{path}: trial {number}: evaluations/step is {step[row]:.0f} twice; two runs may have been "
                           "given one trial id")
        return order

    def _concatenate(self, name: str) -> np.ndarray:
        parts = [source.read(name) for source in self._sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def studies_of(logs: Iterable[Log], as_version: AsVersion = only_version) -> tuple[Study, ...]:
    """Every study of these logs, by workload, then by global batch.

    logs        must stay open while the studies are used
    as_version  see versions.py; by default runs of one name are of one workload
    Raises LogError where the trials of a log contradict each other, or a plan's entries are of the wrong type;
    Evaluations.read does where a trial has a step twice.
    """
    kept = _Kept()
    found: dict[tuple[JobKey, int], list[_Part]] = {}
    for log in sorted(logs, key=lambda log: log.path):
        refuse_unsound_trials(log)
        rows = _TrialRows(log, as_version)
        sources = _sources(log.evaluations, rows)
        for key, own, source in zip(rows.studies, rows.of_studies, sources):
            found.setdefault(key, []).append(_Part(log.path, rows, own, source))
    return tuple(_study(*key, found[key], kept) for key in sorted(found))


def _study(workload: JobKey, global_batch: int, parts: Sequence[_Part], kept: _Kept) -> Study:
    names = sorted({name for part in parts for name in part.rows.metaparameters})

    def concatenate(values: Callable[[_TrialRows], np.ndarray]) -> np.ndarray:
        return np.concatenate([values(part.rows)[part.own] for part in parts])
    return Study(
        workload, global_batch, tuple(part.path for part in parts),
        np.repeat(np.arange(len(parts)), [len(part.own) for part in parts]),
        concatenate(lambda rows: rows.id), concatenate(lambda rows: rows.status),
        concatenate(lambda rows: rows.pruned), concatenate(lambda rows: rows.repeat),
        concatenate(lambda rows: rows.seed), concatenate(lambda rows: rows.budget_steps),
        {name: concatenate(lambda rows: rows.metaparameter(name)) for name in names},
        Evaluations([part.source for part in parts], [(part.path, part.rows.id[part.own]) for part in parts], kept),
        concatenate(lambda rows: rows.table["plan"]))


class _TrialRows:
    """The rows of /trials as columns, and the study of each row, but of branches of a run, which are in none.

    study       of each row; -1: none
    studies     (workload, global batch) of each study, in any order
    of_studies  the rows of each study, by id
    """

    def __init__(self, log: Log, as_version: AsVersion) -> None:
        table = log.trials
        self.table = table
        self.id, self.seed, self.budget_steps = (np.asarray(table[name]) for name in ("id", "seed", "budget_steps"))
        self.status = np.asarray(table["status"], np.int8)
        self.metaparameters = [name.removeprefix(METAPARAMETER) for name in table.columns
                               if name.startswith(METAPARAMETER)]
        at, reasons = _find_distinct(table["stop_reason"])
        pruned = np.array([is_pruning(*one) for one in reasons], bool)[at]
        self.pruned = (self.status == Status.INCOMPLETE) & pruned
        at, rows = _find_distinct(*(table[name] for name in ("dataset", "model", "optimizer", "plan")))
        first = self.id[np.unique(at, return_index=True)[1]]
        plans = [(row, plan_at(log.path, number, row[-1])) for number, row in zip(first.tolist(), rows)]
        self.repeat = np.array([bool((plan.get("sweep") or {}).get("repeat")) for _, plan in plans], bool)[at]
        self.branch = np.array([bool(plan.get("branch")) for _, plan in plans], bool)[at]
        self.untimed = np.isin(self.id, _find_changed_workers(log.restarts))
        workloads = [as_version(workload_of(dataset, model, optimizer, plan), plan)
                     for (dataset, model, optimizer, _), plan in plans]
        self._group(workloads, at, np.asarray(table["global_batch"]))

    def _group(self, workloads: Sequence[JobKey], at: np.ndarray, batches: np.ndarray) -> None:
        numbers: dict[JobKey, int] = {}
        workload = np.array([numbers.setdefault(one, len(numbers)) for one in workloads], np.int64)[at]
        order = np.lexsort((self.id, batches, workload))
        order = order[~self.branch[order]]
        changes = np.diff(workload[order]).astype(bool) | np.diff(batches[order]).astype(bool)
        self.of_studies = np.split(order, np.flatnonzero(changes) + 1) if len(order) else []
        named = list(numbers)
        self.studies = [(named[workload[own[0]]], int(batches[own[0]])) for own in self.of_studies]
        self.study = np.full(len(self.id), -1)
        for number, own in enumerate(self.of_studies):
            self.study[own] = number

    def metaparameter(self, name: str) -> np.ndarray:
        """Float64; NaN where the log does not have it."""
        if name not in self.metaparameters:
            return np.full(len(self.id), np.nan)
        return np.asarray(self.table[METAPARAMETER + name], float)


def _find_changed_workers(restarts: Table) -> np.ndarray:
    """The ids of trials that changed their worker count partway, so that their times apply to no single count."""
    if not restarts.rows:
        return np.empty(0, np.int64)
    trial, workers = restarts["trial"], restarts["workers"]
    order = np.lexsort((workers, trial))
    same = trial[order][1:] == trial[order][:-1]
    return trial[order][1:][same & (workers[order][1:] != workers[order][:-1])]


def _find_distinct(*columns: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """(index, distinct rows): the distinct rows of text columns, and for each row its index among them."""
    known: dict[tuple[str, ...], int] = {}
    at = [known.setdefault(row, len(known)) for row in zip(*(column.tolist() for column in columns))]
    return np.array(at, np.int64), list(known)


class _Source:
    """Where the evaluations of a study's trials are in one log.

    counts  number of rows of each trial
    untimed whether to treat each trial's seconds as not measured
    ranges  (first, stop) of the rows to read
    order   which of the rows read are the study's, in order of trial; None: all of them in order
    """

    def __init__(self, table: Table, untimed: np.ndarray, trial: np.ndarray, first: np.ndarray, count: np.ndarray
                 ) -> None:
        """trial, first, count: of each stretch of consecutive rows of one trial, in order of trial, then of row."""
        self.table = table
        self.untimed = untimed
        self.counts = np.bincount(trial, count, len(untimed)).astype(np.int64)
        stop = first + count
        by_row = np.argsort(first)
        apart = np.flatnonzero(first[by_row][1:] - stop[by_row][:-1] > GAP_ROWS) + 1
        groups = [group for group in np.split(by_row, apart) if len(group)]
        self.ranges = [(int(first[group[0]]), int(stop[group[-1]])) for group in groups]
        self.order: np.ndarray | None = None
        if len(groups) > 1 or (first[1:] != stop[:-1]).any():
            begins = np.cumsum([0] + [end - begin for begin, end in self.ranges])[:-1]
            moved = np.empty(len(first), np.int64)
            for group, begin, (from_row, _) in zip(groups, begins, self.ranges):
                moved[group] = first[group] - from_row + begin
            before = np.concatenate([[0], np.cumsum(count)[:-1]])
            self.order = np.repeat(moved - before, count) + np.arange(int(count.sum()))

    def read(self, name: str) -> np.ndarray:
        """The study's rows of a column, float64; NaN where the log does not have it."""
        if name not in self.table.columns:
            return np.full(int(self.counts.sum()), np.nan)
        parts = [np.asarray(self.table.read_rows(name, *ends)) for ends in self.ranges]
        values = (parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])).astype(float, copy=False)
        values = values if self.order is None else values[self.order]
        if name == "train_seconds" and self.untimed.any():
            values = np.where(np.repeat(self.untimed, self.counts), np.nan, values)
        return values


@dataclass(frozen=True, eq=False)
class _Part:
    """The trials of a study in one log: ``own`` are their rows."""

    path: str
    rows: _TrialRows
    own: np.ndarray
    source: _Source


def _sources(table: Table, rows: _TrialRows) -> list[_Source]:
    """For each study of a log, where its evaluations are."""
    ids, first, count = _find_stretches(table)
    by_id = np.argsort(rows.id)
    at = np.searchsorted(rows.id[by_id], ids).clip(max=max(len(by_id) - 1, 0))
    known = rows.id[by_id][at] == ids if len(by_id) else np.zeros(len(ids), bool)
    if len(by_id):
        known &= rows.study[by_id[at]] >= 0
    row, first, count = by_id[at[known]] if len(by_id) else at[:0], first[known], count[known]
    place = np.empty(len(rows.id), np.int64)            # of a trial in its study
    for own in rows.of_studies:
        place[own] = np.arange(len(own))
    order = np.lexsort((first, place[row], rows.study[row]))
    row, first, count = row[order], first[order], count[order]
    ends = np.searchsorted(rows.study[row], np.arange(len(rows.studies) + 1))
    return [_Source(table, rows.untimed[own], place[row[begin:end]], first[begin:end], count[begin:end])
            for own, begin, end in zip(rows.of_studies, ends[:-1], ends[1:])]


def _find_stretches(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(trial ids, first rows, row counts) of the stretches of consecutive rows of one trial in /evaluations."""
    ids, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in range(0, table.rows, BLOCK_ROWS):
        trial = np.asarray(table.read_rows("trial", begin, min(begin + BLOCK_ROWS, table.rows)))
        at = np.concatenate([[0], np.flatnonzero(trial[1:] != trial[:-1]) + 1])
        ids.append(trial[at])
        starts.append(at + begin)
    first = np.concatenate(starts)
    return np.concatenate(ids), first, np.diff(first, append=table.rows)


class _Kept:
    """The most recently used columns, up to KEPT_BYTES or KEPT_COLUMNS."""

    def __init__(self) -> None:
        self.columns: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], np.ndarray]) -> np.ndarray:
        """The column of the key; read unless cached."""
        with self.lock:
            if key in self.columns:
                self.columns.move_to_end(key)
                return self.columns[key]
        values = read()
        values.flags.writeable = False
        with self.lock:
            if key not in self.columns:
                self.columns[key] = values
                self.bytes += values.nbytes
            while self.bytes > KEPT_BYTES and len(self.columns) > KEPT_COLUMNS:
                self.bytes -= self.columns.popitem(last=False)[1].nbytes
        return values


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Each trial of a study measured against a target: arrays of shape (trials,).

    steps      done at the first evaluation that meets it; inf: never (censored at last_step)
    before     steps at the last evaluation before that measured the metric; NaN: unknown, or never met
    last_step  at the trial's last evaluation that measured the metric; NaN: there was none
    row        of the evaluation that meets it; -1: never
    """

    evaluations: Evaluations
    target: Target
    steps: np.ndarray
    before: np.ndarray
    last_step: np.ndarray
    row: np.ndarray

    @property
    def met(self) -> np.ndarray:
        """Whether each trial met the target."""
        return self.row >= 0

    @cached_property
    def seconds(self) -> np.ndarray:
        """Spent in those steps, without evaluation; inf: never met, NaN: not measured."""
        return _take(self.evaluations.read("train_seconds"), self.row, np.inf)


def outcomes(study: Study, target: Target) -> Outcomes:
    """Each trial measured against a target, see Target.met_by: NaN never meets. KeyError without its metric.

    Worked out once for each target, as many views need it.
    """
    known = study.evaluations.outcomes
    if target not in known:
        known[target] = _measure(study.evaluations, target)
    return known[target]


def _measure(evaluations: Evaluations, target: Target) -> Outcomes:
    values, step = evaluations.read(target.column), evaluations.read("step")
    row = _first_in_trial(target.met_by(values), evaluations.first)
    steps, before = _take(step, row, np.inf), _take(step, last_measured(evaluations, values, row))
    last = _take(step, last_measured(evaluations, values, evaluations.first[1:]))
    return Outcomes(evaluations, target, steps, np.where(steps == 0, 0.0, before), last, row)


def last_measured(evaluations: Evaluations, values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The last row of each trial, before the given one, at which a metric was measured; -1: none.

    values  the metric, shape (rows,); NaN where it was not measured
    before  int, shape (trials,); -1: no row
    """
    measured = np.flatnonzero(~np.isnan(values))
    found = np.append(measured, -1)[np.searchsorted(measured, before) - 1]
    return np.where(found >= evaluations.first[:-1], found, -1)


@dataclass(frozen=True, eq=False)
class Best:
    """The best value of each trial and the first step with it: float64, shape (trials,); NaN: none."""

    value: np.ndarray
    step: np.ndarray


def best_metric(study: Study, column: str, minimizes: bool, most: float = np.inf, along: str = "step") -> Best:
    """The best value of each trial up to ``most`` steps, ignoring NaN. KeyError without the metric.

    along   the unit of ``most``: "step", "examples" or "train_seconds"
    """
    evaluations = study.evaluations
    values = evaluations.read(column)
    if most < np.inf:
        values = np.where(evaluations.read(along) <= most, values, np.nan)
    best, some = np.full(len(study), np.nan), evaluations.counts > 0
    if some.any():
        best[some] = (np.fmin if minimizes else np.fmax).reduceat(values, evaluations.first[:-1][some])
    row = _first_in_trial(values == np.repeat(best, evaluations.counts), evaluations.first)
    return Best(best, _take(evaluations.read("step"), row))


def _first_in_trial(chosen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The first chosen row of each trial; -1: none. chosen: bool, shape (rows,)."""
    rows = np.append(np.flatnonzero(chosen), len(chosen))
    found = rows[np.searchsorted(rows, first[:-1])]
    return np.where(found < first[1:], found, -1)


def _take(values: np.ndarray, rows: np.ndarray, missing: float = np.nan) -> np.ndarray:
    """values[rows], or ``missing`` where the row is -1."""
    found = np.full(len(rows), missing)
    found[rows >= 0] = values[rows[rows >= 0]]
    return found
