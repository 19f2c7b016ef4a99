"""What a rule from elsewhere costs in the cells that were measured.

    rule = BorrowedLaw.parse("batch = 8.7e-3 * tokens^0.383")
    costs = costs_of(rule, laws)            # laws: laws.SizeLaws

At each cell the rule names a batch or a rate. Its cost is how much more loss the search found there, at the best of
the other, than at the best; and, for runs to a target, how many times the fewest steps and examples it takes.

The loss at the rule's value is interpolated linearly in its logarithm between the lowest losses at the two values run
around it. Its interval reaches over both, and by the noise of a lowest loss: Student's, from the residuals of the
valley fitted to them (best_batch). Beyond the values that were run nothing is said. Steps are those of the fitted
curve, with percentiles over its draws (critical_batch_fit).
"""
from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UsageError
from ..best_batch import valley_of
from ..critical_batch_fit import CriticalBatchFit, steps_at
from ..intervals import CONFIDENCE, Estimate, student_quantile
from .laws import CellResult, SizeLaws, lowest_by

BATCH, RATE = "batch", "rate"
EXAMPLE = "'batch = 8.7e-3 * tokens^0.383'"
VALLEY_UNKNOWNS = 4
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|[*/^=()+-]))")


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
        return _Parser(text).law()

    def at(self, sizes: Mapping[str, float]) -> float:
        """Its value at sizes; inf or 0 where it overflows."""
        logs = math.log(self.factor) + sum(power * math.log(sizes[name]) for name, power in self.powers.items())
        return math.exp(logs) if abs(logs) < 700 else math.inf if logs > 0 else 0.0


