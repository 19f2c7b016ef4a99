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
