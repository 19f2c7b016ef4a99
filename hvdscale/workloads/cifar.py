"""CIFAR-10 and CIFAR-100 from their binary versions: 45,000 training, 5,000 validation and 10,000 test images of 32x32.

    hvdscale-train cifar_10/resnet_8 --data-dir DIR                     DIR or its cifar-10-batches-bin has the files
    hvdscale-train cifar_100/alexnet --data-dir DIR --data-arg labels=coarse

The files may be plain, gzip, xz, or still in the published tar archive. The validation set is the last 5,000 of the
published 50,000 training images, as in google/init2winit (by authors of Shallue et al. 2019). With --allow-missing and
missing training files, it is the last 5,000 of those present.

Established from google/init2winit: the sizes of the splits, the means and deviations for standardization, zero padding
by 4, random crops and flips. Whether Shallue et al. 2019 did the same could not be verified.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, UsageError
from ..plan.values import check_value, none_of
from ..workload import Card, Classification, Data, Split
from .files import Found, collect, describe_folder, verify
from .models.plain import AlexNet
from .models.resnet import CIFAR_MODELS, CifarResNet
from .pixels import meta_images, pad_crop_flip, standardised

VALIDATION = 5000
# a record: a label byte, or in CIFAR-100 the coarse and the fine one; then 1,024 bytes each of red, green and blue, row
# by row (https://www.cs.toronto.edu/~kriz/cifar.html)
CHANNELS, SIDE = 3, 32


@dataclass(frozen=True)
class Layout:
    """How a data set is published; pickled: files and folders of the Python version, which is not read."""

    title: str
    folder: str
    archive: str
    classes: tuple[int, ...]
    train: tuple[str, ...]
    train_records: int
    test: str
    pickled: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_records: int = 10000


LAYOUTS = {
    "cifar_10": Layout(
        "CIFAR-10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", (10,),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)), 10000, "test_batch.bin",
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", *(f"data_batch_{number}" for number in range(1, 6))),
        (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar_100": Layout(
        "CIFAR-100", "cifar-100-binary", "cifar-100-binary.tar.gz", (20, 100), ("train.bin",), 50000, "test.bin",
        ("cifar-100-python", "cifar-100-python.tar.gz", "train", "test"),
        (129.3041658, 124.06996185, 112.4340492), (68.17024395, 65.3918073, 70.41836985))}
LABELS = ("coarse", "fine")                     # the label bytes of CIFAR-100

MODELS = {dataset: (*CIFAR_MODELS, "alexnet") for dataset in LAYOUTS}
DEFAULTS = dict(local_batch=64, base_batch=64, optimizer="nesterov", momentum=0.9, lr_rule="linear", max_lr_factor=8.0,
                warmup_epochs=1.0, epochs=30.0, eval_every_epochs=0.25, eval_splits="val")
LR = {"resnet_8": 0.03, "resnet_20": 0.05, "resnet_32": 0.05, "alexnet": 0.01}
# 0.3 of resnet_8 on CIFAR-10 is Shallue et al.'s goal; the others are chosen to be within reach of a constant rate
TARGETS = {"cifar_10": {"resnet_8": 0.3, "resnet_20": 0.2, "resnet_32": 0.2, "alexnet": 0.3},
           "cifar_100": {"resnet_8": 0.65, "resnet_20": 0.55, "resnet_32": 0.55, "alexnet": 0.7}}


def workload(dataset: str, model: str) -> Classification:
    """A residual network or the reduced AlexNet."""
    layout = LAYOUTS[dataset]
    build = AlexNet if model == "alexnet" else partial(CifarResNet, **CIFAR_MODELS[model])
    defaults = {**DEFAULTS, "lr": LR[model], "target": f"val/error<{TARGETS[dataset][model]:g}"}
    many, load = len(layout.classes) > 1, {"cifar_10": load_cifar_10, "cifar_100": load_cifar_100}[dataset]
    meta_batch = partial(meta_images, CHANNELS, SIDE)
    card = Card(45000, VALIDATION, meta_batch, {"classes": layout.classes[-1]} if many else {})
    return Classification(dataset, model, None if many else layout.classes[0], load, build,
                          partial(standardised, layout.mean, layout.std), defaults, card)


def load_cifar_10(data_dir: str | None, allow_missing: bool = False, augment: bool = True) -> Data:
    """The three splits; raises DataError naming the file that is missing or invalid.

    allow_missing  train on the files that are present
    augment        pad, crop and mirror training images (pixels.pad_crop_flip)
    """
    return _load("cifar_10", data_dir, allow_missing, augment, 0)


def load_cifar_100(data_dir: str | None, allow_missing: bool = False, augment: bool = True,
                   labels: str = "fine") -> Data:
    """Like load_cifar_10; labels: "fine" (100 classes) or "coarse" (20)."""
    if labels not in LABELS:
        raise UsageError(f"data_args.labels = {none_of(labels, LABELS)}")
    return _load("cifar_100", data_dir, allow_missing, augment, LABELS.index(labels))


def _load(dataset: str, data_dir: str | None, allow_missing: bool, augment: bool, label: int) -> Data:
    layout = LAYOUTS[dataset]
    check_value("data_args.augment", augment, bool)
    if data_dir is None:
        raise DataError(f"{dataset} needs --data-dir DIR with {layout.train[0]} and the others of {layout.title}'s "
                        f"binary version, plain, gzip or xz, or with {layout.archive}")
    folder, names = Path(data_dir), (*layout.train, layout.test)
    found = collect(folder, names, (layout.folder,), (layout.archive, layout.archive.removesuffix(".gz")))
    missing = [name for name in names if name not in found]
    if not any(name in found for name in layout.train):
        if pickled := [name for name in layout.pickled if (folder / name).exists()]:
            raise DataError(f"{folder / pickled[0]}: is of {layout.title}'s Python version, which is not read, since a "
                            f"pickle can run any code; fetch the binary version, {layout.archive}")
        raise DataError(f"{folder}: has no {layout.train[0]} or other training file of {layout.title}'s binary "
                        f"version, here or in {layout.folder} or {layout.archive}; {describe_folder(folder)}")
    if missing and not allow_missing:
        raise DataError(f"{folder}: lacks {', '.join(missing)} of {layout.title}; `hvdscale-data fetch` brings it, or "
                        "train on what is there with --allow-missing")
    images, labels = _read(layout, [found[name] for name in layout.train if name in found], layout.train_records, label)
    train = Split(images[:-VALIDATION], labels[:-VALIDATION], augment=pad_crop_flip if augment else None)
    val = Split(images[-VALIDATION:], labels[-VALIDATION:])
    test = Split(*_read(layout, [found[layout.test]], layout.test_records, label)) if layout.test in found else None
    model_args = {"classes": layout.classes[label]} if len(layout.classes) > 1 else {}
    record, notes = verify(found, dataset, missing, "sha1")
    return Data(train, val, test, model_args=model_args, record=record, notes=notes)


def _read(layout: Layout, files: list[Found], records: int, label: int) -> tuple[Tensor, Tensor]:
    images, labels = zip(*(read_records(file, layout.classes, records) for file in files))
    labels = np.concatenate(labels)[:, label].astype(np.int64)
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(labels)


def read_records(file: Found, classes: tuple[int, ...], records: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (records, 3, 32, 32), and labels, uint8 (records, label bytes): views of the file's bytes. Raises
    DataError for another number of records, or for a label that is none of its byte's ``classes``."""
    length = len(classes) + CHANNELS * SIDE * SIDE
    whole, rest = divmod(len(file.content), length)
    if (whole, rest) != (records, 0):
        more = f" and {rest} bytes" if rest else ""
        raise DataError(f"{file.where}: has {len(file.content)} bytes, {whole} records of {length} bytes{more}, not "
                        f"the {records * length} of {records} records; it is cut off, damaged or another data set's, "
                        "fetch it again")
    table = np.frombuffer(file.content, np.uint8).reshape(records, length)
    labels = table[:, :len(classes)]
    for column, count in enumerate(classes):
        if (bad := labels[:, column] >= count).any():
            at = int(bad.argmax())
            raise DataError(f"{file.where}: record {at} has label {labels[at, column]}, byte {at * length + column} of "
                            f"the file, which is not one of 0 .. {count - 1}; it is damaged or another data set's")
    return table[:, len(classes):].reshape(-1, CHANNELS, SIDE, SIDE), labels
