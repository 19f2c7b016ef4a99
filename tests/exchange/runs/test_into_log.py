"""Runs of other programs as trials of a log, through hvdscale-log import and hvdscale-report."""
import json
import re

import pytest
from click.testing import CliRunner

import hvdscale
from hvdscale.cli.report import main as report
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED, Status
from tests.exchange.test_tables_and_rcp import call, invoke, taken
from tests.factories.found_runs import RUNS, csv_text, write_runs


def write(folder, name, header, rows):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text(csv_text(header, rows))
    return folder


def test_what_is_guessed_is_printed_before_as_the_file_that_says_so(tmp_path):
    source = write_runs(tmp_path / "made", "W&B's history")
    dry = invoke("import", source, tmp_path / "a.h5", "--dry-run")
    assert dry.exit_code == 0 and not (tmp_path / "a.h5").exists()
    assert dry.stdout.count("(CSV): batch ") == 3 and f"and {len(RUNS) - 3} more runs" in dry.stdout
    (tmp_path / "runs.toml").write_text(dry.stdout)
    done = invoke("import", source, tmp_path / "a.h5")
    assert done.exit_code == 0 and dry.stdout.partition("\n# ")[0] in done.stderr
    assert invoke("import", source, tmp_path / "b.h5", "--map", tmp_path / "runs.toml").exit_code == 0
    with read_log(tmp_path / "a.h5") as one, read_log(tmp_path / "b.h5") as two:
        assert one.trials["seed"].tolist() == two.trials["seed"].tolist()
        assert one.evaluations["train_seconds"].tolist() == two.evaluations["train_seconds"].tolist()


def test_runs_with_nothing_but_a_training_loss_are_read_and_it_is_said(tmp_path, worded):
    runs = write(tmp_path, "b8", ("step", "loss"), [(1, 0.5), (2, 0.4)])
    code, said = call("import", runs, tmp_path / "log.h5")
    worded(said, about="no metric")
    assert code == 0 and "train/loss 0.5 to 0.4" in said


def test_metaparameters_in_the_names_of_runs_keep_them_apart(tmp_path):
    for lr in ("0.05", "1e-1", ".2"):
        write(tmp_path / f"b8_lr{lr}_wd=1e-4", "log", ("step", "val/error"), [(1, 0.5)])
    log, said = taken(tmp_path, tmp_path / "log.h5")
    assert "a search, guessed" in said and "repeats" not in said
    assert sorted(log.trials["metaparameters/learning_rate"].tolist()) == [0.05, 0.1, 0.2]
    assert set(log.trials["metaparameters/weight_decay"].tolist()) == {1e-4}


