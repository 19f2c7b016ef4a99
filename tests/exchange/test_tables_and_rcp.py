"""hvdscale-log import and export: what a source is, and CSV tables both ways."""
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.curves import curve_of
from hvdscale.analysis.steps import RunToTarget
from hvdscale.analysis.studies import are_searched, studies_of
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.log import main
from hvdscale.cli.report import main as report
from hvdscale.errors import LogError
from hvdscale.exchange.csv_tables import import_tables
from hvdscale.exchange.exported import export_tables
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter
from hvdscale.report.pages import make
from hvdscale.target import Target
from tests.conftest import ROOT
from tests.factories.archives import write_archive, write_big_log
from tests.factories.log_files import begin, evaluation, finished, interrupted, open_log, step
from tests.wording import answered


def call(*words):
    """Exit code and output of hvdscale-log."""
    done = invoke(*words)
    return done.exit_code, done.output


def invoke(*words):
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def taken(*words):
    """The log that an import makes, which passes its check, and what the import said."""
    code, said = call("import", *words)
    assert code == 0, said
    return check(next(word for word in words if str(word).endswith(".h5"))), said


def same(a, b):
    """Whether two logs hold the same, bit for bit."""
    with read_log(a) as one, read_log(b) as two:
        assert one.attributes == two.attributes
        for left, right in zip(one.tables, two.tables):
            assert left.specs == right.specs and left.rows == right.rows
            for name in left:
                assert left[name].dtype == right[name].dtype
                if left[name].dtype.kind == "f":
                    np.testing.assert_array_equal(left[name].view(np.int64), right[name].view(np.int64), err_msg=name)
                else:
                    np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def odd_log(path):
    """A log whose numbers and texts are hard to write down."""
    log = open_log(path, attributes={"commit": 'a "b", c\nd', "versions": {"torch": "2"}, "seconds": 1.5})
    begin(log)
    for number, error in enumerate([0.1 + 0.2, np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e22, 123456789.123456789]):
        evaluation(log, number, error=error)
    step(log, 1, loss=1 / 3)
    log.set_status(0, Status.INFEASIBLE, 'the loss is "nan",\nor worse;\r\nü \'x\' ,,')
    log.finish()
    return str(path)


LOGS = {"finished": lambda path: finished(path, 1000, 2), "odd": odd_log,
        "imported": lambda path: write_big_log(path, 3, 60, 3000) or str(path),
        "interrupted": lambda path: interrupted(path, 30),
        "golden": lambda path: str(ROOT / "tests" / "golden" / "v1.h5"),
        "empty": lambda path: open_log(path).finish() or str(path)}


@pytest.mark.parametrize("make", LOGS.values(), ids=LOGS)
def test_a_log_goes_to_csv_and_back_without_loss(make, tmp_path):
    path = make(tmp_path / "log.h5")
    assert call("export", path, tmp_path / "tables", "--as", "csv")[0] == 0
    assert call("import", tmp_path / "tables", tmp_path / "back.h5")[0] == 0
    same(path, tmp_path / "back.h5")


TRIALS = ("id,dataset,model,optimizer,global_batch,metaparameters/learning_rate\n"
          "7,mnist,cnn,sgd,32,0.5\n2,mnist,cnn,sgd,64,\n")
EVALUATIONS = "trial,step,val/error\n7,0,0.9\n7,10,0.25\n2,0,\n"


