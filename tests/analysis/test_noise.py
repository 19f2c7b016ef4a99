"""The noise scale out of a log: the unbiased pair, the ratio with its interval, and what the report says of it."""
import itertools
import math

import numpy as np
import pytest

from hvdscale.analysis.noise import NoiseSteps, fieller, noise_scale, read_noise, unbiased_pair
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.log.schema import UNKNOWN_SEED
from hvdscale.report.drawing import render
from hvdscale.report.table import as_text
from hvdscale.target import Target
from tests.factories.logs import log, trial
from tests.factories.shown import figures_of, summary, tables_of


def measured(gradients, shares):
    """local_sqnorm, reduced_sqnorm and local_examples of examples' gradients, shape (B, parameters), share by share."""
    bounds = np.cumsum([0, *shares])
    local = [gradients[a:b].mean(0) for a, b in zip(bounds, bounds[1:])]
    return (np.average([mean @ mean for mean in local], weights=shares), gradients.mean(0) @ gradients.mean(0),
            np.mean(shares))


def drawn(steps, grad_sqnorm=4.0, cov_trace=8.0, shares=(4, 4), seed=0):
    """(local_sqnorm, reduced_sqnorm, local_examples) of steps whose examples are drawn about a true gradient."""
    random = np.random.default_rng(seed)
    true = np.full(8, math.sqrt(grad_sqnorm / 8))
    return [measured(true + random.standard_normal((sum(shares), 8)) * math.sqrt(cov_trace / 8), shares)
            for _ in range(steps)]


def with_noise(sqnorms, **changes):
    """A trial with a step for each of these."""
    return trial(steps=(0, len(sqnorms)), error=(0.9, 0.1), step_seconds=[0.01] * len(sqnorms), sqnorms=sqnorms,
                 **{"batch": 8, "workers": 2, **changes})


def section_of(*trials):
    [group] = analyse(read_trials(log(*trials)))
    [section] = group.sections
    return section


def test_shares_of_one_example_give_the_sample_covariance_itself():
    gradients = np.random.default_rng(0).standard_normal((7, 3)) + 1
    local, reduced, examples = measured(gradients, [1] * 7)
    cov_trace = np.trace(np.cov(gradients.T))
    assert unbiased_pair(local, reduced, examples, 7) == pytest.approx((reduced - cov_trace / 7, cov_trace))


@pytest.mark.parametrize("shares", [(2, 2), (3, 2), (1, 4), (1, 2, 3)])
def test_the_pair_is_unbiased_for_even_and_uneven_shares(shares):
    batch = sum(shares)                         # every outcome of examples whose gradient is 3 + 2 or 3 - 2
    pairs = [unbiased_pair(*measured(3 + 2 * np.array(signs, float)[:, None], shares), batch)
             for signs in itertools.product((-1, 1), repeat=batch)]
    assert np.mean(pairs, axis=0) == pytest.approx((9, 4), abs=1e-12)


def test_the_true_gradient_adds_no_noise_to_the_covariance_of_uneven_shares():
    gradients = np.random.default_rng(0).standard_normal((7, 3))
    traces = [unbiased_pair(*measured(gradients + away, (4, 2, 1)), 7)[1] for away in (0, 1000)]
    assert traces[0] == pytest.approx(traces[1])


def test_numerator_and_denominator_are_averaged_apart():
    steps = NoiseSteps(np.arange(3), np.array([1.0, 3.0, 2.0]), np.array([10.0, 50.0, 30.0]))
    scale = noise_scale([steps])
    assert (scale.noise_scale, scale.grad_sqnorm, scale.cov_trace, scale.steps) == (15, 2, 30, 3)
    assert math.isnan(scale.low) and math.isnan(scale.high)        # three steps are too few
    none = noise_scale([])
    assert math.isnan(none.noise_scale) and none.steps == 0


