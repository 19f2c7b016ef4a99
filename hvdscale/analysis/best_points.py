"""What was tried and what was best: the records behind figures of best metaparameters and of trials in their space.

    best_points(curve, "learning_rate")         -> (BestPoint(global_batch=64, value=0.12, low=0.06, ...), ...)
    split_by(studies, "label_smoothing")        -> {0.0: (Study, ...), 0.1: (Study, ...)}
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..log.schema import Status
from .base_rates import rates_of, scales_with_momentum
from .best_of_n import best_of
from .intervals import CONFIDENCE, Estimate
from .regimes import USEFUL_WITHIN
from .search import BestOf, best_of_n
from .studies import Study, outcomes

LEARNING_RATE, MOMENTUM, EFFECTIVE = "learning_rate", "momentum", "effective_lr"
MOST_VALUES = 8             # of a metaparameter that a family of curves is made of
LEAST_TRIALS = 3            # a value, on average over the studies
MANY = 6                    # different values from which on a metaparameter is more than a few choices
REACHED, MISSED, STOPPED, DIVERGED = range(4)       # kinds of trials in their space, see Space


@dataclass(frozen=True, eq=False)
class BestPoint:
    """A metaparameter of the trial with the fewest steps to the target at one batch.

    low, high   its range over the trials that needed at most ``within`` more steps than that
    near        how many these are, the best one among them
    keys        these trials, the best one first
    """

    global_batch: int
    value: float
    low: float
    high: float
    near: int
    keys: tuple[tuple[str, int], ...]


def best_points(curve, name: str, within=USEFUL_WITHIN) -> tuple[BestPoint, ...]:
    """The best value of a metaparameter at each batch of a curve whose target was met, by batch.

    name  a metaparameter, or EFFECTIVE; batches whose best trial has none are left out
    """
    found = []
    for point in curve.points:
        if point.best is not None:
            values = metaparameter(point.study, name)
            if np.isfinite(values[point.best]):
                found.append(_best_point(point, values, outcomes(point.study, curve.target), within))
    return tuple(found)


def _best_point(point, values, reached, within):
    study, best = point.study, point.best
    enough = study.feasible & ~study.repeat & (reached.steps <= (1 + within) * reached.steps[best])
    near = np.flatnonzero(enough & np.isfinite(values))
    near = near[np.argsort(near != best, kind="stable")]
    return BestPoint(point.global_batch, float(values[best]), float(values[near].min(initial=values[best])),
                     float(values[near].max(initial=values[best])), max(1, len(near)), tuple(map(study.key, near)))


def metaparameter(study: Study, name: str) -> np.ndarray:
    """A metaparameter of each trial, or its effective learning rate; NaN where it has none."""
    if name == EFFECTIVE:
        return rates_of(study) if scales_with_momentum(study) else np.full(len(study), np.nan)
    return study.metaparameters.get(name, np.full(len(study), np.nan))


def among(study: Study, chosen: np.ndarray) -> Study:
    """The study as if its other trials had not ended: they take no part in anything.

    chosen  bool, shape (trials,)
    """
    status = np.where(chosen, study.status, np.int8(Status.RUNNING)).astype(np.int8)
    return replace(study, status=status, pruned=study.pruned & chosen)


def first_feasible(study: Study, count: int) -> Study:
    """The study with the first ``count`` of its feasible trials, by log and id, and all that diverged: as many at every
    batch as the published analysis takes."""
    return among(study, study.infeasible | study.feasible & (np.cumsum(study.feasible) <= count))


def split_by(studies: Sequence[Study], name: str) -> dict[float, tuple[Study, ...]]:
    """The studies of one workload once for each value of a metaparameter, with the trials of that value alone.

    Empty where it is no choice among a few values, made within studies.
    """
    values = [metaparameter(study, name)[study.feasible & ~study.repeat] for study in studies]
    values = [one[np.isfinite(one)] for one in values]
    different = np.unique(np.concatenate([np.empty(0), *values]))
    if not 1 < len(different) <= MOST_VALUES or not any(len(np.unique(one)) > 1 for one in values):
        return {}
    if sum(map(len, values)) < LEAST_TRIALS * len(different) * len(studies):
        return {}
    return {float(value): tuple(among(study, metaparameter(study, name) == value) for study in studies)
            for value in different}


def choices(studies: Sequence[Study]) -> tuple[str, ...]:
    """The metaparameters by which ``split_by`` splits these studies."""
    names = sorted({name for study in studies for name in study.metaparameters})
    return tuple(name for name in names if split_by(studies, name))


def searched(studies: Sequence[Study]) -> tuple[str, ...]:
    """The metaparameters of which some study tried many values, most first; ties in order of name."""
    counts = {}
    for study in studies:
        for name, values in study.metaparameters.items():
            values = values[np.isfinite(values) & ~study.repeat]
            counts[name] = max(counts.get(name, 0), len(np.unique(values)))
    return tuple(sorted((name for name in counts if counts[name] >= MANY), key=lambda name: (-counts[name], name)))


def is_varied(studies: Sequence[Study], name: str) -> bool:
    """Whether some study tried different values of a metaparameter."""
    values = [metaparameter(study, name) for study in studies]
    return any(len(np.unique(one[np.isfinite(one)])) > 1 for one in values)


@dataclass(frozen=True, eq=False)
class Space:
    """Trials of one study in the space of their metaparameters: arrays of shape (trials,) but for ``best``.

    kind    REACHED: met the target within the budget; MISSED: did not; STOPPED: its search stopped it before the budget
            was spent, so that it is not known; DIVERGED
    steps   to the target; of those that did not meet it, the steps that were seen, at most the budget
    best    index of the trial with the fewest steps; None: none reached it
    """

    global_batch: int
    x: np.ndarray
    y: np.ndarray
    kind: np.ndarray
    steps: np.ndarray
    best: int | None
    keys: tuple[tuple[str, int], ...]


def space_of(study: Study, target, x: str, y: str, most_steps=np.inf) -> Space:
    """The trials of a study by two metaparameters, held to a target and a budget of steps.

    Trials without the one or the other, repeats of a winner and those that never ended are left out.
    """
    reached = outcomes(study, target)
    met = study.feasible & (reached.steps <= most_steps) & reached.met
    stopped = study.pruned & (reached.last_step < most_steps)
    kind = np.select([study.infeasible, met, stopped], [DIVERGED, REACHED, STOPPED], MISSED)
    across, up = metaparameter(study, x), metaparameter(study, y)
    rows = np.flatnonzero((study.feasible | study.infeasible) & ~study.repeat & np.isfinite(across) & np.isfinite(up))
    steps = np.where(met, reached.steps, np.minimum(reached.last_step, most_steps))[rows]
    cost = np.where(kind[rows] == REACHED, steps, np.inf)
    best = int(cost.argmin()) if len(rows) and np.isfinite(cost).any() else None
    return Space(study.global_batch, across[rows], up[rows], kind[rows], steps, best, tuple(map(study.key, rows)))


@dataclass(frozen=True, eq=False)
class BestOfTrials:
    """The median best of n of a search's trials, for some n, see search.best_of_n."""

    global_batch: int
    objective: str
    target: object              # None: the objective is a metric
    curve: tuple[BestOf, ...]
    keys: tuple[tuple[str, int], ...]
    best: Estimate | None = None        # of all of them, as another search of as many would find it; None: not known
    confidence: float = CONFIDENCE


def best_of_trials(study: Study, target, confidence=CONFIDENCE) -> BestOfTrials:
    """The median fewest steps to the target of n of the study's trials, for n = 1, 2, 4, ..., all."""
    reached = outcomes(study, target)
    rows = np.flatnonzero(study.feasible & ~study.repeat)
    cut = study.pruned[rows] & ~reached.met[rows]
    costs = np.where(cut, reached.last_step[rows], reached.steps[rows])
    sizes = sorted({min(2 ** at, len(rows)) for at in range(len(rows).bit_length() + 1)} - {0})
    best = best_of(reached.steps[rows], reached.before[rows], reached.last_step[rows],
                   confidence=confidence) if len(rows) else None
    return BestOfTrials(study.global_batch, "steps", target, best_of_n(costs.tolist(), cut.tolist(), sizes),
                        tuple(map(study.key, rows)), best, confidence)
