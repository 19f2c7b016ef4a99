"""An elastic job: the state that its workers keep in memory, so that it continues when workers leave or join.

At a commit rank 0 flushes its rows to the log, and every rank copies the run's state. When a new group forms, all take
the state of the rank that is furthest ahead, and retake the steps since. The global batch, and so the schedule and the
stream of examples, stays that of the first start. So does the most examples of a pass, unless a ghost group of
batch-norm is larger.
"""
from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import HostsChangedError, PlanError
from ..plan.plan import Plan
from ..plan.settings import Settings
from ..plan.shards import group_bounds
from ..update.gradient_norms import joins_examples
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workload import Data
from .checkpoint import Checkpoints
from .outcome import Start
from .run_log import RunLog
from .snapshot import Progress, capture, share

COST = 0.01         # share of the time that commits may take if commit_every is not set


@dataclass
class Memory:
    """The memory of one worker; empty in a new one.

    batch       the job's global batch, its ghost batch and the most examples of a pass: keys of the settings
    log         path of the log, once there is one
    sure        the last state that all ranks copied, whose rows are surely in the log
    newest      a later one, which others may not have copied yet; its rows may be lost with their writer
    writes      whether this process writes the rows
    end         why the last group ended
    data        the data set, so that it is not read again
    """

    batch: dict | None = None
    log: str = ""
    sure: dict | None = None
    newest: dict | None = None
    writes: bool = False
    end: str = ""
    data: Data | None = None

    def meet(self, workers: Workers) -> None:
        """Agree with the new group on the state of the job; a collective."""
        none_lost = any(workers.gather(self.writes and self.newest is not None, "memory/rows"))
        state = self.newest if none_lost and self.newest is not None else self.sure
        by_rank = workers.gather((_steps(state), self.batch, self.log, self.end), "memory")
        furthest = max(range(len(by_rank)), key=lambda rank: by_rank[rank][0])
        self.batch, self.log, self.end = (next(filter(None, known), None) for known in list(zip(*by_rank))[1:])
        self.log, self.end = self.log or "", self.end or ""
        self.sure, self.newest = share(state, workers, furthest) if by_rank[furthest][0] >= 0 else None, None
        if self.sure is not None:
            self.sure["random"] = None                  # it is another rank's

    def settle(self, settings: Settings) -> Settings:
        """The settings with the job's batch, the same at any number of workers."""
        if self.batch is None:
            return settings
        defaults, *layers = settings.layers
        layers = [{name: value for name, value in layer.items() if name != "accumulate"} for layer in layers]
        return Settings.build(defaults, *layers, self.batch)

    def keep(self, plan: Plan, data: Data, model: nn.Module) -> None:
        """Keep the batch that the job's first start settled, and the data."""
        self.data = data
        if self.batch is None:
            most = plan.local_batch
            if joins_examples(plan, model):         # later, fewer workers may have to take a shared ghost group whole
                bounds = [group_bounds(batch, plan.ghost_batch) for batch in plan.batches.sizes]
                most = max(most, *(stop - start for groups in bounds for start, stop in zip(groups, groups[1:])))
            self.batch = {**plan.batches.keys(), "max_local_batch": most, "ghost_batch": plan.ghost_batch}

    def start(self, found: Start) -> Start:
        """Where the group starts: from the kept state, or from scratch in the same log."""
        if self.sure is not None:
            return Start(in_folder=True, step=_steps(self.sure), state=self.sure, log=self.log, log_continues=True,
                         previous_end=self.end, regrouped=True)
        if self.log:
            found.log, found.log_continues, found.previous_end = self.log, True, self.end
        return found


def _steps(state: dict | None) -> int:
    return -1 if state is None else state["progress"]["steps"]


class ElasticCheckpoints(Checkpoints):
    """A run's checkpoints, and the commits in memory between them."""

    def __init__(self, kept: Checkpoints, memory: Memory, plan: Plan, run_log: RunLog, workers: Workers):
        self._kept, self._memory, self._plan, self._run_log, self._workers = kept, memory, plan, run_log, workers
        self._cost, self._last = 0.0, float("-inf")

    @property
    def failure(self):
        return self._kept.failure

    def restore(self, model, optimizer, take_step):
        return self._kept.restore(model, optimizer, take_step)

    def wishes(self):
        wishes = self._kept.wishes()
        if self._workers.hosts_changed:
            wishes.add("hosts")
        by_time = self._workers.rank == 0 and not self._plan.commit_every
        if by_time and time.monotonic() - self._last > self._cost / COST:
            wishes.add("commit")
        return wishes

    def due(self, step, votes):
        return self._kept.due(step, votes)

    def save(self, done, model, optimizer, take_step):
        self._kept.save(done, model, optimizer, take_step)

    def commit(self, done: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, take_step: DataParallelStep,
               votes: tuple[str, ...]) -> None:
        memory, every = self._memory, self._plan.commit_every
        if memory.newest is not None:           # all ranks have taken a step since
            memory.sure, memory.newest = memory.newest, None
        by_step = every > 0 and done.steps % every == 0 or self._kept.due(done.steps, votes)
        if by_step or memory.sure is None or {"commit", "hosts"} & set(votes):
            started = time.monotonic()
            self._run_log.flush()
            memory.newest = capture(done, model, optimizer, take_step)
            memory.writes = self._workers.rank == 0
            self._last = time.monotonic()
            self._cost = self._last - started
        if "hosts" in votes:
            self._workers.gather(None, "hosts")
            memory.sure, memory.newest = memory.newest, None
            raise HostsChangedError("hosts were added or removed")

    def end(self, stop):
        self._kept.end(stop)


def refuse_commit_every(settings: Settings, workers: Workers) -> None:
    """Raise PlanError if commit_every is set in a job that is not elastic."""
    if "commit_every" in settings.typed and not workers.elastic:
        raise PlanError("commit_every acts only under horovodrun --host-discovery-script; leave it out")
