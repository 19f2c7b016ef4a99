"""hvdscale-log repair: whatever was damaged, what it writes passes check, or it says that nothing can be saved."""
import os
import random
import shutil

import h5py
import numpy as np
import pytest

from hvdscale.errors import LogError
from hvdscale.log.check import check
from hvdscale.log.files import open_file
from hvdscale.log.reader import read_log
from hvdscale.log.repair import repair
from hvdscale.log.schema import Status
from tests.factories.bad_logs import break_bytes, break_structure, break_values
from tests.factories.log_files import finished, interrupted, resumed
from tests.cli.test_bad_logs import bounded, put


def flip(random_, path):
    """Flips the bits of 64 bytes."""
    at = random_.randrange(os.path.getsize(path))
    flip_at(path, at)
    return f"at {at}"


def flip_at(path, at, count=64):
    with open(path, "r+b") as file:
        file.seek(at)
        data = file.read(count)
        file.seek(at)
        file.write(bytes(255 - byte for byte in data))


LOGS = {        # how it is made, and what may be done to one of its files; one that was not closed cannot be edited
    "a small run": (lambda path: finished(path, steps=300), (flip, break_bytes, break_structure, break_values)),
    "a sweep": (lambda path: finished(path, steps=100, trials=8), (flip, break_bytes, break_structure, break_values)),
    "a resumed run": (resumed, (flip, break_bytes)),
}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def wrong_with_repair(folder):
    """What is wrong with how the log w.h5 of a folder was repaired; "" where nothing is."""
    path, before = str(folder / "w.h5"), contents(folder)
    try:
        with bounded():
            done = repair(path)
    except LogError as error:
        said = "" if path in str(error) else f"the log is not named: {error}"
        return said if contents(folder) == before else "refused, but the folder is another"
    try:
        log = check(path)
    except LogError as error:
        return f"what was written fails check: {error}"
    if done is None:
        return "" if contents(folder) == before else "nothing to repair, but the folder is another"
    if done.kept != {table.name: table.rows for table in log.tables} or not log.trials.rows:
        return f"{done.kept} kept"
    kept = [data for name, data in contents(folder).items() if ".broken" in name]
    return "" if sorted(kept) == sorted(before[os.path.basename(name).rpartition(".broken")[0]]
                                        for name in done.originals) else "the originals are not kept"


def failures(name, folder, numbers):
    """{case: what went wrong} of a log damaged at random in one of its files."""
    make, ways = LOGS[name]
    good, found = folder / "good", {}
    good.mkdir()
    make(good / "w.h5")
    for number in numbers:
        random_, damaged = random.Random(number), folder / "damaged"
        shutil.copytree(good, damaged)
        file = random_.choice(sorted(damaged.glob("*.h5")))
        how = random_.choice(ways)
        said = f"case {number}: {file.name}, {how.__name__} {how(random_, file)}"
        wrong = wrong_with_repair(damaged)
        if wrong:
            found[said] = wrong
        shutil.rmtree(damaged)
    return found


@pytest.mark.parametrize("name", LOGS)
def test_what_repair_writes_passes_check(name, tmp_path):
    assert failures(name, tmp_path, [*range(6), 1225]) == {}        # 1225: a column that lies in another


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("name", LOGS)
def test_what_repair_writes_passes_check_after_500_damages(name, block, tmp_path):
    assert failures(name, tmp_path, range(1000 + 100 * block, 1100 + 100 * block)) == {}


def header_of(path, name):
    """Where in the file the header of a table or column starts."""
    with open_file(path)[0] as file:
        return h5py.h5o.get_info(file[name].id).addr


@pytest.mark.parametrize("cut, tail", [(4_000, 4_000), (40_000, 0)])
def test_a_torn_tail_costs_only_rows_that_lay_there(tmp_path, cut, tail):
    path = interrupted(tmp_path / "w.h5", steps=2000)
    whole, size = read_log(path), os.path.getsize(path)
    os.truncate(path, size - cut)
    with open(path, "ab") as file:
        file.write(random.Random(0).randbytes(tail))
    done = repair(path)
    log = check(path)
    assert done.kept["trials"] == 1 and 0 < done.kept["steps"] < 2000
    assert any("of 2000 rows of steps" in lost for lost in done.lost)
    assert log.trials["status"].tolist() == [Status.INCOMPLETE]
    assert log.steps["loss"].tolist() == [1 / number for number in log.steps["step"]]
    assert log.trials["plan"].tolist() == whole.trials["plan"].tolist()


