"""Import of MLPerf's training logs."""
import json
import os
import re

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.steps import RunToTarget
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.report import main as report
from hvdscale.exchange.benchmarks.mlperf_rcp import TARGET
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED, Status
from hvdscale.target import Target
from tests.exchange.benchmarks.test_mlperf_rcp import point, rcp
from tests.exchange.test_tables_and_rcp import call, invoke
from tests.wording import answered


def line(key, value=None, ms=0, prefix="", **about):
    """A line as mlcommons/logging writes it, behind what a launcher may put before it."""
    return prefix + ":::MLLOG " + json.dumps({"namespace": "", "time_ms": 1_700_000_000_000 + ms, "event_type":
                                              "POINT_IN_TIME", "key": key, "value": value, "metadata": {
                                                  "file": "train.py", "lineno": 7, **about}})


def submission(batch=256, seed=3, at=(2560, 5120), values=(0.5, 0.73), status="success", where="samples_count",
               benchmark="bert", train_samples=25600, more=()):
    """The lines of a run whose evaluations take 1 s each after 10 s of training."""
    start = -1000
    lines = ["some words of the job", line("submission_benchmark", benchmark, prefix="0: "), line("seed", seed),
             line("global_batch_size", batch), line("opt_name", "lamb"), line("opt_base_learning_rate", 0.002),
             line("opt_learning_rate_warmup_steps", 100), line("train_samples", train_samples), *more,
             line("init_start", ms=-5000), line("run_start", ms=0)]
    for number, (place, value) in enumerate(zip(at, values)):
        start = 10_000 * (number + 1) + 1000 * number
        lines += [line("eval_start", ms=start, **{where: place}),
                  line("eval_accuracy", value, ms=start + 900, **{where: place}),
                  line("eval_stop", ms=start + 1000, **{where: place})]
    return "\n".join([*lines, *([line("run_stop", ms=start + 1000, status=status)] if status else [])]) + "\n"


def write(folder, *texts):
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"result_{number}.txt").write_text(text)
    return folder


def imported(source, out, *words):
    """The log that an import makes, which passes its check, and how the command ended."""
    done = invoke("import", source, out, *words)
    assert done.exit_code == 0, done.output
    return check(str(out)), done


def read_runs(tmp_path, *texts, words=()):
    """(evaluations by column, trials) of the log of some files, and what the import said."""
    read, done = imported(write(tmp_path / "runs", *texts), tmp_path / "log.h5", "--overwrite", *words)
    return {name: read.evaluations[name].tolist() for name in read.evaluations}, read_trials(read), done.stderr


def test_a_folder_of_results_becomes_a_trial_each(tmp_path, worded):
    write(tmp_path / "bert", submission(), submission(seed=4, at=(2560, 5120, 7680), values=(0.1, 0.5, 0.75)))
    (tmp_path / "bert" / "notes.txt").write_text("no lines of MLPerf")
    read, done = imported(tmp_path / "bert", tmp_path / "log.h5")
    assert done.stdout.startswith(f"{tmp_path}/log.h5: 2 trials, ")
    worded(done.stderr)
    assert read.trials["seed"].tolist() == [3, 4] and set(read.trials["status"]) == {Status.COMPLETE}
    assert read.trials["metaparameters/learning_rate"].tolist() == [0.002, 0.002]
    assert read.trials["metaparameters/warmup_steps"].tolist() == [100, 100]
    assert read.evaluations["step"].tolist() == [10, 20, 10, 20, 30]
    assert read.evaluations["examples"].tolist() == [2560, 5120, 2560, 5120, 7680]
    assert read.evaluations["val/eval_accuracy"].tolist() == [0.5, 0.73, 0.1, 0.5, 0.75]
    assert read.evaluations["val/converged"].tolist() == [0, 1, 0, 0, 1]
    assert np.isnan(read.evaluations["train_seconds"]).all()
    runs = [RunToTarget(one, Target.parse(TARGET)) for one in read_trials(read)]
    assert [run.steps for run in runs] == [20, 30]
    assert len({one.setting for one in read_trials(read)}) == 1


