"""Intervals against closed forms, and what they cover on repeats drawn at random."""
import numpy as np
import pytest

from hvdscale.analysis.intervals import (UNKNOWN, Spread, geometric_mean, geometric_median, hull, mean_interval, pooled,
                                         pooled_censored, pooled_paired, ratio_interval)

T_95 = {1: 12.706, 2: 4.3027, 4: 2.7764, 8: 2.3060}     # Student's t, two-sided 95 %, from printed tables
GROWN = Spread(0.01, 4, growth=1.0, base=8.0)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_of_a_mean_is_students_on_logarithms(count):
    values = np.exp(np.arange(count, dtype=float))
    centre, deviation = (count - 1) / 2, np.sqrt(count * (count + 1) / 12)     # of 0, 1, ..., count - 1
    half = T_95[count - 1] * deviation / np.sqrt(count)
    assert np.log(mean_interval(values)) == pytest.approx([centre - half, centre + half], abs=2e-4)
    assert geometric_mean(values) == pytest.approx(np.exp(centre))


def test_one_run_has_no_interval():
    assert np.isnan(mean_interval([3.0])).all()
    assert np.isnan(ratio_interval([3.0, 4.0], [5.0])).all()


def test_equal_repeats_have_an_interval_of_no_width():
    assert mean_interval([7.0, 7.0, 7.0]) == pytest.approx((7.0, 7.0))
    assert ratio_interval([8.0, 8.0], [2.0, 2.0]) == pytest.approx((4.0, 4.0))


@pytest.mark.parametrize("above, below, pools, variance, freedom", [
    ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], {}, 1 / 3 + 1 / 3, 4),                           # Welch equals Student here
    ([1.0, 2.0, 3.0], [0.0, 0.0], {"pool": Spread(4.0, 4)}, 4 / 3 + 4 / 2, 4),          # the pool's degrees of freedom
    ([1.0, 2.0], [0.0, 1, 2, 3, 4], {"pool": Spread(2.5 * 2 / 5, 4)}, 1 / 2 + 2.5 / 5, 8),      # Welch's
    ([0.9, 1.1], [-0.01, 0.01], {"pool": GROWN.at(200), "pool_below": GROWN.at(8)}, 0.25 / 2 + 0.01 / 2, 4)])
def test_the_interval_of_a_ratio_is_students_or_welchs(above, below, pools, variance, freedom):
    half, centre = T_95[freedom] * np.sqrt(variance), np.mean(above) - np.mean(below)
    found = np.log(ratio_interval(np.exp(above), np.exp(below), **pools))
    assert found == pytest.approx([centre - half, centre + half], abs=2e-4)


def test_a_pooled_spread_is_the_sum_of_squares_over_its_freedom():
    spread = pooled([np.exp([1.0, 3.0]), np.exp([7.0, 8.0, 9.0]), np.exp([5.0])])
    assert (spread.variance, spread.freedom) == (pytest.approx((2 + 2) / 3), 3)


def test_samples_without_logarithms_are_in_no_pool():
    spread = pooled([[1.0, np.inf], [0.0, 1.0], np.exp([1.0, 3.0]), []])
    assert (spread.variance, spread.freedom) == (pytest.approx(2.0), 1)
    assert pooled([[1.0], [np.inf, 2.0]]) is UNKNOWN


def test_a_pool_stands_in_for_the_spread_of_few_repeats_only():
    few, many, pool = np.exp([1.0, 2.0, 3.0]), np.exp(np.arange(5.0)), Spread(4.0, 4)
    half = T_95[4] * np.sqrt(4 / 3)
    assert np.log(mean_interval(few, pool)) == pytest.approx([2 - half, 2 + half], abs=2e-4)
    assert mean_interval(many, pool) == mean_interval(many)


def test_the_pool_of_one_pair_is_the_paired_t_s_own_variance():
    above, below = np.exp([1.0, 2.0, 4.0]), np.exp([0.5, 2.5, 2.0])
    spread = pooled_paired([np.array([above, below])])
    assert (spread.variance, spread.freedom) == (pytest.approx(np.var(np.log(above / below), ddof=1)), 2)
    assert mean_interval(above / below, spread) == pytest.approx(mean_interval(above / below))


def test_the_pool_of_pairs_takes_out_seeds_and_samples():
    shared, factors = np.array([1.0, 10.0, 100.0]), np.array([[1.0], [2.0], [5.0]])
    spread = pooled_paired([shared * factors])
    assert (spread.variance, spread.freedom) == (pytest.approx(0), 4)


def test_the_median_counts_unmet_runs_as_the_largest():
    assert geometric_median([np.inf, 8.0, 2.0]) == pytest.approx(8.0)
    assert geometric_median([np.inf, 8.0, 2.0, np.inf]) == np.inf
    assert geometric_median([8.0, 2.0, np.inf, 1.0]) == pytest.approx(4.0)


