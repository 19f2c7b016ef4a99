"""What is written to a log is what is read from it: rows, segments, superseded rows, and one writer at a time."""
import errno
import fcntl
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from hvdscale.errors import LogError
from hvdscale.log import reader
from hvdscale.log.compact_file import Texts
from hvdscale.log.files import Unclosed
from hvdscale.log.reader import current_rows, latest_rows, read_log
from hvdscale.log.schema import RESTARTS, STEPS, TRIALS, Status
from hvdscale.log.segments import find_logs
from hvdscale.log.writer import LogWriter
from hvdscale.system import lock
from tests.factories.log_files import begin, evaluation, finished, interrupted, open_log, plan, step, write


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def columns_of(log):
    return {(table.name, name): table[name] for table in log.tables for name in table}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=str(name))


@pytest.fixture
def written(tmp_path):
    """A log being written, with rows in every table, flushed."""
    log = open_log(tmp_path / "w.h5", attributes={"commit": "abc", "versions": {"torch": "2.13.0"}})
    begin(log)
    evaluation(log, 0)
    step(log, 1)
    step(log, 2, loss=float("nan"))
    log.flush()
    yield log
    log.abandon()


def test_rows_read_as_they_were_written_while_the_log_is_live(written):
    log = read_log(written.path)
    trials, steps = log.trials, log.steps
    assert trials.rows == 1 and trials["id"].dtype == np.int64 and trials["id"].tolist() == [0]
    assert trials["dataset"].tolist() == ["digits"] and trials["plan"].tolist() == [plan()]
    assert trials["stop_reason"].tolist() == [""]
    assert trials["metaparameters/learning_rate"].tolist() == [0.1]
    assert np.isnan(trials["metaparameters/momentum"]).all()
    assert log.restarts["host"].tolist() == ["node1"] and log.restarts["time"].tolist() == [1.7e9]
    assert log.evaluations["val/error"].tolist() == [0.5] and np.isnan(log.evaluations["train/error"]).all()
    assert steps["step"].tolist() == [1, 2] and steps["loss"][0] == 1 and np.isnan(steps["loss"][1])
    assert log.attributes["commit"] == "abc" and log.attributes["versions"]["torch"] == "2.13.0"
    assert "h5py" in log.attributes["versions"] and log.attributes["version"] == 1


def test_rows_read_as_they_were_written_once_the_log_is_finished(written):
    written.set_status(0, Status.INFEASIBLE, "the loss is nan – at step 2")
    live = columns_of(read_log(written.path))
    written.finish()
    log = read_log(written.path)
    assert_same(live, columns_of(log))
    assert log.trials["status"].dtype == np.int8 and log.trials["status"].tolist() == [Status.INFEASIBLE]
    assert log.trials["stop_reason"].tolist() == ["the loss is nan – at step 2"]
    assert os.listdir(os.path.dirname(written.path)) == ["w.h5"]
    with open(written.path, "rb") as file:
        assert file.read(12)[11] == 0                 # closed: any HDF5 tool opens it


def test_columns_come_in_the_schemas_order_and_metrics_by_split(written):
    log = read_log(written.path)
    assert log.trials.columns[:len(TRIALS)] == tuple(column.name for column in TRIALS)
    assert log.restarts.columns == tuple(column.name for column in RESTARTS if not column.optional)
    assert log.evaluations.columns[-2:] == ("train/error", "val/error")
    assert log.steps.columns == tuple(c.name for c in STEPS if not c.optional or c.name == "data_seconds")


def test_a_missing_optional_column_is_nan_and_any_other_a_key_error(written):
    log = read_log(written.path)
    assert np.isnan(log.steps["local_sqnorm"]).tolist() == [True, True]
    assert "local_sqnorm" not in log.steps and "data_seconds" in log.steps
    assert log.trials["source"].tolist() == [""]
    with pytest.raises(KeyError, match="no column 'val/accuracy'"):
        log.evaluations["val/accuracy"]


