"""How batch, steps and rate grow with size: one law a quantity, over the cells of several workloads.

Steps to a target give S_min, B_crit and the batch of 20 % overhead (critical_batch_fit). The metric at the end of each
trial's own budget, or of the one asked for, gives the best batch and the best rate there: where a bowl over both is
lowest, or without one, where a valley over the batches is (quality).

The bowl, see ../README.rst, uses every trial near the bottom, as runs off the best batch say much (arXiv 2607.01487); a
valley of the lowest cost at each batch uses one a batch. The value is the median of those of the three parts. The
interval is the hull of theirs, each Student's by the delta method, and of where the bottom goes as the part shrinks
to a point, as if it moved in proportion to the part's radius, give or take half of that way. A bottom that moves with
the part fitted, as a lopsided bowl's does, and a flat one have wide intervals. They hold the truth as often as they say
for bowls that are about alike on both sides; where one side is 2.5 times as steep as the other and trials are noisy, in
85 % (tools/coverage). Where an interval reaches beyond the batches or rates that were run, it is open on that side.

A rule from elsewhere, such as ``batch = 8.7e-3 * tokens^0.383``, names a batch or a rate at each cell. Its cost is how
much more loss the search found there, at the best of the other, than at the best; and, for runs to a target, how many
times the fewest steps and examples it takes. The loss at the rule's value is interpolated linearly in its logarithm
between the lowest losses at the two values run around it. Its interval reaches over both, and by the noise of a lowest
loss: Student's, from the residuals of the valley fitted to them. Beyond the values that were run nothing is said."""
from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UsageError
from ...log.schema import SMALLER
from ..quality import valley_of
from ..search import LEARNING_RATE
from ..budgets import Budget, BudgetPoint
from ..critical_batch_fit import OVERHEAD, steps_at
from ..curves import curve_of
from ..intervals import CONFIDENCE, Estimate, student_quantile
from ..report_data import JobResults, Options, Section
from ..studies import Study, are_searched, better, with_metric
from .sizes import PowerLaw, Size, SizeCell, SizePoint, cells_of

# what laws are of: key -> (words, unit)
QUANTITIES = {"overhead": ("batch of 20% overhead", "examples"), "steps": ("steps at 20% overhead", "steps"),
              "b_crit": ("critical batch size", "examples"), "s_min": ("fewest steps", "steps"),
              "best_batch": ("best batch", "examples"), "best_rate": ("best learning rate", "1")}

# the bowl
SHARES = (1 / 7, 1 / 4, 1 / 2)      # of the trials, those with the lowest costs
SHRINK = 1 / ((SHARES[-1] / SHARES[0]) ** 0.5 - 1)      # the radius of a part goes with the root of its share
LEAST_BOWLS = 2                     # of these parts whose fit has a lowest point
UNKNOWNS = 6
LEAST_TRIALS = 12                   # in each part
LEAST_VALUES = 3                    # different batches, and rates, in each part

# rules from elsewhere
BATCH, RATE = "batch", "rate"
EXAMPLE = "'batch = 8.7e-3 * tokens^0.383'"
VALLEY_UNKNOWNS = 4
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_SIGNED = rf"[+-]?\s*{_NUMBER}"
_TERM = re.compile(rf"(?:(?P<number>{_NUMBER})|(?P<name>[A-Za-z_]\w*))\s*(?:(?:\^|\*\*)\s*(?:(?P<power>{_SIGNED})"
                   rf"|\(\s*(?P<above>{_SIGNED})\s*(?:/\s*(?P<below>{_SIGNED})\s*)?\)))?\s*")


class CellResult:
    """What is found in a cell; ``whole``: it is all of its workload, whose results the section has.

    fit        to its steps to the target; None: no target, or too few batches met it
    batches, rates, costs    of each trial with a value of the metric, shape (trials,); smaller costs are better
    estimates  those of QUANTITIES that were measured here"""

    def __init__(self, cell: SizeCell, section: Section | None, whole: bool, metric: tuple[str, bool] | None,
                 budget: Budget | None, options: Options) -> None:
        self.cell, searched, parts = cell, are_searched(cell.studies), [np.empty((3, 0))]
        curve = section.batches if section else None
        if section and section.target and (searched or not whole):
            curve = curve_of(cell.studies, section.target, options)
        if metric and searched:
            column, minimizes = metric
            for study in with_metric(cell.studies, column):
                point = BudgetPoint(study, column, minimizes, budget)
                parts.append(np.stack([np.full(point.feasible, float(study.global_batch)),
                                       study.metaparameter(LEARNING_RATE)[point.rows], point.costs]))
        self.batches, self.rates, self.costs = np.concatenate(parts, axis=1)
        self.fit, self.estimates = curve.regimes.fit if curve else None, dict[str, Estimate]()
        if fit := self.fit:         # steps at the batch that needs a share OVERHEAD more examples; open where B_crit is
            best = np.array([fit.s_min.value * fit.b_crit.value, fit.b_crit.value, fit.shape.value])
            with np.errstate(invalid="ignore"):
                value, drawn = ((1 + OVERHEAD) * least / (b_crit * ((1 + OVERHEAD) ** shape - 1) ** (1 / shape))
                                for least, b_crit, shape in (best, fit.draws().T))
            low, high = np.nanquantile(drawn, [(1 - options.confidence) / 2, (1 + options.confidence) / 2])
            steps = Estimate(float(value), float(min(low, value)), float(max(high, value)), fit.points)
            self.estimates = {"overhead": fit.overhead, "steps": steps, "b_crit": fit.b_crit, "s_min": fit.s_min}

        distinct, lowest = lowest_by(self.batches, self.costs)
        if basin := basin_of(self.batches, self.rates, self.costs, options.confidence):
            self.estimates |= zip(("best_batch", "best_rate"), basin)
        elif valley := valley_of(distinct.astype(int).tolist(), lowest, options.confidence):
            self.estimates["best_batch"] = valley.best


