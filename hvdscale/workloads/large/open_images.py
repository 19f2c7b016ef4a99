"""Open Images v4, image-level labels: photographs, each labelled with several of 7,186 classes.

    hvdscale-train open_images_v4/resnet_50 --data-dir DIR              laid out as below

train, val and test are the images of the published parts with at least one trainable label, sorted by name; other image
files are not used. Data arguments:

    side       pixels of the square input [224]
    negatives  all: classes without a label count as absent; verified: only those that a person rejected do, and
               classes without a label are ignored [all]
    machine    lowest confidence at which a machine label counts as positive in train, unless a person judged the
               pair; without it machine labels are not read

A pair of image and class judged both ways is positive. The Common Visual Data Foundation hosts only the images with
boxes, 1,743,042 of the training set; --allow-missing trains on these, also without the test part.

The loss of an example is the sum over classes of the sigmoid cross-entropy, in nats. average_precision ranks all pairs
of image and class together, except ignored ones, by decreasing score (micro average). It is the mean of the precision
at the score of each positive pair, the share of positives among pairs with at least that score: scikit-learn's
``average_precision_score``. A score is a logit rounded down to 1/256 and clipped to -16 .. 16, so that histograms add
up over workers: on 7 million random pairs, 0.25 % of them positive, the result was 0.5658 instead of 0.5661.

Established from the data set's README: 9,011,219, 41,620 and 125,436 images; 13,444,569 positive human labels in train;
7,186 classes, those with at least 100 positive labels. From the published measurements of Shallue et al. 2019: the goal
of 0.31 average precision. From memory of their appendix: only images with a positive trainable label (4,526,492, 41,225
and 124,293); human positives against all other classes as negatives. The goal supports this: two thirds of the judged
validation pairs are positive, so a random ranking of them alone would score 0.66. Not established: whether they ranked
all pairs together or by class, the sum or mean of the loss over classes, augmentation and learning rate; the defaults
here are not tuned.

The files of version 4 (storage.googleapis.com/openimages/2018_04) are in one folder, or those of each part in train/,
validation/ and test/, as published:

    class-descriptions.csv                      label name and description: /m/0k4j,Car
    classes-trainable.txt                       one label name per line
    train-annotations-human-imagelabels.csv     ImageID,Source,LabelName,Confidence, then 27,894,289 lines
    train-annotations-machine-imagelabels.csv   the same format, 78,977,695 lines

An image's name is 16 hexadecimal digits. Confidence is 1 if a person confirmed the label and 0 if a person rejected it;
for machine labels it is a fraction. Established from the data set's README and the tensorflow-datasets loader; not
established: that no pair of image and label occurs twice.
"""
from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import DataError, UsageError
from ...formatting.numbers import counted
from ...plan.values import check_value, none_of
from ...workload import Card, Classification, Data, MapSplit, Workload
from ..files import opened, reading
from ..models.resnet import ImageNetResNet
from ..pixels import meta_images
from .imagenet import SIDE, prepare
from .readers.images import centre_crop, pillow, random_crop

MODELS = {"open_images_v4": ("resnet_50",)}
CLASSES, TRAIN, VALIDATION = 7186, 4_526_492, 41_225
PARTS = ("train", "validation", "test")
NEGATIVES = {"all": 0, "verified": -1}          # the target of a class without a label
FINENESS, LARGEST = 256, 16                     # score levels per unit of logit; bound of the scores
LEVELS = 2 * LARGEST * FINENESS
COUNTS = 2 * LEVELS

DEFAULTS = dict(local_batch=32, base_batch=256, optimizer="nesterov", momentum=0.9, lr=0.1, lr_rule="linear",
                warmup_epochs=1.0, decay="linear", epochs=20.0, eval_every_epochs=0.1, eval_splits="val",
                loader_workers=2, target="val/average_precision>0.31")
HEADER, DESCRIPTION_HEADER = b"ImageID,Source,LabelName,Confidence", b"LabelName,DisplayName"
MOST_CLASSES = 2**16
CHUNK = 1 << 20                 # bytes parsed at once
NEWLINE = b"\n"
IMAGE_FILE = re.compile(r"([0-9a-f]{16})\.jpg")


def _fields(source: bytes, sources: str, confidence: bytes, which: str) -> tuple[tuple[bytes, str], ...]:
    """The pattern of each field of a line, and what is wrong with one that does not match."""
    return ((rb"([0-9a-f]{16})", "the image's name is not 16 hexadecimal digits, 0-9 and a-f"),
            (source, f"the source is not {sources}; is it another of the data set's files?"),
            (rb"([^,\n]*)", ""), (confidence, f"the confidence {which}"))


