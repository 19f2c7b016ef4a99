"""hvdscale-log ls --watch: what is shown of running trials, when it ends, and what it survives."""
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvdscale.cli import listing
from hvdscale.cli.listing import GRACE, follow
from hvdscale.cli.log import main
from hvdscale.errors import LogError
from hvdscale.log.schema import Status
from tests.conftest import command_environment, heed_ctrl_c
from tests.factories.log_files import begin, finished, interrupted, open_log, plan, step, write

WRITER = """
import sys, time
from hvdscale.log.schema import Status
from tests.factories.log_files import begin, evaluation, open_log, step
log = open_log(sys.argv[1], flush_seconds=0.05)
begin(log)
for number in range(1, 121):
    step(log, number)
    if number % 10 == 0:
        evaluation(log, number)
        log.flush()
    time.sleep(0.01)
log.set_status(0, Status.COMPLETE, "target met")
log.finish()
"""


START = 1.7e9           # of the trials of log_files


class Terminal(io.StringIO):
    """What a terminal is given."""

    def isatty(self):
        return True


def followed(path, *events, out=None, every=10.0):
    """What is printed of a log while these things happen to it, one between two looks."""
    out, events, now = out or io.StringIO(), list(events), [START]

    def sleep(seconds):
        now[0] += seconds
        if events:
            events.pop(0)()
    follow([str(path)], every, out, lambda: now[0], sleep)
    assert not events
    return out.getvalue()


def nothing():
    """Happens."""


AFTER = [nothing] * (GRACE - 1)         # the end of a trial


def complete(log):
    log.set_status(0, Status.COMPLETE, "target met")
    log.finish()


def begun(path, steps=0):
    log = open_log(path)
    begin(log)
    write(log, steps)
    log.flush()
    return log


def go_on(log, steps, first_step):
    write(log, steps, first_step=first_step)
    log.flush()


def test_a_log_that_another_process_writes_is_followed_to_its_end(tmp_path):
    path, out = str(tmp_path / "w2.h5"), io.StringIO()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], env=command_environment())
    follow([path], 0.1, out)
    assert writer.wait() == 0
    said = out.getvalue()
    assert said.startswith(f"{path}: is not there yet; waiting for it\n")
    assert f"{path}: trial 0 COMPLETE: target met\n" in said and said.endswith("1 log, 1 trial: 1 COMPLETE\n")
    steps = [int(line.split("/1,000")[0].split()[-1]) for line in said.splitlines() if "/1,000" in line]
    assert len(steps) > 2 and steps == sorted(steps) and 0 <= steps[0] < steps[-1] <= 120


def test_a_row_has_what_ls_has_and_the_target_the_speed_and_what_is_left(tmp_path):
    log = begun(tmp_path / "w2.h5", 100)
    said = followed(tmp_path, lambda: go_on(log, 300, 100), lambda: complete(log), *AFTER).splitlines()
    rows = [line.split("  ") for line in said if line.startswith(f"{tmp_path}/w2.h5  ")]
    rows = [[cell.strip() for cell in row if cell] for row in rows]
    assert said[0].split()[:4] == ["log", "trial", "status", "workload"]
    shared = ["0", "running", "digits/fc", "32", "2"]
    assert rows[0][1:] == [*shared, "100/1,000", "val/error", "0.0049505", "0.0049505", "val/error<0.01", "-", "-"]
    assert rows[1][1:] == [*shared, "300/1,000", "val/error", "0.0016611", "0.0016611", "val/error<0.01", "30.0",
                           "at most 23 s"]
    assert said[-2:] == [f"{tmp_path}/w2.h5: trial 0 COMPLETE: target met", "1 log, 1 trial: 1 COMPLETE"]


