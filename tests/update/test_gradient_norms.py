"""What a run measures of its gradients, held against those of shares by plain torch; and that it changes nothing."""
import copy

import pytest
import torch

from hvdscale.update.gradients import COLUMNS, why_not_measured
from hvdscale.update.step import log_columns
from hvdscale.update.model import fit_to_groups, make_model
from hvdscale.update.optimizers import make_optimizer
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from tests.parallel import toy
from tests.factories.workers import on_each

CPU = torch.device("cpu")
EVERYTHING = dict(augmented=True, model_args=dict(dropout=0.5, norm="ours"))
TORCHS_OWN = dict(augmented=True, ghost_batch=2, model_args=dict(dropout=0.5, norm="torch", drop="function"))


def together(size, steps=5, augmented=False, **keys):
    """Of each step what was measured, and the parameters before it; at last the plan and rank 0's model."""
    keys = {"precision": "fp64", "noise_every": 1, "global_batch": 24, **keys}
    train = (toy.load_augmented() if augmented else toy.load()).train
    plan = toy.settled(size, **keys)
    model = make_model(toy.WORKLOAD, plan, CPU)
    plan, _ = fit_to_groups(plan, keys.get("group_by_group", "auto"), toy.WORKLOAD, train, model, CPU)
    if size == 1:
        return measured(SingleWorker(), plan, model, train, steps)
    models = [copy.deepcopy(model) for _ in range(size)]
    return on_each(size, lambda member: measured(member, plan, models[member.rank], train, steps))[0]


def measured(workers, plan, model, train, steps):
    take_step = DataParallelStep(plan, toy.WORKLOAD, train, model, make_optimizer(plan, model), workers, CPU)
    take_step.warm_up(1)
    noise, before = [], []
    for step in range(steps):
        before.append([p.detach().clone() for p in model.parameters()])
        result = take_step(step, plan.schedule.lr_at(step), set())
        assert min(result.by_rank) >= 0
        noise.append({name: value for name, value in result.measured.items() if name.startswith((*COLUMNS, "layer_"))})
    return noise, before, plan, model


def by_hand(plan, model, parameters, step, shares):
    """local_sqnorm and reduced_sqnorm of a step, from gradients of each share's mean loss."""
    for parameter, values in zip(model.parameters(), parameters):
        parameter.data.copy_(values)
    train, sums, local = toy.load().train, 0, []
    for start, stop in shares:
        batch = train.take(plan.stream.visits(step, start, stop))
        loss, count = toy.WORKLOAD.loss(model, batch, plan.label_smoothing)
        mean = torch.cat([g.flatten() for g in torch.autograd.grad(loss / count, list(model.parameters()))])
        local.append((mean @ mean).item() * count / plan.global_batch)
        sums = sums + mean * count / plan.global_batch
    return sum(local), (sums @ sums).item()


CASES = [(1, dict(), [(0, 3), (3, 24)]), (1, dict(accumulate=2), [(0, 3), (3, 24)]),
         (1, dict(global_batch=3), [(0, 1), (1, 3)]), (1, dict(bucket_mib=1e-4), [(0, 3), (3, 24)]),
         (2, dict(), [(0, 12), (12, 24)]), (2, dict(bucket_mib=1e-4, accumulate=3), [(0, 12), (12, 24)]),
         (3, dict(global_batch=20), [(0, 4), (4, 12), (12, 20)]), (3, dict(ghost_batch=12, clip_norm=0.01), None),
         (4, dict(global_batch=6, accumulate=1), [(0, 1), (1, 3), (3, 4), (4, 6)])]