def test_a_row_that_is_not_a_row_of_the_schema_is_refused_at_once(written):
    with pytest.raises(TypeError, match="steps has no column val/error"):
        written.append("steps", trial=0, step=3, loss=1, lr=1, step_seconds=1, **{"val/error": 1})
    with pytest.raises(KeyError, match="needs step"):
        written.append("steps", trial=0, loss=1)
    with pytest.raises(TypeError):
        written.append("steps", trial=0, step=2.5)
    with pytest.raises(OverflowError):
        written.append("steps", trial=0, step=2**63)
    with pytest.raises(ValueError):
        written.append("trials", status=7, **{c.name: 0 for c in TRIALS if c.name != "status"})
    written.flush()
    assert read_log(written.path).steps.rows == 2


def test_text_of_any_language_and_length_survives(tmp_path):
    texts = ["", "μ = 0.9", "学习率", "x" * 100_000, "a\0b", "lone \udce9 surrogate"]
    log = open_log(tmp_path / "w.h5")
    for trial, text in enumerate(texts):
        begin(log, trial)
        log.append("restarts", trial=trial, first_step=0, workers=1, host=text, device="cpu", time=0, previous_end="")
    log.flush()
    expected = [*texts[:-1], "lone ? surrogate"]
    assert read_log(log.path).restarts["host"].tolist()[1::2] == expected
    log.finish()
    assert read_log(log.path).restarts["host"].tolist()[1::2] == expected


def test_a_repeated_text_is_stored_once_while_it_is_remembered(monkeypatch):
    monkeypatch.setattr("hvdscale.log.compact_file.SHARED_TEXTS", 2)
    texts = Texts()
    assert [texts.span(text) for text in ("a", "é", "a", "b", "a")] == [(0, 1), (1, 2), (0, 1), (3, 1), (4, 1)]
    assert (texts.take(), texts.take()) == ("aéba".encode(), b"")


def test_rows_are_in_the_file_one_second_later_however_slowly_they_come(tmp_path):
    clock = Clock()
    log = open_log(tmp_path / "w.h5", clock=clock)
    begin(log)
    log.flush()
    seen = []
    for number, seconds in enumerate([0.3, 0.6, 0.95, 1.2, 8.0], start=1):
        clock.seconds = seconds
        step(log, number)
        seen.append(read_log(log.path).steps.rows)
    assert seen == [0, 0, 3, 3, 5]                     # at 0.95 the next would come after 1 s: flushed now
    log.abandon()


def test_a_status_is_in_the_file_at_once(written):
    written.append("trials", id=3, status=Status.RUNNING, **{c.name: "" if c.type == "text" else 0 for c in TRIALS[2:]})
    written.set_status(3, Status.COMPLETE, "budget reached")
    log = read_log(written.path)
    assert log.trials["status"].tolist() == [Status.RUNNING, Status.COMPLETE]
    assert log.trials["stop_reason"].tolist() == ["", "budget reached"]


def test_a_small_log_is_small(tmp_path):
    live = open_log(tmp_path / "small.h5")
    begin(live)
    write(live, 100)
    live.flush()
    assert os.path.getsize(live.path) < 200_000
    live.finish()
    assert os.path.getsize(live.path) < 40_000


@pytest.mark.parametrize("make", [finished, interrupted])
def test_of_a_large_log_only_what_is_asked_for_is_read(make, tmp_path, monkeypatch):
    path = make(tmp_path / "w.h5")
    whole = columns_of(read_log(path))
    monkeypatch.setattr("hvdscale.log.reader.SMALL", 0)
    with read_log(path) as log:
        assert log.steps["loss"][0] == 1 and log.steps._read.keys() == {"loss"}
    with pytest.raises(LogError, match="w.h5"):
        log.steps["lr"]
    with read_log(path) as log:
        assert_same(whole, columns_of(log))


def test_a_live_log_that_is_met_in_the_middle_of_a_write_is_read_again(written, monkeypatch):
    whole, met, readinto = columns_of(read_log(written.path)), [], Unclosed.readinto

    def torn(file, buffer):
        size = readinto(file, buffer)
        if bytes(buffer[:4]) in (b"OHDR", b"EAHD", b"EAIB"):        # what has a checksum
            met.append(size)
            if len(met) == at:
                memoryview(buffer).cast("B")[8:] = bytes(size - 8)
        return size
    monkeypatch.setattr(Unclosed, "readinto", torn)
    at, last = 1, 2
    while at <= last:
        with reader.open_log(written.path) as log:
            assert_same(whole, columns_of(log))
        at, last = at + 1, len(met)
        met.clear()
    assert last > 20


