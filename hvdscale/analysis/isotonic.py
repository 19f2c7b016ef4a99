"""Isotonic regression (Bartholomew 1959, Biometrika 46): the best fit that never falls."""
from __future__ import annotations

import numpy as np


def isotonic(values: np.ndarray) -> np.ndarray:
    """The non-decreasing least-squares fit of each row: max over j <= i of min over k >= i of mean(j..k)."""
    count, found = values.shape[1], np.full(values.shape, -np.inf)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, 1)], axis=1)
    for first in range(count):
        means = (sums[:, first + 1:] - sums[:, first:first + 1]) / np.arange(1, count - first + 1)
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        found[:, first:] = np.maximum(found[:, first:], least)
    return found
