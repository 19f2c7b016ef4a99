"""Searches whose best rates lie beyond those tried: found, and no curve fitted across them."""
import numpy as np
import pytest

from hvdscale.analysis.best_of_n import best_of
from hvdscale.analysis.curves import cut_from, is_cut
from hvdscale.analysis.lr_response import valley
from hvdscale.analysis.regimes import regimes_of
from tests.factories.curves import known_curve


def search(steps, best, rates, random):
    """(steps of trials at these rates, whether each diverged) where the best rate needs these steps."""
    u = np.log(rates / best)
    found = steps * np.exp(valley(u, 1.0, 2.0) + 0.4 * random.exponential(size=len(u))
                           + 0.1 * random.standard_normal(len(u)))
    every = 0.02 * steps
    found = np.ceil(found / every) * every
    return np.where(found > 4 * steps, np.inf, found), u > np.log(6)


def sweeps(beyond, count):
    """Sweeps of 20 trials a batch whose best rate at the largest batch lies ``beyond`` times the highest tried."""
    random = np.random.default_rng(1)
    for _ in range(count):
        known = known_curve(random)
        best = np.minimum(known.batches, known.b_crit) / min(known.batches[-1], known.b_crit)
        low = np.log(min(best[0] / 3, 1 / beyond / 30))
        estimates, cut = [], []
        for steps, rate in zip(known.steps, best):
            rates = np.exp(random.uniform(low, -np.log(beyond), 20))
            found, diverged = search(steps, rate, rates, random)
            kept = found[~diverged]
            cut.append(is_cut(np.log(rates[~diverged]), kept, np.log(rates[diverged])))
            estimates.append(best_of(kept, np.where(np.isinf(kept), np.nan, kept - 0.02 * steps),
                                     np.full(len(kept), 4 * steps)))
        batches = known.batches.tolist()
        end = cut_from(batches, cut)
        yield known, [regimes_of(batches[:at], estimates[:at]).fit for at in (
            len(batches), batches.index(end) if end else len(batches))], end


def test_the_critical_batch_of_a_search_that_is_cut_off_is_covered_or_not_stated():
    for beyond in (2, 8):
        found = list(sweeps(beyond, 25))
        held = [[fit is None or fit.b_crit.low <= known.b_crit <= fit.b_crit.high for fit in fits]
                for known, fits, _ in found]
        whole, before = np.mean(held, 0)
        assert before > 0.9 and whole < (0.8 if beyond == 2 else 1)
        assert np.mean([end is not None for *_, end in found]) > 0.6


def test_a_search_whose_rates_hold_the_best_is_seldom_called_cut_off():
    found = list(sweeps(1 / 3, 25))
    assert np.mean([end is not None for *_, end in found]) < 0.3
    assert all(fits[1].b_crit.low <= known.b_crit <= fits[1].b_crit.high for known, fits, _ in found)


@pytest.mark.parametrize("cut, end", [
    ([False, False, True, True], 4), ([False, True, False, True], 2), ([True, True, True, False], None),
    ([False, True, None, None], 2), ([None, None, None, None], None), ([True, False, True, True], 1)])
def test_a_search_is_cut_from_where_most_batches_are(cut, end):
    assert cut_from([1, 2, 4, 8], cut) == end


def test_trials_that_diverged_show_where_the_rates_end():
    rates, steps = np.arange(10.0), np.arange(100.0, 0, -10)
    assert is_cut(rates, steps, np.array([])) and not is_cut(rates, steps, np.array([10.0, 11.0, 12.0]))
    assert is_cut(rates, np.full(10, np.inf), np.array([])) is None
