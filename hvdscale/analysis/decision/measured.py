"""What repeats say of a law: its likelihood, and draws of the truth where the law was measured and where not.

The logarithm of a measured mean differs from the law by noise, whose standard deviation the repeats estimate, and by
what the law lacks, which is normal with a standard deviation that is drawn too. So a setting that was measured is
as measured where repeats are many or the law fits badly, and near the law where they are few and it fits well.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Measured:
    """Means of logarithms at settings, shape (settings,), and the standard deviations that their repeats imply.

    freedom    degrees of freedom of the deviations; 0: they are assumed
    spread     standard deviation of the logarithm of what the deviations are too large by, in the prior
    lack       median and standard deviation of the logarithm of what the law lacks, in the prior
    """

    logs: np.ndarray
    deviations: np.ndarray
    freedom: float
    spread: float
    lack: tuple[float, float]

    def noise(self, drawn: np.ndarray) -> np.ndarray:
        """Variances, shape (draws, settings), for standard normal draws of the spread."""
        return np.exp(2 * self.spread * drawn[:, None]) * self.deviations ** 2

    def lacking(self, drawn: np.ndarray) -> np.ndarray:
        """Standard deviations of what the law lacks, shape (draws, 1), likewise."""
        return self.lack[0] * np.exp(self.lack[1] * drawn[:, None])

    def log_likelihood(self, law: np.ndarray, spread: np.ndarray, lack: np.ndarray) -> np.ndarray:
        """Of the law's logarithms at the settings, shape (draws, settings); spread and lack are standard normal."""
        variance = self.noise(spread) + self.lacking(lack) ** 2
        fit = -0.5 * ((self.logs - law) ** 2 / variance + np.log(variance)).sum(1)
        # of the repeats' own deviation, whose square is chi-square with this freedom
        return fit - self.freedom * (self.spread * spread + 0.5 * np.exp(-2 * self.spread * spread))

    def draw(self, law: np.ndarray, of_law: np.ndarray, settings: np.ndarray, spread: np.ndarray, lack: np.ndarray,
             random: np.random.Generator) -> np.ndarray:
        """Draws of the truth, shape (draws, places).

        law, of_law  the law's logarithms at the places, and at the settings
        settings     which setting each place is; -1: none
        """
        lacking = self.lacking(lack)
        normal = random.standard_normal(law.shape)
        found = law + lacking * normal
        known = settings >= 0
        if known.any():
            noise = self.noise(spread)[:, settings[known]]
            gain = lacking ** 2 / (lacking ** 2 + noise)
            at = of_law[:, settings[known]]
            found[:, known] = at + gain * (self.logs[settings[known]] - at) + np.sqrt(gain * noise) * normal[:, known]
        return found
