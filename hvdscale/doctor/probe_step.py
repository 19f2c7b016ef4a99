"""The small part of a job that the checks run: one step of a few examples, in fp64 where the job's code allows it; and
the check of its data: whether an example is the same in any batch.

The reference computations are slow and obvious, and share no code with hvdscale.update.step.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.splits import MapSplit, OwnGenerators, seed_generators, tensors_of, to_device
from ..errors import HvdscaleError, WorkersError, WorkloadError
from ..formatting.numbers import counted
from ..modules.ghost_groups import GhostGroups
from ..modules.running_statistics import Buffers
from ..plan.plan import Plan
from ..plan.shards import Pass, Visits, group_bounds
from ..training.prepare import Job
from ..update.model import make_model
from ..update.precision import PARAMETERS
from ..update.step import DataParallelStep
from ..workers.group import SingleWorker
from ..workload import bound_loss
from .finding import JOB, Finding, carried_out

EXAMPLES = 46           # by default; a multiple of neither 3 nor 4
LEAST, PASSES = 22, 8   # examples, and ghost groups: for up to 4 workers x 2 passes
SOME = 24                   # examples read of each split
CLOSE, NARROW_CLOSE = 1e-9, 1e-4        # allowed difference between sums of the same values, in fp64 and below


class Difference(NamedTuple):
    """Where two computations diverge."""
    layer: str              # its name and class
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
        plan, size = self.plan, self.plan.global_batch
        whole = group_bounds(size, plan.ghost_batch) if plan.group_by_group else (0, size)
        take, to = self.job.data.train.take, (self.job.device, PARAMETERS[plan.precision])
        return [(Pass(a, b), to_device(take(plan.stream.visits(0, a, b)), *to)) for a, b in pairwise(bounds or whole)]


def make_sample(job: Job, wanted: int) -> Sample:
    """A sample of ``wanted`` examples, at least LEAST, at most all. Ghost groups are smaller than the job's where every
    pass must have one. Raises what the job's code raises."""
    batch = min(len(job.data.train), max(wanted, LEAST))
    plan = job.plan.at_batch(batch, ghost_batch=max(2, min(job.plan.ghost_batch, batch // PASSES)), precision="fp64",
                             compression="none", loss_scale=1.0, clip_norm=None, workers=1, accumulate=1,
                             local_batch=batch, loader_workers=0, noise_every=0)
    sample, note = Sample(job, plan, CLOSE), ""
    try:
        if (dtype := _loss_type(sample)) != torch.float64:
            note = f"the loss is {str(dtype).removeprefix('torch.')}, whatever the model's type"
    except WorkersError:
        raise
    except HvdscaleError:
        return sample                   # the checks will report it
    except (RuntimeError, TypeError) as error:
        note = f"in fp32, as the job's code does not run in fp64 ({error})".splitlines()[0]
        sample = replace(sample, plan=replace(plan, precision="fp32"))
        _loss_type(sample)
    return replace(sample, limit=NARROW_CLOSE, note=note) if note else sample


def _loss_type(sample: Sample) -> torch.dtype:
    plan = sample.plan
    parts = sample.parts(*group_bounds(plan.global_batch, plan.ghost_batch)[:2])
    [(made, _)] = outcomes(sample, sample.model(), parts, bound_loss(sample.job.workload, plan.label_smoothing))
    return made[0].dtype


@contextlib.contextmanager
def passing(sample: Sample, model: nn.Module) -> Iterator:
    """A context for forward passes that leave generators and buffers as they were. Yields a function to call before
    each pass, which sets the modules' position and seeds the generators: by ghost group where the plan says group by
    group, else alike for all passes, as on several ranks."""
    plan = sample.plan
    ghosts = GhostGroups(plan.seed, SingleWorker(), sample.job.device)
    ghosts.attach(model)
    groups = group_bounds(plan.global_batch, plan.ghost_batch)
    seed = ghosts.seed_generators if plan.group_by_group else partial(seed_generators, plan.seed)

    def enter(part: Pass) -> None:
        ghosts.at(0, groups, part)
        seed()
    with OwnGenerators(sample.job.device), Buffers(model).kept():
        yield enter


def outcomes(sample: Sample, model: nn.Module, parts: Sequence, compute: Callable) -> Iterator[tuple[Any, bool]]:
    """What ``compute(model, batch)`` gives for each pass, and whether it drew random numbers."""
    with passing(sample, model) as enter:
        for part, batch in parts:
            enter(part)
            with OwnGenerators(sample.job.device) as generators:
                yield compute(model, batch), generators.moved()


def mean_gradient(sample: Sample, model: nn.Module) -> Tensor:
    """The gradient of the step's summed loss over its summed count, by autograd alone: one float64 vector. The whole
    step is one pass, or one pass per ghost group where the plan says so."""
    loss, parameters = bound_loss(sample.job.workload, sample.plan.label_smoothing), trained(model)
    sums, counts = [torch.zeros_like(p) for p in parameters], 0.0
    for part, batch in sample.parts():
        with passing(sample, model) as enter:
            enter(part)
            total, count = loss(model, batch)
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        sums = [a if g is None else a + g for a, g in zip(sums, gradients)]
        counts += count
    if not counts:
        raise WorkloadError(f"the counts returned by loss for {sample.plan.global_batch} examples add up to 0, so they "
                            "have no mean")
    return _vector(sums) / counts


def step_of(sample: Sample, plan: Plan) -> tuple[Tensor, Tensor]:
    """The mean gradient of a step taken by hvdscale, and the buffers after it."""
    model = sample.model(plan)
    job, optimizer = sample.job, torch.optim.SGD(trained(model), lr=0.0)
    DataParallelStep(plan, job.workload, job.data.train, model, optimizer, SingleWorker(), job.device)(0, 0.0, set())
    return _vector([p.grad for p in trained(model)]), _vector([b for b in model.buffers() if b.is_floating_point()])


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(t.detach().double().flatten().cpu() for t in tensors)])


