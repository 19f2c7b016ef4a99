"""Steps to target of trials and cells: closed forms and every edge by name."""
import json

import numpy as np
import pytest

from hvdscale.analysis.report_data import Options, analyse
from hvdscale.analysis.steps import RunToTarget, cell_of, lasting_crossing
from hvdscale.analysis.trials import by_workload, read_trials
from hvdscale.errors import UsageError
from hvdscale.log.schema import UNKNOWN_SEED, Status
from hvdscale.report.document import Shown
from hvdscale.report.subject import Subject, request_of
from hvdscale.report.table import steps_cell
from hvdscale.report.views.batches import early_crossing
from hvdscale.target import Target
from tests.factories.curves import LOW, crossings_held, falling_run
from tests.factories.logs import log, trial

TARGET = Target.parse("val/error<0.2")


def cell(*trials, target=TARGET):
    return cell_of([RunToTarget(found, target) for found in read_trials(log(*trials))])


def run_of_one(made):
    [found] = read_trials(log(made))
    return RunToTarget(found, TARGET)


@pytest.mark.parametrize("steps, error, met, before", [
    ((0, 10, 20, 30), (0.9, 0.1, 0.5, 0.1), 10, 0),
    ((0, 68, 99, 136, 137), (0.9, 0.5, np.nan, np.nan, 0.1), 137, 68),      # of the metric alone
    ((10, 20, 30), (np.nan, np.nan, 0.1), 30, np.nan), ((30, 40), (0.1, 0.1), 30, np.nan),       # before the first
    ((0, 30), (0.9, 0.1), 30, 0), ((0, 30), (0.1, 0.1), 0, 0)])
def test_steps_to_target_are_those_of_the_first_evaluation_that_meets(steps, error, met, before):
    run = run_of_one(trial(steps=steps, error=error, seconds=steps))
    np.testing.assert_equal([run.steps, run.steps_before, run.seconds, run.seconds_before], [met, before] * 2)


@pytest.mark.parametrize("target, steps", [("val/error<0.2", np.inf), ("val/error<=0.2", 200)])
def test_the_paper_s_strict_comparison_does_not_count_the_value_itself(target, steps):
    assert cell(trial(error=(0.9, 0.5, 0.2)), target=Target.parse(target)).steps.value == pytest.approx(steps)


@pytest.mark.parametrize("error, last", [(np.nan, 100), (0.7, 250)])
def test_a_trial_that_never_meets_is_censored_at_its_last_measurement(error, last):
    run = run_of_one(trial(steps=(0, 100, 250), error=(0.9, 0.8, error)))
    assert (run.steps, run.last_step, run.last_seconds, run.met) == (np.inf, last, last / 100, False)
    assert run.examples_per_second == pytest.approx(32 * 250 / 2.5)


def test_a_trial_whose_metric_was_never_measured_is_in_no_estimate():
    never = trial(id=1, seed=1, steps=(0, 300), error=(np.nan, np.nan))
    found = cell(never, trial(id=2, seed=2, steps=(0, 100, 200), error=(0.9, 0.5, 0.1)))
    assert (found.met, len(found.samples.seeds), found.steps.value) == (1, 1, pytest.approx(200))
    assert not run_of_one(never).measured and not run_of_one(never).ended


def test_one_run_has_no_interval_and_its_evaluation_before_is_known():
    estimate = cell(trial(steps=(0, 100, 200), error=(0.9, 0.5, 0.1))).steps
    assert (estimate.value, estimate.before, estimate.runs) == (pytest.approx(200), pytest.approx(100), 1)
    assert np.isnan([estimate.low, estimate.high]).all()
    assert steps_cell(estimate).below == "> 100"


def test_evaluations_are_taken_in_step_order_whatever_the_order_of_rows():
    made = log(trial(steps=(0, 100, 200), error=(0.9, 0.5, 0.1)))
    for name, column in made.evaluations.items():
        made.evaluations[name] = column[::-1]
    assert list(read_trials(made)[0].step) == [0, 100, 200]


