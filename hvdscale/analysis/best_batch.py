"""The best batch at a fixed budget: a valley in log2 of the batch, fitted to the best values.

A curve c + l (m - x)^p left of its lowest point m and c + r (x - m)^q right of it is fitted by least squares, with
x = log2(B), l and r not below 0, p and q of POWERS: two walls of any steepness, a flat floor between, or one wall.

The interval of the best batch does not rest on that shape. For each batch the values are fitted by any curve that falls
up to it and rises from it (isotonic regression; Bartholomew 1959, Biometrika 46). Where that fits as well as the best
such curve, to what Fisher's F of the valley's residuals allows, the optimum may lie anywhere between the two batches
beside it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import scipy

from .intervals import CONFIDENCE, Estimate, isotonic
from .defaults import Tolerance

LEAST_FITTED = 6            # batches: a valley has 4 parameters
POWERS = (1.5, 3.0, 6.0)
PLACES = 41                 # of the lowest point that are tried, from the smallest to the largest batch


@dataclass(frozen=True, eq=False)
class Valley:
    """A fitted valley. Its best batch is at its lowest point or, of a floor that is flat to what the residuals show, in
    its middle; ends of 0 and inf: it may lie at the smallest or the largest batch run, or beyond."""

    batches: tuple[int, ...]
    best: Estimate
    lowest: float               # the cost at its lowest point
    place: float                # of that point, log2 of a batch
    walls: tuple[float, float]
    powers: tuple[float, float]

    def at(self, batches: np.ndarray | Sequence[float]) -> np.ndarray:
        x = np.log2(np.asarray(batches, float)) - self.place
        sides = [wall * np.maximum(side, 0) ** power for wall, power, side in zip(self.walls, self.powers, (-x, x))]
        return self.lowest + sides[0] + sides[1]

    @cached_property
    def fitted(self) -> np.ndarray:
        """The costs fitted at the batches run, smaller is better: shape (batches,)."""
        return self.at(self.batches)

    def within(self, tolerance: Tolerance) -> tuple[float, float]:
        """The smallest and the largest batch, within those run, whose fitted cost is within tolerance of the lowest."""
        return self.below(self.lowest + tolerance.at(self.lowest)) or (self.best.value, self.best.value)

    def below(self, cost: float) -> tuple[float, float] | None:
        """The smallest and the largest batch, within those run, whose fitted cost is at most this; None: none is."""
        batches = np.geomspace(self.batches[0], self.batches[-1], 2000)
        inside = batches[self.at(batches) <= cost]
        return (float(inside[0]), float(inside[-1])) if len(inside) else None


def valley_of(batches: Sequence[int], costs: np.ndarray, confidence: float = CONFIDENCE) -> Valley | None:
    """The valley of costs by batch, smallest first; None of fewer than LEAST_FITTED batches."""
    if len(batches) < LEAST_FITTED:
        return None
    curves = _Curves(tuple(batches))
    squares, _, (left, right) = curves.fit(costs[:, None])
    at, freedom = int(squares[:, 0].argmin()), len(costs) - 4
    noise = squares[at, 0] / freedom
    low, high = _ends(np.log2(batches), costs, noise * scipy.special.fdtri(1, freedom, confidence))
    place, walls = curves.place[at], (float(left[at, 0]), float(right[at, 0]))
    lowest = float(costs.mean() - walls[0] * curves.left[at].mean() - walls[1] * curves.right[at].mean())
    best = Estimate(float(2 ** place), float(2 ** min(low, place)), float(2 ** max(high, place)), len(costs))
    found = Valley(tuple(batches), best, lowest, float(place), walls, curves.powers[at])
    floor = found.below(lowest + noise ** 0.5) if batches[0] < best.value < batches[-1] else None
    middle = (floor[0] * floor[1]) ** 0.5 if floor else best.value
    return replace(found, best=replace(best, value=float(np.clip(middle, best.low, best.high))))


def valley_rise(batches: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """By what share of the squares left a rise beyond the best batch improves the fit of each row of costs."""
    squares, falling, _ = _Curves(tuple(batches)).fit(rows.T)
    about = ((rows - rows.mean(1, keepdims=True)) ** 2).sum(1)
    improves = falling.min(0) / np.maximum(squares.min(0), 1e-12 * about + 1e-300) - 1
    return np.where(about > 1e-24 * (rows ** 2).sum(1), improves, 0.0)


@lru_cache(maxsize=16)
class _Curves:
    """All valleys tried at some batches: arrays of shape (curves,) and (curves, batches)."""

    def __init__(self, batches: tuple[int, ...]) -> None:
        x = np.log2(batches)
        places = np.linspace(x[0], x[-1], PLACES)
        self.powers = [(p, q) for p in POWERS for q in POWERS for _ in places]
        self.place = np.tile(places, len(POWERS) ** 2)
        p, q = np.array(self.powers).T[:, :, None]
        aside = x - self.place[:, None]
        self.left, self.right = np.maximum(-aside, 0) ** p, np.maximum(aside, 0) ** q

    def fit(self, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """(squares left, those without a right wall, (left, right) walls) of each curve: shape (curves, columns)."""
        costs = costs - costs.mean(0)
        left, right = (side - side.mean(1, keepdims=True) for side in (self.left, self.right))
        ll, rr, lr = ((a * b).sum(1)[:, None] for a, b in ((left, left), (right, right), (left, right)))
        ly, ry, yy = left @ costs, right @ costs, (costs ** 2).sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            alone = [np.where(own > 0, np.maximum(of / own, 0), 0) for of, own in ((ly, ll), (ry, rr))]
            off = ll * rr - lr ** 2
            both = (ly * rr - ry * lr) / off, (ry * ll - ly * lr) / off
        proper = (off > 1e-9 * ll * rr) & (both[0] >= 0) & (both[1] >= 0)
        falling, rising = yy - alone[0] * ly, yy - alone[1] * ry
        use_left = falling <= rising
        walls = (np.where(proper, both[0], np.where(use_left, alone[0], 0)),
                 np.where(proper, both[1], np.where(use_left, 0, alone[1])))
        return np.maximum(yy - walls[0] * ly - walls[1] * ry, 0), falling, walls


def _ends(x: np.ndarray, costs: np.ndarray, allowed: float) -> tuple[float, float]:
    """Between which of x the lowest point lies, -inf and inf for beyond them: beside those that may be the lowest
    batch, where a fit that has them so leaves at most ``allowed`` more squares than the best one."""
    squares = []        # of the two isotonic fits beside each, of which those below the value there are pooled with it
    for at, cost in enumerate(costs):
        beside = np.concatenate([-isotonic(-costs[None, :at])[0], isotonic(costs[None, at + 1:])[0]])
        others, order = np.delete(costs, at), np.argsort(beside, kind="stable")
        floors = (cost + np.append(0, np.cumsum(others[order]))) / np.arange(1, len(costs) + 1)
        fits = np.maximum(beside, floors[:, None])
        squares.append(float((((fits - others) ** 2).sum(1) + (floors - cost) ** 2).min()))
    may = np.flatnonzero(np.array(squares) <= min(squares) + allowed)
    around = np.concatenate([[-np.inf], x, [np.inf]])
    return float(around[may[0]]), float(around[may[-1] + 2])
