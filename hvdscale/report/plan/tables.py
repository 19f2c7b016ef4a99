"""The tables of a plan of workers: its options, and the model of the step time."""
from __future__ import annotations

import math

from ...analysis.step_laws import PAUSES, POWERS
from ...analysis.step_time import DETERMINED, EXTRAPOLATED, INTERPOLATED, POWER_DETERMINED, StepModel
from ...analysis.worker_plan import LIKELY, Option, Request, Value, WorkerPlan
from ...formatting.numbers import counted, duration, number, percent, ratio, span, unit_of, whole
from ..columns import POLLUX, SHALLUE, STATISTICAL, SYSTEM
from ..table import Cell, Column, Row, Table
from .words import BEYOND, CROWDED, ROLES, chance, price_said, title

LAWS_FROM = "ring: Patarasuk and Yuan 2009; tree: Thakur et al. 2005; overlap: " + POLLUX

WORKERS = Column("workers", "workers", "1", "W; below: what it is best at")
NODES = Column("nodes", "nodes", "1", "paid for: ceil(W / workers a node)")
LOCAL = Column("local_batch", "local batch", "examples", "b: the most examples of a worker in one pass, times passes")
PASSES = Column("accumulation", "passes", "1", "k: passes that make one step")
BATCH = Column("global_batch", "batch", "examples", "B: with the least T among those that W workers can run; below: "
               "examples a worker and pass, times passes")
STEPS = Column("steps_to_target", "steps", "steps", "S: measured, between two batches, or "
               "S_min (1 + B_crit / B) as fitted; interval: as measured, else quantiles of draws", SHALLUE)
STEP_MS = Column("step_ms", "step, ms (mean)", "milliseconds", "t, of the mean step, pauses in it: measured, as a "
                 "report's B / x of these workers and batch, or the median over the step-time laws that fit; a bound: "
                 "the low end of its interval", LAWS_FROM)
PRODUCT = Column("efficiency", "parallel efficiency", "1", "(T0 / T) / (W / W0): the product of both efficiencies",
                 POLLUX, "parallel effic.", spare=True)
SPEEDUP = Column("speedup", "speedup", "1", "T0 / T", POLLUX)
SECONDS = Column("seconds_to_target", "time to target", "seconds", "T = S t; interval: that of these "
                 "runs' seconds, else quantiles of draws of S and t; a bound: the low end")
COST = Column("cost", "cost", "1", "nodes x T x price of a node-hour; each node whole")
OUTSIDE = Column("extrapolated_share", "extrapolated share", "1", "share of the variance of log T that comes of "
                 "leaving the batches, workers and local batches that were run")
KNOWN = Column("known", "known", "1", "as the worse known of S and t; below: share of the variance of log T that comes "
               "of leaving what was run")
STEPS_KNOWN = Column("steps_known", "steps known", "1", "how S is known")
STEP_KNOWN = Column("step_time_known", "step time known", "1", "how t is known")
STEP_OPEN = Column("step_time_open", "step time open", "1", "too many workers for the laws of t: no upper end")
PARETO = Column("pareto", "Pareto front", "1", "no other is better in time and cost")
WITHIN = Column("chance_within", "chance", "1", "share of the draws in which a run stays within deadline and budget; "
                "none where it is assumed")

NO_BOUND = "-"          # a bound without content
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
    hours = [_campaign_hours(request)] * (request.runs > 1) + [_energy(plan)] * _has_energy(plan)
    columns = [WORKERS, *([NODES] if all_columns else []), BATCH,
               *([LOCAL, PASSES] if all_columns else []), STEPS, STEP_MS, *([SPEEDUP] if all_columns else []),
               STATISTICAL, SYSTEM, PRODUCT, SECONDS, COST, *([] if plan.relative else hours),
               *([OUTSIDE, STEPS_KNOWN, STEP_KNOWN, STEP_OPEN, PARETO] if all_columns else [KNOWN]),
               *([WITHIN] if request.deadline or request.budget else [])]
    rows = tuple(Row(tuple(_cells(plan, option)[column.key] for column in columns), option.trials, ())
                 for option in plan.options)
    what = plan.target or title(plan).split(": ")[1]
    return Table("plan", f"All columns: {what}", tuple(columns), rows) if all_columns else Table(
        "plan-summary", f"By worker count: {what}", tuple(columns), rows, _table_notes(plan))


def _campaign_hours(request: Request) -> Column:
    unit = "node-hours" if request.per_node else "worker-hours"
    return Column("campaign_hours", f"{unit} of {request.runs} runs", unit,
                  f"{request.runs} x {unit.partition('-')[0]}s x T")


