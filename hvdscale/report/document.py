"""A report as one record: what report.html, report.json and the screen are written from."""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from .. import __version__
from ..analysis.defaults import LASTING
from ..analysis.intervals import OWN_FROM
from ..analysis.report_data import JobResults, Options, Section
from ..analysis.search import Search
from ..analysis.step_time import StepTimes, timings_of
from ..analysis.steps_curve import points_of, steps_curve
from ..analysis.studies import Study
from ..analysis.trials import JobKey, Trial
from ..analysis.worker_plan import Request, WorkerPlan, plan_of
from ..formatting.numbers import counted, finite
from ..formatting.progress import Tell, quiet
from ..log.reader import Log
from ..target import Target
from .about import About, AboutAll, StudyRequest, with_costs
from .branches import chapters_of_branches
from .drawing import Figure
from .file_names import section_name, slug, unique
from .findings import VERDICT, Finding, sentences_of
from .joining import joining_said
from .plan.words import cautions, crowded_said, verdict
from .scaling import words
from .scaling.crossings import crossing_said, crossings_table
from .scaling.curves import fit_table
from .scaling.figures import figures_of
from .scaling.tables import tables_of
from .search.tables import tables_of_searches
from .search.words import lines
from .studies import (are_searched, chapters_of, own_targets, tell_ends_alone, tells, view_of, view_of_noise,
                      view_without_target)
from .table import as_values, keys_of, trial_list
from .view import View, present

PLANNED = ("Costs are in worker-hours. The gain ends at the knee, the worker count with the least cost x time. How "
           "sure: the share of draws from the intervals in which it is so. hvdscale-plan compares other worker counts, "
           "batches and prices.")
MAIN = 2                            # figures of a workload that are drawn unless all are asked for
MOST_RULED = 20_000                 # trials, beyond which what learning-rate rules cost is left out
BEST, REPORT = "Best measured", "Scaling report"
NO_BUDGETS = "--budget is ignored here: it is for searches, and these are repeats of one setting."
MOST_EVALUATIONS = 5_000_000        # in all logs, beyond which no trial is made of its own


@dataclass(frozen=True)
class LogFacts:
    """Where numbers come from: a log's attributes, and where its trials ran."""

    path: str
    trials: int
    attributes: dict[str, Any]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Chapter(View):
    """What is about several workloads."""

    slug: str                       # for file names and anchors
    title: str
    target: Target | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Page(Chapter):
    """A workload held against one target: a verdict, a table, findings, then the other tables and the figures."""

    section: Section | None = None  # None: of more evaluations than trials are made of one by one
    verdict: tuple[str, ...]        # at most VERDICT sentences
    left_out: tuple[str, ...] = ()  # warnings: what is in no estimate, and what speaks against the verdict
    notes: tuple[str, ...] = ()     # how to read the verdict, and what was run

    @property
    def summary(self) -> tuple[str, ...]:
        """The whole in sentences."""
        return (*self.verdict, *sentences_of(self.findings), *self.notes)


