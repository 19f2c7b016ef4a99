"""Learning-rate landscapes: steps and loss against the rate at each batch, and how the best rate grows with the batch.

The landscape of a batch is that of lr_response.py, with the other metaparameters as the search drew them. At the best
others the steps at a rate are the steps of the tuned optimum times the landscape's loss there. That holds if the others
add to the logarithm of the steps alike at every rate.

Laws of the best rate: constant, sqrt(B), B, and B^P with P fitted. A law describes the best rates if their distances
from it are no larger than their own uncertainty lets expect: Cochran's Q, their squares over the posterior variances,
lies below the quantile of chi-squared. Where B^P describes them, so does a law whose power lies in the interval of P,
which also counts scatter beyond that uncertainty, see rules.exponent_of. adam_sqrt (Malladi et al. 2022, arXiv
2205.10287) has the rate of sqrt, and betas of its own, which no search along the rate can distinguish.

For Adam, Li et al. 2024 (arXiv 2405.14578, from the abstract and accounts by others) derive from the signs of gradients
a best rate that rises as sqrt(B) and falls again, with its peak at the noise scale. The peak is not a law fitted here
but read off: some best rate is surely above that of a smaller and that of a larger batch. With one peak, it then lies
between the last batch before and the first batch behind that are surely lower. Differences are tested at a level shared
over all pairs with the highest (Bonferroni), so that noise shows a peak in at most 1 - confidence of the sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from ..target import Target
from .search import EFFECTIVE, LEARNING_RATE, Space, among
from .curves import Curve
from .defaults import CONFIDENCE
from .intervals import Estimate
from .rules import OF_ADAM, Exponent, RuleCosts, TunedBatch, exponent_of
from .studies import Study, best_metric

FIXED = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}      # laws and their powers of the batch
ADAM, POWER, PEAK = "adam_sqrt", "power", "peak"
LEAST_BATCHES = 3                   # with a best rate, below which nothing is said of laws
POINTS = 60                         # rates along a landscape


class RateLandscape:
    """Steps against the rate at one batch: the best rate as tried and fitted, the trials in a space whose x is the
    rate, and the best value of the target's metric in each of them; rates from the lowest to the highest tried, with
    the draws of their losses, none where nothing is fitted."""

    def __init__(self, rate: TunedBatch, study: Study, target: Target, what: str) -> None:
        self.rate, self.global_batch, fitted = rate, rate.global_batch, rate.landscape
        self.rates = np.exp(np.linspace(fitted.lowest, fitted.highest, POINTS)) if fitted else np.empty(0)
        self.losses = fitted.losses(np.log(self.rates)) if fitted else np.empty((0, 1))
        rows = {study.key(row): row for row in range(len(study))}
        chosen = np.isin(np.arange(len(study)), [rows[key] for key in rate.keys])
        self.space = Space(among(study, chosen), target, what, what)
        best, _ = best_metric(study, target.column, target.minimizes)
        self.values = np.array([best[rows[key]] for key in self.space.keys])

    def steps(self, confidence: float) -> np.ndarray:
        """Steps at these rates and the best other metaparameters: low, value and high, shape (3, rates)."""
        return self.rate.steps.value * np.quantile(self.losses, 0.5 + confidence * np.array([-0.5, 0, 0.5]), axis=1)

    def width(self, tolerance: float) -> tuple[float, float]:
        """The rates between which the median loss is at most 1 + tolerance; NaN where nothing is fitted."""
        rates = self.rates[np.median(self.losses, axis=1) <= 1 + tolerance]
        return (float(rates[0]), float(rates[-1])) if len(rates) else (np.nan, np.nan)


@dataclass(frozen=True)
class RateLaw:
    """How the best rate would follow the batch."""

    name: str
    power: Exponent             # of the batch, with its interval where it is fitted
    deviation: float            # weighted root mean square of log(best rate / law), as a factor
    describes: bool             # whether the best rates agree with it, and show no peak


class RateLaws:
    """The laws of the best rates by batch; those whose best rate is unknown take no part.

    peak          the batch of the largest best rate; None: the rates do not show one
    described_by  the laws that describe the best rates, a fitted power only where no other does; a peak stands alone"""

    def __init__(self, rates: Sequence[TunedBatch], optimizer: str = "", confidence: float = CONFIDENCE) -> None:
        known = [rate for rate in rates if rate.landscape is not None and np.isfinite(rate.best.value)]
        self.exponent = exponent = exponent_of(known, confidence=confidence)
        self.laws: list[RateLaw] = []
        self.peak: Estimate | None = None
        self.described_by: tuple[str, ...] = ()
        if len(known) < LEAST_BATCHES:
            return
        x = np.log([one.global_batch for one in known])
        y, variance = np.array([[one.landscape.best.mean(), one.landscape.best.var()]
                                for one in known if one.landscape is not None]).T
        self.peak = peak = _find_peak(np.exp(x), y, variance, confidence)
        fixed = dict(FIXED, **({ADAM: FIXED["sqrt"]} if optimizer in OF_ADAM else {}))

        def law(name: str, power: Exponent, at: float, unknowns: int, agrees: bool = False) -> RateLaw:
            rest = y - at * x
            squares = (rest - np.average(rest, weights=1 / variance)) ** 2
            agrees |= bool((squares / variance).sum() <= scipy.special.chdtri(len(x) - unknowns, 1 - confidence))
            return RateLaw(name, power, float(np.exp(np.sqrt(np.average(squares, weights=1 / variance)))),
                           agrees and peak is None)
        fitted = law(POWER, exponent, float(np.polyfit(x, y, 1, w=1 / np.sqrt(variance))[0]), 2)
        self.laws = [law(name, Exponent(power, np.nan, np.nan, exponent.batches), power, 1,
                         fitted.describes and exponent.low <= power <= exponent.high)
                     for name, power in fixed.items()] + [fitted]
        found = tuple(law.name for law in self.laws if law.describes) or ((PEAK,) if peak else ())
        self.described_by = tuple(name for name in found if name != POWER) or found


class RateLandscapes:
    """The landscapes of a curve's tuned batches, from the fits of its rules, and the laws of their best rates."""

    def __init__(self, curve: Curve, costs: RuleCosts) -> None:
        self.costs, what = costs, EFFECTIVE if costs.effective else LEARNING_RATE
        studies = {point.global_batch: point.study for point in curve.searched}
        self.batches = [RateLandscape(rate, studies[rate.global_batch], curve.target, what) for rate in costs.rates]
        self.laws = RateLaws(costs.rates, curve.workload.optimizer, costs.confidence)


def _find_peak(batches: np.ndarray, y: np.ndarray, variance: np.ndarray, confidence: float) -> Estimate | None:
    """The batch of the highest best rate exp(y), see above; None: no batch on one side is surely lower."""
    top, quantile = int(np.argmax(y)), scipy.special.ndtri(1 - (1 - confidence) / 2 / (len(y) - 1))
    lower = y[top] - y > quantile * np.sqrt(variance + variance[top])
    before, behind = np.flatnonzero(lower[:top]), np.flatnonzero(lower[top + 1:])
    if not len(before) or not len(behind):
        return None
    low, high = batches[before[-1]], batches[top + 1 + behind[0]]
    around = slice(top - 1, top + 2)        # the peak is the vertex of the parabola through these
    curvature, slope, _ = np.polyfit(np.log(batches[around]), y[around], 2)
    return Estimate(float(np.clip(np.exp(-slope / (2 * curvature)), low, high)), float(low), float(high), len(y))
