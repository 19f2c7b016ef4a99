"""A log as CSV tables, and back.

    export_tables("w8.h5", "w8")        the folder w8: trials.csv, evaluations.csv, restarts.csv, steps.csv, log.json
    import_tables("w8", "again.h5")     the same log: every column, unit and root attribute

Each CSV row is a row of the table. Numbers are written without loss, missing values and unknown seeds as empty cells,
a status by its name. log.json has the root attributes and describes the columns.

Tables from elsewhere need no log.json; README.rst has their columns. A column search (yes or no) of trials.csv says
whether a trial is a draw of a metaparameter search rather than a repeat of one setting. Without it, trials of a
workload and batch whose metaparameters vary count as a search. Without a column workers, a trial had one worker.
"""
from __future__ import annotations

import csv
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from ..errors import LogError
from ..formatting.escaping import as_cell
from ..formatting.numbers import list_first, listed
from ..log.check import Ends, Fault, disordered, faults_of_rows, faults_of_trials, unfinished, unstarted
from ..log.directions import better
from ..log.reader import Log, LogTable
from ..log.schema import (SCHEMA, SOURCE, TABLES, UNKNOWN_SEED, LogColumn, Status, metaparameter_column,
                          metric_column)
from ..plan.values import did_you_mean
from ..system.inputs import LARGEST
from ..target import SPLITS, logged_name, metric_faults
from .csv_file import FLAGS, GAPS, TYPES, CsvRows, CsvText, integer_of, repeats
from .exported import exporting
from .files import LARGEST_INT, WrongFile, file_bytes, json_object
from .imported import BulkLog, beyond_errors, skipped_note, widen
from .runs.run import RunPath

FORMAT = "hvdscale-csv"
ROWS = 1 << 15                  # written at a time
LONGEST_LINE = 1 << 16          # bytes of the line before one that is cut off
LONGEST_ATTRIBUTE = 1 << 15     # bytes; HDF5 has room for twice that
NEEDED = {"trials": ("id", "dataset", "model", "optimizer", "global_batch"), "restarts": ("trial", "workers"),
          "evaluations": ("trial", "step"), "steps": ("trial", "step")}
OVERLAPS = ("first", "last")
OVERLAP = "; --overlap first or last says which rows stay where steps are repeated"
SOURCE_OF_ROWS = {"path": "trials.csv", "imported": "csv"}
SEARCH = "search"
COPIED = {"local_batch": "global_batch", "source_trial": "id"}      # a column that lacks is that other one
ASSUMED = ("assumed: 1 worker a trial, so that runs at other counts share its rows; a column workers in trials.csv "
           "says otherwise")
WORKLOAD = ("dataset", "model", "optimizer", "global_batch")
OF_FILE = ("format", "version", "segment", "segments")      # root attributes that belong to the file, not the log


