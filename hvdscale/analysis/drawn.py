"""Numbers with draws that represent their uncertainty, for plans: products and quotients draw by draw."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Value:
    """A number with the ends of its interval, quantiles of its draws."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Value:
        """Its multiple."""
        return Value(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A number and draws of it, shape (draws,)."""

    value: float
    draws: np.ndarray

    def times(self, other: Drawn | float) -> Drawn:
        """The product."""
        if isinstance(other, Drawn):
            return Drawn(self.value * other.value, self.draws * other.draws)
        return Drawn(self.value * other, self.draws * other)

    def over(self, other: Drawn) -> Drawn:
        """The quotient; inf in draws in which neither meets the target, 1 in those of a number over itself."""
        if self.draws is other.draws:
            return Drawn(self.value / other.value, np.ones(len(self.draws)))
        with np.errstate(invalid="ignore"):
            draws = self.draws / other.draws
        return Drawn(self.value / other.value, np.where(np.isnan(draws), np.inf, draws))

    def within(self, start: float, end: float) -> Drawn:
        """Of that many steps, those between two."""
        return Drawn(min(max(self.value - start, 0), end - start), np.clip(self.draws - start, 0, end - start))

    def known(self, confidence: float) -> Value:
        """With the ends of its interval."""
        return Value(float(self.value), *quantiles(self.draws, confidence))


def levels(draws: int) -> np.ndarray:
    """Evenly spaced probabilities, so that draws made from them have exactly the intended median and spread."""
    return (np.arange(draws) + 0.5) / draws


def quantiles(draws: np.ndarray, confidence: float) -> tuple[float, float]:
    """Ends of the central ``confidence`` of the draws; inf where enough draws are inf."""
    ordered = np.sort(draws)
    tail = (1 - confidence) / 2
    last = len(ordered) - 1
    return float(ordered[int(np.floor(tail * last))]), float(ordered[int(np.ceil((1 - tail) * last))])


def log_variance(draws: np.ndarray) -> float:
    """The variance of the logarithms of the finite, positive draws; 0 without any."""
    known = draws[np.isfinite(draws) & (draws > 0)]
    return float(np.log(known).var()) if len(known) else 0.0
