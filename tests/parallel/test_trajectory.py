"""The worker count is an execution detail: the same updates at any number of workers, with or without accumulation."""
import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.shards import epoch_order
from hvdscale.workers import Lone
from tests.parallel import toy

STEPS = 20
# global batches: of whole ghost groups; not divisible by 3 or 4 workers; of fewer groups than 4 workers
BATCHES = [dict(global_batch=24), dict(global_batch=22), dict(global_batch=10)]
VARIANTS = [
    dict(), dict(last_batch="short"), dict(last_batch="drop"), dict(model_args={"dropout": 0.5}), dict(bucket_mib=1e-4)]
CONFIGURATIONS = [
    dict(steps=STEPS, precision="fp64", accumulate=k, **batch, **variant)
    for k in (1, 2) for batch in BATCHES for variant in VARIANTS]


def norm_of_difference(run, reference):
    return np.linalg.norm(np.subtract(run[1], reference[1])) / np.linalg.norm(reference[1])


@pytest.mark.parametrize("launcher, np_", [
    ("horovodrun", 1), ("mpirun", 2), ("horovodrun", 3), ("mpirun", 4), ("gloo", 2)])
def test_any_worker_count_makes_the_updates_of_one_worker(launch, launcher, np_):
    ranks = launch("trajectories", np_, CONFIGURATIONS, launcher)
    assert all(rank == ranks[0] for rank in ranks)                      # to the last bit
    for configuration, got in zip(CONFIGURATIONS, ranks[0]):
        reference = toy.trajectory(Lone(), **{**configuration, "accumulate": 1})
        assert norm_of_difference(got, reference) <= 1e-10, configuration
        np.testing.assert_allclose(got[0], reference[0], rtol=1e-9)


@pytest.mark.parametrize("np_", [2, 4])
def test_one_step_in_float32_stays_within_rounding(launch, np_):
    given = [dict(steps=1, precision="fp32", accumulate=k, global_batch=24) for k in (1, 2)]
    reference = toy.trajectory(Lone(), steps=1, precision="fp32", global_batch=24)
    for got in launch("trajectories", np_, given)[0]:
        assert norm_of_difference(got, reference) <= 1e-5


def plain_loop(steps, batch, lr, warmup, smoothing=0.1, decay=1e-3, momentum=0.9):
    """Nothing of hvdscale but the drawn parameters, the data and the order of the examples."""
    plan = toy.settled(1, precision="fp64", global_batch=batch)
    model = toy.make_model(toy.WORKLOAD, plan, torch.device("cpu"))
    train = toy.load().train
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": decay}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=True)
    order = np.concatenate([epoch_order(toy.TRAIN, 0, epoch) for epoch in range(steps * batch // toy.TRAIN + 1)])
    for step in range(steps):
        chosen = order[step * batch:(step + 1) * batch]
        x, y = train.inputs[chosen], train.labels[chosen]
        wanted = torch.full((batch, toy.CLASSES), smoothing / (toy.CLASSES - 1), dtype=torch.float64)
        wanted[torch.arange(batch), y] = 1 - smoothing
        loss = -(wanted * nn.functional.log_softmax(model(x), dim=1)).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        peak = lr * batch / 8
        for group in optimizer.param_groups:
            group["lr"] = lr + (peak - lr) * step / warmup if step < warmup else peak
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.parametrize("np_", [1, 2])
def test_fifty_steps_equal_a_plain_torch_loop(launch, np_):
    got = launch("trajectories", np_, [dict(steps=50, precision="fp64", global_batch=24)])[0][0]
    reference = plain_loop(steps=50, batch=24, lr=0.05, warmup=5)
    assert np.linalg.norm(np.subtract(got[1], reference)) <= 1e-10 * np.linalg.norm(reference)
