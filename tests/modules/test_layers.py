"""Dropout and batch-norm by ghost groups: the same however the step is cut, and by torch's own arithmetic."""
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.data.splits import OwnGenerators, seed_generators
from hvdscale.errors import UsageError
from hvdscale.modules import BatchNorm, Dropout, convert
from hvdscale.modules.ghost_groups import GhostGroups
from hvdscale.plan.shards import Pass, group_bounds, step_passes, stream_key
from hvdscale.workers.group import SingleWorker
from tests.factories.workers import on_each

CPU = torch.device("cpu")
SHAPE = torch.Size((3, 2))


def ghosts_of(seed):
    return GhostGroups(seed, SingleWorker(), CPU)


def whole_step(seed, step, groups, layer, shape=SHAPE, probability=0.7):
    """The masks of all groups of a step, one generator a group."""
    masks = []
    for group, (a, b) in enumerate(zip(groups, groups[1:])):
        generator = torch.Generator().manual_seed(stream_key(seed, "dropout", step, group, layer))
        masks.append(torch.rand((b - a, *shape), generator=generator) < probability)
    return torch.cat(masks)


@pytest.mark.parametrize("batch, ghost", [(10, 4), (10, 32), (24, 4), (7, 2), (1, 32)])
def test_masks_do_not_depend_on_how_the_positions_are_cut(batch, ghost):
    groups, masks = group_bounds(batch, ghost), ghosts_of(5)
    wanted = whole_step(5, 12, groups, 1)
    for start, stop in itertools.combinations(range(batch + 1), 2):
        masks.at(12, groups, Pass(start, stop))
        kept = masks.keep(1, torch.Size((stop - start, *SHAPE)), 0.7)
        assert torch.equal(kept, wanted[start:stop])


def test_layers_are_numbered_in_the_models_order_and_masked_by_their_number():
    model = nn.Sequential(Dropout(0.5), nn.Sequential(nn.ReLU(), Dropout(0.25)))
    masks = ghosts_of(3)
    masks.attach(model)
    masks.at(9, [0, 4, 8], Pass(2, 7))
    first = model[0](torch.ones(5, *SHAPE))
    assert torch.equal(first, whole_step(3, 9, [0, 4, 8], 0, probability=0.5)[2:7] / 0.5)
    second = model[1](torch.ones(5, *SHAPE))
    assert torch.equal(second, whole_step(3, 9, [0, 4, 8], 1, probability=0.75)[2:7] / 0.75)


def test_drawing_masks_leaves_torchs_own_stream_alone():
    before = torch.get_rng_state()
    masks = ghosts_of(3)
    masks.at(0, [0, 4], Pass(0, 4))
    masks.keep(0, torch.Size((4, *SHAPE)), 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_dropped_in_evaluation_or_at_probability_0():
    x = torch.randn(4, 3)
    layer = Dropout(0.5).eval()
    assert layer(x) is x
    assert Dropout(0.0)(x) is x


def test_without_masks_it_is_torchs_dropout():
    x = torch.randn(50, 30)
    torch.manual_seed(1)
    ours = Dropout(0.3)(x)
    torch.manual_seed(1)
    assert torch.equal(ours, nn.Dropout(0.3)(x))


@pytest.mark.parametrize("p", [1.0, 1.5, -0.1])
def test_a_probability_outside_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=f"{p}"):
        Dropout(p)


def test_rows_that_are_not_the_examples_of_the_pass_are_an_error(worded):
    ghosts, layer = ghosts_of(0), Dropout(0.5)
    ghosts.attach(layer)
    ghosts.at(0, [0, 4], Pass(0, 4))
    with worded.error(UsageError):
        layer(torch.ones(8, 3))


def test_a_layer_that_a_pass_uses_again_draws_anew():
    """As a model does that keeps one Dropout for all its layers."""
    ghosts, layer = ghosts_of(0), Dropout(0.5)
    ghosts.attach(layer)
    masks = []
    for part in (Pass(0, 8), Pass(0, 4), Pass(4, 8)):
        ghosts.at(3, [0, 4, 8], part)
        masks.append([layer(torch.ones(part.stop - part.start, 50)) for _ in range(2)])
    assert not torch.equal(*masks[0])
    for whole, first, last in zip(*masks):
        assert torch.equal(whole, torch.cat((first, last)))


def test_rows_that_depend_on_the_pass_are_an_error_unless_groups_are_whole(worded):
    ghosts, layer = ghosts_of(0), Dropout(0.5)
    ghosts.attach(layer)
    for part, length in ((Pass(0, 4), 3), (Pass(4, 8), 5), (Pass(0, 8), 7)):
        ghosts.at(0, [0, 4, 8], part)
        layer(torch.ones(part.stop - part.start, length))
    ghosts.at(1, [0, 4, 8], Pass(2, 8))
    with worded.error(UsageError):
        layer(torch.ones(6, 8))


