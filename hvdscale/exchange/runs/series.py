"""Folders in which each metric has a series of its own: of DVCLive, plots/metrics/NAME.tsv; of Sacred, metrics.json."""
from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..files import WrongFile
from .json_lines import scalars
from .run import STEP, FoundRun, csv_rows, json_of, number, rows_by_step, yaml_parameters

DVCLIVE, SACRED = os.path.join("plots", "metrics"), ("metrics.json", "run.json")
OF_MACHINE = "system"           # DVCLive's series of the machine rather than of the run
Point = tuple[str, float, float | None, float]          # metric, value, time in seconds, step


def recognises(path: str) -> bool:
    """Whether it is a run's folder of DVCLive or Sacred."""
    return os.path.isdir(os.path.join(path, DVCLIVE)) or all(os.path.isfile(os.path.join(path, name))
                                                             for name in SACRED)


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run. Raises WrongFile, naming the file and what is wrong."""
    if os.path.isdir(os.path.join(path, DVCLIVE)):
        points = _dvclive(os.path.join(path, DVCLIVE))
        yield FoundRun(path, "DVCLive", yaml_parameters(path, "params.yaml"), _rows(points))
        return
    metrics, run = (_object(os.path.join(path, name)) for name in SACRED)
    config = os.path.join(path, "config.json")
    settings = dict(scalars(_object(config))) if os.path.isfile(config) else {}
    state = str(run.get("status", ""))
    try:
        rows = _rows(_sacred(metrics))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WrongFile(f"{path}/metrics.json: is no file of Sacred: {error!r}") from None
    yield FoundRun(path, "Sacred", settings, rows, unfinished="" if state == "COMPLETED" else state.lower())


def _dvclive(folder: str) -> Iterator[Point]:
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != OF_MACHINE]
        for file in (os.path.join(above, name) for name in names if name.endswith(".tsv")):
            header, lines = csv_rows(file)
            for row in ({name: number(cell) for name, cell in zip(header, line)} for line in lines):
                value, step, time = row[header[-1]], row.get(STEP), row.get("timestamp")
                if step is not None and value is not None:
                    yield os.path.relpath(file, folder)[:-4], value, time and time / 1000, step


def _sacred(metrics: dict[str, Any]) -> Iterator[Point]:
    for name, series in metrics.items():
        for step, value, time in zip(series["steps"], series["values"], series["timestamps"]):
            plain = value["value"] if isinstance(value, dict) else value        # a scalar of numpy
            yield name.replace(".", "/"), float(plain), datetime.fromisoformat(time).timestamp(), float(step)


def _rows(points: Iterator[Point]) -> list[dict[str, float]]:
    """By step, with seconds since the first."""
    found = sorted(points, key=lambda point: point[3])
    start = min((time for _, _, time, _ in found if time is not None), default=0.0)
    return rows_by_step((name, value, None if time is None else time - start, step)
                        for name, value, time, step in found)


def _object(path: str) -> dict[str, Any]:
    found = json_of(path)
    if not isinstance(found, dict):
        raise WrongFile(f"{path}: is no object of JSON")
    return found
