"""Keys in tokens: the lengths in examples at the training set's mean, of workloads that count tokens."""
import math

import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.settings import Settings, key_type
from hvdscale.plan.settle import Place, settle
from hvdscale.plan.tokens import IN_EXAMPLES
from tests.factories.plans import DEFAULTS, WORKLOAD

EXAMPLES, TOKENS = 1000, 12_500                 # 12.5 tokens an example


def settled(train_tokens=TOKENS, train=EXAMPLES, **typed):
    return settle(Settings.build(DEFAULTS, typed), WORKLOAD, train, 200, Place(), train_tokens)


def tokens_before(plan, step):
    return plan.stream.examples_before(step) * TOKENS / EXAMPLES


def test_a_budget_in_tokens_is_the_fewest_steps_that_hold_them_at_the_mean():
    for tokens in (1.0, 125.0, 126.0, 1e6, 12_500.0, 12_501.0):
        plan = settled(tokens=tokens)
        assert tokens_before(plan, plan.budget_steps) >= tokens > tokens_before(plan, plan.budget_steps - 1)
    assert settled(tokens=12_500.0).budget_steps == settled(epochs=1.0).budget_steps == 100


def test_evaluations_in_tokens_come_at_the_first_step_with_so_many():
    plan = settled(eval_every_tokens=300.0, steps=20)
    passed = [math.floor(tokens_before(plan, step) / 300 + 1e-12) for step in range(21)]
    assert [step for step in range(21) if plan.evaluates_at(step)] == [
        step for step in range(21) if step in (0, 20) or passed[step] > passed[step - 1]]
    in_examples = settled(eval_every_examples=24.0, steps=20)
    assert (plan.eval_every, plan.eval_every_examples) == (in_examples.eval_every, in_examples.eval_every_examples)


def test_a_schedule_in_tokens_is_that_in_examples():
    in_tokens = settled(batch_schedule_tokens=[[0, 10], [2500, 20], [10_000, 40]])
    assert in_tokens.batches == settled(batch_schedule_examples=[[0, 10], [200, 20], [800, 40]]).batches


@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_a_half_life_in_tokens_is_that_in_examples(name):
    in_tokens = settled(optimizer="adam", **{f"{name}_half_life_tokens": 1250.0})
    assert getattr(in_tokens, name) == getattr(settled(optimizer="adam", **{f"{name}_half_life": 100.0}), name)


def test_averages_by_their_half_life_in_tokens():
    assert settled(average="ema", average_half_life_tokens=1250.0).average_half_life == pytest.approx(100)


def test_momentum_by_its_half_life_in_tokens():
    assert settled(momentum_half_life_tokens=1250.0).momentum == pytest.approx(2 ** -0.1)


@pytest.mark.parametrize("name", IN_EXAMPLES)
def test_a_workload_that_counts_examples_refuses_tokens_and_names_the_key(name):
    value = [[0, 10], [5, 20]] if key_type(name) is list else 100.0
    with pytest.raises(PlanError, match=f"{name} = .*: made/net counts examples, not tokens; give {IN_EXAMPLES[name]}"):
        settled(train_tokens=None, optimizer="adam" if "beta" in name else "nesterov",
                average="ema" if "average" in name else "none", **{name: value})


@pytest.mark.parametrize("name", IN_EXAMPLES)
def test_a_key_in_tokens_and_that_in_examples_are_alternatives(name):
    tokens, examples = ([[0, 10]], [[0, 10]]) if key_type(name) is list else (100.0, 100)
    with pytest.raises(UsageError, match="are alternatives"):
        Settings.build({}, {name: tokens, IN_EXAMPLES[name]: examples})


def test_a_plan_without_keys_in_tokens_only_notes_the_number_of_tokens():
    assert settled().as_record({})["problem"] == settled(train_tokens=None).as_record({})["problem"]
    assert settled().train_tokens == TOKENS and settled(train_tokens=None).train_tokens is None
