"""The steps that each global batch needs, and how far they scale perfectly (Shallue et al. 2019, section 4.1).

The worker count is an execution detail: one setting under one seed is the same sequence of updates at any worker count.
So all worker counts of a batch share one row, and a seed counts once.

The regimes are stated as batches that were run. Perfect scaling extends to the largest batch whose B S is within a
tolerance of the smallest B S, but not past a batch that is certainly outside it. A batch whose interval leaves that
open does not end it. The maximum useful batch is the smallest whose S is within a tolerance of the fewest steps. It is
no smaller than the end of perfect scaling, as S still falls where the largest batches are close together. Both compare
with the smallest of several noisy values, which is low by chance. On average the end of perfect scaling comes out 0.2
to 0.6 of a doubling low, the maximum useful batch 0.2 to 0.8 high (ten batches; tools/coverage); B_crit does not.

Their intervals are also stated as batches: percentiles over draws of the steps at all batches. The draws are log-normal
on each side of a value, and narrower where the points lie closer to the fitted curve than their intervals claim. Draws
scatter around values that scatter themselves, and only a few batches can be chosen, so percentiles cover more than they
claim. Those at twice the tails (5 % and 95 % for an interval of 95 %) cover what is claimed (tools/coverage)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .critical_batch_fit import REFUTED, CriticalBatchFit, fit_critical_batch
from .defaults import Options
from .intervals import Estimate, isotonic, logarithms, normal_quantile

DRAWS = 2000


@dataclass(frozen=True)
class BatchEstimate:
    """One of the global batches that were run, with its interval."""

    value: int | None           # None: no batch met the target
    low: float = np.nan         # NaN: the spread is unknown
    high: float = np.nan        # inf where it may be the largest batch that was run, or a larger one
    largest: bool = False       # whether it is the largest that was run, so that a larger one may be as good

    def __str__(self) -> str:
        return f"at least {self.value:,}" if self.largest else f"{self.value:,}"

    @property
    def known(self) -> bool:
        return not np.isnan(self.low)


@dataclass(frozen=True, eq=False)
class Regimes:
    """Where perfect scaling ends, where larger batches stop saving steps, and the curve fitted to all batches."""

    perfect_until: BatchEstimate
    maximum_useful: BatchEstimate
    fit: CriticalBatchFit | None        # None: too few batches met
    perfect: tuple[bool, ...]           # per batch: whether B S is within tolerance of the smallest B S
    options: Options


def regimes_of(batches: Sequence[int], estimates: Sequence[Estimate], options: Options = Options()) -> Regimes:
    """The regimes of steps to target at global batches, smallest first. A batch that did not meet is in no regime."""
    steps, examples = logarithms([one.value if one.met else np.inf for one in estimates]), logarithms(batches)
    fit = fit_critical_batch(batches, estimates, options.confidence)
    perfect = _is_within(steps + examples, options.perfect_within)
    if not perfect.any():
        return Regimes(BatchEstimate(None), BatchEstimate(None), fit, tuple(perfect.tolist()), options)
    until = int(_last(perfect & ~_is_past_break(batches, estimates, perfect, options.perfect_within)))
    useful = max(until, int(_is_within(steps, options.useful_within).argmax()))
    drawn = _draw_log_steps(steps, estimates, options.confidence, batches, fit)
    until_drawn = useful_drawn = None
    if drawn is not None:
        until_drawn = _last(_is_within(drawn + examples, options.perfect_within))
        useful_drawn = np.maximum(until_drawn, _is_within(drawn, options.useful_within).argmax(1))
    return Regimes(_estimate_batch(batches, until, until_drawn, options.confidence),
                   _estimate_batch(batches, useful, useful_drawn, options.confidence), fit, tuple(perfect.tolist()),
                   options)


def _is_past_break(batches: Sequence[int], estimates: Sequence[Estimate], perfect: np.ndarray, tolerance: float
                   ) -> np.ndarray:
    """Whether each lies past a batch at which scaling is certainly not perfect, counted from the first perfect one.
    Certain: the lower end of B S is above the upper end of the smallest B S plus the tolerance. An interval from the
    evaluation grid alone makes nothing certain."""
    ends = np.array([(one.low, one.high) if one.met and one.runs > 1 else (0, np.inf) for one in estimates])
    low, high = (ends * np.asarray(batches, float)[:, None]).T
    smallest = np.argmin([one.value * batch if one.met else np.inf for batch, one in zip(batches, estimates)])
    certainly_not = low > high[smallest] * (1 + tolerance)
    return np.logical_or.accumulate(certainly_not & (np.arange(len(perfect)) > perfect.argmax()))


def _estimate_batch(batches: Sequence[int], chosen: int, drawn: np.ndarray | None, confidence: float) -> BatchEstimate:
    """The batch of this index, with an interval from draws of the index, shape (DRAWS,)."""
    value, last = int(batches[chosen]), len(batches) - 1
    if drawn is None:
        return BatchEstimate(value, largest=chosen == last)
    low, high = np.sort(drawn)[[int(share * (DRAWS - 1)) for share in (1 - confidence, confidence)]]
    return BatchEstimate(value, float(min(value, batches[low])),
                         np.inf if high == last else float(max(value, batches[high])), chosen == last)


def _is_within(logs: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether each value is finite and within tolerance of the smallest along the last axis."""
    return np.isfinite(logs) & (logs <= logs.min(-1, keepdims=True, initial=np.inf) + np.log1p(tolerance) + 1e-12)


def _last(inside: np.ndarray) -> np.ndarray:
    return inside.shape[-1] - 1 - inside[..., ::-1].argmax(-1)


def _draw_log_steps(log_steps: np.ndarray, estimates: Sequence[Estimate], confidence: float,
                    batches: Sequence[int], fit: CriticalBatchFit | None) -> np.ndarray | None:
    """Draws of log S, shape (DRAWS, batches); None: the spread is unknown. An open side is taken to be as wide as the
    widest known one of those that met. A batch that did not is drawn around what its runs reached; inf: unknown. As
    values scatter themselves, those that met are drawn around what falls and is nearest to them, unless the largest
    batches surely rise; and midway to the curve, where they do not refute it."""
    ends = logarithms([(one.low, one.high) for one in estimates])
    beyond = logarithms([np.inf if np.isnan(one.beyond) else one.beyond for one in estimates])
    met = np.isfinite(log_steps)
    reached = np.where(met, log_steps, beyond)
    with np.errstate(invalid="ignore"):
        wide = np.abs(ends - reached[:, None])
    wide[[one.runs < 2 for one in estimates]] = np.nan          # the evaluation grid is not a spread
    known = np.isfinite(wide)
    if not known[met].any():
        return None
    narrower = float(np.fmin(1.0, fit.spread)) if fit else 1.0
    wide = narrower * np.where(known, wide, wide[met][known[met]].max()) / normal_quantile(confidence)
    deviate = np.random.Generator(np.random.Philox(key=0)).standard_normal((DRAWS, len(estimates)))
    if not fit or not fit.left_out:
        reached[met] = -isotonic(-reached[None, met])[0]
        curve = logarithms(fit.steps(batches)) if fit and fit.lack_of_fit > REFUTED else np.nan
        reached = np.where(np.isnan(curve) | ~met, reached, (reached + curve) / 2)
    return reached + deviate * np.where(deviate < 0, wide[:, 0], wide[:, 1])
