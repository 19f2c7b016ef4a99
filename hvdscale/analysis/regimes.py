"""How many steps each global batch needs, and how far that scales perfectly (Shallue et al. 2019, section 4.1).

The worker count is an execution detail: one setting under one seed is the same sequence of updates at any, so all
worker counts of a batch enter one row, and a seed counts once.

The regimes are of the batches that were run: perfect scaling goes up to the largest of them whose B S is within a
tolerance of the smallest B S, and no further than a batch between that surely is not; one whose interval leaves it open
does not end it. The maximum useful batch is the smallest whose S is within a tolerance of the fewest, and no smaller
than the end of perfect scaling: where the largest batches lie closer together than the tolerance, S still falls there.
Both compare with the smallest of several noisy values, which is low by chance: on average the end of perfect scaling
comes out 0.2 to 0.6 of a doubling low, the maximum useful batch 0.2 to 0.8 high (ten batches; tools/coverage). B_crit
has no such bias.

Their intervals, of batches too, are percentiles over draws of the steps at all batches, log-normal on each side of a
value, and narrower by as much as the points lie nearer the fitted curve than their intervals claim. The draws scatter
about values that scatter themselves, and of a few batches one is meant, so that percentiles cover more than they claim:
those at twice the tails (5 % and 95 % for an interval of 95 %) cover as much as that (tools/coverage).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from .critical_batch_fit import CriticalBatchFit, fit_critical_batch
from .intervals import CONFIDENCE, Estimate
from .speedup import step_speedup
from .steps import Cell

PERFECT_WITHIN = 0.25       # B S may be this share above the smallest B S
USEFUL_WITHIN = 0.20        # S may be this share above the fewest steps
DRAWS = 2000


@dataclass(frozen=True)
class BatchEstimate:
    """A global batch out of those that were run, with its interval.

    value  None: no batch met the target
    low    ends of the interval; NaN where nothing is known of the spread
    high   inf where the largest batch that was run, or a larger one, may be it
    """

    value: int | None
    low: float = np.nan
    high: float = np.nan

    @property
    def known(self) -> bool:
        """Whether anything is known of the spread."""
        return self.low == self.low


@dataclass(frozen=True, eq=False)
class Regimes:
    """Where perfect scaling ends, where more examples a step stop to save steps, and the curve through it all."""

    perfect_until: BatchEstimate
    maximum_useful: BatchEstimate
    fit: CriticalBatchFit | None               # None: too few batches met
    perfect: tuple[bool, ...]           # of each batch: whether B S is within tolerance of the smallest B S
    perfect_within: float
    useful_within: float
    confidence: float


def regimes_of(batches: Sequence[int], estimates: Sequence[Estimate], perfect_within=PERFECT_WITHIN,
               useful_within=USEFUL_WITHIN, confidence=CONFIDENCE) -> Regimes:
    """The regimes of steps to target at global batches, smallest first. A batch that did not meet is in no regime."""
    steps, examples = _logs([one.value if one.met else np.inf for one in estimates]), _logs(batches)
    fit = fit_critical_batch(batches, estimates, confidence)
    drawn = _drawn(steps, estimates, confidence, np.fmin(1.0, fit.spread) if fit else 1.0)
    perfect = _within(steps + examples, perfect_within)
    unbroken = perfect & ~_broken(batches, estimates, perfect, perfect_within)
    if not perfect.any():
        none = BatchEstimate(None)
        return Regimes(none, none, fit, tuple(perfect.tolist()), perfect_within, useful_within, confidence)
    until, until_drawn = _last(unbroken), None if drawn is None else _last(_within(drawn + examples, perfect_within))
    useful = max(until, _first(_within(steps, useful_within)))
    useful_drawn = None if drawn is None else np.maximum(until_drawn, _first(_within(drawn, useful_within)))
    return Regimes(_regime(batches, until, until_drawn, confidence), _regime(batches, useful, useful_drawn, confidence),
                   fit, tuple(perfect.tolist()), perfect_within, useful_within, confidence)


def _broken(batches, estimates, perfect, tolerance):
    """Whether each lies beyond one that surely is not perfect, itself beyond the first that is: its B S has a lower
    end above the upper end of the smallest B S, tolerance added. The evaluation grid makes nothing sure."""
    ends = np.array([(one.low, one.high) if one.met and one.runs > 1 else (0, np.inf) for one in estimates])
    low, high = (ends * np.asarray(batches, float)[:, None]).T
    smallest = np.argmin([one.value * batch if one.met else np.inf for batch, one in zip(batches, estimates)])
    surely_not = low > high[smallest] * (1 + tolerance)
    return np.logical_or.accumulate(surely_not & (np.arange(len(perfect)) > _first(perfect)))


def _regime(batches, chosen, drawn, confidence):
    """The batch of this index, with its interval from draws of the index, shape (DRAWS,)."""
    value = int(batches[chosen])
    if drawn is None:
        return BatchEstimate(value)
    found = np.sort(drawn)
    low, high = (found[int(share * (DRAWS - 1))] for share in (1 - confidence, confidence))
    return BatchEstimate(value, float(min(value, batches[low])),
                         np.inf if high == len(batches) - 1 else float(max(value, batches[high])))


def _within(logs, tolerance):
    """Whether each is finite and within tolerance of the smallest along the last axis."""
    return np.isfinite(logs) & (logs <= logs.min(-1, keepdims=True) + np.log1p(tolerance) + 1e-12)


def _first(inside):
    """Index of the first that is True, along the last axis."""
    return inside.argmax(-1)


def _last(inside):
    return inside.shape[-1] - 1 - inside[..., ::-1].argmax(-1)


def _drawn(log_steps, estimates, confidence, narrower):
    """Draws of log S, shape (DRAWS, batches), inf where a batch did not meet; None: nothing is known of the spread.

    A side on which an estimate is open is taken to be as wide as the widest that is known.
    """
    ends = _logs([(one.low, one.high) for one in estimates])
    with np.errstate(invalid="ignore"):
        wide = np.abs(ends - log_steps[:, None])
    wide[[one.runs < 2 for one in estimates]] = np.nan          # the evaluation grid is no spread
    known = np.isfinite(wide)
    if not known.any():
        return None
    wide = narrower * np.where(known, wide, wide[known].max()) / ndtri(0.5 + confidence / 2)
    deviate = np.random.Generator(np.random.Philox(key=0)).standard_normal((DRAWS, len(estimates)))
    return log_steps + deviate * np.where(deviate < 0, wide[:, 0], wide[:, 1])


def _logs(values):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, float))


@dataclass(frozen=True, eq=False)
class BatchPoint:
    """One global batch."""

    cell: Cell
    examples: Estimate                  # B S: to target
    statistical_efficiency: Estimate    # against the smallest batch
    perfect: bool                       # B S within tolerance of the smallest B S

    @property
    def global_batch(self) -> int:
        return self.cell.global_batch

    @property
    def steps(self) -> Estimate:
        return self.cell.steps


@dataclass(frozen=True, eq=False)
class Batches:
    """Every global batch of a workload, smallest first."""

    points: tuple[BatchPoint, ...]
    regimes: Regimes | None             # None without a batch

    @property
    def perfect_within(self) -> float:
        return self.regimes.perfect_within

    @property
    def useful_within(self) -> float:
        return self.regimes.useful_within

    @property
    def maximum_useful(self) -> int | None:
        """The smallest B whose S is within useful_within of the fewest; None: none met."""
        return self.regimes.maximum_useful.value if self.regimes else None


def batches_of(cells, perfect_within=PERFECT_WITHIN, useful_within=USEFUL_WITHIN, confidence=CONFIDENCE) -> Batches:
    """The table by batch of cells that have one global batch each, over all worker counts."""
    cells = sorted(cells, key=lambda cell: cell.global_batch)
    if not cells:
        return Batches((), None)
    regimes = regimes_of([cell.global_batch for cell in cells], [cell.steps for cell in cells], perfect_within,
                         useful_within, confidence)
    points = tuple(BatchPoint(cell, cell.steps.scaled(cell.global_batch), _efficiency(cell, cells[0], confidence),
                              perfect) for cell, perfect in zip(cells, regimes.perfect))
    return Batches(points, regimes)


def _efficiency(cell, smallest, confidence):
    return step_speedup(cell, smallest, confidence).scaled(smallest.global_batch / cell.global_batch)
