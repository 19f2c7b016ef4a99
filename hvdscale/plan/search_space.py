"""A study's space and the points drawn from it: the same on every machine, and the first n of more.

    draws([Parameter("lr", "double", "log", 1e-4, 10.0)], 20, seed)     -> [{"lr": 0.0193}, ...]

Types and scales are those of Shallue et al. 2019's archive. On a log scale the logarithm of the value is spread evenly,
on a reverse log scale that of 1 - value.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..errors import HvdscaleError
from .settings import ACTS_ONLY_WITH, key_of

TYPES = ("double", "integer", "discrete")
# by scale, where on an evenly spread one a value lies
EVENLY = {"linear": lambda value: value, "log": math.log, "reverse_log": lambda value: -math.log(1 - value)}
SCALES = tuple(EVENLY)
BITS = 30       # of a drawn coordinate: 2^30 points before a sequence repeats
STEPS_TO_TARGET = "steps"       # the objective of a study that minimizes steps to its target


class DrawEnd(str, Enum):
    """How a draw of a study ended."""

    MET = "met"                 # the strictest target
    BUDGET = "budget"           # spent
    DIVERGED = "diverged"
    FAILED = "failed"           # with an error
    LOST = "lost"               # with its process, too many times
    PRUNED = "pruned"

    __str__ = str.__str__


@dataclass(frozen=True)
class Parameter:
    """One dimension of a space, its bounds settled for one study."""

    name: str               # a key of hvdscale.plan.settings, or TABLE.key such as model_args.dropout
    type: str               # of TYPES
    scale: str = "linear"   # of SCALES; reverse_log of doubles alone
    low: float = math.nan   # the least and the largest value, which may be equal; NaN where discrete
    high: float = math.nan
    values: tuple = ()      # those of a discrete one, each with the same share

    @property
    def is_fixed(self) -> bool:
        return len(self.values) == 1 if self.type == "discrete" else self.low == self.high

    def at(self, u: float) -> float | str:
        """The value below which the share u of the scale lies, u in [0, 1): the inverse of its distribution. On a log
        scale integer k has the share of [k - 1/2, k + 1/2], so both bounds have their whole share."""
        if self.type == "discrete":
            return self.values[int(u * len(self.values))]
        if self.type == "double":
            return min(max(_spread(self.scale, self.low, self.high, u), self.low), self.high)
        value = math.floor(_spread(self.scale, self.low - 0.5, self.high + 0.5, u) + 0.5)
        return int(min(max(value, self.low), self.high))

    def position(self, value: float | str) -> float:
        """Where a value lies between the bounds, in the scale of the search: 0 at the low one, 1 at the high one, 0.5
        where there is but one; of a discrete value its place among them, ValueError for one that is none."""
        if self.type == "discrete":
            place = self.values.index(value)
            return 0.5 if self.is_fixed else place / (len(self.values) - 1)
        if self.is_fixed:
            return 0.5
        inside = min(max(float(value), self.low), self.high)
        low, at, high = (EVENLY[self.scale](v) for v in (self.low, inside, self.high))
        return (at - low) / (high - low)

    def record(self) -> dict:
        if self.type == "discrete":
            return {"name": self.name, "type": self.type, "values": list(self.values)}
        return {"name": self.name, "type": self.type, "scale": self.scale, "low": self.low, "high": self.high}

    @classmethod
    def of(cls, record: dict) -> Parameter:
        return cls(**{**record, "values": tuple(record.get("values", ()))})


def discrete(name: str, values: Sequence) -> Parameter:
    return Parameter(name, "discrete", values=tuple(values))


def _spread(scale: str, low: float, high: float, u: float) -> float:
    if scale == "log":
        return low ** (1 - u) * high ** u
    if scale == "reverse_log":
        return 1 - (1 - low) ** (1 - u) * (1 - high) ** u
    return low + u * (high - low)


def draws(space: Sequence[Parameter], count: int, seed: int) -> list[dict]:
    """The first ``count`` points of the scrambled Sobol sequence of this seed (0 .. 2^128 - 1), each {name: value}."""
    shares = scrambled_sobol(len(space), count, seed)
    return [{parameter.name: parameter.at(u) for parameter, u in zip(space, point)} for point in shares.tolist()]


def scrambled_sobol(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Points of the unit cube: float64 in [0, 1), shape (count, dimensions), multiples of 2^-30.

    The scramble is a random lower triangular matrix on the binary digits of each dimension, then a random digital shift
    (Matousek 1998, J. of Complexity 14), as scipy's own; but from the raw stream of a bit generator, which is the same
    in every numpy release, while the methods that scipy draws by may change.
    """
    from scipy.stats import qmc  # takes half a second, which reports of spaces need not wait
    whole = qmc.Sobol(dimensions, scramble=False, bits=BITS).random_base2(max(0, count - 1).bit_length())[:count]
    digits = (whole * 2**BITS).astype(np.int64)[..., None] >> np.arange(BITS)[::-1] & 1    # most significant first
    raw = np.random.Philox(key=seed).random_raw(dimensions * BITS * (BITS + 1)).reshape(dimensions, BITS + 1, BITS)
    drawn = (raw >> np.uint64(63)).astype(np.int64)
    matrix, shift = np.tril(drawn[:, :BITS], -1) + np.eye(BITS, dtype=np.int64), drawn[:, BITS]
    found = (np.einsum("dij,ndj->ndi", matrix, digits) + shift) % 2 @ 0.5 ** np.arange(1, BITS + 1)
    if any(len(np.unique(one)) < count for one in found.T):         # seen once: all were the first
        raise HvdscaleError("points of a Sobol sequence are equal, which no sequence has: this process did not compute "
                            "rightly; run the command again")
    return found


def layer_of(point: dict) -> dict:
    """The layer for Settings.build that a point sets, but for keys that do not act beside another's value in it."""
    layer: dict = {}
    for name, value in point.items():
        if acts(name, point):
            table, _, key = name.rpartition(".")
            (layer.setdefault(table, {}) if table else layer)[key] = value
    return layer


def acts(name: str, point: Mapping) -> bool:
    other, values = ACTS_ONLY_WITH.get(key_of(name), (None, ()))
    return other not in point or point[other] in values
