"""Draws of what is not known for certain: of numbers in a plan, from a posterior, and of the truth behind means; and
decisions by them: which of several options to take, what that loses, and how sure it is.

Posteriors are of parameters that are standard normal, and independent, in the prior. They are drawn by sequential Monte
Carlo (Del Moral, Doucet and Jasra 2006): the power of the likelihood grows from 0 to 1 in stages that each keep half of
the draws effective. At each stage draws are resampled, and moved by Metropolis steps along differences of other draws
(ter Braak 2006), which follow the shape of the posterior.

The logarithm of a measured mean differs from the law by noise, whose standard deviation the repeats estimate, and by
what the law lacks, which is normal with a standard deviation that is drawn too. So a setting that was measured is
as measured where repeats are many or the law fits badly, and near the law where they are few and it fits well.

Each option of a decision has draws of its time, the same draw of the same world for all. The option to take has the
least expected logarithm of time, of cost, or of cost x time ** knee; ../README.rst defines its expected loss."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..intervals import Estimate
from ..timings import Place

DRAWS = 1000
OUTCOMES = 64                   # of a measurement, that its worth is a mean over
MOVES = 8                       # of each draw at each stage
LENGTHS = (0.2, 1.0, 2.0)       # of a move, relative to the length that suits a normal posterior
WHOLE, PART = 0.5, 0.35         # share of moves of all parameters; share of the parameters in the others
IMPOSSIBLE = -1e300             # log likelihood of what has none
JITTER = 1e-4                   # added to a move, so that two equal draws part


@dataclass(frozen=True, eq=False)
class Drawn:
    """A number and draws of it, shape (draws,)."""

    value: float
    draws: np.ndarray

    def times(self, other: Drawn | float) -> Drawn:
        if isinstance(other, Drawn):
            return Drawn(self.value * other.value, self.draws * other.draws)
        return Drawn(self.value * other, self.draws * other)

    def over(self, other: Drawn) -> Drawn:
        """The quotient; inf in draws in which neither meets the target, 1 in those of a number over itself."""
        if self.draws is other.draws:
            return Drawn(self.value / other.value, np.ones(len(self.draws)))
        with np.errstate(invalid="ignore"):
            draws = self.draws / other.draws
        return Drawn(self.value / other.value, np.where(np.isnan(draws), np.inf, draws))

    def within(self, start: float, end: float) -> Drawn:
        """Of that many steps, those between two."""
        return Drawn(min(max(self.value - start, 0), end - start), np.clip(self.draws - start, 0, end - start))

    def known(self, confidence: float) -> Estimate:
        """With the ends of its interval, quantiles of the draws."""
        return Estimate(float(self.value), *quantiles(self.draws, confidence), 0)


def levels(draws: int) -> np.ndarray:
    """Evenly spaced probabilities, so that draws made from them have exactly the intended median and spread."""
    return (np.arange(draws) + 0.5) / draws


def quantiles(draws: np.ndarray, confidence: float) -> tuple[float, float]:
    """Ends of the central ``confidence`` of the draws; inf where enough draws are inf."""
    tail = (1 - confidence) / 2
    return float(np.quantile(draws, tail, method="lower")), float(np.quantile(draws, 1 - tail, method="higher"))


def hull(draws: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The draws, moved so that each central interval of theirs is the hull of its own and of that of as many others."""
    both = np.sort([draws, others])
    return np.where(levels(len(draws)) < 0.5, both.min(0), both.max(0))[draws.argsort().argsort()]


def sample_posterior(log_likelihood: Callable[[np.ndarray], np.ndarray], parameters: int, draws: int = DRAWS,
                     *seed: int) -> tuple[np.ndarray, float]:
    """(draws of shape (draws, parameters), as the likelihood takes them, the logarithm of its mean over the prior); the
    same seed gives the same."""
    random = np.random.default_rng([*(seed or (0,)), 9])
    found = random.standard_normal((draws, parameters))
    likelihood, power, evidence = np.fmax(log_likelihood(found), IMPOSSIBLE), 0.0, 0.0
    while power < 1:
        low, high, step = 0.0, 1 - power, 1 - power     # high: the largest that leaves half of the draws effective
        for _ in range(41):
            weights = np.exp(step * (likelihood - likelihood.max()))
            low, high = (step, high) if weights.sum() ** 2 / (weights ** 2).sum() / draws >= 0.5 else (low, step)
            if low == high:
                break
            step = (low + high) / 2

        weights = np.cumsum(np.exp(high * (likelihood - likelihood.max())))
        evidence += high * likelihood.max() + float(np.log(weights[-1] / draws))
        even = (np.arange(draws) + random.random()) / draws * weights[-1]
        picked = np.searchsorted(weights, even).clip(max=draws - 1)
        found, likelihood, power = found[picked], likelihood[picked], power + high

        for _ in range(MOVES):
            length = 2.38 / np.sqrt(2 * parameters) * random.choice(LENGTHS, (draws, 1), p=(0.1, 0.8, 0.1))
            share = np.where(random.random((draws, 1)) < WHOLE, 1.0, PART)
            along = found[random.permutation(draws)] - found[random.permutation(draws)]
            moved = found + (length * along * (random.random((draws, parameters)) < share)
                             + JITTER * random.standard_normal((draws, parameters)))
            there = np.fmax(log_likelihood(moved), IMPOSSIBLE)
            gain = power * (there - likelihood) + 0.5 * ((found ** 2).sum(1) - (moved ** 2).sum(1))
            better = np.log(random.random(draws)) < gain
            found[better], likelihood[better] = moved[better], there[better]
    return found[random.permutation(draws)], evidence


