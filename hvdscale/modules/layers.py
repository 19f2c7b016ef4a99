"""Dropout and batch-norm whose results depend on the ghost groups of the global batch, never on the worker count.

    nn.Sequential(nn.Conv2d(3, 16, 3), BatchNorm(16), nn.ReLU(), nn.Flatten(), Dropout(0.4), nn.Linear(16, 10))
    model = convert(model)              replaces torch's own modules
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .ghost_groups import GhostGroups

OF_TORCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Dropout(nn.Module):
    """Like nn.Dropout, (n, ...) -> (n, ...), with masks keyed by seed, step, ghost group and layer. Masks are the same
    on every CPU; a GPU draws different ones, also the same at any number of workers."""

    ghosts: GhostGroups | None = None
    layer = 0

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout probability {p} is not in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.ghosts is None:
            return functional.dropout(x, self.p)
        return x * self.ghosts.keep(self.layer, x.shape, 1 - self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Like nn.BatchNorm1d/2d/3d, (n, channels, ...) -> the same, with the statistics of each ghost group (Hoffer et al.
    2017, arXiv:1705.08741), even if several workers share a group. Running statistics move once a step, by the mean
    over the step's groups of their means and unbiased variances, so the order of the groups does not matter. ``sums``
    collects them, shape (2, channels), until ``merge``."""

    ghosts: GhostGroups | None = None
    layer = 0
    sums: Tensor | None = None

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"batch-norm needs (n, channels, ...), not a tensor of shape {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.ghosts is None:
            return super().forward(x)
        self._check_input_dim(x)
        segments = list(self.ghosts.segments(len(x)))
        if self.ghosts.part.shared:
            y, means, variances = _Shared.apply(x, self.weight, self.bias, self.eps, self.ghosts, segments, self.layer)
            owned = [group for group, _, _ in segments if self.ghosts.owns(group)]
            self._note(means[owned], variances[owned])
            return y
        if len({last - first for _, first, last in segments}) == 1:
            return self._even(x, len(segments))
        return torch.cat([self._even(x[first:last], 1) for _, first, last in segments])

    def _even(self, x: Tensor, groups: int) -> Tensor:
        """Normalize groups of equal size: each (group, channel) pair becomes a channel."""
        n, channels, *rest = x.shape
        aside = x if groups == 1 else x.unflatten(0, (groups, -1)).transpose(0, 1).reshape(-1, groups * channels, *rest)
        weight, bias = (None if p is None else p.repeat(groups) for p in (self.weight, self.bias))
        dtype = x.dtype if self.weight is None else self.weight.dtype
        means, variances = torch.zeros(2, groups, channels, device=x.device, dtype=dtype)
        # with momentum 1 the running statistics become those of the batch
        y = functional.batch_norm(aside, means.flatten(), variances.flatten(), weight, bias, True, 1.0, self.eps)
        self._note(means, variances)
        return y if groups == 1 else y.unflatten(1, (groups, channels)).transpose(0, 1).reshape(n, channels, *rest)

    @torch.no_grad()
    def _note(self, means: Tensor, variances: Tensor) -> None:
        if self.sums is not None:
            self.sums += torch.stack((means.sum(0), variances.sum(0)))

    @torch.no_grad()
    def merge(self, sums: Tensor, groups: int) -> None:
        """Move the running statistics by the sums over all groups of a step, shape (2, channels)."""
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(sums[0] / groups, momentum)
        self.running_var.lerp_(sums[1] / groups, momentum)


class _Shared(torch.autograd.Function):
    """Batch-norm of groups shared by several workers: x (n, channels, ...) -> y, and the means and unbiased variances
    of all groups of the step, (groups, channels). Takes three sums over the workers: forward of x and of its squared
    distance from the mean, backward of dy and dy xhat (Ioffe & Szegedy 2015, arXiv:1502.03167, section 3)."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, ghosts, segments, layer):
        dtype = torch.promote_types(x.dtype, torch.float32)
        values = x.to(dtype).flatten(2) if x.ndim > 2 else x.to(dtype).unsqueeze(2)
        of_row = torch.empty(len(x), dtype=torch.int64)
        for group, first, last in segments:
            of_row[first:last] = group
        of_row = of_row.to(x.device)
        sizes = torch.tensor(ghosts.groups).diff().to(x.device)[:, None] * values.shape[2]

        def over_group(rows: Tensor, what: str) -> Tensor:
            sums = torch.zeros(len(sizes), rows.shape[1], dtype=dtype, device=x.device)
            sums.index_add_(0, of_row, rows)
            return ghosts.workers.sum_(sums, f"batch_norm/{layer}/{what}")

        means = over_group(values.sum(2), "mean") / sizes
        centred = values - means[of_row, :, None]
        squares = over_group(centred.square().sum(2), "variance")
        scale = (squares / sizes + eps).rsqrt()[of_row, :, None]
        normal = centred * scale
        ctx.save_for_backward(normal, scale, weight, of_row, sizes)
        ctx.over_group, ctx.affine = over_group, bias is not None
        y = torch.empty(x.shape, dtype=dtype, device=x.device)          # no view, which nothing could change in place
        shaped = y.view(values.shape)
        if weight is None:
            shaped.copy_(normal)
        else:
            torch.mul(normal, weight[:, None], out=shaped).add_(bias[:, None])
        variances = squares / (sizes - 1).clamp(min=1)
        ctx.mark_non_differentiable(means, variances)
        return y.to(x.dtype), means, variances

    @staticmethod
    def backward(ctx, dy, *_):
        normal, scale, weight, of_row, sizes = ctx.saved_tensors
        shape, dtype = dy.shape, dy.dtype
        dy = dy.to(normal.dtype).view(normal.shape)
        by_bias, by_weight = dy.sum(2), (dy * normal).sum(2)
        if weight is not None:
            dy = dy * weight[:, None]
        channels = normal.shape[1]
        sums = ctx.over_group(torch.cat((dy.sum(2), (dy * normal).sum(2)), dim=1), "gradient") / sizes
        mean, along = sums[of_row, :channels, None], sums[of_row, channels:, None]
        dx = (dy - mean - normal * along) * scale
        return (dx.view(shape).to(dtype), by_weight.sum(0) if weight is not None else None,
                by_bias.sum(0) if ctx.affine else None, None, None, None, None)


def convert(model: nn.Module) -> nn.Module:
    """The model with torch's BatchNorm and Dropout replaced by the ones above; names and values are kept."""
    if is_replaced(model) and type(model) is nn.Dropout:
        return Dropout(model.p)
    if is_replaced(model):
        ours = BatchNorm(model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats)
        ours.__dict__.update({name: value for name, value in model.__dict__.items() if name in (
            "_parameters", "_buffers", "training")})
        return ours
    for name, child in model.named_children():
        setattr(model, name, convert(child))
    return model


def is_replaced(module: nn.Module) -> bool:
    return type(module) in OF_TORCH or (type(module) is nn.Dropout and module.p < 1)


def is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
