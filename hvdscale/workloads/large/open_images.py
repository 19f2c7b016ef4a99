"""Open Images v4, image-level labels: photographs, each labelled with several of 7,186 classes.

    hvdscale-train open_images_v4/resnet_50 --data-dir DIR              laid out as in readers.open_images

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
"""

import hashlib
from collections.abc import Callable
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
from ..models.resnet import ImageNetResNet
from ..pixels import meta_images
from .imagenet import SIDE, prepare
from .readers.images import centre_crop, pillow, random_crop
from .readers.open_images import Images, Labels, among, find_images, find_labels, read_classes, read_labels

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


class MultiLabel(Classification):
    """Images with any number of classes each: batches of images, uint8 (n, 3, h, w), and targets, int8 (n, classes): 1
    if the image shows the class, 0 if not, -1 if ignored."""

    metrics = {"cross_entropy": "min", "average_precision": "max"}
    summarized = ("average_precision",)
    parts = {"score_counts": COUNTS}
    check_label_smoothing = Workload.check_label_smoothing

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, int]:
        """Sum over examples and classes of the sigmoid cross-entropy; the number of examples."""
        images, targets = batch
        logits = self._logits(model, images)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))        # thousands of terms are summed
        return sigmoid_cross_entropy(logits, targets), len(targets)

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor, int] | Tensor]:
        images, targets = batch
        logits = self._logits(model, images).double()
        return {"cross_entropy": (sigmoid_cross_entropy(logits, targets), len(targets)),
                "score_counts": score_counts(logits, targets)}

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
