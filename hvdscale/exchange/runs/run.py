"""A run as a reader of a format gives it, before anything is known about what its tags mean; and the settings in files
that lie beside it, of YAML, JSON and TOML, flat as outer.inner."""

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...plan.settings import read_toml
from ...system.inputs import open_input
from ..files import as_float, encoding_of, is_number, json_of, number_of, text_of

HEAD, LONGEST_LINE = 1 << 19, 1 << 26   # bytes of a file by which its format is known, and of a line at their end
STEP, SECONDS, EPOCH = "step", "seconds", "epoch"       # tags of formats that have steps and times of their own
WITHIN = "step of the epoch"            # a tag of formats that count steps within an epoch, and no others
LONGEST_TAG = 200                       # characters; a log names columns after tags
PROGRAMS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("programs.toml"))
NAMES = PROGRAMS["names"]               # of tags or settings of a kind, the likeliest first
SETTINGS_FILE = re.compile(PROGRAMS["patterns"]["settings_file"])
BELOW = ("", ".hydra")                  # folders in a run's folder that have its settings


class Series(NamedTuple):
    """What was logged under a tag: shape (points,)."""

    rows: np.ndarray                # numbers of the rows in which it was, rising: int64
    values: np.ndarray              # float64


@dataclass(frozen=True)
class FoundRun:
    """One run. Where its format has them, STEP is the tag of the step, and SECONDS that of the seconds since the run's
    start, evaluations included."""

    path: str                               # where it is, which names it
    format: str
    parameters: Mapping[str, Any]           # what was set: numbers, texts, flags
    series: Mapping[str, Series]            # by tag; rows are in the order in which they were logged
    counts_done: bool = False               # whether the format's steps count those done; else that is not known
    unfinished: str = ""                    # what says that the run did not finish
    files: tuple[str, ...] = ()             # names of the files with settings that lie beside it
    epoch_steps: int | None = None          # the steps of an epoch, where the format says them
    left_out: Mapping[str, str] | None = None       # what was not read of it, by name, with the reason

    @cached_property
    def rows(self) -> int:
        return int(max((series.rows[-1] for series in self.series.values() if len(series.rows)), default=-1)) + 1

    def spread(self, tag: str) -> np.ndarray:
        """The tag's value in each row, NaN where it has none: float64, shape (rows,)."""
        found = np.full(self.rows, np.nan)
        if tag in self.series:
            found[self.series[tag].rows] = self.series[tag].values
        return found


def series_of(rows: Iterable[Mapping[str, Any]], where: str = "") -> dict[str, Series]:
    """The series of rows, values by tag; raises WrongFile, naming place and tag, for what no float can hold."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for at, row in enumerate(rows):
        for tag, value in row.items():
            numbers, values = found.setdefault(tag, ([], []))
            numbers.append(at)
            values.append(value if type(value) is float else as_float(value, f"{where}: {tag}"))
    return {tag: Series(np.array(numbers, np.int64), np.array(values)) for tag, (numbers, values) in found.items()}


def constants_of(series: Mapping[str, Series]) -> dict[str, float]:
    return {tag: float(found.values[0]) for tag, found in series.items()
            if len(found.values) and (found.values == found.values[0]).all()}


def value_of(text: str) -> Any:
    found = number_of(text)
    if found is not None:
        return int(found) if math.isfinite(found) and found == int(found) else found
    flags = {"true": True, "false": False, "null": None, "none": None, "": None}
    return flags.get(text.strip().lower(), text.strip().strip("'\""))


def head_of(path: str, ends: tuple[str, ...]) -> list[str]:
    """The first lines of a file whose name has one of these ends; [] of any other path."""
    if not path.lower().endswith(ends) or os.path.isdir(path):
        return []
    with open_input(path) as file:
        head = file.read(HEAD) + file.readline(LONGEST_LINE) + file.readline(LONGEST_LINE)
    return str(head, encoding_of(head), "replace").splitlines()


def rows_by_step(points: Iterable[tuple[str, float, float | None, float]], start: float | None = None
                 ) -> list[dict[str, float]]:
    """Points (metric, value, time or None, step) in order of time, else of steps: those of one step as one row, unless
    a metric comes again: then the run went back. A row has the seconds of its first point since ``start``, or since
    the first of all."""
    points = sorted(points, key=lambda point: point[3] if point[2] is None else point[2])
    start = points[0][2] if points and start is None else start
    found: dict[float, dict[str, float]] = {}
    rows: list[dict[str, float]] = []
    for tag, value, time, step in points:
        if step not in found or tag in found[step]:
            found[step] = {STEP: float(step)}
            rows.append(found[step])
        if time is not None:
            found[step].setdefault(SECONDS, time - start)
        found[step][tag] = value
    return rows


def files_below(folder: str) -> dict[str, str]:
    """The paths of the files in a folder and in those below, by the paths within it, in order."""
    found = sorted(os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return {os.path.relpath(path, folder): path for path in found}


@lru_cache(maxsize=64)
def settings_beside(folder: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(scalars, names of the files) of the settings that lie in a run's folder, see ``with_short_names``."""
    found: dict[str, Any] = {}
    files = []
    for inner in (os.path.join(folder, below) for below in BELOW):
        for name in sorted(os.listdir(inner)) if os.path.isdir(inner) else ():
            if match := SETTINGS_FILE.fullmatch(name):
                found |= read_settings(os.path.join(inner, name), match["end"].lower())
                files.append(name)
    return with_short_names(found), tuple(files)


def with_short_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by their last names, too, where these are alone."""
    short = [key.rpartition(".")[2] for key in found]
    often = Counter(short)
    return {name: value for name, value in zip(short, found.values()) if often[name] == 1} | dict(found)


def read_settings(path: str, end: str) -> dict[str, Any]:
    """The scalars of a file of settings, and lists of numbers as they are written, those of inner tables as outer.inner
    and W&B's ``value`` by the name above it."""
    text = text_of(path)
    if end == "toml" or end == "json" and text.lstrip()[:1] in "{[":          # Swin's config.json is YAML
        data = json_of(text, path) if end == "json" else read_toml(path)
        return {name: str(value) if isinstance(value, list) else value for name, value in leaves(
            data if isinstance(data, dict) else {}, ".") if isinstance(value, (int, float, str)) or (
                isinstance(value, list) and 0 < len(value) < 1000 and all(map(is_number, value)))}
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []           # (indent, key) of the mappings that a line is in
    for line in text.splitlines():
        key, colon, value = line.partition(" #")[0].strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if colon and key[:1] not in ("#", "-") and len(above) < 32:
            while above and above[-1][0] >= indent:
                above.pop()
            above.append((indent, key.strip().strip("'\"")))
            if value.strip():
                found[".".join(name for _, name in above).removesuffix(".value")] = value_of(value)
    return found


def leaves(found: Mapping[str, Any], mark: str, unnamed: Collection[str] = (), above: str = "", depth: int = 0
           ) -> Iterator[tuple[str, Any]]:
    """What objects hold beside objects, by name: outer, mark, inner; those in ``unnamed`` ones without outer."""
    for key, value in found.items():
        if isinstance(value, dict) and depth < 32:
            yield from leaves(value, mark, unnamed, above if key in unnamed else f"{above}{key}{mark}", depth + 1)
        else:
            yield f"{above}{key}", value