class _Parser:
    """Reads a rule from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.tokens = text, 0, []
        at, whole = 0, text.rstrip()
        while at < len(whole):
            found = _TOKEN.match(whole, at)
            if not found:
                raise self.error(f"{whole[at:].strip()[:12]!r} is no part of a rule")
            self.tokens.append(found[0].strip())
            at = found.end()

    def law(self) -> BorrowedLaw:
        of = self.take()
        if of not in (BATCH, RATE) or self.take() != "=":
            raise self.error(f"it begins with '{BATCH} =' or '{RATE} ='")
        factor, powers, sign = 1.0, dict[str, float](), 1
        while True:
            number, name, power = self.power()
            if name:
                powers[name] = powers.get(name, 0.0) + sign * power
            else:
                factor *= self.raised(number, sign * power)
            joint = self.take()
            if not joint:
                break
            if joint not in ("*", "/"):
                raise self.error(f"{joint!r} where '*' or '/' joins numbers and powers of sizes")
            sign = 1 if joint == "*" else -1
        if not 0 < factor < math.inf:
            raise self.error(f"its factor is {factor:g}; it must be above 0")
        return BorrowedLaw(of, factor, powers, self.text)

    def power(self) -> tuple[float, str, float]:
        """(number, name, power): a number or a size, to a power."""
        base = self.take()
        name = base if re.match(r"[A-Za-z_]", base) else ""
        number = 1.0 if name else self.number(base)
        if self.peek() not in ("^", "**"):
            return number, name, 1.0
        self.take()
        bracket = self.peek() == "("
        if bracket:
            self.take()
        power = self.signed()
        if bracket and self.peek() == "/":
            self.take()
            below = self.signed()
            if not below:
                raise self.error("it divides by 0")
            power /= below
        if bracket and self.take() != ")":
            raise self.error("a bracket is not closed")
        return number, name, power

    def signed(self) -> float:
        sign = self.take() if self.peek() in ("+", "-") else "+"
        return self.number(self.take()) * (-1 if sign == "-" else 1)

    def number(self, token: str) -> float:
        if not re.match(r"[\d.]", token) or not math.isfinite(float(token)):
            raise self.error(f"{token!r} is no number or size" if token else "it ends where a number or size belongs")
        return float(token)

    def raised(self, number: float, power: float) -> float:
        try:
            return float(number ** power)
        except (OverflowError, ZeroDivisionError):
            raise self.error(f"{number:g}^{power:g} is no finite number") from None

    def take(self) -> str:
        """The next token; "" at the end."""
        found = self.peek()
        self.place += bool(found)
        return found

    def peek(self) -> str:
        """The same without moving on."""
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def error(self, why: str) -> UsageError:
        return UsageError(f"--law {self.text!r}: {why}; a rule is a product of numbers and powers of sizes, such as "
                          f"{EXAMPLE}")


@dataclass(frozen=True)
class LawCost:
    """What the rule costs in one cell.

    value     the batch or rate that it names
    best      the best one measured there, as far as known
    loss      the metric's loss above the lowest, as a share of it; None: no losses
    steps     steps over the fewest S_min, and examples over the fewest E_min; None: no steps
    outside   whether the value is beyond those run, so that nothing is known of its loss
    """

    cell: CellResult
    value: float
    best: Estimate | None
    loss: Estimate | None
    steps: Estimate | None
    examples: Estimate | None
    outside: bool


def costs_of(rule: BorrowedLaw, laws: SizeLaws) -> tuple[LawCost, ...]:
    """The cost at each cell; UsageError where the rule has a size that the cells do not have."""
    if unknown := [name for name in rule.powers if name not in laws.names]:
        raise UsageError(f"--law {rule.text!r}: {unknown[0]} is not one of the sizes of these cells, "
                         f"{', '.join(laws.names)}; --size {unknown[0]} adds it")
    return tuple(_cost(rule, one, rule.at(dict(zip(laws.names, one.cell.sizes))), laws.confidence)
                 for one in laws.cells)


def _cost(rule: BorrowedLaw, cell: CellResult, value: float, confidence: float) -> LawCost:
    axis = cell.batches if rule.of == BATCH else cell.rates
    known = np.isfinite(axis) & np.isfinite(cell.costs) & (axis > 0)
    values, lowest = lowest_by(axis[known], cell.costs[known])
    best = cell.estimate("best_batch" if rule.of == BATCH else "best_rate")
    outside = bool(len(values)) and not values[0] <= value <= values[-1]
    loss = excess_at(values, lowest, value, confidence) if len(values) > 1 and not outside else None
    steps = examples = None
    if cell.fit is not None and rule.of == BATCH and 0 < value < math.inf:
        steps, examples = over_fewest(cell.fit, value, confidence)
        best = best or cell.fit.overhead
    return LawCost(cell, value, best, loss, steps, examples, outside)


def excess_at(values: np.ndarray, lowest: np.ndarray, value: float, confidence: float = CONFIDENCE) -> Estimate:
    """The cost at a value over the least, as a share of it: at least 0; without an interval of fewer values than a
    valley needs.

    values, lowest  the values run, smallest first, and the lowest cost at each
    """
    least, x = float(lowest.min()), np.log(values)
    at = float(np.interp(math.log(value), x, lowest))
    above = min(len(x) - 1, int(np.searchsorted(values, value)))
    around = lowest[max(0, above - 1):above + 1]
    exact = bool(np.isclose(values, value, rtol=1e-9).any())
    ends = np.array([at, at]) if exact else np.array([around.min(), around.max()])
    valley = valley_of(values.tolist(), lowest, confidence)
    half = math.nan
    if valley is not None and len(values) > VALLEY_UNKNOWNS:
        freedom = len(values) - VALLEY_UNKNOWNS
        noise = math.sqrt(float(((lowest - valley.fitted) ** 2).sum()) / freedom)
        half = float(student_quantile(freedom, confidence)) * math.sqrt(2) * noise
    over = np.array([at, ends[0] - half, ends[1] + half]) - least
    share = np.maximum(over, 0) / abs(least) if least else np.full(3, math.nan)
    return Estimate(float(share[0]), float(share[1]), float(share[2]), len(values))


def over_fewest(fit: CriticalBatchFit, batch: float, confidence: float = CONFIDENCE) -> tuple[Estimate, Estimate]:
    """(steps over S_min, examples over E_min) at a batch, from 1 on."""
    e_min, b_crit, shape = fit.draws.T
    own, drawn = fit.steps(batch), steps_at(batch, e_min, b_crit, shape)
    ends = (1 - confidence) / 2, (1 + confidence) / 2
    with np.errstate(invalid="ignore"):
        found: Sequence[tuple[float, np.ndarray]] = (
            (float(own / fit.s_min.value), drawn * b_crit / e_min),
            (float(own * batch / (fit.s_min.value * fit.b_crit.value)), drawn * batch / e_min))
    steps, examples = (Estimate(value, float(np.nanquantile(over, ends[0])), float(np.nanquantile(over, ends[1])),
                                fit.points) for value, over in found)
    return steps, examples
