"""Sweeps at a fixed budget whose best batch is known: the loss falls and rises with the batch."""
from __future__ import annotations

import numpy as np

from hvdscale.analysis.best_batch import valley_of

from .curves import LANDSCAPES, median_best

SHAPES = {"parabola": lambda u: u ** 2,
          "flat with walls": lambda u: 0.02 * np.abs(u) + np.maximum(0, np.abs(u) - 2) ** 2,
          "one-sided": lambda u: 0.05 * np.maximum(0, -u) + np.maximum(0, u) ** 2}
OCTAVES, LOSS = 7, 2.5


def valley(shape, count, depth, noise, random, trials=12):
    """(batches, best losses, the best batch): ``depth`` the rise to the worst batch as a share of the loss, ``noise``
    the width of a search's landscape beside it."""
    x, best = np.linspace(5, 5 + OCTAVES, count), random.uniform(6, 4 + OCTAVES)
    over = SHAPES[shape](x - best)
    landscape = LANDSCAPES[int(random.integers(len(LANDSCAPES)))]
    found = landscape.searches(trials, count, random).min(1) - median_best(landscape, trials)[0]
    losses = LOSS * (1 + depth * (over / over.max() + noise * found))
    return tuple(np.rint(2 ** x).astype(int).tolist()), losses, 2 ** best


def coverage(shape, count, noise, sweeps, seed=0, depth=0.1):
    """(share of 95 % intervals that hold the best batch, their median width in octaves, share of fitted losses at the
    batch with the lowest measured one that are within 0.5 % of the fit's minimum)."""
    random = np.random.default_rng(seed)
    held, widths, close = [], [], []
    for _ in range(sweeps):
        batches, losses, best = valley(shape, count, depth, noise, random)
        found = valley_of(batches, losses)
        ends = np.clip([found.best.low, found.best.high], batches[0], batches[-1])
        held.append(found.best.low <= best <= found.best.high)
        widths.append(np.log2(ends[1] / ends[0]))
        close.append(found.fitted[losses.argmin()] <= 1.005 * found.lowest)
    return float(np.mean(held)), float(np.median(widths)), float(np.mean(close))
