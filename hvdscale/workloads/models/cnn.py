"""Small networks for grey images: the Simple CNN of Shallue et al. 2019, one for 8x8 images, fully connected ones."""

from torch import Tensor, nn

from ...modules.layers import Dropout
from .layers import channels_last, widened

ANY_WIDTHS = "fc_WIDTH[_WIDTH...]"          # stands for the names that ``parse_widths`` reads
# filters of the two convolutions and units of the hidden layer
WIDTHS = {"narrow": (16, 32, 512), "base": (32, 64, 1024), "wide": (64, 128, 2048)}


class SimpleCNN(nn.Module):
    """Two 5x5 convolutions with 2x2 max-pooling, one hidden layer with dropout: (n, 1, side, side) -> (n, classes).

    width  multiplies filters and hidden units;  dropout  probability after the hidden layer

    Sizes and dropout are from memory of the paper's appendix and not verified.
    """

    def __init__(self, size: str = "base", dropout: float = 0.4, side: int = 28, classes: int = 10, width: float = 1):
        super().__init__()
        first, second, hidden = (widened(units, width) for units in WIDTHS[size])
        self.features = nn.Sequential(
            nn.Conv2d(1, first, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(first, second, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU())
        self.readout = nn.Sequential(
            nn.Flatten(), nn.Linear(second * (side // 4) ** 2, hidden), nn.ReLU(), Dropout(dropout),
            nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.features(channels_last(x)))


class TinyCNN(nn.Module):
    """Two 3x3 convolutions and a linear readout, for 8x8 images: (n, 1, 8, 8) -> (n, classes)."""

    def __init__(self, width: int = 32, classes: int = 10):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
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
