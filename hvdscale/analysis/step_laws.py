"""Candidate laws for the seconds of a step.

W workers, g of them on each of m nodes, pass e examples each through the model in k passes:

    pass        c = (a^q + (b e)^q)^(1/q)                       a: of a device not full, b: seconds per example
    allreduce   s = f(g; h, v) + f(m; h', v')                   within a node, and (primed) between nodes
    wait        u = l c (1 - (1 - r)^W)                         a worker pauses for l passes in a share r of its steps
    step        t = (k - 1) c + (c^p + s^p)^(1/p) + u           p = 1: in sequence; large p: fully overlapped

    ring        f(n; h, v) = 2 (n - 1) h + 2 (n - 1) / n v      Patarasuk and Yuan 2009
    tree        f(n; h, v) = 2 log2(n) h + 2 (n - 1) / n v      Thakur, Rabenseifner and Gropp 2005
    linear      f(n; h, v) = (n - 1) h                          one message to or from each of the others in turn

With q = 1 a pass takes a + b e; with a large q it takes a until its examples fill the device, and then b e. h is the
seconds of a hop, v those of the whole gradient on one link. The overlap p is that of Qiao et al. 2021 (Pollux, arXiv
2008.12260). t is the mean step. A step waits for its slowest worker, so the wait saturates where some worker pauses in
nearly every step."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Parameters:
    """a, b, h, v, h', v' in seconds, p, q, l and r: numbers, or arrays of shape (draws,)."""

    fixed: np.ndarray
    example: np.ndarray
    hop: np.ndarray
    volume: np.ndarray
    node_hop: np.ndarray
    node_volume: np.ndarray
    overlap: np.ndarray
    sharpness: np.ndarray
    pause: np.ndarray
    pausing: np.ndarray


NAMES = tuple(field.name for field in fields(Parameters))
POWERS = ("overlap", "sharpness")
PAUSES = ("pause", "pausing")
WITHIN, BETWEEN = ("hop", "volume"), ("node_hop", "node_volume")


@dataclass(frozen=True)
class StepLaw:
    """How long an allreduce over n, a number or an array, takes: the number of ``hops`` by n, and how many times the
    whole gradient passes a link, ``volumes``."""

    name: str
    hops: Callable[[Any], Any]
    volumes: Callable[[Any], Any]

    def seconds(self, parameters: Parameters, workers: ArrayLike, per_node: ArrayLike, examples: ArrayLike,
                passes: ArrayLike = 1) -> np.ndarray:
        """t of the module's docstring; ``examples`` are a worker's in one pass. Broadcasts over all arguments."""
        inside, nodes = np.minimum(workers, per_node), np.ceil(np.asarray(workers) / per_node)
        one_pass = _norm(parameters.fixed, parameters.example * examples, parameters.sharpness)
        allreduce = (self.hops(inside) * parameters.hop + self.volumes(inside) * parameters.volume
                     + self.hops(nodes) * parameters.node_hop + self.volumes(nodes) * parameters.node_volume)
        wait = parameters.pause * one_pass * (1 - (1 - parameters.pausing) ** np.asarray(workers))
        return (np.asarray(passes) - 1) * one_pass + _norm(one_pass, allreduce, parameters.overlap) + wait


def _norm(one: np.ndarray, other: np.ndarray, power: np.ndarray) -> np.ndarray:
    """(one^power + other^power)^(1/power)."""
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    with np.errstate(under="ignore"):
        return longer * (1 + (shorter / longer) ** power) ** (1 / power)


LAWS = RING, TREE, LINEAR = (
    StepLaw("ring", lambda count: 2 * (count - 1), lambda count: 2 * (count - 1) / count),
    StepLaw("tree", lambda count: 2 * np.log2(count), lambda count: 2 * (count - 1) / count),
    StepLaw("linear latency", lambda count: count - 1, lambda count: 0 * count))
