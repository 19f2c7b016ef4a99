"""The checks of a job: those that cut a step into passes, or pad it further, of gradients, losses, random numbers,
batch-norm and padding; and those of a run's checkpoint, its evaluation, and its optimizer as it is set."""

import copy
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.splits import MapSplit, OwnGenerators, Split, tensors_of, to_device
from ..errors import CheckpointError
from ..formatting.numbers import counted, list_first
from ..modules.layers import BatchNorm, Dropout, is_batch_norm
from ..plan.shards import Pass, Visits, even_bounds, group_bounds
from ..system.files import scratch_folder
from ..training.checkpoint import FORMAT, read, write
from ..training.evaluate import Evaluator
from ..training.snapshot import RunState, capture, restore
from ..update.optimizers import has_modes, make_optimizer, norms_and_biases
from ..update.precision import AUTOCAST, PARAMETERS, repeatable
from ..update.step import DataParallelStep
from ..workers.group import SingleWorker
from ..workload import bound_loss, measured
from .finding import JOB, OF_RESTARTS, Finding, describe_lost, describe_tensors, first_met, unlike
from .probe_step import (Difference, Sample, calls_of, distance, first_difference, mean_gradient, outcomes, relative,
                         select, step_of, trained)
from .script.listen.tensors import flatten

CUTS = (1, 2, 3, 4, 6, 8)   # passes of a step: 1 to 4 workers make 1 or 2 each
PADDED = 16                 # examples of each evaluated split that are padded further
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
    whole = mean_gradient(sample, sample.model())
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
    loss, examples = bound_loss(sample.job.workload, plan.label_smoothing), plan.global_batch
    cuts = {0, min(1, examples), *(1 + bound for bound in even_bounds(examples - 1, 3)[1:2]), examples}     # uneven
    whole, parts = sample.parts(0, examples), sample.parts(*sorted(cuts))
    (total, count, drawn), *sums = [(total.item(), count, moved) for (total, count), moved in outcomes(
        sample, model, [*whole, *parts], loss)]
    sizes = [part.stop - part.start for part, _ in parts]
    summed, counted = sum(t for t, *_ in sums), sum(c for _, c, _ in sums)
    by, about = relative(total, summed), dict(examples=examples, sizes=sizes)
    if counted != count:
        return JOB.finding("losses", "count", **about, whole=count, summed=counted)
    about |= dict(by=by, limit=sample.limit, whole=total, summed=summed)
    if by <= sample.limit:
        return JOB.finding("losses", "same", **about)
    draws = plan.group_by_group and (drawn or any(moved for *_, moved in sums))
    from_mean = abs(sum(t * c for t, c, _ in sums) / count - total)
    if from_mean <= 1e-4 * abs(total) or (draws and from_mean < abs(summed - total)):
        return JOB.finding("losses", "a_mean", **about)
    if draws:
        return JOB.finding("losses", "drawn", **{**about, "by": None, "limit": None})
    if layer := first_difference(sample, model, whole, parts):
        about["layer"] = f"{layer.layer}, by {layer.by:.2g}"
        return JOB.finding("losses", "layer", **about, **_explain_layer(layer))
    return JOB.finding("losses", "by_group" if plan.group_by_group else "pairs", **about)


def _explain_layer(layer: Difference) -> dict[str, str]:
    kind, of_torch = type(layer.module).__name__, is_batch_norm(layer.module)
    name = first_met({"input": layer.in_input, "norm": of_torch or "norm" in kind.lower(),
                      "dropout": isinstance(layer.module, (nn.modules.dropout._DropoutNd, Dropout)), "mixes": True})
    return {value: JOB.sentence(table, name, kind=kind, option="auto" if of_torch else "always")
            for value, table in (("why", "layers that differ"), ("next", "next for layers"))}


def random_numbers(sample: Sample) -> Finding:
    """Whether the same pass, seeded by the same keys, gives the same gradients again."""
    name, plan, model = "random numbers", sample.plan, sample.model()
    first = mean_gradient(sample, model)
    time.sleep(1 - time.time() % 1)             # the next second, when a seed taken from the time differs
    by = distance(mean_gradient(sample, model), first)
    if by <= sample.limit:
        draws = plan.group_by_group or any(isinstance(m, Dropout) for m in model.modules())
        how = "keyed by ghost group" if draws else "the model draws no random numbers"
        return JOB.finding(name, "same", how=how, by=by, limit=sample.limit)
    layer = first_difference(sample, model, sample.parts(), sample.parts())
    owners = [f"{path or 'the model'} holds a {type(value).__name__}" for path, module in model.named_modules()
              for value in vars(module).values()
              if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random))]
    return JOB.finding(name, "own", by=by, limit=sample.limit, owners=owners,
                       layer=layer and f"{layer.layer}, by {layer.by:.2g}")


