"""MLflow's runs: the folder of a file store (mlruns), or its SQLite database. mlflow itself is not needed."""
from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from ..files import WrongFile
from .run import FoundRun, number, rows_by_step, text_of, value_of, yaml_parameters

NAME = "MLflow"
_SQLITE = b"SQLite format 3\0"
_POINTS = "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
_RUNS = ("SELECT run_uuid, runs.name, start_time, experiments.name FROM runs JOIN experiments USING (experiment_id) "
         "WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid")


def recognises(path: str) -> bool:
    """Whether it is a run's folder in a file store, or an SQLite database."""
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "meta.yaml")) and os.path.isdir(os.path.join(path, "metrics"))
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def read(path: str) -> Iterator[FoundRun]:
    """The run of a folder, or all runs of a database that were not deleted. Raises WrongFile."""
    if os.path.isdir(path):
        yield _of_folder(path)
        return
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as base:
            for run, name, start, experiment in base.execute(_RUNS).fetchall():
                parameters = {key: value_of(value) for key, value in base.execute(
                    "SELECT key, value FROM params WHERE run_uuid = ?", (run,))}
                points = [(key, float("nan") if is_nan else value, time, step)
                          for key, value, time, step, is_nan in base.execute(_POINTS, (run,))]
                yield FoundRun(f"{path}:{name or run}", NAME, {"experiment": experiment, **parameters},
                               _rows(points, start))
    except sqlite3.Error as error:
        raise WrongFile(f"{path}: is no database of MLflow: {error}") from None


def _of_folder(path: str) -> FoundRun:
    about = yaml_parameters(path, "meta.yaml")
    parameters = {name: value_of(text_of(file)) for name, file in _files(os.path.join(path, "params"))}
    points = []
    for name, file in _files(os.path.join(path, "metrics")):
        for line, text in enumerate(text_of(file).splitlines(), 1):
            cells = [number(cell) for cell in text.split()]
            if len(cells) < 3 or None in cells:
                raise WrongFile(f"{file}:{line}: is {text[:40]!r}, not time, value and step")
            points.append((name, cells[1], cells[0], cells[2]))
    experiment = yaml_parameters(os.path.dirname(path), "meta.yaml").get("name")
    return FoundRun(f"{path}:{about.get('run_name', '')}", NAME, {"experiment": experiment, **parameters},
                    _rows(sorted(points, key=lambda point: point[2]), about.get("start_time")))


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """(name, path) of the files in a folder; a name with slashes is a path."""
    for inner, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(inner, name)
            yield os.path.relpath(path, folder), path


def _rows(points: Iterable[tuple[str, Any, Any, Any]], start: Any) -> list[dict[str, float]]:
    """The rows of (metric, value, milliseconds, step); the seconds are since the start, where it is known."""
    known = isinstance(start, (int, float))
    return rows_by_step((tag, float(value), (time - start) / 1000 if known else None, step)
                        for tag, value, time, step in points)