def _has_energy(plan: WorkerPlan) -> bool:
    return any(plan.watts(option) > 0 for option in plan.options)


def _energy(plan: WorkerPlan) -> Column:
    power, runs = plan.request.power, plan.request.runs
    of = f" of {runs} runs" * (runs > 1)
    what = (f"the mean power of a worker's GPU, {number(plan.times.timings.measured.watts)} W as measured, x workers"
            if power is None else f"{number(power)} W x {'nodes' if plan.request.per_node else 'workers'}")
    return Column("energy", f"kWh{of}", "kWh", f"{what} x T{of}")


def _table_notes(plan: WorkerPlan) -> tuple[str, ...]:
    request = plan.request
    notes = [price_said(request)]
    if _has_energy(plan) and request.power is None and not plan.relative:
        notes.append("Energy is that of the GPUs alone, as their driver counted it; --power gives a node's.")
    if any(option.steps.beyond for option in plan.options):
        notes.append(f"{BEYOND} " + ("the batch lies beyond those that met the target: its steps, and "
                                     "what follows from them, are not measured."
                                     if plan.curve.met else "predicted, not measured."))
    if any(option.bounded and _bound(plan, option).shown == NO_BOUND for option in plan.options):
        notes.append("A dash: system efficiency is at most what it is at fewer workers; nothing more is known.")
    if plan.relative and plan.options:
        notes.append(f"Times and costs are relative to {counted(plan.options[0].workers, 'worker')}"
                     + ("; steps are multiples of S_min, which is not known." if plan.noise else "."))
    if any(option.seconds.high > option.seconds.low for option in plan.options):
        notes.append(f"Intervals: {request.confidence:.0%}"
                     + (" (a bound, >, is its low end)" if any(one.bounded for one in plan.options) else "")
                     + "; with how a value is known: the share of the variance of log T that comes of leaving what was "
                     "run. A cost has the interval of its time, times nodes and price.")
    if not request.global_batch and not request.local_batch:
        most = request.max_local_batch or plan.times.timings.most_local
        notes.append("At each worker count the batch with the least time to target"
                     + (f", of at most {counted(most, 'example')} a worker and pass" if most else "")
                     + (" (of bounds: the least steps x step time)" if any(one.bounded for one in plan.options) else "")
                     + f"; one beyond those that met it only where {percent(LIKELY)} of the draws are for it"
                     + (", above them only where no other can run." if plan.curve.open_above else "."))
    return tuple(notes)


def _cells(plan: WorkerPlan, option: Option) -> dict[str, Cell]:
    statistical, system = option.statistical_efficiency, option.system_efficiency
    guess = BEYOND if option.steps.beyond and option is not plan.options[0] else ""
    bound = "> " if option.bounded else ""
    ms = 1000 * option.step_time.value
    product = math.nan if option.bounded else statistical.value * system.value
    time = f"{bound}{number(option.seconds.value)}" if plan.relative else f"{bound}{duration(option.seconds.value)}"
    size = 1 if plan.relative else unit_of(option.seconds.value)[0]
    low, high = option.seconds.low, option.seconds.high
    hours = option.node_hours.times(plan.request.runs)
    return {
        "workers": Cell(f"{option.workers:,}{CROWDED if plan.is_crowded(option) else ''}", option.workers,
                        below="+".join(_roles(plan, option))),
        "nodes": Cell(f"{option.nodes:,}", option.nodes),
        "local_batch": Cell(f"{option.local_batch:,}{f' x {option.passes}' if option.passes > 1 else ''}",
                            option.local_batch),
        "accumulation": Cell(f"{option.passes}", option.passes),
        "global_batch": Cell(f"{option.global_batch:,}", option.global_batch,
                             below=f"{option.local_batch:,} x {option.passes}" if option.passes > 1 else
                             f"{option.local_batch:,} each"),
        "steps_to_target": _steps(plan, option),
        "step_ms": Cell(f"{bound}{number(ms)}", ms),
        "statistical_efficiency": _efficiency(statistical, guess),
        "system_efficiency": _bound(plan, option) if option.bounded else _efficiency(system),
        "efficiency": Cell("" if option.bounded else ratio(product), product),
        "seconds_to_target": Cell(time, option.seconds.value, option.seconds.low, option.seconds.high,
                                  span(low / size, high / size) if low < high and not option.bounded else ""),
        "cost": Cell(f"{bound}{number(option.cost.value)}", option.cost.value, option.cost.low, option.cost.high,
                     counted(option.nodes, "node") if plan.request.per_node else ""),
        "campaign_hours": _total(hours, bound),
        "energy": _total(hours.times(plan.watts(option) / option.nodes / 1000), bound),
        "speedup": _efficiency(option.speedup, "< " * option.bounded),
        "extrapolated_share": Cell("all" if option.bounded else percent(option.extrapolated_share),
                                   option.extrapolated_share),
        "known": Cell(SHORT.get(option.mark, option.mark),
                      below="open above" if option.out_of_reach else
                      percent(option.extrapolated_share) if 0 < option.extrapolated_share < 1 else ""),
        "steps_known": Cell(option.steps.mark), "step_time_known": Cell(option.step_time.mark),
        "step_time_open": Cell("yes" if option.out_of_reach else "no"),
        "pareto": Cell("yes" if option in plan.front else "no"),
        "chance_within": _chance(plan, option),
    }


