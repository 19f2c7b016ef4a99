"""torch's loss functions: how many targets each call is taken over, and with which weight it enters the gradient."""
from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from ..record import LossCall
from .watcher import replace

FUNCTIONS = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss",
             "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss")
OF_CLASSES = ("cross_entropy", "nll_loss")


class Losses:
    """Loss calls whose gradient the running backward pass has reached, in the order in which they were made."""

    def __init__(self) -> None:
        self._made = 0
        self._reached: dict[int, LossCall] = {}

    def install(self) -> None:
        """Watch the functions; the modules of torch.nn call them as well."""
        for name in FUNCTIONS:
            if hasattr(functional, name):
                replace(functional, name, lambda original, name=name: self._watched(name, original))

    def reached(self) -> list[LossCall]:
        """Those since the last call of this, which begins the next pass."""
        found = [call for _, call in sorted(self._reached.items())]
        self._reached = {}
        return found

    def _watched(self, name: str, original):
        signature = inspect.signature(original)

        def loss(*args, **options):
            value = original(*args, **options)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                given = signature.bind(*args, **options)
                given.apply_defaults()
                self._follow(name, value, given.arguments)
            return value
        return loss

    def _follow(self, name: str, value: torch.Tensor, given: dict) -> None:
        self._made += 1
        made, reduction = self._made, given["reduction"]
        count = value.numel() if reduction == "none" else _count(name, given)

        def reach(gradient: torch.Tensor) -> None:
            self._reached[made] = _call(name, gradient.detach(), reduction, count)
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