def test_workers_that_are_given_give_the_times_without_evaluations(tmp_path):
    [file] = write(tmp_path / "bert", submission()).iterdir()
    read, done = imported(file, tmp_path / "log.h5", "--workers", "8")
    assert done.stderr == ""
    assert read.evaluations["train_seconds"].tolist() == [10, 20] and read.restarts["time"].tolist() == [1.7e9]
    assert read.trials["workers"].tolist() == read.restarts["workers"].tolist() == [8]


@pytest.mark.parametrize("where, at, words, job, steps", [
    ("epoch_num", (0.5, 2), (), "other", [50, 200]), ("step_num", (7, 21), (), "other", [7, 21]),
    ("epoch_num", (25600, 51200), (), "bert", [100, 200]),
    ("epoch_num", (1, 2), ("--train-examples", "2560"), "other", [10, 20]),
    ("samples_count", (0, 300), (), "other", [0, 2])])
def test_the_place_of_an_evaluation_may_be_in_examples_epochs_or_steps(tmp_path, where, at, words, job, steps):
    assert read_runs(tmp_path, submission(at=at, where=where, benchmark=job), words=words)[0]["step"] == steps


@pytest.mark.parametrize("status, reason", [("aborted", "run_stop: aborted"), ("", "no run_stop")])
def test_a_run_without_success_is_incomplete_and_never_converged(tmp_path, status, reason):
    read, _ = imported(write(tmp_path / "runs", submission(status=status)), tmp_path / "log.h5")
    assert read.trials["status"].tolist() == [Status.INCOMPLETE] and read.trials["stop_reason"][0] == reason
    assert not read.evaluations["val/converged"].any()


def test_a_metric_that_the_metadata_name_is_a_column_of_its_own(tmp_path):
    lines = [line("eval_accuracy", 0.1, 50, samples_count=256, metric="CLIP"),
             line("eval_accuracy", None, 60, samples_count=256, metric="FID score"),
             line("run_stop", ms=70, status="success")]
    rows, _, _ = read_runs(tmp_path, submission(at=(), values=(), status="") + "\n".join(lines))
    assert rows["val/CLIP"] == [0.1] and np.isnan(rows["val/FID_score"]).all()


def reported(*logs):
    done = CliRunner().invoke(report, list(map(str, logs)))
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_samples_that_each_run_saw_do_not_split_a_workload(tmp_path):
    texts = [submission(seed=seed, where="epoch_num", at=(150_528, seen), train_samples=seen, batch=768)
             for seed, seen in enumerate((2_399_691, 2_249_006, 2_549_393))]
    _, trials, _ = read_runs(tmp_path, *texts)
    assert len({trial.workload for trial in trials}) == len({trial.setting for trial in trials}) == 1


def test_what_came_out_of_a_run_is_no_setting(tmp_path):
    outcomes = ("train_loss", "throughput", "epoch_stop", "epoch_count", "checkpoint", "current_lr", "learning_rate")
    texts = [submission(seed=seed, more=[line(key, seed + 0.5) for key in outcomes] + [
        line("opt_lamb_beta_1", 0.9), line("lars_opt_momentum", 0.8), line("start_warmup_step", 3)]) for seed in (1, 2)]
    _, trials, _ = read_runs(tmp_path, *texts)
    assert len({trial.setting for trial in trials}) == 1
    with read_log(tmp_path / "log.h5") as read:
        assert {name.partition("/")[2] for name in read.trials if name.startswith("metaparameters/")} == {
            "learning_rate", "warmup_steps", "opt_lamb_beta_1", "momentum", "start_warmup_step"}


def test_a_run_that_names_no_seed_has_an_unknown_one(tmp_path):
    _, trials, _ = read_runs(tmp_path, submission(seed=None), submission(seed=0))
    assert [trial.seed for trial in trials] == [UNKNOWN_SEED, 0]


def test_a_value_that_is_an_object_is_a_metric_for_each_entry(tmp_path):
    both = [{"BBOX": 0.1, "SEGM": 0.2}, {"BBOX": 0.38, "SEGM": 0.3}, {"BBOX": 0.378, "SEGM": 0.34}]
    rows, _, said = read_runs(tmp_path, submission(benchmark="maskrcnn", where="epoch_num", at=(1, 2, 3), values=both,
                                                   train_samples=117_266))
    assert (rows["val/BBOX"], rows["val/SEGM"]) == ([0.1, 0.38, 0.378], [0.2, 0.3, 0.34])
    assert rows["val/converged"] == [0, 0, 1] and "note: " not in said


