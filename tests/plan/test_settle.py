"""The plan: what follows from what was asked, and what cannot hold, with numbers that would."""
import itertools
import json
import math
import re
from dataclasses import fields, replace

import pytest
from pytest import approx

from hvdscale.errors import PlanError
from hvdscale.formatting.numbers import counted
from hvdscale.plan.plan import Execution, Measurement, Plan, Problem
from hvdscale.plan.schedule import Schedule
from hvdscale.plan.settle import Place
from hvdscale.plan.scaling import decay_timescale_of, half_life_of
from tests.factories.plans import DEFAULTS, TRAIN, WORKLOAD, settled
from tests.wording import naming


# the batch

@pytest.mark.parametrize("workers, local, accumulate", list(itertools.product([1, 2, 3, 8], [1, 5, 16], [1, 2, 4])))
def test_the_global_batch_is_workers_times_local_batch_times_passes(workers, local, accumulate):
    plan = settled(workers, local_batch=local, accumulate=accumulate, ghost_batch=2)
    assert plan.global_batch == workers * local * accumulate
    assert (plan.workers, plan.accumulate) == (workers, accumulate)
    sizes = [part.stop - part.start for rank in range(workers) for part in plan.passes(plan.global_batch, rank)]
    assert (sum(sizes), max(sizes)) == (plan.global_batch, plan.local_batch)


def test_a_fixed_global_batch_is_carried_in_uneven_shares():
    plan = settled(3, global_batch=256)
    assert (plan.global_batch, plan.local_batch) == (256, 96)
    assert [plan.passes(256, rank)[0][:2] for rank in range(3)] == [(0, 64), (64, 160), (160, 256)]


@pytest.mark.parametrize("workers, batch, most, passes", [
    (2, 256, 32, 4), (2, 256, 128, 1), (1, 256, 50, 8), (3, 256, 32, 3), (2, 7, 1, 4), (1, 1000, 1, 1000),
    (4, 30, 3, 3)])
def test_accumulation_follows_from_what_fits_a_workers_memory(workers, batch, most, passes):
    plan = settled(workers, global_batch=batch, max_local_batch=most)
    assert (plan.accumulate, plan.global_batch) == (passes, batch)
    assert plan.local_batch <= most
    fewer = settled(workers, global_batch=batch, accumulate=max(1, passes - 1))
    assert passes == 1 or fewer.local_batch > most


def test_a_short_step_of_few_groups_has_as_many_passes_as_groups():
    plan = settled(2, global_batch=256, accumulate=4, last_batch="short")
    assert [len(plan.passes(size, 0)) for size in (256, 100, 70, 20)] == [4, 4, 3, 1]


@pytest.mark.parametrize("workers, batch, local", [(2, 20, 8), (3, 100, 10), (4, 6, 4), (1, 33, 32), (2, 500, 32)])
def test_batches_that_disagree_are_an_error_and_each_that_is_listed_fits(workers, batch, local):
    with pytest.raises(PlanError) as caught:
        settled(workers, global_batch=batch, local_batch=local)
    said = str(caught.value)
    assert re.match(rf"--global-batch {batch} is not {counted(workers, 'worker')} x --local-batch {local}"
                    r"( x \d+ passes|) = ", said)
    listed = re.search(r"--global-batch (\d+) or (\d+); or --global-batch (\d+) without", said)
    below, above, itself = map(int, listed.groups())
    assert itself == batch
    for fits in (below, above):
        assert settled(workers, global_batch=fits, local_batch=local).global_batch == fits
    assert settled(workers, global_batch=batch).global_batch == batch


@pytest.mark.parametrize("workers, batch, local, keys", [
    (2, 20, 4, dict(accumulate=3)), (1, 100, 10, dict(accumulate=4)), (3, 100, 10, dict(accumulate=2)),
    (2, 100, 30, dict(train=110)), (4, 3, 4, {}), (4, 7, 4, dict(accumulate=2)), (2, 90, 60, dict(train=100))])
