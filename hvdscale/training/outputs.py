"""The outputs of a run: its log, its checkpoints, from which it resumes, and, on rank 0, the terminal."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..log.files import refuse_taken
from ..plan.settings import Settings
from ..system.lock import SUFFIX
from ..system.outputs import refuse_shared
from ..target import SPLITS
from ..update.gradients import why_not_measured
from ..update.model import describe_reason, how_to_be_faster
from ..update.step import log_columns
from ..workers.group import Workers
from .checkpoint import OF_FOLDER, CheckpointFolder, Checkpoints, FolderCheckpoints, refuse_unwritable
from .display import Display, NoDisplay, describe
from .snapshot import Start
from .prepare import Job, prepare
from .resume import find_start
from .run_log import TRIAL, NoLog, RunLog, open_log


@contextlib.contextmanager
def open_run_log(job: Job, workers: Workers, start: Start | None = None, more: Mapping[str, Mapping] = {},
                 opened: Callable[[str], None] = lambda path: None) -> Iterator[RunLog]:
    """A context with the job's log on rank 0, NoLog on the others; ``opened`` is called even if another rank then
    fails."""
    run_log, start, settings = NoLog(), start or Start(), job.settings
    if start.accepted:
        accepted = {**job.plan.job.get("accepted", {}), **start.accepted}
        job.plan = replace(job.plan, job={**job.plan.job, "accepted": accepted})
    try:
        with workers.together("the log"):
            if workers.rank == 0:
                record = job.plan.as_record({"workload": job.name, **settings.asked()})
                slurm = f"-job{os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
                new = f"runs/{job.plan.workload.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}{slurm}.h5"
                writer = open_log(start.log or settings.log or new, job.plan, job.workload.metrics, workers.versions(),
                                  optional=log_columns(job.plan, job.model), overwrite=settings.overwrite,
                                  take_over=settings.take_over, resume=start.log_continues)
                run_log = RunLog(writer, TRIAL, job.plan, {**record, **more}, start)
                opened(run_log.path)
        yield run_log
    finally:
        run_log.let_go()            # the error may be another rank's, or a lost worker's


def refuse_outputs(settings: Settings, workers: Workers) -> None:
    """UsageError or LogError, on all ranks, where an output of a run would replace another file, or another output."""
    with workers.together("the outputs"):
        if workers.rank == 0:
            outputs = {"--log": settings.log, "--save-model": settings.save_model, "--checkpoint": settings.checkpoint}
            files = [(option, path) for option, path in outputs.items() if path]
            for option, path in files[:]:
                folder, name = os.path.split(path)
                if settings.checkpoint and OF_FOLDER.fullmatch(name) and (
                        os.path.realpath(folder) == os.path.realpath(settings.checkpoint)):
                    files.append(("--checkpoint", path))
            if settings.log:
                files.append(("the lock of --log", settings.log + SUFFIX))
            refuse_shared(files)
            if settings.log:
                refuse_taken(settings.log)
            if settings.save_model:
                refuse_unwritable(settings.save_model)


@contextlib.contextmanager
def open_folder(job: Job, workers: Workers) -> Iterator[CheckpointFolder | None]:
    """A context with the folder of checkpoints, locked by rank 0; None on the others, and if no checkpoints are kept.
    Afterwards it is free: an elastic job's next attempt, in this process, locks it again."""
    with contextlib.ExitStack() as held:
        folder = None
        with workers.together("the folder of checkpoints"):
            if workers.rank == 0 and job.settings.checkpoint is not None:
                folder = held.enter_context(CheckpointFolder(job.settings.checkpoint, job.settings.take_over))
        yield folder


def open_display(job: Job, log: str, workers: Workers, start: Start | None = None) -> Display:
    if workers.rank:
        return NoDisplay()
    start = start or Start()
    display = Display(job.plan, job.workload.metrics, [split for split in SPLITS if not len(getattr(job.data, split))])
    if start.news:
        display.say(start.news)
        return display
    display.say(describe(job.plan, log, job.settings.checkpoint, start))
    notes = [*job.data.notes, *start.notes]
    if job.plan.group_by_group:
        reason, faster = job.bound_to_passes, how_to_be_faster(job.bound_to_passes, job.model)
        notes.append(f"{describe_reason(reason)}, so each ghost group gets its own pass{faster and '; ' + faster}")
        if job.settings.ghost_batch is None:
            notes.append(f"ghost batch {job.plan.ghost_batch}, the default at any worker count. Workers run whole "
                         "groups, so each needs at least one per step; --ghost-batch changes the size")
    elif job.bound_to_passes:
        notes.append(f"{describe_reason(job.bound_to_passes)}, and group_by_group = never, so updates depend on the "
                     "worker count")
    if reason := why_not_measured(job.plan, job.model):
        notes.append(reason)
    for note in notes:
        display.say(f"  note: {note}")
    return display


class Recovery:
    """How a start of a job resumes from an earlier one, and keeps what a later one needs: by its checkpoints."""

    prepare = staticmethod(prepare)

    def find_start(self, job: Job, workers: Workers) -> Start:
        return find_start(job.settings, job.plan, workers)

    def note_log(self, path: str) -> None:
        """Called on rank 0 as soon as the run's log is open."""

    def open_checkpoints(self, job: Job, start: Start, folder: CheckpointFolder | None, run_log: RunLog,
                         display: Display, workers: Workers) -> Checkpoints:
        if job.settings.checkpoint is None:
            return Checkpoints(start)
        return FolderCheckpoints(start, job.plan, folder, run_log, display, workers)
