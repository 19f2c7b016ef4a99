"""The optimizer that a plan names, with weight decay kept off biases and normalisation parameters."""
from __future__ import annotations

import torch
from torch import nn

from .errors import UsageError
from .importing import import_object
from .plan import Plan


def make_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """The plan's optimizer over the model's trainable parameters; raises UsageError for a name that leads to none.

    momentum and nesterov are torch's form v <- m v + g, p <- p - lr v: the learning rate stands outside the
    velocity, so a change of it needs no momentum correction (Goyal et al. 2017, remark 2).
    """
    groups = parameter_groups(plan, model)
    if "weight_decay" in plan.optimizer_args:
        raise UsageError("optimizer_args has weight_decay, which is a key of its own: --set weight_decay=...")
    if plan.optimizer in ("sgd", "momentum", "nesterov"):
        if plan.optimizer_args:
            raise UsageError(f"optimizer_args = {plan.optimizer_args} is for a module:Class such as torch.optim:SGD, "
                             f"not for {plan.optimizer}")
        nesterov = plan.optimizer == "nesterov"
        return torch.optim.SGD(groups, lr=plan.peak_lr, momentum=plan.momentum or 0.0, nesterov=nesterov)
    if ":" not in plan.optimizer:
        raise UsageError(f"optimizer {plan.optimizer!r} is none of sgd, momentum, nesterov, and not module:Class such "
                         "as torch.optim:Adam")
    factory = import_object(plan.optimizer, "optimizer")
    try:
        return factory(groups, lr=plan.peak_lr, **plan.optimizer_args)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {plan.optimizer!r} does not take lr and optimizer_args = {plan.optimizer_args}: "
                         f"{error}") from None


def parameter_groups(plan: Plan, model: nn.Module) -> list[dict]:
    """Two groups at most: parameters that decay, and those that do not (of one dimension or none: biases, norms)."""
    groups = {True: [], False: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[plan.decay_norm_and_bias or parameter.ndim > 1].append(parameter)
    return [{"params": members, "weight_decay": plan.weight_decay if decays else 0.0}
            for decays, members in groups.items() if members]
