"""Studies as columns: the trials of one workload at one global batch, of one log or of several.

    for study in studies_of([read_log("sweeps/mnist/nesterov-b64.h5")]):
        reached = outcomes(study, Target.parse("val/error<0.01"))
        reached.steps[study.feasible].min()

A study has one entry a trial; its evaluations lie trial after trial and are read, a column at a time, when they are
asked for. So it serves one trial and 200,000 alike, and the logs stay open while it is used.
"""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..errors import LogError
from ..log.check import refuse_unsound_trials
from ..log.plan_text import plan_at, read_plan
from ..log.schema import Status
from .trials import Workload, is_pruning, workload_of

BLOCK_ROWS = 1 << 19        # of /evaluations, looked at together for where trials begin
GAP_ROWS = 1 << 16          # rows of others between two of a study's stretches that are read over rather than around
KEPT_BYTES = 64 << 20       # of columns that were read, over all studies of one call of studies_of
KEPT_COLUMNS = 3            # that are kept however large they are
BINS = 1 << 12              # along the steps, see promising
METAPARAMETER = "metaparameters/"


@dataclass(frozen=True, eq=False)
class Study:
    """The trials of one workload at one global batch, ordered by log, then by id: arrays of shape (trials,)."""

    workload: Workload
    global_batch: int
    logs: tuple[str, ...]       # paths
    log: np.ndarray             # which of them
    id: np.ndarray
    status: np.ndarray          # int8, log.schema.Status
    pruned: np.ndarray          # bool: INCOMPLETE because its search stopped it
    repeat: np.ndarray          # bool: a search's winner again, under another seed; no part of the search
    seed: np.ndarray
    budget_steps: np.ndarray    # 0: the budget is not in steps
    metaparameters: Mapping[str, np.ndarray]    # float64 by name; NaN: the trial has none
    evaluations: Evaluations = field(repr=False)
    plan_texts: np.ndarray = field(repr=False)

    @cached_property
    def complete(self) -> np.ndarray:
        """Whether a trial reached its budget, or the target that it was to stop at."""
        return self.status == Status.COMPLETE

    @cached_property
    def infeasible(self) -> np.ndarray:
        """Whether a trial diverged."""
        return self.status == Status.INFEASIBLE

    @cached_property
    def feasible(self) -> np.ndarray:
        """Whether a trial was finite up to its stop: COMPLETE, or pruned."""
        return self.complete | self.pruned

    def key(self, trial: int) -> tuple[str, int]:
        """Where a trial stands: its log and its id there."""
        return self.logs[self.log[trial]], int(self.id[trial])

    def plan(self, trial: int) -> Mapping:
        """All that was asked of a trial and settled before its first step; empty where its log does not say."""
        return read_plan(self.plan_texts[trial])

    def __len__(self):
        return len(self.id)

    def __str__(self):
        return f"{self.workload}, batch {self.global_batch:,}"


