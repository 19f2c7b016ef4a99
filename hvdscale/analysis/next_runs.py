"""What to measure next: the runs whose outcome lowers the expected loss of a decision most for their worker-hours.

A run to the target shows the steps at its batch and the time of its step, a probe the time of a step alone. What a
measurement is worth is the fall of the expected loss over its possible outcomes (Raiffa and Schlaifer 1961)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from .defaults import PROBE_STEPS, RUN_DEVIATION
from .step_time import ASSUMED_DEVIATION
from .timings import Place
from .worker_plan import WorkerPlan

ENOUGH = 0.05           # expected loss at which no more is measured, unless another is asked for
SEEDS = (1, 3)          # runs of a setting that are weighed
OTHER_LOCAL = 4         # a probe of another local batch has this many times fewer examples
SHARE = 0.5             # of the largest fall of the loss that what is proposed must bring
MOST_ROUNDS = 20        # of measurements
LEAST_DEVIATION = 0.03  # of a measurement: the draws are too few to weigh finer ones


class Measurement(NamedTuple):
    """Runs at one place of a decision: to the target with so many seeds, or with 0 seeds a probe."""

    place: Place
    seeds: int


class NextRuns:
    """Measurements to make together, what they cost, and the expected loss before and after."""

    def __init__(self, plan: WorkerPlan, runs: Sequence[Measurement], loss: float) -> None:
        decision, seconds, seen, spread = plan.decision, 0.0, [], plan.times.timings.spread
        of_times = spread.deviation if spread.freedom else ASSUMED_DEVIATION
        of_steps = plan.run_spread.deviation if plan.run_spread.freedom else RUN_DEVIATION
        for run in runs:
            at, count = decision.places.index(run.place), max(run.seeds, 1)
            measured = [(decision.log_times[:, at], of_times)]
            if run.seeds and not plan.relative:
                measured.append((decision.log_steps[:, at], of_steps))
            seen += [(drawn, max(float(deviation) / count ** 0.5, LEAST_DEVIATION)) for drawn, deviation in measured]
            length = decision.log_seconds[:, at] if run.seeds else np.log(PROBE_STEPS) + decision.log_times[:, at]
            seconds += run.place.workers * count * float(np.exp(length).mean())
        self.runs, self.worker_hours = tuple(runs), seconds / 3600
        self.loss, self.loss_after = loss, min(loss, decision.loss_after(seen))


def next_runs(plan: WorkerPlan, enough: float = ENOUGH, most_workers: float = np.inf,
              without: Collection[Measurement] = ()) -> NextRuns | None:
    """The measurements with the largest fall of the expected loss per worker-hour, of those that bring a good share of
    the largest fall; None where the loss is low enough already, or no measurement would lower it. No more than
    ``most_workers`` can be started, and measurements ``without`` cannot be made."""
    fastest = plan.fastest
    if fastest is None or plan.relative and plan.curve.critical is None:
        return None
    loss = plan.decision.loss(fastest.at)
    if loss <= enough:
        return None
    found = [NextRuns(plan, runs, loss) for runs in dict.fromkeys(_candidates(plan))
             if all(run.place.workers <= most_workers and run not in without for run in runs)]
    best = max((one.loss - one.loss_after for one in found), default=0.0)
    worthy = [one for one in found if one.loss - one.loss_after >= SHARE * best]
    return max(worthy, key=lambda one: (loss - one.loss_after) / one.worker_hours) if best > 0.1 * loss else None


def _candidates(plan: WorkerPlan) -> Iterator[tuple[Measurement, ...]]:
    """Sets of measurements at options of the decision: probes of each worker count beyond those timed, of all, of
    another local batch, and of both, with its option's replicas; and one or several runs of each worker count, at the
    best batch by replicas and at the largest of its option's passes, also with probes. Of searches, probes alone."""
    sync = {option.workers: option.sync for option in plan.options}
    timed, every = {one.place for one in plan.times.timings.found}, plan.decision.places
    most = max(place.workers for place in timed)
    places = [place for place in every if place.sync == sync[place.workers]
              and place.passes == max(1, place.sync[0] // place.workers)]       # no more passes than replicas
    full = {place.workers: place for place in sorted(places)}
    beyond = [Measurement(place, 0) for place in full.values() if place.workers > most]
    other = [Measurement(place, 0) for place in places if place not in timed
             and place.global_batch * OTHER_LOCAL == full[place.workers].global_batch][:1]
    sets = [(one,) for one in beyond] + [tuple(beyond), tuple(other), (*beyond, *other)]
    probes = [each for each in dict.fromkeys(sets) if each]
    yield from probes

    if plan.relative or any(point.searched for point in plan.curve.points):
        return
    runs: list[Measurement] = []
    for option, seeds in product(plan.options, SEEDS):
        largest = max(place for place in every if place._replace(global_batch=option.global_batch) == option.place)
        best = [every[at] for at in plan.decision.best_of_each(option.workers).values()]
        runs += [Measurement(place, seeds) for place in sorted({largest, *best})]
    yield from ((run,) for run in runs)
    yield from ((run, *probe) for run, probe in product(runs, probes[-3:])
                if run.place.workers not in {one.place.workers for one in probe} or len(probe) > 1)


def decide_until(measure: Callable[[Sequence[Measurement]], WorkerPlan | None], plan: WorkerPlan, enough: float,
                 at_most: float = np.inf, most_workers: float = np.inf) -> Iterator[NextRuns]:
    """Measure what decides, until the expected loss is low enough or the expected worker-hours exceed ``at_most``: what
    is measured, each before it is. ``measure`` makes measurements, and gives the plan of all that was measured; None:
    these cannot be made."""
    spent, failed = 0.0, set[Measurement]()
    for _ in range(MOST_ROUNDS):
        found = next_runs(plan, enough, most_workers, failed)
        if found is None or spent + found.worker_hours > at_most:
            return
        yield found
        spent += found.worker_hours
        measured = measure(found.runs)
        failed |= set() if measured else {*found.runs}
        plan = measured or plan
