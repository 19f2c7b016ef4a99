"""Where a step's time goes: getting data, computing, and waiting for communication, as rank 0 measured them.

For a trial: the median step, and each part's share of a step, averaged over its steps, so that a stall counts as one
step however long it was. For a cell: the geometric mean of its runs' medians, and the mean of their shares. The parts
in seconds are share times step; they add up to the step. RunCell.parts are those of a cell.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..log.reader import Log
from ..log.schema import STEP_PARTS
from .rank_times import RankTimes, read_ranks

MOST_ROWS = 2_000_000       # of /steps in one log, above which its steps are not read
NAMES = tuple(name.removesuffix("_seconds") for name in STEP_PARTS)


@dataclass(frozen=True)
class StepParts:
    """The steps of one trial, or of the runs of one cell."""

    steps: int              # timed in parts
    seconds: float          # of the median step
    data: float             # shares of a step, adding up to 1
    compute: float
    communication: float
    ranks: RankTimes | None = None      # where every rank timed its own


SKIPPED = StepParts(0, np.nan, np.nan, np.nan, np.nan)      # more steps than MOST_ROWS


def read_parts(log: Log) -> dict[int, StepParts]:
    """The parts of every trial of a log whose steps were timed in parts, by trial id; {} where none was.

    In a log with more than MOST_ROWS steps, every trial is SKIPPED and nothing is read.
    """
    table = log.steps
    if not table.rows or STEP_PARTS[-1] not in table.columns:
        return {}
    if table.rows > MOST_ROWS:
        return dict.fromkeys(map(int, log.trials["id"]), SKIPPED)
    seconds, trial = table["step_seconds"], table["trial"]
    parts = np.array([table[name] for name in STEP_PARTS])
    whole = np.isfinite(parts).all(0) & (seconds > 0)
    seconds, trial, parts = seconds[whole], trial[whole], parts[:, whole]
    order = np.lexsort((seconds, trial))
    ids, first, count = np.unique(trial[order], return_index=True, return_counts=True)
    ordered = seconds[order]
    medians = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    at = np.searchsorted(ids, trial)
    shares = [np.bincount(at, part / parts.sum(0), len(ids)) / count for part in parts]
    ranks = read_ranks(log)
    return {int(trial): StepParts(int(steps), float(median), float(data), float(compute), float(communication),
                                  ranks.get(int(trial)))
            for trial, steps, median, data, compute, communication in zip(ids, count, medians, *shares)}