@pytest.mark.parametrize("known, mapping, repeats", [("", "", 1), ("_lr0.1", "", 2), ("", "search = false\n", 2)])
def test_alike_runs_are_repeats_where_settings_are_known_or_it_is_said(known, mapping, repeats, tmp_path):
    for steps, run in enumerate(("b8-small", "b8-large", "b16-small"), 1):
        write(tmp_path / f"{run}{known}", "log", ("step", "val/error"), [(10 * steps, 0.5)])
    (tmp_path / "map.toml").write_text(mapping)
    code, said = call("import", tmp_path, tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    said_of_them = "taken for repeats of one setting" if repeats > 1 else "as nothing is known of their settings"
    assert code == 0 and re.search(f"{said_of_them}: .*b8-large.*/log.csv and .*b8-small.*/log.csv", said)
    shown = " ".join(CliRunner().invoke(report, [str(tmp_path / "log.h5"), "--target", "val/error<0.6"]).output.split())
    assert said_of_them in shown and ("Settings that no log names were tried at batch 8 (2)" in shown) == (repeats == 1)


@pytest.mark.parametrize("name, key, more, batches, said", [
    ("batch_size", "", "", [64, 64], "taken for that of a step over all workers"),
    ("batch_size", 'batch_per = "worker"', "", [64, 128], "that of a worker, times workers"),
    ("per_device_train_batch_size", "", "gradient_accumulation_steps: 2\n", [128, 256], "by its name, times workers")])
def test_a_batch_is_that_of_a_worker_if_its_name_or_the_mapping_says_so(name, key, more, batches, said, tmp_path):
    for workers in (1, 2):
        folder = write(tmp_path / f"resnet_{workers}gpus", "log", ("step", "val/error"), [(1, 0.5)])
        (folder / "config.yaml").write_text(f"{name}: 64\n{more}")
    (tmp_path / "map.toml").write_text(key)
    code, printed = call("import", tmp_path, tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert code == 0 and said in printed
    with check(tmp_path / "log.h5") as log:
        assert (log.trials["workers"].tolist(), log.trials["global_batch"].tolist()) == ([1, 2], batches)
        assert set(log.trials["local_batch"].tolist()) == ({64} if batches[0] < batches[1] else {64, 32})


def test_all_that_lacks_is_named_at_once(tmp_path):
    source = write(tmp_path / "made", "one", ("stp", "epoch_time", "my_err"), [(1, 2, 0.5)])
    (source / "config.json").write_text('{"batch_sz": 32}')
    done = invoke("import", source, tmp_path / "log.h5")
    assert done.exit_code == 1 and not (tmp_path / "log.h5").exists()
    for message in ("step: no tag is named like a step: did you mean stp?", "tags: none is named like a metric",
                    "batch: not known of 1 run", "did you mean batch_sz?"):
        assert message in done.stderr
    (tmp_path / "runs.toml").write_text("batch = {parameter = 'batch_sz'}\nstep = 'stp'\n"
                                        "[tags]\nmy_err = 'val/error min'\n")
    log, _ = taken(source, tmp_path / "log.h5", "--map", tmp_path / "runs.toml")
    assert log.trials["global_batch"].tolist() == [32] and log.evaluations["val/error"].tolist() == [0.5]


def test_two_tags_of_one_column_are_named_rather_than_mixed(tmp_path):
    source = write(tmp_path / "made", "b8", ("step", "val_loss", "eval/loss", "val/loss/c4"), [(1, 0.5, 0.25, 1)])
    code, said = call("import", source, tmp_path / "log.h5")
    assert code == 1 and "tags: 'val_loss', 'eval/loss' all are val/loss" in said and "exclude each other" in said
    (tmp_path / "runs.toml").write_text("[tags]\n\"eval/loss\" = 'val/loss min'\n")
    assert call("import", source, tmp_path / "log.h5", "--map", tmp_path / "runs.toml")[0] == 0


def test_options_say_what_names_do_not(tmp_path):
    source = write(tmp_path / "made", "b32", ("step", "val_error"), [(640, 0.5), (1280, 0.25)])
    log, _ = taken(source, tmp_path / "log.h5", "--workers", "2x4", "--unit", "examples", "--dataset", "mnist",
                   "--model", "cnn")
    assert log.evaluations["step"].tolist() == [20, 40] and log.trials["workers"].tolist() == [8]
    [plan] = map(json.loads, log.trials["plan"])
    assert plan["execution"] == {"local_workers": 4} and plan["file"].endswith("b32.csv")
    assert (log.trials["dataset"][0], log.trials["model"][0]) == ("mnist", "cnn")
    assert log.trials["seed"].tolist() == [UNKNOWN_SEED]


@pytest.mark.parametrize("keep, values", [("last", [0.5, 0.375, 0.25]), ("first", [0.5, 0.4375, 0.125, 0.25])])
def test_a_run_that_went_back_keeps_the_rows_that_are_asked_for(keep, values, tmp_path):
    rows = [(10, 0.5), (20, 0.4375), (30, 0.125), (20, 0.375), (40, 0.25)]
    source = write(tmp_path / "made", "b32", ("step", "val_error"), rows)
    log, said = taken(source, tmp_path / "log.h5", "--overlap", keep)
    assert re.search(r"left out: \d values? that repeat steps", said)
    assert log.evaluations["val/error"].tolist() == values


def test_the_time_of_a_step_goes_before_wall_times_and_those_are_said_to_include_evaluations(tmp_path):
    header = ("step", "val_error", "_runtime", "step_time")
    rows = [(5, 0.75, 50, ""), (10, 0.5, 100, 2.0), (20, 0.25, 250, 3.0)]
    for name, columns in (("both", 4), ("wall", 3)):
        source = write(tmp_path / name, "b32", header[:columns], [row[:columns] for row in rows])
        code, said = call("import", source, tmp_path / f"{name}.h5")
        assert code == 0 and ("include evaluations\n" in said.split("note:", 1)[1]) == (name == "wall")
    with read_log(tmp_path / "both.h5") as both, read_log(tmp_path / "wall.h5") as wall:
        assert both.evaluations["train_seconds"].tolist() == [10, 20, 50]
        assert wall.evaluations["train_seconds"].tolist() == [50, 100, 250]


@pytest.mark.parametrize("widths", [(64, 128), ("gelu", "relu")])
def test_runs_that_differ_in_any_number_or_word_they_set_are_no_repeats(widths, tmp_path):
    for name, width in zip("ab", widths):
        source = write(tmp_path / name, "b8", ("step", "val_loss"), [(10, 0.5), (20, 0.25)])
        (source / "config.json").write_text(json.dumps({"width": width, "data_seed": ord(name)}))
        assert call("import", source, tmp_path / f"{name}.h5", "--dataset", "made")[0] == 0
    done = CliRunner().invoke(report, [*map(str, tmp_path.glob("*.h5")), "--target", "val/loss<0.4"])
    assert "1/1" in done.output and "differ in config.width ({}, {})".format(*widths) in done.output


def test_runs_whose_metaparameters_vary_in_a_batch_are_draws_and_one_that_diverged_is_infeasible(tmp_path):
    for lr in (1, 2):
        folder = write(tmp_path / f"run{lr}", "b8", ("step", "train_loss", "val_error"), [
            (1, 1.0, 0.5), (2, "inf" if lr == 2 else 0.5, 0.25)])
        (folder / "params.json").write_text(f'{{"lr": {lr}}}')
    log, _ = taken(tmp_path / "run1", tmp_path / "run2", tmp_path / "log.h5")
    assert [json.loads(plan)["search"] for plan in log.trials["plan"]] == [True, True]
    assert log.trials["status"].tolist() == [Status.COMPLETE, Status.INFEASIBLE]
    assert log.trials["metaparameters/learning_rate"].tolist() == [1, 2]


def test_a_report_reads_the_folder_as_an_import_does(tmp_path):
    source = write_runs(tmp_path / "made", "trainer_state.json")
    assert call("import", source, tmp_path / "log.h5")[0] == 0
    asked = "--target", "val/error<0.2", "--full"
    said = [CliRunner().invoke(report, [str(path), *asked]).stdout.split("made/unknown")[-1]
            for path in (source, tmp_path / "log.h5")]
    assert said[0] == said[1] and "By global batch: val/error<0.2" in said[0]


def test_a_report_on_tables_names_the_command_that_imports_them(tmp_path):
    path = tmp_path / "tables"
    path.mkdir()
    (path / "trials.csv").write_text("id,global_batch\n1,8\n")
    done = CliRunner().invoke(report, [str(path)])
    assert done.exit_code == 1 and f"'hvdscale-log import {path} LOG.h5'" in done.stderr


def test_each_kind_is_imported_by_itself(tmp_path):
    runs = write(tmp_path / "runs", "b8", ("step", "val_error"), [(1, 0.5)])
    tables = write(tmp_path / "tables", "trials", ("id", "global_batch"), [(1, 8)])
    for words, message in (((runs, tables), "is of kind runs, and others are of kind csv"),
                           ((tables, tables), "takes one source"), ((tables, "--dry-run"), "is for --kind runs")):
        code, said = call("import", *words, tmp_path / "log.h5")
        assert code == 2 and message in said


def test_a_report_on_runs_without_times_or_a_target_begins_with_the_best_of_their_metrics(tmp_path, worded):
    for batch, best in ((8, 30), (16, 40)):
        (tmp_path / f"b{batch}.json").write_text(
            '{"iteration": 9, "total_loss": 2.0}\n'
            f'{{"iteration": 19, "total_loss": 1.0, "bbox/AP": {best - 5}}}\n{{"iteration": 29, "bbox/AP": {best}}}\n')
    with hvdscale.read(tmp_path) as runs:
        [(_, [page])] = runs.document().pages
    worded(page.verdict[0])
    assert page.tables[0].title == "Best validation bbox/AP under a budget"
    assert not any("larger batches" in said for said in page.summary)
