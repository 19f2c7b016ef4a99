"""Power laws over size with intervals: y = c N^a, or y = c N^a D^b where the sizes can be told apart.

    law = fit_power_law(("parameters", "tokens"), points)
    law.exponents["tokens"].value, law.predict({"parameters": 7e9, "tokens": 1.4e11}).estimate

Weighted least squares on logarithms. A point's deviation is that of its interval: the root mean square of its two sides
over the normal quantile. Points have equal weight, except those whose interval is more than twice as wide as the median
one. As in critical_batch_fit, the variance is that of the residuals and of the points' own intervals, which count as
OWN_FREEDOM residuals unless the residuals refute them (F test, 10 %); then as one. Intervals are Student's. Residuals
beyond the points' own intervals are lack of fit: the law does not describe the cells, and a cell not measured scatters
as much, which widens predictions. Points with an open interval bound a value from one side only; they are left out and
listed.

Two sizes are told apart where the residual of the logarithm of one, regressed on that of the other, has at least a
share SEPARABLE of its variance. On the path of one ratio of data to parameters nothing can: then the law is in the
first size, along that path.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from ..critical_batch_fit import OWN_FREEDOM, count_own, weigh
from ..intervals import CONFIDENCE, Estimate, normal_quantile, student_quantile

LACKING = 0.05          # p-values of the lack of fit at or below are told
SEPARABLE = 0.05        # share of a size's variance that the other must leave
REACH = 16.0            # times the largest size, or its reciprocal of the smallest, beyond which nothing is predicted
WIDEST = 10.0           # ratio of the ends of a prediction's interval, beyond which it is refused
SEVERAL = 3             # least number of cells of a law
OFF_PATH = np.log(1.25)     # a size further from the path of the cells is not on it
# why there is no law
FEW = "few"


@dataclass(frozen=True)
class SizePoint:
    """A measured quantity of one cell: ``sizes`` in the order of the law's names."""

    sizes: tuple[float, ...]
    estimate: Estimate
    label: str = ""


@dataclass(frozen=True)
class SizePrediction:
    """The law at given sizes.

    estimate  its interval is that of a cell's true value; unknown where refused
    beyond    by size, how many times beyond the largest or the smallest measured one (1: inside)
    refused   why there is no estimate: "far", "wide", "path" or "lack"; "": there is one
    """

    sizes: Mapping[str, float]
    estimate: Estimate
    beyond: Mapping[str, float]
    refused: str = ""

    @property
    def extrapolated(self) -> float:
        """How many times beyond what was measured, at most."""
        return max(self.beyond.values(), default=1.0)


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """A law fitted to cells.

    names        sizes that it is in, those that vary and can be told apart
    asked        all sizes that the points have
    path         sizes that follow the law's on the path of the cells, and cannot be told apart from it
    constant     sizes that do not vary
    exponents    by name, plain intervals (not of logarithms); empty without a law
    lack_of_fit  p-value of the residuals against the points' own intervals (F test); NaN: unknown
    left_out     points with an open interval, or without a value
    why          FEW: too few cells for a law; "": there is one
    """

    asked: tuple[str, ...]
    names: tuple[str, ...]
    path: tuple[str, ...]
    constant: tuple[str, ...]
    points: tuple[SizePoint, ...]
    left_out: tuple[SizePoint, ...]
    exponents: Mapping[str, Estimate]
    lack_of_fit: float
    confidence: float
    why: str = ""
    _beta: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    _covariance: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    _excess: float = 0.0
    _freedom: float = 0.0
    _middle: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def factor(self) -> float:
        """c, with sizes as they are; NaN without a law."""
        return float(np.exp(self._beta[0] - self._beta[1:] @ self._middle)) if len(self._beta) else np.nan

    @property
    def lacks_fit(self) -> bool:
        return self.lack_of_fit <= LACKING

    def largest(self, name: str) -> float:
        return float(self._measured(name).max())

    def _measured(self, name: str) -> np.ndarray:
        return np.array([one.sizes[self.asked.index(name)] for one in self.points])

    def at(self, sizes: Mapping[str, float]) -> Estimate:
        """The law with its interval, however far it reaches; KeyError where a size is missing."""
        x = np.concatenate([[1.0], np.log([sizes[name] for name in self.names]) - self._middle])
        centre = float(x @ self._beta)
        variance = float(x @ self._covariance @ x) + self._excess
        half = float(student_quantile(self._freedom, self.confidence) * np.sqrt(variance))
        with np.errstate(over="ignore"):
            low, value, high = np.exp([centre - half, centre, centre + half])
        return Estimate(float(value), float(low), float(high), len(self.points))

    def predict(self, sizes: Mapping[str, float]) -> SizePrediction:
        """The law at sizes, or why it is refused; KeyError where a size of the law is missing."""
        beyond = {name: self._beyond(name, sizes[name]) for name in self.asked if name in sizes}
        found = self.at(sizes)
        far = max(beyond.values(), default=1.0)
        refused = ("path" if self._off_path(sizes) else "far" if far > REACH * (1 + 1e-9) else
                   "lack" if self.lacks_fit and far > 1 else
                   "wide" if not found.high <= WIDEST * found.low else "")
        estimate = Estimate.unknown(found.runs) if refused else found
        return SizePrediction(dict(sizes), estimate, beyond, refused)

    def _beyond(self, name: str, value: float) -> float:
        known = self._measured(name)
        return float(max(1.0, value / known.max(), known.min() / value))

    def _off_path(self, sizes: Mapping[str, float]) -> bool:
        """Whether a size that follows the law's on the cells' path, or does not vary there, is elsewhere."""
        logs = {name: np.log(self._measured(name)) for name in self.asked}
        for name in (*self.path, *self.constant):
            if name not in sizes:
                continue
            expected, scatter = logs[name].mean(), np.ptp(logs[name])
            if name in self.path:
                slope, level = np.polyfit(logs[self.names[0]], logs[name], 1)
                expected = level + slope * np.log(sizes[self.names[0]])
                scatter = np.abs(logs[name] - level - slope * logs[self.names[0]]).max()
            if abs(np.log(sizes[name]) - expected) > scatter + OFF_PATH:
                return True
        return False


