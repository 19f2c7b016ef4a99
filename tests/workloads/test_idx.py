"""IDX files: what is read, and that a damaged one is always a DataError that names it."""
import gzip
import hashlib
import lzma

import numpy as np
import pytest

from hvdscale.errors import DataError
from hvdscale.workloads import mnist
from hvdscale.workloads.files import read_file
from hvdscale.workloads.mnist import read_idx
from tests.factories.mnist_files import idx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def read(path, dimensions=3):
    return read_idx(read_file(path), dimensions)


def refused(path, content, dimensions=3):
    """The message about a file of these bytes."""
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path, dimensions)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[:0]], ids=["images", "labels", "none"])
def test_an_array_comes_back_as_it_was_written(tmp_path, array, pack):
    (tmp_path / "file").write_bytes(pack(idx(array)))
    found = read(tmp_path / "file", array.ndim)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


def test_a_file_cut_at_any_length_is_refused(tmp_path):
    whole = idx(IMAGES)
    for length in range(len(whole)):
        said = refused(tmp_path / "file", whole[:length])
        assert "magic number" in said if length < 4 else f"has {length} bytes, " in said


def test_a_header_with_any_byte_changed_is_refused(tmp_path):
    whole = idx(IMAGES)
    for at in range(16):
        for flip in (0x01, 0x80, 0xFF):
            refused(tmp_path / "file", whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1:])


@pytest.mark.parametrize("content, dimensions, parts", [
    (idx(IMAGES) + b"x", 3, ["has 77 bytes, ", " 76 ", "(5, 4, 3)"]),
    (idx(IMAGES)[:4] + b"".join((2**n).to_bytes(4, "big") for n in (22, 21, 21)), 3, ["has 16 bytes"]),    # 2**64
    (idx(LABELS), 3, ["magic number 0x00000801, not 0x00000803", "another of the data set's files?"]),
    (idx(IMAGES), 1, ["0x00000803, not 0x00000801"])])
def test_what_does_not_fit_the_header_is_named(tmp_path, content, dimensions, parts):
    said = refused(tmp_path / "file", content, dimensions)
    assert all(part in said for part in parts), said


# the four files of a data set

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small data set of 12 training examples, 4 of them for validation, and 3 for testing."""
    monkeypatch.setattr(mnist, "VALIDATION", 4)
    drawn = np.random.default_rng(2)
    for part, n in (("train", 12), ("t10k", 3)):
        write(tmp_path / f"{part}-images-idx3-ubyte", drawn.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        write(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8) % 10)
    return tmp_path


def write(path, array):
    path.write_bytes(idx(array))


@pytest.fixture
def refused_set(worded):
    def refused_set(folder):
        with worded.error(DataError):
            mnist.load("mnist", str(folder))
    return refused_set


def test_the_last_training_images_are_for_validation(folder):
    data = mnist.load("mnist", str(folder))
    assert [len(split) for split in (data.train, data.val, data.test)] == [8, 4, 3]
    assert (data.train.labels.tolist(), data.val.labels.tolist()) == (list(range(8)), [8, 9, 0, 1])
    images = read(folder / FILES[0])
    np.testing.assert_array_equal(np.concatenate([data.train.inputs, data.val.inputs])[:, 0], images)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_damaged_file_of_the_set_is_named(folder, name, refused_set):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    refused_set(folder)
    (folder / name).unlink()
    refused_set(folder)
    (folder / name).mkdir()
    refused_set(folder)
    (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    assert len(mnist.load("mnist", str(folder)).train) == 8


@pytest.mark.parametrize("name, array", [
    (FILES[1], np.arange(3)), (FILES[2], np.zeros((3, 32, 30))), (FILES[3], np.array([0, 9, 10]))])
def test_files_that_make_no_set_are_named(folder, name, array, refused_set):
    write(folder / name, array.astype(np.uint8))
    refused_set(folder)


def test_files_of_another_data_set_are_told_by_their_checksums(folder, monkeypatch, refused_set):
    digests = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in FILES}
    monkeypatch.setattr("hvdscale.workloads.files.published_digests", lambda algorithm: {"fashion_mnist": digests})
    refused_set(folder)
    data = mnist.load("fashion_mnist", str(folder))
    sums = "".join(f"{digests[name]}  {name}\n" for name in sorted(FILES))
    assert data.notes == () and data.record == {"files_md5": hashlib.md5(sums.encode()).hexdigest()[:12]}


def test_a_set_with_nothing_beside_validation_is_named(folder, refused_set):
    for name in FILES[:2]:
        write(folder / name, read(folder / name, 3 if "images" in name else 1)[:4])
    refused_set(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path, refused_set):
    refused_set(tmp_path / "none")
    refused_set(tmp_path / "a\0b")
    for name in "abcdefghijk":
        (tmp_path / name).write_bytes(b"")
    refused_set(tmp_path)


def test_a_folder_without_test_images_is_trained_on_where_that_is_allowed(folder, worded, refused_set):
    (folder / FILES[2]).unlink()
    refused_set(folder)
    data = mnist.load("mnist", str(folder), allow_missing=True)
    assert [len(split) for split in (data.train, data.val, data.test)] == [8, 4, 0]
    assert data.record["missing"] == [FILES[2]]
    assert data.notes[0] == f"does without {FILES[2]} (--allow-missing)"
    (folder / FILES[0]).unlink()
    with worded.error(DataError):
        mnist.load("mnist", str(folder), allow_missing=True)


def test_files_are_found_under_other_names_and_in_usual_sub_folders(folder, refused_set):
    labels = mnist.load("mnist", str(folder)).train.labels.tolist()
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, renamed, pack in zip(
            FILES, ("train-images.idx3-ubyte", "train-labels.idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                    "t10k-labels.idx1-ubyte.xz"), (bytes, gzip.compress, bytes, gzip.compress)):      # names may lie
        (raw / renamed).write_bytes(pack((folder / name).read_bytes()))
        (folder / name).unlink()
    assert mnist.load("mnist", str(folder)).train.labels.tolist() == labels
    refused_set(folder / "MNIST")


def test_a_new_data_set_is_one_record_and_needs_no_published_digests(folder, monkeypatch):
    monkeypatch.setitem(mnist.DATASETS, "kmnist", mnist.Published(("kmnist",), 0.1, 0.05))
    data = mnist.load("kmnist", str(folder))
    assert data.notes == () and len(data.record["files_md5"]) == 12
    targets = [mnist.workload("kmnist", model).defaults["target"] for model in ("fc_8", "simple_cnn")]
    assert targets == ["val/error<0.1", "val/error<0.05"]


def test_the_published_files_give_the_published_split(mnist):
    from hvdscale.workloads import find
    data = find("mnist/fc_8").load(str(mnist))
    assert [len(split) for split in (data.train, data.val, data.test)] == [55000, 5000, 10000]
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert [int(split.labels.bincount().sum()) for split in (data.train, data.val, data.test)] == [55000, 5000, 10000]
    assert data.train.inputs.shape[1:] == (1, 28, 28)
    assert data.notes == () and set(data.record) == {"files_md5"}           # their checksums are the published ones
    assert float(data.train.inputs.double().mean() / 255) == pytest.approx(0.1307, abs=1e-3)      # as widely quoted
