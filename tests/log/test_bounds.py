"""What a log's file claims is held against its size before any of it is read: a small file takes little memory."""
import shutil
import zlib

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli.log import main
from hvdscale.errors import LogError
from hvdscale.log import reader
from hvdscale.log.compact_file import CompactFile
from hvdscale.log.reader import open_log, read_log
from hvdscale.log.schema import TABLES, columns
from tests.factories.log_files import finished

ROWS = 5_000_000
CHUNK = 1 << 20


def inflate(path, rows=ROWS):
    """Each column of a log claims so many rows: one packed chunk of zeros, written again and again."""
    with h5py.File(path, "r+") as file:
        for table in TABLES:
            for name in _columns(file[table]):
                _replace(file[table], name, rows)
            file[table]["committed_rows"][0] = rows
    return path


def _columns(group):
    names = []
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return [name for name in names if name != "committed_rows"]


def _replace(group, name, rows):
    kind, width, attributes = group[name].dtype, group[name].shape[1:], dict(group[name].attrs)
    del group[name]
    chunk = min(CHUNK, rows)
    made = group.create_dataset(name, (rows, *width), kind, chunks=(chunk, *width), compression="gzip")
    packed = zlib.compress(bytes(chunk * kind.itemsize * int(np.prod(width))), 9)
    for first in range(0, rows, chunk):
        made.id.write_direct_chunk((first,) + (0,) * len(width), packed)
    made.attrs.update(attributes)


@pytest.fixture(scope="module")
def inflated(tmp_path_factory):
    return inflate(finished(tmp_path_factory.mktemp("inflated") / "w.h5"))


@pytest.mark.parametrize("command", [("ls",), ("show",), ("check",), ("repair",), ("merge", "--out", "merged.h5")],
                         ids=lambda command: command[0])
def test_a_log_that_claims_more_rows_than_bytes_is_refused_in_a_line(inflated, tmp_path, monkeypatch, command, worded):
    monkeypatch.chdir(tmp_path)
    shutil.copy(inflated, "w.h5")
    done = CliRunner().invoke(main, [command[0], "w.h5", *command[1:]], catch_exceptions=False)
    assert done.exit_code == 1 and len(done.output.splitlines()) == 1 and len(done.output) < 300
    worded(done.output)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["w.h5"]


def test_a_log_of_many_rows_that_are_in_the_file_is_read(tmp_path):
    rows, path = reader.SMALL_ROWS + 1, tmp_path / "w.h5"
    loss = np.random.default_rng(0).random(rows)
    with CompactFile(str(path), {"id": "made", "segment": 0}) as file:
        for table, specs in columns().items():
            for spec in specs:
                file.add_column(table, spec)
        for name in ("trial", "lr", "step_seconds", "step", "loss"):
            file.add("steps", name, loss if name == "loss" else np.arange(rows) if name == "step" else np.zeros(rows))
    assert np.array_equal(read_log(path).steps["loss"], loss)


def test_columns_that_together_claim_more_than_a_log_holds_are_refused(tmp_path, monkeypatch, worded):
    path = inflate(finished(tmp_path / "w.h5"), 100_000)
    open_log(path).close()
    monkeypatch.setattr(reader, "HELD_BYTES", 1 << 22)
    monkeypatch.setattr(reader, "DENSE", 1)
    with worded.error(LogError):
        read_log(path)
    worded(CliRunner().invoke(main, ["repair", path]).output)


@pytest.mark.parametrize("name", ["steps/loss", "steps/committed_rows", "text"])
def test_a_piece_that_is_unpacked_as_a_whole_cannot_take_all_memory(tmp_path, name, worded):
    path = finished(tmp_path / "w.h5")
    with h5py.File(path, "r+") as file:
        rows, kind, attributes = len(file[name]), file[name].dtype, dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, (rows,), kind, chunks=(1 << 28,), maxshape=(None,)).attrs.update(attributes)
    with worded.error(LogError):
        read_log(path)


@pytest.mark.parametrize("value, said", [
    (np.zeros((2, 2), np.int64), r"int64 entries in the shape \(2, 2\)"), ([b"many"], r"in the shape \(1,\)"),
    ([1.5], "float64"), ([-1], "committed_rows is -1"), ([2 ** 62], f"has 50 rows where {2 ** 62} were committed")])
def test_a_number_of_rows_that_is_none_is_named(tmp_path, value, said):
    path = finished(tmp_path / "w.h5")
    with h5py.File(path, "r+") as file:
        del file["steps/committed_rows"]
        file["steps/committed_rows"] = value
    with pytest.raises(LogError, match=f"^{path}: steps/.*{said}"):
        read_log(path)


def test_texts_that_share_their_bytes_are_refused(tmp_path):
    path = finished(tmp_path / "w.h5", trials=3)
    with h5py.File(path, "r+") as file:
        size = len(file["text"])
        file["trials/plan"][:] = [(start, size - start) for start in range(3)]
    with pytest.raises(LogError, match=f"^{path}: texts of {3 * size - 3:,} bytes lie in {size:,} bytes of /text"):
        read_log(path)


def test_an_attribute_that_no_log_has_is_left_out_and_too_many_are_refused(tmp_path, worded):
    path = finished(tmp_path / "w.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["many"] = np.array(["x" * 1000] * 1000, h5py.string_dtype())        # 1,000 texts of any length
        file.attrs["huge"] = "x" * (2 << 20)
        file.attrs["own"] = "kept"
    attributes = read_log(path).attributes
    assert attributes["own"] == "kept" and not attributes.keys() & {"many", "huge"}
    with h5py.File(path, "r+") as file:
        for number in range(5):
            file.attrs[f"part{number}"] = "x" * 1_000_000
    with worded.error(LogError):
        read_log(path)
