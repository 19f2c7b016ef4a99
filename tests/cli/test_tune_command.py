"""hvdscale-tune's command line, its dry run, its progress, and the process that outlives its child."""
import io
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hvdscale.cli.tune import Signals, command, parse_only
from hvdscale.errors import UsageError
from hvdscale.sweep.farm import Farm, SweepState
from hvdscale.sweep.file import read_sweep
from hvdscale.sweep.ledger import DrawResult, Ledger, Owner
from hvdscale.sweep.run import (SweepDisplay, describe_sweep, estimate_table as table, wanted_studies)
from hvdscale.sweep.studies import Study, settle_study
from hvdscale.workers.group import SingleWorker
from tests.conftest import command_environment
from tests.parallel.quadratic import workload
from tests.parallel.sweeps import sweep_file

TARGET = "val/loss<0.001"


def states_of(tmp_path, **said):
    sweep = read_sweep(str(sweep_file(tmp_path, **said)))
    data = SimpleNamespace(train=range(64), train_tokens=None)
    studies = [settle_study(sweep, study, workload, data, None) for study in sweep.studies]
    return SweepState(studies, Ledger(str(tmp_path)))


def result(number, kind="met", steps=10, seconds=2.0):
    met = {TARGET: steps if kind == "met" else float("inf")}
    return DrawResult(number, kind, last_step=steps, steps=met, seconds=seconds)


def test_the_command_line_says_what_is_to_be_done(tmp_path):
    path = str(sweep_file(tmp_path, "deep.toml"))
    asked = command.main([path, "--only", "batch=16,64", "--data-dir", "d", "--set", "threads=2"],
                         standalone_mode=False)
    assert (asked.out, asked.mode) == ("sweeps/deep", "run") and parse_only(()) == {}
    assert asked.free == {"threads": 2, "data_dir": "d"} and asked.only == {"batch": ["16", "64"]}


def test_studies_are_chosen_by_batch_and_optimizer(tmp_path):
    sweep = read_sweep(str(sweep_file(tmp_path, optimizer=None, optimizers='["sgd", "adam"]')))
    assert [s.name for s in wanted_studies(sweep, {})] == ["sgd-b16", "sgd-b64", "adam-b16", "adam-b64"]
    assert [s.name for s in wanted_studies(sweep, {"batch": ["64"]})] == ["sgd-b64", "adam-b64"]
    assert [s.name for s in wanted_studies(sweep, {"batch": ["64"], "optimizer": ["adam"]})] == ["adam-b64"]
    with pytest.raises(UsageError, match="--only batch=8: the sweep has 16, 64"):
        wanted_studies(sweep, {"batch": ["8"]})


def test_the_longest_study_is_first_and_failures_do_not_count(tmp_path):
    states = states_of(tmp_path)
    assert states.expected_seconds()["sgd-b64"] > states.expected_seconds()["sgd-b16"]
    states.ledger.record("sgd-b16", result(0, "failed", seconds=99.0))
    states.ledger.record("sgd-b16", result(1, seconds=4.0))
    assert states.expected_seconds() == {"sgd-b16": 4.0, "sgd-b64": 4.0 * (64 + 32) / (16 + 32)}


def test_the_next_trial_is_claimed_once_and_running_ones_awaited(tmp_path):
    states = states_of(tmp_path, batch_sizes="[64]", trials=2)
    owners = [Owner.take(str(tmp_path)) for _ in range(3)]
    for owner, job in zip(owners, ("a", "a", "b")):
        owner.job = job
    farms = [Farm(states, None, SingleWorker(), owner, None, lambda: None, lambda: False) for owner in owners]
    first, second = farms[0]._next(), farms[1]._next()
    assert (first, second) == (("sgd-b64", 0, 1), ("sgd-b64", 1, 1))
    assert farms[0]._next() == "wait" and farms[2]._next() == "none"
    states.ledger.record("sgd-b64", result(0, "diverged"))
    assert farms[2]._next() == ("sgd-b64", 2, 1)                         # in its place
    states.ledger.record("sgd-b64", result(1))
    states.ledger.record("sgd-b64", result(2))
    assert farms[0]._next() == "none"
    for owner in owners:
        owner.release()