def test_a_flipped_chunk_costs_the_rows_from_there_on(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdscale.log.compact_file.CHUNK_ROWS", 1000)
    path = finished(tmp_path / "w.h5", steps=5000)
    with open_file(path)[0] as file:
        chunk = file["steps/loss"].id.get_chunk_info(3)
    flip_at(path, chunk.byte_offset + 4, chunk.size - 4)
    done = repair(path)
    assert done.kept == {"trials": 1, "restarts": 1, "evaluations": 501, "steps": 3000}
    assert f"{path}: 2000 of 5000 rows of steps, where steps/loss ends" in done.lost
    assert check(path).steps["loss"].tolist() == [1 / number for number in range(1, 3001)]


@pytest.mark.parametrize("column", ["id", "status", "stop_reason", "dataset", "global_batch", "workers", "seed",
                                    "budget_steps", "metaparameters/learning_rate"])
def test_a_lost_column_of_trials_costs_no_other_row(column, tmp_path):
    path = finished(tmp_path / "w.h5", steps=100, trials=3)
    whole = read_log(path)
    flip_at(path, header_of(path, f"trials/{column}") + 8, 8)
    done = repair(path)
    log = check(path)
    assert done.kept == {"trials": 3, "restarts": 3, "evaluations": 33, "steps": 300}
    assert any(f"trials/{column}" in what for what in done.lost)
    np.testing.assert_array_equal(log.trials["id"], whole.trials["id"])
    np.testing.assert_array_equal(log.steps["loss"], whole.steps["loss"])
    if column in ("global_batch", "workers", "seed", "budget_steps"):           # as the plans have them
        np.testing.assert_array_equal(log.trials[column], whole.trials[column])
        assert done.restored == [f"{path}: 3 of 3 entries of trials/{column}, from the plans"]


def test_a_trial_that_lost_its_row_of_restarts_gets_one_of_what_is_known(tmp_path, worded):
    path = finished(tmp_path / "w.h5", steps=100, trials=3)
    flip_at(path, header_of(path, "restarts/first_step") + 8, 8)
    done = repair(path)
    log = check(path)
    assert done.kept == {"trials": 3, "restarts": 3, "evaluations": 33, "steps": 300}
    worded(done.restored)
    assert log.restarts["trial"].tolist() == [0, 1, 2] and log.restarts["workers"].tolist() == [2, 2, 2]
    assert np.isnan(log.restarts["time"]).all() and set(log.restarts["host"]) == {""}


def test_a_lost_metric_takes_no_other_along(tmp_path):
    path = finished(tmp_path / "w.h5", steps=100, trials=3)
    flip_at(path, header_of(path, "evaluations/val/error") + 8, 8)
    done = repair(path)
    assert done.kept["evaluations"] == 33 and len(done.lost) == 1 and "evaluations/val/error" in done.lost[0]
    assert [name for name in check(path).evaluations if "/" in name] == ["train/error"]


STEPS = [*range(1, 101)]


@pytest.mark.parametrize("damage, kept, lost, steps", [
    (put("trials", "plan", 1, (5, 20)), (3, 3, 33, 300), "1 of 3 plans", STEPS * 3),          # its trial stays
    *((put("steps", "step", 249, value), (3, 3, 33, 249), "of 300 rows of steps: steps/step goes back in trial 2",
       STEPS * 2 + STEPS[:49]) for value in (2 ** 60, 0, -7)),                                # the rows before stay
    (put("trials", "status", 1, 9), (2, 2, 22, 200), "1 of 3 rows of trials: trial 1: status is 9; ", STEPS * 2)])
def test_a_wrong_value_costs_what_cannot_be_trusted_without_it(damage, kept, lost, steps, tmp_path):
    path = finished(tmp_path / "w.h5", steps=100, trials=3)
    damage(h5py.File(path, "r+"))
    done = repair(path)
    assert tuple(done.kept.values()) == kept and lost in done.lost[0]
    log = check(path)
    assert log.steps["step"].tolist() == steps and log.trials.rows == kept[0]
    assert (log.trials["plan"] == "{}").tolist() == [at == 1 and "plans" in lost for at in range(kept[0])]


def test_where_no_trial_can_be_saved_nothing_is_written(tmp_path, worded):
    path = finished(tmp_path / "w.h5", steps=100)
    flip_at(path, header_of(path, "trials") + 8, 8)
    before = contents(tmp_path)
    with worded.error(LogError):
        repair(path)
    assert contents(tmp_path) == before
