"""MNIST and Fashion-MNIST, from their four IDX files: 55,000 training, 5,000 validation, 10,000 test images of 28x28.

    hvdscale-train mnist/simple_cnn --data-dir DIR
    hvdscale-train mnist/simple_cnn --data-dir DIR --train-subset 13750         Shallue et al.'s mnist_13750

The files may be plain, gzip or xz. The validation set is the last 5,000 of the published 60,000 training images: the
names of Shallue et al.'s subsets show a training set of 55,000. Which examples their subsets have is not known; here
they are the first. The checksums are of the unpacked files, as many public repositories have them.
"""
from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..workload import Batch, Card, Classification, Data, Split
from .models.cnn import WIDTHS, SimpleCNN
from .models.fc import FullyConnected, parse_widths
from .readers.files import Found, check_digests, collect, holding, said_of
from .readers.idx import read_idx

MODELS = dict.fromkeys(("mnist", "fashion_mnist"), (
    "simple_cnn", "simple_cnn_narrow", "simple_cnn_base", "simple_cnn_wide", "fc_WIDTH[_WIDTH...]"))
CLASSES, SIDE = 10, 28
VALIDATION = 5000
PARTS = ("train", "t10k")
SUBFOLDERS = {"mnist": ("mnist", "MNIST/raw"), "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw")}
MD5 = {
    "mnist": {"train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
              "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
              "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
              "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637"},
    "fashion_mnist": {"train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                      "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
                      "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
                      "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965"},
}

DEFAULTS = dict(local_batch=32, base_batch=32, optimizer="nesterov", momentum=0.9, lr_rule="linear", max_lr_factor=16.0,
                warmup_epochs=0.25, epochs=10.0, eval_every_epochs=0.05, eval_splits="val")
TARGETS = {("mnist", "fc"): "val/error<0.03", ("mnist", "cnn"): "val/error<0.01",
           ("fashion_mnist", "fc"): "val/error<0.15", ("fashion_mnist", "cnn"): "val/error<0.1"}


def workload(dataset: str, model: str) -> Classification | None:
    """A Simple CNN in one of its widths, or a fully connected network of any; None for another name."""
    family, _, width = model.rpartition("_") if model != "simple_cnn" else ("simple_cnn", "", "base")
    if family == "simple_cnn" and width in WIDTHS:
        return _workload(dataset, model, "cnn", partial(SimpleCNN, width), 0.01)
    widths = parse_widths(model)
    return widths and _workload(dataset, model, "fc", partial(FullyConnected, SIDE * SIDE, widths, CLASSES), 0.02)


def _workload(dataset, model, family, build, lr) -> Classification:
    defaults = {**DEFAULTS, "lr": lr, "target": TARGETS[dataset, family]}
    return Classification(dataset, model, CLASSES, partial(load, dataset), build, prepare, defaults, CARD)


def _example() -> Batch:
    return Batch(torch.empty(1, 1, SIDE, SIDE, dtype=torch.uint8, device="meta"),
                 torch.empty(1, dtype=torch.int64, device="meta"))


CARD = Card(60000 - VALIDATION, VALIDATION, _example)


def load(dataset: str, data_dir: str | None, allow_missing: bool = False) -> Data:
    """The three splits; raises DataError naming the folder or file that is missing or not what it should be.

    allow_missing  accept missing test files
    """
    if data_dir is None:
        raise DataError(f"{dataset} needs --data-dir DIR with its four IDX files (train-images-idx3-ubyte and the "
                        "others, plain, gzip or xz)")
    folder = Path(data_dir)
    found = _collect(dataset, folder)
    missing = [name for part in PARTS for name in _names(part) if name not in found]
    _refuse_missing(folder, missing, allow_missing)
    images, labels = _pair(found, "train")
    if len(labels) <= VALIDATION:
        raise DataError(f"{data_dir}: has {len(labels)} training examples, of which {VALIDATION} are for "
                        "validation; none are left")
    train, val = (Split(images[part], labels[part]) for part in (slice(-VALIDATION), slice(-VALIDATION, None)))
    test = None if missing else Split(*_pair(found, "t10k"))
    record, notes = said_of(check_digests(found, MD5, dataset, "md5"), MD5[dataset], missing, "md5")
    return Data(train, val, test, record=record, notes=notes)


def _names(part: str) -> tuple[str, str]:
    """The files of a part: images and labels."""
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _collect(dataset: str, folder: Path) -> dict[str, Found]:
    """The files that there are, by name; a dot before idx, as some copies have it, is as good as a hyphen."""
    names = [name for part in PARTS for name in _names(part)]
    dotted = [name.replace("-idx", ".idx") for name in names]
    found = collect(folder, [*names, *dotted], SUBFOLDERS[dataset])
    return {name: found.get(name) or found[other] for name, other in zip(names, dotted) if {name, other} & set(found)}


def _refuse_missing(folder: Path, missing: list[str], allowed: bool) -> None:
    needed = [name for name in missing if name in _names("train")]
    if needed or missing and not allowed:
        name = (needed or missing)[0]
        hint = "" if needed else "; --allow-missing does without the test files"
        raise DataError(f"{folder}: has no {name}, plain, .gz or .xz; {holding(folder)}{hint}")


def _pair(found: dict[str, Found], part: str) -> tuple[Tensor, Tensor]:
    image_file, label_file = (found[name] for name in _names(part))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{image_file.where}: has images of {images.shape[1]}x{images.shape[2]} pixels, not "
                        f"{SIDE}x{SIDE}")
    if len(images) != len(labels):
        raise DataError(f"{image_file.where} has {len(images)} images, but {label_file.where} has {len(labels)} "
                        "labels; they are not of one set")
    if len(labels) and labels.max() >= CLASSES:
        at = int(np.argmax(labels >= CLASSES))
        raise DataError(f"{label_file.where}: label {labels[at]} of example {at} is not one of 0 .. {CLASSES - 1}")
    return torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64))


def prepare(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Grey levels 0..255 to 0..1."""
    return inputs.to(dtype) / 255
