"""The report as one HTML file that needs no network and no second file.

All is said in words, tables and still figures; a script makes tables sort and figures follow a slider over the target.
"""
from __future__ import annotations

import json
import re
import zlib
from html import escape
from importlib import resources

from ...analysis.intervals import OWN_FROM
from ...formatting.numbers import RANGE, counted, listed
from ...formatting.progress import quiet
from ..drawing import BLUE, GREEN, ORANGE, colors_on_dark, render

MOST_NAMED = 10             # trials under a figure that are named at once
SHORTER = (                 # what a tag of an SVG on a page can do without
    (r'^<g id="[^"]*"', "<g"), (r"font-family: [^;\"]*;? ?", ""), (r"(\d\.\d\d)\d+", r"\1"), (r"([;:]) ", r"\1"),
    (r"\s*\n\s*", " "))
LONG = 40                   # characters of a cell that is text, not a value
LIVE_COLORS = (BLUE, ORANGE, GREEN)
METHOD = (
    ("Repeats", "Trials of one setting that differ by their seed alone. The worker count is no part of a setting, as "
     "it does not change the updates: a seed run at several worker counts counts once in a table by global batch."),
    ("Means", "Geometric, of steps, seconds and examples per second alike, so that time is steps times seconds a step "
     "exactly. Where some repeats did not meet the target, the median of the steps over all of them."),
    ("Steps to target", "Steps done at the first evaluation that meets the target. NaN never meets it. A trial that "
     "never does is known only to need more than its last step."),
    ("Intervals",
     "{confidence:.0%}, of the geometric mean over repeats: Student's t on logarithms. Two or three repeats hardly "
     "tell their own spread, so it is pooled over the points held against one target: the sum of squares within "
     "points over the sum of (repeats - 1), which is the degrees of freedom; steps, seconds and examples per second "
     "have a spread each. A point of {own_from} repeats or more uses its own; ratios use the same spreads, by Welch- "
     "Satterthwaite where two differ. Ratios of the same updates are paired by seed: their spread is twice the "
     "residual after means of points and seeds. The target was first met somewhere between two evaluations, so "
     "intervals reach down to the evaluation before. One run leaves that span alone, and is marked *."),
    ("Baseline", "The smallest worker count of a series. Index 0 in a formula is the baseline; in a table by global "
     "batch, the smallest batch."),
    ("Which trials", "COMPLETE ones. INFEASIBLE (diverged) ones are counted and named; RUNNING and INCOMPLETE ones are "
     "named and left out. Of several settings in a cell, the one with the fewest steps, ties by trial id."),
)

OF_SEARCHES = (
    ("Searches", "Each global batch has a study of its own: points of its space are drawn until so many trials are "
     "feasible, that is finite up to their stop. Its steps are the fewest of any of them; repeats of that trial under "
     "other seeds enter its row, but not its choice. A pruned trial was stopped at the step by which prune_keep draws "
     "before it had met the target, so these fewest steps are as if it had gone on; at an easier target that it had "
     "met before, it counts as if it had ended there."),
)


def as_html(document, tell=quiet) -> str:
    """The page of a report.document.Document."""
    for _, pages in document.pages:
        for page in pages:
            tell(f"working out the slider of {page.slug}")
            page.explorer
    tell("writing the page")
    sections = "".join(_group(group, pages) for group, pages in document.pages)
    sections += "".join(map(_chapter, document.chapters))
    explorers = [page.explorer for _, pages in document.pages for page in pages if page.explorer]
    return _PAGE.format(
        title=escape(document.title), lead="<br>".join(map(escape, (document.lead, *document.notes))),
        contents=_contents(document), sections=sections,
        style=_packaged("page.css") + _palette(sections, *(explorer.data["colors"] for explorer in explorers)),
        provenance=_provenance(document), scripts=_scripts(bool(explorers)))


