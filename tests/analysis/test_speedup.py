"""Speedups, efficiencies and regimes: the identities they must obey, and their edges."""
import numpy as np
import pytest

from hvdscale.analysis.report_data import Options, analyse
from hvdscale.analysis.speedup import STRONG, WEAK
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import UsageError
from hvdscale.log.schema import Status
from hvdscale.report.views.trials import left_out
from hvdscale.target import Target
from tests.factories.logs import log, trial


def runs(workers, batch, steps, seconds, first_id=0, **changes):
    """One repeat for each of ``steps`` (to target; evaluated 10 before) and ``seconds``."""
    return [trial(id=first_id + seed, seed=seed, workers=workers, batch=batch, steps=(0, count - 10, count),
                  error=(0.9, 0.5, 0.1), seconds=(0, 0.9 * time, time), **changes)
            for seed, (count, time) in enumerate(zip(steps, seconds))]


def section(*trials, targets=(), **options):
    [group] = analyse(read_trials(log(*trials)), targets, Options(**options))
    [found] = group.sections
    return found


def weak(random=np.random.default_rng(5), repeats=3):
    """Trials of 1, 2, 4, 8 workers at 32 examples each, with random steps and seconds."""
    trials = []
    for workers in (1, 2, 4, 8):
        trials += runs(workers, 32 * workers, random.integers(50, 900, repeats), random.uniform(1, 9, repeats),
                       first_id=10 * workers)
    return trials


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_statistical_times_system_efficiency_times_workers_is_the_time_ratio(repeats):
    [series] = section(*weak(repeats=repeats)).series
    first = series.points[0].cell.seconds.value
    for point in series.points:
        product = point.statistical_efficiency.value * point.system_efficiency.value
        assert point.efficiency.value == pytest.approx(product, rel=1e-12)
        assert point.time_speedup.value == pytest.approx(product * point.worker_ratio, rel=1e-12)
        assert point.time_speedup.value == pytest.approx(first / point.cell.seconds.value, rel=1e-12)


def test_the_identity_holds_where_some_repeats_did_not_meet_the_target():
    unmet = trial(id=99, seed=9, workers=2, batch=64, steps=(0, 1000), error=(1, 1), seconds=(0, 7.0))
    [series] = section(*runs(1, 32, (300, 400), (3, 5)), *runs(2, 64, (200, 260), (2, 2.4), 10), unmet).series
    point = series.points[1]
    assert point.time_speedup.value == pytest.approx(
        2 * point.statistical_efficiency.value * point.system_efficiency.value, rel=1e-12)
    assert point.step_speedup.low == 0 and np.isfinite(point.step_speedup.high)


def test_ideal_weak_scaling_halves_steps_and_keeps_every_efficiency_at_one():
    [series] = section(*runs(1, 32, (800, 800), (8, 8)), *runs(2, 64, (400, 400), (4, 4), 10)).series
    point = series.points[1]
    assert (series.kind, series.size) == (WEAK, 32)
    assert [point.step_speedup.value, point.statistical_efficiency.value, point.system_efficiency.value,
            point.efficiency.value, point.time_speedup.value] == pytest.approx([2, 1, 1, 1, 2])


def test_strong_scaling_of_one_setting_is_paired_by_seed():
    [series] = section(*runs(1, 64, (300, 900), (3, 9)), *runs(4, 64, (300, 900), (1, 3), 10)).series
    point = series.points[1]
    assert (series.kind, series.size) == (STRONG, 64)
    assert (point.step_speedup.low, point.step_speedup.high) == pytest.approx((1, 1))
    assert (point.time_speedup.low, point.time_speedup.high) == pytest.approx((3, 3))


def test_independent_repeats_have_an_interval_that_the_grid_widens():
    found = section(*runs(1, 32, (300, 340), (3, 3.3)), *runs(2, 64, (200, 220), (1, 1.2), 10))
    speedup = found.series[0].points[1].step_speedup
    assert speedup.low < (290 * 330 / 200 / 220) ** 0.5 < speedup.value < (300 * 340 / 190 / 210) ** 0.5 < speedup.high


def test_two_repeats_a_point_share_their_spread_over_the_points_of_a_section():
    found = section(*weak(np.random.default_rng(2), repeats=2))
    assert [found.pools.of(name).freedom for name in ("steps", "seconds", "examples_per_second")] == [4, 4, 4]
    cells = [point.cell for point in found.series[0].points]
    widths = [np.log(cell.examples_per_second.high / cell.examples_per_second.low) for cell in cells]
    assert widths == pytest.approx([widths[0]] * 4)
    values = [np.log(cell.samples.examples_per_second) for cell in cells]
    deviation = np.sqrt(sum(np.sum((logs - logs.mean()) ** 2) for logs in values) / 4)
    assert widths[0] == pytest.approx(2 * 2.7764 * deviation / np.sqrt(2), rel=1e-4)    # t of 4 degrees of freedom


