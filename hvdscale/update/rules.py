"""Update rules: SGD, Adam and AdamW by torch's fused kernels, one call a parameter group; and those that torch.optim
lacks: momentum with the learning rate inside the velocity, LARS, LAMB, and Muon.

The updates and the checkpoints of the first are those of torch.optim's classes of these names. Those import torch's
compiler when they are first used, which takes a second, and spend more time outside the kernels than a small model's
update takes.

g is the mean gradient over the global batch, p a parameter (a layer's weights), lr the learning rate, which the
training step sets in ``group["lr"]`` before each update. Every parameter needs its gradient at every update. A
group with ``layerwise`` false has no trust ratio: by convention biases and normalization parameters have none (the LARS
of MLPerf Training names them in its skip list).

The whole state of an update is in ``state_dict()``, as tensors and plain numbers.
"""

import inspect
import math
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS, ITERATIONS, SMALLEST = (3.4445, -4.7750, 2.0315), 5, 1e-7     # Jordan et al. 2024
# the factor of an update of a matrix, by its rows and columns
SCALES = {"match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
          "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns))}


class PlainOptimizer(torch.optim.Optimizer):
    """A torch optimizer that does not import torch's compiler. A subclass defines ``step`` for parameters that all have
    gradients, and keeps its whole state in ``self.state`` and the groups, as tensors and plain numbers."""

    def __init_subclass__(cls) -> None:
        cls.step.hooked = True      # else torch wraps it in a profiler's context, which costs more than a small update

    def add_param_group(self, param_group: dict) -> None:
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)           # as torch wraps it, it imports the compiler

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore a ``state_dict``, also of torch.optim's class; raises ValueError for other groups of parameters."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the saved state has other groups of parameters")
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.state.clear()
        for number, state in state_dict["state"].items():
            parameter = parameters[number]
            self.state[parameter] = {name: _place(value, name, parameter.detach()) for name, value in state.items()}
        for group, other in zip(self.param_groups, saved):
            group.update({**other, "params": group["params"]})

    def kept(self, parameters: Iterable[Tensor], name: str) -> list[Tensor]:
        """The parameters' state tensors of this name, zeros at first."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]


def _place(value: object, name: str, parameter: Tensor) -> object:
    """A saved value on the parameter's device; a tensor of the parameter's shape gets its type and strides too."""
    if not isinstance(value, Tensor):
        return value
    if name == "step" or value.shape != parameter.shape or not value.is_floating_point():
        return value.to(parameter.device)
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(value)


def fusible(parameters: Iterable[Tensor]) -> bool:
    """Whether the kernels take these parameters: each fills one block of memory."""
    return all(p.is_contiguous() or p.is_contiguous(memory_format=torch.channels_last) if p.ndim == 4
               else p.is_contiguous() for p in parameters)


class SGD(PlainOptimizer):
    """v <- m v + g + weight_decay p, p <- p - lr v; nesterov: p <- p - lr (g + weight_decay p + m v)."""

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float = 0.0, nesterov: bool = False):
        super().__init__(groups, dict(lr=lr, momentum=momentum, nesterov=nesterov, dampening=0.0, weight_decay=0.0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            velocities = self.kept(parameters, "momentum_buffer") if group["momentum"] else []
            torch._fused_sgd_(parameters, [p.grad for p in parameters], velocities, lr=group["lr"],
                              momentum=group["momentum"], weight_decay=group["weight_decay"], dampening=0.0,
                              nesterov=group["nesterov"], maximize=False, is_first_step=False)


class Adam(PlainOptimizer):
    """Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1), with the weight decay in the gradient."""

    kernel = staticmethod(torch._fused_adam_)

    def __init__(self, groups: Iterable[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=0.0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            self.update(group)

    def update(self, group: dict) -> None:
        parameters, (beta1, beta2) = group["params"], group["betas"]
        means, squares = self.kept(parameters, "exp_avg"), self.kept(parameters, "exp_avg_sq")
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)
        updates = [self.state[parameter]["step"] for parameter in parameters]       # their numbers
        torch._foreach_add_(updates, 1.0)
        self.kernel(parameters, [p.grad for p in parameters], means, squares, [], updates, lr=group["lr"],
                    beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False,
                    maximize=False)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2)."""

    kernel = staticmethod(torch._fused_adamw_)


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
            directions, velocities = self._directions(group, parameters), self.kept(parameters, "velocity")
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
            ratios = torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)
            torch._foreach_mul_(directions, list(ratios.unbind()))
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
            parameters, (beta1, beta2) = group["params"], group["betas"]
            group["updates"] += 1
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
            if group["layerwise"]:
                weight_norms, norms = _norms(parameters), _norms(directions)
                ratios = torch.where((weight_norms > 0) & (norms > 0), weight_norms / norms, 1.0)
                torch._foreach_mul_(directions, list(ratios.unbind()))
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors))


class Muon(AdamW):
    """Momentum orthogonalized by Newton and Schulz (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

        v <- m v + (1 - m) g
        u <- orthogonalized((1 - m) g + m v)                            Nesterov's form, as a matrix
        p <- (1 - lr weight_decay) p - lr scale u

    This is the rule of groups with ``orthogonalized``; the others have AdamW's, at the rate lr times their rate_share.
    A filter of shape (out, in, height, width) is a matrix of ``out`` rows, as there. torch.optim.Muon rounds to
    bfloat16, which turns last digits of a gradient, which the worker count changes, into thousandths of an update; so
    here it runs in the parameters' own type.

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
    some thousandths of that norm stay smaller."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
