"""What a notebook shows for what hvdscale.read gives: pieces of HTML by the template notebook.html, which escapes all
text."""
from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...formatting.escaping import printable
from ...formatting.numbers import counted
from ..document import Document
from ..drawing import Figure, render
from ..findings import MOST
from ..table import Table
from .html import environment

EACH_END = 5        # rows of a long table shown from its start, and from its end
LONGEST = 40        # letters of a value; a plan has thousands
MOST_POINTS = 30    # worker counts and batches listed
POINT = ("dataset", "model", "optimizer", "global_batch", "workers")


class FrameLike(Protocol):
    """Columns of equal length by name, and what they are."""

    name: str
    rows: int

    @property
    def specs(self) -> Mapping[str, Any]: ...

    def __getitem__(self, name: str) -> np.ndarray: ...


def frame_html(frame: FrameLike) -> str:
    """The first and last rows, a column's unit under its name."""
    ends = [*range(frame.rows)] if frame.rows <= 2 * EACH_END else [
        *range(EACH_END), *range(frame.rows - EACH_END, frame.rows)]
    rows = list(zip(*([_shown(frame[name][row]) for row in ends] for name in frame.specs)))
    return _render("frame", specs=frame.specs.values(), title=f"{frame.name}: {counted(frame.rows, 'row')}", rows=rows,
                   left_out=frame.rows - len(ends), at=EACH_END)


def runs_html(trials: FrameLike, skipped: Sequence[str], logs: int) -> str:
    """The number of trials of each workload, batch and worker count, and how they ended."""
    found: dict[tuple[Any, ...], Counter[str]] = {}
    for *point, status in zip(*(trials[name].tolist() for name in (*POINT, "status"))):
        found.setdefault(tuple(point), Counter())[status] += 1
    rows = [(f"{dataset}/{model}", optimizer, f"{batch:,}", f"{workers:,}", f"{sum(ended.values()):,}",
             ", ".join(f"{number:,} {status}" for status, number in ended.items()))
            for (dataset, model, optimizer, batch, workers), ended in sorted(found.items(), key=lambda one: one[0])]
    return _render("runs", title=f"{counted(trials.rows, 'trial')} in {counted(logs, 'log')}", skipped=skipped,
                   rows=rows[:MOST_POINTS], left_out=len(rows[MOST_POINTS:]))


def table_html(table: Table) -> str:
    """A table of a report with its warnings and notes."""
    return _render("table", table=table)


def figures_html(figures: Mapping[str, Figure]) -> str:
    """The figures as pictures that cannot touch the page around them, with their captions."""
    drawn = [(name, figure, f"data:image/svg+xml;base64,{b64encode(render(figure, 'svg')).decode()}")
             for name, figure in figures.items()]
    return _render("figures", figures=drawn)


def report_html(document: Document) -> str:
    """Of each workload and target the verdict, the tables and the findings."""
    return _render("report", document=document, most=MOST)


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _render(part: str, **values: Any) -> str:
    return printable(environment().get_template("notebook.html").render(part=part, **values).strip())
