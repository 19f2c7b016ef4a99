"""The Horovod script that starts where a job does: what the benchmarks of whole jobs are held against."""
from __future__ import annotations

from hvdscale.training.prepare import Job

from .horovod_mnist import HorovodScript


def script_like(job: Job) -> HorovodScript:
    """A script with a model of the job's parameters, at its local batch and base learning rate."""
    model, settings = job.workload.build(), job.settings
    model.load_state_dict(job.model.state_dict())
    return HorovodScript(model, settings.lr, settings.local_batch, settings.momentum, settings.optimizer == "nesterov")


def without_readers() -> None:
    """Scripts read without a process of their own, whose start is half of the time of a short run."""
    HorovodScript.readers = 0
