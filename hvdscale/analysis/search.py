"""What a metaparameter search at one global batch tried and found, and whether the search was large enough.

A *study* draws points of a space until a number of its trials are feasible: finite up to their stop. A study that
minimizes steps to a target may prune: it stops a trial at the step at which the ``prune_keep``-th best of the earlier
draws met the target. A pruned trial is only known to need more steps than that.

Studies of other programs are there as columns alone: what they tried and what was best of it, for figures of best
metaparameters and of trials in their space."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..log.schema import Status
from ..plan.search_space import STEPS_TO_TARGET, DrawEnd, Parameter, acts
from ..plan.settings import KEYS, key_of
from ..target import Target
from .best_of_n import BestOf, best_of_n
from .curves import Curve, CurvePoint
from .defaults import USEFUL_WITHIN
from .intervals import CONFIDENCE, Estimate, rank_deviate
from .steps import RunToTarget, Samples, estimate
from .studies import Study, best_value, group_by, outcomes, rates_of, scales_with_momentum
from .trials import Trial

NEAR = 0.05                     # share of the space: a best point nearer to a bound may be limited by it
IMPROVED = 0.05                 # if the last half of the trials improved the best by more, more trials may improve it
ORDERED = 1.96                  # standard deviations of a rank correlation that chance exceeds once in 40 times
ENDS = {Status.COMPLETE: DrawEnd.BUDGET, Status.INFEASIBLE: DrawEnd.DIVERGED, Status.INCOMPLETE: DrawEnd.FAILED}
LEARNING_RATE, MOMENTUM, EFFECTIVE = "learning_rate", "momentum", "effective_lr"
MOST_VALUES = 8             # of a metaparameter that splits studies into a family of curves
LEAST_TRIALS = 3            # per value, on average over the studies
MANY = 6                    # distinct values of a metaparameter that is not a choice among a few
REACHED, MISSED, STOPPED, DIVERGED = range(4)       # kinds of trials in their space, see Space


class Draw:
    """One point of a study and its trial; None: the log has none.

    kind       BUDGET also with another objective than steps, FAILED also if it was lost or has no trial
    value      steps to the target, inf: not met; or the objective's best value, NaN: none
    cost       to minimize: the value, or its negative; inf where there is none
    step       steps done at that evaluation
    before     at the one before, which did not meet; NaN: unknown, or another objective
    last_step  of its trial; 0 without one. It is ``censored`` where it is only known to need more steps than that
    point      the metaparameters that were drawn and have an effect, by name; empty without a trial"""

    def __init__(self, number: int, trial: Trial | None, target: Target | None, maximizes: bool) -> None:
        self.number, self.trial, self.last_step = number, trial, trial.last_step if trial else 0
        self.kind, self.value, self.step, self.before = DrawEnd.FAILED, math.nan, 0.0, math.nan
        point: Mapping[str, Any] = trial.sweep["point"] if trial else {}
        self.point = {name: value for name, value in point.items() if acts(name, point)}
        if trial:
            self.kind = DrawEnd.PRUNED if trial.pruned else ENDS[trial.status]
        if trial and target:
            run = RunToTarget(trial, target)
            self.value, self.step, self.before = run.steps, run.steps, run.steps_before
            if self.kind == DrawEnd.BUDGET and run.met:
                self.kind = DrawEnd.MET
        elif trial:
            values = trial.metrics.get(trial.sweep["objective"], np.empty(0))
            self.value = best_value(values, not maximizes)
            self.step = 0.0 if math.isnan(self.value) else float(trial.step[values == self.value][0])
        cost = -self.value if maximizes else self.value
        self.cost = math.inf if math.isnan(cost) else cost
        self.feasible = self.kind in (DrawEnd.MET, DrawEnd.BUDGET, DrawEnd.PRUNED)
        self.censored = self.kind == DrawEnd.PRUNED and not math.isfinite(self.value)


class Bound:
    """The position of a value in one dimension of its space; discrete values are ordered where all are numbers.

    position  0 at the lower end, 1 at the upper, on the scale of the search; NaN: unordered values
    distance  from the nearer end, as a share of the space: 0 to 0.5; NaN: unordered values
    final     whether the nearer end is the least value allowed, so that the space cannot be widened there
    near      whether the space may limit the best point: nearly on a bound, or on the last of ordered values"""

    def __init__(self, parameter: Parameter, value: Any) -> None:
        self.parameter, self.value, self.position, self.end = parameter, value, math.nan, math.nan
        ends, key = parameter.values or (parameter.low, parameter.high), KEYS.get(key_of(parameter.name))
        if not parameter.values:
            self.position = float(parameter.position(value))
        elif all(type(end) in (int, float) for end in ends) and len(set(ends)) > 1 and value in ends:
            self.position = sorted(set(ends)).index(value) / (len(set(ends)) - 1)
        self.upper, self.distance = self.position > 0.5, min(self.position, 1 - self.position)
        if not math.isnan(self.position):
            self.end = max(ends) if self.upper else min(ends)
        self.final = not self.upper and key is not None and key.metadata["least"] == self.end
        self.near = not self.final and (self.distance == 0 if parameter.values else self.distance < NEAR)


class Search:
    """One study, against a target, by default its own; None: its objective is a metric.

    draws           those that ended, in order; ``feasible`` of them have a value
    best            the draw with the best value, ties by number; None where none has a value
    repeats         the best one under other seeds, none failed
    done            whether it has all the feasible trials ``wanted``, or its maximum number of draws
    maximizes       whether larger values of the objective are better
    prune_keep      None: no pruning
    points_are_equal    whether trials differ by their seeds alone, or the target is met before the first step
    saved_steps     the most that pruning can have saved: the rest of the pruned trials' budgets, NaN for budgets in
                    seconds; ``saved_share``: of all steps without pruning"""

    def __init__(self, trials: Sequence[Trial], target: Target | None, confidence: float) -> None:
        sweep, self.workload, self.global_batch = trials[0].sweep, trials[0].workload, trials[0].global_batch
        self.study, self.objective, self.prune_keep = (sweep[name] for name in ("study", "objective", "prune_keep"))
        self.space, self.confidence = tuple(map(Parameter.of, sweep["space"])), confidence
        of_steps = self.objective == STEPS_TO_TARGET
        self.maximizes = not of_steps and not sweep["minimizes"]
        self.target = (target or own_target(sweep)) if of_steps else None
        self.wanted = max(trial.sweep["trials"] for trial in trials)
        drawn: dict[int, Trial] = {}            # of the draws that ended; earlier ones may have no trial in the log
        for trial in trials:
            if not trial.sweep["repeat"] and trial.status != Status.RUNNING:
                kept = drawn.setdefault(trial.sweep["draw"], trial)
                if kept.status == Status.INCOMPLETE and not kept.pruned:
                    drawn[trial.sweep["draw"]] = trial      # another attempt, in logs not collected, may have succeeded
        self.draws = tuple(Draw(number, drawn.get(number), self.target, self.maximizes)
                           for number in range(max(drawn, default=-1) + 1))
        self.feasible = tuple(draw for draw in self.draws if draw.feasible)
        self.done = len(self.feasible) >= self.wanted or len(self.draws) >= max(
            trial.sweep["max_draws"] for trial in trials)
        self.best = min((draw for draw in self.feasible if math.isfinite(draw.value)),
                        key=lambda draw: (draw.cost, draw.number), default=None)
        self.points_are_equal = bool(of_steps and self.best and self.best.value == 0) or all(
            one.is_fixed for one in self.space)
        setting = self.best.trial.setting if self.best and self.best.trial else None
        repeats = {trial.seed_key: trial for trial in trials if trial.sweep["repeat"] and trial.setting == setting
                   and trial.status in (Status.COMPLETE, Status.INFEASIBLE)}
        self.repeats = tuple(repeats[seed] for seed in sorted(repeats))
        taken = sum(draw.last_step for draw in self.draws)
        self.saved_steps = float(sum((draw.trial.measurement.get("budget_steps") or math.nan) - draw.last_step
                                     for draw in self.of_kind(DrawEnd.PRUNED) if draw.trial))
        self.saved_share = self.saved_steps / (self.saved_steps + taken) if taken else math.nan
        self.diverged_share = len(self.of_kind(DrawEnd.DIVERGED)) / len(self.draws) if self.draws else math.nan

    def of_kind(self, kind: DrawEnd) -> tuple[Draw, ...]:
        return tuple(draw for draw in self.draws if draw.kind == kind)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The position of the best point in each dimension of the space; a discrete value is near an end only if
        feasible trials did better towards that, by a rank correlation beyond ORDERED."""
        point = self.best.point if self.best else {}
        bounds = [Bound(one, point[one.name]) for one in self.space if one.name in point]
        for bound in bounds:
            name, values = bound.parameter.name, bound.parameter.values
            if values and bound.near:
                found = [(draw.point[name], draw.cost) for draw in self.feasible if draw.point.get(name) in values]
                bound.near = len(found) > 1 and rank_deviate(*zip(*found)) * (-1 if bound.upper else 1) > ORDERED
        return tuple(bounds)

    @property
    def nearest(self) -> Bound | None:
        """Where the best point lies nearest to an end, a dimension that may limit it first; None: none is ordered."""
        ordered = [bound for bound in self.bounds if bound.near or not (
            math.isnan(bound.position) or bound.final or bound.parameter.values)]
        return min(ordered, key=lambda bound: (not bound.near, bound.distance), default=None)

    @cached_property
    def over_seeds(self) -> Estimate | None:
        """Steps to target over the seeds of the best point, including the search's own; None without repeats."""
        trials = (self.best.trial, *self.repeats) if self.best and self.objective == STEPS_TO_TARGET else ()
        runs = [RunToTarget(trial, self.target) for trial in trials if trial and trial.status == Status.COMPLETE]
        if len(runs) < 2:
            return None
        samples = Samples(runs)
        return estimate(samples.steps, samples.steps_before, [run.last_step for run in runs if not run.met],
                        confidence=self.confidence)

    @property
    def repeat_values(self) -> tuple[float, ...]:
        """Each repeat's steps to the target, inf: not met, or the objective's best value; NaN: it diverged."""
        draws = [Draw(0, trial, self.target, self.maximizes) for trial in self.repeats]
        return tuple(math.nan if draw.kind == DrawEnd.DIVERGED else draw.value for draw in draws)

    @cached_property
    def curve(self) -> tuple[BestOf, ...]:
        costs = [draw.last_step if draw.censored else draw.cost for draw in self.feasible]
        return best_of_n(costs, [draw.censored for draw in self.feasible], negated=self.maximizes)

    @property
    def half(self) -> BestOf | None:
        return self.curve[len(self.curve) // 2 - 1] if len(self.curve) > 1 else None

    @property
    def lowered(self) -> float:
        """The least share by which the second half of the trials lowered the median best; 1: most halves had none."""
        if self.half is None or self.best is None:
            return math.nan
        before = self.half.high if self.maximizes else self.half.low
        if math.isinf(before):
            return 1.0
        if self.best.value == before:
            return 0.0
        return abs(self.best.value - before) / abs(before) if before else math.nan

    @property
    def improving(self) -> bool:
        """Whether more trials likely find a better best. One within the spacing of evaluations proves nothing."""
        half, best = self.half, self.best
        return bool(half and best and self.lowered > IMPROVED and (
            self.objective != STEPS_TO_TARGET or half.low - best.value > best.value - np.nan_to_num(best.before)))


def searches_of(trials: Sequence[Trial], target: Target | None = None, confidence: float = CONFIDENCE
                ) -> tuple[Search, ...]:
    """Every study among the trials, by workload, batch and name; trials that belong to none are skipped. A target
    replaces the strictest one of studies that minimize steps; those that do not cover it are left out."""
    judged = [trial for trial in sorted(trials, key=lambda trial: trial.key)
              if trial.study and (target is None or covers(trial.sweep, target))]
    found = [Search(group, target, confidence) for group in group_by(judged, lambda trial: trial.study).values()]
    return tuple(sorted(found, key=lambda search: (search.workload, search.global_batch, search.study)))


def own_target(sweep: Mapping[str, Any]) -> Target | None:
    """The strictest target of a study, at which its trials stop; None where it has none."""
    return Target.parse(sweep["targets"][-1]) if sweep["targets"] else None


def covers(sweep: Mapping[str, Any], target: Target) -> bool:
    """Whether a study can be judged by this target: as easy as its own, where it stops trials at that, or easier."""
    own = own_target(sweep)
    if sweep["objective"] != STEPS_TO_TARGET or own is None:
        return True
    easier = target.value >= own.value if own.minimizes else target.value <= own.value
    return target == own or (target.column, target.minimizes) == (own.column, own.minimizes) and easier


# What studies tried, whichever program made them, and what was best

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
    if not 1 < len(distinct) <= MOST_VALUES or not any(len(np.unique(one)) > 1 for one in values) or sum(
            map(len, values)) < LEAST_TRIALS * len(distinct) * len(studies):
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
    return any(len(np.unique(value[np.isfinite(value)])) > 1 for value in values)


class Space:
    """Trials of one study in the space of two metaparameters, without repeats of a winner, under a budget of steps:
    arrays of shape (trials,).

    kind   REACHED: met the target within the budget; MISSED; STOPPED: pruned before; DIVERGED
    steps  to the target; the last step, at most the budget, of trials that did not meet it
    best   index of the trial with the fewest steps; None: none met it"""

    def __init__(self, study: Study, target: Target, x: str, y: str, most_steps: float = np.inf) -> None:
        reached = outcomes(study, target)
        met, last_step = study.feasible & (reached.steps <= most_steps) & reached.met, np.nan_to_num(reached.last_step)
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
    reached, rows = outcomes(study, target), np.flatnonzero(study.searched)
    cut = study.pruned[rows] & ~reached.met[rows]
    costs = np.where(cut, np.nan_to_num(reached.last_step[rows]), reached.steps[rows])
    sizes = sorted({min(2 ** at, len(rows)) for at in range(len(rows).bit_length() + 1)} - {0})
    best = CurvePoint(study, target, confidence).steps if len(rows) else None
    return BestOfTrials(study.global_batch, "steps", target, best_of_n(costs.tolist(), cut.tolist(), sizes),
                        tuple(map(study.key, rows.tolist())), best, confidence)