def test_what_is_listed_fits_beside_the_passes_typed_and_in_the_training_set(workers, batch, local, keys):
    with pytest.raises(PlanError) as caught:
        settled(workers, global_batch=batch, local_batch=local, **keys)
    beside = re.search(r"What fits: (?:--global-batch (\d+)(?: or (\d+))?(?:$|;))?", str(caught.value)).groups()
    for fits in filter(None, beside):
        assert settled(workers, global_batch=int(fits), local_batch=local, **keys).global_batch == int(fits)
    if "in uneven shares" in str(caught.value):
        assert settled(workers, global_batch=batch, **keys).global_batch == batch


@pytest.mark.parametrize("workers, batch, accumulate", [(4, 3, 1), (2, 3, 2), (5, 1, 1), (3, 8, 3)])
def test_fewer_examples_than_passes_is_an_error_naming_fitting_workers(workers, batch, accumulate):
    said = naming(f"global batch of {batch}", f"{workers} workers" + f" x {accumulate} passes" * (accumulate > 1))
    with pytest.raises(PlanError, match=said) as caught:
        settled(workers, global_batch=batch, accumulate=accumulate)
    at_most = int(re.search(r"use at most (\d+) worker", str(caught.value)).group(1))
    assert settled(at_most, global_batch=batch, accumulate=accumulate).workers == at_most < workers


# the learning rate

@pytest.mark.parametrize("rule, factor", [
    ("linear", 8.0), ("sqrt", math.sqrt(8)), ("none", 1.0), ("power:0.7", 8 ** 0.7)])
def test_the_peak_is_the_base_rate_times_the_rules_factor(rule, factor):
    plan = settled(8, lr_rule=rule)
    assert (plan.base_lr, plan.base_batch, plan.global_batch) == (0.1, 10, 80)
    assert plan.lr_factor == pytest.approx(factor, rel=1e-14)
    assert plan.peak_lr == plan.base_lr * plan.lr_factor


# the rule that scales Adam's moments

