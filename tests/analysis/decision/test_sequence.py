"""The test that may be looked at after every run: its formula, its error, its power, and the runs that it asks for."""
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from hvdscale.analysis.decision.sequence import (ALIKE, BETTER, DECISIONS, EFFECTS, LOG_RATIOS, MIXTURE, OPEN, PAIRED,
                                                 UNLIKE, WEIGHTS, WORSE, Sides, share_of_error)
from tests.factories import loops


def sides(before, after, pairs=0, **more):
    return Sides(np.array(before, float), np.array(after, float), pairs, **more)


def test_evidence_is_the_ratio_of_integrated_likelihoods():
    """Over the mean and the deviation of the baseline, on a grid; of pairs, whose effect is in their own deviation."""
    before, after = np.array([0.0, 0.3, -0.4]), np.array([0.9, 1.6, 0.8, 1.1])
    mean, deviation = np.meshgrid(np.linspace(-6, 6, 121), np.exp(np.linspace(-3, 3, 61)))
    base = np.prod([norm.pdf(one, mean, deviation) for one in before], 0)

    def likelihood(r, effects, weights):
        drawn = sum(weight * norm.pdf(after.mean() - mean, 0, deviation * np.sqrt(g + r ** 2 / 4))
                    for g, weight in zip(effects, weights))
        return (base * drawn * (r * deviation) ** -3 * np.exp(-2 * after.var() / (r * deviation) ** 2)).sum()
    null = max(likelihood(np.exp(u), [0], [1]) / (1 + (u / UNLIKE) ** 2) for u in LOG_RATIOS[15:36])
    other = sum(likelihood(np.exp(LOG_RATIOS[at]), (1 + np.exp(2 * LOG_RATIOS[at])) / 2 * EFFECTS[:, 0], WEIGHTS[:, at])
                for at in range(15, 36))
    assert sides(before, after).log_evidence() == pytest.approx(np.log(other / null), abs=0.01)
    square, g = np.mean([0.9, 1.3, 1.2]) ** 2 / np.var([0.9, 1.3, 1.2]), 1 + 3 * MIXTURE
    paired = g ** -0.5 * ((1 + square) / (1 + square / g)) ** 1.5
    assert sides(before, after, 3).log_evidence() == pytest.approx(
        np.log((1 - PAIRED) * other / null + PAIRED * paired), abs=0.01)


@pytest.mark.parametrize("after, decision", [
    ([-0.5, -0.51, -0.49, -0.5], BETTER), ([0.5, 0.51, 0.49, 0.5], WORSE), ([0.001, -0.001, 0.002, 0.0], ALIKE),
    ([0.02, 0.03, -0.01, 0.01], OPEN)])
def test_better_worse_alike_or_open(after, decision):
    found = sides([0.0, 0.001, -0.001, 0.0], after)
    assert DECISIONS[int(found.decide(0.05, 0.02))] == decision
    assert all(np.log(20) <= found.log_evidence(end) < 3.1 for end in found.interval(0.05))
    if decision != OPEN:
        chance = found.chance(decision, 0.02)
        assert chance < 0.05 and DECISIONS[int(found.decide(1.01 * chance, 0.02))] == decision
        assert DECISIONS[int(found.decide(0.99 * chance, 0.02))] == OPEN


def test_the_runs_more_that_it_asks_for_decide():
    random, asked, needed = np.random.default_rng(3), [], []
    for _ in range(12):
        before, after = random.standard_normal((2, 40)) - np.array([[0], [2.5]])
        asked.append(sides(before[:4], after[:4]).runs_more(0.01, 0.0, True))
        needed.append(next((runs for runs in range(5, 40) if sides(before[:runs], after[:runs]).decide(0.01, 0.0) == 0),
                           40) - 4)
    middle = np.median([np.mean(ends) for ends in asked if np.isfinite(ends).all()])
    assert 0.4 < middle / np.median(needed) < 2.5
    assert sides(before[:4], before[:4]).runs_more(0.01, 0.0, True)[1] == np.inf


@pytest.mark.parametrize("kind", loops.KINDS)
def test_a_loop_of_changes_without_effect_keeps_one_in_a_loop_of_twenty_at_most(kind):
    assert max(share for paired in (True, False) for share in loops.loops(60, kind, 1, paired)) <= 0.05


def test_a_change_of_twice_what_five_runs_see_is_found_in_little_more_than_a_fixed_test_takes():
    for number, alike in ((0, 0.0), (0, 0.8), (1, 0.0), (10, 0.0), (10, 0.8)):
        found, runs = loops.found_changes(300, loops.ERROR * (share_of_error(number) if number else 1), alike)
        assert found >= 0.8 and runs <= 1.35


def test_comparisons_at_one_time_have_numbers_of_their_own(tmp_path):
    path, names = tmp_path / "l.json", [f"{at}" for at in range(6)]
    script = ("import sys; from hvdscale.analysis.decision import sequence; sequence.digest_of = str; "
              "print(sequence.spend(sys.argv[1], 0.95, 'steps', ['base'], [sys.argv[2]]))")
    running = [subprocess.Popen([sys.executable, "-c", script, path, name], stdout=subprocess.PIPE) for name in names]
    shares = sorted(float(one.communicate()[0]) for one in running)
    assert shares == sorted(map(share_of_error, range(1, 7))) and sum(map(share_of_error, range(1, 10000))) < 1
