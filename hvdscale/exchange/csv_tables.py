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

import contextlib
import csv
import json
import os
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import LogError
from ..formatting.escaping import as_cell
from ..formatting.numbers import list_first, listed
from ..log.check import refuse_unsound_trials
from ..log.reader import SCHEMA, Log, Table, read_log
from ..log.schema import (SOURCE, TABLES, UNKNOWN_SEED, Column, Status, better, metaparameter_column,
                          metric_column)
from ..target import SPLITS, logged_name, metric_faults
from .archive_export import new_folder
from .archive_files import LARGEST_INT, WrongFile, json_object
from .bulk_log import BulkLog
from .csv_file import FLAGS, GAPS, ROWS, CsvFile, select
from .csv_rules import LeftOut, TableRules
from .imported import UNSHARED, beyond_errors, skipped_note, widen

FORMAT = "hvdscale-csv"
LONGEST_ATTRIBUTE = 1 << 15     # bytes; HDF5 has room for twice that
NEEDED = {"trials": ("id", "dataset", "model", "optimizer", "global_batch"), "restarts": ("trial", "workers"),
          "evaluations": ("trial", "step"), "steps": ("trial", "step")}
OVERLAPS = ("first", "last")
SOURCE_OF_ROWS = {"path": "trials.csv", "imported": "csv"}
SEARCH = "search"
ASSUMED = ("assumed: 1 worker a trial, so that runs at other counts share its rows; a column workers in trials.csv "
           "says otherwise")
WORKLOAD = ("dataset", "model", "optimizer", "global_batch")
OF_FILE = ("format", "version", "segment", "segments")      # root attributes that belong to the file, not the log


