"""MLflow's runs: the folder of a file store (mlruns), or its SQLite database. mlflow itself is not needed."""

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from ...system.inputs import open_input
from ..files import WrongFile, as_float, is_number, number_of, text_of
from .run import FoundRun, files_below, read_settings, rows_by_step, series_of, value_of

NAME = "MLflow"
_SQLITE = b"SQLite format 3\0"
_POINTS = "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
_RUNS = ("SELECT run_uuid, runs.name, start_time, experiments.name FROM runs JOIN experiments USING (experiment_id) "
         "WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid")


def recognises(path: str) -> bool:
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "meta.yaml")) and os.path.isdir(os.path.join(path, "metrics"))
    with open_input(path, buffering=0) as file:
        return file.read(len(_SQLITE)) == _SQLITE


def read(path: str) -> Iterator[FoundRun]:
    """The run of a folder, or all runs of a database that were not deleted. Raises WrongFile."""
    if os.path.isdir(path):
        about = read_settings(os.path.join(path, "meta.yaml"), "yaml")
        found = {name: value_of(text_of(file)) for name, file in files_below(os.path.join(path, "params")).items()}
        points = []
        for name, file in files_below(os.path.join(path, "metrics")).items():
            for line, text in enumerate(text_of(file).splitlines(), 1):
                cells = [number_of(cell) for cell in text.split()]
                if len(cells) < 3 or None in cells:
                    raise WrongFile(f"{file}:{line}: is {text[:40]!r}, not time, value and step")
                points.append((name, cells[1], cells[0], cells[2]))
        above = os.path.join(os.path.dirname(path), "meta.yaml")
        experiment = read_settings(above, "yaml").get("name") if os.path.isfile(above) else None
        yield _run_of(f"{path}:{about.get('run_name', '')}", {"experiment": experiment, **found}, points,
                      about.get("start_time"))
        return
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as base:
            for run, name, start, experiment in base.execute(_RUNS).fetchall():
                parameters = {str(key): value_of(str(value)) for key, value in base.execute(
                    "SELECT key, value FROM params WHERE run_uuid = ?", (run,))}
                points = [(str(key), math.nan if is_nan else value, time, step)
                          for key, value, time, step, is_nan in base.execute(_POINTS, (run,))]
                yield _run_of(f"{path}:{name or run}", {"experiment": experiment, **parameters}, points, start)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise WrongFile(f"{path}: is no database of MLflow: {error}") from None


def _run_of(path: str, parameters: dict[str, Any], points: Iterable[tuple[str, Any, Any, Any]], start: Any) -> FoundRun:
    """The run of points (metric, value, milliseconds, step); the seconds are since the start, where it is known. Where
    all are of step 0, as without a step, they are one row of a table of ends, with the parameters that are numbers."""
    known = isinstance(start, (int, float))
    found = []
    for tag, *numbers in points:
        value, time, step = (as_float(one, f"{path}: {name} of {tag}") for one, name in zip(
            numbers, ("a value", "a timestamp", "a step")))
        found.append((tag, value, time / 1000 if known else None, step))
    if found and not any(step for *_, step in found):
        last = {tag: value for tag, value, *_ in found}
        counts = {name: value for name, value in parameters.items() if is_number(value)}
        return FoundRun(path, NAME, parameters, series_of([counts | last]))
    return FoundRun(path, NAME, parameters, series_of(rows_by_step(found, start / 1000 if known else None)))
