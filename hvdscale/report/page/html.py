"""The report as one HTML file that needs no network and no second file, by page.html; and parts of it for notebooks."""

import math
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import resources
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ...analysis.intervals import OWN_FROM
from ...analysis.studies import group_by
from ...formatting.numbers import RANGE, counted, list_first, listed
from ...formatting.screen import Tell, printable, quiet
from ..document import MAIN, MOST, Document
from ..drawing import Figure, colors_on_dark, render
from ..table import Row, TrialKeys
from ..texts import GENERAL

SHORTER = (                 # what a tag of an SVG on a page can do without
    (r'^<g id="[^"]*"', "<g"), (r"font-family: [^;\"]*;? ?", ""), (r"(\d\.\d\d)\d+", r"\1"), (r"([;:]) ", r"\1"),
    (r"\s*\n\s*", " "), (r' transform="rotate\(-0 [^"]*"', ""), (r";?stroke-linejoin:miter", ""))
PLACE, PALETTE = Markup("<!--figure {}-->"), "/*palette*/"
WIDEST = 1.6                # pixels of a figure for each of its points
INTERVAL = re.compile(r"\([\d.,kMG]+-[\d.,kMG]+\)")
SENTENCES = re.compile(r"(?<=[\w)]\.) (?=[A-Z])")          # where one begins
EACH_END = 5        # rows of a long table shown from its start, and from its end
LONGEST = 40        # letters of a value; a plan has thousands
_with_dash = partial(RANGE.sub, "\N{EN DASH}")


def as_html(document: Document, drawn: Mapping[Figure, bytes] = {}, page: str = "") -> str:
    """The page, as ``without_figures`` gives it, with the SVGs in ``drawn``; others are drawn."""
    page = page or without_figures(document)
    anchors = ((f"{shown.slug}-{figure.name}", figure) for shown in document.shown for figure in shown.figures)
    svgs = {anchor: _inline(figure, drawn.get(figure) or render(figure, "svg"), anchor) for anchor, figure in anchors}
    used = sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", "".join(svgs.values()))))
    palette = "".join(f"--c{color}:#{color};" for color in used)
    if used:
        on_dark = colors_on_dark()
        dark = "".join(f"--c{color}:{on_dark[f'#{color}']};" for color in used)
        palette = f":root{{{palette}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    page = page.replace(PALETTE, palette, 1)
    return printable(re.sub(PLACE.format("(.*?)"), lambda found: svgs[found[1]], page))


def without_figures(document: Document, tell: Tell = quiet) -> str:
    """The page with a mark at the place of each figure and of their colours, for ``as_html`` to fill in."""
    pages = [page for _, found in document.pages for page in found]
    tell("writing the page")
    contents = [*((page.slug, f"{workload}: {page.title}") for workload, own in document.pages for page in own),
                *((chapter.slug, chapter.title) for chapter in document.chapters)]
    style, script = ((resources.files(__package__) / name).read_text(encoding="utf-8") for name in (
        "page.css", "page.js"))
    digest = b64encode(sha256(script.encode()).digest()).decode()       # of the one script that a policy allows
    return ENVIRONMENT.get_template("page.html").render(
        document=document, contents=contents, place=PLACE.format, style=Markup(style + PALETTE),
        script=Markup(script), allowed=Markup(f"'sha256-{digest}'"), files={
            trial.key: trial.plan["file"] for page in pages if page.section for trial in page.section.trials
            if "file" in trial.plan}, searched=any(page.section and page.section.searches for page in pages),
        confidence=f"{document.confidence:.0%}", own_from=OWN_FROM, most=MOST, lead=MAIN)


def _by_subject(figures: Iterable[Figure]) -> list[tuple[str, list[Figure]]]:
    """(subject, its figures) in their order; "": of none."""
    return list(group_by(figures, lambda figure: next(
        (subject for subject, names in GENERAL.words("subject").items() if re.match(names, figure.name)), "")).items())


def _trials_of(keys: TrialKeys, files: Mapping[tuple[str, int], str]) -> Markup:
    """``w8.h5: trials 0-5 and 9; w16.h5: trial 1``: three and more ids that follow each other by their ends; first the
    files of runs of other programs."""
    named = [f"<code>{escape(files[key])}</code>" for key in keys if key in files]
    said = [list_first(named, MOST)] if named else []
    for log, own in group_by(sorted(key for key in keys if key not in files), itemgetter(0)).items():
        found: list[str] = []
        for _, stretch in groupby(enumerate(trial for _, trial in own), lambda one: one[1] - one[0]):
            run = [one for _, one in stretch]
            found += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
        said.append(f"<code>{escape(log)}</code>: {'trial' if len(own) == 1 else 'trials'} {listed(found)}")
    return Markup("; ".join(said) or "none")


