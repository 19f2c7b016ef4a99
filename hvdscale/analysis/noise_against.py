"""The gradient noise scale against the critical batch size fitted to steps to a target (McCandlish et al. 2018, arXiv
1812.06162, section 2.3: S = S_min (1 + B_crit / B), with the noise scale as the prediction of B_crit).

    found = noise_against(target, section.noise, fit.b_crit)
    found.ratio.value           -> noise scale over critical batch
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..target import Target
from .intervals import Estimate, over
from .noise import Noise, NoiseScale
from .steps import RunCell

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class NoisePoint:
    """The noise scale of the runs at one batch, and its ratio to the critical batch (NaN: either is unknown)."""

    global_batch: int
    noise: Noise
    ratio: Estimate
    keys: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class NoiseAgainst:
    """The noise scale at each batch, against one critical batch."""

    target: Target | None
    b_crit: Estimate                # NaN: the steps bound it on neither side
    points: tuple[NoisePoint, ...]
    chosen: NoisePoint | None       # with the narrowest interval; None: no noise scale is finite

    @property
    def ratio(self) -> Estimate:
        return self.chosen.ratio if self.chosen else Estimate.unknown()


def noise_against(target: Target | None, measured: Sequence[tuple[RunCell, Noise]], b_crit: Estimate | None
                  ) -> NoiseAgainst:
    """The points by batch of cells with the noise of their runs. A critical batch that is open on both sides counts as
    unknown, as where there is no fit to the steps."""
    if b_crit is None or b_crit.low == 0 and np.isinf(b_crit.high):
        b_crit = Estimate.unknown()
    points = tuple(NoisePoint(cell.global_batch, noise, over(as_estimate(noise.whole), b_crit), cell.keys)
                   for cell, noise in sorted(measured, key=lambda one: one[0].global_batch))
    bounded = [point for point in points if np.isfinite(point.noise.whole.noise_scale)]
    return NoiseAgainst(target, b_crit, points, best_known(bounded, lambda point: point.noise))


def as_estimate(scale: NoiseScale) -> Estimate:
    """The noise scale with its interval."""
    return Estimate(scale.noise_scale, scale.low, scale.high, scale.steps)


def best_known(points: Sequence[T], noise_of: Callable[[T], Noise]) -> T | None:
    """The point whose noise scale has the narrowest interval, as a ratio; the last where all are open; None without
    points."""
    def width(point: T) -> float:
        whole = noise_of(point).whole
        return whole.high / whole.low if whole.low > 0 and np.isfinite(whole.high) else np.inf
    return min(reversed(points), key=width, default=None)
