"""TensorBoard's event files: each folder with some is a run. Needs tensorboard.

Folders in it that are named like a split, as Keras' callback makes them, or have a series of torch's add_scalars are of
the same run. Every scalar is read, and every event is held against its checksum.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...log.files import first_line
from ...system.importing import import_extra
from ...system.inputs import open_input
from ..files import WrongFile
from .guessing import say
from .run import STEP, FoundRun, rows_by_step, series_of, settings_beside

NAME = "event files"
NEED = "reading TensorBoard's event files"
EVENTS = "events.out.tfevents."
SPLITS = ("train", "training", "validation", "valid", "val", "eval", "evaluation", "test")      # names of folders
OF_EPOCH, AT_STEP = re.compile(r"[^/]+/epoch_([^/]+)"), re.compile(r".*/evaluation_(.+)_vs_iterations")   # Keras' tags
Point = tuple[str, float, float, float]                 # tag, value, time in seconds, step


@dataclass
class Events:
    scalars: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)      # by tag: value, time, step
    others: set[str] = field(default_factory=set)                                           # tags of what is no scalar
    settings: dict[str, Any] = field(default_factory=dict)
    cut: str = ""                                                       # where a file ends within an event


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
    splits = [name for name in inner if name.lower() in SPLITS and not settings_beside(os.path.join(path, name))[1]]
    if not own:
        return splits if splits == inner else []
    return [name for name in inner if name in splits or _series_of(os.path.join(path, name), name)]


def _series_of(folder: str, name: str) -> str:
    """TAG/KEY of add_scalars, of which a folder of this name has the series; "" of any other."""
    try:
        tags = [*events_of(folder).scalars]
    except WrongFile:                           # which reading it says
        return ""
    key = name.removeprefix(f"{tags[0].replace('/', '_')}_") if len(tags) == 1 else name
    return "" if key == name else f"{tags[0]}/{key}"


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run; raises UsageError without tensorboard, WrongFile for files without events, or damaged ones."""
    parts = parts_of(path) if os.path.isdir(path) else []
    points: list[Point] = []
    settings, others, cut = {}, {}, ""
    for name in ["", *parts] if not parts or _has_events(path) else parts:
        folder = os.path.join(path, name) if name else path
        found = events_of(folder)
        settings |= found.settings
        cut = cut or found.cut
        tags = {tag: tag for tag in (*found.scalars, *found.others)}
        if name:
            split = f"{name.lower()}/" if name.lower() in SPLITS else ""
            tags = {tag: f"{split}{tag}" if split else _series_of(folder, name) for tag in tags}
            others |= {} if tags else {name: "its event files have no summary"}
        others |= {tags[tag]: "no scalar" for tag in found.others}
        points += [(tags[tag], *event) for tag, events in found.scalars.items() for event in events]
    if not (points or others or settings):
        raise WrongFile(f"{path}: its event files have no whole event with a summary; --skip-broken leaves the run out")
    points, count = _of_keras(points)
    series = series_of(rows_by_step(points), path)
    yield FoundRun(path, NAME, settings, {count if tag == STEP else tag: found for tag, found in series.items()},
                   unfinished=cut, left_out=others)


def _of_keras(points: Sequence[Point]) -> tuple[Sequence[Point], str]:
    """(points, what they count): of Keras' callback in steps where its evaluations are, else in epochs."""
    if not any(OF_EPOCH.fullmatch(tag) for tag, *_ in points):
        return points, STEP
    ends = sorted({step for tag, _, _, step in points if AT_STEP.fullmatch(tag)})     # of the epochs, in steps
    found: list[Point] = []
    for tag, value, time, step in points:
        split, name = tag.partition("/")[0], OF_EPOCH.fullmatch(tag)
        evaluated = AT_STEP.fullmatch(tag)
        if evaluated:
            found.append((f"val/{evaluated[1]}", value, time, step))
        elif name and (not ends or split.startswith("train") and 0 <= step < len(ends)):
            found.append((f"{split}/{name[1]}", value, time, ends[int(step)] if ends else step))
    return found, STEP if ends else "epoch"


@lru_cache(maxsize=8)
def events_of(path: str) -> Events:
    """What the event files of a folder, or a file, have; raises WrongFile where there is nothing, or it is damaged."""
    event: Any = import_extra("tensorboard.compat.proto.event_pb2", NEED).Event
    records: Any = import_extra("tensorboard.compat.tensorflow_stub.pywrap_tensorflow", NEED)
    errors: Any = import_extra("tensorboard.compat.tensorflow_stub.errors", NEED)
    names = [name for name in sorted(os.listdir(path)) if name.startswith(EVENTS)] if os.path.isdir(path) else [""]
    found, plugins = Events(), {}           # plugins by tag
    for file in (os.path.join(path, name) if name else path for name in names):
        open_input(file).close()
        reader, count = records.PyRecordReader_New(file), 0
        try:
            for count in itertools.count(1):
                reader.GetNext()                    # holds the event against its checksum
                _take(found, plugins, event.FromString(reader.record()))
        except errors.OutOfRangeError:
            continue
        except Exception as error:                  # of tensorboard and protobuf, of many types
            if "truncated" not in str(error) or count == 1:
                raise WrongFile(say("damaged", file=file, at=count, why=first_line(error))) from None
            found.cut = f"cut off within event {count:,} of {os.path.basename(file)}"
    return found


def _take(found: Events, plugins: dict[str, str], event: Any) -> None:
    """Take in an event: scalars, and what TensorFlow 2 writes as tensors of one element."""
    for value in event.summary.value:
        kind, tag = value.WhichOneof("value"), value.tag
        plugin = plugins.setdefault(tag, value.metadata.plugin_data.plugin_name)
        number = value.simple_value if kind == "simple_value" else None
        if kind == "tensor" and plugin == "hparams":             # whose summaries are settings
            from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
            start = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
            found.settings |= {name: getattr(given, given.WhichOneof("kind")) for name, given in start.hparams.items()
                               if given.WhichOneof("kind")}
            continue
        if kind == "tensor" and plugin == "scalars":
            from tensorboard.util.tensor_util import make_ndarray
            with contextlib.suppress(TypeError, ValueError):
                array = make_ndarray(value.tensor)
                number = float(array.reshape(())) if array.dtype.kind in "fiub" else None
        if number is None:
            found.others.add(tag)
        else:
            found.scalars.setdefault(tag, []).append((number, event.wall_time, event.step))
