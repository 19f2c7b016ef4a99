"""Two logs held against each other: what counts as a regression, what cannot be told, and how the command ends."""
import csv
import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy
from click.testing import CliRunner

from hvdscale.analysis.compare import OK, REGRESSION, UNDECIDED, Tolerances, compare_trials
from hvdscale.analysis.intervals import over
from hvdscale.analysis.decide import chances_to_pass, floors
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.compare import main, noise
from hvdscale.errors import ExitCode, UsageError
from hvdscale.log.schema import UNKNOWN_SEED, Status
from hvdscale.report.compare import comparison_table, detail_table, verdict_line
from hvdscale.report.table import as_text
from hvdscale.target import Target
from tests.factories.logs import log, save, trial
from tests.factories.studies import drawn, studied

EVERY = 5       # steps between evaluations


def run(id, steps, *, seed=None, wiggle=0.0, seconds_a_step=0.01, budget=1000, **changes):
    """A trial that meets val/error<0.2 at ``steps``, or never: inf; its evaluations differ by ``wiggle``."""
    last = int(min(steps, budget))
    at = np.arange(0, last + 1, EVERY)
    error = np.where(at >= steps, 0.1, 0.5 + wiggle)
    return trial(id, at, error, seconds_a_step * at, seed=id if seed is None else seed, eval_every=EVERY, **changes)


def cell(steps, workers=1, batch=32, first=0, **changes):
    """Trials of one cell, a seed each."""
    return [run(1000 * workers + first + at, value, seed=first + at, workers=workers, batch=batch, **changes)
            for at, value in enumerate(steps)]


def compared(before, after, targets=(), **tolerances):
    return compare_trials(read_trials(log(*before, path="a.h5")), read_trials(log(*after, path="b.h5")), targets,
                          Tolerances(**tolerances))


def measures_of(before, after, **tolerances):
    [comparison] = compared(before, after, **tolerances)
    [found] = comparison.cells
    return {test.measure: test for test in found.tests}


MET, NEVER, NEAR = cell([400, 420, 380]), cell([math.inf] * 3), cell([405, 305, 505])


@pytest.mark.parametrize("before, after, tolerances, verdict, reason", [
    (cell([400]), cell([400]), {}, OK, ""), (cell([400, 300, 500]), NEAR, {}, OK, ""),
    (cell([400, 300, 500]), NEAR, {"steps": 0.01}, UNDECIDED, ""), (MET, NEVER, {}, REGRESSION, "target was not met"),
    (MET, cell([math.inf] * 3, budget=300), {}, UNDECIDED, ""), (NEVER, MET, {}, OK, ""),
    (NEVER, cell([math.inf] * 3, wiggle=0.1), {}, UNDECIDED, ""),
    (cell([400, 150, 900], budget=2000), cell([480, 180, 1080], budget=2000), {}, REGRESSION, ""),      # pairs of seeds
    (cell([400, 150, 900], budget=2000), cell([480, 180, 1080], first=10, budget=2000), {}, UNDECIDED, "spans")])
def test_the_verdict_on_steps_follows_from_the_runs_of_either_side(before, after, tolerances, verdict, reason):
    found = measures_of(before, after, **tolerances)["steps"]
    assert found.verdict == verdict and reason in found.reason


def test_one_run_cannot_be_told_from_another_but_pairs_that_need_half_more_can():
    other = measures_of(cell([400]), cell([400], wiggle=0.01))["steps"]
    assert (other.verdict, other.reason) == (UNDECIDED, "one run")
    assert other.change.low == pytest.approx(395 / 400) and other.change.high == pytest.approx(400 / 395)
    found = measures_of(cell([400, 300, 500]), cell([600, 450, 750]))["steps"]
    assert found.verdict == REGRESSION and found.change.value == pytest.approx(1.5)
    assert found.change.low == pytest.approx(np.exp(np.mean(np.log([595 / 400, 445 / 300, 745 / 500]))), rel=0.02)


def test_the_spacing_of_evaluations_alone_may_leave_it_open():
    coarse = [trial(at, (0, 100, 200), (0.9, 0.5, 0.1), seed=at) for at in range(3)]
    moved = [trial(at, (0, 100, 200), (0.9, 0.51, 0.1), seed=at) for at in range(3)]
    found = measures_of(coarse, moved)["steps"]
    assert found.verdict == UNDECIDED and (found.change.low, found.change.high) == pytest.approx((0.5, 2.0))