def _packaged(name):
    """A file of this package as text."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _scripts(plots):
    """Our script, and before it the library that draws, where there is something to draw."""
    found = []
    if plots:
        from plotly.offline import get_plotlyjs
        found.append(get_plotlyjs())
    found.append(_packaged("page.js"))
    return "".join(f"<script>{text}</script>\n" for text in found)


def _contents(document):
    entries = [(page.slug, f"{group.workload}: {page.title}") for group, pages in document.pages for page in pages]
    entries += [(chapter.slug, chapter.title) for chapter in document.chapters]
    items = "".join(f'<li><a href="#{slug}">{escape(title)}</a></li>' for slug, title in entries)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>' if len(entries) > 1 else ""


def _group(group, pages):
    shown = "".join(map(_page, pages)) or "<p>No trial tells of a target.</p>"
    return f"<section><h2>{escape(str(group.workload))}</h2>{shown}</section>"


def _page(page):
    left = "".join(f"<li>{escape(sentence)}</li>" for sentence in page.left_out)
    live = {one.stands_for for one in page.explorer.figures} if page.explorer else ()
    return (f'<section id="{page.slug}"><h3>{escape(page.title)}</h3>{_summary(page.summary)}'
            + (f'<ul class="left-out">{left}</ul>' if left else "")
            + (_explorer(page.explorer, page.slug) if page.explorer else "")
            + _shown(page.slug, page, live) + "</section>")


def _chapter(chapter):
    view = chapter.view
    return (f'<section id="{chapter.slug}"><h2>{escape(chapter.title)}</h2>{_summary(view.summary)}'
            f"<h3>In detail</h3>{_shown(chapter.slug, view)}</section>")


def _summary(sentences):
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<div class="summary">{said}</div>' if said else ""


def _shown(slug, shown, live=()):
    """Tables, figures, then what is folded away; ``live``: names of figures that the script has others for."""
    figures = "".join(_figure(figure, f"{slug}-{figure.name}", figure.name in live) for figure in shown.figures)
    tables = "".join(_table(table, f"{slug}-{table.name}") for table in shown.tables)
    details = "".join(_detail(table, f"{slug}-{table.name}") for table in shown.details)
    return tables + (f'<div class="figures">{figures}</div>' if figures else "") + details


def _detail(table, anchor):
    return f'<details class="more"><summary>{escape(table.title)}</summary>{_table(table, anchor)}</details>'


def _table(table, anchor):
    heads = "".join(f'<th scope="col" title="{escape(column.formula)}">{escape(column.title)}</th>'
                    for column in table.columns)
    rows = "".join(f"<tr>{''.join(_cell(cell, at == 0) for at, cell in enumerate(row.cells))}</tr>"
                   for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    behind = "".join(f"<li><b>{escape(table.columns[0].title)} {escape(row.cells[0].shown)}</b>: {_trials(row.trials)}"
                     + (f"; diverged: {_trials(row.diverged)}" if row.diverged else "") + "</li>" for row in table.rows)
    formulas = "".join(_formula(column) for column in table.columns if column.formula)
    return (f'<div class="table"><h4 id="{anchor}">{escape(table.title)}</h4>'
            f'<div class="scroll" role="region" aria-labelledby="{anchor}" tabindex="0">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
            f'<div class="notes">{notes}</div>'
            f"<details><summary>Formulas and trials behind each row</summary><dl>{formulas}</dl>"
            f"<ul>{behind}</ul></details></div>")


def _formula(column):
    unit = f" ({column.unit})" if column.unit != "1" else ""
    source = f". {column.source}" if column.source else ""
    return f"<dt>{escape(column.title + unit)}</dt><dd>{escape(column.formula + source)}</dd>"


def _cell(cell, heads_row):
    value = _sorted_by(cell.value)
    unmet = cell.shown in ("not met", "diverged") or cell.shown.startswith(">")
    look = ' class="unmet"' if unmet else ' class="text"' if len(cell.shown) > LONG else ""
    below = f"<small>{escape(RANGE.sub('–', cell.below))}</small>" if cell.below else ""
    inside = f"{escape(cell.shown)}{below}"
    return f'<th scope="row"{value}>{inside}</th>' if heads_row else f"<td{look}{value}>{inside}</td>"


def _sorted_by(value):
    """The attribute that a cell is sorted by: its number; empty: none, which comes last."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    return ' data-value=""' if value != value else f' data-value="{str(float(value)).replace("inf", "Infinity")}"'


def _trials(keys):
    """Logs with their trials: runs/w8.h5: 1, 2."""
    by_log = {}
    for log, trial in sorted(keys):
        by_log.setdefault(log, []).append(trial)
    return "; ".join(f"<code>{escape(log)}</code>: {'trial' if len(ids) == 1 else 'trials'} {listed(ids)}"
                     for log, ids in by_log.items()) or "none"


def _figure(figure, anchor, still):
    """``still``: another takes its place on the screen, where there is a script."""
    looks = ' class="' + " ".join(["still"] * still + ["wide"] * (figure.panels > 1)) + '"'
    return (f'<figure id="{anchor}"{looks if still or figure.panels > 1 else ""}>{_inline(figure, anchor)}'
            f"{_figcaption(figure)}</figure>")


