"""CSV tables as a log: those of an export, or from elsewhere.

    import_tables("w8", "again.h5")     the log that exported.export_tables made w8 of: columns, units, root attributes

Tables from elsewhere need no log.json; the guide has their columns. Without a column search, trials of a workload and
batch whose metaparameters vary count as a search. Without a column workers, a trial had one worker.
"""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from ..formatting.numbers import list_first, listed
from ..log.check import Fault, disordered, faults_of_rows, faults_of_trials, unfinished, unstarted
from ..log.directions import better
from ..log.merge import new_log
from ..log.schema import SCHEMA, SOURCE, TABLES, LogColumn, Status, column_of
from ..plan.values import did_you_mean
from ..system.inputs import LARGEST
from ..target import SPLITS, logged_name, metric_faults
from .csv_file import GAPS, TYPES, CsvRows, CsvText, integer_of, repeats
from .exported import FORMAT, OF_FILE, Progress
from .files import LARGEST_INT, WrongFile, file_bytes, json_of, text_of
from .imported import beyond_errors, skipped_note, widen
from .runs.run import head_of

NEEDED = {"trials": ("id", "dataset", "model", "optimizer", "global_batch"), "restarts": ("trial", "workers"),
          "evaluations": ("trial", "step"), "steps": ("trial", "step")}
OVERLAP = "; --overlap first or last says which rows stay where steps are repeated"
SOURCE_OF_ROWS = {"path": "trials.csv", "imported": "csv"}
SEARCH = "search"
COPIED = {"local_batch": "global_batch", "source_trial": "id"}      # a column that lacks is that other one


def is_tables(path) -> bool:
    """Whether a folder has tables of trials, rather than, say, Optuna's of its own."""
    trials, evaluations = (os.path.join(path, f"{name}.csv") for name in ("trials", "evaluations"))
    return os.path.isfile(trials) and (
        os.path.isfile(evaluations) or "global_batch" in "".join(head_of(trials, (".csv",))[:1]))


def import_tables(source, out, *, left_out: list[str] | None = None, overlap: str | None = None,
                  progress: Progress = lambda share: None, **how: bool) -> tuple[dict[str, int], list[str]]:
    """Import the tables in the folder ``source`` into the new log ``out``; returns the number of rows of each, and
    remarks on suspicious values and guesses. Other faults are a LogError naming file and line, without an ``out``.

    left_out  collects messages about trials that break a rule and are skipped; None: the first raises LogError
    overlap   which rows stay where those of a trial go back over its steps, see csv_file.repeats; None: LogError
    """
    source, left = os.fspath(source), LeftOut(left_out)
    files = {table: TableFile(source, table) for table in TABLES}
    attributes, specs = _read_description(source, files)
    tables, said = _read(files, specs, attributes, left, overlap, progress)
    trials, restarts, evaluations, steps = tables.values()
    _leave_out(tables, left, chain(faults_of_trials(trials), *(
        faults_of_rows(trials, table) for table in (restarts, evaluations, steps))))
    _leave_out(tables, left, [*unfinished(trials, evaluations, np.isin(trials["id"], steps["trial"])),
                              unstarted(trials, restarts["trial"])])
    if left.messages and not tables["trials"].rows:
        raise WrongFile(left.messages[0])
    errors: dict[str, tuple[float, float]] = {}
    widen(errors, tables["evaluations"])
    with new_log(out, attributes, **how) as log:
        for table in tables.values():
            for column in specs[table.name]:
                log.add_column(table.name, column)
                log.add(table.name, column.name, table[column.name])
        if left.messages:
            skipped, before = skipped_note(left.messages), attributes.get("skipped")
            if isinstance(before, dict) and isinstance(before.get("count"), int):
                skipped["count"] += before["count"]             # when the tables were first made
            log.note("skipped", skipped)
    return {table.name: table.rows for table in tables.values()}, [*said, *beyond_errors(errors)]


class LeftOut:
    """Trials that an import skips, and messages about them and other lines; without a list, the first is raised."""

    def __init__(self, messages: list[str] | None):
        self.trials: set[int] = set()
        self.messages = messages

    def add(self, trial: int | None, message: str):
        """Skip a trial; None: only the line that the message names."""
        if self.messages is None:
            raise WrongFile(f"{message}; --skip-broken leaves out what is wrong")
        if trial not in self.trials:
            self.messages.append(message)
        if trial is not None:
            self.trials.add(trial)


