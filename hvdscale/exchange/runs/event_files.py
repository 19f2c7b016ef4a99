"""TensorBoard's event files: each folder with some is a run. Needs tensorboard.

Folders in it that are named like a split, as Keras' callback makes them, or have a series of torch's add_scalars are of
the same run. Every scalar is read; by default tensorboard keeps 10,000 points of a tag, drawn at random.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ...system.extras import import_extra
from ..files import WrongFile
from .run import STEP, FoundRun, rows_by_step

NAME = "event files"
NEED = "reading TensorBoard's event files"
EVENTS = "events.out.tfevents."
SPLITS = ("train", "training", "validation", "valid", "val", "eval", "evaluation", "test")      # names of folders
OF_EPOCH, AT_STEP = "epoch_", re.compile(r".*/evaluation_(.+)_vs_iterations")       # of Keras' tags
Point = tuple[str, float, float, float]                 # tag, value, time in seconds, step


def recognises(path: str) -> bool:
    """Whether it is a folder with event files, or with nothing but splits that have some, or one such file."""
    if not os.path.isdir(path):
        return os.path.basename(path).startswith(EVENTS)
    return _has_events(path) or bool(parts_of(path))


def _has_events(folder: str) -> bool:
    return os.path.isdir(folder) and any(name.startswith(EVENTS) for name in os.listdir(folder))


def parts_of(path: str) -> list[str]:
    """The names of the folders in a run's folder that are of the same run."""
    own = _has_events(path)
    inner = [name for name in sorted(os.listdir(path)) if _has_events(os.path.join(path, name))]
    splits = [name for name in inner if name.lower() in SPLITS]
    if not own:
        return splits if splits == inner else []
    return [name for name in inner if name in splits or _series_of(os.path.join(path, name), name)]


@lru_cache(maxsize=1000)
def _series_of(folder: str, name: str) -> str:
    """The tag of add_scalars, with the key behind it, of which a folder of this name has the series; "" of any other.
    """
    try:
        tags = [*_scalars(_opened(folder))]
    except WrongFile:                           # which reading it says
        return ""
    key = name.removeprefix(f"{tags[0].replace('/', '_')}_") if len(tags) == 1 else name
    return "" if key == name else f"{tags[0]}/{key}"


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run; raises UsageError without tensorboard, WrongFile for files without events."""
    parts = parts_of(path) if os.path.isdir(path) else []
    points, settings = [], {}
    for name in ["", *parts] if not parts or _has_events(path) else parts:
        opened = _opened(os.path.join(path, name) if name else path)
        settings |= _hparams(opened)
        for tag, events in _scalars(opened).items():
            if name:
                tag = f"{name.lower()}/{tag}" if name.lower() in SPLITS else _series_of(os.path.join(path, name), name)
            points += [(tag, value, event.wall_time, event.step) for event, value in events]
    start = min((time for _, _, time, _ in points), default=0.0)
    points, count = _of_keras(sorted(points, key=lambda point: point[2]))
    rows = rows_by_step((tag, value, time - start, step) for tag, value, time, step in points)
    yield FoundRun(path, NAME, settings, [{count if tag == STEP else tag: value for tag, value in row.items()}
                                          for row in rows])


def _of_keras(points: Sequence[Point]) -> tuple[Sequence[Point], str]:
    """(points, what they count): of Keras' callback in steps where its evaluations are, else in epochs."""
    if not any(f"/{OF_EPOCH}" in tag for tag, *_ in points):
        return points, STEP
    ends = sorted({step for tag, _, _, step in points if AT_STEP.fullmatch(tag)})     # of the epochs, in steps
    found: list[Point] = []
    for tag, value, time, step in points:
        split, _, name = tag.partition("/")
        evaluated = AT_STEP.fullmatch(tag)
        if evaluated:
            found.append((f"val/{evaluated[1]}", value, time, step))
        elif name.startswith(OF_EPOCH) and (not ends or split.startswith("train") and step < len(ends)):
            found.append((f"{split}/{name.removeprefix(OF_EPOCH)}", value, time, ends[int(step)] if ends else step))
    return found, STEP if ends else "epoch"


def _opened(folder: str) -> Any:
    """What tensorboard has read of a folder, or of a file."""
    module: Any = import_extra("tensorboard.backend.event_processing.event_accumulator", NEED)
    accumulator = module.EventAccumulator(folder, size_guidance={module.SCALARS: 0, module.TENSORS: 0})
    try:
        accumulator.Reload()
        accumulator.FirstEventTimestamp()
    except Exception as error:                  # tensorboard's own, of many types
        raise WrongFile(f"{folder}: its event files cannot be read: {error or type(error).__name__}") from None
    return accumulator


def _scalars(accumulator: Any) -> dict[str, list[tuple[Any, float]]]:
    """By tag, events with their values: scalars, and what TensorFlow 2 writes as tensors of one element."""
    tags = accumulator.Tags()
    found = {tag: [(event, event.value) for event in accumulator.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            from tensorboard.util.tensor_util import make_ndarray
            found[tag] = [(event, float(make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]
    return found


def _hparams(accumulator: Any) -> dict[str, Any]:
    """What the hparams plugin has of the run."""
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    try:
        contents = accumulator.PluginTagToContent(metadata.PLUGIN_NAME)
    except KeyError:
        return {}
    starts = [plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info for content in contents.values()]
    return {name: getattr(value, value.WhichOneof("kind")) for start in starts for name, value in start.hparams.items()
            if value.WhichOneof("kind")}
