"""Loss calls: how many targets each is taken over, and with which weight it enters the gradient."""
from __future__ import annotations

import numpy as np
import torch

from ....watch.listener import Listener
from ..record import LossCall

OF_CLASSES = ("cross_entropy", "nll_loss")
MOST_TARGETS = 4096     # of a call that are kept one by one


class Losses(Listener):
    """Loss calls whose gradient the running backward pass has reached, in the order in which they were made."""

    def __init__(self) -> None:
        self._made = 0
        self._reached: dict[int, LossCall] = {}

    def reached(self) -> list[LossCall]:
        """The losses since the last call of this, which begins the next pass."""
        found = [call for _, call in sorted(self._reached.items())]
        self._reached = {}
        return found

    def loss(self, name, value, given, line):
        self._made += 1
        made, reduction = self._made, given["reduction"]
        count = value.numel() if reduction == "none" else _count(name, given)

        def reach(gradient: torch.Tensor) -> None:
            call = self._reached[made] = _call(name, gradient.detach(), reduction, count)
            call.line, call.weights = line, np.array([call.highest])
            call.values = np.array([result.double().sum().item() * (count if reduction == "mean" else 1)])
            if reduction == "none" and result.numel() <= MOST_TARGETS:
                call.values, call.weights = (one.double().reshape(-1).cpu().numpy() for one in (
                    result, gradient.detach()))
        result = value.detach()
        value.register_hook(reach)


def _count(name: str, given: dict) -> float:
    """The targets that the loss is taken over, each by the weight of its class."""
    target = given["target"]
    if name not in OF_CLASSES or target.is_floating_point():
        return float(len(target) if target.dim() else 1)
    counted = target[target != given["ignore_index"]]
    weight = given.get("weight")
    return float(counted.numel() if weight is None else weight[counted].sum().item())


def _call(name: str, gradient: torch.Tensor, reduction: str, count: float) -> LossCall:
    if reduction == "none":
        weights = gradient[gradient != 0].double()
        if not weights.numel():
            return LossCall(name, 0.0, 0.0, 0.0, 0.0)
        return LossCall(name, float(weights.numel()), weights.sum().item(), weights.min().item(), weights.max().item())
    weight = gradient.double().sum().item()
    if reduction == "sum":
        return LossCall(name, count, weight * count, weight, weight)
    return LossCall(name, count, weight, weight / max(count, 1.0), weight / max(count, 1.0))
