"""Averages of a run's weights: their keys settled, and the names of what they measure."""
from __future__ import annotations

from collections.abc import Mapping

from ..errors import PlanError
from .settings import Settings

AVERAGED = "averaged_"      # before the name of a metric: that of the averaged weights


def with_averaged(metrics: Mapping[str, str], average: str | None) -> dict[str, str]:
    """The metrics, "min" or "max" by name, with those of the averaged weights if there is an average."""
    found = dict(metrics)
    if average not in (None, "none"):
        found.update({f"{AVERAGED}{name}": way for name, way in metrics.items()})
    return found


def settle_average(settings: Settings, start: int | None, budget_steps: int) -> dict:
    """The average's fields of the plan, by name; None each without an average.

    start  the step that average_start_steps or average_start_epochs names; None: half of the budget

    Raises PlanError where a half-life or a start is missing or cannot hold.
    """
    if settings.average == "none":
        return dict(average=None, average_half_life=None, average_start=None)
    if settings.average == "ema":
        if settings.average_half_life is None:
            raise PlanError("average = ema needs average_half_life, in examples: how far back the weights count")
        return dict(average="ema", average_half_life=settings.average_half_life, average_start=None)
    if start is None and not budget_steps:
        raise PlanError("average = tail needs average_start_steps or average_start_epochs: a budget in seconds has no "
                        "half in steps")
    start = budget_steps // 2 if start is None else start
    if 0 < budget_steps <= start:
        raise PlanError(f"average = tail starts at step {start}, and the budget is {budget_steps} steps; give an "
                        "earlier average_start_steps or average_start_epochs")
    return dict(average="tail", average_half_life=None, average_start=start)
