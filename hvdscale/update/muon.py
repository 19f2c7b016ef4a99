"""Muon for weight matrices and filters, and AdamW for all other parameters, as one optimizer.

torch.optim.Muon takes matrices alone, and rounds the iteration to bfloat16, which turns the last digits of a gradient
into thousandths of an update. The number of workers changes these digits. So here it runs in the parameters' own type.
"""
from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .fused import AdamW

COEFFICIENTS, ITERATIONS, SMALLEST = (3.4445, -4.7750, 2.0315), 5, 1e-7     # Jordan et al. 2024
# the factor of an update of a matrix, by its rows and columns
SCALES = {"match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
          "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns))}


class Muon(AdamW):
    """Momentum orthogonalized by Newton and Schulz (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

        v <- m v + (1 - m) g
        u <- orthogonalized((1 - m) g + m v)                            Nesterov's form, as a matrix
        p <- (1 - lr weight_decay) p - lr scale u

    This is the rule of groups with ``orthogonalized``; the others have AdamW's, at the rate lr times their rate_share.
    A filter of shape (out, in, height, width) is a matrix of ``out`` rows, as there.

    scale  original: sqrt(max(1, rows / columns)), as there; match_rms_adamw: 0.2 sqrt(max(rows, columns)), which gives
           an update the root mean square of AdamW's, so that one rate serves both (Liu et al. 2025, arXiv:2502.16982,
           equation 4)
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, scale: str = "match_rms_adamw"):
        super().__init__(groups, lr, betas, eps)
        for group in self.param_groups:
            if group["orthogonalized"]:
                group.update(momentum=momentum, scale=scale)

    def update(self, group: dict) -> None:
        if not group["orthogonalized"]:
            super().update(group)
            return
        parameters, momentum = group["params"], group["momentum"]
        gradients, velocities = [p.grad for p in parameters], self.kept(parameters, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, velocities, momentum)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for parameter, direction in zip(parameters, directions):
            matrix = orthogonalized(direction.flatten(1))
            factor = SCALES[group["scale"]](*matrix.shape)
            parameter.add_(matrix.view_as(parameter), alpha=-group["lr"] * factor)


def orthogonalized(matrix: Tensor) -> Tensor:
    """A matrix of the same singular vectors, shape (rows, columns), whose singular values are about 1: 0.68 to 1.13.

    Five iterations X <- a X + (b X X' + c (X X')^2) X from the matrix over its Frobenius norm. Singular values under
    some thousandths of that norm stay smaller.
    """
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
