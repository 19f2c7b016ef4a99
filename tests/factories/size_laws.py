"""Cells over parameters and tokens whose laws are known: B_crit = c N^a D^b, steps with noise at each batch."""
from __future__ import annotations

import numpy as np

from hvdscale.analysis.critical_batch_fit import fit_critical_batch
from hvdscale.analysis.intervals import Estimate, mean_interval
from hvdscale.analysis.size.laws import basin_of
from hvdscale.analysis.size.sizes import PowerLaw, SizePoint

NAMES = ("parameters", "tokens")
LINE = tuple((1e7 * 2.0 ** at, 1e9) for at in range(5))
CROSS = (*((1e7 * 2.0 ** at, 1e9) for at in range(4)), *((1e7, 1e9 * 2.0 ** at) for at in (1, 2, 3)))
PATH = tuple((1e7 * 2.0 ** at, 2e8 * 2.0 ** at) for at in range(5))
BATCHES = tuple(2 ** at for at in range(4, 14))


def true_batch(sizes, a, b, bend=None):
    """B_crit: 512 at ten million parameters and a thousand million tokens.

    bend   (span, goes on): the first exponent falls by 0.4 over such a factor of parameters, and beyond or not"""
    grown = np.log(sizes[0] / 1e7)
    if not bend:
        return 512 * np.exp(a * grown) * (sizes[1] / 1e9) ** b
    span, inside = np.log(bend[0]), min(grown, np.log(bend[0]))
    bent = 0.2 * (inside ** 2 + bend[1] * (grown - inside) ** 2) / span + 0.4 * (grown - inside)
    return 512 * np.exp(a * grown - bent) * (sizes[1] / 1e9) ** b


def cell(sizes, a, b, noise, random, seeds=3, bend=None):
    """The fit to steps of a cell at BATCHES, each the mean of seeds whose logarithms have the deviation ``noise``."""
    batches = np.array(BATCHES, float)
    steps = 1000 * (sizes[1] / 1e9) ** 0.3 * (1 + true_batch(sizes, a, b, bend) / batches)
    runs = steps[:, None] * np.exp(noise * random.standard_normal((len(batches), seeds)))
    return fit_critical_batch(BATCHES, [Estimate(float(np.exp(np.log(one).mean())), *map(float, mean_interval(one)),
                                                 seeds) for one in runs])


def law(cells, a, b, noise, random, bend=None):
    """The law fitted to B_crit of made-up cells."""
    return PowerLaw(NAMES, [SizePoint(one, cell(one, a, b, noise, random, bend=bend).b_crit) for one in cells])


def coverage(cells, noise, sets, seed=0, bend=None, times=(4, 10)):
    """(share of 95 % intervals of exponents that hold the truth, the same of predictions at 4 and at 10 times the
    largest sizes, share of predictions refused, median width of an exponent's interval)."""
    random = np.random.default_rng(seed)
    exponents, widths, refused = [], [], []
    predictions = {one: [] for one in times}
    for _ in range(sets):
        a, b = (0.7, 0.5) if bend else random.uniform(0, 0.8, 2)
        found = law(cells, a, b, noise, random, bend)
        truths = dict(zip(NAMES, (a, b))) if not found.path else {NAMES[0]: a + b}
        for name, one in found.exponents.items():
            exponents.append(one.low <= truths[name] <= one.high)
            widths.append(one.high - one.low)
        for times, held in predictions.items():
            vary = (*found.names, *found.path)
            sizes = {name: found.measured(name).max() * (times if name in vary else 1) for name in NAMES}
            ahead = found.predict(sizes)
            refused.append(bool(ahead.refused))
            if not ahead.refused:
                truth = true_batch(tuple(sizes.values()), a, b, bend)
                held.append(ahead.estimate.low <= truth <= ahead.estimate.high)
    shares = [float(np.mean(held)) if held else np.nan for held in predictions.values()]
    return (float(np.mean(exponents)), *shares, float(np.mean(refused)), float(np.median(widths)))


BOWLS = {"quadratic": lambda u: u ** 2, "lopsided": lambda u: np.where(u > 0, u ** 2, 0.4 * u ** 2),
         "cosh": lambda u: np.cosh(u) - 1}


def grid_coverage(bowl, noise, sets, seed=0):
    """(share of 95 % intervals of the best batch that hold it, the same of the exponent over five sizes, median width
    of the exponent's) for searches of ten rates at each of nine batches; ``noise`` beside a loss of 2.5."""
    random = np.random.default_rng(seed)
    held, exponents, widths = [], [], []
    batches, rates = (one.ravel() for one in np.meshgrid(2.0 ** np.arange(3, 12), 2.0 ** np.arange(-14, -4)))
    for _ in range(sets):
        a, points = random.uniform(0.2, 0.6), []
        for times in 2.0 ** np.arange(5):
            best = 2 ** random.uniform(5.5, 5.6) * times ** a
            x, y = np.log2(batches / best), np.log2(rates * 2 ** 9 * times ** 0.3)
            over = BOWLS[bowl](x) + BOWLS[bowl](y) - 0.5 * x * y
            costs = 2.5 + 0.01 * over + noise * random.standard_normal(len(x))
            found = basin_of(batches, rates, costs)
            if found:
                held.append(found[0].low <= best <= found[0].high)
                points.append(SizePoint((1e7 * times,), found[0]))
        law_found = PowerLaw(NAMES[:1], points).exponents.get(NAMES[0])
        if law_found:
            exponents.append(law_found.low <= a <= law_found.high)
            widths.append(law_found.high - law_found.low)
    return float(np.mean(held)), float(np.mean(exponents)), float(np.median(widths))
