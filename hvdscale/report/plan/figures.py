"""Figures of a plan of workers: time to target against workers, and what each worker count costs for its time.

Marks: a filled disc was measured, an open one is interpolated, extrapolated or predicted, a diamond is at a batch
beyond those that met the target; one with an arrow has no upper end, and if it is grey it is a lower bound. # marks a
time of a host with fewer cores than workers.
"""
from __future__ import annotations

import math

from ...analysis.step_time import MEASURED
from ...formatting.numbers import counted, duration, unit_of
from ..columns import POLLUX
from ..drawing import BLUE, GREEN, MUTED, ORANGE, PURPLE, Figure, draw_arrow, explain_crowded, log2_axis, set_ticks
from .words import CROWDED, ROLES

LOOKS = {"fastest": (ORANGE, ">"), "knee": (GREEN, "*"), "cheapest": (PURPLE, "s")}
EAGER = "Eager, Zahorjan and Lazowska 1989"


def figures_of_plan(plan) -> tuple[Figure, ...]:
    """Its figures; none where there is one option only."""
    figures = [_time_figure(plan)] if len(plan.options) > 1 else []
    return (*figures, *([_cost_figure(plan)] if len(plan.options) > 1 else []))


def _time_figure(plan):
    options = plan.options
    size, name = (1, "") if plan.relative else unit_of(min(option.seconds.value for option in options))

    def draw(axes):
        log2_axis(axes, "x", [option.workers for option in options])
        values = [option.seconds.value / size for option in options]
        first = options[0]
        ends = [first.workers, options[-1].workers]
        axes.plot(ends, [values[0], values[0] * ends[0] / ends[1]], "--", color=MUTED, linewidth=1.2,
                  label="perfect scaling")
        known = [option for option in options if not (option.bounded or option.out_of_reach)]
        axes.plot([option.workers for option in known], [option.seconds.value / size for option in known], color=BLUE,
                  linewidth=1)
        for option in options:
            _bar(axes, option, lambda seconds, at=option.workers: (at, seconds / size))
            _disc(axes, option.workers, option.seconds.value / size, option)
            if plan.is_crowded(option):
                axes.annotate(CROWDED, (option.workers, option.seconds.value / size), xytext=(7, 4),
                              textcoords="offset points", fontsize=7.5)
        _explain(axes, plan)
        _roles(axes, plan, lambda option: (option.workers, option.seconds.value / size))
        if plan.request.deadline:
            axes.axhline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                         label=f"deadline, {duration(plan.request.deadline)}")
        _log_axis(axes, "y", values, _ends(options, "seconds", size))
        axes.set_xlabel("workers W")
        axes.set_ylabel("time to target, relative" if plan.relative else f"time to target ({name})")
    return Figure(
        "plan-time", f"Time to target by workers\n{_what(plan)}",
        f"Time to target against workers, both axes logarithmic, at the batch with the least time for each. Bars are "
        f"{plan.request.confidence:.0%} intervals. Filled: measured; open: by the model, or between batches; a "
        "diamond: at a batch beyond those that met the target; an arrow: no upper end, too many workers for the "
        "step-time laws; grey with an arrow: a lower bound, the low end of its interval.",
        "T = S t", POLLUX, _trials(options), draw)


