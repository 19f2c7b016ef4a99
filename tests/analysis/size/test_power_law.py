"""Power laws over size: exponents, intervals, designs that cannot tell sizes apart, and predictions."""
import numpy as np
import pytest

from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.size.sizes import PowerLaw, SizePoint
from tests.factories.size_laws import CROSS, LINE, NAMES, PATH, coverage


def points(cells, a=0.4, b=0.1, width=1.05, scatter=()):
    values = [3 * sizes[0] ** a * sizes[1] ** b for sizes in cells]
    values = [value * np.exp(by) for value, by in zip(values, [*scatter, *np.zeros(len(values))])]
    return [SizePoint(tuple(sizes), Estimate(value, value / width, value * width, 3))
            for sizes, value in zip(cells, values)]


def test_a_cross_of_sizes_gives_both_exponents():
    law = PowerLaw(NAMES, points(CROSS))
    assert law.names == NAMES == tuple(law.exponents)
    assert law.exponents["parameters"].value == pytest.approx(0.4)
    assert law.exponents["tokens"].value == pytest.approx(0.1)
    assert law.factor == pytest.approx(3, rel=1e-6)
    assert law.exponents["tokens"].low < 0.1 < law.exponents["tokens"].high


def test_on_a_path_of_one_ratio_the_sizes_cannot_be_told_apart():
    law = PowerLaw(NAMES, points(PATH))
    assert (law.names, law.path) == (("parameters",), ("tokens",))
    assert law.exponents["parameters"].value == pytest.approx(0.5)
    assert law.predict({"parameters": 3.2e8, "tokens": 6.4e9}).estimate.met
    assert law.predict({"parameters": 3.2e8, "tokens": 6.4e10}).refused == "path"


def test_a_size_that_does_not_vary_has_no_exponent():
    law = PowerLaw(NAMES, points(LINE))
    assert (law.names, law.constant) == (("parameters",), ("tokens",))
    assert law.predict({"parameters": 3.2e8, "tokens": 2e10}).refused == "path"
    assert not PowerLaw(NAMES, points([(1e7, 1e9)] * 4)).exponents


@pytest.mark.parametrize("cells, enough", [(LINE[:2], False), (LINE[:3], True)])
def test_three_sizes_need_intervals_of_their_own(cells, enough):
    assert bool(PowerLaw(NAMES, points(cells)).exponents) is enough
    bare = [SizePoint(one.sizes, Estimate(one.estimate.value, np.nan, np.nan, 1)) for one in points(cells)]
    assert not PowerLaw(NAMES, bare).exponents


def test_errors_of_the_points_widen_the_exponent():
    narrow, wide = (PowerLaw(NAMES, points(LINE, width=width)).exponents["parameters"] for width in (1.02, 1.5))
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


def test_a_law_that_does_not_describe_the_cells_lacks_fit_and_does_not_reach():
    law = PowerLaw(NAMES, points(LINE, width=1.02, scatter=(0.2, -0.2, 0.25, -0.2, 0.2)))
    assert law.lacks_fit
    assert law.predict({"parameters": 3.2e8}).refused == "lack"
    assert law.predict({"parameters": 4e7}).estimate.met
    assert not PowerLaw(NAMES, points(LINE, width=1.02, scatter=(0.01, -0.01, 0.01))).lacks_fit


def test_predictions_name_how_far_they_reach_and_are_refused_beyond():
    law = PowerLaw(NAMES, points(LINE))
    ahead = law.predict({"parameters": 8 * LINE[-1][0]})
    assert ahead.extrapolated == pytest.approx(8) and not ahead.refused
    assert ahead.estimate.low < ahead.estimate.value < ahead.estimate.high
    assert law.predict({"parameters": 100 * LINE[-1][0]}).refused == "far"
    assert not PowerLaw(NAMES, points(LINE[:3], width=1.15)).predict({"parameters": 10 * LINE[2][0]}).refused
    assert PowerLaw(NAMES, points(LINE, width=20)).predict({"parameters": 8 * LINE[-1][0]}).refused == "wide"


def test_points_with_an_open_interval_are_left_out_and_listed():
    found = points(LINE)
    bad = SizePoint((3.2e8, 1e9), Estimate(900, 300, np.inf, 3))
    law = PowerLaw(NAMES, [*found, bad])
    assert law.left_out == (bad,) and len(law.points) == 5


@pytest.mark.slow
@pytest.mark.parametrize("cells, bend", [
    (LINE, None), (LINE[:3], None), (CROSS, None), (PATH, None), (LINE, (16, False)), (LINE, (16, True))])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_intervals_of_made_up_laws_hold_the_truth(cells, bend, noise):
    exponents, *predictions, _, _ = coverage(cells, noise, 200, bend=bend)
    assert min(share for share in (*predictions, 1 if bend else exponents) if share == share) >= 0.9