def tables(folder, trials=TRIALS, evaluations=EVALUATIONS, **more):
    folder.mkdir()
    for name, text in {"trials": trials, "evaluations": evaluations, **more}.items():
        if text is not None:
            (folder / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_tables_from_elsewhere_need_few_columns(tmp_path):
    log, _ = taken(tables(tmp_path / "mine"), tmp_path / "log.h5")
    assert log.trials["id"].tolist() == [7, 2] and log.trials["status"].tolist() == [Status.COMPLETE] * 2
    np.testing.assert_array_equal(log.trials["metaparameters/learning_rate"], [0.5, np.nan])
    assert log.evaluations["examples"].tolist() == [0, 320, 0] and log.trials["local_batch"].tolist() == [32, 64]
    np.testing.assert_array_equal(log.evaluations["val/error"], [0.9, 0.25, np.nan])
    assert log.evaluations.specs["val/error"].better == "smaller" and log.restarts["trial"].tolist() == [7, 2]
    assert RunToTarget(read_trials(log)[1], Target.parse("val/error<0.3")).steps == 10


SEARCHED = "id,dataset,model,optimizer,global_batch,metaparameters/lr{}\n"


def searched_tables(folder, vary=True, column=()):
    """Three batches of five trials, whose learning rates vary or not; ``column``: cells of a column search."""
    rows = [f"{batch + at},d,m,sgd,{batch},{0.1 * (at + 1 if vary else 1):g}" + "".join(f",{cell}" for cell in column)
            for batch in (64, 128, 256) for at in range(5)]
    return tables(folder / "searched", SEARCHED.format(",search" * len(column)) + "\n".join(rows) + "\n",
                  "trial,step,val/error\n" + "".join(
                      f"{batch + at},{step},{error}\n" for batch in (64, 128, 256) for at in range(5)
                      for step, error in ((100, 0.9), (64000 // batch + 50 * at, 0.05))))


@pytest.mark.parametrize("vary, column, searched, said", [
    (True, (), True, "a search, guessed: metaparameters vary within 3 of its batches"),
    (False, (), False, None), (False, ("True",), True, None), (True, ("no",), False, None)])
def test_tables_say_or_show_that_their_trials_are_a_search(vary, column, searched, said, tmp_path):
    log, printed = taken(searched_tables(tmp_path, vary, column), tmp_path / "out.h5")
    assert said in printed if said else "a search," not in printed
    assert are_searched(studies_of([log])) == searched
    done = CliRunner().invoke(report, [log.path, "--target", "val/error<0.1"])
    shown = " ".join(done.output.split())
    assert done.exit_code == 0 and (not said or said in shown)
    assert ("median best of as many trials at each batch" in shown) == searched
    if searched:
        curve = curve_of(studies_of([log]), Target.parse("val/error<0.1"))
        assert [(point.steps.runs, point.steps.value) for point in curve.points] == [(5, 1000), (5, 500), (5, 250)]


@pytest.mark.parametrize("plan, budget", [("", "not known"), ('"{""measurement"": {""budget_seconds"": 90}}"', "90 s")])
def test_the_budget_of_tables_from_elsewhere_is_shown_as_far_as_it_is_known(plan, budget, tmp_path):
    trials = f"id,dataset,model,optimizer,global_batch,plan\n7,mnist,cnn,sgd,32,{plan}\n"
    call("import", tables(tmp_path / "mine", trials, "trial,step,val/error\n7,0,0.9\n7,9,0.5\n"), tmp_path / "log.h5")
    assert f"budget     {budget}, target none" in call("show", tmp_path / "log.h5")[1]


BUDGET = "id,dataset,model,optimizer,global_batch,budget_steps\n7,mnist,cnn,sgd,32,40\n2,mnist,cnn,sgd,64,40\n"
SECONDS = "trial,step,train_seconds,val/error\n7,0,{},1\n2,0,0,1\n"
PLAN = 'id,dataset,model,optimizer,global_batch,plan\n7,mnist,cnn,sgd,32,"{}"\n2,mnist,cnn,sgd,64,{{}}\n'


def test_wrong_tables_are_named_and_with_skip_broken_their_trials_left_out(golden, tmp_path, monkeypatch):
    def said(files):
        (here := tmp_path / str(len(os.listdir(tmp_path)))).mkdir()
        monkeypatch.chdir(here)
        tables(Path("mine"), **eval(files, globals()))
        code, refused = call("import", "mine", "log.h5", "--kind", "csv")
        assert code == 1 and os.listdir() == ["mine"]
        code, skipped = call("import", "mine", "log.h5", "--skip-broken")
        if code:
            assert refused.startswith(skipped.strip()) and os.listdir() == ["mine"]
            return f"{refused}no trial left"
        with check("log.h5") as log:
            wrong = log.attributes["skipped"]["first"]
            left = set(log.trials["id"].tolist())
            assert left == set(log.evaluations["trial"])
        printed = []
        make(["log.h5"], [Target.parse("val/error<0.3")], echo=printed.append)
        assert sum("skipped: " in text and wrong[0] in text for text in printed) == 1
        assert skipped.count("left out: ") == len(wrong) and f"; {len(wrong)} left out" in skipped
        return "\n".join([refused.strip(), *(each for each in wrong if each not in refused), f"left: {sorted(left)}"])
    golden("tables", answered("tables", said))


def test_a_trial_cut_off_is_left_out_of_every_table(tmp_path):
    export_tables(finished(tmp_path / "log.h5", 1000, 3), tmp_path / "tables")
    steps = tmp_path / "tables" / "steps.csv"
    steps.write_text("".join(steps.read_text().splitlines(True)[:1500])[:-9])
    code, said = call("import", tmp_path / "tables", tmp_path / "back.h5", "--skip-broken")
    assert code == 0 and said.count("left out: ") == 1 and "steps.csv:1500: the last line" in said
    with read_log(tmp_path / "back.h5") as log:
        assert all(set(table["id" if table.name == "trials" else "trial"]) <= {0, 2} for table in log.tables)
        assert set(log.trials["id"]) == {0, 2}


def test_a_trial_that_stopped_at_its_target_or_after_its_seconds_is_whole(tmp_path):
    plans = ('{""measurement"": {""target"": ""val/error<0.3""}}', '{""measurement"": {""budget_seconds"": 90}}')
    rows = "".join(f'{at},mnist,cnn,sgd,32,1000,"{plan}"\n' for at, plan in enumerate(plans))
    tables(tmp_path / "mine", f"id,dataset,model,optimizer,global_batch,budget_steps,plan\n{rows}",
           "trial,step,val/error\n0,10,0.5\n0,20,0.25\n1,10,0.5\n")
    assert call("import", tmp_path / "mine", tmp_path / "log.h5")[0] == 0
    tables(tmp_path / "more", f"id,dataset,model,optimizer,global_batch,budget_steps,plan\n{rows}",
           "trial,step,val/error\n0,10,0.5\n0,20,0.35\n1,10,0.5\n")
    assert "trial 0 is COMPLETE and its budget is 1000" in call("import", tmp_path / "more", tmp_path / "more.h5")[1]


def test_rows_of_a_trial_that_lie_far_apart_are_held_to_the_rules(tmp_path):
    tables(tmp_path / "mine", evaluations="trial,step,val/error\n7,0,0.9\n2,0,1\n7,20,0.5\n2,10,1\n7,10,0.25\n")
    for words in ((), ("--skip-broken",)):
        code, said = call("import", tmp_path / "mine", tmp_path / "log.h5", *words)
        assert code == (not words) and "evaluations.csv:6: trial 7: evaluations/step goes from 20 to 10" in said
    with read_log(tmp_path / "log.h5") as log:
        assert log.evaluations["step"].tolist() == [0, 10] and log.trials["id"].tolist() == [2]


@pytest.mark.parametrize("change, message", [
    (lambda about: about.pop("format"), "is not of the format"), (lambda about: about.update(columns=[]), "no columns"),
    (lambda about: about["columns"]["steps"].append(["a"]), "are not lists of name, type"),
    (lambda about: about["columns"]["steps"].append(["../x", "int", "1", "m", ""]), "are not lists of name, type"),
    (lambda about: about["columns"]["steps"].append(["\ud800", "int", "1", "m", ""]), "are not lists of name, type"),
    (lambda about: about["attributes"].update(a=10**400), "attribute 'a' is longer, larger or stranger"),
    (lambda about: about["attributes"].update(a="x" * 10**6), "attribute 'a' is longer, larger or stranger"),
    (lambda about: about["attributes"].update({"\0": 1}), "is longer, larger or stranger")])
def test_a_wrong_log_json_is_named(change, message, tmp_path):
    export_tables(finished(tmp_path / "log.h5"), tmp_path / "tables")
    about = json.loads((tmp_path / "tables" / "log.json").read_text())
    change(about)
    (tmp_path / "tables" / "log.json").write_text(json.dumps(about))
    with pytest.raises(LogError, match=message):
        import_tables(tmp_path / "tables", tmp_path / "back.h5")
    assert not (tmp_path / "back.h5").exists()


@pytest.mark.parametrize("error, named", [
    ("5", "from 0.5 to 5"), ("-0.05", "from -0.05 to 0.5"), ("1", ""), ("nan", "")])
def test_errors_that_are_no_share_are_named(error, named, tmp_path):
    tables(tmp_path / "mine", evaluations=f"trial,step,val/error\n7,0,0.5\n2,0,{error}\n")
    place = tmp_path / "archive" / "mnist" / "fc" / "sgd" / "8"
    (place / "1").mkdir(parents=True)
    (place / "study.json").write_text('{"batch_size": 8, "train_steps": 10}')
    (place / "1" / "metadata.json").write_text('{"trial_id": 1, "status": "COMPLETE"}')
    (place / "1" / "measurements.csv").write_text(f"step,val/classification_error\n0,0.5\n10,{error}\n")
    for source in ("mine", "archive"):
        done = invoke("import", tmp_path / source, tmp_path / f"{source}.h5")
        assert done.exit_code == 0 and (f"note: val/error has values {named}" in done.stderr) == bool(named)
        assert ("note: val/error" in done.stderr) == bool(named)


def test_what_a_source_is_is_told_from_what_is_there(tmp_path):
    write_archive(tmp_path / "archive", 2, 10, 100)
    code, said = call("import", tmp_path / "archive", tmp_path / "log.h5")
    assert code == 0 and "10 trials and 100 evaluations of 2 studies" in said
    assert call("import", tmp_path / "archive", tmp_path / "log.h5") == (
        1, f"Error: {tmp_path}/log.h5: exists already; choose another name, or --overwrite it\n")
    assert call("import", tmp_path / "archive", tmp_path / "log.h5", "--overwrite")[0] == 0
    for words, message in {("nowhere", "a.h5"): "nowhere: cannot be read: No such file",
                           (tmp_path / "log.h5", "a.h5"): "is HDF5; if it is a log, it needs no import",
                           (tmp_path / "archive", "a.h5", "--unit", "epochs"): "--unit is for --kind runs, rcp",
                           (tmp_path / "archive", "a.h5", "--set-size", "3"): "--set-size is for"}.items():
        code, said = call("import", *words)
        assert code == 2 and message in said


@pytest.mark.parametrize("data", [b"", b'[{"Benchmark": "resnet"}]', b"step,val/error\n0,0.9\n", b"\xff\xfe{}"])
def test_a_file_of_another_kind_is_told_what_would_be_taken(data, tmp_path, worded):
    (tmp_path / "x.json").write_bytes(data)
    code, said = call("import", tmp_path / "x.json", tmp_path / "log.h5")
    worded(said)
    assert code == 2 and "MLPerf" in said
    assert os.listdir(tmp_path) == ["x.json"]


def test_left_out_files_are_listed_and_counted(tmp_path):
    write_archive(tmp_path / "archive", 1, 30, 300)
    places = sorted(path.parent for path in (tmp_path / "archive").glob("**/metadata.json"))
    for place in places[:12]:
        (place / "metadata.json").unlink()
    code, said = call("import", tmp_path / "archive", tmp_path / "log.h5", "--skip-broken")
    assert code == 0 and said.count("metadata.json: is missing") == 10 and "left out: 2 more" in said
    assert "18 trials" in said and "; 12 left out" in said


def sweep_log(path):
    """A sweep over two batch sizes with three trials each; the path."""
    log = LogWriter(path, metrics=("val/error", "test/error"), metaparameters=("learning_rate", "momentum"))
    space = [{"name": "lr", "type": "double", "scale": "log", "low": 0.01, "high": 1.0},
             {"name": "momentum", "type": "double", "scale": "reverse_log", "low": 0.9, "high": 0.999},
             {"name": "label_smoothing", "type": "discrete", "values": [0.0, 0.1]},
             {"name": "model_args.width", "type": "integer", "scale": "linear", "low": 1, "high": 9}]
    for id in range(6):
        batch = 32 if id < 3 else 64
        plan = {"problem": {"model_args": {"width": id, "depth": 2}},
                "sweep": {"study": f"sgd-b{batch}", "draw": id % 3, "space": space, "point": {}, "prune_keep": 5,
                          "objective": "steps", "targets": ["val/error<0.1"], "trials": 3, "max_draws": 3, "repeat": 0,
                          "seed": 0}}
        log.append("trials", id=id, status=Status.RUNNING, stop_reason="", dataset="digits", model="fc",
                   optimizer="momentum", global_batch=batch, local_batch=batch, accumulation=1, ghost_batch=batch,
                   workers=1, seed=id, budget_steps=20, plan=json.dumps(plan),
                   **{"metaparameters/learning_rate": 0.1 + id, "metaparameters/momentum": 0.95})
        log.append("restarts", trial=id, first_step=0, workers=1, host="h", device="cpu", time=1e9, previous_end="")
        for number in (0, 10, 20):
            log.append("evaluations", trial=id, step=number, examples=number * batch, train_seconds=0.1 * number,
                       **{"val/error": 0.7 / (1 + id + number)})
        if id != 5:
            log.set_status(id, Status.INFEASIBLE if id == 4 else Status.COMPLETE, "so it was")
    log.finish()
    return path


def test_our_own_sweep_goes_into_the_layout_and_back(tmp_path):
    path = sweep_log(tmp_path / "sweep.h5")
    done = invoke("export", path, tmp_path / "published", "--as", "archive")
    assert done.exit_code == 0 and done.stderr.count("left out: worker counts, times, targets") == 1
    with read_log(path) as log:
        mine = read_trials(log)
    done = invoke("import", tmp_path / "published", tmp_path / "back.h5")
    assert done.exit_code == 0 and "assumed: 1 worker, as an archive does not say" in done.stderr
    assert "  batch      32, on a number of workers that is not known\n" in call(
        "show", tmp_path / "back.h5", "--trial", "0")[1]
    assert invoke("export", tmp_path / "back.h5", tmp_path / "again", "--as", "archive").stderr == ""
    with read_log(tmp_path / "back.h5") as log:
        back = read_trials(log)
        study = json.loads(log.trials["plan"][0])["archive"]["study"]
        assert log.trials["source_trial"].tolist() == list(range(6)) and log.trials["model"][0] == "fc,depth=2"
        assert [Status(status).name for status in log.trials["status"]] == [
            "COMPLETE"] * 4 + ["INFEASIBLE", "INCOMPLETE"]
        assert "test/error" not in log.evaluations
        np.testing.assert_array_equal(log.trials["metaparameters/learning_rate"], 0.1 + np.arange(6))
    for one, two in zip(sorted(mine, key=lambda trial: (trial.global_batch, trial.id)), back):
        assert one.step.tolist() == two.step.tolist() and one.global_batch == two.global_batch
        np.testing.assert_array_equal(one.metrics["val/error"], two.metrics["val/error"])
    assert study["parameter_configs"] == {
        "learning_rate": {"type": "DOUBLE", "scale": "LOG_SCALE", "min_value": 0.01, "max_value": 1.0},
        "momentum": {"type": "DOUBLE", "scale": "REVERSE_LOG_SCALE", "min_value": 0.9, "max_value": 0.999},
        "label_smoothing": {"type": "DISCRETE", "feasible_points": [0.0, 0.1]},
        "model_args.width": {"type": "INTEGER", "scale": "LINEAR_SCALE", "min_value": 1, "max_value": 9}}
    assert study["early_stopping"] and study["train_steps"] == 20