def relative(a: float, b: float) -> float:
    """The difference relative to the larger of both."""
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def distance(values: Tensor, reference: Tensor) -> float:
    """The norm of the difference over the reference's norm; infinite where only one side is finite."""
    apart, norm = torch.linalg.vector_norm(values - reference).item(), torch.linalg.vector_norm(reference).item()
    if apart == 0:
        return 0.0
    return apart / norm if norm and np.isfinite(apart) else float("inf")


def calls_of(sample: Sample, model: nn.Module, parts: Sequence) -> Iterator[tuple]:
    """The model's modules in the order in which they return: name, module, first inputs and outputs, one a part."""
    found: list[list[tuple[str, nn.Module, Tensor, Tensor]]] = []
    loss = bound_loss(sample.job.workload, sample.plan.label_smoothing)
    with passing(sample, model) as enter, contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(lambda module, given, out, name=name: found[-1].append(
                (name, module, _first(given), _first(out)))))
        for part, batch in parts:
            found.append([])
            enter(part)
            loss(model, batch)
    for calls in zip(*found):
        names, modules, inputs, outputs = zip(*calls)
        if len({*names}) == 1:
            yield names[0], modules[0], inputs, outputs


def _first(out) -> Tensor:
    if isinstance(out, (tuple, list)) and out:
        return _first(out[0])
    return out.detach().clone() if isinstance(out, Tensor) else torch.zeros(0)


def first_difference(sample: Sample, model: nn.Module, parts: Sequence, others: Sequence) -> Difference | None:
    """The first module whose rows differ between the passes ``parts`` and ``others``; None if there is none. Modules
    whose outputs are not one row per example, or are padded to another length, are not compared."""
    for (name, module, inputs, outputs), (_, _, their_inputs, their_outputs) in zip(
            calls_of(sample, model, parts), calls_of(sample, model, others)):
        by, name = _apart(outputs, their_outputs), f"{name or 'the model itself'} ({type(module).__name__})"
        if not by <= sample.limit:
            return Difference(name, module, by, not _apart(inputs, their_inputs) <= sample.limit)
    return None