def test_every_target_has_pools_of_its_own():
    trials = weak(np.random.default_rng(1), repeats=2)
    [group] = analyse(read_trials(log(*trials)), [Target.parse("val/error<0.2"), Target.parse("val/error<0.6")])
    assert group.sections[0].pools.of("steps").variance != group.sections[1].pools.of("steps").variance


def test_equal_updates_at_several_worker_counts_give_one_spread_and_their_ratios_another():
    made = [found for workers in (1, 2, 4) for found in runs(workers, 64, (300, 900), (3, 9), 10 * workers)]
    pools = section(*made).pools
    assert [pools.of(name).freedom for name in ("steps", "seconds", "examples_per_second")] == [1, 1, 3]
    assert (pools.of("steps", True).variance, pools.of("steps", True).freedom) == (pytest.approx(0), 2)
    random = np.random.default_rng(2)
    found = section(*(one for workers in (1, 2, 4, 8) for one in runs(
        workers, 64, (300, 900), (3, 9) * np.exp(random.normal(0, 0.1, 2)), 10 * workers)))
    widths = [np.log(point.time_speedup.high / point.time_speedup.low) for point in found.series[0].points[1:]]
    assert found.pools.of("seconds", True).freedom == 3 and widths == pytest.approx([widths[0]] * 3)


@pytest.mark.parametrize("first", [(300, 340), (300,)])
def test_a_point_of_one_run_has_ratios_without_an_interval(first):
    found = section(*runs(1, 32, first, (3, 3.3)), *runs(2, 64, (200,), (1,), 10))
    cell, point = found.cells[1], found.series[0].points[1]
    assert np.isnan([cell.steps.low, cell.steps.high, cell.examples_per_second.low, point.system_efficiency.low]).all()
    assert np.isnan([point.step_speedup.low, point.step_speedup.high]).all() and point.step_speedup.runs == 1


def test_a_cell_that_never_met_has_no_speedup_and_as_a_baseline_leaves_none():
    unmet = trial(id=10, workers=2, batch=64, steps=(0, 100), error=(1, 1), seconds=(0, 1))
    point = section(*runs(1, 32, (300,), (3,)), unmet).series[0].points[1]
    assert np.isnan(point.step_speedup.value) and np.isnan(point.time_speedup.value)
    assert point.system_efficiency.value == pytest.approx(1.0)
    points = section(unmet, *runs(4, 128, (200,), (1,))).series[0].points
    assert all(np.isnan(point.time_speedup.value) for point in points)
    lost = trial(id=10, workers=2, batch=64, status=Status.INFEASIBLE)
    point = section(*runs(1, 32, (300,), (3,)), lost).series[0].points[1]
    assert np.isnan(point.system_efficiency.value) and len(point.cell.diverged) == 1


def test_cells_in_no_series_stand_alone():
    found = section(*runs(1, 32, (300,), (3,)), *runs(2, 64, (200,), (1,), 10), *runs(4, 100, (90,), (1,), 20))
    assert [cell.workers for cell in found.alone] == [(4,)]
    assert [cell.workers for cell in found.cells] == [(1,), (2,), (4,)]
    alone = section(*runs(4, 32, (300,), (3,)))
    assert not alone.series and len(alone.alone) == 1


def test_a_batch_s_runs_at_two_worker_counts_are_not_independent_repeats():
    found = section(*runs(1, 64, (300, 900), (3, 9)), *runs(4, 64, (300, 900), (1, 3), 10))
    [point] = found.batches.points
    assert (point.workers, point.steps.runs) == ((1, 4), 2)
    [point] = section(*runs(1, 32, (300,), (3,))).batches.points
    assert (point.examples.value, point.examples.before) == (pytest.approx(9600), pytest.approx(9280))


def test_options_reach_the_regimes_of_a_section():
    made = [one for at, (batch, steps) in enumerate(((32, 1000), (64, 500), (128, 320), (256, 280)))
            for one in runs(1, batch, (steps,), (1,), 10 * at)]
    found, other = (section(*made, **given).batches for given in ({}, {"perfect_within": 0.3, "useful_within": 0.1}))
    assert ([*found.perfect.values()], found.regimes.maximum_useful.value) == ([True, True, "open", False], 128)
    assert ([*other.perfect.values()], other.regimes.maximum_useful.value) == ([True, True, True, False], 256)


