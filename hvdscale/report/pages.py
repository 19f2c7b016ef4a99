"""From logs to a report: a page for each workload and target, and chapters on several workloads.

Of logs so large that no trial is made of its own, sections have no trials, and pages what the studies show.
"""

import gc
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from ..analysis.defaults import LASTING
from ..analysis.jobs import Versions
from ..analysis.report_data import JobResults, Section, analyse, refuse_unknown
from ..analysis.rules import RuleCosts, rules_along
from ..analysis.studies import (Study, are_searched, best_metric, better, check_direction, group_by, is_measured,
                                show_ends_alone, studies_of)
from ..analysis.trials import JobKey, read_trials
from ..analysis.worker_plan import WorkerPlan
from ..errors import LogError
from ..formatting.numbers import counted, list_first
from ..formatting.screen import Tell, quiet
from ..log.check import refuse_unsound
from ..log.plan_text import plan_at
from ..log.reader import Log, read_log
from ..log.schema import SMALLER
from ..log.segments import expand, find_logs, no_logs, refuse_outer
from ..system.files import scratch_folder
from ..target import Target
from . import FORMATS
from .document import (VERDICT, Chapter, Details, Document, Figures, Finding, Page, Part, Path, describe_imports,
                       facts_of, section_name, slug, unique)
from .output import MOST_RULED, give_out, refuse_no_folder, uncollected
from .plan.words import cautions, describe_left_out, verdict
from .subject import ReportRequest, Subject, View, Whole, describe_unused, of_metric
from .table import Table
from .texts import GENERAL, SCALING
from .views import batches, budgets, local_steps, rules, searches, trials, workers
from .views.curves import family_figures
from .views.landscapes import landscapes

Needing = tuple[str, View]          # what a section must have for a view to show anything; "": no one thing
# what a page shows, in reading order: of trials at their worker counts; beside it of studies held against a target, of
# repeats, or where there is no target to hold them against
MEASURED: tuple[Needing, ...] = (
    ("searches", partial(searches.own_searches, to_target=False)), ("synced", local_steps.local_steps),
    ("target", batches.steps_by_batch), ("", workers.by_workers), ("", batches.regimes), ("", trials.irregular),
    ("batches", batches.early_crossing), ("", trials.unlearned), ("workload.batch_schedule", workers.growing_batch),
    ("searches", lambda subject: searches.find_next(subject.searches)), ("target", trials.other_targets),
    ("parts", workers.step_parts), ("noise", batches.noise_scales),
    ("searches", partial(searches.own_searches, to_target=True)), ("", trials.runs))
STUDIED: tuple[Needing, ...] = (
    ("", batches.curve), ("", rules.rule_costs), ("", landscapes), ("", partial(of_metric, budgets.parts_of_budgets)),
    ("", partial(of_metric, budgets.parts_of_quality)), ("noise", batches.beside_critical), ("", searches.results),
    ("", partial(of_metric, budgets.base_rates)))
REPEATED: tuple[Needing, ...] = (("batches", batches.fitted), ("noise", batches.beside_critical))
UNTARGETED: tuple[Needing, ...] = (("", budgets.best_of_metrics),)

Titled = tuple[str, Iterable[Part], Hashable]   # a title, what the chapter shows, and what is its own among others
BEST, THROUGHPUT = "Best measured", "Throughput"
MOST_EVALUATIONS = 5_000_000        # in all logs, beyond which no trial is made of its own
NAMED = {"model": "--model", "optimizer": "--optimizer", "train_examples": "--set-size"}    # by options of an import
NAMING = ("mllog", "rcp")           # the kinds of import that have them
MOST_NAMED = 3
CONTINUE = "--skip-broken (skip_broken=True in Python) continues without logs that cannot be read"
MOST_LEFT_OUT = 10          # trials of a log that are named
LONG_BYTES = 100 << 20      # of a log, beyond which reading it takes a while


