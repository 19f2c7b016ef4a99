"""The regimes of a curve of steps by batch: what they are, and how often their intervals hold. See tools/coverage."""
import math
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from hvdscale.analysis.critical_batch_fit import HYPERBOLA, fit_critical_batch
from hvdscale.analysis.curves import BatchEstimate, Regimes
from hvdscale.analysis.defaults import Options
from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.reference import Reference
from hvdscale.report.document import sentences_of
from hvdscale.report.views.batches import describe_batch, find_fit, find_regimes
from tests.conftest import ROOT, but_slow
from tests.factories.curves import KNEE, QUANTITIES, coverage, repeated, searched, searched_unevenly

BATCHES = [32, 64, 128, 256, 512]
STEPS = [1000, 500, 320, 300, 310]
INF, NAN = math.inf, math.nan


def estimates(steps, share=0.03, runs=3):
    """With an interval of so large a share on both sides; inf: not met."""
    return [Estimate(value, value / (1 + share), value * (1 + share), runs) if value < INF else
            Estimate(INF, 400.0, INF, runs, 400.0) for value in steps]


def single(steps):
    return [Estimate(value, value - 1, value, 1) for value in steps]


def regimes_said(*arguments):
    return sentences_of(find_regimes(*arguments))


def test_regimes_follow_their_tolerances():
    found = Regimes(BATCHES, estimates(STEPS))           # B S: 32000, 32000, 40960, 76800, 158720
    assert (found.perfect_until.value, found.maximum_useful.value) == (64, 128)
    assert found.perfect == (True, True, False, False, False)
    wider = Regimes(BATCHES, estimates(STEPS), Options(perfect_within=0.3, useful_within=0.7))
    assert wider.perfect_until.value == wider.maximum_useful.value == 128       # 64 needs 500 steps, within 70% of 300


def test_the_maximum_useful_batch_is_never_below_the_end_of_perfect_scaling(worded):
    """As in rcps_unet3d.json of MLPerf training 3.1: the two largest batches lie closer than the tolerance."""
    batches, steps = [32, 56, 80, 84], [1000, 580, 405, 385]
    for made in (single(steps), estimates(steps)):
        found = Regimes(batches, made)
        assert found.perfect_until.value == found.maximum_useful.value == 84
        assert not found.maximum_useful.low < found.perfect_until.low
        useful = regimes_said(found, batches, made, [True] * 4)[1]
        worded(useful, about="steps still")
        assert useful.startswith("Maximum useful batch: at least 84")


def test_narrow_intervals_leave_one_batch_and_wide_ones_several():
    narrow, wide = (Regimes(BATCHES, estimates(STEPS, share)) for share in (0.005, 0.8))
    assert narrow.maximum_useful == BatchEstimate(128, 128, 128)
    assert wide.maximum_useful.low <= 128 < wide.maximum_useful.high == INF
    assert wide.perfect_until.low <= 64 < wide.perfect_until.high


def test_without_a_batch_that_met_there_are_no_regimes():
    found = Regimes(BATCHES, estimates([INF] * 5))
    assert found.maximum_useful.value is found.perfect_until.value is found.fit is None
    assert found.perfect == (False,) * 5
    assert regimes_said(found, BATCHES, estimates([INF] * 5), [False] * 5) == ()


@pytest.mark.parametrize("last", [estimates([INF, INF]), [Estimate(NAN, NAN, NAN, 0)] * 2])
def test_a_batch_that_did_not_meet_or_has_no_trial_is_in_no_regime(last):
    found = Regimes(BATCHES, [*estimates(STEPS[:3]), *last])
    assert (found.perfect_until.value, found.maximum_useful.value) == (64, 128)
    assert found.perfect[3:] == (False, False) and found.fit.points == 3


def test_single_runs_have_regimes_with_the_intervals_of_runs_that_differ_by_a_tenth():
    found = Regimes(BATCHES, single(STEPS))
    assert [(one.low, one.high) for one in (found.perfect_until, found.maximum_useful)] == [(32, 128), (128, 256)]
    made = {"2,048 (1,024-4,096)": (2048, 1024, 4096), "128 (at least 64)": (128, 64, INF),
            "128 (no other of those run)": (128, 128, 128), "128": (128,)}
    assert [describe_batch(BatchEstimate(*one)) for one in made.values()] == list(made)