@dataclass(frozen=True, eq=False)
class Measured:
    """Means of logarithms at settings, shape (settings,), and the standard deviations that their repeats imply."""

    logs: np.ndarray
    deviations: np.ndarray
    freedom: float              # degrees of freedom of the deviations; 0: they are assumed
    spread: float               # in the prior, deviation of the logarithm of what the deviations are too large by
    lack: tuple[float, float]   # in the prior, median and deviation of the logarithm of what the law lacks

    def scatter(self, spread: np.ndarray, lack: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(variances of the noise, shape (draws, settings), deviations of what the law lacks, shape (draws, 1)), for
        standard normal draws of both."""
        return (np.exp(2 * self.spread * spread[:, None]) * self.deviations ** 2,
                self.lack[0] * np.exp(self.lack[1] * lack[:, None]))

    def log_likelihood(self, law: Callable[[np.ndarray], np.ndarray], at: int, unknowns: np.ndarray) -> np.ndarray:
        """Of draws of what is unknown, shape (draws, unknowns), standard normal: columns ``at`` and the next are the
        spread and the lack, and ``law`` gives the logarithms at the settings, shape (draws, settings)."""
        spread, lack = unknowns[:, at:at + 2].T
        noise, lacking = self.scatter(spread, lack)
        variance = noise + lacking ** 2
        fit = -0.5 * ((self.logs - law(unknowns)) ** 2 / variance + np.log(variance)).sum(1)
        # of the repeats' own deviation, whose square is chi-square with this freedom
        return fit - self.freedom * (self.spread * spread + 0.5 * np.exp(-2 * self.spread * spread))

    def draw(self, law: np.ndarray, of_law: np.ndarray, settings: np.ndarray, random: np.random.Generator,
             spread: np.ndarray, lack: np.ndarray) -> np.ndarray:
        """Draws of the truth, shape (draws, places), from the law's logarithms at the places and, ``of_law``, at the
        settings. ``settings`` is which of these each place is; -1: none."""
        noise, lacking = self.scatter(spread, lack)
        normal = random.standard_normal(law.shape)
        found, known = law + lacking * normal, settings >= 0
        if known.any():
            at, noise = of_law[:, settings[known]], noise[:, settings[known]]
            gain = lacking ** 2 / (lacking ** 2 + noise)
            found[:, known] = at + gain * (self.logs[settings[known]] - at) + np.sqrt(gain * noise) * normal[:, known]
        return found


class Decision:
    """Options in columns: log S and log t of shape (draws, options), and the logarithms of what a second costs."""

    def __init__(self, places: tuple[Place, ...], log_steps: np.ndarray, log_times: np.ndarray, log_paid: np.ndarray,
                 confidence: float) -> None:
        self.places, self.workers = places, np.array([workers for workers, *_ in places], int)
        self.log_steps, self.log_times, self.log_seconds = log_steps, log_times, log_steps + log_times
        self.log_paid, self.confidence = log_paid, confidence

    def scores(self, weight: float) -> np.ndarray:
        """log(cost x time ** weight), shape (draws, options); of time alone where the weight is inf."""
        return self.log_seconds if np.isinf(weight) else self.log_paid + (1 + weight) * self.log_seconds

    def best_of_each(self, workers: int) -> dict[tuple[int, int], int]:
        """By (M, H) the option of these workers with the least expected time."""
        ordered = self.log_seconds.mean(0).argsort()[::-1].tolist()
        return dict(sorted({self.places[at][-1]: at for at in ordered if self.workers[at] == workers}.items()))

    def loss(self, option: int, weight: float = np.inf) -> float:
        """The expected loss of an option, as a ratio less 1."""
        scores = self.scores(weight)
        return float(np.expm1(scores.mean(0)[option] - scores.min(1).mean()))

    def chance(self, option: int, within: float, weight: float = np.inf) -> float:
        """The share of the draws in which an option is within this share of the best one."""
        scores = self.scores(weight)
        return float(np.mean(scores[:, option] - scores.min(1) <= np.log1p(within) + 1e-12))

    @cached_property
    def fastest_workers(self) -> tuple[int, int]:
        """The fewest and the most workers of the fastest option, each end at the decision's confidence."""
        found = np.sort(self.workers[self.log_seconds.argmin(1)])
        tail = int((1 - self.confidence) * len(found))
        return int(found[tail]), int(found[-1 - tail])

    def loss_after(self, seen: Sequence[tuple[np.ndarray, float]]) -> float:
        """The expected loss of time by what would be taken once quantities were measured, as a ratio less 1: the mean
        over outcomes, each that of one draw with noise. An outcome weighs the draws by its likelihood.

        seen  of each quantity its draws, shape (draws,), and the standard deviation of the measurement"""
        random, scores = np.random.default_rng([0, 12]), self.log_seconds
        truths, misses = np.linspace(0, len(scores) - 1, OUTCOMES).astype(int), np.zeros((OUTCOMES, len(scores)))
        for drawn, deviation in seen:
            outcomes = drawn[truths] + deviation * random.standard_normal(OUTCOMES)
            misses += ((outcomes[:, None] - drawn) / deviation) ** 2
        weights = np.exp(-0.5 * (misses - misses.min(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
        return float(np.expm1(np.mean((weights @ scores).min(1) - weights @ scores.min(1))))