def test_an_existing_log_is_not_overwritten_unless_asked_and_then_goes_with_all_segments(tmp_path):
    path = finished(tmp_path / "w.h5", steps=20)
    with pytest.raises(LogError, match="w.h5: exists already.*--overwrite"):
        open_log(path)
    assert read_log(path).steps.rows == 20
    log = open_log(path, overwrite=True)
    assert read_log(path).trials.rows == 0
    log.abandon()
    log = open_log(path, resume=True)
    log.abandon()
    assert sorted(os.listdir(tmp_path)) == ["w.1.h5", "w.h5"]
    open_log(path, overwrite=True).abandon()
    assert os.listdir(tmp_path) == ["w.h5"]


def test_the_old_log_stays_when_the_new_one_cannot_be_made(tmp_path, monkeypatch):
    path = finished(tmp_path / "w.h5", steps=20)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hvdscale.log.writer.SafeFile", fail)
    with pytest.raises(LogError, match="No space left"):
        open_log(path, overwrite=True)
    assert read_log(path).steps.rows == 20 and os.listdir(tmp_path) == ["w.h5"]


def resumed(tmp_path, *first_steps):
    """A log of segments that each begin at a checkpoint and go on for 20 steps; the last is live."""
    path = str(tmp_path / "w.h5")
    for number, first in enumerate(first_steps):
        log = open_log(path, resume=True)
        begin(log, 0, first, "killed" if number else "")
        if first == 0:
            evaluation(log, 0)
        for at in range(first + 1, first + 21):
            step(log, at, loss=1000 * number + at)
            if at % 10 == 0:
                evaluation(log, at, error=1000 * number + at)
        log.flush()
        if number < len(first_steps) - 1:
            log.abandon()
    return path, log


def expected_losses(*first_steps):
    """The slow way: each segment in turn replaces what stood after its first step."""
    rows = []
    for number, first in enumerate(first_steps):
        rows = [row for row in rows if row[0] <= first]
        rows += [(at, 1000 * number + at) for at in range(first + 1, first + 21)]
    return rows


@pytest.mark.parametrize("first_steps", [(0,), (0, 20), (0, 10), (0, 10, 10), (0, 15, 5), (0, 0), (0, 20, 0, 13)])
def test_rows_after_the_resumed_step_are_superseded(tmp_path, first_steps):
    path, log = resumed(tmp_path, *first_steps)
    live = read_log(path)
    rows = expected_losses(*first_steps)
    assert list(zip(live.steps["step"], live.steps["loss"])) == rows
    evaluated = live.evaluations["step"].tolist()
    assert evaluated == [at for at in range(0, evaluated[-1] + 1) if at % 10 == 0]
    assert live.evaluations["val/error"][1:].tolist() == [loss for at, loss in rows if at % 10 == 0]
    assert live.trials.rows == 1 and live.restarts.rows == len(first_steps)
    assert live.restarts["first_step"].tolist() == list(first_steps)
    before = columns_of(live)
    log.finish()
    assert os.listdir(tmp_path) == ["w.h5"]
    assert_same(before, columns_of(read_log(path)))


def test_other_trials_rows_stand_when_one_is_resumed_and_its_latest_row_in_its_first_place():
    def pairs(*segments):
        return [(np.array(trial), np.array(step)) for trial, step in segments]
    rows = pairs(([1, 2, 1, 2], [1, 1, 2, 2]), ([2], [2]), ([3], [1]))
    restarts = pairs(([1, 2], [0, 0]), ([2], [1]), ([3], [0]))
    assert current_rows(rows, restarts).tolist() == [0, 1, 2, 4, 5]
    assert latest_rows(np.array([5, 3, 5, 4, 3])).tolist() == [2, 4, 3]


def test_a_later_segment_may_have_other_columns(tmp_path):
    path = finished(tmp_path / "w.h5", steps=10, metrics=("train/error", "val/error"))
    log = open_log(path, resume=True, metrics=("val/error", "test/error"), optional=())
    begin(log, first_step=10)
    log.append("evaluations", trial=0, step=20, examples=640, train_seconds=1.0, **{"test/error": 0.25})
    log.flush()
    both = read_log(path).evaluations
    assert both.columns[-3:] == ("train/error", "val/error", "test/error")
    assert np.isnan(both["test/error"]).tolist() == [True, True, False] and np.isnan(both["train/error"][-1])
    log.finish()
    assert read_log(path).evaluations["test/error"][-1] == 0.25


