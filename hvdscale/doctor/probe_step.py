"""The small part of a job that the checks run: one step of a few examples, in fp64 where the job's code allows it.

The reference computations are slow and obvious, and share no code with hvdscale.update.step.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.generators import OwnGenerators, seed_generators
from ..data.splits import to_device
from ..errors import HvdscaleError, WorkersError, WorkloadError
from ..modules.ghost_groups import GhostGroups
from ..modules.running_statistics import Buffers
from ..plan.plan import Plan
from ..plan.shards import Pass, group_bounds
from ..training.job import Job
from ..update.model import make_model
from ..update.precision import PARAMETERS
from ..update.step import DataParallelStep
from ..workers.group import SingleWorker
from ..workload import bound_loss
from .examples import examples
from .finding import Finding, carried_out

EXAMPLES = 46           # by default; a multiple of neither 3 nor 4
LEAST, PASSES = 22, 8   # examples, and ghost groups: for up to 4 workers x 2 passes
CLOSE, NARROW_CLOSE = 1e-9, 1e-4        # allowed difference between sums of the same values, in fp64 and below


class Difference(NamedTuple):
    """Where two computations diverge."""

    layer: str
    module: nn.Module
    by: float               # the largest difference relative to the largest value
    in_input: bool          # the layer's input differed already


@dataclass(frozen=True)
class Sample:
    """A job's plan cut to ``plan.global_batch`` examples a step, and its precision."""

    job: Job
    plan: Plan
    limit: float            # allowed difference between sums in another order
    note: str = ""          # why it is not in fp64, if so

    @cached_property
    def data(self) -> Finding:
        """The finding of the check of the job's examples."""
        return carried_out("examples", lambda: examples(self.job))

    def model(self, plan: Plan | None = None) -> nn.Module:
        """A new model with the job's parameters, in the plan's precision."""
        model = make_model(self.job.workload, plan or self.plan, self.job.device)
        model.load_state_dict(self.job.model.state_dict())
        return model

    def parts(self, *bounds: int) -> list[tuple[Pass, object]]:
        """The passes between these positions of the step, and their batches; by default, whole or group by group."""
        plan = self.plan
        bounds = bounds or (*(group_bounds(plan.global_batch, plan.ghost_batch) if plan.group_by_group else
                              (0, plan.global_batch)),)
        batches = (self.job.data.train.take(plan.stream.visits(0, a, b)) for a, b in zip(bounds, bounds[1:]))
        return [(Pass(a, b), to_device(batch, self.job.device, PARAMETERS[self.plan.precision]))
                for a, b, batch in zip(bounds, bounds[1:], batches)]


def make_sample(job: Job, wanted: int) -> Sample:
    """A sample of ``wanted`` examples, at least LEAST, at most all. Ghost groups are smaller than the job's where every
    pass must have one. Raises what the job's code raises."""
    batch = min(len(job.data.train), max(wanted, LEAST))
    plan = job.plan.at_batch(
        batch, ghost_batch=max(2, min(job.plan.ghost_batch, batch // PASSES)),
        precision="fp64", compression="none", loss_scale=1.0, clip_norm=None, workers=1, accumulate=1,
        local_batch=batch, loader_workers=0, noise_every=0)
    sample = Sample(job, plan, CLOSE)
    try:
        dtype = _loss_type(sample)
    except WorkersError:
        raise
    except HvdscaleError:
        return sample                   # the checks will report it
    except (RuntimeError, TypeError) as error:
        sample = replace(sample, plan=replace(plan, precision="fp32"), limit=NARROW_CLOSE,
                         note=f"in fp32, as the job's code does not run in fp64 ({error})".splitlines()[0])
        _loss_type(sample)
        return sample
    if dtype == torch.float64:
        return sample
    return replace(sample, limit=NARROW_CLOSE,
                   note=f"the loss is {str(dtype).removeprefix('torch.')}, whatever the model's type")


def _loss_type(sample: Sample) -> torch.dtype:
    model, plan = sample.model(), sample.plan
    with passing(sample, model) as enter:
        (part, batch), *_ = sample.parts(*group_bounds(plan.global_batch, plan.ghost_batch)[:2])
        enter(part)
        return bound_loss(sample.job.workload, plan.label_smoothing)(model, batch)[0].dtype


@contextlib.contextmanager
def passing(sample: Sample, model: nn.Module) -> Iterator:
    """A context for forward passes that leave generators and buffers as they were. Yields a function to call before
    each pass, which sets the modules' position and seeds the generators: by ghost group where the plan says group by
    group, else alike for all passes, as on several ranks."""
    plan = sample.plan
    ghosts = GhostGroups(plan.seed, SingleWorker(), sample.job.device)
    ghosts.attach(model)
    groups = group_bounds(plan.global_batch, plan.ghost_batch)

    def enter(part: Pass) -> None:
        ghosts.at(0, groups, part)
        if plan.group_by_group:
            ghosts.seed_generators()
        else:
            seed_generators(plan.seed)
    with OwnGenerators(sample.job.device), Buffers(model).kept():
        yield enter


def mean_gradient(sample: Sample, model: nn.Module) -> Tensor:
    """The gradient of the step's summed loss over its summed count, by autograd alone: one float64 vector. The whole
    step is one pass, or one pass per ghost group where the plan says so."""
    loss, parameters = bound_loss(sample.job.workload, sample.plan.label_smoothing), trained(model)
    sums, counted = [torch.zeros_like(p) for p in parameters], 0.0
    for part, batch in sample.parts():
        with passing(sample, model) as enter:
            enter(part)
            total, count = loss(model, batch)
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        sums = [a if g is None else a + g for a, g in zip(sums, gradients)]
        counted += count
    if not counted:
        raise WorkloadError(f"the counts returned by loss for {sample.plan.global_batch} examples add up to 0, so they "
                            "have no mean")
    return _vector(sums) / counted


def step_of(sample: Sample, plan: Plan) -> tuple[Tensor, Tensor]:
    """The mean gradient of a step taken by hvdscale, and the buffers after it."""
    model = sample.model(plan)
    job, optimizer = sample.job, torch.optim.SGD(trained(model), lr=0.0)
    take_step = DataParallelStep(plan, job.workload, job.data.train, model, optimizer, SingleWorker(), job.device)
    take_step(0, 0.0, set())
    return _vector([p.grad for p in trained(model)]), _vector([b for b in model.buffers() if b.is_floating_point()])


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(t.detach().double().flatten().cpu() for t in tensors)])