def _apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest difference over the largest value; 0 if the rows cannot be compared."""
    if {o.shape[1:] for o in ours} != {o.shape[1:] for o in theirs} or any(o.ndim == 0 for o in (*ours, *theirs)):
        return 0.0
    one, other = torch.cat(ours), torch.cat(theirs)
    if len(one) != len(other) or not one.is_floating_point() or not one.numel():
        return 0.0
    return ((one - other).abs().max() / one.abs().max().clamp(min=1e-30)).item()


def examples(job: Job) -> Finding:
    """Whether an example is the same when read again, alone or in any batch, and take returns one per visit."""
    name, seed, read, change = "examples", job.plan.seed, [], "the same in every epoch"
    splits = {"train": None, **job.data.evaluated(job.plan.train_eval_examples)} | {"train": job.data.train}
    for split, data in splits.items():
        if not len(data):
            continue
        visits = _spread(len(data), seed)
        try:
            wrong = _count_wrong(data, visits) or _differs(data, visits)
        except Exception as error:
            wrong = dict(differs=f"{type(error).__name__}: {error}", cause="unreadable")
        if wrong:
            return JOB.finding(name, "differ", read=len(visits.indices), split=split, limit=0.0, **wrong)
        read.append(f"{len(visits.indices)} of {split}")
        if split == "train":
            later = visits._replace(epochs=visits.epochs + 1)
            again = _compare(dict(tensors_of(data.take(visits))), dict(tensors_of(data.take(later))))
            change = "training examples change from epoch to epoch" if again else change
    shared = ", ".join(filter(None, (_shared(job, split) for split in ("val", "test"))))
    return JOB.finding(name, "leaked" if shared else "same", read=", ".join(read), change=change, shared=shared)


def _shared(job: Job, split: str) -> str:
    """How a split's examples are those of the training split, all of them or its first or last ones; else empty."""
    data, train = getattr(job.data, split), job.data.evaluated(len(job.data.train))["train"]
    if not len(data):
        return ""
    if all(isinstance(one, MapSplit) for one in (data, job.data.train)) and data.dataset is job.data.train.dataset:
        return f"{split} and train read the same data set"
    visits = _spread(len(data), job.plan.seed)
    own = dict(tensors_of(data.take(visits)))
    if not any(values.ndim and bool((values != values[:1]).any()) for values in own.values()):
        return ""                   # examples that are all alike
    for first in {0, len(train) - len(data)} if len(data) <= len(train) else ():
        there = dict(tensors_of(train.take(visits._replace(indices=visits.indices + first))))
        if own.keys() == there.keys() and all(torch.equal(values, there[name]) for name, values in own.items()):
            return (f"the {counted(len(visits.indices), 'example')} of {split} that were read are examples of train, "
                    f"{'from its end' if first else 'at the same places'}")
    return ""


def _spread(n: int, seed: int) -> Visits:
    """Visits to up to SOME examples of n, from the first to the last."""
    indices = np.unique(np.linspace(0, n - 1, min(n, SOME)).astype(np.int64))
    return Visits(indices, np.zeros_like(indices), seed)


def _count_wrong(data, visits: Visits) -> dict[str, Any] | None:
    """The fault where a batch has more or fewer rows than visits, by its own length or by all its tensors'."""
    whole = {name: len(values) for name, values in tensors_of(data.take(visits)) if values.ndim}
    for n in (min(len(visits.indices), k) for k in (5, 3, 1)):
        batch = data.take(select(visits, slice(n)))
        lengths = {name: len(values) for name, values in tensors_of(batch) if values.ndim}
        own = len(batch) if hasattr(batch, "__len__") and not isinstance(batch, (tuple, list, dict)) else None
        rows = own if own is not None else min(lengths.values(), default=n)
        grows = any(whole.get(name) != length for name, length in lengths.items())      # others, as of time: no rows
        if rows != n and (own is not None or n not in lengths.values() and grows):
            return dict(differs=f"take returns {rows} examples for {counted(n, 'visit')}", cause="other_count")
    return None


def _differs(data, visits: Visits) -> dict[str, Any] | None:
    """The first example that differs when read again, in another order, or alone."""
    whole, n = dict(tensors_of(data.take(visits))), len(visits.indices)
    cases = [("twice", np.arange(n)), ("in another order", np.arange(n)[::-1].copy())]
    for how, rows in cases + [("alone", np.array([row])) for row in range(n)]:
        cause, first, other = "not_deterministic", whole, dict(tensors_of(data.take(select(visits, rows))))
        if how != "twice":              # of what has a row for each example
            cause = "by_batch"
            first = {name: values[rows] for name, values in whole.items() if values.ndim and len(values) == n}
            other = {name: values for name, values in other.items() if values.ndim and len(values) == len(rows)}
        if found := _compare(first, other):
            row, name, by = found
            which = f"example {visits.indices[rows[row]]}" if row < len(rows) else "an example"
            return dict(differs=f"{name} of {which} differs when read {how}", by=by, cause=cause)
    return None


def select(visits: Visits, which) -> Visits:
    """The visits with these indices, a slice or an array."""
    return visits._replace(indices=visits.indices[which], epochs=visits.epochs[which])


def _compare(values: dict[str, Tensor], others: dict[str, Tensor]) -> tuple[int, str, float] | None:
    """The first row that differs, its tensor's name, and the largest difference; other shapes are skipped."""
    for name, a in values.items():
        b = others.get(name)
        if b is None or a.shape != b.shape or a.dtype != b.dtype:
            continue
        apart = (a != b) & ~(a.isnan() & b.isnan())       # NaN equals NaN here
        if apart.any():
            row = int(apart.nonzero()[0, 0]) if a.ndim else 0
            return row, name, (a.double() - b.double()).abs().nan_to_num(float("inf")).max().item()
    return None
