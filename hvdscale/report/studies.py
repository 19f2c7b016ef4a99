"""What a report shows of the studies of one workload: one list of views, in reading order.

    view = view_of(About(studies, target, options, Asked(budgets=(Budget.parse("10 epochs"),))))
    view.findings, view.tables, view.figures
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np

from ..analysis.base_rates import both_readings
from ..analysis.budgets import Budget, best_under, common_budgets
from ..analysis.critical_batch_fit import CriticalBatchFit
from ..analysis.curves import Curve, curve_of, measured_curve
from ..analysis.grouping import group_by
from ..analysis.metric_direction import better
from ..analysis.noise import Noise
from ..analysis.noise_against import best_known, noise_against
from ..analysis.quality import Quality, quality_of
from ..analysis.report_data import Options, Section
from ..analysis.results import results_of
from ..analysis.defaults import RULE_WITHIN
from ..analysis.rate_landscapes import RateLandscapes, rate_landscapes
from ..analysis.rules import RULES, Rule, RuleCosts, rules_of
from ..analysis.search import Search
from ..analysis.shares import Tolerance
from ..analysis.studies import Study
from ..analysis.trials import Workload
from ..errors import UsageError
from ..formatting.progress import Tell, quiet
from ..log.plan_text import OF_SEARCH
from ..log.schema import SMALLER
from ..target import Target
from .drawing import Figure
from .findings import Finding, finding_of
from .published.compare import published_views
from .published.paper import PAPERS, family_figures, figures, workload_figures
from .scaling.curves import curve_table, fit_table
from .scaling.noise import noise_against_table, noise_said
from .scaling.regimes import curve_findings
from .search.budgets import base_rates_table, budgets_said, budgets_table, trials_table as budget_trials_table
from .search.quality import quality_said, quality_table
from .search.rate_landscapes import landscape_figures, landscapes_said, landscapes_table, laws_table, rates_table
from .search.results import tables_of_results
from .search.rules import missing_table, points_table, rules_said, rules_table
from .table import TrialKeys
from .view import View, present


@dataclass(frozen=True)
class Asked:
    """What the user wants to see of studies, beside the targets.

    budgets       under which the best of the target's metric is shown
    compare       publications that curves are laid beside
    paper         whose figures are made, as far as the logs have data for them
    rules         of the learning rate, held against the tuned optimum
    rule_within   the share of steps more than that optimum at which a rule loses
    branch_tolerance    of the loss of branches; None: that of their own plans
    """

    budgets: tuple[Budget, ...] = ()
    compare: tuple[str, ...] = ()
    paper: str | None = None
    rules: tuple[Rule, ...] = RULES
    rule_within: float = RULE_WITHIN
    branch_tolerance: Tolerance | None = None


MeasuredNoise = tuple[int, Noise, TrialKeys]        # at a global batch


@dataclass(frozen=True, eq=False)
class About:
    """The studies of one workload and one target, and what several views need of them."""

    studies: tuple[Study, ...]          # by global batch
    target: Target
    options: Options
    asked: Asked = Asked()
    searches: tuple[Search, ...] = ()   # those that have a table of their own
    noise: tuple[MeasuredNoise, ...] = ()
    others: tuple[Target, ...] = ()     # of the same metric, which have pages of their own
    ruled: bool = True                  # whether to work out what learning-rate rules cost, seconds a study
    first: bool = True                  # of its metric: then its page has the figures that all its targets share
    known: dict[Hashable, Any] = field(default_factory=dict)   # what was worked out for any of the workload's targets

    @property
    def curve(self) -> Curve:
        """Steps to the target by batch."""
        return self.curve_to(self.target)

    def curve_to(self, target: Target) -> Curve:
        """The same to another target of the metric."""
        found: Curve = self.once((curve_of, target), lambda: curve_of(self.studies, target, self.options))
        return found

    def once(self, key: Hashable, find: Callable[[], object]) -> Any:
        """What ``find`` gives, worked out once for all targets of the workload."""
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]


def view_of(about: About) -> View:
    """All there is to show."""
    views = [view(about) for view in VIEWS]
    return View(tuple(found for view in views for found in view.findings),
                tuple(table for view in views for table in view.tables),
                tuple(table for view in views for table in view.details), partial(_figures, about))


def _curve(about: About) -> View:
    """Regimes and steps by batch; of searches that hvdscale ran, the section's own words and table have them."""
    curve = about.curve
    fitted = present(fit_table(curve.regimes.fit, curve.target, curve.keys))
    return View(details=fitted) if about.searches else View(curve_findings(curve), present(curve_table(curve)), fitted)


