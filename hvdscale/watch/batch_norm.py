"""Batch-norm whose statistics are those of a rank's own batch."""
from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from .listener import Watch


def install(watch: Watch) -> None:
    """Tell the examples of each; a SyncBatchNorm over several ranks makes no such call."""
    def noting_statistics(original):
        signature = inspect.signature(original)

        def batch_norm(*args, **options):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                given = signature.bind(*args, **options).arguments
                if given.get("training", False):
                    watch.tell("batch_norm", len(given["input"]))
            return original(*args, **options)
        return batch_norm
    watch.patches.replace(functional, "batch_norm", noting_statistics)
