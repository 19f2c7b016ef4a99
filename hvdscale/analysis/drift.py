"""Times that drift with the order of the runs, as where a machine grows warm or a neighbour busy.

In the logarithm, the seconds of a step of run i at setting c are m_c + d i, with i the place of the run in the order of
their starts. The slope d is estimated by least squares within settings, from those with repeats, so that it holds
nothing of what the settings differ by; intervals are Student's, of the residuals.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .intervals import CONFIDENCE, Estimate, student_quantile
from .steps import RunCell

LEAST_FREEDOM = 3       # residuals less slope and settings, below which nothing is said
LEAST_CHANGE = 0.03     # over all runs, below which nothing is said


@dataclass(frozen=True)
class Drift:
    """A drift that the repeats show."""

    a_run: Estimate                 # the factor by which a step takes longer with each run
    runs: int
    warm: tuple[Estimate, ...]      # by cell, seconds an example at the pace of the last run


def drift_of(cells: Sequence[RunCell], confidence: float = CONFIDENCE) -> Drift | None:
    """The drift of the times of cells; None where their repeats show none, or too little."""
    timed = [(at, run.trial.started, 1 / run.examples_per_second) for at, cell in enumerate(cells) for run in cell.runs
             if run.examples_per_second > 0 and np.isfinite(run.trial.started)]
    if len({when for _, when, _ in timed}) < len(timed) or len(timed) < LEAST_FREEDOM + 2:
        return None                             # of runs that started together the order is not known
    cell, started, seconds = map(np.array, zip(*timed))
    place, logs = np.argsort(np.argsort(started, kind="stable")).astype(float), np.log(seconds)
    count = np.bincount(cell, minlength=len(cells))
    with np.errstate(invalid="ignore"):
        middle, level = (np.bincount(cell, values, len(cells)) / count for values in (place, logs))
    within = place - middle[cell]
    freedom, squares = len(timed) - np.count_nonzero(count) - 1, float(within @ within)
    if freedom < LEAST_FREEDOM or not squares:
        return None
    slope = float(within @ (logs - level[cell])) / squares
    variance = float(((logs - level[cell] - slope * within) ** 2).sum()) / freedom
    quantile = float(student_quantile(freedom, confidence))

    def estimate(value: float, spread: float, runs: int) -> Estimate:
        half = quantile * np.sqrt(variance * spread)
        return Estimate(float(np.exp(value)), float(np.exp(value - half)), float(np.exp(value + half)), runs)
    if abs(slope) <= quantile * np.sqrt(variance / squares) or abs(slope) * (len(timed) - 1) < LEAST_CHANGE:
        return None
    left = len(timed) - 1 - middle
    warm = [estimate(level[at] + slope * left[at], 1 / count[at] + left[at] ** 2 / squares, int(count[at]))
            if count[at] else Estimate.unknown() for at in range(len(cells))]
    return Drift(estimate(slope, 1 / squares, len(timed)), len(timed), tuple(warm))