def test_repeats_give_the_geometric_mean_and_time_is_steps_by_speed():
    found = cell(*[trial(id=seed, seed=seed, steps=(0, steps - 10, steps), error=(0.9, 0.5, 0.1),
                         seconds=(0, 1, 2.0 + seed)) for seed, steps in enumerate((100, 200, 400))])
    assert found.steps.value == pytest.approx(200)
    assert found.seconds.value == pytest.approx((2 * 3 * 4) ** (1 / 3))
    assert found.seconds.value == pytest.approx(32 * found.steps.value / found.examples_per_second.value, rel=1e-12)
    assert found.steps.low < 100 < 400 < found.steps.high


def test_the_evaluation_before_widens_the_lower_end_only():
    found = cell(*(trial(id=seed, seed=seed) for seed in range(3))).steps
    assert (found.low, found.high) == pytest.approx((100, 200))


def test_a_target_met_before_the_first_step_takes_none():
    found = cell(trial(steps=(0, 100), error=(0.1, 0.1)), trial(id=2, seed=1, steps=(0, 100), error=(0.1, 0.1)))
    assert (found.steps.value, found.steps.low, found.seconds.value) == (0, 0, 0)
    assert found.examples_per_second.value == pytest.approx(3200)


def test_the_first_evaluation_may_be_the_one_that_meets():
    found = cell(*[trial(id=seed, seed=seed, steps=(100 + seed,), error=(0.1,)) for seed in range(2)])
    assert found.steps.low == 0 and found.steps.high > 100 and np.isnan(found.steps.before)
    alone = cell(trial(steps=(100,), error=(0.1,))).steps
    assert alone.value == pytest.approx(100) and np.isnan([alone.low, alone.before]).all()


def test_seeds_whose_evaluation_before_is_unknown_take_the_spacing_of_the_others():
    found = cell(trial(id=1, seed=1, steps=(0, 100, 200), error=(0.9, 0.5, 0.1)),
                 trial(id=2, seed=2, steps=(200,), error=(0.1,))).steps
    assert (found.before, found.low) == (pytest.approx(100), 0)


def test_two_of_three_met_gives_the_median_and_an_open_interval():
    found = cell(trial(id=1, seed=1, steps=(0, 90, 100), error=(1, 1, 0.1)),
                 trial(id=2, seed=2, steps=(0, 290, 300), error=(1, 1, 0.1)),
                 trial(id=3, seed=3, steps=(0, 500, 1000), error=(1, 1, 1)))
    assert (found.met, found.steps.runs) == (2, 3)
    assert (found.steps.value, found.steps.low, found.steps.high) == (pytest.approx(300), pytest.approx(90), np.inf)
    assert found.seconds.value == pytest.approx(32 * 300 / found.examples_per_second.value)


def test_without_a_met_target_the_estimate_is_above_the_last_step():
    found = cell(trial(id=1, seed=1, steps=(0, 700), error=(1, 1)), trial(id=2, seed=2, steps=(0, 500), error=(1, 1)))
    assert (found.met, found.steps.value, found.steps.beyond, found.steps.met) == (0, np.inf, 500, False)
    assert found.seconds.beyond == pytest.approx(5.0)


@pytest.mark.parametrize("made, settings, chosen", [
    ([trial(id=5, peak_lr=0.1), trial(id=3, peak_lr=0.2), trial(id=4, peak_lr=0.3)], 3, [3]),      # ties: the first id
    ([trial(id=number, seed=number, peak_lr=lr, steps=(0, steps), error=(1, error)) for number, lr, steps, error in (
        (1, 0.1, 300, 0.1), (2, 0.1, 300, 0.1), (3, 0.2, 200, 0.1), (4, 0.2, 200, 0.1), (5, 0.3, 200, 1))], 3, [3, 4]),
    ([trial(id=1), trial(id=2, seed=1, status=Status.RUNNING), trial(id=3, seed=2, status=Status.INCOMPLETE)], 1, [1])])
def test_the_setting_with_the_fewest_steps_stands_for_its_cell(made, settings, chosen):
    found = cell(*made)
    assert ([run.trial.id for run in found.runs], found.settings) == (chosen, settings)


def test_runs_of_one_seed_count_once_whatever_their_worker_count():
    found = cell(trial(id=1, workers=1, seed=7, seconds=(0, 1, 8)), trial(id=2, workers=2, seed=7, seconds=(0, 1, 2)))
    assert (found.steps.runs, found.workers) == (1, (1, 2))
    assert found.seconds.value == pytest.approx(4.0)


