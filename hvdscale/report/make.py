"""From logs to a report: on screen the verdict, the tables and how to read them; then the files.

    make(["runs"], targets=[Target.parse("val/error<0.01")], out="report")
"""
from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from textwrap import fill

from ..analysis.metric_direction import check_direction
from ..analysis.report_data import Options, analyse, refuse_unknown
from ..analysis.studies import studies_of
from ..analysis.trials import read_trials
from ..errors import HvdscaleError, LogError, UsageError
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..log.check import refuse_unsound, refuse_unsound_trials
from ..log.plan_text import refuse_wrong_plans
from ..log.reader import Log, read_log
from ..log.segments import find_logs
from ..system.files import write_whole
from ..target import Target
from .defaults import FORMATS
from .document import MOST_EVALUATIONS, MOST_RULED, Document, Page, as_json, document_of, document_of_studies, facts_of
from .file_names import LONGEST_FILE, Path, cut
from .findings import MOST
from .studies import Asked
from .table import WIDTH, as_csv, as_text

LEFT_OUT = ("Tables. Columns that follow from others are left out of a table that would be too wide; the files of "
            "--out have them.")
NO_TARGET = "The logs have no target; --target 'val/error<0.01' holds their trials against one."
LONG_BYTES = 100 << 20      # of a log, beyond which reading it takes a while


def make(paths: Iterable[Path], targets: Sequence[Target] = (), out: Path | None = None, *,
         options: Options = Options(), formats: Sequence[str] = FORMATS, skip_broken: bool = False,
         asked: Asked = Asked(), echo: Callable[[str], object] = print, tell: Tell = quiet) -> Document:
    """Print the report of these logs, and write its files under the directory ``out`` where one is given.

    paths        logs, or directories of logs
    targets      to hold the trials against; none: each against its own
    skip_broken  go on without the logs that cannot be read, and say so; else the first raises its LogError
    asked        what is to be shown of studies, beside the targets
    echo         takes each piece of text for the screen as soon as it is known
    tell         is told what is being done, see progress.Progress
    """
    refuse_no_folder(out)
    with ExitStack() as opened:
        with _uncollected():
            logs, skipped = open_all(paths, skip_broken, opened, tell)
            document = read(logs, targets, skipped, options, asked, tell)
        for text in on_screen(document):
            echo(text)
        if out is not None:
            written = list(write(document, out, formats, tell))
            echo(f"wrote {counted(len(written), 'file')}: {written[-1]}"
                 + (f", and more beside it ({', '.join(formats)})" if len(written) > 1 else ""))
    gc.unfreeze()
    return document


def read(logs: Sequence[Log], targets: Sequence[Target] = (), skipped: Sequence[str] = (), options: Options = Options(),
         asked: Asked = Asked(), tell: Tell = quiet) -> Document:
    """The report of logs that are open, and stay so while the document is used."""
    for target in targets:
        check_direction(target, logs)
    evaluations = sum(log.evaluations.rows for log in logs)
    tell(f"sorting {evaluations:,} evaluations by trial", long=evaluations > MOST_EVALUATIONS)
    facts, studies = [facts_of(log) for log in logs], studies_of(logs)
    if asked.paper or evaluations > MOST_EVALUATIONS:
        refuse_unknown(targets, {name for study in studies for name in study.evaluations.columns})
        return document_of_studies(studies, targets, facts, skipped, options, asked, tell)
    trials = [trial for log in logs for trial in read_trials(log)]
    tell(f"holding {counted(len(trials), 'trial')} against their targets")
    return document_of(analyse(trials, targets, options), facts, skipped, options, studies, asked, tell)


def open_all(paths: Iterable[Path], skip_broken: bool, opened: ExitStack,
             tell: Tell = quiet) -> tuple[list[Log], list[str]]:
    """(logs, messages about those skipped) of all logs among files and directories, open until ``opened`` closes.

    Raises LogError where a log cannot be read, unless it is to be skipped, and where there is nothing to report.
    """
    for path in paths:
        _refuse_outer(path)
    names = find_logs(paths)
    logs, skipped = [], []
    for at, name in enumerate(names, 1):
        tell(f"reading log {at} of {len(names)}: {name}",
             long=os.path.exists(name) and os.path.getsize(name) > LONG_BYTES)
        try:
            log = opened.enter_context(read_log(name))
            (refuse_unsound if log.evaluations.rows <= MOST_EVALUATIONS else refuse_unsound_trials)(log)
            refuse_wrong_plans(log)
            logs.append(log)
            skipped += left_out_of(log)
        except LogError as error:
            if not skip_broken:
                rest = "\n--skip-broken continues without logs that cannot be read" if len(names) > 1 else ""
                raise LogError(f"{error}{rest}") from error
            skipped.append(str(error))
    if not names:
        raise LogError(f"no logs (*.h5) in {', '.join(map(str, paths)) or 'an empty list of paths'}")
    if not sum(log.trials.rows for log in logs):
        raise LogError(f"{', '.join(names)}: no trial that can be read, so there is nothing to report yet"
                       + "".join(f"\n{message}" for message in skipped))
    return logs, skipped


