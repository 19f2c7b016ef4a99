"""What a growing batch buys at a worker count: steps, time and cost beside those of its smallest and largest batch.
Steps n_i and times t(W, B_i) of its pieces are as in README.rst.

The steps are those of runs with this schedule or, without such runs, predicted from constant batches: sum n_i / S(B_i)
= 1. This holds where the critical batch is constant over training. Where it grows, as is usual, a batch that grows with
it needs less."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..plan.batch_schedule import BatchSchedule
from ..target import Target
from .decision.draws import Drawn
from .intervals import Estimate
from .report_data import JobResults, Section
from .step_time import ASSUMED, DRAWS, Links, StepTime, StepTimes
from .studies import group_by
from .timings import Place, timings_of
from .steps_curve import ORDER, PREDICTED, StepsAt, StepsCurve, StepsOf, point_of_cell, points_of
from .worker_plan import Request, pareto_front

Clocks = dict[tuple[int, int], StepTime]        # the time of a step by (workers, batch), where it is known


@dataclass(frozen=True, eq=False)
class Beside:
    """A constant batch at the same workers; ratios above 1: the growing batch needs less."""

    global_batch: int
    steps: Estimate
    seconds: Estimate
    cost: Estimate
    steps_ratio: Estimate
    examples_ratio: Estimate
    seconds_ratio: Estimate         # that of the cost, too, as the workers are the same


class GrowingOption:
    """A growing batch at one worker count, ``beside`` its smallest and largest batch where their steps are known;
    ``mark``: how its time is known, the worst of steps and step times."""

    def __init__(self, workers: int, batches: BatchSchedule, steps: StepsAt, curve: StepsCurve, clocks: Clocks,
                 request: Request) -> None:
        self.workers, self.nodes, price = workers, request.nodes(workers), request.paid(workers)
        pieces = [(steps.within(start, end), batch) for start, end, batch in batches.pieces()]
        examples = _sum([taken.times(float(batch)) for taken, batch in pieces])
        seconds = _sum([taken.times(clocks[workers, batch]) for taken, batch in pieces])
        self.steps, self.examples, self.seconds, self.cost = (one.known(request.confidence) for one in (
            steps, examples, seconds, seconds.times(price)))
        self.mark = max(steps.mark, *(clocks[workers, batch].mark for batch in batches.sizes), key=ORDER.index)
        self.beside: list[Beside] = []
        for batch in (batches.smallest, batches.largest) if curve.met else ():
            alone = curve.at(batch)
            if np.isfinite(alone.value):
                spent = alone.times(clocks[workers, batch])
                self.beside.append(Beside(batch, *(one.known(request.confidence) for one in (
                    alone, spent, spent.times(price), alone.over(steps), alone.times(float(batch)).over(examples),
                    spent.over(seconds)))))


@dataclass(frozen=True, eq=False)
class Phase:
    """One batch of a growing one, and the workers that train it."""

    global_batch: int
    workers: int
    nodes: int
    start: int                      # its first step
    steps: Estimate                 # in it
    seconds: Estimate
    mark: str                       # how its step time is known


class Phases:
    """A worker count for each batch of a growing one, of (start, batch, steps) pieces; seconds and cost with those of
    relaunching; ``changes``: how often the workers are relaunched."""

    def __init__(self, pieces: Sequence[tuple[int, int, Drawn]], counts: Sequence[int], clocks: Clocks,
                 request: Request) -> None:
        self.phases: list[Phase] = []
        whole, before = [], counts[0]
        for (start, batch, taken), workers in zip(pieces, counts):
            clock, relaunch = clocks[workers, batch], 0.0 if workers == before else request.relaunch or 0.0
            spent, before = taken.times(clock), workers
            self.phases.append(Phase(batch, workers, request.nodes(workers), start, taken.known(request.confidence),
                                     spent.known(request.confidence), clock.mark))
            whole.append(Drawn(spent.value + relaunch, spent.draws + relaunch))
        cost = _sum([one.times(request.paid(workers)) for one, workers in zip(whole, counts)])
        self.seconds, self.cost = _sum(whole).known(request.confidence), cost.known(request.confidence)
        self.changes = sum(one != other for one, other in zip(counts, counts[1:]))


class GrowingPlan:
    """A growing batch by worker count.

    workload   at a constant batch
    predicted  from the steps at constant batches
    left_out   worker counts without an option, and why
    knee       the option with the least cost x time ** knee
    phases     worker counts that change with the batch: Pareto front, fastest first; ``phases_at_knee`` of them those
               with the least cost x time ** knee
    trials     with this schedule"""

    def __init__(self, section: Section, target: Target, batches: BatchSchedule, steps: StepsAt, curve: StepsCurve,
                 times: StepTimes, request: Request) -> None:
        self.workload, self.target, self.batches = replace(section.workload, batch_schedule=()), target, batches
        self.request, self.predicted = request, steps.mark == PREDICTED
        counts, sizes = sorted(set(request.workers)), sorted(set(batches.sizes))
        found = {(workers, batch): clock_at(workers, batch, times, request) for workers in counts for batch in sizes}
        clocks = {place: clock for place, clock in found.items() if isinstance(clock, StepTime)}
        reasons = {workers: next((why for batch in sizes if isinstance(why := found[workers, batch], str)), "")
                   for workers in counts}
        self.options = tuple(GrowingOption(workers, batches, steps, curve, clocks, request)
                             for workers in counts if not reasons[workers])
        self.left_out = tuple((workers, why) for workers, why in reasons.items() if why)
        self.phases = _find_phases(batches, steps, clocks, request)
        self.trials = tuple(key for cell in section.cells for key in cell.keys if section.workload.batch_schedule)
        self.fastest = min(self.options, key=lambda option: option.seconds.value, default=None)

        def eagerness(one: GrowingOption | Phases) -> float:
            return float(np.log(one.cost.value) + request.knee * np.log(one.seconds.value))
        self.knee = min(self.options, key=eagerness, default=None)
        self.phases_at_knee = min(self.phases, key=eagerness, default=None)


def growing_plans(groups: Sequence[JobResults], request: Request, *, asked: BatchSchedule | None = None,
                  links: Links | None = None, steps: StepsOf = points_of) -> Iterator[GrowingPlan]:
    """A plan for each target of each growing batch in the logs, and of the one asked for at each workload's targets."""
    constant = {group.workload: group for group in groups if not group.workload.batch_schedule}
    for group in groups:
        own = bool(group.workload.batch_schedule)
        batches = BatchSchedule.of_pairs(group.workload.batch_schedule) if own else asked
        beside = constant.get(replace(group.workload, batch_schedule=()))
        timings = timings_of([*group.trials, *(beside.trials if own and beside else ())], request.per_node)
        if batches is None or not timings.found:
            continue
        times, fitted = StepTimes(timings, links), request
        if request.memory is not None:
            fitted = request.fitted(timings.measured.most_local(request.memory))
        for section in group.sections:
            if section.target is None or own and not section.cells:
                continue
            same = [one for one in (beside.sections if beside else ()) if one.target == section.target]
            points, fit = steps(same[0]) if same else ((), None)
            curve = StepsCurve(points, fit, confidence=request.confidence)          # S at constant batches
            found = _predict(batches, curve) if curve.met else None
            if own:
                cell = max(section.cells, key=lambda one: (len(one.samples.seeds), one.met))
                found = StepsCurve([point_of_cell(cell)], confidence=request.confidence).at(batches.largest)
            if found is not None and np.isfinite(found.value) and found.value > 0:
                yield GrowingPlan(section, section.target, batches, found, curve, times, fitted)