class Evaluations:
    """The evaluations of a study's trials: rows trial after trial, in order of steps.

    first    int64, shape (trials + 1,): trial i has the rows first[i]:first[i + 1]
    columns  split/metric that any of its logs has
    """

    def __init__(self, sources: Sequence[_Source], names: Sequence[tuple[str, np.ndarray]], kept: _Kept):
        self.first = np.concatenate([[0], np.cumsum(np.concatenate([source.counts for source in sources]))])
        self.columns = tuple(dict.fromkeys(name for source in sources for name in source.table.columns if "/" in name))
        self._sources, self._names, self._kept = sources, names, kept
        self._order = None      # what brings the rows of each trial in order of steps, once these are known

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.first[-1])

    @cached_property
    def counts(self) -> np.ndarray:
        """How many each trial has."""
        return np.diff(self.first)

    def read(self, name: str) -> np.ndarray:
        """A column, float64 of shape (rows,): "step", "examples", "train_seconds" or one of ``columns``.

        NaN in trials of a log that has no such metric; KeyError where none has it.
        """
        if "/" in name and name not in self.columns:
            raise KeyError(f"there is no {name}; there are {', '.join(self.columns) or 'no metrics'}")
        return self._kept.get((self, name), lambda: self._read(name))

    def trial(self, rows: np.ndarray) -> np.ndarray:
        """Which trial each of these rows is of."""
        return np.searchsorted(self.first, rows, "right") - 1

    def _read(self, name):
        if self._order is None and name != "step":
            self.read("step")
        values = self._joined(name)
        if self._order is None:
            straight = np.isin(np.flatnonzero(values[1:] <= values[:-1]) + 1, self.first).all()
            self._order = slice(None) if straight else self._sorted(values)
        return values[self._order]

    def _sorted(self, step):
        """Rows in order of trial and step; LogError where a trial has a step twice."""
        trial = self.trial(np.arange(self.rows))
        order = np.lexsort((step, trial))
        twice = np.flatnonzero((trial[order][1:] == trial[order][:-1]) & (step[order][1:] == step[order][:-1]))
        if len(twice):
            row = order[twice[0]]
            path, number = [(path, one) for path, ids in self._names for one in ids][trial[row]]
            raise LogError(f"{path}: trial {number}: evaluations/step is {step[row]:.0f} twice; two runs may have been "
                           "given one trial id")
        return order

    def _joined(self, name):
        parts = [source.read(name) for source in self._sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def studies_of(logs: Sequence) -> tuple[Study, ...]:
    """Every study of these logs, by workload, then by global batch.

    logs    what log.reader.read_log gives, see trials.read_trials; they are to stay open while the studies are used
    Raises LogError where the trials of a log contradict each other, or a plan has entries of other types than it is
    written with; Evaluations.read does where a trial has a step twice.
    """
    kept, found = _Kept(), {}
    for number, log in enumerate(sorted(logs, key=lambda log: log.path)):
        refuse_unsound_trials(log)
        rows = _TrialRows(log)
        sources = _sources(log.evaluations, rows)
        for key, own, source in zip(rows.studies, rows.of_studies, sources):
            found.setdefault(key, []).append((number, log.path, rows, own, source))
    return tuple(_study(*key, found[key], kept) for key in sorted(found))


def _study(workload, global_batch, parts, kept):
    names = sorted({name for _, _, rows, _, _ in parts for name in rows.metaparameters})

    def joined(values):
        return np.concatenate([values(rows)[own] for _, _, rows, own, _ in parts])
    return Study(
        workload, global_batch, tuple(path for _, path, *_ in parts),
        np.repeat(np.arange(len(parts)), [len(own) for *_, own, _ in parts]),
        *(joined(lambda rows: getattr(rows, name))
          for name in ("id", "status", "pruned", "repeat", "seed", "budget_steps")),
        {name: joined(lambda rows: rows.metaparameter(name)) for name in names},
        Evaluations([source for *_, source in parts], [(path, rows.id[own]) for _, path, rows, own, _ in parts], kept),
        joined(lambda rows: rows.table["plan"]))


class _TrialRows:
    """The rows of /trials as columns, and which study each is of.

    studies     (workload, global batch) of each, in any order
    of_studies  the rows of each, by id
    """

    def __init__(self, log):
        table = log.trials
        self.table = table
        self.id, self.status, self.seed, self.budget_steps = (
            np.asarray(table[name]) for name in ("id", "status", "seed", "budget_steps"))
        self.status = self.status.astype(np.int8)
        self.metaparameters = [name.removeprefix(METAPARAMETER) for name in table.columns
                               if name.startswith(METAPARAMETER)]
        at, reasons = _different(table["stop_reason"])
        pruned = np.array([is_pruning(*one) for one in reasons], bool)[at]
        self.pruned = (self.status == Status.INCOMPLETE) & pruned
        at, rows = _different(*(table[name] for name in ("dataset", "model", "optimizer", "plan")))
        first = self.id[np.unique(at, return_index=True)[1]]
        told = [_told(log.path, number, *row) for number, row in zip(first.tolist(), rows)]
        self.repeat = np.array([repeat for _, repeat in told], bool)[at]
        self.untimed = np.isin(self.id, _of_several_worker_counts(log.restarts))
        self._group([workload for workload, _ in told], at, np.asarray(table["global_batch"]))

    def _group(self, workloads, at, batches):
        numbers: dict[Workload, int] = {}
        workload = np.array([numbers.setdefault(one, len(numbers)) for one in workloads], np.int64)[at]
        order = np.lexsort((self.id, batches, workload))
        changes = np.diff(workload[order]).astype(bool) | np.diff(batches[order]).astype(bool)
        self.of_studies = np.split(order, np.flatnonzero(changes) + 1) if len(order) else []
        named = list(numbers)
        self.studies = [(named[workload[own[0]]], int(batches[own[0]])) for own in self.of_studies]
        self.study = np.empty(len(order), np.int64)
        for number, own in enumerate(self.of_studies):
            self.study[own] = number

    def metaparameter(self, name):
        """Float64; NaN in a log that has none."""
        if name not in self.metaparameters:
            return np.full(len(self.id), np.nan)
        return np.asarray(self.table[METAPARAMETER + name], float)


def _of_several_worker_counts(restarts):
    """Trials that changed their worker count on the way: their times are of no one count."""
    if not restarts.rows:
        return np.empty(0, np.int64)
    trial, workers = restarts["trial"], restarts["workers"]
    order = np.lexsort((workers, trial))
    same = trial[order][1:] == trial[order][:-1]
    return trial[order][1:][same & (workers[order][1:] != workers[order][:-1])]


def _told(path, number, dataset, model, optimizer, plan):
    """What a trial's plan tells: its workload, and whether it repeats a search's winner."""
    plan = plan_at(path, number, plan)
    return workload_of(dataset, model, optimizer, plan), bool((plan.get("sweep") or {}).get("repeat"))


def _different(*columns):
    """The different rows of text columns, and which of them each row is."""
    known: dict = {}
    at = [known.setdefault(row, len(known)) for row in zip(*(column.tolist() for column in columns))]
    return np.array(at, np.int64), list(known)


class _Source:
    """Where the evaluations of a study's trials lie in one log.

    counts  rows of each trial
    untimed whether each trial's seconds are as if not measured
    ranges  (first, stop) of what is read
    order   which of the rows read, laid end to end, are the study's, trial after trial; None: all as they are
    """

    def __init__(self, table, untimed, trial, first, count):
        """trial, first, count: of each stretch of rows of one trial, trials in order, rows in order within one."""
        self.table = table
        self.untimed = untimed
        self.counts = np.bincount(trial, count, len(untimed)).astype(np.int64)
        stop = first + count
        by_row = np.argsort(first)
        apart = np.flatnonzero(first[by_row][1:] - stop[by_row][:-1] > GAP_ROWS) + 1
        groups = [group for group in np.split(by_row, apart) if len(group)]
        self.ranges = [(int(first[group[0]]), int(stop[group[-1]])) for group in groups]
        self.order = None
        if len(groups) > 1 or (first[1:] != stop[:-1]).any():
            begins = np.cumsum([0] + [end - begin for begin, end in self.ranges])[:-1]
            moved = np.empty(len(first), np.int64)
            for group, begin, (from_row, _) in zip(groups, begins, self.ranges):
                moved[group] = first[group] - from_row + begin
            before = np.concatenate([[0], np.cumsum(count)[:-1]])
            self.order = np.repeat(moved - before, count) + np.arange(int(count.sum()))

    def read(self, name) -> np.ndarray:
        """The study's rows of a column, float64; NaN where the log has no such metric."""
        if name not in self.table.columns:
            return np.full(int(self.counts.sum()), np.nan)
        parts = [np.asarray(self.table.read_rows(name, *ends)) for ends in self.ranges]
        values = (parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])).astype(float, copy=False)
        values = values if self.order is None else values[self.order]
        if name == "train_seconds" and self.untimed.any():
            values = np.where(np.repeat(self.untimed, self.counts), np.nan, values)
        return values