def _cost_figure(plan):
    options = plan.options
    size, name = (1, "") if plan.relative else unit_of(min(option.seconds.value for option in options))

    def draw(axes):
        front = plan.front
        if len(front) > 1:
            axes.plot([option.seconds.value / size for option in front], [option.cost.value for option in front],
                      color=BLUE, linewidth=1, label="no other is better in both")
        for option in options:
            price = option.cost.value / option.seconds.value
            _bar(axes, option, lambda seconds, price=price: (seconds / size, price * seconds))
            _disc(axes, option.seconds.value / size, option.cost.value, option, aside=1)
            text = f"{option.workers:,}{CROWDED * plan.is_crowded(option)}"
            axes.annotate(text, (option.seconds.value / size, option.cost.value), xytext=(0, 9), ha="center",
                          textcoords="offset points", fontsize=7.5)
        _explain(axes, plan)
        _roles(axes, plan, lambda option: (option.seconds.value / size, option.cost.value))
        if plan.request.deadline:
            axes.axvline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                         label=f"deadline, {duration(plan.request.deadline)}")
        if plan.request.budget:
            axes.axhline(plan.request.budget, color=MUTED, linestyle="-.", linewidth=1.2,
                         label=f"budget, {plan.request.budget:g}")
        _log_axis(axes, "x", [option.seconds.value / size for option in options], _ends(options, "seconds", size))
        _log_axis(axes, "y", [option.cost.value for option in options], _ends(options, "cost"))
        axes.set_xlabel("time to target, relative" if plan.relative else f"time to target ({name})")
        axes.set_ylabel("cost, relative" if plan.relative else
                        "cost (node-hours)" if plan.request.price is None else "cost (unit of the price)")
    return Figure(
        "plan-cost", f"Cost against time\n{_what(plan)}",
        "What each worker count (the number beside its mark) costs, against its time to target. Bars are "
        f"{plan.request.confidence:.0%} intervals, slanted as cost goes with time; marks are those of the times. The "
        "knee has the least cost x time: past it a percent less time costs more than a percent.",
        "cost = nodes T price", EAGER, _trials(options), draw)


def _what(plan):
    if plan.relative:
        return "relative, predicted" if plan.noise else "relative"
    return str(plan.target or "steps as given")


def _disc(axes, x, y, option, aside=0):
    known = option.mark == MEASURED
    name = ("lower bound" if option.bounded else "no upper end" if option.out_of_reach else
            "measured" if known else "not measured")
    color = MUTED if option.bounded else BLUE
    marker, size, rest = ("D", 5, ", beyond batches run") if option.steps.beyond else ("o", 5.5, "")
    axes.plot([x], [y], marker, markersize=size, markeredgecolor=color, markeredgewidth=1.2, zorder=3,
              markerfacecolor=color if known else "white", label=name + rest)
    if option.bounded or option.out_of_reach:
        draw_arrow(axes, x, y, color, 1, aside)


def _explain(axes, plan):
    """What # means, where there is one."""
    if any(map(plan.is_crowded, plan.options)):
        explain_crowded(axes)


def _bar(axes, option, place):
    """The interval of its time, from ``place(T)`` to ``place(T)``."""
    value = option.seconds
    high = value.value if option.out_of_reach else value.high
    if value.low < high < math.inf:
        low = max(value.low, value.value / 1000)        # 0: met at the first evaluation
        axes.plot(*zip(place(low), place(high)), color=BLUE, linewidth=1.4, alpha=0.75)


def _ends(options, name, size=1):
    """Of the intervals of times or costs."""
    values = [getattr(option, name) for option in options]
    return [end / size for value in values for end in (value.low, value.high)]


def _roles(axes, plan, place):
    """A larger mark around the options to take; one that is best at several has a mark of each."""
    for at, role in enumerate(ROLES):
        option = getattr(plan, role)
        if option is not None and len(plan.eligible) > 1:
            color, marker = LOOKS[role]
            x, y = place(option)
            look = {"marker": marker, "markerfacecolor": "none", "markeredgecolor": color, "linestyle": ""}
            axes.plot([x], [y], markersize=12 + 3 * at, markeredgewidth=1.6, zorder=2, **look)
            axes.plot([], [], markersize=8, markeredgewidth=1.4, label=f"{role}: {counted(option.workers, 'worker')}",
                      **look)


def _log_axis(axes, which, values, ends=()):
    """A logarithmic axis that holds the values, and ends of intervals within a factor 4 of them."""
    low = min([*values, *(max(end, min(values) / 4) for end in ends if math.isfinite(end))])
    high = max([*values, *(min(end, max(values) * 4) for end in ends if math.isfinite(end))])
    margin = max(1.15, (high / low) ** 0.07)
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low / margin, high * margin)
    axis = getattr(axes, f"{which}axis")
    set_ticks(axis, _round_ticks(low / margin, high * margin))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _round_ticks(low, high):
    """Round numbers between two others, at most nine or so."""
    if high < 4 * low:
        from matplotlib.ticker import MaxNLocator
        return [value for value in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= value <= high]
    digits = (1,) if high > 1000 * low else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0 ** power for power in powers for digit in digits]
    return [value for value in found if low <= value <= high]


def _trials(options):
    return tuple(dict.fromkeys(key for option in options for key in option.trials))
