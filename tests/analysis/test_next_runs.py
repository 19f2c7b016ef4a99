"""What to measure next: worth its cost, within what can be started; and a loop that plays made jobs in memory."""
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis.next_runs import ENOUGH, Measurement, NextRuns, decide_until, next_runs
from hvdscale.analysis.timings import Place
from hvdscale.analysis.trials import EVERY_STEP
from hvdscale.plan.settings import parse_assignments
from hvdscale.report.plan.words import command_of
from tests.factories.advice import LOCAL, loss_of, made, plan, play

NAME = "1-2, 3 seeds"


@pytest.fixture(scope="module")
def two_counts():
    """A job that was run at one and two workers, and its plan."""
    job, trials = made(NAME, 3)
    return job, trials, plan(trials)


def test_what_is_proposed_lowers_the_loss_for_its_worker_hours(two_counts):
    _, _, found = two_counts
    proposed = next_runs(found)
    assert found.decision.loss(found.fastest.at) == pytest.approx(proposed.loss) and proposed.loss > ENOUGH
    assert proposed.loss_after < 0.7 * proposed.loss
    again = NextRuns(found, proposed.runs, proposed.loss)
    assert vars(again) == vars(proposed) and again.loss > again.loss_after
    assert next_runs(found, enough=10.0) is None


def test_a_probe_costs_fifty_steps_and_a_run_those_to_the_target(two_counts):
    job, _, found = two_counts
    probe, full = (NextRuns(found, [Measurement(Place(1, LOCAL), seeds)], 0.3) for seeds in (0, 1))
    assert probe.worker_hours == pytest.approx(50 * job.step_seconds(1, LOCAL) / 3600, rel=0.1)
    assert full.worker_hours == pytest.approx(job.seconds(1, LOCAL) / 3600, rel=0.2)


def test_their_command_sets_all_that_was_asked_for_and_the_target_of_the_plan():
    asked = {"data_args": {"a": 1}, "target": "val/error<0.2", "seed": 3, "decay_end": None}
    job = SimpleNamespace(target="val/error<0.1", job={"workload": "text/lstm", "asked": {EVERY_STEP: asked}})
    words = shlex.split(command_of(job, [Measurement(Place(2, 64), 1)]))
    assert parse_assignments(one for option, one in zip(words, words[1:]) if option == "--set") == {
        "data_args": {"a": 1}, "target": "val/error<0.1"}


def test_what_cannot_be_started_or_failed_is_not_proposed(two_counts):
    _, _, found = two_counts
    few = next_runs(found, most_workers=4)
    assert max(run.place.workers for run in few.runs) <= 4
    other = next_runs(found, most_workers=4, without=few.runs)
    assert not set(other.runs) & set(few.runs)


def test_measuring_until_the_loss_is_low_comes_near_the_best_for_few_worker_hours():
    losses, before, hours = [], [], []
    for number in range(4):
        job, trials = made(NAME, number)
        first, last, ratio = play(job, trials, 0.10, np.random.default_rng(number))
        losses, before, hours = [*losses, loss_of(job, last)], [*before, loss_of(job, first)], [*hours, ratio]
    assert np.mean(losses) <= np.log(1.15) and np.mean(losses) < np.mean(before) and np.median(hours) < 1.5


def test_worker_hours_are_bounded_and_failed_measurements_left_out(two_counts):
    _, trials, found = two_counts
    assert list(decide_until(lambda runs: found, found, 0.1, at_most=1e-9)) == []
    seen = []
    for one in decide_until(lambda runs: None, found, 0.1, most_workers=2):
        assert not set(one.runs) & {run for runs in seen for run in runs}
        seen.append(one.runs)
    assert seen