def test_a_trial_that_keeps_going_ends_with_its_budget_and_not_at_its_target(tmp_path, monkeypatch):
    going = json.loads(plan())
    going["measurement"]["keep_going"] = True
    monkeypatch.setattr("tests.factories.log_files.plan", lambda seed: json.dumps(going))
    log = begun(tmp_path / "w2.h5")
    said = followed(tmp_path, lambda: go_on(log, 100, 0), lambda: complete(log), *AFTER)
    assert "  10.0     90 s" in said and "at most" not in said and "<0.01" not in said


def test_a_budget_in_seconds_is_left_by_the_seconds_trained(tmp_path, monkeypatch):
    timed = json.loads(plan())
    timed["measurement"] = {"budget_steps": 0, "budget_seconds": 60.0}
    monkeypatch.setattr("tests.factories.log_files.plan", lambda seed: json.dumps(timed))
    log = open_log(tmp_path / "w2.h5")
    append = log.append
    monkeypatch.setattr(log, "append", lambda table, **row: append(
        table, **({**row, "budget_steps": 0} if table == "trials" else row)))
    begin(log)
    go_on(log, 100, 0)
    assert " 100 " in (said := followed(tmp_path, lambda: complete(log), *AFTER)) and "59 s" in said


def test_a_trial_that_was_resumed_has_the_speed_of_its_new_process(tmp_path):
    path, log = str(tmp_path / "w2.h5"), []
    interrupted(path, 400)

    def resume():
        log.append(open_log(path, resume=True))
        begin(log[0], first_step=300, previous_end="killed")
        log[0].flush()
    said = followed(path, resume, lambda: go_on(log[0], 330, 300), lambda: complete(log[0]), *AFTER)
    states = [line.split()[2:8] for line in said.splitlines() if "/1,000" in line]
    assert [(state[0], state[4]) for state in states] == [
        ("interrupted", "400/1,000"), ("running", "300/1,000"), ("running", "330/1,000")]
    assert "1.5" in said and said.endswith(f"{path}: trial 0 COMPLETE: target met\n1 log, 1 trial: 1 COMPLETE\n")


def test_it_survives_whatever_becomes_of_a_log(tmp_path):
    path, kept = str(tmp_path / "w2.h5"), str(tmp_path / "kept")
    whole = finished(tmp_path / "whole.h5.not", 50)
    shutil.copy(interrupted(tmp_path / "live.h5.not", 50), kept)

    def cut():
        with open(path, "r+b") as file:
            file.truncate(5000)
    said = followed(path, lambda: open(path, "wb").close(), lambda: os.replace(kept, path), cut,
                    lambda: os.unlink(path), lambda: os.mkdir(path), lambda: os.rmdir(path),
                    lambda: shutil.copy(whole, path), *AFTER)
    for part in ("is not there yet", "is an empty file", "50/1,000", "is truncated", "1 COMPLETE"):
        assert part in said
    assert said.index("empty") < said.index("50/1,000") < said.index("truncated") < said.index("1 COMPLETE")


def test_logs_that_have_ended_are_shown_once(tmp_path):
    finished(tmp_path / "a.h5", trials=2)
    finished(tmp_path / "b.h5")
    assert followed(tmp_path) == "2 logs, 3 trials: 3 COMPLETE\n"


def test_a_studys_logs_are_found_in_subfolders_and_later_runs_awaited(tmp_path):
    logs = tmp_path / "sweep" / "logs"
    logs.mkdir(parents=True)
    first = []

    def end():
        first[0].set_status(0, Status.INFEASIBLE, "diverged: the loss is nan at step 7")
        first[0].finish()
    said = followed(tmp_path, lambda: first.append(begun(logs / "group.h5")), end, lambda: finished(logs / "next.h5"),
                    *AFTER)
    assert said.startswith(f"no log (*.h5) in {tmp_path} yet; waiting for one\n")
    assert "group.h5: trial 0 INFEASIBLE: diverged: the loss is nan at step 7\n" in said
    assert said.endswith("2 logs, 2 trials: 1 COMPLETE, 1 INFEASIBLE\n")