class TableFile(CsvText):
    """One table's file; no rows if it does not exist."""

    def __init__(self, source: str, table: str):
        self.table, self.path = table, os.path.join(source, f"{table}.csv")
        self.key = "id" if table == "trials" else "trial"
        self.exists = os.path.lexists(self.path)
        super().__init__(file_bytes(self.path, self.path, LARGEST, follow=True) if self.exists else b"", self.path)

    def read(self, types: Mapping[str, str], left: LeftOut) -> CsvRows:
        """All rows but those that are left out, as one without a line end is."""
        kinds = [types[name] for name in self.header]
        columns, lines = self.columns(kinds, lambda row, fault: left.add(self._trial_of(row), fault))
        if self.cut and self.header:
            torn = next(csv.reader([str(self.cut, "utf-8", "replace")], delimiter=self.separator), [])
            before = columns[self.key][-1:].tolist() if self.key in columns else []
            trial = self._trial_of(torn[:-1])           # its last cell is cut
            left.add(trial if trial is not None or not before else before[0], self.cut_off())
        return CsvRows(self.table, self.path, columns, lines)

    def _trial_of(self, row: Sequence[str]) -> int | None:
        try:
            trial = integer_of(row[self.header.index(self.key)])
        except (IndexError, ValueError):
            return None
        return trial if abs(trial) <= LARGEST_INT else None


def _leave_out(tables: Mapping[str, CsvRows], left: LeftOut, faults: Iterable[Fault]):
    for fault in faults:
        table = fault.table
        repeated = len(fault.rows) and "step" in table and (
            np.array_equal(np.sort(disordered(table, "step", True)), fault.rows))
        for row in fault.rows.tolist():
            left.add(fault.trial(row), f"{table.path}:{table.lines[row]}: trial {fault.trial(row)}{fault.say(row, '')}"
                     + (OVERLAP if repeated else ""))
    for table in tables.values():
        table.drop(left.trials)


def _read_description(source: str, files: Mapping[str, TableFile]) -> tuple[dict, dict[str, tuple[LogColumn, ...]]]:
    """Root attributes, and the columns of each table: those of every log, and others by their names or log.json."""
    path = os.path.join(source, "log.json")
    attributes, described = _read_log_json(path) if os.path.exists(path) else (None, {})
    lacking = []
    for table, file in files.items():
        if table in ("trials", "evaluations") and not file.exists:
            raise WrongFile(f"{file.path}: is missing")
        near = {name: did_you_mean(name, file.header, "") for name in NEEDED[table] if name not in file.header}
        if file.exists and near:
            names = ", ".join(f"{name} ({found})" if found else name for name, found in near.items())
            there = list_first(map(repr, file.header), 8) or "none"
            lacking.append(f"{file.path}:1: there is no column {names}; there are {there}")
    if lacking:
        raise WrongFile("\n".join(lacking))
    specs = {table: _columns_of(file, described.get(table, {})) for table, file in files.items()}
    if attributes is None:
        specs["trials"] += SOURCE
        attributes = {"imported": {"kind": "csv", "from": source}}
    return attributes, specs


def _read_log_json(path: str) -> tuple[dict, dict[str, dict[str, LogColumn]]]:
    """(root attributes, columns by table and name) of an export."""
    found = json_of(text_of(path), path, dict)
    if found.get("format") != FORMAT or found.get("version") != 1:
        raise WrongFile(f"{path}: is not of the format {FORMAT}, version 1")
    attributes, columns = found.get("attributes"), found.get("columns")
    if not isinstance(attributes, dict) or not isinstance(columns, dict):
        raise WrongFile(f"{path}: says no attributes or no columns")
    for table, given in columns.items():
        if not isinstance(given, list) or not all(
                isinstance(column, list) and len(column) == 5 and all(isinstance(text, str) for text in column)
                and column[1] in TYPES and _is_path(column[0]) for column in given):
            raise WrongFile(f"{path}: the columns of {table} are not lists of name, type, unit, meaning, better")
    for name, value in attributes.items():
        good = (-LARGEST_INT - 1 <= value <= LARGEST_INT if type(value) is int else
                len(json.dumps(value)) <= 1 << 15)         # HDF5 has room for twice that
        if not good or not _is_path(name) or name in ("versions", "imported") and not isinstance(value, dict):
            raise WrongFile(f"{path}: the attribute {name[:40]!r} is longer, larger or stranger than a log can hold")
    return {name: value for name, value in attributes.items() if name not in OF_FILE}, {
        table: {one[0]: LogColumn(*one[:4], better=one[4]) for one in given} for table, given in columns.items()}


def _is_path(name: str) -> bool:
    return all(part.strip(".") for part in name.split("/")) and name.isprintable() and name != "committed_rows"


def _columns_of(file: TableFile, described: Mapping[str, LogColumn]) -> tuple[LogColumn, ...]:
    """The columns of a table, and those that every log has; ``described``: what log.json says of others."""
    known = {column.name: column for column in SCHEMA[file.table]}
    if "" in file.header:
        raise WrongFile(f"{file.path}:1: a column has no name; pandas writes its index so, unless index=False")
    if file.table == "evaluations":
        parts = [(name, *name.partition("/")) for name in file.header]
        file.header = tuple(f"{split}/{logged_name(metric)}" if slash and name not in described else name
                            for name, split, slash, metric in parts)
    found = [column for column in known.values() if not column.optional or column.name in file.header]
    for name in file.header:
        prefix, _, rest = name.partition("/")
        if name in known or name == SEARCH and file.table == "trials":
            continue
        if name in described:
            found.append(described[name])
        elif file.table == "trials" and prefix == "metaparameters" and rest and _is_path(name):
            found.append(column_of("trials", name))
        elif file.table == "evaluations" and prefix in SPLITS and rest:
            for fault in metric_faults([rest]):
                raise WrongFile(f"{file.path}:1: {fault}")
            found.append(column_of("evaluations", name, better(name)))
        else:
            more = {"trials": f", {SEARCH}, metaparameters/NAME", "evaluations": ", SPLIT/METRIC such as val/error"}
            raise WrongFile(f"{file.path}:1: {file.table} have no column {name!r}; there are "
                            f"{', '.join(known)}{more.get(file.table, '')}")
    for name in file.header:
        if file.header.count(name) > 1:
            raise WrongFile(f"{file.path}:1: two columns are named {name!r}")
        for above in (other for other in file.header if name.startswith(f"{other}/")):      # a column, and a group
            raise WrongFile(f"{file.path}:1: these columns exclude each other: {above!r} and {name!r}")
    return tuple(found)


