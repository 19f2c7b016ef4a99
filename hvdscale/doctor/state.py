"""Checks of a run's checkpoint, its evaluation, and its optimizer as it is set: weight decay, steps of rounding."""
from __future__ import annotations

import math
import os
from collections import Counter
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..data.generators import OwnGenerators
from ..errors import CheckpointError
from ..formatting.numbers import list_first
from ..system.files import scratch_folder
from ..training.checkpoint import FORMAT, read, write
from ..training.evaluate import Evaluator
from ..training.snapshot import RunState, capture, restore
from ..update.averages import has_modes
from ..update.optimizers import make_optimizer, norms_and_biases
from ..update.precision import AUTOCAST, PARAMETERS, repeatable
from ..update.step import DataParallelStep
from ..workers.group import SingleWorker
from .finding import JOB, Finding
from .lost import KINDS, describe_lost, describe_tensors, unlike
from .probe_step import Sample, mean_gradient, relative, trained
from .script.listen.tensors import flatten

BEFORE = 2                  # steps before the checkpoint
MEASURED = 100              # examples measured per split, at most
CHUNKS = (32, 7)            # examples per pass, in two ways
DECAY = "weight decay"
# of the check of rounding, as a bias before a normalization has it in place of a gradient:
AWAY = 0.01             # how far from its initial parameters the model is looked at: there zeros may hide a gradient
LOOKS = 4               # gradients, between which all parameters are moved
SHIFT = 64              # by so many units of rounding
SMALL = 1e4             # a gradient that is rounding is below so many units of rounding of the largest
MOVED = 1e-3            # and changes by more than this share of itself
SHARE = 0.1             # of a parameter's elements, at least
AMPLIFIED = 10.0        # a step per gradient, over that of the other parameters


def checkpoint(sample: Sample) -> Finding:
    """Whether a run resumed from a checkpoint takes the same next step as an uninterrupted one, bit for bit."""
    job = sample.job
    plan = job.plan.at_batch(sample.plan.global_batch, workers=1, accumulate=1, loader_workers=0, noise_every=0,
                             ghost_batch=sample.plan.ghost_batch)

    def make_step() -> DataParallelStep:
        model = sample.model(plan)
        return DataParallelStep(plan, job.workload, job.data.train, model, make_optimizer(plan, model), SingleWorker(),
                                job.device)

    def finding(kind: str, **given) -> Finding:
        return JOB.finding("checkpoint", kind, plan, before=BEFORE, **given)

    def resumed_from(state):
        other = make_step()
        restore(state, other)
        lost.extend(unlike(flatten(state), flatten(capture(RunState(BEFORE), other))))
        return other(BEFORE, plan.schedule.lr_at(BEFORE), set()).loss, other.model.state_dict()

    lost: list[tuple[str, str, str]] = []
    with OwnGenerators(job.device), repeatable(job.device), scratch_folder() as folder:
        take_step = make_step()
        for step in range(BEFORE):
            take_step(step, plan.schedule.lr_at(step), set())
        try:
            path = os.path.join(folder, f"step-{BEFORE}.pt")
            write(path, {**capture(RunState(BEFORE), take_step), "format": FORMAT})
            uninterrupted = take_step(BEFORE, plan.schedule.lr_at(BEFORE), set()).loss
            state = read(path)
        except CheckpointError as error:
            return finding("not_saved", error=str(error).replace(folder + os.sep, ""))
        (resumed, found), (_, again) = resumed_from(state), resumed_from(state)
    if lost:
        return finding("not_restored", what=_describe(lost, take_step.model))
    differing, by = _differences(take_step.model.state_dict(), found)
    if not differing:
        return finding("same", by=0.0, limit=0.0)
    if job.device.type != "cpu" and _differences(found, again)[0]:
        return finding("not_repeatable", name=differing[0], by=by, limit=0.0)
    return finding("next_step", name=differing[0], by=by, limit=0.0,
                   cause="outside" if resumed != uninterrupted else "optimizer")


def _describe(lost: list[tuple[str, str, str]], model: nn.Module) -> str:
    """What was lost; in the words for a script that is started again, where that is of the model or the optimizer
    alone."""
    names = [name for name, *_ in lost]
    if all(name.startswith("model.") for name in names):
        trains = [f"model.{name}" for name, one in model.named_parameters() if one.requires_grad]
        check, (kind, given) = "parameters", describe_tensors(lost, trains, {}, {})
    elif all(name.startswith("optimizer.state.") for name in names):
        check, (kind, given) = "optimizer", describe_lost([
            (f"{name.rpartition('.')[2]}.{name}", *each) for name, *each in lost])
    else:
        return "not as they were saved: " + list_first(list(dict.fromkeys(names)), 3)
    return KINDS.finding(check, kind, held=BEFORE, **given).differs


