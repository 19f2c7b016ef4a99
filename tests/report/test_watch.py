"""Logs followed while they are written: what is shown, when it ends, and what it survives."""
import io
import json
import os
import shutil
import signal
import subprocess
import sys

from click.testing import CliRunner

from hvdscale.cli.report import main
from hvdscale.errors import LogError, UsageError
from hvdscale.log.schema import Status
from hvdscale.report.watch import GRACE, Screen, Watch, file_system, follow
from tests.conftest import command_environment, heed_ctrl_c
from tests.factories.log_files import begin, evaluation, finished, interrupted, open_log, plan, step, write

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


class Clock:
    """Seconds that pass when they are slept, and what happens at each sleep."""

    def __init__(self, *events):
        self.now, self.events = 0.0, list(events)

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.events:
            self.events.pop(0)()


def followed(path, *events, terminal=False):
    """What is printed of a log while these things happen to it, one between two looks."""
    out, clock = io.StringIO(), Clock(*events)
    follow([path], 10.0, out, clock, clock.sleep, terminal)
    assert not clock.events
    return out.getvalue()


def lines_of(watch):
    news, lines = watch.look()
    return "\n".join([*news, *lines])


def test_a_log_that_another_process_writes_is_followed_to_its_end(tmp_path):
    path = str(tmp_path / "w2.h5")
    out = io.StringIO()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], env=command_environment())
    follow([path], 0.1, out)
    assert writer.wait() == 0
    said = out.getvalue()
    assert said.startswith(f"{path}: is not there yet; waiting for it\n")
    assert f"{path}: trial 0 COMPLETE: target met\n" in said
    assert said.endswith("1 log, 1 trial: 1 COMPLETE\n")
    steps = [int(line.split("step ")[1].split("/")[0]) for line in said.splitlines() if line.startswith("  trial 0  ")]
    assert len(steps) > 2 and steps == sorted(steps) and 0 <= steps[0] < steps[-1] <= 120


def test_a_line_says_step_metrics_target_speed_and_what_is_left(tmp_path):
    clock = Clock()
    watch = Watch([tmp_path], clock)
    log = open_log(tmp_path / "w2.h5")
    begin(log)
    write(log, 100)
    log.flush()
    assert ("  trial 0  step 100/1,000  val/error 0.00495 at 100  100 steps/s  at most 9 s left  until val/error<0.01  "
            "digits/fc W=2 B=32") in lines_of(watch)
    write(log, 300, first_step=100)
    log.flush()
    clock.now = 50
    assert "step 300/1,000  val/error 0.00166 at 300  4.00 steps/s  at most 3 min left" in lines_of(watch)
    log.abandon()


def test_a_trial_that_keeps_going_ends_with_its_budget_and_not_at_its_target(tmp_path, monkeypatch):
    going = json.loads(plan())
    going["measurement"]["keep_going"] = True
    monkeypatch.setattr("tests.factories.log_files.plan", lambda seed: json.dumps(going))
    watch, log = Watch([tmp_path], Clock()), open_log(tmp_path / "w2.h5")
    begin(log)
    write(log, 100)
    log.flush()
    assert "val/error 0.00495 at 100  100 steps/s  9 s left  digits/fc W=2 B=32" in lines_of(watch)
    log.abandon()


def test_a_trial_that_is_gone_on_with_has_the_speed_of_its_new_process(tmp_path):
    path, clock = str(tmp_path / "w2.h5"), Clock()
    interrupted(path, 400)
    watch = Watch([path], clock)
    assert "no process that can be seen from here writes it" in lines_of(watch) and not watch.over
    log = open_log(path, resume=True)
    begin(log, first_step=300, previous_end="killed")
    log.flush()
    clock.now = 10
    assert "step 300/1,000" in lines_of(watch)
    write(log, 310, first_step=300)
    log.flush()
    clock.now = 20
    assert "step 310/1,000" in lines_of(watch) and "1.00 steps/s" in lines_of(watch)
    log.set_status(0, Status.COMPLETE, "target met")
    log.finish()                                                    # merges the two segments
    assert f"{path}: trial 0 COMPLETE: target met" in lines_of(watch) and watch.over


def test_it_survives_whatever_becomes_of_a_log(tmp_path):
    path, kept = str(tmp_path / "w2.h5"), str(tmp_path / "kept")
    whole = finished(tmp_path / "whole.h5.not", 50)
    shutil.copy(interrupted(tmp_path / "live.h5.not", 50), kept)

    def cut():
        with open(path, "r+b") as file:
            file.truncate(5000)
    said = followed(path, lambda: open(path, "wb").close(), lambda: os.replace(kept, path), cut,
                    lambda: os.unlink(path), lambda: os.mkdir(path), lambda: os.rmdir(path),
                    lambda: shutil.copy(whole, path), *[lambda: None] * (GRACE - 1))
    for part in ("is not there yet", "is an empty file", "step 50/1,000", "is truncated", "1 COMPLETE"):
        assert part in said
    assert said.index("empty") < said.index("step 50") < said.index("truncated") < said.index("1 COMPLETE")