def _costs(about: About) -> RuleCosts | None:
    """What learning-rate rules cost, worked out once for a target."""
    found: RuleCosts | None = about.once((rules_of, about.target), lambda: rules_of(
        about.curve, about.asked.rules, about.asked.rule_within) if about.ruled else None)
    return found


def _landscapes_of(about: About) -> RateLandscapes | None:
    found: RateLandscapes | None = about.once((rate_landscapes, about.target),
                                              lambda: rate_landscapes(about.curve, _costs(about)))
    return found


def _landscapes(about: About) -> View:
    found = _landscapes_of(about)
    if found is None:
        return View()
    return View(finding_of(landscapes_said(found)), (landscapes_table(found), *present(laws_table(found))),
                (rates_table(found),))


def _rules(about: About) -> View:
    found = _costs(about)
    if found is None:
        return View()
    return View(tuple(map(Finding, rules_said(found))), (rules_table(found),),
                present(points_table(found), missing_table(found)))


def _results(about: About) -> View:
    """The fewest steps as published; a search's own table has them."""
    if about.searches:
        return View()
    [found] = results_of(about.studies, lambda workload: [about.target], ())
    return View(tables=tables_of_results(found))


def _of_metric(view: Callable[[About], View]) -> Callable[[About], View]:
    """A view that is the same for all targets of a metric, worked out once."""
    @wraps(view)
    def shared(about: About) -> View:
        found: View = about.once((view, about.target.column, about.target.minimizes), lambda: view(about))
        return found
    return shared


@_of_metric
def _budgets(about: About) -> View:
    found = best_under(about.studies, about.target.column, about.target.minimizes, about.asked.budgets,
                       about.options.confidence)
    return View(tuple(map(Finding, budgets_said(found))), present(budgets_table(found)),
                present(budget_trials_table(found)))


@_of_metric
def _quality(about: About) -> View:
    """Within the steps that every batch has run, where that decides; else as long as each trial was to run, else within
    the epochs that every batch has run. Then under the budgets that were asked for, their tables in files only."""
    def under(budget: Budget | None) -> Quality | None:
        return quality_of(about.studies, about.target.column, about.target.minimizes, budget, about.options.confidence)
    epochs, steps = common_budgets(about.studies)
    tried = []
    for budget in (steps, None, epochs):
        found = under(budget)
        tried.append(found)
        if found and not found.why:
            break
    told = next((one for one in tried if one and not one.why), None)
    first = told or tried[1]
    asked = [under(budget) for budget in about.asked.budgets if first is None or budget != first.budget]
    said = tuple(one for found in (first, *asked) for one in finding_of(quality_said(found)))
    return View(said, present(quality_table(told)), present(*(quality_table(one, apart=True) for one in asked)))


@_of_metric
def _base_rates(about: About) -> View:
    found = both_readings(about.studies, about.target.column, about.target.minimizes)
    return View(details=present(base_rates_table(*found)))


def _noise(about: About) -> View:
    return view_of_noise(about.studies[0].workload, about.target, about.noise, about.curve.regimes.fit)


