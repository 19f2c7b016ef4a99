"""Sizes of workloads as numbers, the cells that they divide studies into, and power laws over sizes.

A *cell* is a workload at one size: its studies differ in the batch alone. A size comes from the first of these that has
it: a pattern searched in the workload's name (dataset/model), a metaparameter of that name (a column of an imported
table), an argument of the model, or what hvdscale logs: ``parameters`` of the model, ``examples`` of the training set,
``tokens`` of the trial's budget.

Power laws over size with intervals: y = c N^a, or y = c N^a D^b where the sizes can be told apart.

Weighted least squares on logarithms. A point's deviation is that of its interval: the root mean square of its two sides
over the normal quantile. Weights, and the variance from the residuals and the points' own intervals, are as in
critical_batch_fit. Intervals are Student's. Residuals beyond the points' own intervals are lack of fit: the law does
not describe the cells, and a cell not measured scatters as much, which widens predictions. Beyond the sizes that were
measured, a prediction's interval also holds that of a law with squares of the logarithms of sizes: the best rate bends
upward over parameters, hardly over tokens (Yang et al. 2026, arXiv 2606.29158). Points with an open interval bound a
value from one side only; they are left out and listed.

Two sizes are told apart where the residual of the logarithm of one, regressed on that of the other, has at least a
share SEPARABLE of its variance; else the law is in the first size, along the path of both."""
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from ...errors import UsageError
from ..search import among
from ..critical_batch_fit import OWN_FREEDOM, count_own, weigh
from ..intervals import CONFIDENCE, Estimate, normal_quantile, student_quantile
from ..studies import Study, group_by
from ..trials import JobKey, parameters_of

SUFFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
EXAMPLES, PARAMETERS, TOKENS = "examples", "parameters", "tokens"
MOST_VALUES = 64            # of a metaparameter that is a size
_NUMBER = re.compile(r"\s*((?:(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKMGBT]?)\s*")
LACKING = 0.05          # p-values of the lack of fit at or below are told
SEPARABLE = 0.05        # share of a size's variance that the other must leave
REACH = 16.0            # times the largest size, or its reciprocal of the smallest, beyond which nothing is predicted
WIDEST = 10.0           # ratio of the ends of a prediction's interval, beyond which it is refused
SEVERAL = 3             # least number of cells of a law
CURVATURE = 0.05        # half of what an exponent changes by, in a factor e of a size
OFF_PATH = np.log(1.25)     # a size further from the path of the cells is not on it


@dataclass(frozen=True)
class Size:
    """A size by name, and where to look for it."""

    name: str
    pattern: str | None = None      # with one group, searched in ``dataset/model``; None: the logs' own values

    @classmethod
    def parse(cls, text: str) -> Size:
        """``tokens``, or ``parameters=gpt_([0-9.]+[MB])``; UsageError for anything else."""
        name, equals, pattern = text.strip().partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"--size {text!r}: starts with a name such as parameters or tokens, alone or as "
                             "'parameters=PATTERN' with a pattern for the workload's name")
        if not equals:
            return cls(name)
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(f"--size {text!r}: {pattern!r} is not a regular expression: {error}") from None
        if groups != 1:
            raise UsageError(f"--size {text!r}: the pattern has {groups} groups in brackets; it needs one, around the "
                             "number, such as 'parameters=gpt_([0-9.]+[MB])'")
        return cls(name, pattern)


@dataclass(frozen=True, eq=False)
class SizeCell:
    """The studies of one workload at one size, by global batch; ``sizes`` in the order of the names asked for."""

    workload: JobKey
    sizes: tuple[float, ...]
    studies: tuple[Study, ...]

    @property
    def label(self) -> str:
        return f"{self.workload.dataset}/{self.workload.model}"


def parse_size(text: str, what: str = "size") -> float:
    """The number in ``151M``, ``1.2B``, ``7e9`` or ``1,000``; UsageError, naming what it is, for none above 0."""
    found = _NUMBER.fullmatch(text)
    value = float(found[1].replace(",", "").replace("_", "")) * SUFFIXES[found[2]] if found else 0.0
    if not 0 < value < np.inf:
        raise UsageError(f"{what} {text!r} is not a number above 0 such as 7e9, 151M or 1.2B")
    return value


