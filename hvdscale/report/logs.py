"""From open logs to the report of what they hold, against the targets that were given or that their trials had.

    document = document_of_logs(logs, [Target.parse("val/error<0.02")])
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..analysis.budgets import show_ends_alone
from ..analysis.contents import Contents
from ..analysis.defaults import LASTING
from ..analysis.metric_direction import better, check_direction
from ..analysis.report_data import Options, analyse, analyse_studies, refuse_unknown
from ..analysis.studies import Study, best_metric, is_measured
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..log.reader import Log
from ..log.schema import SMALLER
from ..target import Target
from .about import StudyRequest
from .chapters import targets_of_paper
from .document import Document, facts_of
from .opening import MOST_EVALUATIONS
from .output import MOST_RULED
from .pages import document_of
from .scaling.crossings import describe_crossing
from .studies import GENERAL


def document_of_logs(logs: Sequence[Log], targets: Sequence[Target] = (), skipped: Sequence[str] = (),
                     options: Options = Options(), asked: StudyRequest = StudyRequest(), tell: Tell = quiet
                     ) -> Document:
    """The report of logs that are open, and stay so while the document is used."""
    for target in targets:
        check_direction(target, logs)
    evaluations = sum(log.evaluations.rows for log in logs)
    tell(f"sorting {evaluations:,} evaluations by trial", long=evaluations > MOST_EVALUATIONS)
    facts, contents = [facts_of(log) for log in logs], Contents(logs)
    studies, branches, ruled = contents.studies, [], True
    if asked.paper or evaluations > MOST_EVALUATIONS:
        refuse_unknown(targets, {name for study in studies for name in study.evaluations.columns})
        ruled = sum(map(len, studies)) <= MOST_RULED
        alone = GENERAL.say("studies_alone", paper=bool(asked.paper), most=MOST_EVALUATIONS, unruled=not ruled,
                            lasting=options.crossing == LASTING)
        groups = analyse_studies(studies, partial(targets_held, targets, asked), options)
        notes: tuple[str, ...] = (alone,)
    else:
        tell(f"holding {counted(len(contents.read), 'trial')} against their targets")
        groups = analyse(contents.trials, targets, options)
        branches, notes = contents.branches, describe_crossing(options)
    found = document_of(groups, facts, skipped, options, studies, asked, tell, branches, (*notes, *contents.notes),
                        ruled)
    held = bool(targets) or any(page.target for _, pages in found.pages for page in pages)
    return found if held else replace(found, hint=_describe_no_target(studies, logs))


def targets_held(targets: Sequence[Target], asked: StudyRequest, studies: Sequence[Study]) -> tuple[Target | None, ...]:
    """The targets to hold a workload's studies against, of those given or else those in the plans of their first
    trials, or else that of the paper which is asked for: with a metric that they measured; without any None, but where
    targets were given, which nothing is shown without."""
    own = [(study.plan(0).get("measurement") or {}).get("target") for study in studies if len(study)]
    wanted = targets or tuple(dict.fromkeys(Target.parse(text) for text in own if text))
    if not wanted and asked.paper:
        wanted = targets_of_paper(asked.paper, studies[0].workload)
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
            best = np.concatenate([best_metric(study, column, way == SMALLER).value[study.feasible]
                                   for study in studies if column in study.evaluations.columns])
            known = best[np.isfinite(best)]
            return GENERAL.say("no_target", target=f"{column}{'<' if way == SMALLER else '>'}{np.median(known):.2g}"
                               ) if len(known) else ""
    return ""