def distance(values: Tensor, reference: Tensor) -> float:
    """The norm of the difference over the reference's norm; infinite where only one side is finite."""
    apart, norm = torch.linalg.vector_norm(values - reference).item(), torch.linalg.vector_norm(reference).item()
    if apart == 0:
        return 0.0
    return apart / norm if norm and np.isfinite(apart) else float("inf")


class Call(NamedTuple):
    """A module's first input and first output, one tensor per part."""

    name: str
    module: nn.Module
    inputs: list[Tensor]
    outputs: list[Tensor]


def calls_of(sample: Sample, model: nn.Module, parts: Sequence) -> list[Call]:
    """The calls of the model's modules, in the order in which they return."""
    found: list[list[tuple[str, nn.Module, Tensor, Tensor]]] = []
    hooks = [module.register_forward_hook(
        lambda m, given, out, name=name: found[-1].append((name, m, _first(given), _first(out))))
        for name, module in model.named_modules()]
    loss = bound_loss(sample.job.workload, sample.plan.label_smoothing)
    try:
        with passing(sample, model) as enter:
            for part, batch in parts:
                found.append([])
                enter(part)
                loss(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [Call(*calls[0][:2], [call[2] for call in calls], [call[3] for call in calls]) for calls in zip(*found)
            if len({call[0] for call in calls}) == 1]


def _first(out) -> Tensor:
    if isinstance(out, (tuple, list)) and out:
        return _first(out[0])
    return out.detach().clone() if isinstance(out, Tensor) else torch.zeros(0)


def first_difference(sample: Sample, model: nn.Module, parts: Sequence, others: Sequence) -> Difference | None:
    """The first module whose rows differ between the passes ``parts`` and ``others``; None if there is none. Modules
    whose outputs are not one row per example, or are padded to another length, are not compared."""
    for call, other in zip(calls_of(sample, model, parts), calls_of(sample, model, others)):
        by = _apart(call.outputs, other.outputs)
        if by is not None and not by <= sample.limit:
            of_input = _apart(call.inputs, other.inputs)
            return Difference(call.name or "the model itself", call.module, by,
                              of_input is not None and not of_input <= sample.limit)
    return None


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float | None:
    """The largest difference over the largest value; None if the rows cannot be compared."""
    if {o.shape[1:] for o in ours} != {o.shape[1:] for o in theirs} or any(o.ndim == 0 for o in ours + theirs):
        return None
    one, other = torch.cat(ours), torch.cat(theirs)
    if len(one) != len(other) or not one.is_floating_point():
        return None
    return ((one - other).abs().max() / one.abs().max().clamp(min=1e-30)).item() if one.numel() else 0.0
