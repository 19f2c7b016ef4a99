"""What comes between a job's beginning and its first step, or after its last, changes nothing that was settled."""
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from hvdscale.cli.common import stop_before_the_steps
from hvdscale.errors import WorkerLostError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.system.lock import Lock
from hvdscale.workers.group import Workers
from hvdscale.workers.horovod import HorovodWorkers
from tests.conftest import GOLDEN, command_environment

KEYS = ("--log", "w.h5", "--checkpoint", "ck", "--steps", "20", "--set", "eval_every=20", "--target", "none")


@pytest.fixture
def go_on(here, tmp_path, monkeypatch):
    """hvdscale-train's way with these workers; gives its exit code, the log's status and the outcome's."""
    def go_on(workers, then=lambda: None):
        monkeypatch.setattr("hvdscale.workers.transport.form", lambda *_: workers)
        code = here("hvdscale-train", "digits/fc", *KEYS).returncode
        then()
        with read_log(tmp_path / "w.h5") as log:
            return code, Status(log.trials["status"][0]), json.loads((tmp_path / "ck/outcome").read_text())["status"]
    return go_on


@pytest.mark.parametrize("where", ["errors/the log", "errors/the folder of checkpoints"])
def test_a_worker_lost_while_rank_0_opens_a_file_does_not_lock_it(go_on, where):
    class Losing(Workers):
        elastic, lost, hosts_changed = True, False, False

        def gather(self, value, name):
            if name == where and not self.lost:
                self.lost = True
                raise WorkerLostError(f"rank 0 of 2: a worker was lost during {name!r}")
            return [value]

        def reform(self):
            """It is the only one that is left."""

    assert go_on(Losing()) == (0, Status.COMPLETE, "COMPLETE")


def test_a_worker_that_is_lost_after_the_last_step_changes_no_outcome(go_on):
    class Watched(Workers):
        def watch(self, lost):
            self.lost = lost

    workers = Watched()
    assert go_on(workers, lambda: workers.lost("waited in vain")) == (0, Status.COMPLETE, "COMPLETE")


def test_a_collective_does_not_end_after_all_while_the_watch_gives_up():
    workers, happened, began = object.__new__(HorovodWorkers), [], threading.Event()
    workers.rank, workers.size, workers._stall_seconds = 0, 2, 0.2
    workers._hvd = SimpleNamespace(HorovodInternalError=RuntimeError)

    def lost(reason):
        began.set()
        time.sleep(0.3)
        happened.append("told")

    def end():
        happened.append("ended")
        workers._stall_seconds = float("inf")       # a process that has ended gives up once

    workers._end = end
    workers.watch(lost)
    with workers._collective("gradients"):
        assert began.wait(10)
    happened.append("went on")
    assert happened == ["told", "ended", "went on"]


def test_a_watch_whose_message_fails_ends_the_process_nevertheless():
    workers, ended = object.__new__(HorovodWorkers), []
    workers._lost, workers._end = None, lambda: ended.append(True)
    with pytest.raises(TypeError):
        workers._give_up("waited")
    assert ended


def test_a_signal_while_all_leave_changes_no_exit_code(go_on):
    class Warned(Workers):
        def leave(self):
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop_before_the_steps)
    assert go_on(Warned()) == (0, Status.COMPLETE, "COMPLETE")


def test_a_lock_in_a_folder_that_became_read_only_is_given_back(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    lock = Lock.take(str(tmp_path / "w.h5"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        lock.release()
    Lock.take(str(tmp_path / "w.h5"), attempts=1).release()


LOCALE = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii:strict")


def test_what_the_locale_cannot_print_is_printed_as_escapes(run, tmp_path):
    """Also a folder in UTF-8 where the locale is not."""
    done = run(sys.executable, "-m", "hvdscale.cli.report", GOLDEN / "v1.h5", "--out", "Läufe", "--format", "json",
               **LOCALE)
    assert r"L\udcc3\udca4ufe/report.json" in done.stdout and "Traceback" not in done.stderr
    assert (tmp_path / "Läufe/report.json").exists()


@pytest.mark.slow
def test_runs_of_a_series_are_printed_in_any_locale(run, tmp_path):
    done = run(sys.executable, "-m", "hvdscale.cli.scale", "digits/fc", "--workers", "1", "--steps", "2", "--out",
               "Läufe", "--set", "threads=1", **LOCALE)
    assert r"L\udcc3\udca4ufe/report/report.html" in done.stdout and "Traceback" not in done.stderr
    assert (tmp_path / "Läufe/w1-r1.h5").exists() and "Läufe/w1-r1.h5" in (tmp_path / "Läufe/w1-r1.out").read_text()


@pytest.mark.parametrize("command", ["ls", "--help"])
@pytest.mark.parametrize("where, code, said", [
    (">/dev/full", 1, "No space left on device"), (">&-", 1, "Bad file descriptor"), ("| (exec <&-; sleep 1)", 0, "")])
def test_output_that_nobody_can_take_is_one_line_or_none(command, where, code, said, tmp_path):
    done = subprocess.run(["bash", "-c", f"{sys.executable} -c 'from hvdscale.cli.start import log; log()' {command} "
                           f"{GOLDEN / 'v1.h5'} {where}"], env=command_environment(), capture_output=True, text=True)
    assert done.returncode == code and done.stderr.count("\n") == bool(said) and said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_a_training_run_outlives_its_output_and_no_file_takes_its_place(where, tmp_path, worded):
    done = subprocess.run(["bash", "-c", f"hvdscale-train digits/fc --steps 3 --log-file w.h5 {where}"], cwd=tmp_path,
                          env=command_environment(), capture_output=True, text=True)
    worded(done.stderr, about="the run")
    assert done.returncode == 0
    with read_log(tmp_path / "w.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE]