def document_of_logs(logs: Sequence[Log], targets: Sequence[Target] = (), skipped: Sequence[str] = (),
                     asked: ReportRequest = ReportRequest(), tell: Tell = quiet) -> Document:
    """The report of logs that are open, and stay so while the document is used; ``skipped``: messages about those that
    could not be read."""
    for target in targets:
        check_direction(target, logs)
    evaluations = sum(log.evaluations.rows for log in logs)
    tell(f"sorting {evaluations:,} evaluations by trial", long=evaluations > MOST_EVALUATIONS)
    versions, lasting = Versions(logs), asked.crossing == LASTING
    studies, branches, ruled = studies_of(logs, versions), [], True
    if asked.paper or evaluations > MOST_EVALUATIONS:
        refuse_unknown(targets, {name for study in studies for name in study.evaluations.columns})
        ruled = sum(map(len, studies)) <= MOST_RULED        # what rules cost takes seconds a study
        groups = tuple(JobResults(workload, (), tuple(
            Section(workload, target, asked) for target in targets_held(targets, asked, own)))
            for workload, own in group_by(studies, attrgetter("workload")).items())
        notes = [GENERAL.say("studies_alone", paper=bool(asked.paper), most=MOST_EVALUATIONS, unruled=not ruled,
                             lasting=lasting)]
    else:
        every = [trial for log in logs for trial in read_trials(log, versions)]
        tell(f"holding {counted(len(every), 'trial')} against their targets")
        groups, branches = analyse(every, targets, asked), [one for one in every if one.branch]
        notes = [SCALING.say("lasting")] if lasting and any(
            section.target for group in groups for section in group.sections) else []
    taken: set[str] = set()
    subjects = list(_subjects(groups, studies, asked))
    held = [subject for subject in subjects if subject.held]
    costs = rules_along([one.curve for one in held], asked.rules, asked.rule_within) if ruled and held else repeat(None)
    pages: dict[JobKey, list[Page]] = {group.workload: [] for group in groups}
    for subject in subjects:
        tell(f"{subject.workload}{f': {subject.target}' if subject.target else ''}")
        if subject.held:            # all cores work on the costs of those that follow
            subject.known[RuleCosts, subject.goal] = next(costs)
        page = _page(subject, taken, subjects)
        if page.tables or subject.trials or subject.held:
            pages[subject.workload].append(page)
    searched = {subject.workload for subject in held}
    repeats = [subject for subject in subjects if subject.workload not in searched]
    whole = Whole(held, repeats, studies, asked, tell, groups, branches)
    notes += versions.notes
    if any("imported" in log.attributes for log in logs):
        notes += [*describe_imports(logs), *describe_joining(
            [group.workload for group in groups], [log.attributes for log in logs])]
    chapters = tuple(Chapter(tuple(parts), slug=unique(slug(title), key or title, taken), title=title)
                     for title, parts, key in _chapters(whole))
    aimed = bool(targets) or any(page.target for own in pages.values() for page in own)
    found = Document(tuple(pages.items()), tuple(map(facts_of, logs)), tuple(skipped), asked.confidence, chapters,
                     tuple(notes), hint="" if aimed else _describe_no_target(studies, logs))
    return replace(found, notes=(*notes, *describe_unused(targets, asked, found, bool(branches))))


def targets_held(targets: Sequence[Target], asked: ReportRequest, studies: Sequence[Study]
                 ) -> tuple[Target | None, ...]:
    """The targets to hold a workload's studies against, of those given or else those in the plans of their first
    trials, or else that of the paper which is asked for: with a metric that they measured; without any None, but where
    targets were given, which nothing is shown without."""
    own = [(study.plan(0).get("measurement") or {}).get("target") for study in studies if len(study)]
    wanted = targets or tuple(dict.fromkeys(Target.parse(text) for text in own if text))
    if not wanted and asked.paper:
        from .papers.figures import target_of
        wanted = target_of(studies[0].workload)
    ends_alone = show_ends_alone(studies)
    held = tuple(target for target in wanted if is_measured(studies, target.column) and not ends_alone)
    return held if held or targets and not ends_alone else (None,)


def _describe_no_target(studies: Sequence[Study], logs: Sequence[Log]) -> str:
    """How to hold trials without a target against one that about half of them meet, of validation if it was measured;
    "" where none measured a metric twice whose better way is known."""
    studies = [study for study in studies if (study.evaluations.counts > 1).any()]
    columns = {name for study in studies for name in study.evaluations.columns if "/" in name}
    for column in sorted(columns, key=lambda name: (not name.startswith("val/"), name)):
        way = better(column, logs)
        if way and is_measured(studies, column):
            best = np.concatenate([best_metric(study, column, way == SMALLER)[0][study.feasible]
                                   for study in studies if column in study.evaluations.columns])
            known = best[np.isfinite(best)]
            return GENERAL.say("no_target", target=f"{column}{'<' if way == SMALLER else '>'}{np.median(known):.2g}"
                               ) if len(known) else ""
    return ""


def _subjects(groups: Sequence[JobResults], studies: Sequence[Study], asked: ReportRequest) -> Iterator[Subject]:
    of_workload = group_by(studies, lambda study: study.workload)
    for group in groups:
        known: dict[Hashable, Any] = {}
        own, targets = tuple(of_workload.get(group.workload, ())), [section.target for section in group.sections]
        searched = bool(own) and (are_searched(own) or not group.trials)
        for section in group.sections:
            alike = [one for one in targets if one and section.target and one.column == section.target.column]
            yield Subject(
                **vars(section), studies=own, asked=asked, held=bool(section.target and searched), known=known,
                others=tuple(one for one in alike if one != section.target), first=section.target in alike[:1])


