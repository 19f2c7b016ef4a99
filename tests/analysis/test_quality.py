"""The test for a large-batch penalty: its level, what it finds, and when it says that it cannot tell."""
import itertools
import math

import numpy as np
import pytest

from hvdscale.analysis.budgets import Budget
from hvdscale.analysis.quality import (BATCHES, NO_METRIC, STOPPED, UNFINISHED, detectable_rise, quality_of,
                                       rise_p_value, rise_share, split)
from hvdscale.analysis.intervals import isotonic
from hvdscale.analysis.report_data import Section
from hvdscale.analysis.search import best_of_n
from hvdscale.analysis.studies import studies_of
from hvdscale.log.schema import Status
from hvdscale.report.document import Shown, sentences_of
from hvdscale.report.views.budgets import find_quality, quality_table
from hvdscale.report.table import as_csv, as_text
from hvdscale.target import Target
from tests.factories.logs import log, trial
from hvdscale.report.pages import STUDIED, show
from hvdscale.report.subject import Subject

COLUMN, STEPS = "val/error", (0, 50, 100)


def swept(best, count=8, seed=1, short=(), status=Status.COMPLETE, first=0.9, settled=False):
    """Studies of ``count`` trials each whose errors end at best[batch] and above; short: batches that stop early;
    settled: they are there half way."""
    random = np.random.default_rng(seed)
    trials = []
    for batch, value in best.items():
        for id, final in enumerate(value + random.exponential(0.0025, count)):
            steps = STEPS[:2] if batch in short else STEPS
            errors = [first, final, final] if settled else np.linspace(first, final, len(steps))
            made = trial(id + 1000 * batch, steps, errors, batch=batch, seed=id, status=status)
            made.row["budget_steps"] = STEPS[-1]
            trials.append(made)
    return studies_of([log(*trials)])


def flat(*batches, value=0.1):
    return dict.fromkeys(batches, value)


# the statistic

def pool_adjacent(values):
    """Isotonic regression, slowly: blocks that fall are joined."""
    blocks = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [np.mean(block) for block in blocks for _ in block]


def test_the_isotonic_regression_is_that_of_pooled_blocks():
    random = np.random.default_rng(2)
    for count in (1, 2, 5, 9):
        rows = random.normal(size=(20, count))
        np.testing.assert_allclose(isotonic(rows), [pool_adjacent(row) for row in rows])


def test_the_p_value_is_the_share_of_all_orders():
    values = np.array([0.3, 0.1, 0.5, 0.4, 0.8])
    shares = [rise_share(np.array([order]))[0] for order in itertools.permutations(values)]
    assert rise_p_value(values) == pytest.approx(np.mean(np.array(shares) >= rise_share(values[None])[0] - 1e-9))
    assert rise_p_value(np.arange(4.0)) == pytest.approx(1 / 24) and rise_p_value(-np.arange(4.0)) == 1
    assert rise_p_value(np.full(6, 0.1)) == 1 and rise_p_value(np.full(9, 0.3)) == 1


def test_the_split_is_where_two_means_fit_best():
    at, rise = split(np.array([0.1, 0.12, 0.11, 0.31, 0.29, 0.3]))
    assert at == 3 and rise.value == pytest.approx(0.19) and rise.low < 0.19 < rise.high < 0.25


@pytest.mark.parametrize("batches", [4, 6])
def test_the_level_is_what_it_claims(batches, sweeps=300):
    random = np.random.default_rng(batches)
    found = [rise_p_value(random.exponential(size=(batches, 10)).min(1)) <= 0.05 for _ in range(sweeps)]
    assert np.mean(found) <= 0.08


def null_sweep(random, batches, scale=(1.0,), shape=(1.0,)):
    """The median best of 10 at each batch, of 10 to 30 trials: the same in truth, however the trials are spread."""
    values = []
    for batch in range(batches):
        wide, power = scale[batch * len(scale) // batches], shape[batch % len(shape)]
        count = int(random.integers(10, 31))
        costs = wide * (random.exponential(size=count) ** (1 / power) - (math.log(2) / 10) ** (1 / power))
        values.append(best_of_n(costs.tolist(), [False] * count, [10])[0].low)
    return np.array(values)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [5, 8, 12])
