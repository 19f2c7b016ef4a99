"""A log as CSV tables, and back.

    export_tables("w8.h5", "w8")        the folder w8: trials.csv, evaluations.csv, restarts.csv, steps.csv, log.json
    import_tables("w8", "again.h5")     the same log: every column, unit and root attribute

A row of a file is a row of the table. Numbers are written so that they are read as the same number, what was not
measured is an empty cell, a status is its name. log.json has the root attributes and what each column is.

Tables from elsewhere need no log.json: trials.csv with id, dataset, model, optimizer, global_batch and, as far as they
are known, other columns of the schema and metaparameters/NAME; evaluations.csv with trial, step and split/metric.
"""
from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..errors import LogError
from ..printable import as_cell, of_cell
from .bulk import BulkLog
from .check import refuse_unsound_trials
from .decimals import Block, CellsError
from .export import new_folder
from .imported import better
from .measurements import LARGEST_INT, WrongFile, json_object
from .reader import SCHEMA, Log, Table, read_log
from .schema import SOURCE, TABLES, Column, Status, metaparameter_column, metric_column

FORMAT = "hvdscale-csv"
ROWS = 1 << 15                  # taken at a time
LINES = 4 << 20                 # bytes of lines read at a time
LONGEST_CELL = 1 << 28          # a plan can be long
LONGEST_ATTRIBUTE = 1 << 15     # bytes; HDF5 has room for two of that
NEEDED = {"trials": ("id", "dataset", "model", "optimizer", "global_batch"), "evaluations": ("trial", "step")}
STATUSES = {status.name: status for status in Status}
OF_FILE = ("format", "version", "segment", "segments")      # root attributes that the file itself gives


def export_tables(path, out, progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """Writes the log's tables into the new folder ``out``, which is there only when all went well; rows of each.

    Raises LogError where ``out`` is there already or cannot be written, and where /trials holds what cannot be.
    """
    with read_log(path) as log, new_folder(os.fspath(out)) as folder:
        refuse_unsound_trials(log)
        _write_about(log, os.path.join(folder, "log.json"))
        total, done = max(1, sum(table.rows for table in log.tables)), 0
        for table in log.tables:
            for rows in _write_table(table, os.path.join(folder, f"{table.name}.csv")):
                done += rows
                progress(done / total)
        return {table.name: table.rows for table in log.tables}


def _write_about(log: Log, path: str):
    columns = {table.name: [[c.name, c.type, c.unit, c.meaning, c.better] for c in table.specs.values()]
               for table in log.tables}
    attributes = {name: value for name, value in log.attributes.items() if name not in OF_FILE}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "version": 1, "attributes": attributes, "columns": columns}, file, indent=1,
                  ensure_ascii=False)


def _write_table(table: Table, path: str) -> Iterator[int]:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(as_cell, table.specs))
        for first in range(0, table.rows, ROWS):
            rows = min(ROWS, table.rows - first)
            writer.writerows(zip(*(_texts(table.read_rows(name, first, first + rows), spec.type)
                                   for name, spec in table.specs.items())))
            yield rows


def _texts(values: np.ndarray, kind: str) -> list[str]:
    if kind == "float":
        return [repr(value) if value == value else "" for value in values.tolist()]
    if kind == "status":
        return [Status(value).name for value in values.tolist()]
    return [as_cell(text) for text in values] if kind == "text" else values.tolist()


def is_tables(path) -> bool:
    """Whether a folder holds the tables of a log."""
    return os.path.isfile(os.path.join(path, "trials.csv"))