@pytest.mark.parametrize("workers, keys, shares", CASES)
def test_the_square_norms_are_those_of_the_shares_own_gradients(workers, keys, shares):
    noise, before, plan, model = together(workers, **keys)
    if workers > 1:
        ranks = [plan.passes(plan.global_batch, rank) for rank in range(workers)]
        assert shares in (None, [(parts[0].start, parts[-1].stop) for parts in ranks])
        shares = [(parts[0].start, parts[-1].stop) for parts in ranks]
    for step, found in enumerate(noise):
        local, reduced = by_hand(plan, model, before[step], step, shares)
        assert (found["local_sqnorm"], found["reduced_sqnorm"]) == pytest.approx((local, reduced), rel=1e-9)
        assert found["local_examples"] == plan.global_batch / len(shares)


@pytest.mark.parametrize("size, keys", [(1, TORCHS_OWN), *((size, keys) for size in (1, 2, 3) for keys in (
    dict(), dict(bucket_mib=1e-4), EVERYTHING, dict(precision="fp16"), dict(last_batch="short", **EVERYTHING)))])
def test_the_updates_are_bit_for_bit_those_of_a_run_that_measures_nothing(size, keys):
    _, on, _, model_on = together(size, **keys)
    _, off, _, model_off = together(size, **{**keys, "noise_every": 0})
    for mine, other in zip(on, off):
        assert all(torch.equal(a, b) for a, b in zip(mine, other))
    assert all(torch.equal(a, b) for a, b in zip(model_on.buffers(), model_off.buffers()))


def test_one_worker_measures_two_ghost_groups_as_two_workers_do():
    keys = {**EVERYTHING, "ghost_batch": 4, "global_batch": 8}
    for alone, two in zip(together(1, **keys)[0], together(2, **keys)[0]):
        assert alone == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("keys, measured", [
    (dict(noise_every=3), [True, False, False, True, False, False, True]),
    (dict(last_batch="short"), [True, True, False, True, True, False, True])])       # 53 examples: 24, 24, 5
def test_the_first_of_every_so_many_steps_is_measured_if_it_has_a_whole_batch(keys, measured):
    assert [bool(found) for found in together(2, steps=7, **keys)[0]] == measured


@pytest.mark.parametrize("keys", [dict(precision="fp16", loss_scale=1024.0), dict(precision="fp32", compression="fp16"),
                                  dict(precision="bf16")])
@pytest.mark.parametrize("size", [1, 2])
def test_narrow_types_and_their_loss_scale_leave_the_square_norms_in_place(size, keys):
    wide = dict(precision="fp64", group_by_group="always" if keys["precision"] == "fp16" else "auto")
    exact, narrow = (together(size, steps=1, **layer)[0][0] for layer in (wide, keys))
    assert narrow == pytest.approx(exact, rel=0.02)


def test_gradients_that_overflow_are_not_recorded():
    found = together(2, steps=1, precision="fp16", loss_scale=1e30)[0][0]
    assert found == {}


@pytest.mark.parametrize("size, keys, said", [
    (1, dict(global_batch=4, model_args=dict(norm="ours")),
     "with one ghost group of 4 examples, which batch-norm keeps whole, a step has no two parts to compare; use a"),
    (3, dict(ghost_batch=24, model_args=dict(norm="ours")),
     "with ghost groups of 24 examples, which batch-norm keeps whole, spread over several workers, a"),
    (1, dict(global_batch=1), "one example")])
def test_an_unmeasurable_batch_is_reported_and_has_no_noise_columns(size, keys, said):
    noise, _, plan, model = together(size, steps=2, **keys)
    assert noise == [{}, {}] and said in why_not_measured(plan, model)
    assert not set(COLUMNS) & set(log_columns(plan, model))


def test_a_single_ghost_group_is_measured_if_nothing_joins_its_examples():
    noise, _, plan, model = together(1, steps=1, global_batch=4, model_args=dict(dropout=0.5))
    assert not why_not_measured(plan, model) and set(noise[0]) == set(COLUMNS)


def test_several_workers_measure_every_10th_step_and_one_every_100th():
    assert [toy.settled(size).noise_steps for size in (1, 2, 4)] == [100, 10, 10]
    assert toy.settled(1).as_record({})["measurement"] == toy.settled(2, global_batch=8).as_record({})["measurement"]
