"""Files that are no log or a broken one: reading names the path, check the first rule that is broken."""
import json
import os
import shutil
from functools import partial

import h5py
import numpy as np
import pytest

from hvdscale.errors import LogError, StoppedError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.repair import repair
from hvdscale.log.schema import Status
from tests.cli.test_bad_logs import changed, put  # noqa: F401  put is called by golden/log_faults.txt
from tests.factories.log_files import begin, evaluation, finished, interrupted, open_log, plan, step, write
from tests.wording import answered

CUTS = 80      # lengths at which a file is cut off


def foreign(libver, path):
    with h5py.File(path, "w", libver=(libver, "latest")) as file:
        file["data"] = np.arange(5)


@pytest.mark.parametrize("make, said", [
    (lambda path: None, "there is no such log"), (os.mkdir, "cannot be opened: is not a regular file"),
    (lambda path: path.write_bytes(bytes(range(256)) * 20), "is not an HDF5 file"),
    (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5000)), "is damaged"),
    *((partial(foreign, libver), "is an HDF5 file, but not an hvdscale log") for libver in ("earliest", "v110"))])
def test_what_is_no_log_is_named(make, said, tmp_path):
    make(tmp_path / "w.h5")
    with pytest.raises(LogError, match=f"w.h5: {said}"):
        read_log(tmp_path / "w.h5")


def test_a_signal_while_a_log_is_read_is_not_taken_for_damage(tmp_path, monkeypatch, worded):
    def stopped(*_, **__):
        raise StoppedError("stopped by a signal")
    path = finished(tmp_path / "w.h5")
    monkeypatch.setattr(h5py, "File", stopped)
    with worded.error(StoppedError):
        read_log(path)


@pytest.mark.parametrize("make", [finished, interrupted])
def test_a_log_cut_off_at_any_length_is_named_or_reads_whole(make, tmp_path):
    path = make(tmp_path / "w.h5", steps=600, trials=3)
    whole = read_log(path)
    with open(path, "rb") as file:
        data = file.read()
    cut = tmp_path / "cut.h5"
    for length in np.linspace(0, len(data) - 1, CUTS).astype(int):
        cut.write_bytes(data[:length])
        try:
            log = read_log(cut)
        except LogError as error:
            assert str(cut) in str(error), length
        else:                                          # what was cut off had no row
            for table, same in zip(log.tables, whole.tables):
                for name in table:
                    np.testing.assert_array_equal(table[name], same[name], err_msg=f"{length} {name}")


def retype(file, name="steps/loss"):
    values, attributes = file[name][...], dict(file[name].attrs)
    del file[name]
    file[name] = values.astype(np.int64)
    file[name].attrs.update(attributes)


def no_unit(file):
    del file["evaluations/train_seconds"].attrs["unit"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A log of trials 0 and 1 with 50 steps and 6 evaluations each."""
    return finished(tmp_path_factory.mktemp("sound") / "w.h5", trials=2)


def test_check_names_the_fault(golden, sound, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(fault):
        (tmp_path / "w.h5").unlink(missing_ok=True)    # which h5py may have open
        check(shutil.copy(sound, "w.h5"))
        changed("w.h5", eval(fault, globals()))
        with pytest.raises(LogError) as caught:
            check("w.h5")
        return str(caught.value)
    golden("log_faults", answered("log_faults", said))


def test_check_takes_a_log_in_any_sound_state(tmp_path):
    empty = open_log(tmp_path / "empty.h5")
    check(empty.path)
    empty.finish()
    check(empty.path)
    check(interrupted(tmp_path / "interrupted.h5"))
    path = finished(tmp_path / "resumed.h5", steps=20)
    log = open_log(path, resume=True)
    begin(log, first_step=10)
    write(log, 30, first_step=10)
    step(log, 31, loss=float("nan"))                   # diverged
    evaluation(log, 31, error=float("nan"))
    log.set_status(0, Status.INFEASIBLE, "the loss is nan")
    assert check(path).steps.rows == 31
    log.abandon()


@pytest.mark.parametrize("whole", [0, 1])
def test_a_trial_of_which_only_the_row_in_trials_was_committed_never_began(whole, tmp_path, monkeypatch):
    log = open_log(tmp_path / "w.h5")
    for trial in range(whole):
        begin(log, trial)
    append = log.append
    monkeypatch.setattr(log, "append", lambda table, **row: append(table, **row) if table == "trials" else None)
    begin(log, whole)
    log.flush()
    assert check(log.path).trials["id"].tolist() == list(range(whole))
    log.abandon()
    repair(log.path)
    assert check(log.path).trials.rows == whole


def test_a_plan_without_the_known_sections_agrees_with_any_column(tmp_path, monkeypatch):
    other = json.dumps({"study": json.loads(plan(seed=7))})
    monkeypatch.setattr("tests.factories.log_files.plan", lambda seed: other)
    check(finished(tmp_path / "w.h5"))
