"""The gradient noise scale tr(Sigma) / |G|^2, in examples: the batch size at which the mean gradient G rises above the
noise Sigma of single examples (McCandlish et al. 2018, arXiv 1812.06162).

In a measured step the global batch of B examples is split into R shares of n_r. Each share's mean gradient G_r has
E|G_r|^2 = |G|^2 + tr(Sigma) / n_r. The mean of |G_r|^2, weighted by n_r / B, has expectation |G|^2 + tr(Sigma) R / B:
that of a batch of n = B / R, however uneven the shares. So the pair of their appendix A.1 with B_small = n, B_big = B,
see unbiased_pair, is unbiased for examples that are drawn one by one. An epoch draws from N examples without
replacement. If a visit draws nothing, E|G_r|^2 = |G|^2 + tr(Sigma) (1 / n_r - 1 / N), with G the mean gradient over the
training set and tr(Sigma) its sample covariance. So tr(Sigma) is as above, and |G|^2 is that plus tr(Sigma) / N.
Elsewhere, as under augmentation and dropout, G is the gradient of the population that visits are drawn from.

With these weights tr(Sigma) is the sample covariance between shares, from which |G|^2 cancels. Both are averaged over
the steps, then divided. Each step draws its own examples, so errors of different steps are uncorrelated, however the
true values drift. The covariance of the two means is therefore the delete-one jackknife's, s^2 / steps. s^2 comes from
differences of neighboring steps (von Neumann 1941), so drift over training does not count as error. The interval of the
ratio is Fieller's (1954). It stays valid, without an upper end, where the steps do not distinguish |G|^2 from 0. The
jackknife of the ratio or of its logarithm covered as little as a third where it claims 95 %."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..log.plan_text import plan_at
from ..log.reader import Log
from ..target import Target
from .intervals import CONFIDENCE, NONE, Estimate, over, student_quantile
from .studies import rows_of_each

QUARTERS = 4                # of a run's measured steps
LEAST_STEPS = 5             # measured steps, below which there is no interval


@dataclass(frozen=True, eq=False)
class NoiseSteps:
    """The measured steps of one trial, in order: arrays of shape (steps,) of unbiased, noisy estimates."""

    step: np.ndarray
    grad_sqnorm: np.ndarray         # |G|^2
    cov_trace: np.ndarray           # tr(Sigma)

    def quarter(self, at: int) -> NoiseSteps:
        """A quarter of the steps."""
        rows = slice(len(self.step) * at // QUARTERS, len(self.step) * (at + 1) // QUARTERS)
        return NoiseSteps(self.step[rows], self.grad_sqnorm[rows], self.cov_trace[rows])


@dataclass(frozen=True)
class NoiseScale(Estimate):
    """cov_trace / grad_sqnorm over ``runs`` measured steps, in examples: 0 where cov_trace is negative, inf where
    grad_sqnorm is not positive, NaN where nothing was measured. ``high`` is inf where grad_sqnorm is not
    distinguishable from 0; both ends are NaN where there are too few steps."""

    grad_sqnorm: float = np.nan     # the mean over the steps of the estimates of |G|^2, which may be negative
    cov_trace: float = np.nan       # likewise of tr(Sigma)
    first_step: int = 0             # of training, of those measured
    last_step: int = 0


@dataclass(frozen=True)
class Noise:
    """Of the runs of one cell: over all measured steps, and by quarter of the run, unknown of too few steps."""

    whole: NoiseScale
    quarters: tuple[NoiseScale, ...]


def unbiased_pair(local_sqnorm: np.ndarray, reduced_sqnorm: np.ndarray, local_examples: np.ndarray,
                  global_batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unbiased estimates of |G|^2 and tr(Sigma), of numbers or arrays, from mean|G_r|^2, the square norm of the whole
    batch's gradient, n and B of the module's docstring."""
    grad_sqnorm = (global_batch * reduced_sqnorm - local_examples * local_sqnorm) / (global_batch - local_examples)
    return grad_sqnorm, (local_sqnorm - reduced_sqnorm) / (1 / local_examples - 1 / global_batch)


