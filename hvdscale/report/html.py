"""The report as one HTML file that needs no network, no script and no second file."""
from __future__ import annotations

import re
from html import escape

from ..analysis.intervals import OWN_FROM
from .drawing import colors_on_dark, render
from .numbers import RANGE, counted, listed

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


def as_html(document) -> str:
    """The page of a report.document.Document."""
    sections = "".join(_group(group, pages, document) for group, pages in document.pages)
    return _PAGE.format(title=escape(document.title), lead=escape(document.lead), style=_STYLE + _palette(sections),
                        contents=_contents(document), sections=sections, provenance=_provenance(document))


def _contents(document):
    if sum(len(pages) for _, pages in document.pages) < 2:
        return ""
    items = "".join(f'<li><a href="#{page.slug}">{escape(f"{group.workload}: {page.title}")}</a></li>'
                    for group, pages in document.pages for page in pages)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _group(group, pages, document):
    return f"<section><h2>{escape(str(group.workload))}</h2>{''.join(_page(page) for page in pages)}</section>"


def _page(page):
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in page.summary)
    left = "".join(f"<li>{escape(sentence)}</li>" for sentence in page.left_out)
    tables = "".join(_table(table, f"{page.slug}-{table.name}") for table in page.tables)
    figures = "".join(_figure(figure, f"{page.slug}-{figure.name}") for figure in page.figures)
    return (f'<section id="{page.slug}"><h3>{escape(page.title)}</h3>'
            + (f'<div class="summary">{said}</div>' if said else "")
            + (f'<ul class="left-out">{left}</ul>' if left else "")
            + tables + (f'<div class="figures">{figures}</div>' if figures else "") + "</section>")


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
    unmet = ' class="unmet"' if cell.shown in ("not met", "diverged") or cell.shown.startswith(">") else ""
    below = f"<small>{escape(RANGE.sub('–', cell.below))}</small>" if cell.below else ""
    inside = f"{escape(cell.shown)}{below}"
    return f'<th scope="row">{inside}</th>' if heads_row else f"<td{unmet}>{inside}</td>"


def _trials(keys):
    """Logs with their trials: runs/w8.h5: 1, 2."""
    by_log = {}
    for log, trial in keys:
        by_log.setdefault(log, []).append(trial)
    return "; ".join(f"<code>{escape(log)}</code>: {'trial' if len(ids) == 1 else 'trials'} {listed(ids)}"
                     for log, ids in by_log.items()) or "none"


def _figure(figure, anchor):
    source = f" Formula: {escape(figure.formula)}.{f' Source: {escape(figure.source)}.' if figure.source else ''}"
    return (f'<figure id="{anchor}">{_inline(figure, anchor)}<figcaption>{escape(figure.caption)}'
            f"<small>{source} {counted(len(figure.trials), 'trial')}: {_trials(figure.trials)}.</small>"
            f"</figcaption></figure>")


def _inline(figure, anchor):
    """The figure's SVG for the inside of a page: ids of its own, colours that follow the page's theme."""
    svg = render(figure, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg"):], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{anchor}.', svg)
    svg = re.sub(r'url\(#', f"url(#{anchor}.", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{anchor}.', svg)
    svg = svg.replace("#ffffff", "none").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r"(fill|stroke): #([0-9a-f]{6})", r"\1: var(--c\2)", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
                 lambda found: f'<svg role="img" aria-label="{escape(figure.alt)}" viewBox="{found[1]}">', svg, count=1)
    return svg


def _palette(body):
    """CSS variables for the colours that the figures use, on light and on dark pages."""
    used = sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", body)))
    if not used:
        return ""
    on_dark = colors_on_dark()
    light, dark = ("".join(f"--c{color}:{of(f'#{color}')};" for color in used) for of in (str, on_dark.__getitem__))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _provenance(document):
    numbers = {"confidence": document.confidence, "own_from": OWN_FROM}
    searched = any(page.section.searches for _, pages in document.pages for page in pages)
    method = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text.format(**numbers))}</dd>"
                     for name, text in METHOD + OF_SEARCHES * searched)
    logs = "".join(_log(log) for log in document.logs)
    skipped = "".join(f"<li>{escape(message)}</li>" for message in document.skipped)
    return (f"<h3>How the numbers come about</h3><dl>{method}</dl>"
            + (f"<h3>Logs that could not be read</h3><ul>{skipped}</ul>" if skipped else "")
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
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{lead}</p>{contents}</header>
<main>{sections}
<section id="provenance"><h2>Method and provenance</h2>{provenance}</section></main>
</body>
</html>
"""

_STYLE = """
:root{--ink:#1d2126;--soft:#5b636d;--line:#d9dde2;--page:#fff;--panel:#f6f7f9;--accent:#0063a0;--warn:#a23b00}
@media (prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#a0a8b1;--line:#363b42;--page:#15181c;--panel:#1d2126;
--accent:#6cb8ee;--warn:#ffa36b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:74rem;padding:2.2rem 1.25rem 4rem;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans","DejaVu Sans",Arial,sans-serif}
h1,h2,h3,h4{line-height:1.25;font-weight:650;overflow-wrap:anywhere}
h1{font-size:1.9rem;margin:0}
h2{font-size:1.35rem;margin:2.6rem 0 .4rem;padding-top:1.2rem;border-top:1px solid var(--line)}
h3{font-size:1.12rem;margin:1.8rem 0 .6rem}
h4{font-size:1rem;margin:2rem 0 .5rem}
header p{margin:.3rem 0 0;color:var(--soft)}
a{color:var(--accent)}
nav ul{padding-left:1.2rem}
.summary{border-left:4px solid var(--accent);background:var(--panel);padding:.7rem 1.1rem;border-radius:0 6px 6px 0;
max-width:56rem}
.summary p{margin:.35rem 0}
.summary p:first-child{font-size:1.06rem}
.left-out{color:var(--warn);font-size:.92rem;padding-left:1.2rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto;border-top:2px solid var(--ink);border-bottom:2px solid var(--ink)}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.45rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
thead th{vertical-align:bottom;font-weight:600;font-size:.84rem;color:var(--soft);border-bottom:1px solid var(--ink);
line-height:1.25}
thead th[title]:not([title=""]){cursor:help}
tbody th{font-weight:650}
td small{display:block;color:var(--soft);font-size:.8em;white-space:nowrap}
.unmet{color:var(--warn)}
.notes{color:var(--soft);font-size:.86rem;margin:.5rem 0}
.notes p{margin:.15rem 0;max-width:95ch}
details{font-size:.88rem;margin:.4rem 0;overflow-wrap:anywhere}
summary{cursor:pointer;color:var(--accent)}
dl{margin:.6rem 0}
dt{font-weight:650}
dd{margin:0 0 .5rem;max-width:85ch;overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:2rem 2.2rem;
margin-top:2rem}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto}
figure svg text{font-family:inherit!important}
figure svg *{stroke-linejoin:round}
figcaption{font-size:.88rem;margin-top:.5rem;overflow-wrap:anywhere}
figcaption small{display:block;color:var(--soft);margin-top:.25rem;font-size:.92em}
code{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:.92em}
@media (max-width:40rem){body{padding:1.2rem .9rem 3rem}h1{font-size:1.5rem}th,td{padding:.4rem .45rem}
table{width:max-content;min-width:100%}tbody th,thead th:first-child{position:sticky;left:0;background:var(--page)}}
@media print{details{display:none}.figures{grid-template-columns:1fr 1fr}}
"""
