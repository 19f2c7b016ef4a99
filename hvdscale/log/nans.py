"""Metrics that were measured and came out as NaN, as distinct from those that were not measured."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..target import Target


def count_nans(metrics: Mapping[str, np.ndarray], measurement: Mapping[str, Any]) -> dict[str, int]:
    """At how many of a trial's evaluations a metric was NaN, by ``split/metric``; those that never were are left out.

    metrics      ``split/metric`` -> the trial's column of /evaluations, NaN where a split was not evaluated, too
    measurement  that part of its plan: eval_splits says which splits each evaluation measures. A test split without
                 examples shows as one without a finite value; a target is never measured on such a one
    """
    named = measurement.get("eval_splits")
    if not named:
        return {}
    target = measurement.get("target")
    known = {"train", "val", *([Target.parse(target).split] if target else [])}
    known |= {_split(name) for name, values in metrics.items() if np.isfinite(values).any()}
    evaluated = known.intersection(named)
    counts = {name: int(np.isnan(values).sum()) for name, values in metrics.items() if _split(name) in evaluated}
    return {name: count for name, count in counts.items() if count}


def _split(name: str) -> str:
    return name.partition("/")[0]
