"""What a part of a report shows.

    view = View(findings, present(table), find=lambda: [figure])
    view.summary, view.tables, view.figures
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from .drawing import Figure
from .findings import Finding, sentences_of
from .table import Table


@dataclass(frozen=True, eq=False)
class View:
    """Findings, tables and figures, each as far as there are.

    details   tables for files only
    find      works out one figure after another, as far as they are asked for, while the logs are open
    """

    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    details: tuple[Table, ...] = ()
    find: Callable[[], Iterable[Figure]] = tuple

    @property
    def summary(self) -> tuple[str, ...]:
        """The findings in sentences."""
        return sentences_of(self.findings)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, worked out once."""
        return tuple(self.find())


def present(*tables: Table | None) -> tuple[Table, ...]:
    """Those that there are."""
    return tuple(table for table in tables if table is not None)


def joined(views: Sequence[View]) -> View:
    """All that several views show, in their order; of figures of one name the first."""
    def find() -> Iterator[Figure]:
        names = set()
        for view in views:
            for figure in view.find():
                if figure.name not in names:
                    names.add(figure.name)
                    yield figure
    return View(tuple(found for view in views for found in view.findings),
                tuple(table for view in views for table in view.tables),
                tuple(table for view in views for table in view.details), find)
