"""DVCLive's folder: a table for each metric under plots/metrics, which has the steps at which it was logged."""
from __future__ import annotations

import os
from collections.abc import Iterator

from .run import FoundRun, rows_by_step, series_of
from .wide_csv import table_of

NAME = "DVCLive"
PLACES = (os.path.join("plots", "metrics"), os.path.join("plots", "scalars"), "scalars")     # of new and older versions


def recognises(path: str) -> bool:
    return any(os.path.isdir(os.path.join(path, place)) for place in PLACES)


def read(path: str) -> Iterator[FoundRun]:
    """The folder's run; raises WrongFile, naming file and line."""
    top, points = next(top for place in PLACES if os.path.isdir(top := os.path.join(path, place))), []
    for file in sorted(os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names):
        table = table_of(file) if file.endswith(".tsv") else None
        if table and "step" in table.values:
            tag = os.path.relpath(file, top).removesuffix(".tsv")
            points += [(tag, value, None, step) for name in table.values if name not in ("step", "timestamp")
                       for value, step in zip(table.values[name].tolist(), table.values["step"].tolist())]
    yield FoundRun(path, NAME, {}, series_of(rows_by_step(sorted(points, key=lambda point: point[3])), path))
