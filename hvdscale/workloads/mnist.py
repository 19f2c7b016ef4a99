"""MNIST and Fashion-MNIST, from their four IDX files: 55,000 training, 5,000 validation, 10,000 test images of 28x28.

The validation set is the last 5,000 of the published 60,000 training images.
"""
from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..workload import Classification, Data, Split
from .models.cnn import WIDTHS, SimpleCNN
from .models.fc import FullyConnected, parse_widths
from .readers.idx import read_idx

MODELS = dict.fromkeys(("mnist", "fashion_mnist"), (
    "simple_cnn", "simple_cnn_narrow", "simple_cnn_base", "simple_cnn_wide", "fc_WIDTH[_WIDTH...]"))
CLASSES, SIDE = 10, 28
VALIDATION = 5000

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
    return widths and _workload(dataset, model, "fc", lambda: FullyConnected(SIDE * SIDE, widths, CLASSES), 0.02)


def _workload(dataset, model, family, build, lr) -> Classification:
    defaults = {**DEFAULTS, "lr": lr, "target": TARGETS[dataset, family]}
    return Classification(dataset, model, CLASSES, partial(load, dataset), build, prepare, defaults)


def load(dataset: str, data_dir: str | None) -> Data:
    """The three splits; raises DataError naming the folder or file that is missing or not what it should be."""
    if data_dir is None:
        raise DataError(f"{dataset} needs --data-dir DIR with its four IDX files (train-images-idx3-ubyte and the "
                        "others, gzip or plain)")
    images, labels = _pair(Path(data_dir), "train")
    if len(labels) <= VALIDATION:
        raise DataError(f"{data_dir}: has {len(labels)} training examples, of which {VALIDATION} are for "
                        "validation; none are left")
    train, val = (Split(images[part], labels[part]) for part in (slice(-VALIDATION), slice(-VALIDATION, None)))
    return Data(train, val, Split(*_pair(Path(data_dir), "t10k")))


def _pair(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    image_file, label_file = _find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{image_file}: has images of {images.shape[1]}x{images.shape[2]} pixels, not {SIDE}x{SIDE}")
    if len(images) != len(labels):
        raise DataError(f"{image_file} has {len(images)} images, but {label_file} has {len(labels)} labels; they "
                        "are not of one set")
    if len(labels) and labels.max() >= CLASSES:
        at = int(np.argmax(labels >= CLASSES))
        raise DataError(f"{label_file}: label {labels[at]} of example {at} is not one of 0 .. {CLASSES - 1}")
    return torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64))


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder}: has no {name} or {name}.gz" + ("" if folder.is_dir() else "; there is no such folder"))


def prepare(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Grey levels 0..255 to 0..1."""
    return inputs.to(dtype) / 255
