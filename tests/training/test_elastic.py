"""What the workers of an elastic job hold in memory, and what they go on with."""
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hvdscale.errors import PlanError
from hvdscale.modules import BatchNorm
from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from hvdscale.training import elastic
from hvdscale.training.checkpoint import Checkpoints
from hvdscale.training.elastic import ElasticCheckpoints, HostsChangedError, Memory, batch_of
from hvdscale.training.prepare import prepare
from hvdscale.training.resume import with_batch
from hvdscale.training.run_log import NoLog
from hvdscale.training.snapshot import RunState, Start
from hvdscale.workers.group import SingleWorker
from tests.factories import plans as made_plans
from tests.factories.workers import on_each


def state(step, value):
    return {"progress": {"steps": step}, "model": {"w": torch.full((3,), float(value))}, "random": None}


def met(*memories):
    """The memories after a new group of these workers has met."""
    def meet(member):
        memories[member.rank].meet(member)
        return memories[member.rank]
    return on_each(len(memories), meet)


def test_all_take_the_furthest_state_and_a_new_worker_gets_everything(worded):
    batch = {"global_batch": 24, "max_local_batch": 8}
    left = Memory(batch=batch, log="w.h5", sure=state(5, 5), newest=state(7, 7), writes=True, end="a worker was lost")
    for memory in met(Memory(), left, Memory(batch=batch, log="w.h5", sure=state(5, 5))):
        assert (memory.batch, memory.log, memory.end) == (batch, "w.h5", "a worker was lost")
        assert memory.newest is None and memory.sure["progress"] == {"steps": 7}
        assert memory.sure["model"]["w"].tolist() == [7, 7, 7]
        start = memory.find_start(SimpleNamespace(plan=made_plans.settled()), None)
        assert (start.step, start.log, start.log_continues) == (7, "w.h5", True)
        worded(start.previous_end)
        worded(start.news)


def test_a_state_whose_rows_may_have_been_lost_with_rank_0_is_not_taken():
    for memory in met(*[Memory(log="w.h5", sure=state(5, 5), newest=state(7, 7)) for _ in range(2)]):
        assert memory.sure["progress"] == {"steps": 5} and memory.newest is None


def test_without_any_state_the_job_starts_from_scratch_in_the_same_log():
    job = SimpleNamespace(settings=Settings.build(made_plans.DEFAULTS), plan=made_plans.settled())
    for memory in met(Memory(log="w.h5", end="a worker was lost"), Memory()):
        start = memory.find_start(job, SingleWorker())
        assert (start.step, start.log, start.log_continues, start.news) == (0, "w.h5", True, "")
    assert Memory().find_start(job, SingleWorker()) == Start()


@pytest.mark.parametrize("typed", [dict(local_batch=8), dict(local_batch=4, accumulate=2), dict(global_batch=24),
                                   dict(global_batch=24, accumulate=3), dict(global_batch=24, max_local_batch=5)])
def test_the_global_batch_stays_and_no_pass_grows_at_any_number_of_workers(typed):
    settings = Settings.build(made_plans.DEFAULTS, {**typed, "ghost_batch": 4})

    def at(workers, settings):
        return settle(settings, made_plans.WORKLOAD, 1000, 200, Place(workers, workers, workers))
    first = at(3, settings)
    batch = batch_of(SimpleNamespace(plan=first, model=nn.Linear(2, 2)))
    for workers in (1, 2, 3, 4, 5):
        plan = at(workers, with_batch(settings, batch))
        assert (plan.global_batch, plan.peak_lr) == (first.global_batch, first.peak_lr) and first.global_batch == 24
        assert plan.local_batch <= first.local_batch
        assert plan.as_record({})["problem"] == first.as_record({})["problem"]


def test_with_batch_norm_a_pass_may_grow_to_a_ghost_group():
    settings = Settings.build(made_plans.DEFAULTS, dict(local_batch=4, ghost_batch=12))
    plan = settle(settings, made_plans.WORKLOAD, 1000, 200, Place(6, 6, 6))
    batch = batch_of(SimpleNamespace(plan=plan, model=nn.Sequential(BatchNorm(2))))
    alone = settle(with_batch(settings, batch), made_plans.WORKLOAD, 1000, 200, Place())
    assert (plan.local_batch, alone.local_batch, alone.accumulate, alone.cuts_groups(24)) == (4, 12, 2, False)


class Clock:
    """Time that goes by where a test says so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def commits(monkeypatch, steps, step_seconds, commit_seconds, every=0, hosts_at=-1):
    """The steps at which rank 0 commits, as it votes itself."""
    clock, taken = Clock(), []

    def capture(done, *_):
        clock.now += commit_seconds
        taken.append(done.steps)
        return state(done.steps, done.steps)
    monkeypatch.setattr(elastic, "time", clock)
    monkeypatch.setattr(elastic, "capture", capture)
    workers = SingleWorker()
    kept = ElasticCheckpoints(Checkpoints(Start()), Memory(), every, NoLog(), workers)
    votes = ()
    for step in range(steps):
        workers.hosts_changed = step >= hosts_at >= 0
        kept.keep(RunState(steps=step), None, votes)
        votes = tuple(kept.wishes())
        clock.now += step_seconds
    return taken


def test_commits_take_no_more_than_a_hundredth_of_the_time_or_come_at_the_steps_that_were_set(monkeypatch):
    assert commits(monkeypatch, 100, step_seconds=1.0, commit_seconds=0.001) == list(range(0, 100, 2))
    taken = commits(monkeypatch, 1000, step_seconds=1.0, commit_seconds=2.0)
    assert len(taken) == 5 and taken[0] == 0 and {b - a for a, b in zip(taken, taken[1:])} <= {201, 202}
    assert commits(monkeypatch, 30, step_seconds=1.0, commit_seconds=5.0, every=7) == [0, 7, 14, 21, 28]


def test_a_change_of_hosts_is_committed_before_the_group_ends(monkeypatch, worded):
    with worded.error(HostsChangedError):
        commits(monkeypatch, 30, step_seconds=1.0, commit_seconds=5.0, every=7, hosts_at=10)


def test_commit_every_is_refused_where_nothing_is_committed(worded):
    with worded.error(PlanError):
        prepare("tests.parallel.toy:WORKLOAD", [{"commit_every": 5, "threads": 1}], SingleWorker())
