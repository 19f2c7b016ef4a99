"""A run as a reader of a format gives it, before anything is known about what its tags mean."""
from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...system.inputs import open_input
from ..files import as_float

HEAD, LONGEST_LINE = 1 << 18, 1 << 26   # bytes of a file by which its format is known, and of a line at their end
STEP, SECONDS, EPOCH = "step", "seconds", "epoch"       # tags of formats that have steps and times of their own
WITHIN = "step of the epoch"            # a tag of formats that count steps within an epoch, and no others
LONGEST_TAG = 200                       # characters; a log names columns after tags


class Series(NamedTuple):
    """What was logged under a tag.

    rows    numbers of the rows in which it was, rising: int64, shape (points,)
    values  float64, shape (points,)
    """

    rows: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class FoundRun:
    """One run.

    path        where it is, which names it
    format      the name of the format
    parameters  what was set: numbers, texts, flags
    series      by tag; the rows are in the order in which they were logged. Where a format has them, STEP is the step
                and SECONDS the seconds since the run's start, evaluations included
    counts_done whether the format's steps count those done; otherwise that is not known
    unfinished  the state of a run that is said not to have finished, such as crashed
    files       names of the files with settings that lie beside it
    epoch_steps the steps of an epoch, where the format says them
    left_out    what was not read of it, by name, with the reason
    """

    path: str
    format: str
    parameters: Mapping[str, Any]
    series: Mapping[str, Series]
    counts_done: bool = False
    unfinished: str = ""
    files: tuple[str, ...] = ()
    epoch_steps: int | None = None
    left_out: Mapping[str, str] | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, in the order in which they first appear."""
        return tuple(self.series)

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
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
    """The values of tags that never change."""
    return {tag: float(found.values[0]) for tag, found in series.items()
            if len(found.values) and (found.values == found.values[0]).all()}


def number(text: Any) -> float | None:
    """A number written as a text; None where it is none."""
    try:
        return float(text) if "_" not in str(text) else None
    except (OverflowError, TypeError, ValueError):
        return None


def is_number(value: Any) -> bool:
    """Whether it is a number, rather than a flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def constants(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that never change in all rows."""
    found: dict[str, Any] = {}
    changed: set[str] = set()
    for row in rows:
        for tag, value in row.items():
            if tag not in changed and found.setdefault(tag, value) != value:
                changed.add(tag)
    return {tag: value for tag, value in found.items() if tag not in changed}


def value_of(text: str) -> Any:
    """A parameter as it was meant: a number, a flag, or its text."""
    found = number(text)
    if found is not None:
        return int(found) if math.isfinite(found) and found == int(found) else found
    flags = {"true": True, "false": False, "null": None, "none": None, "": None}
    return flags.get(text.strip().lower(), text.strip().strip("'\""))


class RunPath(str):
    """A path at which a run may be; the first lines of a file are read once, whatever formats are tried."""

    def head(self, ends: tuple[str, ...]) -> list[str]:
        """The first lines of a file whose name has one of these ends; [] of any other path."""
        return self._head if self.lower().endswith(ends) else []

    @cached_property
    def _head(self) -> list[str]:
        if os.path.isdir(self):
            return []
        with open_input(self) as file:
            head = file.read(HEAD) + file.readline(LONGEST_LINE) + file.readline(LONGEST_LINE)
            return str(head, "utf-8", "replace").removeprefix("\ufeff").splitlines()


def rows_by_step(points: Iterable[tuple[str, float, float | None, float]]) -> list[dict[str, float]]:
    """Points (metric, value, seconds or None, step), in order of time: those of one step as one row, which has the
    seconds of its first point, unless a metric comes again: then the run went back."""
    found: dict[float, dict[str, float]] = {}
    rows: list[dict[str, float]] = []
    for tag, value, seconds, step in points:
        if step not in found or tag in found[step]:
            found[step] = {STEP: float(step)}
            rows.append(found[step])
        if seconds is not None:
            found[step].setdefault(SECONDS, seconds)
        found[step][tag] = value
    return rows
