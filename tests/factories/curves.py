"""Searches and repeats of curves whose parameters are known, many at once: what intervals are tested on.

A trial's steps are exp(cost of its point + noise of its seed) times what brings the median best-of-n to the curve.
Points are scrambled Sobol points, as a search draws them; those beyond a cliff diverge and are drawn anew."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from hvdscale.analysis.quality import valley_of
from hvdscale.analysis.best_of_n import best_of
from hvdscale.analysis.critical_batch_fit import HYPERBOLA, OVERHEAD, steps_at
from hvdscale.analysis.curves import Regimes
from hvdscale.analysis.defaults import PERFECT_WITHIN, USEFUL_WITHIN
from hvdscale.analysis.intervals import UNKNOWN, crossed, pooled_censored
from hvdscale.analysis.timings import seeds_apart
from hvdscale.analysis.steps import estimate, lasting_crossing
from hvdscale.target import Target

BITS = 20


@dataclass(frozen=True)
class Landscape:
    """log(steps) over a space of metaparameters, 0 at its best point.

    kind   "bowl": smooth; "cliff": steps go as 1 / learning rate up to where it diverges; "ridge": learning rate and
           momentum make up for each other
    range  log(steps) of the worst points, about
    noise  standard deviation of log(steps) over seeds"""

    kind: str
    dimensions: int
    range: float
    noise: float

    def cost(self, points):
        """float array, shape (..., trials); inf: diverged."""
        z = points - 0.55
        rest = self.range * 0.5 ** np.arange(1, self.dimensions + 1)
        if self.kind == "bowl":
            return 3 * (rest * z ** 2).sum(-1)
        if self.kind == "ridge":
            along, across = z[..., 0] - z[..., 1], z[..., 0] + z[..., 1]
            return (self.range * np.abs(across) ** 1.5 + 0.2 * self.range * along ** 2
                    + (rest[2:] * z[..., 2:] ** 2).sum(-1))
        cost = -self.range * z[..., 0] + (rest[1:] * z[..., 1:] ** 2).sum(-1)
        return np.where(z[..., 0] > 0, np.inf, cost)

    def __str__(self):
        return f"{self.kind}, {self.dimensions} metaparameters, range {self.range:g}, noise {self.noise:g}"

    def searches(self, n, count, random):
        """log(steps) of ``count`` searches of n feasible trials each, (count, n)."""
        draws = n if self.kind != "cliff" else 3 * n
        cost = self.cost(scrambled(self.dimensions, draws, count, random))
        feasible = np.isfinite(cost)
        order = np.argsort(~feasible, axis=1, kind="stable")[:, :n]
        cost = np.take_along_axis(cost, order, 1)
        return cost + self.noise * random.standard_normal(cost.shape)


def scrambled(dimensions, points, count, random):
    """``count`` scrambles of the Sobol sequence, (count, points, dimensions); see sweep.space.scrambled_sobol."""
    whole = qmc.Sobol(dimensions, scramble=False).random_base2(max(0, points - 1).bit_length())[:points]
    digits = ((whole * 2**BITS).astype(np.int64)[..., None] >> np.arange(BITS)[::-1] & 1).astype(np.float32)
    matrix = np.tril(random.integers(0, 2, (count, dimensions, BITS, BITS)), -1) + np.eye(BITS)
    shift = random.integers(0, 2, (count, 1, dimensions, BITS))
    mixed = np.einsum("cdij,ndj->cndi", matrix.astype(np.float32), digits, optimize=True)
    return (np.rint(mixed).astype(np.int64) + shift) % 2 @ 0.5 ** np.arange(1, BITS + 1)


@lru_cache(maxsize=None)
def median_best(landscape, n, searches=4000):
    """log of the median best-of-n of a landscape, and quantiles of log(steps) of one trial, at 0, 1, ..., 100 %."""
    random = np.random.default_rng([n, landscape.dimensions])
    found = [landscape.searches(n, 1000, random) for _ in range(searches // 1000)]
    return float(np.median([one.min(1) for one in found])), np.quantile(found[0], np.linspace(0, 1, 101))


@dataclass(frozen=True)
class Searches:
    """Searches of one batch whose median best-of-n is known: arrays of shape (searches, trials)."""

    steps: np.ndarray           # as read at evaluations; inf: not met within the budget
    before: np.ndarray
    last: np.ndarray
    pruned: np.ndarray
    true: float                 # median best-of-n of the steps at which the target was met
    read: float                 # and of the steps as they were read


def searches_of(landscape, n, count, random, *, true=1000.0, spacing=0.02, censored=0.0, prune_keep=None,
                best_of_n=None) -> Searches:
    """Made searches.

    spacing   of evaluations, as a share of the true steps
    censored  share of trials that do not meet the target within the budget
    best_of_n how many trials ``true`` is the median best of; by default all n"""
    centre, quantiles = median_best(landscape, best_of_n or n)
    log_steps = landscape.searches(n, count, random)
    every = spacing * true
    budget = np.ceil(true * np.exp(quantiles[round(100 * (1 - censored))] - centre) / every) * every
    met_at = true * np.exp(log_steps - centre)
    steps = np.ceil(met_at / every) * every
    last = np.full(steps.shape, budget)
    if prune_keep and prune_keep < n:
        for trial in range(prune_keep, n):
            kept = np.sort(steps[:, :trial], axis=1)[:, prune_keep - 1]
            last[:, trial] = np.minimum(budget, kept)
    unmet = steps > last
    return Searches(np.where(unmet, np.inf, steps), np.where(unmet, np.nan, steps - every), last,
                    unmet & (last < budget), true,
                    float(np.ceil(true / every) * every))


LANDSCAPES = (Landscape("bowl", 2, 4, 0.03), Landscape("bowl", 4, 4, 0.1), Landscape("cliff", 3, 6, 0.05),
              Landscape("ridge", 3, 4, 0.1), Landscape("bowl", 3, 0.6, 0.15), Landscape("bowl", 5, 8, 0.2))
SPACINGS = (0.01, 0.02, 0.05, 0.1, 0.2)         # of evaluations, as a share of S
CENSORED = (0.0, 0.3, 0.6, 0.8)                 # share of trials
NOISES = (0.03, 0.1, 0.2)                       # of repeats, standard deviation of log(steps)
KNEE = np.inf                                   # of the shapes p; the hyperbola is 1


@dataclass(frozen=True)
class Known:
    """What a made sweep was made of: a curve whose both ends lie among its batches."""

    shape: float
    s_min: float
    b_crit: float
    batches: np.ndarray
    rise: tuple[float, ...] = ()    # of the steps over the curve, by batch

    @property
    def steps(self):
        """S at each batch."""
        steps = (self.s_min * np.maximum(1, self.b_crit / self.batches) if self.shape == KNEE else
                 steps_at(self.batches, self.s_min * self.b_crit, self.b_crit, self.shape))
        return steps * self.rise if self.rise else steps

    def excess(self, share):
        """The batch at which B S is this share above S_min B_crit."""
        grown = 1 + share if self.shape == KNEE else ((1 + share) ** self.shape - 1) ** (1 / self.shape)
        return self.b_crit * grown

    @property
    def perfect_until(self):
        """The largest batch whose B S is within tolerance of the smallest."""
        examples = self.batches * self.steps
        return self.batches[examples <= (1 + PERFECT_WITHIN) * examples.min()].max()

    @property
    def maximum_useful(self):
        """The smallest batch whose S is within tolerance of the fewest."""
        return self.batches[self.steps <= (1 + USEFUL_WITHIN) * self.steps.min()].min()


def known_curve(random, shape=HYPERBOLA, count=10) -> Known:
    """A curve with any critical batch from the second to the last but one of ``count`` batches, 16 and upwards."""
    batches = 2 ** (4 + np.arange(count) * (1 if count > 6 else 2))
    s_min, b_crit = np.exp(random.uniform(np.log([100, batches[1]]), np.log([2000, batches[-2]])))
    return Known(shape, float(s_min), float(b_crit), batches)


def searched(known, n, random, number=0):
    """An Estimate for each batch of a sweep that searched n trials at each; ``number`` chooses what kind of search."""
    setting = {"spacing": SPACINGS[number % 5], "censored": CENSORED[number // 5 % 4],
               "prune_keep": (None, 5)[number // 20 % 2]}
    made = searches_of(LANDSCAPES[number % 6], n, len(known.batches), random, **setting)
    return [best_of(*trials).scaled(true / made.true) for *trials, true in
            zip(made.steps, made.before, made.last, known.steps)]


def searched_unevenly(known, random, number=0, most=60, least=6, common=True):
    """Likewise with trials falling from ``most`` at the smallest batch to ``least`` at the largest: each batch the best
    of ``least`` of its trials, or of all. What they are of is the median best of ``least``."""
    counts = np.rint(np.geomspace(most, least, len(known.batches))).astype(int)
    setting = {"spacing": SPACINGS[number % 5], "prune_keep": (None, 5)[number // 5 % 2], "best_of_n": least}
    found = []
    for count, true in zip(counts.tolist(), known.steps):
        made = searches_of(LANDSCAPES[number % 6], count, 1, random, **setting)
        found.append(best_of(made.steps[0], made.before[0], made.last[0], pruned=made.pruned[0],
                             n=least if common else count).scaled(true / made.true))
    return found


def repeated(known, seeds, random, number=0, growing=False, budget=np.inf, slow=0.0, luck=0.0, floor=0.0,
             spacings=SPACINGS):
    """An Estimate for each batch of a sweep that ran one setting under so many seeds at each, spreads pooled.

    growing  whether the noise grows with the batch, from 3 % to 30 %
    floor    of the metric, as a share of the target, whose height varies by 30 % between seeds: it falls as 1 / steps
    budget   of a run, in multiples of the steps of the curve
    slow     share of the seeds that need five times the steps: estimates are of a typical run
    luck     correlation of a seed's noise between batches: the seeds are known, and the same at all"""
    every = spacings[number % len(spacings)] * known.steps[:, None]
    noise = np.geomspace(0.03, 0.3, len(known.batches))[:, None] if growing else NOISES[number % 3]
    normal = np.sqrt(1 - luck) * random.standard_normal((len(known.batches), seeds))
    if luck:
        normal += np.sqrt(luck) * random.standard_normal(seeds)
    steps = known.steps[:, None] * np.exp(noise * normal)
    steps *= np.where(random.random(steps.shape) < slow, 5, 1)
    if floor:
        steps *= (1 - floor) / np.maximum(1e-9, 1 - floor * (1 + 0.3 * random.standard_normal(steps.shape)))
    offset = random.random() * every            # of the evaluations from the true steps: the same share at every batch
    steps = np.ceil((steps - offset) / every) * every + offset
    before = np.maximum(steps - every, 0.0)
    batches, last = known.batches.tolist(), budget * known.steps
    steps = np.where(steps > last[:, None], np.inf, steps)
    kept = [ratios == 1 for ratios in seeds_apart(steps)]
    steps, before = ([one[own] for one, own in zip(rows, kept)] for rows in (steps, before))
    before = [np.where(np.isinf(one), np.inf, other) for one, other in zip(steps, before)]
    pool, pool_before = (crossed(found, rows, batches) if luck else found for rows in (steps, before)
                         for found in [pooled_censored(rows, last, batches)])
    return [estimate(one, other, [end] * int(np.isinf(one).any()), pool.at(batch), pool_before.at(batch))
            for one, other, batch, end in zip(steps, before, batches, last)]


