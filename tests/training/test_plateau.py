"""The plateau decay: torch's ReduceLROnPlateau on evaluated metrics, exact on resume."""
import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hvdscale.errors import PlanError
from hvdscale.log.reader import read_log
from hvdscale.plan.schedule import Schedule, reductions
from hvdscale.training.branches import origin_of
from tests.factories.plans import settled
from tests.factories.runs import assert_same_state, state_of
from tests.training.test_checkpoint import assert_goes_on_exactly

PLATEAU = dict(decay="plateau", decay_metric="val/cross_entropy", decay_patience=0, decay_threshold=0.02,
               decay_factor=0.5)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience, threshold, cooldown, end_lr_factor", [
    (0, 0.0, 0, 0.0), (2, 0.05, 0, 0.0), (1, 1e-4, 3, 0.0), (3, 0.2, 1, 0.05), (0, 0.0, 0, 0.1)])
def test_the_rate_is_that_of_torchs_scheduler(mode, patience, threshold, cooldown, end_lr_factor):
    values = 0.3 + np.exp(-0.05 * np.arange(200)) + 0.1 * np.random.default_rng(patience).random(200)
    values[[0, 50]] = math.nan
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.8)
    scheduler = ReduceLROnPlateau(optimizer, mode, 0.5, patience, threshold, "rel", cooldown, 0.8 * end_lr_factor, 0)
    schedule = Schedule(0.8, decay="plateau", decay_factor=0.5, end_lr_factor=end_lr_factor, plateau=dict(
        metric="val/m", better=mode, patience=patience, threshold=threshold, cooldown=cooldown))
    seen, rates = [], set()
    for step, value in enumerate(values if mode == "min" else 1 / values):
        scheduler.step(value)
        seen.append((step, value))
        rate = schedule.after(seen).lr_at(step)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        rates.add(rate)
    assert len(rates) > 3 and len(reductions(schedule.plateau, seen)) >= len(rates) - 1


def rates_of(path):
    with read_log(path) as log:
        return log.steps["lr"].tolist(), dict(zip(log.evaluations["step"], log.evaluations["val/cross_entropy"]))


def test_the_log_has_the_reductions_that_follow_from_its_evaluations(train):
    assert train(**PLATEAU, warmup_steps=4, eval_every=3) == 0
    rates, values = rates_of("w.h5")
    schedule = settled(warmup_steps=4, lr=0.1, **{**PLATEAU, "decay_metric": "val/error"}).schedule
    plateau = {**schedule.plateau, "metric": "val/cross_entropy"}
    at = reductions(plateau, [(step, value) for step, value in values.items() if step >= 4])
    assert len(at) > 1 and rates[4:] == [0.05 * 0.5 ** sum(step >= start for start in at) for step in range(4, 30)]
    said = [line for line in train.said().splitlines() if "is on a plateau; the learning rate falls from" in line]
    assert [int(line.split()[1].rstrip(":")) for line in said] == list(at)
    assert "x 0.5 when val/cross_entropy has not improved in more than 0 evaluations" in train.said()


@pytest.mark.parametrize("signals", [[9], [4, 13, 19]])
def test_a_run_with_plateaus_goes_on_to_the_last_bit(train, signals):
    """Signals at steps with and without an evaluation."""
    keys = {**PLATEAU, "eval_every": 5}
    assert_goes_on_exactly(train, signals, **keys)
    assert len(set(rates_of("w.h5")[0][5:])) > 1


def test_the_last_evaluation_of_a_shorter_budget_counts_only_on_the_grid(train):
    keys = {**PLATEAU, "eval_every": 4}
    assert train(**keys, steps=40, checkpoint="whole", log="whole.h5") == 0
    assert train(**keys, steps=22) == train(**keys, steps=24) == train(**keys, steps=40) == 0
    assert rates_of("w.h5")[0] == rates_of("whole.h5")[0] and len(set(rates_of("w.h5")[0][5:])) > 1
    assert_same_state(state_of("ck"), state_of("whole"))


def test_other_splits_on_resume_count_no_evaluation_twice(train):
    keys = {**PLATEAU, "eval_every": 5, "eval_splits": "val"}
    assert train(**keys, checkpoint="whole", log="whole.h5") == 0
    assert train(**keys, signal_at=18) == 75
    assert train(**{**keys, "eval_splits": "train,val"}) == 0
    assert rates_of("w.h5")[0] == rates_of("whole.h5")[0]


def test_another_grid_of_evaluations_is_another_problem(train):
    train(**PLATEAU, signal_at=12)
    with pytest.raises(PlanError, match="eval_every was 10, is now 5"):
        train(**PLATEAU, eval_every=5)
    with pytest.raises(PlanError, match="plateau.patience was 0, is now 3"):
        train(**{**PLATEAU, "decay_patience": 3})


def test_branches_have_the_reduced_rate_of_their_checkpoint(train):
    assert train(**PLATEAU, eval_every=5) == 0
    assert origin_of("ck/step-28.pt").rate == rates_of("w.h5")[0][28] < 0.05


def test_the_metric_is_the_targets_unless_set_and_its_split_is_evaluated():
    keys = dict(decay="plateau", target="test/error<0.1", eval_splits="train")
    assert settled(**keys).plateau["metric"] == "test/error"
    other = settled(**keys, decay_metric="val/cross_entropy")
    assert other.plateau["metric"] == "val/cross_entropy" and other.eval_splits == ("train", "val", "test")
