"""Tables and figures of a plan of workers: its options, and the model of the step time; time to target and speedup
against workers, and what each count costs for its time.

Marks: a filled disc was measured, an open one was not, a diamond is at a batch beyond those that met the target.
# marks a time of a host with too few free cores.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...analysis.growing_batch import GrowingOption, GrowingPlan
from ...analysis.intervals import Estimate
from ...analysis.step_time import (DETERMINED, EXTRAPOLATED, INTERPOLATED, MEASURED, PAUSES, POWERS, POWER_DETERMINED)
from ...analysis.studies import group_by
from ...analysis.worker_plan import Option, WorkerPlan
from ...formatting.numbers import counted, duration, list_first, number, percent, ratio, span, unit_of, whole
from ..drawing import (BLUE, CROWDED_COUNT, GREEN, MUTED, ORANGE, PURPLE, HOVER, Axes, Figure, Look, draw_line,
                       ends_of, explain, label_axes, log2_axis, power_ticks)
from ..table import Cell, Column, Table, Write, bare_cell, cell_of
from ..texts import PLAN
from .words import BEYOND, CROWDED, ROLES, chance, describe_price, title

COLUMNS = """workers nodes global_batch replicas sync_every local_batch accumulation steps_to_target step_ms speedup
    statistical_efficiency system_efficiency efficiency seconds_to_target cost sooner campaign_hours energy
    extrapolated_share steps_known step_time_known pareto known chance_within"""
OF_ALL = ("nodes", "local_batch", "accumulation", "speedup", "extrapolated_share", "steps_known", "step_time_known",
          "pareto")             # where all columns are asked for
MOST_NAMED = 4          # worker counts at which a batch cannot grow
# of a constant batch over the growing one, and their words
RATIOS = {"steps": "steps", "examples": "examples", "seconds": "time and cost"}
LOOKS = {"fastest": (ORANGE, ">"), "knee": (GREEN, "*"), "cheapest": (PURPLE, "s")}
Place = Callable[[Option, float], tuple[float, float]]      # where an option lies, if its value is that one
SHORT = {"fastest": "fast", "cheapest": "cheap", INTERPOLATED: "interpol.", EXTRAPOLATED: "extrapol."}


def plan_table(plan: WorkerPlan, all_columns: bool = False, synced: bool = False) -> Table:
    """The options, one a row, with the columns to choose by, or all of them; ``synced``: those of each way to
    synchronize replicas at the worker count that is the fastest."""
    request, name = plan.request, "plan" if all_columns else "plan-summary"
    energy = any(plan.watts(option) > 0 for option in plan.options) and not plan.relative
    shown = {**dict.fromkeys(OF_ALL, all_columns), **dict.fromkeys(("replicas", "sync_every"), len(plan.curves) > 1),
             "sooner": synced, "campaign_hours": request.runs > 1 and not plan.relative, "energy": energy,
             "known": not all_columns, "chance_within": request.deadline or request.budget}
    notes = () if all_columns else (
        describe_price(request), PLAN.say_if("energy", energy and request.power is None),
        PLAN.say_if("beyond", any(one.beyond for one in plan.options), mark=BEYOND, met=bool(plan.curve.met)),
        PLAN.say_if("relative", plan.relative, workers=plan.options[0].workers, noise=bool(plan.noise)),
        PLAN.say_if("intervals", any(one.seconds.high > one.seconds.low for one in plan.options),
                    confidence=request.confidence),
        PLAN.say_if("batches", not request.global_batch and not request.local_batch,
                    most=request.max_local_batch or plan.times.timings.most_local or None),
        PLAN.say("decision"))
    return PLAN.table(
        "plan-local-steps" if synced else name, [
            (option, _cells(plan, option)) for option in (plan.synced if synced else plan.options)],
        {key: partial(lambda key, row: row[1][key], key) for key in COLUMNS.split() if shown.get(key, True)},
        lambda row: row[0].trials, notes=notes, payer="node" if request.per_node else "worker",
        what=plan.target or title(plan).split(": ")[1], runs=request.runs if request.runs > 1 else None,
        power=None if request.power is None else number(request.power),
        watts=number(plan.times.timings.measured.watts) if request.power is None else None)


def _cells(plan: WorkerPlan, option: Option) -> dict[str, Any]:
    statistical, system = option.statistical_efficiency, option.system_efficiency
    passes, product = option.passes, statistical.value * system.value
    size = 1 if plan.relative else unit_of(option.seconds.value)[0]
    hours = option.seconds.scaled(option.nodes * plan.request.runs / 3600)
    steps, ends = option.steps.value, option.steps.interval(plan.request.confidence)
    write, beyond = ratio if plan.relative else whole, BEYOND * (option.beyond and option is not plan.options[0])
    each = f"{option.local_batch:,} x {passes}" if passes > 1 else f"{option.local_batch:,}"
    roles = [SHORT.get(name, name) for name in ROLES if getattr(plan, name) is option] if len(plan.options) > 1 else []
    share = plan.chance_within(option)
    return {
        "workers": Cell(f"{option.workers:,}{CROWDED * option.crowded}", option.workers,
                        below="best" if len(roles) == len(ROLES) else "+".join(roles)),
        "nodes": option.nodes, "local_batch": Cell(each, option.local_batch), "accumulation": Cell(f"{passes}", passes),
        "global_batch": cell_of(option.global_batch, each if passes > 1 else f"{each} each"),
        "replicas": option.sync[0], "sync_every": option.sync[1], "step_ms": 1000 * option.step_time.value,
        "steps_to_target": Cell(f"{BEYOND * option.beyond}{write(steps)}", steps, *ends,
                                span(*ends, write) if ends[0] < ends[1] else ""),
        "statistical_efficiency": bare_cell(statistical, lambda value: f"{beyond}{ratio(value)}"),
        "system_efficiency": bare_cell(system, ratio), "efficiency": Cell(ratio(product), product),
        "seconds_to_target": value_cell(option.seconds, number if plan.relative else duration, size),
        "cost": replace(value_cell(option.cost), below=counted(option.nodes, "node") if plan.request.per_node else ""),
        "campaign_hours": value_cell(hours),
        "energy": value_cell(hours.scaled(plan.watts(option) / option.nodes / 1000)),
        "speedup": bare_cell(option.speedup, ratio), "sooner": value_cell(option.speedup, ratio),
        "extrapolated_share": Cell(percent(option.extrapolated_share), option.extrapolated_share),
        "known": Cell(SHORT.get(option.mark, option.mark),
                      below=percent(option.extrapolated_share) if 0 < option.extrapolated_share < 1 else ""),
        "steps_known": option.steps.mark, "step_time_known": option.step_time.mark, "pareto": option in plan.front,
        "chance_within": Cell(chance(plan, share).replace("over ", "> ").replace("under ", "< "), share)}


def value_cell(value: Estimate, write: Write = number, size: float = 1) -> Cell:
    """The ends of an interval of times are over ``size``: seconds of the unit that ``duration`` takes."""
    ends = span(value.low / size, value.high / size, number if write is duration else write)
    return Cell(write(value.value), value.value, value.low, value.high, ends if value.low < value.high else "")


def model_table(plan: WorkerPlan) -> Table:
    model, confidence = plan.times.model, plan.request.confidence
    notes = PLAN.say("model", apart=model.apart), PLAN.say("determined", factor=DETERMINED, power=POWER_DETERMINED)

    def value(name: str) -> Cell:
        factor = 1 if name in POWERS + PAUSES else 1000         # seconds in ms
        middle, low, high = (factor * one for one in model.interval(name, confidence))
        return Cell(number(middle) if math.isfinite(middle) else "full", middle, low, high,
                    "" if name in model.given else span(low, high))
    return PLAN.table("step-model", model.names, notes=notes, cells={
        "parameter": lambda name: PLAN.words("parameter")[name].split(": ")[1],
        "symbol": lambda name: PLAN.words("parameter")[name].split(": ")[0], "value": value,
        "told": lambda name: "given" if name in model.given else model.is_determined(name, confidence)})


def growing_table(plan: GrowingPlan) -> Table:
    left_out = [f"Not at W = {list_first([workers for workers, _ in own], MOST_NAMED)}: {why}."
                for why, own in group_by(plan.left_out, lambda one: one[1]).items()]

    def over(name: str, batch: int, option: GrowingOption) -> Cell:
        beside = next((one for one in option.beside if one.global_batch == batch), None)
        return Cell("unknown", math.nan) if beside is None else value_cell(getattr(beside, f"{name}_ratio"), ratio)
    return PLAN.table("growing-batch", plan.options, {
        Column("workers", "workers"): lambda one: one.workers,
        PLAN.column("growing_steps", "steps_to_target"): lambda one: value_cell(one.steps, whole),
        PLAN.column("growing_examples", "examples_to_target"): lambda one: value_cell(one.examples),
        PLAN.column("growing_seconds", "seconds_to_target"): lambda one: bare_cell(one.seconds, duration),
        PLAN.column("cost"): lambda one: value_cell(one.cost),
        **{PLAN.column("growing_ratio", f"{words.split()[0]}_ratio_{batch}", what=words, batch=batch,
                       spare=name != "seconds"): partial(over, name, batch)
           for batch in sorted({plan.batches.smallest, plan.batches.largest}) for name, words in RATIOS.items()},
        PLAN.column("growing_known", "known"): lambda one: one.mark},
        lambda one: plan.trials, target=plan.target, notes=(
            PLAN.say("growing_ratios", batches=str(plan.batches)),
            PLAN.say("growing_steps_from", predicted=plan.predicted), describe_price(plan.request), *left_out))


def phases_table(plan: GrowingPlan) -> Table | None:
    """The workers of each batch, where they change; None where no change pays."""
    found = plan.phases_at_knee
    return None if found is None or not found.changes else PLAN.table("worker-phases", found.phases, {
        PLAN.column("phase_batch", "global_batch"): lambda one: one.global_batch,
        Column("workers", "workers"): lambda one: one.workers, Column("nodes", "nodes"): lambda one: one.nodes,
        PLAN.column("phase_start", "start"): lambda one: one.start,
        PLAN.column("growing_steps", "steps"): lambda one: value_cell(one.steps, whole),
        PLAN.column("phase_seconds", "seconds"): lambda one: bare_cell(one.seconds, duration),
        Column("known", "known"): lambda one: one.mark},
        lambda one: plan.trials, notes=(PLAN.say("phases_by_knee"),), target=plan.target)


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
    workers, speedups = ([getattr(option, name) for option in plan.options] for name in ("workers", "speedup"))
    ideal, values = [(worker, worker / workers[0]) for worker in workers], [one.value for one in speedups]
    log2_axis(axes, "x", workers)
    log2_axis(axes, "y", [*(ratio for _, ratio in ideal), *values], ends_of(speedups))
    draw_line(axes, ideal, MUTED, "--", 1.2, label="perfect scaling")
    draw_line(axes, zip(workers, values), BLUE)
    _draw_options(axes, plan, lambda option, speedup: (option.workers, speedup), of="speedup")
    for option in plan.options:
        efficiency = percent(option.speedup.value * workers[0] / option.workers)
        _note(axes, f"{efficiency}{CROWDED * option.crowded}", (option.workers, option.speedup.value), (9, -11))
    label_axes(axes, "workers W", f"speedup over {counted(workers[0], 'worker')}")


def _draw_time(axes: Axes, plan: WorkerPlan) -> None:
    size, label = _time_unit(plan)
    workers, seconds = [option.workers for option in plan.options], [option.seconds for option in plan.options]
    value, low, high = np.array([(second.value, second.low, second.high) for second in seconds]).T
    log2_axis(axes, "x", workers)
    draw_line(axes, [(one, value[0] / size * workers[0] / one) for one in (workers[0], workers[-1])], MUTED, "--", 1.2,
              label="perfect scaling")
    axes.fill_between(workers, np.maximum(low, value / 1000) / size, np.minimum(high, value * 1000) / size, color=BLUE,
                      alpha=0.18, linewidth=0, label=f"{plan.request.confidence:.0%} interval")
    many = plan.decision.fastest_workers[1]         # where the fastest may lie among counts that were not run
    if many > plan.most_measured > 0:
        axes.axvspan(plan.most_measured * 2 ** 0.5, many * 2 ** 0.25, color=ORANGE, alpha=0.10, linewidth=0,
                     label="may be faster, not seen to meet the target")
    draw_line(axes, zip(workers, value / size), BLUE)
    _draw_options(axes, plan, lambda option, seconds: (option.workers, seconds / size), bars=False)
    for option in plan.options:
        if option.crowded:
            _note(axes, CROWDED, (option.workers, option.seconds.value / size), (7, 4))
    if plan.request.deadline:
        axes.axhline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                     label=f"deadline, {duration(plan.request.deadline)}")
    log2_axis(axes, "y", value / size, np.append(low, high) / size)
    label_axes(axes, "workers W", label)


def _draw_cost(axes: Axes, plan: WorkerPlan) -> None:
    size, label = _time_unit(plan)
    if len(plan.front) > 1:
        draw_line(axes, ((option.seconds.value / size, option.cost.value) for option in plan.front), BLUE,
                  label="no other is better in both")
    _draw_options(axes, plan, lambda option, seconds: (
        seconds / size, option.cost.value / option.seconds.value * seconds))
    for option in plan.options:
        _note(axes, f"{option.workers:,}{CROWDED * option.crowded}",
              (option.seconds.value / size, option.cost.value), (0, 9), ha="center")
    if plan.request.deadline:
        axes.axvline(plan.request.deadline / size, color=MUTED, linestyle=":", linewidth=1.4,
                     label=f"deadline, {duration(plan.request.deadline)}")
    if plan.request.budget:
        axes.axhline(plan.request.budget, color=MUTED, linestyle="-.", linewidth=1.2,
                     label=f"budget, {plan.request.budget:g}")
    seconds, costs = [option.seconds for option in plan.options], [option.cost for option in plan.options]
    log2_axis(axes, "x", [second.value / size for second in seconds], [end / size for end in ends_of(seconds)])
    power_ticks(axes.xaxis, *axes.get_xlim())
    log2_axis(axes, "y", [cost.value for cost in costs], ends_of(costs))
    unit = "node-hours" if plan.request.price is None else "unit of the price"
    label_axes(axes, label, "cost, relative" if plan.relative else f"cost ({unit})")


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
        marker, size, rest = ("D", 5, ", beyond batches run") if option.beyond else ("o", 5.5, "")
        axes.plot([x], [y], marker, markersize=size, markeredgecolor=BLUE, markeredgewidth=1.2, zorder=3,
                  gid=f"{HOVER}{counted(option.workers, 'worker')}: {y:,.3g}",
                  markerfacecolor=BLUE if known else "white", label=("measured" if known else "not measured") + rest)
    if any(option.crowded for option in plan.options):
        explain(axes, CROWDED_COUNT)
    for at, role in enumerate(ROLES if len(plan.options) > 1 else ()):      # one that is best at several has several
        if (option := getattr(plan, role)) is not None:
            color, marker = LOOKS[role]
            x, y = place(option, getattr(option, of).value)
            look: Look = {"marker": marker, "markerfacecolor": "none", "markeredgecolor": color, "linestyle": ""}
            axes.plot([x], [y], markersize=12 + 3 * at, markeredgewidth=1.6, zorder=2, **look)
            explain(axes, f"{role}: {counted(option.workers, 'worker')}", markersize=8, markeredgewidth=1.4, **look)
