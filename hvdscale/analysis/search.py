"""What a search over metaparameters at one global batch found, and what it says of itself.

    for search in searches_of(read_trials(log)):
        print(search.best.number, search.best.value, [bound.position for bound in search.bounds])

A *study* draws points of a space until so many of its trials are feasible: finite up to their stop. Where it seeks the
fewest steps to a target it may prune: a trial that has not met the target by the step at which the ``prune_keep``-th
best of the draws before it did is stopped there. So a pruned trial is known only to need more steps than that.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..log.schema import PRUNED, Status
from ..plan.search_space import Parameter, acts
from ..plan.settings import KEYS
from ..target import Target
from .best_of_n import middle_ranks
from .intervals import CONFIDENCE, Estimate
from .steps import estimate, run_of, samples_of
from .trials import Trial, Workload

STEPS = "steps"                 # the objective of a study that seeks the fewest steps to its target
MET, BUDGET, DIVERGED, FAILED = "met", "budget", "diverged", "failed"       # what became of a draw; or PRUNED
NEAR = 0.05                     # of the space: a best point nearer to a bound than that may have been cut off by it
IMPROVED = 0.05                 # more trials promise a better best where the last half of them bettered it by more
ORDERED = 1.96                  # deviations of a rank correlation, which chance alone exceeds once in 40 times


@dataclass(frozen=True, eq=False)
class Draw:
    """One point of a study and its trial.

    kind    MET; BUDGET: spent without meeting the target, or with another objective; PRUNED; DIVERGED; FAILED: threw an
            error, was lost with its workers, or left no trial in the log
    value   steps to the target, inf: not met; with another objective the metric's best value, NaN: none
    step    steps done at that evaluation
    before  steps done at the one before, which did not meet; 0 where there was none
    trial   None: it left none
    """

    number: int
    kind: str
    value: float
    step: float
    before: float
    trial: Trial | None

    @property
    def feasible(self):
        return self.kind in (MET, BUDGET, PRUNED)

    @property
    def censored(self):
        """Whether it is known only to need more than its ``last_step`` steps."""
        return self.kind == PRUNED and not math.isfinite(self.value)

    @property
    def last_step(self):
        return self.trial.last_step if self.trial else 0

    @property
    def point(self) -> Mapping:
        """What was drawn and acts, by name."""
        point = self.trial.sweep["point"]
        return {name: value for name, value in point.items() if acts(name, point)}


@dataclass(frozen=True)
class Bound:
    """Where a point lies in one dimension of its space."""

    parameter: Parameter
    value: object
    position: float             # 0 at the lower end, 1 at the upper, in the scale of the search; NaN: it has no order
    matters: bool = True        # whether, of discrete values, those at the nearer end did better than by chance

    @property
    def upper(self) -> bool:
        """Whether the upper end is the nearer one."""
        return self.position > 0.5

    @property
    def end(self):
        """The value at the nearer end."""
        if self.parameter.values:
            return max(self.parameter.values) if self.upper else min(self.parameter.values)
        return self.parameter.high if self.upper else self.parameter.low

    @property
    def distance(self) -> float:
        """From the nearer end, as a share of the space: 0 to 0.5; NaN: it has no order."""
        return min(self.position, 1 - self.position)

    @property
    def final(self) -> bool:
        """Whether the nearer end is the least that the key takes at all, so that the space cannot be widened there."""
        key = KEYS.get(self.parameter.name)
        return not self.upper and key is not None and key.metadata["least"] == self.end

    @property
    def near(self) -> bool:
        """Whether the space may have cut the best point off: it is the last of ordered values, which do the better the
        nearer they are to it, or nearly on a bound."""
        if math.isnan(self.position) or self.final:
            return False
        return self.distance == 0 and self.matters if self.parameter.values else self.distance < NEAR


@dataclass(frozen=True)
class BestOf:
    """The median over all subsets of ``n`` trials of the best in each: between low and high, which are equal where it
    is known."""

    n: int
    low: float
    high: float

    @property
    def known(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, eq=False)
class Search:
    """One study. ``draws`` are those that ended, in order; ``repeats`` the best one's under other seeds."""

    study: str
    workload: Workload
    global_batch: int
    space: tuple[Parameter, ...]
    objective: str              # STEPS, or a metric's column
    target: Target | None       # that its steps are to; None: the objective is a metric
    maximizes: bool             # whether larger values of the objective are better
    wanted: int                 # feasible trials asked for
    max_draws: int
    prune_keep: int | None      # None: nothing is pruned
    draws: tuple[Draw, ...]
    repeats: tuple[Trial, ...]
    confidence: float

    @property
    def optimizer(self) -> str:
        return self.workload.optimizer

    def of_kind(self, *kinds) -> tuple[Draw, ...]:
        """Its draws of these kinds."""
        return tuple(draw for draw in self.draws if draw.kind in kinds)

    @cached_property
    def feasible(self) -> tuple[Draw, ...]:
        return self.of_kind(MET, BUDGET, PRUNED)

    @property
    def done(self) -> bool:
        """Whether it has as many feasible trials as asked for, or as many draws as it may."""
        return len(self.feasible) >= self.wanted or len(self.draws) >= self.max_draws

    @property
    def met_untrained(self) -> bool:
        """Whether its target is met before the first step, so that no point is better than another."""
        return self.objective == STEPS and self.best is not None and self.best.value == 0

    @property
    def diverged_share(self) -> float:
        """Of all draws; NaN without any."""
        return len(self.of_kind(DIVERGED)) / len(self.draws) if self.draws else math.nan

    @cached_property
    def best(self) -> Draw | None:
        """The draw of the best value, ties by number; None where none has any."""
        found = [draw for draw in self.feasible if math.isfinite(draw.value)]
        return min(found, key=lambda draw: (self._cost(draw), draw.number), default=None)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """Where the best point lies, one dimension of the space after the other."""
        point = self.best.point if self.best else {}
        found = [bound_of(one, point[one.name]) for one in self.space if one.name in point]
        return tuple(replace(bound, matters=self._better_towards(bound)) if bound.parameter.values else bound
                     for bound in found)

    def _better_towards(self, bound):
        """Whether the feasible trials did the better the nearer a value lay to this end, at ORDERED by rank."""
        name, values = bound.parameter.name, bound.parameter.values
        found = [(draw.point[name], self._cost(draw)) for draw in self.feasible if draw.point.get(name) in values]
        if math.isnan(bound.position) or len(found) < 2:
            return False
        return rank_deviate(*zip(*found)) * (-1 if bound.upper else 1) > ORDERED

    @property
    def nearest(self) -> Bound | None:
        """The dimension in which the best point lies nearest to an end, before others one where that may have cut it
        off; None where no dimension has an order."""
        ordered = [bound for bound in self.bounds if bound.near or not (
            math.isnan(bound.position) or bound.final or bound.parameter.values)]
        return min(ordered, key=lambda bound: (not bound.near, bound.distance), default=None)

    @cached_property
    def over_seeds(self) -> Estimate | None:
        """Steps to target over the seeds of the best point, the search's own among them; None without repeats."""
        runs = [run_of(trial, self.target) for trial in (self.best.trial, *self.repeats)
                if trial.status == Status.COMPLETE] if self.best and self.objective == STEPS else []
        if len(runs) < 2:
            return None
        samples = samples_of(runs)
        return estimate(samples.steps, samples.steps_before, [run.last_step for run in runs if not run.met],
                        confidence=self.confidence)

    @property
    def repeat_values(self) -> tuple[float, ...]:
        """Of each repeat, the steps to the target, inf: not met, or the objective's best value; NaN: it diverged."""
        draws = [_draw(0, trial, self.target, self.maximizes) for trial in self.repeats]
        return tuple(math.nan if draw.kind == DIVERGED else draw.value for draw in draws)

    @cached_property
    def curve(self) -> tuple[BestOf, ...]:
        """The median best of n of its feasible trials, n = 1, 2, ..., all of them."""
        costs = [draw.last_step if draw.censored else self._cost(draw) for draw in self.feasible]
        found = best_of_n(costs, [draw.censored for draw in self.feasible])
        return tuple(BestOf(one.n, -one.high, -one.low) for one in found) if self.maximizes else found

    @property
    def half(self) -> BestOf | None:
        """The median best of half of its feasible trials; None where there are fewer than two."""
        return self.curve[len(self.curve) // 2 - 1] if len(self.curve) > 1 else None

    @property
    def lowered(self) -> float:
        """The share by which going from half of the trials to all of them bettered the median best, at least; 1: most
        halves had none; NaN: there is nothing to compare."""
        if self.half is None or self.best is None:
            return math.nan
        before = self.half.high if self.maximizes else self.half.low
        if math.isinf(before):
            return 1.0
        if self.best.value == before:
            return 0.0
        return abs(self.best.value - before) / abs(before) if before else math.nan

    @property
    def on_the_grid(self) -> bool:
        """Whether that is no more than the spacing of the evaluations around the best, so that it tells nothing."""
        return self.objective == STEPS and self.half is not None and self.best is not None and (
            self.half.low - self.best.value <= self.best.value - self.best.before)

    @property
    def improving(self) -> bool:
        """Whether more trials promise a better best."""
        return self.lowered > IMPROVED and not self.on_the_grid

    @property
    def saved_steps(self) -> float:
        """The most that pruning can have saved: what was left of the pruned trials' budgets; NaN of budgets in
        seconds."""
        return float(sum((draw.trial.measurement.get("budget_steps") or math.nan) - draw.last_step
                         for draw in self.of_kind(PRUNED)))

    @property
    def saved_share(self) -> float:
        """The same, of the steps that all draws would have taken then."""
        taken = sum(draw.last_step for draw in self.draws)
        return self.saved_steps / (self.saved_steps + taken) if taken else math.nan

    def _cost(self, draw):
        """What is to be small; inf where there is no value."""
        return math.inf if math.isnan(draw.value) else -draw.value if self.maximizes else draw.value


def searches_of(trials: Sequence[Trial], target: Target | None = None, confidence=CONFIDENCE) -> tuple[Search, ...]:
    """Every study among the trials, by workload, global batch and name; trials of none are passed over.

    target  to hold studies of steps against instead of the strictest of their own; those whose trials were stopped
            before they could tell of it are left out, see ``covers``
    """
    studies: dict[tuple, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.key):
        if trial.sweep and (target is None or covers(trial.sweep, target)):
            studies.setdefault(trial.study, []).append(trial)
    found = [_search(group, target, confidence) for group in studies.values()]
    return tuple(sorted(found, key=lambda search: (search.workload, search.global_batch, search.study)))


def own_target(sweep: Mapping) -> Target | None:
    """The strictest target of a study, at which its trials stop; None where it has none."""
    return Target.parse(sweep["targets"][-1]) if sweep["targets"] else None


def covers(sweep: Mapping, target: Target) -> bool:
    """Whether a study that stops its trials early tells of this target: it is the study's own or an easier one."""
    own = own_target(sweep)
    if sweep["objective"] != STEPS or own is None:
        return True
    easier = target.value >= own.value if own.minimizes else target.value <= own.value
    return target == own or (target.column, target.minimizes) == (own.column, own.minimizes) and easier


def bound_of(parameter: Parameter, value) -> Bound:
    """Where a value lies in a dimension; discrete ones have an order where all are different numbers."""
    if not parameter.values:
        return Bound(parameter, value, float(parameter.position(value)))
    ordered = sorted(set(parameter.values)) if all(type(one) in (int, float) for one in parameter.values) else ()
    position = ordered.index(value) / (len(ordered) - 1) if len(ordered) > 1 and value in ordered else math.nan
    return Bound(parameter, value, position)


def rank_deviate(values: Sequence[float], costs: Sequence[float]) -> float:
    """How far the costs rise with the values, in standard deviations of what chance gives: Spearman's rank correlation
    times sqrt(n - 1), ties by mean rank; of two values it is the rank-sum test. 0 where either are all equal."""
    ranks = np.array([_mean_ranks(values), _mean_ranks(costs)])
    if (np.ptp(ranks, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1] * math.sqrt(len(values) - 1))


def _mean_ranks(values):
    _, group, count = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group]


