"""From what the logs say to a report: a page for each workload and target, and chapters on several workloads.

Of logs so large that no trial is made of its own, sections have no trials, and pages what the studies show.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..analysis.budgets import show_ends_alone
from ..analysis.grouping import group_by
from ..analysis.report_data import JobResults, Options
from ..analysis.studies import Study, are_searched
from ..analysis.trials import JobKey, Trial
from ..formatting.numbers import list_first
from ..formatting.progress import Tell, quiet
from ..target import Target
from .document import (VERDICT, Chapter, Document, Finding, LogFacts, Page, Part, Shown, describe_imports, section_name,
                       sentences_of, shown_by, slug, unique)
from .plan.words import cautions, describe_crowded, verdict
from .request import StudyRequest
from .subject import Subject, View, Whole, with_costs
from .texts import GENERAL
from .views import batches, budgets, noise, quality, rules, searches, step_times, trials, workers
from .views.branches import branched_runs
from .views.landscapes import landscapes
from .views.study_figures import families

# what a page shows, in reading order: of trials at their worker counts; beside it of studies held against a target, of
# repeats, or where there is no target to hold them against
MEASURED: tuple[View, ...] = (
    partial(searches.own_searches, to_target=False), batches.steps_by_batch, trials.unmet, workers.by_workers,
    batches.regimes, trials.outliers, trials.drift, trials.split_seeds, batches.early_crossing, trials.unlearned,
    workers.growing_batch,
    lambda subject: searches.find_next(subject.section.searches), searches.other_targets, step_times.step_parts,
    step_times.ranks, noise.noise_scales, partial(searches.own_searches, to_target=True), trials.training, trials.runs)
STUDIED: tuple[View, ...] = (
    batches.curve, rules.rule_costs, landscapes, budgets.best_under_budgets, quality.by_quality, noise.beside_critical,
    searches.results, budgets.base_rates)
REPEATED: tuple[View, ...] = (batches.fitted, noise.beside_critical)
UNTARGETED: tuple[View, ...] = (quality.best_of_metrics,)

Titled = tuple[str, Iterable[Part], Hashable]   # a title, what the chapter shows, and what is its own among others
PLANNED = ("Costs are in worker-hours. The knee is the worker count with the least cost x time. How sure: the share "
           "of draws, given all that was measured, in which it is so. hvdscale-plan compares other worker counts, "
           "batches and prices.")
BEST, THROUGHPUT = "Best measured", "Throughput"
NAMED = {"model": "--model", "optimizer": "--optimizer", "train_examples": "--set-size"}    # by options of an import
NAMING = ("mllog", "rcp")           # the kinds of import that have them
MOST_NAMED = 3


def document_of(groups: Sequence[JobResults], logs: Sequence[LogFacts] = (), skipped: Sequence[str] = (),
                options: Options = Options(), studies: Sequence[Study] = (), asked: StudyRequest = StudyRequest(),
                tell: Tell = quiet, branches: Sequence[Trial] = (), notes: Sequence[str] = (), ruled: bool = True
                ) -> Document:
    """The report of analysed groups, with facts of each log, and messages about those that could not be read.

    branches  trials that are branches of a run, in no group
    studies   the same trials as studies.studies_of gives them; without them there is nothing of what makes them studies
    ruled     whether to work out what learning-rate rules cost, seconds a study
    """
    taken: set[str] = set()
    of_workload = group_by(studies, lambda study: study.workload)
    subjects = [list(_subjects(group, tuple(of_workload.get(group.workload, ())), asked)) for group in groups]
    held = [subject for own in subjects for subject in own if subject.held]
    known_costs = with_costs(held, asked, ruled)
    pages = []
    for group, own in zip(groups, subjects):
        found = []
        for subject in own:
            tell(f"{group.workload}{f': {subject.section.target}' if subject.section.target else ''}")
            if subject.held:
                next(known_costs)
            page = _page(subject, taken)
            found += [page] if page.tables or subject.section.trials or subject.held else []
        pages.append((group, tuple(found)))
    searched = {subject.section.workload for subject in held}
    repeats = [section for group in groups for section in group.sections if section.workload not in searched]
    whole = Whole(held, repeats, studies, asked, options, tell, groups, branches)
    joining = describe_joining([group.workload for group in groups], [facts.attributes for facts in logs])
    return Document(tuple(pages), tuple(logs), tuple(skipped), options.confidence, tuple(
        Chapter(**vars(shown_by(parts)), slug=unique(slug(title), key or title, taken), title=title)
        for title, parts, key in _chapters(whole)), (*notes, *describe_imports(logs), *joining))


def _subjects(group: JobResults, studies: tuple[Study, ...], asked: StudyRequest) -> Iterator[Subject]:
    known: dict[Hashable, Any] = {}
    for section in group.sections:
        held = bool(section.target and studies and (are_searched(studies) or not group.trials))
        alike = [one.target for one in group.sections
                 if one.target and section.target and one.target.column == section.target.column]
        yield Subject(section, studies, asked, held, tuple(one for one in alike if one != section.target),
                      section.target in alike[:1], known)


def measured(subject: Subject) -> Shown:
    """What there is to show of the trials at their worker counts."""
    return shown_by(part for view in MEASURED for part in view(subject))


def _page(subject: Subject, taken: set[str]) -> Page:
    """Without a verdict of its own the first findings are it."""
    section, plan = subject.section, subject.plan
    # nothing to show but the best of each metric: no target, and no throughput of repeats
    best_alone = section.target is None and (are_searched(subject.studies) or not section.trials or not any(
        cell.examples_per_second.value > 0 for cell in section.cells))
    views = STUDIED if subject.held else REPEATED
    if section.target is None and (best_alone or subject.asked.budgets):
        views = (*(() if best_alone else REPEATED), *UNTARGETED)
    studied, ran = shown_by(part for view in views for part in view(subject)), Shown()
    notes: tuple[str, ...] = ()
    if section.trials and (section.searches or not subject.held):   # of studies from elsewhere it would be untrue
        ran, notes = measured(subject), trials.schedules(section)
    findings, lines = (*ran.findings, *studied.findings), verdict(plan) if plan else ()
    if not plan:
        lines = tuple(one.said for one in findings[:VERDICT])
        findings = (*findings[VERDICT:], *(Finding(said) for one in findings[:VERDICT] for said in one.more))
    best_first = best_alone and not section.searches or show_ends_alone(subject.studies)
    first, then = (studied, ran) if best_first else (ran, studied)
    careful = (*cautions(plan), *sentences_of(describe_crowded(plan.times.timings))) if plan else ()
    title = BEST if best_alone else str(section.target or THROUGHPUT)
    name = unique(section_name(section.workload, section.target, "throughput"), (section.workload, section.target),
                  taken)
    return Page(findings, (*first.tables, *then.tables), (*studied.details, *ran.details),
                (*studied.finds, *ran.finds), slug=name, title=title, target=section.target,
                section=section, verdict=lines, left_out=(*careful, *trials.left_out(section)),
                notes=(*((PLANNED,) if plan else ()), *notes))


def _chapters(whole: Whole) -> Iterator[Titled]:
    """What is seldom asked for is imported late, so that other reports need not wait for it."""
    if whole.asked.sizes:
        from .views.size import laws_over_size
        yield "Laws over size", laws_over_size(whole), ""
    yield from families(whole)
    if whole.asked.compare or whole.asked.paper:
        from .papers.figures import chapters
        yield from chapters(whole)
    yield from branched_runs(whole)


def targets_of_paper(paper: str, workload: JobKey) -> tuple[Target, ...]:
    from .papers.figures import target_of
    return target_of(paper, workload)


def describe_joining(workloads: Iterable[JobKey], attributes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence on each data set whose workloads differ only in what an import can name, and how to join them."""
    if not any((one.get("imported") or {}).get("kind") in NAMING for one in attributes):
        return
    for key, alike in group_by(sorted(workloads), lambda one: (
            one.dataset, one.model_args, one.batch_schedule, one.version)).items():
        values = {name: dict.fromkeys(str(getattr(one, name) or "unknown") for one in alike) for name in NAMED}
        differ = {name: list(found) for name, found in values.items() if len(found) > 1}
        if len(alike) > 1:
            yield GENERAL.say("joining", dataset=key[0], options=" and ".join(NAMED[name] for name in differ),
                              differ=" and ".join(f"{name.replace('train_', 'training ')} "
                                                  f"({list_first(found, MOST_NAMED)})"
                                                  for name, found in differ.items()))
