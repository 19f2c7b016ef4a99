"""Checks of the optimizer as it is set: weight decay, and steps of rounding alone."""
from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from ..formatting.numbers import list_first
from ..update.averages import has_modes
from ..update.optimizers import make_optimizer, norms_and_biases
from ..update.precision import AUTOCAST, PARAMETERS
from .finding import JOB, Finding
from .probe_step import Sample, mean_gradient, trained

DECAY = "weight decay"
# of the check of rounding, as a bias before a normalization has it in place of a gradient:
AWAY = 0.01             # how far from its initial parameters the model is looked at: there zeros may hide a gradient
LOOKS = 4               # gradients, between which all parameters are moved
SHIFT = 64              # by so many units of rounding
SMALL = 1e4             # a gradient that is rounding is below so many units of rounding of the largest
MOVED = 1e-3            # and changes by more than this share of itself
SHARE = 0.1             # of a parameter's elements, at least
AMPLIFIED = 10.0        # a step per gradient, over that of the other parameters


def decay(sample: Sample) -> Finding:
    """Which parameters an update shrinks when all gradients are zero, and which of them should decay. The check takes
    a step from parameters of 1, so it also finds an optimizer class with its own decay."""
    plan, model = sample.job.plan, sample.model()
    optimizer, apart = make_optimizer(plan, model), norms_and_biases(model)
    for group in optimizer.param_groups:
        group["lr"] = plan.peak_lr
    named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        for _, parameter in named:
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    decays = {path: bool((p != 1).any()) for path, p in named}
    wanted = {path: plan.weight_decay > 0 and (plan.decay_norm_and_bias or id(p) not in apart) for path, p in named}
    unasked = [path for path in decays if decays[path] and not wanted[path]]
    if unasked:
        biases = "biases and normalization parameters among them" if any(
            id(p) in apart for path, p in named if path in unasked) else "though weight_decay is 0"
        return JOB.finding(DECAY, "unasked", plan, names=list_first(unasked, 3), which=biases)
    idle = [path for path in decays if wanted[path] and not decays[path]]
    return JOB.finding(DECAY, "idle" if idle else "as_asked", plan, names=list_first(idle, 3),
                       decaying=sum(decays.values()), count=len(decays))


def rounding(sample: Sample) -> Finding:
    """Which parameters have a gradient that is zero but for rounding, of which the optimizer makes steps."""
    model, generator = sample.model(), torch.Generator().manual_seed(sample.plan.seed)
    _shift(model, lambda values, noise: values + AWAY * noise, generator)
    eps, gradients = torch.finfo(PARAMETERS[sample.plan.precision]).eps, []
    for _ in range(LOOKS):
        gradients.append(mean_gradient(sample, model, sample.plan))
        _shift(model, lambda values, noise: values * (1 + SHIFT * eps * noise), generator)
    gradient = torch.stack(gradients).abs().amax(0)
    spread = torch.stack(gradients).amax(0) - torch.stack(gradients).amin(0)
    is_rounding = (gradient <= SMALL * eps * gradient.max()) & (spread > MOVED * gradient)
    sizes = [parameter.numel() for parameter in trained(model)]
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    kept = [flags.double().mean() >= SHARE for flags in is_rounding.split(sizes)]
    is_rounding &= torch.repeat_interleave(torch.tensor(kept), torch.tensor(sizes))
    found = [name for name, is_kept in zip(names, kept) if is_kept]
    about = dict(optimizer=sample.job.plan.optimizer, names=list_first(found, 4), which="it" if len(found) == 1 else
                 "them", count=len(names))
    if not found:
        return JOB.finding("rounding", "none", **about)
    precision = sample.job.plan.precision
    narrow = torch.finfo(AUTOCAST.get(precision, PARAMETERS[precision])).eps
    in_job = torch.where(is_rounding, gradient * (narrow / eps), gradient)
    step = _step(sample, model, in_job)
    own = step - _step(sample, model, torch.where(is_rounding, 0.0, gradient))
    per_gradient = _rms(step[~is_rounding]) / _rms(in_job[~is_rounding])
    amplified = [name for name, flags, moved, pulled in zip(names, *(
        values.split(sizes) for values in (is_rounding, own, in_job))) if flags.any() and
        _rms(moved[flags]) > AMPLIFIED * per_gradient * _rms(pulled[flags])]
    about["names"] = list_first(amplified or found, 4)
    return JOB.finding("rounding", "amplified" if amplified else "harmless", **about)


def _shift(model: nn.Module, change, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in trained(model):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(change(parameter, noise.to(parameter)))


def _step(sample: Sample, model: nn.Module, gradient: Tensor) -> Tensor:
    """How the optimizer's first step moves the parameters under this gradient, as a vector."""
    model = deepcopy(model)
    optimizer, parameters = make_optimizer(sample.job.plan, model), trained(model)
    if has_modes(optimizer):
        optimizer.train()
    before = nn.utils.parameters_to_vector(parameters).detach().clone()
    for parameter, values in zip(parameters, gradient.split([p.numel() for p in parameters])):
        parameter.grad = values.view_as(parameter).to(parameter)
    for group in optimizer.param_groups:
        group["lr"] = sample.job.plan.peak_lr * group.get("rate_share", 1.0)
    optimizer.step()
    return (nn.utils.parameters_to_vector(parameters).detach() - before).double().cpu()


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item() if values.numel() else 0.0
