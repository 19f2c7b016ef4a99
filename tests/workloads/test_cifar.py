"""CIFAR-10 and CIFAR-100: what is read, from whatever packing, and that what is wrong is a DataError that names it."""
import gzip
import hashlib
import io
import lzma
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from hvdscale.errors import DataError, UsageError
from hvdscale.plan.shards import Visits
from hvdscale.workload import load_data
from hvdscale.workloads import cifar
from hvdscale.workloads.files import Found, collect, read_file
from tests.conftest import DATA, lacks

TRAIN, TEST, VALIDATION = 6, 4, 5           # records of a made training and test file, and of the validation split


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Data sets of few records."""
    monkeypatch.setattr(cifar, "VALIDATION", VALIDATION)
    monkeypatch.setattr(cifar, "LAYOUTS", {name: replace(layout, train_records=TRAIN, test_records=TEST)
                                           for name, layout in cifar.LAYOUTS.items()})


def records(n, classes, seed=0):
    """The bytes of a file, and its images and labels."""
    drawn = np.random.default_rng([seed, n, *classes])
    labels = np.stack([drawn.integers(0, count, n, dtype=np.uint8) for count in classes], axis=1)
    images = drawn.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    return b"".join(label.tobytes() + image.tobytes() for label, image in zip(labels, images)), images, labels


def names(dataset):
    layout = cifar.LAYOUTS[dataset]
    return *layout.train, layout.test


def made(dataset):
    """File name -> bytes, images, labels."""
    layout = cifar.LAYOUTS[dataset]
    return {name: records(TEST if name == layout.test else TRAIN, layout.classes, seed)
            for seed, name in enumerate(names(dataset))}


def write(folder, dataset, ending="", pack=bytes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, _, _) in made(dataset).items():
        (folder / f"{name}{ending}").write_bytes(pack(content))


def tarred(files, folder):
    """The bytes of a tar archive with the files, after one of another kind."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def load(folder, dataset="cifar_10", **more):
    return cifar.workload(dataset, "alexnet").load(str(folder), **more)


@pytest.fixture
def refused(worded):
    def refused(folder, dataset="cifar_10", **more):
        with worded.error(DataError) as caught:
            load(folder, dataset, **more)
        assert str(folder) in str(caught.value)
        return str(caught.value)
    return refused


# what is read

@pytest.mark.parametrize("classes", [(10,), (20, 100)])
def test_records_are_labels_and_three_planes_of_pixels(classes):
    content, _, _ = records(4, classes)
    images, labels = cifar.read_records(Found("file", content), classes, 4)
    k = len(classes)
    for i in range(4):
        record = content[i * (k + 3072):][:k + 3072]
        assert labels[i].tolist() == list(record[:k])
        for channel, y, x in [(0, 0, 0), (0, 0, 31), (0, 31, 0), (1, 5, 7), (2, 31, 31)]:
            assert images[i, channel, y, x] == record[k + 1024 * channel + 32 * y + x]


@pytest.mark.parametrize("dataset", ["cifar_10", "cifar_100"])
@pytest.mark.parametrize("where", ["folder", "gzip", "xz", "sub-folder", "tar.gz", "tar", "both"])
def test_every_packing_gives_the_same_splits(tmp_path, dataset, where):
    layout, files = cifar.LAYOUTS[dataset], made(dataset)
    if where in ("folder", "gzip", "xz"):
        write(tmp_path, dataset, *{"folder": (), "gzip": (".gz", gzip.compress), "xz": (".xz", lzma.compress)}[where])
    elif where == "sub-folder":
        write(tmp_path / layout.folder, dataset)
    else:
        archive = tarred({name: content for name, (content, _, _) in files.items()}, layout.folder)
        plain = where == "tar"
        (tmp_path / layout.archive.removesuffix(".gz" if plain else "")).write_bytes(
            archive if plain else gzip.compress(archive))
    if where == "both":
        (tmp_path / f"{layout.test}.xz").write_bytes(lzma.compress(files[layout.test][0]))
    data = load(tmp_path, dataset)
    images = np.concatenate([files[name][1] for name in layout.train])
    labels = np.concatenate([files[name][2][:, -1] for name in layout.train])
    assert len(data.train) == len(labels) - VALIDATION and len(data.val) == VALIDATION and len(data.test) == TEST
    np.testing.assert_array_equal(torch.cat([data.train.inputs, data.val.inputs]), images)
    np.testing.assert_array_equal(torch.cat([data.train.labels, data.val.labels]), labels)
    np.testing.assert_array_equal(data.test.inputs, files[layout.test][1])
    sums = "".join(f"{hashlib.sha1(files[name][0]).hexdigest()}  {name}\n" for name in sorted(files))
    assert data.record == {"files_sha1": hashlib.sha1(sums.encode()).hexdigest()[:12]}


