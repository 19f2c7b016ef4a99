"""The worker count is an execution detail: the same updates at any number of workers, with or without accumulation."""
import functools
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.plan.shards import epoch_order
from hvdscale.workers.group import SingleWorker
from tests.conftest import launch_in
from tests.parallel import toy

STEPS = 20
# global batches: of whole ghost groups; not divisible by 3 or 4 workers; of fewer groups than 4 workers
BATCHES = [dict(global_batch=24), dict(global_batch=22), dict(global_batch=10)]
VARIANTS = [dict(), dict(last_batch="short"), dict(last_batch="drop"), dict(bucket_mib=1e-4)]
# batch-norm, dropout and augmentation at once: by hvdscale's modules, and by torch's own, group by group
EVERYTHING = dict(augmented=True, model_args=dict(dropout=0.5, norm="ours"))
TORCHS_OWN = dict(augmented=True, ghost_batch=2, model_args=dict(dropout=0.5, norm="torch", drop="function"))
# ghost groups of 4; wider than a worker's share, so that workers share them; the whole step, in one pass
GHOSTS = [dict(), dict(ghost_batch=12), dict(ghost_batch="global", accumulate=1)]


def cases(passes):
    """Every variant at some batch; batch-norm at all, where it has groups enough for the passes of four workers."""
    yield from ({**batch, **variant} for batch, variant in zip(itertools.cycle(BATCHES), VARIANTS))
    for batch in BATCHES:
        groups = {12: batch["global_batch"] // 10, "global": 1, 2: batch["global_batch"] // 2}
        yield from ({**batch, **EVERYTHING, **ghost} for ghost in GHOSTS
                    if passes <= groups.get(ghost.get("ghost_batch"), passes))
        if 4 * passes <= groups[2]:
            yield {**batch, **TORCHS_OWN}


CONFIGURATIONS = [dict(dict(steps=STEPS, precision="fp64", accumulate=k), **case) for k in (1, 2) for case in cases(k)]
CONFIGURATIONS += [dict(steps=STEPS, precision="fp64", global_batch=24, last_batch="short", **EVERYTHING),
                   dict(steps=STEPS, precision="fp64", global_batch=24, optimizer="lars", clip_norm=0.5, **EVERYTHING),
                   *(dict(steps=STEPS, precision="fp64", global_batch=24, optimizer=optimizer, lr=0.01, augmented=True,
                          model_args=dict(dropout=0.5)) for optimizer in ("adamw", "lamb")),
                   dict(steps=STEPS, precision="fp64", global_batch=24, optimizer="adamw", lr=0.01, augmented=True,
                        lr_rule="adam_sqrt", base_batch=6, model_args=dict(dropout=0.5))]
# a batch that grows, within and over the shares, passes and ghost groups of four workers
GROWING = [[0, 10], [5, 22], [12, 24]]
CONFIGURATIONS += [dict(steps=STEPS, precision="fp64", batch_schedule=GROWING, **one) for one in (
    EVERYTHING, dict(EVERYTHING, accumulate=2), dict(EVERYTHING, ghost_batch=12), TORCHS_OWN,
    dict(optimizer="adamw", lr=0.01, augmented=True, lr_rule="adam_sqrt", base_batch=6, model_args=dict(dropout=0.5)),
    dict(augmented=True, accumulate=3, bucket_mib=1e-4, batch_schedule_lr="seesaw"))]
# the four without batch-norm, as they make steps of rounding errors: a bias before it has no gradient but these


@functools.cache
def alone(configuration):
    """What one worker makes of the configuration (JSON) in one pass."""
    return toy.trajectory(SingleWorker(), **{**json.loads(configuration), "accumulate": 1, "compression": "none"})


def norm_of_difference(run, reference, what=1):
    """Of the parameters, or (what=2) of the buffers, as a share of the reference's norm."""
    if not reference[what]:
        return 0.0
    return np.linalg.norm(np.subtract(run[what], reference[what])) / np.linalg.norm(reference[what])


# how far one step may stray by rounding, as a share of the norm of all parameters
ROUNDING = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}
NARROW = [dict(steps=1, precision=precision, accumulate=k, global_batch=24, ghost_batch=3, **variant)
          for precision in ROUNDING for k in (1, 2) for variant in ({}, EVERYTHING)]
NARROW += [dict(steps=1, compression="fp16", global_batch=24, **EVERYTHING)]
FIFTY = dict(steps=50, precision="fp64", global_batch=24)
EVERY = {("horovodrun", 3): 3, ("horovodrun", 1): 6, ("gloo", 2): 6}     # of the configurations; of other launches all


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory):
    """What every rank makes of each configuration, by launcher and number of workers; each pair is launched once."""
    @functools.cache
    def trajectories(launcher, np):
        given = [*CONFIGURATIONS[::EVERY.get((launcher, np), 1)], *NARROW, FIFTY]
        return given, launch_in(tmp_path_factory.mktemp("launched"), toy.trajectories, np, given, launcher)
    return trajectories


@pytest.mark.parametrize("launcher, np_", [
    ("horovodrun", 3),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ("horovodrun", 1), ("gloo", 2), ("mpirun", 2), ("mpirun", 3), ("mpirun", 4)))])
def test_any_worker_count_makes_the_updates_of_one_worker(trajectories, launcher, np_):
    given, ranks = trajectories(launcher, np_)
    assert all(rank == ranks[0] for rank in ranks)                      # to the last bit
    for configuration, got in zip(given[:-len(NARROW) - 1], ranks[0]):
        reference = alone(json.dumps({**configuration, "accumulate": 1}))
        assert norm_of_difference(got, reference) <= 1e-10, configuration
        assert norm_of_difference(got, reference, what=2) <= 1e-10, configuration
        np.testing.assert_allclose(got[0], reference[0], rtol=1e-9)


LAUNCHED = [("horovodrun", 3), *(pytest.param("mpirun", w, marks=pytest.mark.slow) for w in (2, 3, 4))]


@pytest.mark.parametrize("launcher, np_", LAUNCHED)
def test_one_step_in_narrow_arithmetic_stays_within_rounding(trajectories, launcher, np_):
    [*_, ranks] = trajectories(launcher, np_)
    for configuration, got in zip(NARROW, ranks[0][-len(NARROW) - 1:]):
        reference = alone(json.dumps({**configuration, "accumulate": 1}))
        limit = ROUNDING["fp16" if "compression" in configuration else configuration["precision"]]
        assert norm_of_difference(got, reference) <= limit, configuration


def plain_loop(steps, batch, lr, warmup, smoothing=0.1):
    """Nothing of hvdscale but the drawn parameters, the data and the order of the examples."""
    plan = toy.settled(1, precision="fp64", global_batch=batch)
    model = toy.make_model(toy.WORKLOAD, plan, torch.device("cpu"))
    train = toy.load().train
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": 1e-3}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)
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


@pytest.mark.parametrize("launcher, np_", [*LAUNCHED, pytest.param("horovodrun", 1, marks=pytest.mark.slow)])
def test_fifty_steps_equal_a_plain_torch_loop(trajectories, launcher, np_):
    got = trajectories(launcher, np_)[1][0][-1]
    reference = plain_loop(steps=50, batch=24, lr=0.05, warmup=5)
    assert np.linalg.norm(np.subtract(got[1], reference)) <= 1e-10 * np.linalg.norm(reference)
