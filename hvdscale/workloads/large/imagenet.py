"""ImageNet (ILSVRC 2012) from folders of photographs: DIR/train/SYNSET/*.JPEG and DIR/val/SYNSET/*.JPEG, or
DIR/SYNSET/*.JPEG without a test split.

val is 50,045 pictures of the published training set, train is the rest, and test is the published validation set, as
the labels of the true test set are not public. From a set of another size the same share is held out. A fixed shuffle
selects them, whatever the trial's seed. Classes are the sorted folder names. Data arguments:

    side         pixels of the square input [224]
    validation   number of training pictures held out
    skip_broken  decode every file once before training and leave out those that fail; the list is kept in the cache
                 folder. Without it, the first such file ends the run with an error that names it

Three data sets: imagenet; imagenet_half_images, the first half of train in the shuffle, with the same val and test;
imagenet_half_classes, the first half of the classes in a fixed shuffle, in all splits.

Established from fb.resnet.torch, which Goyal et al. 2017 (arXiv:1706.02677) cite, and the Horovod example: random
crops and flips, mean and deviation of the colours, evaluation on the central 224 pixels of a picture whose shorter side
is 256. fb.resnet.torch's colour jitter and lighting are left out: Goyal et al. name only crops and flips. Not
established for Shallue et al. 2019: the 50,045 pictures held out (from memory), how these and both halves were drawn,
and the augmentation.
"""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...plan.shards import epoch_order
from ...plan.values import check_value
from ...workload import Card, Classification, Data, MapSplit
from ..models.plain import VGG
from ..models.resnet import ImageNetResNet
from ..pixels import meta_images, standardised
from .readers.images import (Crops, Pictures, centre_crop, class_folders, damaged, index_pictures, pillow, random_crop)

HALF_IMAGES, HALF_CLASSES = "imagenet_half_images", "imagenet_half_classes"
DATASETS = ("imagenet", HALF_IMAGES, HALF_CLASSES)
MODELS = {dataset: ("resnet_50", "vgg_11") for dataset in DATASETS}
BUILD = {"resnet_50": ImageNetResNet, "vgg_11": partial(VGG, norm="batch")}

CLASSES, TRAIN, HELD_OUT, TEST = 1000, 1_281_167, 50_045, 50_000         # as published
SPLIT_SEED = 2012                       # the splits do not depend on a trial's seed
SIDE = 224
# of red, green and blue in 0..255, over the training set
MEAN, DEVIATION = (255 * 0.485, 255 * 0.456, 255 * 0.406), (255 * 0.229, 255 * 0.224, 255 * 0.225)
prepare = partial(standardised, MEAN, DEVIATION)

DEFAULTS = dict(local_batch=32, base_batch=256, optimizer="nesterov", momentum=0.9, lr_rule="linear", warmup_epochs=5.0,
                decay="step", epochs=90.0, decay_at_epochs=[30, 60, 80], eval_every_epochs=1.0, eval_splits="val",
                loader_workers=2)
BY_MODEL = {"resnet_50": dict(lr=0.1, weight_decay=1e-4), "vgg_11": dict(lr=0.01, weight_decay=5e-4)}
TARGETS = {("imagenet", "resnet_50"): 0.25, ("imagenet", "vgg_11"): 0.35}       # the halves': 0.3 (Shallue et al. 2019)


def workload(dataset: str, model: str) -> Classification:
    """resnet_50 with the settings of Goyal et al. 2017, vgg_11 with learning rate and weight decay of Simonyan &
    Zisserman 2015, on the whole set and on the halves.

    VGG-11 has batch-norm, as in Shallue et al. 2019 (from memory); --model-arg norm=none builds the published model A.
    """
    train, val, classes = TRAIN - HELD_OUT, HELD_OUT, CLASSES
    if dataset != "imagenet":
        train //= 2
    if dataset == HALF_CLASSES:
        val, classes = val // 2, classes // 2
    defaults = {**DEFAULTS, **BY_MODEL[model], "target": f"val/error<{TARGETS.get((dataset, model), 0.3):g}"}
    return Classification(dataset, model, None, partial(load, dataset), BUILD[model], prepare, defaults,
                          Card(train, val, partial(meta_images, 3, SIDE), {"classes": classes}))


