"""Sums without rounding: equal to those of fractions but for the grid, the same bits in any order and at any split."""
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.errors import HvdscaleError, PlanError
from hvdscale.update.gradients import HUGE, LAST, MAIN, MOST_GROUPS, REACH, UNITS, ExactBuffer, check_exact
from hvdscale.workers.group import SingleWorker
from tests.factories.random_jobs import draw, run
from tests.factories.workers import on_each
from tests.parallel import toy

TAIL = (0.0, 3.0, 7.0)


def model(dtype=torch.float64):
    return nn.Linear(3, 2, dtype=dtype)


def summed(groups, worker, order=lambda groups: groups, dtype=torch.float64):
    """What the buffer of a worker gives for its part of the groups: of each the gradients (8 values) and the loss."""
    made, own = model(dtype), order(groups)[worker.rank::worker.size]
    buffer = ExactBuffer(made, len(TAIL), worker, 0, 1)
    buffer.begin()
    for gradients, loss in own:
        values = torch.tensor(gradients, dtype=dtype)
        made.bias.grad, made.weight.grad = values[:2].clone(), values[2:].view(2, 3).clone()
        buffer.end_pass(lambda: [loss])
    tail = buffer.sum_(TAIL)
    return torch.cat([made.bias.grad, made.weight.grad.flatten()]).tolist(), tail


def drawn(groups, scale=1.0, dtype=np.float64):
    rng = np.random.default_rng(5)
    return [(dtype(rng.normal(size=8) * 10.0 ** rng.uniform(-9, 2, 8) * scale).tolist(), float(rng.normal()))
            for _ in range(groups)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e11])
def test_the_sum_is_that_of_fractions_to_half_a_unit_of_the_last_word_a_group(dtype, scale, monkeypatch):
    monkeypatch.setattr("hvdscale.update.gradients.CHUNK", 3)           # of 8 values
    unit = UNITS[LAST if dtype == torch.float64 and scale == 1 else MAIN]
    groups = drawn(50, scale, np.float32 if dtype == torch.float32 else np.float64)
    found, tail = summed(groups, SingleWorker(), dtype=dtype)
    for place in range(8):
        true = sum(Fraction(gradients[place]) for gradients, _ in groups)
        narrow = np.float32 if dtype == torch.float32 else np.float64
        assert abs(found[place] - float(true)) <= 25 * unit + np.spacing(narrow(abs(float(true))))
    assert tail[0] == pytest.approx(float(sum(Fraction(loss) for _, loss in groups)), rel=1e-15)
    assert tail[1:] == list(TAIL[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e11])
def test_any_order_on_any_number_of_workers_has_the_same_bits(dtype, scale):
    groups = drawn(48, scale)
    alone = summed(groups, SingleWorker(), dtype=dtype)
    for workers in (1, 2, 3, 4, 8):
        def order(groups):
            return random.Random(workers).sample(groups, len(groups))
        ranks = on_each(workers, lambda worker: summed(groups, worker, order, dtype))
        assert all(rank[0] == alone[0] and rank[1][0] == alone[1][0] for rank in ranks)
        assert ranks[0][1][1:] == [workers * value for value in TAIL[1:]]


def test_a_plain_sum_of_the_same_values_depends_on_the_order():
    """So that the tests above could fail."""
    values = [np.float32(gradients[0]) for gradients, _ in drawn(48)]
    assert len({float(sum(random.Random(seed).sample(values, 48), np.float32(0))) for seed in range(20)}) > 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), HUGE, -2 * HUGE])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_gradient_that_is_not_finite_or_huge_makes_all_gradients_nan_and_leaves_the_loss(value, workers):
    groups = drawn(6)
    groups[4][0][3] = value
    for gradients, tail in on_each(workers, lambda worker: summed(groups, worker)):
        assert np.isnan(gradients).all() and tail[0] == summed(drawn(6), SingleWorker())[1][0]


def test_a_loss_that_is_not_finite_is_nan_and_leaves_the_gradients():
    groups = [(gradients, float("inf") if at == 2 else loss) for at, (gradients, loss) in enumerate(drawn(6))]
    gradients, tail = summed(groups, SingleWorker())
    assert np.isnan(tail[0]) and gradients == summed(drawn(6), SingleWorker())[0]


@pytest.mark.parametrize("value", [2 ** -30 / 3, 3 * 2 ** 10 + 1 / 3, 2 ** 40 + 1 / 3])
def test_words_that_one_worker_alone_has_are_summed_by_all(value):
    groups = drawn(6)
    groups[1] = ([value] * 8, 0.0)
    for gradients, _ in on_each(3, lambda worker: summed(groups, worker)):
        assert gradients[3] == pytest.approx(float(sum(Fraction(one[3]) for one, _ in groups)), rel=1e-15)


def test_small_gradients_of_an_fp32_model_keep_their_digits():
    groups = [([value * 1e-12 for value in gradients], loss) for gradients, loss in drawn(6, dtype=np.float32)]
    found, _ = summed(groups, SingleWorker(), dtype=torch.float32)
    assert found[3] == pytest.approx(float(sum(Fraction(np.float32(one[3]).item()) for one, _ in groups)), rel=1e-7)