def sizes_of(texts: Iterable[str]) -> tuple[Size, ...]:
    """Sizes from texts, see Size.parse; UsageError for a name twice."""
    found = tuple(map(Size.parse, texts))
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--size {twice[0]}: is given twice; give each size once")
    return found


def cells_of(studies: Sequence[Study], sizes: Sequence[Size]) -> tuple[SizeCell, ...]:
    """The cells of studies, by size, smallest first. UsageError where a workload does not have a size."""
    # for the tokens of each budget, which is whole steps, the fewest of those that may have been asked for alike
    ends = {(steps * each, (steps - 1) * each) for study in studies if any(size.name == TOKENS for size in sizes)
            and (each := _tokens_a_step(study)) > 0 for steps in study.budget_steps.tolist() if steps}
    budgets, fewest = {}, 0.0
    for spent, before in sorted(ends):
        fewest = spent if before >= fewest else fewest
        budgets[spent] = fewest
    parts = group_by((part for study in studies for part in _split(study, sizes, budgets)),
                     lambda part: (part[0], part[1].workload))
    return tuple(SizeCell(workload, values, tuple(study for _, study in parts[values, workload]))
                 for values, workload in sorted(parts))


def _split(study: Study, sizes: Sequence[Size], budgets: Mapping[float, float]
           ) -> list[tuple[tuple[float, ...], Study]]:
    """(sizes, the study's trials of these sizes) of each that it has."""
    columns = np.stack([_values(study, size, budgets) for size in sizes], axis=1)
    rows = np.unique(columns[np.isfinite(columns).all(1)], axis=0)
    if len(rows) > MOST_VALUES:
        raise UsageError(f"--size {sizes[0].name}: {study} has {len(rows)} different sizes, {MOST_VALUES} at most; a "
                         "metaparameter that is searched is no size")
    if len(rows) == 1:
        return [(tuple(rows[0].tolist()), study)]
    chosen = [(columns == row).all(1) for row in rows]          # the others count as neither finished nor diverged
    return [(tuple(row.tolist()), replace(among(study, own), repeat=study.repeat & own))
            for row, own in zip(rows, chosen)]


def _values(study: Study, size: Size, budgets: Mapping[float, float]) -> np.ndarray:
    name = f"{study.workload.dataset}/{study.workload.model}"
    if size.pattern is not None:
        found = re.search(size.pattern, name)
        if not found:
            raise UsageError(f"--size {size.name}={size.pattern}: the pattern is not in the name {name!r}")
        return np.full(len(study), parse_size(found[1]))
    own = study.metaparameter(size.name)
    if np.isfinite(own).any():
        return own
    if size.name == TOKENS and (each := _tokens_a_step(study)) > 0 and study.budget_steps.any():
        return np.array([budgets.get(steps * each, np.nan) for steps in study.budget_steps.tolist()])
    arguments = json.loads(study.workload.model_args or "{}")
    there = {PARAMETERS: parameters_of(study.plan(0)), **(arguments if isinstance(arguments, dict) else {}),
             EXAMPLES: study.workload.train_examples}
    sizes = {key: float(value) for key, value in there.items()
             if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0}
    if size.name not in sizes:
        raise UsageError(f"--size {size.name}: the log of {study.workload} does not have it; it has "
                         f"{', '.join([*study.metaparameters, *sizes]) or 'no sizes'}. A pattern takes it from the "
                         f"name, such as '{size.name}=([0-9.]+[kMB])'")
    return np.full(len(study), sizes[size.name])


def _tokens_a_step(study: Study) -> float:          # NaN: unknown
    of_set = (study.plan(0).get("measurement") or {}).get("train_tokens") or np.nan
    return float(study.global_batch * of_set / (study.workload.train_examples or np.nan))


@dataclass(frozen=True)
class SizePoint:
    """A measured quantity of one cell: ``sizes`` in the order of the law's names."""

    sizes: tuple[float, ...]
    estimate: Estimate
    label: str = ""


