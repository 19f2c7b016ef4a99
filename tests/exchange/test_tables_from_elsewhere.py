"""Tables that another program wrote: how numbers, names and separators may be spelt, and what is unknown."""
import os
import re
from pathlib import Path
from textwrap import dedent

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.steps import RunToTarget, cell_of
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.compare import main as compare
from hvdscale.cli.log import main
from hvdscale.cli.plan import main as plan
from hvdscale.cli.report import main as report
from hvdscale.exchange.csv_file import repeats
from hvdscale.exchange.exported import _hparams
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED
from hvdscale.report.runs import Frame
from hvdscale.target import Target
from tests import guides
from tests.exchange.test_tables_and_rcp import tables as make_tables
from tests.exchange.test_tables_and_rcp import taken
from tests.wording import answered

TRIALS = "id,dataset,model,optimizer,global_batch\n0,d,m,sgd,32\n1,d,m,sgd,32\n"
EVALUATIONS = "trial,step,val/error\n0,10,0.5\n0,20,0.05\n1,10,0.5\n1,60,0.05\n"
QUOTED = EVALUATIONS.replace("0,10,0.5", '0,10,"0.5"')
TARGET = "val/error<0.1"


def tables(folder, **files):
    return make_tables(folder, **{"trials": TRIALS, "evaluations": EVALUATIONS, **files})


