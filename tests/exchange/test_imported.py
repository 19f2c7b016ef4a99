"""Logs written in pieces: the same as any log, nothing where the disk is full."""
import os
import subprocess
import sys

import numpy as np
import pytest

from hvdscale.exchange.imported import imported_log
from hvdscale.log.merge import new_log
from hvdscale.log.reader import read_log
from hvdscale.log.schema import LogColumn, Status, columns
from tests.conftest import command_environment
from tests.factories.archives import write_big_log

NOTE = LogColumn("note", "text", "1", "a note", optional=True)


def fill(log, rows, pieces):
    """The same rows, in so many pieces."""
    random = np.random.default_rng(0)
    values = {"trial": np.repeat(np.arange(2), rows // 2), "step": np.tile(np.arange(rows // 2), 2),
              "examples": np.arange(rows), "train_seconds": np.full(rows, np.nan), "val/error": random.random(rows)}
    for name, column in values.items():
        for piece in np.array_split(column, pieces):
            log.add("evaluations", name, piece)
    for name, value in {"id": [0, 1], "status": [1, 3], "plan": ["{}", "{}"], "note": ["a", "ü"]}.items():
        log.add("trials", name, value)
    for column in columns()["trials"]:
        if column.name not in ("id", "status", "plan"):
            log.add("trials", column.name, ["x"] * 2 if column.type == "text" else np.ones(2))
    return values


@pytest.mark.parametrize("rows, pieces", [(10, 1), (2000, 3), (200_000, 7)])
def test_rows_come_back_whatever_the_pieces(rows, pieces, tmp_path):
    more = {"trials": [NOTE], "evaluations": [LogColumn("val/error", "float", "1", "error", better="smaller")]}
    with new_log(tmp_path / "log.h5", {"commit": "abc"}) as log:
        for table, specs in columns().items():
            for spec in (*specs, *more.get(table, ())):
                log.add_column(table, spec)
        values = fill(log, rows, pieces)
    assert sorted(os.listdir(tmp_path)) == ["log.h5"]
    with read_log(tmp_path / "log.h5") as log:
        for name, column in values.items():
            np.testing.assert_array_equal(log.evaluations[name], column)
        assert log.trials["note"].tolist() == ["a", "ü"] and log.trials["plan"].tolist() == ["{}", "{}"]
        assert log.trials["status"].tolist() == [Status.COMPLETE, Status.INFEASIBLE]
        assert log.attributes["commit"] == "abc" and log.steps.rows == 0 and log.restarts.rows == 0
        assert log.evaluations.specs["val/error"].better == "smaller" and log.evaluations.specs["step"].better == ""


def test_a_column_that_comes_late_is_absent_before(tmp_path):
    with imported_log(tmp_path / "log.h5", {}) as log:
        for name in ("trial", "step", "examples", "train_seconds"):
            log.file.add("evaluations", name, np.arange(70_000))
        log.file.add_column("evaluations", LogColumn("val/error", "float", "1", "error"), 69_999)
        log.file.add("evaluations", "val/error", [0.5])
    with read_log(tmp_path / "log.h5") as log:
        assert np.isnan(log.evaluations["val/error"][:-1]).all() and log.evaluations["val/error"][-1] == 0.5


def test_columns_of_different_length_are_a_slip_and_leave_nothing(tmp_path, worded):
    with worded.error(ValueError):
        with imported_log(tmp_path / "log.h5", {}) as log:
            log.file.add("steps", "loss", [1.0])
    assert os.listdir(tmp_path) == []


def test_an_error_inside_leaves_the_old_log(tmp_path):
    write_big_log(tmp_path / "log.h5", 1, 5, 50)
    before = (tmp_path / "log.h5").read_bytes()
    with pytest.raises(KeyError):
        with imported_log(tmp_path / "log.h5", {}, overwrite=True) as log:
            log.file.add("steps", "loss", np.ones(100_000))
            raise KeyError
    assert os.listdir(tmp_path) == ["log.h5"] and (tmp_path / "log.h5").read_bytes() == before


@pytest.mark.parametrize("limit", [5, 5000, 300_000])
def test_a_process_lives_on_after_a_full_disk(limit, tmp_path, worded):
    """HDF5 crashes a process, at its end at the latest, in which it failed to write."""
    code = (f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            "from tests.factories.archives import write_big_log\n"
            "from hvdscale.errors import LogError\n"
            "try: write_big_log('log.h5', 3, 300, 40_000)\n"
            "except LogError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          env=command_environment(), timeout=300)
    worded(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == []


def test_memory_does_not_grow_with_the_log(tmp_path):
    def most_memory(rows):
        code = ("import resource\nfrom tests.factories.archives import write_big_log\n"
                f"write_big_log('log.h5', {rows // 50_000}, {rows // 1000}, {rows})\n"
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                              env=command_environment(), timeout=300)
        return int(done.stdout) / 1024
    assert most_memory(600_000) < most_memory(200_000) + 25         # MiB; the rows alone have 30 MiB more
