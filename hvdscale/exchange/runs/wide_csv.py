"""CSV files with a row a step or an evaluation: Lightning's CSVLogger, Keras' CSVLogger, Ray's progress.csv, AlgoPerf's
measurements.csv, and W&B's exports, be it of a run's history or of a chart, which has a column a run.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence

from ..files import WrongFile
from .run import FoundRun, csv_rows, head_of, number, text_of, value_of, yaml_parameters

NAME = "CSV"
ENDS, LOGS = (".csv", ".tsv"), (".log", ".txt")     # Keras' CSVLogger is told training.log
_CHART = re.compile(r"(?P<run>.+) - (?P<tag>[^-]+?)(?P<end>__MIN|__MAX)?")        # of W&B's charts
_BESIDE = ("params.json", "flags.json", "config.json")


def recognises(path: str) -> bool:
    """Whether it is a CSV file, by its name or, of a log, by its first two lines; what the columns mean is not looked
    at."""
    if path.endswith(ENDS):
        return os.path.isfile(path)
    header, row = (line.strip().split(",") for line in (*head_of(path, LOGS), "", "")[:2])
    return (1 < len(header) == len(row) and not any(map(number, header)) and any(
        number(cell) is not None for cell in row) and all(re.fullmatch(r"\s*[\w/@. -]+\s*", name) for name in header))


def read(path: str) -> Iterator[FoundRun]:
    """The file's run, or the runs of a chart. Raises WrongFile, naming file and line."""
    header, lines = csv_rows(path)
    charted = [_CHART.fullmatch(name) for name in header]
    if any(charted) and all(charted[1:]):
        yield from _runs_of_chart(path, header[0], charted, lines)
        return
    cells = [[number(cell) for cell in line] for line in lines]
    texts = {name: line[at] for line in lines[:1] for at, name in enumerate(header)
             if name and line[at] and all(row[at] is None for row in cells)}
    rows = [{name: value for name, value in zip(header, row) if name and value is not None} for row in cells]
    parameters = {**_parameters(os.path.dirname(path)), **{name: value_of(text) for name, text in texts.items()}}
    yield FoundRun(path, NAME, parameters, rows)


def _runs_of_chart(path: str, axis: str, charted: Sequence[re.Match[str] | None], lines: Sequence[Sequence[str]]
                   ) -> Iterator[FoundRun]:
    found: dict[str, list[tuple[int, str]]] = {}
    for at, match in enumerate(charted):
        if match and not match["end"]:
            found.setdefault(match["run"], []).append((at, match["tag"]))
    for run, columns in found.items():
        rows = [{axis: number(line[0]), **{tag: number(line[at]) for at, tag in columns}} for line in lines]
        yield FoundRun(f"{path}:{run}", NAME, {}, [
            {tag: value for tag, value in row.items() if value is not None} for row in rows
            if any(row[tag] is not None for _, tag in columns)])


def _parameters(folder: str) -> dict:
    """The scalars of a file with settings that lies beside."""
    found = yaml_parameters(folder)
    for name in _BESIDE:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            try:
                data = json.loads(text_of(path))
            except (ValueError, RecursionError) as error:
                raise WrongFile(f"{path}: is not JSON: {error}") from None
            if isinstance(data, dict):
                found |= {key: value for key, value in data.items() if isinstance(value, (int, float, str))}
    return found
