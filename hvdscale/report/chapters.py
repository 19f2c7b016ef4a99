"""Chapters of a report, on several workloads: laws over size, one beside the other, publications, papers, branches."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial

from ..analysis.trials import JobKey
from ..target import Target
from .about import AboutAll
from .branches import chapters_of_branches
from .search.all_figures import family_figures
from .view import View

Titled = tuple[str, View, Hashable]     # a title, and what distinguishes the View from others of the same title


def chapters_of(whole: AboutAll) -> Iterator[Titled]:
    """Every chapter, in reading order."""
    for chapters in CHAPTERS:
        yield from chapters(whole)


def _laws_over_size(whole: AboutAll) -> Iterator[Titled]:
    if whole.asked.sizes:
        from .size import view_of_laws              # which other reports need not wait for
        from ..analysis.size.laws import laws_of
        budget = next(iter(whole.asked.budgets), None)
        found = laws_of(whole.groups, whole.studies, whole.asked.sizes, budget, whole.options)
        yield "Laws over size", view_of_laws(found, whole.asked.laws), ""


def _families(whole: AboutAll) -> Iterator[Titled]:
    curves = [about.curve for about in whole.first.values()]
    if len(curves) > 1:
        yield "Workloads beside each other", View(find=partial(family_figures, curves)), ""


def _of_papers(whole: AboutAll) -> Iterator[Titled]:
    if whole.asked.compare or whole.asked.paper:
        from .papers.chapters import chapters       # which other reports need not wait for
        for title, view in chapters(whole):
            yield title, view, ""


CHAPTERS: tuple[Callable[[AboutAll], Iterator[Titled]], ...] = (
    _laws_over_size, _families, _of_papers, chapters_of_branches)


def targets_of_paper(paper: str, workload: JobKey) -> tuple[Target, ...]:
    """The first target that a paper has for a workload; () where it has none."""
    from .papers.chapters import target_of
    return target_of(paper, workload)
