"""Narrow arithmetic: fp32 parameters under bf16 and fp16, the loss scale, and gradients that travel as fp16."""
import copy
import math
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hvdscale.update.gradients import GradientBuffer
from hvdscale.update.model import make_model
from hvdscale.update.optimizers import make_optimizer
from hvdscale.update.precision import LossScale, set_arithmetic
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from tests.parallel import toy
from tests.factories.workers import on_each

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_means_near_the_largest_fp16_number_survive_the_sum_over_workers(workers):
    """Each worker's gradient is divided by the global batch before it travels; a sum of undivided ones would be inf."""
    wanted = 6e4
    assert torch.tensor(wanted, dtype=torch.float16) * 2 == math.inf

    def reduced(member):
        model = nn.Linear(3, 1, bias=False)
        buffer = GradientBuffer(model, 1, member, wire=torch.float16)
        buffer.begin()
        buffer.backward(model(torch.full((workers, 3), wanted))[member.rank].sum() / workers, last_pass=True)
        buffer.finish()
        tail = buffer.sum_([1e6])                               # what is not a gradient does not travel as fp16
        return model.weight.grad.tolist(), tail
    for gradients, tail in on_each(workers, reduced):
        assert gradients == [[pytest.approx(wanted, rel=1e-3)] * 3] and tail == [1e6 * workers]


@pytest.mark.parametrize("bucket_bytes", [0, 1, 100])
def test_gradients_that_travel_as_fp16_are_those_that_do_not_but_for_rounding(bucket_bytes):
    drawn = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))

    def reduced(member, wire):
        model = copy.deepcopy(drawn)
        buffer = GradientBuffer(model, 2, member, bucket_bytes, statistics=3, wire=wire)
        buffer.begin()
        buffer.statistics += 1e6 + member.rank
        buffer.backward(model(torch.full((1, 7), member.rank + 1.0)).sum() / 3, last_pass=True)
        buffer.finish()
        tail = buffer.sum_([member.rank, 1e6])
        return buffer.gradients.clone(), buffer.statistics.clone(), tail
    for (plain, *exact), (narrow, *others) in zip(on_each(3, lambda m: reduced(m, None)),
                                                  on_each(3, lambda m: reduced(m, torch.float16))):
        torch.testing.assert_close(narrow, plain, rtol=2e-3, atol=1e-4)
        assert torch.equal(exact[0], others[0]) and exact[1] == others[1] == [3, 3e6]


def test_the_loss_scale_halves_on_overflow_and_doubles_after_good_steps():
    scale, good, bad = LossScale(8.0), torch.ones(2), torch.tensor([1.0, math.inf])
    for gradients, accepted, value in [(good, True, 8), (bad, False, 4), (bad * math.nan, False, 2), (good, True, 2)]:
        assert scale.accepts(gradients) == accepted
        assert scale.value == value
    assert scale.left_out == 2
    for _ in range(scale.growth_steps - 1):
        assert scale.accepts(good)
    assert scale.value == 4
    assert vars(scale) == {"value": 4, "good_steps": 0, "left_out": 2}          # what a checkpoint keeps of it


def step_of(**layer):
    plan = toy.settled(1, **layer)
    model = make_model(toy.WORKLOAD, plan, CPU)
    optimizer = make_optimizer(plan, model)
    return DataParallelStep(plan, toy.WORKLOAD, toy.load().train, model, optimizer, SingleWorker(), CPU)


@pytest.mark.parametrize("keys", [dict(precision="fp16"), dict(compression="fp16")])
def test_an_update_that_overflows_is_left_out_and_the_next_ones_are_taken(keys):
    step = step_of(loss_scale=2.0**40, **keys)
    before = step.buffer.gradients.clone(), [p.clone() for p in step.model.parameters()]
    first = step(0, 0.1, set())
    assert math.isfinite(first.loss) and step.scale.value == 2.0**39
    assert all(torch.equal(p, q) for p, q in zip(step.model.parameters(), before[1]))
    losses = [step(i, 0.1, set()).loss for i in range(1, 60)]
    assert step.scale.left_out > 5 and losses[-1] < 0.8 * first.loss


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_model_computes_in_the_narrow_type_and_keeps_fp32(precision):
    step, seen = step_of(precision=precision), set()
    step.model.layers[-1].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    step(0, 0.1, set())
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert {p.dtype for p in step.model.parameters()} == {p.grad.dtype for p in step.model.parameters()} \
        == {torch.float32}


def test_the_loss_scale_does_not_show_in_the_update():
    small, large = step_of(precision="fp16", loss_scale=1.0), step_of(precision="fp16", loss_scale=1024.0)
    for step in (small, large):
        step(0, 0.1, set())
    for a, b in zip(small.model.parameters(), large.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_a_gpu_rounds_factors_only_where_that_is_asked_for():
    for precision in ("tf32", "fp32", "bf16"):
        set_arithmetic(SimpleNamespace(precision=precision, deterministic=False, exact=None), CPU)
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")


@pytest.mark.parametrize("wanted, exact, kind, set_", [
    (True, None, "cuda", True), (True, None, "cpu", False), (False, None, "cuda", False),
    (False, {"threads": 1}, "cuda", True)])
def test_torch_is_told_to_be_deterministic_on_a_gpu_alone(monkeypatch, wanted, exact, kind, set_):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        set_arithmetic(SimpleNamespace(precision="fp32", deterministic=wanted, exact=exact), torch.device(kind))
        assert torch.are_deterministic_algorithms_enabled() == ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == set_
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