@dataclass(frozen=True)
class SizePrediction:
    sizes: Mapping[str, float]
    estimate: Estimate              # its interval is that of a cell's true value; unknown where refused
    beyond: Mapping[str, float]     # by size, how many times beyond the largest or smallest measured one (1: inside)
    extrapolated: float             # the most of these
    refused: str = ""               # why there is no estimate: "far", "wide", "path" or "lack"; "": there is one


class PowerLaw:
    """The law of points over the sizes that were ``asked``.

    names        those that it is in, which vary and can be told apart
    path         those that follow the law's on the path of the cells
    constant     those that do not vary
    left_out     points without a value, or without both ends of its interval
    exponents    by name, plain intervals (not of logarithms); empty: too few cells for a law
    factor       c, with sizes as they are; NaN without a law
    lack_of_fit  p-value of the residuals against the points' own intervals; NaN: unknown"""

    def __init__(self, asked: Sequence[str], points: Sequence[SizePoint], confidence: float = CONFIDENCE) -> None:
        self.asked, self.confidence = tuple(asked), confidence
        deviations = np.array([_deviation(point.estimate, confidence) for point in points])
        known = np.isfinite(deviations)
        self.points, self.left_out = (tuple(one for one, is_in in zip(points, chosen) if is_in)
                                      for chosen in (known, ~known))
        logs = np.log([point.sizes for point in self.points]) if self.points else np.empty((0, len(asked)))
        varying = [at for at in range(len(asked)) if len(logs) and np.ptp(logs[:, at]) > 1e-9]
        distinct, kept = len(np.unique(logs, axis=0)), list[int]()  # those that can be told apart from the ones before
        for at in varying:
            own, others = logs[:, at] - logs[:, at].mean(), logs[:, kept] - logs[:, kept].mean(0)
            rest = own - others @ np.linalg.lstsq(others, own, rcond=None)[0] if kept else own
            if not kept or rest @ rest >= SEPARABLE * (own @ own) and distinct >= len(kept) + 3:
                kept.append(at)
        self.names = tuple(self.asked[at] for at in kept)
        self.path = tuple(self.asked[at] for at in varying if at not in kept)
        self.constant = tuple(name for at, name in enumerate(self.asked) if at not in varying)
        self.exponents: dict[str, Estimate] = {}
        self.lack_of_fit = self.factor = np.nan
        if distinct >= max(SEVERAL, len(kept) + 2):
            self._fit(logs[:, kept], deviations[known])
        self.lacks_fit = self.lack_of_fit <= LACKING

    def _fit(self, x: np.ndarray, deviations: np.ndarray) -> None:
        """To logarithms of sizes, shape (points, names); natural logarithms throughout."""
        y, middle = np.log([point.estimate.value for point in self.points]), x.mean(0)
        weights, own = weigh(deviations)
        design = np.column_stack([np.ones(len(y)), x - middle])
        inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
        beta = inverse @ design.T @ (weights * y)
        squares, freedom = float(weights @ (y - design @ beta) ** 2), len(y) - design.shape[1]
        counted, excess = OWN_FREEDOM, 0.0
        if freedom and own > 0:
            ratio = squares / freedom / own
            self.lack_of_fit, counted = float(scipy.special.chdtrc(freedom, freedom * ratio)), count_own(freedom, ratio)
            excess = max(0.0, squares / freedom - own) if counted == 1 else 0.0
        freedom += counted
        covariance = inverse * (squares + counted * own) / freedom
        half = student_quantile(freedom, self.confidence) * np.sqrt(np.diag(covariance))[1:]
        self.exponents = {name: Estimate(float(value), float(value - one), float(value + one), len(y))
                          for name, value, one in zip(self.names, beta[1:], half)}
        self.factor, self._middle = float(np.exp(beta[0] - beta[1:] @ middle)), middle
        self._curves = ((beta, covariance, excess, freedom), _bend(
            np.column_stack([design, (x - middle) ** 2]), design.shape[1], y, weights, own, self.confidence))

    def measured(self, name: str) -> np.ndarray:
        return np.array([point.sizes[self.asked.index(name)] for point in self.points])

    def at(self, sizes: Mapping[str, float], bent: bool = False) -> Estimate:
        """The law with its interval, however far it reaches, or that with squares of the logarithms of sizes; KeyError
        where a size is missing."""
        beta, covariance, excess, freedom = self._curves[bent]
        x = np.log([sizes[name] for name in self.names]) - self._middle
        x = np.concatenate([[1.0], x, x ** 2])[:len(beta)]
        centre = float(x @ beta)
        half = float(student_quantile(freedom, self.confidence) * np.sqrt(float(x @ covariance @ x) + excess))
        with np.errstate(over="ignore"):
            low, value, high = np.exp([centre - half, centre, centre + half])
        return Estimate(float(value), float(low), float(high), len(self.points))

    def predict(self, sizes: Mapping[str, float]) -> SizePrediction:
        """The law at sizes, or why it is refused; KeyError where a size of the law is missing."""
        beyond = {}
        for name in self.asked:
            if name in sizes:
                known = self.measured(name)
                beyond[name] = float(max(1.0, sizes[name] / known.max(), known.min() / sizes[name]))
        found, far = self.at(sizes), max(beyond.values(), default=1.0)
        if far > 1:
            bent = self.at(sizes, bent=True)
            found = replace(found, low=min(found.low, bent.low), high=max(found.high, bent.high))
        reasons = {"path": self._is_off_path(sizes), "far": far > REACH * (1 + 1e-9),
                   "lack": self.lacks_fit and far > 1, "wide": not found.high <= WIDEST * found.low}
        refused = next((reason for reason, holds in reasons.items() if holds), "")
        return SizePrediction(dict(sizes), Estimate.unknown(found.runs) if refused else found, beyond, far, refused)

    def _is_off_path(self, sizes: Mapping[str, float]) -> bool:
        """Whether a size that follows the law's on the cells' path, or does not vary there, is elsewhere."""
        for name in (*self.path, *self.constant):
            logs = np.log(self.measured(name))
            expected, scatter = logs.mean(), np.ptp(logs)
            if name in self.path:
                along = np.log(self.measured(self.names[0]))
                slope, level = np.polyfit(along, logs, 1)
                expected = level + slope * np.log(sizes[self.names[0]])
                scatter = np.abs(logs - level - slope * along).max()
            if name in sizes and abs(np.log(sizes[name]) - expected) > scatter + OFF_PATH:
                return True
        return False