ADAM = dict(optimizer="adam", lr_rule="adam_sqrt", beta1=0.95, beta2=0.995, epsilon=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lamb"])
@pytest.mark.parametrize("workers, base_batch", [(1, 20), (1, 10), (2, 10), (5, 10), (8, 10), (16, 10)])
def test_adam_sqrt_scales_rate_betas_and_epsilon(optimizer, workers, base_batch):
    """Malladi et al. 2022: with noise 1 / sqrt(B), rate * noise, (1 - beta) / rate^2 and epsilon / noise stay."""
    kappa = workers * 10 / base_batch
    plan = settled(workers, **{**ADAM, "optimizer": optimizer}, base_batch=base_batch)
    assert plan.peak_lr == pytest.approx(0.1 * math.sqrt(kappa), rel=1e-14)
    assert plan.beta1 == pytest.approx(1 - kappa * 0.05, rel=1e-13)
    assert plan.beta2 == pytest.approx(1 - kappa * 0.005, rel=1e-13)
    assert plan.epsilon == pytest.approx(1e-6 / math.sqrt(kappa), rel=1e-14)
    found = plan.metaparameters()
    assert [found[name] for name in ("beta1", "beta2", "epsilon")] == [plan.beta1, plan.beta2, plan.epsilon]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("keys", [
    ADAM, {**ADAM, "lr_rule": "adam_sqrt:beta2"}, dict(optimizer="adamw", beta1_half_life=100, beta2_half_life=1e4),
    dict(optimizer="adamw", decay_timescale=3)])
def test_workers_share_the_problem_of_one_worker_at_their_global_batch(workers, accumulate, keys):
    many = settled(workers, **keys, accumulate=accumulate, warmup_steps=5, decay="cosine")
    one = settled(1, **keys, global_batch=10 * workers * accumulate, warmup_steps=5, decay="cosine")
    for part in ("problem", "measurement"):
        assert many.as_record({})[part] == one.as_record({})[part]
    assert [many.schedule.lr_at(step) for step in range(101)] == [one.schedule.lr_at(step) for step in range(101)]


def test_a_cap_holds_all_that_adam_sqrt_scales_at_the_capped_batch():
    capped, at_nine = settled(64, max_lr_factor=3.0, **ADAM), settled(9, **ADAM)
    assert [getattr(capped, name) for name in ("peak_lr", "beta1", "beta2", "epsilon")] == [
        getattr(at_nine, name) for name in ("peak_lr", "beta1", "beta2", "epsilon")]
    assert settled(4, max_lr_factor=3.0, **ADAM) == settled(4, **ADAM)


# decays by their half-life in examples

@pytest.mark.parametrize("optimizer, name", [
    ("adam", "beta1"), ("adamw", "beta2"), ("lamb", "beta2"), ("nesterov", "momentum"), ("lars", "momentum")])
@pytest.mark.parametrize("workers", [1, 4, 30])
def test_a_half_life_halves_a_gradients_weight_over_as_many_examples_at_any_batch(optimizer, name, workers):
    plan = settled(workers, optimizer=optimizer, **{f"{name}_half_life": 600})
    steps = 600 / plan.global_batch
    assert getattr(plan, name) ** steps == pytest.approx(0.5, rel=1e-12)
    assert plan.metaparameters()[name] == getattr(plan, name)
    assert half_life_of(getattr(plan, name), plan.global_batch) == pytest.approx(600)


# weight decay by its time scale

@pytest.mark.parametrize("workers, rule", [(1, "linear"), (4, "linear"), (4, "sqrt"), (8, "none"), (6, "adam_sqrt")])
def test_a_decay_timescale_holds_batch_over_rate_decay_and_examples(workers, rule):
    plan = settled(workers, optimizer="adamw", lr_rule=rule, decay_timescale=2.5)
    assert plan.global_batch / (plan.peak_lr * plan.weight_decay * TRAIN) == pytest.approx(2.5, rel=1e-14)
    assert decay_timescale_of(plan.weight_decay, plan.peak_lr, plan.global_batch, TRAIN) == pytest.approx(2.5)
    assert plan.metaparameters()["weight_decay"] == plan.weight_decay


@pytest.mark.parametrize("rule, power", [
    ("linear", 0), ("sqrt", 0.5), ("adam_sqrt", 0.5), ("none", 1), ("power:0.7", 0.3)])
def test_under_one_weight_decay_the_timescale_grows_by_what_the_rate_lacks(rule, power):
    plans = [settled(workers, optimizer="adamw", lr_rule=rule, weight_decay=0.1) for workers in (1, 8)]
    one, eight = (decay_timescale_of(plan.weight_decay, plan.peak_lr, plan.global_batch, TRAIN) for plan in plans)
    assert eight / one == pytest.approx(8 ** power)


def test_the_problem_is_that_of_a_decay_however_it_was_given():
    for scale, decay in ((dict(beta1_half_life=600), dict(beta1=2 ** (-40 / 600))),
                         (dict(decay_timescale=2), dict(weight_decay=40 / (0.4 * 2 * 1000)))):
        assert settled(4, optimizer="adamw", **scale) == settled(4, optimizer="adamw", **decay)


TUNED = """
workload = "made/net"
[global_batch.40]
lr = 0.37
momentum = 0.83
warmup_steps = 7
decay = "linear"
decay_steps = 90
end_lr_factor = 0.05
[global_batch.80]
lr = 0.5
"""


@pytest.fixture
def tuned(tmp_path):
    (tmp_path / "tuned.toml").write_text(TUNED)
    return str(tmp_path / "tuned.toml")


def test_what_was_tuned_is_of_the_global_batch_and_what_was_typed_wins(tuned):
    plan = settled(4, lr_rule="tuned", metaparameters=tuned)
    assert (plan.peak_lr, plan.lr_factor, plan.base_batch, plan.momentum) == (0.37, 1.0, 40, 0.83)
    assert plan.schedule == Schedule(0.37, 0.0, "gradual", 7, "linear", 90, end_lr_factor=0.05)
    assert settled(8, lr_rule="tuned", metaparameters=tuned).peak_lr == 0.5
    plan = settled(4, lr_rule="tuned", metaparameters=tuned, momentum=0.5, end_lr_factor=0.5, warmup_start_factor=0.1)
    assert (plan.peak_lr, plan.momentum, plan.end_lr_factor) == (0.37, 0.5, 0.5)
    assert (plan.warmup_steps, plan.start_lr) == (7, pytest.approx(0.037))


# warmup and decay

def rates(plan, steps=120):
    return [plan.schedule.lr_at(step) for step in range(steps)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("keys", [
    dict(warmup_epochs=1), dict(decay="linear", decay_epochs=0.8), dict(decay="linear", decay_start_epochs=0.5),
    dict(decay="cosine", decay_epochs=0.5, warmup_epochs=0.2),
    dict(decay="step", decay_at_epochs=[0.2, 0.5]), dict(eval_every_epochs=0.1), dict(epochs=0.5)])
def test_a_length_in_epochs_is_the_same_plan_as_in_steps(workers, keys):
    """At any worker count, whatever the unit typed."""
    epoch = TRAIN // (10 * workers)
    in_steps = {key.replace("_epochs", "_steps") if key not in ("epochs", "eval_every_epochs") else
                {"epochs": "steps", "eval_every_epochs": "eval_every"}[key]:
                [round(v * epoch) for v in value] if isinstance(value, list) else
                value if isinstance(value, str) else round(value * epoch) for key, value in keys.items()}
    assert set(in_steps) != set(keys)
    by_epochs, by_steps = settled(workers, lr=0.3, **keys), settled(workers, lr=0.3, **in_steps)
    assert by_epochs == by_steps
    assert rates(by_epochs) == rates(by_steps)


def test_epochs_that_floats_cannot_hold_are_not_rounded_up():
    for tenths in range(1, 100):
        assert settled(epochs=tenths / 10).budget_steps == tenths * 10


def test_warmup_climbs_from_the_base_rate_but_not_from_above_the_peak_or_holds_it():
    plan = settled(8, warmup_steps=16)
    assert plan.schedule == Schedule(0.8, 0.1, "gradual", 16)
    assert rates(plan)[:17:8] == pytest.approx([0.1, 0.45, 0.8])
    plan = settled(1, warmup_steps=5, base_batch=20)
    assert plan.start_lr == plan.peak_lr == pytest.approx(0.05)
    assert rates(settled(8, warmup="constant", warmup_steps=3))[:5] == pytest.approx([0.1, 0.1, 0.1, 0.8, 0.8])


@pytest.mark.parametrize("workers, keys", [(1, {}), (8, dict(lr_rule="none"))])
def test_a_warmup_from_the_peak_is_flat_and_decay_still_starts_after_it(workers, keys):
    plan = settled(workers, warmup_steps=5, decay="linear", **keys)
    assert (plan.warmup_steps, plan.start_lr) == (5, plan.peak_lr)
    assert rates(plan)[:7] == pytest.approx([0.1] * 6 + [0.1 * (1 - 1 / (plan.budget_steps - 5))])


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_ends_with_the_budget_unless_told(decay):
    assert settled(decay=decay).decay_steps == 100
    assert settled(decay=decay, end_lr_factor=0.01).schedule.lr_at(100) == pytest.approx(0.001)
    assert settled(decay=decay, decay_steps=30).decay_steps == 30


# budget, target, evaluation

@pytest.mark.parametrize("last_batch", ["carry", "short", "drop"])
@pytest.mark.parametrize("examples", [1, 299, 300, 301, 1000, 1001, 2999, 3000, 3001])
def test_a_budget_in_examples_is_the_fewest_steps_that_see_so_many(last_batch, examples):
    plan = settled(global_batch=300, examples=examples, last_batch=last_batch)
    seen = list(itertools.accumulate(plan.stream.size(step) for step in range(20)))
    assert plan.budget_steps == 1 + next(i for i, total in enumerate(seen) if total >= examples)


def test_evaluations_stand_on_the_grid_and_at_the_end():
    plan = settled(steps=10, eval_every=4)
    assert [step for step in range(11) if plan.evaluates_at(step)] == [0, 4, 8, 10]
    assert not any(map(settled(steps=10, eval_every=0).evaluates_at, range(11)))
    seconds = settled(seconds=1.0, eval_every=4)
    assert [step for step in range(11) if seconds.evaluates_at(step)] == [0, 4, 8]


@pytest.mark.parametrize("target, settled_as", [
    ("val/error<0.01", "val/error<0.01"), (" test/error <= 1e-2", "test/error<=0.01"),
    ("val/classification_error<0.01", "val/error<0.01"), ("none", None)])
def test_a_target_is_stored_in_one_spelling(target, settled_as):
    plan = settled(target=target)
    assert plan.target == settled_as
    assert str(plan.stop_target) == str(settled_as)


# the place, and the record

def test_metaparameters_that_apply_are_numbers_and_others_nan():
    found = settled(8, optimizer="sgd", weight_decay=1e-4, label_smoothing=0.1, warmup_steps=5).metaparameters()
    assert all(math.isnan(found.pop(name)) for name in ("momentum", "beta1", "beta2", "epsilon", "trust_coefficient",
                                                        "clip_norm", "decay_steps", "end_lr_factor"))
    applying = {"learning_rate": pytest.approx(0.8), "weight_decay": 1e-4, "label_smoothing": 0.1, "warmup_steps": 5}
    assert found == applying
    found = settled(decay="linear", end_lr_factor=0.01).metaparameters()
    assert (found["momentum"], found["decay_steps"], found["end_lr_factor"]) == (0.9, 100.0, 0.01)
    assert all(type(value) is float for value in found.values())
    found = settled(optimizer="lamb", beta2=0.99, clip_norm=1).metaparameters()
    assert [found[name] for name in ("beta1", "beta2", "epsilon", "clip_norm")] == [0.9, 0.99, 1e-6, 1.0]


def test_the_record_has_every_field_once_and_goes_through_json():
    plan = settled(2, decay="step", decay_at_steps=[3], model_args={"width": 8}, target="val/error<0.1")
    record = plan.as_record({"seed": 0})
    back = json.loads(json.dumps(record, allow_nan=False))["problem"]
    assert {**back, "decay_at": tuple(back["decay_at"])} == {**record["problem"], "decay_at": (3,)}
    parts = [record[part] for part in ("problem", "measurement", "execution")]
    assert sorted([*itertools.chain(*parts), "job"]) == sorted(field.name for field in fields(Plan))
    assert parts == [{field.name: getattr(plan, field.name) for field in fields(kind)}
                     for kind in (Problem, Measurement, Execution)]
    assert record["asked"] == {"seed": 0} and "job" not in record
    assert replace(plan, job={"source": {}}).as_record({})["job"] == {"source": {}}


@pytest.mark.parametrize("target, said", [
    ("val/error>0.9", "val/error<0.9"), ("val/accuracy<=0.9", "val/accuracy>0.9")])
def test_a_target_in_the_worse_direction_is_an_error(monkeypatch, target, said):
    monkeypatch.setattr(WORKLOAD, "metrics", {"error": "min", "accuracy": "max"})
    with pytest.raises(PlanError, match=naming(target, said)):
        settled(target=target)
    assert str(settled(target="val/accuracy>=0.9").stop_target) == "val/accuracy>=0.9"


# single fields, by what is said of them: the workers, what is asked, and what the plan has

OWN = dict(DEFAULTS, optimizer="torch.optim:RMSprop", optimizer_args={"alpha": 0.9})
OF_ADAM, OF_ADAMW = ({**DEFAULTS, "optimizer": name} for name in ("adam", "adamw"))
FIELDS = {
    "every pass has the local batch that was typed": [
        (workers, dict(local_batch=local, accumulate=accumulate), dict(local_batch=local))
        for workers, local, accumulate in ((1, 32, 1), (4, 32, 1), (2, 16, 2), (3, 10, 1))],
    "passes follow from both batches where they agree": [
        (workers, dict(global_batch=batch, local_batch=local),
         dict(global_batch=batch, local_batch=local, accumulate=passes))
        for batch, local, workers, passes in ((64, 8, 2, 4), (64, 32, 2, 1), (64, 64, 1, 1), (30, 5, 3, 2))],
    "a local batch beyond the memory is cut into passes": [
        (2, dict(local_batch=128, max_local_batch=32), dict(global_batch=256, accumulate=4, local_batch=32))],
    "a global ghost batch is the whole step": [
        (2, dict(global_batch=256, ghost_batch="global"), dict(ghost_batch=256))],
    "a workload's default local batch gives way to a typed global batch": [
        (3, dict(global_batch=100), dict(global_batch=100))],
    "a batch may have an example a worker, or the whole training set": [
        (4, dict(global_batch=4), dict(local_batch=1)), (1, dict(global_batch=TRAIN), dict(global_batch=TRAIN))],
    "without a base batch the rate holds at the global batch": [
        (8, dict(defaults=dict(local_batch=10, lr=0.1, steps=9)), dict(base_batch=80, lr_factor=1.0, peak_lr=0.1))],
    "adam_sqrt of beta2 alone leaves beta1": [
        (64, dict(optimizer="adamw", lr_rule="adam_sqrt:beta2", epsilon=1e-6),
         dict(beta1=0.9, beta2=approx(1 - 64 * 0.001, rel=1e-13), lr_factor=8.0, epsilon=approx(1e-6 / 8))),
        (20, dict(optimizer="adam", lr_rule="adam_sqrt:beta2", beta1_half_life=400),
         dict(beta1=approx(0.5 ** 0.5), beta2=approx(0.98)))],
    "of a half-life and its decay the later layer counts, if the optimizer has it": [
        (1, dict(defaults={**OF_ADAM, "beta2_half_life": 600}, beta2=0.9), dict(beta2=0.9)),
        (1, dict(defaults={**OF_ADAM, "beta2": 0.9}, beta2_half_life=10), dict(beta2=0.5)),
        (1, dict(defaults={**OF_ADAM, "beta2_half_life": 600}, optimizer="sgd"), dict(beta2=None))],
    "a workload's weight decay gives way to a typed time scale, and the reverse": [
        (1, dict(defaults={**OF_ADAMW, "weight_decay": 0.3}, decay_timescale=10, decay_norm_and_bias=True),
         dict(weight_decay=approx(0.01))),
        (1, dict(defaults={**OF_ADAMW, "decay_timescale": 10}, weight_decay=0.3), dict(weight_decay=0.3)),
        (1, dict(defaults={**OF_ADAMW, "decay_timescale": 10}, optimizer="sgd"), dict(weight_decay=0))],
    "part of a step counts as a step; what is carried does not": [
        *((1, dict(epochs=epochs), dict(budget_steps=steps)) for epochs, steps in ((0.001, 1), (1.001, 101))),
        *((1, dict(global_batch=300, epochs=epochs, **last), dict(budget_steps=steps)) for epochs, last, steps in (
            (1, {}, 4), (3, {}, 10), (3, dict(last_batch="short"), 12), (3, dict(last_batch="drop"), 9)))],
    "a budget may be in steps, epochs, examples or seconds": [
        (3, keys, dict(budget_steps=steps, budget_seconds=seconds)) for keys, steps, seconds in (       # of 30 examples
            (dict(steps=77), 77, None), (dict(epochs=1), 34, None), (dict(seconds=2.5), 0, 2.5),
            *((dict(examples=examples), steps, None) for examples, steps in ((1000, 34), (30, 1), (31, 2), (1, 1))))],
    "no warmup is the peak from the first step": [
        (8, keys, dict(warmup="none", warmup_steps=0, start_lr=0.8, peak_lr=0.8))
        for keys in (dict(warmup="none"), dict(warmup_steps=0), dict(warmup_epochs=0), {})],
    "warmup may start at a share of the peak": [
        (8, dict(warmup_steps=16, warmup_start_factor=share), dict(start_lr=approx(0.8 * share)))
        for share in (0, 0.5)],
    "a rate per example times the batch ignores the cap": [
        (8, dict(defaults={**DEFAULTS, "max_lr_factor": 2.0}, lr_per_example=0.01),
         dict(peak_lr=approx(0.8), lr_rule="linear", base_batch=1))],
    "the training subset evaluated is as large as validation unless told": [
        (1, keys, dict(train_eval_examples=found)) for keys, found in (
            (dict(val=200), 200), (dict(val=5000), TRAIN), (dict(train_eval_examples=7), 7),
            (dict(train_eval_examples=7000), TRAIN))],
    "the target's split is always evaluated": [
        (1, dict(eval_splits=splits, target=target), dict(eval_splits=found)) for splits, target, found in (
            ("train,val,test", "none", ("train", "val", "test")), ("test, val", "none", ("val", "test")),
            ("train", "val/error<0.1", ("train", "val")), ("val", "none", ("val",)),
            ("val", "test/error<0.1", ("val", "test")))],
    "without evaluations a default target is dropped": [
        (1, dict(defaults={**DEFAULTS, "target": "val/error<0.1"}, eval_every=0), dict(target=None))],
    "evaluations are an epoch apart unless anything else is said": [
        (1, {}, dict(eval_every=TRAIN // DEFAULTS["local_batch"]))],
    "a worker has its share of the host's cores": [
        (1, dict(place=Place(8, 4, cores), **keys), dict(threads=threads)) for cores, keys, threads in (
            (16, {}, 4), (2, {}, 1), (16, dict(threads=3), 3))],
    "momentum is of the optimizers that have it": [
        (1, dict(optimizer=name), dict(momentum=momentum)) for name, momentum in (
            ("nesterov", 0.9), ("momentum", 0.9), ("sgd", None), ("torch.optim:Adam", None))],
    "momentum is corrected, and lars follows its paper": [
        (1, keys, dict(lr_in_velocity=inside, momentum_correction=corrected)) for keys, inside, corrected in (
            (dict(optimizer="momentum"), False, None), (dict(optimizer="nesterov", lr_in_velocity=True), True, True),
            (dict(optimizer="momentum", lr_in_velocity=True, momentum_correction=False), True, False),
            (dict(optimizer="lars"), True, False), (dict(optimizer="lars", momentum_correction=True), True, True),
            (dict(optimizer="adam"), None, None), (dict(optimizer="torch.optim:SGD"), None, None))],
    "epsilon has a default for each optimizer": [
        *((1, dict(optimizer=name), dict(epsilon=epsilon)) for name, epsilon in (
            ("adam", 1e-8), ("adamw", 1e-8), ("lamb", 1e-6), ("lars", None))),
        *((1, dict(optimizer=name, epsilon=1e-3), dict(epsilon=1e-3)) for name in ("adam", "adamw", "lamb"))],
    "a workload's keys for its own optimizer fall away under another": [
        (1, dict(defaults=OWN), dict(optimizer_args={"alpha": 0.9})),
        (1, dict(defaults=OWN, optimizer="adam"), dict(optimizer_args={}))]}


@pytest.mark.parametrize("said", FIELDS)
def test_the_plan_has_what_follows_from_what_was_asked(said):
    for workers, keys, expected in FIELDS[said]:
        plan = settled(workers, **keys)
        assert {name: getattr(plan, name) for name in expected} == expected, keys
