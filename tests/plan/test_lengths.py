"""Lengths: how they are spelled, and what they count; in tokens at the training set's mean."""
import json
import math

import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.lengths import Length, read
from hvdscale.plan.settings import KEYS, LENGTHS, Settings, key_of, key_type
from hvdscale.plan.settle import Place, settle
from tests.factories.plans import DEFAULTS, WORKLOAD

EXAMPLES, TOKENS = 1000, 12_500                 # 12.5 tokens an example


def settled(train_tokens=TOKENS, train=EXAMPLES, defaults=DEFAULTS, **typed):
    return settle(Settings.build(defaults, typed), WORKLOAD, train, 200, Place(), train_tokens)


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


@pytest.mark.parametrize("name, in_tokens, in_examples", [
    ("batch_schedule", [[0, 10], [2500, 20], [10_000, 40]], [[0, 10], [200, 20], [800, 40]]),
    ("beta1_half_life", 1250.0, 100.0), ("beta2_half_life", 1250.0, 100.0)])
def test_a_schedule_and_a_half_life_in_tokens_are_those_in_examples(name, in_tokens, in_examples):
    found, expected = (settled(optimizer="adam", **{name: Length(amount, unit)}).as_record({})["problem"]
                       for amount, unit in ((in_tokens, "tokens"), (in_examples, "examples")))
    assert found == expected


@pytest.mark.parametrize("name", [name for name, (_, unit) in LENGTHS.items() if unit == "tokens"])
def test_a_workload_that_counts_examples_refuses_tokens_and_names_the_key(name, worded):
    value = [[0, 10], [5, 20]] if key_of(name) == "batch_schedule" else [5, 20] if key_type(name) is list else 100.0
    with worded.error(PlanError):
        settled(train_tokens=None, optimizer="adamw", average="ema", **{name: value})


# spellings

@pytest.mark.parametrize("name", [name for name, (_, unit) in LENGTHS.items() if unit])
def test_name_unit_means_name_with_that_unit(name):
    """Every spelling of a length: NAME_UNIT = v means NAME = "v UNIT", or that the key has no such unit."""
    key, unit = LENGTHS[name]
    value = {"numbers": [3, 5], "pairs": [[0, 3], [5, 6]], None: 3}[KEYS[key].metadata["many"]]
    if unit not in KEYS[key].metadata["units"]:
        with pytest.raises(UsageError, match=f"{name} = .* cannot be in {unit}: give "):
            Settings.build({}, {name: value})
        return
    by_name, by_text, by_length = (Settings.build({}, layer) for layer in (
        {name: value}, {key: f"{json.dumps(value)} {unit}"}, {key: Length(value, unit)}))
    assert getattr(by_name, key) == getattr(by_text, key) == getattr(by_length, key) == Length(value, unit)
    assert by_name.asked() == by_text.asked() == by_length.asked()
    assert Settings.build({}, json.loads(json.dumps(by_name.asked()))).asked() == by_name.asked()       # through a log


# the names of version 1, which logs, presets, tuned.toml and people's files have
NAMES = """
steps epochs examples tokens seconds warmup_steps warmup_epochs decay_start_steps decay_start_epochs decay_steps
decay_epochs decay_at_steps decay_at_epochs batch_schedule batch_schedule_epochs batch_schedule_examples
batch_schedule_tokens momentum_half_life momentum_half_life_tokens beta1_half_life beta1_half_life_tokens
beta2_half_life beta2_half_life_tokens average_half_life average_half_life_tokens average_start_steps
average_start_epochs eval_every eval_every_epochs eval_every_examples eval_every_tokens checkpoint_every
checkpoint_every_epochs checkpoint_every_seconds decay_timescale
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_a_length_has_had_is_read_and_written_as_a_number(name):
    value = [[0, 3], [5, 6]] if key_of(name) == "batch_schedule" else [3, 5] if key_type(name) is list else 3
    assert Settings.build({}, {name: value}).asked() == {name: value}


@pytest.mark.parametrize("text, length", [
    ("10 epochs", Length(10, "epochs")), ("1 epoch", Length(1, "epochs")), ("1e8 tokens", Length(1e8, "tokens")),
    ("0.5epochs", Length(0.5, "epochs")), ("5 min", Length(300, "seconds")), ("1.5 h", Length(5400, "seconds")),
    ("90 s", Length(90, "seconds")), ("[30, 60] epochs", Length([30, 60], "epochs")),
    ("30, 60 epochs", Length([30, 60], "epochs")), (["30 epochs", "60 epochs"], Length([30, 60], "epochs")),
    ([[0, 8], ["5 epochs", 16]], Length([[0, 8], [5, 16]], "epochs")), (7, Length(7, None)),
    (["30 epochs", "60 steps"], None), ("epochs", None), ("ten epochs", None), ("10 parsecs", None), ("10", None)])
def test_a_length_is_read_from_its_text(text, length):
    assert read(text) == length


@pytest.mark.parametrize("length, text", [
    (Length(10.0, "epochs"), "10 epochs"), (Length(1, "steps"), "1 step"), (Length(1e-3, "epochs"), "0.001 epochs"),
    (Length([[0, 8], [5, 16]], "epochs"), "[[0, 8], [5, 16]] epochs")])
def test_a_length_is_written_so_that_it_can_be_read(length, text):
    assert str(length) == text and read(text) == length


def test_a_later_length_of_the_warmup_makes_one_where_there_was_none():
    assert settled(defaults={**DEFAULTS, "warmup": "none"}, warmup="20 steps").warmup_steps == 20
    with pytest.raises(PlanError, match="warmup_steps acts only with warmup = gradual or constant"):
        settled(warmup_steps=20, warmup="none")


@pytest.mark.parametrize("keys, steps", [
    (dict(warmup="1250 tokens"), dict(warmup_steps=10)), (dict(warmup="95 examples"), dict(warmup_steps=10)),
    (dict(decay="linear", decay_end="6250 tokens"), dict(decay_steps=50)),
    (dict(decay="linear", decay_start="6250 tokens"), dict(decay_start=50)),
    (dict(decay="step", decay_at="6250, 8750 tokens"), dict(decay_at=(50, 70))),
    (dict(decay="step", decay_at_steps=[5, 5, 9]), dict(decay_at=(5, 5, 9))),
    (dict(average="tail", average_start="500 examples"), dict(average_start=50)),
    (dict(checkpoint="x", checkpoint_every="250 examples"), dict(checkpoint_every=25)),
    (dict(checkpoint="x", checkpoint_every="5 min"), dict(checkpoint_every=0, checkpoint_seconds=300)),
    (dict(budget="2 min"), dict(budget_steps=0, budget_seconds=120))])
def test_every_length_counts_in_every_unit_that_it_can(keys, steps):
    plan = settled(**keys)
    assert {name: getattr(plan, name) for name in steps} == steps


def test_half_lives_and_time_scales_count_epochs_examples_and_tokens():
    for text in ("0.1 epochs", "100 examples", "1250 tokens"):
        assert settled(momentum_half_life=text).momentum == 2 ** -0.1
        assert settled(average="ema", average_half_life=text).average_half_life == 100
    scales = [settled(optimizer="adamw", decay_timescale=scale).weight_decay
              for scale in (2, "2000 examples", "25000 tokens")]
    assert scales == [scales[0]] * 3


def test_a_plan_without_keys_in_tokens_only_notes_the_number_of_tokens():
    assert settled().as_record({})["problem"] == settled(train_tokens=None).as_record({})["problem"]
    assert settled().train_tokens == TOKENS and settled(train_tokens=None).train_tokens is None