def test_cifar_100_has_fine_labels_or_by_argument_coarse_ones(tmp_path):
    write(tmp_path, "cifar_100")
    labels = made("cifar_100")["test.bin"][2]
    for given, column, classes in [({}, 1, 100), ({"labels": "fine"}, 1, 100), ({"labels": "coarse"}, 0, 20)]:
        data = load(tmp_path, "cifar_100", **given)
        assert data.test.labels.tolist() == labels[:, column].tolist()
        assert data.model_args == {"classes": classes}
        assert load_data(cifar.workload("cifar_100", "alexnet"), str(tmp_path), given).model_args == data.model_args
    with pytest.raises(UsageError, match="data_args.labels = 'both' is none of coarse, fine"):
        load(tmp_path, "cifar_100", labels="both")


def test_only_the_training_examples_are_augmented_and_by_argument_none(tmp_path):
    write(tmp_path, "cifar_10")
    visits = Visits(np.arange(VALIDATION), np.zeros(VALIDATION, np.int64))
    data = load(tmp_path)
    assert not torch.equal(data.train.take(visits).inputs, data.train.inputs[:VALIDATION])
    for split in (data.val, data.evaluated(5)["train"], load(tmp_path, augment=False).train):
        assert torch.equal(split.take(visits).inputs, split.inputs[:VALIDATION])
    for given in ("yes", 1, None):
        with pytest.raises(UsageError, match=f"data_args.augment = {given!r} is not true or false"):
            load(tmp_path, augment=given)


# what is missing

@pytest.mark.parametrize("dataset, name", [("cifar_10", "data_batch_5.bin"), ("cifar_10", "test_batch.bin"),
                                           ("cifar_10", "data_batch_1.bin"), ("cifar_100", "test.bin")])
def test_a_missing_file_is_named_and_done_without_where_that_is_allowed(tmp_path, dataset, name, refused):
    write(tmp_path, dataset)
    (tmp_path / name).unlink()
    assert "--allow-missing" in refused(tmp_path, dataset)
    data = load(tmp_path, dataset, allow_missing=True)
    assert data.record["missing"] == [name] and data.notes[0] == f"does without {name} (--allow-missing)"
    layout = cifar.LAYOUTS[dataset]
    there = [made(dataset)[other][2][:, -1] for other in layout.train if other != name]
    assert torch.cat([data.train.labels, data.val.labels]).tolist() == np.concatenate(there).tolist()
    assert (len(data.val), len(data.test)) == (VALIDATION, 0 if name == layout.test else TEST)


