"""Logs and their reports as values, for Python and notebooks: what ``hvdscale.read`` gives, see README.rst."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ..errors import UnknownNameError, UsageError
from ..formatting.numbers import counted
from ..log.reader import Columns, Log, LogTable, absent, join_columns
from ..log.schema import TABLES, UNKNOWN_SEED, LogColumn, Status
from ..system.importing import import_extra
from ..target import Target
from . import FORMATS
from .document import Document, Path, describe_imports
from .drawing import Figure, as_matplotlib
from .output import as_json, on_screen, refuse_no_folder, write
from .pages import document_of_logs, open_logs
from .subject import ReportRequest, request_of, targets_of
from .table import Table, as_records, as_text, pick, record_keys

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

T = TypeVar("T")
Canvas: TypeAlias = "matplotlib.figure.Figure"
Record = dict[str, Any]
LOG = "log"                         # the column before those of the logs: where each row comes from
STATUS_NAMES = np.array([status.name for status in sorted(Status)], object)
WITHOUT_PANDAS = "each column is a numpy array without it, such as runs.trials['id']"
AS_FRAME = ".to_pandas() is a DataFrame of them"


class Frame(Columns):
    """A table of one or more logs, end to end: a mapping of column names to arrays with one entry a row.

    The first column, ``log``, is the path of each row's log. A status is its name, a text a str, both in object arrays.
    A column that some of the logs lack is NaN, or empty, in their rows. Columns are read when asked for, and kept. What
    only a DataFrame does, or does otherwise, is refused with the way to one.

    units, meanings     of each column, by name; the unit "1": a pure number
    """

    def __init__(self, name: str, logs: Sequence[Log]) -> None:
        self.name, own = name, {LOG: LogColumn(LOG, "text", "1", "the path of the log")}
        self._tables: list[tuple[str, LogTable]] = [(log.path, getattr(log, name)) for log in logs]
        self.specs = own | join_columns(name, (table.specs for _, table in self._tables))
        self.columns, self._read = tuple(self.specs), {}
        self.rows = sum(table.rows for _, table in self._tables)
        self.units = {name: spec.unit for name, spec in self.specs.items()}
        self.meanings = {name: spec.meaning for name, spec in self.specs.items()}

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


class Runs(AbstractContextManager["Runs"]):
    """Logs that were read together. Their files stay open until ``close``, or the end of a with-block.

    trials, restarts, evaluations, steps    a row each, a process start each; metrics are columns such as ``val/error``
    skipped     messages about logs that could not be read, and trials that imports left out
    """

    def __init__(self, logs: Sequence[Log], skipped: Sequence[str], opened: ExitStack) -> None:
        self.logs, self.skipped = tuple(logs), tuple(skipped)
        self.trials, self.restarts, self.evaluations, self.steps = (Frame(name, self.logs) for name in TABLES)
        self._opened = opened

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was guessed, assumed and left out when logs were imported."""
        return describe_imports(self.logs)

    def report(self, targets: Target | str | Iterable[Target | str] = (), **asked: Any) -> Report:
        """The report of these logs, as hvdscale-report prints it.

        targets  such as ``val/error<0.02``; none: each trial is held against the target of its own plan
        asked    options of hvdscale-report by their names: budgets, compare, paper, rules, rule_within,
                 perfect_within, useful_within, loss_within, trials, confidence, branch_tolerance, crossing, sizes, laws

        Raises UsageError for a value that means nothing, and for a target whose metric no log has.
        """
        return Report(self.document(targets_of(targets), request_of(**asked)))

    def document(self, targets: Sequence[Target] = (), asked: ReportRequest = ReportRequest()) -> Document:
        """The report as the record that pages and files are written from."""
        return document_of_logs(self.logs, targets, self.skipped, asked)

    def close(self) -> None:
        """Closes the logs; columns that were read stay."""
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{counted(self.trials.rows, 'trial')} in {counted(len(self.logs), 'log')}>"

    def _repr_html_(self) -> str:
        from .page.html import frame_html
        return frame_html(self.trials, repr(self)[1:-1], self.trials.rows, self.skipped)


def read(paths: Path | Iterable[Path], *, skip_broken: bool = False) -> Runs:
    """Read logs, without torch.

    paths        a log, a directory, which means all its *.h5 files, a pattern such as ``runs/*.h5``, or several
    skip_broken  leave out logs that cannot be read; ``Runs.skipped`` names them

    Raises LogError where a log cannot be read, unless it is skipped, and where there is no trial at all.
    """
    with ExitStack() as opened:
        logs, skipped = open_logs([paths] if isinstance(paths, (str, os.PathLike)) else list(paths), skip_broken,
                                  opened)
        return Runs(logs, skipped, opened.pop_all())


