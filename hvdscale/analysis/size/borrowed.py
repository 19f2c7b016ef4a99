"""What a rule from elsewhere, such as ``batch = 8.7e-3 * tokens^0.383``, costs in the cells that were measured.

At each cell the rule names a batch or a rate. Its cost is how much more loss the search found there, at the best of
the other, than at the best; and, for runs to a target, how many times the fewest steps and examples it takes.

The loss at the rule's value is interpolated linearly in its logarithm between the lowest losses at the two values run
around it. Its interval reaches over both, and by the noise of a lowest loss: Student's, from the residuals of the
valley fitted to them (best_batch). Beyond the values that were run nothing is said. Steps are those of the fitted
curve, with percentiles over its draws (critical_batch_fit)."""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_SIGNED = rf"[+-]?\s*{_NUMBER}"
_TERM = re.compile(rf"(?:(?P<number>{_NUMBER})|(?P<name>[A-Za-z_]\w*))\s*(?:(?:\^|\*\*)\s*(?:(?P<power>{_SIGNED})"
                   rf"|\(\s*(?P<above>{_SIGNED})\s*(?:/\s*(?P<below>{_SIGNED})\s*)?\)))?\s*")


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


@dataclass(frozen=True)
class LawCost:
    """What the rule costs in one cell."""

    cell: CellResult
    value: float                    # the batch or rate that it names
    best: Estimate | None           # the best one measured there, as far as known
    loss: Estimate | None           # the metric's loss above the lowest, as a share of it; None: no losses
    steps: Estimate | None          # over the fewest, S_min; None: no steps
    examples: Estimate | None       # over the fewest, E_min, likewise
    outside: bool                   # whether the value is beyond those run, so that nothing is known of its loss


def costs_of(rule: BorrowedLaw, laws: SizeLaws) -> tuple[LawCost, ...]:
    """The cost at each cell; UsageError where the rule has a size that the cells do not have."""
    if unknown := [name for name in rule.powers if name not in laws.names]:
        raise UsageError(f"--law {rule.text!r}: {unknown[0]} is not one of the sizes of these cells, "
                         f"{', '.join(laws.names)}; --size {unknown[0]} adds it")
    found = []
    for cell in laws.cells:
        value, axis = rule.at(dict(zip(laws.names, cell.cell.sizes))), cell.batches if rule.of == BATCH else cell.rates
        known = np.isfinite(axis) & np.isfinite(cell.costs) & (axis > 0)
        values, lowest = lowest_by(axis[known], cell.costs[known])
        best = cell.estimate("best_batch" if rule.of == BATCH else "best_rate")
        outside = bool(len(values)) and not values[0] <= value <= values[-1]
        loss = excess_at(values, lowest, value, laws.confidence) if len(values) > 1 and not outside else None
        steps = examples = None
        if cell.fit is not None and rule.of == BATCH and 0 < value < math.inf:
            steps, examples = over_fewest(cell.fit, value, laws.confidence)
            best = best or cell.fit.overhead
        found.append(LawCost(cell, value, best, loss, steps, examples, outside))
    return tuple(found)


def excess_at(values: np.ndarray, lowest: np.ndarray, value: float, confidence: float = CONFIDENCE) -> Estimate:
    """The cost at a value over the least, as a share of it: at least 0; without an interval of fewer values than a
    valley needs. ``lowest`` is the lowest cost at each of the values run, smallest first."""
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
    own, drawn = float(fit.steps(batch)), steps_at(batch, e_min, b_crit, shape)
    with np.errstate(invalid="ignore"):
        over = np.array([drawn * b_crit / e_min, drawn * batch / e_min])
        low, high = np.nanquantile(over, [(1 - confidence) / 2, (1 + confidence) / 2], axis=1)
    values = own / fit.s_min.value, own * batch / (fit.s_min.value * fit.b_crit.value)
    steps, examples = (Estimate(*ends, fit.points) for ends in zip(values, low.tolist(), high.tolist()))
    return steps, examples