def _total(value: Value, bound: str) -> Cell:
    ends = span(value.low, value.high) if value.low < value.high and not bound else ""
    return Cell(f"{bound}{number(value.value)}", value.value, value.low, value.high, ends)


def _steps(plan: WorkerPlan, option: Option) -> Cell:
    write = ratio if plan.relative else whole
    value, ends = option.steps.value, option.steps.interval(plan.request.confidence)
    return Cell(f"{BEYOND if option.steps.beyond else ''}{write(value)}", value, *ends,
                span(*ends, write) if ends[0] < ends[1] else "")


def _chance(plan: WorkerPlan, option: Option) -> Cell:
    if option not in plan.eligible or plan.assumed(option):
        return Cell("assumed" if option in plan.eligible else "", math.nan)
    share = plan.chance_within(option)
    return Cell(chance(plan, share).replace("over ", "> ").replace("under ", "< "), share)


def _efficiency(value: Value, mark: str = "") -> Cell:
    return Cell(f"{mark}{ratio(value.value)}", value.value, value.low, value.high)


def _bound(plan: WorkerPlan, option: Option) -> Cell:
    """What the system efficiency must be below; a dash where that is no less than it is at fewer workers."""
    known = [one.system_efficiency.value for one in plan.options if not one.bounded and one.workers < option.workers]
    value = option.system_efficiency
    return _efficiency(value, "< ") if value.value < min([1.0, *known]) else Cell(NO_BOUND, math.nan)


def _roles(plan: WorkerPlan, option: Option) -> list[str]:
    found = [SHORT.get(name, name) for name in ROLES if getattr(plan, name) is option]
    return [] if len(plan.eligible) < 2 else ["best"] if len(found) == len(ROLES) else found


def model_table(plan: WorkerPlan) -> Table:
    """The step-time model's parameters, and which of them the logs determine."""
    model = plan.times.model
    columns = (Column("parameter", "parameter"), Column("symbol", "symbol"), Column("value", "value", "milliseconds"),
               Column("told", "determined by the logs"))
    rows = [_parameter_row(model, name, plan.request.confidence) for name in model.names]
    return Table("step-model", "The step-time model", columns, tuple(rows), (
        "A pass c = (a^q + (b e)^q)^(1/q) of e examples a worker, k passes, and an allreduce s = f(g) + f(m) over the "
        "g workers of a node and m nodes take (k - 1) c + (c^p + s^p)^(1/p). q = 1: a + b e; a large q: a until the "
        "device is full, then b e. p = 1: no overlap, a large p: nearly full. Where each of W workers pauses for l "
        "passes in a share r of its steps, the mean step is longer by l c (1 - (1 - r)^W). Ring: "
        "f(n) = 2 (n - 1) (h + v / n); tree: f(n) = 2 log2(n) h + 2 v (n - 1) / n; linear latency: f(n) = (n - 1) h. "
        "In milliseconds, except p, q, l and r.",
        f"Determined: over all laws that fit, the interval spans less than a factor {DETERMINED}, of p and q "
        f"{POWER_DETERMINED}. What the logs leave open is drawn from wide priors; the plan's intervals include it."))


def _parameter_row(model: StepModel, name: str, confidence: float) -> Row:
    ends = model.interval(name, confidence)
    words, symbol = MODEL_WORDS[name]
    if name not in POWERS + PAUSES:
        ends = 1000 * ends[0], 1000 * ends[1], 1000 * ends[2]
    given, told = model.is_given(name, confidence), model.is_determined(name, confidence)
    shown = number(ends[0]) if math.isfinite(ends[0]) else "full"
    return Row((Cell(words), Cell(symbol), Cell(shown, *ends, "" if given else span(*ends[1:])),
                Cell("given" if given else "yes" if told else "no")), (), ())