def said_of(steps, share=0.03):
    made = estimates(steps, share) if share else single(steps)
    return regimes_said(Regimes(BATCHES, made), BATCHES, made, [one.met for one in made])


def test_the_regimes_are_said_with_intervals(worded):
    until, useful, fit, shape, more = said_of(STEPS)
    worded(until)
    worded(useful)
    assert re.fullmatch(r"Critical batch \(E_min / S_min\): \d+ \(.*\); S_min: \d+ \(.*\) steps\.", fit)
    worded(more, about="more examples")
    worded(shape)


@pytest.mark.parametrize("before, coarse", [([250, 0, 125, 63], True), ([480, 240, 240, 240], False)])
def test_where_evaluations_are_too_far_apart_to_tell_that_is_said(before, coarse, worded):
    batches, steps = [64, 128, 256, 512], [500, 250, 250, 250]
    made = [Estimate(value, NAN, INF, 1, before=earlier) for value, earlier in zip(steps, before)]
    until, useful, *_ = regimes_said(Regimes(batches, made), batches, made, [True] * 4)
    worded(until)
    assert ("but at batches 256 and 512 evaluations are too far apart to tell" in until) == coarse
    worded(useful)


@pytest.mark.parametrize("p, scatter, said", [
    (1, 1.0, "is consistent with McCandlish's hyperbola (p = 1): p = "),
    (4, 1.0, "bends more sharply than McCandlish's hyperbola (p = 1): p = "),
    (1, 1.2, "The points scatter more than their intervals allow (lack of fit: p-value")])
def test_the_shape_that_the_steps_prefer_is_said(p, scatter, said, worded):
    batches = 2.0 ** np.arange(3, 13)
    steps = 200 * (1 + (300 / batches) ** p) ** (1 / p) * scatter ** np.resize([1, -1, -1], 10)
    assert said in sentences_of(find_fit(fit_critical_batch(batches, estimates(steps, 0.05))))[1]
    worded(said_of(STEPS, share=0.5)[3], about="do not")


def test_a_tail_that_rises_is_left_out_of_the_fit_and_named(worded):
    batches = 2 ** np.arange(4, 14)
    steps = 200 * (1 + (100 / batches) ** 2) ** 0.5 * np.where(batches > 1024, (batches / 1024) ** 0.5, 1)
    found = fit_critical_batch(batches, estimates(steps, 0.05))
    assert found.left_out == (1024, 2048, 4096, 8192)[-len(found.left_out):] and len(found.left_out) >= 3
    assert found.s_min.low < 200 < found.s_min.high
    said = sentences_of(find_fit(found))[-1]
    worded(said)
    assert "4,096 and 8,192 are left out" in said
    assert fit_critical_batch(batches, estimates(200 * (1 + 100 / batches), 0.05)).left_out == ()


def test_a_batch_possibly_outside_does_not_end_perfect_scaling(worded):
    steps = [1000, 700, 250, 240, 310]                      # B S: 32000, 44800, 32000, 61440, 158720
    found, said = Regimes(BATCHES, estimates(steps, 0.3)), said_of(steps, 0.3)[0]
    assert found.perfect == (True, False, True, False, False) and found.perfect_until.value == 128
    assert said.endswith("beyond; but batch 64 needs more examples, within its interval.")
    found, said = Regimes(BATCHES, single(steps)), said_of(steps, None)[0]
    worded(said, about="but batch")
    assert found.perfect_until.value == 128


