"""A report as values, for report.json."""
from __future__ import annotations

from .. import __version__
from ..analysis.intervals import OWN_FROM
from ..analysis.report_data import Section
from ..analysis.search import Search
from .document import Chapter, Document, Page
from .views.searches import lines
from .table import as_values, encode, pick, trial_list


WORKLOAD = "dataset model model_args optimizer train_examples"


def as_json(document: Document, figures: bool = True) -> dict[str, object]:
    """The report for report.json: every number with its interval, its trials and its formula.

    figures  whether to list those of each workload, which have to be worked out for that
    """
    return {
        "format": "hvdscale-report", "version": 1, "creator": f"hvdscale {__version__}",
        "confidence": document.confidence,
        "logs": [pick(log, "path trials hosts devices attributes") for log in document.logs],
        "skipped": document.skipped, "notes": document.notes,
        "workloads": [{
            **pick(group.workload, WORKLOAD), **(pick(group.workload, "version") if group.workload.version else {}),
            "sections": [_section_values(page, figures) for page in pages]} for group, pages in document.pages],
        "how_to_read": [{"about": about, "notes": notes} for about, notes in document.how_to_read],
        "chapters": [{"title": one.title, "summary": one.summary,
                      "findings": [found.values() for found in one.findings], **_shown_values(one)}
                     for one in document.chapters],
    }


def _section_values(page: Page, figures: bool) -> dict[str, object]:
    values: dict[str, object] = {
        "target": str(page.target) if page.target else None, "summary": page.summary, "verdict": page.verdict,
        "findings": [one.values() for one in page.findings], "left_out": page.left_out,
        **_shown_values(page, figures)}
    if page.section and page.section.trials:
        options, searches = page.section.options, [_search_values(search) for search in page.section.searches]
        values |= {
            "intervals": _interval_values(page.section),
            "tolerances": pick(options, "perfect_within useful_within loss_within"),
            **({"searches": searches} if searches else {})}
    return values


def _shown_values(shown: Chapter, figures: bool = True) -> dict[str, object]:
    return {
        "tables": [as_values(table) for table in (*shown.tables, *shown.details)],
        "figures": [{"name": f"{shown.slug}-{figure.name}", **pick(figure, "title caption formula source"),
                     "trials": trial_list(figure.trials)} for figure in (shown.figures if figures else ())]}


def _search_values(search: Search) -> dict[str, object]:
    return {
        **pick(search, "study objective done"), "said": lines(search), "space": [one.record() for one in search.space],
        "draws": [{**pick(draw, "draw=number kind value last_step"), "point": draw.point if draw.trial else None,
                   **({"log": draw.trial.log, "trial": draw.trial.id} if draw.trial else {})} for draw in search.draws],
        "best": search.best and search.best.number,
        "positions": {bound.parameter.name: encode(bound.position) for bound in search.bounds},
        "best_of_n": [pick(one, "n low high") for one in search.curve], **pick(search, "saved_steps"),
    }


def _interval_values(section: Section) -> dict[str, object]:
    pools = section.pools
    return {
        "confidence": section.options.confidence,
        "formula": "exp(mean(log) +- t s / sqrt(n)); s^2 = sum of squares within points / sum of (n - 1), the "
                   f"degrees of freedom of t; a point with n >= {OWN_FROM} uses its own s; ratios: s^2 / n of both "
                   "sides added, degrees of freedom by Welch-Satterthwaite where two spreads differ; same updates: "
                   "paired by seed",
        "pooled": {name: {"deviation_of_logs": float(spread.deviation), "degrees_of_freedom": spread.freedom,
                          **({"variance_grows_with_batch_to_the": spread.growth, "at_batch": spread.base}
                             if spread.growth else {})}
                   for name, spread in pools.cell.items() if spread.freedom},
        "paired": {name: {"deviation_of_logs": float(spread.deviation), "degrees_of_freedom": spread.freedom}
                   for name, spread in pools.paired.items() if spread.freedom},
    }