def test_a_target_that_no_log_measured_names_the_metrics_there_are():
    with pytest.raises(UsageError, match="val/accuracy; the metrics there: val/error"):
        analyse(read_trials(log(trial())), [Target.parse("val/accuracy>0.9")])


def test_each_trial_is_held_against_its_own_target_or_all_against_every_one_given():
    [group] = analyse(read_trials(log(trial(id=1), trial(id=2, target="val/error<0.5"), trial(id=3, target=None))))
    assert [(str(found.target), len(found.trials)) for found in group.sections] == [
        ("val/error<0.2", 1), ("val/error<0.5", 1), ("None", 1)]
    targets = [Target.parse("val/error<0.2"), Target.parse("val/classification_error<0.6")]
    [group] = analyse(read_trials(log(trial(id=1), trial(id=2, seed=1))), targets)
    assert [(str(found.target), len(found.trials)) for found in group.sections] == [
        ("val/error<0.2", 2), ("val/error<0.6", 2)]


def test_a_trial_stopped_at_an_easier_target_is_named():
    found = section(trial(id=1), trial(id=2, seed=1, keep_going=True), targets=[Target.parse("val/error<0.05")])
    [said] = [one for one in left_out(found) if "before this one was met" in one]
    assert ":1; run" in said


def test_a_trial_that_met_the_target_before_diverging_is_counted_apart(worded):
    found = section(trial(id=1), trial(id=2, seed=1, status=Status.INFEASIBLE),
                    trial(id=3, seed=2, status=Status.INFEASIBLE, error=(np.nan,) * 3))
    worded(left_out(found), about="of them")


def test_probes_are_kept_out_of_the_sections_with_a_target():
    probe = trial(id=2, steps=(), error=(), step_seconds=[0.1] * 50, eval_every=0)
    [group] = analyse(read_trials(log(trial(id=1), probe)))
    assert [found.target and str(found.target) for found in group.sections] == ["val/error<0.2", None]
    assert [len(found.trials) for found in group.sections] == [1, 1]


def test_a_trial_diverging_before_its_evaluation_counts_at_its_target():
    found = section(trial(id=1), trial(id=2, seed=1, steps=(), error=(), status=Status.INFEASIBLE),
                    trial(id=3, seed=2, steps=(), error=(), status=Status.RUNNING))
    assert [lost.id for lost in found.alone[0].diverged] == [2] and len(found.trials) == 3
    assert "after meeting" not in " ".join(left_out(found))


def test_without_a_target_system_efficiency_is_all_there_is():
    probes = [trial(id=workers, workers=workers, batch=32 * workers, steps=(), error=(), target=None,
                    step_seconds=[0.1 * workers ** 0.5] * 50) for workers in (1, 4)]
    found = section(*probes)
    assert found.batches is None
    assert found.series[0].points[1].system_efficiency.value == pytest.approx(0.5)
    assert np.isnan(found.series[0].points[1].step_speedup.value)


def test_a_baseline_with_changed_worker_counts_gives_step_ratios_only():
    [series] = section(*runs(1, 32, [400, 420], [4, 5], worker_counts=(1, 2)),
                       *runs(2, 64, [200, 210], [2, 3], first_id=10)).series
    point = series.points[1]
    assert point.step_speedup.value == pytest.approx(2)
    assert all(np.isnan(ratio.value) for ratio in (point.system_efficiency, point.efficiency, point.time_speedup))


def test_seeds_that_kept_their_worker_count_alone_tell_the_speed_of_a_point():
    """Strong scaling: the same updates, of which the second point has one seed less that was timed."""
    moved = trial(id=12, seed=2, workers=2, steps=(0, 390, 400), error=(1, 1, 0.1), seconds=(0, 1, 99),
                  worker_counts=(2, 1))
    [series] = section(*runs(1, 32, [400, 410, 400], [4, 4.2, 4]), *runs(2, 32, [400, 410], [2, 2.2], 10), moved).series
    point = series.points[1]
    assert point.system_efficiency.low < point.system_efficiency.value < point.system_efficiency.high < 2
    assert point.time_speedup.low < point.time_speedup.value < point.time_speedup.high < 4
    assert point.efficiency.value == pytest.approx(point.statistical_efficiency.value * point.system_efficiency.value)
