"""hvdscale-log: what it says of logs in every state, and what merge and repair leave behind."""
import json
import os
import re
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli.common import Command
from hvdscale.cli.log import main
from hvdscale.log.check import check
from hvdscale.log.merge import renumbered
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.system import forked
from tests.factories.log_files import begin, finished, interrupted, open_log, resumed, write
from tests.wording import naming


def call(*words, code=0):
    """What the command says on stdout and stderr together."""
    done = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def test_ls_says_how_each_trial_ended_and_how_far_it_came(tmp_path):
    finished(tmp_path / "done.h5", steps=50, trials=2)
    interrupted(tmp_path / "killed.h5", steps=20)
    live = open_log(tmp_path / "live.h5")
    begin(live)
    write(live, 30)
    live.flush()
    (tmp_path / "bad.h5").write_bytes(b"")
    said = call("ls", tmp_path, code=1)
    lines = [line.split() for line in said.splitlines()]
    assert " ".join(lines[0]) == "log trial status workload batch workers steps metric last best size"
    last = f"{0.5 / 51:.5g}"
    assert lines[1][0] == str(tmp_path / "done.h5")
    assert lines[1][1:10] == ["0", "COMPLETE", "digits/fc", "32", "2", "50", "val/error", last, last]
    assert lines[2][:2] == ["1", "COMPLETE"]
    assert lines[3][1:7] == ["0", "interrupted", "digits/fc", "32", "2", "20"]
    assert lines[4][1:7] == ["0", "running", "digits/fc", "32", "2", "30"]
    assert lines[5][:2] == ["Error:", f"{tmp_path / 'bad.h5'}:"]
    live.abandon()


def test_ls_shortens_a_log_of_many_trials_and_shows_a_log_without_one(tmp_path, worded):
    finished(tmp_path / "many.h5", steps=2, trials=40)
    said = call("ls", tmp_path / "many.h5").splitlines()
    assert len(said) == 14 and said[7].split() == ["...", "28", "more"] and said[-1].split()[0] == "39"
    assert len(call("ls", "--all", tmp_path / "many.h5").splitlines()) == 41
    open_log(tmp_path / "empty.h5").finish()
    assert call("ls", tmp_path / "empty.h5").splitlines()[1].split()[1:3] == ["-", "interrupted"]
    worded(call("show", tmp_path / "empty.h5"), about="no trial")
    assert "trial 0: interrupted" in call("show", interrupted(tmp_path / "w.h5"))


def test_ls_without_logs_looks_into_runs_and_says_when_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no logs (*.h5) in ." in call("ls", code=1)
    finished("runs/w1.h5")
    assert "runs/w1.h5" in call("ls")


@pytest.mark.parametrize("command", ["ls", "check", "merge --out merged.h5"])
def test_a_folder_without_logs_of_its_own_is_an_error_that_names_where_there_are_some(command, tmp_path, monkeypatch,
                                                                                      worded):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert "no logs (*.h5) in runs; 'hvdscale-log import' makes" in call(*command.split(), "runs", code=1)
    finished(tmp_path / "runs" / "first" / "w1.h5")
    said = call(*command.split(), "runs", code=1)
    worded(said, about="in runs")
    assert "runs/first: 1 log" in said