QUANTITIES = ("steps", "s_min", "b_crit", "half_efficient", "overhead", "perfect_until", "maximum_useful")


@dataclass(frozen=True)
class Held:
    """Over sweeps: the share of intervals that hold what they are of, the median ratio of their ends (NaN: there are no
    intervals), and the mean of log2(value / truth)."""

    share: float
    ratio: float
    bias: float

    @property
    def interval(self):
        """(share, ratio)."""
        return self.share, self.ratio


def coverage(sweep, sweeps, seed=0, shape=HYPERBOLA, count=10, slope=0.0, creep=0.0) -> dict[str, Held]:
    """How the intervals of made sweeps hold, by quantity; of a rising tail those where the tail was left out.

    sweep  makes the estimates of a Known: searched, searched_unevenly or repeated
    slope  the power of the batch with which steps rise at the last three batches, three or more beyond the critical one
    creep  likewise past four times the critical batch, whether the tail is left out or not"""
    random = np.random.default_rng(seed)
    found = {name: [] for name in QUANTITIES}
    for number in range(sweeps):
        known = known_curve(random, shape, count)
        if slope:
            rise = np.maximum(1, known.batches / known.batches[-4]) ** slope
            known = replace(known, b_crit=float(known.b_crit / 2 ** 3), rise=tuple(rise))
        if creep:
            known = replace(known, rise=tuple(np.maximum(1, known.batches / (4 * known.b_crit)) ** creep))
        estimates = sweep(known, random=random, number=number)
        regimes = Regimes(known.batches.tolist(), estimates)
        fit = regimes.fit
        if fit is None or slope and not fit.left_out:      # too few of three batches met
            continue
        found["steps"] += list(zip(estimates, known.steps))
        for name in ("perfect_until", "maximum_useful"):
            found[name].append((getattr(regimes, name), getattr(known, name)))
        found["s_min"].append((fit.s_min, known.s_min))
        found["b_crit"].append((fit.b_crit, known.b_crit))
        found["half_efficient"].append((fit.half_efficient, known.excess(1.0)))
        found["overhead"].append((fit.overhead, known.excess(OVERHEAD)))
    return {name: _held(pairs) for name, pairs in found.items()}