@pytest.mark.parametrize("near", [np.nextafter(REACH * unit, 0) for unit in UNITS[:LAST]])
def test_the_most_groups_of_the_largest_values_still_add_up_without_rounding(near):
    made = model()
    buffer = ExactBuffer(made, len(TAIL), SingleWorker(), 0, 1)
    buffer.begin()
    for _ in range(MOST_GROUPS):
        made.bias.grad = torch.full((2,), near, dtype=torch.float64)
        made.weight.grad = torch.full((2, 3), -near / 3, dtype=torch.float64)
        buffer.end_pass(lambda: [0.0])
    buffer.sum_(TAIL)
    assert made.bias.grad.tolist() == [MOST_GROUPS * near] * 2
    assert made.weight.grad[0, 0].item() == pytest.approx(-MOST_GROUPS * near / 3, rel=1e-16)


@pytest.mark.parametrize("layer, said", [
    (dict(compression="fp16"), "compression = fp16"), (dict(group_by_group="never"), "group_by_group = never"),
    (dict(bucket_mib=1.0), "bucket_mib"),
    (dict(ghost_batch="global"), "the run has exact = true, so it runs group by group")])
def test_what_rounds_by_worker_is_refused_before_the_first_step(layer, said):
    refused = run({**EXACT, **layer}, IMAGES, workers=3)
    assert isinstance(refused, PlanError) and said in str(refused)


def test_more_groups_than_add_up_exactly_are_refused():
    plan = replace(toy.settled(1, global_batch=48), global_batch=2 * MOST_GROUPS + 2, ghost_batch=2,
                   exact=dict(threads=1))
    with pytest.raises(PlanError, match=f"up to {MOST_GROUPS} ghost groups .* has {MOST_GROUPS + 1}"):
        check_exact(plan)


def test_an_exact_plan_has_one_thread_at_any_worker_count_and_names_its_arithmetic():
    plans = [toy.settled(workers, exact=True) for workers in (1, 4)]
    assert [plan.threads for plan in plans] == [1, 1] and plans[0].exact == plans[1].exact == {"threads": 1}
    assert toy.settled(1, exact=True, threads=3).exact == {"threads": 3}
    assert toy.settled(1).exact is None and toy.settled(4, exact=True).noise_steps == plans[0].noise_steps


IMAGES, WORDS = (f"tests.factories.random_jobs:{name}" for name in ("images", "words"))
EXACT = dict(steps=12, global_batch=48, lr=0.02, ghost_batch=4, target="none", eval_every=5, exact=True, noise_every=2,
             data_args=dict(augmented=True), model_args=dict(norm="ours", drop="ours"))
JOBS = [dict(optimizer="sgd"), dict(optimizer="adamw", clip_norm=0.3, precision="bf16"),
        dict(optimizer="muon", precision="fp64"), dict(optimizer="lars", accumulate=2),
        dict(optimizer="adamw", last_batch="short", average="ema", average_half_life=50),
        dict(batch_schedule=[[0, 32], [4, 40], [8, 53]], model_args=dict(norm="torch", drop="function"))]


def assert_equal(layer, name, counts):
    alone = run(layer, name)
    assert not isinstance(alone, HvdscaleError), alone
    for workers in counts:
        other = run(layer, name, workers)
        assert (other.losses, other.evaluations, other.state, other.noise) == (
            alone.losses, alone.evaluations, alone.state, alone.noise)
    return alone


@pytest.mark.parametrize("layer", JOBS)
def test_runs_on_any_number_of_workers_are_equal_to_the_bit(layer):
    layer = {**EXACT, **layer}
    if "batch_schedule" in layer:
        layer.pop("global_batch")
    assert assert_equal(layer, IMAGES, (2, 3)).noise


def test_runs_over_tokens_of_several_lengths_are_equal_to_the_bit():
    layer = {**EXACT, "data_args": dict(examples=50), "model_args": dict(drop=True), "last_batch": "short"}
    assert_equal(layer, WORDS, (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "lars"])
def test_two_hundred_updates_on_one_to_eight_workers_are_equal_to_the_bit(precision, optimizer):
    assert_equal({**EXACT, "steps": 200, "eval_every": 50, "clip_norm": 0.3, "precision": precision, "global_batch": 24,
                  "ghost_batch": 3, "noise_every": 10, "optimizer": optimizer}, IMAGES, (2, 3, 4, 8))


@pytest.mark.slow
def test_exact_random_jobs_are_equal_to_the_bit_or_refused():
    equal = 0
    for seed in range(1000, 1150):
        job = draw(seed)
        layer = {**job.layer, "exact": True, "bucket_mib": 0.0}
        ways = run(layer, job.name), run({**layer, "accumulate": job.accumulate}, job.name, job.workers)
        if any(isinstance(way, HvdscaleError) for way in ways):
            continue
        assert ways[0].distances(ways[1]) == [0.0, 0.0, 0.0] and ways[0].noise == ways[1].noise, job
        equal += 1
    assert equal >= 50
