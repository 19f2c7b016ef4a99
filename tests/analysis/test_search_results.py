"""The published analysis' tables, held against its definitions in plain Python."""
import math

import numpy as np
import pytest

from hvdscale.analysis.search import first_feasible
from hvdscale.analysis.budgets import Budget, best_under
from hvdscale.analysis.curves import CurvePoint
from hvdscale.analysis.studies import better, check_direction, studies_of
from hvdscale.errors import UsageError
from hvdscale.exchange import imported
from hvdscale.log.schema import Status, column_of
from hvdscale.report.views.searches import steps_table
from hvdscale.report.table import as_csv, as_text, as_values
from hvdscale.target import Target
from tests.analysis.test_studies import with_trials
from tests.factories.logs import log, trial
from tests.factories.studies import drawn, studied

BELOW, ABOVE = Target.parse("val/error<0.3"), Target.parse("val/error>0.6")
BUDGETS = [None, Budget(6, "steps"), Budget(1, "steps"), Budget(64 * 9, "examples"), Budget(0.2, "epochs"),
           Budget(0.05, "seconds")]


def made_log(seed, trials=60, batches=(32, 64, 128)):
    """Trials of few values at few steps, so that ties abound; gaps, NaN, and every status; ids in no order."""
    random = np.random.default_rng(seed)

    def one(number):
        count = int(random.integers(0, 8))
        steps = np.cumsum(random.integers(1, 4, count))
        error = random.choice([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, np.nan], count, p=[.05, .1, .2, .2, .2, .1, .15])
        status = random.choice([1, 1, 2, 3, 0])
        return trial(int(number), steps, error, batch=int(random.choice(batches)), status=Status(int(status)))
    return log(*map(one, random.permutation(trials)))


def chosen(trials, num_trials=None):
    """The first COMPLETE trials by id."""
    complete = sorted((one for one in trials if one.status == Status.COMPLETE), key=lambda one: one.id)
    return complete[:num_trials]


def rows_of(trials):
    """(step, trial id, value, seconds) of every measurement."""
    return [(int(step), one.id, float(value), float(seconds)) for one in trials for step, value, seconds in
            zip(one.step, one.metrics["val/error"], one.train_seconds)]


def published_steps(trials, goal, maximize):
    """The first row beyond the goal of all rows sorted by step, then trial id; None without one."""
    for step, number, value, _ in sorted(rows_of(trials)):
        if (value > goal if maximize else value < goal):
            return step, number, value
    return None


def published_best(trials, maximize, allowed):
    """(value, step, trial id) of every row that the published table may show: those of the best value."""
    rows = [(value, step, number) for step, number, value, seconds in rows_of(trials)
            if value == value and allowed(step, seconds)]
    best = (max if maximize else min)((value for value, *_ in rows), default=None)
    return [row for row in rows if row[0] == best]


def with_first(study, count):
    """As the published analysis takes them: the first trials that are COMPLETE."""
    return study if count is None else first_feasible(study, count)


@pytest.mark.parametrize("target", [BELOW, ABOVE], ids=str)
@pytest.mark.parametrize("num_trials", [None, 3])
def test_steps_to_result_are_the_published_ones(target, num_trials):
    shown = set()
    for seed in range(6):
        for study, trials in with_trials([made_log(seed)]):
            found = CurvePoint(with_first(study, num_trials), target)
            expected = published_steps(chosen(trials, num_trials), target.value, not target.minimizes)
            if expected is None:
                assert found.fewest == math.inf and found.best is None and math.isnan(found.value)
            else:
                assert (found.fewest, found.keys[0][1], found.value) == expected
            shown.add(expected is None)
    assert False in shown


@pytest.mark.parametrize("minimizes", [True, False])
@pytest.mark.parametrize("num_trials", [None, 3])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_best_under_a_budget_is_a_published_one(budget, num_trials, minimizes):
    for study, trials in [pair for seed in range(4) for pair in with_trials([made_log(seed)])]:
        [[found]] = best_under([with_first(study, num_trials)], "val/error", minimizes, [budget]).rows
        allowed = {None: lambda step, seconds: True, "steps": lambda step, seconds: step <= budget.amount,
                   "examples": lambda step, seconds: step * study.global_batch <= budget.amount,
                   "epochs": lambda step, seconds: step * study.global_batch <= budget.amount * 1000,
                   "seconds": lambda step, seconds: seconds <= budget.amount}[budget and budget.unit]
        expected = published_best(chosen(trials, num_trials), not minimizes, allowed)
        if expected:
            assert (found.value, found.step, study.key(found.trial)[1]) in expected
        else:
            assert found.trial is None and math.isnan(found.value) and math.isnan(found.step)


