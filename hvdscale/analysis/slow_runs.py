"""What disturbs the times and steps of runs: those that took far longer than the others of their setting, as where a
neighbour was busy or a disk failed, seeds that needed far more steps, and times that drift with the order of the runs.

A run counts as slow where it took over LEAST times as long as the fastest of its setting, and longer than the mean of
the others by more than their spread explains: Student's t for the next value of a sample (one-sided, shared out over
all runs by Bonferroni). The spread is that of the runs that are not slow, pooled over the settings. Where more than one
run in FEWEST seems slow, or most of a setting, times scatter, and none is slow.

Times drift as where a machine grows warm: run i, in the order of their starts, takes exp(m_c + d i) seconds a step at
setting c, and exp(h_k) times that in pass k over the settings, as passes ran at other hours. The slope d is estimated
by least squares, with Student's intervals, from repeats; of passes, from those that go there and back."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from .intervals import CONFIDENCE, Estimate, logarithms, pooled, student_quantile
from .steps import RunCell

LEAST = 1.5
FEWEST = 4
SLOW_AT = 0.01          # probability of any slow run where there is none
LEAST_FREEDOM = 3       # of the spread of the others, or of a drift's residuals, below which nothing is said
LEAST_CHANGE = 0.03     # of a drift, over all runs, below which nothing is said


def slow_runs(samples: Sequence[Sequence[float] | np.ndarray]) -> list[np.ndarray]:
    """Of each setting's seconds, shape (runs,), how many times as long a slow run took as the others; 1: not slow. NaN,
    a run that was not timed, is never slow."""
    logs = [logarithms(one) for one in samples]
    slow = [one > np.nanmin(one, initial=np.inf) + np.log(LEAST) for one in logs]
    runs = sum(np.count_nonzero(~np.isnan(one)) for one in logs)
    if sum(map(np.count_nonzero, slow)) * FEWEST > runs:
        return [np.ones(len(one)) for one in logs]
    while True:
        others = [one[~(out | np.isnan(one))] for one, out in zip(logs, slow)]
        spread = pooled([np.exp(one) for one in others])
        if spread.freedom < LEAST_FREEDOM:
            return [np.ones(len(one)) for one in logs]
        most = scipy.special.stdtrit(spread.freedom, 1 - SLOW_AT / runs) * spread.deviation
        excess = [own - (rest.mean() if len(rest) else 0.0) for own, rest in zip(logs, others)]
        surely = [out & (own > most * np.sqrt(1 + 1 / max(1, len(rest))))
                  for out, own, rest in zip(slow, excess, others)]
        if all((now == before).all() for now, before in zip(surely, slow)):
            return [np.exp(np.where(out & (2 * out.sum() <= len(out)), own, 0.0)) for out, own in zip(slow, excess)]
        slow = surely


def seeds_apart(samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Likewise of each setting's steps to target, shape (seeds,): never one that did not meet (inf), nor where fewer
    than two others of its setting did."""
    met = [np.where(np.isinf(one), np.nan, one) for one in samples]
    found = slow_runs(met)
    return [ratios if np.count_nonzero(~np.isnan(one) & (ratios == 1)) > 1 else np.ones(len(one))
            for one, ratios in zip(met, found)]


def drift_of(cells: Sequence[RunCell], confidence: float = CONFIDENCE) -> tuple[Estimate, list[Estimate]] | None:
    """(the factor by which a step takes longer with each run, by cell seconds an example at the pace of the last run);
    None where the repeats of cells show none, or too little."""
    timed = [(at, run.trial.started, 1 / run.examples_per_second) for at, cell in enumerate(cells) for run in cell.runs
             if run.examples_per_second > 0 and np.isfinite(run.trial.started)]
    if len({when for _, when, _ in timed}) < len(timed) or len(timed) < LEAST_FREEDOM + 2:
        return None                             # of runs that started together the order is not known
    cell, started, seconds = map(np.array, zip(*timed))
    place, logs = np.argsort(np.argsort(started, kind="stable")).astype(float), np.log(seconds)
    count = np.bincount(cell, minlength=len(cells))
    with np.errstate(invalid="ignore"):
        middle, level = (np.bincount(cell, values, len(cells)) / count for values in (place, logs))
    repeat = np.array([np.count_nonzero(place[cell == at] < own) for at, own in zip(cell, place)])
    passes = np.eye(len(timed))[repeat] * (np.diff(repeat[place.argsort()]) >= 0).all()
    design = np.hstack([np.eye(len(cells))[cell], passes])
    within, rest = (own - design @ np.linalg.lstsq(design, own, rcond=None)[0] for own in (place, logs))
    freedom, squares = len(timed) - int(np.linalg.matrix_rank(design)) - 1, float(within @ within)
    if freedom < LEAST_FREEDOM or squares < 1e-9:
        return None
    slope = float(within @ rest) / squares
    variance = float(((rest - slope * within) ** 2).sum()) / freedom
    with_hours = float(((logs - level[cell] - slope * (place - middle[cell])) ** 2).sum()) / (
        len(timed) - np.count_nonzero(count) - 1)
    quantile = float(student_quantile(freedom, confidence))

    def estimate(value: float, error: float, runs: int) -> Estimate:
        half = quantile * np.sqrt(error)
        return Estimate(float(np.exp(value)), float(np.exp(value - half)), float(np.exp(value + half)), runs)
    if abs(slope) <= quantile * np.sqrt(variance / squares) or abs(slope) * (len(timed) - 1) < LEAST_CHANGE:
        return None
    left = len(timed) - 1 - middle
    warm = [estimate(level[at] + slope * left[at], with_hours / count[at] + variance * left[at] ** 2 / squares,
                     int(count[at])) if count[at] else Estimate.unknown() for at in range(len(cells))]
    return estimate(slope, variance / squares, len(timed)), warm
