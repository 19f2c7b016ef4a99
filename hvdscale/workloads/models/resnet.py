"""Residual networks for images of 32x32 pixels (He et al. 2016, section 4.2) and for photographs (section 4.1).

    partial(CifarResNet, **CIFAR_MODELS["resnet_20"])(width=2)
    ImageNetResNet(zero_gamma=True, readout_std=0.01)                   Goyal et al. 2017
    ImageNetResNet(preactivation=True, stride_on="1x1")

Established: parameter counts, against closed forms and published totals. From memory of the appendix of Shallue et al.
2019: preactivation in both, no batch-norm in ResNet-8; namhoonlee/effect-dps-public agrees for ResNet-8. Not
established: their initialization.
"""

from torch import Tensor, nn

from ...modules.layers import BatchNorm
from .layers import Conv, PaddedShortcut, Readout, channels_last, normed, one_of, widened

# model names of the CIFAR workloads -> arguments; ResNet-8 is without batch-norm in Shallue et al. 2019
CIFAR_MODELS = {"resnet_8": dict(depth=8, norm="none"), "resnet_20": dict(depth=20), "resnet_32": dict(depth=32)}
BOTTLENECKS = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}     # depth -> blocks a stage


class Block(nn.Module):
    """Convolutions with a shortcut: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride).

    projection     a shortcut that changes the shape is a 1x1 convolution; else it pads with zeros
    preactivation  norm and ReLU before each convolution, none after the sum (He et al. 2016b, arXiv:1603.05027); a
                   projection gets the first convolution's input. By default norm follows each convolution, and ReLU
                   follows all but the last, and the sum (He et al. 2016a, arXiv:1512.03385)
    """

    def __init__(self, convolutions: list[Conv], norm: str, projection: bool, preactivation: bool):
        super().__init__()
        inputs, self.outputs = convolutions[0].in_channels, convolutions[-1].out_channels
        stride = max(conv.stride[0] for conv in convolutions)
        if preactivation:
            first, *others = [[*normed(norm, conv.in_channels), nn.ReLU()] for conv in convolutions]
            self.enter, self.leave = nn.Sequential(*first), nn.Identity()
            activations = [*others, []]
        else:
            self.enter, self.leave = nn.Identity(), nn.ReLU()
            activations = [[*normed(norm, conv.out_channels), nn.ReLU()] for conv in convolutions]
            activations[-1].pop()
        pairs = zip(convolutions, activations)
        self.branch = nn.Sequential(*(layer for conv, activation in pairs for layer in (conv, *activation)))
        self.projects = projection and (stride, inputs) != (1, self.outputs)
        if self.projects:
            self.shortcut = nn.Sequential(Conv(inputs, self.outputs, 1, stride, bias=norm == "none"),
                                          *([] if preactivation else normed(norm, self.outputs)))
        else:
            self.shortcut = PaddedShortcut(inputs, self.outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.enter(x)
        return self.leave(self.shortcut(entered if self.projects else x) + self.branch(entered))


class ResNet(nn.Module):
    """A stem, ``pool``, blocks, the mean over all pixels, and a linear readout: (n, 3, h, w) -> (n, classes)."""

    def __init__(self, stem: Conv, pool: list[nn.Module], blocks: list[Block], classes: int, norm: str,
                 preactivation: bool, zero_gamma: bool, readout_std: float | None):
        super().__init__()
        one_of("norm", norm, ("batch", "none"))
        one_of("preactivation", preactivation, (False, True))
        if one_of("zero_gamma", zero_gamma, (False, True)) and norm == "none":
            raise ValueError("zero_gamma sets the scale of batch-norm, and norm is none; leave it out")
        outputs = blocks[-1].outputs
        before = [] if preactivation else [*normed(norm, stem.out_channels), nn.ReLU()]
        self.stem, self.blocks = nn.Sequential(stem, *before, *pool), nn.Sequential(*blocks)
        self.closing = nn.Sequential(*([*normed(norm, outputs), nn.ReLU()] if preactivation else []))
        self.readout = Readout(outputs, classes, readout_std)
        if zero_gamma:
            for block in blocks:
                *_, last = (layer for layer in block.branch if isinstance(layer, BatchNorm))
                nn.init.zeros_(last.weight)             # so that the branch outputs zeros

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.closing(self.blocks(self.stem(channels_last(x)))).mean((2, 3)))


class CifarResNet(ResNet):
    """6n + 2 layers for 32x32 images: a 3x3 convolution and three stages of n blocks of two, of 16, 32, 64 filters.

    depth          8, 14, 20, 26, 32, ...
    norm           "batch", or "none": convolutions with biases instead
    width          multiplies all filters
    shortcut       where a stage widens: "pad" with zeros (He et al., option A), or "projection" (option B)
    preactivation  blocks of He et al. 2016b
    zero_gamma     each block starts as its shortcut (Goyal et al. 2017, section 5.1)
    readout_std    standard deviation of the readout's initial weights; None: torch's own
    """

    def __init__(self, depth: int = 20, norm: str = "batch", width: float = 1, classes: int = 10,
                 shortcut: str = "pad", preactivation: bool = False, zero_gamma: bool = False,
                 readout_std: float | None = None):
        one_of("shortcut", shortcut, ("pad", "projection"))
        if not isinstance(depth, int) or depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth = {depth!r} is not 6n + 2 layers; use 8, 14, 20, 26, 32, 44, 56, 110, ...")
        bias = norm == "none"
        before, blocks = widened(16, width), []
        stem = Conv(3, before, 3, bias=bias)
        for stage, filters in enumerate(widened(f, width) for f in (16, 32, 64)):
            for number in range(depth // 6):
                stride = 2 if stage and not number else 1
                convolutions = [Conv(before, filters, 3, stride, bias), Conv(filters, filters, 3, 1, bias)]
                blocks.append(Block(convolutions, norm, shortcut == "projection", preactivation))
                before = filters
        super().__init__(stem, [], blocks, classes, norm, preactivation, zero_gamma, readout_std)


class ImageNetResNet(ResNet):
    """ResNet-50 and its variants: bottlenecks in four stages with 64, 128, 256, 512 filters and four times as many
    outputs.

    depth      26, 50, 101, 152
    stride_on  which convolution of a stage's first block has the stride: the "3x3" (Goyal et al. 2017, footnote of
               section 5.1), or the first "1x1" (He et al. 2016a)

    The others are those of CifarResNet; Goyal et al. have a readout_std of 0.01.
    """

    def __init__(self, depth: int = 50, norm: str = "batch", width: float = 1, classes: int = 1000,
                 stride_on: str = "3x3", preactivation: bool = False, zero_gamma: bool = False,
                 readout_std: float | None = 0.01):
        one_of("stride_on", stride_on, ("3x3", "1x1"))
        bias = norm == "none"
        before, blocks = widened(64, width), []
        stem = Conv(3, before, 7, 2, bias)
        for stage, count in enumerate(BOTTLENECKS[one_of("depth", depth, tuple(BOTTLENECKS))]):
            filters, outputs = widened(64 * 2**stage, width), widened(256 * 2**stage, width)
            for number in range(count):
                halves = 2 if stage and not number else 1
                first, second = (halves, 1) if stride_on == "1x1" else (1, halves)
                convolutions = [Conv(before, filters, 1, first, bias), Conv(filters, filters, 3, second, bias),
                                Conv(filters, outputs, 1, 1, bias)]
                blocks.append(Block(convolutions, norm, True, preactivation))
                before = outputs
        super().__init__(stem, [nn.MaxPool2d(3, 2, 1)], blocks, classes, norm, preactivation, zero_gamma, readout_std)