def _read(files: Mapping[str, TableFile], specs: Mapping[str, Sequence[LogColumn]], attributes: dict, left: LeftOut,
          overlap: str | None, progress: Progress) -> tuple[dict[str, CsvRows], list[str]]:
    """(the tables with all columns of a log; what was guessed, assumed or left out), also noted in ``attributes``."""
    tables = {}
    for name, file in files.items():
        tables[name] = file.read({SEARCH: "float", **{column.name: column.type for column in specs[name]}}, left)
        progress(len(tables) / len(files))
    for table in tables.values():
        table.drop(left.trials)
    trials, said = tables["trials"], {}
    if "imported" in attributes and "plan" not in trials:
        said["search"] = _plan_search(trials)
    elif SEARCH in trials:
        raise WrongFile(f"{trials.path}:1: has the columns plan and {SEARCH}; write \"{SEARCH}\": true in the plans "
                        "instead")
    if "workers" not in trials:
        said["workers"] = ("assumed: 1 worker a trial, so that runs at other counts share its rows; a column workers "
                           "in trials.csv says otherwise")
        trials["workers"] = np.ones(trials.rows, np.int64)
        trials["source"] = np.full(trials.rows, json.dumps({**SOURCE_OF_ROWS, "workers": None}), object)
    dropped = []
    for table in (tables["evaluations"], tables["steps"]) if overlap else ():
        if table.rows and (again := repeats(table["trial"], table["step"], str(overlap))).any():
            dropped.append(f"{again.sum():,} rows of {table.name}")
            table.keep(~again)
    if dropped:
        said["overlap"] = f"left out: {listed(dropped)} that repeat steps of their trial (--overlap {overlap})"
    if not files["restarts"].exists:
        tables["restarts"] = CsvRows("restarts", files["restarts"].path, {
            "trial": trials["id"], "workers": trials["workers"]}, trials.lines)
    for table in tables.values():
        for column in (column for column in specs[table.name] if column.name not in table):
            table[column.name] = _default_values(table, column, trials)
    trials["plan"] = np.array([text or "{}" for text in trials["plan"]], object)
    trials.setdefault("source", np.full(trials.rows, "", object))
    said = {name: text for name, text in said.items() if text}
    if said:
        attributes.setdefault("imported", {}).update(said)
    return tables, list(said.values())


def _plan_search(trials: CsvRows) -> str:
    """Give each trial of a table from elsewhere a plan that says whether it is a draw of a search; what was guessed."""
    said, guess = trials.pop(SEARCH, None), ""
    drawn = [] if said is None else said == 1
    if said is None:
        tried = [trials[name].tolist() for name in trials if name.startswith("metaparameters/")]
        keys, first = list(zip(*(trials[name].tolist() for name in NEEDED["trials"][1:]))), {}
        varied = {key for key, point in zip(keys, map(repr, zip(*tried))) if first.setdefault(key, point) != point}
        drawn = [key in varied for key in keys]
        if varied:
            guess = (f"a search, guessed: metaparameters vary within {len(varied):,} of its batches, whose trials are "
                     f"taken for a search; a column {SEARCH} (yes or no) in trials.csv says otherwise")
    trials["plan"] = np.array([json.dumps({SEARCH: True} if one else {}) for one in drawn], object)
    return guess


def _default_values(table: CsvRows, column: LogColumn, trials: CsvRows) -> np.ndarray:
    if column.name == "examples":              # steps times the global batch, as far as 64 bits count
        batch = dict(zip(trials["id"].tolist(), trials["global_batch"].tolist()))
        batches = np.array([batch.get(trial, 0) for trial in table["trial"].tolist()], np.int64)    # 0: refused later
        beyond = table["step"] > LARGEST_INT // np.maximum(batches, 1)
        return np.where(beyond, LARGEST_INT, table["step"] * batches)
    if column.name in COPIED:
        return table[COPIED[column.name]]
    known = {**GAPS, "status": Status.COMPLETE, "stop_reason": "the tables say no more",
             "source": json.dumps(SOURCE_OF_ROWS)}
    unknown = known.get(column.name, {"text": "", "float": np.nan}.get(column.type, 0))
    return np.full(table.rows, unknown, TYPES[column.type])