def export_tables(path, out, progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """Write the log's tables into the new folder ``out``, see ``exporting``; returns the number of rows of each."""
    return export_each(path, out, _write_table, progress, _write_description)


def export_each(path, out, write: Callable[[Log, LogTable, str], Iterator[int]], progress: Callable[[float], None],
                begin: Callable[[Log, str], None] = lambda log, folder: None) -> dict[str, int]:
    """Export each table to a file of its own, as ``export_tables`` does.

    write   writes a table of the log into the folder; gives the number of rows of each piece that it has written
    """
    with exporting(path, out) as (log, folder):
        begin(log, folder)
        total, done = max(1, sum(table.rows for table in log.tables)), 0
        for table in log.tables:
            for rows in write(log, table, folder):
                done += rows
                progress(done / total)
        return {table.name: table.rows for table in log.tables}


def _write_description(log: Log, folder: str):
    columns = {table.name: [[c.name, c.type, c.unit, c.meaning, c.better] for c in table.specs.values()]
               for table in log.tables}
    attributes = {name: value for name, value in log.attributes.items() if name not in OF_FILE}
    with open(os.path.join(folder, "log.json"), "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "version": 1, "attributes": attributes, "columns": columns}, file, indent=1,
                  ensure_ascii=False)


def _write_table(log: Log, table: LogTable, folder: str) -> Iterator[int]:
    with open(os.path.join(folder, f"{table.name}.csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(as_cell, table.specs))
        for first in range(0, table.rows, ROWS):
            rows = min(ROWS, table.rows - first)
            writer.writerows(zip(*(_format_cells(table.read_rows(name, first, first + rows), spec)
                                   for name, spec in table.specs.items())))
            yield rows


def _format_cells(values: np.ndarray, spec: LogColumn) -> list:
    if spec.type == "float":
        return ["" if math.isnan(value) else repr(value) for value in values.tolist()]
    if spec.type == "text":
        return [as_cell(text) for text in values]
    plain = plain_values(values, spec)
    return plain.tolist() if isinstance(plain, np.ndarray) else plain


def plain_values(values: np.ndarray, spec: LogColumn) -> np.ndarray | list:
    """A column as other programs have it: a status by its name, an unknown seed as None, all else as it is."""
    if spec.type == "status":
        return [Status(value).name for value in values.tolist()]
    if spec.name == "seed":
        return [None if seed == UNKNOWN_SEED else seed for seed in values.tolist()]
    return values


def is_tables(path) -> bool:
    """Whether a folder has tables of trials, rather than, say, Optuna's of its own."""
    trials, evaluations = (os.path.join(path, name) for name in ("trials.csv", "evaluations.csv"))
    return os.path.isfile(trials) and (os.path.isfile(evaluations) or any(
        "global_batch" in line for line in RunPath(trials).head((".csv",))[:1]))


def import_tables(source, out, *, left_out: list[str] | None = None, overlap: str | None = None,
                  overwrite: bool = False, take_over: bool = False,
                  progress: Callable[[float], None] = lambda share: None,
                  note: Callable[[str], object] = lambda text: None) -> dict[str, int]:
    """Import the tables in the folder ``source`` into the new log ``out``; returns the number of rows of each.

    left_out  collects messages about trials that break a rule and are skipped; None: the first raises LogError
    overlap   which rows stay where those of a trial go back over its steps, see csv_file.repeats; None: LogError
    note      receives remarks on suspicious values and guesses

    Raises LogError naming file and line for any other fault; then there is no ``out``.
    """
    source, left = os.fspath(source), LeftOut(left_out)
    try:
        files = [TableFile(source, table) for table in TABLES]
        attributes, specs = _read_description(source, files)
        tables, said = _read(files, specs, attributes, left, overlap, progress)
        apply_rules(tables, left)
        if left.messages and not tables["trials"].rows:
            raise WrongFile(left.messages[0])
        errors: dict[str, tuple[float, float]] = {}
        widen(errors, tables["evaluations"])
        with BulkLog(out, specs, attributes, overwrite=overwrite, take_over=take_over) as log:
            for table in tables.values():
                for column in specs[table.name]:
                    values = table[column.name]
                    log.add(table.name, column.name, values.tolist() if column.type == "text" else values)
            if left.messages:
                log.note("skipped", _skipped(attributes, left.messages))
    except WrongFile as error:
        raise LogError(str(error)) from None
    except OSError as error:
        raise LogError(f"{error.filename or source}: cannot be read: {error.strerror or error}") from error
    for text in (*said, *beyond_errors(errors)):
        note(text)
    return {table.name: table.rows for table in tables.values()}


class LeftOut:
    """Trials that an import skips, and the messages about them and about lines without a known trial.

    messages  a list to extend; None: skipping is not allowed, and the first message is raised as WrongFile
    """

    def __init__(self, messages: list[str] | None):
        self.trials: set[int] = set()
        self.messages = messages

    def add(self, trial: int | None, message: str):
        """Skip a trial; None: only the line that the message names."""
        if self.messages is None:
            raise WrongFile(f"{message}; --skip-broken leaves out what is wrong")
        if trial in self.trials:
            return
        self.messages.append(message)
        if trial is not None:
            self.trials.add(trial)


class TableFile(CsvText):
    """One table's file; no rows if it does not exist."""

    def __init__(self, source: str, table: str):
        self.table, self.path = table, os.path.join(source, f"{table}.csv")
        self.exists = os.path.lexists(self.path)
        super().__init__(file_bytes(self.path, self.path, LARGEST, follow=True) if self.exists else b"", self.path)
        self.rename(self.header)

    def rename(self, header: Iterable[str]) -> None:
        """Name the columns; raises WrongFile where two have one name."""
        self.header = tuple(header)
        twice = [name for name, count in Counter(self.header).items() if count > 1]
        if twice:
            raise WrongFile(f"{self.path}:1: two columns are named {twice[0]!r}")

    def require(self, names: Iterable[str]) -> None:
        """Raise WrongFile unless the file has exactly these columns."""
        if self.exists and sorted(names) != sorted(self.header):
            differ = sorted(set(names) ^ set(self.header))[0]
            raise WrongFile(f"{self.path}:1: {differ!r} is not both a column here and in log.json")

    def read(self, types: Mapping[str, str], left: LeftOut) -> CsvRows:
        """All rows but those that are left out, as one without a line end is."""
        kinds = [types[name] for name in self.header]
        columns, lines = self.columns(kinds, lambda line, row, fault: left.add(self._trial_of(row), fault))
        if self.cut and self.header:
            texts = str(bytes(self.lines[-LONGEST_LINE:]) + self.cut, "utf-8", "replace").splitlines()[-2:]
            *before, last = (next(csv.reader([text], delimiter=self.separator), []) for text in texts)
            trial = self._trial_of(last[:-1], self._trial_of(before[0]) if before else None)    # its last cell is cut
            left.add(trial, self.cut_off())
        return CsvRows(self.table, self.path, columns, lines)

    def _trial_of(self, row: Sequence[str], otherwise: int | None = None) -> int | None:
        try:
            trial = integer_of(row[self.header.index("id" if self.table == "trials" else "trial")])
        except (IndexError, ValueError):
            return otherwise
        return trial if abs(trial) <= LARGEST_INT else None


def apply_rules(tables: Mapping[str, CsvRows], left: LeftOut):
    """Leave out, or refuse, each trial that breaks a rule."""
    trials, evaluations = tables["trials"], tables["evaluations"]
    for table in tables.values():
        table.drop(left.trials)
    _leave_out(tables, left, trials, faults_of_trials(trials))
    for table in (evaluations, tables["restarts"], tables["steps"]):
        _leave_out(tables, left, table, faults_of_rows(SimpleNamespace(trials=trials, evaluations=evaluations), table))
    ends = Ends(trials["id"])
    places, rows = ends.add(evaluations["trial"], evaluations["step"])
    last = dict(zip(places.tolist(), rows.tolist()))

    def value_at(row: int, column: str) -> float:
        return float(evaluations[column][last[row]]) if column in evaluations else np.nan
    _leave_out(tables, left, evaluations, [
        *unfinished(trials, ends, np.isin(trials["id"], tables["steps"]["trial"]), value_at),
        *unstarted(trials, tables["restarts"]["trial"])])


def _leave_out(tables: Mapping[str, CsvRows], left: LeftOut, table: CsvRows, faults: Iterable[Fault]):
    """Leave out the trials of faults that are met in a table."""
    known = len(left.trials)
    repeated = np.sort(disordered(table, "step", True)) if table.name in ("evaluations", "steps") else None
    for fault in faults:
        hint = OVERLAP if repeated is not None and np.array_equal(repeated, fault.rows) else ""
        for row in fault.rows.tolist():
            place = f"{table.path}:{table.lines[row]}" if fault.table is table else table.path
            left.add(fault.trial(row), f"{place}: trial {fault.trial(row)}{fault.say(row, '')}{hint}")
    for other in tables.values() if len(left.trials) > known else ():
        other.drop(left.trials)


def _skipped(attributes, messages) -> dict:
    """What was skipped, now and when the tables were first made."""
    skipped, before = skipped_note(messages), attributes.get("skipped")
    if isinstance(before, dict) and isinstance(before.get("count"), int):
        skipped["count"] += before["count"]
    return skipped


def _read_description(source, files) -> tuple[dict, dict[str, tuple[LogColumn, ...]]]:
    """Root attributes, and the columns of each table, from log.json or guessed."""
    path = os.path.join(source, "log.json")
    for file in files:
        if not file.exists and file.table in ("trials", "evaluations"):
            raise WrongFile(f"{file.path}: is missing")
    if not os.path.exists(path):
        _refuse_lacking(files)
        return {"imported": {"kind": "csv", "from": source}}, {file.table: _guess_columns(file) for file in files}
    about, _ = json_object(file_bytes(path, path, LARGEST, follow=True), path)
    if about.get("format") != FORMAT or about.get("version") != 1:
        raise WrongFile(f"{path}: is not of the format {FORMAT}, version 1")
    attributes, columns = about.get("attributes"), about.get("columns")
    if not isinstance(attributes, dict) or not isinstance(columns, dict):
        raise WrongFile(f"{path}: says no attributes or no columns")
    specs = {}
    for file in files:
        listed = columns.get(file.table, [])
        if not isinstance(listed, list) or not all(map(_is_column, listed)):
            raise WrongFile(f"{path}: the columns of {file.table} are not lists of name, type, unit, meaning, better")
        specs[file.table] = tuple(LogColumn(*column[:4], better=column[4]) for column in listed)
        for column in SCHEMA[file.table]:
            if any(given.name == column.name and given.type != column.type for given in specs[file.table]):
                raise WrongFile(f"{path}: {file.table}/{column.name} is not of the type {column.type}")
        _refuse_clash([column.name for column in specs[file.table]], path)
        file.require([column.name for column in specs[file.table]])
        missing = [c.name for c in SCHEMA[file.table] if not c.optional and c.name not in file.header]
        if missing:
            raise WrongFile(f"{file.path}:1: there is no column {missing[0]}")
    for name, value in attributes.items():
        if not _is_attribute(name, value) or name in ("versions", "imported") and not isinstance(value, dict):
            raise WrongFile(f"{path}: the attribute {name[:40]!r} is longer, larger or stranger than a log can hold")
    return {name: value for name, value in attributes.items() if name not in OF_FILE}, specs


def _refuse_lacking(files) -> None:
    """Raise WrongFile that names all columns which tables from elsewhere lack, each with the nearest there is."""
    lacking = []
    for file in files:
        missing = [name for name in NEEDED[file.table] if name not in file.header] if file.exists else []
        if missing:
            near = [did_you_mean(name, file.header, "") for name in missing]
            names = ", ".join(f"{name} ({found})" if found else name for name, found in zip(missing, near))
            there = list_first(map(repr, file.header), 8) or "none"
            lacking.append(f"{file.path}:1: there is no column {names}; there are {there}")
    if lacking:
        raise WrongFile("\n".join(lacking))


def _is_attribute(name, value) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return _is_path(name) and -LARGEST_INT - 1 <= value <= LARGEST_INT
    return _is_path(name) and len(json.dumps(value)) <= LONGEST_ATTRIBUTE


def _refuse_clash(names, path):
    """Raise WrongFile if a column would also be a group of others."""
    for name in names:
        above = [other for other in names if name.startswith(f"{other}/")]
        if above:
            raise WrongFile(f"{path}: these columns exclude each other: {above[0]!r} and {name!r}")


def _is_column(listed) -> bool:
    return isinstance(listed, list) and len(listed) == 5 and all(isinstance(text, str) for text in listed) \
        and listed[1] in ("int", "float", "text", "status") and _is_path(listed[0])


def _is_path(name) -> bool:
    return all(part.strip(".") for part in name.split("/")) and name.isprintable() and name != "committed_rows"


def _guess_columns(file) -> tuple[LogColumn, ...]:
    """The columns of a table from elsewhere, and those that every log has."""
    known = {column.name: column for column in SCHEMA[file.table]}
    if "" in file.header:
        raise WrongFile(f"{file.path}:1: a column has no name; pandas writes its index so, unless index=False")
    if file.table == "evaluations":
        file.rename(map(_as_logged, file.header))
    found = [column for column in known.values() if not column.optional or column.name in file.header]
    for name in file.header:
        prefix, _, rest = name.partition("/")
        if name in known or name == SEARCH and file.table == "trials":
            continue
        if file.table == "trials" and prefix == "metaparameters" and rest and _is_path(name):
            found.append(metaparameter_column(rest))
        elif file.table == "evaluations" and prefix in SPLITS and rest:
            for fault in metric_faults([rest]):
                raise WrongFile(f"{file.path}:1: {fault}")
            found.append(metric_column(name, better(name)))
        else:
            more = {"trials": f", {SEARCH}, metaparameters/NAME", "evaluations": ", SPLIT/METRIC such as val/error"}
            raise WrongFile(f"{file.path}:1: {file.table} have no column {name!r}; there are "
                            f"{', '.join(known)}{more.get(file.table, '')}")
    _refuse_clash(file.header, f"{file.path}:1")
    return (*found, *SOURCE) if file.table == "trials" else tuple(found)


def _as_logged(name: str) -> str:
    """The column of a metric with the metric's name in logs and targets; another column's name as it is."""
    split, slash, metric = name.partition("/")
    return f"{split}/{logged_name(metric)}" if slash else name


def _read(files, specs, attributes, left, overlap, progress) -> tuple[dict[str, CsvRows], list[str]]:
    """(the tables with all columns of a log; what was guessed, assumed or left out), also noted in ``attributes``."""
    tables = {}
    for done, file in enumerate(files, 1):
        types = {SEARCH: "text", **{column.name: column.type for column in specs[file.table]}}
        tables[file.table] = file.read(types, left)
        progress(done / len(files))
    for table in tables.values():
        table.drop(left.trials)
    trials, restarts = tables["trials"], tables["restarts"]
    said = {}
    if "imported" in attributes and "plan" not in trials:
        guess = _plan_search(trials)
        said |= {"search": guess} if guess else {}
    elif SEARCH in trials:
        raise WrongFile(f"{trials.path}:1: has the columns plan and {SEARCH}; write \"{SEARCH}\": true in the plans "
                        "instead")
    if "workers" not in trials:
        said["workers"] = ASSUMED
        trials["workers"] = np.ones(trials.rows, np.int64)
        trials["source"] = np.full(trials.rows, json.dumps({**SOURCE_OF_ROWS, "workers": None}), object)
    if counts := _drop_repeats(tables, overlap) if overlap else {}:
        rows = listed(f"{count:,} rows of {table}" for table, count in counts.items())
        said["overlap"] = f"left out: {rows} that repeat steps of their trial (--overlap {overlap})"
    if not files[TABLES.index("restarts")].exists:
        tables["restarts"] = CsvRows("restarts", restarts.path, {
            "trial": trials["id"], "workers": trials["workers"]}, trials.lines)
    for table in tables.values():
        for name in (column.name for column in specs[table.name] if column.name not in table):
            table[name] = _default_values(table, name, trials, left)
    trials["plan"] = np.array([text or "{}" for text in trials["plan"]], object)
    trials.setdefault("source", np.full(trials.rows, "", object))
    if said:
        attributes.setdefault("imported", {}).update(said)
    return tables, list(said.values())


def _drop_repeats(tables, overlap) -> dict[str, int]:
    """Drop rows that repeat steps of their trial; the number of each table that has any."""
    dropped = {}
    for name in (name for name in ("evaluations", "steps") if tables[name].rows):
        again = repeats(tables[name]["trial"], tables[name]["step"], overlap)
        if again.any():
            dropped[name] = int(again.sum())
            tables[name].keep(~again)
    return dropped


def _plan_search(trials: CsvRows) -> str:
    """Give each trial of a table from elsewhere a plan that says whether it is a draw of a search; what was guessed."""
    said, guess = trials.pop(SEARCH, None), ""
    if said is not None:
        drawn = list(map(_is_drawn, said, itertools.repeat(trials.path), trials.lines))
    else:
        tried = [trials[name].tolist() for name in trials if name.startswith("metaparameters/")]
        keys, first = list(zip(*(trials[name].tolist() for name in WORKLOAD))), {}
        varied = {key for key, point in zip(keys, map(repr, zip(*tried))) if first.setdefault(key, point) != point}
        drawn = [key in varied for key in keys]
        if varied:
            guess = (f"a search, guessed: metaparameters vary within {len(varied):,} of its batches, whose trials are "
                     f"taken for a search; a column {SEARCH} (yes or no) in trials.csv says otherwise")
    trials["plan"] = np.array([json.dumps({SEARCH: True} if one else {}) for one in drawn], object)
    return guess


def _is_drawn(text: str, path: str, line: int) -> bool:
    if text.strip().lower() not in FLAGS:
        raise WrongFile(f"{path}:{line}: {SEARCH} is {text[:40]!r}, not yes or no")
    return FLAGS[text.strip().lower()]


def _default_values(table: CsvRows, name: str, trials: CsvRows, left: LeftOut) -> np.ndarray:
    """A column of a log that the table lacks."""
    if name == "examples":
        return _examples(table, trials, left)
    if name in COPIED:
        return table[COPIED[name]]
    known = {**GAPS, "status": Status.COMPLETE, "stop_reason": "the tables say no more",
             "source": json.dumps(SOURCE_OF_ROWS)}
    kind = next(column.type for column in (*SCHEMA[table.name], *SOURCE) if column.name == name)
    return np.full(table.rows, known.get(name, {"text": "", "float": np.nan, "int": 0}.get(kind)), TYPES[kind])


def _examples(evaluations: CsvRows, trials: CsvRows, left: LeftOut) -> np.ndarray:
    """The number of examples of evaluations: steps times the global batch; of an unknown trial, which is refused, 0."""
    batch = dict(zip(trials["id"].tolist(), trials["global_batch"].tolist()))
    batches = np.array([batch.get(trial, 0) for trial in evaluations["trial"].tolist()], np.int64)
    step = evaluations["step"]
    for row in np.flatnonzero(step > LARGEST_INT // np.maximum(batches, 1)).tolist():
        left.add(int(evaluations["trial"][row]), f"{evaluations.path}:{evaluations.lines[row]}: step {step[row]} is "
                 "more than 64 bits can count examples of")
    return step * batches
