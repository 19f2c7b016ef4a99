"""Fully connected networks, named by the widths of their hidden layers: fc_1024_1024."""
from __future__ import annotations

from torch import Tensor, nn

from ...modules.layers import Dropout


def parse_widths(name: str) -> tuple[int, ...] | None:
    """The widths in a name such as fc_1024_256; None for another name."""
    word, *widths = name.split("_")
    if word != "fc" or not widths or not all(w.isdecimal() and int(w) > 0 for w in widths):
        return None
    return tuple(map(int, widths))


class FullyConnected(nn.Module):
    """ReLU hidden layers of the given widths and a linear readout: (n, ...) -> (n, classes).

    dropout  probability after each hidden layer
    """

    def __init__(self, inputs: int, widths: tuple[int, ...], classes: int, dropout: float = 0.0):
        super().__init__()
        sizes = (inputs, *widths)
        layers = [layer for a, b in zip(sizes, sizes[1:])
                  for layer in (nn.Linear(a, b), nn.ReLU(), *([Dropout(dropout)] if dropout else []))]
        self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
