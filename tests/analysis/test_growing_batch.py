"""Runs whose batch grows: counted by the step's own batch, apart from constant ones, and held against them."""
import itertools
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.growing_batch import growing_plans
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.analysis.worker_plan import Request
from hvdscale.cli.plan import main as plan_command
from hvdscale.plan.batch_schedule import BatchSchedule
from tests.factories.logs import log, save, trial
from tests.factories.shown import figures_of, tables_of

RAMP = BatchSchedule((32, 64, 128), (0, 100, 200))
PACES = {32: 400, 64: 260, 128: 190}            # steps to target at constant batches
GROWN = 250                                     # and of the ramp
WORKERS = (1, 2, 4)


def clock(workers, batch):
    """Seconds per step of the made cluster, whose links take no time."""
    return 1e-3 + 1e-4 * batch / workers


def constant(batch, workers, seed=0):
    step = np.arange(0, PACES[batch] + 1, 10)
    return trial(10 * batch + 2 * workers + seed, step, np.where(step < PACES[batch], 0.5, 0.1),
                 step * clock(workers, batch), workers=workers, batch=batch, seed=seed, eval_every=10)


def grown(workers, seed=0, batches=RAMP, met=True):
    step = np.arange(0, GROWN + 1, 10)
    each = np.array([clock(workers, batches.at(at)) for at in range(GROWN)])
    seconds = np.concatenate([[0], np.cumsum(each)])[step]
    problem = {"batch_schedule": batches.pairs, "batch_lr_factors": [[start, 1.0] for start in batches.starts],
               "ghost_batch": 16, "global_batch": batches.largest}
    return trial(9000 + 2 * workers + seed, step, np.where((step < GROWN) | (not met), 0.5, 0.1), seconds,
                 workers=workers, batch=batches.largest, seed=seed, eval_every=10, problem=problem)


def groups_of(*trials):
    return analyse(read_trials(log(*trials)))


@pytest.fixture(scope="module")
def everything():
    return [*(constant(batch, w, seed) for batch in PACES for w in WORKERS for seed in (0, 1)),
            *(grown(w, seed) for w in WORKERS for seed in (0, 1))]


@pytest.fixture(scope="module")
def groups(everything):
    """What is known of all of them."""
    return groups_of(*everything)


def test_steps_examples_time_and_speed_are_counted_by_each_steps_batch(groups):
    *_, growing = groups
    examples = 100 * 32 + 100 * 64 + 50 * 128
    for cell in growing.sections[0].cells:
        seconds = sum(clock(cell.workers[0], RAMP.at(step)) for step in range(GROWN))
        assert (cell.steps.value, cell.examples.value) == (pytest.approx(GROWN), pytest.approx(examples))
        assert cell.mean_batch == pytest.approx(examples / GROWN)
        assert cell.seconds.value == pytest.approx(seconds)
        assert cell.examples_per_second.value == pytest.approx(examples / seconds)
        assert cell.step_seconds.value == pytest.approx(seconds / GROWN)


def test_constant_batches_know_nothing_of_a_growing_one(everything, groups):
    alone, = groups_of(*everything[:-len(WORKERS) * 2])
    beside, growing = groups
    assert [cell.global_batch for cell in beside.sections[0].cells] == [
        cell.global_batch for cell in alone.sections[0].cells]
    assert beside.sections[0].batches.points[0].steps == alone.sections[0].batches.points[0].steps
    assert growing.workload.batch_schedule == RAMP.pairs and growing.sections[0].batches is None


def test_the_report_holds_it_against_its_smallest_and_largest_batch(groups):
    *_, growing = groups
    table = next(one for one in tables_of(growing.sections[0]) if one.name == "growing-batch")
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, (cell.value for cell in row.cells))) for row in table.rows]
    assert [(row["workers"], row["global_batch"]) for row in rows] == [
        (w, batch) for w in WORKERS for batch in (128, 32, 128)]
    for row, batch in zip(rows[1:3], (32, 128)):
        assert row["step_speedup"] == pytest.approx(PACES[batch] / GROWN)
        assert row["statistical_efficiency"] == pytest.approx(PACES[batch] * batch / 16000)
        assert row["time_speedup"] == pytest.approx(PACES[batch] * clock(1, batch) / rows[0]["seconds_to_target"])
    assert [row["worker_seconds"] for row in rows] == pytest.approx(
        [row["workers"] * row["seconds_to_target"] for row in rows])


