"""The rows of logs, read once for trials and studies alike: trials as columns, and the evaluations of groups of them.

Evaluations are ordered by trial and read lazily, a column at a time. So this works for one trial and for 200,000 alike;
the logs must stay open meanwhile."""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LogError
from ..log.plan_text import plan_at
from ..log.reader import Log, LogTable
from ..log.schema import CUT_SHORT, PRUNED, UNKNOWN_SEED, Status
from ..target import Target
from .jobs import ONE_VERSION, JobKey, Versions, workload_of

BLOCK_ROWS = 1 << 19        # of /evaluations, searched at a time for where trials begin
GAP_ROWS = 1 << 16          # longest gap between two stretches of a study that is read through rather than skipped
KEPT_BYTES = 64 << 20       # cached columns, over all studies of one call of studies_of
KEPT_COLUMNS = 3            # cached however large they are
METAPARAMETER = "metaparameters/"

SeedKey = tuple[int, str, int]


def seed_key(seed: int, trial: tuple[str, int]) -> SeedKey:
    """What runs are grouped and paired by: equal for those of one seed, and for no others where it is unknown."""
    return (seed, *trial) if seed == UNKNOWN_SEED else (seed, "", 0)


def is_pruning(stop_reason: str) -> bool:
    """Whether an INCOMPLETE trial's stop reason is that its study pruned it."""
    return stop_reason.startswith(PRUNED)


class TrialRows:
    """The rows of a log's /trials as columns, with what their plans say; plans that are alike are read once. Untimed
    trials changed their worker count partway, so that their times apply to no single count."""

    def __init__(self, log: Log, versions: Versions = ONE_VERSION) -> None:
        table = log.trials
        self.path, self.table, self._evaluations = log.path, table, log.evaluations
        self.id, self.seed, self.budget_steps, self.global_batch = (
            np.asarray(table[name]) for name in ("id", "seed", "budget_steps", "global_batch"))
        self.metaparameters = [name.removeprefix(METAPARAMETER) for name in table.columns
                               if name.startswith(METAPARAMETER)]
        stopped, reasons = np.asarray(table["status"]) == Status.INCOMPLETE, table["stop_reason"]
        self.pruned = stopped & np.array([*map(is_pruning, reasons)], bool)
        cut_short = stopped & np.array([reason.startswith(CUT_SHORT) for reason in reasons], bool)      # count as ended
        self.status = np.where(cut_short, np.int8(Status.COMPLETE), np.asarray(table["status"], np.int8))
        self._alike, rows = _find_distinct(*(table[name] for name in ("dataset", "model", "optimizer", "plan")))
        first = self.id[np.unique(self._alike, return_index=True)[1]]
        self._plans = [plan_at(log.path, number, row[-1]) for number, row in zip(first.tolist(), rows)]
        self.repeat = np.array([(plan.get("sweep") or {}).get("repeat") for plan in self._plans], bool)[self._alike]
        self.branch = np.array([bool(plan.get("branch")) for plan in self._plans], bool)[self._alike]
        self.replicas = np.array([bool((plan.get("problem") or {}).get("local_steps")) and not plan.get("sweep")
                                  for plan in self._plans], bool)[self._alike]
        trial = np.unique([log.restarts["trial"], log.restarts["workers"]], axis=1)[0]      # once for each worker count
        self.untimed = np.isin(self.id, trial[1:][trial[1:] == trial[:-1]])
        numbers: dict[JobKey, int] = {}
        known = [numbers.setdefault(versions.of(workload_of(dataset, model, optimizer, plan), plan), len(numbers))
                 for (dataset, model, optimizer, _), plan in zip(rows, self._plans)]
        self.workloads, self._workload = list(numbers), np.array(known, np.int64)[self._alike]

    def plan(self, row: int) -> Mapping[str, Any]:
        return self._plans[self._alike[row]]

    def workload(self, row: int) -> JobKey:
        """The workload of a trial: the same object for all that share it."""
        return self.workloads[self._workload[row]]

    def metaparameter(self, name: str) -> np.ndarray:
        """Float64; NaN where the log does not have it."""
        if name not in self.metaparameters:
            return np.full(len(self.id), np.nan)
        return np.asarray(self.table[METAPARAMETER + name], float)

    def by_study(self) -> list[np.ndarray]:
        """The rows of each workload at each batch, by id; without branches, and replicas beside synchronous runs."""
        order = np.lexsort((self.id, self.global_batch, self._workload))
        order = order[~self.branch[order]]
        changes = np.diff(self._workload[order]).astype(bool) | np.diff(self.global_batch[order]).astype(bool)
        groups = np.split(order, np.flatnonzero(changes) + 1) if len(order) else []
        return [own if self.replicas[own].all() else own[~self.replicas[own]] for own in groups]

    def sources_of(self, groups: Sequence[np.ndarray]) -> list[SourceRows]:
        """Where the evaluations of groups of rows are: stretches of consecutive rows of one trial in /evaluations."""
        group, place = np.full(len(self.id), -1), np.zeros(len(self.id), np.int64)
        for number, own in enumerate(groups):
            group[own], place[own] = number, np.arange(len(own))
        table, trials, starts = self._evaluations, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for begin in range(0, table.rows, BLOCK_ROWS):
            trial = np.asarray(table.read("trial", begin, min(begin + BLOCK_ROWS, table.rows)))
            at = np.concatenate([[0], np.flatnonzero(trial[1:] != trial[:-1]) + 1])
            trials.append(trial[at])
            starts.append(at + begin)
        ids, first = np.concatenate(trials), np.concatenate(starts)
        asked = np.isin(ids, self.id[group >= 0])
        ids, first, count = ids[asked], first[asked], np.diff(first, append=table.rows)[asked]
        by_id = np.argsort(self.id)
        row = by_id[np.searchsorted(self.id, ids, sorter=by_id)]
        order = np.lexsort((first, place[row], group[row]))
        row, first, count = row[order], first[order], count[order]
        ends = np.searchsorted(group[row], np.arange(len(groups) + 1))
        return [SourceRows(table, self.untimed[own], place[row[begin:end]], first[begin:end], count[begin:end])
                for own, begin, end in zip(groups, ends[:-1], ends[1:])]


