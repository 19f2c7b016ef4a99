"""Runs of replicas that are synchronized every H steps, to steps that are a known law of H, on a known cluster."""
import zlib

import numpy as np

from hvdscale.analysis.decision.draws import quantiles
from hvdscale.analysis.step_time import RING, Parameters
from hvdscale.analysis.steps_curve import StepsCurve, StepsPoint
from hvdscale.analysis.trials import EVERY_STEP
from tests.factories.curves import Known, repeated
from tests.factories.logs import trial

OFTEN, CRITICAL, SHAPE = 400.0, 20.0, 1.5       # the law: S_often, H_crit, p
EVERY = (1, 4, 16, 64, 256)
# whose allreduce takes as long as six passes of 16 examples between four workers, each on a node
TRUE = Parameters(fixed=0.004, example=0.001, hop=2e-5, volume=2e-3, node_hop=1e-3, node_volume=0.076, overlap=1.0,
                  sharpness=1.0, pause=0.0, pausing=0.0)


def steps_at(every):
    """S; of synchronous training S_often."""
    return OFTEN * (1 + (every / CRITICAL) ** SHAPE) ** (1 / SHAPE)


def seconds_at(sync, workers=4, batch=64):
    return float(RING.seconds(TRUE, workers, 1, batch / workers, 1, *sync))


def run(sync=EVERY_STEP, seed=0, *, workers=4, batch=64, more=1.0, met=True, **changes):
    """A run of this (M, H) that takes ``more`` times the steps of the law, within 3 %."""
    random = np.random.default_rng([*sync, seed])
    steps = 4 * max(2, round(more * steps_at(sync[1]) * np.exp(0.03 * random.standard_normal()) / 4))
    seconds = seconds_at(sync, workers, batch) * np.exp(0.01 * random.standard_normal())
    local = {"replicas": sync[0], "sync_every": sync[1], "outer_lr": 1.0, "outer_momentum": 0.0}
    number = zlib.crc32(repr((sync, seed, workers, batch, more, met, changes)).encode())
    return trial(number, (0, 200, steps - 4, steps), (0.9, 0.5 + 0.001 * sync[1], 0.45, 0.1 if met else 0.4),
                 np.array([0, 200, steps - 4, steps]) * seconds, workers=workers, batch=batch, seed=seed, **{
                     "eval_every": 4, "local_workers": 1, "train_examples": 1000, "problem": {
                         "local_steps": None if sync == EVERY_STEP else local}, **changes})


def study(every=EVERY, replicas=4, seeds=3, unmet=()):
    """Synchronous runs, and those of replicas at each H."""
    return [run(sync, seed, met=sync[1] not in unmet) for sync in (EVERY_STEP, *((replicas, one) for one in every))
            for seed in range(seeds)]


def left_out(shape, sweeps, seed=0):
    """Of made curves over EVERY, three seeds each: whether the interval of each inner H holds its steps, which are left
    out, as drawn from those of the others; and the ratio of its ends."""
    random, found = np.random.default_rng([seed, 60]), []
    for number in range(sweeps):
        least, critical = np.exp(random.uniform(np.log([5, 2]), np.log([100, 128])))
        known = Known(shape, float(least), float(critical), np.array(EVERY))
        points = [StepsPoint(every, one, 3, 3) for every, one in zip(EVERY, repeated(known, 3, random, number))]
        for at in range(1, len(points) - 1):
            drawn = StepsCurve(points[:at] + points[at + 1:]).log_steps([EVERY[at]])[:, 0]
            low, high = np.exp(quantiles(drawn, 0.95))
            found.append((low <= known.steps[at] <= high, high / low))
    return np.array(found)
