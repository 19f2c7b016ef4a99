"""Replicas: which examples each has, and on which workers."""
import pytest

from hvdscale.plan.lengths import Length
from hvdscale.plan.shards import group_bounds
from tests.factories.plans import settled


@pytest.mark.parametrize("replicas, batch", [(1, 24), (2, 64), (4, 64), (4, 200), (8, 1000)])
@pytest.mark.parametrize("how", [{}, {"accumulate": 2}, {"group_by_group": "always"}])
def test_a_replica_has_its_share_of_a_step_in_whole_ghost_groups_on_any_workers(replicas, batch, how):
    for workers in (count for count in (1, 2, 4, 8) if replicas % count == 0 or count % replicas == 0):
        plan = settled(workers, replicas=replicas, sync_every=5, outer="nesterov", global_batch=batch, **how)
        bounds, found = group_bounds(batch, plan.ghost_batch), []
        for replica in range(replicas):
            own = plan.passes_of(replica, batch)
            assert len(own) == max(1, workers // replicas)
            parts = sorted(part for passes in own for part in passes if part.stop > part.start)
            assert (parts[0].start, parts[-1].stop) == (replica * batch // replicas, (replica + 1) * batch // replicas)
            assert parts[0].start in bounds
            found += parts
        assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
        ranks = plan.passes_by_rank(batch)
        assert sorted(part for passes in ranks for part in passes if part.stop > part.start) == found
        assert how.get("group_by_group") or max(part.stop - part.start for part in found) == plan.local_batch


@pytest.mark.parametrize("sync_every, steps", [
    (3, 3), ("640 examples", 10), ("641 examples", 11), ("1 epoch", 16), (Length(64, "examples"), 1)])
def test_a_round_is_a_length(sync_every, steps):
    assert settled(replicas=2, global_batch=64, sync_every=sync_every).local_steps["sync_every"] == steps


def test_averaging_is_an_outer_step_at_rate_1_and_none_with_one_replica():
    assert settled(sync_every=3).local_steps is None
    averaged = settled(sync_every=3, replicas=2).local_steps
    assert (averaged["outer_lr"], averaged["outer_momentum"]) == (1.0, 0.0)
    nesterov = settled(sync_every=3, outer="nesterov", outer_lr=0.5).local_steps
    assert (nesterov["outer_lr"], nesterov["outer_momentum"]) == (0.5, 0.9)
