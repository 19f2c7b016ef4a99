"""What a report says: tables on screen, CSV and JSON, sentences, and the command."""
import csv
import io
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.report_data import Options, analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.plan import main as plan
from hvdscale.cli.report import main
from hvdscale.errors import LogError
from hvdscale.formatting.numbers import number, percent, ratio, span, whole
from hvdscale.log.schema import UNKNOWN_SEED, Status
from hvdscale.plan.schedule import Schedule
from hvdscale.report.pages import document_of_logs, make
from hvdscale.report.output import as_json
from hvdscale.report.runs import read
from hvdscale.report.subject import Subject
from hvdscale.report.views.cells import describe_cells
from hvdscale.report.table import Cell, Column, Row, Table, as_csv, as_text, steps_cell
from hvdscale.target import Target
from tests.conftest import ROOT
from tests.factories.logs import log, save, study, trial
from tests.factories.shown import findings, left_out, summary, tables_of
from tests.factories.studies import drawn


def sections(*logs, targets=(), options=Options()):
    trials = [found for made in logs for found in read_trials(made)]
    return [section for group in analyse(trials, targets, options) for section in group.sections]


def text(section):
    return "\n".join(map(as_text, tables_of(section)))


@pytest.fixture(scope="module")
def studied():
    [section] = sections(*study().values())
    return section


@pytest.mark.parametrize("write, shown", [
    (number, {0: "0", 1: "1.00", 12: "12.0", 0.01234: "0.0123", 0.5: "0.500", 1.2: "1.20", 3141.59: "3,140",
              99999: "100,000", 0.99999: "1.00", 0.9994: "0.999", 9.996: "10.0", 99.96: "100", 123456: "123k",
              4.56e6: "4.56M", 7.1e9: "7.10G", 5.87e-6: "5.87e-06", math.nan: "n/a", math.inf: "inf"}),
    (whole, {7: "7", 431.4: "431", 12346: "12,350", 2.5e6: "2.500M"}),
    (ratio, {0.00612: "0.0061", 0.876: "0.88", 9.994: "9.99", 12.34: "12.3", 123.4: "123", 7.6e-4: "0.00076",
             1.2e-7: "1.2e-07"}),
    (percent, {0.974: "97%", 0.0281: "2.8%", 0.00085: "0.085%", 0: "0%", 1: "100%"})])
def test_a_number_is_rounded_to_what_is_known_of_its_kind(write, shown):
    assert {value: write(value) for value in shown} == shown


@pytest.mark.parametrize("low, high, shown", [
    (1, 2, "1.00-2.00"), (1.04, 7.77, "1.0-7.8"), (3898, 3902, "3,898-3,902"), (3901, 3901, "3,900-3,900"),
    (21498, 93212, "21k-93k"), (57600, 62400, "57.6k-62.4k"), (1, math.inf, "> 1.00"), (0, 2, "< 2.00"),
    (math.nan, math.nan, "")])
def test_an_interval_has_no_more_digits_than_its_width_calls_for(low, high, shown):
    assert span(low, high) == shown


@pytest.mark.parametrize("estimate, shown", [
    (Estimate(56, 2, 145, 8), "no interval"), (Estimate(56, 0, 145, 8), "no interval"),
    (Estimate(56, 20, 145, 8), "20-145"), (Estimate(56, 0, math.inf, 3), "no interval"),
    (Estimate(56, 40, math.inf, 3), "> 40")])
def test_an_interval_without_content_is_not_shown(estimate, shown):
    assert steps_cell(estimate, whole).below == shown


def repeated(workers, repeats, spread=0.1):
    """Repeats of one setting that differ in steps and speed."""
    return [trial(id=100 * workers + seed, seed=seed, workers=workers, batch=32 * workers,
                  steps=(0, 290, 300 + 7 * seed), error=(1, 1, 0.1), seconds=(0, 1, 3 * np.exp(spread * seed)))
            for seed in range(repeats)]


def parted(workers, share=0.5, **changes):
    return trial(id=workers, workers=workers, batch=32 * workers, step_seconds=[0.1] * 4, communication_share=share,
                 **changes)


def of_problem(id, fields, **changes):
    """A trial whose plan has these fields of the problem, too."""
    plan = json.loads(trial(id=id, **changes).row["plan"])
    plan["problem"] |= fields
    return trial(id=id, plan=json.dumps(plan), **changes)


