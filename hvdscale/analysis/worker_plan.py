"""How many workers to use: time and cost to a target at worker counts that were run, and at others.

    T = S(B) t(W, B)        seconds to target: steps to target (steps_curve) times seconds per step (step_time)
    C = nodes T price       whole nodes are paid for: nodes = ceil(W / workers per node)

The decision, see README.rst, is by draws of S and t given what was measured. At each worker count the batch is the one
with the least expected log T. The knee is the worker count with the least cost x time, where efficiency over time is
largest (Eager, Zahorjan and Lazowska 1989): past it, saving one percent of the time costs more than one percent."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import scipy

from ..target import Target
from .curves import Curve
from .decision.draws import DRAWS as MODEL_DRAWS, Decision, Drawn, levels
from .intervals import CONFIDENCE, UNKNOWN
from .studies import best_value, group_by
from .noise import NoiseScale
from .report_data import JobResults, Section
from .step_time import ASSUMED, DRAWS, EXTRAPOLATED, MEASURED, Links, StepTimes
from .timings import Place, timings_of
from .steps_curve import ORDER, PREDICTED, StepsCurve, StepsOf, StepsPoint, noise_draws, point_of_cell, points_of
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

    def fitted(self, most: int) -> Request:
        """With a local batch of at most so many examples, which fit the memory."""
        return replace(self, max_local_batch=min(most, self.max_local_batch or most))


class Option:
    """One worker count at one batch, to decide on; ``settle`` adds what a plan says of those it takes.

    point  where its S was measured: at its batch, or by its own runs where those of its batch are of another setting
    apart  what its log S has beside that of its batch: the runs that do not meet, or its own runs of another setting"""

    def __init__(self, place: Place, curve: StepsCurve, times: StepTimes, request: Request) -> None:
        self.place, self.curve, self.times, self.request = place, curve, times, request
        self.workers, self.global_batch, self.passes, self.sync = place
        self.local_batch, batch = place.local_batch, place.global_batch
        self.nodes = request.nodes(place.workers)           # paid for
        self.layout = request.per_node or times.timings.per_node
        self.timing, self.cell = times.measured(place, self.layout)
        self.trials = self.timing.trials if self.timing else ()
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

    def settle(self, decision: Decision, at: int, first: Option, relative: bool) -> None:
        """Add its time T and its cost, ``relative`` to those of the first, which it may be itself, and what it gains
        over that. ``at`` is its column of the decision. Draws have shape (draws,), inf where the target is not met."""
        self.at, confidence, paid = at, self.request.confidence, self.request.paid(self.workers)
        self.steps = (self.curve.of_point(self.point) if self.point else
                      self.curve.by_law(self.global_batch, decision.log_steps[:, at]))
        self.beyond = self.steps.mark in (EXTRAPOLATED, PREDICTED)      # whether beyond the batches that met the target
        self.step_time = (self.times.of_timing(self.timing) if self.timing else
                          self.times.by_model(self.place, self.layout, decision.log_times[:, at]))
        # whether hosts with too few free cores ran it, or what its time follows from
        self.crowded = any(one.crowded for one in self.times.timings.found
                           if self.step_time.mark != MEASURED or one.place[:3] == self.place[:3])
        self.mark = max(self.steps.mark, self.step_time.mark, key=ORDER.index)      # how the time to target is known
        self.time = time = self.steps.times(self.step_time)
        if relative:
            time, paid = time.over(first.time), paid / self.request.paid(first.workers)
        self.seconds, self.seconds_draws, self.cost_draws = time.known(confidence), time.draws, paid * time.draws
        own = self.cell and self.cell.seconds
        if own and np.isclose(time.value, own.value, rtol=1e-9):        # this is the time of the cell
            self.seconds = replace(self.seconds, low=own.low, high=own.high)
        self.cost = self.seconds.scaled(paid)

        batches = first.global_batch / self.global_batch        # T0 / T, (S0 B0) / (S B), (x / x0) / (W / W0)
        pace = self.global_batch / first.global_batch * first.workers / self.workers
        self.speedup, self.statistical_efficiency, self.system_efficiency = (
            Drawn(factor * above.value / below.value, factor * above.over(below).draws).known(confidence)
            for factor, above, below in ((1.0, first.time, self.time), (batches, first.steps, self.steps),
                                         (pace, first.step_time, self.step_time)))

        known = [one[np.isfinite(one) & (one > 0)] for one in (self.steps.draws, self.step_time.draws)]
        of_steps, of_times = (float(np.log(one).var()) if len(one) else 0.0 for one in known)
        outside = of_steps * self.beyond + of_times * (self.step_time.mark in (EXTRAPOLATED, ASSUMED))
        # of the variance of log T, the part due to extrapolation
        self.extrapolated_share = 0.0
        if of_steps + of_times > 0 and not (relative and self is first):
            self.extrapolated_share = min(1.0, outside / (of_steps + of_times))


NO_TIMES, NO_STEPS, NOT_MET, AT_ONCE = "no_times", "no_steps", "not_met", "at_once"      # why there is no plan


@dataclass(frozen=True, eq=False)
class NoPlan:
    """A workload and target without a plan: NO_TIMES, NO_STEPS, AT_ONCE (met before the first step) or NOT_MET, with
    the best value of the target's metric at any evaluation (NaN: none), and where most runs met it."""

    workload: JobKey | None
    target: Target | None
    why: str
    best: float = np.nan
    often: StepsPoint | None = None


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
        met = {point.global_batch for point in self.curve.met}
        # the most workers of which time and steps were measured at one batch; 0: none
        self.most_measured = max((one.workers for one in times.timings.found if one.global_batch in met), default=0)
        # of log S between runs of a setting; UNKNOWN where no batch has two
        self.run_spread = next((point.spread for point in self.curve.points if point.spread.freedom), UNKNOWN)

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

        time, cost, eagerness = (decision.scores(weight).mean(0) for weight in (np.inf, 0, request.knee))
        order = np.lexsort((time, decision.workers))
        best = order[np.unique(decision.workers[order], return_index=True)[1]].tolist()
        apart = decision.best_of_each(int(decision.workers[time.argmin()])) if len(curves) > 1 and drafts else {}
        self.options, self.synced = (tuple(copy(drafts[at]) for at in own) for own in (best, apart.values()))
        for option, at in zip(self.options, best):
            option.settle(decision, at, self.options[0], self.relative)
        for option, at in zip(self.synced, apart.values()):
            option.settle(decision, at, self.synced[0] if EVERY_STEP in apart else option, self.relative)
        self.fastest, self.cheapest, self.knee = (
            min(self.options, key=lambda option: score[option.at], default=None) for score in (time, cost, eagerness))
        # the Pareto front in expected time and cost, from the cheapest to the fastest
        self.front = tuple(reversed(pareto_front(self.options, lambda option: (time[option.at], cost[option.at]))))

    def watts(self, option: Option) -> float:
        """Of all its nodes, as given, or of its workers' GPUs, as measured; NaN: not known."""
        power = self.request.power
        return option.workers * self.times.timings.measured.watts if power is None else option.nodes * power

    def within(self, chance: float = 0.5) -> tuple[Option, ...]:
        """The options of which a run meets deadline and budget in at least this share of the draws."""
        return tuple(option for option in self.options if self.chance_within(option) >= chance)

    def chance_within(self, option: Option) -> float:
        """Share of the draws in which a run of an option meets deadline and budget; its mean, where runs are alone."""
        deadline, budget = (np.inf if one is None else one for one in (self.request.deadline, self.request.budget))
        steps, times, runs = self.run_spread, self.times.timings.spread, np.ones(DRAWS)
        if steps.freedom:           # over the mean: log-normal, by Student's t; a share is late, as in the logs
            deviation = np.sqrt(steps.variance + (times.variance if times.freedom else 0.0))
            drawn = deviation * scipy.special.stdtrit(steps.freedom, levels(DRAWS))
            random = np.random.default_rng([0, 8])
            late = [ratio for point in self.curve.points for ratio in point.late] or [1.0]
            share = len(late) / max(1, sum(point.seeds for point in self.curve.points))
            runs = np.exp(random.permutation(drawn)) * np.where(random.random(len(drawn)) < share,
                                                                random.choice(late, len(drawn)), 1.0)
        return float(np.mean((option.seconds_draws * runs <= deadline) & (option.cost_draws * runs <= budget)))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What chances rest on that was not measured: ONE_RUN and others; none if all was."""
        points, marks = self.curve.met, {option.step_time.mark for option in self.options}
        alone = bool(points) and not self.run_spread.freedom and not any(point.searched for point in points)
        timings = self.times.timings
        reasons = {ONE_RUN: alone, TIMED_ONCE: not timings.spread.freedom,
                   UNPLACED: not timings.placed and bool(marks - {MEASURED}), LINKS: ASSUMED in marks,
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


def curves_of(section: Section, target: Target, confidence: float) -> dict[Sync, StepsCurve]:
    """S by how replicas are synchronized, synchronous training first."""
    found = {}
    for sync, cells in sorted(group_by(section.synced, lambda cell: cell.sync).items()):
        curve = Curve(section.workload, target, cells, section.options)
        # of a search that is cut off, too: one batch alone is no judgement of how steps scale
        points, own = [point_of_cell(cell) for cell in curve.cells if cell.runs], curve.regimes.fit
        found[sync] = StepsCurve(points, own.draws() if own else None, confidence=confidence, sync=sync)
    return found


def plans_of(group: JobResults, request: Request, *, links: Links | None = None, given: StepsPoint | None = None,
             noise_scale: float | None = None, steps: StepsOf = points_of) -> Iterator[WorkerPlan | NoPlan]:
    """A plan for each target of a workload; one predicted plan where it has no target.

    links        the network between nodes, if given
    given        steps to target at one batch, if no run was measured against a target
    noise_scale  in examples, instead of the logs' own"""
    timings, confidence = timings_of(group.trials, request.per_node), request.confidence
    sections: list[Section | None] = [section for section in group.sections if section.target] or [None]
    if not timings.found:
        yield from (NoPlan(group.workload, section.target if section else None, NO_TIMES) for section in sections)
        return
    times = StepTimes(timings, links)
    if request.memory is not None:
        request = request.fitted(timings.measured.most_local(request.memory))
    found = [(cell.global_batch, own.whole.runs, own.whole) for section in group.sections
             for cell, own in section.noise if 0 < own.whole.value < np.inf]      # the largest batch's counts
    measured = max(found, key=lambda one: one[:2])[2] if found else None
    noise = NoiseScale(noise_scale, np.nan, np.nan, 0) if noise_scale else measured
    run = next((trial for trial in group.trials if trial.target), group.trials[0])
    by_sync = {trial.sync: trial.plan.get("asked") or {} for trial in (*reversed(group.trials), run)}
    job = {**run.problem, "asked": by_sync, "local_steps": any(trial.sync != EVERY_STEP for trial in group.trials)}
    asked = (given,) if given else ()

    for section in sections:
        target = section.target if section else None
        points, fit = steps(section) if section else (asked, None)
        used = noise if fit is None else None
        drawn = None if used is None else noise_draws(used.value, used.low, used.high, confidence)
        curves = {EVERY_STEP: StepsCurve(points, fit, noise=drawn, confidence=confidence)}
        if section and target and section.synced:
            curves = curves_of(section, target, confidence)
        points = tuple(point for curve in curves.values() for point in curve.points)
        every = [point.steps for point in points]
        if section and target and not any(one.met for one in every):
            values = [trial.metrics[target.column] for trial in section.trials if target.column in trial.metrics]
            best = best_value(np.concatenate([np.empty(0), *values]), target.minimizes)
            yield NoPlan(group.workload, target, NOT_MET, best, min(points, default=None, key=attrgetter("unmet")))
        elif any(one.value == 0 for one in every):
            yield NoPlan(group.workload, target, AT_ONCE)
        elif not every and noise is None and not request.global_batch:
            yield NoPlan(group.workload, None, NO_STEPS)
        else:
            held = copy(times)
            held.cells = {(cell.workers[0], cell.global_batch): cell
                          for one in ([section] if section else group.sections) for cell in one.cells}
            yield WorkerPlan(curves, held, request, group.workload, target, used, job)


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
