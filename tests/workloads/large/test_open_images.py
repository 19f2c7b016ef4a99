"""Open Images: labels and images as published, what is said of anything else, and what is trained on and measured."""
import gzip
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.errors import DataError, UsageError
from hvdscale.plan.shards import Visits
from hvdscale.training.evaluate import Evaluator
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Batch, load_data
from hvdscale.workloads.large import open_images
from hvdscale.workloads.large.open_images import read_classes, read_labels
from tests.factories import open_images as made
from tests.factories.open_images import CAR, CAT, HEADER, LANDMARK, TRAIN, TRAINABLE, VEHICLE, human_lines, lines
from tests.factories.workers import on_each
from tests.wording import answered

JOB = open_images.workload("open_images_v4", "resnet_50")
HUMAN = "train-annotations-human-imagelabels.csv"
MACHINE = "train-annotations-machine-imagelabels.csv"
SIDE = 8


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(published, tmp_path):
    """A copy that can be spoilt."""
    return shutil.copytree(published, tmp_path / "data")


def load(folder, allow_missing=False, **data_args):
    return load_data(JOB, str(folder), {"side": SIDE, **data_args}, allow_missing=allow_missing)


@pytest.fixture
def refused(worded):
    def refused(folder, **given):
        with worded.error(DataError) as caught:
            load(folder, **given)
        return str(caught.value)
    return refused


def taken(split):
    return Batch(*split.take(Visits(np.arange(len(split)), np.zeros(len(split), np.int64))))


def by_hand(images, others):
    """The targets of these images by a plain loop, images sorted by name, those without a positive left out."""
    rows = []
    for image in sorted(images):
        labels = images[image]
        if 1 in (labels.get(name) for name in TRAINABLE):
            rows.append([labels.get(name, others) for name in TRAINABLE])
    return rows


# what is read

@pytest.mark.parametrize("negatives, others", [("all", 0), ("verified", -1)])
def test_each_part_has_its_labelled_images_by_name_and_their_targets(published, negatives, others):
    data = load(published, negatives=negatives)
    for part, split in [("train", data.train), ("train", data.train_eval), ("validation", data.val),
                        ("test", data.test)]:
        batch = taken(split)
        assert batch.labels.tolist() == by_hand(made.PARTS[part], others)
        assert batch.labels.dtype == torch.int8
        assert batch.inputs.dtype == torch.uint8 and batch.inputs.shape == (len(split), 3, SIDE, SIDE)
    assert data.model_args == {"classes": 3}


def test_an_image_goes_with_its_own_labels(published):
    """The made pictures show by their colours what their labels are."""
    batch = taken(load(published).val)
    thirds = torch.stack([batch.inputs[:, i, 2:6, column] for i, column in enumerate((1, 4, 6))], 1).float().mean(2)
    grey = batch.inputs[:, 1, :, 0].float().mean(1)
    assert ((thirds - grey[:, None] > 50) == (batch.labels > 0)).all()


def test_the_record_counts_what_is_not_used_and_tells_copies_apart(published, folder):
    record = load(published).record
    assert {name: found for name, found in record.items() if name != "examples_sha256"} == {
        "without_positive": ["1 image of train", "1 image of test"],
        "unused_files": ["1 image of train", "1 image of validation", "1 image of test"]}
    assert load(folder).record == record
    lines(folder / HUMAN, human_lines({**TRAIN, "000062a39995e348": {CAR: 1}}))
    other = load(folder).record
    assert other["examples_sha256"] != record["examples_sha256"]
    assert other["without_positive"] == record["without_positive"]


def test_labels_come_back_as_they_stand_in_the_file(published):
    classes = read_classes(published)
    labels = read_labels(published / HUMAN, classes)
    numbers = {name: number for number, name in enumerate(TRAINABLE)}
    for image, expected in TRAIN.items():
        found = {int(number): bool(shown) for number, shown in zip(*labels.of(np.uint64(int(image, 16))))}
        assert found == {numbers[name]: shown == 1 for name, shown in expected.items() if name in numbers}
    assert [len(part) for part in labels.of(np.uint64(12345))] == [0, 0]
    trained = {name.encode(): number for name, number in numbers.items()}
    assert classes == {**dict.fromkeys(map(str.encode, made.DESCRIBED), -1), **trained}