def at_workers(times, **changes):
    """A trial of so many seconds at each worker count, weak scaling."""
    return [trial(id=w, workers=w, batch=32 * w, seconds=(0, 1, time), **changes) for w, time in times.items()]


def of_problems(*fields):
    """Trials of one batch whose plans differ in these."""
    return [of_problem(at, one) for at, one in enumerate(fields)]


ODD = {                 # trials, of which tests/golden/sections.txt has what tables and sentences say
    "one run": [trial()],
    "never met": [trial(id=w, workers=w, batch=32 * w, steps=(0, 500), error=(1, 0.9)) for w in (1, 2)],
    "pooled": [*repeated(1, 2), *repeated(2, 3)], "pooled beside many repeats": [*repeated(1, 2), *repeated(2, 6)],
    "many repeats": repeated(1, 5), "few repeats": [trial(id=1), trial(id=2, seed=1)],
    "a point that spreads": [*repeated(1, 3), *repeated(2, 3), *repeated(4, 3, spread=3)],
    "strong scaling": [trial(id=10 * w + seed, workers=w, seed=seed) for w in (1, 2) for seed in (0, 1)],
    "more workers than cores": [trial(id=w, workers=w, batch=32 * w, cores=2) for w in (1, 2, 4)],
    "shared cores": [trial(id=n, workers=1, batch=32 * n, cores=2, local_workers=3) for n in (1, 2)],
    "warm-up": [trial(untimed_passes=3)], "no warm-up": [trial(untimed_passes=0)],
    "tuning": [trial(id=at, peak_lr=at) for at in (1, 2, 3)],
    "two fields tried": of_problems({"precision": "fp32", "ghost_batch": 16}, {"precision": "fp64", "ghost_batch": 32}),
    "what follows from a field tried": of_problems({"base_lr": 0.25, "peak_lr": 0.5, "start_lr": 0.5},
                                                   {"base_lr": 0.125, "peak_lr": 1.0, "start_lr": 1.0}),
    "none and truth tried": of_problems({"momentum": None, "nesterov": True}, {"momentum": 0.9, "nesterov": False}),
    "many values tried": of_problems(*({"weight_decay": at / 8} for at in range(8))),
    "a missing entry tried": of_problems({"data": {"missing": ["b.bin"], "of": "all"}}, {"data": {"of": "all"}}),
    "long values tried": of_problems({"init_from": "a" * 64}, {"init_from": "b" * 64}),
    "other problems": [of_problem(w, {"precision": precision, "ghost_batch": 16}, workers=w, batch=32 * w)
                       for w, precision in ((1, "fp32"), (2, "fp32"), (3, "fp64"))],
    "ghost batches, one equal to the global one": [
        of_problem(w, {"ghost_batch": ghost}, workers=w, batch=32 * w) for w, ghost in ((1, 32), (2, 64), (4, 16))],
    "what follows from the batch": [of_problem(w, {
        "ghost_batch": 32 * w, "base_lr": 0.1 * w, "lr_factor": w, "warmup_steps": 60 // w, "decay_at": [600 // w]},
        workers=w, batch=32 * w, peak_lr=0.1 * w, seed=w) for w in (1, 2)],
    "diverged": [trial(id=1), trial(id=2, seed=1, status=Status.INFEASIBLE),
                 trial(id=3, seed=2, status=Status.INFEASIBLE, error=(np.nan,) * 3)],
    "all diverged": [trial(status=Status.INFEASIBLE)],
    "unfinished": [trial(id=1), trial(id=2, seed=1, status=Status.RUNNING)],
    "a changed worker count": [trial(id=1, worker_counts=(4, 2))],
    "a changed worker count that missed": [trial(error=(1, 1, 1), worker_counts=(4, 2))],
    "regimes": [trial(id=batch, batch=batch, steps=(0, count - 1, count), error=(1, 1, 0.1))
                for batch, count in {32: 1000, 64: 500, 128: 320, 256: 300, 512: 310}.items()],
    "the fastest between": at_workers({1: 8, 2: 4, 4: 6}), "slower with more": at_workers({1: 2, 2: 4}),
    "the rate of each batch, in the unit that it was trained in": [
        of_problem(batch, vars(schedule), batch=batch, workers=batch // 32) for batch, schedule in (
            (32, Schedule(0.1)), (64, Schedule(0.2, 0.1, "gradual", 50)))],
    "a drawn rate": of_problems(vars(Schedule(0.00173653, decay="linear", decay_steps=40, end_lr_factor=0.012345))),
    "parts of a step at two batches": [trial(id=batch, batch=batch, step_seconds=[0.02] * 5, communication_share=0.1)
                                       for batch in (32, 64)],
    "probes": [trial(id=w, workers=w, batch=32 * w, steps=(), error=(), target=None, eval_every=0,
                     step_seconds=[0.1 * w ** 0.5] * 50, communication_share=0.1) for w in (1, 4)],
    "a metric never measured in a trial": [trial(id=1), trial(id=2, seed=1, batch=64, steps=(0, 300),
                                                              error=(np.nan, np.nan))],
    "a seed that met and did not": [trial(id=at, workers=at, seed=3, error=(1, 1, 0.1 if at == 1 else 1))
                                    for at in (1, 2)],
    "unknown seeds, one of which did not meet": [
        trial(id=at, workers=at, seed=UNKNOWN_SEED, error=(1, 1, 0.1 if at == 1 else 1)) for at in (1, 2)],
    "seeds that did not meet": [
        trial(id=1), trial(id=2, workers=2, batch=64), trial(id=3, workers=2, batch=64, seed=1, error=(1, 1, 1)),
        trial(id=4, workers=4, batch=128, status=Status.INFEASIBLE)],
    "parts of a step": [parted(1, 0.0), parted(4, 0.6)]}


def said(section):
    for table in tables_of(section):
        yield table.title
        yield from (" | ".join(f"{cell.shown} {cell.below}".strip() for cell in row.cells) for row in table.rows)
        yield from (*table.warnings, *table.notes)
    yield from (*summary(section), *left_out(section))


def test_what_tables_and_sentences_say(golden):
    texts = ["\n".join([name, *said(section)]) for name, trials in ODD.items() for section in sections(log(*trials))]
    golden("sections", "\n\n".join(texts) + "\n", within=0.01)


@pytest.mark.parametrize("changes, said, unsaid", [
    ({"steps": (0, 300), "error": (np.nan, np.nan)}, "val/error was never measured in 1 of 1 trial", "not met"),
    ({"status": Status.RUNNING}, "no trial has run to its end and measured it yet", "By global batch"),
    ({"status": Status.RUNNING}, "Left out: 1 of 1 trial RUNNING", "By global batch")])
def test_without_a_trial_to_show_a_sentence_stands_instead_of_a_table(tmp_path, changes, said, unsaid):
    result = CliRunner().invoke(main, [save(log(trial(**changes)), tmp_path / "one.h5")])
    shown = " ".join(result.output.split())
    assert result.exit_code == 0 and said in shown and unsaid not in shown


def test_every_table_says_what_kind_of_scaling_it_shows_and_fits_the_screen(studied, worded):
    shown = text(studied)
    worded(shown, about="Ratios are")
    assert "weak scaling, 32 examples a worker" in shown
    assert max(map(len, shown.splitlines())) <= 100
    shown.encode("ascii")


@pytest.mark.parametrize("slower", [1, 1e3, 1e6])
def test_tables_fit_the_screen_however_large_or_small_the_numbers(slower):
    random = np.random.default_rng(3)
    trials = [trial(id=100 * w + seed, seed=seed, workers=w, batch=4096 * w, steps=(0, 12345, 23456 + 7 * w * seed),
                    error=(1, 1, 0.1), cores=2, seconds=(0, 3e4, 1e5 * slower ** (w > 1) * random.uniform(1, 4)))
              for w in (1, 8, 64, 1024) for seed in (0, 1, 2)]
    [section] = sections(log(*trials))
    assert max(map(len, text(section).splitlines())) <= 120
    assert " 0.00 " not in text(section)


def test_a_target_met_at_the_first_evaluation_is_said_to_have_no_lower_end():
    first = trial(id=2, seed=1, steps=(100, 200), error=(0.1, 0.1))
    for trials, said in (([trial(), first], True), ([trial()], False)):
        [section] = sections(log(*trials))
        assert said == ("1 of 2 runs met the target at the" in " ".join(describe_cells(section, section.cells)[1]))
        assert said == (section.cells[0].steps.low == 0)


def test_a_run_that_took_far_longer_than_others_is_named_and_in_no_time():
    made = [one for w in (1, 2, 4) for one in repeated(w, 3, 0.01)]
    slow = trial(id=999, seed=9, workers=4, batch=128, steps=(0, 290, 300), error=(1, 1, 0.1), seconds=(0, 1, 9))
    [without], [section] = sections(log(*made)), sections(log(*made, slow))
    assert [run.trial.id for run, _ in section.slow] == [999]
    said = " ".join(str(found) for found in findings(section))
    assert "1 run that took far longer" in said and ":999 at 4 workers, batch 128, took 3.0x as long" in said
    typical, found = (one.cells[-1].examples_per_second.value for one in (without, section))
    assert found == pytest.approx(typical) and len(section.cells[-1].samples.seeds) == 4


def test_where_a_step_s_time_goes_is_shown_once_and_not_of_too_many_steps(monkeypatch, worded):
    found = sections(log(parted(1), parted(2)), targets=[Target.parse("val/error<0.2"), Target.parse("val/error<0.6")])
    assert [len(section.parts) for section in found] == [2, 0], "of several targets the first shows it"
    monkeypatch.setattr("hvdscale.analysis.step_breakdown.MOST_ROWS", 3)
    [section] = sections(log(parted(1)))
    assert "step-time" not in [table.name for table in tables_of(section)]
    worded(left_out(section))


def test_csv_holds_full_precision_intervals_and_trials(studied):
    counted = Table("one", "one", (Column("trials", "trials"),), (Row((Cell("3", 3),), (("a.h5", 1),), ()),))
    assert as_csv(counted).splitlines() == ["trials_count,trials,target", "3,a.h5:1,"]
    table = tables_of(studied)[0]
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [row["workers"] for row in rows] == ["1", "2", "4", "8"]
    for row, point in zip(rows, studied.series[0].points):
        assert float(row["steps_to_target"]) == point.cell.steps.value
        assert float(row["time_speedup_low"]) == pytest.approx(point.time_speedup.low, nan_ok=True)
        assert row["trials"].startswith(f"runs/w{point.workers}.h5:1; ")
    assert float(rows[3]["steps_to_target_high"]) == math.inf
    [row] = csv.DictReader(io.StringIO(as_csv(tables_of(*sections(log(trial(steps=(0, 500), error=(1, 1)))))[0])))
    assert (row["steps_to_target"], row["steps_to_target_low"]) == ("inf", "500.0")


def test_of_a_search_that_met_nothing_no_rate_is_said_and_foreign_settings_differ_by_metaparameters(worded):
    made = [log(*[drawn(number, met, batch=batch, problem=vars(Schedule(0.1))) for number in range(6)],
                path=f"nesterov-b{batch}.h5")
            for batch, met in ((256, 900), (512, math.inf))]
    [section] = sections(*made)
    [said] = [line for line in summary(section) if line.startswith("Learning rate by step")]
    worded(said)
    assert "512" not in said
    [section] = sections(log(*[trial(id=at, peak_lr=at, plan="", target=None) for at in (1, 2)]),
                         targets=[Target.parse("val/error<0.2")])
    worded(text(section), about="Settings that")


def test_json_has_findings_with_intervals_and_traces_rows_and_figures_to_trials_and_formulas():
    made = list(study().values())
    document = document_of_logs(made)
    written = json.loads(json.dumps(as_json(document), allow_nan=False))
    [section] = written["workloads"][0]["sections"]
    known = {(one.path, int(number)) for one in made for number in one.trials["id"]}
    for table in section["tables"]:
        for row in table["rows"]:
            assert row["trials"] and {(one["log"], one["trial"]) for one in row["trials"]} <= known
        assert all(column["formula"] for column in table["columns"])
    assert len(section["figures"]) == len(document.pages[0][1][0].figures) > 3
    assert all(figure["trials"] and figure["formula"] for figure in section["figures"])
    assert section["tables"][0]["rows"][3]["baseline_trials"][0] == {"log": "runs/w1.h5", "trial": 1}
    assert 1 <= len(section["verdict"]) <= 3 and {one["about"] for one in written["how_to_read"]} >= {"By worker count"}
    [useful] = [one for one in section["findings"] if one["kind"] == "useful"]
    assert useful.keys() == {"kind", "severity", "said", "more", "value", "low", "high", "values"}
    assert f" {useful['value']} " in useful["said"] and useful["values"]["within"] == 0.2


def test_two_workloads_have_pages_of_their_own_and_files_although_their_names_look_alike():
    document = document_of_logs([log(trial(id=1, model="a b"), trial(id=2, model="a/b"))])
    assert [workload.model for workload, _ in document.pages] == ["a b", "a/b"]
    slugs = [page.slug for _, pages in document.pages for page in pages]
    assert len(set(slugs)) == 2 and all(set(slug) <= set("abcdefghijklmnopqrstuvwxyz-.0123456789") for slug in slugs)


def test_what_cannot_be_read_is_named_or_skipped_and_what_is_given_twice_counts_once(tmp_path):
    with pytest.raises(LogError, match="empty.h5: no trial"):
        read([save(log(), tmp_path / "empty.h5")])
    for name in ("here", "one", "two/deep"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        save(log(trial()), tmp_path / "runs" / name / "w1.h5")
    with pytest.raises(LogError, match="(?s)no logs .* in {0} itself.*{0}/one: 1 log.*{0}/two/deep: 1 log".format(
            tmp_path / "runs")):
        read([tmp_path / "runs"])
    here = tmp_path / "runs" / "here"
    with read([here / "w1.h5", here, here / "w1.h5"]) as runs:
        assert len(runs.logs) == 1
    (here / "broken.h5").write_bytes(b"not a log" * 100)
    with pytest.raises(LogError, match="(?s)broken.h5.*--skip-broken"):
        read([here])
    said = []
    document = make([here], skip_broken=True, echo=said.append)
    assert len(document.logs) == 1 and said[0].startswith("skipped: ") and "broken.h5" in said[0]


@pytest.mark.parametrize("command", [main, plan])
@pytest.mark.parametrize("out", ["file", "file/report"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_told(command, out, tmp_path):
    path = save(log(trial()), tmp_path / "good.h5")
    (tmp_path / "file").write_text("a file in the way")
    result = CliRunner().invoke(command, [path, "--out", str(tmp_path / out), "--format", "json"])
    assert (result.exit_code, result.output) == (2, f"Error: --out {tmp_path / out}: cannot be written: "
                                                    f"{tmp_path}/file is no directory; give another place\n")


# what is given for an option that is neither a flag nor a choice nor a share
GIVEN = {"targets": "train/loss<2", "formats": "json", "budgets": "200 steps", "compare": "shallue2019", "width": "40",
         "paper": "shallue2019", "rules": "power:0.7", "branch_tolerance": "0.5", "trials": "3", "sizes": "parameters",
         "laws": "batch = 2 * tokens^0.3", "confidence": "0.8", "out": "out", "workers": "1-4", "deadline": "1h",
         "parameters": "25M", "steps": "300@32", "batch_schedule": "[[0, 32], [100, 64]]", "relaunch": "90s",
         "size": "parameters=7e9", "size_from": "parameters=([0-9]+)"}


@pytest.mark.parametrize("command, timed, option", [
    (command, timed, one) for command, timed in ((main, True), (main, False), (plan, True)) for one in command.params
    if one.name not in ("logs", "version", "help_all") and not one.hidden], ids=lambda one: getattr(one, "name", one))
def test_every_option_is_answered_on_a_training_loss_alone(command, option, timed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [trial(number, (0, 100, 200, 300), (3, 2, 1.5, 1.1 + number / 50), [
        at + number / 10 if timed and at else math.nan for at in range(4)], batch=batch, seed=number, target=None,
        peak_lr=0.1 if timed else 0.1 * number) for number, batch in enumerate((32, 32, 32, 64, 64, 64), 1)]
    save(log(*made, metric="train/loss"), "a.h5")
    (tmp_path / "broken.h5").write_text("")
    logs = ["a.h5", *["broken.h5"] * (option.name == "skip_broken"), *["--target=train/loss<1.8"] * (command is plan)]
    values = [GIVEN.get(option.name) or getattr(option.type, "choices", ["", "40%" if command is main else "5"])[1]]
    found, usual = (" ".join(CliRunner().invoke(command, [*logs, *given]).output.split())
                    for given in ([option.opts[0], *values * (not option.is_flag)], []))
    assert option.opts[0] in found or found != usual


def test_verdict_and_main_table_are_the_first_fifteen_lines():
    lines = CliRunner().invoke(main, [str(ROOT / "tools/readme/mnist.h5")]).output.splitlines()
    assert [line.split(":")[0] for line in lines[2:4]] == ["Fastest", "Cheapest"] and lines[4].startswith("Knee ")
    assert lines[5] == "" and lines[6].startswith("By worker count: val/error<0.02") and "-----" in lines[10]
    assert [line.split()[0] for line in lines[11:15]] == ["1", "2", "4#", "8#"] and max(map(len, lines[:15])) <= 100
    assert "Fastest" not in " ".join(lines[15:]) and "How to read" not in " ".join(lines) and len(lines) < 40


def test_files_of_a_report(tmp_path):
    paths = [save(made, tmp_path / f"w{workers}.h5") for workers, made in study().items()]
    said = []
    make(paths, [Target.parse("val/error<0.02")], tmp_path / "report", formats=("json", "csv"), echo=said.append)
    assert sorted(os.listdir(tmp_path / "report")) == ["report.json", "tables"]
    assert sorted(os.listdir(tmp_path / "report" / "tables")) == [
        "mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.02-batches.csv",
        "mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.02-critical-batch.csv",
        "mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.02-runs.csv",
        "mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.02-weak-32.csv"]
    assert said[-1].startswith("wrote 5 files: ")


def test_tables_are_printed_before_what_draws_is_imported_and_no_trainer_is(tmp_path):
    path = save(log(trial()), tmp_path / "good.h5")
    code = ("import sys; from hvdscale.report.pages import make\n"
            "heavy = {*'torch horovod mpi4py matplotlib jinja2 scipy.stats scipy.optimize hvdscale.exchange'.split()}\n"
            "make(sys.argv[1:2], out=sys.argv[2], formats=['html'],\n"
            "     echo=lambda text: print(text, 'LOADED', sorted(heavy & sys.modules.keys())))")
    done = subprocess.run([sys.executable, "-c", code, path, tmp_path / "report"], capture_output=True, text=True,
                          timeout=300)
    *loaded, last = re.findall("LOADED (.*)", done.stdout)
    assert set(loaded) == {"[]"} and last == "['jinja2', 'matplotlib']" and "val/error<0.2" in done.stdout, done.stderr


@pytest.mark.parametrize("changes", [{"status": Status.INCOMPLETE}, {"seconds": [math.nan] * 3}])
def test_a_count_whose_runs_did_not_end_or_were_not_timed_is_weighed_beside_the_others(changes):
    made = [trial(2 * workers + seed, workers=workers, batch=32 * workers, seed=seed,
                  steps=(0, 400, 800 // workers + 400), **(changes if workers == 4 else {}))
            for workers in (1, 2, 4) for seed in (0, 1)]
    [section] = sections(log(*made))
    assert [option.workers for option in Subject(**vars(section)).plan.options] == [1, 2, 4]


def test_what_another_optimizer_or_target_ran_alone_is_said_before_the_fastest():
    runs, four = (trial(1), trial(2, workers=2, seconds=(0, 0.6, 1.2))), dict(workers=4, seconds=(0, 0.1, 0.2))
    documents = (document_of_logs([log(*runs, trial(3, **four, **keys))])
                 for keys in (dict(optimizer="lars"), dict(target="val/error<0.3"), {}))
    lars, looser, same = ([page.verdict[0] for _, own in one.pages for page in own] for one in documents)
    assert lars[1].startswith("Faster than all below: made/net, lars")
    assert looser[0] == "Not compared here: W = 4, which ran to val/error<0.3 only." and same[0].startswith("Fastest")
    faster = log(trial(3, **four), path="h100.h5")
    faster.restarts["device"][:] = "cuda H100"
    [(_, [page])] = document_of_logs([log(*runs), faster]).pages
    assert page.verdict[0] == "Not compared here: W = 4, whose times are left out."


def test_of_one_batch_that_met_nothing_is_said_and_one_that_may_scale_perfectly_is_open():
    unmet = [trial(batch, batch=batch, error=(0.9, 0.5, 0.3)) for batch in (32, 64)]
    said = [one.said for one in findings(sections(log(*unmet, trial(3, batch=128)))[0])]
    assert any(one.startswith("Only batch 128 met") for one in said) and not any("rfect scal" in one for one in said)
    runs = [trial(at, (0, steps - 10, steps), batch=32 << at // 3, seed=at % 3)
            for at, steps in enumerate((800, 1000, 1200, 450, 650, 900, 300, 500, 800))]
    [found] = sections(log(*runs))
    assert found.batches.perfect == {32: True, 64: "open", 128: "open"}
