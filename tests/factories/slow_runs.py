"""Settings of a few runs each, of which one in ten takes three times as long: what their times are tested on."""
import numpy as np

from hvdscale.analysis.intervals import mean_interval, pooled
from hvdscale.analysis.slow_runs import slow_runs

SHARE, TIMES = 0.1, 3.0


def drawn(settings, runs, noise, random):
    """Seconds of a typical run 1, arrays of shape (runs,), and whether each is slow."""
    slow = random.random((settings, runs)) < SHARE
    return np.exp(noise * random.standard_normal((settings, runs))) * np.where(slow, TIMES, 1.0), slow


def coverage(settings, runs, noise, sweeps, seed=0, search=True):
    """The share of 95 % intervals of a setting that hold the time of a typical run, their median ratio of ends, and of
    the slow runs those found.

    search  whether slow runs are searched for
    """
    random, ends, found = np.random.default_rng(seed), [], []
    for _ in range(sweeps):
        samples, slow = drawn(settings, runs, noise, random)
        ratios = np.array(slow_runs(samples)) if search else np.ones(samples.shape)
        kept = [one[ratio == 1] for one, ratio in zip(samples, ratios)]
        ends += [mean_interval(one, pooled(kept)) for one in kept if len(one) > 1]
        found += list(ratios[slow] > 1)
    low, high = np.array(ends).T
    return float(np.mean((low <= 1) & (1 <= high))), float(np.median(high / low)), float(np.mean(found))
