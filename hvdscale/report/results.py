"""A report as values for notebooks: findings and tables as records, figures as matplotlib's objects.

    report = hvdscale.read("runs").report("val/error<0.02")
    report.verdict, report.findings[0]["said"]
    report.tables["weak-32"].records()
    report.figures["speedup-weak-32"].savefig("speedup.pdf")
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..errors import UnknownNameError
from ..system.importing import import_extra
from ..target import Target
from . import FORMATS
from .document import Chapter, Document, Page, Path
from .drawing import Figure, as_matplotlib
from .output import as_json, on_screen, refuse_no_folder, write
from .table import Table, as_records, as_text, pick, record_keys

if TYPE_CHECKING:
    import pandas
    import matplotlib.figure

T = TypeVar("T")
Canvas: TypeAlias = "matplotlib.figure.Figure"
Record = dict[str, Any]
WITHOUT_PANDAS = "records() gives the rows as dictionaries without it"


class ReportTable:
    """A table of a report. ``print`` shows it as hvdscale-report does."""

    def __init__(self, table: Table, target: Target | None) -> None:
        self.table, self.target = table, table.target or target

    @property
    def title(self) -> str:
        """What it is about."""
        return self.table.title

    @property
    def columns(self) -> list[Record]:
        """Each column: key, title, unit, formula and source."""
        return [pick(column, "key title unit formula source") for column in self.table.columns]

    @property
    def notes(self) -> tuple[str, ...]:
        """What its numbers cannot be trusted for, then how to read them."""
        return (*self.table.warnings, *self.table.notes)

    def records(self) -> list[Record]:
        """The rows at full precision: a value by key; KEY_low and KEY_high are its interval; inf: the target was not
        met, NaN: unknown; ``trials`` are the (log, id) behind the row."""
        return as_records(self.table, self.target)

    def to_pandas(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame; UsageError where pandas is not installed."""
        frames: Any = import_extra("pandas", "to_pandas()", WITHOUT_PANDAS)
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


class LazyMapping(Mapping[str, T], Generic[T]):
    """Things by name. The end of a name will do where only one has it: ``weak-32``; else UnknownNameError."""

    def __init__(self, what: str, makers: Mapping[str, Callable[[], T]]) -> None:
        self._what, self._makers = what, makers
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        found = [name] if name in self._makers else [one for one in self._makers if one.endswith(f"-{name}")]
        if len(found) != 1:
            few = "several" if found else "none"
            raise UnknownNameError(f"{self._what} {name!r}: {few} of that name; choose one of: "
                                   f"{', '.join(found or self._makers) or 'nothing, there is none'}")
        if found[0] not in self._made:
            self._made[found[0]] = self._makers[found[0]]()
        return self._made[found[0]]

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
        return [{"name": name, **{key: getattr(figure, key) for key in (
            "title", "caption", "formula", "source", "trials")}} for name, figure in self._figures.items()]

    def _repr_html_(self) -> str:
        from .page.html import figures_html
        return figures_html(self._figures)


class Report:
    """A report on some runs. ``print`` shows what hvdscale-report prints; a notebook, its verdict and tables."""

    def __init__(self, document: Document) -> None:
        self.document = document
        for shown in document.shown:            # while the logs are open
            shown.details

    @property
    def verdict(self) -> list[str]:
        """At most three sentences for each workload and target."""
        return [said for _, pages in self.document.pages for page in pages for said in page.verdict]

    @property
    def findings(self) -> list[Record]:
        """Each finding: workload ("" where it is about several), target, its ``kind`` and ``severity``, the sentence
        ``said``, ``more`` sentences, the ``values`` in it by name, and where it is a number ``value``, ``low`` and
        ``high``, else None."""
        return [{"workload": workload, "target": str(shown.target) if shown.target else None, **found.values(),
                 **{key: getattr(found.estimate, key, None) for key in ("value", "low", "high")}}
                for workload, shown in self._shown for found in shown.findings]

    @cached_property
    def tables(self) -> LazyMapping[ReportTable]:
        """The tables by name, as ``--out`` names their files."""
        return LazyMapping("table", {
            f"{shown.slug}-{table.name}": partial(ReportTable, table, shown.target)
            for _, shown in self._shown for table in (*shown.tables, *shown.details)})

    @cached_property
    def figures(self) -> Figures:
        """The figures by name, as ``--out`` names their files."""
        return Figures({f"{shown.slug}-{figure.name}": figure
                        for _, shown in self._shown for figure in shown.figures})

    @property
    def _shown(self) -> Sequence[tuple[str, Chapter | Page]]:
        return [*((str(group.workload), page) for group, pages in self.document.pages for page in pages),
                *(("", chapter) for chapter in self.document.chapters)]

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