def test_of_a_run_that_was_restarted_in_one_file_the_last_attempt_counts(tmp_path, worded):
    first = submission(status="", seed=1, at=(2560, 5120, 7680), values=(0.1, 0.2, 0.3))
    again = [line("seed", 5, ms=100_000), line("run_start", ms=100_500), line("run_start", ms=100_700),
             line("eval_accuracy", 0.75, ms=107_500, samples_count=2560),
             line("run_stop", ms=107_500, status="success")]
    rows, [trial], said = read_runs(tmp_path, first + "\n".join(again), words=("--workers", "4"))
    assert (rows["step"], rows["val/eval_accuracy"], rows["train_seconds"], trial.seed) == ([10], [0.75], [7], 5)
    worded(said)
    rows, _, _ = read_runs(tmp_path, first + line("run_start", ms=100_000) + "\n")      # which came to nothing
    assert rows["val/eval_accuracy"] == [0.1, 0.2, 0.3]


def test_a_run_that_met_no_target_of_the_table_counts_at_its_last_evaluation(tmp_path):
    rows, _, said = read_runs(tmp_path, submission(values=(0.5, 0.713)))
    assert rows["val/converged"] == [0, 1] and "no evaluation meets val/eval_accuracy>=0.72" in said
    rows, _, said = read_runs(tmp_path, submission(values=(0.73, 0.75), more=[line("submission_division", "open")]))
    assert rows["val/converged"] == [0, 1] and "note: " not in said


def test_metrics_that_get_smaller_are_named_and_marked_so(tmp_path):
    read_runs(tmp_path, submission(benchmark="llama2_70b_lora", values=(0.94, 0.92)))
    with read_log(tmp_path / "log.h5") as read:
        assert read.evaluations["val/loss"].tolist() == [0.94, 0.92]
        assert read.evaluations.specs["val/loss"].better == "smaller"


def test_names_given_at_import_join_what_files_call_differently(tmp_path):
    write(tmp_path / "runs", submission(where="epoch_num", at=(150_528, 300_000), train_samples=300_000))
    rcp(tmp_path / "rcp.json", a=point(256, [150_528, 300_032], "bert", optimizer="fused_lamb"))
    imported(tmp_path / "runs", tmp_path / "runs.h5")
    imported(tmp_path / "rcp.json", tmp_path / "rcp.h5")
    said = reported(tmp_path / "runs.h5", tmp_path / "rcp.h5")
    assert "bert: its workloads differ in optimizer (fused_lamb, lamb)" in said and "the same --optimizer" in said
    imported(tmp_path / "rcp.json", tmp_path / "rcp.h5", "--overwrite", "--optimizer", "lamb")
    said = reported(tmp_path / "runs.h5", tmp_path / "rcp.h5")
    assert "its workloads differ" not in said and said.count("bert/reference, lamb ==") == 1
    words = ("--overwrite", "--dataset", "d", "--model", "m", "--optimizer", "o", "--set-size", "7")
    for source in ("runs", "rcp.json"):
        read, _ = imported(tmp_path / source, tmp_path / "log.h5", *words)
        assert str(read_trials(read)[0].workload) == "d/m, o, 7 training examples"


def test_a_folder_whose_runs_are_all_wrong_is_not_said_to_have_none(tmp_path, worded):
    write(tmp_path / "runs", submission(batch=0))
    code, said = call("import", tmp_path / "runs", tmp_path / "log.h5", "--skip-broken")
    worded(said)
    assert code == 1 and "global_batch_size is 0" in said


def test_wrong_lines_are_named_and_leave_nothing_or_are_left_out(golden, tmp_path, monkeypatch):
    def said(text):
        (here := tmp_path / str(len(os.listdir(tmp_path)))).mkdir()
        monkeypatch.chdir(here)
        write(here / "runs", eval(text, globals()))
        code, refused = call("import", "runs", "log.h5")
        assert code == 1 and os.listdir() == ["runs"]
        write(here / "runs", eval(text, globals()), submission())
        done = invoke("import", "runs", "log.h5", "--skip-broken")
        assert done.exit_code == 0 and ("; 1 left out" in done.stdout) == ("left out: " in done.stderr)
        return refused + re.sub(r", [\d.]+ KiB", "", done.stdout.strip())
    golden("mllog", answered("mllog", said))