def call(command, *words):
    """Exit code and output of a command, which must not end in a traceback."""
    done = CliRunner().invoke(command, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def imported(folder, *options, **files):
    """The tables as a log that passes its check, and what the import said."""
    log, said = taken(tables(folder, **files), folder / "log.h5", *options)
    return log, " ".join(said.split())


def refused(folder, **files):
    """What the import says of tables that it refuses, in one line."""
    code, said = call(main, "import", tables(folder, **files), folder / "log.h5")
    assert code == 1 and not (folder / "log.h5").exists()
    return said


def test_the_guides_tables_give_the_guides_report(tmp_path):
    text = guides.read("hvdscale/exchange/runs/README.rst")
    trials, evaluations = (re.search(rf"^    {head}.*\n(    .*\n)+", text, re.M)[0]
                           for head in ("id,dataset", "trial,step"))
    log, said = imported(tmp_path / "mine", trials=dedent(trials), evaluations=dedent(evaluations))
    assert "assumed" not in said and log.trials["seed"].tolist() == [1, 2, 1, 2]
    code, said = call(report, log.path, "--target", "val/error<0.02")
    assert code == 0 and "1 64 2/2 400" in said and "2 128 2/2 200" in said


def test_steps_and_restarts_of_ones_own_need_two_columns_each(tmp_path):
    log, _ = imported(tmp_path / "mine", steps="trial,step,loss\n0,1,2.5\n0,2,\n1,1,2.5\n",
                      restarts="trial,workers\n0,4\n1,2\n")
    assert log.steps["loss"][0] == 2.5 and np.isnan(log.steps["step_seconds"]).all()
    assert log.restarts["workers"].tolist() == [4, 2] and log.restarts["first_step"].tolist() == [0, 0]


# seeds


def test_runs_without_a_seed_are_runs_of_their_own_in_a_report_on_two_logs(tmp_path):
    one, _ = imported(tmp_path / "a", trials=TRIALS[:TRIALS.index("1,d")], evaluations=EVALUATIONS.partition("1,1")[0])
    more = EVALUATIONS.partition("1,1")[0].replace("20", "80")
    imported(tmp_path / "b", trials=TRIALS[:TRIALS.index("1,d")], evaluations=more)
    assert one.trials["seed"].tolist() == [UNKNOWN_SEED]
    code, said = call(report, tmp_path / "a/log.h5", tmp_path / "b/log.h5", "--target", TARGET)
    assert code == 0 and "2/2 40" in said and "1/1" not in said


@pytest.mark.parametrize("known, unknown", [("7", ""), ("7.0", "nan"), ("7", "-1")])
def test_a_seed_may_be_known_of_some_runs_and_stays_so_in_csv(known, unknown, tmp_path):
    trials = TRIALS.replace("batch", "batch,seed").replace("32\n1", f"32,{known}\n1").replace("32\n", f"32,{unknown}\n")
    log, _ = imported(tmp_path / "mine", trials=trials)
    assert log.trials["seed"].tolist() == [7, UNKNOWN_SEED]
    assert "seed unknown" in call(main, "show", log.path, "--trial", 1)[1]
    assert call(main, "export", log.path, tmp_path / "csv", "--as", "csv")[0] == 0
    assert call(main, "import", tmp_path / "csv", tmp_path / "back.h5")[0] == 0
    assert read_log(tmp_path / "back.h5").trials["seed"].tolist() == [7, UNKNOWN_SEED]


def test_exports_have_no_seed_where_it_is_unknown(tmp_path):
    log, _ = imported(tmp_path / "mine")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install '.[parquet]'")
    assert call(main, "export", log.path, tmp_path / "parquet", "--as", "parquet")[0] == 0
    assert parquet.read_table(tmp_path / "parquet/trials.parquet")["seed"].to_pylist() == [None, None]
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install '.[tensorboard]'")
    assert "seed" not in _hparams(log, 0) and "global_batch" in _hparams(log, 0)
    pytest.importorskip("pandas", reason="needs pandas")
    assert Frame("trials", [log]).to_pandas()["seed"].isna().all()
    assert Frame("trials", [log]).to_pandas(["id"]).columns.tolist() == ["id"]


# names


NAMES = ("Top-1 err (%)", "c4/loss", "perplexité@5", "loss <macro>", "a b/c d/e")


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_that_imports_can_be_named_by_a_target(name, tmp_path):
    evaluations = EVALUATIONS.replace("val/error", f"val/{name}")
    log, _ = imported(tmp_path / "mine", evaluations=evaluations)
    for text in (f"val/{name}<0.1", f" val/{name} <= 1e-1 ", f"val/{name}<{0.1}"):
        assert RunToTarget(read_trials(log)[0], Target.parse(text)).steps == 20
    code, said = call(report, log.path, "--target", f"val/{name}<0.1", "--out", tmp_path / "out")
    assert code == 0 and "2/2" in said
    assert all(file.name.isascii() and " " not in file.name for file in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_s_name_survives_every_way_through_a_log(name, tmp_path):
    log, other = (imported(tmp_path / folder, evaluations=EVALUATIONS.replace("val/error", f"val/{name}"))[0]
                  for folder in ("mine", "other"))
    assert call(main, "export", log.path, tmp_path / "csv", "--as", "csv")[0] == 0
    assert call(main, "import", tmp_path / "csv", tmp_path / "back.h5")[0] == 0
    merged = tmp_path / "merged.h5"
    assert call(main, "merge", other.path, tmp_path / "back.h5", "--out", merged)[0] == 0
    with h5py.File(merged, "r+") as file:
        del file["trials/seed"]
    assert call(main, "repair", merged)[0] == 0
    found = check(str(merged))
    assert found.evaluations[f"val/{name}"].tolist() == [0.5, 0.05] * 4
    assert found.trials["seed"].tolist() == [UNKNOWN_SEED] * 4


def test_an_accent_in_two_spellings_is_one_name(tmp_path):
    log, _ = imported(tmp_path / "mine", evaluations=EVALUATIONS.replace("error", "pre\u0301cision"))
    assert RunToTarget(read_trials(log)[0], Target.parse("val/pr\u00e9cision<0.1")).steps == 20
    assert RunToTarget(read_trials(log)[0], Target.parse("val/pre\u0301cision<0.1")).steps == 20


def test_a_published_name_is_imported_under_ours(tmp_path, worded):
    log, _ = imported(tmp_path / "mine", evaluations=EVALUATIONS.replace("error", "classification_error"))
    assert "val/error" in log.evaluations
    assert RunToTarget(read_trials(log)[0], Target.parse("val/classification_error<0.1")).steps == 20
    both = EVALUATIONS.replace("error", "error,val/classification_error").replace("0.", "0.5,0.")
    worded(refused(tmp_path / "both", evaluations=both))


# numbers


@pytest.mark.parametrize("text, value", [("True", 1), ("false", 0), ("TRUE", 1), ("yes", 1), ("No", 0)])
def test_flags_among_metaparameters_and_metrics_are_one_and_zero(text, value, tmp_path):
    trials = TRIALS.replace("batch", "batch,metaparameters/nesterov").replace("32\n", f"32,{text}\n")
    log, _ = imported(tmp_path / "mine", trials=trials, evaluations=EVALUATIONS.replace("0.05", text))
    assert log.trials["metaparameters/nesterov"].tolist() == [value] * 2
    assert log.evaluations["val/error"].tolist() == [0.5, value] * 2


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "quoted"])
@pytest.mark.parametrize("text", ["20.0", "2e1", "+20", "20.", " 20", "020"])
def test_integers_are_read_as_other_programs_write_them(text, plain, tmp_path):
    evaluations = EVALUATIONS.replace(",20,", f",{text},")
    evaluations = evaluations if plain else evaluations.replace("0.05", '"0.05"')
    log, _ = imported(tmp_path / "mine", trials=TRIALS.replace("32\n", "3.2e1\n"), evaluations=evaluations)
    assert log.trials["global_batch"].tolist() == [32, 32] and log.evaluations["step"].tolist() == [10, 20, 10, 60]


def test_a_gap_among_integers_counts_as_unknown_where_that_is_possible(tmp_path):
    trials = TRIALS.replace("batch", "batch,budget_steps,accumulation,workers")
    trials = trials.replace("32\n1", "32,20.0,1.0,1.0\n1").replace("32\n", "32,,,{}\n")
    log, _ = imported(tmp_path / "mine", trials=trials.format("1.0"))
    assert log.trials["budget_steps"].tolist() == [20, 0] and log.trials["accumulation"].tolist() == [1, 1]
    assert "trials.csv:3: workers is '', not an integer" in refused(tmp_path / "other", trials=trials.format(""))


