"""The stops of a slider over the target, and what is known at each."""
import numpy as np
import pytest

from hvdscale.analysis.studies import outcomes, studies_of
from hvdscale.analysis.target_slider import MOST_STOPS, easier, explore, stops_of
from hvdscale.log.schema import Status
from hvdscale.target import Target
from tests.factories.logs import log, trial

BELOW = Target.parse("val/error<0.1")


@pytest.mark.parametrize("comparison", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("value", [0.012345, 0.5, 0.1, 1.0, 0.999999, 123456.0, 3e-9, -0.25, 0.0, 7.0])
def test_a_stop_is_the_strictest_short_number_that_a_value_meets(value, comparison):
    target = Target("val", "error", comparison, 0.5)
    stop = easier(value, target)
    assert Target("val", "error", comparison, stop).met_by(value)
    if value:
        assert float(f"{stop:.3g}") == stop and abs(stop - value) <= 0.0101 * abs(value)


def test_stops_go_from_easy_to_strict_and_hold_the_page_s_own_target():
    values = [np.geomspace(0.9, 0.01, 200), np.geomspace(0.8, 0.02, 30)]
    for target, way in ((BELOW, -1), (Target.parse("val/accuracy>0.5"), 1)):
        stops = stops_of([found[::way * -1] for found in values], target)
        reached = [stop.value for stop in stops]
        assert reached == sorted(set(reached), key=lambda value: way * value) and target in stops
        assert MOST_STOPS <= len(stops) <= MOST_STOPS + 1
        best = min(map(np.min, values)) if way < 0 else max(map(np.max, values))
        assert stops[-1].met_by(best) and abs(stops[-1].value - best) <= 0.01 * best


def test_no_stop_is_stricter_than_where_trials_ended():
    stops = stops_of([np.array([0.5, 0.2, 0.07, 0.01])], BELOW, strictest=BELOW)
    assert [stop.value for stop in stops] == [0.501, 0.201, 0.1]


def random_log(seed=0):
    random = np.random.default_rng(seed)
    made = []
    for batch in (16, 32, 64):
        for number in range(8):
            steps = np.arange(0, 1000, 50) * 32 // batch
            error = np.exp(-steps * batch / 20000 * random.uniform(0.2, 1)) + random.uniform(0, 0.1, len(steps))
            error[0] = 1.0
            error[random.uniform(size=len(steps)) < 0.1] = np.nan
            status = Status.INFEASIBLE if number == 3 else Status.COMPLETE
            made.append(trial(batch * 100 + number, steps, error, batch=batch, seed=number, status=status))
    return log(*made)


def test_at_every_stop_the_fewest_steps_are_those_of_the_trial_named():
    studies = studies_of([random_log()])
    explored = explore(studies, Target.parse("val/error<0.8"))
    assert len(explored.stops) > 10 and explored.stops[explored.start] == explored.target
    for stop, steps, fewest in zip(explored.stops, explored.steps, explored.fewest):
        for study, estimate, index in zip(studies, steps, fewest):
            known = outcomes(study, stop).steps
            known[~study.complete | (known == 0)] = np.inf
            assert estimate.value == known.min()
            assert (index == -1) if np.isinf(estimate.value) else known[index] == known.min()


def test_steps_are_those_that_are_given_where_there_are_any():
    explored = explore(studies_of([random_log()]), BELOW, steps_at=lambda target: {32: target.value},
                       cells_at=lambda target: [target], plan_at=lambda target: f"plan to {target}")
    assert all(row[1] == stop.value for row, stop in zip(explored.steps, explored.stops))
    assert explored.cells[0] == (explored.stops[0],) and explored.plans[0] == f"plan to {explored.stops[0]}"


def test_a_metric_that_no_trial_has_is_none():
    assert explore(studies_of([random_log()]), Target.parse("val/loss<1")) is None
