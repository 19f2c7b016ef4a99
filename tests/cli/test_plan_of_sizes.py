"""hvdscale-plan --size: batch, rate, steps and workers for a size that nobody has run."""
import json

import pytest
from click.testing import CliRunner

from hvdscale.cli.plan import main
from tests.factories.logs import save
from tests.factories.size_grids import grids, runs_to_target

FROM = ("--size-from", "parameters=gpt_([0-9.]+[MB])")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for made in runs_to_target():
        save(made, folder / made.path)
    return str(folder)


def said(*arguments, code=0):
    done = CliRunner().invoke(main, [*map(str, arguments), "--full"])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_the_plan_has_batch_steps_and_workers_and_says_how_far_it_reaches(runs, tmp_path):
    shown = said(runs, "--target", "val/error<0.2", "--size", "parameters=9.6e9", *FROM, "--max-local-batch", 32,
                 "--out", tmp_path, "--format", "json,csv")
    assert "Extrapolated 8.0 times beyond the largest size" in shown and "Workers for that batch" in shown
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


def test_runs_that_met_no_target_have_no_law(runs):
    shown = said(runs, "--size", "parameters=7e9", *FROM, "--target", "val/error<0.0001", code=1)
    assert "no workload has a critical batch" in shown and "--target" in shown
