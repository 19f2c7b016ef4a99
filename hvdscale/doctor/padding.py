"""The padding check: the same few examples are computed twice, as a batch and cut out of a batch with longer examples.
Both times the job's own collate function pads them; nothing else differs."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.generators import OwnGenerators
from ..data.splits import MapSplit, Split, tensors_of, to_device
from ..modules.layers import Dropout, is_batch_norm
from ..plan.shards import Pass, Visits, group_bounds
from ..update.precision import PARAMETERS
from ..workload import bound_loss, measured
from .examples import select
from .finding import JOB, Finding
from .probe_step import Sample, calls_of, passing

NAME = "padding"
MEASURED = 16               # examples of each evaluated split


class Case(NamedTuple):
    """The same examples in two batches, one padded further."""

    split: str
    examples: int
    batches: tuple
    how: str                    # the tensor that grows, and how far
    of: Callable[[nn.Module, object], dict[str, float]]         # (model, batch) -> numbers by name
    training: bool = False      # the model's mode


def padding(sample: Sample) -> Finding:
    """Whether loss and metrics of the same examples do not depend on how far they are padded."""
    looked_at = []
    for case in _cases(sample):
        model = sample.model().train(case.training)
        for module in model.modules():
            if isinstance(module, (nn.modules.dropout._DropoutNd, Dropout)):
                module.eval()               # the shape of its masks depends on the padding
        values = _values(sample, model, case)
        if values is None:
            continue
        looked_at.append(f"{case.examples} examples of {case.split}, {case.how}")
        for what, (short, long) in values.items():
            by = abs(short - long) / max(abs(short), abs(long), 1e-30)
            if by > sample.limit:
                layer = "" if case.training else _first_layer(sample, model, case)
                return JOB.finding(NAME, "in_norm" if case.training else "padded", case, by=by, limit=sample.limit,
                                   differs=f"{what} is {short:.6g} and {long:.6g}{layer}",
                                   cause="by_group" if case.training and sample.plan.group_by_group else "")
    if not looked_at:
        return JOB.finding(NAME, "none")
    return JOB.finding(NAME, "same", looked_at="; ".join(dict.fromkeys(looked_at)))


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

    stretched = _stretched(sample, data.train, plan.stream.visits(0, 0, plan.global_batch))
    if stretched:
        yield Case("train", *stretched, lost)
        if any(map(is_batch_norm, sample.job.model.modules())):
            yield Case("train", *stretched, lost, training=True)
    for split, evaluated in data.evaluated(MEASURED).items():
        indices = np.arange(min(len(evaluated), MEASURED))
        stretched = _stretched(sample, evaluated, Visits(indices, indices * 0, plan.seed))
        if stretched:
            yield Case(split, *stretched, metrics)


def _values(sample: Sample, model: nn.Module, case: Case) -> dict[str, tuple[float, float]] | None:
    """The results of the two batches, by name; None where the job draws random numbers, as padding may change these."""
    found = []
    with passing(sample, model, sample.plan) as enter:
        for batch in case.batches:
            enter(Pass(0, case.examples))
            with OwnGenerators(sample.job.device) as generators:
                found.append(case.of(model, batch))
                if generators.moved():
                    return None
    return {what: (value, found[1][what]) for what, value in found[0].items()}


def _first_layer(sample: Sample, model: nn.Module, case: Case) -> str:
    """The first layer whose output changes at the real positions, in words; empty if none is found."""
    if case.split != "train":
        return ""
    for name, module, _, (short, long) in calls_of(sample, model, [(Pass(0, case.examples), b) for b in case.batches]):
        if short.ndim == long.ndim and short.is_floating_point() and not any(
                torch.allclose(cut, short, rtol=sample.limit, atol=sample.limit * float(short.abs().max()))
                for cut in _cuts(long, short.shape)):
            layer = f"{name or 'the model'} ({type(module).__name__})"
            return f"; it enters in {layer}" if short.shape != long.shape else f"; it enters before {layer}, or in it"
    return ""


def _stretched(sample: Sample, data, visits: Visits) -> tuple[int, tuple, str] | None:
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
        how = _how(dict(tensors_of(short)), dict(tensors_of(long)))
        if how:
            device, dtype = sample.job.device, PARAMETERS[sample.plan.precision]
            return k, (to_device(short, device, dtype), to_device(long, device, dtype)), how
    return None


def _rows(part, n: int, rows: list[int]):
    """These rows of a batch of n examples: along its tensors' first or second dimension, and in its lists."""
    if isinstance(part, Tensor):
        along = next((dim for dim in range(min(2, part.ndim)) if part.shape[dim] == n), None)
        return part if along is None else part.index_select(along, torch.tensor(rows))
    if isinstance(part, Mapping):
        return {name: _rows(value, n, rows) for name, value in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(_rows(value, n, rows) for value in part))
    if isinstance(part, (tuple, list)):
        return type(part)(part[row] for row in rows) if len(part) == n else type(part)(
            _rows(value, n, rows) for value in part)
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
