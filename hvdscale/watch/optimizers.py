"""Optimizers' steps up to the write of the parameters, clipping before them, and learning-rate schedules."""
from __future__ import annotations

import functools
import inspect
import math

import torch
from torch.optim import lr_scheduler, optimizer as optimizers

from .listener import Watch

CLIP = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value", "clip_grads_with_norm_": "max_norm"}


def install(watch: Watch) -> None:
    patches = watch.patches
    running: list[torch.optim.Optimizer] = []       # one may take its steps by another one, or by its superclass
    clipping: list[str] = []

    def begin(optimizer, args, options):
        """Before each optimizer's own ``step``; a closure is replaced by one that tells when the gradient is there."""
        running.append(optimizer)
        outermost = running[0]
        if len(running) == 1:
            watch.tell("step_begins", optimizer, watch.line_of_call())
        closure = options.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if optimizer is outermost:
                watch.tell("writes", outermost, False)
            return None

        def evaluate(*given, **named):
            result = closure(*given, **named)
            watch.tell("writes", outermost, True)
            return result
        if "closure" in options:
            return args, {**options, "closure": evaluate}
        return (args[0], evaluate, *args[2:]), options

    def end(optimizer, args, options) -> None:
        while running and running.pop() is not optimizer:       # above it: steps that raised an error
            pass
        if not running:
            watch.tell("step_ends", optimizer)

    def clip(limit, original, *args, **options):
        given = inspect.signature(original).bind(*args, **options)
        parameters = given.arguments.get("parameters")
        if clipping or parameters is None:                      # a call that is made by another one is not told
            return original(*args, **options)
        given.arguments["parameters"] = parameters = (
            [parameters] if isinstance(parameters, torch.Tensor) else list(parameters))     # an iterator, once
        watch.tell("clipping", parameters)
        clipping.append(limit)
        try:
            norm = original(*given.args, **given.kwargs)
        finally:
            clipping.clear()
        total = given.arguments.get("total_norm") if norm is None else norm
        watch.tell("clipped", parameters, math.nan if total is None else float(total), float(given.arguments[limit]),
                   watch.line_of_call())
        return norm
    patches.on_undo(optimizers.register_optimizer_step_pre_hook(begin).remove)
    patches.on_undo(optimizers.register_optimizer_step_post_hook(end).remove)
    for kind in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):         # which makes itself
        patches.after(kind, "__init__", lambda _, schedule, *args, **options: watch.tell("schedule_made", schedule))
    for name, limit in (CLIP if watch.details else {}).items():             # a norm is awaited from a GPU
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            if hasattr(owner, name):
                patches.around(owner, name, functools.partial(clip, limit))
