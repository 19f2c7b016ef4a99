"""The tables of a plan of workers: its options, and the model of the step time."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ...analysis.step_laws import PAUSES, POWERS
from ...analysis.step_time import DETERMINED, EXTRAPOLATED, INTERPOLATED, POWER_DETERMINED, StepModel
from ...analysis.worker_plan import Option, Value, WorkerPlan
from ...formatting.numbers import counted, duration, number, percent, ratio, span, unit_of, whole
from ..table import STATISTICAL, SYSTEM, Cell, Column, Table, Write, count_cell
from .words import BEYOND, CROWDED, ROLES, chance, describe_price, title
from ..texts import PLAN

SHORT = {"fastest": "fast", "cheapest": "cheap", INTERPOLATED: "interpol.", EXTRAPOLATED: "extrapol."}
MODEL_WORDS = {
    "fixed": ("a pass of few examples", "a"), "example": ("each example of a full pass", "b"),
    "hop": ("a hop within a node", "h"), "volume": ("the gradient's bytes within a node", "v"),
    "node_hop": ("a hop between nodes", "h'"), "node_volume": ("the gradient's bytes between nodes", "v'"),
    "overlap": ("overlap of pass and allreduce", "p"), "sharpness": ("how sharply a pass fills the device", "q"),
    "pause": ("a worker's pause, in passes", "l"), "pausing": ("share of steps with a pause", "r")}


def plan_table(plan: WorkerPlan, all_columns: bool = False) -> Table:
    """The options, one a row, with the columns to choose by, or all of them."""
    request = plan.request
    keys = ["workers", *["nodes"] * all_columns, "global_batch", *["local_batch", "accumulation"] * all_columns,
            "steps_to_target", "step_ms", *["speedup"] * all_columns, "statistical_efficiency", "system_efficiency",
            "efficiency", "seconds_to_target", "cost"]
    if not plan.relative:
        keys += [key for key, is_so in (("campaign_hours", request.runs > 1), ("energy", _has_energy(plan))) if is_so]
    keys += ["extrapolated_share", "steps_known", "step_time_known", "pareto"] if all_columns else ["known"]
    keys += ["chance_within"] if request.deadline or request.budget else []
    columns = {key: _column(plan, key) for key in keys}
    return PLAN.table(
        "plan" if all_columns else "plan-summary", [(option, _cells(plan, option)) for option in plan.options],
        {column: partial(_cell_of, key=key) for key, column in columns.items()}, lambda row: row[0].trials,
        notes=() if all_columns else _table_notes(plan), what=plan.target or title(plan).split(": ")[1])


def _cell_of(row: tuple[Option, dict[str, Cell]], key: str) -> Cell:
    return row[1][key]


def _column(plan: WorkerPlan, key: str) -> Column:
    """A column; those of whole campaigns say of how many runs, and at what power."""
    request = plan.request
    if key in (STATISTICAL.key, SYSTEM.key):
        return STATISTICAL if key == STATISTICAL.key else SYSTEM
    what = "node" if request.per_node else "worker"
    return PLAN.column(key, unit=f"{what}-hour", what=f"{what}s", runs=request.runs if request.runs > 1 else None,
                       watts=number(plan.times.timings.measured.watts) if request.power is None else None,
                       power=None if request.power is None else number(request.power))


def _has_energy(plan: WorkerPlan) -> bool:
    return any(plan.watts(option) > 0 for option in plan.options)


def _table_notes(plan: WorkerPlan) -> Iterator[str]:
    request = plan.request
    yield describe_price(request)
    if _has_energy(plan) and request.power is None and not plan.relative:
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


def _cells(plan: WorkerPlan, option: Option) -> dict[str, Cell]:
    """The cells of an option by the key of their column."""
    statistical, system = option.statistical_efficiency, option.system_efficiency
    passes, product = option.passes, statistical.value * system.value
    size = 1 if plan.relative else unit_of(option.seconds.value)[0]
    hours = option.node_hours.times(plan.request.runs)
    steps, ends = option.steps.value, option.steps.interval(plan.request.confidence)
    write = ratio if plan.relative else whole
    each = f"{option.local_batch:,} x {passes}" if passes > 1 else f"{option.local_batch:,}"
    return {
        "workers": Cell(f"{option.workers:,}{CROWDED * plan.is_crowded(option)}", option.workers,
                        below="+".join(_roles(plan, option))),
        "nodes": count_cell(option.nodes),
        "local_batch": Cell(each, option.local_batch),
        "accumulation": Cell(f"{passes}", passes),
        "global_batch": count_cell(option.global_batch, each if passes > 1 else f"{each} each"),
        "steps_to_target": Cell(f"{BEYOND * option.steps.beyond}{write(steps)}", steps, *ends,
                                span(*ends, write) if ends[0] < ends[1] else ""),
        "step_ms": Cell(number(1000 * option.step_time.value), 1000 * option.step_time.value),
        "statistical_efficiency": _efficiency(statistical, BEYOND * (
            option.steps.beyond and option is not plan.options[0])),
        "system_efficiency": _efficiency(system),
        "efficiency": Cell(ratio(product), product),
        "seconds_to_target": _cell(option.seconds, number if plan.relative else duration, size),
        "cost": replace(_cell(option.cost),
                        below=counted(option.nodes, "node") if plan.request.per_node else ""),
        "campaign_hours": _cell(hours),
        "energy": _cell(hours.times(plan.watts(option) / option.nodes / 1000)),
        "speedup": _efficiency(option.speedup),
        "extrapolated_share": Cell(percent(option.extrapolated_share), option.extrapolated_share),
        "known": Cell(SHORT.get(option.mark, option.mark),
                      below=percent(option.extrapolated_share) if 0 < option.extrapolated_share < 1 else ""),
        "steps_known": Cell(option.steps.mark), "step_time_known": Cell(option.step_time.mark),
        "pareto": Cell("yes" if option in plan.front else "no"),
        "chance_within": _chance(plan, option),
    }


def _cell(value: Value, write: Write = number, size: float = 1) -> Cell:
    """The ends of its interval are over ``size``: seconds of the unit that ``write`` takes."""
    ends = span(value.low / size, value.high / size) if value.low < value.high else ""
    return Cell(write(value.value), value.value, value.low, value.high, ends)


def _chance(plan: WorkerPlan, option: Option) -> Cell:
    share = plan.chance_within(option)
    return Cell(chance(plan, share).replace("over ", "> ").replace("under ", "< "), share)


def _efficiency(value: Value, mark: str = "") -> Cell:
    return Cell(f"{mark}{ratio(value.value)}", value.value, value.low, value.high)


def _roles(plan: WorkerPlan, option: Option) -> list[str]:
    found = [SHORT.get(name, name) for name in ROLES if getattr(plan, name) is option]
    return [] if len(plan.options) < 2 else ["best"] if len(found) == len(ROLES) else found


def model_table(plan: WorkerPlan) -> Table:
    """The step-time model's parameters, and which of them the logs determine."""
    model, confidence = plan.times.model, plan.request.confidence
    notes = PLAN.say("model"), PLAN.say("determined", factor=DETERMINED, power=POWER_DETERMINED)
    return PLAN.table("step-model", model.names, notes=notes, cells={
        "parameter": lambda name: Cell(MODEL_WORDS[name][0]), "symbol": lambda name: Cell(MODEL_WORDS[name][1]),
        "value": lambda name: _parameter(model, name, confidence),
        "told": lambda name: Cell("given" if name in model.given else
                                  "yes" if model.is_determined(name, confidence) else "no")})


def _parameter(model: StepModel, name: str, confidence: float) -> Cell:
    ends = model.interval(name, confidence)
    if name not in POWERS + PAUSES:
        ends = 1000 * ends[0], 1000 * ends[1], 1000 * ends[2]
    return Cell(number(ends[0]) if math.isfinite(ends[0]) else "full", *ends,
                "" if name in model.given else span(*ends[1:]))
