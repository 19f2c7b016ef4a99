"""Figures of a plan of workers: time to target and speedup against workers, and what each count costs for its time.

Marks: a filled disc was measured, an open one was not, a diamond is at a batch beyond those that met the target.
# marks a time of a host with too few free cores.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...analysis.step_time import MEASURED
from ...analysis.worker_plan import Option, WorkerPlan
from ...formatting.numbers import counted, duration, percent, unit_of
from ..drawing import (BLUE, CROWDED_COUNT, GREEN, MUTED, ORANGE, PURPLE, HOVER, Axes, Figure, Look, draw_line,
                       ends_of, explain, label_axes, log2_axis, power_ticks)
from ..texts import PLAN
from .words import CROWDED, ROLES

LOOKS = {"fastest": (ORANGE, ">"), "knee": (GREEN, "*"), "cheapest": (PURPLE, "s")}
Place = Callable[[Option, float], tuple[float, float]]      # where an option lies, if its value is that one
EAGER = "Eager, Zahorjan and Lazowska 1989"


def figures_of_plan(plan: WorkerPlan) -> tuple[Figure, ...]:
    if len(plan.options) < 2:
        return ()
    trials = tuple(dict.fromkeys(key for option in plan.options for key in option.trials))
    what = str(plan.target or "steps as given")
    if plan.relative:
        what = "relative, predicted" if plan.noise else "relative"
    return tuple(PLAN.figure(name, partial(draw, plan=plan), trials, what=what, confidence=plan.request.confidence)
                 for name, draw in (
                     ("plan-time", _draw_time), ("plan-speedup", _draw_speedup), ("plan-cost", _draw_cost)))


def _note(axes: Axes, text: str, place: tuple[float, float], aside: tuple[float, float], **look: Any) -> None:
    axes.annotate(text, place, xytext=aside, textcoords="offset points", fontsize=7.5, **look)


def _draw_speedup(axes: Axes, plan: WorkerPlan) -> None:
    options, first = plan.options, plan.options[0].workers
    ideal = [(option.workers, option.workers / first) for option in options]
    log2_axis(axes, "x", [option.workers for option in options])
    log2_axis(axes, "y", [*(ratio for _, ratio in ideal), *(option.speedup.value for option in options)],
              _ends(options, "speedup"))
    draw_line(axes, ideal, MUTED, "--", 1.2, label="perfect scaling")
    draw_line(axes, ((option.workers, option.speedup.value) for option in options), BLUE)
    _draw_options(axes, plan, lambda option, speedup: (option.workers, speedup), of="speedup")
    for option in options:
        efficiency = percent(option.speedup.value * first / option.workers)
        _note(axes, f"{efficiency}{CROWDED * plan.is_crowded(option)}", (option.workers, option.speedup.value),
              (9, -11))
    label_axes(axes, "workers W", f"speedup over {counted(first, 'worker')}")


def _draw_time(axes: Axes, plan: WorkerPlan) -> None:
    options = plan.options
    size, label = _time_unit(plan)

    def place(option: Option, seconds: float) -> tuple[float, float]:
        return option.workers, seconds / size
    log2_axis(axes, "x", [option.workers for option in options])
    values = [option.seconds.value / size for option in options]
    ends = [options[0].workers, options[-1].workers]
    draw_line(axes, zip(ends, [values[0], values[0] * ends[0] / ends[1]]), MUTED, "--", 1.2, label="perfect scaling")
    axes.fill_between([option.workers for option in options],
                      [max(option.seconds.low, option.seconds.value / 1000) / size for option in options],
                      [min(option.seconds.high, option.seconds.value * 1000) / size for option in options],
                      color=BLUE, alpha=0.18, linewidth=0, label=f"{plan.request.confidence:.0%} interval")
    many = plan.decision.fastest_workers[1]         # where the fastest may lie among counts that were not run
    if many > plan.most_measured > 0:
        axes.axvspan(plan.most_measured * 2 ** 0.5, many * 2 ** 0.25, color=ORANGE, alpha=0.10, linewidth=0,
                     label="may be faster, not run to the target")
    draw_line(axes, (place(option, option.seconds.value) for option in options), BLUE)
    _draw_options(axes, plan, place, bars=False)
    for option in filter(plan.is_crowded, options):
        _note(axes, CROWDED, place(option, option.seconds.value), (7, 4))
    if plan.request.deadline:
        axes.axhline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                     label=f"deadline, {duration(plan.request.deadline)}")
    log2_axis(axes, "y", values, _ends(options, "seconds", size))
    label_axes(axes, "workers W", label)


def _draw_cost(axes: Axes, plan: WorkerPlan) -> None:
    options = plan.options
    size, label = _time_unit(plan)

    def place(option: Option, seconds: float) -> tuple[float, float]:
        return seconds / size, option.cost.value / option.seconds.value * seconds
    if len(plan.front) > 1:
        draw_line(axes, ((option.seconds.value / size, option.cost.value) for option in plan.front), BLUE,
                  label="no other is better in both")
    _draw_options(axes, plan, place)
    for option in options:
        _note(axes, f"{option.workers:,}{CROWDED * plan.is_crowded(option)}",
              (option.seconds.value / size, option.cost.value), (0, 9), ha="center")
    if plan.request.deadline:
        axes.axvline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                     label=f"deadline, {duration(plan.request.deadline)}")
    if plan.request.budget:
        axes.axhline(plan.request.budget, color=MUTED, linestyle="-.", linewidth=1.2,
                     label=f"budget, {plan.request.budget:g}")
    log2_axis(axes, "x", [option.seconds.value / size for option in options], _ends(options, "seconds", size))
    power_ticks(axes.xaxis, *axes.get_xlim())
    log2_axis(axes, "y", [option.cost.value for option in options], _ends(options, "cost"))
    label_axes(axes, label, "cost, relative" if plan.relative else
               "cost (node-hours)" if plan.request.price is None else "cost (unit of the price)")


def _time_unit(plan: WorkerPlan) -> tuple[float, str]:
    size, name = unit_of(min(option.seconds.value for option in plan.options))
    return (1, "time to target, relative") if plan.relative else (size, f"time to target ({name})")


def _draw_options(axes: Axes, plan: WorkerPlan, place: Place, of: str = "seconds", bars: bool = True) -> None:
    """A mark and the interval of this value for each, and larger marks around those to take."""
    for option in plan.options:
        value, known = getattr(option, of), option.mark == MEASURED
        low, (x, y) = max(value.low, value.value / 1000), place(option, value.value)    # 0: met at the first evaluation
        if bars and low < value.high < math.inf:
            (left, bottom), (right, top) = place(option, low), place(option, value.high)
            axes.plot([left, right], [bottom, top], color=BLUE, linewidth=1.4, alpha=0.75)
        marker, size, rest = ("D", 5, ", beyond batches run") if option.steps.beyond else ("o", 5.5, "")
        axes.plot([x], [y], marker, markersize=size, markeredgecolor=BLUE, markeredgewidth=1.2, zorder=3,
                  gid=f"{HOVER}{counted(option.workers, 'worker')}: {y:,.3g}",
                  markerfacecolor=BLUE if known else "white", label=("measured" if known else "not measured") + rest)
    if any(map(plan.is_crowded, plan.options)):
        explain(axes, CROWDED_COUNT)
    for at, role in enumerate(ROLES if len(plan.options) > 1 else ()):      # one that is best at several has several
        option = getattr(plan, role)
        if option is not None:
            color, marker = LOOKS[role]
            x, y = place(option, getattr(option, of).value)
            look: Look = {"marker": marker, "markerfacecolor": "none", "markeredgecolor": color, "linestyle": ""}
            axes.plot([x], [y], markersize=12 + 3 * at, markeredgewidth=1.6, zorder=2, **look)
            explain(axes, f"{role}: {counted(option.workers, 'worker')}", markersize=8, markeredgewidth=1.4, **look)


def _ends(options: Sequence[Option], name: str, size: float = 1) -> list[float]:
    return [end / size for end in ends_of(getattr(option, name) for option in options)]
