"""The gradient buffer: one sum over passes and workers, the same by buckets, the whole batch's gradient."""
import pytest
import torch
from torch import nn

from hvdscale.plan.shards import step_passes
from hvdscale.update.gradients import GradientBuffer
from hvdscale.workers.group import SingleWorker
from tests.factories.workers import on_each

BATCH, PARAMETERS = 23, 6
INPUTS = torch.randn(BATCH, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def losses(model, inputs):
    return model(inputs).square().sum(dim=1)


def whole_batch_gradient():
    """The gradient of the mean loss over the batch, parameters as the model has them."""
    model = model_of()
    losses(model, INPUTS).mean().backward()
    return [p.grad for p in model.parameters()]


def summed(member, model, loss, bucket_bytes):
    """The gradients of one pass, summed over the workers; loss: None where a member computes none."""
    buffer = GradientBuffer(model, 1, member, bucket_bytes)
    buffer.begin()
    if loss is not None:
        buffer.backward(loss, last_pass=True)
    buffer.finish()
    buffer.sum_([0.0])
    return [p.grad.clone() for p in model.parameters()]


def assert_close(gradients, wanted):
    for got, expected in zip(gradients, wanted):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bucket_bytes", [0, 1, 8 * 70, 10**6])
@pytest.mark.parametrize("workers, passes", [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (5, 1)])
def test_passes_and_workers_add_up_to_the_gradient_of_the_whole_batch(workers, passes, bucket_bytes):
    """Neither the number of passes nor uneven shares may tilt the mean: allreduce alone averages over workers."""
    models, wanted = [model_of() for _ in range(workers)], whole_batch_gradient()
    ranks_passes = step_passes(BATCH, 4, workers, passes)

    def reduced(member):
        model = models[member.rank]
        buffer = GradientBuffer(model, 2, member, bucket_bytes)
        mine = ranks_passes[member.rank]
        for step in range(2):                           # a buffer that is used again starts from nothing
            member.names.clear()
            buffer.begin()
            for number, (a, b, _) in enumerate(mine):
                buffer.backward(losses(model, INPUTS[a:b]).sum() / BATCH, last_pass=number == passes - 1)
            buffer.finish()
            tail = buffer.sum_([sum(b - a for a, b, _ in mine), member.rank + 1])
        return [p.grad.clone() for p in model.parameters()], tail, member.names

    buckets = {0: 1, 1: PARAMETERS, 10**6: 1} if workers > 1 else dict.fromkeys((0, 1, 8 * 70, 10**6), 0)
    ranks = on_each(workers, reduced)
    for gradients, tail, names in ranks:
        assert_close(gradients, wanted)
        assert tail == [BATCH, workers * (workers + 1) / 2]
        assert names == [f"gradients/{i}" for i in range(buckets.get(bucket_bytes, len(names)))] == ranks[0][2]


def test_buckets_set_off_in_the_order_of_backward_before_the_last_pass_ends_and_in_none_before():
    models = [model_of(), model_of()]

    def started_by_backward(member):
        buffer = GradientBuffer(models[member.rank], 1, member, bucket_bytes=1)
        buffer.begin()
        buffer.backward(losses(models[member.rank], INPUTS).mean(), last_pass=False)
        assert member.names == []
        buffer.backward(losses(models[member.rank], INPUTS).mean(), last_pass=True)
        by_backward = list(member.names)
        buffer.finish()
        buffer.sum_([0.0])
        return by_backward, member.names

    for by_backward, all_names in on_each(2, started_by_backward):
        assert by_backward == [f"gradients/{i}" for i in range(PARAMETERS - 1)]      # the last waits for the tail
        assert all_names == [f"gradients/{i}" for i in range(PARAMETERS)]


@pytest.mark.parametrize("flat", [False, True])
def test_one_worker_has_the_same_gradients_whether_they_are_flat_or_not(flat):
    model = model_of()
    model.unused = nn.Linear(3, 3).double()
    buffer = GradientBuffer(model, 1, SingleWorker(), flat=flat)
    for _ in range(2):
        buffer.begin()
        for number in range(3):
            buffer.backward(losses(model[:5], INPUTS[number::3]).sum() / BATCH, last_pass=number == 2)
        assert buffer.without_gradient() == [model.unused.bias, model.unused.weight]
        buffer.finish()
        assert buffer.sum_([2.5]) == [2.5]
    assert_close([p.grad for p in model.parameters()], whole_batch_gradient())
    assert model.unused.weight.grad.abs().max() == 0
    assert torch.equal(buffer.gradients, torch.cat([p.grad.flatten() for p in reversed(list(model.parameters()))]))
    assert [part.data_ptr() for part in buffer.parts] == (
        [buffer.gradients.data_ptr()] if flat else [p.grad.data_ptr() for p in reversed(list(model.parameters()))])


@pytest.mark.parametrize("bucket_bytes", [0, 1])
@pytest.mark.parametrize("workers", [1, 2])
def test_sparse_gradients_are_summed_as_dense_ones(workers, bucket_bytes):
    def made(sparse):
        torch.manual_seed(0)            # of all threads, so that no member may make its own
        return nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2)).double()

    def gradients(member, model):
        return summed(member, model, model(torch.tensor([1, 3, 3, member.rank])).square().sum(), bucket_bytes)

    both = []
    for sparse in (True, False):
        models = [made(sparse) for _ in range(workers)]
        both.append(on_each(workers, lambda m: gradients(m, models[m.rank])))
    for sparse, dense in zip(*both):
        assert_close(sparse, dense)


@pytest.mark.parametrize("bucket_bytes", [0, 1])
def test_frozen_parameters_have_no_place_and_unused_ones_add_zeros(bucket_bytes):
    models = [model_of(), model_of()]
    for model in models:
        model[0].bias.requires_grad_(False)
        model.unused = nn.Linear(3, 3).double()

    def reduced(member):
        model = models[member.rank]
        buffer = GradientBuffer(model, 1, member, bucket_bytes)
        for used in (True, False):
            buffer.begin()
            share = losses(model[:5], INPUTS).mean() / 2
            buffer.backward(share + (0 if used else model.unused(torch.ones(3).double()).sum()), last_pass=True)
            buffer.finish()
            buffer.sum_([0.0])
        buffer.begin()
        buffer.backward(losses(model[:5], INPUTS).mean() / 2, last_pass=True)
        buffer.finish()
        buffer.sum_([0.0])
        return buffer

    for model, buffer in zip(models, on_each(2, reduced)):
        assert len(buffer.gradients) == sum(p.numel() for p in model.parameters()) - 9
        assert model[0].bias.grad is None
        assert model.unused.weight.grad.abs().max() == 0        # nothing is left of the step before
        torch.testing.assert_close(model[0].weight.grad, whole_batch_gradient()[0], rtol=1e-12, atol=1e-14)


def test_a_parameter_that_one_rank_alone_uses_has_that_ranks_gradient():
    models = [model_of(), model_of()]

    def gradients(member):
        loss = losses(models[1], INPUTS).mean() if member.rank == 1 else None
        return summed(member, models[member.rank], loss, bucket_bytes=1)

    for found in on_each(2, gradients):
        assert_close(found, whole_batch_gradient())
