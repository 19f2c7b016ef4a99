"""The gradient noise scale tr(Sigma) / |G|^2, in examples: how large a batch must be for its mean gradient G to stand
out of the spread Sigma of the examples' own (McCandlish et al. 2018, arXiv 1812.06162).

In a measured step the global batch of B examples lies in R shares of n_r, and each share's mean gradient G_r is taken:
E|G_r|^2 = |G|^2 + tr(Sigma) / n_r. The mean of |G_r|^2, each weighted by its n_r / B, has |G|^2 + tr(Sigma) R / B: that
of a batch of n = B / R, however uneven the shares. So (their appendix A.1, with B_small = n, B_big = B)

    |G|^2     = (B |G_B|^2 - n mean|G_r|^2) / (B - n)            tr(Sigma) = (mean|G_r|^2 - |G_B|^2) / (1/n - 1/B)

without bias; with these weights tr(Sigma) is the sample covariance between shares, from which |G|^2 cancels. Both are
averaged over the steps, then divided. Where a step's errors come from examples drawn for it alone, errors of different
steps are uncorrelated, however the true values drift: so the covariance of the two means is the delete-one
jack-knife's, s^2 / steps, with s^2 from differences of neighbouring steps (von Neumann 1941), in which the drift over
training does not count as error. The interval of the ratio is Fieller's (1954), which stays right, and has no upper
end, where the steps do not tell |G|^2 from 0. The jack-knife of the ratio or of its logarithm does not: it covered as
little as a third of the times where it claims 95 %.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from .intervals import CONFIDENCE, NONE

LEAST_STEPS = 5             # measured steps, below which there is no interval
QUARTERS = 4                # of a run's measured steps


@dataclass(frozen=True, eq=False)
class NoiseSteps:
    """The measured steps of one trial, in order: arrays of shape (steps,), unbiased one by one and noisy."""

    step: np.ndarray
    grad_sqnorm: np.ndarray         # |G|^2
    cov_trace: np.ndarray           # tr(Sigma)
    groups: Mapping[str, NoiseSteps] = field(default_factory=dict)      # by part of the model, where they were measured

    def part(self, rows: slice) -> NoiseSteps:
        """Some of the steps, without the groups."""
        return NoiseSteps(self.step[rows], self.grad_sqnorm[rows], self.cov_trace[rows])


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale over a number of steps.

    noise_scale  cov_trace / grad_sqnorm, in examples; 0 where cov_trace is negative, inf where grad_sqnorm is not
                 positive, NaN where nothing was measured
    low, high    ends of its interval; high is inf where grad_sqnorm is not told from 0, both NaN where the steps are
                 too few
    grad_sqnorm  mean over the steps of the estimate of |G|^2, cov_trace of that of tr(Sigma); they may be negative
    steps        measured, in all runs
    first_step   the span of training that they lie in
    """

    noise_scale: float
    low: float
    high: float
    grad_sqnorm: float
    cov_trace: float
    steps: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Noise:
    """The noise scale of the runs of one cell: over all measured steps, by quarter (missing where the steps are too
    few for intervals), and by part of the model."""

    whole: NoiseScale
    quarters: tuple[NoiseScale, ...]
    groups: Mapping[str, NoiseScale]


def unbiased_pair(local_sqnorm, reduced_sqnorm, local_examples, global_batch):
    """Unbiased estimates of |G|^2 and tr(Sigma), of numbers or arrays; see the module's text.

    local_sqnorm    mean over the shares of |G_r|^2, weighted by their examples
    reduced_sqnorm  |G_B|^2
    local_examples  n: mean of the shares' example counts, below global_batch
    """
    grad_sqnorm = (global_batch * reduced_sqnorm - local_examples * local_sqnorm) / (global_batch - local_examples)
    return grad_sqnorm, (local_sqnorm - reduced_sqnorm) / (1 / local_examples - 1 / global_batch)


def noise_scale(runs: Sequence[NoiseSteps], confidence=CONFIDENCE) -> NoiseScale:
    """The noise scale of runs of one setting under different seeds: sums over all their steps, divided."""
    runs = [run for run in runs if len(run.step)]
    if not runs:
        return NoiseScale(*[np.nan] * 5, 0, 0, 0)
    pairs = [np.array([run.grad_sqnorm, run.cov_trace]) for run in runs]
    steps = sum(pair.shape[1] for pair in pairs)
    grad_sqnorm, cov_trace = means = sum(pair.sum(1) for pair in pairs) / steps
    scale = max(0.0, cov_trace / grad_sqnorm) if grad_sqnorm > 0 else np.inf
    low, high = _interval(means, pairs, steps, confidence)
    return NoiseScale(float(scale), low, high, float(grad_sqnorm), float(cov_trace), steps,
                      int(min(run.step[0] for run in runs)), int(max(run.step[-1] for run in runs)))