def test_show_tells_what_a_run_was_and_why_it_ended(tmp_path):
    path = finished(tmp_path / "w.h5", steps=200, attributes={"commit": "abc"})
    log = open_log(path, resume=True)
    begin(log, 0, 200, "preempted")
    write(log, 300, first_step=200)
    log.set_status(0, Status.INCOMPLETE, "preempted again")
    said = call("show", path)
    for part in ("schema version 1", "in 2 files", "h5py ", "commit     abc", "trial 0: INCOMPLETE: preempted again",
                 "workload   digits/fc", "batch      32 = 2 workers x 16, ghost batch 32", "sgd: learning_rate 0.1",
                 "budget     1000 steps, target val/error<0.01, seed 0", 'asked      {"lr": 0.1}',
                 "started    2023-11-14 22:13:20 UTC at step 0 on 2 workers (cpu, node1)",
                 "resumed    2023-11-14 22:13:20 UTC at step 200 on 2 workers (cpu, node1), after: preempted",
                 "(19 more)"):
        assert part in said, part
    rows = said.split("evaluations\n")[1].splitlines()
    assert rows[0].split() == ["step", "examples", "train_seconds", "val/error"]   # train/error: not measured
    assert " ".join(row.split()[0] for row in rows[1:]) == "0 10 20 30 40 50 (19 250 260 270 280 290 300"
    assert len(call("show", path, "--evaluations").splitlines()) == len(said.splitlines()) + 18
    assert '"budget_steps": 1000' in call("show", path, "--plan")
    steps = call("show", path, "--steps").split("steps\n")[-1].splitlines()
    assert len(steps) == 301 and steps[-1].split() == ["300", f"{1 / 300:.5g}", "0.1", "0.01"]
    log.abandon()


def test_merge_keeps_every_row_and_where_it_came_from(tmp_path):
    one = finished(tmp_path / "one.h5", steps=20, trials=2, attributes={"commit": "abc"})
    two = finished(tmp_path / "two.h5", steps=30, trials=3, metrics=("val/error", "test/error"),
                   metaparameters=("learning_rate", "weight_decay"))
    out = str(tmp_path / "all.h5")
    said = call("merge", one, two, "--out", out)
    assert re.search(f"{two}: .* 2 trials under another", said) and f"{out}: 2 logs" in said
    log = check(out)
    assert log.trials["id"].tolist() == [0, 1, 3, 4, 2]            # two's 0 and 1 were taken
    assert log.trials["source_trial"].tolist() == [0, 1, 0, 1, 2]
    sources = [json.loads(text) for text in log.trials["source"]]
    assert [source["path"] for source in sources] == [one] * 2 + [two] * 3 and sources[0]["commit"] == "abc"
    assert (log.steps.rows, log.restarts.rows) == (2 * 20 + 3 * 30, 5)
    for new, old in zip([3, 4, 2], [0, 1, 2]):
        np.testing.assert_array_equal(log.steps["loss"][log.steps["trial"] == new],
                                      read_log(two).steps["loss"][read_log(two).steps["trial"] == old])
    assert log.evaluations.columns[-3:] == ("train/error", "val/error", "test/error")
    assert np.isnan(log.trials["metaparameters/weight_decay"]).all() and log.attributes["merged"] == 2
    assert sorted(os.listdir(tmp_path)) == ["all.h5", "one.h5", "two.h5"]
    assert f"merged     from trial 1 of {two}" in call("show", out, "--trial", 4)


def test_what_an_earlier_merge_noted_stays(tmp_path):
    one, two, three = (finished(tmp_path / f"{name}.h5", steps=10) for name in ("one", "two", "three"))
    call("merge", one, two, "--out", tmp_path / "some.h5")
    call("merge", three, tmp_path / "some.h5", "--out", tmp_path / "all.h5")
    log = check(tmp_path / "all.h5")
    assert log.trials["id"].tolist() == [0, 2, 1] and log.trials["source_trial"].tolist() == [0, 0, 0]
    assert [json.loads(text)["path"] for text in log.trials["source"]] == [three, one, two]


def test_merge_refuses_to_overwrite_unless_asked(tmp_path):
    one, two = finished(tmp_path / "one.h5", steps=10), finished(tmp_path / "two.h5", steps=20)
    assert re.search(naming(f"{two}: ", "--overwrite"), call("merge", one, "--out", two, code=1))
    assert read_log(two).steps.rows == 20
    call("merge", one, two, "--out", two, "--overwrite")
    assert check(two).steps.rows == 30
    assert sorted(os.listdir(tmp_path)) == ["one.h5", "two.h5"]