def test_steps_to_a_result_count_the_evaluations_that_measured_it_alone():
    target = Target.parse("val/error<0.2")
    sparse, first, never = (trial(0, (0, 68, 99, 137), (0.9, 0.5, math.nan, 0.1)), trial(0, (50, 99), (0.1, 0.1)),
                            trial(0, (0, 99), (math.nan, math.nan)))
    found = [CurvePoint(study, target) for made in (sparse, first, never) for study in studies_of([log(made)])]
    np.testing.assert_equal([one.before for one in found], [68, math.nan, math.nan])
    [unmet] = studies_of([log(trial(0, (0, 68, 99), (0.9, 0.5, math.nan)))])
    assert CurvePoint(unmet, target).beyond == 68 and math.isnan(found[2].beyond)
    assert "never measured" in as_text(steps_table((found[0], found[2])))


def test_pruned_trials_that_met_an_easier_target_count_and_repeats_do_not():
    study, = studies_of([studied(drawn(0, 700), drawn(1, easier=200, pruned=300), drawn(0, 100, repeat=1))])
    found = CurvePoint(study, Target.parse("val/error<0.2"))
    assert (found.fewest, found.before, found.trials, found.pruned) == (200, 100, 2, 1)
    [[found]] = best_under([study], "val/error", True, [None]).rows
    assert found.step == 700


def test_trials_that_met_before_diverging_are_counted_apart():
    study, = studies_of([log(trial(0, error=(0.9, 0.5, 0.5)), trial(1, error=(0.9, 0.1, 0.9), status=Status.INFEASIBLE),
                             trial(2, error=(0.9, 0.8, np.nan), status=Status.INFEASIBLE))])
    found = CurvePoint(study, BELOW)
    assert (found.best, found.met, found.trials, found.infeasible, found.met_before_diverging) == (None, 0, 1, 2, 1)
    assert found.beyond == 200


def test_a_table_shows_each_batch_with_its_trial():
    made = log(trial(4, error=(0.9, 0.5, 0.1), batch=32), trial(5, error=(0.9, 0.1, 0.1), batch=64),
               trial(6, error=(0.9, 0.5, 0.5), batch=128), trial(7, batch=256, status=Status.INFEASIBLE),
               trial(8, (), (), batch=512, status=Status.RUNNING), trial(9, error=(0.9, 0.1, 0.1), batch=64))
    table = steps_table([CurvePoint(study, BELOW) for study in studies_of([made])])
    assert [[cell.shown for cell in row.cells[:5]] for row in table.rows] == [
        ["32", "200", "4", "0.100", "1/1"], ["64", "100", "5", "0.100", "2/2"],
        ["128", "not met", "none", "n/a", "0/1"], ["256", "diverged", "none", "n/a", "0/0"],
        ["512", "n/a", "none", "n/a", "0/0"]]
    assert [row.trials for row in table.rows] == [(("made.h5", 4),), (("made.h5", 5),), (), (), ()]
    assert "fewest steps to val/error<0.3" in as_text(table)
    assert as_csv(table).splitlines()[1].startswith("32,200.0,100.0,200.0,4,0.1,1,0,0,made.h5:4")
    assert as_values(table)["rows"][2]["cells"]["fewest_steps"] == {
        "shown": "not met", "value": None, "low": 200.0, "high": None}


@pytest.mark.parametrize("written, meant", [("val/error>0.1", "val/error<0.1"), ("test/bleu<=20", "test/bleu>=20"),
                                            ("val/cross_entropy>=3.9", "val/cross_entropy<=3.9"),
                                            ("val/average_precision<0.31", "val/average_precision>0.31")])
def test_a_target_that_asks_for_worse_is_refused(written, meant):
    with pytest.raises(UsageError, match=f"write '{meant}'"):
        check_direction(Target.parse(written), [])
    check_direction(Target.parse(meant), [])


def test_a_log_says_which_way_its_metric_gets_better(worded):
    made = log(trial(0), metric="val/x")
    check_direction(Target.parse("val/x<1"), [made])
    check_direction(Target.parse("val/x>1"), [made])
    made.evaluations = type("Table", (), {"specs": {"val/x": column_of("evaluations", "val/x", "larger")}})()
    assert better("val/x", [made, log()]) == "larger"
    with worded.error(UsageError):
        check_direction(Target.parse("val/x<1"), [made])


@pytest.mark.parametrize("metric, way", [("top5_error", "smaller"), ("top5_accuracy", "larger"), ("bleu", "larger")])
def test_a_metric_has_one_direction_on_import_and_in_the_analysis(metric, way):
    assert better(f"val/{metric}", []) == imported.better(f"val/{metric}") == way