def test_all_missing_files_are_named_and_training_needs_one(tmp_path, refused):
    write(tmp_path, "cifar_10")
    for number in (1, 2, 4, 5):
        (tmp_path / f"data_batch_{number}.bin").unlink()
    refused(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    refused(tmp_path, allow_missing=True)


@pytest.mark.parametrize("dataset, name", [
    ("cifar_10", "data_batch_1"), ("cifar_10", "cifar-10-python.tar.gz"), ("cifar_10", "cifar-10-batches-py"),
    ("cifar_100", "train"), ("cifar_100", "cifar-100-python")])
def test_a_pickled_version_is_named_and_never_read(tmp_path, dataset, name, refused):
    (tmp_path / name).mkdir() if "." not in name and "-" in name else (tmp_path / name).write_bytes(b"cos\nsystem\n")
    said = refused(tmp_path, dataset, allow_missing=True)
    assert cifar.LAYOUTS[dataset].archive in said


def test_a_wrong_folder_is_said_with_what_it_holds(tmp_path, worded, refused):
    write(tmp_path / "hundred", "cifar_100")
    refused(tmp_path / "hundred")
    refused(tmp_path / "hundred" / "test.bin")
    with worded.error(DataError):
        cifar.workload("cifar_100", "alexnet").load(None)


# what is wrong

@pytest.mark.parametrize("dataset", ["cifar_10", "cifar_100"])
def test_a_label_that_is_no_class_is_named_with_its_record_and_byte(tmp_path, dataset, refused):
    write(tmp_path, dataset)
    classes = cifar.LAYOUTS[dataset].classes
    for column, count in enumerate(classes):
        name, at = names(dataset)[0], 4 * (3072 + len(classes)) + column
        content = bytearray(made(dataset)[name][0])
        content[at] = count
        (tmp_path / name).write_bytes(content)
        refused(tmp_path, dataset)
        content[at] = count - 1
        (tmp_path / name).write_bytes(content)
        load(tmp_path, dataset)


def test_a_file_of_another_length_is_named_with_its_bytes_and_records(tmp_path, refused):
    write(tmp_path, "cifar_10")
    whole = made("cifar_10")["data_batch_2.bin"][0]
    for content in (whole[:-1], whole[:3073], whole + b"x", b""):
        (tmp_path / "data_batch_2.bin").write_bytes(content)
        refused(tmp_path)


def test_files_under_each_others_names_are_told_by_the_published_checksums(tmp_path, monkeypatch, refused, worded):
    write(tmp_path, "cifar_10")
    content = {name: content for name, (content, _, _) in made("cifar_10").items()}
    published = {name: hashlib.sha1(part).hexdigest() for name, part in content.items()}
    monkeypatch.setattr("hvdscale.workloads.files.published_digests", lambda algorithm: {"cifar_10": published})
    assert load(tmp_path).notes == ()
    (tmp_path / "data_batch_1.bin").write_bytes(content["data_batch_2.bin"])
    refused(tmp_path)
    changed = bytes([content["data_batch_1.bin"][0]]) + bytes([content["data_batch_1.bin"][1] ^ 1]) + \
        content["data_batch_1.bin"][2:]
    (tmp_path / "data_batch_1.bin").write_bytes(changed)
    worded(load(tmp_path).notes)
    (tmp_path / "data_batch_4.bin").write_bytes(changed)
    refused(tmp_path)


def test_an_archive_writes_nothing_and_its_links_are_not_followed(tmp_path, refused):
    files = {name: content for name, (content, _, _) in made("cifar_10").items()}
    archive = tarred(files, "../../../outside")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cifar-10-binary.tar").write_bytes(archive)
    assert len(load(tmp_path / "in").test) == TEST
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cifar-10-binary.tar", "in"]
    with tarfile.open(tmp_path / "in" / "cifar-10-binary.tar", "w") as tar:
        for name in files:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    refused(tmp_path / "in")


@pytest.mark.parametrize("packing", [".tar.gz", ".tar"])
def test_a_damaged_archive_is_an_error_naming_it_or_has_valid_labels(tmp_path, packing):
    """Of files by themselves see test_idx."""
    whole = tarred({name: content for name, (content, _, _) in made("cifar_10").items()}, "a")
    whole, damaged = gzip.compress(whole) if packing == ".tar.gz" else whole, tmp_path / f"cifar-10-binary{packing}"
    for at in np.random.default_rng(0).integers(0, len(whole) - 10_000, 20):         # a tar ends with zeros
        damaged.write_bytes(whole[:at])
        with pytest.raises(DataError, match=f"{tmp_path}.*(cifar-10-binary|lacks)"):
            load(tmp_path)
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
        try:
            data = load(tmp_path)
            assert 0 <= data.train.labels.min() and data.train.labels.max() < 10
        except DataError as error:
            assert str(error).startswith(str(tmp_path)) and "\n" not in str(error)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin.gz", "cifar-10-binary.tar.gz"])
def test_a_folder_a_loop_or_an_unreadable_file_in_the_place_of_a_file_is_named(tmp_path, name, refused):
    write(tmp_path, "cifar_10")
    for there in ("data_batch_3.bin", "test_batch.bin"):
        (tmp_path / there).unlink()
    (tmp_path / name).mkdir()
    refused(tmp_path)
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to(tmp_path / name)
    refused(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/proc/self/mem")                      # which not even root can read at 0
    refused(tmp_path)


# the workloads

def test_the_real_files_are_standardised_to_mean_0_and_deviation_1(monkeypatch):
    """The first 10,000 of CIFAR-10."""
    found = collect(DATA, ["data_batch_1.bin"], ["cifar-10-batches-bin"])
    if not found:
        lacks("cifar-10", f"needs CIFAR-10's files in {DATA}")
    images, labels = cifar.read_records(found["data_batch_1.bin"], (10,), 10000)
    assert labels[:10, 0].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]                  # as widely shown
    assert np.bincount(labels[:, 0]).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    standard = cifar.workload("cifar_10", "resnet_8").prepare(torch.from_numpy(images.copy()), torch.float32)
    assert standard.mean((0, 2, 3)).abs().max() < 0.01              # a grey level is 0.015
    assert (standard.std((0, 2, 3)) - 1).abs().max() < 0.008


def test_a_packed_files_name_does_not_matter(tmp_path):
    for content in (b"plain", gzip.compress(b"plain"), gzip.compress(b"pl") + gzip.compress(b"ain"),
                    lzma.compress(b"plain"), lzma.compress(b"pl") + lzma.compress(b"ain")):
        (tmp_path / "file.gz").write_bytes(content)
        assert read_file(tmp_path / "file.gz").content == b"plain"
