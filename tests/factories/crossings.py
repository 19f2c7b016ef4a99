"""Runs whose metric falls as a known power of the steps, under noise, and crosses its target at a known step."""
from __future__ import annotations

import numpy as np

from hvdscale.analysis.intervals import UNKNOWN
from hvdscale.analysis.steps import estimate, lasting_crossing
from hvdscale.target import Target

TARGET = Target.parse("val/error<0.1")
TRUE = 1000.0           # steps at which the curve without noise crosses
SPREAD = 0.05           # of log(steps) between runs


def curve(evaluations, past, noise, random, slope=0.5):
    """(steps, measured, its own crossing) of a run with that many evaluations to the target, stopped at ``past`` times
    the first that met it."""
    own = TRUE * np.exp(SPREAD * random.standard_normal())
    step = np.arange(1, 4 * evaluations + 1) * TRUE / evaluations
    measured = TARGET.value * (step / own) ** -slope * np.exp(noise * random.standard_normal(len(step)))
    first = int(TARGET.met_by(measured).argmax())
    end = int(np.searchsorted(step, past * step[first])) + 1
    return step[:end], measured[:end], own


def coverage(evaluations, past, noise, sweeps, seed=0, runs=3):
    """By crossing, first and lasting: (share of intervals of S that hold TRUE, median S / TRUE)."""
    random, found = np.random.default_rng([seed, evaluations, int(10 * past)]), []
    for _ in range(sweeps):
        first, lasting = [], []
        for _ in range(runs):
            step, measured, _ = curve(evaluations, past, noise, random)
            at = int(TARGET.met_by(measured).argmax())
            one = lasting_crossing(step, measured, TARGET)
            first.append((step[at], step[at - 1] if at else 0.0))
            lasting.append((one.steps, one.before))
        found.append([(one.low <= TRUE <= one.high, one.value / TRUE) for values in (first, lasting)
                      for one in [estimate(*np.array(values).T, [], UNKNOWN, UNKNOWN)]])
    by_crossing = np.moveaxis(np.array(found, float), 0, 2)
    return [(float(np.mean(held)), float(np.median(value))) for held, value in by_crossing]
