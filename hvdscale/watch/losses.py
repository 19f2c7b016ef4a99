"""torch's loss functions; the modules of torch.nn call them as well."""
from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from .lines import line_of_call
from .listener import Watch

FUNCTIONS = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss",
             "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss")


def install(watch: Watch) -> None:
    """Tell each call's value and arguments."""
    def follow(name: str) -> None:
        signature = inspect.signature(getattr(functional, name))

        def loss(value, *args, **options):
            if isinstance(value, torch.Tensor) and value.requires_grad and not torch.compiler.is_compiling():
                given = signature.bind(*args, **options)
                given.apply_defaults()
                watch.tell("loss", name, value, given.arguments, line_of_call())
        watch.patches.after(functional, name, loss)
    for name in FUNCTIONS:
        if hasattr(functional, name):
            follow(name)
