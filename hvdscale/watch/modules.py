"""Modules: their mode."""
from __future__ import annotations

import inspect

import torch

from .listener import Watch


def install(watch: Watch) -> None:
    """Tell each change of mode."""
    def noting_mode(original):
        signature = inspect.signature(original)

        def train(*args, **options):
            given = signature.bind(*args, **options)
            given.apply_defaults()
            watch.tell("mode", bool(given.arguments["mode"]))
            return original(*args, **options)
        return train

    watch.patches.replace(torch.nn.Module, "train", noting_mode)