def fit_power_law(names: Sequence[str], points: Sequence[SizePoint], confidence: float = CONFIDENCE) -> PowerLaw:
    """The law of points over sizes, natural logarithms throughout.

    names  of the points' sizes, in their order
    """
    names = tuple(names)
    used = tuple(one for one in points if _deviation(one.estimate, confidence) < np.inf)
    left_out = tuple(one for one in points if one not in used)
    logs = np.log([one.sizes for one in used]) if used else np.empty((0, len(names)))
    varying = [at for at in range(len(names)) if len(logs) and np.ptp(logs[:, at]) > 1e-9]
    kept = _separable(logs, varying)
    own_names = tuple(names[at] for at in kept)
    none = PowerLaw(names, own_names, tuple(names[at] for at in varying if at not in kept),
                    tuple(names[at] for at in range(len(names)) if at not in varying), used, left_out, {}, np.nan,
                    confidence, FEW)
    distinct = len(np.unique(logs, axis=0))
    if distinct < SEVERAL:
        return none
    deviations = np.array([_deviation(one.estimate, confidence) for one in used])
    known = bool(np.isfinite(deviations).all())
    if distinct < len(kept) + 1 + (1 if known else 2):
        return none
    return _fit(none, logs[:, kept], deviations if known else None)


def _fit(none: PowerLaw, x: np.ndarray, deviations: np.ndarray | None) -> PowerLaw:
    """The law of logarithms of sizes, shape (points, names)."""
    y = np.log([one.estimate.value for one in none.points])
    middle = x.mean(0)
    weights, own = (np.ones(len(y)), np.nan) if deviations is None else weigh(deviations)
    design = np.column_stack([np.ones(len(y)), x - middle])
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    beta = inverse @ design.T @ (weights * y)
    squares, freedom = float(weights @ (y - design @ beta) ** 2), len(y) - design.shape[1]
    variance, lack, excess = squares / max(freedom, 1), np.nan, 0.0
    if deviations is not None:
        counted = OWN_FREEDOM
        if freedom and own > 0:
            ratio = squares / freedom / own
            lack = float(scipy.special.chdtrc(freedom, freedom * ratio))
            counted = count_own(freedom, ratio)
            excess = max(0.0, squares / freedom - own) if counted == 1 else 0.0
        freedom += counted
        variance = (squares + counted * own) / freedom
    covariance = inverse * variance
    half = student_quantile(freedom, none.confidence) * np.sqrt(np.diag(covariance))[1:]
    exponents = {name: Estimate(float(value), float(value - one), float(value + one), len(y))
                 for name, value, one in zip(none.names, beta[1:], half)}
    return replace(none, exponents=exponents, lack_of_fit=lack, why="", _beta=beta, _covariance=covariance,
                   _excess=excess, _freedom=freedom, _middle=middle)


def _separable(logs: np.ndarray, varying: Sequence[int]) -> list[int]:
    """Those of the varying columns that can be told apart from the ones before them."""
    kept: list[int] = []
    for at in varying:
        own = logs[:, at] - logs[:, at].mean()
        if kept:
            others = logs[:, kept] - logs[:, kept].mean(0)
            rest = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
            if rest @ rest < SEPARABLE * (own @ own) or len(np.unique(logs, axis=0)) < len(kept) + 3:
                continue
        kept.append(at)
    return kept


def _deviation(estimate: Estimate, confidence: float) -> float:
    """Of the logarithm, as the interval implies; NaN: a value without an interval; inf: open, or no value."""
    if not (estimate.met and estimate.value > 0):
        return np.inf
    if np.isnan(estimate.low) or np.isnan(estimate.high):
        return np.nan
    with np.errstate(divide="ignore"):
        sides = np.log([estimate.value / np.float64(estimate.low), np.float64(estimate.high) / estimate.value])
    return float(np.sqrt((sides ** 2).mean()) / normal_quantile(confidence))
