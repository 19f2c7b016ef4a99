"""Whether a run learned, by the training loss of its steps: the mean over their first tenth and over their last."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..log.reader import Log
from .grouping import rows_of_each
from .step_breakdown import MOST_ROWS

LEAST_STEPS = 20        # with a finite loss, below which nothing is said


@dataclass(frozen=True)
class LossCourse:
    """The mean loss of the first and of the last ``steps`` steps of a run."""

    first: float
    last: float
    steps: int

    @property
    def fell(self) -> bool:
        return self.last < self.first


def course_of(loss: np.ndarray) -> LossCourse | None:
    """The course of a run's finite losses, shape (steps,), in order; None: too few."""
    loss = loss[np.isfinite(loss)]
    tenth = len(loss) // 10
    if len(loss) < LEAST_STEPS:
        return None
    return LossCourse(float(loss[:tenth].mean()), float(loss[-tenth:].mean()), tenth)


def read_courses(log: Log) -> dict[int, LossCourse]:
    """The course of every trial of a log, by id; without those of too few steps, {} for more than MOST_ROWS."""
    table = log.steps
    if not 0 < table.rows <= MOST_ROWS:
        return {}
    loss = table["loss"]
    found = {number: course_of(loss[rows]) for number, rows in rows_of_each(table["trial"]).items()}
    return {number: course for number, course in found.items() if course is not None}
