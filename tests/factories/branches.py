"""Branches whose critical batch is known: losses in memory, and trials of logs."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvdscale.analysis.branches import critical_factor
from hvdscale.analysis.defaults import Tolerance
from hvdscale.log.schema import Status
from tests.factories.logs import trial

FACTORS = (1, 2, 4, 8, 16, 32)
METRIC = "val/error"        # the metric of made logs


@dataclass(frozen=True)
class Losses:
    """Expected loss of k = ``level`` + ``rise`` (k / ``critical``)^``power`` at the end of a branch; its excess over
    that of the smallest k is the tolerance ``rise`` at about k = critical.

    order   standard deviation common to all k of an order
    noise   standard deviation of each branch;  growth: its factor from the smallest k to the largest"""

    critical: float
    power: float = 1.0
    level: float = 2.0
    rise: float = 0.01
    order: float = 0.02
    noise: float = 0.003
    growth: float = 1.0

    def expected(self, factors):
        return self.level + self.rise * (np.asarray(factors, float) / self.critical) ** self.power

    def draw(self, orders, factors, random):
        """Losses of shape (orders, factors)."""
        spread = self.noise * self.growth ** np.linspace(0, 1, len(factors))
        return (self.expected(factors) + self.order * random.standard_normal((orders, 1))
                + spread * random.standard_normal((orders, len(factors))))

    def truth(self, tolerance):
        """The k, of any size, at which the excess over k = 1 is the tolerance."""
        return self.critical * ((tolerance + self.rise * self.critical ** -self.power) / self.rise) ** (1 / self.power)

    def __str__(self):
        return (f"loss as k^{self.power:g}, critical at {self.critical:g}, noise {self.noise / self.rise:g} of the "
                f"tolerance, x{self.growth:g}")


MADE = (Losses(6.0), Losses(6.0, 0.5), Losses(6.0, 2.0), Losses(3.0), Losses(12.0), Losses(6.0, noise=0.001),
        Losses(6.0, noise=0.01), Losses(6.0, growth=4), Losses(6.0, growth=0.25),
        Losses(6.0, 2.0, noise=0.001, growth=8))


def coverage(made, orders, count, seed=0, factors=FACTORS, confidence=0.95):
    """(share of intervals that hold the truth, median of log2(value / truth), median of log2(high / low)), of ``count``
    sets of branches."""
    random = np.random.default_rng([seed, orders])
    truth = made.truth(0.01)
    found = [critical_factor(factors, made.draw(orders, factors, random), Tolerance(0.01), confidence)
             for _ in range(count)]
    held = [one.low <= truth <= one.high for one in found]
    with np.errstate(divide="ignore"):
        return (float(np.mean(held)), float(np.median(np.log2([min(one.value, factors[-1]) / truth for one in found]))),
                float(np.median(np.log2([one.high / one.low if one.low else np.inf for one in found]))))


def branch(id, step, factor, order, loss, *, base="run", base_batch=16, length=4096, tolerance="0.01", **changes):
    """The trial of a branch that ends with this loss (inf: it diverged, None: it has not ended)."""
    steps = length // (factor * base_batch)
    grid = np.linspace(0, steps, 5).astype(int)
    losses = np.full(len(grid), 3.0 if loss is None or np.isinf(loss) else loss)
    status = Status.RUNNING if loss is None else Status.INFEASIBLE if np.isinf(loss) else Status.COMPLETE
    record = {"base": base, "step": step, "examples": step * base_batch, "base_batch": base_batch, "factor": factor,
              "order": order, "length": length, "rule": "linear", "rate": 0.1 * factor, "metric": METRIC,
              "tolerance": tolerance}
    return trial(id, grid, losses, batch=factor * base_batch, seed=order, status=status, target=None, branch=record,
                 eval_every=max(1, steps // 4), **changes)


def branches(losses, factors=FACTORS, orders=3, **changes):
    """Trials of branches by step: ``losses`` maps a step to a function of (factor, order)."""
    places = [(step, factor, order) for step in losses for order in range(1, orders + 1) for factor in factors]
    return [branch(id, step, factor, order, losses[step](factor, order), **changes)
            for id, (step, factor, order) in enumerate(places)]
