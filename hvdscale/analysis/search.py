"""What a metaparameter search at one global batch found, and whether the search was large enough.

A *study* draws points of a space until a number of its trials are feasible: finite up to their stop. A study that
minimizes steps to a target may prune: it stops a trial at the step at which the ``prune_keep``-th best of the earlier
draws met the target. A pruned trial is only known to need more steps than that."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..log.schema import Status
from ..plan.search_space import STEPS_TO_TARGET, DrawEnd, Parameter, acts
from ..plan.settings import KEYS, key_of
from ..target import Target
from .best_of_n import BestOf, best_of_n
from .grouping import group_by
from .intervals import CONFIDENCE, Estimate
from .steps import estimate, run_of, samples_of
from .studies import best_value
from .trials import JobKey, Trial

NEAR = 0.05                     # share of the space: a best point nearer to a bound may be limited by it
IMPROVED = 0.05                 # if the last half of the trials improved the best by more, more trials may improve it
ORDERED = 1.96                  # standard deviations of a rank correlation that chance exceeds once in 40 times


@dataclass(frozen=True, eq=False)
class Draw:
    """One point of a study and its trial."""

    number: int
    kind: DrawEnd           # BUDGET also with another objective than steps, FAILED also if it was lost or has no trial
    value: float            # steps to the target, inf: not met; or the objective's best value, NaN: none
    cost: float             # to minimize: the value, or its negative; inf where there is none
    step: float             # steps done at that evaluation
    before: float           # at the one before, which did not meet; NaN: unknown, or another objective
    trial: Trial | None     # None: the log has none

    @property
    def feasible(self) -> bool:
        return self.kind in (DrawEnd.MET, DrawEnd.BUDGET, DrawEnd.PRUNED)

    @property
    def censored(self) -> bool:
        """Whether it is only known to need more than its ``last_step`` steps."""
        return self.kind == DrawEnd.PRUNED and not math.isfinite(self.value)

    @property
    def last_step(self) -> int:
        """The last step of its trial; 0 without one."""
        return self.trial.last_step if self.trial else 0

    @property
    def point(self) -> Mapping[str, Any]:
        """The metaparameters that were drawn and have an effect, by name; empty without a trial."""
        point = self.trial.sweep["point"] if self.trial else {}
        return {name: value for name, value in point.items() if acts(name, point)}


@dataclass(frozen=True)
class Bound:
    """The position of a point in one dimension of its space."""

    parameter: Parameter
    value: object
    position: float             # 0 at the lower end, 1 at the upper, on the scale of the search; NaN: unordered values
    matters: bool = True        # for discrete values: whether those at the nearer end did better than by chance

    @property
    def upper(self) -> bool:
        return self.position > 0.5

    @property
    def end(self) -> Any:
        ends = self.parameter.values or (self.parameter.low, self.parameter.high)
        return max(ends) if self.upper else min(ends)

    @property
    def distance(self) -> float:
        """From the nearer end, as a share of the space: 0 to 0.5; NaN: unordered values."""
        return min(self.position, 1 - self.position)

    @property
    def final(self) -> bool:
        """Whether the nearer end is the least value allowed, so that the space cannot be widened there."""
        key = KEYS.get(key_of(self.parameter.name))
        return not self.upper and key is not None and key.metadata["least"] == self.end

    @property
    def near(self) -> bool:
        """Whether the space may limit the best point: nearly on a bound, or the last of values that do better there."""
        if math.isnan(self.position) or self.final:
            return False
        return self.distance == 0 and self.matters if self.parameter.values else self.distance < NEAR


@dataclass(frozen=True, eq=False)
class Search:
    """One study. ``draws`` are those that ended, in order; ``repeats`` the best one under other seeds, none failed."""

    study: str
    workload: JobKey
    global_batch: int
    space: tuple[Parameter, ...]
    objective: str              # STEPS_TO_TARGET, or a metric's column
    target: Target | None       # None: the objective is a metric
    maximizes: bool             # whether larger values of the objective are better
    wanted: int                 # feasible trials asked for
    max_draws: int
    prune_keep: int | None      # None: no pruning
    draws: tuple[Draw, ...]
    repeats: tuple[Trial, ...]
    confidence: float

    def of_kind(self, kind: DrawEnd) -> tuple[Draw, ...]:
        return tuple(draw for draw in self.draws if draw.kind == kind)

    @cached_property
    def feasible(self) -> tuple[Draw, ...]:
        return tuple(draw for draw in self.draws if draw.feasible)

    @property
    def done(self) -> bool:
        """Whether it has all the feasible trials asked for, or its maximum number of draws."""
        return len(self.feasible) >= self.wanted or len(self.draws) >= self.max_draws

    @property
    def points_are_equal(self) -> bool:
        """Whether trials differ by their seeds alone, or the target is met before the first step."""
        untrained = self.objective == STEPS_TO_TARGET and self.best is not None and self.best.value == 0
        return untrained or all(one.is_fixed for one in self.space)

    @property
    def diverged_share(self) -> float:
        return len(self.of_kind(DrawEnd.DIVERGED)) / len(self.draws) if self.draws else math.nan

    @cached_property
    def best(self) -> Draw | None:
        """The draw with the best value, ties by number; None where none has a value."""
        found = [draw for draw in self.feasible if math.isfinite(draw.value)]
        return min(found, key=lambda draw: (draw.cost, draw.number), default=None)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The position of the best point in each dimension of the space; a value matters if feasible trials did better
        towards its end, by a rank correlation beyond ORDERED."""
        point = self.best.point if self.best else {}
        bounds = [bound_of(one, point[one.name]) for one in self.space if one.name in point]
        for at, bound in enumerate(bounds):
            name, values = bound.parameter.name, bound.parameter.values
            if values:
                found = [(draw.point[name], draw.cost) for draw in self.feasible
                         if not math.isnan(bound.position) and draw.point.get(name) in values]
                bounds[at] = replace(bound, matters=len(found) > 1 and rank_deviate(*zip(*found)) * (
                    -1 if bound.upper else 1) > ORDERED)
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
        best = self.best.trial if self.best and self.objective == STEPS_TO_TARGET else None
        runs = [run_of(trial, self.target) for trial in (best, *self.repeats) if trial.status == Status.COMPLETE
                ] if best else []
        if len(runs) < 2:
            return None
        samples = samples_of(runs)
        return estimate(samples.steps, samples.steps_before, [run.last_step for run in runs if not run.met],
                        confidence=self.confidence)

    @property
    def repeat_values(self) -> tuple[float, ...]:
        """Each repeat's steps to the target, inf: not met, or the objective's best value; NaN: it diverged."""
        draws = [_read_draw(0, trial, self.target, self.maximizes) for trial in self.repeats]
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
        if self.half is None or self.best is None or not self.lowered > IMPROVED:
            return False
        return self.objective != STEPS_TO_TARGET or (
            self.half.low - self.best.value > self.best.value - np.nan_to_num(self.best.before))

    @property
    def saved_steps(self) -> float:
        """The most that pruning can have saved: the rest of the pruned trials' budgets; NaN for budgets in seconds."""
        pruned = [draw.trial for draw in self.of_kind(DrawEnd.PRUNED) if draw.trial]
        return float(sum((trial.measurement.get("budget_steps") or math.nan) - trial.last_step for trial in pruned))

    @property
    def saved_share(self) -> float:
        """``saved_steps`` as a share of all steps without pruning."""
        taken = sum(draw.last_step for draw in self.draws)
        return self.saved_steps / (self.saved_steps + taken) if taken else math.nan


