"""Steps and seconds to target at many targets of one metric, from easy to strict: the data of a slider over the target.

    explored = explore(studies, Target.parse("val/error<0.01"))
    explored.steps[stop][batch].value
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..target import Target
from .intervals import Estimate
from .steps import Cell
from .studies import Best, Envelope, Study, best_metric, envelope
from .worker_plan import WorkerPlan

MOST_STOPS = 48
DIGITS = 3              # of the targets at the stops


@dataclass(frozen=True, eq=False)
class Explored:
    """The data at each stop of the slider."""

    target: Target                              # the page's own
    stops: tuple[Target, ...]                   # from easy to strict, ``target`` among them
    studies: tuple[Study, ...]                  # by batch; all have the metric
    steps: tuple[tuple[Estimate, ...], ...]     # [stop][study]: to target
    fewest: tuple[tuple[int, ...], ...]         # [stop][study]: index of the trial with the fewest steps; -1: none
    best: tuple[Best, ...]                      # [study]: the best value of each trial
    cells: tuple[tuple[Cell, ...], ...]         # [stop]: by worker count and batch
    plans: tuple[WorkerPlan | None, ...]        # [stop]: by worker count; None where no plan is possible

    @property
    def start(self) -> int:
        """The stop of the page's own target."""
        return self.stops.index(self.target)


def explore(studies: Sequence[Study], target: Target,
            steps_at: Callable[[Target], Mapping[int, Estimate]] | None = None,
            cells_at: Callable[[Target], Iterable[Cell]] | None = None,
            plan_at: Callable[[Target], WorkerPlan | None] | None = None, strictest: Target | None = None
            ) -> Explored | None:
    """The stops of a target's metric over the studies of one workload; None where no trial has it.

    steps_at   gives the steps to a target by global batch; None: the fewest steps of the trials, without an interval
    cells_at   gives the cells of a target by worker count and batch
    plan_at    gives the plan of a target
    strictest  the strictest stop allowed, because trials stopped there
    """
    studies = tuple(study for study in studies if target.column in study.evaluations.columns)
    envelopes = [envelope(study, target.column, target.minimizes) for study in studies]
    stops = stops_of([one.value[one.step > 0] for one in envelopes], target, strictest)
    if not any(len(one.value) for one in envelopes):
        return None
    found = [[_find_fewest(one, stop) for one in envelopes] for stop in stops]
    steps: list[Mapping[int, Estimate]] = [{} if steps_at is None else steps_at(stop) for stop in stops]
    return Explored(
        target, stops, studies,
        tuple(tuple(known.get(study.global_batch, fewest) for study, (fewest, _) in zip(studies, row))
              for known, row in zip(steps, found)),
        tuple(tuple(trial for _, trial in row) for row in found),
        tuple(best_metric(study, target.column, target.minimizes) for study in studies),
        tuple(() if cells_at is None else tuple(cells_at(stop)) for stop in stops),
        tuple(None if plan_at is None else plan_at(stop) for stop in stops))


def stops_of(values: Sequence[np.ndarray], target: Target, strictest: Target | None = None,
             most: int = MOST_STOPS) -> tuple[Target, ...]:
    """Targets of one metric from the easiest to the strictest that any trial met, ``target`` among them.

    values  the values that trials reached at each batch, each better than the one before
    most    number of stops; more values are thinned evenly, so that stops are dense where training was slow
    """
    reached = [value for one in values for value in one.tolist() if math.isfinite(value)]
    found = {easier(value, target) for value in reached}
    if strictest is not None:
        found = {value for value in found if value == strictest.value or (value > strictest.value) == target.minimizes}
    ordered = sorted(found, reverse=target.minimizes)
    if len(ordered) > most:
        ordered = [ordered[round(at * (len(ordered) - 1) / (most - 1))] for at in range(most)]
    ordered = sorted({*ordered, target.value}, reverse=target.minimizes)
    return tuple(replace(target, value=value) for value in ordered)


def easier(value: float, target: Target) -> float:
    """The strictest target value with DIGITS digits that a measured value meets."""
    if value == 0:
        return {"<": 10.0 ** -DIGITS, ">": -10.0 ** -DIGITS}.get(target.comparison, 0.0)
    size = 10.0 ** (math.floor(math.log10(abs(value))) - DIGITS + 1)
    at = math.ceil(value / size) if target.minimizes else math.floor(value / size)
    rounded = _decimal(at * size)
    if not replace(target, value=rounded).met_by(value):
        rounded = _decimal((at + (1 if target.minimizes else -1)) * size)
    return rounded


def _decimal(value: float) -> float:
    """The value without the rounding error of a product."""
    return float(f"{value:.{DIGITS + 2}g}")


def _find_fewest(found: Envelope, stop: Target) -> tuple[Estimate, int]:
    """(the fewest steps, the trial that took them) at one stop; (inf, -1): not met."""
    met = np.flatnonzero(stop.met_by(found.value))
    if not len(met):
        return Estimate(math.inf, math.nan, math.nan, 0), -1
    return Estimate(float(found.step[met[0]]), math.nan, math.nan, 1), int(found.trial[met[0]])
