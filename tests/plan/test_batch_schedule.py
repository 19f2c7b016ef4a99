"""A batch that changes during training: the map from steps to batches and examples, and what the plan makes of it."""
import math

import numpy as np
import pytest

from hvdscale.errors import PlanError
from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.settings import Settings
from hvdscale.plan.shards import Stream, epoch_order, step_passes
from tests.factories.plans import settled

SCHEDULES = [[[0, 64]], [[0, 4], [3, 8]], [[0, 8], [1, 3], [7, 50]], [[0, 1], [10, 7], [11, 2], [40, 100]]]


def batches_one_by_one(pairs, steps):
    """The batch of each step, from the last pair that has begun."""
    return [[batch for start, batch in pairs if start <= step][-1] for step in range(steps)]


@pytest.mark.parametrize("pairs", SCHEDULES)
def test_the_map_is_the_sum_over_the_steps(pairs):
    batches, slow = BatchSchedule.of_pairs(pairs), batches_one_by_one(pairs, 60)
    before = 0
    for step, batch in enumerate(slow):
        assert batches.at(step) == batch
        assert batches.examples_before(step) == before
        assert batches.mean_before(step + 1) == pytest.approx(np.mean(slow[:step + 1]), rel=1e-14)
        for examples in (before + 1, before + batch):
            assert batches.steps_holding(examples) == step + 1
        before += batch
    assert (batches.smallest, batches.largest, batches.first) == (min(slow), max(slow), slow[0])


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_constant_batch_counts_by_multiplication_to_the_bit(batch):
    batches = BatchSchedule((batch,))
    for steps in (0, 1, 7.3, 1e9 + 1 / 3, math.inf):
        assert batches.examples_before(steps) == steps * batch
        assert batches.mean_before(steps) == batch
    assert math.isnan(batches.examples_before(math.nan)) and batches.mean_before(math.nan) == batch
    assert batches.steps_holding(10**15 * batch + 1) == 10**15 + 1
    assert batches == BatchSchedule.of_pairs([[0, batch], [5, batch]])


def test_a_batch_begins_at_the_first_step_by_which_its_examples_were_seen():
    batches = BatchSchedule.by_examples([[0, 10], [95, 20], [130, 40]])
    assert batches.pairs == ((0, 10), (10, 20), (12, 40))
    with pytest.raises(PlanError, match="change to 20 and to 40 at step 10"):
        BatchSchedule.by_examples([[0, 10], [95, 20], [99, 40]])


