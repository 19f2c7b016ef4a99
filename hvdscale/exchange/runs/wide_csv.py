"""CSV files with a row a step or an evaluation: Lightning's CSVLogger, Keras' CSVLogger, Ray's progress.csv, AlgoPerf's
measurements.csv, and W&B's exports, be it of a run's history or of a chart, which has a column a run. A file may have
several runs, of a row or more each: W&B's table of runs, Optuna's and Ray's dataframes, MLflow's search, spreadsheets.
And runs with a file a tag, which has its steps: TensorBoard's exports, and DVCLive's folder.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from ...analysis.studies import group_by
from ...system.inputs import LARGEST
from ..csv_file import CsvText
from ..files import WrongFile, file_bytes, number_of
from .guessing import NAMES, falls_by_epoch, say, setting_names, split_of
from .json_lines import COUNT
from .run import FoundRun, Series, constants_of, files_below, head_of, rows_by_step, series_of, value_of

NAME = "CSV"
ENDS, LOGS = (".csv", ".tsv"), (".log", ".txt")     # Keras' CSVLogger is told training.log
_EXPORT, _CHARTED, _GROUP, _COUNTER, _HEADER = map(re.compile, NAMES["csv"].values())
_POINT = ("Wall time", "Step", "Value")
_DVCLIVE = (os.path.join("plots", "metrics"), os.path.join("plots", "scalars"), "scalars")     # new and older versions


@dataclass
class _Table:
    path: str
    rows: int
    values: Mapping[str, np.ndarray]        # numbers, NaN where a cell has none
    there: Mapping[str, np.ndarray]         # where a cell has a number
    texts: Mapping[str, np.ndarray]         # the cells of columns with a cell that is no number

    def run(self, path: str, rows: np.ndarray | slice = slice(None), names: Mapping[str, str] = {}) -> FoundRun:
        """The run of some rows; what never changes in them is a parameter, too. ``names``: others of columns."""
        cells = {names.get(name, name): (self.values[name][rows], self.there[name][rows])
                 for name in self.values if name}
        series = {name: Series(np.flatnonzero(there), values[there]) for name, (values, there) in cells.items()
                  if there.any()}
        texts = {names.get(name, name): {*texts[rows].tolist()} for name, texts in self.texts.items() if name}
        numbers = constants_of({name: found for name, found in series.items() if name not in texts})
        return FoundRun(path, NAME, {
            **{name: int(value) if value.is_integer() else value for name, value in numbers.items()},
            **{name: value_of([*given][0]) for name, given in texts.items() if len(given) == 1 and given != {""}}},
            series, left_out={name: "its cells are no numbers" for name, given in texts.items()
                              if len(given) > 1 and name not in series})


def recognises(path: str) -> bool:
    """Whether it is a CSV file, by its name or, of a log, by its first two lines; or DVCLive's folder."""
    if os.path.isdir(path):
        return any(os.path.isdir(os.path.join(path, place)) for place in _DVCLIVE)
    if path.lower().endswith(ENDS):
        return True
    head = (*filter(None, map(str.strip, head_of(path, LOGS))), "", "")[:2]
    header, row = (line.split("\t" if "\t" in head[0] and COUNT.search(head[0]) else ",") for line in head)
    return (1 < len(header) == len(row) and not any(map(number_of, header)) and any(
        number_of(cell) is not None for cell in row) and all(_HEADER.fullmatch(name.strip()) for name in header))


def read(path: str) -> Iterator[FoundRun]:
    """The run or runs at a path; raises WrongFile, naming file and line."""
    if os.path.isdir(path):
        top = next(top for place in _DVCLIVE if os.path.isdir(top := os.path.join(path, place)))
        yield _run_of_tags(path, {name[:-4]: file for name, file in files_below(top).items() if name.endswith(".tsv")})
        return
    table, (folder, own) = _table_of(path), os.path.split(path)
    if tuple(table.values) == _POINT and (export := _EXPORT.fullmatch(own)):
        files = {other["tag"]: os.path.join(folder, name) for name in sorted(os.listdir(folder or "."))
                 if (other := _EXPORT.fullmatch(name)) and other["run"] == export["run"]}
        if path == next(iter(files.values())):          # else the run was read by that one
            yield _run_of_tags(os.path.join(folder, export["run"]), files)
        return
    charted = [_CHARTED.fullmatch(name) for name in table.values]
    if any(charted) and all(charted[1:]):
        axis, found = next(iter(table.values)), {}
        count = "_step" if axis == "Step" else axis                # calls of W&B's log
        for match in charted:
            if match and not match[0].endswith(("__MIN", "__MAX")):
                found.setdefault(match["run"], {})[match["tag"]] = match[0]
        for run, columns in found.items():
            rows = np.logical_or.reduce([table.there[name] for name in columns.values()])
            series = table.run(table.path, rows).series
            yield FoundRun(f"{table.path}:{run}", NAME, {}, {
                tag: series[name] for tag, name in {count: axis, **columns}.items() if name in series})
    elif runs := _rows_of_runs(table):
        short = {name: _GROUP.sub("", name, count=1) for name in table.values}
        renamed = short if len({*short.values()}) == len(short) else {}
        for name, rows in runs.items():
            run = table.run(f"{table.path}:{name}", rows, renamed)
            state = next((str(value) for name, value in run.parameters.items() if name.lower() in NAMES["state"]), "")
            yield replace(run, unfinished="" if state.lower() in NAMES["whole"] else f"its state is {state}")
    else:
        yield table.run(path)


