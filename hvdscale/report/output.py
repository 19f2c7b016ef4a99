"""How a report is given out: text for the screen, files, and values for report.json."""
from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING

from .. import __version__
from ..analysis.intervals import OWN_FROM
from ..analysis.report_data import Section
from ..errors import HvdscaleError, UsageError
from ..formatting.numbers import counted
from ..formatting.screen import USUAL, Tell, quiet, terminal_width, wrap
from ..system.files import writing
from ..system.forked import map_on_cores
from ..system.outputs import replace_own
from . import FORMATS
from .document import LONGEST_FILE, MOST, Chapter, Document, Finding, Page, Path, cut
from .table import as_csv, as_text, as_values, encode, pick, trial_list
from .texts import GENERAL
from .views.searches import lines

if TYPE_CHECKING:
    from .drawing import Figure

WORKLOAD = "dataset model model_args optimizer train_examples"
MOST_RULED = 20_000                 # trials, beyond which a report is written fast, and rules' costs are left out


@contextmanager
def uncollected() -> Iterator[None]:
    """Without passes of the garbage collector, nor later ones over what was made meanwhile: they take a third of the
    time over a log of 200,000 trials."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def on_screen(document: Document, whole: bool = False) -> Iterator[str]:
    """The report in pieces of text: verdict, main table and findings of each workload; ``whole``: then other tables,
    and how to read them."""
    for message in document.skipped:
        yield f"skipped: {message}\n"
    for note in document.notes:
        yield wrap(note) + "\n"
    for workload, pages in document.pages:
        title = titled(str(workload))
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
        more = sum(len(shown.tables) for shown in document.shown) - sum(
            bool(page.tables) for _, pages in document.pages for page in pages)
        yield wrap(GENERAL.say("more", tables=more or None)) + "\n"
    elif document.how_to_read:
        yield titled("How to read this") + bullets(
            [*(f"{about}. {' '.join(notes)}" for about, notes in document.how_to_read), GENERAL.say("spare_left_out")])
    if document.hint:
        yield f"{wrap(document.hint)}\n"


def _page_text(page: Page, title: str, whole: bool) -> Iterator[str]:
    """Verdict, main table, findings, and of a whole report other tables; each warning where it is first due."""
    if verdict := title + "".join(f"{wrap(said)}\n" for said in page.verdict):
        yield verdict
    said: set[str] = set()
    for at, table in enumerate(page.tables if whole else page.tables[:1]):
        warnings = (*table.warnings, *(() if at else page.left_out))
        yield as_text(table, [warning for warning in warnings if warning not in said])
        said.update(warnings)
        if page.findings and not at:
            more = len(page.findings) - MOST
            rest = [f"{more} more, in the files of --out."] if more > 0 else []
            yield bullets([*(one.said for one in page.findings[:MOST]), *rest])
    if not page.tables:
        nothing = f"{page.title}: no trial has run to its end and measured it yet."
        yield bullets([*(one.said for one in page.findings or [Finding(nothing)]), *page.left_out])


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(wrap(said, "- ") for said in sentences) + "\n"


def titled(title: str, line: str = "=") -> str:
    title = wrap(title)
    return f"{title}\n{line * min(terminal_width() or USUAL, len(title))}\n"


def give_out(document: Document, out: Path | None, formats: Sequence[str], echo: Callable[[str], object],
             whole: bool = False, every_figure: bool = True, tell: Tell = quiet) -> None:
    """Print a document, and write its files under ``out`` where that is given."""
    for text in on_screen(document, whole):
        echo(text)
    if out is not None:
        written = list(write(document if every_figure else document.with_main_figures(), out, formats, tell))
        echo(f"wrote {counted(len(written), 'file')}: {written[-1]}"
             + (f", and more beside it ({', '.join(formats)})" if len(written) > 1 else "")
             + ("" if every_figure else "; --figures all draws every figure"))


def write(document: Document, out: Path, formats: Sequence[str] = FORMATS, tell: Tell = quiet) -> Iterator[str]:
    """Write the files of a report or a plan, each whole or not at all; yields their paths as they are done, the page
    last."""
    out = os.fspath(out)
    kinds = [kind for kind in ("svg", "png") if kind in formats or kind == "svg" and "html" in formats]
    figures: list[tuple[str, Figure]] = []
    svgs: dict[Figure, bytes] = {}
    for shown in document.shown if kinds else ():
        tell(f"working out the figures of {shown.slug}")
        figures += [(cut(f"{shown.slug}-{figure.name}", LONGEST_FILE), figure) for figure in shown.figures]
    drawing: Iterator[dict[str, bytes]] = iter(())
    if figures:
        from .drawing import render
        drawing = iter(map_on_cores(lambda named: {kind: render(named[1], kind) for kind in kinds}, figures))
    begun, page = list(islice(drawing, 1)), ""
    if "html" in formats:               # which is made while other processes draw
        from .page.html import as_html, without_figures
        with uncollected():
            page = without_figures(document, tell)
    for at, ((file, figure), drawn) in enumerate(zip(figures, chain(begun, drawing)), 1):
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
            tell(f"writing {document.kind}.json")
            short = sum(log.trials for log in document.logs) <= MOST_RULED          # what is huge is written fast
            text = json.dumps(as_json(document, bool(kinds)), indent=1 if short else None, allow_nan=False)
            yield put_file(os.path.join(out, f"{document.kind}.json"), text + "\n")
        if page:
            yield put_file(os.path.join(out, f"{document.kind}.html"), as_html(document, svgs, page))


def as_json(document: Document, figures: bool = True) -> dict[str, object]:
    """The report for report.json: every number with its interval, its trials and its formula; ``figures``: whether to
    list those of each workload, which have to be worked out for that. Of a document with values of its own those."""
    return {**head_of(document.kind), **(document.values() if document.values else {
        "confidence": document.confidence,
        "logs": [pick(log, "path trials hosts devices attributes") for log in document.logs],
        "skipped": document.skipped, "notes": document.notes, "workloads": [{
            **pick(workload, WORKLOAD), **(pick(workload, "version") if workload.version else {}), "sections": [{
                "target": str(page.target) if page.target else None, "summary": page.summary, "verdict": page.verdict,
                "findings": [finding.values() for finding in page.findings], "left_out": page.left_out,
                **_shown_values(page, figures),
                **(_section_values(page.section) if page.section and page.section.trials else {})} for page in pages]}
            for workload, pages in document.pages],
        "how_to_read": [{"about": about, "notes": notes} for about, notes in document.how_to_read],
        "chapters": [{"title": chapter.title, "summary": chapter.summary,
                      "findings": [found.values() for found in chapter.findings], **_shown_values(chapter)}
                     for chapter in document.chapters]})}


def head_of(kind: str) -> dict[str, object]:
    return {"format": f"hvdscale-{kind}", "version": 1, "creator": f"hvdscale {__version__}"}


def _shown_values(shown: Chapter, figures: bool = True) -> dict[str, object]:
    return {"tables": [as_values(table) for table in (*shown.tables, *shown.details)],
            "figures": [{"name": f"{shown.slug}-{figure.name}", **pick(figure, "title caption formula source"),
                         "trials": trial_list(figure.trials)} for figure in (shown.figures if figures else ())]}


def _section_values(section: Section) -> dict[str, object]:
    pooled, paired = ({name: {"deviation_of_logs": float(spread.deviation), "degrees_of_freedom": spread.freedom,
                              **({"variance_grows_with_batch_to_the": spread.growth, "at_batch": spread.base}
                                 if spread.growth else {})}
                       for name, spread in pools.items() if spread.freedom}
                      for pools in (section.pools.cell, section.pools.paired))
    searches = [{
        **pick(search, "study objective done"), "said": lines(search), "space": [one.record() for one in search.space],
        "draws": [{**pick(draw, "draw=number kind value last_step"), "point": draw.point if draw.trial else None,
                   **({"log": draw.trial.log, "trial": draw.trial.id} if draw.trial else {})} for draw in search.draws],
        "best": search.best and search.best.number,
        "positions": {bound.parameter.name: encode(bound.position) for bound in search.bounds},
        "best_of_n": [pick(one, "n low high") for one in search.curve], **pick(search, "saved_steps"),
    } for search in section.searches]
    return {
        "intervals": {"confidence": section.options.confidence, "formula": GENERAL.say(
            "interval_formula", own_from=OWN_FROM), "pooled": pooled, "paired": paired},
        "tolerances": pick(section.options, "perfect_within useful_within loss_within"),
        **({"searches": searches} if searches else {})}


def refuse_no_folder(out: Path | None) -> None:
    """UsageError, before anything is worked out, where files cannot be written under ``out``; None: none will be."""
    place = os.path.abspath(out or "")
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    why = f"no permission to write in {place}" if os.path.isdir(place) else f"{place} is no directory"
    if out is not None and not (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):
        raise UsageError(f"--out {os.fspath(out)}: cannot be written: {why}; give another place")


def put_file(path: str, content: str | bytes) -> str:
    with writing(path, HvdscaleError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    replace_own(path, content, sync=False)
    return path
