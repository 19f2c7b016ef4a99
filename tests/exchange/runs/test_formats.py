"""Runs of other programs, each format through the command: the log says what the runs say."""
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.exchange.runs.formats import read_runs
from hvdscale.cli.report import main as report
from hvdscale.log.check import check
from hvdscale.log.schema import Status
from hvdscale.plan.settings import tomllib
from tests.exchange.test_tables_and_rcp import call, taken
from tests.factories import found_runs
from tests.factories.found_runs import RUNS, csv_text, curve, steps_to_target, write_events, write_runs

# seconds until step 24
SECONDS = {"event files": 24, "Lightning's CSV": None, "W&B's history": 48, "Ray's progress": 48, "AlgoPerf": 48,
           "lines": 0.3, "JSON lines": 48, "trainer_state.json": 48, "MLflow's folder": 48, "MLflow's database": 48}


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
    log, _ = taken(source, tmp_path / "log.h5")
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


def cases(name):
    """What a file beside this one has, by name."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())


@pytest.mark.parametrize("of", (printed := cases("printed")).values(), ids=printed)
def test_what_trainers_print_is_read(of, tmp_path):
    (tmp_path / of["file"]).write_text(of["text"])
    log, _ = taken(tmp_path / of["file"], tmp_path / "log.h5", "--set-size", 640)
    assert log.trials["global_batch"].tolist() == [64]
    found = [[[step, value] for step, value in zip(log.evaluations["step"].tolist(),
                                                   log.evaluations[column].tolist()) if value == value]
             for column in log.evaluations.columns if "/" in column]
    assert of["evaluations"] in found
    assert "seconds" not in of or log.evaluations["train_seconds"][-1] == pytest.approx(of["seconds"])


@pytest.mark.parametrize("of", (meant := cases("meant")).values(), ids=meant)
def test_settings_and_counters_are_read_as_their_program_means_them_or_refused_with_the_next_move(of, tmp_path):
    for name, text in of["files"].items():
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_text(text, of.get("encoding", "utf-8"))
    code, said = call("import", tmp_path / "runs", tmp_path / "log.h5", *of.get("words", ()))
    if "refused" in of:
        assert code == 1 and of["refused"] in said.replace("\n", " ")
        return
    assert code == 0 and of.get("said", "") in said.replace("\n", " "), said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [of["batch"]]
        assert ('"workers": null' in log.trials["source"][0]) == (not of["workers"])
        assert log.trials["workers"].tolist() == [of["workers"] or 1]
        columns = [name for name in log.evaluations.columns if name.startswith("val/")]
        measured = ~np.isnan([log.evaluations[name] for name in columns]).all(axis=0)
        assert log.evaluations["step"][measured].tolist() == of["steps"]
        assert log.trials["status"].tolist() == [Status[of.get("status", "COMPLETE")]]
        assert "rates" not in of or log.steps["lr"].tolist() == of["rates"]
        assert "times" not in of or log.evaluations["train_seconds"].tolist() == of["times"]


def test_rows_of_several_runs_without_a_name_are_runs_where_their_settings_tell_them_apart(tmp_path, worded):
    rows = [f"{batch},{step},{1 / step}\n" for batch in (32, 64) for step in (10, 20, 30)]
    (tmp_path / "m.csv").write_text("batch_size,step,val_loss\n" + "".join(rows))
    assert [(run.parameters["batch_size"], run.rows) for run in read_runs([str(tmp_path)])] == [(32, 3), (64, 3)]
    (tmp_path / "m.csv").write_text("batch_size,step,val_loss\n" + "".join(rows + rows))
    worded(call("import", tmp_path, tmp_path / "log.h5")[1].replace("\n", " "))


def test_an_event_file_with_a_wrong_byte_is_refused_and_a_torn_one_incomplete(tmp_path):
    pytest.importorskip("tensorboard")
    found_runs.event_files(tmp_path / "b4", 4, 1)
    [file] = (tmp_path / "b4").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    assert "is damaged in event" in call("import", tmp_path / "b4", tmp_path / "log.h5")[1].replace("\n", " ")
    file.write_bytes(data[:500])
    log, _ = taken(tmp_path / "b4", tmp_path / "log.h5")
    assert log.trials["status"].tolist() == [Status.INCOMPLETE]


# folders of event files in a run's folder, (tag, step, value) in each, and the evaluations that they make
SPLIT_EVENTS = {
    "Keras' callback": ({"train": [("epoch_loss", 0, 2.0), ("epoch_loss", 1, 1.5)],
                         "validation": [("epoch_loss", 0, 2.5), ("epoch_loss", 1, 1.75)]}, [10, 20]),
    "Keras' callback, evaluated in steps": (
        {"train": [("epoch_loss", 0, 2.0), ("epoch_loss", 1, 1.5)],
         "validation": [("epoch_loss", 0, 2.5), ("evaluation_loss_vs_iterations", 8, 2.5), ("epoch_loss", 1, 1.75),
                        ("evaluation_loss_vs_iterations", 16, 1.75)]}, [8, 16]),
    "add_scalars": ({"": [("lr", 1, 0.1)], "A_loss_train": [("A/loss", 5, 2.0)],
                     "A_loss_val": [("A/loss", 5, 2.5), ("A/loss", 15, 1.75)]}, [5, 15]),
    "Estimator": ({"": [("loss", 5, 2.0)], "eval": [("loss", 5, 2.5), ("loss", 15, 1.75)]}, [5, 15])}


@pytest.mark.parametrize("how", SPLIT_EVENTS)
def test_event_files_of_splits_and_series_are_of_one_run(how, tmp_path):
    pytest.importorskip("tensorboard")
    folders, steps = SPLIT_EVENTS[how]
    for name, points in folders.items():
        write_events(tmp_path / "tb" / "b64" / name, points)
    log, _ = taken(tmp_path / "tb", tmp_path / "log.h5", "--set-size", 640)
    assert log.trials["global_batch"].tolist() == [64]
    [column] = [name for name in log.evaluations.columns if name.startswith("val/")]
    assert list(zip(log.evaluations["step"].tolist(), log.evaluations[column].tolist())) == [
        (steps[0], 2.5), (steps[1], 1.75)]


@pytest.mark.parametrize("file, settings", [
    (".hydra/config.yaml", "seed: 3\ndata:\n  name: digits\n  batch_size: 64\noptim:\n  lr: 0.5\n"),
    ("config.yaml", "_wandb:\n    value:\n        cli: 1\nbatch_size:\n    desc: null\n    value: 64\n"
     "seed:\n    value: 3\nlr:\n    value: 0.5\n"),
    ("config.yaml", "batch_size: 64   # of all workers\nseed: 3\noptim: {}\nlr: 0.5\n"),
    ("config.json", '{"batch_size": 64, "seed": 3, "optim": {"lr": 0.5}}')])
def test_settings_that_lie_beside_lines_of_text_are_parameters(file, settings, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(settings)
    (tmp_path / "train.log").write_text("step=10 val_loss=8.5\n")
    log, _ = taken(tmp_path, tmp_path / "log.h5")
    assert [log.trials[one][0] for one in ("global_batch", "seed", "metaparameters/learning_rate")] == [64, 3, 0.5]


def test_a_chart_exported_from_wandb_has_a_run_a_column(tmp_path):
    rows = [(step, errors[0], errors[0], errors[0], errors[1], errors[1], errors[1]) for step, errors in (
        (100, (0.5, np.nan)), (200, (0.25, 0.375)))]
    columns = [f"w{run}-b{run * 8}-s{run} - val/error{end}" for run in (1, 2) for end in ("", "__MIN", "__MAX")]
    (tmp_path / "chart.csv").write_text(csv_text(["Step", *columns], rows))
    log, _ = taken(tmp_path / "chart.csv", tmp_path / "log.h5")
    assert log.trials["global_batch"].tolist() == [8, 16] and log.trials["workers"].tolist() == [1, 2]
    assert log.evaluations["val/error"].tolist() == [0.5, 0.25, 0.375]
    assert log.evaluations["step"].tolist() == [100, 200, 200]


# tables of several runs: header, a row for each (number, batch, rate), {batch: its evaluations} and what --map says
TABLES = {
    "W&B's runs": ("Name,State,Runtime,batch_size,lr,_step,val/error", "swift-{0},finished,60,{1},{2},1000,0.{0}1", ""),
    "W&B's runs of one name": ("Name,State,batch_size,lr,_step,val/error", "a,finished,{1},{2},1000,0.{0}1", ""),
    "Optuna": ("number,value,params_batch_size,params_lr,state", "{0},0.{0}1,{1},{2},COMPLETE",
               'step = 1000\n[tags]\nvalue = "val/error min"\n'),
    "MLflow's search": ("run_id,status,metrics.val_error,metrics.steps,params.batch_size,params.lr",
                        "a{0},FINISHED,0.{0}1,1000,{1},{2}", ""),
    "a spreadsheet": ("batch_size,lr,steps,val_error", "{1},{2},1000,0.{0}1", ""),
    "histories": ("name,step,batch_size,lr,val_error", "x{0},500,{1},{2},0.9\nx{0},1000,{1},{2},0.{0}1", "")}


@pytest.mark.parametrize("of", TABLES)
def test_a_table_of_runs_has_a_trial_for_each(of, tmp_path):
    header, row, mapping = TABLES[of]
    runs = [(at, batch, rate) for at, (batch, rate) in enumerate((b, r) for b in (32, 64) for r in (0.1, 0.2, 0.3))]
    (tmp_path / "trials.csv").write_text("\n".join([header, *(row.format(*run) for run in runs), ""]))
    (tmp_path / "map.toml").write_text(mapping)
    log, _ = taken(tmp_path, tmp_path / "log.h5", *["--map", tmp_path / "map.toml"] * bool(mapping))
    assert log.trials["global_batch"].tolist() == [batch for _, batch, _ in runs]
    assert log.trials["metaparameters/learning_rate"].tolist() == [rate for *_, rate in runs]
    for at, *_ in runs:
        assert log.evaluations.of_trial("step", at)[-1] == 1000
        assert log.evaluations.of_trial("val/error", at)[-1] == pytest.approx(float(f"0.{at}1"))


def test_runs_that_a_table_says_have_crashed_are_incomplete(tmp_path):
    (tmp_path / "runs.csv").write_text("Name,State,batch_size,_step,heads,val/error\na,finished,32,9,4,0.1\n"
                                       "b,crashed,32,9,8,0.2\n")
    log, _ = taken(tmp_path, tmp_path / "log.h5")
    assert log.trials["stop_reason"].tolist() == ["the run's files say no more", "cut short: its state is crashed"]
    assert [Status(one).name for one in log.trials["status"]] == ["COMPLETE", "INCOMPLETE"]
    assert [json.loads(plan)["problem"]["config"] for plan in log.trials["plan"]] == [{"heads": 4}, {"heads": 8}]


def test_a_run_that_was_cut_short_counts_in_a_report_as_far_as_it_was_evaluated(tmp_path):
    lines = "".join(f"step {step}: train loss {9 / step}, val loss {8 / step}\n" for step in (10, 20, 30))
    (tmp_path / "b64.log").write_text(f"{lines}Traceback (most recent call last):\nRuntimeError: out of memory\n")
    shown = CliRunner().invoke(report, [str(tmp_path), "--target", "val/loss<0.5"]).output
    assert "took 20 steps" in shown and "Cut short: 1 of 1 trial INCOMPLETE" in shown


def test_a_history_with_a_batch_that_grows_is_one_run(tmp_path):
    (tmp_path / "log.csv").write_text("id,step,batch_size,val/error\n0,10,32,0.5\n1,20,64,0.4\n2,30,64,0.3\n")
    [run] = read_runs([str(tmp_path)])
    assert run.series["step"].values.tolist() == [10, 20, 30]


def test_epochs_of_keras_are_steps_once_the_size_of_the_set_is_known(tmp_path, worded):
    for batch in (4, 7):
        (tmp_path / f"b{batch}.csv").write_text("epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2,0.5,1.5\n"
                                                "1,0.75,1,0.625,1.25\n")
    code, said = call("import", tmp_path, tmp_path / "log.h5")
    worded(said, about="steps are")
    assert code == 1
    log, _ = taken(tmp_path, tmp_path / "log.h5", "--set-size", 64)
    assert log.evaluations["step"].tolist() == [16, 32, 10, 20]
    assert log.evaluations.specs["val/accuracy"].better == "larger"
    assert log.evaluations["train/loss"].tolist() == [2, 1, 2, 1]


MALFORMED = {
    "m.csv": ("step,val/error\n1,0.5\n2,0.4,7\n", "m.csv:3: has 3 cells where the header has 2"),
    "n.csv": (b"step,val/error\n1,\xff\n", "n.csv:2: is not text in UTF-8"),
    "trainer_state.json": ('{"log_history": [{"loss": 1}]}', "an entry of its log_history has no step"),
    "mlflow.db": (b"SQLite format 3\0" + b"x" * 100, "is no database of MLflow"),
    "r.tsv": ("step\tloss\n1\t0.5\n2\n", "r.tsv:3: has 1 cell where the header has 2"),
    "q.jsonl": ('{"step": 1, "val/error": 0.5}\n{"step": 2}\nnone\n{"step": 3}\n', "q.jsonl:3: is no object of JSON"),
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
    log, _ = taken(tmp_path / "b8", tmp_path / "b16", tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert log.trials["global_batch"].tolist() == [8, 16]
    assert log.evaluations["step"].tolist() == [10, 20, 30] * 2
    assert log.evaluations["val/loss"].tolist() == [108.5] * 3 + [1016.5] * 3
    assert log.steps["loss"].tolist() == [1, 2, 3] * 2


def test_of_json_lines_without_a_known_counter_a_mapping_says_what_counts(tmp_path):
    (tmp_path / "b64.json").write_text('{"at": 10, "val_loss": 8.6}\n{"at": 20, "val_loss": 8.5}\n')
    said = call("import", tmp_path / "b64.json", tmp_path / "log.h5")[1].replace("\n", " ")
    assert 'there are the tags at, val_loss; step = "TAG" in a file for --map' in said
    (tmp_path / "map.toml").write_text('step = "at"')
    log, _ = taken(tmp_path / "b64.json", tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert log.evaluations["step"].tolist() == [10, 20]


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
    log, said = taken(source, tmp_path / "log.h5", "--skip-broken")
    assert "left out: " in said and "trainer_state.json: is not JSON" in said
    assert log.trials.rows == len(RUNS)