def _sources(table, rows) -> list[_Source]:
    """For each study of a log where its evaluations lie."""
    ids, first, count = _stretches(table)
    by_id = np.argsort(rows.id)
    at = np.searchsorted(rows.id[by_id], ids).clip(max=max(len(by_id) - 1, 0))
    known = rows.id[by_id][at] == ids if len(by_id) else np.zeros(len(ids), bool)
    row, first, count = by_id[at[known]] if len(by_id) else at[:0], first[known], count[known]
    place = np.empty(len(rows.id), np.int64)            # of a trial in its study
    for own in rows.of_studies:
        place[own] = np.arange(len(own))
    order = np.lexsort((first, place[row], rows.study[row]))
    row, first, count = row[order], first[order], count[order]
    ends = np.searchsorted(rows.study[row], np.arange(len(rows.studies) + 1))
    return [_Source(table, rows.untimed[own], place[row[begin:end]], first[begin:end], count[begin:end])
            for own, begin, end in zip(rows.of_studies, ends[:-1], ends[1:])]


def _stretches(table):
    """(trial id, first row, rows) of each stretch of /evaluations that is of one trial."""
    ids, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first in range(0, table.rows, BLOCK_ROWS):
        trial = np.asarray(table.read_rows("trial", first, min(first + BLOCK_ROWS, table.rows)))
        at = np.concatenate([[0], np.flatnonzero(trial[1:] != trial[:-1]) + 1])
        ids.append(trial[at])
        starts.append(at + first)
    first = np.concatenate(starts)
    return np.concatenate(ids), first, np.diff(first, append=table.rows)


