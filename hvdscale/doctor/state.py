"""Checks of a run's checkpoint and its evaluation."""
from __future__ import annotations

import os
import tempfile

import torch

from ..data.generators import OwnGenerators
from ..data.splits import to_device
from ..errors import CheckpointError
from ..plan.shards import Visits
from ..training.checkpoint import FORMAT, read, write
from ..training.evaluate import Evaluator
from ..training.snapshot import RunState, capture, restore
from ..update.optimizers import make_optimizer
from ..update.precision import PARAMETERS, repeatable
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workers.single import SingleWorker
from ..workload import measured
from .finding import Finding, Verdict
from .probe_step import Sample
from .simulated_workers import on_each

BEFORE = 2                  # steps before the checkpoint
MEASURED = 100              # examples measured per split, at most
CHUNKS = (32, 7)            # examples per pass, in two ways


def checkpoint(sample: Sample) -> Finding:
    """Whether a run resumed from a checkpoint takes the same next step as an uninterrupted one, bit for bit."""
    name, job = "checkpoint", sample.job
    plan = job.plan.at_batch(sample.plan.global_batch, workers=1, accumulate=1, loader_workers=0, noise_every=0,
                             ghost_batch=sample.plan.ghost_batch)
    looked_at = (f"{BEFORE} steps, a checkpoint written and read, and the next step with a new model and optimizer "
                 f"({plan.optimizer}, {plan.precision})")

    def parts():
        model = sample.model(plan)
        optimizer = make_optimizer(plan, model)
        return model, optimizer, DataParallelStep(plan, job.workload, job.data.train, model, optimizer, SingleWorker(),
                                                  job.device)

    def resumed_from(state):
        other = parts()
        restore(state, *other)
        return other[2](BEFORE, plan.schedule.lr_at(BEFORE), set()).loss, other[0].state_dict()

    with (OwnGenerators(job.device), repeatable(job.device),
          tempfile.TemporaryDirectory(prefix="hvdscale-doctor-") as folder):
        run = parts()
        for step in range(BEFORE):
            run[2](step, plan.schedule.lr_at(step), set())
        try:
            path = os.path.join(folder, f"step-{BEFORE}.pt")
            write(path, {**capture(RunState(BEFORE), *run), "format": FORMAT})
            uninterrupted = run[2](BEFORE, plan.schedule.lr_at(BEFORE), set()).loss
            state = read(path)
        except CheckpointError as error:
            return Finding(name, Verdict.FAILED, looked_at, str(error).replace(folder + os.sep, ""),
                           cause="the state of the optimizer or the model holds a custom object, which could only be "
                           "saved by pickling", remedy="keep only tensors, numbers and strings in state_dict()")
        (resumed, found), (_, again) = resumed_from(state), resumed_from(state)
    differing, by = _differences(run[0].state_dict(), found)
    if not differing:
        return Finding(name, Verdict.PASSED, f"{looked_at}: bit-identical", by=0.0, limit=0.0)
    if job.device.type != "cpu" and _differences(found, again)[0]:
        return Finding(name, Verdict.WARNED, looked_at, f"{differing[0]}: the step itself, taken twice from one "
                       "checkpoint, gives other bits", by, 0.0, "an operation of the model has no deterministic kernel "
                       "on this device, or draws from a generator of its own", "compare on a CPU (--device cpu)")
    if resumed != uninterrupted:
        cause = ("the model or the data keep state outside the checkpoint: an attribute that is not a buffer, or a "
                 "generator of their own")
        remedy = "keep it in a buffer (register_buffer); draw from the global generators"
    else:
        cause, remedy = ("the optimizer keeps a state that its state_dict lacks",
                         "keep it in self.state or in the parameter groups, as torch's optimizers do")
    return Finding(name, Verdict.FAILED, looked_at, f"{differing[0]} after the next step", by, 0.0, cause, remedy)


def _differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> tuple[list[str], float]:
    """Names of what differs between two models' states, and the largest difference."""
    differing = [name for name, values in one.items() if not torch.equal(values, other[name])]
    return differing, max(((one[name].double() - other[name].double()).abs().max().item() for name in differing),
                          default=0.0)