def _cells_of(row: Row) -> Markup:
    """The cells of a table's row, the first of which heads it. Pages have many, so no template makes them."""
    found: list[str] = []
    for cell in row.cells:
        tag, look = ("td", ' class="text"' if len(cell.shown) > 40 else "") if found else ("th", ' scope="row"')
        unmet = cell.shown in ("not met", "diverged") or cell.shown[:1] == ">" and cell.shown[-1:] != "%"
        look = ' class="unmet"' if found and unmet else look
        value = ""              # what it is sorted by, where that is not what it shows; an empty one comes last
        if isinstance(cell.value, (int, float)) and not isinstance(cell.value, bool):
            number = "" if math.isnan(cell.value) else f"{cell.value:.8g}".replace("inf", "Infinity")
            if number != cell.shown or cell.below:
                value = f' data-value="{number}"'
        below = f"<small>{escape(_with_dash(cell.below))}</small>" if cell.below else ""
        found.append(f"<{tag}{look}{value}>{escape(cell.shown)}{below}</{tag}>")
    return Markup("".join(found))


def _unbroken(said: str) -> Markup:
    """A sentence of which the intervals in brackets stay on one line."""
    return Markup(INTERVAL.sub(r'<span class="range">\g<0></span>', str(escape(said))))


def _inline(figure: Figure, drawn: bytes, anchor: str) -> Markup:
    """The SVG for the inside of a page: short, ids of its own, colours that follow the theme; its texts are escaped."""
    svg = drawn.decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg"):], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)

    def shorter(tag: re.Match[str]) -> str:
        text = tag[0]
        for long, short in SHORTER:
            text = re.sub(long, short, text)
        return text
    svg = re.sub(r"<[^>]*>", shorter, svg)
    svg = re.sub(r">\s+<", "><", svg).replace("<g></g>", "").replace("<g/>", "")
    own, ids = f"{zlib.crc32(anchor.encode()):x}", dict[str, str]()
    svg = re.sub(r"\b[mp][0-9a-f]{10}\b", lambda found: ids.setdefault(found[0], str(len(ids))), svg)
    for old, new in ((r'\bid="', f'id="{own}.'), (r"url\(#", f"url(#{own}."), ('xlink:href="#', f'href="#{own}.'),
                     ("#ffffff", "none"), (' xmlns:xlink="http://www.w3.org/1999/xlink"', ""),
                     (r"(fill|stroke): ?#([0-9a-f]{6})", r"\1:var(--c\2)")):
        svg = re.sub(old, new, svg)
    svg = re.sub(r'<svg [^>]*?viewBox="(0 0 ([\d.]+) [\d.]+)"[^>]*>', lambda found: (
        f'<svg role="img" aria-label="{escape(figure.alt)}" viewBox="{found[1]}" '
        f'style="max-width:{WIDEST * float(found[2]):.0f}px">'), svg, count=1)
    return Markup(svg)


def frame_html(frame: Any, title: str, count: int, skipped: Sequence[str] = ()) -> str:
    ends = [*range(count)] if count <= 2 * EACH_END else [*range(EACH_END), *range(count - EACH_END, count)]
    columns = ([_shown(frame[name][row]) for row in ends] for name in frame.specs)
    return notebook_html("frame", specs=frame.specs.values(), title=title, rows=list(zip(*columns)), skipped=skipped,
                         left_out=count - len(ends), at=EACH_END)


def figures_html(figures: Mapping[str, Figure]) -> str:
    return notebook_html("figures", figures=[
        (name, figure, f"data:image/svg+xml;base64,{b64encode(render(figure, 'svg')).decode()}")
        for name, figure in figures.items()])


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def notebook_html(part: str, **values: Any) -> str:
    """What a notebook shows of a table, a report and the like: see notebook.html."""
    return printable(ENVIRONMENT.get_template("notebook.html").render(part=part, most=MOST, **values).strip())


# where templates are found; every text in them is escaped unless it is Markup
ENVIRONMENT = Environment(loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined)
ENVIRONMENT.globals |= {
    "by_subject": _by_subject, "cells_of": _cells_of, "counted": counted, "split_sentences": SENTENCES.split,
    "listed": listed, "trials_of": _trials_of, "unbroken": _unbroken, "with_dash": _with_dash}