class _Kept:
    """Columns that were read, the latest used of them, up to KEPT_BYTES or KEPT_COLUMNS."""

    def __init__(self):
        self.columns: OrderedDict = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key, read):
        """The column of the key, read where it is not kept."""
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
    """How each trial of a study fared against a target: arrays of shape (trials,).

    steps      done at the first evaluation that meets it; inf: never (censored at last_step)
    before     steps at the evaluation before, at which the metric was measured and did not meet; 0 where there was
               none; NaN where it never met
    last_step  at the trial's last evaluation; 0 without any
    row        of the evaluation that meets it; -1: never
    """

    study: Study
    target: object
    steps: np.ndarray
    before: np.ndarray
    last_step: np.ndarray
    row: np.ndarray

    @property
    def met(self) -> np.ndarray:
        """Whether each trial met it."""
        return self.row >= 0

    @cached_property
    def seconds(self) -> np.ndarray:
        """Spent in those steps, evaluation left out; inf: never met, NaN: not measured."""
        return _taken(self.study.evaluations.read("train_seconds"), self.row, np.inf)


def outcomes(study: Study, target) -> Outcomes:
    """Each trial held against a target, see Target.met_by: NaN never meets. KeyError without its metric."""
    evaluations = study.evaluations
    values, step = evaluations.read(target.column), evaluations.read("step")
    row = _first_in_trial(target.met_by(values), evaluations.first)
    before = row - 1
    while (gaps := np.flatnonzero((before >= evaluations.first[:-1]) & np.isnan(_taken(values, before)))).size:
        before[gaps] -= 1                   # not measured there
    before[(row >= 0) & (before < evaluations.first[:-1])] = -1
    before = np.where(row >= 0, _taken(step, before, 0.0), np.nan)
    last = np.where(evaluations.counts > 0, evaluations.first[1:] - 1, -1)
    return Outcomes(study, target, _taken(step, row, np.inf), before, _taken(step, last, 0.0), row)


@dataclass(frozen=True, eq=False)
class Best:
    """The best value of each trial and the first step with it: float64, shape (trials,); NaN: none."""

    value: np.ndarray
    step: np.ndarray


