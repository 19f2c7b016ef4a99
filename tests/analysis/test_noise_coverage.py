"""The noise scale's interval covers the truth as often as it says, on a quadratic whose noise is known.

The loss of example i is (theta - c_i)' H (theta - c_i) / 2, c_i of covariance C about 0: its gradient is
H (theta - c_i), so that G = H theta and Sigma = H C H. Every example's gradient is drawn, averaged over its share, and
the square norms are taken as a run takes them.
"""
from dataclasses import dataclass

import numpy as np
import pytest

from hvdscale.analysis.noise import NoiseSteps, noise_scale, unbiased_pair

RUNS, PARAMETERS = 200, 16
CURVATURE = np.linspace(0.2, 1, PARAMETERS)


@dataclass(frozen=True)
class Case:
    """A regime: shares of a step (one worker's parts, or the workers'), and the ratio of B to the noise scale."""

    name: str
    shares: tuple[int, ...]
    batch_ratio: float          # B / noise scale, at the start
    steps: int = 40             # measured
    spectrum: float = 0.0       # eigenvalue i of Sigma is i ** -spectrum: 2 leaves one or two directions
    tails: bool = False         # per-example noise of Student's t with 5 degrees of freedom
    lr: float = 0.0             # of SGD with the measured gradients; 0: theta stays


CASES = (
    Case("2 workers, B far above the noise scale", (32, 32), 10),
    Case("2 workers, B at it", (32, 32), 1),
    Case("2 workers, B a tenth", (32, 32), 0.1),
    Case("2 workers, B a hundredth: |G|^2 is not told from 0", (32, 32), 0.01),
    Case("3 workers, uneven shares", (32, 32, 16), 0.5),
    Case("3 workers, a last group of one", (3, 3, 1), 0.5),
    Case("1 worker, one of two ghost groups and the rest", (16, 16), 0.5),
    Case("1 worker, an eighth and the rest", (32, 224), 0.5),
    Case("1 worker, an eighth and the rest, B far above", (32, 224), 20),
    Case("1 worker, a small eighth and the rest, heavy tails", (2, 14), 0.5, tails=True),
    Case("8 workers", (32,) * 8, 0.5),
    Case("10 measured steps", (32, 32), 0.5, steps=10), Case("5 measured steps", (32, 32), 1, steps=5),
    Case("noise in few directions", (32, 32), 0.5, spectrum=2),
    Case("noise in few directions, 10 measured steps", (32, 32), 1, steps=10, spectrum=2),
    Case("heavy tails", (32, 32), 0.5, tails=True, spectrum=1),
    Case("SGD descends, |G|^2 falls 100-fold", (32, 32), 20, steps=60, lr=0.05),
    Case("SGD with a large rate wanders about the minimum", (8, 8), 2, steps=100, lr=0.5),
    Case("SGD descends, uneven shares", (32, 32, 16), 10, steps=60, lr=0.05, spectrum=1),
)


def simulated(case: Case, runs: int, seed: int = 0):
    """What ``runs`` runs measured, and the noise scale of each in truth: mean tr(Sigma) over mean |G|^2 on its path."""
    random = np.random.default_rng(seed)
    batch, bounds = sum(case.shares), np.cumsum([0, *case.shares[:-1]])
    deviations = np.arange(1, PARAMETERS + 1.0) ** (-case.spectrum / 2)
    cov_trace = (deviations ** 2).sum()
    theta = random.standard_normal((runs, PARAMETERS)) / CURVATURE
    theta *= np.sqrt(cov_trace * case.batch_ratio / batch) / np.linalg.norm(CURVATURE * theta, axis=1, keepdims=True)
    measured, sqnorms = np.empty((case.steps, 2, runs)), np.empty((case.steps, runs))
    for step in range(case.steps):
        drawn = (random.standard_t(5, (runs, batch, PARAMETERS)) * np.sqrt(3 / 5) if case.tails
                 else random.standard_normal((runs, batch, PARAMETERS)))
        gradients = (CURVATURE * theta)[:, None] + deviations * drawn
        sums = np.add.reduceat(gradients, bounds, axis=1)
        reduced = sums.sum(1) / batch
        sqnorms_by_share = ((sums / np.array(case.shares)[:, None]) ** 2).sum(2)
        local_sqnorm = sqnorms_by_share @ np.array(case.shares) / batch
        measured[step] = unbiased_pair(local_sqnorm, (reduced ** 2).sum(1), batch / len(case.shares), batch)
        sqnorms[step] = ((CURVATURE * theta) ** 2).sum(1)
        theta = theta - case.lr * reduced
    steps = np.arange(case.steps)
    return [NoiseSteps(steps, *measured[:, :, run].T) for run in range(runs)], cov_trace / sqnorms.mean(0)


def outcome(case: Case, runs: int = RUNS):
    """Share of runs whose interval covers, share without an upper end, and the median ratio of ends of the others."""
    measured, truths = simulated(case, runs)
    scales = [noise_scale([one]) for one in measured]
    covered = np.mean([scale.low <= truth <= scale.high for scale, truth in zip(scales, truths)])
    widths = [scale.high / scale.low for scale in scales if np.isfinite(scale.high) and scale.low > 0]
    return covered, np.mean([np.isinf(scale.high) for scale in scales]), np.median(widths) if widths else np.nan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_interval_covers_the_truth_in_nine_of_ten_runs(case):
    covered, _, _ = outcome(case)
    assert covered >= 0.9


def test_the_interval_is_bounded_only_near_the_noise_scale_and_no_wider_for_a_drift():
    for case in (Case("at it", (32, 32), 1), Case("|G|^2 falls 100-fold", (32, 32), 20, steps=60, lr=0.05)):
        _, unbounded, width = outcome(case, 100)
        assert unbounded == 0 and width < 2
    _, unbounded, _ = outcome(Case("far below it", (32, 32), 0.01), 100)
    assert unbounded > 0.8