@pytest.mark.parametrize("spread, low, high", [({}, 0.02, 0.08), ({"scale": (1.0, 3.0)}, 0, 0.11), (
    {"scale": (3.0, 1.0)}, 0, 0.11), ({"shape": (0.5, 1.0, 2.0, 4.0)}, 0, 0.11)], ids=str)
def test_the_level_holds_and_stays_below_a_tenth_where_batches_are_not_alike(batches, spread, low, high, sweeps=500):
    random = np.random.default_rng(batches)
    assert low <= np.mean([rise_p_value(null_sweep(random, batches, **spread)) <= 0.05 for _ in range(sweeps)]) <= high


def test_what_is_called_detectable_is_found_as_often_as_said(sweeps=300):
    random = np.random.default_rng(0)
    rise = detectable_rise(6) * np.linspace(0, 1, 6)
    found = [rise_p_value(random.normal(size=6) + rise) <= 0.05 for _ in range(sweeps)]
    assert 0.7 <= np.mean(found) <= 0.9


# sweeps

def test_no_penalty_is_found_where_there_is_none_and_the_power_is_said(worded):
    found = quality_of(swept(flat(2, 4, 8, 16, 32, 64)), COLUMN, True)
    assert found.p_value > 0.05 and found.worse_from is None and found.n == 8 and found.detectable > 0
    said = sentences_of([find_quality(found)])
    worded(said[0])
    worded(said[1], about="would have")


def test_a_rise_behind_a_fall_is_open_where_the_intervals_lie_apart(worded):
    found = quality_of(swept({16: 0.2, 32: 0.15, 64: 0.1, 128: 0.15, 256: 0.2}), COLUMN, True)
    assert not found.penalty and found.apart
    [said] = [find_quality(found).said]
    worded(said, about="is open")
    assert not quality_of(swept(flat(16, 32, 64, 128, 256)), COLUMN, True).apart


def test_a_penalty_is_found_with_its_batch_and_size(worded):
    found = quality_of(swept(flat(2, 4, 8, 16, 32) | flat(64, 128, value=0.2)), COLUMN, True)
    assert found.penalty and found.worse_from == 64
    assert found.worse_by.low < 0.1 < found.worse_by.high and 0.08 < found.worse_by.value < 0.12
    said = sentences_of([find_quality(found)])
    worded(said[0], about="is worse")
    assert "p = 0.0" in said[1]


def test_a_metric_to_be_maximized_is_turned_round():
    worse = flat(2, 4, 8, 16, 32, value=0.9) | flat(64, 128, value=0.7)
    assert quality_of(swept(worse, first=0.1), COLUMN, False).penalty
    assert not quality_of(swept(worse), COLUMN, True).penalty


def test_a_metric_that_betters_with_the_batch_is_no_penalty_and_said_to(worded):
    found = quality_of(swept({2 ** k: 0.5 - 0.05 * k for k in range(1, 8)}, settled=True), COLUMN, True)
    assert found.improves and found.p_value > 0.5 and math.isnan(found.detectable)
    worded(sentences_of([find_quality(found)])[0], about="gets better")
    worded(sentences_of([find_quality(found)])[1], about="That it")


def test_better_large_batches_prove_nothing_if_small_ones_are_unfinished(worded):
    studies = swept({2 ** k: 0.5 - 0.05 * k for k in range(1, 8)})
    for budget, said in ((None, "within each trial's own budget"), (Budget(100, "steps"), "within 100 steps")):
        found = quality_of(studies, COLUMN, True, budget)
        assert found.why == UNFINISHED and math.isnan(found.p_value) and not found.penalty
        [told] = sentences_of([find_quality(found)])
        worded(told)
        assert ("by then batch 2 had seen 0.2" in told and "batch 128 13" in told) == (budget is not None)
    assert quality_of(studies, COLUMN, True, Budget(0.2, "epochs")).why != UNFINISHED


