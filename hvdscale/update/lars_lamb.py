"""Update rules that torch.optim lacks: momentum with the learning rate inside the velocity, LARS, and LAMB.

g is the mean gradient over the global batch, p a parameter (a layer's weights), lr the learning rate, which the
training step sets in ``group["lr"]`` before each update. Every parameter needs its gradient at every update. A
group with ``layerwise`` false has no trust ratio: by convention biases and normalization parameters have none (the LARS
of MLPerf Training names them in its skip list).

The whole state of an update is in ``state_dict()``, as tensors and plain numbers.
"""
from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .fused import PlainOptimizer


class RateInVelocity(PlainOptimizer):
    """Momentum with the learning rate inside the velocity (Goyal et al. 2017, arXiv:1706.02677, equations 9 and 10).

        d <- g + weight_decay p
        v <- m c v + lr d                       c = lr / (lr of the previous update) with correction, else 1
        p <- p - v                              nesterov: p <- p - (lr d + m v)

    With correction these are the updates of torch.optim.SGD, p <- p - lr u with u <- m u + d, under any learning rates;
    without, a velocity built up at one rate continues at that rate after the rate has changed. Corrected updates at a
    rate of 0 move nothing and keep the velocity at the scale of the previous rate, as equation 10 is undefined at 0.
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, nesterov: bool = False,
                 correction: bool = True, **further: object):
        super().__init__(groups, dict(lr=lr, momentum=momentum, nesterov=nesterov, correction=correction,
                                      weight_decay=0.0, velocity_lr=None, **further))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            lr, momentum, before = group["lr"], group["momentum"], group["velocity_lr"]
            scale = (lr or before or 1.0) if group["correction"] else lr      # the rate that the velocity holds
            moved = lr / scale if group["correction"] else 1.0                # 1, but 0 at a corrected rate of 0
            carried = momentum * scale / before if group["correction"] and before else momentum
            directions = self._directions(group, parameters)
            velocities = self.kept(parameters, "velocity")
            torch._foreach_mul_(velocities, carried)
            torch._foreach_add_(velocities, directions, alpha=scale)
            if group["nesterov"]:
                torch._foreach_add_(parameters, directions, alpha=-moved * scale)
                moved *= momentum
            torch._foreach_add_(parameters, velocities, alpha=-moved)
            group["velocity_lr"] = scale

    def _directions(self, group: dict, parameters: list[Tensor]) -> list[Tensor]:
        """d of every parameter, in new tensors."""
        return torch._foreach_add([p.grad for p in parameters], parameters, alpha=group["weight_decay"])


class Lars(RateInVelocity):
    """Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, arXiv:1708.03888, algorithm 1 and equation 6).

        r <- trust_coefficient |p| / (|g| + weight_decay |p|)       1 where |p| or |g| is 0, and in groups not layerwise
        v <- m v + lr r (g + weight_decay p)
        p <- p - v

    In the paper and in MLPerf's reference the learning rate is inside the velocity, without correction. ``correction``
    multiplies v by the ratio of the rates as in RateInVelocity, which equals lr outside. The trust ratio r is inside
    the velocity in either form.
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, trust_coefficient: float = 0.001,
                 correction: bool = False):
        super().__init__(groups, lr, momentum, correction=correction, trust_coefficient=trust_coefficient,
                         layerwise=True)

    def _directions(self, group: dict, parameters: list[Tensor]) -> list[Tensor]:
        directions = super()._directions(group, parameters)
        if group["layerwise"]:
            weight_norms, gradient_norms = _norms(parameters), _norms([p.grad for p in parameters])
            ratios = group["trust_coefficient"] * weight_norms / (gradient_norms + group["weight_decay"] * weight_norms)
            _scale_each(directions, torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0))
        return directions


class Lamb(PlainOptimizer):
    """Layer-wise adaptive moments (You et al. 2020, arXiv:1904.00962, algorithm 2, with phi the identity).

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d <- (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p       at update t = 1, 2, ...
        p <- p - lr r d                         r = |p| / |d|; 1 where either is 0, and in groups not layerwise
    """

    def __init__(self, groups: Iterable[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999),
                 epsilon: float = 1e-6):
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), epsilon=epsilon, weight_decay=0.0, layerwise=True,
                                      updates=0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            directions = self._directions(group, parameters)
            if group["layerwise"]:
                weight_norms, norms = _norms(parameters), _norms(directions)
                _scale_each(directions, torch.where((weight_norms > 0) & (norms > 0), weight_norms / norms, 1.0))
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def _directions(self, group: dict, parameters: list[Tensor]) -> list[Tensor]:
        """d of every parameter, in new tensors; updates the moments first."""
        group["updates"] += 1
        beta1, beta2 = group["betas"]
        gradients = [p.grad for p in parameters]
        means, squares = self.kept(parameters, "mean"), self.kept(parameters, "square")
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        divisors = torch._foreach_div(squares, 1 - beta2 ** group["updates"])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["epsilon"])
        directions = torch._foreach_div(means, 1 - beta1 ** group["updates"])
        torch._foreach_div_(directions, divisors)
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        return directions


def _norms(tensors: list[Tensor]) -> Tensor:
    """Euclidean norms, shape (tensors,)."""
    return torch.stack(torch._foreach_norm(tensors))


def _scale_each(tensors: list[Tensor], factors: Tensor) -> None:
    torch._foreach_mul_(tensors, list(factors.unbind()))
