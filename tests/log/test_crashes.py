"""The log stays readable: its writer killed at any moment, the disk full, a reader at its heels."""
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hvdscale.errors import LogError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from tests.conftest import but_slow, command_environment, small_disk
from tests.factories.log_files import begin, finished, open_log, step, write

KILLS = {"steady": 6, "busy": 5, "create": 4, "finish": 5}     # 20 in all
LONGEST_SECONDS = {"steady": 2.5, "busy": 1.0, "create": 0.5, "finish": 1.5}
PROMISED_SECONDS = 1.0                                         # a row older than this is in the file
SLACK_SECONDS = 0.5                                            # for a writer that waits for a busy machine


def start(mode, log, notes, *limit):
    return subprocess.Popen([sys.executable, "-m", "tests.factories.log_files", mode, log, notes, *map(str, limit)],
                            env=command_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_at_a_random_moment(mode, folder, seed):
    """Gives the log's path, the lines noted (what, number, seconds) and when the process was killed."""
    log, notes = str(folder / f"{mode}{seed}.h5"), folder / f"{mode}{seed}.notes"
    process = start(mode, log, str(notes))
    while not (notes.exists() and notes.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    time.sleep(random.Random(f"{mode}{seed}").uniform(0, LONGEST_SECONDS[mode]))
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    said, complaint = process.communicate()
    assert process.returncode == -signal.SIGKILL, said + complaint
    lines = [line.split() for line in notes.read_text().splitlines()]
    return log, [(what, int(number), float(seconds)) for what, number, seconds in lines], killed


def last(lines, what, before=float("inf")):
    return max((number for w, number, seconds in lines if w == what and seconds < before), default=0)


@pytest.mark.parametrize("mode, kills", [*((mode, 2) for mode in KILLS), *(
    pytest.param(*one, marks=pytest.mark.slow) for one in KILLS.items())])
def test_a_log_whose_writer_is_killed_reads_with_all_that_was_flushed(mode, kills, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seed: kill_at_a_random_moment(mode, tmp_path, seed), range(kills)))
    for path, lines, killed in results:
        if len(lines) < 2 and not os.path.exists(path):
            continue                                   # killed before the log was there
        log = check(path)
        np.testing.assert_array_equal(log.steps["loss"], 1 / log.steps["step"])
        assert log.steps.rows >= last(lines, "flushed")
        assert log.steps.rows >= last(lines, "appended", killed - PROMISED_SECONDS - SLACK_SECONDS)
        assert log.attributes.get("number", 0) >= last(lines, "made")
        assert log.writer() is None


@pytest.mark.parametrize("limit", but_slow([15_000, 150_000, 400_000, 600_000], [400_000, 600_000]))
def test_a_file_size_limit_is_a_log_error_and_the_log_reads(limit, tmp_path):
    path = tmp_path / "w.h5"
    process = start("busy", str(path), str(tmp_path / "notes"), limit)
    assert_ends_in_log_error(process, path)


def test_a_full_disk_is_a_log_error_and_the_log_reads(tmp_path):
    with small_disk(tmp_path / "disk", "800k") as disk:
        assert_ends_in_log_error(start("busy", str(disk / "w.h5"), str(tmp_path / "notes")), disk / "w.h5")


def assert_ends_in_log_error(process, path):
    said, complaint = process.communicate(timeout=300)
    assert process.returncode == 0 and not complaint, complaint     # HDF5 crashes as it closes a file it cannot write
    assert said.startswith("LogError") and str(path) in said
    assert [name for name in os.listdir(path.parent) if name.endswith(".lock")] == []
    if path.exists():
        log = check(str(path))
        flushed = [line.split()[1] for line in (path.parent / "notes", path.parent.parent / "notes")
                   if line.exists() for line in line.read_text().splitlines() if line.startswith("flushed")]
        assert log.steps.rows >= int(flushed[-1])


def test_a_reader_can_follow_a_live_log(tmp_path):
    path = tmp_path / "w.h5"
    process = start("busy", str(path), str(tmp_path / "notes"))
    try:
        rows, deadline = 0, time.monotonic() + 120
        while rows < 3_000 and time.monotonic() < deadline:
            if not path.exists():
                continue
            log = read_log(path)
            assert log.steps.rows >= rows
            rows = log.steps.rows
            np.testing.assert_array_equal(log.steps["loss"], 1 / log.steps["step"])
            assert log.writer()["pid"] == process.pid
        assert rows >= 3_000
    finally:
        process.kill()
        process.communicate()


def test_a_writer_that_fails_stays_dead_and_its_log_reads(tmp_path, monkeypatch, worded):
    path = tmp_path / "w.h5"
    log = open_log(path)
    begin(log)
    write(log, 20)
    log.flush()
    step(log, 21)
    monkeypatch.setattr(os, "posix_fallocate", raise_no_space)
    with worded.error(LogError):
        log.flush()
    monkeypatch.undo()
    for call in (log.flush, lambda: step(log, 22), log.finish):
        with pytest.raises(LogError, match="No space"):
            call()
    log.abandon()
    assert read_log(path).steps.rows == 20
    open_log(path, overwrite=True).abandon()           # the lock was given back


def raise_no_space(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_merge_that_fails_leaves_the_segments_as_they_were(tmp_path, monkeypatch):
    path = finished(tmp_path / "w.h5", steps=20)
    log = open_log(path, resume=True)
    begin(log, first_step=20)
    write(log, 40, first_step=20)
    monkeypatch.setattr("hvdscale.log.compact_file.CompactFile.close", raise_no_space)
    with pytest.raises(LogError, match="No space"):
        log.finish()
    assert sorted(os.listdir(tmp_path)) == ["w.1.h5", "w.h5"]
    assert read_log(path).steps["step"].tolist() == list(range(1, 41))


@pytest.mark.parametrize("done", [1, 2])
def test_a_merge_killed_before_old_segments_are_gone_counts_rows_once(done, tmp_path, monkeypatch):
    path = finished(tmp_path / "w.h5", steps=20)
    for first in (20, 40):
        log = open_log(path, resume=True)
        begin(log, first_step=first)
        write(log, first + 20, first_step=first)
        log.flush()
        if first == 20:
            log.abandon()
    removed = []

    def unlink(name):
        if len(removed) + 1 >= done:
            raise KeyboardInterrupt
        removed.append(os.remove(name))

    monkeypatch.setattr("hvdscale.log.merge.os.unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        log.finish()
    monkeypatch.undo()
    assert read_log(path).steps["step"].tolist() == list(range(1, 61))
    log.abandon()
    log = open_log(path, resume=True)                  # goes on after them
    begin(log, first_step=60)
    write(log, 80, first_step=60)
    log.finish()
    assert os.listdir(tmp_path) == ["w.h5"]
    assert read_log(path).steps["step"].tolist() == list(range(1, 81))
