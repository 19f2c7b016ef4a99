"""hvdscale-scale: which runs a series has, which are still to do, and what each is given."""
import json
import os
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hvdscale.analysis.next_runs import Measurement
from hvdscale.analysis.timings import Place
from hvdscale.cli import scale
from hvdscale.cli.common import whole_numbers
from hvdscale.errors import HvdscaleError, UsageError
from hvdscale.formatting.toml import value_as_toml
from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter
from hvdscale.plan.lengths import Length
from hvdscale.plan.settings import Settings, parse_assignments
from hvdscale.training.series import PROBE_STEPS, SeriesRun, carry_out, ended, runs_of, runs_to_measure
from tests.factories.logs import log as made_log, save, trial
from tests.wording import naming


@pytest.mark.parametrize("text, counts", [("1", [1]), ("1,2,4,8", [1, 2, 4, 8]), (" 3, 5 ", [3, 5]), ("8,1", [8, 1])])
def test_worker_counts_are_read_from_a_list(text, counts):
    assert whole_numbers("--workers", text, "worker counts", 1) == counts


def test_a_series_has_a_run_of_each_seed_at_each_count_smallest_first():
    runs = runs_of([4, 1, 4], 2, False, {"steps": 5, "seed": 7}, "out")
    assert [(run.workers, run.log, run.keys["seed"]) for run in runs] == [
        (1, "out/w1-r1.h5", 7), (4, "out/w4-r1.h5", 7), (4, "out/w4-r2.h5", 8), (1, "out/w1-r2.h5", 8)]
    assert all(run.keys["steps"] == 5 for run in runs)
    assert runs[0].output == "out/w1-r1.out"


def test_a_probe_is_a_few_steps_without_evaluation_or_target_under_its_own_name():
    runs = runs_of([1, 2], 1, True, {"lr": 0.5, "steps": 900, "target": "val/error<0.1", "eval_every": 7}, "out")
    assert [run.log for run in runs] == ["out/w1-probe.h5", "out/w2-probe.h5"]
    for run in runs:
        assert run.keys == {"lr": 0.5, "steps": PROBE_STEPS, "eval_every": 0, "target": "none"}
        Settings.build({"epochs": 3.0}, run.keys)
    runs = runs_of([1, 2], 2, True, {"seed": 4}, "out")
    assert [(run.log, run.keys["seed"]) for run in runs] == [
        ("out/w1-probe.h5", 4), ("out/w2-probe.h5", 4), ("out/w2-probe-r2.h5", 5), ("out/w1-probe-r2.h5", 5)]
    for typed in ({"epochs": 3.0}, {"seconds": 2.0}, {"eval_every_epochs": 0.5}, {"examples": 100}):
        run, = runs_of([1], 1, True, typed, "out")
        assert Settings.build({}, run.keys).budget == Length(PROBE_STEPS, "steps")


@pytest.mark.parametrize("keys", [
    {"lr": 1e-5, "steps": 5, "keep_going": True, "target": "val/error<0.01", "log": 'a "b" \\ é.h5'},
    {"decay_at_epochs": [30, 60.5], "model_args": {"width": 8, "act": "relu", "wide": False}},
    {"lr": 1e22, "optimizer_args": {"betas": [0.9, 0.99], "eps": 1e-8}}, {"data_dir": "123"}, {"data_dir": ""},
    {"data_dir": "a \U0001f642 b"}])
def test_what_a_run_is_given_is_read_back_as_it_was(keys):
    assert parse_assignments(f"{key}={value_as_toml(value)}" for key, value in keys.items()) == keys


# runs that are there already

NAME, KEYS = "digits/fc", {"steps": 5, "lr": 0.5, "seed": 0, "threads": 1}


@pytest.fixture
def logged(tmp_path):
    """A run, and a log of it that ended in this way under these keys (None: it was killed)."""
    def logged(status, keys=KEYS, workload=NAME):
        run = SeriesRun(2, str(tmp_path / "w2-r1.h5"), KEYS)
        asked = {"workload": workload, **keys, "log": run.log, "overwrite": True}
        writer = LogWriter(run.log, metrics=(), overwrite=True)
        plan = {"problem": {"workload": workload}, "measurement": {}, "execution": {}, "asked": asked}
        writer.append("trials", id=0, status=Status.RUNNING, stop_reason="", dataset="", model="", optimizer="",
                      global_batch=4, local_batch=2, accumulation=1, ghost_batch=2, workers=2, seed=0, budget_steps=5,
                      plan=json.dumps(plan))
        if status is not None:
            writer.set_status(0, status, "")
            writer.finish()
        else:
            writer.flush()
            writer.abandon()
        return run
    return logged


@pytest.mark.parametrize("status, done", [
    (Status.COMPLETE, True), (Status.INFEASIBLE, True), (Status.INCOMPLETE, False), (Status.RUNNING, False),
    (None, False)])
def test_a_run_is_done_when_its_log_says_so(logged, status, done):
    assert ended(logged(status), NAME) == done


