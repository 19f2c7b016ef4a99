"""How a report is given out: text for the screen, and files.

    for text in on_screen(document):
        print(text)
    paths = list(write(document, "report"))
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from ..errors import HvdscaleError, UsageError
from ..formatting.lines import line_width, wrap
from ..formatting.numbers import capital, counted
from ..formatting.progress import Tell, quiet
from ..system.importing import uncollected
from ..system.files import writing
from ..system.forked import map_on_cores
from ..system.outputs import replace_own
from . import FORMATS
from .document import LONGEST_FILE, MOST, Document, Finding, Page, Path, cut
from .table import as_csv, as_text
from .values import as_json

if TYPE_CHECKING:
    from .drawing import Figure

Values = Callable[[], Mapping[str, object]]
MORE = "how to read all this: --full, or the files of --out."
LEFT_OUT = ("Tables. Columns that follow from others are left out of a table that would be too wide; the files of "
            "--out have them.")
MOST_RULED = 20_000                 # trials, beyond which a report is written fast, and rules' costs are left out


def on_screen(document: Document, whole: bool = False) -> Iterator[str]:
    """The report as pieces of plain text: verdict, main table and findings of each workload; ``whole``: then all other
    tables, and at the end how to read them.
    """
    for message in document.skipped:
        yield f"skipped: {message}\n"
    for note in document.notes:
        yield wrap(note) + "\n"
    for group, pages in document.pages:
        title = titled(str(group.workload))
        for page in pages:
            yield from _page_text(page, title + titled(page.title, "-") * (len(pages) > 1), whole)
            title = ""
        if not pages:
            yield f"{title}No trial measured the target.\n"
    for chapter in document.chapters:
        if chapter.findings or chapter.tables:
            yield titled(chapter.title) + bullets(chapter.summary if whole or not chapter.tables else
                                                  [one.said for one in chapter.findings[:MOST]])
            yield from (as_text(table, table.warnings) for table in chapter.tables if whole)
    if not whole:
        more = sum(len(shown.tables) for shown in document.chapters) + sum(
            len(page.tables[1:]) for _, pages in document.pages for page in pages)
        yield wrap(capital(f"{counted(more, 'more table')} and {MORE}" if more else MORE)) + "\n"
    elif document.how_to_read:
        yield titled("How to read this") + bullets(
            [*(f"{about}. {' '.join(notes)}" for about, notes in document.how_to_read), LEFT_OUT])
    if document.hint:
        yield f"{wrap(document.hint)}\n"


def _page_text(page: Page, title: str, whole: bool) -> Iterator[str]:
    """Verdict, main table, findings, and of a whole report other tables; a warning appears once, where it is first due.
    """
    verdict = title + "".join(f"{wrap(said)}\n" for said in page.verdict)
    if verdict:
        yield verdict
    said: set[str] = set()
    for at, table in enumerate(page.tables if whole else page.tables[:1]):
        warnings = (*table.warnings, *(() if at else page.left_out))
        yield as_text(table, [warning for warning in warnings if warning not in said])
        said.update(warnings)
        if not at:
            more = len(page.findings) - MOST
            rest = [f"{more} more, in the files of --out."] if more > 0 else []
            if page.findings:
                yield bullets([*(one.said for one in page.findings[:MOST]), *rest])
    if not page.tables:
        nothing = f"{page.title}: no trial has run to its end and measured it yet."
        yield bullets([*(one.said for one in page.findings or [Finding(nothing)]), *page.left_out])


def bullets(sentences: Iterable[str]) -> str:
    """Each on a line of its own, indented where it takes more."""
    return "\n".join(wrap(said, "- ") for said in sentences) + "\n"


def titled(title: str, line: str = "=") -> str:
    """A heading, underlined."""
    title = wrap(title)
    return f"{title}\n{line * min(line_width(), len(title))}\n"


def write(document: Document, out: Path, formats: Sequence[str] = FORMATS,
          tell: Tell = quiet, *, name: str = "report", values: Values | None = None) -> Iterator[str]:
    """Write the files of a report, each whole or not at all; yields their paths as they are done, the page last.

    name    of its page and of its JSON, which holds ``values()``; by default ``as_json(document)``
    """
    out = os.fspath(out)
    kinds = [kind for kind in ("svg", "png") if kind in formats or kind == "svg" and "html" in formats]
    figures, svgs = [], {}
    for shown in document.shown if kinds else ():
        tell(f"working out the figures of {shown.slug}")
        figures += [(cut(f"{shown.slug}-{figure.name}", LONGEST_FILE), figure) for figure in shown.figures]
    drawing = _drawn(figures, kinds)
    begun, page = list(islice(drawing, 1)), ""
    if "html" in formats:               # which is made while other processes draw
        from .page.html import with_figures, without_figures
        with uncollected():
            page = without_figures(document, tell)
    for at, (file, figure, drawn) in enumerate(chain(begun, drawing), 1):
        tell(f"drawing figure {at} of {len(figures)}")
        svgs[figure] = drawn.get("svg", b"")
        for kind in (kind for kind in kinds if kind in formats):
            yield put_file(os.path.join(out, "figures", f"{file}.{kind}"), drawn[kind])
    with uncollected():
        for shown in document.shown if "csv" in formats else ():
            tell(f"writing the tables of {shown.slug}")
            for table in (*shown.tables, *shown.details):
                file = cut(f"{shown.slug}-{table.name}", LONGEST_FILE)
                yield put_file(os.path.join(out, "tables", f"{file}.csv"), as_csv(table, shown.target))
        if "json" in formats:
            tell(f"writing {name}.json")
            short = sum(log.trials for log in document.logs) <= MOST_RULED          # what is huge is written fast
            text = json.dumps(values() if values else as_json(document, bool(kinds)), indent=1 if short else None,
                              allow_nan=False)
            yield put_file(os.path.join(out, f"{name}.json"), text + "\n")
        if page:
            yield put_file(os.path.join(out, f"{name}.html"), with_figures(page, document, svgs))


def _drawn(figures: Sequence[tuple[str, Figure]],
           kinds: Sequence[str]) -> Iterator[tuple[str, Figure, dict[str, bytes]]]:
    """Each figure with its files' contents by kind."""
    if not figures:
        return
    from .drawing import render
    drawn = map_on_cores(lambda named: {kind: render(named[1], kind) for kind in kinds}, figures)
    for (name, figure), contents in zip(figures, drawn):
        yield name, figure, contents


def refuse_no_folder(out: Path | None) -> None:
    """UsageError, before anything is worked out, where files cannot be written under ``out``; None: none will be."""
    if out is None:
        return
    place = os.path.abspath(out)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise UsageError(f"--out {os.fspath(out)}: cannot be written: {place} is no directory; give another place")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"--out {os.fspath(out)}: cannot be written: no permission to write in {place}; give another "
                         "place")


def put_file(path: str, content: str | bytes) -> str:
    with writing(path, HvdscaleError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    replace_own(path, content, sync=False)
    return path
