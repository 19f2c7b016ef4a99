"""How many workers to take: time and cost to a target at worker counts that were run, and at those that were not.

    T = S(B) t(W, B)        seconds to target: steps to target (steps_curve), times seconds a step (step_time)
    C = nodes T price       nodes are paid whole: nodes = ceil(W / workers a node)

At each worker count the batch is the one with the least T among those that it can run (_best_of). The knee is the
worker count with the least cost x time: there the efficiency over the time is largest (Eager, Zahorjan and Lazowska
1989). Past it a percent less time costs more than a percent.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .intervals import CONFIDENCE
from .noise import NoiseScale
from .step_time import BOUNDED, EXTRAPOLATED, MEASURED, Links, StepTime, StepTimes, timings_of
from .steps_curve import (ORDER, PREDICTED, Steps, StepsCurve, StepsPoint, log_variance, noise_draws, points_of,
                          quantiles, steps_curve)


@dataclass(frozen=True)
class Request:
    """What the user wants to know.

    workers          counts to hold against each other
    price            of a node-hour; 1 where none was given: costs are then node-hours
    per_node         workers on a node; None: each worker is paid for itself, and they lie as in the logs
    deadline         seconds; budget in the price's currency
    local_batch      examples a worker and pass, or global_batch; with neither the best batch at each worker count
    max_local_batch  that fits a worker's memory; None: the largest in the logs
    accumulate       whether several passes may make one step
    knee             how many percent more cost a percent of time is worth
    """

    workers: tuple[int, ...]
    price: float | None = None
    per_node: int | None = None
    deadline: float | None = None
    budget: float | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    max_local_batch: int | None = None
    accumulate: bool = False
    knee: float = 1.0
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class Value:
    """A number with the ends of its interval: the hull over laws of quantiles of its draws."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Option:
    """One worker count, at the batch with the least time to target. Arrays have shape (draws,)."""

    workers: int
    nodes: int                      # paid for
    global_batch: int
    passes: int                     # k
    steps: Steps
    step_time: StepTime
    seconds: Value                  # T; in units of the first option's where the plan is relative
    cost: Value                     # likewise
    seconds_draws: np.ndarray       # inf: a seed that does not meet the target
    cost_draws: np.ndarray
    statistical_efficiency: Value   # (S0 B0) / (S B), 0: the first option
    system_efficiency: Value        # (x / x0) / (W / W0)
    extrapolated_share: float       # of the variance of log T: what comes of leaving what was run
    trials: tuple[tuple[str, int], ...]

    @property
    def local_batch(self):
        """The most examples of a worker in one pass."""
        return -(-self.global_batch // (self.workers * self.passes))

    @property
    def mark(self):
        """How the time to target is known: as the worse known of S and t."""
        return max(self.steps.mark, self.step_time.mark, key=ORDER.index)

    @property
    def bounded(self):
        """Whether its time is a lower bound only: the lower end of its interval without links that were not timed."""
        return self.step_time.mark == BOUNDED

    @property
    def out_of_reach(self):
        """Whether it has too many workers for the laws of the step time: its time has no upper end."""
        return self.step_time.open


NO_TIMES, NO_STEPS, NOT_MET, AT_ONCE = "no step times", "no steps", "not met", "met at once"     # why there is no plan


@dataclass(frozen=True, eq=False)
class NoPlan:
    """A workload and target that cannot be planned for: NO_TIMES, NO_STEPS, AT_ONCE (met before the first step) or
    NOT_MET, with the best value that any evaluation of the target's metric came to (NaN: none)."""

    workload: object
    target: object
    why: str
    best: float = np.nan


@dataclass(frozen=True, eq=False)
class WorkerPlan:
    """The options by worker count, and which to take; one that is a lower bound only, or whose steps or step time
    are open, is never taken."""

    workload: object
    target: object                          # None: there is none, as for steps that the user gave
    request: Request
    curve: StepsCurve
    times: StepTimes
    options: tuple[Option, ...]
    left_out: tuple[tuple[int, str], ...]   # worker counts without an option, and why
    noise: NoiseScale | None = None         # that stands for B_crit

    @property
    def relative(self):
        """Whether times and costs are in units of the first option's."""
        return self.curve.relative

    @property
    def eligible(self) -> tuple[Option, ...]:
        """The options that may be recommended."""
        return tuple(option for option in self.options
                     if not (option.bounded or option.out_of_reach or option.steps.open))

    @property
    def uses_model(self):
        """Whether a step time of an option that may be recommended is not as measured."""
        return any(option.step_time.mark != MEASURED for option in self.eligible)

    def is_crowded(self, option) -> bool:
        """Whether its step time was measured on hosts with fewer cores than workers."""
        way = option.workers, option.global_batch, option.passes
        return any(one.crowded for one in self.times.timings.found
                   if (one.workers, one.global_batch, one.passes) == way)

    @property
    def fastest(self) -> Option | None:
        """The least time to target."""
        return min(self.eligible, key=lambda option: (option.seconds.value, option.cost.value), default=None)

    @property
    def cheapest(self) -> Option | None:
        """The least cost."""
        return min(self.eligible, key=lambda option: (option.cost.value, option.seconds.value), default=None)

    @property
    def knee(self) -> Option | None:
        """The least cost x time ** knee."""
        weight = self.request.knee
        return min(self.eligible, key=lambda option: np.log(option.cost.value) + weight * np.log(option.seconds.value),
                   default=None)

    @cached_property
    def front(self) -> tuple[Option, ...]:
        """The options that no other beats in time and cost, from the cheapest to the fastest (Pareto)."""
        found = []
        for option in sorted(self.eligible, key=lambda option: (option.seconds.value, option.cost.value)):
            if not found or option.cost.value < found[-1].cost.value:
                found.append(option)
        return tuple(reversed(found))

    def chance_of(self, option, weight) -> float:
        """Share of the draws in which an option has the least cost x time ** weight; inf: the least time."""
        seconds, cost = (np.array([getattr(one, name) for one in self.eligible]) for name in DRAWN)
        score = seconds if np.isinf(weight) else np.log(cost) + (weight * np.log(seconds) if weight else 0.0)
        known = np.isfinite(score).any(0)
        return float(np.mean((score[:, known].argmin(0) == self.eligible.index(option)))) if known.any() else 0.0

    def within(self, chance=0.5) -> tuple[Option, ...]:
        """The options that stay within deadline and budget in at least this share of the draws."""
        return tuple(option for option in self.eligible if self.chance_within(option) >= chance)

    def chance_within(self, option) -> float:
        """Share of the draws in which an option stays within deadline and budget."""
        request = self.request
        most = [np.inf if limit is None else limit for limit in (request.deadline, request.budget)]
        return float(np.mean(np.logical_and(*(getattr(option, name) <= limit for name, limit in zip(DRAWN, most)))))

    def assumed(self, *options) -> tuple[str, ...]:
        """Why chances of these options, or of all that may be recommended, are assumed rather than measured: of MODEL,
        ONE_RUN and PREDICTED those that hold; none where they are measured."""
        options, points = options or self.eligible, self.curve.met
        modelled = any(option.step_time.mark != MEASURED for option in options)
        reasons = {MODEL: modelled and 2 * len(self.told) < len(self.times.model.names),
                   ONE_RUN: any(point.steps.runs < 2 and point.trials for point in points),
                   PREDICTED: any(option.steps.mark == PREDICTED for option in options)}
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def told(self) -> tuple[str, ...]:
        """The parameters of the step-time model that the logs or the user tell."""
        model = self.times.model
        return tuple(name for name in model.names if model.is_told(name, self.request.confidence))

    @property
    def surest(self) -> float:
        """The largest chance that can be stated: the draws are made to hold the intervals, and beyond their ends are of
        a shape that nothing was measured of; nor can n draws tell a chance from one above 1 - 3 / n."""
        return min(self.request.confidence, 1 - 3 / self.curve.draws)

    def under(self, **changes) -> WorkerPlan:
        """The same logs under another request."""
        return plan_of(self.curve, self.times, replace(self.request, **changes), self.workload, self.target, self.noise)


DRAWN = ("seconds_draws", "cost_draws")
LIKELY = 0.75
MODEL, ONE_RUN = "model", "one run"     # why a chance is assumed: few parameters told; steps of one run


def plan_of(curve: StepsCurve, times: StepTimes, request: Request, workload=None, target=None,
            noise=None) -> WorkerPlan:
    """The plan of a steps curve and step times. The times do not depend on the target: for several targets they are
    made once, and each has a curve of its own.

    workload  see analysis.trials; bounds the batch by its training examples where they are known
    """
    drafts, left_out = [], []
    for workers in sorted(set(request.workers)):
        batches, why = _batches(workers, curve, times, request, getattr(workload, "train_examples", 0))
        found = [_Draft(workers, *batch, curve, times, request) for batch in batches]
        found = [draft for draft in found if np.isfinite(draft.value)]
        if found:
            drafts.append(_best_of(found))
        else:
            left_out.append((workers, why or "no batch that it can run is known to meet the target"))
    options = tuple(draft.option(drafts[0], curve.relative) for draft in drafts)
    return WorkerPlan(workload, target, request, curve, times, options, tuple(left_out), noise)


def _best_of(drafts):
    """The one with the least time; at a batch beyond those that met, where steps are a guess, only if a share LIKELY of
    the draws is for it, and where steps are open only if there is no other or it is no choice anyway."""
    inside, beyond, open_above = (
        min((draft for draft in drafts if (draft.steps.beyond, draft.steps.open and not draft.bounded) == side),
            key=lambda draft: (draft.value, draft.passes), default=None)
        for side in ((False, False), (True, False), (True, True)))
    if inside and beyond:
        return beyond if np.mean(beyond.draws < inside.draws) >= LIKELY else inside
    return inside or beyond or open_above


def plans_of(group, request: Request, *, links: Links | None = None, given: StepsPoint | None = None,
             noise_scale: float | None = None, steps=points_of) -> tuple[WorkerPlan | NoPlan, ...]:
    """A plan for each target of a workload; where it has none, one that predicts.

    group        report_data.Group
    links        the network between nodes, where the user knows it
    given        steps to target at one batch, where no run was held against a target
    noise_scale  in examples, in place of the logs' own
    steps        (StepsPoints, draws of their fit or None) of a section with a target
    """
    timings = timings_of(group.trials)
    about = [section for section in group.sections if section.target] or [None]
    if not timings.found:
        return tuple(NoPlan(group.workload, section and section.target, NO_TIMES) for section in about)
    times = StepTimes.of(timings, links)
    noise = NoiseScale(noise_scale, np.nan, np.nan, np.nan, np.nan, 0, 0, 0) if noise_scale else _noise_of(group)
    basis = _Basis(group.workload, times, request, noise)
    if about == [None]:
        cells = [cell for section in group.sections for cell in section.cells]
        return basis.plan(None, (given,) if given else (), None, cells),
    return tuple(basis.plan(section.target, *steps(section), section.cells, _best(section)) for section in about)


@dataclass(frozen=True, eq=False)
class _Basis:
    """What plans for several targets share."""

    workload: object
    times: StepTimes
    request: Request
    noise: NoiseScale | None

    def plan(self, target, points, fit, cells, best=np.nan) -> WorkerPlan | NoPlan:
        """The plan for a target's steps, with the measured times of cells; target None: there is none."""
        if target and not any(point.steps.met for point in points):
            return NoPlan(self.workload, target, NOT_MET, best)
        if any(point.steps.value == 0 for point in points):
            return NoPlan(self.workload, target, AT_ONCE)
        if not points and self.noise is None and not self.request.global_batch:
            return NoPlan(self.workload, None, NO_STEPS)
        noise, confidence = (self.noise if fit is None else None), self.request.confidence
        drawn = None if noise is None else noise_draws(noise.noise_scale, noise.low, noise.high, confidence)
        curve = steps_curve(points, fit, noise=drawn, confidence=confidence)
        return plan_of(curve, self.times.of_cells(cells), self.request, self.workload, target, noise)


def _noise_of(group):
    """The noise scale at the largest batch that has one; None where none is finite."""
    found = [(cell.global_batch, noise.whole.steps, noise.whole) for section in group.sections
             for cell, noise in section.noise if 0 < noise.whole.noise_scale < np.inf]
    return max(found, key=lambda one: one[:2])[2] if found else None


def _best(section):
    """The best value of the target's metric in any evaluation of a section."""
    values = np.concatenate([trial.metrics[section.target.column] for trial in section.trials
                             if section.target.column in trial.metrics] or [np.empty(0)])
    values = values[np.isfinite(values)]
    return float((np.min if section.target.minimizes else np.max)(values)) if len(values) else np.nan


def _batches(workers, curve, times, request, train_examples):
    """(global batch, passes) that a worker count can run, and why there are none."""
    most_local = request.local_batch or request.max_local_batch or times.timings.most_local
    run = {(one.global_batch, one.passes) for one in times.timings.found if one.workers == workers}
    if request.global_batch:
        batches = {request.global_batch}
    elif request.local_batch:
        batches = {workers * request.local_batch * 2 ** power for power in range(12 if request.accumulate else 1)}
    else:
        shares = {most_local, *(2 ** power for power in range(31) if 2 ** power < most_local)}
        batches = {workers * share for share in shares} | {point.global_batch for point in curve.met}
        batches |= {batch for batch, _ in run}
    largest = max([train_examples or np.inf, *(point.global_batch for point in curve.met)])
    sized = [(batch, -(-batch // (workers * most_local))) for batch in sorted(batches) if workers <= batch <= largest]
    found = {(batch, passes) for batch, passes in sized if passes == 1 or request.accumulate}
    if not request.local_batch and not request.max_local_batch:
        found |= {(batch, passes) for batch, passes in run if batch in batches}
    if found:
        return sorted(found), ""
    if workers > largest:
        return [], f"more workers than the {train_examples:,} training examples allow"
    if not sized and min(batches) > largest:
        return [], f"batch {min(batches):,} is larger than the {train_examples:,} training examples"
    if not sized:
        return [], f"batch {max(batches):,} has fewer examples than workers"
    return [], f"more than {most_local:,} examples a worker; --accumulate or a larger --max-local-batch would allow it"


class _Draft:
    """An option before it is held against the first one."""

    def __init__(self, workers, batch, passes, curve, times, request):
        self.workers, self.batch, self.passes, self.confidence = workers, batch, passes, request.confidence
        layout = request.per_node or times.timings.per_node
        self.nodes = -(-workers // (request.per_node or 1))
        self.price = self.nodes * (1.0 if request.price is None else request.price) / 3600       # a second
        self.steps, self.step_time = curve.at(batch), times.at(workers, layout, batch, passes)
        self.value = self.steps.value * self.step_time.value
        self.draws = self.steps.draws * self.step_time.draws
        timing = times.measured(workers, layout, batch, passes)
        self.trials = timing.trials if timing else ()
        self.cell = times.cell_of(timing) if timing else None
        self.bounded = self.step_time.mark == BOUNDED
        if self.bounded:
            self.step_time = replace(self.step_time, value=hull(self.step_time.draws, self.confidence,
                                                                self.step_time.laws)[0])

    def option(self, first, relative) -> Option:
        """The option; ``first`` is the draft of the smallest worker count."""
        unit, unit_price = (first.value, first.price) if relative else (1.0, 1.0)
        draws = _quotient(self.draws, first.draws) if relative else self.draws
        paid = self.price / unit_price
        laws = max(first.step_time.laws, self.step_time.laws)
        seconds = self._seconds(self.value / unit, draws, laws if relative else self.step_time.laws)
        statistical = _ratio(first.steps, self.steps, first.batch / self.batch, self.confidence)
        system = _ratio(first.step_time, self.step_time, self.batch / first.batch * first.workers / self.workers,
                        self.confidence, laws)
        if self.bounded:
            system = Value(system.high, 0.0, system.high)
        elif self.step_time.open:
            system = replace(system, low=0.0)
        own = log_variance(self.step_time.draws)
        variance = log_variance(self.steps.draws) + own
        outside = self.steps.extrapolation + own * (self.step_time.mark == EXTRAPOLATED)
        known = variance == 0 or relative and self is first
        share = 1.0 if self.bounded else 0.0 if known else min(1.0, outside / variance)
        return Option(self.workers, self.nodes, self.batch, self.passes, self.steps, self.step_time, seconds,
                      Value(*(paid * end for end in (seconds.value, seconds.low, seconds.high))), draws, paid * draws,
                      statistical, system, share, self.trials)

    def _seconds(self, value, draws, laws):
        """T with its interval: that of the cell where this is its own time, else quantiles of the draws."""
        if self.bounded:
            low = hull(draws, self.confidence, laws)[0]
            return Value(low, low, np.inf)
        own = self.cell and self.cell.seconds
        if own and np.isclose(value, own.value, rtol=1e-9):
            return Value(float(value), own.low, own.high)
        known = _value(value, draws, self.confidence, laws)
        return replace(known, high=np.inf) if self.step_time.open else known


def _value(value, draws, confidence, laws=1):
    return Value(float(value), *hull(draws, confidence, laws))


def hull(draws, confidence, laws):
    """The ends of an interval that holds the interval of each law; the draws are of this many laws in turn."""
    lows, highs = zip(*(quantiles(draws[at::laws], confidence) for at in range(laws)))
    return min(lows), max(highs)


def _quotient(above, below):
    """Of draws; 1 where both are the same ones."""
    if above is below:
        return np.ones(len(above))
    with np.errstate(invalid="ignore"):
        found = above / below
    return np.where(np.isnan(found), np.inf, found)         # neither of them meets


def _ratio(above, below, factor, confidence, laws=1):
    return _value(factor * above.value / below.value, factor * _quotient(above.draws, below.draws), confidence, laws)
