"""The best of a metric under budgets: against a slow reference, and where trials ended early or nothing is known."""
import math

import numpy as np
import pytest

from hvdscale.analysis.budgets import Budget, BudgetPoint, TrialKind, best_under, best_value_of
from hvdscale.analysis.studies import studies_of
from hvdscale.errors import UsageError
from hvdscale.log.schema import PRUNED, Status
from hvdscale.report.document import sentences_of
from hvdscale.report.views.budgets import find_budgets, budgets_table, warnings
from hvdscale.report.table import as_csv, as_text, as_values
from tests.factories.logs import log, trial

EVERY, BUDGET, EXAMPLES = 10, 100, 1000
COLUMN = "val/error"


def ran(id, errors, *, batch=10, seconds=None, **changes):
    """A trial with these errors, one every EVERY steps from 0 on, of a budget of BUDGET steps."""
    steps = EVERY * np.arange(len(errors))
    made = trial(id, steps, errors, seconds, batch=batch, train_examples=EXAMPLES, seed=id, eval_every=EVERY,
                 budget=BUDGET, **changes)
    made.row["budget_steps"] = BUDGET
    return made


def falling(id, best, **changes):
    """Down to ``best`` in the whole budget."""
    return ran(id, np.linspace(0.9, best, BUDGET // EVERY + 1), **changes)


def studies(*trials):
    return studies_of([log(*trials)])


def study(*trials):
    [found] = studies(*trials)
    return found


# budgets as written

@pytest.mark.parametrize("text, amount, unit, said", [
    ("10 epochs", 10, "epochs", "10 epochs"), ("1 epoch", 1, "epochs", "1 epoch"),
    ("5,000steps", 5000, "steps", "5,000 steps"),
    ("2.5 epochs", 2.5, "epochs", "2.5 epochs"), ("1e6 examples", 1e6, "examples", "1,000,000 examples"),
    (" 60 seconds ", 60, "seconds", "60 seconds"), ("2 h", 7200, "seconds", "7,200 seconds")])
def test_a_budget_is_read_and_written(text, amount, unit, said):
    budget = Budget.parse(text)
    assert (budget.amount, budget.unit, str(budget)) == (amount, unit, said)


@pytest.mark.parametrize("text", ["", "10", "epochs", "10 tokens", "0 steps", "-1 epochs", "nan steps", "1e999 steps",
                                  "1..2 steps"])
def test_what_is_no_budget_is_refused(text, worded):
    with worded.error(UsageError):
        Budget.parse(text)


def test_epochs_of_an_unknown_size_are_refused_by_name(worded):
    [found] = studies_of([log(trial(1, train_examples=0))])
    with worded.error(UsageError):
        BudgetPoint(found, COLUMN, True, Budget(3, "epochs"))


# held to

@pytest.mark.parametrize("minimizes", [True, False])
@pytest.mark.parametrize("budget", ["25 steps", "100 steps", "0.31 epochs", "0.5 epochs", "470 examples", "0.3 seconds",
                                    "9 steps", None])
def test_the_best_within_a_budget_is_that_of_a_plain_loop(budget, minimizes):
    random = np.random.default_rng(5)
    trials = [ran(id, np.where(random.random(count) < 0.2, np.nan, random.integers(1, 9, count) / 10),
                  seconds=np.cumsum(random.random(count))) for id, count in enumerate((11, 1, 7, 11, 4))]
    budget = budget and Budget.parse(budget)
    found = BudgetPoint(study(*trials), COLUMN, minimizes, budget)
    for one, value, step in zip(trials, found.values, found.steps):
        along = {None: one.step, "steps": one.step, "examples": 10 * one.step, "seconds": one.seconds,
                 "epochs": 10 * one.step / EXAMPLES}[budget and budget.unit]
        best, where = math.nan, math.nan
        for at, error in enumerate(one.error):
            if not math.isnan(error) and (budget is None or along[at] <= budget.amount):
                if math.isnan(best) or (error < best if minimizes else error > best):
                    best, where = error, one.step[at]
        assert (value == best and step == where) or (math.isnan(best) and math.isnan(value) and math.isnan(step))


def test_trials_are_told_apart_by_how_they_ended():
    found = study(falling(0, 0.1), ran(1, [0.9, 0.5, 0.1]), falling(2, 0.2, status=Status.INFEASIBLE),
                  ran(3, [0.9, 0.8], status=Status.INCOMPLETE, stop_reason="pruned after step 10"),
                  ran(4, [0.9, 0.7], status=Status.INCOMPLETE, stop_reason="failed: no such layer"))
    measured, short = TrialKind.MEASURED, TrialKind.SHORT
    for budget, first, second, pruned in ((None, measured, short, short), ("20 steps", measured, measured, short),
                                          ("10 steps", measured, measured, measured),
                                          ("0.25 epochs", measured, measured, short),
                                          ("0.3 epochs", measured, short, short), ("200 steps", short, short, short)):
        held = BudgetPoint(found, COLUMN, True, budget and Budget.parse(budget))
        assert held.kind.tolist() == [first, second, TrialKind.DIVERGED, pruned, TrialKind.LOST], budget


def test_larger_batches_have_fewer_steps_of_an_epoch():
    small, large = studies(falling(0, 0.1, batch=10), falling(1, 0.1, batch=20))
    epochs, steps = Budget(0.4, "epochs"), Budget(40, "steps")
    assert BudgetPoint(small, COLUMN, True, epochs).value < BudgetPoint(large, COLUMN, True, epochs).value
    assert BudgetPoint(small, COLUMN, True, steps).value == BudgetPoint(large, COLUMN, True, steps).value


# the table

def table_of(*trials, budgets=(Budget(50, "steps"), Budget(1, "epochs"), None), minimizes=True):
    return best_under(studies(*trials), COLUMN, minimizes, budgets)


def test_the_best_of_a_batch_is_of_its_feasible_trials_and_not_of_repeats():
    trials = [falling(id, 0.1 + 0.01 * id) for id in range(1, 6)] + [falling(9, 0.01, status=Status.INFEASIBLE)]
    [[point], *_] = table_of(*trials).rows
    assert point.trial == 0 and point.value == pytest.approx(trials[0].error[5]) and point.step == 50
    assert (point.feasible, point.short, point.diverged) == (5, 0, 1)
    assert point.best.low < point.value <= point.best.high
    assert point.keys[0] == ("made.h5", 1) and len(point.keys) == 5


@pytest.mark.parametrize("minimizes, best", [(True, 0.2), (False, 0.9)])
def test_the_best_of_all_trials_is_the_best_one(minimizes, best):
    [[point]] = table_of(*[falling(id, one) for id, one in enumerate((0.5, 0.2, 0.4))], budgets=[None],
                         minimizes=minimizes).rows
    assert [one.n for one in point.curve] == [1, 2, 3] and point.curve[-1].low == point.best.value == best


def test_a_best_that_ended_before_the_budget_is_marked_and_said(worded):
    found = table_of(*[falling(id, 0.3) for id in range(4)], ran(7, [0.9, 0.05]))
    assert found.rows[2][0].best_is_short and not found.rows[0][0].keys == ()
    assert "0.0500 +" in as_text(budgets_table(found))
    *_, last = find_budgets(found)
    worded(last.said, about="the best")
    assert last.named["short"] == "at batch 10"


PRUNED_TRIAL = {"status": Status.INCOMPLETE, "stop_reason": f"{PRUNED} by its study"}


@pytest.mark.parametrize("trials, said", [
    ([falling(id, 0.3 - 0.1 * id) for id in range(3)], "at the end of its own budget"),
    ([falling(0, 0.3), ran(7, [0.9, 0.05])], "at its target"),
    ([falling(0, 0.3), ran(7, [0.9, 0.05], **PRUNED_TRIAL)], "stopped by its search")])
def test_it_is_said_how_a_best_trial_ended_before_the_budget(trials, said):
    found = table_of(*trials, budgets=(Budget(10 * BUDGET, "steps"),))
    [finding] = find_budgets(found)
    assert finding.named["how"] == said and f"was spent, {said};" in finding.said
    ways = [way for way in ("own budget", "its target", "its search") if way in " ".join(warnings(found))]
    assert len(ways) == 1 and ways[0] in said


@pytest.mark.parametrize("steps, target, said", [
    (BUDGET, None, "at the end of its own budget"), (0, None, "at the end of its own budget"),
    (0, "val/error<0.1", "at its target or at the end of its own budget")])
def test_the_plans_target_explains_an_end_without_a_step_budget(steps, target, said):
    made = falling(0, 0.05, target=target)
    made.row["budget_steps"] = steps
    [finding] = find_budgets(table_of(made, budgets=(Budget(10 * BUDGET, "steps"),)))
    assert finding.named["how"] == said


@pytest.mark.parametrize("trials", [
    [falling(id, 0.1, status=Status.INFEASIBLE) for id in range(3)], [ran(0, [np.nan] * 11)], [ran(0, [0.5])]])
def test_where_nothing_is_known_nothing_is_claimed(trials):
    found = table_of(*trials)
    table = budgets_table(found)
    assert as_csv(table) and as_values(table) and "inf" not in as_text(table) and sentences_of(find_budgets(found))


def test_one_trial_has_no_interval_and_no_budget_no_table():
    found = table_of(falling(0, 0.2))
    assert math.isnan(found.rows[0][0].best.low) and "n/a" not in as_text(budgets_table(found))
    assert best_under(studies(falling(0, 0.1)), "test/error", True, [None]) is None
    assert best_under(studies(falling(0, 0.1)), COLUMN, True, []) is None


def test_each_row_names_its_trials():
    found = table_of(*[falling(id, 0.1 + 0.01 * id, batch=10 * 2 ** (id % 2)) for id in range(6)])
    assert [len(row.trials) for row in budgets_table(found).rows] == [3, 3]
    assert budgets_table(found).rows[0].trials[0] == ("made.h5", 0)


@pytest.mark.parametrize("draw, minimizes", [
    (lambda random: 0.01 + 0.05 * random.random(20) ** 2, True), (lambda random: random.beta(8, 2, 20), False),
    (lambda random: 3.9 + random.exponential(0.2, 20), True), (lambda random: random.normal(0, 1, 20), True)])
def test_intervals_of_the_best_cover_the_median_best_of_as_many(draw, minimizes, sweeps=150):
    random = np.random.default_rng(1)
    pick = np.min if minimizes else np.max
    truth = np.median([pick(draw(random)) for _ in range(20001)])
    inside = [one.low <= truth <= one.high for one in (best_value_of(draw(random), minimizes) for _ in range(sweeps))]
    assert 0.88 <= np.mean(inside)
