"""Draws of the time of a step at any worker count and local batch, from timings and what is known of networks.

The law is that of step_laws with all its parts, each as likely as it is in practice: an allreduce by a ring or a tree,
or linear in the members; hidden behind the pass or not; workers that pause. In the prior, an allreduce over MEMBERS
takes a share of a pass that is log-normal, within a node and between nodes; and a pass takes a fixed share, uniform, of
its time whatever its examples. Links that no log has timed are drawn from that prior.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from ..step_laws import LINEAR, PARTIAL, RING, TREE, Parameters, StepLaw
from ..step_time import ASSUMED_DEVIATION, StepTimes
from .measured import Measured
from .sampling import DRAWS, sample_posterior

MEMBERS = 8.0
WITHIN, BETWEEN = (0.12, 1.3), (0.18, 1.2)      # share of a pass for an allreduce: median, deviation of the logarithm
KINDS = (0.45, 0.9)                     # probability of a ring; of a ring or a tree
OVERLAPS = (0.5, 0.85)                  # of an allreduce that begins after the pass; of that or one in part behind it
SHARPNESSES = (0.6, 0.95)               # of a pass that is a + b e; of that or one that fills the device by degrees
STEADY = 0.85                           # of workers that do not pause
PAUSE, PAUSING = (0.4, 1.0), (0.02, 1.5)        # in passes; share of steps: medians, deviations of the logarithm
MOST_PAUSING = 0.9
# that something else slows workers down beyond those timed (a slow node, another switch, storage): its probability,
# and the mean of log t that it adds by doubling
OTHER = (0.10, 0.15)
SPREAD, LACK = 0.8, (0.015, 0.8)        # see Measured
LEVEL = 2.0                             # standard deviation of the logarithm of a pass, around the fastest timing
LEAST = 0.002                           # standard deviation of a timing
UNKNOWNS = 14


class TimesPosterior:
    """Draws of the law's parameters given timings, and of step times."""

    def __init__(self, times: StepTimes, draws: int = DRAWS) -> None:
        self.times, self.draws = times, draws
        timings = times.timings.found
        self.settings = self._settings([(one.workers, one.per_node, one.examples, one.passes) for one in timings])
        runs = np.array([len(one.seconds) for one in timings])
        spread = times.timings.spread
        deviation = spread.deviation if spread.freedom else ASSUMED_DEVIATION
        self.measured = Measured(np.log([one.value for one in timings]),
                                 np.maximum(deviation / np.sqrt(runs), LEAST), spread.freedom, SPREAD, LACK)
        self.examples = float(np.exp(np.log(self.settings[2]).mean()))
        self.level = float((self.measured.logs - np.log(self.settings[3])).min())

    @staticmethod
    def _settings(rows: list[tuple[float, ...]]) -> np.ndarray:
        return np.array(rows, float).reshape(-1, 4).T

    def log_law(self, unknowns: np.ndarray, settings: np.ndarray) -> np.ndarray:
        """Logarithms of step times, shape (draws, settings), at (workers, per node, examples a pass, passes)."""
        share = scipy.special.ndtr(unknowns)
        kind, ratio = share[:, 5:6], scipy.special.logit(share[:, 1:2])         # of a to b e

        def by_kind(name: str) -> Callable[[Any], Any]:
            ring, tree, linear = (getattr(law, name) for law in (RING, TREE, LINEAR))
            return lambda count: np.where(kind < KINDS[0], ring(count), np.where(
                kind < KINDS[1], tree(count), linear(count)))
        law = StepLaw("any", by_kind("hops"), by_kind("volumes"), PARTIAL, True)
        sharpness = _power(share[:, 2:3], *SHARPNESSES)
        hop, volume = self._links(unknowns, 3, 4, WITHIN, law)
        node_hop, node_volume = self._links(unknowns, 9, 10, BETWEEN, law)
        one_pass = np.exp(self.level + LEVEL * unknowns[:, :1])
        links = {"hop": hop * one_pass, "volume": volume * one_pass, "node_hop": node_hop * one_pass,
                 "node_volume": node_volume * one_pass}
        if self.times.between:
            given = dict(zip(("node_hop", "node_volume"), self.times.between))
            links |= {name: np.full_like(one_pass, value) for name, value in given.items()}
        parameters = Parameters(
            **links, fixed=one_pass * np.exp(scipy.special.log_expit(sharpness * ratio) / sharpness),
            example=one_pass * np.exp(scipy.special.log_expit(-sharpness * ratio) / sharpness) / self.examples,
            sharpness=sharpness,
            overlap=_power(share[:, 6:7], *OVERLAPS),
            pause=np.where(share[:, 7:8] < STEADY, 0.0, PAUSE[0] * np.exp(PAUSE[1] * unknowns[:, 8:9])),
            pausing=np.minimum(PAUSING[0] * np.exp(PAUSING[1] * unknowns[:, 11:12]), MOST_PAUSING))
        return np.log(law.seconds(parameters, *settings))

    @staticmethod
    def _links(unknowns: np.ndarray, share_at: int, hops_at: int, prior: tuple[float, float], law: StepLaw
               ) -> tuple[np.ndarray, np.ndarray]:
        """(seconds of a hop, of all bytes) in passes; of a law without bytes all are hops."""
        seconds = prior[0] * np.exp(prior[1] * unknowns[:, share_at, None])
        volumes = law.volumes(MEMBERS)
        hops = np.where(volumes > 0, scipy.special.ndtr(unknowns[:, hops_at, None]), 1.0)
        return hops * seconds / law.hops(MEMBERS), (1 - hops) * seconds / np.maximum(volumes, 1e-9)

    @cached_property
    def unknowns(self) -> np.ndarray:
        """Draws of the parameters, standard normal in the prior, shape (draws, UNKNOWNS)."""
        def log_likelihood(unknowns: np.ndarray) -> np.ndarray:
            return self.measured.log_likelihood(self.log_law(unknowns, self.settings), unknowns[:, 12], unknowns[:, 13])
        return sample_posterior(log_likelihood, UNKNOWNS, self.draws)

    def log_seconds(self, per_node: int, places: Sequence[tuple[int, int, int]]) -> np.ndarray:
        """Draws of log t, shape (draws, places), at (workers, global batch, passes), so many workers a node."""
        settings = self._settings([(workers, per_node, batch / workers / passes, passes)
                                   for workers, batch, passes in places])
        timings = self.times.timings.found
        own = [self.times.timing_of(workers, per_node, batch, passes) for workers, batch, passes in places]
        random = np.random.default_rng([0, 11])
        slower = (random.random((self.draws, 1)) < OTHER[0]) * random.exponential(OTHER[1], (self.draws, 1))
        doublings = np.log2(np.maximum(settings[0] / self.settings[0].max(), 1))
        return self.measured.draw(
            self.log_law(self.unknowns, settings) + slower * doublings, self.log_law(self.unknowns, self.settings),
            np.array([timings.index(one) if one else -1 for one in own]), self.unknowns[:, 12], self.unknowns[:, 13],
            random)


def _power(share: np.ndarray, one: float, finite: float) -> np.ndarray:
    """A power that is 1, and finite, with these probabilities; between the two its inverse is uniform."""
    return 1 / np.maximum(1 - np.clip((share - one) / (finite - one), 0, 1), 1e-3)
