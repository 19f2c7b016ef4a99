"""DVCLive's folder: a table for each metric under plots/metrics, which has the steps at which it was logged."""
from __future__ import annotations

import os
from collections.abc import Iterator

from .run import FoundRun, rows_by_step, series_of
from .wide_csv import table_of

NAME = "DVCLive"
PLACES = (os.path.join("plots", "metrics"), os.path.join("plots", "scalars"), "scalars")     # of new and older versions


def recognises(path: str) -> bool:
    return bool(_tables_of(path))


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run; raises WrongFile, naming file and line."""
    points = []
    for tag, file in _tables_of(path).items():
        table = table_of(file)
        points += [(tag, value, None, step) for name, values in table.values.items() if name not in ("step", "timestamp")
                   for value, step in zip(values.tolist(), table.values["step"].tolist())]
    points.sort(key=lambda point: point[3])
    yield FoundRun(path, NAME, {}, series_of(rows_by_step(points), path))


def _tables_of(path: str) -> dict[str, str]:
    """The files of tables with steps, by their names within the folder."""
    top = next((top for place in PLACES if os.path.isdir(top := os.path.join(path, place))), "")
    found = {os.path.relpath(os.path.join(folder, name), top).removesuffix(".tsv"): os.path.join(folder, name)
             for folder, _, names in (os.walk(top) if top else ()) for name in sorted(names) if name.endswith(".tsv")}
    return {tag: file for tag, file in sorted(found.items()) if "step" in _header_of(file)}


def _header_of(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline(1 << 16).rstrip("\n").split("\t")
