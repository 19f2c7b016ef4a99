"""Logs as they are read by the commands and by ``hvdscale.read``.

    runs = read("runs/*.h5")                    a log, a folder, a pattern, or a list of them
    runs.evaluations["val/error"]               an array
    report = runs.report("val/error<0.02")
    report.findings, report.tables, report.figures

    make(["runs"], targets=[Target.parse("val/error<0.01")], out="report")      prints the report, writes its files
"""
from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.defaults import Options
from ..errors import LogError, UnknownNameError, UsageError
from ..exchange.csv_tables import is_tables
from ..exchange.runs.formats import has_runs, is_archive
from ..exchange.runs.into_log import import_runs
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..log.check import refuse_unsound, refuse_unsound_trials
from ..log.plan_text import refuse_wrong_plans
from ..log.reader import Columns, Log, LogTable, absent, in_order, read_log
from ..log.schema import UNKNOWN_SEED, LogColumn, Status
from ..log.segments import expand, find_logs, refuse_none, refuse_outer
from ..system.importing import uncollected
from ..system.importing import import_extra
from ..system.files import scratch_folder
from ..target import Target
from . import FORMATS
from .document import Document, Path, describe_imports
from .output import on_screen, refuse_no_folder, write
from .pages import MOST_EVALUATIONS, document_of_logs
from .request import StudyRequest, request_of, targets_of
from .results import Report
from .texts import GENERAL

if TYPE_CHECKING:
    import pandas

LOG = "log"                         # the column before those of the logs: where each row comes from
STATUS_NAMES = np.array([status.name for status in sorted(Status)], object)
WITHOUT_PANDAS = "each column is a numpy array without it, such as runs.trials['id']"
AS_FRAME = ".to_pandas() is a DataFrame of them"
CONTINUE = "--skip-broken (skip_broken=True in Python) continues without logs that cannot be read"
MOST_LEFT_OUT = 10          # trials of a log that are named
LONG_BYTES = 100 << 20      # of a log, beyond which reading it takes a while


def open_logs(paths: Sequence[Path], skip_broken: bool, opened: ExitStack, tell: Tell = quiet
              ) -> tuple[list[Log], list[str]]:
    """(logs, messages about those skipped) of all logs among files and directories, open until ``opened`` closes.
    Raises LogError where one cannot be read, unless it is to be skipped, and where there is nothing to report."""
    for path in expand(paths):
        refuse_outer(path)
    found = {path: _log_of_runs(path, opened) for path in expand(paths)}
    names = find_logs(log or path for path, log in found.items())
    shown = {log: path for path, log in found.items()}
    logs, skipped = [], []
    for at, name in enumerate(names, 1):
        tell(f"reading log {at} of {len(names)}: {name}",
             long=os.path.exists(name) and os.path.getsize(name) > LONG_BYTES)
        try:
            log = opened.enter_context(read_log(name))
            log.path = shown.get(name, name)
            (refuse_unsound if log.evaluations.rows <= MOST_EVALUATIONS else refuse_unsound_trials)(log)
            refuse_wrong_plans(log)
            logs.append(log)
            skipped += _left_out_of(log)
        except LogError as error:
            if not skip_broken:
                rest = f"\n{CONTINUE}" if len(names) > 1 else ""
                raise LogError(f"{error}{rest}") from error
            skipped.append(str(error))
    refuse_none(names, paths)
    if not sum(log.trials.rows for log in logs):
        raise LogError(f"{', '.join(names)}: no trial that can be read, so there is nothing to report yet"
                       + "".join(f"\n{message}" for message in skipped))
    return logs, skipped


def _log_of_runs(path: str, opened: ExitStack) -> str | None:
    """The log, for as long as ``opened`` is, of a file or folder with runs of other programs; None of any other path.
    Raises LogError, naming the command that imports them, for tables and archives."""
    if not os.path.exists(path) or path.endswith(".h5") or os.path.isdir(path) and find_logs([path]):
        return None
    if is_tables(path) or is_archive(path):
        raise LogError(f"{path}: is no log; 'hvdscale-log import {path} LOG.h5' makes one of it, to report on")
    if not has_runs(path):
        return None
    log = os.path.join(opened.enter_context(scratch_folder()), "runs.h5")
    import_runs([path], log)
    return log