class ReportTable:
    """A table of a report. ``print`` shows it as hvdscale-report does.

    title       what it is about
    columns     each column: key, title, unit, formula and source
    notes       what its numbers cannot be trusted for, then how to read them
    """

    def __init__(self, table: Table, target: Target | None) -> None:
        self.table, self.target, self.title = table, table.target or target, table.title
        self.columns: list[Record] = [pick(column, "key title unit formula source") for column in table.columns]
        self.notes = (*table.warnings, *table.notes)

    def records(self) -> list[Record]:
        """The rows at full precision: a value by key; KEY_low and KEY_high are its interval; inf: the target was not
        met, NaN: unknown; ``trials`` are the (log, id) behind the row."""
        return as_records(self.table, self.target)

    def to_pandas(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame; UsageError where pandas is not installed."""
        frames: Any = import_extra("pandas", "to_pandas()", "records() gives the rows as dictionaries without it")
        return frames.DataFrame(self.records(), columns=record_keys(self.table))

    def __len__(self) -> int:
        return len(self.table.rows)

    def __str__(self) -> str:
        return as_text(self.table)

    def __repr__(self) -> str:
        return f"<table {self.table.name}: {self.title}>"

    def _repr_html_(self) -> str:
        from .page.html import notebook_html
        return notebook_html("table", table=self.table)


class LazyMapping(Mapping[str, T]):
    """Things by name. The end of a name will do where only one has it: ``weak-32``; else UnknownNameError."""

    def __init__(self, what: str, makers: Mapping[str, Callable[[], T]]) -> None:
        self._what, self._makers = what, {name: cache(maker) for name, maker in makers.items()}

    def __getitem__(self, name: str) -> T:
        found = [name] if name in self._makers else [one for one in self._makers if one.endswith(f"-{name}")]
        if len(found) != 1:
            few = "several" if found else "none"
            raise UnknownNameError(f"{self._what} {name!r}: {few} of that name; choose one of: "
                                   f"{', '.join(found or self._makers) or 'nothing, there is none'}")
        return self._makers[found[0]]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"<{len(self)} {self._what}s: {', '.join(self)}>"


class Figures(LazyMapping[Canvas]):
    """The figures of a report by name: each a matplotlib Figure, drawn when it is first asked for, then kept."""

    def __init__(self, figures: Mapping[str, Figure]) -> None:
        super().__init__("figure", {name: partial(as_matplotlib, figure) for name, figure in figures.items()})
        self._figures = figures

    def records(self) -> list[Record]:
        """Of each figure its name, title, caption, formula and source, and the trials behind it."""
        return [{"name": name, "title": figure.title, "caption": figure.caption, "formula": figure.formula,
                 "source": figure.source, "trials": figure.trials} for name, figure in self._figures.items()]

    def _repr_html_(self) -> str:
        from .page.html import figures_html
        return figures_html(self._figures)


class Report:
    """A report on some runs. ``print`` shows what hvdscale-report prints; a notebook, its verdict and tables.

    verdict     at most three sentences for each workload and target
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.verdict = [said for _, pages in document.pages for page in pages for said in page.verdict]
        for shown in document.shown:            # while the logs are open
            shown.details
            shown.notes

    @property
    def findings(self) -> list[Record]:
        """Each finding: workload ("" where it is about several), target, its ``kind`` and ``severity``, the sentence
        ``said``, ``more`` sentences, the ``values`` in it by name, and where it is a number ``value``, ``low`` and
        ``high``, else None."""
        return [{"workload": shown.workload, "target": str(shown.target) if shown.target else None, **found.values(),
                 **{key: getattr(found.estimate, key, None) for key in ("value", "low", "high")}}
                for shown in self.document.shown for found in shown.findings]

    @cached_property
    def tables(self) -> LazyMapping[ReportTable]:
        """The tables by name, as ``--out`` names their files."""
        return LazyMapping("table", {f"{shown.slug}-{table.name}": partial(ReportTable, table, shown.target)
                                     for shown in self.document.shown for table in (*shown.tables, *shown.details)})

    @cached_property
    def figures(self) -> Figures:
        """The figures by name, as ``--out`` names their files."""
        return Figures({f"{shown.slug}-{figure.name}": figure
                        for shown in self.document.shown for figure in shown.figures})

    def values(self) -> Record:
        """What report.json has."""
        return as_json(self.document)

    def write(self, out: Path, formats: Sequence[str] = FORMATS) -> list[str]:
        """Write the report's files under the directory ``out``; returns their paths."""
        refuse_no_folder(out)
        return list(write(self.document, out, formats))

    def __str__(self) -> str:
        return "\n".join(on_screen(self.document, whole=True))

    def __repr__(self) -> str:
        return f"<{self.document.title}; {self.document.lead}>"

    def _repr_html_(self) -> str:
        from .page.html import notebook_html
        return notebook_html("report", document=self.document)