def import_tables(source, out, *, overwrite: bool = False, take_over: bool = False,
                  progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """Writes the tables in the folder ``source`` into the new log ``out``; rows of each.

    Raises LogError, which names file and line, where something is wrong; then there is no ``out``.
    """
    source = os.fspath(source)
    try:
        files = [_Csv(source, table) for table in TABLES]
        attributes, specs = _about(source, files)
        with BulkLog(out, specs, attributes, overwrite=overwrite, take_over=take_over) as log:
            _fill(log, source, files, specs, progress)
            return {table: max(log.rows(table, column.name) for column in specs[table]) for table in TABLES}
    except WrongFile as error:
        raise LogError(str(error)) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise LogError(f"{source}: its tables are no CSV in UTF-8: {error}") from error
    except OSError as error:
        raise LogError(f"{error.filename or source}: cannot be read: {error.strerror or error}") from error


def _about(source, files) -> tuple[dict, dict[str, tuple[Column, ...]]]:
    """Root attributes, and the columns of each table."""
    path = os.path.join(source, "log.json")
    if not os.path.exists(path):
        return {"imported": {"kind": "csv", "from": source}}, {file.table: _guessed(file) for file in files}
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
        if not _is_attribute(name, value) or name == "versions" and not isinstance(value, dict):
            raise WrongFile(f"{path}: the attribute {name[:40]!r} is longer, larger or stranger than a log can hold")
    return {name: value for name, value in attributes.items() if name not in OF_FILE}, specs


def _is_attribute(name, value) -> bool:
    """Whether an HDF5 file can hold it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _is_path(name) and -LARGEST_INT - 1 <= value <= LARGEST_INT
    return _is_path(name) and len(json.dumps(value)) <= LONGEST_ATTRIBUTE


def _refuse_clash(names, path):
    """Raises WrongFile where one column would have to be a group of others."""
    for name in names:
        above = [other for other in names if name.startswith(f"{other}/")]
        if above:
            raise WrongFile(f"{path}: there cannot be columns {above[0]!r} and {name!r}")


def _is_column(listed) -> bool:
    return isinstance(listed, list) and len(listed) == 5 and all(isinstance(text, str) for text in listed) \
        and listed[1] in ("int", "float", "text", "status") and _is_path(listed[0])


def _is_path(name) -> bool:
    """Whether HDF5 can have a column of that name."""
    return all(part.strip(".") for part in name.split("/")) and name.isprintable() and name != "committed_rows"


def _guessed(file) -> tuple[Column, ...]:
    """The columns that a table from elsewhere has, and those that every log has."""
    known = {column.name: column for column in SCHEMA[file.table]}
    for name in NEEDED.get(file.table, ()):
        if name not in file.header:
            raise WrongFile(f"{file.path}:1: there is no column {name}")
    found = [column for column in known.values() if not column.optional or column.name in file.header]
    for name in file.header:
        prefix, _, rest = name.partition("/")
        if name in known:
            continue
        if file.table == "trials" and prefix == "metaparameters" and rest and _is_path(name):
            found.append(metaparameter_column(rest))
        elif file.table == "evaluations" and prefix in ("train", "val", "test") and rest and _is_path(name):
            found.append(metric_column(name, better(name)))
        else:
            more = {"trials": ", metaparameters/NAME", "evaluations": ", split/metric"}.get(file.table, "")
            raise WrongFile(f"{file.path}:1: {file.table} have no column {name!r}; there are "
                            f"{', '.join(known)}{more}")
    _refuse_clash(file.header, f"{file.path}:1")
    return (*found, *SOURCE) if file.table == "trials" else tuple(found)


def _fill(log, source, files, specs, progress):
    total = max(1, sum(file.size for file in files))
    ids, batches = np.empty(0, np.int64), np.empty(0, np.int64)
    for file in files:
        types = {column.name: column.type for column in specs[file.table]}
        for values, rows in file.read(types):
            if file.table == "trials":
                first = len(ids)
                ids, batches = (np.concatenate([old, values[name]]) for old, name in
                                ((ids, "id"), (batches, "global_batch")))
                _refuse_twice(file, ids, first)
                _refuse_small(file, values, first)
            else:
                _refuse_unknown(file, values["trial"], ids)
            for name in types:
                given = values[name] if name in values else _absent(file, name, values, rows, (ids, batches))
                log.add(file.table, name, given)
            progress(sum(other.done for other in files) / total)
    restarts = files[TABLES.index("restarts")]
    if not restarts.exists:
        for name in (column.name for column in specs["restarts"]):
            log.add("restarts", name, ids if name == "trial" else _absent(restarts, name, {}, len(ids), (ids,)))


def _refuse_twice(file, ids, first):
    _, at, counts = np.unique(ids, return_index=True, return_counts=True)
    if (counts > 1).any():
        trial = ids[at[counts > 1][0]]
        row = int(np.flatnonzero(ids == trial)[1])
        raise WrongFile(f"{file.path}: trial {trial} is there twice, the second time in row {row + 1}")


def _refuse_small(file, values, first):
    for name in ("global_batch", "workers"):
        if name in values and (values[name] < 1).any():
            row = int((values[name] < 1).argmax())
            raise WrongFile(f"{file.path}: {name} is {values[name][row]} in row {first + row + 1}, not 1 or more")


def _refuse_unknown(file, trial, ids):
    unknown = ~np.isin(trial, ids)
    if unknown.any():
        raise WrongFile(f"{file.path}: trial {trial[unknown][0]} is not in trials.csv")


def _absent(file, name, values, rows, known):
    """What a column is taken to say that a table from elsewhere has not."""
    if name == "examples":
        order = np.argsort(known[0])
        batch = known[1][order][np.searchsorted(known[0][order], values["trial"])]
        if rows and int(values["step"].max()) > LARGEST_INT // max(1, int(batch.max())):
            raise WrongFile(f"{file.path}: step {values['step'].max()} is more than 64 bits can count examples of")
        return values["step"] * batch
    said = {"local_batch": lambda: values["global_batch"], "seed": lambda: values["id"],
            "status": lambda: np.full(rows, Status.COMPLETE, np.int8), "plan": lambda: ["{}"] * rows,
            "source": lambda: [json.dumps({"path": "trials.csv", "imported": "csv"})] * rows,
            "source_trial": lambda: values["id"],
            "stop_reason": lambda: ["the tables say no more"] * rows,
            **{column: lambda: np.ones(rows, np.int64) for column in ("accumulation", "workers")}}
    if name in said:
        return said[name]()
    kind = next(column.type for column in SCHEMA[file.table] if column.name == name)
    return {"text": [""] * rows, "float": np.full(rows, np.nan), "int": np.zeros(rows, np.int64)}[kind]


class _Csv:
    """One table's file; empty where there is none."""

    def __init__(self, source: str, table: str):
        self.table, self.path = table, os.path.join(source, f"{table}.csv")
        self.exists = os.path.lexists(self.path)
        self.size = os.path.getsize(self.path) if self.exists else 0
        self.done, self.header = 0, ()
        if not self.exists:
            if table in NEEDED:
                raise WrongFile(f"{self.path}: is missing")
            return
        if not os.path.isfile(self.path):
            raise WrongFile(f"{self.path}: is no plain file")
        with self._open() as file:
            self.header = tuple(map(of_cell, next(csv.reader(file, strict=True), ())))
        twice = [name for at, name in enumerate(self.header) if name in self.header[:at]]
        if twice:
            raise WrongFile(f"{self.path}:1: two columns are named {twice[0]!r}")

    def require(self, names):
        """Raises WrongFile unless the file has these columns and no others."""
        if self.exists and sorted(names) != sorted(self.header):
            differ = sorted(set(names) ^ set(self.header))[0]
            raise WrongFile(f"{self.path}:1: {differ!r} is not both a column here and in log.json")

    def read(self, types: Mapping[str, str]) -> Iterator[tuple[dict, int]]:
        """Pieces of its rows: {column: array, or list of str} and how many."""
        if not self.exists:
            return
        kinds = [types[name] for name in self.header]
        plain = all(kind in ("int", "float") for kind in kinds) and not self._has_quotes()
        yield from self._blocks(kinds) if plain else self._rows(kinds)

    def _open(self):
        return open(self.path, encoding="utf-8", newline="", errors="strict")

    def _has_quotes(self) -> bool:
        with open(self.path, "rb") as file:
            return any(b'"' in piece or b"\r" in piece for piece in iter(lambda: file.read(LINES), b""))

    def _blocks(self, kinds):
        """Tables of numbers alone, many lines at a time."""
        with open(self.path, "rb") as file:
            file.readline()
            first = 2
            while lines := file.read(LINES) + file.readline():
                lines += b"" if lines.endswith(b"\n") else b"\n"
                try:
                    block = Block(lines, len(kinds))
                except CellsError as error:
                    raise WrongFile(f"{self.path}:{first + error.line}: {error}") from None
                values = {name: self._column(block, at, kind, first)
                          for at, (name, kind) in enumerate(zip(self.header, kinds))}
                self.done = file.tell()
                yield values, block.rows
                first += block.rows

    def _column(self, block, at, kind, first):
        if kind == "float":
            values, odd = block.floats(at), block.unusual(at)
            for row, text in odd.items():
                if values[row] != values[row] and text.strip().lower().lstrip("+-") not in ("", "nan"):
                    raise self._wrong(first + row, at, text, "number")
            return values
        values, odd = block.counts(at)
        for row, text in odd.items():
            values[row] = self._integer(text, first + row, at)
        return values

    def _rows(self, kinds):
        """Any table."""
        csv.field_size_limit(LONGEST_CELL)
        with self._open() as file:
            reader = csv.reader(_counted(file, self), strict=True)
            next(reader, None)
            while rows := list(itertools.islice(self._checked(reader, len(kinds)), ROWS)):
                yield {name: self._values(kind, at, rows) for at, (name, kind) in enumerate(zip(self.header, kinds))}, \
                    len(rows)

    def _checked(self, reader, columns):
        try:
            for row in reader:
                if len(row) != columns:
                    raise WrongFile(f"{self.path}:{reader.line_num}: has {len(row)} cells where the header has "
                                    f"{columns}")
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise WrongFile(f"{self.path}:{reader.line_num}: is not CSV: {error}") from None

    def _values(self, kind, at, rows):
        if kind == "text":
            return [of_cell(row[at]) for _, row in rows]
        convert = {"int": self._integer, "float": self._float, "status": self._status}[kind]
        values = [convert(row[at], line, at) for line, row in rows]
        return np.array(values, {"int": np.int64, "float": np.float64, "status": np.int8}[kind])

    def _integer(self, text, line, at) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self._wrong(line, at, text, "integer") from None
        if not -LARGEST_INT - 1 <= value <= LARGEST_INT:
            raise self._wrong(line, at, text, "integer of 64 bits")
        return value

    def _float(self, text, line, at) -> float:
        try:
            return float(text) if text else np.nan
        except ValueError:
            raise self._wrong(line, at, text, "number") from None

    def _status(self, text, line, at) -> int:
        if text not in STATUSES:
            raise self._wrong(line, at, text, f"status ({', '.join(STATUSES)})")
        return int(STATUSES[text])

    def _wrong(self, line, at, text, kind):
        article = "an" if kind.startswith("integer") else "a"
        return WrongFile(f"{self.path}:{line}: {self.header[at]} is {text[:40]!r}, not {article} {kind}")


def _counted(file: io.TextIOBase, of: _Csv):
    """The file's lines; notes how far it was read."""
    for line in file:
        of.done += len(line)
        yield line