def _left_out_of(log: Log) -> list[str]:
    """Messages about the trials that an import left out of a log."""
    note = log.attributes.get("skipped")
    if not isinstance(note, dict) or not isinstance(note.get("count"), int) or not isinstance(note.get("first"), list):
        return []
    said = note["first"][:MOST_LEFT_OUT]
    rest = [f"{note['count'] - len(said):,} more"] if note["count"] > len(said) else []
    return [f"{log.path}: left out when it was imported: {message}" for message in [*said, *rest]]


class Frame(Columns):
    """A table of one or more logs, end to end: a mapping of column names to arrays with one entry a row.

    The first column, ``log``, is the path of each row's log. A status is its name, a text a str, both in object arrays.
    A column that some of the logs lack is NaN, or empty, in their rows. Columns are read when asked for, and kept. What
    only a DataFrame does, or does otherwise, is refused with the way to one.
    """

    def __init__(self, name: str, logs: Sequence[Log]) -> None:
        self.name = name
        self._tables: list[tuple[str, LogTable]] = [(log.path, getattr(log, name)) for log in logs]
        found = {column: spec for _, table in reversed(self._tables) for column, spec in table.specs.items()}
        own = LogColumn(LOG, "text", "1", "the path of the log")
        super().__init__({LOG: own, **in_order(name, found)})
        self.rows = sum(table.rows for _, table in self._tables)

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column; "1": a pure number."""
        return {name: spec.unit for name, spec in self.specs.items()}

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each column."""
        return {name: spec.meaning for name, spec in self.specs.items()}

    def to_numpy(self, columns: Iterable[str] | None = None) -> np.ndarray:
        """The columns, by default all, as one structured array of shape (rows,)."""
        found = {name: self[name] for name in self._wanted(columns)}
        rows = np.empty(self.rows, [(name, values.dtype) for name, values in found.items()])
        for name, values in found.items():
            rows[name] = values
        return rows

    def to_pandas(self, columns: Iterable[str] | None = None) -> pandas.DataFrame:
        """The columns, by default all, as a pandas DataFrame, an unknown seed as NA; UsageError without pandas."""
        frames: Any = import_extra("pandas", "to_pandas()", WITHOUT_PANDAS)
        found = frames.DataFrame({name: self[name] for name in self._wanted(columns)})
        unknown = found.get("seed", np.empty(0)) == UNKNOWN_SEED
        if unknown.any():
            found["seed"] = found["seed"].astype("Int64").mask(unknown)
        return found

    def _wanted(self, columns: Iterable[str] | None) -> tuple[str, ...]:
        return self.columns if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)

    def read(self, name: str) -> np.ndarray:
        """A column, not kept; raises UnknownNameError for one that there is not."""
        if name not in self.specs:
            raise UnknownNameError(f"{self.name} have no column {name!r}; there are {', '.join(self.specs)}")
        if name == LOG:
            paths = np.array([path for path, _ in self._tables], object)
            return np.repeat(paths, [table.rows for _, table in self._tables])
        kind = self.specs[name].type
        parts = [table[name] if name in table else absent(kind, table.rows) for _, table in self._tables]
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return STATUS_NAMES[joined] if kind == "status" else joined

    def __getitem__(self, name: str) -> np.ndarray:
        if isinstance(name, str):
            return super().__getitem__(name)
        raise UsageError(f"{self.name}[...] takes the name of a column, not {repr(name)[:40]}; {AS_FRAME}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name if name.startswith("_") else f"{self.name} have no {name!r}; {AS_FRAME}")

    def __len__(self) -> int:
        raise TypeError(f"len of {self.name} could be of rows or columns; .rows is the number of rows, .columns the "
                        "names of columns")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise UsageError(f"{self.name} are no array of numbers: {AS_FRAME}, .to_numpy() a structured array")

    def __repr__(self) -> str:
        return f"<{self.name}: {self.rows:,} rows; columns {', '.join(self.specs)}>"

    def _repr_html_(self) -> str:
        from .page.html import frame_html
        return frame_html(self, f"{self.name}: {counted(self.rows, 'row')}", self.rows)


class Runs:
    """Logs that were read together. Their files stay open until ``close``, or the end of a with-block.

    skipped   messages about logs that could not be read, and trials that imports left out
    """

    def __init__(self, logs: Sequence[Log], skipped: Sequence[str], opened: ExitStack) -> None:
        self.logs, self.skipped = tuple(logs), tuple(skipped)
        self._opened = opened

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was guessed, assumed and left out when logs were imported."""
        return describe_imports(self.logs)

    @cached_property
    def trials(self) -> Frame:
        """A row a trial."""
        return Frame("trials", self.logs)

    @cached_property
    def restarts(self) -> Frame:
        """A row a process start."""
        return Frame("restarts", self.logs)

    @cached_property
    def evaluations(self) -> Frame:
        """A row an evaluation; metrics are columns such as ``val/error``."""
        return Frame("evaluations", self.logs)

    @cached_property
    def steps(self) -> Frame:
        """A row a step."""
        return Frame("steps", self.logs)

    def report(self, targets: Target | str | Iterable[Target | str] = (), **asked: Any) -> Report:
        """The report of these logs, as hvdscale-report prints it.

        targets  such as ``val/error<0.02``; none: each trial is held against the target of its own plan
        asked    options of hvdscale-report by their names: budgets, compare, paper, rules, rule_within,
                 perfect_within, useful_within, loss_within, trials, confidence, branch_tolerance, crossing, sizes, laws

        Raises UsageError for a value that means nothing, and for a target whose metric no log has.
        """
        options, wanted = request_of(**asked)
        return Report(self.document(targets_of(targets), options, wanted))

    def document(self, targets: Sequence[Target] = (), options: Options = Options(),
                 asked: StudyRequest = StudyRequest(), tell: Tell = quiet) -> Document:
        """The report as the record that pages and files are written from."""
        return document_of_logs(self.logs, targets, self.skipped, options, asked, tell)

    def close(self) -> None:
        """Closes the logs; columns that were read stay."""
        self._opened.close()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{counted(self.trials.rows, 'trial')} in {counted(len(self.logs), 'log')}>"

    def _repr_html_(self) -> str:
        from .page.html import frame_html
        return frame_html(self.trials, repr(self)[1:-1], self.trials.rows, self.skipped)


def read(paths: Path | Iterable[Path], *, skip_broken: bool = False, tell: Tell = quiet) -> Runs:
    """Read logs, without torch.

    paths        a log, a directory, which means all its *.h5 files, a pattern such as ``runs/*.h5``, or several
    skip_broken  leave out logs that cannot be read; ``Runs.skipped`` names them

    Raises LogError where a log cannot be read, unless it is skipped, and where there is no trial at all.
    """
    with ExitStack() as opened:
        logs, skipped = open_logs([paths] if isinstance(paths, (str, os.PathLike)) else list(paths), skip_broken,
                                  opened, tell)
        return Runs(logs, skipped, opened.pop_all())


@np.errstate(over="ignore")         # what is beyond the largest float counts as inf
def make(paths: Iterable[Path], targets: Sequence[Target] = (), out: Path | None = None, *,
         options: Options = Options(), formats: Sequence[str] = FORMATS, skip_broken: bool = False,
         every_figure: bool = False, whole: bool = False, asked: StudyRequest = StudyRequest(),
         echo: Callable[[str], object] = print, tell: Tell = quiet) -> Document:
    """Print the report of these logs or directories of logs, and write its files under ``out`` where it is given.

    targets      to hold the trials against; none: each against its own
    skip_broken  leave out the logs that cannot be read, and say so; else the first raises its LogError
    whole        print every table, and how to read them
    every_figure draw every figure, rather than the main ones of each workload
    asked        what is to be shown of studies, beside the targets
    echo         takes each piece of text for the screen as soon as it is known; tell: see progress.Progress
    """
    refuse_no_folder(out)
    with ExitStack() as opened:
        with uncollected():
            runs = opened.enter_context(read(paths, skip_broken=skip_broken, tell=tell))
            document = runs.document(targets, options, asked, tell)
        given = {"--format": tuple(formats) != FORMATS, "--figures": every_figure}
        if not out and any(given.values()):
            echo(GENERAL.say("unused", options=[name for name in given if given[name]], out=True))
        for text in on_screen(document, whole):
            echo(text)
        if out is not None:
            written = list(write(document if every_figure else document.with_main_figures(), out, formats, tell))
            echo(f"wrote {counted(len(written), 'file')}: {written[-1]}"
                 + (f", and more beside it ({', '.join(formats)})" if len(written) > 1 else "")
                 + ("" if every_figure else "; --figures all draws every figure"))
    gc.unfreeze()
    return document