def left_out_of(log: Log, most: int = 10) -> list[str]:
    """Messages about the trials that an import left out of a log."""
    note = log.attributes.get("skipped")
    if not isinstance(note, dict) or not isinstance(note.get("count"), int) or not isinstance(note.get("first"), list):
        return []
    said = [f"{log.path}: left out when it was imported: {message}" for message in note["first"][:most]]
    rest = note["count"] - len(said)
    return said + [f"{log.path}: left out when it was imported: {rest:,} more"] * (rest > 0)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without passes of the garbage collector, nor later ones over what was made meanwhile: over a log of 200,000
    trials they take a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def _refuse_outer(path: Path, most: int = 8) -> None:
    """LogError where a directory has no log of its own while those in it have: what lies apart is not mixed unasked."""
    if not os.path.isdir(path) or find_logs([path]):
        return
    within = []
    for folder, inner, _ in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        count = len(find_logs([folder]))
        within += [f"\n  {folder}: {counted(count, 'log')}"] if count else []
    if within:
        more = f"\n  and {len(within) - most} more" if len(within) > most else ""
        raise LogError(f"no logs (*.h5) in {os.fspath(path)} itself, but in directories in it; name those to report on "
                       f"together:{''.join(within[:most])}{more}")


def on_screen(document: Document) -> Iterator[str]:
    """The report as pieces of plain text: verdict, main table, findings and other tables; at the end how to read them.
    """
    for message in document.skipped:
        yield f"skipped: {message}\n"
    for note in document.notes:
        yield fill(note, WIDTH) + "\n"
    for group, pages in document.pages:
        title = titled(str(group.workload))
        for page in pages:
            yield from _page_text(page, title + titled(page.title, "-") * (len(pages) > 1))
            title = ""
        if not pages:
            yield f"{title}No trial measured the target.\n"
    for chapter in document.chapters:
        if chapter.findings or chapter.tables:
            yield titled(chapter.title) + bullets(chapter.summary)
            yield from (as_text(table, table.warnings) for table in chapter.tables)
    if document.how_to_read:
        yield titled("How to read this") + bullets(
            [*(f"{about}. {' '.join(notes)}" for about, notes in document.how_to_read), LEFT_OUT])
    if all(page.target is None for _, pages in document.pages for page in pages):
        yield f"{NO_TARGET}\n"


def _page_text(page: Page, title: str) -> Iterator[str]:
    """Verdict, main table, findings, other tables; a warning stands once, where it is first due."""
    verdict = title + "".join(f"{fill(said, WIDTH)}\n" for said in page.verdict)
    if verdict:
        yield verdict
    said: set[str] = set()
    for at, table in enumerate(page.tables):
        warnings = (*table.warnings, *(() if at else page.left_out))
        yield as_text(table, [warning for warning in warnings if warning not in said])
        said.update(warnings)
        if not at:
            more = len(page.findings) - MOST
            rest = [f"{more} more, in report.html and report.json of --out."] * (more > 0)
            if page.findings:
                yield bullets([*(one.said for one in page.findings[:MOST]), *rest])
    if not page.tables:
        yield bullets([f"{page.title}: no trial has run to its end yet.", *page.left_out])


def bullets(sentences: Iterable[str]) -> str:
    """Each on a line of its own, indented where it takes more."""
    return "\n".join(fill(said, WIDTH, initial_indent="- ", subsequent_indent="  ") for said in sentences) + "\n"


def titled(title: str, line: str = "=") -> str:
    """A heading, underlined."""
    title = fill(title, WIDTH)
    return f"{title}\n{line * min(WIDTH, len(title))}\n"


def write(document: Document, out: Path, formats: Sequence[str] = FORMATS,
          tell: Tell = quiet) -> Iterator[str]:
    """Write the files of a report, each whole or not at all; yields their paths as they are done, the page last."""
    out = os.fspath(out)
    kinds = ["svg"] * ("svg" in formats or "html" in formats) + ["png"] * ("png" in formats)
    figures = []
    if kinds:
        from .drawing import render
    for shown in document.shown if kinds else ():
        tell(f"working out the figures of {shown.slug}")
        figures += [(cut(f"{shown.slug}-{figure.name}", LONGEST_FILE), figure) for figure in shown.figures]
    for at, (name, figure) in enumerate(figures, 1):
        tell(f"drawing figure {at} of {len(figures)}")
        for kind in kinds:
            drawn = render(figure, kind)            # the page takes it from there
            if kind in formats:
                yield put_file(os.path.join(out, "figures", f"{name}.{kind}"), drawn)
    with _uncollected():
        for shown in document.shown if "csv" in formats else ():
            tell(f"writing the tables of {shown.slug}")
            for table in (*shown.tables, *shown.details):
                name = cut(f"{shown.slug}-{table.name}", LONGEST_FILE)
                yield put_file(os.path.join(out, "tables", f"{name}.csv"), as_csv(table, shown.target))
        if "json" in formats:
            tell("writing report.json")
            short = sum(log.trials for log in document.logs) <= MOST_RULED          # what is huge is written fast
            values = json.dumps(as_json(document, bool(kinds)), indent=1 if short else None, allow_nan=False)
            yield put_file(os.path.join(out, "report.json"), values + "\n")
    if "html" in formats:
        from .page.html import as_html
        yield put_file(os.path.join(out, "report.html"), as_html(document, tell))


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
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_whole(path, content, sync=False)
    except OSError as error:
        raise HvdscaleError(f"{path}: cannot be written: {error.strerror}") from error
    return path