@pytest.mark.parametrize("chunk", [100, 137, 4096])
def test_neither_pieces_nor_the_order_of_lines_show(published, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(open_images, "CHUNK", chunk)
    classes, plain = read_classes(published), read_labels(published / HUMAN, read_classes(published))
    shuffled = human_lines(TRAIN)[1:]
    np.random.default_rng(chunk).shuffle(shuffled)
    lines(tmp_path / "shuffled.csv", [HEADER, *shuffled])
    other = read_labels(tmp_path / "shuffled.csv", classes)
    np.testing.assert_array_equal(other.images, plain.images)
    has_positive = other.counts(other.positive) > 0
    np.testing.assert_array_equal(has_positive, [image != "ffffffffffffffff" for image in sorted(TRAIN)])
    for image in plain.images:
        assert sorted(zip(*plain.of(image))) == sorted(zip(*other.of(image)))


def test_gzip_line_ends_of_windows_and_folders_of_parts_are_read(published, folder):
    expected = load(published).record
    for name in (HUMAN, "classes-trainable.txt", "class-descriptions.csv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    validation = folder / "validation-annotations-human-imagelabels.csv"
    text = validation.read_bytes().replace(b"\n", b"\r\n")
    (folder / "validation" / validation.name).write_bytes(text)
    validation.unlink()
    described = gzip.decompress((folder / "class-descriptions.csv.gz").read_bytes())
    (folder / "class-descriptions.csv.gz").write_bytes(gzip.compress(b"LabelName,DisplayName\n" + described))
    assert load(folder).record == expected


def test_images_may_lie_as_their_archives_are_unpacked(published, folder):
    """train_0 holds the images whose names begin with 0, beside train or in it."""
    expected = taken(load(published).train_eval)
    for path in list((folder / "train").glob("*.jpg")):
        place = folder / ("train" if path.name < "8" else ".") / f"train_{path.name[0]}"
        place.mkdir(exist_ok=True)
        path.rename(place / path.name)
    found = taken(load(folder).train_eval)
    assert torch.equal(found.inputs, expected.inputs) and torch.equal(found.labels, expected.labels)


def test_a_pair_judged_both_ways_or_twice_is_positive(folder):
    text = (folder / HUMAN).read_text()
    (folder / HUMAN).write_text(text + "000062a39995e348,verification,/m/01yrx,0\n"
                                       "1000060e3121c730,verification,/m/0k4j,1\n")
    both = {**TRAIN, "000062a39995e348": {CAT: 1}}
    assert taken(load(folder, negatives="verified").train).labels.tolist() == by_hand(both, -1)


def test_machine_labels_count_in_train_where_no_person_judged(folder):
    lines(folder / MACHINE, [HEADER, "000026e7ee790996,machine,/m/07yv9,0.9", "000062a39995e348,machine,/m/0k4j,0.8",
                             "000062a39995e348,machine,/m/07yv9,0.7", "1000060e3121c730,machine,/m/05_5t0l,1.0",
                             "ffffffffffffffff,machine,/m/01yrx,0.8"])
    expected = {**TRAIN, "000062a39995e348": {CAT: 1, CAR: 1}, "ffffffffffffffff": {VEHICLE: 0, LANDMARK: 1, CAT: 1}}
    for negatives, others in open_images.NEGATIVES.items():
        data = load(folder, machine=0.8, negatives=negatives)
        assert taken(data.train).labels.tolist() == by_hand(expected, others)
        assert taken(data.val).labels.tolist() == by_hand(made.VALIDATION, others)
    assert taken(load(folder).train).labels.tolist() == by_hand(TRAIN, 0)


def test_only_training_images_are_cropped_at_random(published):
    data = load(published)
    visits = [Visits(np.arange(3), np.full(3, epoch)) for epoch in (0, 1)]
    assert not torch.equal(*(data.train.take(visit)[0] for visit in visits))
    for split in (data.train_eval, data.val, data.test.first(2)):
        visits = [Visits(np.arange(2), np.full(2, epoch)) for epoch in (0, 1)]
        assert torch.equal(*(split.take(visit)[0] for visit in visits))


def test_loader_workers_can_be_sent_the_splits(published):
    data = load(published)
    for split in (data.train, data.val):
        assert torch.equal(taken(pickle.loads(pickle.dumps(split))).inputs, taken(split).inputs)


@pytest.mark.slow
def test_many_lines_are_read_in_little_memory(tmp_path):
    """The arrays of 300,000 judgements take 3 bytes each and 16 an image; reading does not hold the file."""
    import tracemalloc
    rng, n = np.random.default_rng(0), 60000
    described = [f"/m/0{i:05x}" for i in range(500)]
    lines(tmp_path / "class-descriptions.csv", [f"{name},Thing" for name in described])
    lines(tmp_path / "classes-trainable.txt", described[::2])
    images = np.sort(rng.choice(2**40, n, replace=False))
    labels, shown = rng.integers(0, 500, (n, 5)), rng.integers(0, 2, (n, 5))
    lines(tmp_path / "file.csv", [HEADER] + [f"{image:016x},verification,{described[label]},{yes}"
                                             for image, *pairs in zip(images.tolist(), labels.tolist(), shown.tolist())
                                             for label, yes in zip(*pairs)])
    classes = read_classes(tmp_path)
    tracemalloc.start()
    found = read_labels(tmp_path / "file.csv", classes)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    trained = labels % 2 == 0
    np.testing.assert_array_equal(found.images, images[trained.any(1)])
    np.testing.assert_array_equal(found.classes, labels[trained] // 2)
    np.testing.assert_array_equal(found.positive, shown[trained] == 1)
    assert held < 3.1 * len(found.classes) + 16.1 * n + 2e5
    assert peak < 30 * open_images.CHUNK


# what is refused

def test_lines_and_arguments_that_are_not_as_published_are_named(golden, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(number=0, line="", machine_says="0.9", **given):
        text, judged = human_lines(TRAIN), "000026e7ee790996,machine,/m/07yv9"
        text[number - 1:number] = [line] * bool(number)
        lines(folder / HUMAN, text)
        lines(folder / MACHINE, [HEADER, f"{judged},0.9", f"{judged},{machine_says}"])
        with pytest.raises((DataError, UsageError)) as raised:
            load(Path(folder.name), **given)
        return str(raised.value)
    golden("open_images", answered("open_images", lambda call: eval(call, {**globals(), "said": said})))


def test_a_wrong_line_is_named_by_its_number_in_any_chunk(folder, monkeypatch, refused):
    monkeypatch.setattr(open_images, "CHUNK", 120)
    text = human_lines(TRAIN)
    for number in range(2, len(text) + 1):
        lines(folder / HUMAN, [*text[:number - 1], "wrong", *text[number:]])
        assert f"{HUMAN}: line {number}: 'wrong'" in refused(folder)


def test_a_file_cut_anywhere_within_a_line_is_named(folder):
    whole = (folder / HUMAN).read_bytes()
    for length in range(len(whole)):
        if whole[:length][-1:] == b"\n":
            continue
        (folder / HUMAN).write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            load(folder)
        assert re.match(f"{folder / HUMAN}: .*(is empty|within a line; it is truncated)", str(caught.value))


def test_a_file_with_nothing_but_its_header_is_named(folder, refused):
    lines(folder / HUMAN, [HEADER])
    refused(folder)


def test_a_file_of_boxes_or_of_the_machines_labels_is_named(folder, refused):
    lines(folder / HUMAN, [HEADER + ",XMin,XMax", "000026e7ee790996,xclick,/m/0k4j,1,0.1,0.2"])
    refused(folder)
    lines(folder / HUMAN, [HEADER, "000026e7ee790996,machine,/m/0k4j,0.9"])
    refused(folder)


def test_a_trainable_class_without_a_description_and_one_twice_are_named(folder, refused):
    path = folder / "classes-trainable.txt"
    lines(path, [*TRAINABLE, "/m/0zzzz"])
    refused(folder)
    lines(path, [*TRAINABLE, TRAINABLE[1]])
    refused(folder)


@pytest.mark.parametrize("name", [f"{part}-annotations-human-imagelabels.csv" for part in made.PARTS] +
                         ["classes-trainable.txt", "class-descriptions.csv"])
def test_a_missing_file_is_named(folder, name, refused):
    (folder / name).unlink()
    refused(folder)


def test_missing_images_are_counted_and_the_first_is_named(folder, refused):
    for image in ("0000c64e1253d68f", "4fa8054781a4c382", "ffffffffffffffff"):      # the last shows no class
        (folder / "train" / f"{image}.jpg").unlink()
    refused(folder)
    data = load(folder, allow_missing=True)
    left = {image: labels for image, labels in TRAIN.items() if image not in ("0000c64e1253d68f", "4fa8054781a4c382")}
    assert taken(data.train).labels.tolist() == by_hand(left, 0)
    assert data.record["missing"] == ["2 images of train"]
    assert data.notes == ("trains without 2 images of train (--allow-missing)",)


@pytest.mark.parametrize("allow_missing", [False, True])
def test_a_part_without_images_is_named(folder, allow_missing, refused):
    for path in (folder / "train").glob("*.jpg"):
        path.rename(path.with_suffix(".txt"))
    refused(folder, allow_missing=allow_missing)
    shutil.rmtree(folder / "train")
    refused(folder, allow_missing=allow_missing)


def test_images_of_another_part_are_named(folder, refused):
    shutil.rmtree(folder / "train")
    shutil.copytree(folder / "validation", folder / "train")
    for allow_missing in (False, True):
        refused(folder, allow_missing=allow_missing)


def test_the_test_part_may_be_missing_where_that_is_allowed(folder, refused):
    shutil.rmtree(folder / "test")
    refused(folder)
    data = load(folder, allow_missing=True)
    assert len(data.test) == 0 and data.record["missing"] == ["test"]
    assert data.notes == ("trains without test (--allow-missing)",)


def test_a_broken_picture_is_named_when_it_is_read(folder):
    path = folder / "validation" / "0004886b7d043cfd.jpg"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=f"{path}: cannot be decoded"):
        taken(load(folder).val)


def test_a_folder_that_is_another_or_not_there_is_named(tmp_path, worded, refused):
    refused(tmp_path)
    refused(tmp_path / "none")
    with worded.error(DataError):
        load_data(JOB, None)


# what is trained and measured

def test_the_loss_is_the_sum_over_the_classes_that_count():
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(12, 7)).double(), torch.randint(256, (4, 3, 2, 2)).byte()
    logits = model(open_images.prepare(images, torch.float64))
    targets = torch.tensor([[1, 0, -1, 0, 1, -1, 0]] * 4, dtype=torch.int8)
    total, count = JOB.loss(model, (images, targets))
    slow = 0.0
    for row, wanted in zip(logits.tolist(), targets.tolist()):
        for logit, target in zip(row, wanted):
            share = 1 / (1 + np.exp(-logit))
            slow -= 0 if target < 0 else np.log(share if target else 1 - share)
    assert total.item() == pytest.approx(slow, rel=1e-12) and count == 4


def test_the_measures_of_a_split_are_those_of_a_slow_loop_at_any_worker_count(published):
    from sklearn.metrics import average_precision_score
    data = load(published, negatives="verified")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 3))
    scores, shown, losses = [], [], []
    for i in range(len(data.val)):
        images, targets = data.val.take(Visits(np.array([i]), np.zeros(1, np.int64)))
        losses.append(JOB.loss(model, (images, targets))[0].item())
        for logit, target in zip(model(open_images.prepare(images, torch.float32))[0].tolist(), targets[0].tolist()):
            if target >= 0:
                scores.append(np.floor(logit * 256))
                shown.append(target)

    def measured(worker):
        return Evaluator(JOB, {"val": data.val}, 2, worker, torch.device("cpu"))(model, ("val",))
    alone = measured(SingleWorker())
    assert all(found == alone for workers in (2, 3) for found in on_each(workers, measured))
    assert alone == {"val/cross_entropy": pytest.approx(np.mean(losses), rel=1e-6),
                     "val/average_precision": pytest.approx(average_precision_score(shown, scores), rel=1e-12)}
