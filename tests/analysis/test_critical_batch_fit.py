"""S = S_min (1 + B_crit / B) through steps by batch: known curves, and what the points do not reach."""
import math

import numpy as np
import pytest

from hvdscale.analysis.critical_batch_fit import fit_critical_batch, steps_at
from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.reference import Reference
from hvdscale.report.document import sentences_of
from hvdscale.report.views.batches import find_fit

BATCHES = 2.0 ** np.arange(1, 14)
INF = math.inf


def single(steps):
    """Estimates of single runs, whose spread is not known."""
    return [Estimate(value, math.nan, math.nan, 1) for value in steps]


def within(steps, share=0.1, runs=5):
    """Estimates with an interval of so large a share on both sides."""
    return [Estimate(value, value / (1 + share), value * (1 + share), runs) for value in steps]


def curve(batches, s_min=164.0, b_crit=437.0):
    return s_min * (1 + b_crit / np.asarray(batches))


@pytest.mark.parametrize("estimates", [single, within])
def test_a_curve_is_recovered_from_its_own_points(estimates):
    found = fit_critical_batch(BATCHES, estimates(curve(BATCHES)))
    assert (found.s_min.value, found.b_crit.value) == (pytest.approx(164), pytest.approx(437))
    assert found.rms_log2 == pytest.approx(0, abs=1e-6) and found.points == 13
    assert 0 < found.b_crit.low <= found.b_crit.high < INF
    assert found.steps(512) == pytest.approx(curve(512)) and found.steps([2, 4]) == pytest.approx(curve([2, 4]))


def test_wider_points_give_wider_intervals():
    narrow, wide = (fit_critical_batch(BATCHES, within(curve(BATCHES), share)) for share in (0.05, 0.2))
    for name in ("s_min", "b_crit"):
        inner, outer = getattr(narrow, name), getattr(wide, name)
        assert outer.low < inner.low < inner.value < inner.high < outer.high


def test_points_off_the_curve_widen_its_intervals_whatever_their_own_say():
    bent = curve(BATCHES) * 1.4 ** np.resize([1, -1, -1, 1], 13)
    straight, misfit = (fit_critical_batch(BATCHES, within(steps, 0.02)) for steps in (curve(BATCHES), bent))
    assert misfit.rms_log2 == pytest.approx(math.log2(1.4), rel=0.1)
    widths = [math.log(found.b_crit.high / found.b_crit.low) for found in (straight, misfit)]
    assert widths[1] > 10 * widths[0] and straight.spread < 1 < misfit.spread


def test_a_bend_softer_than_any_shape_has_an_open_end_rather_than_a_critical_batch():
    found = fit_critical_batch(BATCHES, within(steps_at(BATCHES, 1e6, 8 * BATCHES[-1], 0.4), 0.02))
    assert found.shape.value == pytest.approx(0.5) and found.b_crit.value > BATCHES[-1]
    assert found.b_crit.high == INF and found.s_min.low == 0 and found.b_crit.low > 0
    assert sentences_of(find_fit(found))[0].startswith("Critical batch (E_min / S_min): at least ")


def test_a_slow_rise_of_the_steps_at_large_batches_leaves_the_fewest_steps_open_below():
    steps = curve(BATCHES[3:], 200, 150) * np.maximum(1, BATCHES[3:] / 600) ** 0.05
    found = fit_critical_batch(BATCHES[3:], within(steps, 0.2, 3))
    assert found.left_out == () and found.s_min.low <= 200 < found.s_min.value


def test_fewer_than_three_points_that_met_are_no_curve():
    assert fit_critical_batch([2, 4], single([300, 150])) is None
    unmet = Estimate(INF, 0.0, INF, 5, 400.0)
    assert fit_critical_batch([2, 4, 8, 16], [*single([300, 150]), unmet, unmet]) is None
    assert fit_critical_batch([2, 4, 8, 16], [*single([300, 150, 75]), unmet]).points == 3