def test_logs_that_have_ended_are_shown_once(tmp_path):
    finished(tmp_path / "a.h5", trials=2)
    finished(tmp_path / "b.h5")
    said = followed(str(tmp_path))
    assert said == (f"{tmp_path}/a.h5: 2 COMPLETE\n{tmp_path}/b.h5: 1 COMPLETE\n2 logs, 3 trials: 3 COMPLETE\n")


def test_a_studys_logs_are_found_in_subfolders_and_later_runs_awaited(tmp_path):
    logs = tmp_path / "sweep" / "logs"
    logs.mkdir(parents=True)
    live = []

    def start():
        live.append(open_log(logs / "group.h5"))
        begin(live[0])
        live[0].flush()

    def end():
        live[0].set_status(0, Status.INFEASIBLE, "diverged: the loss is nan at step 7")
        live[0].finish()
    said = followed(str(tmp_path), start, end, lambda: finished(logs / "next.h5"), *[lambda: None] * (GRACE - 1))
    assert said.startswith(f"no log (*.h5) in {tmp_path} yet; waiting for one\n")
    assert "group.h5: trial 0 INFEASIBLE: diverged: the loss is nan at step 7\n" in said
    assert said.endswith("2 logs, 2 trials: 1 COMPLETE, 1 INFEASIBLE\n")


def test_on_a_terminal_it_is_redrawn_in_place_and_never_wraps(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")
    out = io.StringIO()
    screen = Screen(out, terminal=True)
    screen.show([], ["first", "x" * 100])
    screen.show(["ended"], ["second"])
    screen.end("all")
    assert out.getvalue() == "first\n" + "x" * 39 + "\n\x1b[2A\x1b[Jended\nsecond\nall\n"


def test_a_narrow_terminal_folds_a_line_between_its_parts(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    screen = Screen(out, terminal=True)
    screen.show([], ["  trial 0  step 84/60,000  val/error 0.893 at 50  4.00 steps/s  at most 3 min left"])
    screen.end("all")
    assert out.getvalue() == ("  trial 0  step 84/60,000\n    val/error 0.893 at 50  4.00 steps/s\n"
                              "    at most 3 min left\nall\n")


def test_what_is_no_log_ends_it_with_an_error(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no log")
    result = CliRunner().invoke(main, ["--watch", str(path)])
    assert result.exit_code == LogError.exit_code
    assert result.output == (f"{path}: is not an HDF5 file, so not a log\n{path}: cannot be read now\n1 log, 0 trials\n"
                             f"Error: 1 log could not be read: {path}\n")


def test_a_trial_that_ended_otherwise_than_complete_is_named_at_once(tmp_path):
    log = open_log(tmp_path / "w2.h5")
    begin(log)
    log.set_status(0, Status.INFEASIBLE, "diverged: the loss is nan at step 7")
    log.finish()
    assert followed(str(tmp_path)).startswith(
        f"{tmp_path}/w2.h5: trial 0 INFEASIBLE: diverged: the loss is nan at step 7\n")


def test_a_terminal_that_is_too_low_says_how_much_it_leaves_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    out = io.StringIO()
    Screen(out, terminal=True).show([], [str(at) for at in range(50)])
    assert out.getvalue().splitlines() == [*map(str, range(7)), "... and 43 more lines"]


def test_without_a_terminal_only_what_has_changed_is_said(tmp_path):
    log = open_log(tmp_path / "w2.h5")
    begin(log)
    evaluation(log, 0)
    log.flush()

    def go_on():
        step(log, 1)
        log.flush()

    def end():
        log.set_status(0, Status.COMPLETE, "")
        log.finish()
    said = followed(str(tmp_path), lambda: None, go_on, end, *[lambda: None] * (GRACE - 1)).splitlines()
    assert [line.split("  ")[2] for line in said if line.startswith("  ")] == ["step 0/1,000", "step 1/1,000"]


def test_a_network_file_system_is_named(tmp_path, monkeypatch):
    assert file_system("/proc/self") == "proc" if os.path.exists("/proc/mounts") else True
    assert Watch([tmp_path]).notes() == []
    monkeypatch.setattr("hvdscale.report.watch.file_system", lambda path: "nfs4")
    [note] = Watch([tmp_path]).notes()
    assert note.startswith("note: on nfs4 what is shown may be old")


def test_ctrl_c_ends_the_command_as_it_ends_others(tmp_path):
    log = open_log(tmp_path / "w2.h5")
    begin(log)
    log.flush()
    process = subprocess.Popen([sys.executable, "-m", "hvdscale.cli.report", "--watch", str(tmp_path)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command_environment(),
                               preexec_fn=heed_ctrl_c)
    assert "1 RUNNING" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (130, "interrupted\n")
    log.abandon()


def test_looks_are_some_time_apart(tmp_path):
    result = CliRunner().invoke(main, ["--watch", str(tmp_path), "--every", "0"])
    assert result.exit_code == UsageError.exit_code and "--every 0" in result.output
