"""How a start of a job resumes from an earlier one, and keeps what a later one needs: by checkpoints in a folder."""
from __future__ import annotations

from ..workers.group import Workers
from .checkpoint import Checkpoints, CheckpointFolder, FolderCheckpoints
from .display import Display
from .job import Job
from .outcome import Start
from .prepare import prepare
from .resume import find_start
from .run_log import RunLog


class Recovery:
    """By the folder of checkpoints, if the job has one."""

    def prepare(self, name: str, layers: list[dict], workers: Workers) -> Job:
        """The job, as prepare makes it; a collective."""
        return prepare(name, layers, workers)

    def find_start(self, job: Job, workers: Workers) -> Start:
        """Where the run starts, the same on all ranks; a collective."""
        return find_start(job.settings, job.plan, workers)

    def note_log(self, path: str) -> None:
        """Called on rank 0 as soon as the run's log is open."""

    def open_checkpoints(self, job: Job, start: Start, folder: CheckpointFolder | None, run_log: RunLog,
                         display: Display, workers: Workers) -> Checkpoints:
        """The loop's checkpoints; a collective."""
        if job.settings.checkpoint is None:
            return Checkpoints(start)
        return FolderCheckpoints(start, job.plan, folder, run_log, display, workers)
