"""Dropout whose masks depend on the seed, the step, the ghost group and the layer, never on the worker.

    masks = Masks(seed=0, device=torch.device("cpu"))
    masks.attach(model)                      every Dropout of the model
    masks.at(step, groups, start, stop)      before each pass: where its examples stand
"""
from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor, nn

from .streams import stream_key


class Masks:
    """The masks of one pass: each ghost group's is drawn whole, from its own stream, and cut to the pass's rows."""

    def __init__(self, seed: int, device: torch.device):
        self.seed = seed
        self.generator = torch.Generator(device)
        self.step, self.groups, self.start, self.stop = 0, [0], 0, 0

    def attach(self, model: nn.Module) -> None:
        """Make every Dropout of the model draw from here, numbered in the order of the modules."""
        for layer, module in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
            module.masks, module.layer = self, layer

    def at(self, step: int, groups: list[int], start: int, stop: int) -> None:
        """The pass's examples stand at positions start .. stop-1 of the step, which ``groups`` (bounds) partition."""
        self.step, self.groups, self.start, self.stop = step, groups, start, stop

    def keep(self, layer: int, shape: torch.Size, probability: float) -> Tensor:
        """Which of the layer's values to keep, each with this probability: bool, shape (stop - start, *shape)."""
        first = bisect_right(self.groups, self.start) - 1
        rows = []
        for group in range(first, len(self.groups) - 1):
            a, b = self.groups[group:group + 2]
            if a >= self.stop:
                break
            self.generator.manual_seed(stream_key(self.seed, "dropout", self.step, group, layer))
            drawn = torch.rand((b - a, *shape), generator=self.generator, device=self.generator.device)
            rows.append(drawn[max(self.start - a, 0):self.stop - a])
        return torch.cat(rows) < probability


class Dropout(nn.Module):
    """As nn.Dropout, (n, ...) -> (n, ...), with masks from a ``Masks`` object; without one, from torch's own stream."""

    masks: Masks | None = None
    layer = 0

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout probability {p} is not in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.masks is None:
            return nn.functional.dropout(x, self.p)
        return x * self.masks.keep(self.layer, x.shape[1:], 1 - self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
