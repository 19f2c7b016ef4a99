"""Which way a metric gets better, its best value, and whether a target asks for the right way."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import UsageError
from ..log import directions
from ..log.reader import Log
from ..log.schema import LARGER, SMALLER
from ..target import Target
from .studies import Study

OTHER_WAY = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def better(column: str, sources: Sequence[Log | Study]) -> str:
    """SMALLER or LARGER, as logs or studies declare for the column ``split/metric``, else by its name; "": unknown."""
    specs = [source.evaluations.specs.get(column) for source in sources]
    declared = {spec.better for spec in specs if spec} - {""}
    if len(declared) == 1:
        return declared.pop()
    return "" if declared else directions.better(column)


def best_value(values: np.ndarray, minimizes: bool) -> float:
    """The best of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    best = finite.min(initial=np.inf) if minimizes else finite.max(initial=-np.inf)
    return float(best) if len(finite) else np.nan


def check_direction(target: Target, logs: Sequence[Log]) -> None:
    """Raise UsageError for a target that a metric meets by getting worse; unknown metrics pass."""
    way = better(target.column, logs)
    if way and target.minimizes != (way == SMALLER):
        meant = replace(target, comparison=OTHER_WAY[target.comparison])
        raise UsageError(f"target {str(target)!r}: a {way} {target.column} is better, but this target asks for a "
                         f"{LARGER if way == SMALLER else SMALLER} one; write {str(meant)!r}")
