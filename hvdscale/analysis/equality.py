"""Whether exact runs have the same bits, in every column of /steps and /evaluations that is not in seconds."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from ..log.reader import Log, LogTable
from .grouping import group_by
from .trials import Trial, read_trials

Run = tuple[Log, Trial]
Alone = Sequence[tuple[Trial, Trial]]         # runs without a partner, each with the first run of the other side


@dataclass(frozen=True)
class Difference:
    """After how many steps two runs differ first, in which column, and the value of either; NaN: it has none."""

    step: int
    column: str
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs of one setting and seed, the columns that both have, and where they differ first."""

    baseline: Trial
    candidate: Trial
    columns: tuple[str, ...]
    difference: Difference | None


def runs_of(logs: Iterable[Log]) -> list[Run]:
    """Every trial of open logs; raises UsageError for one that was not exact."""
    found = [(log, trial) for log in logs for trial in read_trials(log)]
    for _, trial in found:
        if not trial.problem.get("exact"):
            raise UsageError(f"{trial.log}: trial {trial.id} did not run with exact = true, so its last bits depend on "
                             "the workers; leave --equal out, or train it with --set exact=true")
    return found


def pair_exact(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[list[Pair], Alone]:
    """Each run of the candidate beside the baseline's first of that setting and seed; the runs without a partner."""
    before, after = (group_by(runs, lambda run: (run[1].workload, run[1].setting, run[1].seed_key))
                     for runs in (baseline, candidate))
    alone = [(trial, others[0][1]) for ours, theirs, others in ((before, after, candidate), (after, before, baseline))
             for key, runs in ours.items() if key not in theirs for _, trial in runs]
    return [_compare(before[key][0], run) for key, runs in after.items() if key in before for run in runs], alone


def _compare(ours: Run, theirs: Run) -> Pair:
    columns: list[str] = []
    found = []
    for name in ("steps", "evaluations"):
        tables: list[LogTable] = [getattr(log, name) for log, _ in (ours, theirs)]
        names = ["step", *(column for column in tables[0] if column in tables[1].columns
                           and column not in ("trial", "step") and not column.endswith("seconds"))]
        columns += [f"{name}/{column}" for column in names]
        sides = [np.array([table.of_trial(column, trial.id) for column in names], np.float64)
                 for table, (_, trial) in zip(tables, (ours, theirs))]
        rows = max(side.shape[1] for side in sides)
        before, after = (np.pad(side, ((0, 0), (0, rows - side.shape[1])), constant_values=np.nan) for side in sides)
        differ = (before.view(np.int64) != after.view(np.int64)) & ~(np.isnan(before) & np.isnan(after))
        if differ.any():
            row = int(differ.any(0).argmax())
            column = int(differ[:, row].argmax())
            found.append(Difference(int(np.nanmin([before[0, row], after[0, row]])), f"{name}/{names[column]}",
                                    float(before[column, row]), float(after[column, row])))
    return Pair(ours[1], theirs[1], tuple(columns), min(found, key=lambda one: one.step, default=None))