def test_points_that_scale_perfectly_bound_the_critical_batch_from_below():
    found = fit_critical_batch([16, 32, 64], within(1e5 / np.array([16, 32, 64])))
    assert found.b_crit.high == INF and found.s_min.low == 0
    assert 16 < found.b_crit.low < INF and found.s_min.high < 1.2 * 1e5 / 64       # a knee may lie at the last batch
    found = fit_critical_batch([16, 32, 64, 128], single(1e5 / np.array([16, 32, 64, 128])))
    assert (found.b_crit.value, found.s_min.value) == (INF, 0) and math.isnan(found.steps(32))


def test_points_of_a_plateau_bound_the_critical_batch_from_above():
    found = fit_critical_batch([1024, 2048, 4096], within([200.0, 201.0, 199.0]))
    assert found.b_crit.low == 0 and 0 < found.b_crit.high < 4096
    assert found.s_min.low < 200 < found.s_min.high


def test_an_unknown_evaluation_before_is_not_step_0():
    """Tables of steps alone: S is as it is, and S_min, which may be less, has no lower end."""
    alone = [Estimate(value, 0.0, value, 1) for value in curve(BATCHES)]
    found = fit_critical_batch(BATCHES, alone)
    assert found.s_min.value == pytest.approx(164) and found.b_crit.value == pytest.approx(437)
    assert found.s_min.low == 0 and 164 <= found.s_min.high < 1.1 * 164
    assert (np.abs(found.draws()[:, 0] / found.draws()[:, 1] / 164 - 1) < 0.1).mean() > 0.9
    known = fit_critical_batch(BATCHES, [Estimate(one.value, 0.0, one.value, 1, before=0.0) for one in alone])
    assert known.s_min.value == pytest.approx(82)


def test_steps_are_taken_midway_between_the_evaluations():
    """Read at the first evaluation that meets, every S is too large by half their spacing, here 10 %."""
    true = curve(BATCHES)
    read = [Estimate(1.1 * value, 0.8 * value, 1.2 * value, 5, before=0.9 * value) for value in true]
    assert fit_critical_batch(BATCHES, read).s_min.value == pytest.approx(164)


@pytest.mark.parametrize("value, low, high, moved", [(10, 0, INF, 1e-6), (3, 0.1, 30, 0.05)])
def test_a_point_counts_as_little_as_it_is_known(value, low, high, moved):
    estimates = within(curve(BATCHES))
    steps = estimates[3].value
    estimates[3] = Estimate(value * steps, low * steps, high * steps, 5)
    assert fit_critical_batch(BATCHES, estimates).b_crit.value == pytest.approx(437, rel=moved)


def test_draws_are_made_where_they_are_read():
    fit = fit_critical_batch(BATCHES, within(curve(BATCHES), 0.07))
    assert not fit.draws.cache_info().currsize and fit.draws() is fit.draws()


def test_draws_spread_as_the_intervals_do():
    found = fit_critical_batch(BATCHES, within(curve(BATCHES), 0.2))
    examples, critical, _ = found.draws().T
    for drawn, one in ((examples / critical, found.s_min), (critical, found.b_crit)):
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert math.log(high / low) == pytest.approx(math.log(one.high / one.low), rel=0.25)
    small, critical = np.log(examples / critical), np.log(critical)
    assert np.corrcoef(small, critical)[0, 1] < -0.5           # fewer steps at the plateau go with a later one


def test_seeds_of_published_points_say_less_than_their_misfit_and_change_the_fit_little():
    resnet = Reference("mlperf").curves[0]
    found = fit_critical_batch(resnet.batches.tolist(), [
        Estimate(*ends, 10) for ends in zip(resnet.steps, resnet.low, resnet.high)])
    assert found.b_crit.low < resnet.b_crit < found.b_crit.high and found.b_crit.high / found.b_crit.low > 1.15
