"""Searches along the learning rate whose steps are known at every rate: valleys, parabolas, wide flat tops, cliffs."""
from __future__ import annotations

import numpy as np

from hvdscale.analysis.lr_response import landscape_of, trials_confirm, valley

# log(steps) beside the best rate, by u = log(rate / best rate)
SHAPES = {"valley": lambda u: valley(u, 1.0, 2.0, 1.0), "parabola": lambda u: 0.35 * u ** 2,
          "wide flat top": lambda u: np.maximum(0, np.abs(u) - 1.2) * 1.5,
          "one-sided cliff": lambda u: np.where(u > 0.3, np.inf, np.maximum(0, -u - 0.3))}
FEWEST, BUDGET = 500.0, 3000.0


def search(shape, count, noise, random):
    """(log rates, steps at the evaluation before, steps; inf: not met) of ``count`` trials; the best rate is 1."""
    u = random.uniform(-3.5, 2.5, count)
    steps = FEWEST * np.exp(SHAPES[shape](u) + noise * random.standard_normal(count))
    steps = np.ceil(steps / 10) * 10
    return u, np.where(steps <= BUDGET, steps - 10, BUDGET), np.where(steps <= BUDGET, steps, np.inf)


def claims(shape, count, searches, seed=0, tolerance=0.2):
    """(share of the rates whose true loss is within tolerance that are called surely lost, share of the true claims of
    the fitted landscape that the trials confirm, the first share without their confirmation)."""
    random, found = np.random.default_rng([seed, count]), {True: [], False: []}
    for number in range(searches):
        trials = search(shape, count, (0.05, 0.1, 0.2)[number % 3], random)
        landscape = landscape_of(*trials)
        for rate in random.uniform(-3, 2, 4):
            lost = np.expm1(float(SHAPES[shape](rate))) > tolerance
            if landscape and landscape.bracketed and landscape.tried(rate):
                claimed = landscape.loss(rate, 0.95).low > 1 + tolerance
                found[lost].append((claimed, claimed and trials_confirm(landscape, rate, *trials, 1 + tolerance)))
    false, true = (np.mean(found[lost], 0) for lost in (False, True))
    return float(false[1]), float(true[1] / true[0]), float(false[0])