def test_the_plan_adds_up_the_pieces_at_each_worker_count(groups):
    plan, = growing_plans(groups, Request((1, 2, 4, 64), price=2.0))
    assert [option.workers for option in plan.options] == list(WORKERS) and plan.batches == RAMP
    assert not plan.predicted and plan.left_out == ((64, "batch 32 has fewer examples than workers"),)
    for option in plan.options:
        seconds = sum(clock(option.workers, RAMP.at(step)) for step in range(GROWN))
        assert option.mark == "measured" and option.seconds.value == pytest.approx(seconds)
        assert option.cost.value == pytest.approx(2.0 * option.workers * seconds / 3600)
        for one in option.beside:
            own = PACES[one.global_batch] * clock(option.workers, one.global_batch)
            assert one.seconds_ratio.value == pytest.approx(own / seconds)
            assert one.steps_ratio.value == pytest.approx(PACES[one.global_batch] / GROWN)
            assert one.examples_ratio.value == pytest.approx(PACES[one.global_batch] * one.global_batch / 16000)


def test_a_schedule_that_was_not_run_is_predicted_from_the_constant_batches(everything):
    groups = groups_of(*everything[:-len(WORKERS) * 2])
    plan, = growing_plans(groups, Request((1, 2)), asked=RAMP)
    steps = 200 + (1 - 100 / 400 - 100 / 260) * 190
    assert plan.predicted and plan.options[0].steps.value == pytest.approx(steps)
    same, = growing_plans(groups, Request((1,)), asked=BatchSchedule((64, 128), (0, 1000)))
    assert same.options[0].steps.value == pytest.approx(260)
    assert same.options[0].beside[0].seconds_ratio.value == pytest.approx(1)


def test_a_growing_batch_alone_has_a_plan_without_ratios():
    plan, = growing_plans(groups_of(*(grown(w, seed) for w in WORKERS for seed in (0, 1))), Request(WORKERS))
    assert [option.beside for option in plan.options] == [[]] * 3
    assert plan.options[1].seconds.value == pytest.approx(sum(clock(2, RAMP.at(step)) for step in range(GROWN)))
    assert not list(growing_plans(groups_of(*(grown(w, met=False) for w in WORKERS)), Request(WORKERS)))


# workers that change with the batch

@pytest.mark.parametrize("relaunch", [0.0, 0.05, 10.0])
def test_the_workers_of_each_batch_are_those_that_no_other_ones_beat(groups, relaunch):
    """All ways by hand: 100, 100 and 50 steps at batch 32, 64 and 128."""
    [plan], pieces = growing_plans(groups, Request(WORKERS, relaunch=relaunch)), ((100, 32), (100, 64), (50, 128))
    ways = []
    for workers in itertools.product(WORKERS, repeat=3):
        times = [steps * clock(w, batch) + relaunch * (at > 0 and w != workers[at - 1])
                 for at, (w, (steps, batch)) in enumerate(zip(workers, pieces))]
        ways.append((sum(times), sum(w * own for w, own in zip(workers, times)) / 3600, workers))
    fastest, knee = min(ways), min(ways, key=lambda way: way[0] * way[1])
    assert [(phase.global_batch, phase.workers, phase.start) for phase in plan.phases[0].phases] == [
        (batch, workers, start) for workers, batch, start in zip(fastest[2], (32, 64, 128), (0, 100, 200))]
    found = plan.phases_at_knee
    assert found.seconds.value == pytest.approx(knee[0]) and found.cost.value == pytest.approx(knee[1])
    costs = [one.cost.value for one in plan.phases]
    assert costs == sorted(costs, reverse=True)
    assert not any(seconds < 0.999 * one.seconds.value and cost < 0.999 * one.cost.value
                   for seconds, cost, _ in ways for one in plan.phases)
    assert found.changes == len([1 for one, other in zip(knee[2], knee[2][1:]) if one != other])


