"""Averages of a run's weights: their keys settled, and the names of what they measure."""
from __future__ import annotations

from collections.abc import Mapping

from ..errors import PlanError
from .settings import Settings
from .shards import Stream

AVERAGED = "averaged_"      # before the name of a metric: that of the averaged weights


def with_averaged(metrics: Mapping[str, str], average: str | None) -> dict[str, str]:
    """The metrics, "min" or "max" by name, with those of the averaged weights if there is an average."""
    found = dict(metrics)
    if average not in (None, "none"):
        found.update({f"{AVERAGED}{name}": way for name, way in metrics.items()})
    return found


def settle_average(settings: Settings, stream: Stream, budget_steps: int) -> dict:
    half_life, start = settings.average_half_life, settings.average_start
    if settings.average == "none":
        return dict(average=None, average_half_life=None, average_start=None)
    if settings.average == "ema":
        if half_life is None:
            raise PlanError("average = ema needs average_half_life, such as '1e5 examples': how far back the weights "
                            "count")
        return dict(average="ema", average_half_life=half_life.in_examples(stream.examples), average_start=None)
    if start is None and not budget_steps:
        raise PlanError("average = tail needs average_start: a budget in seconds has no half in steps")
    first = budget_steps // 2 if start is None else start.in_steps(stream)
    if 0 < budget_steps <= first:
        raise PlanError(f"average = tail starts at step {first}, and the budget is {budget_steps} steps; give an "
                        "earlier average_start")
    return dict(average="tail", average_half_life=None, average_start=first)
