"""Draws of the steps to target at any batch, from the batches that met it and what is known of networks in general.

S = S_min (1 + (B_crit / B)^p)^(1/p), see critical_batch_fit. In the prior, B_crit is log-normal around REACH times the
smallest batch that was run, with a longer tail above: batches are chosen where they still pay, and B_crit is 2 times
the smallest of the published curves (Llama 3.1 8B in MLPerf), 50 times (BERT), and 600 times the 32 examples a worker
that ResNet-50 is often run with (Shallue et al. 2019). Where the gradient noise scale was measured, it is around that
instead, and p is 1 (McCandlish et al. 2018); else the shape p is log-uniform in SHAPES.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy

from ..critical_batch_fit import OWN_FREEDOM, SettingPoint, steps_at
from ..intervals import UNKNOWN
from ..steps_curve import StepsCurve, StepsPoint
from .measured import Measured
from .sampling import DRAWS, sample_posterior

REACH, REACH_DEVIATION = 3.0, 1.2       # B_crit over the smallest batch: median, standard deviation of the logarithm
TAIL = 0.3                              # how much the logarithm grows with the square of a deviation above the median
SHAPES = (0.8, 8.0)                     # ends of p
RUN_DEVIATION = 0.10                    # of log S between runs of a setting, assumed where no setting ran twice
SPREAD, LACK = 0.6, (0.03, 0.7)         # see Measured
LEVEL = 1.0                             # standard deviation of log S at the middle batch
LEAST = 0.005                           # standard deviation


class StepsPosterior:
    """Draws of S_min, B_crit and p given the points of a curve, and of S at batches."""

    def __init__(self, curve: StepsCurve, draws: int = DRAWS) -> None:
        self.curve, self.draws = curve, draws
        self.batches = np.array([point.global_batch for point in curve.met], float)
        points = [SettingPoint(point.global_batch, point.steps, curve.confidence) for point in curve.met]
        self.measured = Measured(np.log([point.steps.value for point in curve.met]),
                                 np.maximum([_deviation(*pair) for pair in zip(curve.met, points)], LEAST),
                                 max((_freedom(*pair) for pair in zip(curve.met, points)), default=0), SPREAD, LACK)
        self.middle = float(np.exp(np.log(self.batches).mean())) if len(points) else 1.0
        self.level = float(self.measured.logs.mean()) if len(points) else 0.0
        self.centre, self.width = self._prior()

    def _prior(self) -> tuple[float, float]:
        """Mean and standard deviation of log B_crit."""
        if self.curve.critical is None or not self.curve.predicted:
            return (float(np.log(REACH * self.batches.min())) if len(self.batches) else 0.0), REACH_DEVIATION
        low, middle, high = np.quantile(self.curve.critical, (0.16, 0.5, 0.84), method="nearest")
        ends = np.log(np.clip([low, high], middle / 100, middle * 100))
        return float(np.log(middle)), float(np.diff(ends)[0] / 2)

    @property
    def known(self) -> bool:
        """Whether steps differ between batches in a known way."""
        return not self.curve.relative or self.curve.critical is not None

    def log_law(self, unknowns: np.ndarray, batches: np.ndarray) -> np.ndarray:
        """log S at batches, shape (draws, batches)."""
        above = 0.0 if self.curve.predicted else TAIL * np.maximum(unknowns[:, 1:2], 0) ** 2
        critical = np.exp(self.centre + self.width * (unknowns[:, 1:2] + above))
        low, high = np.log(SHAPES) if not self.curve.predicted else (0.0, 0.0)
        shape = np.exp(low + (high - low) * scipy.special.ndtr(unknowns[:, 2:3]))
        if self.curve.relative:         # in units of S_min
            return np.log(steps_at(batches, critical, critical, shape))
        rest = np.log(steps_at(batches, 1.0, critical, shape) / steps_at(self.middle, 1.0, critical, shape))
        return self.level + LEVEL * unknowns[:, :1] + rest

    @cached_property
    def unknowns(self) -> np.ndarray:
        """Draws of the parameters, standard normal in the prior, shape (draws, 5)."""
        def log_likelihood(unknowns: np.ndarray) -> np.ndarray:
            return self.measured.log_likelihood(self.log_law(unknowns, self.batches), unknowns[:, 3], unknowns[:, 4])
        return sample_posterior(log_likelihood, 5, self.draws)

    def log_steps(self, batches: Sequence[int] | np.ndarray) -> np.ndarray:
        """Draws of log S at batches, shape (draws, batches); the same at a batch that is there twice."""
        if not self.known:
            return np.zeros((self.draws, len(batches)))
        each, back = np.unique(np.asarray(batches, float), return_inverse=True)
        own = {batch: at for at, batch in enumerate(self.batches)}
        settings = np.array([own.get(batch, -1) for batch in each])
        drawn = self.measured.draw(
            self.log_law(self.unknowns, each), self.log_law(self.unknowns, self.batches), settings,
            self.unknowns[:, 3], self.unknowns[:, 4], np.random.default_rng([0, 10]))
        return drawn[:, back]


def _freedom(point: StepsPoint, setting: SettingPoint) -> float:
    if point.spread.freedom:
        return point.spread.freedom
    return OWN_FREEDOM if np.isfinite(setting.deviation) else 0


def _deviation(point: StepsPoint, setting: SettingPoint) -> float:
    """The standard deviation of a point's log S: by the spread between runs, by its interval, or assumed."""
    if point.spread is not UNKNOWN and point.spread.freedom and not point.searched:
        grid = setting.half_grid if np.isfinite(setting.half_grid) else 0.0
        return float(np.sqrt(point.spread.variance / max(point.steps.runs, 1) + grid ** 2 / 3))
    return setting.deviation if np.isfinite(setting.deviation) else RUN_DEVIATION