@pytest.mark.parametrize("pairs", SCHEDULES)
def test_the_stream_is_the_epochs_joined_end_to_end_whatever_the_batch(pairs):
    n, batches = 53, BatchSchedule.of_pairs(pairs)
    stream, seen = Stream(n, batches, seed=4), []
    for step in range(50):
        visits = stream.visits(step, 0, stream.size(step))
        assert stream.examples_before(step) == len(seen)
        assert stream.visits(step, 1, stream.size(step)).indices.tolist() == visits.indices.tolist()[1:]
        seen += zip(visits.epochs.tolist(), visits.indices.tolist())
    epochs = -(-len(seen) // n)
    assert seen == [(epoch, index) for epoch in range(epochs) for index in epoch_order(n, 4, epoch)][:len(seen)]
    assert stream.steps_in(1) == next(step for step in range(60) if stream.examples_before(step) >= n)


RAMP = [[0, 20], [10, 40], [30, 120]]


@pytest.mark.parametrize("keys", [dict(batch_schedule=RAMP),
                                  dict(batch_schedule_examples=[[0, 20], [200, 40], [1000, 120]]),
                                  dict(batch_schedule_epochs=[[0, 20], [0.2, 40], [1, 120]])])
def test_a_schedule_in_any_unit_is_one_in_steps(keys):
    plan = settled(**keys, workers=2)
    assert plan.batches == BatchSchedule((20, 40, 120), (0, 10, 30))
    assert (plan.global_batch, plan.batch_schedule) == (120, ((0, 20), (10, 40), (30, 120)))
    assert plan.stream.examples_before(30) == 1000


def test_a_schedule_of_one_piece_is_a_constant_batch_and_replaces_an_earlier_one():
    assert settled(batch_schedule=[[0, 40]], workers=2) == settled(global_batch=40, workers=2)
    assert Settings.build({"local_batch": 32}, {"batch_schedule": RAMP}).local_batch is None


def test_budgets_and_warmup_in_epochs_or_examples_follow_the_batch():
    plan = settled(batch_schedule=RAMP, epochs=2, warmup_epochs=0.4)
    assert plan.budget_steps == 30 + math.ceil(1000 / 120)
    assert plan.warmup_steps == 15                              # 10 of 20 and 5 of 40 are 400
    assert settled(batch_schedule=RAMP, examples=1001).budget_steps == 31


def test_evaluations_by_epochs_come_at_even_examples():
    plan = settled(batch_schedule=RAMP, eval_every_epochs=0.2, steps=40)
    assert (plan.eval_every, plan.eval_every_examples) == (10, 200)
    due = [step for step in range(41) if plan.evaluates_at(step)]
    counted = [plan.stream.examples_before(step) // 200 for step in range(41)]
    assert due == [step for step in range(41) if step in (0, 40) or counted[step] > counted[step - 1]]
    in_steps = settled(batch_schedule=RAMP, eval_every=7, steps=40)
    assert [step for step in range(41) if in_steps.evaluates_at(step)] == [0, 7, 14, 21, 28, 35, 40]


@pytest.mark.parametrize("rule", ["linear", "sqrt", "none", "power:0.3", "adam_sqrt"])
def test_by_the_rule_each_batch_has_the_rate_and_moments_of_a_run_of_its_own(rule):
    keys = dict(lr_rule=rule, optimizer="adam", base_batch=20, warmup="none", max_lr_factor=2.3)
    plan = settled(batch_schedule=RAMP, **keys)
    for step, batch in ((0, 20), (9, 20), (10, 40), (29, 40), (30, 120), (99, 120)):
        alone = settled(global_batch=batch, **keys)
        assert plan.schedule.lr_at(step) == pytest.approx(alone.schedule.lr_at(step), rel=1e-14)
        at = {"beta1": plan.beta1, "beta2": plan.beta2, "epsilon": plan.epsilon, **plan.updates_at(step)}
        assert at == pytest.approx({name: getattr(alone, name) for name in at}, rel=1e-14)


def test_half_lives_and_the_decays_time_scale_hold_at_every_batch():
    keys = dict(optimizer="adamw", beta2_half_life=5000.0, decay_timescale=7.0, warmup="none", base_batch=20)
    for how in ("rule", "stay", "seesaw"):
        plan = settled(batch_schedule=RAMP, batch_schedule_lr=how, **keys)
        for step, batch in ((0, 20), (10, 40), (30, 120)):
            now = plan.updates_at(step)
            assert batch * math.log(2) / -math.log(now["beta2"]) == pytest.approx(5000)
            rate = plan.schedule.lr_at(step)
            assert batch / (rate * now.get("weight_decay", plan.weight_decay) * 1000) == pytest.approx(7)


def test_the_rate_stays_or_falls_by_the_root_of_the_batch():
    """Seesaw's invariant for normalized SGD: rate / sqrt(batch) halves where a standard schedule halves the rate."""
    rates = {how: [settled(batch_schedule=RAMP, batch_schedule_lr=how, warmup="none").schedule.lr_at(step)
                   for step in (0, 10, 30)] for how in ("stay", "seesaw")}
    assert rates["stay"] == [rates["stay"][0]] * 3
    assert rates["seesaw"] == pytest.approx([rates["stay"][0] / math.sqrt(by) for by in (1, 2, 6)])


def test_smaller_batches_take_as_few_passes_as_fit():
    plan = settled(batch_schedule=[[0, 20], [10, 40], [30, 160]], max_local_batch=20, ghost_batch=10, workers=2)
    assert (plan.accumulate, plan.local_batch) == (4, 20)
    assert [plan.accumulate_at(batch) for batch in plan.batches.sizes] == [1, 1, 4]
    for batch in plan.batches.sizes:
        assert plan.passes(batch, 1) == step_passes(batch, 10, 2, plan.accumulate_at(batch))[1]