class SizeLaws:
    """The laws over the cells of studies, whose trials the groups have, too. ``budget``: at which the best batch is
    sought; None: each trial's own. UsageError as cells_of raises it.

    Steps are held against the first target of each workload. The metric at a budget is that of the first target, or the
    first validation metric of which it is known which way is better.

    names       of the sizes
    metric      (column, whether smaller is better); None: none was compared
    quantities  the laws of those of QUANTITIES that some cell has, by key"""

    def __init__(self, groups: Sequence[JobResults], studies: Sequence[Study], sizes: Sequence[Size],
                 budget: Budget | None = None, options: Options = Options()) -> None:
        self.names, self.budget = tuple(size.name for size in sizes), budget
        self.confidence, cells = options.confidence, cells_of(studies, sizes)
        sections = {group.workload: section for group in reversed(groups) for section in reversed(group.sections)
                    if section.target}
        target = next((section.target for section in sections.values()), None)
        columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
        known = next(((name, better(name, ()) == SMALLER) for name in columns if better(name, ())), None)
        self.metric = (target.column, target.minimizes) if target else known
        parts = Counter(cell.workload for cell in cells)
        self.cells = tuple(CellResult(cell, sections.get(cell.workload), parts[cell.workload] == 1, self.metric, budget,
                                      options) for cell in cells)
        points = {key: [SizePoint(one.cell.sizes, one.estimates[key], one.cell.label) for one in self.cells
                        if key in one.estimates] for key in QUANTITIES}
        self.quantities = {key: PowerLaw(self.names, own, self.confidence) for key, own in points.items() if own}