def test_trials_that_diverge_are_a_regression_where_all_do():
    lost = [run(at, math.inf, seed=at, status=Status.INFEASIBLE) for at in range(3)]
    before = [run(at, 400, seed=at) for at in range(3)]
    found = measures_of(before, lost)["steps"]
    assert (found.verdict, found.reason) == (REGRESSION, "every trial diverged")
    found = measures_of(before, [*before[:2], lost[2]])["steps"]
    assert (found.verdict, found.reason) == (UNDECIDED, "1 diverged, 0 in the baseline")
    found = measures_of(before, [*before[:2], run(2, math.inf)])["steps"]
    assert found.verdict == UNDECIDED and math.isinf(found.change.high)


def test_time_and_throughput_have_a_tolerance_of_their_own():
    before, after = cell([400, 300, 500]), cell([400, 300, 500], seconds_a_step=0.015)
    found = measures_of(before, after)
    assert found["steps"].verdict == OK
    assert found["seconds"].verdict == REGRESSION and found["seconds"].change.value == pytest.approx(1.5)
    assert found["examples_per_second"].verdict == REGRESSION
    assert found["examples_per_second"].change.value == pytest.approx(1 / 1.5)
    found = measures_of(before, after, time=None)
    assert found["seconds"].verdict is None and found["examples_per_second"].verdict is None
    assert measures_of(after, before)["examples_per_second"].verdict == OK
    assert measures_of(cell([400]), cell([400], seconds_a_step=math.nan))["seconds"].reason == "not measured"


def test_the_best_metric_is_taken_within_the_steps_that_all_took():
    def ending(last, best):
        return [trial(at, (0, 100, 200, 300)[:last], (0.9, 0.5, 0.15 + best + 0.01 * at, 0.01)[:last], seed=at,
                      keep_going=True) for at in range(3)]
    found = measures_of(ending(3, 0.0), ending(4, 0.02), metric=0.01)["best"]
    assert found.change.value == pytest.approx(0.02) and found.verdict == REGRESSION
    assert measures_of(ending(3, 0.0), ending(4, 0.02))["best"].verdict is None
    assert measures_of(ending(3, 0.02), ending(4, 0.0), metric=0.01)["best"].verdict == OK


def test_single_runs_at_several_worker_counts_tell_together():
    def four(factor, **changes):
        return [one for workers in (1, 2, 4, 8)
                for one in cell([round(factor * 640 / workers / EVERY) * EVERY], workers, 32 * workers, **changes)]
    [comparison] = compared(four(1), four(1.5))
    assert all(one.tests[0].verdict == UNDECIDED for one in comparison.cells)
    assert {test.measure: test.verdict for test in comparison.overall}["steps"] == REGRESSION
    assert comparison.verdict == REGRESSION and "at all cells together (1.50 times" in verdict_line([comparison])


def test_the_row_over_all_cells_says_where_speed_alone_was_judged():
    unmet = [trial(at, (0, 100), (0.9, 0.5), seed=at, workers=1 + at % 2, batch=32 + at % 2) for at in range(6)]
    verdict = comparison_table(compared(unmet, unmet)[0]).rows[-1].cells[-1]
    assert (verdict.value, verdict.below) == (OK, "throughput")


def test_worker_counts_of_the_same_updates_count_once():
    def at_three(steps, **changes):
        return [one for workers in (1, 2, 4) for one in cell(steps, workers, 32, **changes)]
    [comparison] = compared(at_three([400, 300]), at_three([420, 330]))
    assert len(comparison.cells) == 3
    assert [test.measure for test in comparison.overall] == ["examples_per_second"]     # of speeds there are three
    once = measures_of(cell([400, 300]), cell([420, 330]))["steps"].change
    assert comparison.cells[0].tests[0].change == once


def test_cells_that_the_candidate_has_not_are_named_and_cannot_be_told(worded):
    [comparison] = compared(cell([400, 300]) + cell([200, 150], 2, 64), cell([400, 300]) + cell([60, 80], 4, 128))
    assert comparison.missing == ((2, 64),) and comparison.added == ((4, 128),) and comparison.verdict == UNDECIDED
    worded(verdict_line([comparison]), about="is not")
    assert [row.cells[-2].shown for row in detail_table([comparison]).rows][-1] == UNDECIDED
    worded(as_text(comparison_table(comparison)), about="In the")