def test_a_batch_may_have_more_workers_than_the_smallest_one_has_examples():
    trials = [*(constant(batch, w) for batch in PACES for w in (1, 2, 64) if w <= batch), *(grown(w) for w in (1, 2))]
    [plan] = growing_plans(groups_of(*trials), Request((1, 64)))
    assert (64, "batch 32 has fewer examples than workers") in plan.left_out
    assert [phase.workers for phase in plan.phases[0].phases] == [1, 64, 64]


def planned(path, *options):
    """What the plan of 1, 2 and 4 workers says."""
    done = CliRunner().invoke(plan_command, [path, "--workers", "1,2,4", *map(str, options)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_jobs_of_the_phases_follow_each_other(saved, tmp_path):
    text = planned(saved, "--relaunch", "0.001s", "--knee", "0.5", "--out", tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("job=$(sbatch")]
    [growing] = json.loads((tmp_path / "plan.json").read_text())["growing_batches"]
    assert lines == growing["jobs"] and "Workers by phase: " in text and "0.00100 s for each relaunch" in text
    assert "--dependency" not in lines[0] and "-N1 --ntasks-per-node=2 " in lines[0]
    assert re.search(r"--steps [12]00\)$", lines[0]) and "-N1 --ntasks-per-node=4 " in lines[-1]
    assert "--dependency=afterok:$job" in lines[-1] and "--steps" not in lines[-1].replace("sbatch", "")


def test_a_relaunch_takes_the_median_start_up_of_the_logs_unless_it_is_given(everything, tmp_path, worded):
    made = log(*everything)
    made.restarts["startup_seconds"] = np.full(made.restarts.rows, np.nan)
    made.restarts["startup_seconds"][:3] = 0.001, 0.002, 0.004
    path = save(made, tmp_path / "started.h5")
    started, given = (" ".join(planned(path, *more).split()) for more in ((), ("--relaunch", "0.001s")))
    worded(started, about="s for")
    worded(given, about="s for")
    assert "median start-up" not in given


def test_tokens_to_target_stand_beside_examples_where_every_step_has_them():
    def timed(seed):
        one = grown(1, seed)
        one.step_seconds = np.full(GROWN, 0.01)
        return one
    made = log(timed(0), timed(1))
    made.steps["tokens"] = np.array([12.5 * RAMP.at(step - 1) for step in made.steps["step"]], float)
    counted, = analyse(read_trials(made))
    cell, = counted.sections[0].cells
    assert cell.examples.value * cell.tokens_per_example == pytest.approx(12.5 * 16000) and cell.examples.runs == 2
    table = next(one for one in tables_of(counted.sections[0]) if one.name == "growing-batch")
    assert "tokens_to_target" in [column.key for column in table.columns]
    without, = groups_of(timed(0))
    assert np.isnan(without.sections[0].cells[0].tokens_per_example)
    assert "tokens_to_target" not in [column.key for one in tables_of(without.sections[0]) for column in one.columns]
    assert "curve-tokens" in [figure.name for figure in figures_of(counted.sections[0])]
    assert "curve-tokens" not in [figure.name for figure in figures_of(without.sections[0])]


@pytest.fixture(scope="module")
def saved(everything, tmp_path_factory):
    return save(log(*everything), tmp_path_factory.mktemp("grown") / "grown.h5")


def test_the_plan_says_what_it_buys(saved, tmp_path):
    output = planned(saved, "--out", tmp_path, "--batch-schedule", "[[0, 32], [50, 128]]")
    text = " ".join(output.split())
    assert all(part in text for part in ("batch 32, 64 from step 100, 128 from step 200", "x as fast",
                                         "predicted from the constant batches"))
    assert max(len(line) for line in output.splitlines() if not line.startswith(("wrote", "job="))) <= 100
    values = json.loads((tmp_path / "plan.json").read_text())["growing_batches"]
    assert [(one["predicted"], one["batch_schedule"]) for one in values] == [
        (True, [[0, 32], [50, 128]]), (False, [list(pair) for pair in RAMP.pairs])]
    assert len(list((tmp_path / "tables").glob("*growing-batch*.csv"))) == 2


@pytest.mark.parametrize("text", ["64", "[[1, 64]]", "[[0, 64], [x, 128]]"])
def test_what_is_no_schedule_is_said(saved, text):
    done = CliRunner().invoke(plan_command, [saved, "--batch-schedule", text])
    assert done.exit_code == 2 and "--batch-schedule: batch_schedule = " in done.output, done.output