def export_tables(path, out, progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """Write the log's tables into the new folder ``out``, created only on success; returns the number of rows of each.

    Raises LogError if ``out`` exists or cannot be written, and for invalid /trials.
    """
    return export_each(path, out, _write_table, progress, _write_description)


def export_each(path, out, write: Callable[[Log, Table, str], Iterator[int]], progress: Callable[[float], None],
                begin: Callable[[Log, str], None] = lambda log, folder: None) -> dict[str, int]:
    """Export each table to a file of its own, as ``export_tables`` does.

    write   writes a table of the log into the folder; gives the number of rows of each piece that it has written
    """
    with read_log(path) as log, new_folder(os.fspath(out)) as folder:
        refuse_unsound_trials(log)
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


def _write_table(log: Log, table: Table, folder: str) -> Iterator[int]:
    with open(os.path.join(folder, f"{table.name}.csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(as_cell, table.specs))
        for first in range(0, table.rows, ROWS):
            rows = min(ROWS, table.rows - first)
            writer.writerows(zip(*(_format_cells(table.read_rows(name, first, first + rows), spec)
                                   for name, spec in table.specs.items())))
            yield rows


def _format_cells(values: np.ndarray, spec: Column) -> list:
    if spec.type == "float":
        return [repr(value) if value == value else "" for value in values.tolist()]
    if spec.type == "text":
        return [as_cell(text) for text in values]
    plain = plain_values(values, spec)
    return plain.tolist() if isinstance(plain, np.ndarray) else plain


def plain_values(values: np.ndarray, spec: Column) -> np.ndarray | list:
    """A column as other programs have it: a status by its name, an unknown seed as None, all else as it is."""
    if spec.type == "status":
        return [Status(value).name for value in values.tolist()]
    if spec.name == "seed":
        return [None if seed == UNKNOWN_SEED else seed for seed in values.tolist()]
    return values


def is_tables(path) -> bool:
    return os.path.isfile(os.path.join(path, "trials.csv"))


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
        while True:
            known = len(left.trials)
            with contextlib.suppress(_Again):
                files = [CsvFile(source, table, left) for table in TABLES]
                attributes, specs = _read_description(source, files)
                searches = _Searches(files[0], attributes)
                said = _remarks(files, specs, searches, overlap)
                if said:
                    attributes.setdefault("imported", {}).update(said)
                with BulkLog(out, specs, attributes, overwrite=overwrite, take_over=take_over) as log:
                    errors = _fill(log, files, specs, searches, left, progress)
                    if len(left.trials) > known:
                        raise _Again                            # the log has rows of them already
                    if left.messages:
                        _note(log, attributes, left.messages)
                    for text in (*said.values(), *beyond_errors(errors)):
                        note(text)
                    return {table: max(log.rows(table, column.name) for column in specs[table]) for table in TABLES}
    except WrongFile as error:
        raise LogError(str(error)) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise LogError(f"{source}: its tables are not CSV in UTF-8: {error}") from error
    except OSError as error:
        raise LogError(f"{error.filename or source}: cannot be read: {error.strerror or error}") from error


def _remarks(files, specs, searches, overlap) -> dict[str, str]:
    """What was guessed, assumed and left out, for the log's attribute ``imported``; leaves out repeated steps."""
    said = {"search": searches.guess} if searches.guess else {}
    if "workers" not in files[0].header:
        said["workers"] = ASSUMED
    rows = {file.table: file.keep_steps(overlap, {column.name: column.type for column in specs[file.table]})
            for file in files if overlap and file.table in ("evaluations", "steps")}
    if any(rows.values()):
        counts = listed(f"{count:,} rows of {table}" for table, count in rows.items() if count)
        said["overlap"] = f"left out: {counts} that repeat steps of their trial (--overlap {overlap})"
    return said


class _Again(Exception):
    """The tables must be read again, as more trials are to be skipped."""


def _note(log, attributes, messages):
    """Record in the log what was skipped, now and when the tables were first made."""
    if not log.rows("trials", "id"):
        raise WrongFile(messages[0])
    note, before = skipped_note(messages), attributes.get("skipped")
    if isinstance(before, dict) and isinstance(before.get("count"), int):
        note["count"] += before["count"]
    log.note("skipped", note)


def _read_description(source, files) -> tuple[dict, dict[str, tuple[Column, ...]]]:
    """Root attributes, and the columns of each table, from log.json or guessed."""
    path = os.path.join(source, "log.json")
    for file in files:
        if not file.exists and file.table in ("trials", "evaluations"):
            raise WrongFile(f"{file.path}: is missing")
    if not os.path.exists(path):
        return {"imported": {"kind": "csv", "from": source}}, {file.table: _guess_columns(file) for file in files}
    with open(path, "rb") as file:
        about, _ = json_object(file.read(), path)
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
        specs[file.table] = tuple(Column(*column[:4], better=column[4]) for column in listed)
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


def _guess_columns(file) -> tuple[Column, ...]:
    """The columns of a table from elsewhere, and those that every log has."""
    known = {column.name: column for column in SCHEMA[file.table]}
    for name in NEEDED[file.table] if file.exists else ():
        if name not in file.header:
            there = list_first(map(repr, file.header), 8) or "none"
            raise WrongFile(f"{file.path}:1: there is no column {name}; there are {there}")
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


class _Searches:
    """Which trials of a table from elsewhere are draws of a search.

    guess   what was guessed, for the log and the report, or ""
    """

    def __init__(self, file, attributes):
        self._file, self._varied, self.guess = file, frozenset(), ""
        if "imported" not in attributes or "plan" in file.header:
            if SEARCH in file.header:
                raise WrongFile(f"{file.path}:1: has the columns plan and {SEARCH}; write \"{SEARCH}\": true in the "
                                "plans instead")
            return
        self._varied = frozenset(() if SEARCH in file.header else self._find_varied())
        if self._varied:
            self.guess = (f"a search, guessed: metaparameters vary within {len(self._varied):,} of its batches, whose "
                          f"trials are taken for a search; a column {SEARCH} (yes or no) in trials.csv says otherwise")

    def _find_varied(self):
        """The workloads and batches whose trials differ in a metaparameter."""
        tried = [name for name in self._file.header if name.startswith("metaparameters/")]
        first: dict[tuple, tuple] = {}
        for values, _ in self._file.read(self._types() if tried else {}) if tried else ():
            for key, point in zip(self._keys(values), zip(*(values[name].tolist() for name in tried))):
                if repr(first.setdefault(key, point)) != repr(point):       # repr, so that NaN equals NaN
                    yield key
        self._file.done = 0

    def _types(self):
        types = {column.name: column.type for column in SCHEMA["trials"]}
        return {name: types.get(name, "float") for name in self._file.header}

    @staticmethod
    def _keys(values):
        return zip(*(values[name] if isinstance(values[name], list) else values[name].tolist() for name in WORKLOAD))

    def plans(self, values, lines) -> list[str]:
        """The plan of each trial of a chunk, which has these line numbers."""
        if SEARCH in values:
            drawn = [self._cell(text, line) for text, line in zip(values[SEARCH], lines)]
        else:
            drawn = [key in self._varied for key in self._keys(values)]
        return [json.dumps({SEARCH: True} if one else {}) for one in drawn]

    def _cell(self, text, line):
        if text.strip().lower() not in FLAGS:
            raise WrongFile(f"{self._file.path}:{line}: {SEARCH} is {text[:40]!r}, not yes or no")
        return FLAGS[text.strip().lower()]


def _fill(log, files, specs, searches, left, progress) -> dict[str, tuple[float, float]]:
    """Copy the files into the log; returns the range of each error metric."""
    total = max(1, sum(file.size for file in files))
    rules, paths = TableRules(left), {file.table: file.path for file in files}
    errors: dict[str, tuple[float, float]] = {}
    for file in files:
        types = {column.name: column.type for column in specs[file.table]}
        whole: list[dict] = []
        for values, lines in file.read({SEARCH: "text", **types}):
            values, lines = _drop_left_out(file, values, lines, rules.trials, left)
            if file.table == "trials":
                values.setdefault("plan", searches.plans(values, lines))
            if "plan" in values:
                values["plan"] = [text or "{}" for text in values["plan"]]
            columns = {name: values[name] if name in values else
                       _default_values(file, name, values, lines, rules.trials, left) for name in types}
            for name, given in columns.items():
                log.add(file.table, name, given)
            ruled = {name: np.array(given, object) if types[name] == "text" else given
                     for name, given in columns.items() if name not in UNSHARED}
            if file.table == "trials":
                whole.append({**ruled, "line": lines})
            elif len(lines):
                widen(errors, ruled)
                rules.take(file.table, file.path, {n: v for n, v in ruled.items() if types[n] != "text"}, lines)
            progress(sum(other.done for other in files) / total)
        if file.table == "trials":
            columns = {name: np.concatenate([piece[name] for piece in whole]) for name in whole[0]} if whole else {
                name: np.empty(0, int) for name in ("line", *types)}
            columns.setdefault("source", np.full(len(columns["line"]), "", object))
            rules.take_trials(file.path, columns, columns["line"])
    restarts, ids = files[TABLES.index("restarts")], rules.trials["id"]
    rules.end(paths["evaluations"], restarts.exists)
    if not restarts.exists:
        known = {"trial": ids, "workers": rules.trials["workers"]}
        for name in (column.name for column in specs["restarts"]):
            log.add("restarts", name, known[name] if name in known else
                    _default_values(restarts, name, {}, ids, rules.trials, left))
    return errors


def _drop_left_out(file, values, lines, trials, left):
    """A chunk of a table without the rows of skipped or unknown trials."""
    ids = np.asarray(values["id" if file.table == "trials" else "trial"], np.int64)
    keep = ~np.isin(ids, list(left.trials)) if left.trials else np.ones(len(ids), bool)
    if file.table != "trials":
        for row in np.flatnonzero(keep & ~np.isin(ids, trials["id"])).tolist():
            left.add(int(ids[row]), f"{file.path}:{lines[row]}: trial {ids[row]} is not in trials.csv")
            keep[row] = False
    if keep.all():
        return values, lines
    return select(values, keep), lines[keep]


def _default_values(file, name, values, lines, trials, left):
    rows = len(lines)
    if name == "examples":
        return _examples(file, values, lines, trials, left)
    copied = {"local_batch": "global_batch", "source_trial": "id"}
    if name in copied:
        return values[copied[name]]
    texts = {"source": json.dumps(SOURCE_OF_ROWS if "workers" in file.header else {**SOURCE_OF_ROWS, "workers": None}),
             "stop_reason": "the tables say no more"}
    if name in texts:
        return [texts[name]] * rows
    if name in GAPS or name == "workers":
        return np.full(rows, GAPS.get(name, 1))
    if name == "status":
        return np.full(rows, Status.COMPLETE, np.int8)
    kind = next(column.type for column in SCHEMA[file.table] if column.name == name)
    return {"text": [""] * rows, "float": np.full(rows, np.nan), "int": np.zeros(rows, np.int64)}[kind]


def _examples(file, values, lines, trials, left):
    """The number of examples of evaluations: steps times the global batch."""
    order = np.argsort(trials["id"])
    batch = trials["global_batch"][order][np.searchsorted(trials["id"][order], values["trial"])]
    for row in np.flatnonzero(values["step"] > LARGEST_INT // np.maximum(batch, 1)).tolist():
        left.add(int(values["trial"][row]), f"{file.path}:{lines[row]}: step {values['step'][row]} is more than 64 "
                 "bits can count examples of")
    return values["step"] * batch
