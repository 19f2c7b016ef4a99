"""The runner of scripts: a rank is a small interpreter of its own, and no process outlives its time."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdscale.watch import runner
from hvdscale.watch.runner import ScriptRequest

MOST_FILES = 40                 # of this package, in a rank's process
SCRIPT = """
import json, sys
with open("seen.json", "w") as file:
    json.dump({"ours": sorted(name for name in sys.modules if name.split(".")[0] == "hvdscale"),
               "path": sys.path[0], "words": sys.argv, "name": __name__}, file)
"""


def asked(*arguments, **more):
    return ScriptRequest("train.py", arguments, 4, 60, 1, **more)


@pytest.mark.parametrize("module", ["hvdscale.doctor.script.rank", "hvdscale.scaling.rank"])
def test_a_rank_is_an_interpreter_with_few_of_our_files(tmp_path, monkeypatch, module):
    folder, place = tmp_path / "job", tmp_path / "place"
    folder.mkdir()
    place.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(SCRIPT)
    end = runner.run_here(asked("--of", "{workers}"), 1, module, place, folder)
    assert end == (0, False), (place / "rank0.stderr").read_text()
    seen = json.loads((folder / "seen.json").read_text())
    assert len(seen["ours"]) <= MOST_FILES, seen["ours"]
    assert (seen["path"], seen["words"], seen["name"]) == (
        str(folder), [str(folder / "train.py"), "--of", "1"], "__main__")
    assert json.loads(runner.file_of(place, 0, runner.RECORD).read_text())["state"] == "ended"


def test_who_starts_the_ranks_and_judges_their_records_needs_no_torch():
    code = "import sys\nfrom hvdscale.doctor import formats\nfrom hvdscale.doctor.script import examine\n" \
        "from hvdscale.scaling import runs\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_without_torch_the_doctor_says_so_in_a_line(tmp_path, worded):
    (tmp_path / "train.py").touch()
    code = "import sys, importlib.util as util\nfind, sys.modules['torch'] = util.find_spec, None\n" \
        "util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n" \
        "sys.argv = ['hvdscale-doctor', 'script', 'train.py']\nfrom hvdscale.cli.doctor import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    worded(done.stderr)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("batches, filled", [
    ({}, ("{local}/{global}", "of 4")), ({"batch": 8}, ("8/32", "of 4")), ({"global_batch": 8}, ("2/8", "of 4"))])
def test_marks_in_the_arguments_become_batches_and_the_worker_count(batches, filled):
    assert asked("{local}/{global}", "of {workers}", **batches).arguments_on(4) == filled


def is_running(process):
    with contextlib.suppress(OSError):
        return ") Z " not in Path("/proc", process, "stat").read_text()
    return False


def sleeping():
    return subprocess.Popen(["sleep", "100"], start_new_session=True)


def test_a_process_whose_time_is_up_is_ended(tmp_path):
    process = sleeping()
    assert runner.await_end([process], 0.1, tmp_path) == (-signal.SIGUSR1, True)


def test_once_a_rank_has_ended_the_others_have_little_time(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.1)
    ended, process = subprocess.Popen(["true"], start_new_session=True), sleeping()
    assert runner.await_end([ended, process], 60, tmp_path) == (0, False)
    assert process.returncode == -signal.SIGUSR1
    (tmp_path / "rank1.ended").touch()                                              # of another host
    assert runner.await_end([sleeping()], 60, tmp_path) == (-signal.SIGUSR1, False)
    assert runner.await_end([sleeping()], 0.3) == (-signal.SIGUSR1, True)           # which does not matter here


def test_a_process_that_heeds_no_signal_is_killed_with_its_children(tmp_path):
    command = "trap '' TERM; sleep 100 & echo $! > child; while true; do sleep 1; done"
    process = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        pass
    assert runner.await_end([process], 0.1, tmp_path, (signal.SIGTERM, 0.2)) == (-signal.SIGKILL, True)
    until = time.monotonic() + 60
    while is_running((tmp_path / "child").read_text().strip()):         # until the kernel gets to it
        assert time.monotonic() < until


def test_the_first_to_fail_is_the_one_that_left_its_record_first(tmp_path):
    for rank, at in ((0, 5), (1, 3), (2, 4)):
        runner.file_of(tmp_path, rank, runner.RECORD).touch()
        os.utime(runner.file_of(tmp_path, rank, runner.RECORD), (at, at))
    assert runner.first_to_fail(tmp_path, [0, 2]) == 2 and runner.first_to_fail(tmp_path, [0, 1, 2]) == 1
    assert runner.first_to_fail(tmp_path, []) is None


@pytest.mark.parametrize("traceback, line", [
    ("Traceback ...\nValueError: of rank 1\nmore\n", "ValueError: of rank 1"),
    (f'Traceback ...\n  File "/my/train.py", line 7, in f\n  File "{runner.__file__}", line 8, in g\nKeyError: 2\n',
     "KeyError: 2 (train.py:7)"),
    ("it ended with exit code 3", "it ended with exit code 3"), ("", "it was killed")])
def test_the_line_of_an_error_is_the_last_that_names_one(traceback, line):
    assert runner.line_of_error(traceback) == line


def test_marks_become_numbers_and_doubled_braces_are_the_scripts():
    given = "{local}/{global}", "w{workers}", "r{rank}", "{{epoch}}{{rank}}", '{"a": 1}'
    asked = runner.ScriptRequest("train.py", given, 4, 60, 1, batch=8)
    filled = asked.arguments_on(2)
    assert filled == ("8/16", "w2", "r{rank}", "{{epoch}}{{rank}}", '{"a": 1}')
    assert runner.arguments_of_rank(filled, 1) == ["8/16", "w2", "r1", "{epoch}{rank}", '{"a": 1}']