def test_progress_is_a_line_for_each_study_that_changed(tmp_path):
    states, out, now = states_of(tmp_path, repeats=1, prune_keep=1), io.StringIO(), [0.0]
    progress = SweepDisplay(states, False, out, lambda: now[0])
    progress.step()
    for number, kind in enumerate(("met", "diverged", "pruned", "failed")):
        states.ledger.record("sgd-b16", result(number, kind, 10 - number % 2))
    progress.step()
    assert out.getvalue().count("sgd-b16") == 1                 # it is not time yet
    now[0] = 11.0
    progress.step()
    assert out.getvalue().splitlines()[3:] == [
        "sgd-b16  2 of 6 feasible, 1 pruned, 1 diverged, 1 failed; best 10 steps (trial 0)",
        "sweep: 4 of 16 trials done, about 38 s left; up to 22 more in place of draws that diverge or fail"]


def test_a_sweep_does_not_grow_while_no_draw_is_replaced(tmp_path):
    """Repeats of the winner are counted before there is one; those of a study that has none never come."""
    states, said = states_of(tmp_path, trials=2, max_draws=3, repeats=3), []
    for name, kind in (("sgd-b16", "met"), ("sgd-b64", "budget")):
        for number in range(2):
            said.append(describe_sweep(states))
            states.ledger.record(name, result(number, kind))
    assert [line.partition(" trials")[0] for line in said] == [
        "sweep: 0 of 10", "sweep: 1 of 10", "sweep: 2 of 10", "sweep: 3 of 10"]
    assert [line.partition("; ")[2] for line in said] == [
        f"up to {more} more in place of draws that diverge or fail" for more in (2, 2, 1, 1)]
    assert describe_sweep(states).startswith("sweep: 4 of 7 trials done, about ")


def test_on_a_terminal_the_block_is_drawn_in_place_of_the_last_one(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((40, 30)))
    states, out = states_of(tmp_path), io.StringIO()
    progress = SweepDisplay(states, True, out)
    progress.show()
    progress.show()
    progress.say("told")
    assert out.getvalue().count("\x1b[3A\x1b[J") == 2 and out.getvalue().endswith("\x1b[3A\x1b[Jtold\n")
    assert max(map(len, out.getvalue().replace("\x1b[3A\x1b[J", "").splitlines())) < 40


def test_the_estimate_adds_up(tmp_path):
    settled = states_of(tmp_path, repeats=2).studies["sgd-b64"]
    assert isinstance(settled, Study) and (settled.budget_steps, settled.eval_every) == (48, 2)
    said = table([(settled, 0.5, 0.25)], 2)             # 8 * (48 * 0.5 + 25 * 0.25) seconds, over 2 groups
    assert re.search(r"sgd-b64 +8 +18 +48 +3,072 +25 +0.5 +2 min", said)
    assert "8 trials, 384 steps, 24,576 examples: 2 min at most with 2 groups" in said


def test_a_signal_is_noted_and_a_second_interrupt_ends_at_once():
    signals = Signals()
    signals.watch()
    assert not signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


GUARDED = """
import os, signal, sys, time, types
from pathlib import Path
from hvdscale.workers.launch import place
from hvdscale.sweep import respawn
respawn.time = types.SimpleNamespace(sleep=lambda seconds: None)
tries = sys.argv[1]
respawn.guard(place(), lambda pid: "midst" in Path(tries).read_text())
with open(tries, "a") as file:
    file.write("x")
number = len(Path(tries).read_text())
{}
"""


@pytest.mark.parametrize("child, code, starts, said", [
    ("os.kill(os.getpid(), signal.SIGKILL) if number < 3 else os._exit(7)", 7, 3, "killed by SIGKILL (out of memory?)"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 1, 20, "20 processes were killed"),
    ("signal.signal(signal.SIGTERM, lambda *_: os._exit(75)); os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)",
     75, 1, ""),
    ("os._exit(5)", 5, 1, ""),
    ("open(tries, 'w').write('midst' if number < 3 else 'xxx') and os._exit(5)", 5, 3,
     "ended itself in the midst of a trial (exit code 5); another takes its place")])
def test_a_killed_child_is_replaced_and_signals_and_codes_are_passed_on(tmp_path, child, code, starts, said):
    done = subprocess.run([sys.executable, "-c", GUARDED.format(child), str(tmp_path / "tries")], timeout=300,
                          env=command_environment(), capture_output=True, text=True)
    assert (done.returncode, len((tmp_path / "tries").read_text())) == (code, starts), done.stderr
    assert said in done.stderr


def test_a_child_dies_with_its_guard(tmp_path):
    child = "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.5)\nopen(tries, 'a').write('alive')"
    subprocess.run([sys.executable, "-c", GUARDED.format(child), str(tmp_path / "tries")], timeout=300,
                   env=command_environment())
    signal.sigtimedwait([], 0.8)
    assert (tmp_path / "tries").read_text() == "x"