def test_a_hull_leaves_out_what_is_not_known():
    assert hull((1.0, 2.0), (np.nan, np.nan), (0.5, 1.5)) == (0.5, 2.0)
    assert np.isnan(hull((np.nan, np.nan))).all()


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_intervals_cover_what_they_claim_on_lognormal_repeats(count, spread):
    random = np.random.default_rng(20260 + count)
    draws = np.exp(random.normal(np.log(1000), spread, (4000, count)))
    others = np.exp(random.normal(np.log(250), 2 * spread, (4000, count)))
    for (low, high), truth in ((mean_interval(draws), 1000), (ratio_interval(draws, others), 4)):
        covered = np.mean((low <= truth) & (truth <= high))
        assert 0.90 <= covered <= 0.99


def covered(deviations, repeats, draws=4000, seed=7):
    """Shares of 95 % intervals with pooled spread that hold the truth: of each cell's mean, each ratio to the first."""
    random = np.random.default_rng(seed + repeats)
    truths = 1000 / 1.7 ** np.arange(len(deviations))
    cells = [truth * np.exp(random.normal(0, deviation, (draws, repeats)))
             for truth, deviation in zip(truths, deviations)]
    pool = pooled(cells)
    pairs = [(mean_interval(cell, pool), truth) for cell, truth in zip(cells, truths)]
    ratios = [(ratio_interval(cell, cells[0], pool), truth / truths[0]) for cell, truth in zip(cells[1:], truths[1:])]
    return [np.mean([np.mean((low <= truth) & (truth <= high)) for (low, high), truth in found])
            for found in (pairs, ratios)]


@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize("deviations, low, high", [
    ((0.2,) * 3, 0.93, 0.97), ((0.2,) * 4, 0.93, 0.97), ((0.1, 0.2, 0.1, 0.2), 0.88, 1),
    ((0.1, 0.1, 0.1, 0.2), 0.88, 1), ((0.2, 0.1, 0.1), 0.88, 1), ((0.1, 0.14, 0.2), 0.88, 1)])
def test_pooled_intervals_cover_nearly_what_they_claim_if_spreads_differ(repeats, deviations, low, high):
    assert all(low <= share <= high for share in covered(deviations, repeats))


def test_a_spread_that_grows_with_the_batch_is_each_batch_s_own():
    random, batches = np.random.default_rng(5), [16 * 2 ** power for power in range(10)]
    deviations, held, grown = np.geomspace(0.03, 0.3, 10), [], 0
    for _ in range(300):
        samples = [np.exp(deviation * random.standard_normal(3)) for deviation in deviations]
        pool = pooled(samples, batches)
        grown += pool.growth > 0
        held += [[low <= 1 <= high for low, high in (mean_interval(sample, pool.at(batch))
                                                     for sample, batch in zip(samples, batches))]]
    assert grown > 0.9 * 300 and np.mean(held, 0).min() >= 0.9 and np.mean(held, 0).max() <= 0.99
    same = [pooled([np.exp(0.1 * random.standard_normal(3)) for _ in batches], batches).growth for _ in range(300)]
    assert np.count_nonzero(same) <= 0.3 * 300


@pytest.mark.parametrize("repeats", [2, 3])
def test_pooled_paired_intervals_cover_what_they_claim(repeats):
    random = np.random.default_rng(11)
    seeds = random.normal(0, 1.0, (4000, 1, repeats))                       # shared by the cells: much larger
    table = np.exp(seeds + random.normal(0, 0.2, (4000, 4, repeats)))
    pool = pooled_paired([table])
    found = [mean_interval(table[:, at] / table[:, 0], pool) for at in (1, 2, 3)]
    assert 0.93 <= np.mean([(low <= 1) & (1 <= high) for low, high in found]) <= 0.97


@pytest.mark.parametrize("repeats", [2, 3])
def test_pooling_narrows_the_intervals_of_few_repeats(repeats):
    random = np.random.default_rng(3)
    cells = np.exp(random.normal(0, 0.2, (4, 2000, repeats)))
    widths = [np.median(np.log(np.divide(*mean_interval(cells[0], pool)[::-1]))) for pool in (UNKNOWN, pooled(cells))]
    assert widths[1] < widths[0] * (0.5 if repeats == 2 else 0.8)


def test_runs_that_ended_just_before_the_target_do_not_make_the_spread_small():
    steps = np.exp(0.2 * np.random.default_rng(0).standard_normal((200, 3)))
    cut = list(np.where(steps > 1.05, np.inf, steps))
    assert pooled(cut).deviation < 0.15 < 0.18 < pooled_censored(cut, [1.05] * 200).deviation < 0.24
    assert pooled_censored(list(steps), [np.inf] * 200).variance == pooled(list(steps)).variance
