"""What the times of every rank say, on times that are made up; and whether a run learned, by its losses."""
import numpy as np
import pytest

from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.step_breakdown import ELSEWHERE, LEAST_STEPS, WORK, LossCourse, mean_of, times_of
from hvdscale.analysis.trials import read_trials
from hvdscale.log.schema import RANK_PARTS, Status
from tests.factories.logs import log, trial
from tests.factories.shown import findings

FALLING = tuple(np.linspace(2.0, 1.0, 40))
FLAT = (2.3,) * 40


def made(step=10.0, **parts):
    """Times of ranks over 5 steps, in ms; a part that is not given takes no time. Waiting fills the step up."""
    ranks = len(next(iter(parts.values())))
    found = {name: np.tile(np.array(parts.get(name, [0.0] * ranks))[:, None], 5) for name in RANK_PARTS}
    found["step"] = np.full((ranks, 5), step)
    return times_of(found)


def test_what_is_in_no_part_was_spent_elsewhere():
    times = made(forward=[3, 3], backward=[4, 2], data=[1, 0])
    assert times.seconds[ELSEWHERE].tolist() == [2, 5]


def test_the_rank_that_waits_least_bounds_the_transfer_and_the_others_waits_tell_how_far_apart_they_arrive():
    times = made(waiting=[5, 1, 4])
    assert (times.transfer, times.spread) == (1, 4)


@pytest.mark.parametrize("forward, named", [
    ([3, 6, 3, 3], (1, 6, 3)), ([3, 3.5, 3, 3], None), ([6, 6, 3, 3], None), ([3, 6], (1, 6, 3)), ([3], None)])
def test_one_rank_that_computes_longer_than_the_typical_one_is_named(forward, named):
    assert made(forward=forward).outlier(WORK) == named


def test_a_cell_has_the_mean_of_its_runs_unless_their_ranks_differ_in_number():
    times = mean_of([made(step=10, data=[1, 1]), made(step=20, data=[3, 1])])
    assert (times.step, times.seconds["data"].tolist()) == (15, [2, 1])
    assert mean_of([made(data=[1, 1]), made(data=[1])]) is None


@pytest.mark.parametrize("slow, every", [(range(4, 50, 5), 5), ([3, 9, 17, 40], 0), ([7], 0)])
@pytest.mark.parametrize("part", [ELSEWHERE, "data", "forward"])
def test_what_some_steps_alone_have_is_a_pause_with_its_period_and_share(slow, every, part):
    """Rank 0 takes 300 ms longer in some of 50 steps of 10 ms, while rank 1 waits for it."""
    parts = {name: np.zeros((2, 50)) for name in RANK_PARTS}
    parts["forward"] += 10
    longer = np.isin(np.arange(50), [*slow]) * 300.0
    if part != ELSEWHERE:
        parts[part][0] += longer
    parts["waiting"][1] = longer
    parts["step"] += 10 + longer
    times = times_of(parts)
    pause = times.pause
    assert (pause.rank, pause.part, pause.seconds, pause.steps, pause.every) == (0, part, 300, len(slow), every)
    assert pause.share == pytest.approx(300 * len(slow) / (500 + 300 * len(slow)))
    assert times.typical.tolist() == [10, 10] and times.step == pytest.approx(10 + 6 * len(slow))
    assert sum(times.mean(name) for name in times.seconds if name != "step") == pytest.approx(times.step)


def test_steps_that_differ_by_less_than_a_typical_one_are_no_pause():
    parts = {name: np.zeros((1, 40)) for name in RANK_PARTS}
    parts["step"] = parts["forward"] = 10 + 9.0 * (np.arange(40)[None] % 2)
    assert times_of(parts).pause is None


# the first tenth of its steps against the last

def course_of(losses):
    return read_trials(log(run(1, losses)))[0].losses


def test_a_course_is_the_mean_of_the_first_and_of_the_last_tenth():
    assert course_of(np.arange(40.0)[::-1]) == LossCourse(np.mean([39, 38, 37, 36]), np.mean([3, 2, 1, 0]), 4)


def test_losses_that_are_not_finite_or_too_few_say_nothing():
    assert course_of([np.nan, np.inf, *FALLING, np.nan]) == course_of(FALLING)
    assert course_of(np.ones(LEAST_STEPS - 1)) is None and course_of(np.full(100, np.nan)) is None
    assert course_of(np.ones(LEAST_STEPS)) is not None


def found(*trials):
    [section] = [one for group in analyse(read_trials(log(*trials))) for one in group.sections]
    return [one.said for one in findings(section) if one.said.startswith("Did not learn")]


def run(number, losses, batch=32, error=(0.9, 0.8, 0.7), **changes):
    return trial(id=number, seed=number, batch=batch, error=error, step_seconds=[0.1] * len(losses), losses=losses,
                 **changes)


def test_trials_that_did_not_learn_are_counted_by_batch_with_their_losses():
    [said] = found(run(1, FALLING), run(2, FLAT), run(3, FLAT[::-1], batch=64), run(4, FALLING, batch=64))
    assert "2 trials" in said and "batch 32: 1 of 2; batch 64: 1 of 2" in said and "from 2.300 to 2.300" in said


@pytest.mark.parametrize("made", [
    run(2, FALLING), run(2, FLAT, error=(0.9, 0.5, 0.1)), run(2, FLAT[:10]), run(2, FLAT, status=Status.INFEASIBLE)])
def test_trials_that_learned_or_met_their_target_or_diverged_are_not_named(made):
    assert not found(run(1, FALLING), made)


@pytest.mark.parametrize("changes, named", [({}, 1), ({"steps": (), "error": ()}, 0)], ids=["untargeted", "a probe"])
def test_without_a_target_a_flat_loss_is_named_unless_it_is_of_a_probe(changes, named):
    assert len(found(run(2, FLAT, target=None, **changes))) == named


def test_interleaved_trials_have_losses_of_their_own():
    made = log(run(1, FALLING), run(2, FLAT))
    order = np.argsort(made.steps["step"], kind="stable")
    for name, column in made.steps.items():
        made.steps[name] = column[order]
    one, two = read_trials(made)
    assert (one.losses, two.losses) == (course_of(FALLING), course_of(FLAT))