def test_attributes_that_change_when_a_log_is_resumed_are_kept(tmp_path):
    path = finished(tmp_path / "w.h5", attributes={"commit": "abc"})
    open_log(path, resume=True, attributes={"commit": "abc"}).finish()
    open_log(path, resume=True, attributes={"commit": "def"}).finish()
    attributes = read_log(path).attributes
    assert attributes["commit"] == "abc" and attributes["changes"] == {"segment 2": {"commit": "def"}}
    assert attributes["segments"] == 3


def test_a_log_named_like_a_segment_is_another_log(tmp_path):
    one, other = finished(tmp_path / "lr0.h5", steps=10), finished(tmp_path / "lr0.1.h5", steps=20)
    os.utime(tmp_path, (0, 0))          # of a folder that has not changed for long the names are kept
    assert read_log(one).steps.rows == 10 and read_log(other).steps.rows == 20
    log = open_log(one, resume=True)
    begin(log, first_step=10)
    write(log, 15, first_step=10)
    log.flush()
    assert os.path.basename(log.segment_path) == "lr0.2.h5"
    assert find_logs([tmp_path]) == [other, one] and read_log(one).steps.rows == 15
    log.finish()
    assert sorted(os.listdir(tmp_path)) == ["lr0.1.h5", "lr0.h5"] and read_log(other).steps.rows == 20


def test_segments_go_with_their_log_and_are_not_logs_themselves(tmp_path):
    path, log = resumed(tmp_path, 0, 10)
    assert find_logs([tmp_path / "w.1.h5", tmp_path / "w.h5", tmp_path]) == [path]
    with pytest.raises(LogError, match="w.1.h5: is file 1 of a log"):
        read_log(tmp_path / "w.1.h5")
    log.abandon()


def test_a_missing_segment_is_named(tmp_path, worded):
    path, log = resumed(tmp_path, 0, 10, 20)
    log.abandon()
    os.unlink(tmp_path / "w.1.h5")
    with worded.error(LogError):
        read_log(path)


def test_a_second_writer_is_told_who_writes(written, monkeypatch, worded):
    for how in ({}, {"overwrite": True}, {"resume": True}, {"overwrite": True, "take_over": True}):
        with worded.error(LogError):
            open_log(written.path, **how)
    assert read_log(written.path).writer()["pid"] == os.getpid()
    assert read_log(written.path).steps.rows == 2


def test_the_lock_names_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    log = open_log(tmp_path / "w.h5")
    with pytest.raises(LogError, match=r"\(job 4711\)"):
        open_log(tmp_path / "w.h5")
    log.abandon()


def test_the_lock_of_a_dead_process_is_taken(tmp_path):
    path = str(tmp_path / "w.h5")
    dead = subprocess.run([sys.executable, "-c", "import sys, os; from hvdscale.system.lock import Lock; "
                           "Lock.take(sys.argv[1]); os._exit(9)", path], check=False)
    assert dead.returncode == 9 and os.path.exists(path + ".lock")
    assert lock.holder(path) is None
    open_log(path).finish()
    assert os.listdir(tmp_path) == ["w.h5"]


def test_a_lock_removed_under_its_waiter_is_taken_anew(tmp_path, monkeypatch):
    path, real, calls = str(tmp_path / "w.h5"), fcntl.flock, []

    def flock_after_the_holder_left(descriptor, kind):
        if not calls:
            os.unlink(path + ".lock")
        calls.append(kind)
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock_after_the_holder_left)
    held = lock.Lock.take(path)
    assert len(calls) == 2 and os.path.exists(path + ".lock")
    held.release()
    held.release()


def test_a_file_system_that_refuses_locks_needs_take_over(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LogError, match="refuses locks .ENOLCK.*--take-over"):
        open_log(tmp_path / "w.h5")
    log = open_log(tmp_path / "w.h5", take_over=True)
    with pytest.raises(LogError, match=f"last signed by process {os.getpid()} on"):
        open_log(tmp_path / "w.h5", overwrite=True)
    assert read_log(log.path).writer()["pid"] == os.getpid()
    log.finish()
    assert os.listdir(tmp_path) == ["w.h5"]                     # nor the lock of the first, which was refused
    monkeypatch.setenv("HVDSCALE_TAKE_OVER", "1")
    open_log(tmp_path / "w.h5", overwrite=True).finish()


