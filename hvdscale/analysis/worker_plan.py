"""How many workers to use: time and cost to a target at worker counts that were run, and at others.

    T = S(B) t(W, B)        seconds to target: steps to target (steps_curve) times seconds per step (step_time)
    C = nodes T price       whole nodes are paid for: nodes = ceil(W / workers per node)

The decision, see README.rst, is by draws of S and t given what was measured. At each worker count the batch is the one
with the least expected log T. The knee is the worker count with the least cost x time, where efficiency over time is
largest (Eager, Zahorjan and Lazowska 1989): past it, saving one percent of the time costs more than one percent."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy

from ..target import Target
from .curves import Curve
from .decision.draws import DRAWS as MODEL_DRAWS, Decision, Drawn, levels
from .grouping import group_by
from .intervals import CONFIDENCE, UNKNOWN, Estimate, Spread
from .studies import best_value
from .noise import NoiseScale
from .report_data import JobResults, Section
from .step_time import ASSUMED, DRAWS, EXTRAPOLATED, MEASURED, Links, StepTimes
from .timings import Footprint, Place, timings_of
from .steps_curve import (ORDER, PREDICTED, StepsCurve, StepsOf, StepsPoint, noise_draws, point_of_cell,
                          points_of)
from .steps import RunCell
from .trials import EVERY_STEP, JobKey, Sync

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What to plan for. With neither local_batch nor global_batch, each worker count has the batch that is best."""

    workers: tuple[int, ...]                # counts to compare
    price: float | None = None              # of a node-hour; None: 1, so that costs are node-hours
    per_node: int | None = None             # workers; None: each is paid separately, and laid out as in the logs
    deadline: float | None = None           # in seconds
    budget: float | None = None             # in the price's currency
    local_batch: int | None = None          # examples per worker and pass
    global_batch: int | None = None
    max_local_batch: int | None = None      # that fits a worker's memory; None: the largest in the logs
    accumulate: bool = False                # whether a step may take several passes
    knee: float = 1.0                       # percent of cost that one percent of time is worth
    confidence: float = CONFIDENCE
    runs: int = 1                           # of the campaign that hours and energy are summed over
    power: float | None = None              # watts of a node, or without per_node of a worker; None: unknown
    memory: float | None = None             # bytes of a worker: bound the local batch by the memory the logs measured
    relaunch: float | None = None           # seconds, where the workers change with the batch; None: unknown
    starts: int = 0                         # processes whose median start-up that is; 0: it was given

    def nodes(self, workers: int) -> int:
        """That are paid for; without per_node each worker for itself."""
        return -(-workers // (self.per_node or 1))

    def paid(self, workers: int) -> float:
        """For a second of these workers."""
        return self.nodes(workers) * (1.0 if self.price is None else self.price) / 3600

    def fitted(self, measured: Footprint) -> Request:
        """With the local batch that fits the memory; raises UsageError where the logs do not say."""
        if self.memory is None:
            return self
        most = measured.most_local(self.memory)
        return replace(self, max_local_batch=min(most, self.max_local_batch or most))


class Option:
    """One worker count at one batch, to decide on; ``settle`` and ``weigh`` add what a plan says of those it takes.

    point  where its S was measured: at its batch, or by its own runs where those of its batch are of another setting
    apart  what its log S has beside that of its batch: the runs that do not meet, or its own runs of another setting"""

    def __init__(self, place: Place, curve: StepsCurve, times: StepTimes, request: Request) -> None:
        self.place, self.curve, self.times, self.request = place, curve, times, request
        self.workers, self.global_batch, self.passes, self.sync = place
        self.local_batch, batch = place.local_batch, place.global_batch
        self.nodes = request.nodes(place.workers)           # paid for
        self.layout = request.per_node or times.timings.per_node
        timing, self.cell = times.measured(place, self.layout)
        self.trials = timing.trials if timing else ()
        self.point = at_batch = curve.by_batch.get(batch)
        if self.cell and at_batch and at_batch.trials and not set(self.trials) & set(at_batch.trials):
            self.point = point_of_cell(self.cell)
        self.apart = 0.0
        if self.point and at_batch and np.isfinite(at_batch.steps.value):
            self.apart = float(np.log(self.point.steps.value / at_batch.steps.value))
        near = self.point or min(curve.met, default=None, key=lambda point: abs(np.log(point.global_batch / batch)))
        if near is not None and near.unmet:         # one that meets takes 1 / (1 - unmet) runs
            self.apart -= float(np.log1p(-min(near.unmet, 0.99)))
        # whether the target may be met at its batch
        self.meets = self.point.steps.met if self.point else curve.mark_of(batch) is not None

    def settle(self, decision: Decision, at: int) -> None:
        """``at`` is its column of the decision."""
        self.at, steps, times = at, decision.log_steps[:, at], decision.log_times[:, at]
        self.steps = self.curve.of_point(self.point) if self.point else self.curve.by_law(self.global_batch, steps)
        self.beyond = self.steps.mark in (EXTRAPOLATED, PREDICTED)      # whether beyond the batches that met the target
        self.step_time = self.times.at(self.place, self.layout, times)
        self.mark = max(self.steps.mark, self.step_time.mark, key=ORDER.index)      # how the time to target is known
        self.time = self.steps.times(self.step_time)

    def weigh(self, first: Option, relative: bool) -> Option:
        """Itself, with its time T and its cost, ``relative`` to those of the first, that of the smallest worker count,
        and with what it gains over that. Draws have shape (draws,), inf where the target is not met."""
        confidence = self.request.confidence
        time = self.time.over(first.time) if relative else self.time
        paid = self.request.paid(self.workers) / (self.request.paid(first.workers) if relative else 1.0)
        self.seconds, self.seconds_draws, self.cost_draws = time.known(confidence), time.draws, paid * time.draws
        own = self.cell and self.cell.seconds
        if own and np.isclose(time.value, own.value, rtol=1e-9):        # this is the time of the cell
            self.seconds = replace(self.seconds, low=own.low, high=own.high)
        self.cost = self.seconds.scaled(paid)
        self.speedup = first.time.over(self.time).known(confidence)                    # T0 / T
        self.statistical_efficiency = _ratio(                                          # (S0 B0) / (S B)
            first.steps, self.steps, first.global_batch / self.global_batch, confidence)
        self.system_efficiency = _ratio(                                               # (x / x0) / (W / W0)
            first.step_time, self.step_time,
            self.global_batch / first.global_batch * first.workers / self.workers, confidence)
        known = [one[np.isfinite(one) & (one > 0)] for one in (self.steps.draws, self.step_time.draws)]
        of_steps, of_times = (float(np.log(one).var()) if len(one) else 0.0 for one in known)
        outside = of_steps * self.beyond + of_times * (self.step_time.mark in (EXTRAPOLATED, ASSUMED))
        # of the variance of log T, the part due to extrapolation
        self.extrapolated_share = 0.0
        if of_steps + of_times > 0 and not (relative and self.place == first.place):
            self.extrapolated_share = min(1.0, outside / (of_steps + of_times))
        return self


def _ratio(above: Drawn, below: Drawn, factor: float, confidence: float) -> Estimate:
    return Drawn(factor * above.value / below.value, factor * above.over(below).draws).known(confidence)


NO_TIMES, NO_STEPS, NOT_MET, AT_ONCE = "no step times", "no steps", "not met", "met at once"     # why there is no plan


@dataclass(frozen=True, eq=False)
class NoPlan:
    """A workload and target without a plan: NO_TIMES, NO_STEPS, AT_ONCE (met before the first step) or NOT_MET, with
    the best value of the target's metric at any evaluation (NaN: none)."""

    workload: JobKey | None
    target: Target | None
    why: str
    best: float = np.nan


class WorkerPlan:
    """The options by worker count, and the decision over them and over the batches that each count can run.

    curves    see curves_of; a workload's training examples limit the batch
    target    None: no target, as for steps given by the user
    noise     the prediction of B_crit
    job       the problem that was run, and what was asked by Sync
    synced    options of the fastest's workers, synchronized otherwise; speedup: over synchronous
    left_out  worker counts without an option, and why"""

    def __init__(self, curves: Mapping[Sync, StepsCurve], times: StepTimes, request: Request,
                 workload: JobKey | None = None, target: Target | None = None, noise: NoiseScale | None = None,
                 job: Mapping[str, Any] | None = None) -> None:
        self.curves, self.times, self.request, self.workload, self.target = curves, times, request, workload, target
        self.noise, self.job = noise, job or {}
        # the first that met the target, of synchronous training if that did
        self.curve = next((own for own in curves.values() if own.met), next(iter(curves.values())))
        self.relative = self.curve.relative         # whether times and costs are relative to the first option's
        # the largest chance that can be claimed: n draws cannot distinguish chances above 1 - 3 / n
        self.surest = min(request.confidence, 1 - 3 / DRAWS)
        drafts: list[Option] = []
        left_out = []
        for workers in sorted(set(request.workers)):
            listed = {sync: _list_batches(workers, curve, times, request, workload.train_examples if workload else 0,
                                          sync) for sync, curve in curves.items()}
            found = [Option(Place(workers, *batch, sync), curves[sync], times, request)
                     for sync, (batches, _) in listed.items() for batch in batches]
            found = [draft for draft in found if draft.meets]
            drafts += found
            if not found:
                why = next((why for _, why in listed.values() if why), "no batch that fits is known to meet the target")
                left_out.append((workers, why))
        places, self.left_out = tuple(draft.place for draft in drafts), tuple(left_out)
        log_steps = np.empty((MODEL_DRAWS, len(drafts)))
        for sync, own in group_by(range(len(drafts)), lambda at: drafts[at].sync).items():
            log_steps[:, own] = curves[sync].log_steps([drafts[at].global_batch for at in own])
        self.decision = decision = Decision(
            places, log_steps + [draft.apart for draft in drafts],
            times.model.log_seconds(request.per_node or times.timings.per_node, places),
            np.log([request.paid(draft.workers) for draft in drafts]), request.confidence)
        expected = decision.expected(np.inf)
        order = np.lexsort((expected, decision.workers))
        best = order[np.unique(decision.workers[order], return_index=True)[1]].tolist()
        apart = decision.best_of_each(int(decision.workers[expected.argmin()])) if len(curves) > 1 and drafts else {}
        for at in {*best, *apart.values()}:
            drafts[at].settle(decision, at)
        self.options = tuple(drafts[at].weigh(drafts[best[0]], self.relative) for at in best)
        self.synced = tuple(copy(drafts[at]).weigh(drafts[apart.get(EVERY_STEP, at)], self.relative)
                            for at in apart.values())
        self.fastest, self.cheapest, self.knee = map(self.best, (np.inf, 0, request.knee))

    def watts(self, option: Option) -> float:
        """Of all its nodes, as given, or of its workers' GPUs, as measured; NaN: not known."""
        power = self.request.power
        return option.workers * self.times.timings.measured.watts if power is None else option.nodes * power

    @property
    def uses_model(self) -> bool:
        return any(option.step_time.mark != MEASURED for option in self.options)

    def is_crowded(self, option: Option) -> bool:
        """Whether its step time was measured on hosts with too few free cores, or follows from such times."""
        return any(one.crowded for one in self.times.timings.found
                   if option.step_time.mark != MEASURED or one.place[:3] == option.place[:3])

    def best(self, weight: float) -> Option | None:
        """The option with the least expected cost x time ** weight; inf: time alone."""
        expected = self.decision.expected(weight)
        return min(self.options, key=lambda option: expected[option.at], default=None)

    @cached_property
    def front(self) -> tuple[Option, ...]:
        """The Pareto front in expected time and cost, from the cheapest to the fastest."""
        time, cost = self.decision.expected(np.inf), self.decision.expected(0)
        return tuple(reversed(pareto_front(self.options, lambda option: (time[option.at], cost[option.at]))))

    @property
    def most_measured(self) -> int:
        """The most workers of which time and steps were measured at one batch; 0: none."""
        met = {point.global_batch for point in self.curve.met}
        return max((one.workers for one in self.times.timings.found if one.global_batch in met), default=0)

    def within(self, chance: float = 0.5) -> tuple[Option, ...]:
        """The options of which a run meets deadline and budget in at least this share of the draws."""
        return tuple(option for option in self.options if self.chance_within(option) >= chance)

    def chance_within(self, option: Option) -> float:
        """Share of the draws in which a run of an option meets deadline and budget; its mean, where runs are alone."""
        deadline, budget = (np.inf if one is None else one for one in (self.request.deadline, self.request.budget))
        return float(np.mean((option.seconds_draws * self._run_draws <= deadline)
                             & (option.cost_draws * self._run_draws <= budget)))

    @property
    def run_spread(self) -> Spread:
        """The spread of log S between runs of a setting; UNKNOWN where no batch has two."""
        return next((point.spread for point in self.curve.points if point.spread.freedom), UNKNOWN)

    @cached_property
    def _run_draws(self) -> np.ndarray:
        """Draws of a run's time over the mean of runs: log-normal, by Student's t; a share is late, as in the logs."""
        steps, times = self.run_spread, self.times.timings.spread
        if not steps.freedom:
            return np.ones(DRAWS)
        deviation = np.sqrt(steps.variance + (times.variance if times.freedom else 0.0))
        drawn = deviation * scipy.special.stdtrit(steps.freedom, levels(DRAWS))
        random = np.random.default_rng([0, 8])
        late = [ratio for point in self.curve.points for ratio in point.late] or [1.0]
        share = len(late) / max(1, sum(point.seeds for point in self.curve.points))
        return np.exp(random.permutation(drawn)) * np.where(random.random(len(drawn)) < share,
                                                            random.choice(late, len(drawn)), 1.0)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What chances rest on that was not measured: ONE_RUN and others; none if all was."""
        points, marks = self.curve.met, {option.step_time.mark for option in self.options}
        alone = bool(points) and not self.run_spread.freedom and not any(point.searched for point in points)
        timings = self.times.timings
        reasons = {ONE_RUN: alone, TIMED_ONCE: not timings.spread.freedom,
                   UNPLACED: not timings.placed and self.uses_model, LINKS: ASSUMED in marks,
                   IN_A_ROW: timings.in_a_row, PROBED: not timings.slowing and any(one.slowed for one in timings.found),
                   RATES: any(option.steps.mark == EXTRAPOLATED for option in self.options),
                   APART: bool(self.job.get("local_steps")) and [*self.curves] == [EVERY_STEP],
                   PREDICTED: any(option.steps.mark == PREDICTED for option in self.options)}
        return tuple(reason for reason, holds in reasons.items() if holds)


def pareto_front(found: Iterable[T], rank: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Those that none beats in both time and cost, the fastest first; ``rank``: time, cost, and what else decides."""
    front: list[T] = []
    for one in sorted(found, key=rank):
        if not front or rank(one)[1] < rank(front[-1])[1]:
            front.append(one)
    return front


# what chances assume, beside PREDICTED
ONE_RUN, TIMED_ONCE, UNPLACED, LINKS = "one run", "timed once", "unplaced", "links"
IN_A_ROW, PROBED, RATES, APART = "in a row", "probed", "rates", "apart"


def curves_of(section: Section | None, points: Sequence[StepsPoint], fit: np.ndarray | None, confidence: float,
              noise: np.ndarray | None = None) -> dict[Sync, StepsCurve]:
    """S by how replicas are synchronized, synchronous training first; where all is that, the curve of these points."""
    if section is None or section.target is None or not section.synced:
        return {EVERY_STEP: StepsCurve(points, fit, noise=noise, confidence=confidence)}
    found = {}
    for sync, cells in sorted(group_by(section.synced, lambda cell: cell.sync).items()):
        curve = Curve(section.workload, section.target, cells, section.options)
        # of a search that is cut off, too: one batch alone is no judgement of how steps scale
        points, own = [point_of_cell(cell) for cell in curve.cells if cell.runs], curve.regimes.fit
        found[sync] = StepsCurve(points, own.draws() if own else None, confidence=confidence, sync=sync)
    return found


def plans_of(group: JobResults, request: Request, *, links: Links | None = None, given: StepsPoint | None = None,
             noise_scale: float | None = None, steps: StepsOf = points_of) -> tuple[WorkerPlan | NoPlan, ...]:
    """A plan for each target of a workload; one predicted plan where it has no target.

    links        the network between nodes, if given
    given        steps to target at one batch, if no run was measured against a target
    noise_scale  in examples, instead of the logs' own"""
    timings = timings_of(group.trials, request.per_node)
    about = [section for section in group.sections if section.target]
    if not timings.found:
        return tuple(NoPlan(group.workload, target, NO_TIMES) for target in [one.target for one in about] or [None])
    times, request = StepTimes(timings, links), request.fitted(timings.measured)
    found = [(cell.global_batch, own.whole.runs, own.whole) for section in group.sections
             for cell, own in section.noise if 0 < own.whole.value < np.inf]      # the largest batch's counts
    measured = max(found, key=lambda one: one[:2])[2] if found else None
    noise = NoiseScale(noise_scale, np.nan, np.nan, 0) if noise_scale else measured
    run = next((trial for trial in group.trials if trial.target), group.trials[0])
    job = {**run.problem, "asked": {
        trial.sync: trial.plan.get("asked") or {} for trial in (*reversed(group.trials), run)},
           "local_steps": any(trial.sync != EVERY_STEP for trial in group.trials)}

    def plan(section: Section | None, points: Sequence[StepsPoint], fit: np.ndarray | None, cells: Iterable[RunCell]
             ) -> WorkerPlan | NoPlan:
        target, confidence = section.target if section else None, request.confidence
        used = noise if fit is None else None
        drawn = None if used is None else noise_draws(used.value, used.low, used.high, confidence)
        curves = curves_of(section, points, fit, confidence, drawn)
        every = [point.steps for curve in curves.values() for point in curve.points]
        if section and target and not any(steps.met for steps in every):
            values = [trial.metrics[target.column] for trial in section.trials if target.column in trial.metrics]
            return NoPlan(group.workload, target, NOT_MET,
                          best_value(np.concatenate([np.empty(0), *values]), target.minimizes))
        if any(steps.value == 0 for steps in every):
            return NoPlan(group.workload, target, AT_ONCE)
        if not every and noise is None and not request.global_batch:
            return NoPlan(group.workload, None, NO_STEPS)
        held = copy(times)
        held.cells = {(cell.workers[0], cell.global_batch): cell for cell in cells}
        return WorkerPlan(curves, held, request, group.workload, target, used, job)
    if not about:
        cells = [cell for section in group.sections for cell in section.cells]
        return plan(None, (given,) if given else (), None, cells),
    return tuple(plan(section, *steps(section), section.cells) for section in about)


def _list_batches(workers: int, curve: StepsCurve, times: StepTimes, request: Request, train_examples: int,
                  sync: Sync) -> tuple[list[tuple[int, int]], str]:
    """(the (global batch, passes) that a worker count can run, why there are none)."""
    replicas, each = sync[0], max(1, sync[0] // workers)        # and those of a worker, one after the other
    if workers % replicas and replicas % workers:
        return [], f"{workers} workers cannot share {replicas} replicas evenly"
    most_local = request.local_batch or request.max_local_batch or times.timings.most_local
    run = {(one.global_batch, one.passes) for one in times.timings.found if (one.workers, one.sync) == (workers, sync)}
    if request.global_batch:
        batches = {request.global_batch}
    elif request.local_batch:
        batches = {workers * request.local_batch * 2 ** power for power in range(12 if request.accumulate else 1)}
    else:
        shares = {most_local, *(2 ** power for power in range(31) if 2 ** power < most_local)}
        batches = {workers * share for share in shares} | {point.global_batch for point in curve.met}
        batches |= {batch for batch, _ in run}
    largest = max([train_examples or np.inf, *(point.global_batch for point in curve.met)])
    sized = [(batch, each * -(-batch // (each * workers * most_local))) for batch in sorted(batches)
             if workers <= batch <= largest and batch % replicas == 0]
    found = {(batch, passes) for batch, passes in sized if passes == each or request.accumulate}
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
    return [], f"more than {most_local:,} examples per worker; use --accumulate or a larger --max-local-batch"
