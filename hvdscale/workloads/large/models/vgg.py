"""VGG networks (Simonyan & Zisserman 2015, arXiv:1409.1556, table 1): configuration A is VGG-11.

Shallue et al. 2019 trained "model A" with batch-norm over ghost groups of 32, as remembered: norm="batch".
"""
from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from ....modules.layers import Dropout
from ...models.layers import Conv, Hidden, Readout, channels_last, normed, one_of, widened

FILTERS = (64, 128, 256, 512, 512)                          # of each stage, which ends in 2x2 max-pooling
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}      # by depth
HIDDEN, GRID = 4096, 7


class VGG(nn.Module):
    """3x3 convolutions in five stages, and two hidden layers with dropout: (n, 3, side, side) -> (n, classes), side >=
    32.

    depth        layers with weights: 11, 13, 16, 19
    norm         "batch" between convolution and ReLU, or "none" as published
    dropout      probability after each of the two hidden layers
    width        multiplies all filters and hidden units
    readout_std  standard deviation of the readout's initial weights (published: 0.01 in all layers, of networks started
                 from shallower ones); None: torch's own. Other layers are initialized as in He et al. 2015

    Features are averaged to 7x7 cells before the hidden layers, which changes nothing for 224x224 images.
    """

    def __init__(self, depth: int = 11, norm: str = "none", dropout: float = 0.5, width: float = 1,
                 classes: int = 1000, readout_std: float | None = 0.01):
        super().__init__()
        one_of("norm", norm, ("batch", "none"))
        before, layers = 3, []
        for filters, count in zip(FILTERS, CONVOLUTIONS[one_of("depth", depth, tuple(CONVOLUTIONS))]):
            filters = widened(filters, width)
            for _ in range(count):
                layers += [Conv(before, filters, 3), *normed(norm, filters), nn.ReLU()]
                before = filters
            layers.append(nn.MaxPool2d(2))
        hidden = widened(HIDDEN, width)
        self.features = nn.Sequential(*layers)
        self.readout = nn.Sequential(
            nn.Flatten(), Hidden(before * GRID**2, hidden), nn.ReLU(), Dropout(dropout),
            Hidden(hidden, hidden), nn.ReLU(), Dropout(dropout), Readout(hidden, classes, readout_std))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(channels_last(x))
        return self.readout(x if x.shape[2:] == (GRID, GRID) else functional.adaptive_avg_pool2d(x, GRID))