def show(views: Iterable[Needing], subject: Subject) -> list[Part]:
    return [part for needed, view in views if not needed or attrgetter(needed)(subject) for part in view(subject)]


def _page(subject: Subject, taken: set[str], subjects: Sequence[Subject]) -> Page:
    plan = subject.plan
    # nothing to show but the best of each metric: no target, and no throughput of repeats
    best_alone = subject.target is None and (are_searched(subject.studies) or not subject.trials or not any(
        cell.examples_per_second.value > 0 for cell in subject.cells))
    views = STUDIED if subject.held else REPEATED
    if subject.target is None:
        views = UNTARGETED if best_alone or subject.asked.budgets else ()
    # of studies from elsewhere what is measured would be untrue
    measured = bool(subject.trials and (subject.searches or not subject.held))
    studied, ran = show(views, subject), show(MEASURED, subject) if measured else []

    findings = [part for part in (*ran, *studied) if isinstance(part, Finding)]
    lines = tuple(one.said for one in findings[:VERDICT])
    if plan:
        lines = (*_describe_others(subject, plan, subjects), *verdict(plan))
    else:
        findings = [*findings[VERDICT:], *(Finding(said) for one in findings[:VERDICT] for said in one.more)]
    best_first = best_alone and not subject.searches or show_ends_alone(subject.studies)
    tables = [part for part in ((*studied, *ran) if best_first else (*ran, *studied)) if isinstance(part, Table)]
    lazy = [part for part in (*studied, *ran) if isinstance(part, (Details, Figures))]
    careful = (*cautions(plan), *(one.said for one in describe_left_out(plan.times.timings))) if plan else ()
    key = subject.workload, subject.target
    return Page((*findings, *tables, *lazy), title=BEST if best_alone else str(subject.target or THROUGHPUT),
                target=subject.target, verdict=lines, slug=unique(section_name(*key, "throughput"), key, taken),
                workload=str(subject.workload), section=subject, left_out=(*careful, *trials.left_out(subject)),
                describe=lambda: (*([GENERAL.say("planned")] if plan else []),
                                  *(trials.schedules(subject) if measured else ())))


def _describe_others(subject: Subject, plan: WorkerPlan, subjects: Iterable[Subject]) -> Iterator[str]:
    """What a page leaves out of its choice: worker counts whose times are left out, as on other machines, or that ran
    the job to another target only; what took less time to the target with another optimizer or version of the job."""
    job, counts = subject.workload, {trial.workers for trial in subject.trials}
    taken = {option.workers: option.seconds.value for option in plan.options}
    untimed = {cell.workers[0] for cell in subject.cells if cell.seconds.met} - taken.keys()
    if untimed and plan.times.timings.others:
        yield SCALING.say("other_counts", workers=sorted(untimed), untimed=True)
    for one in subjects:
        faster = [cell for cell in one.cells if cell.seconds.value < min(taken.values())]
        if one.workload == job and (alone := {trial.workers for trial in one.trials} - counts):
            yield SCALING.say("other_counts", workers=sorted(alone), target=one.target)
        elif faster and one.target == subject.target and one.workload != job and one.workload in (
                replace(job, optimizer=one.workload.optimizer), replace(job, version=one.workload.version)):
            best = min(faster, key=attrgetter("seconds.value"))
            yield SCALING.say("faster_job", workload=one.workload, workers=best.workers[0], batch=best.global_batch,
                              seconds=best.seconds.value)


def _chapters(whole: Whole) -> Iterator[Titled]:
    """What is seldom asked for is imported late, so that other reports need not wait for it."""
    if whole.asked.sizes:
        from .views.size import laws_over_size
        yield "Laws over size", laws_over_size(whole), ""
    if len({subject.workload for subject in whole.subjects}) > 1:
        curves = [subject.curve for subject in whole.first.values()]
        yield "Workloads beside each other", [Figures(lambda: family_figures(curves))], ""
    if whole.asked.compare or whole.asked.paper:
        from .papers.figures import chapters
        yield from chapters(whole)
    if whole.branches:
        from .views.branches import branched_runs
        yield from branched_runs(whole)


