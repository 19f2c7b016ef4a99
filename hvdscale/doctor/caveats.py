"""What makes a trained model depend on the number of workers, or on the machine, and is no fault of the job."""
from __future__ import annotations

from ..training.job import Job
from ..update.model import how_to_be_faster
from .probe_step import Sample


def notes(job: Job, sample: Sample) -> tuple[str, ...]:
    """A sentence each, of those that hold for the job."""
    plan, typed, found = job.plan, job.settings.typed, []
    if "global_batch" not in typed:
        found.append(f"--local-batch lets the global batch grow with the workers (now {plan.global_batch}), and with "
                     "it the learning rate and the steps in an epoch: another problem at each worker count. "
                     f"--global-batch {plan.global_batch} holds it fixed")
    shown = "" if plan.precision == "fp64" else "; --precision fp64 shows that nothing else differs"
    found.append("sums over workers are taken in another order, so that runs drift apart by rounding from step to step "
                 f"(in {plan.precision} here){shown}")
    if plan.budget_seconds is not None:
        found.append("a budget in seconds gives more workers more steps")
    if job.device.type == "cuda" or any(hasattr(module, "ghosts") for module in job.model.modules()):
        found.append("a GPU draws other dropout masks than a CPU, the same ones at any number of workers")
    if plan.last_batch == "drop":
        found.append("last_batch = drop leaves some examples out of each epoch: which, depends on the global batch")
    if plan.group_by_group:
        faster = how_to_be_faster(job.bound_to_passes, job.model)
        found.append(f"the model has {job.bound_to_passes or 'group_by_group = always'}, so each ghost group goes "
                     f"through it alone: right at any worker count, but slower{faster and '; ' + faster}")
    if sample.note:
        found.append(f"the checks took sums as equal up to {sample.limit:g}: {sample.note}")
    return tuple(found)