def _held(pairs):
    values = [one.value / true for one, true in pairs if 0 < one.value < np.inf]
    bias, pairs = float(np.mean(np.log2(values))), [(one, true) for one, true in pairs if one.low == one.low]
    if not pairs:
        return Held(np.nan, np.nan, bias)
    return Held(float(np.mean([one.low <= true <= one.high for one, true in pairs])),
                float(np.median([one.high / one.low if one.low > 0 else np.inf for one, _ in pairs])), bias)


def by_bootstrap(steps, share=1.0):
    """Percentiles of the smallest of ``share`` times as many trials, drawn with replacement. For comparison."""
    ordered, count = np.sort(steps), len(steps)
    above = (1 - np.arange(count + 1) / count) ** max(1, round(share * count))       # P(smallest is beyond the j-th)
    return ordered[np.argmax(1 - above[1:] >= 0.025)], ordered[np.argmax(1 - above[1:] >= 0.975)]


VALLEYS = {"parabola": lambda u: u ** 2,
           "flat with walls": lambda u: 0.02 * np.abs(u) + np.maximum(0, np.abs(u) - 2) ** 2,
           "one-sided": lambda u: 0.05 * np.maximum(0, -u) + np.maximum(0, u) ** 2}
OCTAVES, LOSS = 7, 2.5      # of sweeps at a fixed budget, whose loss falls and rises with the batch