def best_metric(study: Study, column: str, minimizes: bool, most: float = np.inf, along: str = "step") -> Best:
    """The best that each trial measured in at most so many steps, NaN apart. KeyError without the metric.

    along   "step", "examples" or "train_seconds": what ``most`` is of
    """
    evaluations = study.evaluations
    values = evaluations.read(column)
    if most < np.inf:
        values = np.where(evaluations.read(along) <= most, values, np.nan)
    best = best_values(evaluations, values, minimizes)
    row = _first_in_trial(values == np.repeat(best, evaluations.counts), evaluations.first)
    return Best(best, _taken(evaluations.read("step"), row))


def best_values(evaluations: Evaluations, values: np.ndarray, minimizes: bool) -> np.ndarray:
    """The best of each trial's values (one a row of the evaluations), NaN apart; NaN: none."""
    best = np.full(len(evaluations.counts), np.nan)
    some = evaluations.counts > 0
    if some.any():
        best[some] = (np.fmin if minimizes else np.fmax).reduceat(values, evaluations.first[:-1][some])
    return best


@dataclass(frozen=True, eq=False)
class Envelope:
    """The fewest steps at which any trial had reached a value, for every value: the Pareto points, easy to strict.

    value   arrays of shape (points,): strictly better from each to the next
    step    strictly more from each to the next, unless the envelope is along something else
    trial   index into the study, the first of those that measured the value there
    along   what is strictly more from each to the next: the steps, or the seconds or examples
    """

    value: np.ndarray
    step: np.ndarray
    trial: np.ndarray
    along: np.ndarray


def envelope(study: Study, column: str, minimizes: bool, among: np.ndarray | None = None,
             along: str = "step") -> Envelope:
    """The envelope of a metric over a study's trials, NaN apart. KeyError without the metric.

    among   bool, shape (trials,): which trials; by default the COMPLETE ones but for repeats of a winner
    along   "step", "examples" or "train_seconds": what the fewest are wanted of
    """
    evaluations = study.evaluations
    values, x = evaluations.read(column), evaluations.read(along)
    among = study.complete & ~study.repeat if among is None else among
    return envelope_of(evaluations, values, x, minimizes, promising(evaluations, values, x, minimizes, among))


def envelope_of(evaluations: Evaluations, values: np.ndarray, x: np.ndarray, minimizes: bool,
                rows: np.ndarray) -> Envelope:
    """The envelope of the values along x, columns of the evaluations, over some of their rows, see ``promising``."""
    cost = values[rows] if minimizes else -values[rows]
    order = np.lexsort((cost, x[rows]))                 # stable: equals stay in order of trials
    rows, best = rows[order], np.minimum.accumulate(cost[order])
    rows = rows[np.append(True, best[1:] < best[:-1])[:len(rows)]]
    return Envelope(values[rows], evaluations.read("step")[rows], evaluations.trial(rows), x[rows])


def promising(evaluations: Evaluations, values: np.ndarray, x: np.ndarray, minimizes: bool,
              among: np.ndarray) -> np.ndarray:
    """The rows of these trials but for most of those with a worse value than one with a smaller x: the earliest row
    beyond any goal is there, and a sort of them is quick.

    x is cut in equal bins; what is worse than the best of all bins before a row's own is no point of an envelope.
    """
    rows = np.flatnonzero(np.repeat(among, evaluations.counts) & ~np.isnan(values) & ~np.isnan(x))
    cost, bins = values[rows] if minimizes else -values[rows], x[rows]
    top = bins.max(initial=0.0)
    if top <= 0:
        return rows
    bins *= (BINS - 1) / top
    bins = bins.astype(np.intp)
    best = np.full(BINS + 1, np.inf)
    np.minimum.at(best[1:], bins, cost)
    return rows[cost <= np.minimum.accumulate(best)[bins]]


def _first_in_trial(chosen, first):
    """The first row of each trial that is chosen; -1: none. chosen: bool, shape (rows,)."""
    rows = np.append(np.flatnonzero(chosen), len(chosen))
    found = rows[np.searchsorted(rows, first[:-1])]
    return np.where(found < first[1:], found, -1)


def _taken(values, rows, missing=np.nan):
    """values[rows], and ``missing`` where there is no row."""
    found = np.full(len(rows), missing)
    found[rows >= 0] = values[rows[rows >= 0]]
    return found