def _bend(design: np.ndarray, straight: int, y: np.ndarray, weights: np.ndarray, own: float, confidence: float
          ) -> tuple[np.ndarray, np.ndarray, float, int]:
    """The law with squares, whose factors, after ``straight`` others, are around 0 with the deviation CURVATURE before
    the cells are seen. That one is known, so it counts by the normal quantile in an interval that is otherwise
    Student's."""
    best = design @ np.linalg.lstsq(np.sqrt(weights)[:, None] * design, np.sqrt(weights) * y, rcond=None)[0]
    squares, freedom = float(weights @ (y - best) ** 2), len(y) - int(np.linalg.matrix_rank(design))
    counted = count_own(freedom, squares / freedom / own) if freedom and own > 0 else OWN_FREEDOM
    variance = (squares + counted * own) / (freedom + counted)
    prior = np.diag(np.where(np.arange(design.shape[1]) < straight, 0.0, variance / CURVATURE ** 2))
    seen = design.T @ (weights[:, None] * design)
    inverse = np.linalg.inv(seen + prior)
    known = (normal_quantile(confidence) / student_quantile(freedom + counted, confidence)) ** 2
    return (inverse @ design.T @ (weights * y), inverse @ (seen + known * prior) @ inverse * variance, 0.0,
            freedom + counted)


def _deviation(estimate: Estimate, confidence: float) -> float:
    """Of the logarithm, as the interval implies; not finite: open, or without an interval or a value."""
    if not (estimate.met and estimate.value > 0):
        return np.inf
    with np.errstate(divide="ignore"):
        sides = np.log([estimate.value / np.float64(estimate.low), np.float64(estimate.high) / estimate.value])
    return float(np.sqrt((sides ** 2).mean()) / normal_quantile(confidence))