def test_what_is_not_told_from_zero_leaves_that_end_of_the_interval_open():
    random = np.random.default_rng(1)
    around_zero = noise_scale([NoiseSteps(np.arange(50), random.standard_normal(50) + 0.05,
                                          100 + random.standard_normal(50))])
    assert around_zero.high == math.inf and 0 < around_zero.low < 1000
    negative = noise_scale([NoiseSteps(np.arange(50), -1 - random.random(50), 100 + random.random(50))])
    assert (negative.noise_scale, negative.low, negative.high) == (math.inf, 0, math.inf)
    silent = noise_scale([NoiseSteps(np.arange(50), 5 + random.standard_normal(50), random.standard_normal(50) - 0.1)])
    assert silent.noise_scale == 0 == silent.low and 0 < silent.high < 0.2


def test_fiellers_interval_holds_the_ratios_that_a_t_test_does_not_reject():
    means, covariance, t = np.array([2.0, 6.0]), np.array([[0.2, 0.1], [0.1, 0.5]]), 2.0
    low, high = fieller(means, covariance, t)
    ratios = np.linspace(0, 20, 200_001)
    variance = covariance[1, 1] - 2 * ratios * covariance[0, 1] + ratios ** 2 * covariance[0, 0]
    kept = ratios[(means[1] - ratios * means[0]) ** 2 <= t ** 2 * variance]
    assert (low, high) == pytest.approx((kept.min(), kept.max()), abs=2e-4)
    unbounded = fieller(means, 9 * covariance, t)
    assert unbounded[1] == math.inf


def test_steps_that_were_not_measured_or_overflowed_take_no_part():
    sqnorms = [row for one in drawn(10) for row in (one, None, (math.inf, math.inf, 4.0))]
    scale = section_of(with_noise(sqnorms)).cells[0].noise.whole
    alone = section_of(with_noise(drawn(10))).cells[0].noise.whole
    assert scale.steps == 10 and (scale.first_step, scale.last_step) == (1, 28)
    assert (scale.noise_scale, scale.low, scale.high) == (alone.noise_scale, alone.low, alone.high)


def test_steps_under_several_worker_counts_are_one_estimate():
    sqnorms = [*drawn(300), *drawn(300, shares=(2, 2, 2, 2), seed=1), *drawn(300, shares=(3, 3, 2), seed=2)]
    scale = section_of(with_noise(sqnorms)).cells[0].noise.whole
    assert scale.low < 2 < scale.high < 1.3 * scale.low
    assert scale.cov_trace == pytest.approx(8, rel=0.1) and scale.grad_sqnorm == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("known", [True, False])
def test_seeds_of_one_setting_are_pooled_and_narrow_the_interval(known):
    seeds = [with_noise(drawn(40, seed=seed), id=seed, seed=seed if known else UNKNOWN_SEED) for seed in range(4)]
    one, four = (section_of(*trials).cells[0].noise.whole for trials in (seeds[:1], seeds))
    assert (one.steps, four.steps) == (40, 160)
    assert math.log(four.high / four.low) < 0.7 * math.log(one.high / one.low)
    assert four.low < 2 < four.high


def test_quarters_show_how_the_noise_scale_grows():
    sqnorms = [one for fall in (1, 4, 16, 64) for one in drawn(50, grad_sqnorm=64 / fall, seed=fall)]
    quarters = section_of(with_noise(sqnorms)).cells[0].noise.quarters
    assert [(q.first_step, q.last_step) for q in quarters] == [(1, 50), (51, 100), (101, 150), (151, 200)]
    for quarter, truth in zip(quarters, (1 / 8, 1 / 2, 2, 8)):
        assert quarter.low < truth < quarter.high


def test_a_log_without_the_columns_has_no_noise_scale():
    made = log(trial(step_seconds=[0.01] * 20))
    assert read_noise(made) == {} and all(found.noise is None for found in read_trials(made))
    assert section_of(trial()).noise == ()