def test_a_missing_log_and_one_that_is_none_are_still_to_do(tmp_path):
    run = SeriesRun(2, str(tmp_path / "w2-r1.h5"), KEYS)
    assert not ended(run, NAME)
    (tmp_path / "w2-r1.h5").write_bytes(b"half a log")
    assert not ended(run, NAME)


@pytest.mark.parametrize("keys, workload, said", [
    ({**KEYS, "lr": 0.25}, NAME, ["lr was 0.25, is now 0.5"]),
    ({**KEYS, "target": "val/error<0.1"}, NAME, ["target was val/error<0.1, is now not set"]),
    ({"steps": 5, "seed": 0, "threads": 1}, NAME, ["lr was not set, is now 0.5"]),
    ({**KEYS, "lr": 0.25, "steps": 6}, NAME, ["lr was 0.25, is now 0.5", "steps was 6, is now 5"]),
    (KEYS, "digits/cnn", ["workload was digits/cnn, is now digits/fc"])])
def test_a_log_of_other_options_is_an_error_naming_the_keys(logged, keys, workload, said):
    with pytest.raises(UsageError, match=naming("w2-r1.h5", *said, "--out", "--overwrite")):
        ended(logged(Status.COMPLETE, keys, workload), NAME)


# the command

@pytest.fixture
def scaled(monkeypatch, tmp_path):
    """Call hvdscale-scale without training and report; gives output, runs carried out, and what was reported."""
    def scaled(*arguments, exit_code=0):
        carried, reported = [], []
        monkeypatch.setattr("hvdscale.cli.series.carry_out", lambda run, *rest: carried.append((run, *rest[:3])) or {})
        monkeypatch.setattr("hvdscale.report.pages.make", lambda logs, out, echo: reported.extend([logs, out]))
        monkeypatch.setattr(scale, "usable_cores", lambda: frozenset(range(6)))
        monkeypatch.setattr(scale, "find_launcher", lambda wanted: f"found {wanted}")
        result = CliRunner().invoke(scale.main, ["digits/fc", "--out", str(tmp_path), *arguments])
        assert result.exit_code == exit_code, result.output
        return result.output, carried, reported
    return scaled


def test_each_run_is_carried_out_and_then_all_are_reported(scaled, tmp_path):
    output, carried, reported = scaled("--workers", "2,1", "--lr", "0.5", "--launcher", "mpirun", "--hosts", "a:2")
    assert [run.workers for run, *_ in carried] == [1, 2]
    assert {tuple(rest) for _, *rest in carried} == {("digits/fc", "found mpirun", "a:2")}
    assert reported == [[str(tmp_path / "w1-r1.h5"), str(tmp_path / "w2-r1.h5")], str(tmp_path / "report")]
    assert "[1/2] 1 worker, seed 0: " in output and "[2/2] 2 workers, seed 0: " in output


def test_a_worker_has_the_same_share_of_the_cores_at_every_count(scaled, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert {run.keys["threads"] for run, *_ in scaled("--workers", "1,3")[1]} == {2}
    assert {run.keys["threads"] for run, *_ in scaled("--workers", "1,16")[1]} == {1}
    assert {run.keys["threads"] for run, *_ in scaled("--workers", "1,3", "--set", "threads=5")[1]} == {5}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert all("threads" not in run.keys for run, *_ in scaled("--workers", "1,3")[1])


def test_runs_that_are_there_are_not_run_again_unless_asked(scaled, logged, tmp_path):
    logged(Status.COMPLETE)
    options = ("--workers", "1,2", "--steps", "5", "--lr", "0.5", "--set", "threads=1")
    output, carried, reported = scaled(*options)
    assert [run.workers for run, *_ in carried] == [1]
    assert re.search(naming("1 of 2 runs", "--overwrite"), output)
    assert len(reported[0]) == 2
    assert [run.workers for run, *_ in scaled(*options, "--overwrite")[1]] == [1, 2]
    output, carried, _ = scaled(*options[:4], "--lr", "0.25", "--set", "threads=1", exit_code=2)
    assert re.search(naming("w2-r1.h5", "lr was 0.5, is now 0.25"), output) and carried == []


def test_a_run_that_leaves_no_log_is_an_error_with_its_last_lines(tmp_path, worded):
    said, run = [], SeriesRun(1, str(tmp_path / "out" / "w1-r1.h5"), {"steps": 5})
    with pytest.raises(HvdscaleError) as caught:
        carry_out(run, "digits/none", None, None, said.append)
    worded(str(caught.value), about="the run")
    worded(str(caught.value), about="there is")
    worded(said[-1])
    assert "hvdscale.cli.train digits/none --set steps=5" in (tmp_path / "out" / "w1-r1.out").read_text()


@pytest.mark.parametrize("out, said", [
    ("file", "is no directory; give another place"), ("file/more", "is no directory; give another place"),
    ("/proc/none/of/it", "w1-r1.out: cannot be written: No such file or directory; choose another --out")])
def test_a_place_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path, out, said):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(scale.main, ["digits/fc", "--workers", "1", "--out", str(tmp_path / out)])
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2)
    assert said in result.output and (tmp_path / "file").read_text() == ""


