"""Where a step's time goes: getting data, computing, and waiting for communication, as rank 0 measured them.

Of a trial: the median step, and each part's share of a step, the mean over its steps; so one stall counts as one step
however long it was. Of a cell: the geometric mean of its runs' medians, and the mean of their shares. The parts in
seconds are share times step, and add up to it.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .intervals import geometric_mean

MOST_ROWS = 2_000_000       # of /steps in one log: beyond, its steps are not read
NAMES = ("data", "compute", "communication")


@dataclass(frozen=True)
class StepParts:
    """The steps of one trial, or of the runs of one cell."""

    steps: int              # timed in parts
    seconds: float          # of the median step
    data: float             # shares of a step, adding up to 1
    compute: float
    communication: float


SKIPPED = StepParts(0, *[np.nan] * 4)       # there were more steps than are read


def read_parts(log) -> dict[int, StepParts]:
    """The parts of every trial of a log whose steps were timed in parts, by trial id; {} where none was.

    Of a log with more than MOST_ROWS steps nothing is read: every trial is SKIPPED.
    """
    table = log.steps
    if not table.rows or f"{NAMES[-1]}_seconds" not in table.columns:
        return {}
    if table.rows > MOST_ROWS:
        return dict.fromkeys(map(int, log.trials["id"]), SKIPPED)
    seconds, trial = table["step_seconds"], table["trial"]
    parts = np.array([table[f"{name}_seconds"] for name in NAMES])
    whole = np.isfinite(parts).all(0) & (seconds > 0)
    seconds, trial, parts = seconds[whole], trial[whole], parts[:, whole]
    order = np.lexsort((seconds, trial))
    ids, first, count = np.unique(trial[order], return_index=True, return_counts=True)
    ordered = seconds[order]
    medians = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    at = np.searchsorted(ids, trial)
    shares = [np.bincount(at, part / parts.sum(0), len(ids)) / count for part in parts]
    return {int(trial): StepParts(int(steps), float(median), *map(float, own))
            for trial, steps, median, *own in zip(ids, count, medians, *shares)}


def parts_of(cell) -> StepParts | None:
    """The parts of a cell's runs; None where no run has them."""
    found = [run.trial.step_parts for run in cell.runs if run.trial.step_parts and run.trial.step_parts.steps]
    if not found:
        return None
    return StepParts(sum(one.steps for one in found), float(geometric_mean([one.seconds for one in found])),
                     *(float(np.mean([getattr(one, name) for one in found])) for name in NAMES))
