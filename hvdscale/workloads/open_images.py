"""Open Images v4, image-level labels: photographs that each show several of 7,186 classes.

    hvdscale-train open_images_v4/resnet_50 --data-dir DIR              DIR as readers.open_images says

train, val and test are the images of the published parts that show at least one trainable class, by their names in
order; image files without such a label are not used. The data arguments:

    side       pixels of the square that the network sees [224]
    negatives  all: a class that nobody found in an image counts as absent; verified: only those that somebody looked
               for in vain do, and what was not looked for counts nowhere [all]
    machine    least confidence at which a label of the machine's counts as positive in train, where no person judged
               the pair; without it these labels are not read

A pair of image and class that was judged both ways is positive. The images that the Common Visual Data Foundation
hosts, those with boxes, are 1,743,042 of the training set's; with --allow-missing these are trained on.

The loss of an example is the sum over the classes of the sigmoid cross-entropy, in nats. average_precision is that of
all pairs of image and class together (see average_precision.py), of those that ``negatives`` counts.

Established, from the data set's README: sizes of the published parts, 9,011,219, 41,620 and 125,436 images, with
13,444,569 positive labels by people in train; 7,186 classes, those with 100 positive labels or more. From the
measurements that Shallue et al. 2019 published: the goal, 0.31 of average precision. Remembered of their appendix,
which could not be opened: images with a positive trainable label alone, 4,526,492, 41,225 and 124,293 of them; people's
positive labels, every other class negative. The goal agrees with that: of the pairs that people judged in validation
two thirds are positive, so that a random ranking of these alone has an average precision of 0.66. Not established:
whether they ranked all pairs together or class by class, whether their loss is the sum or the mean over the classes,
their augmentation, and the rate that suits; the defaults here are not tuned.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import DataError, UsageError
from ..formatting.numbers import counted
from ..workload import Card, Data, MapSplit, Workload
from .average_precision import COUNTS, average_precision, score_counts
from .imagenet import SIDE, prepare
from .models.resnet import ImageNetResNet
from .readers.images import centre_crop, pillow, random_crop
from .readers.open_images import Images, Labels, among, find_images, find_labels, read_classes, read_labels

MODELS = {"open_images_v4": ("resnet_50",)}
CLASSES, TRAIN, VALIDATION = 7186, 4_526_492, 41_225
PARTS = ("train", "validation", "test")
NEGATIVES = {"all": 0, "verified": -1}          # the target of a class that nobody looked for

DEFAULTS = dict(local_batch=32, base_batch=256, optimizer="nesterov", momentum=0.9, lr=0.1, lr_rule="linear",
                warmup_epochs=1.0, decay="linear", epochs=20.0, eval_every_epochs=0.1, eval_splits="val",
                loader_workers=2, target="val/average_precision>0.31")


def workload(dataset: str, model: str) -> MultiLabel | None:
    """open_images_v4/resnet_50; None for another name."""
    if model not in MODELS.get(dataset, ()):
        return None
    return MultiLabel(dataset, model, load, ImageNetResNet, DEFAULTS,
                      Card(TRAIN, VALIDATION, _meta_batch, {"classes": CLASSES}))


def _meta_batch() -> tuple[Tensor, Tensor]:
    return (torch.empty(1, 3, SIDE, SIDE, dtype=torch.uint8, device="meta"),
            torch.empty(1, CLASSES, dtype=torch.int8, device="meta"))


@dataclass(frozen=True)
class MultiLabel(Workload):
    """Images that each show any number of classes.

    load   data_dir and data arguments -> Data, of batches that unpack as images, uint8 (n, 3, h, w), and targets, int8
           (n, classes): 1 where the image shows the class, 0 where it does not, -1 where that counts nowhere
    build  model arguments -> module from images as ``prepare`` makes them to (n, classes) logits
    """

    dataset: str
    model: str
    load: Callable[..., Data] = field()
    build: Callable[..., nn.Module] = field()
    defaults: Mapping = field(default_factory=dict)
    card: Card | None = None

    metrics = {"cross_entropy": "min", "average_precision": "max"}
    summarized = ("average_precision",)
    parts = {"score_counts": COUNTS}

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, int]:
        """Sum over the batch and the classes that count of the sigmoid cross-entropy; the number of examples."""
        images, targets = batch
        logits = _logits(model, images)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))        # thousands of terms are summed
        return sigmoid_cross_entropy(logits, targets), len(targets)

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor, int] | Tensor]:
        """cross_entropy, as the loss, and how many pairs have each score."""
        images, targets = batch
        logits = _logits(model, images).double()
        return {"cross_entropy": (sigmoid_cross_entropy(logits, targets), len(targets)),
                "score_counts": score_counts(logits, targets)}

    def summarize(self, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
        """average_precision of the whole split."""
        return {"average_precision": average_precision(parts["score_counts"])}


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    return model(prepare(images, next(model.parameters()).dtype))


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross-entropy, in nats, of a sigmoid for each logit; targets of -1 count nothing."""
    return functional.binary_cross_entropy_with_logits(logits, (targets > 0).to(logits.dtype),
                                                       (targets >= 0).to(logits.dtype), reduction="sum")


