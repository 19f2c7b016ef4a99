"""Plans of made runs whose time to target is known, and whether a further run keeps the deadline that a plan says."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.analysis.worker_plan import Request, plans_of

from .logs import log, trial

COUNTS, STEPS, STEP_SECONDS, TIMING = (1, 2, 4, 8), 3000, 0.01, 0.02


def plan(seeds, noise, random, **request):
    """A plan from runs at COUNTS with a fixed batch a worker; log(steps) of a run has this noise."""
    made = []
    for workers in COUNTS:
        for seed in range(seeds):
            steps = max(2, round(STEPS / workers * np.exp(noise * random.standard_normal())))
            seconds = STEP_SECONDS * np.exp(TIMING * random.standard_normal())
            made.append(trial(100 * workers + seed, (0, steps - 1, steps), (0.9, 0.5, 0.1),
                              (0, (steps - 1) * seconds, steps * seconds), workers=workers, batch=32 * workers,
                              seed=100 * workers + seed, eval_every=1, train_examples=10 ** 6))
    [group] = analyse(read_trials(log(*made)))
    [found] = plans_of(group, Request(COUNTS, local_batch=32, **request))
    return found


def coverage(seeds, noise, plans, seed=0, sure=0.95):
    """(how often a run keeps a deadline that a plan is this sure of, how often the mean of many runs does)."""
    random, kept = np.random.default_rng([seed, seeds]), []
    for _ in range(plans):
        found = plan(seeds, noise, random)
        for option in found.options:
            true = STEPS / option.workers * STEP_SECONDS
            room = random.uniform(-1, 4) * noise
            limited = replace(found, request=replace(found.request, deadline=true * np.exp(room)))
            if limited.chance_within(option) >= sure:
                kept.append((ndtr(room / np.hypot(noise, TIMING)), room > 0))
    return tuple(float(share) for share in np.mean(kept, 0))
