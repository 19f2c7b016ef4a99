"""Draws given what was measured: of known posteriors, and of steps between and beyond batches."""
import numpy as np
import pytest
from scipy.special import stdtrit

from hvdscale.analysis.decision.draws import Decision, Measured, hull, quantiles, sample_posterior
from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.steps_curve import PREDICTED, StepsCurve, StepsPoint


def test_draws_of_a_normal_posterior_have_its_mean_and_deviation():
    """A standard normal times a normal of deviation s at m has mean m / (1 + s^2) and variance s^2 / (1 + s^2)."""
    centre, deviation = np.array([2.0, -1.0, 0.5]), np.array([0.05, 0.5, 2.0])
    found, evidence = sample_posterior(lambda one: -0.5 * (((one - centre) / deviation) ** 2).sum(1), 3, draws=4000)
    share = 1 / (1 + deviation ** 2)
    assert found.mean(0) == pytest.approx(centre * share, abs=0.05)
    assert found.std(0) == pytest.approx(deviation * np.sqrt(share), rel=0.08)
    assert evidence == pytest.approx(0.5 * (np.log(1 - share) - centre ** 2 * share).sum(), abs=0.3)


def test_draws_are_of_both_tops_of_a_posterior():
    found, _ = sample_posterior(lambda one: np.logaddexp(-200 * (one[:, 0] - 1) ** 2, -200 * (one[:, 0] + 1) ** 2), 2,
                                draws=2000)
    assert 0.4 < (found[:, 0] > 0).mean() < 0.6 and abs(np.abs(found[:, 0]).mean() - 1) < 0.02


def test_parameters_without_a_likelihood_are_never_drawn():
    found, _ = sample_posterior(lambda one: np.where(one[:, 0] > 0, 0.0, np.nan), 1, draws=500)
    assert (found > 0).all()


def test_a_hull_of_draws_has_the_outer_ends_of_both_in_the_order_of_the_first():
    one, other = np.random.default_rng(0).normal([[0.0], [1.0]], [[1.0], [3.0]], (2, 400))
    (low, high), (least, most) = (quantiles(draws, 0.9) for draws in (one, other))
    assert quantiles(hull(one, other), 0.9) == (min(low, least), max(high, most))
    assert np.array_equal(hull(one, other).argsort(), one.argsort())


@pytest.mark.parametrize("deviation, gain", [(1e-4, 1.0), (10.0, 0.0)])
def test_a_setting_is_as_measured_or_by_the_law_as_its_repeats_tell(deviation, gain):
    measured = Measured(np.array([1.0]), np.array([deviation]), 5, 0.5, (0.1, 0.0))
    law, at = np.zeros((2000, 2)), np.zeros(2000)
    found = measured.draw(law, law[:, :1], np.array([0, -1]), np.random.default_rng(0), at, at)
    assert found.mean(0) == pytest.approx([gain, 0.0], abs=0.02)
    assert found[:, 1].std() == pytest.approx(0.1, rel=0.05)


def points(batches, steps, noise=0.03):
    return [StepsPoint(batch, Estimate(value, value * np.exp(-2 * noise), value * np.exp(2 * noise), 3))
            for batch, value in zip(batches, steps)]


@pytest.mark.parametrize("shape", [1, 2, 4])
def test_steps_beyond_the_batches_hold_the_truth_of_any_shape(shape):
    def true(batch):
        return 500 * (1 + (300 / batch) ** shape) ** (1 / shape)
    batches = [32, 64, 128, 256]
    found = StepsCurve(points(batches, map(true, batches)))
    asked = np.array([8, 16, 96, 512, 2048])
    low, high = np.quantile(found.log_steps(asked), (0.01, 0.99), axis=0)
    assert (low < np.log(true(asked))).all() and (np.log(true(asked)) < high).all()
    assert np.array_equal(found.log_steps(np.array([64, 64]))[:, 0], found.log_steps(np.array([64, 64]))[:, 1])