def _find_distinct(*columns: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """(index, distinct rows): the distinct rows of text columns, and for each row its index among them."""
    known: dict[tuple[str, ...], int] = {}
    at = [known.setdefault(row, len(known)) for row in zip(*(column.tolist() for column in columns))]
    return np.array(at, np.int64), list(known)


class SourceRows:
    """Where the evaluations of a study's trials are in one log: ``counts`` rows of each trial in these ``ranges`` of
    rows to read. ``order`` are those of them that are the study's, by trial; None: all of them in order."""

    def __init__(self, table: LogTable, untimed: np.ndarray, trial: np.ndarray, first: np.ndarray, count: np.ndarray
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
        parts = [np.asarray(self.table.read(name, *ends)) for ends in self.ranges]
        values = (parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])).astype(float, copy=False)
        values = values if self.order is None else values[self.order]
        if name == "train_seconds" and self.untimed.any():
            values = np.where(np.repeat(self.untimed, self.counts), np.nan, values)
        return values


class Kept:
    """The most recently used columns, up to KEPT_BYTES or KEPT_COLUMNS."""

    def __init__(self) -> None:
        self.columns: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], np.ndarray]) -> np.ndarray:
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


class Evaluations:
    """The evaluations of some trials: rows in order of trial, then of step.

    first    int64, shape (trials + 1,): trial i has the rows first[i]:first[i + 1]; ``counts`` are their numbers
    specs    what the first log that has a column says of it, by name
    columns  split/metric that any of its logs has"""

    def __init__(self, sources: Sequence[SourceRows], names: Sequence[tuple[str, np.ndarray]], kept: Kept) -> None:
        self.counts = np.concatenate([source.counts for source in sources])
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        self.specs = {name: spec for source in reversed(sources) for name, spec in source.table.specs.items()}
        self.columns = tuple(dict.fromkeys(name for source in sources for name in source.table.columns if "/" in name))
        self.outcomes: dict[Target, Any] = {}       # see studies.outcomes
        self._sources, self._names, self._kept = sources, names, kept
        self._order: slice | np.ndarray | None = None       # sorts the rows of each trial by step, once known

    def read(self, name: str) -> np.ndarray:
        """A column, float64 of shape (rows,): "step", "examples", "train_seconds" or one of ``columns``; NaN in trials
        of a log without it; KeyError where none has it."""
        if "/" in name and name not in self.columns:
            raise KeyError(f"there is no {name}; there are {', '.join(self.columns) or 'no metrics'}")
        return self._kept.get((self, name), lambda: self._read(name))

    def _read(self, name: str) -> np.ndarray:
        if self._order is None and name != "step":
            self.read("step")
        parts = [source.read(name) for source in self._sources]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self._order is None:             # these are the steps
            order: slice | np.ndarray = slice(None)
            if not np.isin(np.flatnonzero(values[1:] <= values[:-1]) + 1, self.first).all():
                trial = np.repeat(np.arange(len(self.counts)), self.counts)
                order = np.lexsort((values, trial))
                twice = np.flatnonzero((np.diff(trial[order]) == 0) & (np.diff(values[order]) == 0))
                if len(twice):
                    row = order[twice[0]]
                    path, number = [(path, one) for path, ids in self._names for one in ids][trial[row]]
                    raise LogError(f"{path}: trial {number}: evaluations/step is {values[row]:.0f} twice; two runs may "
                                   "have been given one trial id")
            self._order = order
        return values[self._order]
