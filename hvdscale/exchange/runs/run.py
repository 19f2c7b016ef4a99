"""A run as a reader of a format gives it, before anything is known about what its tags mean."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..cells import SEPARATORS, other_count, read_rows
from ..files import WrongFile

HEAD = 1 << 16                          # characters of a file by which its format is known
_JSON = ("params.json", "flags.json", "config.json", "args.json", "hparams.json")           # of settings
_YAML = ("hparams.yaml", "args.yaml", "params.yaml", "config.yaml", os.path.join(".hydra", "config.yaml"))
STEP, SECONDS = "step", "seconds"       # tags of formats that have steps and times of their own


@dataclass(frozen=True)
class FoundRun:
    """One run.

    path        where it is, which names it
    format      the name of the format
    parameters  what was set: numbers, texts, flags
    rows        in the order in which they were logged: values by tag. Where a format has them, STEP is the step and
                SECONDS the seconds since the run's start, evaluations included
    counts_done whether the format's steps count those done; otherwise that is not known
    unfinished  the state of a run that is said not to have finished, such as crashed
    """

    path: str
    format: str
    parameters: Mapping[str, Any]
    rows: Sequence[Mapping[str, float]]
    counts_done: bool = False
    unfinished: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, in the order in which they first appear."""
        return tuple(dict.fromkeys(tag for row in self.rows for tag in row))


def number(text: Any) -> float | None:
    """A number written as a text; None where it is none."""
    try:
        return float(text) if "_" not in str(text) else None
    except (TypeError, ValueError):
        return None


def is_number(value: Any) -> bool:
    """Whether it is a number, rather than a flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def constants(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that never change in all rows."""
    found: dict[str, set] = {}
    for row in rows:
        for tag, value in row.items():
            found.setdefault(tag, set()).add(value)
    return {tag: next(iter(values)) for tag, values in found.items() if len(values) == 1}


def value_of(text: str) -> Any:
    """A parameter as it was meant: a number, a flag, or its text."""
    found = number(text)
    if found is not None:
        return int(found) if math.isfinite(found) and found == int(found) else found
    flags = {"true": True, "false": False, "null": None, "none": None, "": None}
    return flags.get(text.strip().lower(), text.strip().strip("'\""))


def yaml_parameters(folder: str, name: str) -> dict[str, Any]:
    """The scalars of a YAML file of mappings, such as Lightning's hparams.yaml, those of inner ones as outer.inner, and
    W&B's ``value`` by the name above it; {} where there is none."""
    path = os.path.join(folder, name)
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []           # (indent, key) of the mappings that a line is in
    for line in text_of(path).splitlines() if os.path.isfile(path) else ():
        key, colon, value = line.partition(" #")[0].strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if colon and key[:1] not in ("#", "-"):
            above = [(at, name) for at, name in above if at < indent] + [(indent, key.strip())]
            if value.strip():
                found[".".join(name for _, name in above).removesuffix(".value")] = value_of(value)
    return found


def settings_beside(folder: str) -> dict[str, Any]:
    """The scalars of the files with settings that lie in a run's folder; of one that is alone in having its last name,
    by that name, too."""
    found = {key: value for name in _YAML for key, value in yaml_parameters(folder, name).items()}
    for path in (os.path.join(folder, name) for name in _JSON):
        data = json_of(path) if os.path.isfile(path) else None
        found |= _flat(data) if isinstance(data, dict) else {}
    short = [key.rpartition(".")[2] for key in found]
    return {name: value for name, value in zip(short, found.values()) if short.count(name) == 1} | found


def _flat(found: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The scalars in objects of JSON, those of inner ones as outer.inner."""
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}.")
        elif isinstance(value, (int, float, str)):
            flat[f"{above}{key}"] = value
    return flat


def text_of(path: str, most: int = 1 << 30) -> str:
    """A text file in UTF-8; raises WrongFile, naming the file."""
    try:
        if os.path.getsize(path) > most:
            raise WrongFile(f"{path}: is larger than {most:,} bytes")
        with open(path, encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise WrongFile(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WrongFile(f"{path}: is not text in UTF-8: {error}") from None


def json_of(path: str) -> Any:
    """What a file of JSON holds; raises WrongFile, naming the file."""
    try:
        return json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        raise WrongFile(f"{path}: is not JSON: {error}") from None


class RunPath(str):
    """A path at which a run may be; the first lines of a file are read once, whatever formats are tried."""

    def head(self, ends: tuple[str, ...]) -> list[str]:
        """The first lines of a file whose name has one of these ends; [] of any other path."""
        return self._head if self.endswith(ends) else []

    @cached_property
    def _head(self) -> list[str]:
        if not os.path.isfile(self):
            return []
        with open(self, encoding="utf-8", errors="replace") as file:
            return file.read(HEAD).splitlines()


def csv_rows(path: str) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a CSV file; raises WrongFile, naming file and line."""
    text = text_of(path)
    mark = next((mark for mark in SEPARATORS if mark in text.partition("\n")[0]), ",")
    rows: list[list[str]] = []
    for line, row, wrong in read_rows(text.splitlines(keepends=True), None, 0, mark):
        if wrong or rows and row and len(row) != len(rows[0]):
            raise WrongFile(f"{path}:{line}: {wrong or other_count(row, len(rows[0]))}")
        if row:
            rows.append(row)
    if not rows:
        raise WrongFile(f"{path}: is empty")
    return [name.strip() for name in rows[0]], rows[1:]


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
