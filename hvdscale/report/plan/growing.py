"""What a growing batch buys, by worker count: a sentence, a table, and values for JSON."""
from __future__ import annotations

import json
import math
from functools import partial
from itertools import groupby

from ...analysis.growing_batch import GrowingOption, GrowingPlan, Phase, Phases
from ...analysis.worker_plan import Value
from ...formatting.numbers import duration, list_first, number, ratio, span, whole
from ..table import Cell, Column, Table, Write, count_cell, pick, trial_list
from ..texts import PLAN
from .words import describe_price

MOST_NAMED = 4
# of a constant batch over the growing one, and their words
RATIOS = {"steps": "steps", "examples": "examples", "seconds": "time and cost"}


def describe_growing(plan: GrowingPlan) -> str:
    """The worker count with the least time, beside the constant batches there."""
    best = plan.fastest
    if best is None:
        return PLAN.say("growing_unknown", why=plan.left_out[0][1])
    beside = [PLAN.say("as_fast", ratio=one.seconds_ratio, batch=one.global_batch) for one in best.beside]
    return PLAN.say("growing", workers=best.workers, time=_time(best.seconds), predicted=plan.predicted, mark=best.mark,
                    beside=" and ".join(beside))


def describe_phases(plan: GrowingPlan) -> tuple[str, ...]:
    """Which workers pay at each batch, beside the same workers all along."""
    found, alone = plan.phases_at_knee, plan.knee
    if found is None or alone is None or len(found.phases) < 2:
        return ()
    relaunch = PLAN.say("relaunch", seconds=plan.request.relaunch, starts=plan.request.starts or None)
    if not found.changes:
        return (PLAN.say("phases_alike", workers=found.phases[0].workers, relaunch=relaunch),)
    ways = (PLAN.say("phase", workers=own[0].workers, batches=[one.global_batch for one in own])
            for own in _jobs(found))
    return (PLAN.say("phases", ways=", ".join(ways), time=_time(found.seconds), cost=found.cost.value,
                     workers=alone.workers, alone=alone.seconds.value, alone_cost=alone.cost.value, relaunch=relaunch),)


def _jobs(found: Phases) -> list[list[Phase]]:
    """Phases that follow each other on the same workers, together."""
    return [list(own) for _, own in groupby(found.phases, lambda one: one.workers)]


def phases_table(plan: GrowingPlan) -> Table | None:
    """The workers of each batch, where they change; None where no change pays."""
    found = plan.phases_at_knee
    if found is None or not found.changes:
        return None
    return PLAN.table("worker-phases", found.phases, {
        PLAN.column("phase_batch", "global_batch"): lambda one: count_cell(one.global_batch),
        PLAN.column("growing_workers", "workers"): lambda one: count_cell(one.workers),
        Column("nodes", "nodes"): lambda one: count_cell(one.nodes),
        PLAN.column("phase_start", "start"): lambda one: count_cell(one.start),
        PLAN.column("phase_steps", "steps"): lambda one: _cell(one.steps, whole),
        PLAN.column("phase_seconds", "seconds"): lambda one: _time_cell(one.seconds),
        PLAN.column("phase_known", "known"): lambda one: Cell(one.mark)},
        lambda one: plan.trials, notes=(PLAN.say("phases_by_knee"),), target=plan.target)


def job_lines(plan: GrowingPlan) -> tuple[str, ...]:
    """The jobs of Slurm that carry out the phases, JOB_SCRIPT being what trains; () where the workers do not change."""
    found = plan.phases_at_knee
    if found is None or not found.changes:
        return ()
    schedule = json.dumps(plan.batches.pairs)
    lines, jobs = [], _jobs(found)
    for at, ((one, *_), following) in enumerate(zip(jobs, (*jobs[1:], None))):
        each = plan.request.per_node or one.workers
        until = f" --steps {following[0].start}" if following else ""
        after = " --dependency=afterok:$job" if at else ""
        lines.append(f"job=$(sbatch --parsable{after} -N{one.nodes if plan.request.per_node else 1} "
                     f"--ntasks-per-node={min(each, one.workers)} JOB_SCRIPT OPTIONS "
                     f"--set batch_schedule='{schedule}' --checkpoint CHECKPOINTS --resume auto{until})")
    return tuple(lines)


def _time(value: Value) -> str:
    has_ends = 0 < value.low < value.high < math.inf
    return duration(value.value) + (f" ({duration(value.low)} to {duration(value.high)})" if has_ends else "")


def _time_cell(value: Value) -> Cell:
    return Cell(duration(value.value), value.value, value.low, value.high)


def growing_table(plan: GrowingPlan) -> Table:
    """By worker count: the growing batch, and its ratios to the constant ones."""
    reasons = dict.fromkeys(why for _, why in plan.left_out)
    left_out = [PLAN.say("growing_not_at", why=why, counts=list_first(
        [workers for workers, other in plan.left_out if other == why], MOST_NAMED)) for why in reasons]
    return PLAN.table("growing-batch", plan.options, {
        PLAN.column("growing_workers", "workers"): lambda one: count_cell(one.workers),
        PLAN.column("growing_steps", "steps_to_target"): lambda one: _cell(one.steps, whole),
        PLAN.column("growing_examples", "examples_to_target"): lambda one: _cell(one.examples),
        PLAN.column("growing_seconds", "seconds_to_target"): lambda one: _time_cell(one.seconds),
        PLAN.column("cost"): lambda one: _cell(one.cost),
        **{PLAN.column("growing_ratio", f"{words.split()[0]}_ratio_{batch}", what=words, batch=batch,
                       spare=name != "seconds"): partial(_ratio, name=name, batch=batch)
           for batch in sorted({plan.batches.smallest, plan.batches.largest}) for name, words in RATIOS.items()},
        PLAN.column("growing_known", "known"): lambda one: Cell(one.mark)},
        lambda one: plan.trials, target=plan.target, notes=(
            PLAN.say("growing_ratios", batches=str(plan.batches)),
            PLAN.say("growing_steps_from", predicted=plan.predicted), describe_price(plan.request), *left_out))


def _ratio(option: GrowingOption, name: str, batch: int) -> Cell:
    beside = next((one for one in option.beside if one.global_batch == batch), None)
    return Cell("unknown", math.nan) if beside is None else _cell(getattr(beside, f"{name}_ratio"), ratio)


def _cell(value: Value, write: Write = number) -> Cell:
    ends = span(value.low, value.high, write) if value.low < value.high else ""
    return Cell(write(value.value), value.value, value.low, value.high, ends)


def growing_values(plan: GrowingPlan) -> dict[str, object]:
    """A plan for JSON."""
    beside = "global_batch steps seconds cost steps_ratio examples_ratio seconds_ratio"
    return {**pick(plan, "workload target"), "batch_schedule": plan.batches.pairs, **pick(plan, "predicted"),
            "summary": " ".join((describe_growing(plan), *describe_phases(plan))),
            "worker_phases": [{**pick(one, "seconds cost changes"), "phases": [
                pick(phase, "global_batch workers start known=mark") for phase in one.phases]} for one in plan.phases],
            "jobs": job_lines(plan), "options": [
                {**pick(option, "workers nodes known=mark steps examples seconds cost"),
                 "beside": [pick(one, beside) for one in option.beside]} for option in plan.options],
            "left_out": [{"workers": workers, "why": why} for workers, why in plan.left_out],
            "trials": trial_list(plan.trials)}
