"""Any worker count makes the same updates under any settings, or refuses them before its first step."""
from dataclasses import replace

import pytest

from hvdscale.errors import HvdscaleError, PlanError
from hvdscale.plan.shards import group_passes
from hvdscale.update.model import check_positions
from tests.factories.random_jobs import RandomJob, draw, run
from tests.parallel import toy

SHORT = dict(steps=7, precision="fp64", global_batch=24, last_batch="short", lr=0.03, optimizer="momentum",
             target="none", threads=1, ghost_batch=4, eval_every=3)
# an epoch's last step has one or two ghost groups, fewer than the workers, or than their passes together
OWN_NORM = {**SHORT, "data_args": dict(examples=29), "model_args": dict(norm="torch", drop="torch")}
PADDED = {**SHORT, "data_args": dict(examples=31), "model_args": dict(drop=True), "optimizer": "adamw"}
FEW_GROUPS = [RandomJob(-1, f"tests.factories.random_jobs:{name}", layer, workers, accumulate)
              for name, layer in (("images", OWN_NORM), ("words", PADDED)) for workers, accumulate in ((3, 2), (6, 1))]


def compare(job):
    """Whether the job ran at both worker counts, which then agree."""
    alone, other = run(job.layer, job.name), run({**job.layer, "accumulate": job.accumulate}, job.name, job.workers)
    if isinstance(alone, HvdscaleError) or isinstance(other, HvdscaleError):
        return False
    assert len(alone.losses) == job.layer["steps"] and alone.evaluations
    assert max(other.distances(alone)) <= 1e-10, (job, other.distances(alone))
    return True


@pytest.mark.parametrize("job", FEW_GROUPS)
def test_a_short_step_of_fewer_groups_than_workers_has_all_its_examples(job):
    assert compare(job)


def test_jobs_of_a_few_seeds_make_the_updates_of_one_worker():
    assert sum(map(compare, map(draw, range(12)))) >= 5         # of 12; the others are refused


@pytest.mark.slow
def test_jobs_of_many_seeds_make_the_updates_of_one_worker():
    assert sum(map(compare, map(draw, range(12, 400)))) >= 200


@pytest.mark.parametrize("lost", [0, 1])
def test_a_plan_that_leaves_examples_out_is_refused_with_their_positions(monkeypatch, lost, worded):
    plan = replace(toy.settled(3, global_batch=24, last_batch="short"), group_by_group=True)
    check_positions(plan)
    monkeypatch.setattr("hvdscale.plan.plan.group_passes", lambda *given: [passes[lost:] for passes in
                                                                           group_passes(*given)[lost:]])
    if lost:
        with worded.error(PlanError):
            check_positions(plan)


def test_a_step_of_which_some_example_was_not_computed_is_an_error_before_its_update(monkeypatch, worded):
    monkeypatch.setattr("hvdscale.training.prepare.fit_to_groups", lambda plan, *_: (
        replace(plan, group_by_group=True), ""))
    monkeypatch.setattr("hvdscale.plan.plan.group_passes", lambda *given: [passes[:1] for passes in
                                                                           group_passes(*given)])
    with worded.error(HvdscaleError):
        run(OWN_NORM, "tests.factories.random_jobs:images", workers=3)
