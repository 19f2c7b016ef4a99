"""From what the logs say to a report: a page for each workload and target, and chapters on several workloads.

    document_of(analyse(trials, targets), studies=studies_of(logs))

Of logs so large that no trial is made of its own, sections have no trials, and pages what the studies show.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..analysis.budgets import show_ends_alone
from ..analysis.grouping import group_by
from ..analysis.report_data import JobResults, Options, Section
from ..analysis.step_time import StepTimes, timings_of
from ..analysis.steps_curve import points_of, steps_curve
from ..analysis.studies import Study, are_searched
from ..analysis.trials import JobKey, Trial
from ..analysis.worker_plan import Request, WorkerPlan, plan_of
from ..formatting.numbers import list_first
from ..formatting.progress import Tell, quiet
from .about import About, AboutAll, StudyRequest, with_costs
from .chapters import chapters_of
from .document import Chapter, Document, LogFacts, Page, describe_imports
from .file_names import section_name, slug, unique
from .findings import VERDICT, Finding, sentences_of
from .plan.words import cautions, describe_crowded, verdict
from .scaling import words
from .scaling.crossings import crossings_table
from .scaling.figures import figures_of
from .scaling.tables import tables_of
from .search.tables import tables_of_searches
from .studies import GENERAL, view_of, view_of_repeats, view_without_target
from .view import View, joined

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
    """The report of analysed groups.

    logs      LogFacts of each; skipped: messages about those that could not be read
    branches  trials that are branches of a run, in no group
    studies   the same trials as studies.studies_of gives them; without them there is nothing of what makes them studies
    ruled     whether to work out what learning-rate rules cost, seconds a study
    """
    taken: set[str] = set()
    of_workload = group_by(studies, lambda study: study.workload)
    by_section = dict(_abouts(groups, of_workload, asked))
    abouts = tuple(by_section.values())
    known_costs = with_costs(abouts, asked, ruled)
    pages = []
    for group in groups:
        found = []
        for section in group.sections:
            tell(f"{section.workload}{f': {section.target}' if section.target else ''}")
            about = next(known_costs) if section in by_section else None
            page = _page_of(section, about, of_workload.get(group.workload, ()), asked, taken)
            found += [page] if page.tables or section.trials or about else []
        pages.append((group, tuple(found)))
    known = {about.workload for about in abouts}
    repeats = [section for group in groups for section in group.sections if section.workload not in known]
    whole = AboutAll(abouts, repeats, studies, asked, options, tell, groups, branches)
    joining = describe_joining([group.workload for group in groups], [facts.attributes for facts in logs])
    return Document(tuple(pages), tuple(logs), tuple(skipped), options.confidence,
                    tuple(_chapter(title, view, key or title, taken) for title, view, key in chapters_of(whole)),
                    (*notes, *describe_imports(logs), *joining))


def _abouts(groups: Sequence[JobResults], studies: dict[JobKey, list[Study]], asked: StudyRequest
            ) -> Iterator[tuple[Section, About]]:
    """What is held against a target and is a study."""
    for group in groups:
        own, known = tuple(studies.get(group.workload, ())), dict[Hashable, Any]()
        targets = [section.target for section in group.sections if section.target]
        for section in group.sections if are_searched(own) or not group.trials else ():
            if own and section.target:
                alike = [target for target in targets if target.column == section.target.column]
                yield section, About(own, section.target, section, asked,
                                     tuple(target for target in alike if target != section.target),
                                     section.target == alike[0], known)


def _page_of(section: Section, about: About | None, studies: Sequence[Study], asked: StudyRequest, taken: set[str]
             ) -> Page:
    title, trials = str(section.target) if section.target else THROUGHPUT, section.trials
    if about:
        studied = view_of(about)
    elif section.target is None and (are_searched(studies) or not trials or not _is_timed(section)):
        title, studied = BEST, view_without_target(studies, section.options, asked)
    else:
        studied = view_of_repeats(section, asked)
    plan, view = _plan(section), studied
    notes: tuple[str, ...] = (PLANNED,) if plan else ()
    if trials and (section.searches or not about):  # of studies from elsewhere, what repeats would say is untrue
        searched, measured = tables_of_searches(section.searches), tables_of(section)
        measured = (*measured, *searched) if section.target else (*searched, *measured)
        best_first = title == BEST and not section.searches or show_ends_alone(studies)
        view = View((*words.findings(section, planned=bool(plan)), *studied.findings),
                    (*studied.tables, *measured) if best_first else (*measured, *studied.tables),
                    (*studied.details, *crossings_table(section)))
        notes += words.schedules(section)
    if trials:
        view = replace(view, find=joined([studied, View(find=partial(figures_of, section))]).find)
    page = _page(view, section, title, taken, verdict(plan) if plan else ())
    careful = (*cautions(plan), *sentences_of(describe_crowded(plan.times.timings))) if plan else ()
    return replace(page, left_out=(*careful, *(words.left_out(section) if trials else ())), notes=notes)


def _is_timed(section: Section) -> bool:
    """Whether any cell's time is known, so that there is a throughput to show."""
    return any(cell.examples_per_second.value == cell.examples_per_second.value for cell in section.cells)


def _page(view: View, section: Section, title: str, taken: set[str], verdict: tuple[str, ...]) -> Page:
    """Without a verdict of its own the first findings are it."""
    findings = view.findings
    if not verdict:
        verdict = tuple(one.said for one in findings[:VERDICT])
        findings = (*findings[VERDICT:], *(Finding(said) for one in findings[:VERDICT] for said in one.more))
    name = unique(section_name(section.workload, section.target, "throughput"), (section.workload, section.target),
                  taken)
    return Page(findings, view.tables, view.details, view.find, slug=name, title=title, target=section.target,
                section=section, verdict=verdict)


def _chapter(title: str, view: View, key: Hashable, taken: set[str]) -> Chapter:
    return Chapter(view.findings, view.tables, view.details, view.find, slug=unique(slug(title), key, taken),
                   title=title)


def _plan(section: Section) -> WorkerPlan | None:
    """How many workers to take of the counts that were run; None where there is no choice."""
    timings = timings_of(section.trials)
    counts = tuple(sorted({one.workers for one in timings.found}))
    points, fit = points_of(section) if section.target and len(counts) > 1 else ((), None)
    if not section.target or not any(point.steps.met for point in points) or not all(
            point.steps.value for point in points):
        return None                         # no target, none met it, or some before the first step
    times, request = StepTimes.of(timings), Request(counts, confidence=section.options.confidence)
    plan = plan_of(steps_curve(points, fit, confidence=request.confidence), times.of_cells(section.cells), request,
                   section.workload, section.target)
    return plan if len(plan.options) > 1 else None


def describe_joining(workloads: Iterable[JobKey], attributes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence on each data set whose workloads differ only in what an import can name, and how to join them.

    attributes  of the logs; nothing is said where none is an import that could
    """
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