def valley(shape, count, depth, noise, random, trials=12):
    """(batches, best losses, the best batch): ``depth`` the rise to the worst batch as a share of the loss, ``noise``
    the width of a search's landscape beside it."""
    x, best = np.linspace(5, 5 + OCTAVES, count), random.uniform(6, 4 + OCTAVES)
    over = VALLEYS[shape](x - best)
    landscape = LANDSCAPES[int(random.integers(len(LANDSCAPES)))]
    found = landscape.searches(trials, count, random).min(1) - median_best(landscape, trials)[0]
    losses = LOSS * (1 + depth * (over / over.max() + noise * found))
    return tuple(np.rint(2 ** x).astype(int).tolist()), losses, 2 ** best


def valleys_held(shape, count, noise, sweeps, seed=0, depth=0.1):
    """(share of 95 % intervals that hold the best batch, their median width in octaves, share of fitted losses at the
    batch with the lowest measured one that are within 0.5 % of the fit's minimum)."""
    random = np.random.default_rng(seed)
    held, widths, close = [], [], []
    for _ in range(sweeps):
        batches, losses, best = valley(shape, count, depth, noise, random)
        found = valley_of(batches, losses)
        ends = np.clip([found.best.low, found.best.high], batches[0], batches[-1])
        held.append(found.best.low <= best <= found.best.high)
        widths.append(np.log2(ends[1] / ends[0]))
        close.append(found.fitted[losses.argmin()] <= 1.005 * found.lowest)
    return float(np.mean(held)), float(np.median(widths)), float(np.mean(close))


LOW = Target.parse("val/error<0.1")
TRUE = 1000.0           # steps at which a metric that falls as a power of the steps crosses it without noise


def falling_run(evaluations, past, noise, random, slope=0.5):
    """(steps, measured, its own crossing) of a run with that many evaluations to the target, stopped at ``past`` times
    the first that met it."""
    own = TRUE * np.exp(0.05 * random.standard_normal())
    step = np.arange(1, 4 * evaluations + 1) * TRUE / evaluations
    measured = LOW.value * (step / own) ** -slope * np.exp(noise * random.standard_normal(len(step)))
    first = int(LOW.met_by(measured).argmax())
    end = int(np.searchsorted(step, past * step[first])) + 1
    return step[:end], measured[:end], own


def crossings_held(evaluations, past, noise, sweeps, seed=0, runs=3):
    """By crossing, first and lasting: (share of intervals of S that hold TRUE, median S / TRUE)."""
    random, found = np.random.default_rng([seed, evaluations, int(10 * past)]), []
    for _ in range(sweeps):
        first, lasting = [], []
        for _ in range(runs):
            step, measured, _ = falling_run(evaluations, past, noise, random)
            at = int(LOW.met_by(measured).argmax())
            one = lasting_crossing(step, measured, LOW)
            first.append((step[at], step[at - 1] if at else 0.0))
            lasting.append((one.steps, one.before))
        found.append([(one.low <= TRUE <= one.high, one.value / TRUE) for values in (first, lasting)
                      for one in [estimate(*np.array(values).T, [], UNKNOWN, UNKNOWN)]])
    by_crossing = np.moveaxis(np.array(found, float), 0, 2)
    return [(float(np.mean(held)), float(np.median(value))) for held, value in by_crossing]