# separators and encodings


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"], ids=["", "mark"])
def test_separators_and_byte_order_marks_are_read(mark, head, tmp_path):
    files = {name: head + text.replace(",", mark).encode() for name, text in
             (("trials", TRIALS), ("evaluations", EVALUATIONS))}
    log, _ = imported(tmp_path / "mine", **files)
    assert log.trials["model"].tolist() == ["m", "m"] and log.evaluations["val/error"].tolist() == [0.5, 0.05] * 2


# repeated steps


RESUMED = "trial,step,val/error\n0,10,0.5\n0,20,0.4\n0,30,0.3\n1,10,0.7\n0,15,0.45\n0,30,0.05\n0,40,0.04\n1,60,0.05\n"


def test_a_faulty_row_of_a_trial_whose_id_is_a_decimal_leaves_out_the_trial(tmp_path):
    evaluations = EVALUATIONS.replace("0,20,", "0.0,20,").replace("0,20,0.05", "0,20,low")
    log, said = imported(tmp_path / "mine", "--skip-broken", evaluations=evaluations)
    assert log.trials["id"].tolist() == [1] and "val/error is 'low'" in said


@pytest.mark.parametrize("overlap, steps, errors", [
    ("first", [10, 20, 30, 40], [0.5, 0.4, 0.3, 0.04]), ("last", [10, 15, 30, 40], [0.5, 0.45, 0.05, 0.04])])
@pytest.mark.parametrize("skip", [(), ("--skip-broken",)])
def test_repeated_steps_are_kept_as_first_or_as_last_and_counted(overlap, steps, errors, skip, tmp_path):
    log, said = imported(tmp_path / "mine", "--overlap", overlap, *skip, evaluations=RESUMED)
    mine = log.evaluations["trial"] == 0
    assert log.evaluations["step"][mine].tolist() == steps and log.evaluations["val/error"][mine].tolist() == errors
    left = f"left out: 2 rows of evaluations that repeat steps of their trial (--overlap {overlap})"
    assert left in said and left in call(report, log.path, "--target", TARGET)[1]


def test_repeats_are_those_of_a_loop_over_the_rows():
    random = np.random.default_rng(0)
    trial, step = random.integers(0, 5, 300), random.integers(0, 40, 300)
    for keep, rows in (("first", range(300)), ("last", range(299, -1, -1))):
        seen, wrong = {}, np.zeros(300, bool)
        for row in rows:
            at, sign = int(trial[row]), 1 if keep == "first" else -1
            wrong[row] = at in seen and sign * step[row] <= seen[at]
            if not wrong[row]:
                seen[at] = sign * step[row]
        np.testing.assert_array_equal(repeats(trial, step, keep), wrong)


def test_numbers_that_there_are_not_and_tables_that_cannot_be_meant_are_refused(golden, tmp_path, monkeypatch):
    def said(files):
        (here := tmp_path / str(len(os.listdir(tmp_path)))).mkdir()
        monkeypatch.chdir(here)
        return refused(Path("mine"), **eval(files, globals()))
    golden("tables_from_elsewhere", answered("tables_from_elsewhere", said))


# workers and times


def test_one_worker_is_an_assumption_that_import_report_and_show_state(tmp_path):
    log, said = imported(tmp_path / "mine")
    assert "assumed: 1 worker" in said and "assumed: 1 worker" in call(report, log.path, "--target", TARGET)[1]
    assert "a number of workers that is not known" in call(main, "show", log.path, "--trial", 1)[1]
    assert "assumed: 1 worker" in call(compare, log.path, log.path, "--target", TARGET)[1]
    counted = TRIALS.replace("batch", "batch,workers").replace("32\n", "32,4\n")
    log, said = imported(tmp_path / "more", trials=counted)
    assert "assumed" not in said and log.restarts["workers"].tolist() == [4, 4]
    assert "32 = 4 workers" in call(main, "show", log.path, "--trial", 1)[1]


def test_a_plan_from_assumed_workers_states_the_assumption(tmp_path):
    evaluations = "trial,step,train_seconds,val/error\n0,10,1,0.5\n0,20,2,0.05\n1,10,1,0.5\n1,60,6,0.05\n"
    log, _ = imported(tmp_path / "mine", evaluations=evaluations)
    code, said = call(plan, log.path, "--target", TARGET, "--workers", "1,2")
    assert code == 0 and "assumed: 1 worker" in said


def test_seconds_of_runs_that_met_are_not_measured_rather_than_not_met(tmp_path):
    log, _ = imported(tmp_path / "mine")
    said = call(report, log.path, "--target", TARGET)[1]
    assert "n/a (not measured)" in said and "not met" not in said and "warm-up" not in said
    assert cell_of([RunToTarget(trial, Target.parse(TARGET)) for trial in read_trials(log)]).met == 2