def view_of_noise(workload: Workload, target: Target | None, measured: Sequence[MeasuredNoise],
                  fit: CriticalBatchFit | None) -> View:
    """The noise scale beside the critical batch."""
    found = noise_against(workload, target, measured, fit.b_crit if fit else None)
    return View(finding_of(noise_said(found)), details=present(noise_against_table(found)))


def _figures(about: About) -> tuple[Figure, ...]:
    others = [about.curve_to(target) for target in about.others if about.first]
    return (*workload_figures([about.curve, *others], about.options, about.first, about.asked.budgets),
            *landscape_figures(_landscapes_of(about)))


VIEWS: tuple[Callable[[About], View], ...] = (
    _curve, _rules, _landscapes, _budgets, _quality, _noise, _results, _base_rates)


def chapters_of(abouts: Sequence[About], repeats: Sequence[Section], studies: Sequence[Study], asked: Asked,
                options: Options, tell: Tell = quiet) -> Iterator[tuple[str, View]]:
    """(title, View) of what is about several workloads: one beside the other, beside publications, as in a paper.

    repeats   sections of no studies
    """
    by_workload = group_by(abouts, lambda about: about.studies[0].workload)
    first = {workload: found[0] for workload, found in by_workload.items()}
    curves = [about.curve for about in first.values()]
    if len(curves) > 1:
        yield "Workloads beside each other", View(find=partial(family_figures, curves))
    noise = {workload: scale for workload, about in first.items() for scale in [_noise_scale(about)] if scale}
    for name in asked.compare:
        measured = [curve for curve in map(measured_curve, repeats) if curve]
        yield f"Beside published results: {name}", published_views([*(about.curve for about in abouts), *measured],
                                                                   name, noise)
    if asked.paper:
        yield f"The figures of {asked.paper}", figures(studies, paper=asked.paper, options=options, tell=tell)


def _noise_scale(about: About) -> float | None:
    """The noise scale at the batch at which it is known best."""
    best = best_known([noise for _, noise, _ in about.noise if 0 < noise.whole.noise_scale < np.inf],
                      lambda noise: noise)
    return best.whole.noise_scale if best else None


def view_without_target(studies: Sequence[Study], options: Options, asked: Asked) -> View:
    """The best of each validation metric of which it is known which way is better, of studies held against no target.
    """
    columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
    found = [best_under(studies, column, better(column, ()) == SMALLER, asked.budgets or (None,), options.confidence)
             for column in columns if better(column, ()) and tells(studies, column)]
    return View(tuple(Finding(said) for one in found for said in budgets_said(one)),
                present(*map(budgets_table, found)), present(*map(budget_trials_table, found)))


def tells(studies: Sequence[Study], column: str) -> bool:
    """Whether any evaluation measured a metric."""
    return any(not np.isnan(study.evaluations.read(column)).all() for study in studies
               if column in study.evaluations.columns)


def are_searched(studies: Sequence[Study]) -> bool:
    """Whether the trials are draws of metaparameters, rather than repeats of one setting."""
    return any(study.plan(0).get(part) for study in studies if len(study) for part in OF_SEARCH)


def paper_targets(paper: str | None, workload: Workload) -> tuple[Target, ...]:
    """The first target that a paper has for a workload."""
    if paper is None:
        return ()
    if paper not in PAPERS:
        raise UsageError(f"--paper {paper}: there is no such paper; choose one of {', '.join(PAPERS)}")
    names, sheets = PAPERS[paper].names_of(workload), PAPERS[paper].FIGURES
    lines = [line for sheet in sheets for panel in sheet.panels for line in panel.lines]
    found = [line.target for line in lines if line.workload in names]
    return tuple(map(Target.parse, found[:1]))


def own_targets(studies: Sequence[Study]) -> tuple[Target, ...]:
    """The targets in the plans of the first trials of each study."""
    found = [(study.plan(0).get("measurement") or {}).get("target") for study in studies if len(study)]
    return tuple(dict.fromkeys(Target.parse(text) for text in found if text))
