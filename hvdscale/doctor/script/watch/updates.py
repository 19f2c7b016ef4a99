"""Backward passes, clipping and optimizer steps: local gradients, the one that is applied, rates and parameters."""
from __future__ import annotations

import weakref

import numpy as np
import torch
from torch.optim import lr_scheduler, optimizer as optimizers

from ..record import Clip, Pass, Update
from .generators import draws_since, states
from .loaders import Loaders
from .losses import Losses
from .modules import digest
from .watcher import Watcher, replace

SAMPLED = 256                   # numbers of a parameter, at most


class Updates:
    """The updates' part of the record: those of the optimizer that steps first."""

    def __init__(self, watcher: Watcher, loaders: Loaders, losses: Losses):
        self.watcher, self.loaders, self.losses = watcher, loaders, losses
        self.scale = 1.0                                            # of a GradScaler
        self._rough = False                                         # whether fewer than 32 bits were used
        self._places: dict[int, weakref.ref] = {}                   # by id: parameters with a hook
        self._local: dict[int, np.ndarray] = {}                     # of the running pass: samples of gradients
        self._afresh: dict[int, bool] = {}                          # whether the pass found no gradient there
        self._passes: list[tuple[Pass, dict[int, np.ndarray]]] = []
        self._clip: tuple[dict[int, np.ndarray], float, float] | None = None
        self._first: weakref.ref | None = None                      # the optimizer whose steps are the updates
        self._seen: set[int] = set()
        self._schedules: weakref.WeakSet = weakref.WeakSet()

    def install(self) -> None:
        """Watch every optimizer, schedule and backward pass of this process."""
        replace(torch.optim.Optimizer, "add_param_group", self._note_parameters)
        replace(lr_scheduler.LRScheduler, "__init__", self._note_schedule)
        replace(torch.autograd, "backward", self._note_pass)
        replace(torch.amp.GradScaler, "scale", self._note_scale)
        replace(torch.autocast, "__enter__", self._note_autocast)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            watched = getattr(torch.nn.utils, name)
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                setattr(owner, name, self._note_clip(watched))
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)

    def _note_parameters(self, original):
        def add_param_group(optimizer, group):
            result = original(optimizer, group)
            for parameter in optimizer.param_groups[-1]["params"]:
                if parameter.requires_grad and id(parameter) not in self._places:
                    self._places[id(parameter)] = weakref.ref(parameter)
                    self._rough |= parameter.element_size() < 4
                    parameter.register_hook(self._gradient_of(weakref.ref(parameter)))
            return result
        return add_param_group

    def _gradient_of(self, reference):
        def reach(gradient):
            parameter = reference()
            if parameter is None:
                return
            self._afresh[id(parameter)] = parameter.grad is None or not parameter.grad.any().item()
            self._local[id(parameter)] = _sample(gradient)
        return reach

    def _note_schedule(self, original):
        def begin(schedule, *args, **options):
            original(schedule, *args, **options)
            self._schedules.add(schedule)
        return begin

    def _note_scale(self, original):
        def scale(scaler, outputs):
            if scaler.is_enabled():
                self.scale = scaler.get_scale() or 1.0
            return original(scaler, outputs)
        return scale

    def _note_autocast(self, original):
        def enter(context):
            self._rough |= context._enabled
            return original(context)
        return enter

    def _note_pass(self, original):
        def backward(tensors, *args, **options):
            drawn, batches = draws_since(self.loaders.after_fetch), self.loaders.taken()
            self._local, self._afresh = {}, {}
            self.losses.reached()
            result = original(tensors, *args, **options)
            if self._local:
                self._add_pass(tensors, drawn, batches)
            self.loaders.after_fetch = states()
            return result
        return backward

    def _add_pass(self, tensors, drawn, batches) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        loss = sum(root.detach().double().sum().item() for root in roots) / self.scale
        calls = self.losses.reached()
        for call in calls:
            call.total, call.lowest, call.highest = (
                each / self.scale for each in (call.total, call.lowest, call.highest))
        local = {at: values / self.scale for at, values in self._local.items()}
        if all(self._afresh.values()):
            self._passes = []
        self._passes.append((Pass(loss, np.empty(0), calls, batches, drawn, self._rough), local))
        self.scale = 1.0

    def _note_clip(self, original):
        def clip(parameters, limit, *args, **options):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            before = {id(one): _sample(one.grad) for one in parameters if one.grad is not None}
            norm = original(parameters, limit, *args, **options)
            self._clip = before, float("nan") if norm is None else float(norm), float(limit)
            return norm
        return clip

    def _before_step(self, optimizer, args, options) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        self._seen.add(id(optimizer))
        self.watcher.record.optimizers = len(self._seen)
        if self._first() is not optimizer:
            return
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        places = {id(one): _places(one) for one in parameters}

        def joined(samples: dict[int, np.ndarray]) -> np.ndarray:
            return np.concatenate([samples.get(at, np.zeros(size)) for at, size in places.items()] or [np.empty(0)])
        passes = []
        for one, local in self._passes:
            one.gradient = joined(local)
            passes.append(one)
        clip = self._clip and Clip(joined(self._clip[0]), *self._clip[1:])
        self.watcher.record.updates.append(Update(
            joined({id(one): _sample(one.grad) for one in parameters if one.grad is not None}),
            joined({id(one): _sample(one) for one in parameters}), digest(parameters),
            tuple(float(group["lr"]) for group in optimizer.param_groups),
            tuple(sorted(int(one.last_epoch) for one in self._schedules if one.optimizer is optimizer)), passes, clip))
        self._passes, self._clip = [], None

    def _after_step(self, optimizer, args, options) -> None:
        if self._first() is optimizer:
            self.watcher.stepped()


def _stride(numbers: int) -> int:
    return max(1, numbers // SAMPLED)


def _places(parameter: torch.Tensor) -> int:
    return len(range(0, parameter.numel(), _stride(parameter.numel())))


def _sample(values: torch.Tensor) -> np.ndarray:
    values = values.detach()
    values = values.to_dense() if values.is_sparse else values
    return values.reshape(-1)[::_stride(values.numel())].double().cpu().numpy().copy()