def _table_of(path: str) -> _Table:
    """The columns of a file; raises WrongFile for a row that is longer or shorter."""
    text = CsvText(file_bytes(path, path, LARGEST, follow=True), path)
    if not text.header:
        raise WrongFile(f"{text.name}: is empty")
    often: Counter[str] = Counter()
    titles = []
    for name in map(str.strip, text.header):            # twice one name: the second has a number, as pandas gives it
        titles.append(f"{name}.{often[name]}" if often[name] else name)
        often[name] += 1
    text.header = tuple(titles)
    text.end_last_line()                                # where a writer was killed, or there is no line end
    found = text.numbers()
    if found is not None and ((there := ~np.isnan(found.T)).all() or b"nan" not in bytes(text.lines).lower()):
        return _Table(text.name, text.rows, dict(zip(titles, found.T)), dict(zip(titles, there)), {})
    cells, lines = text.columns(["text"] * len(titles))
    read = {name: [number_of(cell.removesuffix("%")) for cell in column] for name, column in cells.items()}
    for name in {*NAMES["step"], *NAMES["epoch"]} & cells.keys() if text.separator != ";" else ():
        found = [_COUNTER.fullmatch(cell.strip()) for cell in cells[name]]
        if all(found) and len({one.group(1, 3) for one in found}) == 1:
            read[name] = [float(one[2].replace(",", "")) for one in found]
    there = {name: np.array([one is not None for one in column], bool) for name, column in read.items()}
    texts = {name: column for name, column in cells.items() if any(map(str.strip, column[~there[name]]))}
    values = {name: np.array(column, float) for name, column in read.items()}       # None is NaN
    splits = next((found for name in texts if name.lower() in NAMES["of_splits"]
                   and len({*(found := np.array(list(map(split_of, texts[name]))))} - {""}) > 1), None)
    for name in titles if splits is not None else ():
        if name not in texts and not COUNT.search(name):
            column, known = values.pop(name), there.pop(name)
            for split in dict.fromkeys(splits.tolist()):
                values[f"{split}/{name}"], there[f"{split}/{name}"] = column, known & (splits == split)
    return _Table(text.name, len(lines), values, there, texts)


def _rows_of_runs(table: _Table) -> dict[str, np.ndarray]:
    """The rows of each run by its name: of a column that names runs, or, where the batch changes though no step rises,
    of rows alike in all settings within which the step rises, else of each row; {} of one run alone."""
    counters = [name for name in table.values if name in (*NAMES["step"], *NAMES["epoch"], *NAMES["reports"])]
    indices = [name for name in table.values if name in NAMES["index"]]         # of the steps of an epoch
    rising = any(_rises(table.values[name][table.there[name]]) for name in counters) or any(
        falls_by_epoch(table.run(table.path), index, name) for index in indices for name in counters)
    for name in (name for name in table.values if name.lower().replace(" ", "_") in NAMES["run"]):
        cells = table.texts[name] if name in table.texts else [f"{value:.12g}" for value in table.values[name]]
        if all(map(str.strip, cells)) and "nan" not in cells and not (rising and name not in table.texts):
            found = _rows_by(cells)
            once = counters and all(len({*table.values[counter][own].tolist()}) == 1
                                    for counter in counters for own in found.values())
            if once and len(found) < table.rows:        # runs of one name, such as those of several seeds
                return {f"{cell} {row}": np.array([row]) for row, cell in enumerate(cells)}
            return found if len(found) > 1 else {}
    short = {name: _GROUP.sub("", name, count=1) for name in table.values}
    known, batches = setting_names(), {*NAMES["global_batch"], *NAMES["batch"], *NAMES["worker_batch"]}
    settings = [name for name in table.values if short[name].lower() in known]
    if rising or not any(short[name] in batches and len({*table.values[name].tolist()}) > 1 for name in settings):
        return {}
    found = _rows_by(zip(*(table.texts.get(name, table.values[name]).tolist() for name in settings)))
    several = [own for own in found.values() if len(own) > 1]
    if not counters or not several:
        return {str(row): np.array([row]) for row in range(table.rows)}
    if not any(all(_rises(table.values[name][own]) for own in several) for name in counters):
        raise WrongFile(say("no_run", path=table.path, counters=", ".join(counters), settings=", ".join(settings)))
    return {" ".join(f"{name}={value}" for name, value in zip(settings, key)): own for key, own in found.items()}


def _rows_by(keys: Iterable[Any]) -> dict[Any, np.ndarray]:
    return {key: np.array([row for row, _ in own]) for key, own in group_by(enumerate(keys), itemgetter(1)).items()}


def _rises(column: np.ndarray) -> bool:
    return len(column) > 1 and bool((column[1:] > column[:-1]).all())


def _run_of_tags(path: str, files: Mapping[str, str]) -> FoundRun:
    """The run of files by tag, each with columns of steps, perhaps of times, and last of values."""
    points: list[tuple[str, float, float | None, float]] = []
    for tag, file in files.items():
        values = {name.lower(): column for name, column in _table_of(file).values.items()}
        if "step" in values:
            columns = np.array([[*values.values()][-1], values["step"], values.get("wall time", values["step"])])
            points += [(tag, value, time if "wall time" in values else None, step)
                       for value, step, time in columns[:, ~np.isnan(columns).any(axis=0)].T.tolist()]
    return FoundRun(path, NAME, {}, series_of(rows_by_step(points), path))