def _predict(batches: BatchSchedule, curve: StepsCurve) -> StepsAt:
    """The steps at which the shares 1 / S(B) of the way add up to 1; see the module's docstring."""
    left, taken = np.ones(1 + DRAWS), np.zeros(1 + DRAWS)           # the value, then the draws
    for start, end, batch in batches.pieces():
        alone = curve.at(batch)
        whole = np.append(alone.value, alone.draws)
        own = np.minimum(end - start, left * whole)
        taken, left = taken + own, left - own / whole
    return StepsAt(float(taken[0]), taken[1:], PREDICTED)


def clock_at(workers: int, batch: int, times: StepTimes, request: Request) -> StepTime | str:
    """The time of a step of these workers at a batch, or why it is not known."""
    if workers > batch:
        return f"batch {batch:,} has fewer examples than workers"
    layout, most = request.per_node or times.timings.per_node, request.max_local_batch or times.timings.most_local
    run = [one.passes for one in times.timings.found if (one.workers, one.global_batch) == (workers, batch)]
    passes = run[0] if run else -(-batch // (workers * most))
    if passes > 1 and not run and not request.accumulate:
        return (f"batch {batch:,} has more than {most:,} examples per worker; use --accumulate or a larger "
                "--max-local-batch")
    found = times.at(Place(workers, batch, passes), layout)
    return "no log timed the links that this many workers need" if found.mark == ASSUMED else found


def _sum(parts: Sequence[Drawn]) -> Drawn:
    return Drawn(sum(part.value for part in parts), np.sum([part.draws for part in parts], axis=0))


# the seconds and the cost so far, in how many worker counts, and the count of each batch
Way = tuple[float, float, int, tuple[int, ...]]


def _find_phases(batches: BatchSchedule, steps: StepsAt, clocks: Clocks, request: Request) -> tuple[Phases, ...]:
    """The Pareto front in time and cost of worker counts by batch, the fastest first; () where some batch has none."""
    def then(way: Way, workers: int, seconds: float) -> Way:
        """One batch further; a relaunch belongs to the batch that it is for."""
        spent, paid, _, before = way
        if before and before[-1] != workers:
            seconds += request.relaunch or 0
        return spent + seconds, paid + seconds * request.paid(workers), len({*before, workers}), (*before, workers)
    pieces = [(start, batch, steps.within(start, end)) for start, end, batch in batches.pieces()]
    pieces = [piece for piece in pieces if piece[2].value > 0]
    ways: list[Way] = [(0.0, 0.0, 0, ())]
    for _, batch, taken in pieces:
        further = [then(way, workers, taken.value * clock.value)
                   for way in ways for (workers, own), clock in clocks.items() if own == batch]
        ways = [way for same in group_by(further, lambda one: one[-1][-1]).values()
                for way in pareto_front(same, lambda one: one[:3])]
    return tuple(Phases(pieces, way[-1], clocks, request) for way in pareto_front(ways, lambda one: one[:3]) if way[-1])
