"""What was tried and what was best: the data of figures of best metaparameters and of trials in their space."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..log.schema import Status
from ..target import Target
from .best_of_n import BestOf, best_of_n
from .curves import Curve, CurvePoint
from .defaults import USEFUL_WITHIN
from .intervals import CONFIDENCE, Estimate
from .studies import Study, outcomes, rates_of, scales_with_momentum

LEARNING_RATE, MOMENTUM, EFFECTIVE = "learning_rate", "momentum", "effective_lr"
MOST_VALUES = 8             # of a metaparameter that splits studies into a family of curves
LEAST_TRIALS = 3            # per value, on average over the studies
MANY = 6                    # distinct values of a metaparameter that is not a choice among a few
REACHED, MISSED, STOPPED, DIVERGED = range(4)       # kinds of trials in their space, see Space


class BestPoint:
    """A metaparameter, of these values, of the trial with the fewest steps to the target at one batch; ends: of its
    range over the trials within USEFUL_WITHIN of the fewest steps; ``keys``: these trials, the best first."""

    def __init__(self, point: CurvePoint, values: np.ndarray, best: int) -> None:
        enough = point.study.searched & (point.reached.steps <= (1 + USEFUL_WITHIN) * point.fewest)
        near = np.flatnonzero(enough & np.isfinite(values))
        near = near[np.argsort(near != best, kind="stable")]
        self.global_batch, self.keys = point.global_batch, tuple(map(point.study.key, near.tolist()))
        self.value, self.low, self.high = float(values[best]), float(values[near].min()), float(values[near].max())


def best_points(curve: Curve, name: str) -> tuple[BestPoint, ...]:
    """The best value of a metaparameter, or EFFECTIVE, at each batch of a curve that met the target and that has it."""
    found = [(point, metaparameter(point.study, name)) for point in curve.searched]
    return tuple(BestPoint(point, values, point.best) for point, values in found
                 if point.best is not None and np.isfinite(values[point.best]))


def metaparameter(study: Study, name: str) -> np.ndarray:
    """A metaparameter of each trial, or its effective learning rate; NaN: it has none."""
    if name == EFFECTIVE:
        return rates_of(study) if scales_with_momentum(study) else np.full(len(study), np.nan)
    return study.metaparameter(name)


def among(study: Study, chosen: np.ndarray) -> Study:
    """The study with its other trials marked as RUNNING, so that they are ignored."""
    status = np.where(chosen, study.status, np.int8(Status.RUNNING)).astype(np.int8)
    return replace(study, status=status, pruned=study.pruned & chosen)


def first_feasible(study: Study, count: int) -> Study:
    """The study with its first ``count`` feasible trials, by log and id, and all that diverged, as published."""
    return among(study, study.infeasible | study.feasible & (np.cumsum(study.feasible) <= count))


def split_by(studies: Sequence[Study], name: str) -> dict[float, tuple[Study, ...]]:
    """The studies of one workload once for each value of a metaparameter, with only the trials of that value. Empty
    unless the metaparameter is a choice among a few values within studies."""
    values = [metaparameter(study, name)[study.searched] for study in studies]
    values = [one[np.isfinite(one)] for one in values]
    distinct = np.unique(np.concatenate([np.empty(0), *values]))
    if not 1 < len(distinct) <= MOST_VALUES or not any(len(np.unique(one)) > 1 for one in values):
        return {}
    if sum(map(len, values)) < LEAST_TRIALS * len(distinct) * len(studies):
        return {}
    return {float(value): tuple(among(study, metaparameter(study, name) == value) for study in studies)
            for value in distinct}


def many_valued(studies: Sequence[Study]) -> tuple[str, ...]:
    """The metaparameters of which some study tried many values, most first; ties in order of name."""
    counts: dict[str, int] = {}
    for study in studies:
        for name, values in study.metaparameters.items():
            values = values[np.isfinite(values) & ~study.repeat]
            counts[name] = max(counts.get(name, 0), len(np.unique(values)))
    return tuple(sorted((name for name in counts if counts[name] >= MANY), key=lambda name: (-counts[name], name)))


def is_varied(studies: Sequence[Study], name: str) -> bool:
    values = [metaparameter(study, name) for study in studies]
    return any(len(np.unique(one[np.isfinite(one)])) > 1 for one in values)


class Space:
    """Trials of one study in the space of two metaparameters, without repeats of a winner, under a budget of steps:
    arrays of shape (trials,).

    kind   REACHED: met the target within the budget; MISSED; STOPPED: pruned before; DIVERGED
    steps  to the target; the last step, at most the budget, of trials that did not meet it
    best   index of the trial with the fewest steps; None: none met it"""

    def __init__(self, study: Study, target: Target, x: str, y: str, most_steps: float = np.inf) -> None:
        reached = outcomes(study, target)
        met = study.feasible & (reached.steps <= most_steps) & reached.met
        last_step = np.nan_to_num(reached.last_step)
        stopped = study.pruned & (last_step < most_steps)
        kind = np.select([study.infeasible, met, stopped], [DIVERGED, REACHED, STOPPED], MISSED)
        across, up = metaparameter(study, x), metaparameter(study, y)
        rows = np.flatnonzero((study.feasible | study.infeasible) & ~study.repeat & np.isfinite(across)
                              & np.isfinite(up))
        self.x, self.y, self.kind, self.keys = across[rows], up[rows], kind[rows], tuple(map(study.key, rows.tolist()))
        self.steps = np.where(met, reached.steps, np.minimum(last_step, most_steps))[rows]
        cost = np.where(self.kind == REACHED, self.steps, np.inf)
        self.best = int(cost.argmin()) if np.isfinite(cost).any() else None


@dataclass(frozen=True, eq=False)
class BestOfTrials:
    """The median best of n of a search's trials, for some n, see best_of_n.best_of_n."""

    global_batch: int
    objective: str
    target: Target | None       # None: the objective is a metric
    curve: tuple[BestOf, ...]
    keys: tuple[tuple[str, int], ...]
    best: Estimate | None = None        # of all trials; its interval is for another search of as many. None: unknown
    confidence: float = CONFIDENCE


def best_of_trials(study: Study, target: Target, confidence: float = CONFIDENCE) -> BestOfTrials:
    """The median fewest steps to the target of n of the study's trials, for n = 1, 2, 4, ..., all."""
    reached = outcomes(study, target)
    rows = np.flatnonzero(study.searched)
    cut = study.pruned[rows] & ~reached.met[rows]
    costs = np.where(cut, np.nan_to_num(reached.last_step[rows]), reached.steps[rows])
    sizes = sorted({min(2 ** at, len(rows)) for at in range(len(rows).bit_length() + 1)} - {0})
    best = CurvePoint(study, target, confidence).steps if len(rows) else None
    return BestOfTrials(study.global_batch, "steps", target, best_of_n(costs.tolist(), cut.tolist(), sizes),
                        tuple(map(study.key, rows.tolist())), best, confidence)