def test_a_batch_certainly_outside_ends_perfect_scaling(worded):
    found, said = Regimes(BATCHES, estimates([1000, 700, 250, 240, 310])), said_of([1000, 700, 250, 240, 310])[0]
    assert found.perfect == (True, False, True, False, False) and found.perfect_until.value == 32
    worded(said)
    assert said.startswith("No perfect scaling")
    until = Regimes(BATCHES, estimates([1500, 500, 250, 240, 310])).perfect_until      # small ones waste examples
    assert until.value == 128 and said_of([1500, 500, 250, 240, 310])[0].endswith("; but batch 32 needs more examples.")
    assert said_of([1500, 500, 250, 240, 310], 0.3)[0].endswith("batch 32 needs more examples, within its interval.")
    assert said_of([INF, 100, 50, 40, 60])[0].endswith("; but batch 32 needs more examples.")       # it did not meet


@pytest.mark.parametrize("steps", [STEPS, [1000, 700, 250, 240, 310], [1600, 800, 400, 200, 100],
                                   [1000, 700, INF, 125, 70]])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, None])
def test_the_sentence_and_the_column_agree(steps, share):
    made = estimates(steps, share) if share else single(steps)
    found = Regimes(BATCHES, made)
    said = regimes_said(found, BATCHES, made, [one.met for one in made])[0]
    _, _, unsteady = said.partition("; but")
    until = found.perfect_until.value
    for batch, one, inside in zip(BATCHES, made, found.perfect):
        known = one.met or batch < until and batch * one.beyond > 40000 * (1 + (share or 0))
        assert (f" {batch} " in f"{unsteady} ") == (known and inside != (batch <= until))


def test_what_the_batches_do_not_reach_is_said_to_be_at_least_or_at_most(worded):
    until, useful, fit = said_of([1600, 800, 400, 200, 100])
    worded(until)
    worded(useful, about="no larger")
    worded(fit, about="no plateau")
    assert "at least" in fit
    worded(said_of([1000, INF, INF, INF, INF])[0])
    until, useful, fit = said_of([300, 301, 299, 300, 300])
    worded(until, about="beyond batch")
    assert until.startswith("No perfect scaling")
    worded(fit, about="no perfect")
    assert "at most" in fit


def test_two_points_make_no_fit_and_nothing_is_said_of_one():
    made = estimates([1000, 500])
    assert len(regimes_said(Regimes([32, 64], made), [32, 64], made, [True] * 2)) == 2
    assert regimes_said(Regimes([32], made[:1]), [32], made[:1], [True]) == ()


UNTIL = {"MNIST Simple CNN": 128, "CIFAR-10 ResNet-8": 256, "ImageNet ResNet-50": 8192, "LM1B Transformer": 256,
         "ImageNet VGG-11": 1024}       # published ends of perfect scaling


@pytest.mark.parametrize("published", Reference("shallue2019").curves, ids=lambda curve: curve.label)
def test_published_curves_have_their_published_end_of_perfect_scaling_and_are_fitted_no_worse(published):
    """The end is the published one or one batch before it: theirs is held against the examples of small batches, ours
    against the smallest of all, which the reading of a plot makes smaller."""
    batches = published.batches.astype(int).tolist()
    found = Regimes(batches, single(published.steps))
    assert found.fit.rms_log2 <= published.rms_log2 + 0.005
    assert (found.fit.shape.low > 1) == (published.label == "CIFAR-10 ResNet-8")    # p > 1.7: steps level off at once
    if until := UNTIL.get(published.label):
        assert found.perfect_until.value in batches[batches.index(until) - 1:batches.index(until) + 1]


SHAPES = (HYPERBOLA, 2.0, 4.0, KNEE)
FITTED = ("s_min", "b_crit", "half_efficient", "overhead")


def too_low(found, least, names=FITTED):
    return {name: found[name].share for name in names if found[name].share < least}


def named(sweep):
    """``searched n=20``: of each process of the tests the same."""
    return " ".join([getattr(sweep, "func", sweep).__name__, *(f"{name}={value}" for name, value in getattr(
        sweep, "keywords", {}).items())])


@pytest.mark.parametrize("shape", but_slow(SHAPES, (2.0, 4.0)))
@pytest.mark.parametrize("sweep", [partial(searched, n=20), partial(repeated, seeds=3)], ids=["best of 20", "3 seeds"])
def test_intervals_hold_what_they_are_of(sweep, shape):
    """40 sweeps of a known curve: 0.82 is 4 standard deviations below 0.95."""
    found = coverage(sweep, 40, shape=shape)
    assert too_low(found, 0.82, found) == {}
    assert found["b_crit"].ratio < 4 and found["perfect_until"].ratio <= 16         # and are not merely wide


