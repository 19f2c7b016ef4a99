"""Forward and backward passes, each parameter's gradient before any reduction over ranks, modes of modules, losses and
batch-norm; optimizers' steps up to the write of the parameters, clipping before them, and learning-rate schedules."""

import functools
import inspect
import math
import weakref
from types import SimpleNamespace

import torch
import torch.utils.checkpoint
from torch.nn import functional
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import lr_scheduler, optimizer as optimizers
from torch.utils.weak import WeakTensorKeyDictionary

from .lines import line_of_call
from .listener import Watch
from .remarks import NOT_FOLLOWED, REDRAWN

LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss",
          "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss")
in_transform = torch._C._functorch.peek_interpreter_stack      # None outside torch.func, whose tensors hold no values
CLIP = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value", "clip_grads_with_norm_": "max_norm"}


def install(watch: Watch) -> None:
    """Watch passes, parameters, scalers, autocast, modes, losses, and each batch-norm's examples (SyncBatchNorm over
    several ranks makes no such call)."""
    patches, plain = watch.patches, not watch.details
    # a backward pass runs; a forward pass has begun since the last one; a module is called without gradients
    passes = SimpleNamespace(running=False, forward=False, inference=False)
    followed = WeakTensorKeyDictionary()        # parameters with a hook

    def backward(original, *args, **options):
        if passes.running:                      # within a pass, by checkpoints that compute once more
            return original(*args, **options)
        tensors = args[0] if args else options["tensors"]
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        watch.tell("pass_begins", roots)
        passes.running = True
        try:
            result = original(*args, **options)
        finally:
            passes.running = passes.forward = False
        watch.tell("pass_ends", roots, watch.line_of_call())
        return result

    def noting_grad(original, outputs, inputs, *args, **options):
        inputs = [inputs] if isinstance(inputs, (torch.Tensor, torch.autograd.graph.GradientEdge)) else list(inputs)
        if any(one in followed for one in inputs):
            watch.tell("remark", NOT_FOLLOWED.format(watch.line_of_call()))
        return original(outputs, inputs, *args, **options)

    def reached(parameter, gradient):
        if passes.running and (one := parameter()) is not None:
            watch.tell("gradient", one, gradient)

    def parameters_added(_, optimizer, *args, **options):
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if parameter.requires_grad and parameter not in followed:
                followed[parameter] = hook = parameter.register_hook(functools.partial(reached, weakref.ref(parameter)))
                patches.on_undo(hook.remove)
        watch.tell("parameters_added", optimizer)

    def noting_forward(original):
        def __call__(module, *args, **options):
            if passes.forward and (plain or torch.is_grad_enabled()) or torch.compiler.is_compiling() or (
                    in_transform() or passes.inference and not torch.is_grad_enabled()):
                return original(module, *args, **options)
            if isinstance(module, ParametrizationList):     # called as it is registered, or where a weight is read
                before, passes.forward, passes.inference = (passes.forward, passes.inference), True, True
                try:
                    return original(module, *args, **options)
                finally:
                    passes.forward, passes.inference = before
            if torch.is_grad_enabled():
                passes.forward = True
                watch.tell("forward_begins", module)
                return original(module, *args, **options)
            watch.tell("inference", module)
            passes.inference = True
            try:
                return original(module, *args, **options)
            finally:
                passes.inference = False
        return __call__

    def loss_scaled(scaler, *args, **options):
        if scaler.is_enabled():
            watch.tell("loss_scaled", scaler.get_scale() or 1.0)

    def autocast_begins(context):
        if context._enabled:
            watch.tell("precision_lowered")

    def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, *_, **__):
        if training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            watch.tell("batch_norm", len(input))

    def checkpoint(original, *args, **options):
        before = torch.get_rng_state()
        result = original(*args, **options)
        if not options.get("preserve_rng_state", True) and not torch.equal(before, torch.get_rng_state()):
            watch.tell("remark", REDRAWN)
        return result
    _follow_optimizers(watch)
    patches.around(torch.autograd, "backward", backward)
    patches.replace(torch.nn.Module, "__call__", noting_forward)
    patches.before(torch.nn.Module, "train", lambda self, mode=True: watch.tell("mode", bool(mode)))
    if watch.details:
        patches.around(torch.autograd, "grad", noting_grad)
        patches.around(torch.utils.checkpoint, "checkpoint", checkpoint)
        patches.after(torch.optim.Optimizer, "add_param_group", parameters_added)
        patches.before(torch.amp.GradScaler, "scale", loss_scaled)
        patches.before(torch.amp.GradScaler, "unscale_", lambda self, optimizer: watch.tell("unscaled", optimizer))
        patches.before(torch.autocast, "__enter__", autocast_begins)
        patches.before(functional, "batch_norm", batch_norm)
        for name in LOSSES:
            _follow_loss(watch, name)


def _follow_loss(watch: Watch, name: str) -> None:
    defaults = {key: one.default for key, one in inspect.signature(getattr(functional, name)).parameters.items()}

    def loss(value, *args, **options):
        if getattr(value, "requires_grad", False) and not torch.compiler.is_compiling() and not in_transform():
            given = {**defaults, **dict(zip(defaults, args)), **options}        # as by bind, which takes 8 us
            watch.tell("loss", name, value, given, line_of_call())
    watch.patches.after(functional, name, loss)


def _follow_optimizers(watch: Watch) -> None:
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
