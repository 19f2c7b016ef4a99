"""Shared by the image models: width multipliers, optional batch-norm, self-initializing layers."""

import math

import torch
from torch import Tensor, nn

from ...modules.layers import BatchNorm


def one_of(name: str, value, choices: tuple):
    if value not in choices:
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(map(str, choices))}")
    return value


def widened(channels: int, width: float) -> int:
    """channels times width, rounded, at least one; raises ValueError for an invalid width."""
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < math.inf:
        raise ValueError(f"width = {width!r} is not a number above 0; 1 is the published width, 2 twice it")
    return max(1, round(channels * width))


def normed(norm: str, channels: int) -> list[nn.Module]:
    return [BatchNorm(channels)] if norm == "batch" else []


def channels_last(images: Tensor) -> Tensor:
    """The images; on a CPU in the memory layout that speeds up a step of these models by a quarter to almost a half."""
    return images.to(memory_format=torch.channels_last) if images.device.type == "cpu" else images


class Conv(nn.Conv2d):
    """A convolution padded to change the sides only by its stride: N(0, 2 / fan out) weights, zero biases. He et al.
    2015 (arXiv:1502.01852), eq. 14, which preserves the size of gradients through ReLU layers; fan out is kernel area
    times output channels."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True):
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Hidden(nn.Linear):
    """A linear layer before a ReLU: N(0, 2 / inputs) weights (He et al. 2015, eq. 10), zero biases."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)


class Readout(nn.Linear):
    """The last linear layer: N(0, std^2) weights and zero biases; std None: torch's initialization."""

    def __init__(self, inputs: int, classes: int, std: float | None):
        if std is not None and not (isinstance(std, (int, float)) and 0 <= std < math.inf):
            raise ValueError(f"readout_std = {std!r} is not a standard deviation; give a number such as 0.01")
        self.std = std                  # the constructor of nn.Linear initialises
        super().__init__(inputs, classes)

    def reset_parameters(self) -> None:
        if self.std is None:
            super().reset_parameters()
        else:
            nn.init.normal_(self.weight, std=self.std)
            nn.init.zeros_(self.bias)


class PaddedShortcut(nn.Module):
    """Subsampling by the stride, zeros for additional channels: option A of He et al. 2016, without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.more, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:     # pooling of single pixels, as the gradient of a slice is never channels-last
            x = torch.nn.functional.avg_pool2d(x, 1, self.stride, ceil_mode=True)
        return torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.more)) if self.more else x
