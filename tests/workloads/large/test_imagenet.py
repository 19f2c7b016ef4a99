"""ImageNet from folders: the splits, what is missing or misplaced, and broken pictures, named or left out."""
import io
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hvdscale.errors import DataError, UsageError
from hvdscale.plan.shards import Visits
from hvdscale.workloads.large import imagenet
from hvdscale.workloads.large.readers import images
from hvdscale.workloads.large.readers.images import class_folders, index_pictures
from tests.conftest import DATA
from tests.wording import answered

Image = pytest.importorskip("PIL.Image")

CLASSES = ["n01440764", "n01443537", "n02051845", "n04562935"]
PER_CLASS, TESTS = 6, 2
SHADE = {name: 40 + 50 * i for i, name in enumerate(CLASSES)}        # by which a picture's class can be told


def jpeg(shade, size=(20, 16)):
    file = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(file, "JPEG")
    return file.getvalue()


def place(folder, names):
    """Pictures of these names, in the shade of the folder's class."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(jpeg(SHADE[folder.name]))


@pytest.fixture
def folder(tmp_path):
    """A small data set: 4 classes of 6 training and 2 test pictures."""
    for name in CLASSES:
        place(tmp_path / "set" / "train" / name, [f"{name}_{i}.JPEG" for i in range(PER_CLASS)])
        place(tmp_path / "set" / "val" / name, [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(TESTS)])
    return tmp_path / "set"


def load(folder, dataset="imagenet", side=8, **more):
    return imagenet.load(dataset, str(folder), side=side, **more)


@pytest.fixture
def refused(worded):
    def refused(folder, dataset="imagenet", **more):
        with worded.error(DataError, unlike=r"(?<=damaged-)\w+"):
            load(folder, dataset, **more)
    return refused


def paths(split):
    """The files of a split, in its order."""
    crops = split.dataset
    return [crops.pictures.path(i) for i in crops.order]


def taken(split, indices, epoch=0, seed=0):
    indices = np.asarray(indices)
    inputs, labels = split.take(Visits(indices, np.full(len(indices), epoch), seed))
    return inputs, labels


# the splits

def test_every_picture_is_in_one_split_and_labelled_by_its_folders_place(folder):
    data = load(folder, validation=5)
    assert [len(split) for split in (data.train, data.val, data.test)] == [19, 5, 8]
    assert data.model_args == {"classes": 4} and data.notes == () and "missing" not in data.record
    assert sorted(paths(data.train) + paths(data.val)) == sorted(folder.glob("train/*/*"))
    assert paths(data.test) == sorted(folder.glob("val/*/*"))
    for split in (data.train, data.val, data.test, data.train_eval):
        inputs, labels = taken(split, range(len(split)))
        assert inputs.dtype == torch.uint8 and inputs.shape == (len(split), 3, 8, 8) and labels.dtype == torch.int64
        assert labels.tolist() == [CLASSES.index(path.parent.name) for path in paths(split)]
        shades = inputs.flatten(1).double().mean(1)
        assert ((shades - 40) / 50).round().long().tolist() == labels.tolist()


def test_the_first_examples_of_train_are_of_many_classes(folder):
    """As train_subset and the evaluation of a part of train take them."""
    assert len({path.parent for path in paths(load(folder).train)[:8]}) > 2


def test_the_held_out_part_is_fixed_and_of_the_published_size(folder):
    assert paths(load(folder).val) == paths(load(folder).val)
    whole = images.Pictures(folder, ("a", "b"), np.zeros(0, np.uint8), np.zeros(imagenet.TRAIN, np.int64),
                            np.zeros(imagenet.TRAIN, np.int32))
    train, val = imagenet._split("imagenet", whole, None, None, 8)
    half, same = imagenet._split("imagenet_half_images", whole, None, None, 8)
    cards = [imagenet.workload(name, "vgg_11").card.train_examples for name in imagenet.DATASETS[:2]]
    assert [len(train), len(half), len(val)] == [*cards, 50045] and len(half) == len(train) // 2
    np.testing.assert_array_equal(same.order, val.order)
    assert np.bincount(np.concatenate([train.order, val.order])).tolist() == [1] * imagenet.TRAIN


def test_half_of_the_images_are_of_the_training_split_alone(folder):
    whole, half = load(folder, validation=4), load(folder, "imagenet_half_images", validation=4)
    assert paths(half.train) == paths(whole.train)[:10]
    assert (paths(half.val), paths(half.test)) == (paths(whole.val), paths(whole.test))
    assert half.record["examples_sha256"] != whole.record["examples_sha256"]


def test_half_of_the_classes_are_the_same_in_all_splits_and_labelled_anew(folder):
    data = load(folder, "imagenet_half_classes", validation=2)
    assert data.model_args == {"classes": 2} and [len(data.train), len(data.val), len(data.test)] == [10, 2, 4]
    chosen = sorted({path.parent.name for path in paths(data.train) + paths(data.val)})
    assert {path.parent.name for path in paths(data.test)} == set(chosen) and len(chosen) == 2
    for split in (data.train, data.val, data.test):
        labels = taken(split, range(len(split)))[1]
        assert labels.tolist() == [chosen.index(path.parent.name) for path in paths(split)]


def test_folders_of_classes_alone_have_no_test_split(folder):
    data = load(folder / "train")
    assert [len(data.train), len(data.val), len(data.test)] == [23, 1, 0] and "missing" not in data.record


def test_a_part_for_validation_that_leaves_none_is_refused(folder, refused):
    refused(folder, validation=24)


def test_what_is_drawn_of_an_example_depends_on_seed_epoch_and_example_alone(folder):
    photo = folder / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photo, "PNG")
    split = load(folder).train
    i = paths(split).index(photo)
    once = taken(split, [i])[0][0]
    assert torch.equal(taken(split, [0, 3, i, 2])[0][2], once)
    assert torch.equal(taken(pickle.loads(pickle.dumps(split)), [i])[0][0], once)       # as loader workers have it
    assert not torch.equal(taken(split, [i], epoch=1)[0][0], once)
    assert not torch.equal(taken(split, [i], seed=1)[0][0], once)
    evaluated = load(folder).train_eval
    assert torch.equal(taken(evaluated, [i])[0], taken(evaluated, [i], epoch=3, seed=2)[0])


# the index

def test_names_are_sorted_by_their_bytes_and_read_in_any_case(folder, monkeypatch):
    """Whatever order the file system gives them in."""
    odd = [b"B.JPEG", b"a.jpg", b"\xff\xfe.PNG", "ä.webp".encode(), b"Z.Jpeg"]
    for name in odd:
        with open(os.path.join(os.fsencode(folder / "train" / CLASSES[0]), name), "wb") as file:
            file.write(jpeg(40))
    found = index_pictures(folder / "train", class_folders(folder / "train"))
    names = [os.fsencode(found.name(i)) for i in range(len(found))]
    assert names == sorted(names) and len(names) == 24 + len(odd) and len(set(found.labels[:6 + len(odd)])) == 1
    assert all(found.path(i).is_file() for i in range(len(found)))
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: _Reversed(scandir(path)))
    again = index_pictures(folder / "train", class_folders(folder / "train"))
    assert again.fingerprint() == found.fingerprint() and again.path(7) == found.path(7)


class _Reversed:
    def __init__(self, entries):
        self.entries = entries

    def __enter__(self):
        return reversed(list(self.entries))

    def __exit__(self, *_):
        self.entries.close()


def test_links_are_followed_and_hidden_files_passed_over(folder):
    first = folder / "train" / CLASSES[0]
    shutil.move(first, folder / "elsewhere")
    first.symlink_to(folder / "elsewhere")
    (first / "linked.JPEG").symlink_to(first / f"{CLASSES[0]}_0.JPEG")
    (first / "._n01440764_0.JPEG").write_bytes(b"\0\5\x16\7")
    (folder / "train" / ".DS_Store").write_bytes(b"")
    (folder / "train" / ".cache").mkdir()
    data = load(folder)
    assert len(data.train) + len(data.val) == 25 and data.notes == ()


def test_files_that_are_no_pictures_by_their_names_are_left_out_and_said(folder, worded):
    (folder / "train" / CLASSES[1] / "Thumbs.db").write_bytes(b"")
    (folder / "train" / CLASSES[2] / "list.txt").write_bytes(b"")
    (folder / "train" / "synsets.txt").write_text("...")
    data = load(folder)
    assert len(data.train) + len(data.val) == 24
    worded(data.notes)


def test_an_index_of_imagenets_size_stays_far_below_1_gib(monkeypatch, tmp_path):
    """Of a fiftieth of it, by names as long as the published ones."""
    classes = [f"n{i:08d}" for i in range(20)]

    def entries(place):
        for i in range(1281):
            yield SimpleNamespace(name=f"{place.name}_{i * 7919 % 99991}.JPEG", is_file=lambda: True)
    monkeypatch.setattr(images, "_entries", entries)
    tracemalloc.start()
    try:
        found = index_pictures(tmp_path, classes)
        train, val = imagenet._split("imagenet", found, None, None, 224)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == len(train) + len(val) == 25620
    assert peak * 50 < 2**28 and len(pickle.dumps(train)) * 50 < 2**26


# what is missing or misplaced

def emptied(folder, *inner):
    shutil.rmtree(folder)
    folder.joinpath(*inner).mkdir(parents=True)


ONE = CLASSES[0]


def test_what_lies_otherwise_than_published_is_named(golden, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(spoil=lambda folder: None, where="", **more):
        shutil.rmtree("spoiled", ignore_errors=True)
        spoil(Path(shutil.copytree(folder, "spoiled")))
        with pytest.raises((DataError, UsageError)) as raised:
            load(Path("spoiled", where), **more)
        return str(raised.value)
    golden("imagenet", answered("imagenet", lambda call: eval(call, {**globals(), "said": said})))


def test_missing_test_pictures_are_named_and_may_be_allowed(folder, refused):
    shutil.rmtree(folder / "val")
    refused(folder)
    data = load(folder, allow_missing=True)
    assert len(data.test) == 0 and data.record["missing"] == ["val with a folder of pictures for each class"]
    assert data.notes == (f"{folder} lacks val with a folder of pictures for each class",)
    shutil.move(folder / "train", folder / "val")
    refused(folder)


def test_missing_pictures_of_the_full_set_are_named_and_may_be_allowed(folder, monkeypatch, refused):
    for name, value in dict(CLASSES=4, TRAIN=26, HELD_OUT=1, TEST=9).items():
        monkeypatch.setattr(imagenet, name, value)
    refused(folder)
    data = load(folder, allow_missing=True)
    assert data.record["missing"] == ["2 of the 26 pictures of train", "1 of the 9 pictures of val"]
    monkeypatch.setattr(imagenet, "CLASSES", 1000)
    assert "missing" not in load(folder).record


# broken pictures

def spoil(path, content=b"\xff\xd8\xff"):
    path.write_bytes(content)
    return path


def test_a_broken_picture_is_named_when_it_is_met(folder, worded):
    spoil(folder / "train" / CLASSES[1] / f"{CLASSES[1]}_3.JPEG", b"")
    data = load(folder, validation=1)
    with worded.error(DataError):
        taken(data.train, range(23))


def test_broken_pictures_are_left_out_and_counted_where_that_is_asked(folder, tmp_path):
    whole = load(folder, validation=5)
    broken = [spoil(paths(whole.train)[2]), spoil(paths(whole.train)[7], b""), spoil(paths(whole.val)[1]),
              spoil(paths(whole.test)[0])]
    data = load(folder, validation=5, skip_broken=True, cache_dir=str(tmp_path / "cache"))
    assert data.record["skipped"] == 4 and data.record["examples_sha256"] != whole.record["examples_sha256"]
    for name in ("train", "train_eval", "val", "test"):
        split = getattr(data, name)
        assert paths(split) == [path for path in paths(getattr(whole, name)) if path not in broken]
        taken(split, range(len(split)))
    assert [note.split(" do not")[0] for note in data.notes] == [f"3 pictures of {folder}/train",
                                                                 f"1 pictures of {folder}/val"]


def test_every_file_is_decoded_once_for_all_later_runs(folder, tmp_path, monkeypatch):
    spoil(folder / "train" / CLASSES[0] / f"{CLASSES[0]}_2.JPEG")
    first = load(folder, skip_broken=True, cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(images, "undecodable", None)
    again = load(folder, "imagenet_half_images", skip_broken=True, cache_dir=str(tmp_path / "cache"))
    assert again.val.dataset.order.tolist() == first.val.dataset.order.tolist()
    (folder / "train" / CLASSES[0] / f"{CLASSES[0]}_2.JPEG").unlink()           # another set of names: decoded anew
    with pytest.raises(TypeError):
        load(folder, skip_broken=True, cache_dir=str(tmp_path / "cache"))


@pytest.mark.parametrize("content", ["", "[", "{}x", "[[1]]", '[["a", 1, 2]]', "[[99, 1, 2]]", "[[-1, 1, 2]]", "7"])
def test_a_damaged_list_is_named(folder, tmp_path, content, refused):
    load(folder, skip_broken=True, cache_dir=str(tmp_path / "cache"))
    for kept in (tmp_path / "cache").glob("*.json"):
        kept.write_text(content)
    refused(folder, skip_broken=True, cache_dir=str(tmp_path / "cache"))


def test_a_cache_folder_that_cannot_be_made_is_named(folder, tmp_path, refused):
    (tmp_path / "file").write_text("")
    refused(folder, skip_broken=True, cache_dir=str(tmp_path / "file"))


# the workloads

@pytest.mark.skipif(not (DATA / "imagenet_sample").is_dir(), reason="needs the photographs of imagenet_sample")
def test_the_photographs_are_split_and_read():
    data = load(DATA / "imagenet_sample", side=64)
    assert [len(data.train), len(data.val), len(data.test)] == [67, 3, 0] and data.model_args == {"classes": 70}
    inputs, labels = taken(data.train, range(12))
    assert inputs.float().std() > 20 and len(set(labels.tolist())) == 12