def load(dataset: str, data_dir: str | None, side: int = SIDE, validation: int | None = None, skip_broken: bool = False,
         allow_missing: bool = False, cache_dir: str | None = None) -> Data:
    """The splits; raises DataError naming what is missing or wrong in the folders, UsageError for a data argument."""
    check_value("data_args.side", side, int, least=1)
    if validation is not None:
        check_value("data_args.validation", validation, int, least=1)
    check_value("data_args.skip_broken", skip_broken, bool)
    pillow()
    pictures, tests = _index(dataset, data_dir)
    lacking = []
    if pictures.directory != Path(data_dir) and tests is None:
        lacking.append("val with a folder of pictures for each class")
    for found, published in ((pictures, TRAIN), (tests, TEST)):
        if len(pictures.classes) == CLASSES and found is not None and len(found) < published:
            lacking.append(f"{published - len(found)} of the {published} pictures of {found.directory.name}")
    if lacking and not allow_missing:
        raise DataError(f"{data_dir}: lacks {' and '.join(lacking)}; restore what is missing, or train on what is "
                        "there with --allow-missing")
    splits = _split(dataset, pictures, tests, validation, side)
    record, notes = {"missing": lacking} if lacking else {}, [f"{data_dir} lacks {what}" for what in lacking]
    notes += [f"{part.others[0]} files in {part.directory} have no picture's name and are left out, such as "
              f"{part.others[1]}" for part in (pictures, tests) if part is not None and part.others[0]]
    if skip_broken:
        examples = sum(map(len, splits))
        for at, split in enumerate(splits):
            found, kept_in = damaged(split.pictures, cache_dir)
            note = f"{len(found)} pictures of {split.pictures.directory} do not decode and are left out: see {kept_in}"
            notes += [note] if found and note not in notes else []
            splits[at] = replace(split, order=split.order[~np.isin(split.order, list(found))])
        record["skipped"] = examples - sum(map(len, splits))
    digest = hashlib.sha256()               # of the names and the order of the pictures in all splits
    for split in splits:
        digest.update(split.pictures.fingerprint().encode())
        digest.update(split.order.astype("<i4"))
    record["examples_sha256"] = digest.hexdigest()[:16]
    return Data(*map(MapSplit, splits), train_eval=MapSplit(replace(splits[0], crop=centre_crop)),
                model_args={"classes": len(pictures.classes)}, record=record, notes=tuple(notes))


def _index(dataset: str, data_dir: str | None) -> tuple[Pictures, Pictures | None]:
    if data_dir is None:
        raise DataError(f"{dataset} needs --data-dir DIR with train/SYNSET/*.JPEG and val/SYNSET/*.JPEG")
    train, test = Path(data_dir, "train"), Path(data_dir, "val")
    if not train.is_dir():
        if test.is_dir():
            raise DataError(f"{data_dir}: has val, but no train with a folder of pictures for each class")
        train = Path(data_dir)
    classes = found = class_folders(train)
    if dataset == HALF_CLASSES:                 # the first half of a fixed shuffle, sorted
        classes = [found[i] for i in sorted(epoch_order(len(found), SPLIT_SEED, 0)[:len(found) // 2])]
    if len(classes) < 2:
        raise DataError(f"{train}: too few class folders for {dataset}: {', '.join(found) or 'none'}")
    pictures = index_pictures(train, classes)
    if not test.is_dir():
        return pictures, None
    if odd := sorted(set(found) ^ set(class_folders(test))):
        raise DataError(f"{train if odd[0] in found else test} has a class folder {odd[0]} that "
                        f"{test if odd[0] in found else train} has not ({len(odd)} such); they are not of one set, or "
                        "not whole")
    return pictures, index_pictures(test, classes)


def _split(dataset: str, pictures: Pictures, tests: Pictures | None, validation: int | None, side: int) -> list[Crops]:
    """train, val and, if there are test pictures, test; raises DataError if none are left to train on."""
    count = len(pictures)
    held_out = max(1, round(count * HELD_OUT / TRAIN)) if validation is None else validation
    if held_out >= count:
        raise DataError(f"{pictures.directory}: has {count} pictures, of which {held_out} are for validation; none are "
                        "left to train on")
    order = epoch_order(count, SPLIT_SEED, 0).astype(np.int32)
    train, val = order[held_out:], order[:held_out]
    if dataset == HALF_IMAGES:
        train = train[:max(1, len(train) // 2)]
    splits = [Crops(pictures, train, random_crop, side), Crops(pictures, val, centre_crop, side)]
    if tests is not None:
        splits.append(Crops(tests, np.arange(len(tests), dtype=np.int32), centre_crop, side))
    return splits
