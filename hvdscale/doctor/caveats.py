"""Legitimate reasons why a trained model depends on the number of workers or on the machine."""
from __future__ import annotations

from ..training.job import Job
from ..update.model import how_to_be_faster
from .kinds import JOB
from .probe_step import Sample


def notes(job: Job, sample: Sample) -> tuple[str, ...]:
    """One sentence for each caveat that applies to the job."""
    plan = job.plan
    faster = how_to_be_faster(job.bound_to_passes, job.model) if plan.group_by_group else ""
    return tuple(JOB.sentences("notes", plan, {
        "batch_grows": not job.settings.typed & {"global_batch", "batch_schedule"},
        "rounding": plan.precision != "fp64", "rounding_in_fp64": plan.precision == "fp64",
        "seconds": plan.budget_seconds is not None,
        "masks": job.device.type == "cuda" or any(hasattr(module, "ghosts") for module in job.model.modules()),
        "dropped": plan.last_batch == "drop", "by_group": plan.group_by_group, "limit": sample.note,
    }, why=job.bound_to_passes or "group_by_group = always", faster=faster and f"; {faster}",
        limit=f"{sample.limit:g}", note=sample.note))