def lowest_by(values: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values, the lowest cost at each)."""
    distinct = np.unique(values)
    return distinct, np.array([costs[values == value].min() for value in distinct])


def basin_of(batches: np.ndarray, rates: np.ndarray, costs: np.ndarray, confidence: float = CONFIDENCE
             ) -> tuple[Estimate, ...] | None:
    """(batch, rate) at the bottom of the bowl of trials, arrays of shape (trials,); None: too few there, or no bowl."""
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
    return tuple(Estimate(value, least, most, len(parts[-1])) for value, least, most in ends.T.tolist())


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


@dataclass(frozen=True)
class BorrowedLaw:
    """``of`` (BATCH or RATE) = factor x the product of sizes to their powers; ``text`` as it was given."""

    of: str
    factor: float
    powers: Mapping[str, float]
    text: str

    @classmethod
    def parse(cls, text: str) -> BorrowedLaw:
        """A product of numbers and powers of sizes; UsageError that says where anything else begins."""
        def refused(why: str) -> UsageError:
            return UsageError(f"--law {text!r}: {why}; a rule is a product of numbers and powers of sizes, such as "
                              f"{EXAMPLE}")
        head = re.match(rf"\s*({BATCH}|{RATE})\s*=", text)
        if not head:
            raise refused(f"it begins with '{BATCH} =' or '{RATE} ='")
        factor, powers, sign, rest = np.float64(1.0), dict[str, float](), 1, text[head.end():].strip()
        while True:
            term = _TERM.match(rest)
            if not term:
                raise refused(f"{rest[:12]!r} is no number or size" if rest else
                              "it ends where a number or size belongs")
            above, below = (float("".join((part or "1").split())) for part in (term["power"] or term["above"],
                                                                               term["below"]))
            if not below:
                raise refused("it divides by 0")
            power, rest = sign * above / below, rest[term.end():]
            if term["name"]:
                powers[term["name"]] = powers.get(term["name"], 0.0) + power
            else:
                with np.errstate(all="ignore"):
                    factor *= np.float64(term["number"]) ** power
            if not rest:
                break
            if rest.startswith(("^", "**")):
                raise refused(f"{rest[:12]!r} is no power: a number, or a quotient in brackets such as (-1/3), is one")
            if rest[0] not in "*/":
                raise refused(f"{rest[:12]!r} where '*' or '/' joins numbers and powers of sizes")
            sign, rest = (1 if rest[0] == "*" else -1), rest[1:].lstrip()
        if not 0 < factor < math.inf or not all(map(math.isfinite, powers.values())):
            raise refused(f"its factor is {factor:g}; it must be above 0, and every number finite")
        return cls(head[1], float(factor), powers, text)

    def at(self, sizes: Mapping[str, float]) -> float:
        """Its value at sizes; inf or 0 where it overflows."""
        logs = math.log(self.factor) + sum(power * math.log(sizes[name]) for name, power in self.powers.items())
        return math.exp(max(logs, -800.0)) if logs < 700 else math.inf


class LawCost:
    """What a rule costs in a cell.

    value     the batch or rate that it names; ``outside``: beyond those run, so that nothing is known of its loss
    best      the best one measured there, as far as known
    loss      the metric's loss above the lowest, as a share of it; None: no losses
    steps     over the fewest, S_min, and ``examples`` over E_min; None: no steps"""

    def __init__(self, cell: CellResult, rule: BorrowedLaw, laws: SizeLaws) -> None:
        self.cell, self.value = cell, rule.at(dict(zip(laws.names, cell.cell.sizes)))
        axis = cell.batches if rule.of == BATCH else cell.rates
        known = np.isfinite(axis) & np.isfinite(cell.costs) & (axis > 0)
        values, lowest = lowest_by(axis[known], cell.costs[known])
        self.best = cell.estimates.get("best_batch" if rule.of == BATCH else "best_rate")
        self.outside = bool(len(values)) and not values[0] <= self.value <= values[-1]
        self.loss = self.steps = self.examples = None
        if len(values) > 1 and not self.outside:
            self.loss = excess_at(values, lowest, self.value, laws.confidence)
        if cell.fit is not None and rule.of == BATCH and 0 < self.value < math.inf:
            fit, batch, (e_min, b_crit, shape) = cell.fit, self.value, cell.fit.draws().T
            own, drawn = float(fit.steps(batch)), steps_at(batch, e_min, b_crit, shape)
            with np.errstate(invalid="ignore"):
                over = np.array([drawn * b_crit / e_min, drawn * batch / e_min])
                low, high = np.nanquantile(over, [(1 - laws.confidence) / 2, (1 + laws.confidence) / 2], axis=1)
            over_fewest = own / fit.s_min.value, own * batch / (fit.s_min.value * fit.b_crit.value)
            self.steps, self.examples = (Estimate(*ends, fit.points)
                                         for ends in zip(over_fewest, low.tolist(), high.tolist()))
            self.best = self.best or fit.overhead


def costs_of(rule: BorrowedLaw, laws: SizeLaws) -> tuple[LawCost, ...]:
    """The cost at each cell; UsageError where the rule has a size that the cells do not have."""
    if unknown := [name for name in rule.powers if name not in laws.names]:
        raise UsageError(f"--law {rule.text!r}: {unknown[0]} is not one of the sizes of these cells, "
                         f"{', '.join(laws.names)}; --size {unknown[0]} adds it")
    return tuple(LawCost(cell, rule, laws) for cell in laws.cells)


def excess_at(values: np.ndarray, lowest: np.ndarray, value: float, confidence: float = CONFIDENCE) -> Estimate:
    """The cost at a value over the least, as a share of it: at least 0; without an interval of fewer values than a
    valley needs. ``lowest`` is the lowest cost at each of the values run, smallest first."""
    least, x = float(lowest.min()), np.log(values)
    at = float(np.interp(math.log(value), x, lowest))
    above = min(len(x) - 1, int(np.searchsorted(values, value)))
    around = lowest[max(0, above - 1):above + 1]
    ends, half = (at, at) if np.isclose(values, value, rtol=1e-9).any() else (around.min(), around.max()), math.nan
    if len(values) > VALLEY_UNKNOWNS and (valley := valley_of(values.tolist(), lowest, confidence)):
        freedom = len(values) - VALLEY_UNKNOWNS
        noise = math.sqrt(float(((lowest - valley.fitted) ** 2).sum()) / freedom)
        half = float(student_quantile(freedom, confidence)) * math.sqrt(2) * noise
    over = np.array([at, ends[0] - half, ends[1] + half]) - least
    share = np.maximum(over, 0) / abs(least) if least else np.full(3, math.nan)
    return Estimate(float(share[0]), float(share[1]), float(share[2]), len(values))