@pytest.mark.parametrize("ids, expected", [
    ([[0, 1], [0, 1]], [[0, 1], [2, 3]]),
    ([[0], [5], [0]], [[0], [5], [6]]),
    ([[3, 1], [], [1, 2, 3]], [[3, 1], [], [4, 2, 5]]),
])
def test_trials_keep_their_number_where_it_is_free(ids, expected):
    new = renumbered([np.array(i, np.int64) for i in ids])
    assert [n.tolist() for n in new] == expected


def test_repair_closes_an_interrupted_log_and_none_that_is_being_written(tmp_path, worded):
    live = open_log(tmp_path / "live" / "w.h5")
    worded(call("repair", live.path, code=1), about="is being")
    live.abandon()
    shutil.rmtree(tmp_path / "live")
    path = interrupted(tmp_path / "w.h5", trials=2)
    before = read_log(path)
    said = call("repair", path)
    assert re.search("kept 2 trials, 2 restarts, 12 evaluations, 100 steps.* nothing", said, re.S)
    log = check(path)
    assert log.trials["status"].tolist() == [Status.INCOMPLETE] * 2 and "interrupted" in log.trials["stop_reason"][0]
    np.testing.assert_array_equal(log.steps["loss"], before.steps["loss"])
    assert sorted(os.listdir(tmp_path)) == ["w.h5", "w.h5.broken"]
    assert "nothing to repair" in call("repair", path)


def test_repair_goes_on_without_a_segment_that_is_lost(tmp_path, worded):
    path = resumed(tmp_path / "w.h5")
    (tmp_path / "w.1.h5").write_bytes(b"\x89HDF")
    worded(call("check", path, code=1), about="is not")
    said = call("repair", path)
    assert "kept 1 trial, 2 restarts" in said and "lost: " in said and "w.1.h5" in said
    log = check(path)
    assert log.steps["step"].tolist() == [*range(1, 21), *range(41, 61)]
    assert sorted(os.listdir(tmp_path)) == ["w.1.h5.broken", "w.2.h5.broken", "w.h5", "w.h5.broken"]


def test_ctrl_c_is_exit_code_130():
    command = Command("wait", callback=lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    done = CliRunner().invoke(command)
    assert done.exit_code == 130 and "interrupted" in done.output


def test_a_reader_of_stdout_that_leaves_is_no_traceback(tmp_path):
    path = finished(tmp_path / "w.h5", steps=5000)
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" -m hvdscale.cli.log show {path} --steps | head -1; '
                           'exit "${PIPESTATUS[0]}"'], capture_output=True, text=True)
    assert done.returncode == 141 and done.stderr == "" and path in done.stdout


def made(path, metrics, values=(0.2, 0.8, 0.5)):
    """The log of a trial that was evaluated at these values of its first metric; gives its path as text."""
    log = open_log(path, metrics=metrics)
    begin(log)
    for number, value in enumerate(values):
        log.append("evaluations", trial=0, step=number, examples=number, train_seconds=0.0,
                   **{next(iter(metrics)): value})
    log.set_status(0, Status.COMPLETE, "budget reached")
    log.finish()
    return str(path)


@pytest.mark.parametrize("metrics, best", [
    (["val/accuracy"], "0.8"), (["val/error"], "0.2"), ({"val/own": "larger"}, "0.8"), ({"val/own": "smaller"}, "0.2"),
    ({"val/accuracy": "smaller"}, "0.2"), (["val/own"], "direction unknown")])
def test_the_best_value_is_the_best_as_declared_or_by_name_and_never_a_guess(tmp_path, metrics, best):
    path = made(tmp_path / "w.h5", metrics)             # its plan's target is of val/error
    said = call("ls", path).splitlines()
    at = said[0].index("best")
    assert said[1][at:at + len(best)] == best
    both = merged(tmp_path, path, made(tmp_path / "v.h5", metrics))
    assert best in call("show", both).splitlines()[-4]


