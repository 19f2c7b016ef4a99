"""The plateau decay, settled: which metric it follows, and when that counts as no longer improving.

torch's ReduceLROnPlateau, with threshold_mode = rel and patience in evaluations. ``schedule.reductions`` has its steps.
"""
from __future__ import annotations

from collections.abc import Mapping

from ..errors import PlanError
from ..target import SPLITS, Target
from .schedule import PLATEAU
from .settings import Settings


def settle_plateau(settings: Settings, metrics: Mapping[str, str], target: Target | None, eval_every: int
                   ) -> dict | None:
    """The plan's ``plateau``: metric (``split/name``), better (min or max), patience, threshold and cooldown.

    metrics     "min" or "max" by name
    eval_every  steps between evaluations; 0: none

    None for another decay. Raises PlanError where there is nothing to follow, or the rate would not fall.
    """
    if settings.decay != PLATEAU:
        return None
    if not eval_every:
        raise PlanError("decay = plateau follows an evaluated metric, and eval_every = 0 evaluates none; give "
                        "an eval_every, or another decay")
    column = settings.decay_metric or (target.column if target else None)
    split, _, name = (column or "").partition("/")
    if split not in SPLITS or name not in metrics:
        given = f"decay_metric = {column!r} is none of its metrics" if column else "there is no target to take it from"
        raise PlanError(f"decay = plateau follows an evaluated metric, and {given}; give decay_metric, "
                        f"{' or '.join(SPLITS)}, / and one of {', '.join(metrics)}, such as val/{next(iter(metrics))}")
    if settings.decay_factor >= 1:
        raise PlanError(f"decay_factor = {settings.decay_factor:g} does not reduce the rate on a plateau; give one "
                        "below 1, such as 0.1")
    return {"metric": column, "better": metrics[name], "patience": settings.decay_patience,
            "threshold": settings.decay_threshold, "cooldown": settings.decay_cooldown}
