"""MNIST and Fashion-MNIST from their four IDX files: 55,000 training, 5,000 validation and 10,000 test images of 28x28.

    hvdscale-train mnist/simple_cnn --data-dir DIR
    hvdscale-train mnist/simple_cnn --data-dir DIR --train-subset 13750         Shallue et al.'s mnist_13750

The files may be plain, gzip or xz. The validation set is the last 5,000 of the 60,000 published training images: the
names of Shallue et al.'s subsets imply 55,000 training images. Which images their subsets hold is unknown; here they
are the first ones.
"""

import math
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..workload import Card, Classification, Data, Split
from .files import Found, collect, describe_folder, verify
from .models.plain import ANY_WIDTHS, WIDTHS, FullyConnected, SimpleCNN, parse_widths
from .pixels import meta_images

CLASSES, SIDE = 10, 28
VALIDATION = 5000
UNSIGNED_BYTE = 0x08


@dataclass(frozen=True)
class Published:
    """A data set in this format: usual subfolders, and the validation errors to get below."""

    subfolders: tuple[str, ...]
    fc_target: float
    cnn_target: float


DATASETS = {"mnist": Published(("mnist", "MNIST/raw"), 0.03, 0.01),
            "fashion_mnist": Published(("fashion_mnist", "FashionMNIST/raw"), 0.15, 0.1)}
SIZES = {"simple_cnn": "base", **{f"simple_cnn_{size}": size for size in WIDTHS}}
MODELS = dict.fromkeys(DATASETS, (*SIZES, ANY_WIDTHS))

DEFAULTS = dict(local_batch=32, base_batch=32, optimizer="nesterov", momentum=0.9, lr_rule="linear", max_lr_factor=16.0,
                warmup_epochs=0.25, epochs=10.0, eval_every_epochs=0.05, eval_splits="val")
CARD = Card(60000 - VALIDATION, VALIDATION, partial(meta_images, 1, SIDE))


def workload(dataset: str, model: str) -> Classification:
    """A Simple CNN in one of its widths, or a fully connected network of any widths."""
    published = DATASETS[dataset]
    build, lr, error = partial(FullyConnected, SIDE * SIDE, parse_widths(model), CLASSES), 0.02, published.fc_target
    if model in SIZES:
        build, lr, error = partial(SimpleCNN, SIZES[model]), 0.01, published.cnn_target
    defaults = {**DEFAULTS, "lr": lr, "target": f"val/error<{error:g}"}
    return Classification(dataset, model, CLASSES, partial(load, dataset), build, prepare, defaults, CARD)


def load(dataset: str, data_dir: str | None, allow_missing: bool = False) -> Data:
    """The three splits; raises DataError naming what is missing or invalid. allow_missing: accept missing test files"""
    if data_dir is None:
        raise DataError(f"{dataset} needs --data-dir DIR with its four IDX files (train-images-idx3-ubyte and the "
                        "others, plain, gzip or xz)")
    folder, names = Path(data_dir), [*_names("train"), *_names("t10k")]
    dotted = [name.replace("-idx", ".idx") for name in names]               # as some copies have it
    found = collect(folder, [*names, *dotted], DATASETS[dataset].subfolders)
    found = {name: found.get(name) or found[other] for name, other in zip(names, dotted) if {name, other} & set(found)}
    missing = [name for name in names if name not in found]
    needed = [name for name in missing if name in _names("train")]
    if needed or missing and not allow_missing:
        name, hint = (needed or missing)[0], "" if needed else "; --allow-missing does without the test files"
        raise DataError(f"{folder}: has no {name}, plain, .gz or .xz; {describe_folder(folder)}{hint}")
    images, labels = _pair(found, "train")
    if len(labels) <= VALIDATION:
        raise DataError(f"{data_dir}: has {len(labels)} training examples, of which {VALIDATION} are for "
                        "validation; none are left")
    train, val = (Split(images[rows], labels[rows]) for rows in (slice(-VALIDATION), slice(-VALIDATION, None)))
    test = None if missing else Split(*_pair(found, "t10k"))
    record, notes = verify(found, dataset, missing, "md5")
    return Data(train, val, test, record=record, notes=notes)


def _names(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


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
    with warnings.catch_warnings():             # that the bytes of a file cannot be written, which nothing does
        warnings.simplefilter("ignore")
        return torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64))


def read_idx(file: Found, dimensions: int) -> np.ndarray:
    """The array of unsigned bytes in an IDX file with this number of dimensions: a view of the file's bytes. Raises
    DataError for another magic number, or a length that contradicts its header."""
    content = file.content
    wanted, magic = UNSIGNED_BYTE << 8 | dimensions, int.from_bytes(content[:4], "big")
    if len(content) < 4 or magic != wanted:
        raise DataError(f"{file.where}: starts with magic number 0x{magic:08x}, not 0x{wanted:08x} (IDX, unsigned "
                        f"bytes, {dimensions} dimensions); is it another of the data set's files?")
    header = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist()) if len(content) >= header else ()
    needed = header + math.prod(shape) if shape else header
    if len(content) != needed or not shape:
        raise DataError(f"{file.where}: has {len(content)} bytes, not the {needed} that its header needs for shape "
                        f"{shape}; it is truncated or damaged, fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def prepare(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return inputs.to(dtype) / 255