def test_batches_far_below_a_large_critical_batch_leave_it_open():
    found = StepsCurve(points([32, 64], [32000, 16000]))
    low, high = np.exp(np.quantile(found.log_steps(np.array([4096])), (0.025, 0.975)))
    assert low < 600 and high > 4000


def test_steps_are_predicted_by_the_noise_scale():
    found = StepsCurve(points([32], [3200]), noise=np.full(50, 300.0))
    assert found.at(128).mark == PREDICTED and found.at(128).value == pytest.approx(
        3200 * (1 + 300 / 128) / (1 + 300 / 32), rel=0.1)


def sweep(random, b_crit, batches=(32, 64, 128, 256), spread=0.12):
    """Points of two seeds each about a curve of S_min 100, with the interval that their pooled spread gives."""
    runs = np.log(100 * (1 + b_crit / np.array(batches)))[:, None] + spread * random.standard_normal((len(batches), 2))
    deviation = np.sqrt(((runs - runs.mean(1, keepdims=True)) ** 2).sum() / len(batches))
    half = stdtrit(len(batches), 0.975) * deviation / np.sqrt(2)
    return [StepsPoint(batch, Estimate(*np.exp([mean, mean - half, mean + half]), 2))
            for batch, mean in zip(batches, runs.mean(1))]


@pytest.mark.slow
@pytest.mark.parametrize("b_crit, asked", [(256, (1024, 4096)), (2048, (1024, 4096)), (1e6, (1024,))])
def test_intervals_of_steps_beyond_the_batches_cover(b_crit, asked):
    random, hits = np.random.default_rng(1), []
    for _ in range(100):
        found = StepsCurve(sweep(random, b_crit))
        ends = [(batch, *quantiles(found.at(batch).draws, 0.95)) for batch in asked]
        hits.append([low <= 100 * (1 + b_crit / batch) <= high for batch, low, high in ends])
    assert (np.mean(hits, axis=0) >= 0.9).all()


# decisions

def decision(*log_seconds, workers=None, paid=None):
    count = len(log_seconds)
    steps = np.array(log_seconds, float).T
    return Decision(tuple((one, 32 * one, 1) for one in workers or 2 ** np.arange(count)), steps, np.zeros_like(steps),
                    np.log(paid or np.ones(count)), 0.95)


def test_loss_and_chances_are_those_of_the_draws():
    made = decision([0, 0, 0, 0], [-1, 1, 1, 1], [np.log(1.1)] * 4)
    assert made.scores(np.inf).mean(0) == pytest.approx([0, 0.5, np.log(1.1)])
    assert made.loss(0) == pytest.approx(np.expm1(0.25))
    assert (made.chance(0, 0.05), made.chance(2, 0.2), made.chance(2, 0.05)) == (0.75, 0.75, 0)


def test_costs_weigh_times_by_what_a_second_costs():
    made = decision([0] * 3, [-0.5] * 3, paid=[1, 2])
    assert [int(made.scores(weight).mean(0).argmin()) for weight in (np.inf, 0, 1)] == [1, 0, 1]


def test_the_fastest_workers_have_an_end_on_each_side():
    random = np.random.default_rng(0)
    made = decision(*(random.normal(0.1 * at, 0.01, 1000) for at in (3, 1, 0, 5)))
    assert made.fastest_workers == (4, 4)
    wide = decision(*(random.normal(0, 1, 1000) for _ in range(4)))
    assert wide.fastest_workers == (1, 8)


def test_a_measurement_is_worth_what_it_decides():
    random = np.random.default_rng(1)
    unknown = random.normal(0, 1, 1000)
    made = decision(np.zeros(1000), unknown)
    before, known = made.loss(0), made.loss_after([(unknown, 0.01)])
    assert known < 0.1 * before < made.loss_after([(unknown, 1.0)]) < before
    assert made.loss_after([(random.normal(0, 1, 1000), 0.1)]) == pytest.approx(before, rel=0.35)