def describe_joining(workloads: Iterable[JobKey], attributes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence on each data set whose workloads differ only in what an import can name, and how to join them."""
    if not any((attribute.get("imported") or {}).get("kind") in NAMING for attribute in attributes):
        return
    for key, alike in group_by(sorted(workloads), lambda one: (
            one.dataset, one.model_args, one.batch_schedule, one.version)).items():
        values = {name: list(dict.fromkeys(str(getattr(one, name) or "unknown") for one in alike)) for name in NAMED}
        names = [name for name, found in values.items() if len(found) > 1]
        differ = (f"{name.replace('train_', 'training ')} ({list_first(values[name], MOST_NAMED)})" for name in names)
        if len(alike) > 1:
            yield GENERAL.say("joining", dataset=key[0], options=" and ".join(NAMED[name] for name in names),
                              differ=" and ".join(differ))


def open_logs(paths: Sequence[Path], skip_broken: bool, opened: ExitStack, tell: Tell = quiet
              ) -> tuple[list[Log], list[str]]:
    """(logs, messages about those skipped) of all logs among files and directories, open until ``opened`` closes.
    Raises LogError where one cannot be read, unless it is to be skipped, and where there is nothing to report."""
    every = list(dict.fromkeys(expand(paths)))
    for folder in filter(os.path.isdir, every):
        refuse_outer(folder)
    shown = {path if path.endswith(".h5") else _log_of_runs(path, opened): path for path in every}
    names, logs, skipped = find_logs(shown), [], []
    for at, name in enumerate(names, 1):
        tell(f"reading log {at} of {len(names)}: {name}",
             long=os.path.exists(name) and os.path.getsize(name) > LONG_BYTES)
        try:
            log = opened.enter_context(read_log(name))
            log.path = shown.get(name, name)
            refuse_unsound(log, trials_only=log.evaluations.rows > MOST_EVALUATIONS)
            for text, trial in dict(zip(log.trials["plan"], log.trials["id"])).items():
                plan_at(log.path, trial, text)
            logs.append(log)
            skipped += _left_out_of(log)
        except LogError as error:
            if not skip_broken:
                raise LogError(f"{error}\n{CONTINUE}" if len(names) > 1 else str(error)) from error
            skipped.append(str(error))
    if not names:
        raise no_logs(paths)
    if not sum(log.trials.rows for log in logs):
        raise LogError(f"{', '.join(names)}: no trial that can be read, so there is nothing to report yet"
                       + "".join(f"\n{message}" for message in skipped))
    return logs, skipped


def _log_of_runs(path: str, opened: ExitStack) -> str:
    """The log, for as long as ``opened`` is, of a file or folder with runs of other programs; else the path itself.
    Raises LogError, naming the command that imports them, for tables and archives."""
    if not os.path.exists(path) or os.path.isdir(path) and find_logs([path]):
        return path
    from ..exchange.csv_tables import is_tables             # which reports of logs need not wait for
    from ..exchange.runs.formats import has_runs, is_archive
    from ..exchange.runs.into_log import import_runs
    if is_tables(path) or is_archive(path):
        raise LogError(f"{path}: is no log; 'hvdscale-log import {path} LOG.h5' makes one of it, to report on")
    if not has_runs(path):
        return path
    log = os.path.join(opened.enter_context(scratch_folder()), "runs.h5")
    import_runs([path], log)
    return log


def _left_out_of(log: Log) -> list[str]:
    note = log.attributes.get("skipped")
    if not isinstance(note, dict) or not isinstance(note.get("count"), int) or not isinstance(note.get("first"), list):
        return []
    said = note["first"][:MOST_LEFT_OUT]
    rest = [f"{note['count'] - len(said):,} more"] if note["count"] > len(said) else []
    return [f"{log.path}: left out when it was imported: {message}" for message in [*said, *rest]]


@np.errstate(over="ignore")         # what is beyond the largest float counts as inf
def make(paths: Iterable[Path], targets: Sequence[Target] = (), out: Path | None = None, *,
         asked: ReportRequest = ReportRequest(), formats: Sequence[str] = FORMATS, skip_broken: bool = False,
         every_figure: bool = False, whole: bool = False,
         echo: Callable[[str], object] = print, tell: Tell = quiet) -> Document:
    """Print the report of these logs or directories of logs, and write its files under ``out`` where it is given.

    targets      to hold the trials against; none: each against its own
    skip_broken  leave out the logs that cannot be read, and say so; else the first raises its LogError
    whole        print every table, and how to read them
    every_figure draw every figure, rather than the main ones of each workload
    asked        the options of the analysis, and what is to be shown of studies beside the targets
    echo         takes each piece of text for the screen as soon as it is known; tell: see screen.Progress
    """
    if out is not None:
        refuse_no_folder(out)
    with ExitStack() as opened:
        with uncollected():
            logs, skipped = open_logs(list(paths), skip_broken, opened, tell)
            document = document_of_logs(logs, targets, skipped, asked, tell)
        given = {"--format": tuple(formats) != FORMATS, "--figures": every_figure}
        if not out and any(given.values()):
            echo(GENERAL.say("unused", options=[name for name in given if given[name]], out=True))
        give_out(document, out, formats, echo, whole, every_figure, tell)
    gc.unfreeze()
    return document