def test_too_many_workers_are_refused_before_the_smaller_counts_run(scaled, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    output, carried, _ = scaled("--workers", "1,2,100000", exit_code=2)
    assert "--workers 100000: this machine has" in output and carried == []
    assert scaled("--workers", "1,3", "--hosts", "a:1,b:1", exit_code=2)[1] == []


@pytest.mark.parametrize("printed, said", [     # a launcher that ends the other process before that has said anything
    ("echo 'Process name: 1'; echo 'Exit code: 137'", "1: process 1 was killed by signal 9 .SIGKILL., as the "),
    ("", r"1\)")])
def test_a_failed_run_is_an_error_though_an_earlier_log_is_there(logged, tmp_path, monkeypatch, printed, said):
    (tmp_path / "horovodrun").write_text(f"#!/bin/sh\n{printed}\nexit 1\n")
    (tmp_path / "horovodrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(HvdscaleError, match=rf"ended without a finished log \(exit code {said}"):
        carry_out(logged(Status.COMPLETE), NAME, "horovodrun", None, print)


def test_measurements_become_the_next_repeats(logged, tmp_path):
    run = logged(Status.COMPLETE)
    wanted = [Measurement(Place(*place), seeds) for place, seeds in (((1, 16, 1), 2), ((1, 4, 1), 0), ((2, 64, 2), 1))]
    found = runs_to_measure(wanted, NAME, {key: value for key, value in run.keys.items() if key != "seed"}, 16,
                            os.path.dirname(run.log))
    assert len(found) == 4 and len({one.log for one in found}) == 4
    assert found[2].log.endswith("w1-b4-probe.h5") and found[2].keys["local_batch"] == 4
    assert found[3].keys["accumulate"] == 2 and "local_batch" not in found[3].keys


def test_it_runs_what_decides_and_resumes(tmp_path, worded):
    words = ["digits/fc", "--workers", "1,64", "--until", "2%", "--at-most", "1e-9", "--target", "val/error<0.2",
             "--out", str(tmp_path / "o")]
    first, again = (CliRunner().invoke(scale.main, words) for _ in range(2))
    assert first.exit_code == 0 and re.search("Fastest.*% sure within 20%", " ".join(first.output.split()))
    assert "w1-r2.h5" in first.output and (tmp_path / "o" / "plan" / "plan.json").exists()
    assert re.search("hvdscale-scale digits/fc --workers [0-9,]*64", first.output)
    worded(again.output, about="runs are")
    assert again.exit_code == 0


@pytest.mark.parametrize("factor, code, runs", [(0.6, 0, 3), (2.0, 4, 3), (1.0, 5, 4)])
def test_seeds_of_the_baseline_run_until_the_change_is_decided(tmp_path, monkeypatch, factor, code, runs):
    """At most 16 seconds of worker time, a run taking 4 x factor; a finished run is not run again."""
    def made(seed, factor, luck=0):
        steps = round(factor * (400 + 7 * ((seed + luck) % 3)))
        return made_log(trial(seed, (0, steps - 1, steps), (0.9, 0.5 + 0.01 * luck, 0.1), (0, 0, 0.01 * steps),
                              seed=seed))

    def carry_out(run, *_):
        save(made(run.keys["seed"], factor, 1), run.log)
        return {}
    base = tmp_path / "base"
    base.mkdir()
    for seed in range(5, 9):
        save(made(seed, 1), str(base / f"{seed}.h5"))
    monkeypatch.setattr("hvdscale.cli.series.carry_out", carry_out)
    monkeypatch.setattr("hvdscale.cli.series.ended", lambda run, *_: os.path.exists(run.log))
    monkeypatch.setattr("hvdscale.cli.series.refuse_edited", lambda *_: {})
    monkeypatch.setattr("hvdscale.cli.series.finished_logs", lambda out: sorted(
        str(path) for path in (tmp_path / "o").glob("*.h5")))
    done = CliRunner().invoke(scale.main, ["digits/fc", "--against", str(base), "--decide", "--at-most",
                                           str(16.9 / 3600), "--within", "0", "--out", str(tmp_path / "o")])
    assert done.exit_code == code, done.output
    assert len(list((tmp_path / "o").glob("*.h5"))) == runs
    found = json.loads((tmp_path / "o" / "decision.json").read_text())
    assert found["decisions"][0]["runs"] == [4, runs] and (tmp_path / "o" / "decision.xml").exists()


def test_taking_over_a_log_reaches_the_runs_and_is_no_part_of_what_was_asked(logged):
    run = logged(Status.COMPLETE)
    assert ended(replace(run, keys={**run.keys, "take_over": True}), NAME)
    taking, = runs_of([1], 1, False, {"take_over": True}, "out")
    assert taking.keys["take_over"] is True