FIELDS = {"human": _fields(rb"(?:crowdsource-)?verification", "verification or crowdsource-verification",
                           rb"([01](?:\.0+)?)", "of a label by people is not 0 or 1"),
          "machine": _fields(rb"machine", "machine", rb"(0(?:\.\d+)?|1(?:\.0+)?)", "is not a number of 0 .. 1")}
LINES = {kind: re.compile(rb"^" + b",".join(pattern for pattern, _ in fields) + rb"$", re.MULTILINE)
         for kind, fields in FIELDS.items()}


@dataclass(frozen=True)
class Labels:
    """Labels of trainable classes by image; those of image i are at starts[i] .. starts[i+1]-1."""

    images: np.ndarray          # (m,) uint64, increasing: the names as numbers
    starts: np.ndarray          # (m + 1,) int64
    classes: np.ndarray         # (k,) uint16
    positive: np.ndarray        # (k,) bool: whether the image shows the class

    def only(self, images: np.ndarray, positive: bool = False) -> Labels:
        rows = np.repeat(images, np.diff(self.starts))
        if positive:
            rows &= self.positive
        counts = self.counts(rows)
        left = counts > 0
        return Labels(self.images[left], _starts(counts[left]), self.classes[rows], self.positive[rows])

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """The number of selected rows, (k,) bool, of each image: (m,); every image has a row."""
        return np.diff(np.cumsum(rows, dtype=np.uint32)[self.starts[1:] - 1], prepend=np.uint32(0))

    def of(self, image: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """One image's classes, and whether each is positive; empty if it has no labels."""
        at = int(np.searchsorted(self.images, image))
        part = slice(*self.starts[at:at + 2]) if at < len(self.images) and self.images[at] == image else slice(0)
        return self.classes[part], self.positive[part]


@dataclass(frozen=True)
class Images:
    """Image files: names (m,) uint64, increasing, and the index of each one's folder, (m,) uint16."""

    names: np.ndarray
    where: np.ndarray
    folders: tuple[Path, ...]

    def path(self, index: int) -> Path:
        return self.folders[self.where[index]] / f"{self.names[index]:016x}.jpg"

    def only(self, images: np.ndarray) -> Images:
        at = np.searchsorted(self.names, images)
        return Images(self.names[at], self.where[at], self.folders)


def among(names: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Whether each of the images, (n,), is in ``names``, which increase: (n,) bool."""
    if len(names) == 0:
        return np.zeros(len(images), bool)
    at = np.searchsorted(names, images)
    return names[np.minimum(at, len(names) - 1, out=at)] == images


def find_labels(folder: Path, part: str, kind: str) -> Path:
    return _find(folder, f"{part}-annotations-{kind}-imagelabels.csv", [folder, folder / part])


def _find(folder: Path, name: str, places: list[Path]) -> Path:
    for place in places:
        for candidate in (place / name, place / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    beside = f", nor has {places[1].name}/" if len(places) > 1 else ""
    missing = "" if folder.is_dir() else "; there is no such folder"
    raise DataError(f"{folder}: has no {name} or {name}.gz{beside}{missing}")


def read_classes(folder: Path) -> dict[bytes, int]:
    """The class of each described label name: its index in classes-trainable.txt, -1 where it is not trainable."""
    described = _read_names(_find(folder, "class-descriptions.csv", [folder]), DESCRIPTION_HEADER)
    path = _find(folder, "classes-trainable.txt", [folder])
    trained = _read_names(path, None)
    for name, line in trained.items():
        if name not in described:
            raise DataError(f"{path}: line {line}: {_quote(name)} is not a label name of class-descriptions.csv; are "
                            "the files of one version?")
    if len(trained) > MOST_CLASSES:
        raise DataError(f"{path}: has {len(trained)} classes; at most {MOST_CLASSES} can be trained")
    return {**dict.fromkeys(described, -1), **{name: number for number, name in enumerate(trained)}}


def _read_names(path: Path, header: bytes | None) -> dict[bytes, int]:
    names: dict[bytes, int] = {}
    for number, text in enumerate(b"".join(text for _, text in _chunks(path)).splitlines(), 1):
        if number == 1 and text == header:
            continue
        name = text.partition(b",")[0] if header else text
        if not re.fullmatch(rb"/[!-+\--~]+", name):
            raise DataError(f"{path}: line {number}: {_quote(text)} does not begin with a label name such as /m/0k4j")
        if name in names:
            raise DataError(f"{path}: line {number}: {_quote(name)} is already in line {names[name]}")
        names[name] = number
    if not names:
        raise DataError(f"{path}: has no label names; fetch it again")
    return names


def read_labels(path: Path, classes: Mapping[bytes, int], least: float | None = None) -> Labels:
    """The labels of trainable classes in a file; raises DataError naming file and line.

    least  None: labels by people, 0 or 1. Else machine labels: positive from this confidence on, otherwise ignored
    """
    kind = "human" if least is None else "machine"
    columns = [array(code) for code in "QHB"]           # image, class, positive: arrays that grow in place
    seen = False
    for first, text in _chunks(path):
        if first == 1:
            header, _, text = text.partition(b"\n")
            if header != HEADER:
                raise DataError(f"{path}: line 1: the header is {_quote(header)}, not {HEADER.decode()}; is it another "
                                "of the data set's files?")
            first = 2
        if not text:
            continue
        images, numbers, confidence = _parse(path, first, text, kind, classes)
        seen = True
        rows = numbers >= 0 if least is None else (numbers >= 0) & (confidence >= least)
        for column, values in zip(columns, (images, numbers, confidence >= (least or 1.0))):
            column.frombytes(values[rows].astype(column.typecode).tobytes())
    if not seen:
        raise DataError(f"{path}: has no labels, nothing after its header; fetch it again")
    images, numbers, positive = (np.frombuffer(column, column.typecode) for column in columns)
    if (images[1:] < images[:-1]).any():            # the published files are sorted
        order = np.argsort(images, kind="stable")
        images, numbers, positive = images[order], numbers[order], positive[order]
    images, counts = np.unique(images, return_counts=True)
    return Labels(images, _starts(counts), numbers, positive.view(bool))


def _starts(counts: np.ndarray) -> np.ndarray:
    """The starts of runs of these lengths, and the end of the last: (m + 1,) int64."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _parse(path: Path, first: int, text: bytes, kind: str,
           classes: Mapping[bytes, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each line's image (uint64), class or -1 (int32) and confidence (float64), of whole lines from this number on."""
    def refuse(line: int, why: str) -> None:
        raise DataError(f"{path}: line {first + line}: {_quote(text.split(NEWLINE)[line])}: {why}")

    found = LINES[kind].findall(text)
    if len(found) < text.count(NEWLINE):
        wrong, line = next((at, line) for at, line in enumerate(text.split(NEWLINE)) if not LINES[kind].fullmatch(line))
        fields = line.split(b",")
        if len(fields) != len(FIELDS[kind]):
            refuse(wrong, f"has not the four fields {HEADER.decode()}")
        refuse(wrong, next(why for field, (pattern, why) in zip(fields, FIELDS[kind])
                           if not re.fullmatch(pattern, field)))
    images, names, confidence = zip(*found)
    numbers = [classes.get(name) for name in names]
    if None in numbers:
        refuse(numbers.index(None), "the label name is not one of class-descriptions.csv")
    return (np.frombuffer(bytes.fromhex(b"".join(images).decode()), ">u8").astype(np.uint64),
            np.array(numbers, np.int32), np.array(confidence).astype(float))


def _quote(text: bytes) -> str:
    return f"'{repr(text[:80])[2:-1]}{'...' if len(text) > 80 else ''}'"


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in chunks of whole lines, each with its first line number; DataError if it ends within a line."""
    rest, line = b"", 1
    with opened(path) as (_, file):
        while piece := file.read(CHUNK):
            whole, newline, rest = (rest + piece).rpartition(NEWLINE)
            if not newline and len(rest) > CHUNK:
                raise DataError(f"{path}: line {line} does not end within {CHUNK} bytes; it is not a text file")
            if whole or newline:
                text = (whole + newline).replace(b"\r\n", NEWLINE)
                yield line, text
                line += text.count(NEWLINE)
    if rest:
        raise DataError(f"{path}: line {line}: {_quote(rest)}: the file ends within a line; it is truncated, fetch it "
                        "again (or, if it is whole, end its last line)")
    if line == 1:
        raise DataError(f"{path}: is empty; fetch it again")


def find_images(folder: Path, part: str) -> Images:
    """The image files of a part: in its folder, in folders below it, or in train_0, train_1, ... beside it."""
    found: list[tuple[Path, np.ndarray]] = []
    for place in [folder / part, *sorted(folder.glob(f"{part}_*"))]:
        if place.is_dir():
            found += _scan(place, 1)
    if not found:
        raise DataError(f"{folder}: has no images in {part}/, such as {part}/000026e7ee790996.jpg")
    names = np.concatenate([names for _, names in found])
    where = np.repeat(np.arange(len(found), dtype=np.uint16), [len(names) for _, names in found])
    names, first = np.unique(names, return_index=True)
    return Images(names, where[first], tuple(place for place, _ in found))


def _scan(place: Path, depth: int) -> list[tuple[Path, np.ndarray]]:
    """Folders with images and their names, down to this depth."""
    within = []

    def numbers() -> Iterator[int]:
        with os.scandir(place) as entries:
            for entry in entries:
                if match := IMAGE_FILE.fullmatch(entry.name):
                    yield int(match[1], 16)
                elif depth and entry.is_dir():
                    within.append(Path(entry.path))
    with reading(place):
        names = np.fromiter(numbers(), np.uint64)
    deeper = [found for folder in sorted(within) for found in _scan(folder, depth - 1)]
    return [(place, names), *deeper] if len(names) else deeper


class MultiLabel(Classification):
    """Images with any number of classes each: batches of images, uint8 (n, 3, h, w), and targets, int8 (n, classes): 1
    if the image shows the class, 0 if not, -1 if ignored."""

    metrics = {"cross_entropy": "min", "average_precision": "max"}
    summarized = ("average_precision",)
    parts = {"score_counts": COUNTS}
    check_label_smoothing = Workload.check_label_smoothing

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, int]:
        """Sum over examples and classes of the sigmoid cross-entropy; the number of examples."""
        logits, targets = self._logits(model, batch)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))        # thousands of terms are summed
        return sigmoid_cross_entropy(logits, targets), len(targets)

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor, int] | Tensor]:
        logits, targets = self._logits(model, batch)
        scores = logits.double()
        return {"cross_entropy": (sigmoid_cross_entropy(scores, targets), len(targets)),
                "score_counts": score_counts(scores, targets)}

    def summarize(self, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
        return {"average_precision": average_precision(parts["score_counts"])}


def workload(dataset: str, model: str) -> MultiLabel:
    card = Card(TRAIN, VALIDATION, lambda: (
        meta_images(3, SIDE).inputs, torch.empty(1, CLASSES, dtype=torch.int8, device="meta")), {"classes": CLASSES})
    return MultiLabel(dataset, model, None, load, ImageNetResNet, prepare, DEFAULTS, card)


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross-entropy, in nats, of a sigmoid for each logit; targets of -1 count nothing."""
    return functional.binary_cross_entropy_with_logits(logits, (targets > 0).to(logits.dtype),
                                                       (targets >= 0).to(logits.dtype), reduction="sum")


def load(data_dir: str | None, side: int = SIDE, negatives: str = "all", machine: float | None = None,
         allow_missing: bool = False) -> Data:
    """The three splits; raises DataError naming file and line that are wrong, UsageError for a data argument."""
    check_value("data_args.side", side, int, least=1)
    if negatives not in NEGATIVES:
        raise UsageError(f"data_args.negatives = {none_of(negatives, NEGATIVES)}")
    if machine is not None and check_value("data_args.machine", machine, float, above=0) > 1:
        raise UsageError(f"data_args.machine = {machine!r} must be at most 1, as a confidence is")
    if data_dir is None:
        raise DataError("open_images_v4 needs --data-dir DIR with class-descriptions.csv, classes-trainable.txt, "
                        "train-annotations-human-imagelabels.csv and those of validation and test, and the images in "
                        "train/, validation/ and test/")
    pillow()
    folder = Path(data_dir)
    classes = read_classes(folder)
    count = 1 + max(classes.values())
    splits, digest = {}, hashlib.sha256()
    record: dict = {"missing": [], "without_positive": [], "unused_files": []}
    for part in PARTS:
        try:
            judged, files = find_labels(folder, part, "human"), find_images(folder, part)
        except DataError:
            if part != "test" or not allow_missing:
                raise
            record["missing"].append(part)
            continue
        human, guessed = read_labels(judged, classes), None
        if machine is not None and part == "train":
            guessed = read_labels(find_labels(folder, part, "machine"), classes, machine)
        images, labels, counts = _labelled(folder / part, files, human, guessed, allow_missing, negatives == "verified")
        for name, number in counts.items():
            record[name] += [f"{counted(number, 'image')} of {part}"] if number else []
        splits[part] = LabelledImages(images, *labels, count, NEGATIVES[negatives], centre_crop, side)
        digest.update(images.names)
        for known in filter(None, labels):
            for values in (known.images, known.starts, known.classes, known.positive):
                digest.update(values)
    train = MapSplit(replace(splits["train"], crop=random_crop))
    train_eval, val, test = (MapSplit(splits[part]) if part in splits else None for part in PARTS)
    notes = [f"trains without {', '.join(record['missing'])} (--allow-missing)"] if record["missing"] else []
    record = {**{name: found for name, found in record.items() if found}, "examples_sha256": digest.hexdigest()[:16]}
    return Data(train, val, test, train_eval, {"classes": count}, record, tuple(notes))


def _labelled(place: Path, files: Images, human: Labels, machine: Labels | None, allow_missing: bool,
              verified: bool) -> tuple[Images, tuple[Labels, Labels | None], dict[str, int]]:
    """The part's labelled images that have files, their labels, and the counts for the record."""
    wanted = human.images[human.counts(human.positive) > 0]
    if machine is not None:
        wanted = np.union1d(wanted, machine.images)
    left_out = int((~among(wanted, human.images)).sum())
    has_file = among(files.names, wanted)
    found, missing = wanted[has_file], int((~has_file).sum())
    if len(found) == 0:
        raise DataError(f"{place}: none of its {len(files.names)} images has a label of a trainable class; are "
                        "the files of one version?")
    if missing and not allow_missing:
        raise DataError(f"{place}: has no file of {missing} of {len(wanted)} labelled images, the first "
                        f"{wanted[~has_file][0]:016x}.jpg; fetch what is missing, or train on what is there with "
                        "--allow-missing")
    # negative human labels matter only if verified negatives count, or to overrule machine labels
    labels = (human.only(among(found, human.images), positive=not verified and machine is None),
              machine and machine.only(among(found, machine.images)))
    counts = {"missing": missing, "without_positive": left_out, "unused_files": len(files.names) - len(found)}
    return files.only(found), labels, counts


@dataclass(frozen=True)
class LabelledImages:
    """A map-style data set of pixels, uint8 (3, side, side), and targets, int8 (classes,)."""

    images: Images
    human: Labels
    machine: Labels | None      # for pairs that no person judged, all positive
    classes: int
    others: int                 # the target of a class without a label
    crop: Callable[[Path, int], Tensor]
    side: int

    def __len__(self) -> int:
        return len(self.images.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.crop(self.images.path(index), self.side), torch.from_numpy(self.targets(index))

    def targets(self, index: int) -> np.ndarray:
        """1 if the image shows the class, 0 if not, -1 if ignored: int8, (classes,)."""
        name, targets = self.images.names[index], np.full(self.classes, self.others, np.int8)
        judged, positive = self.human.of(name)
        if self.machine is not None:
            targets[self.machine.of(name)[0]] = 1
        targets[judged[~positive]] = 0
        targets[judged[positive]] = 1           # last: a pair judged both ways is positive
        return targets


def score_counts(logits: Tensor, targets: Tensor) -> Tensor:
    """Histograms of the scores, from the lowest: of the positive pairs, then of all but ignored pairs; (COUNTS,)
    float64, all NaN if any logit is NaN."""
    counts = torch.full((COUNTS,), torch.nan, dtype=torch.float64)
    if not logits.isnan().any():
        levels = ((logits.double() + LARGEST) * FINENESS).floor_().clamp_(0, LEVELS - 1).long()
        for half, pairs in zip(counts.view(2, LEVELS), (targets > 0, targets >= 0)):
            half[:] = torch.bincount(levels[pairs], minlength=LEVELS)
    return counts


def average_precision(counts: np.ndarray) -> float:
    """Average precision from the summed counts, (COUNTS,); NaN if no pair is positive or a count is NaN."""
    positives, pairs = counts.reshape(2, LEVELS)[:, ::-1]
    above, ranks = positives.cumsum(), pairs.cumsum()
    if not above[-1] > 0:
        return float("nan")
    met = positives > 0
    return float((positives[met] * above[met] / ranks[met]).sum() / above[-1])