def test_the_report_tests_within_epochs_if_nothing_else_decides():
    random, made = np.random.default_rng(3), []
    for batch in (4, 8, 16, 32, 64):
        steps = np.arange(0, 9) * 512 // batch
        for id in range(8):
            errors = 0.9 / (1 + steps * batch / 500) + random.exponential(0.001)
            one = trial(id + 1000 * batch, steps, errors, batch=batch)
            one.row["budget_steps"] = 10 * steps[-1]
            made.append(one)
    studies = studies_of([log(*made)])
    section = Section(studies[0].workload, Target.parse("val/error<0.001"))
    said = Shown(tuple(show(STUDIED, Subject(**vars(section), studies=studies, held=True)))).summary
    assert quality_of(studies, COLUMN, True, Budget(64, "steps")).why == UNFINISHED
    assert quality_of(studies, COLUMN, True).why == STOPPED
    assert any(one.startswith("No sign of a large-batch penalty within 4 epochs: ") for one in said), said


def test_under_a_budget_of_epochs_it_says_that_these_are_fewer_steps(worded):
    studies = swept({10 * 2 ** k: 0.1 for k in range(5)})
    found = quality_of(studies, COLUMN, True, Budget(1, "epochs"))
    worded(find_quality(found).more, about="fewer steps")
    assert found.penalty
    assert not quality_of(studies, COLUMN, True, Budget(100, "steps")).penalty


@pytest.mark.parametrize("budget, short, ended, cure", [
    (None, (8, 16), "at their target. A search with keep_going", "larger budget"),
    (Budget(10 * STEPS[-1], "steps"), (), "at the end of their own budget. A search with a larger budget",
     "keep_going")])
def test_where_trials_ended_early_it_cannot_tell_and_says_how_they_did(budget, short, ended, cure):
    studies = swept(flat(2, 4, 8, 16, 32), short=short)
    found = quality_of(studies, COLUMN, True, budget)
    assert found.why == STOPPED and math.isnan(found.p_value) and found.short == (short or found.batches)
    told = find_quality(found)
    said = f"{told.said} {' '.join(told.more)}"
    assert told.kind == "quality_unknown" and ended in said and cure not in said
    assert not math.isnan(quality_of(studies, COLUMN, True, Budget(50, "steps")).p_value)


@pytest.mark.parametrize("stops", [True, False])
def test_where_trials_of_an_import_end_at_their_first_success_it_is_unknown(stops):
    random, made = np.random.default_rng(1), []
    for number in range(40):
        steps = np.arange(0, 101, 5)
        errors = np.minimum(0.9, 2 * (random.uniform(0.5, 2) * np.maximum(steps, 1)) ** -0.5)
        end = steps[errors < 0.3].min(initial=100) // 5 + 1 if stops else None
        made.append(trial(number, steps[:end], errors[:end], batch=2 ** (5 + number // 8), plan="{}", budget=0))
    found = quality_of(studies_of([log(*made)]), COLUMN, True)
    assert found.why == (STOPPED if stops else "")
    assert ("at their target, so their best values are alike by construction" in find_quality(found).said) == stops


@pytest.mark.parametrize("studies, why", [
    (swept(flat(2, 4, 8)), BATCHES), (swept(flat(2)), BATCHES), (swept(flat(2, 4, 8, 16), count=3), BATCHES),
    (swept(flat(2, 4, 8, 16), status=Status.INFEASIBLE), NO_METRIC),
    (swept(flat(2, 4, 8, 16, value=math.nan), first=math.nan), NO_METRIC)])
def test_of_too_few_batches_or_where_nothing_was_measured_it_cannot_tell(studies, why):
    found = quality_of(studies, COLUMN, True)
    assert found.why == why and math.isnan(found.p_value) and find_quality(found).kind == "quality_unknown"
    assert as_text(quality_table(found)) and as_csv(quality_table(found))
    assert ("the test needs 4" in find_quality(found).said) == (why == BATCHES)


def test_batches_are_compared_by_the_best_of_as_many_trials():
    studies = [one for batch, count in ((2, 6), (4, 12), (8, 24), (16, 6)) for one in swept(flat(batch), count)]
    found = quality_of(studies, COLUMN, True)
    assert found.n == 6 and [point.feasible for point in found.points] == [6, 12, 24, 6]
    values = found.points[2].values
    assert found.best[2] == pytest.approx(np.median([min(one) for one in itertools.combinations(values, 6)]), rel=0.05)
    assert [len(row.trials) for row in quality_table(found).rows] == [6, 12, 24, 6]
    assert quality_of(studies, "test/error", True) is None
