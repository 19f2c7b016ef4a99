"""Which targets studies are held against, of those asked for and their own."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.budgets import show_ends_alone
from ..analysis.metric_direction import better
from ..analysis.studies import Study, best_metric, is_measured
from ..log.reader import Log
from ..log.schema import SMALLER
from ..target import Target
from .about import StudyRequest
from .chapters import targets_of_paper


def targets_held(targets: Sequence[Target], asked: StudyRequest, studies: Sequence[Study]) -> tuple[Target | None, ...]:
    """The targets to hold a workload's studies against, of those given or else their own: with a metric that they
    measured; without any None, but where targets were given, which nothing is shown without."""
    ends_alone = show_ends_alone(studies)
    held = tuple(target for target in targets or own_targets(studies, asked)
                 if is_measured(studies, target.column) and not ends_alone)
    return held if held or targets and not ends_alone else (None,)


def own_targets(studies: Sequence[Study], asked: StudyRequest) -> tuple[Target, ...]:
    """The targets in the plans of the first trials of each study; without any, that of the paper which is asked for."""
    found = [(study.plan(0).get("measurement") or {}).get("target") for study in studies if len(study)]
    own = tuple(dict.fromkeys(Target.parse(text) for text in found if text))
    if own or not asked.paper:
        return own
    return targets_of_paper(asked.paper, studies[0].workload)


def describe_no_target(studies: Sequence[Study], logs: Sequence[Log]) -> str:
    """How to hold trials without a target against one that about half of them meet, of validation if it was measured;
    "" where none measured a metric twice whose better way is known."""
    studies = [study for study in studies if (study.evaluations.counts > 1).any()]
    columns = {name for study in studies for name in study.evaluations.columns if "/" in name}
    for column in sorted(columns, key=lambda name: (not name.startswith("val/"), name)):
        way = better(column, logs)
        if way and is_measured(studies, column):
            best = np.concatenate([best_metric(study, column, way == SMALLER).value[study.feasible]
                                   for study in studies if column in study.evaluations.columns])
            value = np.median(best[np.isfinite(best)]) if np.isfinite(best).any() else np.nan
            return (f"The logs have no target; --target '{column}{'<' if way == SMALLER else '>'}{value:.2g}' holds "
                    "their trials against one.") * bool(value == value)
    return ""