def best_of_n(costs: Sequence[float], censored: Sequence[bool],
              sizes: Sequence[int] | None = None) -> tuple[BestOf, ...]:
    """The median over all subsets of n of the smallest cost in each, for n = 1, 2, ..., all.

    costs     shape (trials,): inf for one that reached nothing
    censored  shape (trials,): whether the cost is only known to be above the one given
    sizes     the n that are asked for; by default every one

    Of the C(N, n) subsets, C(N, n) - C(N - j, n) hold one of the j smallest costs of all: the median lies where that is
    half of them; where it is exactly half, midway between two costs. Censored costs bound it: from below as they stand,
    from above as inf.
    """
    low = sorted(costs)
    high = sorted(math.inf if cut else cost for cost, cut in zip(costs, censored))
    return tuple(BestOf(n, _midway(low, *middle), _midway(high, *middle))
                 for n in sizes or range(1, len(low) + 1) for middle in [middle_ranks(len(low), n)])


def _midway(ordered, first, second):
    return ordered[first] if first == second else (ordered[first] + ordered[second]) / 2


def _search(trials, target, confidence):
    sweep = trials[0].sweep
    maximizes = sweep["objective"] != STEPS and not sweep["minimizes"]
    target = (target or own_target(sweep)) if sweep["objective"] == STEPS else None
    wanted, max_draws = (max(trial.sweep[name] for trial in trials) for name in ("trials", "max_draws"))
    search = Search(sweep["study"], trials[0].workload, trials[0].global_batch,
                    tuple(map(Parameter.of, sweep["space"])), sweep["objective"], target, maximizes, wanted, max_draws,
                    sweep["prune_keep"], _draws(trials, target, maximizes), (), confidence)
    return replace(search, repeats=_repeats(trials, search.best))


