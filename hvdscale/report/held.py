"""Which targets studies are held against, of those asked for and their own."""
from __future__ import annotations

from collections.abc import Sequence

from ..analysis.budgets import show_ends_alone
from ..analysis.studies import Study, is_measured
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
