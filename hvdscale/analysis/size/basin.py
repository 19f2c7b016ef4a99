"""The best batch and rate together: a bowl fitted to the costs of a search over both.

    found = basin_of(batches, rates, losses)
    found.batch, found.rate

The cost is modelled as a quadratic in log B and log rate around its lowest point, by least squares over the best
seventh, quarter and half of all trials. This uses every trial near the bottom, where a valley of the lowest cost at
each batch uses one a batch. The value is the median of the three. The interval is the hull of theirs, each Student's by
the delta method, and of where the bottom goes as the part shrinks to a point, as if it moved in proportion to the
part's radius, give or take half of that way. So a bottom that moves with the part fitted, as that of a lopsided bowl
does, and a flat one have wide intervals. They hold the truth as often as they say for bowls that are about alike on
both sides; where one side is 2.5 times as steep as the other and trials are noisy, in 85 % (tools/coverage). Where an
interval reaches beyond the batches or rates that were run, it is open on that side.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..intervals import CONFIDENCE, Estimate, student_quantile

SHARES = (1 / 7, 1 / 4, 1 / 2)      # of the trials, those with the lowest costs
SHRINK = 1 / ((SHARES[-1] / SHARES[0]) ** 0.5 - 1)      # the radius of a part goes with the root of its share
LEAST_BOWLS = 2                     # of these parts whose fit has a lowest point
UNKNOWNS = 6
LEAST_TRIALS = 12                   # in each part
LEAST_VALUES = 3                    # different batches, and rates, in each part


@dataclass(frozen=True)
class Basin:
    """Where the cost is lowest."""

    batch: Estimate
    rate: Estimate


def basin_of(batches: np.ndarray, rates: np.ndarray, costs: np.ndarray, confidence: float = CONFIDENCE
             ) -> Basin | None:
    """The bowl of trials, arrays of shape (trials,); None where too few are near the bottom, or it is no bowl."""
    known = np.isfinite(costs) & np.isfinite(rates) & (rates > 0)
    logs, costs = np.log(np.column_stack([batches[known], rates[known]])), costs[known]
    order = np.argsort(costs, kind="stable")
    parts = [order[:int(np.ceil(share * len(costs)))] for share in SHARES]
    found = [one for one in (_lowest_point(logs[part], costs[part], confidence) for part in parts) if one]
    if len(found) < LEAST_BOWLS:
        return None
    places, halves = (np.array([one[at] for one in found]) for at in (0, 1))
    ahead = (places[0] - places[-1]) * SHRINK       # how far the bottom goes on as the part shrinks to a point
    around = halves[0] + np.abs(ahead) / 2
    low = np.minimum((places - halves).min(0), places[0] + ahead - around)
    high = np.maximum((places + halves).max(0), places[0] + ahead + around)
    low, high = np.where(low < logs.min(0), -np.inf, low), np.where(high > logs.max(0), np.inf, high)
    ends = np.exp(np.stack([np.median(places, 0), low, high]))
    batch, rate = (Estimate(float(value), float(least), float(most), len(parts[-1])) for value, least, most in ends.T)
    return Basin(batch, rate)


def _lowest_point(logs: np.ndarray, costs: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray] | None:
    """(place, half-width of its interval) of the lowest point of a quadratic, in logarithms; None: it has none."""
    if len(costs) < LEAST_TRIALS or min(len(np.unique(one)) for one in logs.T) < LEAST_VALUES:
        return None
    middle = logs.mean(0)
    x, y = (logs - middle).T
    design = np.column_stack([np.ones(len(x)), x, y, x ** 2, y ** 2, x * y])
    if np.linalg.matrix_rank(design) < UNKNOWNS:
        return None
    beta = np.linalg.lstsq(design, costs, rcond=None)[0]
    hessian = np.array([[2 * beta[3], beta[5]], [beta[5], 2 * beta[4]]])
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        return None
    place = -np.linalg.solve(hessian, beta[1:3])
    u, v = place
    # the gradient of the cost at the place, by each unknown: what moves the place by minus its solution
    moves = -np.linalg.solve(hessian, np.array([[0, 1, 0, 2 * u, 0, v], [0, 0, 1, 0, 2 * v, u]]))
    freedom = len(costs) - UNKNOWNS
    variance = float(((costs - design @ beta) ** 2).sum()) / freedom
    covariance = moves @ np.linalg.inv(design.T @ design) @ moves.T * variance
    return place + middle, student_quantile(freedom, confidence) * np.sqrt(np.diag(covariance))
