"""TensorBoard's event files: each folder with some is a run. Needs tensorboard.

Every scalar is read; by default tensorboard keeps 10,000 points of a tag, drawn at random.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ...system.extras import import_extra
from ..files import WrongFile
from .run import FoundRun, rows_by_step

NAME = "event files"
NEED = "reading TensorBoard's event files"
EVENTS = "events.out.tfevents."


def recognises(path: str) -> bool:
    """Whether it is a folder with event files, or one such file."""
    if os.path.isdir(path):
        return any(name.startswith(EVENTS) for name in os.listdir(path))
    return os.path.basename(path).startswith(EVENTS)


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run; raises UsageError without tensorboard, WrongFile for files without events."""
    module: Any = import_extra("tensorboard.backend.event_processing.event_accumulator", NEED)
    accumulator = module.EventAccumulator(path, size_guidance={module.SCALARS: 0, module.TENSORS: 0})
    try:
        accumulator.Reload()
        start = accumulator.FirstEventTimestamp()
    except Exception as error:                  # tensorboard's own, of many types
        raise WrongFile(f"{path}: its event files cannot be read: {error or type(error).__name__}") from None
    points = [(tag, value, event.wall_time - start, event.step) for tag, events in _scalars(accumulator).items()
              for event, value in events]
    rows = rows_by_step(sorted(points, key=lambda point: point[2]))
    yield FoundRun(path, NAME, _hparams(accumulator), rows)


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
