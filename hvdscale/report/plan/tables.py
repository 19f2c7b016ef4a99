"""The tables of a plan of workers: its options, and the model of the step time."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ...analysis.intervals import Estimate
from ...analysis.step_time import DETERMINED, EXTRAPOLATED, INTERPOLATED, PAUSES, POWERS, POWER_DETERMINED
from ...analysis.worker_plan import Option, WorkerPlan
from ...formatting.numbers import counted, duration, number, percent, ratio, span, unit_of, whole
from ..table import Cell, Column, Table, Write, bare_cell, cell_of
from .words import BEYOND, CROWDED, ROLES, chance, describe_price, title
from ..texts import PLAN

SHORT = {"fastest": "fast", "cheapest": "cheap", INTERPOLATED: "interpol.", EXTRAPOLATED: "extrapol."}
MODEL_WORDS = {
    "fixed": ("a pass of few examples", "a"), "example": ("each example of a full pass", "b"),
    "hop": ("a hop within a node", "h"), "volume": ("the gradient's bytes within a node", "v"),
    "node_hop": ("a hop between nodes", "h'"), "node_volume": ("the gradient's bytes between nodes", "v'"),
    "overlap": ("overlap of pass and allreduce", "p"), "sharpness": ("how sharply a pass fills the device", "q"),
    "pause": ("a worker's pause, in passes", "l"), "pausing": ("share of steps with a pause", "r"),
    "outer": ("a replica's part in a synchronization", "o")}


def plan_table(plan: WorkerPlan, all_columns: bool = False, synced: bool = False) -> Table:
    """The options, one a row, with the columns to choose by, or all of them; ``synced``: those of each way to
    synchronize replicas at the worker count that is the fastest."""
    request, apart, name = plan.request, len(plan.curves) > 1, "plan" if all_columns else "plan-summary"
    energy = any(plan.watts(option) > 0 for option in plan.options) and not plan.relative
    keys = ["workers", *["nodes"] * all_columns, "global_batch", *["replicas", "sync_every"] * apart,
            *["local_batch", "accumulation"] * all_columns, "steps_to_target", "step_ms", *["speedup"] * all_columns,
            "statistical_efficiency", "system_efficiency", "efficiency", "seconds_to_target", "cost",
            *["sooner"] * synced]
    keys += ["campaign_hours"] if request.runs > 1 and not plan.relative else []
    keys += ["energy"] if energy else []
    keys += ["extrapolated_share", "steps_known", "step_time_known", "pareto"] if all_columns else ["known"]
    keys += ["chance_within"] if request.deadline or request.budget else []
    return PLAN.table(
        "plan-local-steps" if synced else name, [
            (option, _cells(plan, option)) for option in (plan.synced if synced else plan.options)],
        {_column(plan, key): partial(lambda key, row: row[1][key], key) for key in keys}, lambda row: row[0].trials,
        notes=() if all_columns else _notes(plan, energy), what=plan.target or title(plan).split(": ")[1])


def _notes(plan: WorkerPlan, energy: bool) -> Iterator[str]:
    request = plan.request
    yield describe_price(request)
    if energy and request.power is None:
        yield PLAN.say("energy")
    if any(option.steps.beyond for option in plan.options):
        yield PLAN.say("beyond", mark=BEYOND, met=bool(plan.curve.met))
    if plan.relative and plan.options:
        yield PLAN.say("relative", workers=plan.options[0].workers, noise=bool(plan.noise))
    if any(option.seconds.high > option.seconds.low for option in plan.options):
        yield PLAN.say("intervals", confidence=request.confidence)
    if not request.global_batch and not request.local_batch:
        yield PLAN.say("batches", most=request.max_local_batch or plan.times.timings.most_local or None)
    yield PLAN.say("decision")


def _column(plan: WorkerPlan, key: str) -> Column:
    """A column; those of whole campaigns say of how many runs, and at what power."""
    request, what = plan.request, "node" if plan.request.per_node else "worker"
    return PLAN.column(
        key, unit=f"{what}-hour", what=f"{what}s", runs=request.runs if request.runs > 1 else None,
        watts=number(plan.times.timings.measured.watts) if request.power is None else None,
        power=None if request.power is None else number(request.power))


def _cells(plan: WorkerPlan, option: Option) -> dict[str, Cell]:
    statistical, system = option.statistical_efficiency, option.system_efficiency
    passes, product = option.passes, statistical.value * system.value
    size = 1 if plan.relative else unit_of(option.seconds.value)[0]
    hours = option.seconds.scaled(option.nodes * plan.request.runs / 3600)
    steps, ends = option.steps.value, option.steps.interval(plan.request.confidence)
    write, beyond = ratio if plan.relative else whole, BEYOND * (option.steps.beyond and option is not plan.options[0])
    each = f"{option.local_batch:,} x {passes}" if passes > 1 else f"{option.local_batch:,}"
    roles = [SHORT.get(name, name) for name in ROLES if getattr(plan, name) is option] if len(plan.options) > 1 else []
    share = plan.chance_within(option)
    return {
        "workers": Cell(f"{option.workers:,}{CROWDED * plan.is_crowded(option)}", option.workers,
                        below="best" if len(roles) == len(ROLES) else "+".join(roles)),
        "nodes": cell_of(option.nodes), "local_batch": Cell(each, option.local_batch),
        "accumulation": Cell(f"{passes}", passes),
        "global_batch": cell_of(option.global_batch, each if passes > 1 else f"{each} each"),
        "replicas": cell_of(option.sync[0]), "sync_every": cell_of(option.sync[1]),
        "steps_to_target": Cell(f"{BEYOND * option.steps.beyond}{write(steps)}", steps, *ends,
                                span(*ends, write) if ends[0] < ends[1] else ""),
        "step_ms": Cell(number(1000 * option.step_time.value), 1000 * option.step_time.value),
        "statistical_efficiency": bare_cell(statistical, lambda value: f"{beyond}{ratio(value)}"),
        "system_efficiency": bare_cell(system, ratio), "efficiency": Cell(ratio(product), product),
        "seconds_to_target": value_cell(option.seconds, number if plan.relative else duration, size),
        "cost": replace(value_cell(option.cost),
                        below=counted(option.nodes, "node") if plan.request.per_node else ""),
        "campaign_hours": value_cell(hours),
        "energy": value_cell(hours.scaled(plan.watts(option) / option.nodes / 1000)),
        "speedup": bare_cell(option.speedup, ratio), "sooner": value_cell(option.speedup, ratio),
        "extrapolated_share": Cell(percent(option.extrapolated_share), option.extrapolated_share),
        "known": Cell(SHORT.get(option.mark, option.mark),
                      below=percent(option.extrapolated_share) if 0 < option.extrapolated_share < 1 else ""),
        "steps_known": Cell(option.steps.mark), "step_time_known": Cell(option.step_time.mark),
        "pareto": Cell("yes" if option in plan.front else "no"),
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
        "parameter": lambda name: MODEL_WORDS[name][0], "symbol": lambda name: MODEL_WORDS[name][1],
        "value": value,
        "told": lambda name: "given" if name in model.given else model.is_determined(name, confidence)})