def normalised(batch, ghost, shape, workers=1, accumulate=1):
    """What batch-norm makes of a step cut into passes: outputs and input gradients in the step's order, gradients of
    weight and bias, running statistics."""
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(batch, *shape, generator=drawn, dtype=torch.float64) * 3 + 1
    slopes = torch.randn(batch, *shape, generator=drawn, dtype=torch.float64)
    start = torch.randn(2, shape[0], generator=drawn, dtype=torch.float64)
    groups, passes = group_bounds(batch, ghost), step_passes(batch, ghost, workers, accumulate)
    y, dx = torch.empty_like(x), torch.empty_like(x)

    def rank(member):
        norm, ghosts = BatchNorm(shape[0], dtype=torch.float64), GhostGroups(0, member, CPU)
        with torch.no_grad():
            norm.weight.copy_(start[0]), norm.bias.copy_(start[1])
        ghosts.attach(norm)
        norm.sums = torch.zeros(2, shape[0], dtype=torch.float64)
        for part in passes[member.rank]:
            if part.stop > part.start:
                rows = slice(part.start, part.stop)
                mine = x[rows].clone().requires_grad_()
                ghosts.at(0, groups, part)
                out = norm(mine).mul_(2)            # in place, as ReLU(inplace=True)
                out.backward(slopes[rows])
                y[rows], dx[rows] = out.detach(), mine.grad
        member.sum_(norm.sums, "sums")
        norm.merge(norm.sums, len(groups) - 1)
        return norm
    norms = on_each(workers, rank)
    by_weight, by_bias = (sum(g for g in grads if g is not None) for grads in zip(
        *((norm.weight.grad, norm.bias.grad) for norm in norms)))
    for norm in norms:
        torch.testing.assert_close(norm.state_dict(), {**norms[0].state_dict(), "weight": start[0], "bias": start[1]})
    return y, dx, by_weight, by_bias, norms[0].running_mean, norms[0].running_var


def by_torch(batch, ghost, shape):
    """The same by torch's own layer, a group at a time; the statistics of the groups averaged."""
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(batch, *shape, generator=drawn, dtype=torch.float64) * 3 + 1
    slopes = torch.randn(batch, *shape, generator=drawn, dtype=torch.float64)
    start = torch.randn(2, shape[0], generator=drawn, dtype=torch.float64)
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)]
    x.requires_grad_()
    groups = group_bounds(batch, ghost)
    layers = [kind(shape[0], dtype=torch.float64) for _ in groups[1:]]
    outs = []
    for layer, a, b in zip(layers, groups, groups[1:]):
        with torch.no_grad():
            layer.weight.copy_(start[0]), layer.bias.copy_(start[1])
        outs.append(layer(x[a:b]) * 2)
    torch.cat(outs).backward(slopes)
    return (torch.cat(outs).detach(), x.grad, sum(layer.weight.grad for layer in layers),
            sum(layer.bias.grad for layer in layers),
            torch.stack([layer.running_mean for layer in layers]).mean(0),
            torch.stack([layer.running_var for layer in layers]).mean(0))


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 3)])
@pytest.mark.parametrize("batch, ghost, workers, accumulate", [
    (12, 4, 1, 1), (13, 4, 1, 1), (12, 12, 1, 1),       # equal groups, uneven ones, a single one
    (13, 4, 3, 1), (12, 4, 1, 3), (24, 4, 2, 2),        # whole groups on workers and in passes
    (13, 4, 4, 1), (12, 12, 3, 1), (10, 4, 4, 2), (24, 12, 3, 2)])      # groups that several workers share
def test_batch_norm_is_torchs_of_every_ghost_group_alone(shape, batch, ghost, workers, accumulate):
    wanted = by_torch(batch, ghost, shape)
    for got, expected in zip(normalised(batch, ghost, shape, workers, accumulate), wanted):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_outside_training_and_without_ghost_groups_batch_norm_is_torchs():
    x = torch.randn(8, 3, 2, 2)
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    assert torch.equal(ours(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    ghosts_of(0).attach(ours)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_convert_puts_ours_in_place_of_torchs_and_keeps_names_and_values():
    class Own(nn.BatchNorm2d):
        pass
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3, eps=0.1, momentum=None), nn.ReLU(),
                          nn.Sequential(nn.Dropout(0.25), Own(3), nn.Dropout2d(0.5)))
    model[1](torch.randn(4, 3, 2, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(map(id, model.parameters()))
    converted = convert(model.eval())
    assert [type(m) for m in converted[3]] == [Dropout, Own, nn.Dropout2d] and type(converted[1]) is BatchNorm
    assert (converted[1].eps, converted[1].momentum, converted[3][0].p) == (0.1, None, 0.25)
    assert not converted[1].training and list(map(id, converted.parameters())) == parameters
    torch.testing.assert_close(dict(converted.state_dict()), before, rtol=0, atol=0)


def test_a_momentum_of_none_makes_running_statistics_the_mean_over_the_steps():
    norm = BatchNorm(2, momentum=None)
    for step in range(1, 4):
        norm.merge(torch.full((2, 2), 6.0 * step), groups=2)
    assert norm.running_mean.tolist() == [6, 6] and norm.num_batches_tracked.item() == 3


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: np.random.rand(), random.random])
def test_own_generators_sees_a_draw_of_any_kind_and_takes_it_back(draw):
    with OwnGenerators() as untouched:
        assert not untouched.moved()
    first = draw_with_seed(7, draw)
    with OwnGenerators() as generators:
        draw()
        assert generators.moved()
    with OwnGenerators():
        assert draw_with_seed(7, draw) == first
    seed_generators(7)
    with OwnGenerators():
        draw(), draw()
    assert float(draw()) == first


def draw_with_seed(key, draw):
    seed_generators(key)
    return float(draw())
