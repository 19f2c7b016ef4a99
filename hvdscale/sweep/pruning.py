"""Which draws a study consists of and where each ends: a pure function of the results, whatever ran in parallel.

A study wants ``trials`` feasible draws, finite up to their stop. Each draw that diverged, failed or was lost is
replaced by the next one, up to ``max_draws`` in all. So the study is the draws 0 .. L - 1, with L the smallest number
equal to min(max_draws, trials + infeasible draws below L).

Pruning is exact. Draw k is stopped at step T_k if it has not met the strictest target by then: T_k is the ``keep``-th
fewest steps to that target among all draws before k. So it cannot be among the ``keep`` best draws, nor set the
threshold of a later one. Draws that run in parallel know only some of the results before theirs, so their threshold is
too high or right, and they stop at T_k or later. Whatever a draw did beyond T_k is ignored, so every way to run a study
has the outcomes of a sequential run. (A lost draw is lost at any step.)
"""
from __future__ import annotations

import bisect
import heapq
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..errors import LogError
from ..log.schema import PRUNED, Status
from ..plan.search_space import DrawEnd
from .ledger import Result

RETRIED = (DrawEnd.FAILED, DrawEnd.LOST)      # by --retry
REPLACED = (DrawEnd.DIVERGED, *RETRIED)    # by the next draw
ALIKE = 5                           # if all trials, at least this many, failed for one reason, more would fail too


@dataclass(frozen=True)
class Outcome:
    """How a draw counts.

    kind       as in Result
    stop_step  steps after which it stopped, or would have in sequence; later measurements are ignored
    steps      steps to the strictest target; inf if not met by then, or without a target
    best       the objective's best value; NaN if there is none, or if pruned
    """

    number: int
    status: Status
    kind: DrawEnd
    reason: str
    stop_step: int
    steps: float
    best: float

    @property
    def feasible(self) -> bool:
        """Whether it counts as one of the ``trials``: finite up to its stop."""
        return self.kind not in REPLACED


@dataclass(frozen=True)
class State:
    """The state of a study.

    limit      draws below this number certainly belong to the study and may be started; never shrinks
    prefix     number of finished draws without a gap from 0 on
    outcomes   of these draws, in order; draws finished beyond a gap are not settled yet
    feasible   number of feasible ones among them
    done       whether they are the whole study
    """

    limit: int
    prefix: int
    outcomes: tuple[Outcome, ...]
    feasible: int
    done: bool


def threshold(results: Mapping[int, Result], number: int, target: str | None, keep: int | None) -> float:
    """The step at which draw ``number`` may be stopped if it has not met ``target``; inf: never.

    The ``keep``-th fewest steps to the target among known results of lower numbers: too high or right while some are
    missing, never too low. ``keep`` or ``target`` None: no pruning.
    """
    if keep is None or target is None:
        return math.inf
    before = heapq.nsmallest(keep, (_steps(result, target) for lower, result in results.items() if lower < number))
    return before[-1] if len(before) == keep else math.inf


class Settling:
    """The state of a study as its results come, independent of their order.

    trials     feasible draws wanted, of at most ``max_draws``
    target     text of the strictest target; None: the study has none
    keep       number of best trials that pruning preserves; None: no pruning
    """

    def __init__(self, trials: int, max_draws: int, target: str | None, keep: int | None = None):
        self.target, self.keep, self.max_draws = target, keep, max_draws
        self.state = State(min(trials, max_draws), 0, (), 0, False)
        self._fewest: list[float] = []          # steps to the target of the settled draws, in order

    def extend(self, results: Mapping[int, Result]) -> State:
        """The state with further results; those of settled draws are not read again.

        Raises LogError for a draw stopped before its threshold, as after the removal of earlier results.
        """
        if self.state.prefix == self.state.limit or self.state.prefix not in results:
            return self.state
        limit, outcomes, feasible = self.state.limit, list(self.state.outcomes), self.state.feasible
        while len(outcomes) < limit and len(outcomes) in results:
            result = results[len(outcomes)]
            outcome = _outcome(result, self.target, self._stop())
            outcomes.append(outcome)
            feasible += outcome.feasible
            if not outcome.feasible:
                limit = min(limit + 1, self.max_draws)
            bisect.insort(self._fewest, _steps(result, self.target))
        self.state = State(limit, len(outcomes), tuple(outcomes), feasible, len(outcomes) == limit)
        return self.state

    def _stop(self) -> float:
        """The step at which the next draw is stopped."""
        return self._fewest[self.keep - 1] if self.keep is not None and len(self._fewest) >= self.keep else math.inf


def failed_alike(results: Collection[Result]) -> str | None:
    """The reason for which all trials have failed, at least ALIKE of them; numbers in it may differ."""
    if len(results) < ALIKE or any(result.kind != DrawEnd.FAILED for result in results):
        return None
    reasons = {re.sub(r"\d+", "N", result.reason) for result in results}
    return next(iter(results)).reason if len(reasons) == 1 else None


def winner(outcomes: Iterable[Outcome], minimizes: bool | None = None) -> int | None:
    """The best draw's number: fewest steps to the target, ties by lower number. None: none met it.

    minimizes    for a metric as objective: whether smaller is better; the best value of a feasible draw wins
    """
    if minimizes is None:
        ranked = [(o.steps, o.number) for o in outcomes if o.steps < math.inf]
    else:
        sign = 1 if minimizes else -1
        ranked = [(sign * o.best, o.number) for o in outcomes if o.feasible and not math.isnan(o.best)]
    return min(ranked)[1] if ranked else None


def _outcome(result: Result, target: str | None, stop: float) -> Outcome:
    """The draw's outcome if it had known the threshold ``stop`` from its start."""
    steps = _steps(result, target)
    pruned = result.kind == DrawEnd.PRUNED
    if pruned and result.last_step < stop:
        raise LogError(f"draw {result.number} was pruned after step {result.last_step}, but the results before it let "
                       f"it run to {'its end' if stop == math.inf else f'step {stop:.0f}'}: one of them was removed or "
                       f"changed since. Remove the study's {result.number}.json, too, to have it run again")
    if not pruned and (result.kind == DrawEnd.LOST or min(steps, result.last_step) <= stop):
        return Outcome(result.number, result.status, result.kind, result.reason, result.last_step, steps, result.best)
    reason = f"{PRUNED} after step {stop:.0f}: that few were enough for others before it"
    return Outcome(result.number, Status.INCOMPLETE, DrawEnd.PRUNED, reason, int(stop), math.inf, math.nan)


def _steps(result: Result, target: str | None) -> float:
    """Steps to the target; inf if it was not met."""
    return math.inf if target is None else result.steps.get(target, math.inf)