def _interval(means, pairs, steps, confidence):
    neighbours = steps - len(pairs)
    if steps < LEAST_STEPS or neighbours < 2:
        return NONE
    differences = np.concatenate([np.diff(pair) for pair in pairs], axis=1)
    covariance = differences @ differences.T / (2 * neighbours) / steps
    freedom = 2 / 3 * neighbours            # of a sum of squares of differences of neighbours (von Neumann 1941)
    return fieller(means, covariance, stdtrit(freedom, 0.5 + confidence / 2))


def fieller(means, covariance, quantile) -> tuple[float, float]:
    """Ends of the interval of means[1] / means[0] that lies above 0: all ratios R for which means[1] - R means[0] is
    within quantile times its own deviation of 0 (Fieller 1954); (0, inf) where that is any."""
    (x, y), t = means, quantile ** 2
    a, b, c = x * x - t * covariance[0, 0], x * y - t * covariance[0, 1], y * y - t * covariance[1, 1]
    root = np.sqrt(max(0.0, b * b - a * c))
    if a > 0 and x > 0:
        return float(max(0.0, (b - root) / a)), float(max(0.0, (b + root) / a))
    if a < 0 < c:
        return float((b - root) / a), np.inf
    return 0.0, np.inf


def read_noise(log) -> dict[int, NoiseSteps]:
    """The measured steps of every trial of a log that has any, by trial id."""
    table = log.steps
    if not table.rows or "local_sqnorm" not in table.columns:
        return {}
    rows = np.flatnonzero(np.isfinite(table["local_sqnorm"]) & np.isfinite(table["reduced_sqnorm"])
                          & np.isfinite(table["local_examples"]))
    trial, step = table["trial"][rows], table["step"][rows]
    order = np.lexsort((step, trial))
    rows, trial, step = rows[order], trial[order], step[order]
    ids = log.trials["id"]
    by_id = np.argsort(ids)
    batch = log.trials["global_batch"][by_id[np.searchsorted(ids[by_id], trial)]]
    local = table["local_examples"][rows]

    def pair_of(prefix):
        return unbiased_pair(table[f"{prefix}local_sqnorm"][rows], table[f"{prefix}reduced_sqnorm"][rows], local, batch)
    prefixes = {name.rsplit("/", 1)[0] for name in table.columns if name.startswith("layer_groups/")}
    pairs = {prefix.split("/", 1)[1]: pair_of(f"{prefix}/") for prefix in sorted(prefixes)}
    whole = pair_of("")
    found = {}
    for one in np.unique(trial).tolist():
        at = slice(*np.searchsorted(trial, [one, one + 1]))
        groups = {name: NoiseSteps(step[at], *(values[at] for values in pair)) for name, pair in pairs.items()
                  if np.isfinite(pair).all(0)[at].all()}
        found[one] = NoiseSteps(step[at], *(values[at] for values in whole), groups)
    return found


def noise_of(cell, confidence=CONFIDENCE) -> Noise | None:
    """The noise scale of a cell's runs, one a seed; None where no step of theirs was measured."""
    by_seed: dict[int, NoiseSteps] = {}
    for run in cell.runs:
        if run.trial.noise is not None:
            by_seed.setdefault(run.trial.seed, run.trial.noise)
    runs = list(by_seed.values())
    if not runs:
        return None
    quarters = [[run.part(_quarter(len(run.step), at)) for run in runs] for at in range(QUARTERS)]
    told = min(sum(len(part.step) for part in parts) for parts in quarters) >= LEAST_STEPS
    names = [name for name in runs[0].groups if all(name in run.groups for run in runs)]
    groups = {name: noise_scale([run.groups[name] for run in runs], confidence) for name in names}
    return Noise(noise_scale(runs, confidence),
                 tuple(noise_scale(parts if told else [], confidence) for parts in quarters), groups)


def _quarter(steps, at):
    return slice(steps * at // QUARTERS, steps * (at + 1) // QUARTERS)