def evaluation(sample: Sample, workers: Workers) -> Finding:
    """Whether metrics do not depend on the chunks a split is cut into, and are bit-identical at any worker count.

    Under a launcher on its workers, a collective; otherwise on up to 3 simulated ones.
    """
    name, job, model = "evaluation", sample.job, sample.model()
    splits = {split: data.first(min(len(data), MEASURED)) for split, data in job.data.evaluated(
        job.plan.train_eval_examples).items() if len(data)}
    target = job.plan.stop_target
    if target and target.split not in splits:
        return Finding(name, Verdict.FAILED, "the splits that are evaluated",
                       f"the target {target} names the {target.split} split, which has no examples: {target.column} is "
                       "always NaN, and never meets it",
                       cause=f"load returns no {target.split} split, or an empty one", remedy=f"return {target.split} "
                       f"examples from load, or set a target on {' or '.join(splits) or 'another split'} (--target)")
    if not splits:
        return Finding(name, Verdict.NOT_APPLICABLE, "no split has examples")

    def by(worker: Workers, chunk: int) -> dict[str, float]:
        return Evaluator(job.workload, splits, chunk, worker, job.device, sample.plan.precision)(model, tuple(splits))

    with OwnGenerators(job.device):
        alone = {chunk: by(SingleWorker(), chunk) for chunk in CHUNKS}
        if workers.size > 1:
            counts, shared = (workers.size,), [by(workers, CHUNKS[0])]
        else:
            counts = (2, 3)
            shared = [on_each(count, lambda worker: by(worker, CHUNKS[0]))[0] for count in counts]
        counted = {chunk: _counts(sample, model, splits, chunk) for chunk in CHUNKS}
    looked_at = (f"{', '.join(f'{len(data)} of {split}' for split, data in splits.items())} in chunks of {CHUNKS[0]} "
                 f"and {CHUNKS[1]}, on {', '.join(map(str, (1, *counts)))} workers")
    undefined = [column for column, value in alone[CHUNKS[0]].items() if value != value]
    broken = [column for column in undefined if counted[CHUNKS[0]].get(column)]
    if broken:
        return Finding(name, Verdict.FAILED, looked_at, f"{_are_nan(broken)}, though the data are finite",
                       cause="measure divides zero by zero, or takes the logarithm or root of a negative number; the "
                       "NaN of one example makes the mean of its whole split NaN, which never meets a target",
                       remedy="find the example, as with torch.isnan in measure, and leave it out of sum and count")
    for column, values in counted[CHUNKS[0]].items():
        other = counted[CHUNKS[1]][column]
        if values != other:
            return Finding(name, Verdict.FAILED, looked_at, f"the count of {column} is {values:g} in chunks of "
                           f"{CHUNKS[0]} and {other:g} in chunks of {CHUNKS[1]}",
                           cause="measure returns a mean with a count of 1, or counts something else than the terms of "
                           "its sum; or a batch is padded",
                           remedy="return (values.sum(), len(values)) for each metric from measure")
    for column, value in alone[CHUNKS[0]].items():
        apart = _apart(value, alone[CHUNKS[1]][column])
        if not apart <= sample.limit:
            return Finding(name, Verdict.FAILED, looked_at, f"{column} between the two chunk sizes", apart,
                           sample.limit, "measure returns a mean where a sum is expected, or an example's value "
                           "depends on its batch, or changes from call to call",
                           "return (values.sum(), len(values)) from measure; see the checks 'losses' and 'examples'")
    for count, values in zip(counts, shared):
        for column, value in values.items():
            if _apart(value, alone[CHUNKS[0]][column]) != 0:
                return Finding(name, Verdict.FAILED, looked_at, f"{column} on {count} workers and on one",
                               _apart(value, alone[CHUNKS[0]][column]), 0.0, "data or model differ on some rank",
                               "see the checks 'ranks' and 'examples'")
    whole = {column.split("/")[0] for column, count in counted[CHUNKS[0]].items()
             if count != len(splits[column.split("/")[0]])}
    per = "the counts from measure have the same sum" if whole else "each example counts once"
    apart = max((_apart(value, alone[CHUNKS[1]][column]) for column, value in alone[CHUNKS[0]].items()), default=0.0)
    if undefined:
        per += f"; {_are_nan(undefined)}"
    valued = {column.partition("/")[2] for column, value in alone[CHUNKS[0]].items() if value == value}
    needed = [column for column in undefined if column.partition("/")[2] not in valued or (
        target and column == target.column)]            # else the workload measures it only on some splits
    if needed:
        return Finding(name, Verdict.WARNED, f"{looked_at}; {per}", f"{_are_nan(needed)} before the first step",
                       cause="its count is 0 on these examples, as for a metric over predictions that an untrained "
                       "model does not make; or summarize returns NaN",
                       remedy="see whether it has a value after some steps (hvdscale-train --steps 20); while it is "
                       "NaN, it meets no target")
    return Finding(name, Verdict.PASSED, f"{looked_at}; {per}", by=apart, limit=sample.limit)


def _are_nan(columns: list[str]) -> str:
    return f"{', '.join(columns)} {'are' if len(columns) > 1 else 'is'} NaN"


def _apart(a: float, b: float) -> float:
    return 0.0 if a == b or a != a and b != b else abs(a - b) / max(abs(a), abs(b))


@torch.no_grad()
def _counts(sample: Sample, model, splits: dict, chunk: int) -> dict[str, float]:
    """``split/metric`` -> the sum of the counts over all chunks."""
    workload, found = sample.job.workload, {}
    model.eval()
    for split, data in splits.items():
        for start in range(0, len(data), chunk):
            indices = torch.arange(start, min(start + chunk, len(data))).numpy()
            batch = to_device(data.take(Visits(indices, indices * 0)), sample.job.device,
                              PARAMETERS[sample.plan.precision])
            for metric, (_, count) in measured(workload, model, batch).sums.items():
                found[f"{split}/{metric}"] = found.get(f"{split}/{metric}", 0) + count
    model.train()
    return found
