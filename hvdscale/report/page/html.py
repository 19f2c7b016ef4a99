"""The report as one HTML file that needs no network and no second file, by the template page.html.

All is said in words, tables and figures; a script makes the tables sort.
"""
from __future__ import annotations

import math
import re
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ...analysis.grouping import group_by
from ...analysis.intervals import OWN_FROM
from ...formatting.escaping import printable
from ...formatting.numbers import RANGE, counted, listed
from ...formatting.progress import Tell, quiet
from ..document import MAIN, MOST, Document
from ..drawing import Figure, colors_on_dark, render
from ..table import Cell, Row, Table, TrialKeys

SHORTER = (                 # what a tag of an SVG on a page can do without
    (r'^<g id="[^"]*"', "<g"), (r"font-family: [^;\"]*;? ?", ""), (r"(\d\.\d\d)\d+", r"\1"), (r"([;:]) ", r"\1"),
    (r"\s*\n\s*", " "))
SUBJECTS = {                # of figures, each with what their names begin with, the first that does
    "Steps by batch": "steps-|examples-", "Trials": "trials|best-of-n|best-under|base-rates",
    "Metaparameters": "best-|lr-", "Workers": "speedup-|efficiency-|step-time-", "Training": "curve-|noise-"}
PLACE, PALETTE = Markup("<!--figure {}-->"), "/*palette*/"
WIDEST = 1.6                # pixels of a figure for each of its points
INTERVAL = re.compile(r"\([\d.,kMG]+-[\d.,kMG]+\)")
EACH_END = 5        # rows of a long table shown from its start, and from its end
LONGEST = 40        # letters of a value; a plan has thousands
MOST_POINTS = 30    # worker counts and batches listed
POINT = ("dataset", "model", "optimizer", "global_batch", "workers")


def as_html(document: Document) -> str:
    """The page of a report.document.Document."""
    return with_figures(without_figures(document), document, {})


def with_figures(page: str, document: Document, drawn: Mapping[Figure, bytes]) -> str:
    """The page that ``without_figures`` gives, with the SVGs in ``drawn``; others are drawn."""
    anchors = ((f"{shown.slug}-{figure.name}", figure) for shown in document.shown for figure in shown.figures)
    svgs = {anchor: _inline(figure, drawn.get(figure) or render(figure, "svg"), anchor) for anchor, figure in anchors}
    page = page.replace(PALETTE, _palette(svgs.values()), 1)
    return printable(re.sub(PLACE.format("(.*?)"), lambda found: svgs[found[1]], page))


def without_figures(document: Document, tell: Tell = quiet) -> str:
    """The page with a mark at the place of each figure and of their colours, so that all is ready once they are drawn.
    """
    pages = [page for _, found in document.pages for page in found]
    tell("writing the page")
    contents = [*((page.slug, f"{group.workload}: {page.title}") for group, own in document.pages for page in own),
                *((chapter.slug, chapter.title) for chapter in document.chapters)]
    style, script = _packaged("page.css") + PALETTE, _packaged("page.js")
    return environment().get_template("page.html").render(
        document=document, contents=contents, place=PLACE.format, style=Markup(style),
        script=Markup(script), allowed=_allowed(script),
        searched=any(page.section and page.section.searches for page in pages),
        confidence=f"{document.confidence:.0%}", own_from=OWN_FROM, most=MOST, lead=MAIN)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Where templates are found; every text in them is escaped unless it is Markup."""
    environment = Environment(loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"by_subject": _by_subject, "cells_of": _cells_of, "counted": counted,
                            "first_sentence": _first_sentence, "listed": listed, "trials_of": _trials_of,
                            "unbroken": _unbroken, "unsaid": _unsaid, "with_dash": _with_dash}
    return environment


def _packaged(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _allowed(script: str) -> str:
    """What a script is allowed by in a Content-Security-Policy: no other script runs, were one to get into the page."""
    return Markup(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'")


def _by_subject(figures: Iterable[Figure]) -> list[tuple[str, list[Figure]]]:
    """(subject, its figures) in their order; "": of none."""
    return list(group_by(figures, lambda figure: next(
        (subject for subject, names in SUBJECTS.items() if re.match(names, figure.name)), "")).items())


def _trials_of(keys: TrialKeys) -> Markup:
    """``w8.h5: trials 0-5 and 9; w16.h5: trial 1``."""
    by_log = [(escape(log), [trial for _, trial in own]) for log, own in groupby(sorted(keys), key=itemgetter(0))]
    return Markup("; ".join(f"<code>{log}</code>: {'trial' if len(ids) == 1 else 'trials'} {listed(_stretches(ids))}"
                            for log, ids in by_log) or "none")


def _stretches(ids: Sequence[int]) -> list[str]:
    """Increasing numbers, three and more that follow each other as ``0-5``."""
    found: list[str] = []
    for _, own in groupby(enumerate(ids), lambda one: one[1] - one[0]):
        run = [one for _, one in own]
        found += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return found


def _cells_of(row: Row) -> Markup:
    """The cells of a table's row, the first of which heads it. Pages have many, so no template makes them."""
    return Markup("".join(_cell(cell, "td" if at else "th") for at, cell in enumerate(row.cells)))