def _differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> tuple[list[str], float]:
    """Names of what differs between two models' states, and the largest difference."""
    differing = [name for name, values in one.items() if not torch.equal(values, other[name])]
    return differing, max(((one[name].double() - other[name].double()).abs().max().item() for name in differing),
                          default=0.0)


def evaluation(sample: Sample) -> Finding:
    """Whether metrics do not depend on the chunks that a split is cut into, which workers share."""
    name, job, model = "evaluation", sample.job, sample.model()
    splits = {split: data.first(min(len(data), MEASURED)) for split, data in job.data.evaluated(
        job.plan.train_eval_examples).items() if len(data)}
    target = job.plan.stop_target
    if target and target.split not in splits:
        return JOB.finding(name, "no_target", target, target=target, there=" or ".join(splits) or "another split")
    if not splits:
        return JOB.finding(name, "empty")

    def measure(chunk: int) -> tuple[dict[str, float], Counter]:
        evaluator = Counting(job.workload, splits, chunk, SingleWorker(), job.device, sample.plan.precision)
        return evaluator(model, tuple(splits)), evaluator.counts

    with OwnGenerators(job.device):
        (one, counts_of_one), (other, counts_of_other) = map(measure, CHUNKS)

    def finding(kind: str, **given) -> Finding:
        read = ", ".join(f"{len(data)} of {split}" for split, data in splits.items())
        return JOB.finding(name, kind, splits=read, chunks=CHUNKS, **given)
    undefined = [column for column, value in one.items() if math.isnan(value)]
    if broken := [column for column in undefined if counts_of_one.get(column)]:
        return finding("broken", nan=_are_nan(broken))
    for column, values in counts_of_one.items():
        if values != counts_of_other[column]:
            return finding("count", column=column, one=values, other=counts_of_other[column])
    apart = {column: relative(value, other[column]) for column, value in one.items()
             if not (math.isnan(value) and math.isnan(other[column]))}
    for column, by in apart.items():
        if not by <= sample.limit:
            return finding("by_chunk", column=column, by=by, limit=sample.limit)
    partial = any(count != len(splits[column.partition("/")[0]]) for column, count in counts_of_one.items())
    per = "the counts from measure have the same sum" if partial else "each example counts once"
    if undefined:
        per += f"; {_are_nan(undefined)}"
    valued = {column.partition("/")[2] for column, value in one.items() if not math.isnan(value)}
    needed = [column for column in undefined if column.partition("/")[2] not in valued or (
        target and column == target.column)]            # else the workload measures it only on some splits
    if needed:
        return finding("not_yet", per=per, nan=_are_nan(needed))
    return finding("same", per=per, by=max(apart.values(), default=0.0), limit=sample.limit)


def _are_nan(columns: list[str]) -> str:
    return f"{', '.join(columns)} {'are' if len(columns) > 1 else 'is'} NaN"


class Counting(Evaluator):
    """An evaluator that keeps the sum of each metric's counts over all chunks, by ``split/metric``."""

    def _measure(self, model, chunks, table):
        super()._measure(model, chunks, table)
        self.counts = Counter()
        for (split, _), row in zip(chunks, table.tolist()):
            self.counts.update({f"{split}/{metric}": count for metric, count in zip(self._metrics, row[1::2])})


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
    unasked, idle = ([path for path in decays if decays[path] > wanted[path]],
                     [path for path in decays if decays[path] < wanted[path]])
    biases = any(id(p) in apart for path, p in named if path in unasked)
    return JOB.finding(DECAY, {"unasked": unasked, "idle": idle, "as_asked": True}, plan,
                       names=list_first(unasked or idle, 3), decaying=sum(decays.values()), count=len(decays),
                       which="biases and normalization parameters among them" if biases else "though weight_decay is 0")


def rounding(sample: Sample) -> Finding:
    """Which parameters have a gradient that is zero but for rounding, of which the optimizer makes steps."""
    model, generator = sample.model(), torch.Generator().manual_seed(sample.plan.seed)
    _shift(model, lambda values, noise: values + AWAY * noise, generator)
    eps, gradients = torch.finfo(PARAMETERS[sample.plan.precision]).eps, []
    for _ in range(LOOKS):
        gradients.append(mean_gradient(sample, model))
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