def test_a_run_of_unknown_seed_never_merges_with_another_and_known_ones_do():
    steps = {2: 100, 3: 300, 4: 200, 5: 400}
    seeds = {2: UNKNOWN_SEED, 3: UNKNOWN_SEED, 4: 7, 5: 7}
    found = cell(*(trial(id=at, seed=seeds[at], steps=(0, steps[at]), error=(1, 0.1)) for at in steps))
    assert (found.met, found.steps.runs) == (3, 3)
    assert sorted(found.samples.steps) == pytest.approx([100, (200 * 400) ** 0.5, 300])
    assert len({found.updates, cell(trial(seed=UNKNOWN_SEED)).updates, cell(trial(seed=7)).updates}) == 3


def test_infeasible_trials_take_no_part_and_are_counted_with_their_setting():
    found = cell(trial(id=1, seed=1), trial(id=2, seed=2, status=Status.INFEASIBLE),
                 trial(id=3, peak_lr=9.0, status=Status.INFEASIBLE))
    assert ([run.trial.id for run in found.runs], [lost.id for lost in found.diverged]) == ([1], [2])


def test_a_cell_where_all_diverged_has_no_estimate():
    found = cell(trial(status=Status.INFEASIBLE))
    assert np.isnan(found.steps.value) and not found.runs and len(found.diverged) == 1


def test_a_probe_without_evaluations_is_timed_by_its_steps():
    found = cell(trial(steps=(), error=(), step_seconds=[0.1] * 50), target=None)
    assert found.examples_per_second.value == pytest.approx(320)
    assert found.runs[0].last_step == 50


def test_a_log_without_times_gives_steps_and_no_seconds():
    found = cell(trial(seconds=(np.nan,) * 3))
    assert found.steps.value == pytest.approx(200) and np.isnan(found.seconds.value)


def test_a_run_of_several_worker_counts_tells_of_steps_and_not_of_times():
    found = cell(trial(id=1, seed=1, seconds=(0, 1, 2)), trial(id=2, seed=2, seconds=(0, 1, 4)),
                 trial(id=3, seed=3, seconds=(0, 50, 99), steps=(0, 100, 400), worker_counts=(1, 2)))
    timed = cell(trial(id=1, seed=1, seconds=(0, 1, 2)), trial(id=2, seed=2, seconds=(0, 1, 4)))
    assert (found.steps.value, found.steps.runs) == (pytest.approx((200 * 200 * 400) ** (1 / 3)), 3)
    speed, alone = found.examples_per_second, timed.examples_per_second
    assert (speed.value, speed.low, speed.high, speed.runs) == (alone.value, alone.low, alone.high, 2)
    assert found.seconds.value == pytest.approx(32 * found.steps.value / speed.value)
    assert found.seconds.high / found.seconds.low == pytest.approx(timed.seconds.high / timed.seconds.low)


def test_a_probe_of_several_worker_counts_gives_way_to_one_that_was_timed():
    fast = trial(id=1, steps=(), error=(), step_seconds=[0.1] * 50, communication_share=0.5, worker_counts=(2, 1))
    found = cell(fast, target=None)
    assert np.isnan(found.examples_per_second.value) and found.runs[0].last_step == 50 and found.parts is None
    slow = trial(id=2, steps=(), error=(), step_seconds=[0.2] * 50, peak_lr=0.2)
    assert [run.trial.id for run in cell(fast, slow, target=None).runs] == [2]


def test_seeds_that_were_evaluated_more_or_less_often_are_repeats():
    made = [trial(id=at, seed=at, steps=(0, every, 4 * every), eval_every=every) for at, every in ((1, 90), (2, 100))]
    found = cell(*made, trial(id=3, seed=3, eval_every=70, error=(0.9, 0.9, 0.9)))
    assert (found.met, len(found.samples.seeds), found.settings) == (2, 3, 1)
    adapts = [trial(id=at, seed=at, eval_every=at, problem={"plateau": {"metric": "val/error"}}) for at in (1, 2)]
    assert cell(*adapts).settings == 2          # where an evaluation may lower the learning rate


