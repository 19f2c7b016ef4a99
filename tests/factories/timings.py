"""Step times of clusters whose law is known, many at once: what intervals of step times are tested on.

A pass of e examples takes (a^q + (b e)^q)^(1/q): a + b e for q = 1; for an infinite q it is flat until the device is
full. The allreduce of n workers takes what its law says, in hops h and all bytes v:

    ring         2 (n - 1) (h + v / n)
    tree         2 log2(n) h + 2 (n - 1) / n v; of half of the clusters v = 0, c log2(n)
    linear       h (n - 1)
    overlap      a ring's, while the pass is computed: the step is the longer of the two
    two-level    a ring within each node of four, and one between nodes

Where workers pause, each in a share of its steps for three passes, a step waits for the slowest."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hvdscale.analysis.intervals import CONFIDENCE, mean_interval, pooled
from hvdscale.analysis.decision.draws import quantiles
from hvdscale.analysis.step_time import Links, StepTimes
from hvdscale.analysis.timings import Machine, Place, Timing, Timings, slow_runs, timings_of
from hvdscale.analysis.trials import read_trials
from tests.factories.logs import log, trial

RING, TREE, LINEAR, OVERLAP, TWO_LEVEL = LAWS = ("ring", "tree", "linear", "overlap", "two-level")
COUNTS = (1, 2, 4, 8, 16)
STRONG, WEAK, TWO_BATCHES = DESIGNS = ("strong", "weak", "two batches")
LOCAL = "local batches"
BATCHES = {STRONG: lambda workers: (4096,), WEAK: lambda workers: (32 * workers,),
           TWO_BATCHES: lambda workers: (1024, 4096),
           LOCAL: lambda workers: (16 * workers, 64 * workers, 256 * workers)}      # that are timed
KNEES = {STRONG: (64, 2048), LOCAL: (32, 1024)}     # examples of a pass at which the device may be full
SHAPES = {"q = 2": 2.0, "q = 4": 4.0, "flat, then linear": np.inf}       # of such a pass
ASKED = (32, 64, 256)           # worker counts; for LOCAL, the largest batch times these over the most timed
NODE = 4
BANDWIDTH = 1e10                # bytes a second, where links are given
MACHINE = Machine("cpu", 1, "fp32", "")


@dataclass(frozen=True)
class Cluster:
    """A law with its numbers: seconds of the fixed part, an example, a hop and all bytes, and of both between nodes."""

    law: str
    fixed: float
    example: float
    hop: float
    volume: float
    node_hop: float = 0.0
    node_volume: float = 0.0
    shape: float = 1.0          # q
    pauses: float = 0.0         # share of a worker's steps
    pause: float = 3.0          # passes
    slow: int = 0               # workers from which on one takes 1.3 times as long
    full: float = np.inf        # workers whose messages fill a link; those of more share it

    @property
    def per_node(self):
        return NODE if self.law == TWO_LEVEL else 1

    @property
    def links(self):
        """Its network as a user would give it."""
        hop, volume = (self.node_hop, self.node_volume) if self.law == TWO_LEVEL else (self.hop, self.volume)
        return Links(BANDWIDTH, hop, volume * BANDWIDTH / 4)      # bytes of a gradient in fp32

    def seconds(self, workers, examples):
        one_pass, moving = np.linalg.norm([self.fixed, self.example * examples], self.shape), self.allreduce(workers)
        one_pass *= 1.3 if 0 < self.slow <= workers else 1.0
        pause = self.pause * one_pass * (1 - (1 - self.pauses) ** workers)
        return (max(one_pass, moving) if self.law == OVERLAP else one_pass + moving) + pause

    def allreduce(self, workers):
        volume = max(1, workers / self.full) * self.volume
        if self.law == TWO_LEVEL:
            between = allreduce(RING, -(-workers // NODE), self.node_hop, self.node_volume)
            return allreduce(RING, min(workers, NODE), self.hop, volume) + between
        return allreduce(self.law, workers, self.hop, volume)

    def timings(self, design, noise, runs, random):
        """``noise``: the deviation of log t, or a function of what log t is off by, shape (places, runs)."""
        places = [(workers, batch) for workers in COUNTS for batch in BATCHES[design](workers)]
        errors = noise(random, (len(places), runs)) if callable(noise) else (
            noise * random.standard_normal((len(places), runs)))
        return tuple(Timing(workers, min(workers, self.per_node), batch, 1, self.seconds(workers, batch / workers)
                            * np.exp(own), False, ()) for (workers, batch), own in zip(places, errors))


def hops_of(law, count):
    return {TREE: 2 * np.log2(count), LINEAR: count - 1}.get(law, 2 * (count - 1))


def allreduce(law, count, hop, volume):
    return hops_of(law, count) * hop + (0.0 if law == LINEAR else 2 * (count - 1) / count * volume)


def cluster_of(law, design, random, shape=1.0):
    """A cluster as it may be: at the most workers timed, the allreduce takes from 3 % to 100 % of the pass."""
    most, one_pass = COUNTS[-1], np.exp(random.uniform(np.log(0.01), np.log(2)))
    fixed, example = np.array([share := random.uniform(0.02, 0.6), 1 - share]) * one_pass
    example /= BATCHES[design](most)[-1] / most
    if shape > 1:
        example = fixed / np.exp(random.uniform(*np.log(KNEES[design])))
        one_pass = np.linalg.norm([fixed, example * BATCHES[design](most)[-1] / most], shape)
    seconds, inside = one_pass * np.exp(random.uniform(np.log(0.03), 0)), random.uniform(0.1, 0.5)
    hops = 1.0 if law == LINEAR or law == TREE and random.uniform() < 0.5 else random.uniform()     # share of it
    if law == TWO_LEVEL:
        return Cluster(law, fixed, example, *links_of(law, NODE, inside * seconds, hops),
                       *links_of(law, most // NODE, (1 - inside) * seconds, hops), shape)
    return Cluster(law, fixed, example, *links_of(law, most, seconds, hops), shape=shape)


def links_of(law, count, seconds, hops):
    """Hop and volume of an allreduce over ``count`` that takes so many seconds, a share ``hops`` of them in hops."""
    return hops * seconds / hops_of(law, count), (1 - hops) * seconds * count / (2 * (count - 1))


def coverage(law, design, noise, clusters, seed=0, given=False, runs=2, asked=ASKED, shape=1.0, **trouble):
    """By worker count the share of 95 % intervals that hold the truth, and the median ratio of their ends."""
    held = [list(_forecast(law, design, noise, [seed, number], given, runs, asked, shape, **trouble))
            for number in range(clusters)]
    return {workers: _share_and_ratio(found) for workers, found in zip(asked, zip(*held))}


def _forecast(law, design, noise, seed, given, runs, asked, shape, **trouble):
    """(truth, low, high) at each worker count."""
    random = np.random.default_rng([*seed, LAWS.index(law), [*DESIGNS, LOCAL].index(design)])
    cluster = replace(cluster_of(law, design, random, shape), **trouble)
    times = StepTimes(Timings(cluster.timings(design, noise, runs, random), MACHINE), cluster.links if given else None)
    for workers in asked:
        batch = BATCHES[design](workers)[-1]
        workers = COUNTS[-1] if design == LOCAL else workers
        found = quantiles(times.at(Place(workers, batch), cluster.per_node).draws, CONFIDENCE)
        yield cluster.seconds(workers, batch / workers), *found


ORDERS = "passes over all counts", "an hour a run", "an hour a count"


def hours_held(order, runs, jobs, seed=0):
    """(share of intervals of measured step times that hold the truth, median ratio of their ends), hours differing by
    10 %, runs within one by 1 %."""
    held = []
    for number in range(jobs):
        random = np.random.default_rng([seed, number, runs])
        hours = 0.1 * random.standard_normal((len(COUNTS), runs))
        hours = {ORDERS[0]: hours[:1], ORDERS[1]: hours, ORDERS[2]: hours[:, :1]}[order] + np.zeros_like(hours)
        found = tuple(Timing(workers, 1, 32 * workers, 1, np.exp(own + 0.01 * random.standard_normal(runs)), False, ())
                      for workers, own in zip(COUNTS, hours))
        times = StepTimes(Timings(found, MACHINE, in_a_row=order == ORDERS[2]))
        held += [quantiles(times.at(Place(workers, 32 * workers), 1).draws, CONFIDENCE) for workers in COUNTS]
    return _share_and_ratio([(1.0, *ends) for ends in held])


def slowed_held(slow, longs, jobs, seed=0):
    """Likewise of two probes of 50 steps at each count, of jobs that take so much longer after some hundred steps;
    ``longs`` of the counts have a run of 3,000 steps, too, and are left out."""
    held, counts = [], COUNTS[:4]
    for number in range(jobs):
        random, made = np.random.default_rng([seed, number]), []
        for workers, steps in [*((workers, 50) for workers in counts * 2), *((own, 3000) for own in counts[:longs])]:
            seconds = workers ** 0.1 * (1 + slow * (1 - np.exp(-np.arange(steps) / 300))) * np.exp(
                0.02 * random.standard_normal(steps) + 0.005 * random.standard_normal())
            at = () if steps == 50 else (0, steps)
            made.append(trial(len(made) + 1, at, at, [0, seconds.sum()][:len(at)], workers=workers, batch=32 * workers,
                              seed=len(made), step_seconds=seconds))
        times = StepTimes(timings_of(read_trials(log(*made))))
        held += [(workers ** 0.1 * (1 + 0.9 * slow),
                  *quantiles(times.at(Place(workers, 32 * workers), workers).draws, CONFIDENCE))
                 for workers in counts[longs:]]
    return _share_and_ratio(held)


def typical_held(settings, runs, noise, sweeps, seed=0, search=True):
    """Likewise of settings of a few runs each, of which one in ten takes three times as long, as to the time 1 of a
    typical run; and the share of the slow runs that are found. search: whether they are searched for."""
    random, held, found = np.random.default_rng(seed), [], []
    for _ in range(sweeps):
        slow = random.random((settings, runs)) < 0.1
        samples = np.exp(noise * random.standard_normal((settings, runs))) * np.where(slow, 3.0, 1.0)
        ratios = np.array(slow_runs(samples)) if search else np.ones(samples.shape)
        kept = [one[ratio == 1] for one, ratio in zip(samples, ratios)]
        held += [(1.0, *mean_interval(one, pooled(kept))) for one in kept if len(one) > 1]
        found += list(ratios[slow] > 1)
    return *_share_and_ratio(held), float(np.mean(found))


def _share_and_ratio(found):
    return (float(np.mean([low <= true <= high for true, low, high in found])),
            float(np.median([high / low for _, low, high in found])))
