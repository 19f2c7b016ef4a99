"""An elastic job: the state that its workers keep in memory, so that it continues when workers leave or join.

At a commit rank 0 flushes its rows to the log, and every rank copies the run's state. When a new group forms, all take
the state of the rank that is furthest ahead, and retake the steps since. The global batch, and so the schedule and the
stream of examples, stays that of the first start. So does the most examples of a pass, unless a ghost group of
batch-norm is larger.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import WorkerLostError, WorkersError
from ..formatting.screen import say
from ..plan.shards import group_bounds
from ..update.gradients import joins_examples
from ..workers.elastic import ElasticWorkers
from ..workload import Data
from .checkpoint import Checkpoints
from .display import describe_batch, describe_workers
from .outputs import Recovery
from .prepare import Job, prepare
from .run_log import RunLog
from .snapshot import Start, capture, share

COST = 0.01         # share of the time that commits may take if commit_every is not set


class HostsChangedError(WorkersError):
    """Hosts joined or left the job: all ranks leave at the step they agreed on, and form a new group."""


def regroup(workers: ElasticWorkers, attempt: Callable[[Recovery], int]) -> int:
    """The exit code of the job, started again whenever workers are lost or hosts change, with those that are there."""
    memory = Memory()
    while True:
        try:
            return attempt(memory)
        except (WorkerLostError, HostsChangedError) as end:
            memory.end = str(end).partition(". ")[0]        # the first sentence of Horovod's message
            if isinstance(end, WorkerLostError) and workers.local_rank == 0:        # slurm/elastic.sbatch reads it
                say(f"Note: {memory.end}; forms a new group", err=True)
        gc.collect()                    # frees the old group's model before a new one is built
        workers.reform()


@dataclass
class Memory(Recovery):
    """By the memory of the workers; this is one worker's, empty in a new one."""

    batch: dict | None = None       # the job's batch, ghost batch and most examples of a pass: keys of the settings
    log: str = ""                   # path of the log, once there is one
    sure: dict | None = None        # the last state that all ranks copied, whose rows are surely in the log
    newest: dict | None = None      # a later one, which others may not have yet; its rows may be lost with their writer
    writes: bool = False            # whether this process writes the rows
    end: str = ""                   # why the last group ended
    data: Data | None = None        # so that it is not read again

    def prepare(self, name, layers, workers):
        self.meet(workers)
        job = prepare(name, layers, workers, self.data, self.batch)
        self.data, self.batch = job.data, self.batch or batch_of(job)
        return job

    def meet(self, workers: ElasticWorkers) -> None:
        none_lost = any(workers.gather(self.writes and self.newest is not None, "memory/rows"))
        state = self.newest if none_lost and self.newest is not None else self.sure
        by_rank = workers.gather((_steps(state), self.batch, self.log, self.end), "memory")
        furthest = max(range(len(by_rank)), key=lambda rank: by_rank[rank][0])
        self.batch, self.log, self.end = (next(filter(None, known), None) for known in list(zip(*by_rank))[1:])
        self.log, self.end = self.log or "", self.end or ""
        self.sure, self.newest = share(state, workers, furthest) if by_rank[furthest][0] >= 0 else None, None
        if self.sure is not None:
            self.sure["random"] = None                  # it is another rank's

    def find_start(self, job, workers):
        """From the kept state, else from a checkpoint or from scratch, in the same log."""
        if self.sure is not None:
            step = _steps(self.sure)
            return Start(in_folder=True, step=step, state=self.sure, log=self.log, log_continues=True,
                         previous_end=self.end, news=f"{self.end}: resumes after step {step} with workers "
                         f"{describe_workers(job.plan)}; global batch {describe_batch(job.plan)}")
        found = super().find_start(job, workers)
        if self.log:
            found.log, found.log_continues, found.previous_end = self.log, True, self.end
        return found

    def note_log(self, path):
        self.log = path

    def open_checkpoints(self, job, start, folder, run_log, display, workers):
        self.log = workers.gather(self.log, "log")[0]
        kept = super().open_checkpoints(job, start, folder, run_log, display, workers)
        return ElasticCheckpoints(kept, self, job.plan.commit_every, run_log, workers)


def batch_of(job: Job) -> dict:
    plan = job.plan
    most = plan.local_batch
    if joins_examples(plan, job.model):         # later, fewer workers may have to take a shared ghost group whole
        bounds = [group_bounds(batch, plan.ghost_batch) for batch in plan.batches.sizes]
        most = max(most, *(stop - start for groups in bounds for start, stop in zip(groups, groups[1:])))
    return {**plan.batches.keys(), "max_local_batch": most, "ghost_batch": plan.ghost_batch}


def _steps(state: dict | None) -> int:
    return -1 if state is None else state["progress"]["steps"]


class ElasticCheckpoints:
    """A run's checkpoints, ``kept``, and commits in memory between them, every so many steps (0: by their cost)."""

    def __init__(self, kept: Checkpoints, memory: Memory, every: int, run_log: RunLog, workers: ElasticWorkers):
        self._kept, self._memory, self._every, self._run_log, self._workers = kept, memory, every, run_log, workers
        self._cost, self._last = 0.0, float("-inf")

    def __getattr__(self, name):
        return getattr(self._kept, name)

    def wishes(self):
        wishes = self._kept.wishes()
        if self._workers.hosts_changed:
            wishes.add("hosts")
        if self._workers.rank == 0 and not self._every and time.monotonic() - self._last > self._cost / COST:
            wishes.add("commit")
        return wishes

    def keep(self, done, take_step, votes):
        memory = self._memory
        if memory.newest is not None:           # all ranks have taken a step since
            memory.sure, memory.newest = memory.newest, None
        by_step = self._every > 0 and done.steps % self._every == 0 or self._kept.due(done.steps, votes)
        if by_step or memory.sure is None or {"commit", "hosts"} & set(votes):
            started = time.monotonic()
            self._run_log.flush()
            memory.newest, memory.writes = capture(done, take_step), self._workers.rank == 0
            self._last = time.monotonic()
            self._cost = self._last - started
        if "hosts" in votes:
            self._workers.gather(None, "hosts")
            memory.sure, memory.newest = memory.newest, None
            raise HostsChangedError("hosts were added or removed")
        self._kept.keep(done, take_step, votes)