def test_mixed_workloads_are_never_one_group():
    trials = read_trials(log(trial(id=1), trial(id=2, model="other"), trial(id=3, optimizer="sgd"),
                             trial(id=4, train_examples=500), trial(id=5, model_args={"width": 2}),
                             trial(id=6, dataset="<script>"), trial(id=7, seed=9)))
    groups = by_workload(trials)
    assert sorted(map(len, groups.values())) == [1, 1, 1, 1, 1, 2]
    assert any("(width=2), " in str(workload) for workload in groups)


@pytest.mark.parametrize("plan", ["", "not JSON", "[]", json.dumps({"problem": None})])
def test_without_a_plan_metaparameters_distinguish_settings(plan):
    trials = read_trials(log(trial(id=1, plan=plan), trial(id=2, plan=plan, seed=1), trial(id=3, plan=plan, peak_lr=2)))
    assert trials[0].setting == trials[1].setting != trials[2].setting
    assert trials[0].target is None


def timed(**changes):
    """Step parts of one trial whose first step stalls."""
    return read_trials(log(trial(step_seconds=[4.0, 0.1, 0.3, 0.4, 0.2], **changes)))[0].step_parts


def test_parts_add_up_to_the_mean_step():
    parts = timed(communication_share=0.5)
    assert (parts.steps, parts.seconds) == (5, pytest.approx(1.0))
    assert (parts.data, parts.compute, parts.communication) == pytest.approx((0.1, 0.4, 0.5))


def test_a_share_is_of_the_time_of_all_steps():
    made = log(trial(step_seconds=[0.1, 0.3], communication_share=0.5))
    made.steps["communication_seconds"] = np.array([0.0, 0.2])
    made.steps["compute_seconds"] = np.array([0.1, 0.1])
    made.steps["data_seconds"] = np.zeros(2)
    assert read_trials(made)[0].step_parts.communication == pytest.approx(0.5)


def test_steps_without_parts_leave_none():
    assert timed() is None
    one, other = read_trials(log(trial(id=1, step_seconds=[0.1], communication_share=0.5),
                                 trial(id=2, step_seconds=[0.1])))
    assert one.step_parts and other.step_parts is None and read_trials(log()) == []


def test_the_parts_of_a_cell_are_the_mean_of_its_runs():
    found = cell(trial(id=1, step_seconds=[0.1] * 3, communication_share=0.2),
                 trial(id=2, seed=1, step_seconds=[0.4] * 5, communication_share=0.6))
    parts = found.parts
    assert (parts.steps, parts.seconds, parts.communication) == (8, pytest.approx(0.2), pytest.approx(0.4))


def test_the_order_in_which_trials_ended_changes_no_estimate():
    """Large batches end in another order, and diverge more: which trials count may not depend on who was first."""
    made = [trial(id=i, seed=i, steps=(0, 90 + i, 100 + 7 * i), error=(0.9, 0.5, 0.1 if i % 3 else 0.3),
                  status=Status.INFEASIBLE if i == 4 else Status.COMPLETE) for i in range(7)]
    wanted = cell(*made)
    for order in ([6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 4, 1, 5, 2]):
        found = cell(*(made[i] for i in order))
        assert found.steps == wanted.steps and found.seconds == wanted.seconds
        assert [run.trial.id for run in found.runs] == [run.trial.id for run in wanted.runs]


# the lasting crossing beside the first evaluation that met

STEPS = np.arange(0, 1100, 100)
LUCKY = np.array([0.9, 0.5, 0.09, 0.3, 0.25, 0.2, 0.08, 0.07, 0.06, 0.05, 0.05])


@pytest.mark.parametrize("evaluations", [20, 200])
@pytest.mark.parametrize("past", [1.0, 2.0])
def test_the_lasting_crossing_is_that_of_the_curve_without_noise(evaluations, past):
    (first, early), (lasting, ratio) = crossings_held(evaluations, past, 0.1, 60)
    assert lasting >= 0.9 and 0.95 < ratio < 1.05 and early < 0.93


def test_a_curve_without_noise_crosses_for_good_where_it_first_does():
    step, measured, _ = falling_run(20, 2.0, 0.0, np.random.default_rng(1))
    found = lasting_crossing(step, measured, LOW)
    assert found.steps == step[LOW.met_by(measured).argmax()]
    assert found.met_after == found.after and not found.modelled


