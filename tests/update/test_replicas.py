"""Replicas on one worker against plain loops: of synchronous steps, and of DiLoCo."""
import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.plan.shards import epoch_order
from hvdscale.workers.group import SingleWorker
from hvdscale.update.replicas import Sender
from tests.parallel import toy
from tests.parallel.test_trajectory import EVERYTHING, norm_of_difference

STEPS, BATCH, SYNC_EVERY = 20, 24, 6


def made(**layer):
    batch = {} if "batch_schedule" in layer else {"global_batch": BATCH}
    return toy.trajectory(SingleWorker(), **{"steps": STEPS, "precision": "fp64", **batch, **layer})


@pytest.mark.parametrize("how", [{}, {"optimizer": "adamw", "lr": 0.01}, EVERYTHING, {"exact": True}])
def test_one_replica_that_is_averaged_is_the_synchronous_run_to_the_last_bit(how):
    assert made(replicas=1, sync_every=5, **how) == made(**how)


# linear in the gradients; with weight decay, batch-norm's statistics, dropout, augmentation, a batch that grows
@pytest.mark.parametrize("replicas, how", [
    (3, {}), (6, {"optimizer": "sgd"}), (4, {"optimizer": "momentum"}), (3, EVERYTHING),
    (2, {"ghost_batch": 12, **EVERYTHING}), (4, {"batch_schedule": [[0, 8], [7, 24]], **EVERYTHING, "ghost_batch": 2})])
def test_replicas_averaged_at_every_step_make_the_synchronous_run(replicas, how):
    got, reference = made(replicas=replicas, sync_every=1, **how), made(**how)
    for what in (1, 2):
        assert norm_of_difference(got, reference, what) <= 1e-12
    np.testing.assert_allclose(got[0], reference[0], rtol=1e-12)


def diloco(replicas, rate, momentum, clip=0.05):
    """The weights after STEPS with AdamW inside: nothing of hvdscale but the drawn model and the order of the data."""
    plan = toy.settled(1, precision="fp64", global_batch=BATCH)
    train, share = toy.load().train, BATCH // replicas
    weights = list(toy.make_model(toy.WORKLOAD, plan, torch.device("cpu")).parameters())
    models = [toy.make_model(toy.WORKLOAD, plan, torch.device("cpu")) for _ in range(replicas)]
    optimizers = [torch.optim.AdamW(model.parameters(), weight_decay=0.0) for model in models]
    velocities = [torch.zeros_like(weight) for weight in weights]
    order = np.concatenate([epoch_order(toy.TRAIN, 0, epoch) for epoch in range(STEPS * BATCH // toy.TRAIN + 1)])
    for step in range(STEPS):
        for number, (model, optimizer) in enumerate(zip(models, optimizers)):
            chosen = order[step * BATCH + number * share:][:share]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train.inputs[chosen]), train.labels[chosen]).backward()
            norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad *= (clip / norm).clamp(max=1.0)
            optimizer.param_groups[0]["lr"] = plan.schedule.lr_at(step)
            optimizer.step()
        if (step + 1) % SYNC_EVERY == 0:
            with torch.no_grad():
                for weight, velocity, *moved in zip(weights, velocities, *(model.parameters() for model in models)):
                    change = sum(weight - own for own in moved) / replicas
                    velocity.mul_(momentum).add_(change)
                    weight -= rate * (change + momentum * velocity)
                    for own in moved:
                        own.copy_(weight)
    means = [sum(moved) / replicas for moved in zip(*(model.parameters() for model in models))]
    return torch.cat([mean.detach().flatten() for mean in means]).tolist()


@pytest.mark.parametrize("replicas", [1, 4])
def test_an_outer_nesterov_step_is_that_of_a_plain_loop(replicas):
    got = made(replicas=replicas, sync_every=SYNC_EVERY, outer="nesterov", outer_lr=0.7, outer_momentum=0.9,
               optimizer="adamw", weight_decay=0.0, clip_norm=0.05, label_smoothing=0.0)
    reference = diloco(replicas, 0.7, 0.9)
    assert np.linalg.norm(np.subtract(got[1], reference)) <= 1e-12 * np.linalg.norm(reference)


def change_of(replicas):
    """Changes of weights that drift alike and apart, some ten times as large as others."""
    drawn = torch.Generator().manual_seed(3)
    return [[torch.randn(shape, generator=drawn, dtype=torch.float64) * scale for shape, scale in (
        ((12, 20), 1.0), ((6, 3, 5, 5), 0.1), ((20,), 1.0), ((), 1.0))] for _ in range(replicas)]


@pytest.mark.parametrize("rank, numbers", [(0, 12 * 20 + 6 * 75 + 21), (2, 2 * (12 + 20) + 2 * (6 + 75) + 21),
                                           (5, 5 * (12 + 20) + 5 * (6 + 75) + 21), (40, 12 * 20 + 6 * 75 + 21)])
def test_what_is_sent_adds_up_to_the_changes_but_for_what_is_still_unsent(rank, numbers):
    changes = change_of(1)[0]
    sender, received = Sender(changes, rank), []
    for _ in range(50):
        sent = sender.send(changes)
        assert sent.numel() == numbers and sent.dtype == (torch.float64 if rank else torch.bfloat16)
        received.append(sender.receive(sent))
    for change, unsent, *each in zip(changes, sender.unsent, *received):
        torch.testing.assert_close(sum(each) + unsent, 50 * change, rtol=1e-12, atol=1e-12)
        assert unsent.norm() < (1e-2 if rank in (0, 40) else 20) * change.norm()       # it does not grow with the 50


def test_powersgd_comes_to_the_best_matrix_of_its_rank():
    change = change_of(1)[0][0]
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    best = left[:, :3] @ torch.diag(values[:3]) @ right[:3]
    sender = Sender([change], 3)
    for _ in range(300):
        sender.unsent[0].zero_()
        received, = sender.receive(sender.send([change]))
    torch.testing.assert_close(received, best, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("exchange, most", [("bf16", 2e-3), ("powersgd:3", 0.3), ("powersgd:99", 1e-12)])
def test_a_compressed_exchange_stays_near_the_full_one(exchange, most):
    how = dict(replicas=4, sync_every=4, outer="nesterov", outer_lr=0.7, optimizer="adamw", lr=0.01)
    apart = norm_of_difference(made(exchange=exchange, **how), made(**how), 1)
    assert (most > 1e-12) * most / 1e3 <= apart <= most
