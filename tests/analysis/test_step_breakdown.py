"""What the times of every rank say, on times that are made up."""
import numpy as np
import pytest

from hvdscale.analysis.step_breakdown import ELSEWHERE, WORK, mean_of, times_of
from hvdscale.log.schema import RANK_PARTS


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
    assert mean_of([made(data=[1, 1]), made(data=[1])]) is None and mean_of([]) is None


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