def test_a_metric_that_is_to_rise_crosses_alike():
    found = [lasting_crossing(STEPS, values, Target.parse(text)).steps
             for values, text in ((-LUCKY, "val/score>-0.1"), (1 - LUCKY, "val/score>0.9"))]
    assert all(300 < steps <= 700 for steps in found)


def test_a_target_met_once_and_never_again_is_not_met_for_good():
    found = lasting_crossing(STEPS[:6], LUCKY[:6], LOW)
    assert found.steps == np.inf and (found.after, found.met_after) == (3, 0)
    infinite = lasting_crossing(np.array([10.0, 20, 300]), np.full(3, -np.inf), LOW)
    assert (infinite.steps, infinite.after, infinite.met_after) == (10, 2, 2)


def test_no_power_is_fitted_to_few_evaluations_or_to_a_curve_that_worsens():
    for measured in ([0.9, 0.09], [0.2, 0.3, 0.4, 0.5, 0.09]):
        found = lasting_crossing(100.0 * np.arange(1, len(measured) + 1), np.array(measured), LOW)
        assert found.modelled and not found.steps < 100
    assert lasting_crossing(STEPS, np.ones(11), LOW) is None


def lucky_section(crossing="first"):
    trials = [trial(id=seed, seed=seed, steps=STEPS, error=LUCKY, target="val/error<0.1", keep_going=True)
              for seed in (1, 2, 3)]
    [group] = analyse(read_trials(log(*trials)), options=Options(crossing=crossing))
    return group.sections[0]


def test_a_run_is_held_at_the_crossing_that_is_asked_for():
    [found] = read_trials(log(trial(steps=STEPS, error=LUCKY, target="val/error<0.1")))
    first, lasting = (RunToTarget(found, LOW, crossing) for crossing in ("first", "lasting"))
    assert first.steps == 200 and lasting.steps == 600
    assert (lasting.steps_before, lasting.seconds) == (500, pytest.approx(0.01 * 600))


def test_a_target_met_early_is_a_finding_and_its_evaluations_are_counted():
    section = lucky_section()
    found = Shown(tuple(early_crossing(Subject(**vars(section)))))
    [finding] = found.findings
    assert "Batch 32" in finding.said and "600" in finding.said and "24 evaluations" in finding.said
    assert (finding.named["lasting"], finding.named["after"], finding.named["met"]) == (pytest.approx(600), 24, 15)
    assert lucky_section("lasting").batches.points[0].steps.value == pytest.approx(600)
    assert not Shown(tuple(early_crossing(Subject(**vars(lucky_section("lasting")))))).findings


@pytest.mark.parametrize("further", [1, 0])
def test_of_runs_that_end_at_their_first_success_nothing_is_said_of_noise(further):
    steps, errors = (values[:6 + further] for values in (STEPS, [0.9, 0.5, 0.4, 0.35, 0.3, 0.09, 0.2]))
    trials = [trial(id=seed, seed=seed, steps=steps, error=errors, target="val/error<0.1") for seed in (1, 2, 3)]
    found = Shown(tuple(early_crossing(Subject(**vars(analyse(read_trials(log(*trials)))[0].sections[0])))))
    assert ["(a model)" in finding.said for finding in found.findings] == [True] * further


@pytest.mark.parametrize("rises", [False, True])
@pytest.mark.parametrize("noise, early", [(0.12, True), (0.01, False), (0.0, False)])
def test_runs_that_ended_at_a_target_which_noise_met_for_them_are_a_finding(noise, early, rises):
    random = np.random.default_rng(3)
    runs = [falling_run(60, 1.0, noise, random)[:2] for _ in range(12)]
    trials = [trial(at, step, 1 - error if rises else error, seed=at % 3, batch=32 << at // 3,
                    target="val/error>0.9" if rises else "val/error<0.1") for at, (step, error) in enumerate(runs)]
    found = Shown(tuple(early_crossing(Subject(**vars(analyse(read_trials(log(*trials)))[0].sections[0]))))).findings
    assert [(one.kind, one.named["runs"]) for one in found] == [("early_ended", 12)] * early


def test_another_crossing_is_refused_by_name():
    with pytest.raises(UsageError, match="crossing last.*first or lasting"):
        request_of(crossing="last")
