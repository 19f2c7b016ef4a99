"""Modules: their mode, and batch-norm whose statistics are those of a rank's own batch."""
from __future__ import annotations

import torch
from torch.nn import functional

from .listener import Watch


def install(watch: Watch) -> None:
    """Tell each change of mode, and the examples of each batch-norm; a SyncBatchNorm over several ranks makes no such
    call."""
    def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, *_, **__):
        if training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            watch.tell("batch_norm", len(input))
    watch.patches.before(torch.nn.Module, "train", lambda self, mode=True: watch.tell("mode", bool(mode)))
    if watch.details:
        watch.patches.before(functional, "batch_norm", batch_norm)
