"""A decision under uncertainty: which of several options to take, what that loses, and how sure it is.

Each option has draws of its time, the same draw of the same world for all. The option to take has the least expected
logarithm of time, of cost, or of cost x time ** knee. Its expected loss is how much longer it takes than the best one,
as a mean of logarithms over the draws; it is within a share of the best in as many draws as it is.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

OUTCOMES = 64       # of a measurement, that its worth is a mean over


@dataclass(frozen=True, eq=False)
class Decision:
    """Options in columns."""

    places: tuple[tuple[int, int, int], ...]        # (workers, global batch, passes)
    log_steps: np.ndarray                           # log S, shape (draws, options)
    log_times: np.ndarray                           # log t, likewise
    log_paid: np.ndarray                            # logarithm of what a second costs, shape (options,)
    confidence: float

    @cached_property
    def workers(self) -> np.ndarray:
        """Worker counts, shape (options,)."""
        return np.array([workers for workers, _, _ in self.places], int)

    @cached_property
    def log_seconds(self) -> np.ndarray:
        """Logarithms of times to target, shape (draws, options)."""
        return self.log_steps + self.log_times

    def scores(self, weight: float) -> np.ndarray:
        """log(cost x time ** weight), shape (draws, options); of time alone where the weight is inf."""
        if np.isinf(weight):
            return self.log_seconds
        return self.log_paid + (1 + weight) * self.log_seconds

    def expected(self, weight: float) -> np.ndarray:
        """Mean scores, shape (options,)."""
        return self.scores(weight).mean(0)

    def loss(self, option: int, weight: float = np.inf) -> float:
        """The expected loss of an option, as a ratio less 1."""
        return float(np.expm1(self.expected(weight)[option] - self.scores(weight).min(1).mean()))

    def chance(self, option: int, within: float, weight: float = np.inf) -> float:
        """The share of the draws in which an option is within this share of the best one."""
        over = self.scores(weight)[:, option] - self.scores(weight).min(1)
        return float(np.mean(over <= np.log1p(within) + 1e-12))

    @cached_property
    def fastest_workers(self) -> tuple[int, int]:
        """The fewest and the most workers of the fastest option, each end at the decision's confidence."""
        found = np.sort(self.workers[self.log_seconds.argmin(1)])
        tail = int((1 - self.confidence) * len(found))
        return int(found[tail]), int(found[-1 - tail])

    def loss_after(self, seen: Sequence[tuple[np.ndarray, float]], weight: float = np.inf) -> float:
        """The expected loss of what would be taken once quantities were measured, as a ratio less 1.

        seen  of each quantity its draws, shape (draws,), and the standard deviation of the measurement

        The mean over outcomes, each that of one draw with noise. An outcome weighs the draws by its likelihood.
        """
        random, scores = np.random.default_rng([0, 12]), self.scores(weight)
        truths = np.linspace(0, len(scores) - 1, OUTCOMES).astype(int)
        misses = np.zeros((OUTCOMES, len(scores)))
        for drawn, deviation in seen:
            outcomes = drawn[truths] + deviation * random.standard_normal(OUTCOMES)
            misses += ((outcomes[:, None] - drawn) / deviation) ** 2
        weights = np.exp(-0.5 * (misses - misses.min(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
        return float(np.expm1(np.mean((weights @ scores).min(1) - weights @ self.scores(weight).min(1))))
