"""hvdscale-plan: what it says, what it writes, and what it makes of bad values and of logs that do not tell."""
import csv
import json
import re

import pytest
from click.testing import CliRunner

from hvdscale.cli.plan import main, seconds_of, workers_of
from hvdscale.cli.report import main as report
from hvdscale.formatting.numbers import duration
from tests.factories.logs import log, save, trial
from tests.factories.studies import TARGETS, drawn
from tests.analysis.test_worker_plan import COUNTS, noisy, probe, run
from tests.wording import naming

LINKS = ("--bandwidth", 10, "--latency", 20, "--parameters", "25.6M")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def series(folder):
    """Two runs each at 1 to 64 workers of a known cluster, four to a node; the fastest is 32 workers."""
    return save(log(*(run(workers, seed=seed) for workers in COUNTS for seed in range(2))), folder / "series.h5")


@pytest.fixture(scope="module")
def short(folder):
    """The same runs at 1 to 4 workers, all on one node."""
    return save(log(*(run(workers) for workers in COUNTS[:3])), folder / "short.h5")


def said(*arguments, code=0):
    done = CliRunner().invoke(main, [str(argument) for argument in (*arguments, "--full")])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_the_screen_is_the_verdict_one_table_and_findings_unless_all_is_asked_for(series, worded):
    short = CliRunner().invoke(main, [series, "--workers", "1,2,128", "--local-batch", "32"]).output
    whole = CliRunner().invoke(main, [series, "--workers", "1,2,128", "--local-batch", "32", "--full"]).output
    worded(short, about="more table")
    assert len(short.splitlines()) <= 60
    worded(whole, about="How to")
    assert "The step-time model" not in short and "The step-time model" in whole


def test_times_from_other_logs_are_the_only_ones(series, tmp_path):
    """Steps of runs elsewhere, times of the machine to plan for: 0.2 s a step with one worker, 0.15 s with two."""
    folder = tmp_path / "probes"
    folder.mkdir()
    for workers, seconds in ((1, 0.2), (2, 0.15)):
        probed = probe(workers, noise=None)
        probed.step_seconds[:] = seconds
        save(log(probed), folder / f"w{workers}.h5")
    said(series, "--times-from", folder, "--workers", "1,2", "--local-batch", 32, "--out", tmp_path, "--format", "json")
    [plan] = json.loads((tmp_path / "plan.json").read_text())["plans"]
    one, two = ({name: cell["value"] for name, cell in row["cells"].items()} for row in plan["tables"][0]["rows"])
    assert (one["step_ms"], two["step_ms"]) == (pytest.approx(200), pytest.approx(150))
    assert two["seconds_to_target"] == pytest.approx(0.15 * two["steps_to_target"])
    assert {one["log"] for timing in plan["step_times"]["timings"] for one in timing["trials"]} == {
        str(folder / "w1.h5"), str(folder / "w2.h5")}


@pytest.mark.parametrize("other, difference", [
    ({"train_examples": 7000}, ["training examples", "7,000", "1,000"]),
    ({"train_examples": 0}, ["training examples", "unknown", "1,000"])])
def test_times_that_join_no_run_name_what_differs(series, tmp_path, other, difference):
    probes = save(log(trial(steps=(), error=(), target=None, step_seconds=[0.1] * 50, **other)), tmp_path / "probe.h5")
    found = said(series, "--times-from", probes, code=1)
    assert re.search(naming("--times-from", *difference, "--probe"), found) and "--noise-scale" not in found