def merged(folder, *paths):
    call("merge", *paths, "--out", folder / "both.h5")
    return folder / "both.h5"


def test_many_logs_are_listed_and_checked_in_order_and_broken_ones_at_the_end(tmp_path, monkeypatch, worded):
    monkeypatch.setattr(forked, "usable_cores", lambda: {0, 1, 2})
    names = [tmp_path / f"w{number:02}.h5" for number in range(16)]
    finished(names[0], steps=10)
    for name in names[1:]:
        shutil.copyfile(names[0], name)
    names[3].write_bytes(b"")
    names[12].write_bytes(names[0].read_bytes()[:5000])
    good = [str(name) for name in names if name not in (names[3], names[12])]
    listed, checked = (call(command, tmp_path, code=1).splitlines() for command in ("ls", "check"))
    assert [line.split()[0] for line in listed[1:15]] == good
    assert [line.partition(": ok: ")[0] for line in checked[:14]] == good
    for said in (listed[15:], checked[14:]):
        worded(said[0])
        worded(said[1])
        assert len(said) == 2


def test_ls_looks_only_at_what_it_shows(tmp_path, worded):
    path = finished(tmp_path / "w.h5")
    with h5py.File(path, "r+") as file:
        del file["steps/loss"].attrs["unit"], file["steps/lr"]
        file["steps/lr"] = np.zeros((3, 3))
    assert "COMPLETE" in call("ls", path)
    worded(call("check", path, code=1), about="lr holds")


def test_a_log_cut_off_says_where_and_repair_says_it_in_a_line(tmp_path, worded):
    finished(tmp_path / "whole.h5", steps=3000)
    data = (tmp_path / "whole.h5").read_bytes()
    for share in (0.05, 0.5, 0.97):
        path, size = tmp_path / "w.h5", int(share * len(data))
        path.write_bytes(data[:size])
        said = f"{path}: is cut off at byte {size:,} of {len(data):,}; copy it again"
        assert f"Error: {said}; 'hvdscale-log repair" in call("check", path, code=1)
        repaired = call("repair", path, code=1)
        worded(repaired, about="nothing can")
        assert len(repaired.splitlines()) == 1 and len(repaired) < 300
        assert "copy it again" in repaired or "is truncated" in repaired


def test_merge_refuses_what_check_refuses(tmp_path):
    path = finished(tmp_path / "w.h5")
    with h5py.File(path, "r+") as file:
        file["steps/step"][5] = 2
    said = call("check", path, code=1)
    assert call("merge", path, "--out", tmp_path / "all.h5", code=1) == said
    assert not (tmp_path / "all.h5").exists()


OTHER_NAME = os.fsdecode(b"bad\xff\xe9")              # bytes that are not UTF-8


@pytest.mark.parametrize("kind", ["csv", "archive", "parquet", "tensorboard"])
def test_names_that_are_no_utf8_are_written_or_refused_in_a_line(tmp_path, kind, worded):
    path, out = finished(tmp_path / f"{OTHER_NAME}.h5"), tmp_path / f"{OTHER_NAME}-{kind}"
    if kind in ("parquet", "tensorboard"):
        pytest.importorskip({"parquet": "pyarrow"}.get(kind, kind))
    for words in (["ls", path], ["show", path], ["check", path], ["repair", path], ["ls", tmp_path]):
        assert "bad\\udcff\\udce9.h5" in call(*words)
    both = merged(tmp_path, path, finished(tmp_path / "v.h5"))
    if kind == "tensorboard":
        said = call("export", path, out, "--as", kind, code=2)
        worded(said, about="TensorBoard writes")
        return
    assert str(out).encode("unicode_escape").decode() in call("export", both, out, "--as", kind)
    if kind != "parquet":
        assert "2 trials" in call("import", out, tmp_path / f"{OTHER_NAME}-back.h5")
