"""The published analysis' table of steps to a target (Shallue et al. 2019, batch_science/measurement_utils.py).

    steps_to_result(study, Target.parse("val/error<0.01")).steps

The steps to a result are those of the earliest measurement strictly beyond the goal, ties by trial id. Missing and NaN
measurements are ignored, and so are INFEASIBLE and INCOMPLETE trials. Ours differ in two ways. ``Study.searched``
includes pruned trials, up to their last step, and INFEASIBLE trials that met the target before they diverged are
counted. In the archive nothing is pruned, so there both agree. budgets.py has the best measurements under budgets.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..target import Target
from .studies import Outcomes, Study, outcomes


@dataclass(frozen=True, eq=False)
class StepsToResult:
    """The earliest measurement of a study's searched trials that meets a target; ties are the first trial's.

    reached  every trial against the target
    trial    index into the study; None: no trial met it
    steps    done at that measurement; inf: no trial met it
    before   steps at that trial's last evaluation before that measured the metric; NaN: unknown, or no trial met it
    value    the measurement; NaN: no trial met it
    beyond   the fewest steps at which a trial that did not meet it last measured it; NaN: all met, or none measured it
    """

    study: Study
    reached: Outcomes
    trial: int | None
    steps: float
    before: float
    value: float
    beyond: float

    @property
    def key(self) -> tuple[str, int] | None:
        """The log and the id of its trial."""
        return None if self.trial is None else self.study.key(self.trial)

    @property
    def trials(self) -> int:
        """The number of trials considered."""
        return int(self.study.searched.sum())

    @property
    def met(self) -> int:
        """The number of them that met it."""
        return int((self.study.searched & self.reached.met).sum())

    @property
    def pruned(self) -> int:
        """The number of them that the search stopped."""
        return int((self.study.searched & self.study.pruned).sum())

    @property
    def infeasible(self) -> int:
        """The number of the study's trials that diverged."""
        return int((self.study.infeasible & ~self.study.repeat).sum())

    @property
    def met_before_diverging(self) -> int:
        """The number of those that met the target before."""
        return int((self.study.infeasible & ~self.study.repeat & self.reached.met).sum())


def steps_to_result(study: Study, target: Target) -> StepsToResult:
    """The fewest steps of a study to the target; KeyError without its metric."""
    reached, rows = outcomes(study, target), np.flatnonzero(study.searched)
    met = rows[reached.met[rows]]
    if not len(met):
        beyond = float(np.fmin.reduce(reached.last_step[rows], initial=np.nan))
        return StepsToResult(study, reached, None, np.inf, np.nan, np.nan, beyond)
    trial = int(met[reached.steps[met].argmin()])
    value = study.evaluations.read(target.column)[reached.row[trial]]
    return StepsToResult(study, reached, trial, float(reached.steps[trial]), float(reached.before[trial]), float(value),
                         np.nan)
