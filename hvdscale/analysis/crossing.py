"""Where a run's metric crosses a target for good, beside the first evaluation that meets it.

Noise in the metric makes the first evaluation that meets a target early: the more evaluations, the earlier. Where the
run went on to PAST times those steps, the curve that only improves and fits best (isotonic regression, of the logarithm where
the metric is positive) is held against the target. Elsewhere a power of the steps, fitted to the evaluations up to
there, is: a model."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..target import Target
from .intervals import isotonic

PAST = 1.5          # a run that went on to this many times the steps of its first crossing shows the lasting one
SINCE = 0.25        # the power is fitted from this share of those steps on
LEAST = 4           # evaluations, below which no power is fitted
FARTHEST = 2.0      # times the run's steps, beyond which a power says nothing


@dataclass(frozen=True)
class Crossing:
    """Steps at which a run meets its target for good."""

    steps: float        # inf: not by the end of the run; NaN: unknown
    before: float       # at the evaluation before; NaN: none
    modelled: bool      # whether a power of the steps was fitted
    after: int          # evaluations after the first that met
    met_after: int      # of them, those that met


def lasting_crossing(step: np.ndarray, measured: np.ndarray, target: Target) -> Crossing | None:
    """The lasting crossing of a run, arrays of shape (evals,) without NaN; None where no evaluation met the target."""
    met = target.met_by(measured)
    if not met.any():
        return None
    first = int(met.argmax())
    counts = len(met) - first - 1, int(met[first + 1:].sum())
    if step[-1] >= PAST * step[first]:
        fitted = target.met_by(_improving(measured, target))
        at = int(fitted.argmax())
        if not fitted[at]:
            return Crossing(np.inf, float(step[-1]), False, *counts)
        return Crossing(float(step[at]), float(step[at - 1]) if at else np.nan, False, *counts)
    steps = _power_crossing(step, measured, target, step[first])
    return Crossing(steps, float(max(step[step < steps], default=np.nan)), True, *counts)


def _improving(measured: np.ndarray, target: Target) -> np.ndarray:
    """The best fit to the curve that never gets worse; infinite values count as the worst finite one."""
    finite = np.isfinite(measured)
    if not finite.any():
        return measured
    positive = bool((measured[finite] > 0).all())
    sign = -1.0 if target.minimizes else 1.0
    worst = sign * np.min(sign * measured[finite])
    values = np.where(finite, measured, worst)
    fitted = sign * isotonic(sign * (np.log(values) if positive else values)[None])[0]
    return np.exp(fitted) if positive else fitted


def _power_crossing(step: np.ndarray, measured: np.ndarray, target: Target, first: float) -> float:
    """Where log(metric), a line in log(steps), meets the target; NaN: evaluations are too few or do not improve."""
    use = (step >= SINCE * first) & (step > 0) & np.isfinite(measured) & (measured > 0)
    if use.sum() < LEAST or target.value <= 0:
        return np.nan
    slope, level = np.polyfit(np.log(step[use]), np.log(measured[use]), 1)
    if slope == 0 or (slope < 0) != target.minimizes:
        return np.nan
    steps = float(np.exp(np.clip((np.log(target.value) - level) / slope, -700, 700)))
    return steps if steps <= FARTHEST * step[-1] else np.nan
