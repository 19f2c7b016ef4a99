"""Which draws a study consists of and where each of them ends, whatever ran at once: pure, from the results alone.

A study wants ``trials`` feasible draws, finite up to their stop; each draw that diverged, failed or was lost is
replaced by the next one, up to ``max_draws`` in all. So it is the draws 0 .. L - 1, with L the least number that
equals min(max_draws, trials + draws below L that are not feasible).

Pruning is exact. Draw k is stopped at step T_k where it has not met the strictest target by then: T_k is the
``keep``-th fewest steps to that target among all draws before k. It then cannot be among the ``keep`` draws with the
fewest steps, nor set the threshold of a later one. Draws that run at once know only part of the results before theirs,
so a threshold that is too high or right: they stop at T_k or later, never before. What a draw did beyond T_k, be it
that it met the target, diverged or failed, is not counted, so every way to carry out a study comes to the outcomes of
one draw after the other. (A draw that was lost with its process, time after time, is lost wherever that was.)
"""
from __future__ import annotations

import bisect
import heapq
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import LogError
from ..log.schema import PRUNED, Status
from .ledger import Kind, Result

FIRST_REPEAT = 100_000              # a study's numbers from here on are repeats of its winner: no rule looks at them
RETRIED = (Kind.FAILED, Kind.LOST)      # by --retry
REPLACED = (Kind.DIVERGED, *RETRIED)    # by the next draw
ALIKE = 5                           # trials that failed for one reason, beside none that did not: more would fail, too


@dataclass(frozen=True)
class Outcome:
    """How a draw counts.

    kind       as of Result
    stop_step  steps after which it stopped, or would have in sequence: what was measured later is left out
    steps      steps to the strictest target; inf where it was not met by then, or where there is none
    best       the objective's best value; NaN where there is none, or where it was pruned
    """

    number: int
    status: Status
    kind: Kind
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
    """Where a study stands.

    limit      draws with a number below it belong to the study for certain, and may be started; it never shrinks
    prefix     how many draws, from 0 on, are finished without a gap
    outcomes   theirs, in order; what is finished beyond a gap is not settled yet
    feasible   how many of them are
    done       whether they are the whole study
    """

    limit: int
    prefix: int
    outcomes: tuple[Outcome, ...]
    feasible: int
    done: bool


def threshold(results: Mapping[int, Result], number: int, target: str | None, keep: int | None) -> float:
    """The step at which draw ``number`` may be stopped where it has not met ``target`` by then; inf: run on.

    It is the ``keep``-th fewest steps to the target among the results of lower numbers, so while some of those are
    missing it is too high or right, never too low. None for ``keep`` or ``target``: no pruning.
    """
    if keep is None or target is None:
        return math.inf
    before = heapq.nsmallest(keep, (_steps(result, target) for lower, result in results.items() if lower < number))
    return before[-1] if len(before) == keep else math.inf


def settle(results: Mapping[int, Result], trials: int, max_draws: int, target: str | None,
           keep: int | None = None) -> State:
    """Where a study stands that has these results; the same for all orders in which they came.

    trials     feasible draws wanted, of at most ``max_draws``
    target     the strictest one's text; None: the study has none
    keep       fewest steps that pruning may not touch; None: it is off

    Raises LogError where a draw was stopped before its threshold, as happens after results before it were removed.
    """
    limit, outcomes, fewest = min(trials, max_draws), [], []
    while len(outcomes) < limit and len(outcomes) in results:
        result = results[len(outcomes)]
        outcome = _outcome(result, target, fewest[keep - 1] if keep is not None and len(fewest) >= keep else math.inf)
        outcomes.append(outcome)
        if not outcome.feasible:
            limit = min(limit + 1, max_draws)
        bisect.insort(fewest, _steps(result, target))
    return State(limit, len(outcomes), tuple(outcomes), sum(o.feasible for o in outcomes), len(outcomes) == limit)


def failed_alike(results: Iterable[Result]) -> str | None:
    """The reason for which all trials that ended have failed, ALIKE or more of them; numbers in it may differ."""
    results = list(results)
    reasons = {re.sub(r"\d+", "N", result.reason) for result in results}
    alike = len(results) >= ALIKE and len(reasons) == 1 and all(result.kind == Kind.FAILED for result in results)
    return results[0].reason if alike else None


def winner(outcomes: Iterable[Outcome], minimizes: bool | None = None) -> int | None:
    """The best draw's number: the fewest steps to the target; the lower number where two are equal. None: none met it.

    minimizes    where the objective is a metric: whether smaller is better; the best value of a feasible draw wins
    """
    if minimizes is None:
        ranked = [(o.steps, o.number) for o in outcomes if o.steps < math.inf]
    else:
        sign = 1 if minimizes else -1
        ranked = [(sign * o.best, o.number) for o in outcomes if o.feasible and not math.isnan(o.best)]
    return min(ranked)[1] if ranked else None


def _outcome(result: Result, target: str | None, stop: float) -> Outcome:
    """The draw as it would have gone with the threshold ``stop`` known from its start."""
    steps = _steps(result, target)
    pruned = result.kind == Kind.PRUNED
    if pruned and result.last_step < stop:
        raise LogError(f"draw {result.number} was pruned after step {result.last_step}, but the results before it let "
                       f"it run to {'its end' if stop == math.inf else f'step {stop:.0f}'}: one of them was removed or "
                       f"changed since. Remove the study's {result.number}.json, too, to have it run again")
    if not pruned and (result.kind == Kind.LOST or min(steps, result.last_step) <= stop):
        return Outcome(result.number, result.status, result.kind, result.reason, result.last_step, steps, result.best)
    reason = f"{PRUNED} after step {stop:.0f}: that few were enough for others before it"
    return Outcome(result.number, Status.INCOMPLETE, Kind.PRUNED, reason, int(stop), math.inf, math.nan)


def _steps(result: Result, target: str | None) -> float:
    """Steps to the target; inf where it was not met."""
    return math.inf if target is None else result.steps.get(target, math.inf)
