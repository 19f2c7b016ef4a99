"""Searches that are cut off by the rates that they tried: the best rate of a batch lies beyond all of them.

Steps fall towards the best rate, about as its inverse. So where a batch's steps still fall over the upper (or lower)
half of the rates tried, by a rank correlation that chance exceeds once in ten times, and at most BEYOND trials lie
beyond the best one, more would be found farther out, and the batch's steps are too many. Trials that diverged count as
beyond: they show where the rates end.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .search import rank_deviate

BEYOND = 2
FALLS = 1.28                # standard deviations of the rank correlation
LEAST = 5                   # trials in a half


def is_cut(rates: np.ndarray, steps: np.ndarray, diverged: np.ndarray) -> bool | None:
    """Whether one batch's best rate lies beyond those tried; None: no trial met the target.

    rates     of the feasible trials, shape (trials,), and of those that ``diverged``
    steps     to target of the feasible ones; inf: not met
    """
    if not np.isfinite(steps).any():
        return None
    best = rates[steps.argmin()]
    for way in (1, -1):
        beyond = np.count_nonzero(way * np.append(rates, diverged) > way * best)
        half = way * rates >= way * np.median(rates)
        if beyond <= BEYOND and half.sum() >= LEAST and rank_deviate(way * rates[half], steps[half]) < -FALLS:
            return True
    return False


def cut_from(batches: Sequence[int], cut: Iterable[bool | None]) -> int | None:
    """The batch from which on most batches are cut, the largest too; None: there is none.

    cut  of each batch; None: no trial met the target there
    """
    known = [(batch, one) for batch, one in zip(batches, cut) if one is not None]
    for at, (batch, one) in enumerate(known):
        rest = [other for _, other in known[at:]]
        if one and rest[-1] and sum(rest) > len(rest) / 2:
            return batch
    return None