def _draws(trials, target, maximizes):
    """The draws that ended, in order, and those before the last of them that left no trial."""
    found = {}
    for trial in trials:
        if not trial.sweep["repeat"] and trial.status != Status.RUNNING:
            kept = found.setdefault(trial.sweep["draw"], trial)
            if _kind(kept) == FAILED:                   # of several attempts in logs not collected, one that ended well
                found[trial.sweep["draw"]] = trial
    return tuple(_draw(number, found.get(number), target, maximizes) for number in range(max(found, default=-1) + 1))


def _draw(number, trial, target, maximizes):
    if trial is None:
        return Draw(number, FAILED, math.nan, 0.0, 0.0, None)
    kind = _kind(trial)
    if target is not None:
        run = run_of(trial, target)
        return Draw(number, MET if kind == BUDGET and run.met else kind, run.steps, run.steps,
                    run.steps_before, trial)
    values = trial.metrics.get(trial.sweep["objective"], np.empty(0))
    if not np.isfinite(values).any():
        return Draw(number, kind, math.nan, 0.0, 0.0, trial)
    finite = np.where(np.isfinite(values), values, -np.inf if maximizes else np.inf)
    at = int(finite.argmax() if maximizes else finite.argmin())
    before = float(trial.step[at - 1]) if at else 0.0
    return Draw(number, kind, float(values[at]), float(trial.step[at]), before, trial)


def _kind(trial):
    """What became of a trial, but for whether it met a target."""
    if trial.status == Status.INCOMPLETE:
        return PRUNED if trial.pruned else FAILED
    return DIVERGED if trial.status == Status.INFEASIBLE else BUDGET


def _repeats(trials, best):
    """The trials of the best draw's setting under other seeds, by seed; those that failed are none."""
    found = {trial.seed: trial for trial in trials if best and trial.sweep["repeat"]
             and trial.setting == best.trial.setting and trial.status in (Status.COMPLETE, Status.INFEASIBLE)}
    return tuple(found[seed] for seed in sorted(found))
