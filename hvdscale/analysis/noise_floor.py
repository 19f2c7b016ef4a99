"""The smallest difference that reruns of one setting let so many runs of each side see, by what is measured.

Student's test of two independent samples, done once, sees with probability POWER a difference of logarithms of d, where
d / (s sqrt(2 / n)) is the shift of the noncentral t whose mass beyond the quantile of Student's t is POWER. The spread
s is that of the reruns, so that even one run of each can be judged.

What differs by a share in a metric at a budget, differs in steps by that share over the slope of log metric against log
steps there. So all that is measured can be held against each other: what sees the least in steps needs the fewest runs.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..target import Target
from .decision.sequence import LEAST, smallest_difference
from .intervals import CONFIDENCE, student_quantile
from .published import read
from .steps import SECONDS, SPEED, STEPS, RunCell, cells_by_workers, run_of
from .trials import JobKey, Trial, by_workload

RUNS = (1, 2, 3, 5, 10)
SHARES = (0.25, 0.5, 1.0)       # of the steps that all runs took: budgets
LAST = 5                        # evaluations that are averaged
MORE = (0, 1, 2, 5, 10)         # runs that may follow
P_VALUE, OUTCOMES = 0.05, 4000  # of MLPerf's check; of runs to come


@dataclass(frozen=True, eq=False)
class Floor:
    """Of one measure of a cell: the spread of its logarithm, and what RUNS of each see."""

    workload: JobKey
    cell: RunCell
    measure: str
    runs: int
    spread: float
    smallest: tuple[float, ...]     # shares
    as_steps: tuple[float, ...]     # of the steps to get there; NaN: unknown
    hours: float                    # worker-hours of a run


def floors(trials: Sequence[Trial], targets: Sequence[Target] = (), confidence: float = CONFIDENCE) -> list[Floor]:
    """Every measure of every cell with LEAST runs, at the targets or those of the runs' own plans."""
    found = []
    for workload, own in by_workload(trials).items():
        plans = dict.fromkeys(Target.parse(trial.target) for trial in own if trial.target)
        for target in [*(targets or plans)] or [None]:
            runs = [run_of(trial, target) for trial in own if target is None or target.column in trial.metrics]
            for cell in cells_by_workers([run for run in runs if run.conclusive], confidence).values():
                if len(cell.samples.seeds) >= LEAST and not cell.searched:
                    found += [_floor(workload, cell, *one, confidence) for one in _measures(cell, target)]
    return found


def best_floor(found: Sequence[Floor], runs: int = 3) -> Floor | None:
    """What sees the smallest difference in steps with so many runs of each; None: nothing sees one."""
    known = [one for one in found if np.isfinite(one.as_steps[RUNS.index(runs)])]
    return min(known, key=lambda one: one.as_steps[RUNS.index(runs)], default=None)


def _floor(workload: JobKey, cell: RunCell, measure: str, values: np.ndarray, slope: float, seconds: float,
           confidence: float) -> Floor:
    logs = np.log(values)
    variance, freedom = float(logs.var(ddof=1)), len(logs) - 1
    reached = float(student_quantile(freedom, confidence))
    shares = np.array([smallest_difference(reached, 2 * variance / runs, freedom) for runs in RUNS])
    as_steps = np.expm1(np.log1p(shares) / abs(slope)) if abs(slope) > 1e-3 else np.full(len(RUNS), np.nan)
    return Floor(workload, cell, measure, len(logs), variance ** 0.5, (*shares.tolist(),), (*as_steps.tolist(),),
                 cell.workers[0] * seconds / 3600)


def _measures(cell: RunCell, target: Target | None) -> Iterator[tuple[str, np.ndarray, float, float]]:
    """(name, values by seed, slope of its logarithm against that of steps, seconds of a run)."""
    runs, end = [run.trial for run in cell.runs], float(np.mean([run.last_seconds for run in cell.runs]))
    for name, slope in {STEPS: 1.0, SECONDS: 1.0, SPEED: np.nan}.items() if target else {SPEED: np.nan}.items():
        values = getattr(cell.samples, name)
        if np.isfinite(values).all() and (values > 0).all():
            yield (f"{name} to {target}" if name != SPEED else "throughput"), values, slope, end
    last = min(trial.last_step for trial in runs)
    split = target.column.partition("/")[0] if target else "val"
    for column in [name for name in runs[0].metrics if name.startswith(f"{split}/")]:
        for share in SHARES:
            for count in (1, LAST):
                now, half = ([_average(trial, column, part * last, count) for trial in runs]
                             for part in (share, share / 2))
                if np.isfinite(now).all() and min(now) > 0 and np.ptp(now) > 0:
                    fall = np.mean(np.log(now)) - np.log(np.mean(half)) if np.mean(half) > 0 else np.nan
                    name = f"{column} at {share * last:,.0f} steps{f', mean of {count}' if count > 1 else ''}"
                    yield name, np.array(now), float(fall) / np.log(2), share * end


def _average(trial: Trial, column: str, step: float, count: int) -> float:
    """The mean of the last evaluations up to a step; NaN: fewer."""
    rows = trial.rows_with(column)
    values = trial.metrics[column][rows[trial.step[rows] <= step]][-count:]
    return float(np.mean(values)) if len(values) == count else np.nan


def chances_to_pass(cell: RunCell, workload: JobKey) -> dict[int, float]:
    """The chance that runs pass MLPerf's convergence check after MORE runs; {}: no published batches around this one.

    They must not converge faster than the reference: their mean, without the
    fastest and the slowest, is at least its mean less a one-sided t-test's quantile at P_VALUE. Runs to come are drawn
    by Student's t from those that are there. The published means are of all runs.
    """
    curve = next((one for one in read("mlperf")["curve"] if one["dataset"] == workload.dataset
                  and workload.model in (*one["models"], "reference")), {"values": {0: ()}})
    batches, values = zip(*sorted((int(at), value) for at, value in curve["values"].items()))
    examples, batch = cell.samples.steps * cell.global_batch, cell.global_batch
    runs = len(examples)
    if runs < LEAST or not batches[0] <= batch <= batches[-1] or not np.isfinite(examples).all():
        return {}
    mean, reference, variation = (np.interp(batch, batches, column) for column in zip(*values))
    unit = curve["train_examples"] if curve.get("kind") == "epochs" else 1
    random, chances = np.random.default_rng([0, 15]), {}
    drawn = np.mean(examples) + np.std(examples, ddof=1) * np.sqrt(1 + 1 / runs) * random.standard_t(
        runs - 1, (OUTCOMES, max(MORE)))
    for more in MORE:
        every = np.sort(np.column_stack([np.broadcast_to(examples, (OUTCOMES, runs)), drawn[:, :more]]), 1)[:, 1:-1]
        counts = np.array([every.shape[1], reference - 2])
        least = unit * mean * (1 - variation / 100 * student_quantile(counts.sum() - 2, 1 - 2 * P_VALUE) * np.sqrt(
            (1 / counts).sum()))
        chances[more] = float(np.mean(every.mean(1) >= least))
    return chances
