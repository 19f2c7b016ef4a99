"""SyncBatchNorm on the CPU, where torch has none: the same mean, variance and gradients over all ranks' examples."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def synchronizing(original):
    """The replacement of ``SyncBatchNorm.forward``, which torch's own code carries out where it can."""
    def forward(module, *args, **options):
        return (_normalize if module.training and dist.is_initialized() else original)(module, *args, **options)
    return forward


class Total(torch.autograd.Function):
    """A sum over the ranks of a group; all get the sum of their gradients."""

    @staticmethod
    def forward(context, values, group):
        context.group, total = group, values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=context.group)
        return total, None


def _normalize(module: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    """Batch-norm in training over the examples of the module's process group; ``input``: (N, C, ...)."""
    values = input
    group = module.process_group or dist.group.WORLD
    over = [at for at in range(values.dim()) if at != 1]
    shape = [1, -1, *[1] * (values.dim() - 2)]
    count = torch.tensor([float(values.numel() // values.size(1))])
    dist.all_reduce(count, group=group)
    mean = Total.apply(values.sum(over), group) / count
    from_mean = values - mean.view(shape)
    variance = Total.apply(from_mean.square().sum(over), group) / count
    _track(module, mean.detach(), variance.detach() * count / (count - 1))
    normal = from_mean * torch.rsqrt(variance + module.eps).view(shape)
    return normal if module.weight is None else normal * module.weight.view(shape) + module.bias.view(shape)


@torch.no_grad()
def _track(module: nn.SyncBatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Add to the running statistics; ``variance``: unbiased."""
    if module.running_mean is None or module.running_var is None or module.num_batches_tracked is None:
        return
    module.num_batches_tracked.add_(1)
    factor = 1 / module.num_batches_tracked.item() if module.momentum is None else module.momentum
    module.running_mean.lerp_(mean, factor)
    module.running_var.lerp_(variance, factor)
