"""What a report shows of the studies of one workload: one list of views, in reading order.

    view = view_of(About(studies, target, options, Asked(budgets=(Budget.parse("10 epochs"),))))
    view.summary, view.tables, view.figures
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..analysis.budgets import Budget, best_under
from ..analysis.direction import SMALLER, better
from ..analysis.quality import quality_of
from ..analysis.results import results_of
from ..analysis.search import Search
from ..analysis.sections import Options
from ..analysis.studies import Study
from ..analysis.trials import Workload
from ..target import Target
from .budgets import budgets_said, budgets_table
from .budgets import trials_table as budget_trials_table
from .drawing import Figure
from .quality import quality_said, quality_table
from .results import tables_of_results
from .tables import Table


@dataclass(frozen=True)
class Asked:
    """What the user wants to see of studies, beside the targets.

    budgets   under which the best of the target's metric is shown
    compare   publications that curves are laid beside
    paper     whose figures are made, as far as the logs bear them
    """

    budgets: tuple[Budget, ...] = ()
    compare: tuple[str, ...] = ()
    paper: str | None = None


@dataclass(frozen=True, eq=False)
class About:
    """The studies of one workload and one target, and what several views need of them."""

    studies: tuple[Study, ...]          # by global batch
    target: Target
    options: Options
    asked: Asked = Asked()
    searches: tuple[Search, ...] = ()   # those that have a table of their own
    noise: tuple = ()                   # (global batch, Noise, trials) where it was measured
    others: tuple[Target, ...] = ()     # of the same metric, which have pages of their own


@dataclass(frozen=True, eq=False)
class View:
    """Something to show: sentences, tables and figures, each as far as there are.

    details   tables for files only
    find      makes the figures, when they are asked for, while the logs are open
    """

    summary: tuple[str | None, ...] = ()
    tables: tuple[Table | None, ...] = ()
    details: tuple[Table | None, ...] = ()
    find: Callable[[], Sequence[Figure]] = tuple

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The figures, made once."""
        return tuple(self.find())


def view_of(about: About) -> View:
    """All there is to show."""
    views = [view(about) for view in VIEWS]
    return View(*(tuple(one for view in views for one in getattr(view, name) if one is not None)
                  for name in ("summary", "tables", "details")))


def _results(about):
    """The fewest steps as published; a search's own table has them."""
    if about.searches:
        return View()
    [found] = results_of(about.studies, lambda workload: [about.target], ())
    return View(tables=tables_of_results(found))


def _budgets(about):
    found = best_under(about.studies, about.target.column, about.target.minimizes, about.asked.budgets,
                       about.options.confidence)
    return View(budgets_said(found), (budgets_table(found),), details=(budget_trials_table(found),))


def _quality(about):
    found = quality_of(about.studies, about.target.column, about.target.minimizes, None, about.options.confidence)
    return View(quality_said(found), (quality_table(found),) if found and not found.why else ())


VIEWS: tuple[Callable[[About], View], ...] = (_budgets, _quality, _results)


def chapters_of(abouts: Sequence[About], studies: Sequence[Study], asked: Asked, options: Options):
    """(title, View) of what is about several workloads: one beside the other, beside publications, as in a paper."""
    return ()


def view_without_target(studies: Sequence[Study], options: Options, asked: Asked) -> View:
    """The best of each validation metric of which it is known which way is better, of studies held against no target.
    """
    columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
    found = [best_under(studies, column, better(column, ()) == SMALLER, asked.budgets or (None,), options.confidence)
             for column in columns if better(column, ()) and tells(studies, column)]
    return View(tuple(said for one in found for said in budgets_said(one)),
                tuple(budgets_table(one) for one in found),
                details=tuple(budget_trials_table(one) for one in found))


def tells(studies: Sequence[Study], column: str) -> bool:
    """Whether any evaluation measured a metric."""
    return any(not np.isnan(study.evaluations.read(column)).all() for study in studies
               if column in study.evaluations.columns)


def are_searched(studies: Sequence[Study]) -> bool:
    """Whether the trials are draws of metaparameters, rather than repeats of one setting."""
    return any(study.plan(0).get("sweep") or study.plan(0).get("archive") for study in studies if len(study))


def paper_targets(paper: str | None, workload: Workload) -> tuple[Target, ...]:
    """The first target that a paper has for a workload."""
    if paper is None:
        return ()
    from .paper import PAPERS
    names, sheets = PAPERS[paper].names_of(workload), PAPERS[paper].FIGURES
    lines = [line for sheet in sheets for panel in sheet.panels for line in panel.lines]
    found = [line.target for line in lines if line.workload in names]
    return tuple(map(Target.parse, found[:1]))


def own_targets(studies: Sequence[Study]) -> tuple[Target, ...]:
    """The targets in the plans of the first trials of each study."""
    found = [(study.plan(0).get("measurement") or {}).get("target") for study in studies if len(study)]
    return tuple(dict.fromkeys(Target.parse(text) for text in found if text))