def load(data_dir: str | None, side: int = SIDE, negatives: str = "all", machine: float | None = None,
         allow_missing: bool = False) -> Data:
    """The three splits; raises DataError naming file and line that are wrong, UsageError for a data argument.

    Data.model_args has the number of classes. The record identifies the data, and says how many labelled images are
    missing, how many were left out since they show no trainable class, and how many image files are not used.

    allow_missing  leave out labelled images without a file; the test part may be missing altogether
    """
    _check_arguments(side, negatives, machine)
    if data_dir is None:
        raise DataError("open_images_v4 needs --data-dir DIR with class-descriptions.csv, classes-trainable.txt, "
                        "train-annotations-human-imagelabels.csv and those of validation and test, and the images in "
                        "train/, validation/ and test/")
    pillow()
    folder = Path(data_dir)
    classes = read_classes(folder)
    splits, digest = {}, hashlib.sha256()
    record: dict = {"missing": [], "without_positive": [], "unused_files": []}
    for part in PARTS:
        if part == "test" and allow_missing and not _is_there(folder, part):
            record["missing"].append(part)
            continue
        human = read_labels(find_labels(folder, part, "human"), classes)
        guessed = None
        if machine is not None and part == "train":
            guessed = read_labels(find_labels(folder, part, "machine"), classes, machine)
        images, labels, counts = _labelled(folder, part, human, guessed, allow_missing, negatives == "verified")
        for name, count in counts.items():
            record[name] += [f"{counted(count, 'image')} of {part}"] if count else []
        splits[part] = LabelledImages(images, *labels, len(classes), NEGATIVES[negatives], centre_crop, side)
        _update(digest, images, labels)
    train = MapSplit(replace(splits["train"], crop=random_crop))
    train_eval, val, test = (MapSplit(splits[part]) if part in splits else None for part in PARTS)
    notes = [f"trains without {', '.join(record['missing'])} (--allow-missing)"] if record["missing"] else []
    record = {**{name: found for name, found in record.items() if found}, "examples_sha256": digest.hexdigest()[:16]}
    return Data(train, val, test, train_eval, {"classes": len(classes)}, record, tuple(notes))


def _check_arguments(side: int, negatives: str, machine: float | None) -> None:
    if isinstance(side, bool) or not isinstance(side, int) or side < 1:
        raise UsageError(f"data_args.side = {side!r} is not a whole number of pixels, 1 or more")
    if negatives not in NEGATIVES:
        raise UsageError(f"data_args.negatives = {negatives!r} is not one of {', '.join(NEGATIVES)}")
    if machine is not None and (isinstance(machine, bool) or not isinstance(machine, (int, float)) or
                                not 0 < machine <= 1):
        raise UsageError(f"data_args.machine = {machine!r} is not a confidence above 0 and up to 1")


def _is_there(folder: Path, part: str) -> bool:
    try:
        find_labels(folder, part, "human")
        find_images(folder, part)
    except DataError:
        return False
    return True


def _labelled(folder: Path, part: str, human: Labels, machine: Labels | None, allow_missing: bool,
              verified: bool) -> tuple[Images, tuple[Labels, Labels | None], dict[str, int]]:
    """The part's labelled images that have files, what labels count of them, and what the record counts."""
    wanted = human.images[human.has_positive()]
    if machine is not None:
        wanted = np.union1d(wanted, machine.images)
    left_out = int((~among(wanted, human.images)).sum())
    files = find_images(folder, part)
    there = among(files.names, wanted)
    found, missing = wanted[there], int((~there).sum())
    if len(found) == 0:
        raise DataError(f"{folder / part}: none of its {len(files.names)} images has a label of a trainable class; are "
                        "the files of one version?")
    if missing and not allow_missing:
        raise DataError(f"{folder / part}: has no file of {missing} of {len(wanted)} labelled images, the first "
                        f"{wanted[~there][0]:016x}.jpg; fetch what is missing, or train on what is there with "
                        "--allow-missing")
    # a person's no matters where it counts as such, or overrules the machine
    labels = (human.only(among(found, human.images), positive=not verified and machine is None),
              machine and machine.only(among(found, machine.images)))
    counts = {"missing": missing, "without_positive": left_out, "unused_files": len(files.names) - len(found)}
    return files.only(found), labels, counts


def _update(digest, images: Images, labels: tuple[Labels | None, ...]) -> None:
    """Update the digest with what identifies images and labels, independent of their paths."""
    digest.update(images.names)
    for known in filter(None, labels):
        for array in (known.images, known.starts, known.classes, known.positive):
            digest.update(array)


@dataclass(frozen=True)
class LabelledImages:
    """A map-style data set: of each image the pixels, uint8 (3, side, side), and the targets, int8 (classes,).

    machine  labels that count where no person judged the pair; all are positive
    others   the target of a class that nobody looked for
    crop     (path, side) -> the pixels
    """

    images: Images
    human: Labels
    machine: Labels | None
    classes: int
    others: int
    crop: Callable[[Path, int], Tensor]
    side: int

    def __len__(self) -> int:
        return len(self.images.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.crop(self.images.path(index), self.side), torch.from_numpy(self.targets(index))

    def targets(self, index: int) -> np.ndarray:
        """1 where the image shows the class, 0 where it does not, -1 where that counts nowhere: int8, (classes,)."""
        name, targets = self.images.names[index], np.full(self.classes, self.others, np.int8)
        judged, positive = self.human.of(name)
        if self.machine is not None:
            targets[self.machine.of(name)[0]] = 1
        targets[judged[~positive]] = 0
        targets[judged[positive]] = 1           # last: a pair that was judged both ways is positive
        return targets
