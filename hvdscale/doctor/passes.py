"""Checks that cut a step into passes: gradients, losses, random numbers and batch-norm."""
from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ..data.generators import OwnGenerators
from ..formatting.numbers import counted
from ..modules.layers import BatchNorm, Dropout, is_batch_norm
from ..plan.shards import Pass, even_bounds, group_bounds
from ..workload import bound_loss
from .finding import JOB, Finding
from .probe_step import Difference, Sample, distance, first_difference, mean_gradient, passing, step_of

CUTS = (1, 2, 3, 4, 6, 8)       # passes of a step: 1 to 4 workers make 1 or 2 each


def gradients(sample: Sample) -> Finding:
    """Whether a step that is cut into passes, as workers and accumulation cut it, has the mean gradient and the buffers
    that autograd gives for the whole step."""
    name, plan = "gradients", sample.plan
    groups = plan.ghost_groups(plan.global_batch) if plan.group_by_group else plan.global_batch
    norms = any(map(is_batch_norm, sample.job.model.modules()))
    ways = [way for way in (replace(plan, accumulate=passes) for passes in CUTS if passes <= groups)
            if not (norms and way.cuts_groups(way.global_batch))]
    with OwnGenerators(sample.job.device):
        made = [step_of(sample, way) for way in ways]
    whole = mean_gradient(sample, sample.model(), plan)
    by, worst = max(((distance(gradient, whole), way.accumulate) for way, (gradient, _) in zip(ways, made)),
                    key=lambda pair: pair[0])
    moved = max(distance(buffers, made[0][1]) for _, buffers in made)
    about = dict(limit=sample.limit, examples=plan.global_batch, passes=[way.accumulate for way in ways])
    if not by <= sample.limit:
        return JOB.finding(name, "other_mean", by=by, way=counted(worst, "pass", "passes"), **about)
    return JOB.finding(name, "same" if moved <= sample.limit else "buffers", by=max(by, moved), **about)


def losses(sample: Sample) -> Finding:
    """Whether a whole batch's loss and count are the sums over its parts, one of them a single example."""
    plan, model = sample.plan, sample.model().eval()
    loss = bound_loss(sample.job.workload, plan.label_smoothing)
    examples = plan.global_batch
    cuts = {0, min(1, examples), *(1 + bound for bound in even_bounds(examples - 1, 3)[1:2]), examples}     # uneven
    whole, parts = sample.parts(plan, sample.whole), sample.parts(plan, sorted(cuts))
    drawn = []
    with passing(sample, model, plan) as enter:
        def of(part: Pass, batch) -> tuple[float, float]:
            enter(part)
            with OwnGenerators(sample.job.device) as generators:
                total, count = loss(model, batch)
                drawn.append(generators.moved())
            return total.item(), count
        (total, count), *sums = [of(*part) for part in (*whole, *parts)]
    sizes = [part.stop - part.start for part, _ in parts]
    summed, counted = sum(t for t, _ in sums), sum(c for _, c in sums)
    by = abs(summed - total) / max(abs(total), abs(summed), 1e-30)
    about = dict(examples=examples, sizes=sizes)
    if counted != count:
        return JOB.finding("losses", "count", **about, whole=count, summed=counted)
    about |= dict(by=by, limit=sample.limit, whole=total, summed=summed)
    if by <= sample.limit:
        return JOB.finding("losses", "same", **about)
    draws = any(drawn) and plan.group_by_group
    from_mean = abs(sum(t * c for t, c in sums) / count - total)
    if from_mean <= 1e-4 * abs(total) or (draws and from_mean < abs(summed - total)):
        return JOB.finding("losses", "a_mean", **about)
    if draws:
        return JOB.finding("losses", "drawn", **{**about, "by": None, "limit": None})
    layer = first_difference(sample, model, whole, parts)
    if layer:
        return JOB.finding("losses", "layer", **about, **_explain_layer(layer), layer=_describe_layer(layer))
    return JOB.finding("losses", "by_group" if plan.group_by_group else "pairs", **about)


