"""The map of batch against base rate: by hand, with both budgets out of one log."""
import math

import numpy as np
import pytest

from hvdscale.analysis.budgets import Budget, TrialKind, base_rates_of, both_readings, value_range
from hvdscale.analysis.studies import studies_of
from hvdscale.log.schema import Status
from hvdscale.report.views.budgets import base_rates_table
from hvdscale.report.table import as_text
from tests.factories.landscapes import logged
from tests.factories.logs import log, trial

EXAMPLES = 1000
COLUMN = "val/error"


def ran(id, batch, lr, errors, *, every=10, momentum=math.nan, budget=None, **changes):
    steps = every * np.arange(len(errors))
    made = trial(id, steps, errors, batch=batch, train_examples=EXAMPLES, peak_lr=lr, seed=id, **changes)
    made.row["budget_steps"] = steps[-1] if budget is None else budget
    made.momentum = momentum
    return made


def mapped(*trials, **given):
    return base_rates_of(studies_of([logged(*trials)]), COLUMN, True, **given)


def test_each_trial_has_its_rate_per_example_and_each_batch_its_best():
    found = mapped(ran(0, 10, 0.1, [0.9, 0.3]), ran(1, 10, 0.4, [0.9, 0.2]), ran(2, 20, 0.1, [0.9, 0.4]),
                   *(ran(id, batch, 6.4, [0.9, 0.9], status=Status.INFEASIBLE) for id, batch in ((3, 20), (4, 40))))
    assert found.global_batch.tolist() == [10, 10, 20, 20, 40] and found.batches == (10, 20, 40)
    assert found.rate == pytest.approx([0.01, 0.04, 0.005, 0.32, 0.16])
    assert found.log2_rate == pytest.approx(np.log2(found.rate)) and not found.effective
    assert found.kind.tolist() == [TrialKind.MEASURED] * 3 + [TrialKind.DIVERGED] * 2 and math.isnan(found.value[3])
    assert found.best == (1, 2) and [found.key(at) for at in found.best] == [("made.h5", 1), ("made.h5", 2)]


def test_with_momentum_the_rate_is_the_effective_one():
    found = mapped(ran(0, 10, 0.1, [0.9, 0.3], momentum=0.9), ran(1, 10, 0.1, [0.9, 0.3], momentum=0.0))
    assert found.effective and found.rate == pytest.approx([0.1, 0.01])


def test_both_readings_come_from_one_log():
    slow = [0.9, 0.7, 0.5, 0.3, 0.1]                # by steps the same at every batch
    trials = [ran(batch, batch, 0.1, slow) for batch in (10, 20, 40)]
    studies = studies_of([logged(*trials)])
    epochs, (_, steps) = mapped(*trials, budget=Budget(0.4, "epochs")), both_readings(studies, COLUMN, True)
    assert epochs.budget == Budget(0.4, "epochs") and steps.budget == Budget(40, "steps")
    assert epochs.value == pytest.approx([0.1, 0.5, 0.7]) and steps.value == pytest.approx([0.1] * 3)
    table = base_rates_table(epochs, steps)
    assert [column.title for column in table.columns[1::2]] == ["best within 0.4 epochs", "best within 40 steps"]
    assert "-6.6" in as_text(table)


def test_by_default_the_budgets_are_what_every_batch_has_run():
    trials = [ran(0, 10, 0.1, [0.9] * 21), ran(1, 20, 0.1, [0.9] * 6),
              ran(2, 20, 0.1, [0.9] * 3, status=Status.RUNNING)]
    epochs, steps = both_readings(studies_of([logged(*trials)]), COLUMN, True)
    assert steps.budget == Budget(50, "steps") and epochs.budget == Budget(1, "epochs")
    assert set(epochs.kind) == set(steps.kind) == {TrialKind.MEASURED}


def test_trials_that_ended_early_are_short_and_may_still_be_the_best():
    found = mapped(ran(0, 10, 0.1, [0.9, 0.8, 0.7, 0.6, 0.5]), ran(1, 10, 0.2, [0.9, 0.1], budget=40))
    assert found.kind.tolist() == [TrialKind.MEASURED, TrialKind.SHORT] and found.best == (1,)
    assert "0.100 +" in as_text(base_rates_table(found))


def test_without_rates_metrics_or_trials_there_is_no_map():
    unknown = ran(0, 10, 0.1, [0.9, 0.1])
    unknown.row["metaparameters/learning_rate"] = math.nan
    assert mapped(unknown) is None
    studies = studies_of([logged(ran(0, 10, 0.1, [0.9, 0.1]))])
    assert base_rates_of(studies, "test/error", True) is None and both_readings([], COLUMN, True) == (None, None)
    assert base_rates_table(None, None) is None


def test_without_the_size_of_an_epoch_only_the_reading_by_steps_is_there():
    epochs, steps = both_readings(studies_of([log(trial(0, [0, 10], [0.9, 0.3], train_examples=0))]), COLUMN, True)
    assert epochs is None and steps.value == pytest.approx([0.3])


def test_the_best_value_of_maps_and_the_worst_that_is_told_apart():
    for minimizes, first, found in ((True, 0.9, (0.1, 0.4)), (False, 0.0, (0.8, 0.2))):
        trials = [ran(id, 10, 0.1, [first, last]) for id, last in enumerate((0.1, 0.2, 0.3, 0.4, 0.8))]
        made = base_rates_of(studies_of([logged(*trials)]), COLUMN, minimizes)
        assert value_range([made]) == value_range([made, made]) == pytest.approx(found)
