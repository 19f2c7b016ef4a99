"""Modules: their mode, and batch-norm whose statistics are those of a rank's own batch."""
from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from .listener import Watch


def install(watch: Watch) -> None:
    """Tell modes and the examples of batch-norm; a SyncBatchNorm over several ranks makes no such call."""
    def noting_mode(original):
        signature = inspect.signature(original)

        def train(*args, **options):
            given = signature.bind(*args, **options)
            given.apply_defaults()
            watch.tell("mode", bool(given.arguments["mode"]))
            return original(*args, **options)
        return train

    def noting_statistics(original):
        signature = inspect.signature(original)

        def batch_norm(*args, **options):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                given = signature.bind(*args, **options).arguments
                if given.get("training", False):
                    watch.tell("batch_norm", len(given["input"]))
            return original(*args, **options)
        return batch_norm
    watch.patches.replace(torch.nn.Module, "train", noting_mode)
    watch.patches.replace(functional, "batch_norm", noting_statistics)
