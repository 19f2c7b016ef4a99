"""hvdscale-plan for a proposal: the machine's file, whole nodes, a campaign's hours and energy, memory, the page; and
for a size that nobody has run: batch, rate, steps and workers."""
import json
import re

import pytest

from tests.analysis.test_worker_plan import COUNTS, run
from tests.cli.test_plan_command import said
from tests.exchange.test_network import BANDWIDTH, LATENCY, nccl
from tests.factories.logs import log, save, trial
from tests.factories.size_grids import grids, runs_to_target
from tests.wording import answered, naming

MACHINE = {"per_node": 4, "price": 2.5, "power": 1500, "bandwidth": 10, "latency": 5}


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Two runs each at 1 to 16 workers, four to a node."""
    path = tmp_path_factory.mktemp("logs") / "series.h5"
    return save(log(*(run(workers, seed=seed) for workers in COUNTS[:5] for seed in range(2))), path)


def planned(folder, *arguments):
    """The plan of plan.json, and its rows by workers."""
    said(*arguments, "--out", folder, "--format", "json")
    [plan] = json.loads((folder / "plan.json").read_text())["plans"]
    return plan, {row["cells"]["workers"]["value"]: {name: cell["value"] for name, cell in row["cells"].items()}
                  for row in plan["tables"][0]["rows"]}


def machine(folder, **changes):
    path = folder / "cluster.json"
    path.write_text(json.dumps({**MACHINE, **changes}))
    return path


def test_a_machines_file_stands_for_options_which_go_before_it(series, tmp_path):
    plan, rows = planned(tmp_path, series, "--machine", machine(tmp_path), "--price", 4, "--parameters", "1M")
    assert (plan["request"]["per_node"], plan["request"]["price"], plan["request"]["power"]) == (4, 4, 1500)
    assert rows[16]["cost"] == pytest.approx(4 * 4 * rows[16]["seconds_to_target"] / 3600)


def test_the_network_of_a_file_is_that_of_the_options(series, tmp_path):
    (tmp_path / "nccl.txt").write_text(nccl(4))
    given = "--bandwidth", BANDWIDTH / 1e9, "--latency", 1e6 * LATENCY
    asked = "--parameters", "25.6M", "--workers", "1,64", "--per-node", 4
    _, by_options = planned(tmp_path, series, *given, *asked)
    _, by_file = planned(tmp_path, series, "--network", tmp_path / "nccl.txt", *asked)
    assert by_file[64]["step_ms"] == pytest.approx(by_options[64]["step_ms"], rel=0.02)
    assert "12.5 GB/s and 4.00 us a hop" in said(series, "--network", tmp_path / "nccl.txt", *asked)


def test_links_on_the_command_line_go_before_a_machines_network_and_the_other_way(series, tmp_path):
    (tmp_path / "nccl.txt").write_text(nccl(4))
    asked = series, "--parameters", "25.6M", "--workers", "1,64"
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"per_node": 4, "network": ["nccl.txt"]}))
    assert "Network, from" in said(*asked, "--machine", file)
    assert "Network, from" not in said(*asked, "--machine", file, "--bandwidth", 10, "--latency", 5)
    assert "Network, from" in said(*asked, "--machine", machine(tmp_path), "--network", tmp_path / "nccl.txt")


def test_a_machines_file_that_is_wrong_is_named_with_its_key(series, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refused(content):
        (tmp_path / "cluster.json").write_text(eval(content))
        return said(series, "--machine", "cluster.json", code=2)
    golden("machine", answered("machine", refused))


def test_whole_nodes_with_the_hours_and_the_energy_of_a_campaign(series, tmp_path):
    asked = "--nodes", "1-4", "--per-node", 4, "--runs", 12, "--power", 1500
    _, rows = planned(tmp_path, series, *asked)
    assert list(rows) == [4, 8, 16]
    for workers, row in rows.items():
        hours = 12 * workers / 4 * row["seconds_to_target"] / 3600
        assert (row["campaign_hours"], row["energy"]) == (pytest.approx(hours), pytest.approx(1.5 * hours))
        assert row["speedup"] == pytest.approx(rows[4]["seconds_to_target"] / row["seconds_to_target"])
        assert row["efficiency"] == pytest.approx(row["speedup"] * 4 / workers)
    text = said(series, *asked)
    assert "of 12 runs" in text and "kWh of 12" in text


def scripted(workers, local=32, bytes_of=lambda local: (1 + local / 64) * 2 ** 30, watts=()):
    """A run of hvdscale-scale script, as logged."""
    made = trial(workers, steps=(), error=(), target=None, step_seconds=[0.1] * 50, workers=workers,
                 batch=workers * local, dataset="train.py", model="script", optimizer="sgd", train_examples=0)
    plan = json.loads(made.row["plan"])
    plan["problem"]["script"], plan["execution"]["local_batch"] = "train.py", local
    plan["measured"] = {"parameters": 10 ** 6, "watts": watts, "peak_memory_bytes": [bytes_of(local)] * workers}
    made.row["plan"] = json.dumps(plan)
    return made


@pytest.fixture
def scaling(tmp_path):
    for workers, local in ((1, 32), (2, 32), (2, 64)):
        save(log(scripted(workers, local, watts=[200.0] * workers)), tmp_path / "scaling" / f"w{workers}-{local}.h5")
    return tmp_path / "scaling"


def test_times_of_a_script_join_the_one_workload_of_the_runs(series, scaling, tmp_path):
    text = said(series, "--times-from", scaling, "--workers", "1,2")
    assert "Step times of train.py are taken for those of made/net" in text and "do not overlap" not in text
    other = save(log(*(run(1, seed=seed, dataset="other") for seed in range(2))), tmp_path / "other.h5")
    assert re.search(naming("train.py", "2 workloads", "made/net", "other/net"),
                     said(series, other, "--times-from", scaling, code=2))


def test_batches_that_do_not_overlap_are_named(series, tmp_path, worded):
    save(log(scripted(1, 2)), tmp_path / "small.h5")
    worded(said(series, "--times-from", tmp_path / "small.h5", "--workers", "1,2"), about="steps are")


def test_memory_bounds_the_local_batch_by_what_the_logs_measured(series, scaling, tmp_path):
    """1 GiB and a 64th of one an example: 4 GiB hold 192."""
    plan, _ = planned(tmp_path, series, "--times-from", scaling, "--workers", "1,2", "--memory", 4)
    assert plan["request"]["max_local_batch"] == 192
    assert re.search(naming("--memory", "1.5 GiB", "32"), said(
        series, "--times-from", scaling / "w1-32.h5", "--memory", 1, code=2))


def test_the_parameters_and_the_power_that_logs_have_are_taken(series, scaling, tmp_path, worded):
    _, rows = planned(tmp_path, series, "--times-from", scaling, "--workers", "1,2", "--bandwidth", 10, "--latency", 5)
    assert rows[2]["energy"] == pytest.approx(2 * 0.2 * rows[2]["seconds_to_target"] / 3600)
    worded(said(series, "--times-from", scaling, "--workers", "1,2"), about="Energy is")


def test_the_page_has_the_time_first_and_what_is_measured_and_what_is_not(series, tmp_path):
    said(series, "--nodes", "1-16", "--per-node", 4, "--runs", 12, "--out", tmp_path)
    page = (tmp_path / "plan.html").read_text()
    assert "<title>Scaling plan: made/net</title>" in page
    places = [page.index(what) for what in ("Fastest", "<svg", "parallel", "node-hours of 12 runs", "<td>measured",
                                            "<td>extrapol.", "Method and provenance")]
    assert places == sorted(places) and page.index("plan-time") < page.index("plan-cost")


FROM = ("--size-from", "parameters=gpt_([0-9.]+[MB])")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for made in runs_to_target():
        save(made, folder / made.path)
    return str(folder)


def test_the_plan_has_batch_steps_and_workers_and_says_how_far_it_reaches(runs, tmp_path, worded):
    shown = said(runs, "--target", "val/error<0.2", "--size", "parameters=9.6e9", *FROM, "--max-local-batch", 32,
                 "--out", tmp_path, "--format", "json,csv")
    worded(shown, about="times beyond")
    worded(shown, about="Workers for")
    values = json.loads((tmp_path / "plan.json").read_text())
    found = {one["quantity"]: one for one in values["predictions"]}
    truth = 64 * 960 ** 0.5
    assert found["b_crit"]["low"] <= truth <= found["b_crit"]["high"] and not found["b_crit"]["refused"]
    batch, steps = found["overhead"], found["steps"]
    assert batch["low"] <= 0.2 * truth <= batch["high"] and steps["low"] <= 400 * 6 <= steps["high"]
    [workers] = [row["cells"]["value"] for row in values["tables"][0]["rows"]
                 if row["cells"]["quantity"]["shown"].startswith("Workers")]
    assert workers["value"] == -(-batch["value"] // 32)
    assert (tmp_path / "tables" / "plan-size-prediction.csv").exists()


def test_a_search_gives_batch_and_rate(tmp_path):
    for made in grids():
        save(made, tmp_path / made.path)
    shown = said(tmp_path, "--size", "parameters=2.4e9", *FROM)
    assert "Best batch" in shown and "Best learning rate" in shown and "2.0 x beyond" in shown


@pytest.mark.parametrize("asked, match", [
    (("--size", "parameters=1e15", *FROM), "more than 16; measure a size in between"),
    (("--size", "parameters=2e7", *FROM), "Inside the sizes that were measured")])
def test_a_size_far_beyond_is_refused(runs, asked, match):
    assert match in said(runs, "--target", "val/error<0.2", *asked)


@pytest.mark.parametrize("asked, match", [
    (("--size", "parameters"), "is one NAME=VALUE for each size, such as parameters=7e9"),
    (("--size", "parameters=7e9", *FROM, "--price", "2"), "--price beside --size: a size that was not run"),
    (("--size", "parameters=big", *FROM), "'big' is not a number above 0"),
    (FROM, "--size parameters=VALUE says what to plan for"),
    (("--size", "parameters=7e9"), "does not have it"),
    (("--size", "parameters=7e9", "--size", "parameters=8e9"), "is one NAME=VALUE")])
def test_what_cannot_be_planned_is_one_line(runs, asked, match):
    assert match in said(runs, "--target", "val/error<0.2", *asked, code=2)


def test_runs_that_met_no_target_have_no_law(runs, worded):
    shown = said(runs, "--size", "parameters=7e9", *FROM, "--target", "val/error<0.0001", code=1)
    worded(shown, about="no workload")
    assert "--target" in shown