def test_on_a_terminal_it_is_drawn_again_in_place_and_never_wraps(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")
    log = begun(tmp_path / "w2.h5", 100)
    said = followed(tmp_path, lambda: go_on(log, 300, 100), lambda: complete(log), *AFTER, out=Terminal())
    first, second, last, *_ = said.split("\x1b[J")
    drawn = first[:first.rindex("\x1b[")].splitlines()
    assert all(len(line) < 40 for line in drawn) and "100/1,000" in first and "300/1,000" in second
    assert first.endswith(f"\x1b[{len(drawn)}A") and len(drawn) > 5         # a row takes several lines
    assert last.startswith(f"{tmp_path}/w2.h5: trial 0 COMPLETE: target met\n")
    assert said.endswith("1 log, 1 trial: 1 COMPLETE\n")


def test_a_terminal_that_is_too_low_says_how_much_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("LINES", "10")
    log = open_log(tmp_path / "w2.h5")
    for trial in range(50):
        begin(log, trial)
    log.flush()

    def end():
        for trial in range(50):
            log.set_status(trial, Status.COMPLETE, "")
        log.finish()
    drawn = followed(tmp_path, end, *AFTER, out=Terminal()).split("\x1b[")[0].splitlines()
    assert drawn[-2:] == ["... and 44 more lines", "1 log, 50 trials: 50 RUNNING"] and len(drawn) == 9


def test_without_a_terminal_only_what_has_changed_is_shown(tmp_path):
    log = begun(tmp_path / "w2.h5")

    def one_step():
        step(log, 1)
        log.flush()
    said = followed(tmp_path, nothing, one_step, nothing, lambda: complete(log), *AFTER).splitlines()
    assert [line.split()[6] for line in said if "/1,000" in line] == ["0/1,000", "1/1,000"]
    assert sum(line.startswith("log ") for line in said) == 1


def test_a_log_whose_files_are_the_same_is_not_read_again(tmp_path, monkeypatch):
    finished(tmp_path / "a.h5")
    log, read = begun(tmp_path / "b.h5"), []
    monkeypatch.setattr(listing, "read_log", lambda path, really=listing.read_log: read.append(path) or really(path))
    followed(tmp_path, nothing, nothing, lambda: complete(log), *AFTER)
    assert read.count(f"{tmp_path}/a.h5") == 1 and read.count(f"{tmp_path}/b.h5") > 3


def test_what_is_no_log_ends_it_with_an_error(tmp_path, worded):
    path = tmp_path / "notes.txt"
    path.write_text("no log")
    result = CliRunner().invoke(main, ["ls", "--watch", "0.1", str(path)])
    assert result.exit_code == LogError.exit_code
    worded(result.output)


def test_ctrl_c_ends_the_command_as_it_ends_others(tmp_path):
    log = begun(tmp_path / "w2.h5")
    process = subprocess.Popen([sys.executable, "-m", "hvdscale.cli.log", "ls", "--watch", str(tmp_path)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command_environment(),
                               preexec_fn=heed_ctrl_c)
    assert process.stdout.readline().startswith("log ")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (130, "interrupted\n")
    log.abandon()


@pytest.mark.parametrize("words, every, paths", [
    (("--watch", "runs"), listing.WATCH_SECONDS, ("runs",)), (("--watch", "2.5", "runs"), 2.5, ("runs",)),
    (("--watch=2", "runs"), 2, ("runs",)), (("runs", "--watch"), listing.WATCH_SECONDS, ("runs",)),
    (("--watch", "--all", "a.h5", "b.h5"), listing.WATCH_SECONDS, ("a.h5", "b.h5")),
    (("--watch",), listing.WATCH_SECONDS, ["."])])
def test_the_seconds_between_looks_may_be_given(words, every, paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = []
    monkeypatch.setattr("hvdscale.cli.log_files.follow", lambda *given: called.append(given))
    assert CliRunner().invoke(main, ["ls", *words]).exit_code == 0 and called == [(paths, every)]