def noise_scale(runs: Sequence[NoiseSteps], confidence: float = CONFIDENCE) -> NoiseScale:
    """The noise scale of runs of one setting under different seeds: sums over all their steps, divided."""
    runs = [run for run in runs if len(run.step)]
    if not runs:
        return NoiseScale(np.nan, *NONE, 0)
    pairs = [np.array([run.grad_sqnorm, run.cov_trace]) for run in runs]
    steps = sum(pair.shape[1] for pair in pairs)
    grad_sqnorm, cov_trace = means = np.sum([pair.sum(1) for pair in pairs], 0) / steps
    scale = max(0.0, cov_trace / grad_sqnorm) if grad_sqnorm > 0 else np.inf
    (low, high), neighbors = NONE, steps - len(pairs)
    if steps >= LEAST_STEPS and neighbors > 1:
        differences = np.concatenate([np.diff(pair) for pair in pairs], axis=1)
        covariance = differences @ differences.T / (2 * neighbors) / steps
        freedom = 2 / 3 * neighbors         # of a sum of squares of differences of neighbors (von Neumann 1941)
        low, high = fieller(means, covariance, student_quantile(freedom, confidence))
    first, last = min(run.step[0] for run in runs), max(run.step[-1] for run in runs)
    return NoiseScale(float(scale), low, high, steps, grad_sqnorm=float(grad_sqnorm), cov_trace=float(cov_trace),
                      first_step=int(first), last_step=int(last))


def noise_of(runs: Sequence[NoiseSteps], confidence: float = CONFIDENCE) -> Noise:
    quarters = [[run.quarter(at) for run in runs] for at in range(QUARTERS)]
    enough = min(sum(len(part.step) for part in parts) for parts in quarters) >= LEAST_STEPS
    return Noise(noise_scale(runs, confidence),
                 tuple(noise_scale(parts if enough else [], confidence) for parts in quarters))


def fieller(means: np.ndarray, covariance: np.ndarray, quantile: float) -> tuple[float, float]:
    """Ends of the part above 0 of the interval of means[1] / means[0] (Fieller 1954), (0, inf) where it is unbounded:
    of every ratio R for which means[1] - R means[0] is within quantile standard deviations of 0."""
    (x, y), t = means, quantile ** 2
    a, b, c = x * x - t * covariance[0, 0], x * y - t * covariance[0, 1], y * y - t * covariance[1, 1]
    root = np.sqrt(max(0.0, b * b - a * c))
    if a > 0 and x > 0:
        return float(max(0.0, (b - root) / a)), float(max(0.0, (b + root) / a))
    return (float((b - root) / a) if a < 0 < c else 0.0), np.inf


CellNoise = tuple[Any, Noise]       # a cell of runs, see steps.RunCell, and their noise scale


class NoiseAgainst:
    """The noise scales of cells of runs, by batch, against one critical batch; NaN: the steps bound it on neither side,
    as where there is no fit to them. ``chosen``: see best_known; None: no noise scale is finite."""

    def __init__(self, target: Target | None, measured: Sequence[CellNoise], b_crit: Estimate | None) -> None:
        is_open = b_crit is None or b_crit.low == 0 and np.isinf(b_crit.high)
        self.target, self.b_crit = target, Estimate.unknown() if b_crit is None or is_open else b_crit
        self.measured = sorted(measured, key=lambda one: one[0].global_batch)
        self.chosen = best_known([one for one in self.measured if np.isfinite(one[1].whole.value)])
        self.ratio = over(self.chosen[1].whole, self.b_crit) if self.chosen else Estimate.unknown()


def best_known(measured: Sequence[CellNoise]) -> CellNoise | None:
    """The cell whose noise scale has the narrowest interval, as a ratio; the last where all are open; None of none."""
    def width(one: CellNoise) -> float:
        whole = one[1].whole
        return whole.high / whole.low if whole.low > 0 and np.isfinite(whole.high) else np.inf
    return min(reversed(measured), key=width, default=None)


def read_noise(log: Log) -> dict[int, NoiseSteps]:
    """The steps at which the noise scale was measured, by trial id, of a log that has such columns; trials without any
    are left out."""
    table = log.steps
    measured = np.array([table[name] for name in ("local_sqnorm", "reduced_sqnorm", "local_examples")])
    rows = np.flatnonzero(np.isfinite(measured).all(0))
    batches, plans = (dict(zip(log.trials["id"].tolist(), log.trials[name].tolist()))
                      for name in ("global_batch", "plan"))
    # of each step, in a trial whose batch changes
    own_batch = table["global_batch"] if "global_batch" in table.columns else np.full(table.rows, np.nan)
    found = {}
    for number, own in rows_of_each(table["trial"][rows]).items():
        at = rows[own][np.argsort(table["step"][rows[own]], kind="stable")]
        batch = np.where(np.isfinite(own_batch[at]), own_batch[at], batches[number])
        local, reduced, examples = measured[:, at]
        grad_sqnorm, cov_trace = unbiased_pair(local, reduced, examples, batch)
        # of fixed examples, from which each epoch draws without replacement
        fixed = (plan_at(log.path, number, plans[number]).get("measurement") or {}).get("fixed_examples")
        found[number] = NoiseSteps(table["step"][at], grad_sqnorm + (cov_trace / fixed if fixed else 0.0), cov_trace)
    return found