def test_the_report_shows_the_noise_scale_of_each_batch_with_its_interval():
    section = section_of(*[with_noise(drawn(40, shares=(4,) * workers), workers=workers, batch=4 * workers, id=workers)
                           for workers in (2, 4)])
    table = next(table for table in tables_of(section) if table.name == "noise-scale")
    for row, (cell, noise) in zip(table.rows, section.noise):
        shown = dict(zip((column.key for column in table.columns), row.cells))
        assert shown["noise_scale"].value == noise.whole.cov_trace / noise.whole.grad_sqnorm
        assert shown["noise_scale"].low < 2 < shown["noise_scale"].high
        assert shown["measured_steps"].value == 40 and shown["global_batch"].value == cell.global_batch
    assert all("McCandlish" in column.source for column in table.columns if "noise" in column.key)
    assert max(map(len, as_text(table).splitlines())) <= 100
    assert any(said.startswith("Gradient noise scale at global batch 16: ") for said in summary(section))
    figure = next(figure for figure in figures_of(section) if figure.name == "noise-scale")
    assert b"noise scale (examples)" in render(figure, "svg")


def of_gradient(grad_sqnorms):
    """Steps of 2 shares of 4 examples whose estimates are these |G|^2, and a tr(Sigma) of 80."""
    return [(one + 20, one + 10, 4.0) for one in grad_sqnorms]


def test_a_quarter_whose_gradient_came_out_below_zero_has_a_mark_of_its_own():
    section = section_of(with_noise([*drawn(30), *of_gradient([-1, -2] * 5)]))
    quarters = section.noise[0][1].quarters
    assert [math.isinf(quarter.noise_scale) for quarter in quarters] == [False] * 3 + [True]
    table = next(table for table in tables_of(section) if table.name == "noise-scale")
    assert [cell.shown for cell in table.rows[0].cells].count("?") == 1
    assert "? the estimate of |G|^2 came out below 0." in table.notes
    assert not any(note.startswith("n/a") for note in table.notes)


@pytest.mark.parametrize("last, arrows", [([4, 5], 0), ([5, -4], 1)])
def test_a_quarter_whose_interval_has_no_upper_end_is_drawn_with_an_arrow(last, arrows):
    from matplotlib.figure import Figure
    section = section_of(with_noise(of_gradient([4, 5] * 15 + last * 5)))
    quarters = section.noise[0][1].quarters
    assert [math.isinf(quarter.high) for quarter in quarters].count(True) == arrows
    assert all(math.isfinite(quarter.noise_scale) for quarter in quarters)
    figure = next(figure for figure in figures_of(section) if figure.name == "noise-scale")
    axes = Figure().add_subplot()
    figure.draw(axes)
    assert len(axes.texts) == arrows and "one with an arrow has no upper end" in figure.caption


def test_the_summary_is_of_the_batch_at_which_the_noise_scale_is_known_best_and_names_only_certain_changes():
    section = section_of(with_noise(drawn(200), batch=8, id=1), with_noise(drawn(10), batch=16, id=2))
    [said] = [said for said in summary(section) if said.startswith("Gradient noise scale at global batch 8: ")]
    assert said.endswith("; no significant change over the quarters of the steps.")
    without_end = "\n".join(map(as_text, tables_of(section_of(with_noise(drawn(40, grad_sqnorm=1e-6))))))
    assert "An interval without an upper end" in without_end and "> " in without_end


def test_a_section_of_the_same_runs_does_not_show_them_twice():
    trials = read_trials(log(with_noise(drawn(40))))
    [group] = analyse(trials, [Target.parse("val/error<0.2"), Target.parse("val/error<0.3")])
    assert [len(section.noise) for section in group.sections] == [1, 0]


def test_quarters_of_too_few_measured_steps_are_left_out():
    section = section_of(with_noise(drawn(12)))
    [(_, noise)] = section.noise
    assert noise.whole.steps == 12 and all(math.isnan(quarter.noise_scale) for quarter in noise.quarters)
    shown = as_text(tables_of(section)[-1])
    assert shown.count(" n/a ") == 4 and "?" not in shown
    assert "n/a: a quarter has fewer than 5 measured steps, too few for an interval." in shown
    assert not [figure for figure in figures_of(section) if figure.name == "noise-scale"]