def test_search_intervals_hold_with_unequal_numbers_of_trials():
    """60 trials at the smallest batch falling to 6 at the largest; each at the best of all of its own loses B_crit."""
    common, own = coverage(searched_unevenly, 40), coverage(partial(searched_unevenly, common=False), 40)
    assert too_low(common, 0.82) == {} and abs(common["b_crit"].bias) < 0.15 and own["b_crit"].bias < -0.25


def test_the_fit_of_sweeps_whose_tail_rises_holds_the_curve_before_it():
    assert too_low(coverage(partial(repeated, seeds=3), 40, slope=0.5), 0.82) == {}


@pytest.mark.parametrize("options, row", [
    (["--branches"], r"loss as k\^1, critical at 6, .*( +\d+\.\d% [+-]\d\.\d+){5}"),
    pytest.param([], r"knee, 10 batches, 3 seeds( +\d+\.\d% (x[\d.e+]+|open)){4}", marks=pytest.mark.slow)])
def test_the_coverage_of_intervals_is_printed_as_tables(options, row):
    done = subprocess.run([sys.executable, ROOT / "tools/coverage", "--sweeps", "1", *options], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(f"^{row}$", done.stdout, re.M)


THREE_SEEDS, BEST_OF_20 = partial(repeated, seeds=3), partial(searched, n=20)
MANY = [*((sweep, {"shape": shape, **made}, FITTED) for shape in SHAPES for sweep in (BEST_OF_20, THREE_SEEDS)
          for made in ({"count": 4}, {"count": 6}, {"count": 10}, {"slope": 0.5}, {"slope": 1.0})),
        *((partial(searched, n=n), {"shape": shape, "count": count}, FITTED) for shape in SHAPES for n in (8, 50)
          for count in (4, 6, 10)), *((partial(repeated, seeds=2), {"creep": creep}, FITTED) for creep in (0.1, 0.3)),
        *((sweep, {}, QUANTITIES) for sweep in (*(partial(searched, n=n) for n in (5, 12, 20, 50, 100)),
                                                searched_unevenly, *(partial(repeated, seeds=n) for n in (2, 3, 5))))]


@pytest.mark.slow
@pytest.mark.parametrize("sweep, made, names", MANY, ids=lambda one: named(one) if callable(one) else str(one)[:40])
def test_intervals_of_500_sweeps_hold_what_they_are_of(sweep, made, names):
    assert too_low(coverage(sweep, 500, **made), 0.90, names) == {}


@pytest.mark.parametrize("name", ("perfect_until", "maximum_useful"))
def test_regimes_are_covered_where_budgets_end_soon_after_the_target_is_met(name):
    assert coverage(partial(repeated, seeds=2, budget=1.05), 60)[name].share >= 0.9


def test_a_batch_whose_budget_ended_too_soon_may_be_the_maximum_useful_one():
    def high_of(reached, low):
        met = [Estimate(steps, 0.95 * steps, 1.05 * steps, 3) for steps in (800.0, 400.0, 200.0, 100.0)]
        unmet = Estimate(np.inf, low, np.inf, 3, reached)
        return Regimes(BATCHES, [*met, unmet]).maximum_useful.high
    assert high_of(55.0, 55.0) == high_of(130.0, 55.0) == np.inf and high_of(500.0, 500.0) == 256


def test_luck_that_seeds_bring_to_every_batch_alike_and_rounding_are_in_the_intervals():
    found = coverage(partial(repeated, seeds=2, luck=0.8, spacings=(0.01,)), 40)
    assert found["steps"].share > 0.88 and found["s_min"].share > 0.92 and found["s_min"].ratio > 2
    assert coverage(partial(repeated, seeds=1, spacings=(0.2,)), 60)["b_crit"].share >= 0.9      # evaluations far apart