def searches_of(trials: Sequence[Trial], target: Target | None = None, confidence: float = CONFIDENCE
                ) -> tuple[Search, ...]:
    """Every study among the trials, by workload, batch and name; trials that belong to none are skipped. A target
    replaces the strictest one of studies that minimize steps; those that do not cover it are left out."""
    judged = [trial for trial in sorted(trials, key=lambda trial: trial.key)
              if trial.study and (target is None or covers(trial.sweep, target))]
    found = [_search(group, target, confidence) for group in group_by(judged, lambda trial: trial.study).values()]
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


def bound_of(parameter: Parameter, value: Any) -> Bound:
    """The position of a value in a dimension; discrete values are ordered where all are distinct numbers."""
    if not parameter.values:
        return Bound(parameter, value, float(parameter.position(value)))
    ordered = sorted(set(parameter.values)) if all(type(one) in (int, float) for one in parameter.values) else ()
    position = ordered.index(value) / (len(ordered) - 1) if len(ordered) > 1 and value in ordered else math.nan
    return Bound(parameter, value, position)


def rank_deviate(values: ArrayLike, costs: ArrayLike) -> float:
    """How strongly costs rise with values, in standard deviations under chance: Spearman's rank correlation times
    sqrt(n - 1), ties by mean rank. For two distinct values, the rank-sum test. 0 where either are all equal."""
    ranks: list[np.ndarray] = []
    for column in (values, costs):
        _, group, count = np.unique(np.asarray(column, float), return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[group])
    if (np.ptp(ranks, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(np.array(ranks))[0, 1] * math.sqrt(ranks[0].size - 1))


def _search(trials: Sequence[Trial], target: Target | None, confidence: float) -> Search:
    sweep = trials[0].sweep
    maximizes = sweep["objective"] != STEPS_TO_TARGET and not sweep["minimizes"]
    target = (target or own_target(sweep)) if sweep["objective"] == STEPS_TO_TARGET else None
    wanted, max_draws = (max(trial.sweep[name] for trial in trials) for name in ("trials", "max_draws"))
    drawn: dict[int, Trial] = {}            # of the draws that ended; earlier ones may have no trial in the log
    for trial in trials:
        if not trial.sweep["repeat"] and trial.status != Status.RUNNING:
            kept = drawn.setdefault(trial.sweep["draw"], trial)
            if _classify(kept) == DrawEnd.FAILED:           # another attempt, in logs not collected, may have succeeded
                drawn[trial.sweep["draw"]] = trial
    draws = tuple(_read_draw(number, drawn.get(number), target, maximizes)
                  for number in range(max(drawn, default=-1) + 1))
    search = Search(sweep["study"], trials[0].workload, trials[0].global_batch,
                    tuple(map(Parameter.of, sweep["space"])), sweep["objective"], target, maximizes, wanted, max_draws,
                    sweep["prune_keep"], draws, (), confidence)
    best = search.best.trial if search.best else None
    repeats = {trial.seed_key: trial for trial in trials if best and trial.sweep["repeat"]
               and trial.setting == best.setting and trial.status in (Status.COMPLETE, Status.INFEASIBLE)}
    return replace(search, repeats=tuple(repeats[seed] for seed in sorted(repeats)))


def _read_draw(number: int, trial: Trial | None, target: Target | None, maximizes: bool) -> Draw:
    kind = _classify(trial) if trial else DrawEnd.FAILED
    value, step, before = math.nan, 0.0, math.nan
    if trial and target:
        run = run_of(trial, target)
        kind = DrawEnd.MET if kind == DrawEnd.BUDGET and run.met else kind
        value, step, before = run.steps, run.steps, run.steps_before
    elif trial:
        values = trial.metrics.get(trial.sweep["objective"], np.empty(0))
        value = best_value(values, not maximizes)
        step = 0.0 if math.isnan(value) else float(trial.step[values == value][0])
    cost = -value if maximizes else value
    return Draw(number, kind, value, math.inf if math.isnan(cost) else cost, step, before, trial)


def _classify(trial: Trial) -> DrawEnd:
    if trial.status == Status.INCOMPLETE:
        return DrawEnd.PRUNED if trial.pruned else DrawEnd.FAILED
    return DrawEnd.DIVERGED if trial.status == Status.INFEASIBLE else DrawEnd.BUDGET