def _describe_layer(layer: Difference) -> str:
    return f"{layer.layer} ({type(layer.module).__name__}), by {layer.by:.2g}"


def _explain_layer(layer: Difference) -> dict[str, str]:
    """Values of a finding: why the layer differs, and the next move."""
    kind, of_torch = type(layer.module).__name__, is_batch_norm(layer.module)
    name = "mixes"
    if layer.in_input:
        name = "input"
    elif of_torch or "norm" in kind.lower():
        name = "norm"
    elif isinstance(layer.module, (nn.modules.dropout._DropoutNd, Dropout)):
        name = "dropout"
    return {value: JOB.sentence(table, name, kind=kind, option="auto" if of_torch else "always")
            for value, table in (("why", "layers that differ"), ("next", "next for layers"))}


def random_numbers(sample: Sample) -> Finding:
    """Whether the same pass, seeded by the same keys, gives the same gradients again."""
    name, plan, model = "random numbers", sample.plan, sample.model()
    bounds = group_bounds(plan.global_batch, plan.ghost_batch) if plan.group_by_group else sample.whole
    parts = sample.parts(plan, bounds)
    first = mean_gradient(sample, model, plan, parts)
    time.sleep(1 - time.time() % 1)             # the next second, when a seed taken from the time differs
    second = mean_gradient(sample, model, plan, parts)
    by = distance(second, first)
    if by <= sample.limit:
        draws = plan.group_by_group or any(isinstance(m, Dropout) for m in model.modules())
        how = "keyed by ghost group" if draws else "the model draws no random numbers"
        return JOB.finding(name, "same", how=how, by=by, limit=sample.limit)
    layer = first_difference(sample, model, parts, parts)
    owners = [f"{path or 'the model'} holds a {type(value).__name__}" for path, module in model.named_modules()
              for value in vars(module).values()
              if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random))]
    return JOB.finding(name, "own", by=by, limit=sample.limit, layer=layer and _describe_layer(layer), owners=owners)


def batch_norm(sample: Sample) -> Finding:
    """Which layers mix examples, over which ghost groups; and whether any mixes all examples of a worker's pass."""
    name, job, plan, model = "batch-norm", sample.job, sample.plan, sample.model()
    ours = [m for m in model.modules() if isinstance(m, BatchNorm)]
    torchs = [m for m in model.modules() if is_batch_norm(m) and not isinstance(m, BatchNorm)]
    groups = job.plan.ghost_groups(job.plan.global_batch)
    sizes = sorted({job.plan.global_batch // groups, -(-job.plan.global_batch // groups)})
    how = "group by group: correct, but slower" if plan.group_by_group else "not by ghost group"
    kinds = [f"{len(layers)} of {what}" for layers, what in (
        (ours, "hvdscale.modules (fast)"), (torchs, f"torch's own ({how})")) if layers]
    if not plan.group_by_group:
        parts = sample.parts(plan, sample.whole)
        if first_difference(sample, model, parts, parts) is None:
            bounds = group_bounds(plan.global_batch, plan.ghost_batch)
            middle = bounds[max(1, len(bounds) // 3)] if len(bounds) > 2 else plan.global_batch
            cut = sorted({0, middle, plan.global_batch})        # in two, between ghost groups
            layer = first_difference(sample, model, parts, sample.parts(plan, cut))
            if layer:
                return JOB.finding(name, "layer", layer=f"{layer.layer} ({type(layer.module).__name__})", by=layer.by,
                                   limit=sample.limit, **_explain_layer(layer))
    if not kinds:
        return JOB.finding(name, "none_by_group" if plan.group_by_group else "none")
    return JOB.finding(name, "by_group", kinds=", ".join(kinds), sizes=" or ".join(map(str, sizes)), groups=groups)
