"""CSV files with a row a step or an evaluation: Lightning's CSVLogger, Keras' CSVLogger, Ray's progress.csv, AlgoPerf's
measurements.csv, and W&B's exports, be it of a run's history or of a chart, which has a column a run. A file may have
several runs, of a row or more each: W&B's table of runs, Optuna's and Ray's dataframes, MLflow's search, spreadsheets.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter

from ...analysis.grouping import group_by
from .mapping import BATCH_NAMES, EPOCH_NAMES, REPORTS, STEP_NAMES
from .run import FoundRun, RunPath, constants, csv_rows, number, rows_by_step, value_of

NAME = "CSV"
ENDS, LOGS = (".csv", ".tsv"), (".log", ".txt")     # Keras' CSVLogger is told training.log
_CHART = re.compile(r"(?P<run>.+) - (?P<tag>[^-]+?)(?P<end>__MIN|__MAX)?")        # of W&B's charts
_EXPORT = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+)\.csv")                     # a file a tag of TensorBoard's
_POINT = ["Wall time", "Step", "Value"]
_RUN = ("run", "run_id", "run_name", "name", "trial", "trial_id", "id", "number", "experiment", "tags.mlflow.runname")
_STATE = ("state", "status")
_WHOLE = ("", "finished", "complete", "completed", "terminated", "success", "succeeded", "done")
_GROUP = re.compile(r"(?:params?|config|hparams|hyperparameters|metrics|summary|user_attrs)[./_](?=.)")


def recognises(path: RunPath) -> bool:
    """Whether it is a CSV file, by its name or, of a log, by its first two lines; what the columns mean is not looked
    at."""
    if path.endswith(ENDS):
        return os.path.isfile(path)
    header, row = (line.strip().split(",") for line in (*path.head(LOGS), "", "")[:2])
    return (1 < len(header) == len(row) and not any(map(number, header)) and any(
        number(cell) is not None for cell in row) and all(re.fullmatch(r"\s*[\w/@. -]+\s*", name) for name in header))


def read(path: str) -> Iterator[FoundRun]:
    """The file's run, or the runs of a chart. Raises WrongFile, naming file and line."""
    header, lines = csv_rows(path)
    if header == _POINT and _EXPORT.fullmatch(os.path.basename(path)):
        yield from _run_of_tags(path)
        return
    charted = [_CHART.fullmatch(name) for name in header]
    if any(charted) and all(charted[1:]):
        yield from _runs_of_chart(path, header[0], charted, lines)
        return
    cells = [[number(cell) for cell in line] for line in lines]
    names = _runs_of_rows(header, lines, cells)
    if len(set(names)) > 1:
        yield from _runs_of_table(path, header, lines, cells, names)
        return
    texts = {name: line[at] for line in lines[:1] for at, name in enumerate(header)
             if name and line[at] and all(row[at] is None for row in cells)}
    yield FoundRun(path, NAME, {name: value_of(text) for name, text in texts.items()},
                   [_known(header, row) for row in cells])


def _known(header: Sequence[str], row: Sequence[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(header, row) if name and value is not None}


def _runs_of_rows(header: Sequence[str], lines: Sequence[Sequence[str]], cells: Sequence[Sequence[float | None]]
                  ) -> list[str]:
    """The name of each row's run: by a column that names runs or, where the batch changes though no step rises, by the
    row's number; "" of all rows of one run."""
    rising = any(_rises([row[at] for row in cells]) for at, name in enumerate(header)
                 if name in (*STEP_NAMES, *EPOCH_NAMES, *REPORTS))
    for at in (at for at, name in enumerate(header) if name.lower().replace(" ", "_") in _RUN):
        found, numbered = [line[at] for line in lines], any(row[at] is not None for row in cells)
        if all(found) and not (rising and numbered):
            return found
    varies = any(len({row[at] for row in cells}) > 1 for at, name in enumerate(header)
                 if _GROUP.sub("", name) in BATCH_NAMES)
    return [str(at) for at in range(len(lines))] if varies and not rising else [""] * len(lines)


def _rises(column: Sequence[float | None]) -> bool:
    found = [value for value in column if value is not None]
    return len(found) > 1 and all(one < other for one, other in zip(found, found[1:]))


def _runs_of_table(path: str, header: Sequence[str], lines: Sequence[Sequence[str]],
                   cells: Sequence[Sequence[float | None]], names: Sequence[str]) -> Iterator[FoundRun]:
    """The runs of a table of several: what never changes in a run's rows is a parameter of it, too."""
    short = [_GROUP.sub("", name, count=1) for name in header]
    header = short if len(set(short)) == len(short) else header
    for run, own in group_by(zip(names, lines, cells), itemgetter(0)).items():
        texts = constants(dict(zip(header, line)) for _, line, _ in own)
        parameters = {name: value_of(text) for name, text in texts.items() if name and text}
        state = next((str(parameters[name]) for name in header if name.lower() in _STATE and name in parameters), "")
        yield FoundRun(f"{path}:{run}", NAME, parameters, [_known(header, row) for *_, row in own],
                       unfinished="" if state.lower() in _WHOLE else state)


def _run_of_tags(path: str) -> Iterator[FoundRun]:
    """The run of all files that TensorBoard exported of it into one folder, by the first of them."""
    folder, own = os.path.split(path)
    run = _EXPORT.fullmatch(own)["run"]
    files = [found for name in sorted(os.listdir(folder or ".")) if (found := _EXPORT.fullmatch(name))
             and found["run"] == run]
    if own == files[0][0]:
        lines = [(found["tag"], *map(number, line)) for found in files
                 for line in csv_rows(os.path.join(folder, found[0]))[1]]
        points = sorted((line for line in lines if None not in line), key=itemgetter(1))
        yield FoundRun(os.path.join(folder, run), NAME, {}, rows_by_step(
            (tag, value, time - points[0][1], step) for tag, time, step, value in points))


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
