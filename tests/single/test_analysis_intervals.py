"""Intervals against closed forms, and what they cover on repeats drawn at random."""
import numpy as np
import pytest

from hvdscale.analysis.intervals import (geometric_mean, geometric_median, hull, mean_interval, paired_ratio_interval,
                                         ratio_interval)

T_95 = {1: 12.706, 2: 4.3027, 4: 2.7764}      # Student's t, two-sided 95 %, from printed tables


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


def test_the_ratio_of_equally_spread_samples_has_the_pooled_degrees_of_freedom():
    above, below = np.exp([1.0, 2.0, 3.0]), np.exp([0.0, 1.0, 2.0])
    half = T_95[4] * np.sqrt(1 / 3 + 1 / 3)                     # Welch equals Student here: 4 degrees of freedom
    assert np.log(ratio_interval(above, below)) == pytest.approx([1 - half, 1 + half], abs=2e-4)


def test_pairing_takes_out_what_both_samples_share():
    shared = np.array([1.0, 10.0, 100.0])
    assert paired_ratio_interval(3 * shared, shared) == pytest.approx((3.0, 3.0))


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