def _cell(cell: Cell, tag: str) -> str:
    unmet = cell.shown in ("not met", "diverged") or cell.shown[:1] == ">" and cell.shown[-1:] != "%"
    look = ' scope="row"' if tag == "th" else ' class="unmet"' if unmet else ' class="text"' * (len(cell.shown) > 40)
    key = _sort_key(cell.value)
    value = "" if key is None else f' data-value="{key}"'
    below = f"<small>{escape(_with_dash(cell.below))}</small>" if cell.below else ""
    return f"<{tag}{look}{value}>{escape(cell.shown)}{below}</{tag}>"


def _first_sentence(text: str) -> tuple[str, str]:
    """(the first sentence, the others) of a caption."""
    first, *rest = re.split(r"(?<=[\w)]\.) (?=[A-Z])", text, maxsplit=1)
    return first, "".join(rest)


def _unsaid(warnings: Iterable[str], said: list[str]) -> list[str]:
    """Of warnings those that are not among ``said``, to which they are added."""
    found = [warning for warning in warnings if warning not in said]
    said += found
    return found


def _unbroken(said: str) -> Markup:
    """A sentence of which the intervals in brackets stay on one line."""
    return Markup(INTERVAL.sub(r'<span class="range">\g<0></span>', str(escape(said))))


def _with_dash(span: str) -> str:
    return RANGE.sub("\N{EN DASH}", span)


def _sort_key(value: float | str | None) -> str | None:
    """What a cell is sorted by: its number; empty: none, which comes last; None: its text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return "" if math.isnan(value) else str(float(value)).replace("inf", "Infinity")


def _inline(figure: Figure, drawn: bytes, anchor: str) -> Markup:
    """The figure's SVG for the inside of a page: short, ids of its own, colours that follow the page's theme; its texts
    are escaped."""
    svg = drawn.decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg"):], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", _shorter, svg)
    svg = re.sub(r">\s+<", "><", svg).replace("<g></g>", "").replace("<g/>", "")
    own = f"{zlib.crc32(anchor.encode()):x}"
    svg = re.sub(r'\bid="', f'id="{own}.', svg)
    svg = re.sub(r'url\(#', f"url(#{own}.", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{own}.', svg)
    svg = svg.replace("#ffffff", "none").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r"(fill|stroke): ?#([0-9a-f]{6})", r"\1:var(--c\2)", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="(0 0 ([\d.]+) [\d.]+)"[^>]*>', lambda found: (
        f'<svg role="img" aria-label="{escape(figure.alt)}" viewBox="{found[1]}" '
        f'style="max-width:{WIDEST * float(found[2]):.0f}px">'), svg, count=1)
    return Markup(svg)


def _shorter(tag: re.Match[str]) -> str:
    text = tag[0]
    for long, short in SHORTER:
        text = re.sub(long, short, text)
    return text


def _palette(svgs: Iterable[str]) -> str:
    """CSS variables for the colours that the figures use, on light and on dark pages."""
    used = sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", "".join(svgs))))
    if not used:
        return ""
    on_dark = colors_on_dark()
    light, dark = ("".join(f"--c{color}:{of(f'#{color}')};" for color in used) for of in (str, on_dark.__getitem__))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


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