def batch_norm(sample: Sample) -> Finding:
    """Which layers mix examples, over which ghost groups; and whether any mixes all examples of a worker's pass."""
    name, job, plan, model, limit = "batch-norm", sample.job, sample.plan, sample.model(), sample.limit
    ours = Counter(isinstance(module, BatchNorm) for module in model.modules() if is_batch_norm(module))
    groups = job.plan.ghost_groups(job.plan.global_batch)
    sizes = sorted({job.plan.global_batch // groups, -(-job.plan.global_batch // groups)})
    how = "group by group: correct, but slower" if plan.group_by_group else "not by ghost group"
    kinds = [f"{ours[is_ours]} of {what}" for is_ours, what in (
        (True, "hvdscale.modules (fast)"), (False, f"torch's own ({how})")) if ours[is_ours]]
    if not plan.group_by_group and first_difference(sample, model, sample.parts(), sample.parts()) is None:
        bounds = group_bounds(plan.global_batch, plan.ghost_batch)
        cut = sorted({0, bounds[-(-len(bounds) // 3)], plan.global_batch})      # in two, between ghost groups
        if layer := first_difference(sample, model, sample.parts(), sample.parts(*cut)):
            return JOB.finding(name, "layer", layer=layer.layer, by=layer.by, limit=limit, **_explain_layer(layer))
    kind = {"by_group": kinds, "none_by_group": plan.group_by_group, "none": True}
    return JOB.finding(name, kind, kinds=", ".join(kinds), sizes=" or ".join(map(str, sizes)), groups=groups)


class Case(NamedTuple):
    """The same examples in two batches, one padded further."""

    split: str
    examples: int
    parts: list[tuple[Pass, object]]
    how: str                    # the tensor that grows, and how far
    of: Callable[[nn.Module, object], dict[str, float]]         # (model, batch) -> numbers by name
    training: bool = False      # the model's mode


def padding(sample: Sample) -> Finding:
    """Whether loss and metrics of the same few examples do not depend on how far the job's own collate function pads
    them: as a batch, and cut out of a batch with longer examples."""
    looked_at = []
    for case in _cases(sample):
        model = sample.model().train(case.training)
        for module in model.modules():
            if isinstance(module, (nn.modules.dropout._DropoutNd, Dropout)):
                module.eval()               # the shape of its masks depends on the padding
        (values, drew), (others, drew_again) = outcomes(sample, model, case.parts, case.of)
        if drew or drew_again:                  # padding may change what is drawn
            continue
        looked_at.append(f"{case.examples} examples of {case.split}, {case.how}")
        for what, short in values.items():
            long = others[what]
            if (by := relative(short, long)) > sample.limit:
                layer = _first_layer(sample, model, case) if case.split == "train" and not case.training else ""
                return JOB.finding("padding", "in_norm" if case.training else "padded", case, by=by, limit=sample.limit,
                                   differs=f"{what} is {short:.6g} and {long:.6g}{layer}",
                                   cause="by_group" if case.training and sample.plan.group_by_group else "")
    return JOB.finding("padding", "same" if looked_at else "none", looked_at="; ".join(dict.fromkeys(looked_at)))


def _cases(sample: Sample) -> Iterator[Case]:
    workload, plan, data = sample.job.workload, sample.plan, sample.job.data
    loss = bound_loss(workload, plan.label_smoothing)

    def lost(model, batch) -> dict[str, float]:
        total, count = loss(model, batch)
        return {"the loss": total.item(), "the count of the loss": count}

    @torch.no_grad()
    def metrics(model, batch) -> dict[str, float]:
        return {f"the {what} of {name}": value for name, pair in measured(workload, model, batch).sums.items()
                for what, value in zip(("sum", "count"), pair)}
    if stretched := _stretched(sample, data.train, plan.stream.visits(0, 0, plan.global_batch)):
        yield Case("train", *stretched, lost)
        if any(map(is_batch_norm, sample.job.model.modules())):
            yield Case("train", *stretched, lost, training=True)
    for split, evaluated in data.evaluated(PADDED).items():
        indices = np.arange(min(len(evaluated), PADDED))
        if stretched := _stretched(sample, evaluated, Visits(indices, indices * 0, plan.seed)):
            yield Case(split, *stretched, metrics)


def _first_layer(sample: Sample, model: nn.Module, case: Case) -> str:
    """The first layer whose output changes at the real positions, in words; empty if none is found."""
    for name, module, _, (short, long) in calls_of(sample, model, case.parts):
        if short.ndim == long.ndim and short.is_floating_point() and not any(
                torch.allclose(cut, short, rtol=sample.limit, atol=sample.limit * float(short.abs().max()))
                for cut in _cuts(long, short.shape)):
            layer = f"{name or 'the model'} ({type(module).__name__})"
            return f"; it enters in {layer}" if short.shape != long.shape else f"; it enters before {layer}, or in it"
    return ""


def _stretched(sample: Sample, data, visits: Visits) -> tuple[int, list[tuple[Pass, object]], str] | None:
    """The shortest of these examples, as a batch and cut out of the batch of all: their number, the batches, and
    how far each is padded. None where batches are not padded, or where the padding cannot be identified."""
    if type(data) is Split or isinstance(data, MapSplit) and data.collate is None:
        return None                     # neither can pad
    whole, n = data.take(visits), len(visits.indices)
    sizes = [sum(values.numel() for _, values in tensors_of(data.take(select(visits, [row])))) for row in range(n)]
    if not sizes or min(sizes) == max(sizes):
        return None
    by_size = np.argsort(sizes, kind="stable")
    for k in (group_bounds(n, sample.plan.ghost_batch)[1], 2, 1):
        rows = np.sort(by_size[:k]).tolist()
        short, long = data.take(select(visits, rows)), _rows(whole, n, rows)
        if how := _how(dict(tensors_of(short)), dict(tensors_of(long))):
            device, dtype = sample.job.device, PARAMETERS[sample.plan.precision]
            return k, [(Pass(0, k), to_device(batch, device, dtype)) for batch in (short, long)], how
    return None


def _rows(part, n: int, rows: list[int]):
    """These rows of a batch of n examples: along its tensors' first or second dimension, and in its lists."""
    if isinstance(part, Tensor):
        along = next((dim for dim in range(min(2, part.ndim)) if part.shape[dim] == n), None)
        return part if along is None else part.index_select(along, torch.tensor(rows))
    if isinstance(part, Mapping):
        return {name: _rows(value, n, rows) for name, value in part.items()}
    if hasattr(part, "_fields"):
        return type(part)(*(_rows(value, n, rows) for value in part))
    if isinstance(part, (tuple, list)):
        return type(part)([part[row] for row in rows] if len(part) == n else [_rows(value, n, rows) for value in part])
    if hasattr(part, "__dict__"):
        made = copy.copy(part)
        vars(made).update({name: _rows(value, n, rows) for name, value in vars(part).items()})
        return made
    return part


def _how(short: dict[str, Tensor], long: dict[str, Tensor]) -> str:
    """How far the two are padded, in words; empty where they are equal, or differ by more than padding."""
    how = ""
    for name, values in short.items():
        other = long.get(name)
        if other is None or other.ndim != values.ndim or (
                values.ndim and not any(torch.equal(cut, values) for cut in _cuts(other, values.shape))):
            return ""
        grown = [(a, b) for a, b in zip(values.shape, other.shape) if a != b]
        how = how or (f"{name} padded to {grown[0][0]} and to {grown[0][1]}" if grown else "")
    return how


def _cuts(values: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    if all(a >= b for a, b in zip(values.shape, shape)):
        yield values[tuple(slice(0, b) for b in shape)]
        yield values[tuple(slice(a - b, a) for a, b in zip(values.shape, shape))]


def checkpoint(sample: Sample) -> Finding:
    """Whether a run resumed from a checkpoint takes the same next step as an uninterrupted one, bit for bit."""
    job = sample.job
    plan = job.plan.at_batch(sample.plan.global_batch, workers=1, accumulate=1, loader_workers=0, noise_every=0,
                             ghost_batch=sample.plan.ghost_batch)

    def make_step() -> DataParallelStep:
        model = sample.model(plan)
        return DataParallelStep(plan, job.workload, job.data.train, model, make_optimizer(plan, model), SingleWorker(),
                                job.device)

    def resumed_from(state):
        other = make_step()
        restore(state, other)
        lost.extend(unlike(flatten(state), flatten(capture(RunState(BEFORE), other))))
        return other(BEFORE, plan.schedule.lr_at(BEFORE), set()).loss, other.model.state_dict()
    finding, lost = partial(JOB.finding, "checkpoint", about=plan, before=BEFORE), []
    with OwnGenerators(job.device), repeatable(job.device), scratch_folder() as folder:
        take_step = make_step()
        for step in range(BEFORE):
            take_step(step, plan.schedule.lr_at(step), set())
        try:
            path = os.path.join(folder, f"step-{BEFORE}.pt")
            write(path, {**capture(RunState(BEFORE), take_step), "format": FORMAT})
            uninterrupted, state = take_step(BEFORE, plan.schedule.lr_at(BEFORE), set()).loss, read(path)
        except CheckpointError as error:
            return finding("not_saved", error=str(error).replace(folder + os.sep, ""))
        (resumed, found), (_, again) = resumed_from(state), resumed_from(state)
    if lost:
        return finding("not_restored", what=_describe(lost, take_step.model))
    differing = _differences(take_step.model.state_dict(), found)
    if not differing:
        return finding("same", by=0.0, limit=0.0)
    given = dict(name=next(iter(differing)), by=max(differing.values()), limit=0.0)
    if job.device.type != "cpu" and _differences(found, again):
        return finding("not_repeatable", **given)
    return finding("next_step", **given, cause="outside" if resumed != uninterrupted else "optimizer")


def _describe(lost: list[tuple[str, str, str]], model: nn.Module) -> str:
    """What was lost, in the words for restarted scripts where that is of the model or the optimizer alone."""
    names = [name for name, *_ in lost]
    if all(name.startswith("model.") for name in names):
        trains = [f"model.{name}" for name, one in model.named_parameters() if one.requires_grad]
        check, (kind, given) = "parameters", describe_tensors(lost, trains, {}, {})
    elif all(name.startswith("optimizer.state.") for name in names):
        keys = [(f"{name.rpartition('.')[2]}.{name}", *each) for name, *each in lost]
        check, (kind, given) = "optimizer", describe_lost(keys)
    else:
        return "not as they were saved: " + list_first(list(dict.fromkeys(names)), 3)
    return OF_RESTARTS.finding(check, kind, held=BEFORE, **given).differs


def _differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far what differs between two models' states is apart, by its name."""
    return {name: (values.double() - other[name].double()).abs().max().item() for name, values in one.items()
            if not torch.equal(values, other[name])}


def evaluation(sample: Sample) -> Finding:
    """Whether metrics do not depend on the chunks that a split is cut into, which workers share."""
    name, job, model, target = "evaluation", sample.job, sample.model(), sample.job.plan.stop_target
    splits = {split: data.first(min(len(data), MEASURED)) for split, data in job.data.evaluated(
        job.plan.train_eval_examples).items() if len(data)}
    if target and target.split not in splits:
        return JOB.finding(name, "no_target", target, target=target, there=" or ".join(splits) or "another split")
    if not splits:
        return JOB.finding(name, "empty")

    def measure(chunk: int) -> tuple[dict[str, float], Counter]:
        evaluator = Counting(job.workload, splits, chunk, SingleWorker(), job.device, sample.plan.precision)
        return evaluator(model, tuple(splits)), evaluator.counts
    with OwnGenerators(job.device):
        (one, counts_of_one), (other, counts_of_other) = map(measure, CHUNKS)
    finding = partial(JOB.finding, name, chunks=CHUNKS, splits=", ".join(
        f"{len(data)} of {split}" for split, data in splits.items()))
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
    uneven = any(count != len(splits[column.partition("/")[0]]) for column, count in counts_of_one.items())
    per = "the counts from measure have the same sum" if uneven else "each example counts once"
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
    unasked, idle = ([at for at in decays if decays[at] > wanted[at]], [at for at in decays if decays[at] < wanted[at]])
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
    each = zip(names, *(values.split(sizes) for values in (is_rounding, own, in_job)))
    amplified = [name for name, flags, moved, pulled in each
                 if flags.any() and _rms(moved[flags]) > AMPLIFIED * per_gradient * _rms(pulled[flags])]
    about["names"] = list_first(amplified or found, 4)
    return JOB.finding("rounding", "amplified" if amplified else "harmless", **about)


def _shift(model: nn.Module, change, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in trained(model):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(change(parameter, noise.to(parameter)))


def _step(sample: Sample, model: nn.Module, gradient: Tensor) -> Tensor:
    """How the optimizer's first step moves the parameters under this gradient, as a vector."""
    model = copy.deepcopy(model)
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
