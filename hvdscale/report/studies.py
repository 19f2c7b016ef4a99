"""What a report shows of the studies of one workload: a list of views, in reading order.

    view = view_of(About(studies, target, section))
    view.findings, view.tables, view.figures
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps

from ..analysis.base_rates import both_readings
from ..analysis.budgets import Budget, best_under, common_budgets, show_ends_alone
from ..analysis.critical_batch_fit import CriticalBatchFit
from ..analysis.curves import result_of
from ..analysis.metric_direction import better
from ..analysis.noise_against import noise_against
from ..analysis.quality import Quality, quality_of
from ..analysis.report_data import Options, Section
from ..analysis.studies import Study, are_searched, is_measured
from ..log.schema import SMALLER
from .about import About, StudyRequest
from .drawing import Figure
from .landscapes import landscapes
from .scaling.curves import curve_table, fit_table
from .scaling.noise import find_noise, noise_against_table
from .scaling.regimes import curve_findings
from .search.all_figures import workload_figures
from .search.budget_figures import best_batch_figure
from .search.budgets import base_rates_table, budgets_table, find_budgets, trials_table as budget_trials_table
from .search.quality import find_best_batch, find_quality, quality_table
from .search.results import steps_table
from .search.rules import find_rules, missing_table, points_table, rules_table
from .texts import Texts
from .view import View, joined, present

GENERAL = Texts("general")


def view_of(about: About) -> View:
    """All there is to show."""
    return joined([view(about) for view in VIEWS])


def _curve(about: About) -> View:
    """Regimes and steps by batch; of searches that hvdscale ran, the section's own words and table have them."""
    curve, draw = about.curve, partial(_figures, about)
    fitted = present(fit_table(curve.regimes.fit, curve.target, curve.keys))
    if about.section.searches:
        return View(details=fitted, find=draw)
    return View(curve_findings(curve), (curve_table(curve),), fitted, draw)


def _figures(about: About) -> Iterable[Figure]:
    others = [about.curve_to(target) for target in about.others if about.first]
    return workload_figures([about.curve, *others], about.options, about.first, about.asked.budgets)


def _rules(about: About) -> View:
    found = about.costs
    if found is None:
        return View()
    return View(find_rules(found), (rules_table(found),),
                present(points_table(found), missing_table(found)))


def _results(about: About) -> View:
    """The fewest steps as published; a search's own table has them."""
    if about.section.searches:
        return View()
    rows = [result_of(study, about.target) for study in about.studies
            if about.target.column in study.evaluations.columns]
    return View(tables=(steps_table(rows),) if is_measured(about.studies, about.target.column) else ())


def _of_metric(view: Callable[[About], View]) -> Callable[[About], View]:
    """A view that is the same for all targets of a metric, worked out once."""
    @wraps(view)
    def shared(about: About) -> View:
        found: View = about.once((view, about.target.column, about.target.minimizes), lambda: view(about))
        return found
    return shared


@_of_metric
def _budgets(about: About) -> View:
    return view_of_budgets(about.studies, about.target.column, about.target.minimizes, about.options,
                           about.asked.budgets)


def view_of_budgets(studies: Sequence[Study], column: str, minimizes: bool, options: Options,
                    budgets: Sequence[Budget | None]) -> View:
    """The best of a metric under each budget; None: each trial's own."""
    found = best_under(studies, column, minimizes, budgets, options.confidence)
    return View(find_budgets(found), (budgets_table(found),), (budget_trials_table(found),)) if found else View()


@_of_metric
def _quality(about: About) -> View:
    return view_of_quality(about.studies, about.target.column, about.target.minimizes, about.options, about.asked)


def view_of_quality(studies: Sequence[Study], column: str, minimizes: bool, options: Options, asked: StudyRequest
                    ) -> View:
    """Within the steps that every batch has run, where that decides; else as long as each trial was to run, else within
    the epochs that every batch has run. Then under the budgets that were asked for, their tables in files only."""
    def under(budget: Budget | None) -> Quality | None:
        return quality_of(studies, column, minimizes, budget, options.confidence)
    epochs, steps = common_budgets(studies)
    tried: list[Quality] = []
    for budget in (steps, None, epochs):
        found = under(budget)
        if found is None:               # none has the metric
            return View()
        tried.append(found)
        if not found.why:
            break
    told = tried[-1] if not tried[-1].why else None
    first = told or tried[1]
    others = [found for budget in asked.budgets if budget != first.budget for found in [under(budget)] if found]
    said = tuple(finding for found in (first, *others) for finding in (
        *find_best_batch(found, options.loss_within), find_quality(found)))
    return View(said, (quality_table(told),) if told else (), tuple(quality_table(one, apart=True) for one in others),
                lambda: filter(None, [best_batch_figure(first, options.loss_within)]))


@_of_metric
def _base_rates(about: About) -> View:
    found = both_readings(about.studies, about.target.column, about.target.minimizes)
    return View(details=present(base_rates_table(*found)))


def _noise(about: About) -> View:
    return _noise_beside(about.section, about.curve.regimes.fit)


def _noise_beside(section: Section, fit: CriticalBatchFit | None) -> View:
    """The noise scale beside the critical batch."""
    found = noise_against(section.target, section.noise, fit.b_crit if fit else None)
    return View((find_noise(found),), details=(noise_against_table(found),)) if found else View()


def view_of_repeats(section: Section, asked: StudyRequest) -> View:
    """Of trials that are no draws: the noise scale beside the critical batch, and what was asked for in vain."""
    fit = section.batches.regimes.fit if section.batches else None
    beside = _noise_beside(section, fit) if fit else View()
    fitted = fit_table(fit, section.target, [key for cell in section.cells for key in cell.keys])
    return View((*beside.findings, *[GENERAL.find("no_budgets")] * bool(asked.budgets)),
                details=(*present(fitted), *beside.details))


VIEWS: tuple[Callable[[About], View], ...] = (
    _curve, _rules, landscapes, _budgets, _quality, _noise, _results, _base_rates)


def view_without_target(studies: Sequence[Study], options: Options, asked: StudyRequest) -> View:
    """The best of each validation metric of which it is known which way is better, of studies held against no target.
    """
    columns = sorted({name for study in studies for name in study.evaluations.columns if name.startswith("val/")})
    known = [(column, way == SMALLER) for column in columns
             if (way := better(column, studies)) and is_measured(studies, column)]
    objectives = {(study.plan(0).get("sweep") or {}).get("objective") for study in studies if len(study)}
    told = [one for one in known if one[0] in objectives] or known       # a search's own, or all
    rest = [one for one in known if one not in told]
    quality = {one: view_of_quality(studies, *one, options, asked) if len(studies) > 1 else View() for one in known}
    if not are_searched(studies):       # of repeats it is of no interest that no test of a search can be made
        quality = {one: view if view.tables else View() for one, view in quality.items()}
    budgets = {one: view_of_budgets(studies, *one, options, asked.budgets or (None,)) for one in known}

    def shown(metrics: Sequence[tuple[str, bool]]) -> View:
        return joined([views[one] for views in (quality, budgets) for one in metrics])
    return View((*shown(told).findings, *[GENERAL.find("ends_alone")] * show_ends_alone(studies)), shown(told).tables,
                (*shown(rest).tables, *(table for views in (budgets, quality) for one in known
                                        for table in views[one].details)),
                shown([*told, *rest]).find)
