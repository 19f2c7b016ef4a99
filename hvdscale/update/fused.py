"""SGD, Adam and AdamW by torch's fused kernels, one call a parameter group; and the base of hvdscale's own optimizers.

The updates and the checkpoints are those of torch.optim's classes of these names. Those import torch's compiler when
they are first used, which takes a second, and spend more time outside the kernels than a small model's update takes.
"""
from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class PlainOptimizer(torch.optim.Optimizer):
    """A torch optimizer that does not import torch's compiler. A subclass defines ``step`` for parameters that all have
    gradients, and keeps its whole state in ``self.state`` and the groups, as tensors and plain numbers."""

    def __init_subclass__(cls) -> None:
        cls.step.hooked = True      # else torch wraps it in a profiler's context, which costs more than a small update

    def add_param_group(self, param_group: dict) -> None:
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    def state_dict(self) -> dict:
        """The state by the parameters' numbers, in torch's format; tensors are not copied."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        return {"state": {numbers[parameter]: state for parameter, state in self.state.items()},
                "param_groups": [{**group, "params": [numbers[p] for p in group["params"]]}
                                 for group in self.param_groups]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore a ``state_dict``, also of torch.optim's class; raises ValueError for other groups of parameters."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the saved state has other groups of parameters")
        parameters = self._parameters()
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

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


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

    def __init__(self, groups: Iterable[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8):
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