def test_a_place_that_cannot_be_written_is_a_log_error(tmp_path, worded):
    (tmp_path / "file").write_text("")
    with worded.error(LogError):
        open_log(tmp_path / "file" / "w.h5")
    with worded.error(LogError):
        open_log("/proc/w.h5")


def test_attributes_of_any_kind_come_back(tmp_path):
    given = {"commit": "", "note": "μ", "seeds": [1, 2], "library": {"torch": "2"}, "number": 3, "share": 0.5}
    open_log(tmp_path / "w.h5", attributes=given).finish()
    read = read_log(tmp_path / "w.h5").attributes
    assert {name: read[name] for name in given} == given
    assert json.loads(json.dumps(read)) == read


def test_where_locks_exclude_nobody_a_log_that_was_replaced_is_an_error_and_not_lost_in_silence(tmp_path, monkeypatch,
                                                                                                worded):
    """As where flock holds within a host alone: two hosts take it."""
    monkeypatch.setattr("hvdscale.system.lock.flock", lambda *_, **__: None)
    first, second = (open_log(tmp_path / "w.h5", overwrite=True) for _ in range(2))
    with worded.error(LogError):
        first.finish()
    second.finish()
    read_log(tmp_path / "w.h5").close()
    assert os.listdir(tmp_path) == ["w.h5"]


@pytest.mark.parametrize("trials", [[0, 0, 1, 1, 1, 4], [4, 0, 1, 0, 1, 1], []])
def test_a_trials_rows_are_those_of_its_number_in_their_order(tmp_path, trials):
    path = str(tmp_path / "log.h5")
    writer = LogWriter(path, metrics=["val/error"])
    for number, trial in enumerate(trials):
        writer.append("evaluations", trial=trial, step=number, examples=number, train_seconds=0.0,
                      **{"val/error": number / 2})
    writer.finish()
    with read_log(path) as log:
        for trial in (0, 1, 2, 4, 9):
            own = [number for number, other in enumerate(trials) if other == trial]
            assert log.evaluations.of_trial("step", trial).tolist() == own
            assert log.evaluations.of_trial("val/error", trial).tolist() == [number / 2 for number in own]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_on_an_overlay_a_log_of_the_lower_layer_is_locked_continued_and_replaced(tmp_path):
    for name in ("lower", "upper", "work", "all"):
        (tmp_path / name).mkdir()
    open_log(tmp_path / "lower/w.h5").abandon()             # as a killed process leaves it
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "all"],
                      capture_output=True).returncode:
        pytest.skip("no overlay can be mounted here")
    try:
        log = open_log(tmp_path / "all/w.h5", resume=True)
        assert log.segment_path.endswith("w.1.h5")
        with pytest.raises(LogError, match="is being written"):
            open_log(tmp_path / "all/w.h5", resume=True)
        log.finish()
        assert os.listdir(tmp_path / "all") == ["w.h5"]
        open_log(tmp_path / "all/w.h5", overwrite=True).finish()
    finally:
        subprocess.run(["umount", tmp_path / "all"], check=True)


def test_two_writers_who_see_each_others_files_late_leave_one_whole_log(tmp_path, monkeypatch, worded):
    """As on two hosts, of which one shows for a while what the other has replaced, and locks exclude neither."""
    monkeypatch.setattr("hvdscale.system.lock.flock", lambda *_, **__: None)
    monkeypatch.setattr("hvdscale.log.writer.is_file", lambda *_: True)
    monkeypatch.setattr("hvdscale.log.writer.refuse_taken", lambda *_: None)
    first = open_log(tmp_path / "w.h5")
    with worded.error(LogError):
        open_log(tmp_path / "w.h5")
    second = open_log(tmp_path / "w.h5", overwrite=True)
    with worded.error(LogError):
        first.finish()
    second.finish()
    read_log(tmp_path / "w.h5").close()
    assert os.listdir(tmp_path) == ["w.h5"]
