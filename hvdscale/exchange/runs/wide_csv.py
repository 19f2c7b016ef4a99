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
from .mapping import BATCH_NAMES, EPOCH_NAMES, STEP_NAMES
from .run import FoundRun, RunPath, constants, csv_rows, json_of, number, value_of, yaml_parameters

NAME = "CSV"
ENDS, LOGS = (".csv", ".tsv"), (".log", ".txt")     # Keras' CSVLogger is told training.log
_CHART = re.compile(r"(?P<run>.+) - (?P<tag>[^-]+?)(?P<end>__MIN|__MAX)?")        # of W&B's charts
_BESIDE = ("params.json", "flags.json", "config.json", "args.json", "hparams.json")
_FLAT = ("hparams.yaml", "args.yaml", "params.yaml", "config.yaml")
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
    charted = [_CHART.fullmatch(name) for name in header]
    if any(charted) and all(charted[1:]):
        yield from _runs_of_chart(path, header[0], charted, lines)
        return
    cells, beside = [[number(cell) for cell in line] for line in lines], _parameters(os.path.dirname(path))
    names = _runs_of_rows(header, lines, cells)
    if len(set(names)) > 1:
        yield from _runs_of_table(path, header, lines, cells, names, beside)
        return
    texts = {name: line[at] for line in lines[:1] for at, name in enumerate(header)
             if name and line[at] and all(row[at] is None for row in cells)}
    yield FoundRun(path, NAME, {**beside, **{name: value_of(text) for name, text in texts.items()}},
                   [_known(header, row) for row in cells])


def _known(header: Sequence[str], row: Sequence[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(header, row) if name and value is not None}


def _runs_of_rows(header: Sequence[str], lines: Sequence[Sequence[str]], cells: Sequence[Sequence[float | None]]
                  ) -> list[str]:
    """The name of each row's run: by a column that names runs or, where the batch changes though no step rises, by the
    row's number; "" of all rows of one run."""
    rising = any(_rises([row[at] for row in cells]) for at, name in enumerate(header)
                 if name in (*STEP_NAMES, *EPOCH_NAMES))
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
                   cells: Sequence[Sequence[float | None]], names: Sequence[str], beside: dict) -> Iterator[FoundRun]:
    """The runs of a table of several: what never changes in a run's rows is a parameter of it, too."""
    short = [_GROUP.sub("", name, count=1) for name in header]
    header = short if len(set(short)) == len(short) else header
    for run, own in group_by(zip(names, lines, cells), itemgetter(0)).items():
        texts = constants(dict(zip(header, line)) for _, line, _ in own)
        parameters = {name: value_of(text) for name, text in texts.items() if name and text}
        state = next((str(parameters[name]) for name in header if name.lower() in _STATE and name in parameters), "")
        yield FoundRun(f"{path}:{run}", NAME, {**beside, **parameters}, [_known(header, row) for *_, row in own],
                       unfinished="" if state.lower() in _WHOLE else state)


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
    """The scalars of the files with settings that lie beside."""
    found = {key: value for name in _FLAT for key, value in yaml_parameters(folder, name).items()}
    for name in _BESIDE:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            data = json_of(path)
            if isinstance(data, dict):
                found |= {key: value for key, value in data.items() if isinstance(value, (int, float, str))}
    return found
