"""Learning-rate landscapes: on sweeps whose best rate is a known function of the batch."""
import math
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis.landscapes import ADAM, PEAK, POWER, RateLandscapes, RateLaws
from hvdscale.analysis.lr_response import Landscape, valley
from hvdscale.analysis.rules import rules_along
from hvdscale.report.document import sentences_of
from hvdscale.report.drawing import render
from hvdscale.report.views.landscapes import landscape_figures, find_law, landscapes_table, laws_table
from hvdscale.report.table import as_csv, as_text, as_values
from tests.conftest import but_slow
from tests.factories.landscapes import curve_of, logged, searched

BATCHES = (8, 32, 128, 512, 2048)
NOISE_SCALE = 128
LAWS = {"none": lambda batch: 0.3, "sqrt": lambda batch: 0.01 * batch ** 0.5, "linear": lambda batch: 0.002 * batch,
        POWER: lambda batch: 0.01 * batch ** 0.75,
        PEAK: lambda batch: 0.8 / (math.sqrt(NOISE_SCALE / batch) + math.sqrt(batch / NOISE_SCALE))}
POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0, POWER: 0.75}


def fewest(batch):
    return 100 * (1 + 64 / batch)


def landscapes(law, seed=0, **changes):
    logs = [logged(*searched(batch, LAWS[law](batch), fewest(batch), seed=seed, width=3, **changes),
                   path=f"b{batch}.h5") for batch in BATCHES]
    curve = curve_of(*logs)
    return RateLandscapes(curve, next(rules_along([curve])))


@pytest.fixture(scope="module")
def found():
    return landscapes("sqrt")


@pytest.mark.parametrize("law", but_slow(LAWS, ("linear", "power")))
def test_the_law_that_the_rates_follow_describes_them_and_its_power_is_in_its_interval(law):
    """Measured over 60 seeds each: 95 to 98 % described so; powers 0.003 too small on average, every interval holds the
    true one; every peak lies in its interval, at 0.05 doublings below the true batch on average."""
    made = [landscapes(law, seed) for seed in range(10)]
    described = [found.laws.described_by == (law,) for found in made]
    assert sum(described) >= 8
    for found in made:
        exponent, peak = found.laws.exponent, found.laws.peak
        if law == PEAK:
            assert peak is None or peak.low <= NOISE_SCALE <= peak.high
        else:
            assert peak is None and exponent.low <= POWERS[law] <= exponent.high
            assert abs(exponent.value - POWERS[law]) < 0.15


@pytest.mark.parametrize("law", but_slow(["none", PEAK], ["none"]))
def test_intervals_of_the_best_rate_hold_it(law):
    held = [one.rate.best.low <= LAWS[law](one.global_batch) <= one.rate.best.high
            for seed in range(8) for one in landscapes(law, seed).batches if not one.rate.why]
    assert np.mean(held) >= 0.85 and len(held) >= 35


def test_steps_along_a_landscape_are_those_of_the_valley_from_the_tuned_optimum(found):
    inside = []
    for one in found.batches:
        low, value, high = one.steps(0.95)
        truth = one.rate.steps.value * np.exp(valley(np.log(one.rates / LAWS["sqrt"](one.global_batch)), 1.0, 3.0))
        assert value.min() == pytest.approx(one.rate.steps.value, rel=0.15)
        near = truth < 4 * one.rate.steps.value
        inside += ((low <= truth) & (truth <= high))[near].tolist()
    assert np.mean(inside) > 0.8


def test_the_rates_that_lose_little_lie_about_the_best_one(found):
    for one in found.batches:
        narrow, wide = one.width(0.1), one.width(0.5)
        assert wide[0] <= narrow[0] <= one.rate.best.value <= narrow[1] <= wide[1]


def best_rates(values, spread=0.05):
    """Best rates whose logarithms are known to ``spread``, by batch."""
    random = np.random.default_rng(0)
    made = []
    for batch, value in values.items():
        draws = math.log(value) + spread * random.standard_normal(1000)
        landscape = Landscape(draws - draws.mean() + math.log(value), draws, np.zeros((4, 1000)), -9.0, 9.0, 9)
        made.append(SimpleNamespace(global_batch=batch, best=landscape.optimum(0.95), landscape=landscape))
    return made


def test_a_peak_lies_between_the_nearest_batches_that_are_surely_lower():
    laws = RateLaws(best_rates({8: 0.1, 32: 0.2, 128: 0.4, 512: 0.41, 2048: 0.2}))
    assert laws.described_by == (PEAK,) and (laws.peak.low, laws.peak.high) == (32, 2048)
    assert 128 < laws.peak.value < 512
    assert not any(law.describes for law in laws.laws)


@pytest.mark.parametrize("rates", [{8: 0.1, 32: 0.2, 128: 0.4}, {8: 0.4, 32: 0.2, 128: 0.1},
                                   {8: 0.1, 32: 0.2, 128: 0.19}])
def test_what_only_rises_or_falls_has_no_peak(rates):
    assert RateLaws(best_rates(rates)).peak is None


@pytest.mark.parametrize("rates, optimizer, described", [
    ({8: 0.1, 32: 0.2, 128: 0.4}, "adamw", ("sqrt", ADAM)), ({8: 0.1, 32: 0.2, 128: 0.4}, "nesterov", ("sqrt",)),
    ({8: 0.1, 32: 0.2}, "adamw", ()), ({8: 0.08, 32: 0.3, 128: 0.45, 512: 0.52, 2048: 0.52}, "", ())],
    ids=["adam's rule beside the square root", "for adam alone", "two batches", "a rise to a plateau"])
def test_rates_without_a_peak_are_described_by_laws_or_none(rates, optimizer, described):
    laws = RateLaws(best_rates(rates), optimizer)
    assert laws.described_by == described and laws.peak is None


def test_a_batch_without_a_best_rate_takes_no_part():
    rates = best_rates({8: 0.1, 32: 0.2, 128: 0.4, 512: 0.8})
    rates[1].landscape = None
    assert RateLaws(rates).exponent.batches == (8, 128, 512)


# in words, tables and figures

def test_a_sentence_names_what_describes_the_rates(found, worded):
    [said] = sentences_of(find_law(found))
    worded(said, about="is described")
    assert said.startswith("The best learning rate over ")
    [said] = sentences_of(find_law(landscapes(PEAK)))
    worded(said, about="rises with")
    assert "(" in said
    plateau = RateLaws(best_rates({8: 0.08, 32: 0.3, 128: 0.45, 512: 0.52, 2048: 0.52}))
    plateau = SimpleNamespace(**{**vars(found), "laws": plateau})
    worded(sentences_of(find_law(plateau))[0])


def test_tables_have_every_batch_law_with_their_trials(found):
    tables = [landscapes_table(found), laws_table(found), laws_table(landscapes(PEAK))]
    assert [row.cells[0].value for row in tables[0].rows] == list(BATCHES)
    assert [row.cells[-1].shown for row in tables[1].rows] == ["no", "yes", "no", "yes"]
    assert tables[2].rows[-1].cells[1].low < NOISE_SCALE < tables[2].rows[-1].cells[1].high
    for table in tables:
        assert table.rows and all(row.trials for row in table.rows)
        assert as_text(table) and as_csv(table) and as_values(table)


@pytest.mark.parametrize("law", but_slow(["sqrt", PEAK], ["sqrt"]))
def test_every_figure_can_be_drawn(law):
    assert all(render(figure, "svg") for figure in landscape_figures(landscapes(law)))
