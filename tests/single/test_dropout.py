"""Dropout masks: each ghost group's is drawn whole from its own stream, however the step is cut into passes."""
import itertools

import pytest
import torch
from torch import nn

from hvdscale.dropout import Dropout, Masks
from hvdscale.shards import group_bounds
from hvdscale.streams import stream_key

CPU = torch.device("cpu")
SHAPE = torch.Size((3, 2))


def whole_step(seed, step, groups, layer, shape=SHAPE, probability=0.7):
    """The masks of all groups of a step, one generator a group."""
    masks = []
    for group, (a, b) in enumerate(zip(groups, groups[1:])):
        generator = torch.Generator().manual_seed(stream_key(seed, "dropout", step, group, layer))
        masks.append(torch.rand((b - a, *shape), generator=generator) < probability)
    return torch.cat(masks)


@pytest.mark.parametrize("batch, ghost", [(10, 4), (10, 32), (24, 4), (7, 2), (1, 32)])
def test_masks_do_not_depend_on_how_the_positions_are_cut(batch, ghost):
    groups, masks = group_bounds(batch, ghost), Masks(5, CPU)
    wanted = whole_step(5, 12, groups, 1)
    for start, stop in itertools.combinations(range(batch + 1), 2):
        masks.at(12, groups, start, stop)
        assert torch.equal(masks.keep(1, SHAPE, 0.7), wanted[start:stop])


def test_masks_differ_by_seed_step_group_and_layer():
    drawn = [mask.tolist() for seed, step, layer in itertools.product([0, 1], repeat=3)
             for mask in whole_step(seed, step, [0, 4, 8], layer).split(4)]
    assert len(drawn) == 16 and all(a != b for a, b in itertools.combinations(drawn, 2))


def test_layers_are_numbered_in_the_models_order_and_masked_by_their_number():
    model = nn.Sequential(Dropout(0.5), nn.Sequential(nn.ReLU(), Dropout(0.25)))
    masks = Masks(3, CPU)
    masks.attach(model)
    masks.at(9, [0, 4, 8], 2, 7)
    first = model[0](torch.ones(5, *SHAPE))
    assert torch.equal(first, whole_step(3, 9, [0, 4, 8], 0, probability=0.5)[2:7] / 0.5)
    second = model[1](torch.ones(5, *SHAPE))
    assert torch.equal(second, whole_step(3, 9, [0, 4, 8], 1, probability=0.75)[2:7] / 0.75)


def test_drawing_masks_leaves_torchs_own_stream_alone():
    before = torch.get_rng_state()
    masks = Masks(3, CPU)
    masks.at(0, [0, 4], 0, 4)
    masks.keep(0, SHAPE, 0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [0.1, 0.4, 0.9])
def test_the_mean_is_kept(p):
    layer, masks = Dropout(p), Masks(0, CPU)
    masks.attach(layer)
    masks.at(0, [0, 100], 0, 100)
    out = layer(torch.ones(100, 1000))
    share = (out == 0).double().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / 1e5) ** 0.5)
    assert out[out != 0].unique().item() == pytest.approx(1 / (1 - p))


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
