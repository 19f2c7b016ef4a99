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
from dataclasses import replace
from itertools import islice

from ..errors import LogError
from ..log.schema import PRUNED
from ..plan.search_space import DrawEnd
from .ledger import RETRIED, DrawResult

ALIKE = 5                           # if all trials, at least this many, failed for one reason, more would fail too


def threshold(results: Mapping[int, DrawResult], number: int, target: str | None, keep: int | None) -> float:
    """The step at which draw ``number`` may be stopped if it has not met ``target``; inf: never. The ``keep``-th fewest
    steps to the target among known results of lower numbers: too high or right while some are missing, never too low.
    ``keep`` or ``target`` None: no pruning."""
    if keep is None or target is None:
        return math.inf
    before = heapq.nsmallest(keep, (result.steps_to(target) for lower, result in results.items() if lower < number))
    return before[-1] if len(before) == keep else math.inf


class StudyState:
    """The state of a study as its results come, independent of their order; see ``threshold`` for target and keep."""

    def __init__(self, trials: int, max_draws: int, target: str | None, keep: int | None = None):
        self.target, self.keep, self.max_draws = target, keep, max_draws
        # draws below this number certainly belong to the study and may be started; it never shrinks
        self.limit = min(trials, max_draws)
        # of the draws from 0 on, as far as none is missing, as they count; those beyond a gap are not settled yet
        self.results: list[DrawResult] = []
        self._fewest: list[float] = []          # steps to the target of the settled draws, in order
        self.timed, self.seconds = 0, 0.0       # trials that have ended without failing, and their seconds
        self._read = 0

    @property
    def done(self) -> bool:
        """Whether the settled draws are the whole study."""
        return len(self.results) == self.limit

    def extend(self, results: Mapping[int, DrawResult]) -> StudyState:
        """The state with further results, which are at their end; those of settled draws are not read again. Raises
        LogError for a draw stopped before its threshold, as after the removal of earlier results."""
        for result in islice(results.values(), self._read, None):
            if result.kind not in RETRIED:
                self.timed, self.seconds = self.timed + 1, self.seconds + result.seconds
        self._read = len(results)
        while not self.done and len(self.results) in results:
            given, stop = results[len(self.results)], math.inf
            if self.keep is not None and len(self._fewest) >= self.keep:
                stop = self._fewest[self.keep - 1]
            result = _as_in_sequence(given, self.target, stop)
            self.results.append(result)
            if not result.feasible:
                self.limit = min(self.limit + 1, self.max_draws)
            bisect.insort(self._fewest, given.steps_to(self.target))
        return self


def failed_alike(results: Collection[DrawResult]) -> str | None:
    """The reason for which all trials have failed, at least ALIKE of them; numbers in it may differ."""
    if len(results) < ALIKE or any(result.kind != DrawEnd.FAILED for result in results):
        return None
    return next(iter(results)).reason if len({re.sub(r"\d+", "N", result.reason) for result in results}) == 1 else None


def winner(results: Iterable[DrawResult], target: str | None, minimizes: bool = True) -> DrawResult | None:
    """The best draw: fewest steps to the target, ties by lower number; else the best value of a feasible draw."""
    if target is not None:
        met = (result for result in results if result.steps_to(target) < math.inf)
        return min(met, key=lambda result: (result.steps_to(target), result.number), default=None)
    sign = 1 if minimizes else -1
    measured = (result for result in results if result.feasible and not math.isnan(result.best))
    return min(measured, key=lambda result: (sign * result.best, result.number), default=None)


def _as_in_sequence(result: DrawResult, target: str | None, stop: float) -> DrawResult:
    """The draw's result if it had known the threshold ``stop`` from its start."""
    pruned = result.kind == DrawEnd.PRUNED
    if pruned and result.last_step < stop:
        raise LogError(f"draw {result.number} was pruned after step {result.last_step}, but the results before it let "
                       f"it run to {'its end' if stop == math.inf else f'step {stop:.0f}'}: one of them was removed or "
                       f"changed since. Remove the study's {result.number}.json, too, to have it run again")
    if not pruned and (result.kind == DrawEnd.LOST or min(result.steps_to(target), result.last_step) <= stop):
        return result
    reason = f"{PRUNED} after step {stop:.0f}: that few were enough for others before it"
    return replace(result, kind=DrawEnd.PRUNED, reason=reason, last_step=int(stop), steps={}, best=math.nan)
