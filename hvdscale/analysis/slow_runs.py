"""Runs that took far longer than the others of their setting, as where a neighbour was busy or a disk failed, and seeds
that needed far more steps.

A time here is that of a typical run, and so are its steps. A run counts as slow where it took over LEAST times as long
as the fastest of its setting, and longer than the mean of the others by more than their spread explains: Student's t
for the next value of a sample (one-sided, shared out over all runs by Bonferroni). The spread is that of the runs that
are not slow, pooled over the settings, so that two or three runs of each are enough. Where more than one run in FEWEST
seems slow, or most of a setting, times scatter, and none is slow.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from .intervals import logarithms, pooled

LEAST = 1.5
FEWEST = 4
SLOW_AT = 0.01          # probability of any slow run where there is none
LEAST_FREEDOM = 3       # of the spread of the others


def slow_runs(samples: Sequence[Sequence[float] | np.ndarray]) -> list[np.ndarray]:
    """Of each setting's seconds, shape (runs,), how many times as long a slow run took as the others; 1: not slow.

    NaN, a run that was not timed, is never slow.
    """
    logs = [logarithms(one) for one in samples]
    slow = [one > np.nanmin(one, initial=np.inf) + np.log(LEAST) for one in logs]
    runs = sum(np.count_nonzero(~np.isnan(one)) for one in logs)
    if sum(map(np.count_nonzero, slow)) * FEWEST > runs:
        return [np.ones(len(one)) for one in logs]
    while True:
        others = [one[~(out | np.isnan(one))] for one, out in zip(logs, slow)]
        spread = pooled([np.exp(one) for one in others])
        if spread.freedom < LEAST_FREEDOM:
            return [np.ones(len(one)) for one in logs]
        most = scipy.special.stdtrit(spread.freedom, 1 - SLOW_AT / runs) * spread.deviation
        excess = [own - (rest.mean() if len(rest) else 0.0) for own, rest in zip(logs, others)]
        surely = [out & (own > most * np.sqrt(1 + 1 / max(1, len(rest))))
                  for out, own, rest in zip(slow, excess, others)]
        if all((now == before).all() for now, before in zip(surely, slow)):
            return [np.exp(np.where(out & (2 * out.sum() <= len(out)), own, 0.0)) for out, own in zip(slow, excess)]
        slow = surely


def seeds_apart(samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Likewise of each setting's steps to target, shape (seeds,): never one that did not meet (inf), nor where fewer
    than two others of its setting did."""
    met = [np.where(np.isinf(one), np.nan, one) for one in samples]
    found = slow_runs(met)
    return [ratios if np.count_nonzero(~np.isnan(one) & (ratios == 1)) > 1 else np.ones(len(one))
            for one, ratios in zip(met, found)]
