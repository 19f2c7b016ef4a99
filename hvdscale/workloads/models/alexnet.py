"""The reduced AlexNet of Masters & Luschi 2018 (arXiv:1804.07612) for 32x32 images."""
from __future__ import annotations

from torch import Tensor, nn

from ...modules.layers import Dropout
from .layers import Conv, Hidden, Readout, channels_last, normed, one_of, widened

KERNELS, FILTERS = (5, 3, 3, 3, 3), (16, 48, 96, 64, 64)
POOLED = (0, 1, 4)                      # convolutions followed by max-pooling, as in AlexNet
HIDDEN = 256


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
        for number, (kernel, filters) in enumerate(zip(KERNELS, FILTERS)):
            filters = widened(filters, width)
            layers += [Conv(before, filters, kernel), *normed(of_convolutions, filters), nn.ReLU()]
            if number in POOLED:
                layers.append(nn.MaxPool2d(3, 2))
                side = (side - 1) // 2
            before = filters
        hidden = widened(HIDDEN, width)
        layers.append(nn.Flatten())
        for inputs in (before * side**2, hidden):
            layers += [Hidden(inputs, hidden), *normed(of_hidden, hidden), nn.ReLU(), Dropout(dropout)]
        self.features, self.readout = nn.Sequential(*layers), Readout(hidden, classes, readout_std)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.features(channels_last(x)))