def test_studies_of_one_space_are_paired_by_draw():
    points = [{"lr": 0.01 * 2 ** at, "momentum": 0.9} for at in range(6)]

    def study(factor):
        return studied(*[drawn(at, factor * (300 + 100 * at), point=point) for at, point in enumerate(points)])
    trials = [read_trials(study(factor)) for factor in (1, 2)]
    [comparison] = compare_trials(*trials, [Target.parse("val/error<0.1")])
    assert comparison.cells[0].pairing == "draw" and comparison.cells[0].tests[0].change.runs == 6
    assert comparison.verdict == REGRESSION


def searches(fewest, offset):
    """Searches of 20 draws at two batch sizes, no two searches with a draw in common, the last 8 draws of each pruned;
    the best needs ``fewest``."""
    def study(batch):
        return studied(*[drawn(at, fewest + 100 * (at // 2), batch=batch, pruned=fewest + 500,
                               point={"lr": 0.01 * (at + 1) + offset, "momentum": 0.9}) for at in range(20)],
                       path=f"{offset}-b{batch}.h5")
    return [one for batch in (256, 512) for one in read_trials(study(batch))]


def test_searches_without_common_draws_are_compared_by_best_of_n(worded):
    before, after, worse = searches(1000, 0), searches(1100, 0.001), searches(2200, 0.002)
    [near], [far] = (compare_trials(before, other, [Target.parse("val/error<0.1")]) for other in (after, worse))
    steps, seconds, speed = near.cells[0].tests[:3]
    own = [getattr(near.cells[0], side).steps for side in ("baseline", "candidate")]
    assert near.cells[0].pairing == "search" and steps.change.value == own[1].value / own[0].value == 1.1
    assert (steps.change.low, steps.change.high) == (over(own[1], own[0]).low, over(own[1], own[0]).high)
    assert steps.verdict == seconds.verdict == UNDECIDED and "spans" in steps.reason
    assert speed.reason.startswith("one run") and math.isnan(speed.change.low)
    assert [cell.tests[0].verdict for cell in far.cells] == [REGRESSION] * 2
    together = far.overall[0].change
    assert together.value == pytest.approx(2.2) and (together.low, together.high) == pytest.approx((2.1, 2.2 / 0.9))
    text = as_text(comparison_table(far))
    worded(text, about="The best")
    assert "12/20, 12/20" in text
    worded(" ".join(text.split()), about="Where there")
    assert "spacing of evaluations alone" not in text and max(map(len, text.splitlines())) <= 100


def test_unequal_searches_are_compared_at_the_smaller_number_of_trials():
    """The candidate is the baseline's search with a quarter of its trials: its best alone looks twice as slow."""
    steps = [1000, 2100, 2200, 2300, 2400, 2500, 2600, 2700]

    def study(count, offset):
        return read_trials(studied(*[drawn(at, steps[-1 - at] if count < 8 else steps[at], batch=256, point={
            "lr": 0.01 * (at + 1) + offset, "momentum": 0.9}) for at in range(count)], path=f"{count}.h5"))
    [found] = compare_trials(study(8, 0), study(2, 0.001), [Target.parse("val/error<0.1")])
    before, after = found.cells[0].baseline, found.cells[0].candidate
    assert (before.steps.value, after.steps.value) == (2200, 2600)      # the median best of 2 of 8: the third fewest
    assert found.cells[0].tests[0].change.value == pytest.approx(2600 / 2200)


def test_a_search_against_repeats_is_said_to_be_no_like_for_like(worded):
    point = {"lr": 0.011, "momentum": 0.9}
    repeats = [drawn(at, 1100, point=point) for at in range(3)]
    for one in repeats:
        one.row["plan"] = json.dumps({**json.loads(one.row["plan"]), "sweep": None})
    [found] = compare_trials(searches(1000, 0), read_trials(studied(*repeats)), [Target.parse("val/error<0.1")])
    assert found.cells[0].pairing == "search" and found.cells[0].tests[0].verdict == UNDECIDED
    text = " ".join(as_text(comparison_table(found)).split())
    worded(text, about="The best")
    assert "12/20, 3/3" in text


def notes_of(before, after):
    [comparison] = compared(before, after)
    return " ".join(comparison_table(comparison).notes)


def test_how_runs_are_paired_and_why_not_is_said_once_or_for_each_cell_where_it_differs(worded):
    one, other = cell([400, 300]), cell([200, 150], 2, 64)
    moved = cell([200, 150], 2, 64, first=10)
    assert "Paired by seed. " in notes_of(one + other, one + other) and "Independent" not in notes_of(one, one)
    worded(notes_of(other, moved), about="Independent samples")
    both = notes_of(one + other, one + moved)
    assert "Paired by seed at W = 1, B = 32." in both
    worded(both, about="Independent samples")

    def unknown(steps):
        return [trial(id=at, seed=UNKNOWN_SEED, steps=(0, step), error=(1, 0.1)) for at, step in enumerate(steps)]
    worded(notes_of(unknown((400, 300)), unknown((400, 300))), about="Independent samples")


def test_it_is_said_why_a_ratio_has_no_interval(worded):
    one, other, several = cell([400]), cell([410]), cell([400, 300], 2, 64)
    worded(notes_of(one, other), about="either side")
    worded(notes_of(one, other), about="spacing of")
    worded(notes_of(several, several), about="all runs")
    worded(notes_of(one + several, other + several), about="all runs")


def test_a_best_metric_that_is_not_final_and_a_setting_that_changed_are_named(worded):
    stopped = notes_of(cell([400, 300], peak_lr=0.1), cell([400, 300], peak_lr=0.2))
    worded(stopped, about="which side")
    assert "The settings differ (peak_lr 0.1, then 0.2) at W = 1, B = 32." in stopped
    on = [trial(at, (0, 100, 200, 300), (0.9, 0.5, 0.1, 0.05), seed=at, keep_going=True) for at in range(2)]
    assert "further by then" not in notes_of(on, on)


def test_logs_without_a_target_are_compared_by_throughput():
    before, after = (cell([400, 300], target=None, seconds_a_step=seconds) for seconds in (0.01, 0.02))
    [comparison] = compared(before, after)
    assert comparison.verdict == REGRESSION and comparison.target is None
    text = as_text(comparison_table(comparison))
    assert "throughput" in text and "spacing" not in text


def test_another_model_or_optimizer_of_the_data_set_is_compared_and_nothing_in_common_is_misuse():
    [comparison] = compared(cell([400, 300]), cell([480, 360], optimizer="muon"))
    assert comparison.cells and "(made/net, muon" in as_text(comparison_table(comparison))
    with pytest.raises(UsageError, match="nothing to compare"):
        compared(cell([400]), cell([400], dataset="other"))
    with pytest.raises(UsageError, match="baseline has made/net, nesterov.*W = 1, B = 32; the candidate.*B = 64"):
        compared(cell([400]), cell([400], batch=64))


def random_cell(random, factor, seeds, spread, workers):
    pace = 400 * factor * np.exp(random.normal(0, spread, seeds))
    return cell([max(EVERY, round(value / EVERY) * EVERY) for value in pace], workers, 32 * workers, budget=9999)


def test_the_gate_has_few_false_alarms_and_finds_a_change_of_half():
    random, alarms, found, draws = np.random.default_rng(5), 0, 0, 40
    for _ in range(draws):
        before, same, slower = ([one for workers in (1, 2, 4) for one in random_cell(random, factor, 4, 0.1, workers)]
                                for factor in (1, 1.1, 1.6))        # 1.1: the tolerance itself
        [held], [worse] = compared(before, same, time=None), compared(before, slower, time=None)
        alarms += held.verdict == REGRESSION
        found += worse.verdict == REGRESSION
    assert alarms <= 9          # 4 tests of at most 2.5 % each: 4 expected
    assert found >= 38


def invoke(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A baseline, one that is as good and one that needs half more steps, as files."""
    folder = tmp_path_factory.mktemp("logs")
    return [save(log(*cell(steps)), folder / name) for name, steps in (
        ("a.h5", [400, 300, 500]), ("b.h5", [405, 305, 505]), ("c.h5", [600, 450, 750]))]


def test_the_command_ends_with_0_or_with_4_and_says_why_in_its_last_words(logs):
    good, bad = invoke(logs[0], logs[1]), invoke(logs[0], logs[2])
    assert good.exit_code == 0 and good.output.split("\n\n")[-1].startswith("Verdict: ok: 3 tests")
    assert bad.exit_code == ExitCode.REGRESSION == 4
    assert bad.output.split("\n\n")[-1].startswith(
        "Verdict: REGRESSION: steps and time to val/error<0.2 at W = 1, B = 32 (1.50 times,")
    assert invoke(logs[0], logs[2], "--tolerance", "60%", "--time-tolerance", "none").exit_code == 0


def test_an_interval_is_written_so_that_its_ends_differ_or_not_at_all(logs, tmp_path, worded):
    same = invoke(logs[0], logs[0]).output
    worded(same, about="Where there")
    assert "1.00-1.00" not in same
    pair = [save(log(*cell(steps, budget=90_000)), tmp_path / name) for name, steps in (
        ("d.h5", [40_000, 30_000, 50_000]), ("e.h5", [40_005, 30_005, 50_005]))]
    assert {"0.9999-", "1.0003"} <= set(invoke(*pair).output.split())


def test_shared_remarks_are_said_once_and_fit_the_tables_width(tmp_path, worded):
    paths = [save(log(*[one for workers in (1, 2) for one in cell([400], workers, 32 * workers, wiggle=wiggle)]),
                  tmp_path / f"{wiggle}.h5") for wiggle in (0.0, 0.01)]
    said = invoke(*paths).output.split("\n\n")[-1]
    worded(" ".join(said.split()))
    assert len(said.splitlines()) > 1 and max(map(len, said.splitlines())) <= 100 and " =\n" not in said


def test_the_verdict_names_the_workload_where_there_are_several():
    both = cell([400, 300]) + cell([400, 300], 2, 64, model="other")
    worse = cell([400, 300]) + cell([600, 450], 2, 64, model="other")
    assert "made/other, nesterov, 1,000 training examples: steps and time to" in verdict_line(compared(both, worse))


def test_strict_fails_where_it_cannot_be_told_as_without_times_unless_they_are_not_judged(logs, tmp_path, worded):
    close = [logs[0], logs[1], "--tolerance", "0.5%"]
    worded(invoke(*close).output, about="no regression")
    assert invoke(*close).exit_code == 0
    assert invoke(*close, "--strict").exit_code == ExitCode.REGRESSION
    assert invoke(logs[0], logs[1], "--strict").exit_code == 0
    path = save(log(*cell([400, 300], seconds_a_step=math.nan)), tmp_path / "timeless.h5")
    done = invoke(path, path, "--strict")
    assert done.exit_code == ExitCode.REGRESSION and "(not measured)" in done.output
    assert invoke(path, path, "--strict", "--time-tolerance", "none").exit_code == 0


def test_every_test_is_written_as_json_or_csv(logs, tmp_path):
    assert invoke(logs[0], logs[2], "--out", tmp_path / "v.json").exit_code == ExitCode.REGRESSION
    written = json.loads((tmp_path / "v.json").read_text())
    assert written["verdict"] == REGRESSION and written["tolerances"]["steps"] == 0.1
    [test] = [one for one in written["comparisons"][0]["tests"] if one["measure"] == "steps"]
    assert test["verdict"] == REGRESSION and test["low"] > 1.1
    invoke(logs[0], logs[2], "--out", tmp_path / "v.csv")
    rows = list(csv.DictReader((tmp_path / "v.csv").read_text().splitlines()))
    assert [row["measure"] for row in rows] == ["steps", "seconds", "examples_per_second", "best"]
    assert float(rows[0]["change_low"]) > 1.1 and "c.h5:1000" in rows[0]["trials"]


def exact(path, workers=1, losses=(2.0, 1.5, 1.0), error=(0.9, 0.5, 0.4), **changes):
    """A log of one exact run of as many steps as there are losses."""
    return save(log(trial(1, (0, 1, 2), error, workers=workers, losses=losses, step_seconds=[0.1] * len(losses),
                          **{"problem": {"exact": {"threads": 1}}, **changes})), path)


LATER = float(np.nextafter(1.5, 2))


@pytest.mark.parametrize("changes, difference", [
    ({}, None), (dict(losses=(2.0, LATER, 1.0)), (2, "steps/loss", 1.5, LATER)),
    (dict(error=(0.9, 0.6, 0.4)), (1, "evaluations/val/error", 0.5, 0.6)),
    (dict(losses=(2.0, 1.5, 2.0), error=(0.9, math.nan, 0.4)), (1, "evaluations/val/error", 0.5, None)),
    (dict(losses=(2.0, 1.5)), (3, "steps/step", 3.0, None))])
def test_exact_runs_at_other_workers_have_the_same_bits_or_differ_first_somewhere(tmp_path, changes, difference):
    done = invoke(exact(tmp_path / "a.h5"), exact(tmp_path / "b.h5", 2, **changes), "--equal", "--out",
                  tmp_path / "equal.json")
    found = json.loads((tmp_path / "equal.json").read_text())
    assert found["equal"] == (difference is None) and done.exit_code == (4 if difference else 0), done.output
    [pair] = found["pairs"]
    assert pair["difference"] == (difference and dict(zip(("step", "column", "baseline", "candidate"), difference)))
    assert {"steps/loss", "steps/lr", "evaluations/val/error"} <= set(pair["columns"])
    assert not any("seconds" in column for column in pair["columns"])


@pytest.mark.parametrize("changes, how", [
    (dict(peak_lr=0.2), "peak_lr 0.1, then 0.2"), (dict(seed=3), "seed 0, then 3")])
def test_exact_runs_of_other_settings_are_not_equal(tmp_path, changes, how):
    done = invoke(exact(tmp_path / "a.h5"), exact(tmp_path / "b.h5", 2, **changes), "--equal")
    assert done.exit_code == 4 and how in " ".join(done.output.split())


def decided(baseline, candidate, *words, code):
    done = invoke(baseline, candidate, "--decide", *words)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """A baseline of five runs, and candidates of the same seeds."""
    folder = tmp_path_factory.mktemp("change")
    for name, steps in {"base": [400, 420, 380, 410, 395], "more": [600, 635, 570, 615], "less": [265, 280, 255, 275],
                        "near": [405, 415, 385], "unmet": [math.inf] * 4, "two": [300, 310], "slow": [405, 415, 2000],
                        "one": [600, 635, 570]}.items():
        save(log(*cell(steps, budget=1000)), str(folder / f"{name}.h5"))
    save(log(*cell([math.inf] * 3, budget=100)), str(folder / "short.h5"))
    save(log(*cell([600, 635, 570]), *cell([610, 620, 640], first=3, peak_lr=0.2)), str(folder / "tuned.h5"))
    tried = [drawn(0, 300), drawn(1, 600, point={"lr": 0.2, "momentum": 0.99})]
    for name, repeats in {"search": (), "tuned-3": (300, 400, 300), "tuned-9": (900, 1000, 900)}.items():
        save(studied(*tried, *(drawn(0, steps, repeat=at + 1) for at, steps in enumerate(repeats))),
             str(folder / f"{name}.h5"))
    return folder


@pytest.mark.parametrize("name, code, decision", [
    ("more", 4, "worse"), ("less", 0, "better"), ("near", 5, "open"), ("unmet", 4, "worse"), ("base", 0, "alike"),
    ("two", 5, "open"), ("short", 5, "open"), ("slow", 5, "open"), ("tuned", 4, "worse")])
def test_a_change_is_decided_and_the_exit_code_says_how(change, tmp_path, name, code, decision):
    decided(change / "base.h5", change / f"{name}.h5", "--out", tmp_path / "v.json", code=code)
    found = json.loads((tmp_path / "v.json").read_text())
    assert found["decision"] == decision and found["ledger"] is None
    assert found["decisions"][0]["unmet"] == [0, {"unmet": 4, "short": 3, "slow": 1}.get(name, 0)]
    assert found["decisions"][0]["reason"] == {"base": "same", "two": "few", "short": "unmet"}.get(name)
    assert (found["chance"] <= 0.05) == (decision != "open")
    assert (found["runs_more"][0] or 0) >= (1 if name == "two" else 0)
    assert (found["smallest_difference"] is None) == (name in ("two", "short"))


def test_the_best_of_a_search_is_decided_by_its_repeats(change, tmp_path, worded):
    names = [change / f"{name}.h5" for name in ("search", "tuned-3", "tuned-9")]
    worded(" ".join(decided(*names[:2], code=5).split()), about="give the")
    assert "after 3 and 3 runs" in decided(*names[1:], "--out", tmp_path / "v.xml", code=4)
    suite = ElementTree.parse(tmp_path / "v.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    worded(decided(names[0], names[0], code=0), about="all pairs")


def test_the_best_of_several_settings_pays_for_each(change, tmp_path):
    for name in ("tuned", "one"):
        decided(change / "base.h5", change / f"{name}.h5", "--out", tmp_path / f"{name}.json", code=4)
    chances = [json.loads((tmp_path / f"{name}.json").read_text())["chance"] for name in ("tuned", "one")]
    assert chances[0] == pytest.approx(2 * chances[1])


def test_errors_over_few_examples_are_no_certainty(tmp_path):
    for wrong, first in ((0.05, 0), (0.04, 3)):
        save(log(*(trial(at, (0, 50, 100), (0.9, 0.06, wrong), seed=at) for at in range(first, first + 3))),
             str(tmp_path / f"{wrong}.h5"))
    decided(tmp_path / "0.05.h5", tmp_path / "0.04.h5", "--by", "metric", code=5)


@pytest.mark.parametrize("by", ["seconds", "cost", "throughput", "metric"])
def test_what_decides_can_be_chosen(change, tmp_path, by):
    more = ["--budget", "200 steps"] if by == "metric" else []
    done = invoke(change / "base.h5", change / "less.h5", "--decide", "--by", by, *more, "--out", tmp_path / "v.json")
    assert done.exit_code in (0, 5), done.output
    assert json.loads((tmp_path / "v.json").read_text())["decisions"][0]["measure"] == {
        "throughput": "examples_per_second", "metric": "best"}.get(by, "seconds")


def test_a_ledger_counts_each_comparison_once(change, tmp_path, worded):
    ledger, chances = tmp_path / "l.json", []
    for name in ("less", "more", "less", "more"):
        decided(change / "base.h5", change / f"{name}.h5", "--ledger", ledger, "--out", tmp_path / "v.json",
                code=4 if name == "more" else 0)
        chances.append(json.loads((tmp_path / "v.json").read_text())["chance"])
    assert chances[:2] == chances[2:] and len(json.loads(ledger.read_text())["comparisons"]) == 2
    invoke(change / "base.h5", change / "less.h5", "--decide", "--by", "seconds", "--ledger", ledger)
    assert len(json.loads(ledger.read_text())["comparisons"]) == 3           # another measure, another comparison
    other = invoke(change / "more.h5", change / "base.h5", "--decide", "--ledger", ledger)
    worded(other.output, about="is of")
    assert other.exit_code == 2
    worded(invoke(change / "base.h5", change / "less.h5", "--decide", "--ledger", ledger, "--confidence", "0.9").output,
           about="is kept")
    ledger.write_text("[]")
    assert invoke(change / "base.h5", change / "less.h5", "--decide", "--ledger", ledger).exit_code == 1


def test_the_noise_of_reruns_is_what_a_t_test_sees(change, tmp_path):
    done = CliRunner().invoke(noise, [str(change / "base.h5"), "--out", str(tmp_path / "n.json")])
    assert done.exit_code == 0, done.output
    rows = {row["measure"]: row for row in json.loads((tmp_path / "n.json").read_text())["noise"]}
    row, steps = rows["steps to val/error<0.2"], np.array([400, 420, 380, 410, 395])
    spread = np.sqrt(np.var(np.log(steps), ddof=1) + np.mean(np.log(steps / (steps - EVERY)) ** 2) / 12)
    assert row["spread"] == pytest.approx(spread) and row["smallest"]["1"] > row["smallest"]["10"]
    effect = np.log1p(row["smallest"]["5"]) / (spread * np.sqrt(2 / 5))
    assert scipy.stats.nct.cdf(scipy.stats.t.ppf(0.975, 4), 4, effect) == pytest.approx(0.2, abs=1e-3)
    assert CliRunner().invoke(noise, [str(change / "two.h5")]).exit_code == 2


@pytest.mark.parametrize("dataset, model", [("imagenet", "resnet_50"), ("resnet", "reference")])
def test_the_check_of_mlperf_passes_runs_like_the_reference_and_fails_faster_ones(dataset, model):
    def chances(epochs):
        found = [trial(at, (0, round(epochs * factor * 1281167 / 4096)), (0.9, 0.1), seed=at, batch=4096,
                       dataset=dataset, model=model, train_examples=1281167)
                 for at, factor in enumerate((0.98, 0.99, 1.0, 1.01, 1.02))]
        [one] = {id(one.cell): one for one in floors(read_trials(log(*found)))}.values()
        return chances_to_pass(one.cell, one.workload)
    assert chances(40)[0] == 1 and chances(40)[2] > 0.9 and chances(35)[0] == 0 and chances(35)[10] < 0.05