def test_the_files_say_what_the_screen_says(series, tmp_path):
    said(series, "--workers", "1-64", "--local-batch", 32, "--price", 2, "--per-node", 4, "--out", tmp_path)
    values = json.loads((tmp_path / "plan.json").read_text())
    assert (values["format"], values["version"]) == ("hvdscale-plan", 1)
    [plan] = values["plans"]
    assert plan["fastest"] == 32 and plan["knee"] in plan["pareto_front"] and plan["target"] == "val/error<0.2"
    rows = plan["tables"][0]["rows"]
    for row in rows:
        cells = {name: cell["value"] for name, cell in row["cells"].items()}
        assert cells["seconds_to_target"] == pytest.approx(cells["steps_to_target"] * cells["step_ms"] / 1000)
        assert cells["cost"] == pytest.approx(-(-cells["workers"] // 4) * cells["seconds_to_target"] / 3600 * 2)
        assert row["trials"] and row["cells"]["steps_known"]["shown"] == "measured"
    [table] = (tmp_path / "tables").glob("*-0.2-plan.csv")
    with open(table) as file:
        lines = list(csv.DictReader(file))
    assert [int(line["workers"]) for line in lines] == list(COUNTS)
    assert [float(line["seconds_to_target"]) for line in lines] == [
        row["cells"]["seconds_to_target"]["value"] for row in rows]
    figures = sorted(path.name.rsplit("-plan-", 1)[1] for path in (tmp_path / "figures").iterdir())
    assert figures == [f"{name}.{kind}" for name in ("cost", "speedup", "time") for kind in ("png", "svg")]
    assert b"32 workers" in next((tmp_path / "figures").glob("*-plan-time.svg")).read_bytes()


def test_only_the_formats_asked_for_are_written(series, tmp_path):
    said(series, "--out", tmp_path, "--format", "json")
    assert [path.name for path in tmp_path.rglob("*")] == ["plan.json"]
    assert "choose from html, json, csv, svg, png" in said(series, "--format", "pdf", code=2)


@pytest.mark.parametrize("limits", [("--deadline", "10h"), ("--deadline", "10h", "--budget", 1e9)])
def test_no_chance_is_certain_and_numbers_are_said_once(series, limits, worded):
    text = said(series, "--local-batch", 32, "--price", 2, "--workers", "1-64", *limits)
    worded(text, about="sure that")
    assert "100%" not in text and "> 95%" in text
    sentences = text[:text.index("How to read this")]
    numbers = [found[1] for found in re.finditer(r"batch [\d,]+: ([\d.]+ min)", sentences)]
    assert len(numbers) == len(set(numbers)) >= 2


def test_a_warning_names_the_best_trials_seeds_that_missed_the_target(folder):
    met = (900, 500, 700)

    def point(number):
        return {"lr": 0.05 * (number + 1), "momentum": 0.99}
    searched = [drawn(number, steps, batch=256, point=point(number)) for number, steps in enumerate(met)]
    searched += [drawn(1, batch=256, repeat=repeat, point=point(1)) for repeat in (1, 2)]
    text = said(save(log(*searched), folder / "unsure.h5"), "--workers", "1", "--deadline", "1h")
    assert re.search("at batch 256 only 1 of 3 seeds .* 33% of runs .* 3.0 runs", text)
    assert "Out of reach" in text and "sure that" not in text


def test_a_choice_that_hangs_on_priors_is_said_to_be_assumed(short, tmp_path, worded):
    text = said(short, "--local-batch", 32, "--workers", "1-64", "--deadline", "10h", "--out", tmp_path, "--format",
                "json")
    worded(text, about="rests on")
    worded(text, about="laws that")
    [found] = json.loads((tmp_path / "plan.json").read_text())["plans"]
    assert found["assumed"] == ["one run", "timed once", "links", "rates"]


def test_a_batch_beyond_those_run_is_marked_with_the_interval_of_its_steps(series, tmp_path):
    text = said(series, "--workers", "1,512", "--local-batch", 32, "--out", tmp_path)
    assert "extrapolated beyond batch 2,048" in text and "~2,0" in text
    [found] = json.loads((tmp_path / "plan.json").read_text())["plans"]
    first, last = (row["cells"] for row in found["tables"][0]["rows"])
    assert (first["steps_known"]["shown"], last["steps_known"]["shown"]) == ("measured", "extrapolated")
    assert last["steps_to_target"]["low"] < last["steps_to_target"]["value"] < last["steps_to_target"]["high"]
    [figure] = (tmp_path / "figures").glob("*-time.svg")
    assert b"beyond batches run" in figure.read_bytes()


def test_the_cost_figure_has_every_row_of_the_table(short, tmp_path):
    said(short, "--local-batch", 32, "--workers", "1-64", "--out", tmp_path, "--format", "svg")
    [figure] = (tmp_path / "figures").glob("*-cost.svg")
    drawn = figure.read_bytes()
    assert all(f">{workers}</text>".encode() in drawn for workers in (8, 16, 32, 64))
    assert b"not measured, beyond batches run" in drawn and b">measured<" in drawn


def test_what_may_be_faster_beyond_what_was_run_is_said_first_with_what_to_run_next(folder, tmp_path, worded):
    path = save(log(*(noisy(workers, seed) for workers in (1, 2) for seed in range(2))), folder / "open.h5")
    text = said(path, "--workers", "1-64", "--per-node", 64, "--out", tmp_path, "--format", "json,svg")
    worded(text, about="At least")
    worded(text, about="The expected")
    assert "No gain beyond" not in text
    decision = json.loads((tmp_path / "plan.json").read_text())["plans"][0]["decision"]
    assert decision["most_workers_measured"] == 2 and decision["fastest_at_most_workers"] == 64
    assert decision["next"]["expected_loss_after"] < decision["next"]["expected_loss"] == decision["fastest"][
        "expected_loss"]
    [figure] = (tmp_path / "figures").glob("*-time.svg")
    assert b"may be faster, not seen to meet the target" in figure.read_bytes()


def test_no_gain_is_said_only_where_the_draws_say_so(series):
    text = said(series, "--workers", "1-4096", "--local-batch", 32)
    assert re.search(r"No gain beyond \d+ workers: more take longer \(95% sure\)\.", text)
    assert "No gain" not in said(series, "--workers", "1-16", "--local-batch", 32)


def test_steps_that_say_nothing_of_b_crit_leave_the_fastest_open(folder):
    steps = {1: (200, 2000), 2: (1900, 300), 4: (250, 1500)}
    runs = [trial(10 * workers + seed, (0, count), (0.9, 0.1), (0, 0.5 * count), workers=workers, batch=32 * workers,
                  seed=seed, eval_every=1, local_workers=workers) for workers in steps
            for seed, count in enumerate(steps[workers])]
    text = said(save(log(*runs), folder / "nothing.h5"), "--workers", "1,4,16", "--local-batch", 32, *LINKS)
    assert re.search("(Up to|up to) 16 may be", text)
    unmet = [trial(seed, (0, 900), (0.9, 0.8), (0, 450), workers=8, batch=256, seed=seed, eval_every=1,
                   local_workers=8) for seed in (80, 81)]
    assert "inf" not in said(save(log(*runs, *unmet), folder / "unmet_beyond.h5"), "--workers", "1-8")


@pytest.mark.parametrize("text, seconds", [("90m", 5400), ("2h", 7200), ("1d", 86400), ("30s", 30), ("1h30m", 5400),
                                           ("1.5 h", 5400), ("10min", 600)])
def test_a_deadline_has_its_unit(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("seconds, shown, rough", [
    (0, "0 s", "0 s"), (0.5, "0.500 s", "0 s"), (90, "90.0 s", "90 s"), (600, "10.0 min", "10 min"),
    (8000, "2.22 h", "2 h"), (3 * 86400, "3.00 d", "3.0 d"), (9e5, "10.4 d", "10.4 d")])
def test_times_are_written_in_the_unit_that_reads_best(seconds, shown, rough):
    assert (duration(seconds), duration(seconds, rough=True)) == (shown, rough)


def test_a_range_of_workers_is_its_doublings_by_whole_nodes():
    assert workers_of("1-16") == (1, 2, 4, 8, 16)
    assert workers_of("1-50", 6) == (1, 2, 4, 6, 12, 24, 48, 50)
    assert workers_of("3, 1-4,96") == (1, 2, 3, 4, 96)


def test_far_beyond_what_was_run_times_have_wide_ends_and_the_laws_are_named(series, tmp_path):
    said(series, "--workers", "1-4096", "--local-batch", 32, "--out", tmp_path)
    [found] = json.loads((tmp_path / "plan.json").read_text())["plans"]
    laws = {law["name"]: law["refuted"] for law in found["step_times"]["laws"]}
    assert {"ring", "tree", "linear latency"} == set(laws) and not all(laws.values())
    times = [row["cells"]["seconds_to_target"] for row in found["tables"][0]["rows"]]
    widths = [cell["high"] / cell["low"] for cell in times[COUNTS.index(64):]]
    assert widths == sorted(widths) and widths[-1] < 1e3


def test_a_report_recommends_by_its_intervals_and_names_what_it_omits(folder, worded):
    crowded = [run(workers, seed=seed, cores=2) for workers in (1, 2, 4) for seed in range(2)]
    for one in crowded:
        one.seconds *= 1 + 0.1 * one.row["seed"]
    assert ")#, " in said(save(log(run(2, cores=1), run(4, cores=1)), folder / "few.h5"), "--workers", "8")
    text = " ".join(CliRunner().invoke(report, [save(log(*crowded), folder / "report.h5")]).output.split())
    fastest = re.search(r"Fastest: 2 workers, batch 64: ([\d.]+) min \(([\d.]+)-([\d.]+)\)", text)
    value, low, high = (60 * float(number) for number in fastest.groups())
    worded(text, about="Left out")
    row = re.search(r" 2 64 2/2 20,700 ([\d,]+) .*? 20.49k-20.70k ([\d,]+)-([\d,]+) ", text)
    assert (value, low, high) == pytest.approx([float(number.replace(",", "")) for number in row.groups()], rel=0.01)


def test_workloads_are_planned_one_by_one_despite_failures(series, folder, worded):
    other = save(log(run(1, model="other"), run(2, model="other")), folder / "other.h5")
    unmet = save(log(trial(1, error=(0.9, 0.5, 0.4), model="third")), folder / "third.h5")
    text = said(series, other, unmet, "--workers", "1-4", "--local-batch", 32)
    assert text.count("By worker count: val/error<0.2") == 2
    assert "made/net, nesterov" in text and "made/other, nesterov" in text
    worded(text, about="not met")
    assert "made/third, nesterov" in text


def test_a_searched_batch_counts_its_best_trial_and_others_repeats(folder, tmp_path):
    searched = [drawn(number, steps, batch=256) for number, steps in enumerate((900, 700, 500, 600, 800))]
    plain = [trial(100 + seed, (0, 800, 900 + 10 * seed), (0.9, 0.5, 0.01), workers=2, batch=64, seed=seed,
                   target=TARGETS[-1]) for seed in range(2)]
    path = save(log(*searched, *plain), folder / "sweep.h5")
    said(path, "--workers", "1,2", "--out", tmp_path, "--format", "json")
    [found] = json.loads((tmp_path / "plan.json").read_text())["plans"]
    steps = {point["global_batch"]: point for point in found["steps"]}
    assert steps[256]["value"] == 500 and steps[256]["low"] < 500 and len(steps[256]["trials"]) == 1
    assert steps[64]["value"] == pytest.approx((900 * 910) ** 0.5) and len(steps[64]["trials"]) == 2


def test_searches_use_the_common_or_requested_number_of_trials(folder, tmp_path):
    draws = [drawn(number + batch, steps * 256 // batch, batch=batch, sweep={"draw": number})
             for batch, count in ((256, 5), (512, 5), (1024, 2))
             for number, steps in enumerate((1600, 1200, 400, 800, 2000)[:count])]
    path = save(log(*draws), folder / "uneven.h5")
    for options, expected in (((), {256: 800, 512: 400, 1024: 300}), (("--trials", 5), {256: 400, 512: 200})):
        said(path, "--workers", "1,2", *options, "--out", tmp_path, "--format", "json")
        [found] = json.loads((tmp_path / "plan.json").read_text())["plans"]
        assert {point["global_batch"]: point["value"] for point in found["steps"]} == expected


def test_a_probe_without_the_noise_scale_says_what_would_do(folder):
    path = save(log(probe(1, None)), folder / "quiet.h5")
    assert "A prediction" in said(path, "--noise-scale", 600, "--workers", "1")
    assert "times compare" in said(path, "--global-batch", 32, "--workers", "1")