@dataclass(frozen=True, eq=False)
class Document:
    """The whole report."""

    pages: tuple[tuple[JobResults, tuple[Page, ...]], ...]
    logs: tuple[LogFacts, ...]
    skipped: tuple[str, ...]        # messages about logs that could not be read, and trials that imports left out
    confidence: float
    chapters: tuple[Chapter, ...] = ()
    notes: tuple[str, ...] = ()     # on the whole of it
    kind: str = REPORT

    @property
    def shown(self) -> list[Chapter]:
        """Every page and chapter."""
        return [*(page for _, pages in self.pages for page in pages), *self.chapters]

    def with_main_figures(self) -> Document:
        """The same with the first MAIN figures of each workload alone, beside those of chapters."""
        def cut(page: Page, most: int) -> Page:
            return replace(page, find=lambda: islice(page.find(), most))
        return replace(self, pages=tuple(
            (group, tuple(cut(page, 0 if at else MAIN) for at, page in enumerate(own))) for group, own in self.pages))

    @property
    def how_to_read(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(what it is about, notes) of each page and table, every note once."""
        said: set[str] = set()
        found: dict[str, list[str]] = {}
        for shown in self.shown:
            verdict = shown.notes if isinstance(shown, Page) else ()
            for about, notes in (("Verdict", verdict), *(
                    (table.title.partition(":")[0], table.notes) for table in shown.tables)):
                found.setdefault(about, []).extend(note for note in notes if note not in said)
                said.update(notes)
        return tuple((about, tuple(notes)) for about, notes in found.items() if notes)

    @property
    def title(self) -> str:
        """What it is about."""
        names = list(dict.fromkeys(f"{group.workload.dataset}/{group.workload.model}" for group, _ in self.pages))
        return f"{self.kind}: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"

    @property
    def lead(self) -> str:
        """How much it is based on."""
        trials = sum(log.trials for log in self.logs)
        return f"{counted(trials, 'trial')} in {counted(len(self.logs), 'log')}"


def facts_of(log: Log) -> LogFacts:
    """What to say of a log; see log.reader.Log."""
    hosts, devices = (tuple(map(str, np.unique(log.restarts[name].astype(str)))) if log.restarts.rows else ()
                      for name in ("host", "device"))
    return LogFacts(log.path, log.trials.rows, dict(log.attributes), hosts, devices)


def document_of(groups: Sequence[JobResults], logs: Sequence[LogFacts] = (), skipped: Sequence[str] = (),
                options: Options = Options(), studies: Sequence[Study] = (), asked: StudyRequest = StudyRequest(),
                tell: Tell = quiet, branches: Sequence[Trial] = (), notes: Sequence[str] = ()) -> Document:
    """The report of analysed groups.

    logs      LogFacts of each; skipped: messages about those that could not be read
    branches  trials that are branches of a run, in no group
    studies   the same trials as studies.studies_of gives them; without them there is nothing of what makes them studies
    """
    taken: set[str] = set()
    by_section = dict(_abouts(groups, studies, asked))
    abouts = tuple(by_section.values())
    known_costs = with_costs(abouts, asked)
    pages = tuple((group, tuple(
        _page_of_section(section, next(known_costs) if section in by_section else None, studies, asked, taken, tell)
        for section in group.sections)) for group in groups)
    known = {about.workload for about in abouts}
    repeats = [section for group in groups for section in group.sections if section.workload not in known]
    return _document(pages, AboutAll(abouts, repeats, studies, asked, options, tell, groups), logs, skipped,
                     (*crossing_said(options), *notes), taken, branches)


def document_of_studies(studies: Sequence[Study], targets: Sequence[Target] = (), logs: Sequence[LogFacts] = (),
                        skipped: Sequence[str] = (), options: Options = Options(), asked: StudyRequest = StudyRequest(),
                        tell: Tell = quiet, notes: Sequence[str] = ()) -> Document:
    """The report of logs so large that only columns of their evaluations are looked at."""
    taken: set[str] = set()
    abouts: list[About] = []
    pages, ruled = [], sum(map(len, studies)) <= MOST_RULED
    for workload in dict.fromkeys(study.workload for study in studies):
        own = _of_workload(studies, workload)
        held = [target for target in targets or own_targets(own, asked)
                if tells(own, target.column) and not tell_ends_alone(own)]
        known: dict[Hashable, Any] = {}
        found = [About(own, target, options, asked, others=_others(target, held), ruled=ruled,
                       first=_is_first(target, held), known=known) for target in held]
        shown = tuple(_page_of_studies(about, taken, tell) for about in found)
        best = View() if shown or targets and not tell_ends_alone(own) else view_without_target(own, options, asked)
        if best.tables:
            shown = (_page(best, workload, None, BEST, taken),)
        pages.append((JobResults(workload, (), ()), shown))
        abouts += found
    why = "As in the paper" if asked.paper else f"More than {MOST_EVALUATIONS:,} evaluations"
    rules = "" if ruled else ", the cost of learning-rate rules"
    note = (f"{why}: this report is of the studies as a whole. Tables by worker count, where a step's time goes, noise "
            f"scales{rules} and curves of single runs are left out; a report "
            f"{'without --paper' if asked.paper else 'on fewer logs'} has them."
            + " Targets are met at the first crossing here, not at the lasting one." * (options.crossing == LASTING))
    return _document(pages, AboutAll(abouts, (), studies, asked, options, tell), logs, skipped, (note, *notes), taken)


def _document(pages: Sequence[tuple[JobResults, tuple[Page, ...]]], whole: AboutAll, logs: Sequence[LogFacts],
              skipped: Sequence[str], notes: Sequence[str], taken: set[str], branches: Sequence[Trial] = ()
              ) -> Document:
    """The pages with the chapters that follow from the whole; ``taken``: names that are no others'."""
    chapters = [*((title, view, title) for title, view in chapters_of(whole)), *chapters_of_branches(branches, whole)]
    joining = joining_said([group.workload for group, _ in pages], [facts.attributes for facts in logs])
    return Document(tuple(pages), tuple(logs), tuple(skipped), whole.options.confidence,
                    tuple(_chapter(title, view, key, taken) for title, view, key in chapters),
                    (*notes, *imported_said(logs), *joining))


IMPORTED = ("search", "workers", "overlap", "batch", "times", "metric")       # what an import says of a log's trials


def imported_said(logs: Iterable[LogFacts | Log]) -> tuple[str, ...]:
    """What was guessed, assumed and left out when logs were imported."""
    return tuple(f"{facts.path}: {said}." for facts in logs for name in IMPORTED
                 if (said := facts.attributes.get("imported", {}).get(name)))


def _of_workload(studies: Sequence[Study], workload: JobKey) -> tuple[Study, ...]:
    return tuple(study for study in studies if study.workload == workload)


def _others(target: Target, targets: Iterable[Target | None]) -> tuple[Target, ...]:
    """Of the targets those of the same metric."""
    return tuple(one for one in targets if one and one != target and one.column == target.column)


def _is_first(target: Target, targets: Iterable[Target | None]) -> bool:
    return target == next(one for one in targets if one and one.column == target.column)


def _chapter(title: str, view: View, key: Hashable, taken: set[str]) -> Chapter:
    return Chapter(view.findings, view.tables, view.details, view.find, slug=unique(slug(title), key, taken),
                   title=title)


def _page_of_studies(about: About, taken: set[str], tell: Tell) -> Page:
    workload = about.workload
    tell(_about(workload, about.target))
    return _page(view_of(about), workload, about.target, str(about.target), taken)


def _page(view: View, workload: JobKey, target: Target | None, title: str, taken: set[str],
          verdict: tuple[str, ...] = ()) -> Page:
    """Without a verdict of its own the first findings are it."""
    findings = view.findings
    if not verdict:
        verdict = tuple(one.said for one in findings[:VERDICT])
        findings = (*findings[VERDICT:], *(Finding(said) for one in findings[:VERDICT] for said in one.more))
    name = unique(section_name(workload, target, "throughput"), (workload, target), taken)
    return Page(findings, view.tables, view.details, view.find, slug=name, title=title, target=target,
                verdict=verdict)


def _abouts(groups: Sequence[JobResults], studies: Sequence[Study], asked: StudyRequest
            ) -> Iterator[tuple[Section, About]]:
    """What is held against a target and is a study."""
    for group in groups:
        own, held = _of_workload(studies, group.workload), [section.target for section in group.sections]
        known: dict[Hashable, Any] = {}
        for section in group.sections if are_searched(own) else ():
            if section.target:
                noise = tuple((cell.global_batch, noise, keys_of(cell)) for cell, noise in section.noise)
                yield section, About(own, section.target, section.options, asked, section.searches, noise,
                                     _others(section.target, held), first=_is_first(section.target, held), known=known)


def _about(workload: JobKey, target: Target | None) -> str:
    return f"{workload}{f': {target}' if target else ''}"


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
    return plan if len(plan.eligible) > 1 else None


def as_json(document: Document, figures: bool = True) -> dict[str, object]:
    """The report for report.json: every number with its interval, its trials and its formula.

    figures  whether to list those of each workload, which have to be worked out for that
    """
    return {
        "format": "hvdscale-report", "version": 1, "creator": f"hvdscale {__version__}",
        "confidence": document.confidence,
        "logs": [{"path": log.path, "trials": log.trials, "hosts": log.hosts, "devices": log.devices,
                  "attributes": {name: _plain(value) for name, value in log.attributes.items()}}
                 for log in document.logs],
        "skipped": document.skipped, "notes": document.notes,
        "workloads": [{
            "dataset": group.workload.dataset, "model": group.workload.model, "model_args": group.workload.model_args,
            "optimizer": group.workload.optimizer, "train_examples": group.workload.train_examples,
            **({"version": group.workload.version} if group.workload.version else {}),
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
    if page.section:
        options, searches = page.section.options, [_search_values(search) for search in page.section.searches]
        values |= {
            "intervals": _interval_values(page.section),
            "tolerances": {"perfect_within": options.perfect_within, "useful_within": options.useful_within,
                           "loss_within": str(options.loss_within)},
            **({"searches": searches} if searches else {})}
    return values


def _shown_values(shown: Chapter, figures: bool = True) -> dict[str, object]:
    return {
        "tables": [as_values(table) for table in (*shown.tables, *shown.details)],
        "figures": [{"name": f"{shown.slug}-{figure.name}", "title": figure.title, "caption": figure.caption,
                     "formula": figure.formula, "source": figure.source, "trials": trial_list(figure.trials)}
                    for figure in (shown.figures if figures else ())]}


def _search_values(search: Search) -> dict[str, object]:
    return {
        "study": search.study, "objective": search.objective, "done": search.done, "said": lines(search),
        "space": [one.record() for one in search.space],
        "draws": [{"draw": draw.number, "kind": draw.kind, "value": finite(draw.value), "last_step": draw.last_step,
                   "point": draw.point if draw.trial else None,
                   **({"log": draw.trial.log, "trial": draw.trial.id} if draw.trial else {})} for draw in search.draws],
        "best": search.best and search.best.number,
        "positions": {bound.parameter.name: finite(bound.position) for bound in search.bounds},
        "best_of_n": [{"n": one.n, "low": finite(one.low), "high": finite(one.high)} for one in search.curve],
        "saved_steps": finite(search.saved_steps),
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


def _page_of_section(section: Section, about: About | None, studies: Sequence[Study], asked: StudyRequest,
                     taken: set[str], tell: Tell) -> Page:
    tell(_about(section.workload, section.target))
    title, own = str(section.target) if section.target else "Throughput", _of_workload(studies, section.workload)
    view = view_of(about) if about else _of_repeats(section, asked)
    if section.target is None and are_searched(own):
        title, view = BEST, view_without_target(own, section.options, asked)
    plan, studied = _plan(section), view
    notes: tuple[str, ...] = (PLANNED,) if plan else ()
    if section.searches or not about:       # studies from elsewhere: what repeats of one setting would say is untrue
        searched, measured = tables_of_searches(section.searches), tables_of(section)
        measured = (*measured, *searched) if section.target else (*searched, *measured)
        view = View((*words.findings(section, planned=bool(plan)), *studied.findings),
                    (*studied.tables, *measured) if tell_ends_alone(own) else (*measured, *studied.tables),
                    (*studied.details, *crossings_table(section)))
        notes += words.schedules(section)
    view = replace(view, find=partial(_figures, studied, section))
    page = _page(view, section.workload, section.target, title, taken, verdict(plan) if plan else ())
    careful = (*cautions(plan), *crowded_said(plan.times.timings)) if plan else ()
    return replace(page, section=section, left_out=(*careful, *words.left_out(section)),
                   notes=notes)


def _of_repeats(section: Section, asked: StudyRequest) -> View:
    """Of trials that are no draws: the noise scale beside the critical batch, and what was asked for in vain."""
    fit = section.batches.regimes.fit if section.batches and section.batches.regimes else None
    noise = [(cell.global_batch, noise, keys_of(cell)) for cell, noise in section.noise] if fit else ()
    beside = view_of_noise(section.workload, section.target, noise, fit)
    fitted = fit_table(fit, section.target, [run.trial.key for cell in section.cells for run in cell.runs])
    return View((*beside.findings, *([Finding(NO_BUDGETS)] if asked.budgets else [])),
                details=(*present(fitted), *beside.details))


def _figures(view: View, section: Section) -> Iterator[Figure]:
    """Those of the studies, and of the section those that say something else."""
    names = set()
    for figure in view.find():
        names.add(figure.name)
        yield figure
    yield from (figure for figure in figures_of(section) if figure.name not in names)


def _plain(value: object) -> object:
    """An attribute as JSON can hold it."""
    return value.item() if isinstance(value, np.generic) else value if isinstance(value, (int, float)) else str(value)
