"""Legitimate reasons why a trained model depends on the number of workers or on the machine."""
from __future__ import annotations

from ..training.job import Job
from ..update.model import how_to_be_faster
from .probe_step import Sample


def notes(job: Job, sample: Sample) -> tuple[str, ...]:
    """One sentence for each caveat that applies to the job."""
    plan, typed, found = job.plan, job.settings.typed, []
    if not typed & {"global_batch", "batch_schedule"}:
        found.append(f"with --local-batch the global batch (now {plan.global_batch}) grows with the workers, and so do "
                     "the learning rate and the examples per step: a different problem at each worker count. "
                     f"--global-batch {plan.global_batch} keeps it fixed")
    shown = "" if plan.precision == "fp64" else "; --precision fp64 shows that nothing else differs"
    found.append("another worker count adds numbers in another order, so runs drift apart by rounding, step by step "
                 f"(in {plan.precision} here){shown}")
    if plan.budget_seconds is not None:
        found.append("a budget in seconds gives more workers more steps")
    if job.device.type == "cuda" or any(hasattr(module, "ghosts") for module in job.model.modules()):
        found.append("a GPU draws different dropout masks than a CPU, but the same ones at any number of workers")
    if plan.last_batch == "drop":
        found.append("last_batch = drop leaves some examples out of each epoch; which ones depends on the global batch")
    if plan.group_by_group:
        faster = how_to_be_faster(job.bound_to_passes, job.model)
        found.append(f"the model has {job.bound_to_passes or 'group_by_group = always'}, so each ghost group gets its "
                     f"own pass: correct at any worker count, but slower{faster and '; ' + faster}")
    if sample.note:
        found.append(f"the checks treated sums as equal up to {sample.limit:g}: {sample.note}")
    return tuple(found)
