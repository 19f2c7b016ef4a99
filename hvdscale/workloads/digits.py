"""scikit-learn's digits: 1,797 grey 8x8 images of handwritten digits, which ship with that package."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..plan.shards import epoch_order
from ..system.importing import import_extra
from ..workload import Card, Classification, Data, Split
from .files import reading
from .models.plain import ANY_WIDTHS, FullyConnected, TinyCNN, parse_widths
from .pixels import meta_images

MODELS = {"digits": ("fc", ANY_WIDTHS, "cnn")}
CLASSES, PIXELS = 10, 64
SIZES = (1197, 300, 300)        # train, validation, test
SPLIT_SEED = 1797               # the splits do not depend on a trial's seed

DEFAULTS = dict(optimizer="momentum", momentum=0.9, lr_rule="linear", max_lr_factor=8.0, warmup_epochs=1.0,
                target="val/error<0.05", epochs=60.0, eval_every_epochs=0.25)
CARD = Card(SIZES[0], SIZES[1], partial(meta_images, 1, 8))


def workload(dataset: str, model: str) -> Classification:
    """digits/fc (one hidden layer of 64), digits/fc_WIDTH..., digits/cnn."""
    build, batch = partial(FullyConnected, PIXELS, parse_widths(model) or (64,), CLASSES), 16
    if model == "cnn":
        build, batch = TinyCNN, 32
    defaults = {**DEFAULTS, "local_batch": batch, "base_batch": batch, "lr": 0.02}
    return Classification(dataset, model, CLASSES, load, build, prepare, defaults, CARD)


def load(data_dir: str | None) -> Data:
    """The three splits of a fixed shuffle; raises DataError if scikit-learn is missing."""
    package = importlib.util.find_spec("sklearn") or import_extra(
        "sklearn.datasets", "the digits data set", package="scikit-learn", refused=DataError)
    file = Path(package.origin).parent / "datasets/data/digits.csv.gz"
    with reading(file):                     # here, as importing the package takes a second of CPU
        images, labels = np.split(np.loadtxt(file, np.int64, delimiter=","), [-1], axis=1)
    order = epoch_order(len(labels), SPLIT_SEED, 0)
    inputs = torch.from_numpy(images.astype(np.uint8).reshape(-1, 1, 8, 8)[order])
    labels = torch.from_numpy(labels.ravel().astype(np.int64)[order])
    bounds = np.cumsum((0, *SIZES))
    return Data(*(Split(inputs[a:b], labels[a:b]) for a, b in zip(bounds, bounds[1:])))


def prepare(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return inputs.to(dtype) / 16
