"""The image models: layers, parameters and initial values as published, and what their arguments change."""
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from hvdscale.modules import BatchNorm, Dropout, is_batch_norm
from hvdscale.workloads.models.plain import VGG, AlexNet, FullyConnected, SimpleCNN
from hvdscale.workloads.models.resnet import CIFAR_MODELS, CifarResNet, ImageNetResNet
from tests.wording import refusals


def on_meta(build, **args):
    """The model without its numbers."""
    with torch.device("meta"):
        return build(**args)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def convolution(a, b, kernel, norm):
    """Parameters of a convolution with a scale and a shift a channel after it, or with biases."""
    return kernel**2 * a * b + (2 * b if norm else b)


# closed forms, layer by layer

def cifar_resnet_parameters(depth, norm, width, classes, projection):
    a, b, c = (round(filters * width) for filters in (16, 32, 64))
    n = (depth - 2) // 6
    stages = sum((2 * n - 1) * convolution(f, f, 3, norm) for f in (a, b, c)) + convolution(a, a, 3, norm)
    widening = sum(convolution(x, y, 3, norm) + projection * convolution(x, y, 1, norm) for x, y in ((a, b), (b, c)))
    return convolution(3, a, 3, norm) + stages + widening + c * classes + classes


def alexnet_parameters(norms, width, classes):
    sizes = [3, *(round(f * width) for f in (16, 48, 96, 64, 64))]
    hidden = round(256 * width)
    convolutions = sum(k * k * a * b + b for k, a, b in zip((5, 3, 3, 3, 3), sizes, sizes[1:]))
    cells = ((((32 - 1) // 2) - 1) // 2 - 1) // 2
    linear = cells**2 * sizes[-1] * hidden + hidden + hidden * hidden + hidden + hidden * classes + classes
    return convolutions + linear + 2 * (norms >= 1) * sum(sizes[1:]) + 2 * (norms >= 2) * 2 * hidden


@pytest.mark.parametrize("depth", [8, 20, 44])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("more", [{}, dict(width=2), dict(width=0.5, classes=9), dict(shortcut="projection")], ids=str)
def test_a_cifar_resnet_has_the_parameters_of_its_layers(depth, norm, more):
    wanted = cifar_resnet_parameters(depth, norm == "batch", more.get("width", 1), more.get("classes", 10),
                                     more.get("shortcut") == "projection")
    assert parameters(on_meta(CifarResNet, depth=depth, norm=norm, **more)) == wanted


@pytest.mark.parametrize("norms, norm", list(enumerate(("none", "conv", "all"))))
@pytest.mark.parametrize("width, classes", [(1, 10), (2, 100), (0.5, 10)])
def test_an_alexnet_has_the_parameters_of_its_layers(norms, norm, width, classes):
    assert parameters(on_meta(AlexNet, norm=norm, width=width, classes=classes)) == alexnet_parameters(
        norms, width, classes)


@pytest.mark.parametrize("build, total", [
    (partial(ImageNetResNet), 25_557_032), (partial(ImageNetResNet, stride_on="1x1"), 25_557_032),
    (partial(ImageNetResNet, depth=101), 44_549_160), (partial(ImageNetResNet, depth=152), 60_192_808),
    (partial(VGG, norm="batch"), 132_868_840), (partial(VGG), 132_863_336), (partial(VGG, depth=16), 138_357_544),
    (partial(CifarResNet, **CIFAR_MODELS["resnet_20"]), 269_722),
    (partial(CifarResNet, **CIFAR_MODELS["resnet_32"]), 464_154),
    # of other widths, by hand
    (partial(ImageNetResNet, 26, width=0.25, classes=7), 882_775), (partial(ImageNetResNet, norm="none"), 25_530_472),
    (partial(VGG, width=0.125, classes=10), 2_018_490),
    (partial(VGG, norm="batch", width=0.125, classes=10), 2_019_178)])
def test_the_totals_are_those_widely_published(build, total):
    assert parameters(on_meta(build)) == total


SMALL = [      # of each family, with every choice of an option taken by some; the side of its images
    (partial(CifarResNet, **CIFAR_MODELS["resnet_8"]), 32), (partial(CifarResNet, 8, zero_gamma=True), 33),
    (partial(CifarResNet, 14, shortcut="projection"), 32), (partial(CifarResNet, 8, preactivation=True), 32),
    (partial(CifarResNet, 14, preactivation=True, shortcut="projection", zero_gamma=True, readout_std=0.1), 40),
    (partial(CifarResNet, 8, norm="none", preactivation=True, width=0.5), 32),
    (partial(ImageNetResNet, 26, width=0.125, classes=10), 64),
    (partial(ImageNetResNet, 26, width=0.125, classes=10, stride_on="1x1", preactivation=True), 32),
    (partial(ImageNetResNet, 26, width=0.125, classes=10, norm="none", readout_std=None), 47),
    (partial(VGG, width=0.0625, classes=10, dropout=0.0), 96), (partial(VGG, 13, "batch", 0.5, 0.0625, 10), 32),
    (partial(AlexNet), 32), (partial(AlexNet, "conv", dropout=0.5, width=0.5), 32),
    (partial(AlexNet, "all", side=40), 40), (partial(SimpleCNN, "narrow", width=0.5), None)]


@pytest.mark.parametrize("build, side", SMALL)
def test_a_model_gives_a_logit_a_class_and_every_parameter_a_gradient(build, side):
    torch.manual_seed(3)
    model = build().double()
    x = torch.randn(5, *((3, side, side) if side else (1, 28, 28)), dtype=torch.float64)
    logits = model(x)
    assert logits.shape == (5, 10)
    for layer in model.modules():                   # scales that are 0 hide what lies before them
        if isinstance(layer, BatchNorm):
            nn.init.ones_(layer.weight)
    functional.cross_entropy(model(x), torch.arange(5)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("build, _", SMALL)
def test_a_model_uses_torchs_generator_and_our_batch_norm_and_dropout(build, _):
    torch.manual_seed(3)
    first, second = build(), build()
    torch.manual_seed(3)
    again = build()
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values()))
    weights = [(p, q) for p, q in zip(first.parameters(), second.parameters()) if p.ndim > 1]
    assert not any(torch.equal(p, q) for p, q in weights)
    for module in first.modules():
        assert not is_batch_norm(module) or (isinstance(module, BatchNorm) and module.momentum == 0.1)
        assert not isinstance(module, (nn.Dropout, nn.Dropout2d))


@pytest.mark.parametrize("build", [
    partial(CifarResNet, 14), partial(CifarResNet, 14, preactivation=True),
    partial(ImageNetResNet, 26, width=0.125), partial(ImageNetResNet, 26, width=0.125, preactivation=True)])
def test_with_zero_gamma_each_block_starts_as_its_shortcut(build):
    torch.manual_seed(3)
    plain, zero = build(), build(zero_gamma=True)
    for model, same in ((plain, False), (zero, True)):
        x = torch.rand(4, 3, 32, 32)
        x = model.stem(x)
        for block in model.blocks:
            entered = block.enter(x)
            shortcut, branch = block.shortcut(entered if block.projects else x), block.branch(entered)
            x = block(x)
            assert torch.equal(x, block.leave(shortcut + branch)) and torch.equal(x, block.leave(shortcut)) == same
    scales = [m.weight.sum().item() for m in zero.modules() if isinstance(m, BatchNorm)]
    assert scales.count(0.0) == len(zero.blocks)


@pytest.mark.parametrize("stride_on, strides", [("3x3", [1, 2, 1]), ("1x1", [2, 1, 1])])
def test_the_stride_of_a_stage_is_on_the_named_convolution(stride_on, strides):
    blocks = on_meta(ImageNetResNet, stride_on=stride_on).blocks
    first = [0, 3, 7, 13]                           # of each stage, 3 + 4 + 6 + 3 blocks
    for number, block in enumerate(blocks):
        convolutions = [m for m in block.branch if isinstance(m, nn.Conv2d)]
        assert [m.kernel_size[0] for m in convolutions] == [1, 3, 1]
        assert [m.stride[0] for m in convolutions] == (strides if number in first[1:] else [1, 1, 1])
        assert block.projects == (number in first)


def test_the_padded_shortcut_subsamples_and_adds_zero_channels():
    shortcut = CifarResNet(8, "none").blocks[1].shortcut
    x = torch.rand(2, 16, 5, 4)
    y = shortcut(x)
    assert y.shape == (2, 32, 3, 2)
    for n, channel, row, column in torch.cartesian_prod(*map(torch.arange, y.shape)).tolist():
        assert y[n, channel, row, column] == (x[n, channel, 2 * row, 2 * column] if channel < 16 else 0)


def test_preactivation_puts_norm_and_relu_before_convolutions():
    def kinds(*parts):
        return [type(m).__name__ for part in parts for m in part.modules() if not isinstance(m, nn.Sequential)]
    after, before = on_meta(CifarResNet, depth=8), on_meta(CifarResNet, depth=8, preactivation=True)
    assert kinds(after.stem) == ["Conv", "BatchNorm", "ReLU"] and kinds(after.closing) == []
    assert kinds(before.stem) == ["Conv"] and kinds(before.closing) == ["BatchNorm", "ReLU"]
    block, other = after.blocks[0], before.blocks[0]
    assert kinds(block.branch, block.leave) == ["Conv", "BatchNorm", "ReLU", "Conv", "BatchNorm", "ReLU"]
    assert kinds(other.enter, other.branch) == ["BatchNorm", "ReLU", "Conv", "BatchNorm", "ReLU", "Conv"]
    assert kinds(other.leave) == ["Identity"]


@pytest.mark.parametrize("build", [partial(CifarResNet, 32), partial(ImageNetResNet, 26, width=0.5),
                                   partial(VGG, width=0.25), partial(AlexNet, width=2)])
def test_convolutions_start_with_the_spread_of_he_et_al(build):
    torch.manual_seed(3)
    for layer in build().modules():
        if isinstance(layer, nn.Conv2d):
            spread = (2 / (layer.kernel_size[0]**2 * layer.out_channels))**0.5
            error = spread / (2 * layer.weight.numel())**0.5
            assert layer.weight.std().item() == pytest.approx(spread, abs=5 * error)
            assert abs(layer.weight.mean().item()) < 5 * spread / layer.weight.numel()**0.5
            assert layer.bias is None or not layer.bias.any()


def test_hidden_layers_and_readouts_start_with_their_spreads():
    torch.manual_seed(3)
    first, second, readout = (m for m in VGG(width=0.125).readout if isinstance(m, nn.Linear))
    assert first.weight.std().item() == pytest.approx((2 / first.in_features)**0.5, rel=0.01)
    assert second.weight.std().item() == pytest.approx((2 / second.in_features)**0.5, rel=0.01)
    for layer in (readout, ImageNetResNet(26, width=0.25).readout, CifarResNet(8, readout_std=0.01).readout):
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
        assert not layer.bias.any()
    torchs = ImageNetResNet(26, width=0.25, readout_std=None).readout
    assert torchs.weight.abs().max().item() <= torchs.in_features**-0.5 and torchs.bias.any()


def test_the_hidden_layers_of_a_vgg_see_a_grid_of_7x7_whatever_the_images_side():
    torch.manual_seed(3)
    model = VGG(width=0.0625, dropout=0.0)
    seen = []
    model.readout[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[2:]))
    for side in (32, 96, 224, 300):
        model(torch.rand(1, 3, side, side))
    assert seen == [(7, 7)] * 4


def test_dropout_is_where_it_is_asked_for():
    def drops(model):
        return [m.p for m in model.modules() if isinstance(m, Dropout)]
    assert drops(on_meta(VGG)) == [0.5, 0.5] and drops(on_meta(VGG, dropout=0.25)) == [0.25, 0.25]
    assert drops(on_meta(AlexNet, dropout=0.1)) == [0.1, 0.1]
    assert drops(SimpleCNN()) == [0.4] and drops(SimpleCNN(dropout=0.2)) == [0.2]
    assert drops(FullyConnected(4, (3, 2), 2)) == [] and drops(FullyConnected(4, (3, 2), 2, dropout=0.2)) == [0.2, 0.2]


def test_fc_and_simple_cnn_are_named_and_drawn_as_before():
    assert list(FullyConnected(4, (3, 2), 2).state_dict()) == [
        f"layers.{n}.{kind}" for n in (1, 3, 5) for kind in ("weight", "bias")]
    assert list(SimpleCNN("narrow").state_dict()) == [
        f"{layer}.{kind}" for layer in ("features.0", "features.3", "readout.1", "readout.4")
        for kind in ("weight", "bias")]
    torch.manual_seed(3)
    drawn = SimpleCNN("narrow").state_dict()
    torch.manual_seed(3)
    assert torch.equal(nn.Conv2d(1, 16, 5).weight, drawn["features.0.weight"])


def test_an_argument_that_means_nothing_is_refused_with_what_is_accepted(golden):
    golden("vision_models", refusals("vision_models", ValueError, globals()))
