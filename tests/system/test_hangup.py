"""Signals that ask a run to stop, and output that nobody reads any more."""
import os
import pty
import subprocess
import sys

import pytest

from tests.conftest import command_environment

HEEDING = """
import os, signal, sys
from hvdscale.system.hangup import heed
before = heed(lambda number, _: print("heard"))
os.kill(os.getpid(), signal.SIGHUP)
print("lives")
"""
POSTPONED = """
import os, signal
from hvdscale.errors import StoppedError
from hvdscale.system.hangup import heed, heeding_stops, postpone_stops, stop_before_the_steps, take_postponed
heed(stop_before_the_steps)
def attempt(name):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        print(name, "waits")
    except StoppedError as error:
        print(name, "raises", error.exit_code)
attempt("alone")
postpone_stops()
attempt("joined")
try:
    with heeding_stops():
        print("never")
except StoppedError:
    print("raised later")
with heeding_stops():
    attempt("in a section")
attempt("after it")
print(take_postponed(), take_postponed())
"""
SPEAKING = """
import sys
from hvdscale.system.hangup import guard_streams, has_readers
guard_streams(lasting=True)
report = open(sys.argv[1], "w")
print("first", flush=True)
sys.stdin.read()
for file in (sys.stdout, sys.stdout, sys.stderr):
    print("a line that is lost", file=file, flush=True)
report.write(str(has_readers()))
"""
NOHUP = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]            # nohup itself would take a terminal's output away


@pytest.mark.parametrize("before, said", [([], "heard\nlives\n"), (["nohup"], "lives\n"), (NOHUP, "lives\n")])
def test_a_hangup_is_heard_but_under_nohup(run, before, said):
    assert run(*before, sys.executable, "-c", HEEDING).stdout == said


def test_a_signal_before_the_first_step_waits_while_other_ranks_wait_for_this_one(run):
    assert run(sys.executable, "-c", POSTPONED).stdout.splitlines() == [
        "alone raises 75", "joined waits", "raised later", "in a section raises 75", "after it waits", "True False"]


@pytest.mark.parametrize("make", [os.pipe, pty.openpty])
@pytest.mark.parametrize("before, readers", [([], "False"), (NOHUP, "True")])
@pytest.mark.parametrize("options", [[], ["-u"]])
def test_output_without_a_reader_is_lost_and_nothing_else(tmp_path, make, before, readers, options):
    reading, writing = make()
    process = subprocess.Popen([*before, sys.executable, *options, "-c", SPEAKING, str(tmp_path / "report")],
                               stdin=subprocess.PIPE, stdout=writing, stderr=writing, env=command_environment())
    try:
        os.close(writing)
        said = b""
        while b"first" not in said:
            said += os.read(reading, 1000)
        os.close(reading)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and (tmp_path / "report").read_text() == readers


def test_a_full_disk_is_no_lost_reader(run):
    done = run("sh", "-c", f'"{sys.executable}" -c "from hvdscale.system.hangup import guard_streams as go; go(True); '
               'print(1, flush=True)" > /dev/full', check=False)
    assert "No space left on device" in done.stderr
