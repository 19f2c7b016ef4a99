"""Whether a run learned, by its losses: the first tenth of its steps against the last."""
import numpy as np
import pytest

from hvdscale.analysis.step_breakdown import LEAST_STEPS, LossCourse, course_of
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.log.schema import Status
from tests.factories.logs import log, trial
from tests.factories.shown import findings

FALLING = tuple(np.linspace(2.0, 1.0, 40))
FLAT = (2.3,) * 40


def test_a_course_is_the_mean_of_the_first_and_of_the_last_tenth():
    loss = np.arange(40.0)[::-1]
    assert course_of(loss) == LossCourse(np.mean([39, 38, 37, 36]), np.mean([3, 2, 1, 0]), 4)
    assert course_of(loss).fell and not course_of(loss[::-1]).fell and not course_of(np.full(40, 2.3)).fell


def test_losses_that_are_not_finite_or_too_few_say_nothing():
    loss = np.concatenate([[np.nan, np.inf], np.linspace(2, 1, 40), [np.nan]])
    assert course_of(loss) == course_of(np.linspace(2, 1, 40))
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
    assert one.losses == course_of(np.array(FALLING)) and two.losses == course_of(np.array(FLAT))
