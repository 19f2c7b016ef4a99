"""Optimizers' steps up to the write of the parameters, clipping before them, and learning-rate schedules."""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import torch
from torch.optim import lr_scheduler, optimizer as optimizers

from .listener import Watch

CLIP = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value", "clip_grads_with_norm_": "max_norm"}


class RunningSteps:
    """The steps that are running: an optimizer may take its own by another one, or by its superclass."""

    def __init__(self, watch: Watch):
        self.watch = watch
        self._running: list[torch.optim.Optimizer] = []

    def begin(self, optimizer, args, options):
        """Before each optimizer's own ``step``; a closure is replaced by one that tells when the gradient is there."""
        self._running.append(optimizer)
        outermost = self._running[0]
        if len(self._running) == 1:
            self.watch.tell("step_begins", optimizer, self.watch.line_of_call())
        closure = options.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if optimizer is outermost:
                self.watch.tell("writes", outermost, False)
            return None

        def evaluate(*given, **named):
            result = closure(*given, **named)
            self.watch.tell("writes", outermost, True)
            return result
        if "closure" in options:
            return args, {**options, "closure": evaluate}
        return (args[0], evaluate, *args[2:]), options

    def end(self, optimizer, args, options) -> None:
        while self._running and self._running.pop() is not optimizer:       # above it: steps that raised an error
            pass
        if not self._running:
            self.watch.tell("step_ends", optimizer)


def install(watch: Watch) -> None:
    steps, patches = RunningSteps(watch), watch.patches
    patches.on_undo(optimizers.register_optimizer_step_pre_hook(steps.begin).remove)
    patches.on_undo(optimizers.register_optimizer_step_post_hook(steps.end).remove)
    for kind in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):         # which makes itself
        patches.after(kind, "__init__", lambda _, schedule, *args, **options: watch.tell("schedule_made", schedule))
    running: list[str] = []
    for name, limit in CLIP.items():
        watched = _note_clips(watch, getattr(torch.nn.utils, name), limit, running)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            if hasattr(owner, name):
                patches.replace(owner, name, lambda original, watched=watched: watched)


def _note_clips(watch: Watch, clip: Callable, limit: str, running: list[str]) -> Callable:
    """A replacement for a call that clips gradients; one that is made by another, so while ``running``, is not told."""
    signature = inspect.signature(clip)

    def noting(*args, **options):
        given = signature.bind(*args, **options)
        parameters = given.arguments.get("parameters")
        if running or parameters is None:
            return clip(*args, **options)
        given.arguments["parameters"] = parameters = (
            [parameters] if isinstance(parameters, torch.Tensor) else list(parameters))     # an iterator, once
        watch.tell("clipping", parameters)
        running.append(limit)
        try:
            norm = clip(*given.args, **given.kwargs)
        finally:
            running.clear()
        total = given.arguments.get("total_norm") if norm is None else norm
        watch.tell("clipped", parameters, math.nan if total is None else float(total), float(given.arguments[limit]),
                   watch.line_of_call())
        return norm
    return noting
