"""Networks without shortcuts. For grey images the Simple CNN of Shallue et al. 2019, one for 8x8 images, fully
connected ones; AlexNet for 32x32 images, as reduced by Masters & Luschi 2018 (arXiv:1804.07612); and VGG (Simonyan &
Zisserman 2015, arXiv:1409.1556, table 1), whose configuration A is VGG-11.

Shallue et al. 2019 trained "model A" with batch-norm over ghost groups of 32, as remembered: norm="batch".
"""

from torch import Tensor, nn
from torch.nn import functional

from ...modules.layers import Dropout
from .layers import Conv, Hidden, Readout, channels_last, normed, one_of, widened

ANY_WIDTHS = "fc_WIDTH[_WIDTH...]"          # stands for the names that ``parse_widths`` reads
# filters of the two convolutions and units of the hidden layer
WIDTHS = {"narrow": (16, 32, 512), "base": (32, 64, 1024), "wide": (64, 128, 2048)}
VGG_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}    # depth -> layers
VGG_GRID = 7


class SimpleCNN(nn.Module):
    """Two 5x5 convolutions with 2x2 max-pooling, one hidden layer with dropout: (n, 1, side, side) -> (n, classes).

    width  multiplies filters and hidden units;  dropout  probability after the hidden layer

    Sizes and dropout are from memory of the paper's appendix and not verified.
    """

    def __init__(self, size: str = "base", dropout: float = 0.4, side: int = 28, classes: int = 10, width: float = 1):
        super().__init__()
        first, second, hidden = (widened(units, width) for units in WIDTHS[size])
        self.features = nn.Sequential(nn.Conv2d(1, first, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU(),
                                      nn.Conv2d(first, second, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU())
        self.readout = nn.Sequential(nn.Flatten(), nn.Linear(second * (side // 4) ** 2, hidden), nn.ReLU(),
                                     Dropout(dropout), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.features(channels_last(x)))


class TinyCNN(nn.Module):
    """Two 3x3 convolutions and a linear readout, for 8x8 images: (n, 1, 8, 8) -> (n, classes)."""

    def __init__(self, width: int = 32, classes: int = 10):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Conv2d(width, 2 * width, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Flatten(), nn.Linear(2 * width * 4, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(channels_last(x))


def parse_widths(name: str) -> tuple[int, ...]:
    """The widths in a name such as fc_1024_256; none for another name."""
    word, *widths = name.split("_")
    are_widths = word == "fc" and all(width.isdecimal() and int(width) > 0 for width in widths)
    return tuple(map(int, widths)) if are_widths else ()


class FullyConnected(nn.Module):
    """ReLU layers of these widths, each with dropout if any, and a linear readout: (n, ...) -> (n, classes)."""

    def __init__(self, inputs: int, widths: tuple[int, ...], classes: int, dropout: float = 0.0):
        super().__init__()
        sizes = (inputs, *widths)
        layers = [layer for a, b in zip(sizes, sizes[1:])
                  for layer in (nn.Linear(a, b), nn.ReLU(), *([Dropout(dropout)] if dropout else []))]
        self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class AlexNet(nn.Module):
    """Five convolutions of stride 1, three 3x3 max-poolings of stride 2, two hidden layers of 256: (n, 3, side, side)
    -> (n, classes).

    norm         batch-norm before ReLU: "none", "conv" (convolutions only) or "all"
    width        multiplies all filters and hidden units
    dropout      probability after each hidden layer
    readout_std  standard deviation of the readout's initial weights; None: torch's own

    Kernels, channels, pooling windows and the 256 units are the paper's, as quoted by others. The rest could not be
    verified and follows AlexNet (Krizhevsky et al. 2012); the initialization is that of He et al. 2015.
    """

    def __init__(self, norm: str = "none", width: float = 1, dropout: float = 0.0, classes: int = 10, side: int = 32,
                 readout_std: float | None = None):
        super().__init__()
        one_of("norm", norm, ("none", "conv", "all"))
        if not isinstance(side, int) or side < 15:
            raise ValueError(f"side = {side!r}: images have 15 pixels a side or more, for three poolings to leave one")
        before, layers = 3, []
        of_convolutions, of_hidden = ("none" if norm == "none" else "batch"), ("batch" if norm == "all" else "none")
        for number, (kernel, filters) in enumerate(zip((5, 3, 3, 3, 3), (16, 48, 96, 64, 64))):
            filters = widened(filters, width)
            layers += [Conv(before, filters, kernel), *normed(of_convolutions, filters), nn.ReLU()]
            if number in (0, 1, 4):             # as in AlexNet
                layers.append(nn.MaxPool2d(3, 2))
                side = (side - 1) // 2
            before = filters
        hidden = widened(256, width)
        layers.append(nn.Flatten())
        for inputs in (before * side**2, hidden):
            layers += [Hidden(inputs, hidden), *normed(of_hidden, hidden), nn.ReLU(), Dropout(dropout)]
        self.features, self.readout = nn.Sequential(*layers), Readout(hidden, classes, readout_std)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.features(channels_last(x)))


class VGG(nn.Module):
    """3x3 convolutions in five stages, each before 2x2 max-pooling, and two hidden layers with dropout: (n, 3, side,
    side) -> (n, classes), side >= 32.

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
        for filters, count in zip((64, 128, 256, 512, 512), VGG_STAGES[one_of("depth", depth, tuple(VGG_STAGES))]):
            filters = widened(filters, width)
            for _ in range(count):
                layers += [Conv(before, filters, 3), *normed(norm, filters), nn.ReLU()]
                before = filters
            layers.append(nn.MaxPool2d(2))
        hidden = widened(4096, width)
        self.features = nn.Sequential(*layers)
        self.readout = nn.Sequential(
            nn.Flatten(), Hidden(before * VGG_GRID**2, hidden), nn.ReLU(), Dropout(dropout),
            Hidden(hidden, hidden), nn.ReLU(), Dropout(dropout), Readout(hidden, classes, readout_std))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(channels_last(x))
        return self.readout(x if x.shape[2:] == (VGG_GRID, VGG_GRID) else functional.adaptive_avg_pool2d(x, VGG_GRID))
