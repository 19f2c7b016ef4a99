"""Runs of other programs, each format through the command: the log says what the runs say."""
import numpy as np
import pytest

from hvdscale.exchange.runs.formats import read_runs
from hvdscale.log.check import check
from tests.exchange.test_tables_and_rcp import call
from tests.factories import found_runs
from tests.factories.found_runs import RUNS, csv_text, curve, steps_to_target, write_runs

# seconds until step 24
SECONDS = {"event files": 24, "Lightning's CSV": None, "W&B's history": 48, "Ray's progress": 48, "AlgoPerf": 48,
           "lines": 0.3, "trainer_state.json": 48, "MLflow's folder": 48, "MLflow's database": 48}


def steps_of(log):
    """Steps to the target by batch and seed, as the log has them."""
    found = {}
    for row, trial in enumerate(log.trials["id"].tolist()):
        step, error = (log.evaluations.of_trial(name, trial) for name in ("step", "val/error"))
        met = step[error < 0.2]
        found[log.trials["global_batch"][row], log.trials["seed"][row]] = int(met[0]) if len(met) else None
    return found


@pytest.mark.parametrize("how", SECONDS)
def test_runs_of_each_format_become_the_trials_that_they_were(how, tmp_path):
    if how == "event files":
        pytest.importorskip("tensorboard")
    source = write_runs(tmp_path / "made", how)
    code, said = call("import", source, tmp_path / "log.h5")
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert steps_of(log) == {run: steps_to_target(*run) for run in RUNS}
        rows = curve(log.trials["global_batch"][0], log.trials["seed"][0])
        errors = log.evaluations.of_trial("val/error", 0)
        np.testing.assert_allclose(errors[errors == errors], [row[2] for row in rows if row[2] == row[2]], rtol=1e-6)
        assert log.evaluations.specs["val/error"].better == "smaller"
        last = log.evaluations.of_trial("train_seconds", 0)[-1]
        assert np.isnan(last) if SECONDS[how] is None else last == pytest.approx(SECONDS[how], abs=1.1)
        steps, losses = (log.steps.of_trial(name, 0) for name in ("step", "loss"))
        if how != "lines":                      # whose loss is that of the step after
            np.testing.assert_allclose(losses, [rows[step - 1][1] for step in steps], rtol=1e-6)


def test_a_chart_exported_from_wandb_has_a_run_a_column(tmp_path):
    rows = [(step, errors[0], errors[0], errors[0], errors[1], errors[1], errors[1]) for step, errors in (
        (100, (0.5, np.nan)), (200, (0.25, 0.375)))]
    columns = [f"w{run}-b{run * 8}-s{run} - val/error{end}" for run in (1, 2) for end in ("", "__MIN", "__MAX")]
    (tmp_path / "chart.csv").write_text(csv_text(["Step", *columns], rows))
    assert call("import", tmp_path / "chart.csv", tmp_path / "log.h5")[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [8, 16] and log.trials["workers"].tolist() == [1, 2]
        assert log.evaluations["val/error"].tolist() == [0.5, 0.25, 0.375]
        assert log.evaluations["step"].tolist() == [100, 200, 200]


def test_epochs_of_keras_are_steps_once_the_size_of_the_set_is_known(tmp_path):
    for batch in (4, 7):
        (tmp_path / f"b{batch}.csv").write_text("epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2,0.5,1.5\n"
                                                "1,0.75,1,0.625,1.25\n")
    code, said = call("import", tmp_path, tmp_path / "log.h5")
    assert code == 1 and "train_examples: steps are in epochs" in said
    assert call("import", tmp_path, tmp_path / "log.h5", "--set-size", 64)[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.evaluations["step"].tolist() == [16, 32, 10, 20]
        assert log.evaluations.specs["val/accuracy"].better == "larger"
        assert log.evaluations["train/loss"].tolist() == [2, 1, 2, 1]


def test_events_beyond_ten_thousand_are_all_read(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(found_runs, "curve", lambda batch, seed: [(step, 1.0, np.nan) for step in range(1, 10_200)])
    found_runs.event_files(tmp_path / "b4", 4, 1)
    [run] = read_runs([str(tmp_path)])
    assert len(run.rows) == 10_199


MALFORMED = {
    "m.csv": ("step,val/error\n1,0.5\n2,0.4,7\n", "m.csv:3: has 3 cells where the header has 2"),
    "n.csv": (b"step,val/error\n1,\xff\n", "n.csv: is not text in UTF-8"),
    "trainer_state.json": ('{"log_history": [{"loss": 1}]}', "an entry of its log_history has no step"),
    "mlflow.db": (b"SQLite format 3\0" + b"x" * 100, "is no database of MLflow"),
    "o.csv": ("step,val/error\n-5,0.5\n", "step is -5, not a count"),
    "p.csv": ("step,val/error\n1.5,0.5\n", "step is 1.5, not a whole number of steps")}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_named_and_nothing_is_written(name, tmp_path):
    text, message = MALFORMED[name]
    folder = tmp_path / "b8"
    folder.mkdir()
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    code, said = call("import", folder, tmp_path / "log.h5")
    assert code == 1 and message in said.replace("\n", " ") and "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b8"]


LINES = r"""lines = 'it (?P<step>\d+)/\d+ tr (?P<train_loss>\S+) val (?P<val_loss>\S+)'"""


def test_lines_of_any_form_are_read_by_a_pattern_of_the_users_own(tmp_path):
    for batch in (8, 16):
        (tmp_path / f"b{batch}").mkdir()
        (tmp_path / f"b{batch}" / "out.txt").write_text("".join(
            f"[00:{step}] it {step}/30 tr {step / 10} val 1,0{batch}.5\n" for step in (10, 20, 30)))
    (tmp_path / "map.toml").write_text(LINES)
    code, said = call("import", tmp_path / "b8", tmp_path / "b16", tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [8, 16]
        assert log.evaluations["step"].tolist() == [10, 20, 30] * 2
        assert log.evaluations["val/loss"].tolist() == [108.5] * 3 + [1016.5] * 3
        assert log.steps["loss"].tolist() == [1, 2, 3] * 2


@pytest.mark.parametrize("lines, wrong", [
    ("'it (?P<step'", "not a regular expression"), (3, "not a regular expression"), ("'it (.*)'", "names the step")])
def test_a_pattern_that_is_none_is_refused_in_a_line(lines, wrong, tmp_path):
    (tmp_path / "map.toml").write_text(f"lines = {lines}")
    code, said = call("import", tmp_path, tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert code and wrong in said and not (tmp_path / "log.h5").exists()


def test_a_damaged_file_is_left_out_if_asked_to_and_named(tmp_path):
    source = write_runs(tmp_path / "made", "trainer_state.json")
    (source / "broken").mkdir()
    (source / "broken" / "trainer_state.json").write_text('{"x')
    code, said = call("import", source, tmp_path / "log.h5")
    assert code and "trainer_state.json: is not JSON" in said and not (tmp_path / "log.h5").exists()
    code, said = call("import", source, tmp_path / "log.h5", "--skip-broken")
    assert code == 0 and "left out: " in said and "trainer_state.json: is not JSON" in said
    with check(tmp_path / "log.h5") as log:
        assert log.trials.rows == len(RUNS)