def _figcaption(figure):
    source = f" Formula: {escape(figure.formula)}.{f' Source: {escape(figure.source)}.' if figure.source else ''}"
    count, names = f"{counted(len(figure.trials), 'trial')} behind this figure", _trials(figure.trials)
    if len(figure.trials) > MOST_NAMED:
        return (f"<figcaption>{escape(figure.caption)}<small>{source}</small><details><summary>{count}</summary>"
                f"{names}</details></figcaption>")
    return f"<figcaption>{escape(figure.caption)}<small>{source} {count}: {names}.</small></figcaption>"


def _explorer(explorer, slug):
    """The slider and its figures, which the script shows."""
    anchor, last = f"{slug}-explorer", len(explorer.data["stops"]) - 1
    start, labels = explorer.data["start"], [escape(label) for label in explorer.data["labels"]]
    figures = "".join(_live(figure, slug) for figure in explorer.figures)
    return (
        f'<section class="explorer" id="{anchor}" hidden><h4>{escape(explorer.title)}</h4><div class="slider">'
        f'<label for="{anchor}-target">target</label>'
        f'<input type="range" id="{anchor}-target" min="0" max="{last}" '
        f'value="{start}" autocomplete="off"><output for="{anchor}-target">{labels[start]}</output>'
        f'<span class="reached" aria-live="polite"></span>'
        f'<button type="button" class="back">back to {labels[start]}</button>'
        f'<div class="ends"><span>easiest: {labels[0]}</span><span>strictest: {labels[last]}</span></div></div>'
        f'<div class="said" aria-live="polite"></div><div class="figures">{figures}</div>'
        f'<script type="application/json">{_data(explorer.data)}</script></section>')


def _live(figure, slug):
    kind = figure.name.removeprefix("live-")
    choices = "".join(f'<label>{title} <select name="{name}"></select></label>' for name, title in (
        ("batch", "batch"), ("x", "across"), ("y", "up"))) if kind == "scatter" else ""
    return (f'<figure id="{slug}-{figure.name}"><h5>{escape(figure.title)}</h5>'
            + (f'<form class="choices">{choices}</form>' if choices else "")
            + f'<div class="plot" data-plot="{kind}" role="img" aria-label="{escape(figure.alt)}"></div>'
            + f"{_figcaption(figure)}</figure>")


def _data(data):
    """JSON that ends no script, whatever names are in it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _inline(figure, anchor):
    """The figure's SVG for the inside of a page: short, ids of its own, colours that follow the page's theme."""
    svg = render(figure, "svg").decode()
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
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
                 lambda found: f'<svg role="img" aria-label="{escape(figure.alt)}" viewBox="{found[1]}">', svg, count=1)
    return svg


def _shorter(tag):
    tag = tag[0]
    for long, short in SHORTER:
        tag = re.sub(long, short, tag)
    return tag


def _palette(body, *lists):
    """CSS variables for the colours that the figures use, on light and on dark pages."""
    named = {color.removeprefix("#") for colors in (*lists, LIVE_COLORS if lists else ()) for color in colors}
    used = sorted(named | set(re.findall(r"var\(--c([0-9a-f]{6})\)", body)))
    if not used:
        return ""
    on_dark = colors_on_dark()
    light, dark = ("".join(f"--c{color}:{of(f'#{color}')};" for color in used) for of in (str, on_dark.__getitem__))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _provenance(document):
    numbers = {"confidence": document.confidence, "own_from": OWN_FROM}
    sections = [page.section for _, pages in document.pages for page in pages]
    searched = any(section and section.searches for section in sections)
    method = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text.format(**numbers))}</dd>"
                     for name, text in METHOD + OF_SEARCHES * searched)
    logs = "".join(_log(log) for log in document.logs)
    skipped = "".join(f"<li>{escape(message)}</li>" for message in document.skipped)
    return (f"<h3>How the numbers come about</h3><dl>{method}</dl>"
            + (f"<h3>Skipped: unreadable logs and trials left out of imports</h3><ul>{skipped}</ul>" if skipped else "")
            + (f"<h3>Logs</h3>{logs}" if logs else ""))


def _log(log):
    where = ", ".join(filter(None, (listed(log.hosts), listed(log.devices))))
    facts = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
                    for name, value in sorted(log.attributes.items()))
    return (f"<details><summary><code>{escape(log.path)}</code>: {counted(log.trials, 'trial')}"
            f"{f', on {escape(where)}' if where else ''}</summary><dl>{facts}</dl></details>")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src \
'unsafe-inline'; img-src data: blob:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{lead}</p>{contents}</header>
<main>{sections}
<section id="provenance"><h2>Method and provenance</h2>{provenance}</section></main>
{scripts}</body>
</html>
"""
