"""The lasting crossing of a target beside the first evaluation that met it."""
import numpy as np
import pytest

from hvdscale.analysis.report_data import Options, analyse
from hvdscale.analysis.steps import lasting_crossing, run_of
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import UsageError
from hvdscale.report.request import request_of
from hvdscale.report.views.batches import early_crossing
from hvdscale.target import Target
from tests.factories.crossings import TARGET, coverage, curve
from tests.factories.logs import log, trial
from hvdscale.report.document import Shown
from hvdscale.report.subject import Subject

STEPS = np.arange(0, 1100, 100)
LUCKY = np.array([0.9, 0.5, 0.09, 0.3, 0.25, 0.2, 0.08, 0.07, 0.06, 0.05, 0.05])


@pytest.mark.parametrize("evaluations", [20, 200])
@pytest.mark.parametrize("past", [1.0, 2.0])
def test_the_lasting_crossing_is_that_of_the_curve_without_noise(evaluations, past):
    (first, early), (lasting, ratio) = coverage(evaluations, past, 0.1, 60)
    assert lasting >= 0.9 and 0.95 < ratio < 1.05 and early < 0.93


def test_a_curve_without_noise_crosses_for_good_where_it_first_does():
    step, measured, _ = curve(20, 2.0, 0.0, np.random.default_rng(1))
    found = lasting_crossing(step, measured, TARGET)
    assert found.steps == step[TARGET.met_by(measured).argmax()]
    assert found.met_after == found.after and not found.modelled


def test_a_metric_that_is_to_rise_crosses_alike():
    found = [lasting_crossing(STEPS, values, Target.parse(text)).steps
             for values, text in ((-LUCKY, "val/score>-0.1"), (1 - LUCKY, "val/score>0.9"))]
    assert all(300 < steps <= 700 for steps in found)


def test_a_target_met_once_and_never_again_is_not_met_for_good():
    found = lasting_crossing(STEPS[:6], LUCKY[:6], TARGET)
    assert found.steps == np.inf and (found.after, found.met_after) == (3, 0)
    infinite = lasting_crossing(np.array([10.0, 20, 300]), np.full(3, -np.inf), TARGET)
    assert (infinite.steps, infinite.after, infinite.met_after) == (10, 2, 2)


def test_no_power_is_fitted_to_few_evaluations_or_to_a_curve_that_worsens():
    for measured in ([0.9, 0.09], [0.2, 0.3, 0.4, 0.5, 0.09]):
        found = lasting_crossing(100.0 * np.arange(1, len(measured) + 1), np.array(measured), TARGET)
        assert found.modelled and not found.steps < 100
    assert lasting_crossing(STEPS, np.ones(11), TARGET) is None


def lucky_section(crossing="first"):
    trials = [trial(id=seed, seed=seed, steps=STEPS, error=LUCKY, target="val/error<0.1", keep_going=True)
              for seed in (1, 2, 3)]
    [group] = analyse(read_trials(log(*trials)), options=Options(crossing=crossing))
    return group.sections[0]


def test_a_run_is_held_at_the_crossing_that_is_asked_for():
    [found] = read_trials(log(trial(steps=STEPS, error=LUCKY, target="val/error<0.1")))
    first, lasting = (run_of(found, TARGET, crossing) for crossing in ("first", "lasting"))
    assert first.steps == 200 and lasting.steps == 600
    assert (lasting.steps_before, lasting.seconds) == (500, pytest.approx(0.01 * 600))


def test_a_target_met_early_is_a_finding_and_its_evaluations_are_counted():
    section = lucky_section()
    found = Shown(tuple(early_crossing(Subject.of(section))))
    [finding] = found.findings
    assert "Batch 32" in finding.said and "600" in finding.said and "24 evaluations" in finding.said
    assert (finding.named["lasting"], finding.named["after"], finding.named["met"]) == (pytest.approx(600), 24, 15)
    assert lucky_section("lasting").batches.points[0].steps.value == pytest.approx(600)
    assert not Shown(tuple(early_crossing(Subject.of(lucky_section("lasting"))))).findings


@pytest.mark.parametrize("further", [1, 0])
def test_of_runs_that_end_at_their_first_success_nothing_is_said_of_noise(further):
    steps, errors = (values[:6 + further] for values in (STEPS, [0.9, 0.5, 0.4, 0.35, 0.3, 0.09, 0.2]))
    trials = [trial(id=seed, seed=seed, steps=steps, error=errors, target="val/error<0.1") for seed in (1, 2, 3)]
    found = Shown(tuple(early_crossing(Subject.of(analyse(read_trials(log(*trials)))[0].sections[0]))))
    assert ["(a model)" in finding.said for finding in found.findings] == [True] * further


def test_another_crossing_is_refused_by_name():
    with pytest.raises(UsageError, match="crossing last.*first or lasting"):
        request_of(crossing="last")
