"""torch.nn: modes of modules, batch-norm whose statistics are those of a rank's own batch, and loss functions."""
from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from .lines import line_of_call
from .listener import Watch

LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss",
          "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss")


def install(watch: Watch) -> None:
    """Tell each change of mode, the examples of each batch-norm (a SyncBatchNorm over several ranks makes no such
    call), and the value and arguments of each loss."""
    def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, *_, **__):
        if training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            watch.tell("batch_norm", len(input))

    def follow_loss(name: str) -> None:
        signature = inspect.signature(getattr(functional, name))

        def loss(value, *args, **options):
            if isinstance(value, torch.Tensor) and value.requires_grad and not torch.compiler.is_compiling():
                given = signature.bind(*args, **options)
                given.apply_defaults()
                watch.tell("loss", name, value, given.arguments, line_of_call())
        watch.patches.after(functional, name, loss)
    watch.patches.before(torch.nn.Module, "train", lambda self, mode=True: watch.tell("mode", bool(mode)))
    if watch.details:
        watch.patches.before(functional, "batch_norm", batch_norm)
        for name in LOSSES:
            if hasattr(functional, name):
                follow_loss(name)
