"""What a growing batch buys, by worker count: a sentence, a table, and values for JSON."""
from __future__ import annotations

import json
import math
from functools import partial
from itertools import groupby

from ...analysis.grouping import group_by
from ...analysis.growing_batch import GrowingOption, GrowingPlan
from ...analysis.intervals import Estimate
from ...formatting.numbers import duration, list_first, ratio, whole
from ..table import Cell, Column, Table, bare_cell, pick, trial_list
from ..texts import PLAN
from .views import value_cell
from .words import describe_price

MOST_NAMED = 4
# of a constant batch over the growing one, and their words
RATIOS = {"steps": "steps", "examples": "examples", "seconds": "time and cost"}


def describe_growing(plan: GrowingPlan) -> str:
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
    ways = (PLAN.say("phase", workers=workers, batches=[one.global_batch for one in own])
            for workers, own in groupby(found.phases, lambda one: one.workers))
    return (PLAN.say("phases", ways=", ".join(ways), time=_time(found.seconds), cost=found.cost.value,
                     workers=alone.workers, alone=alone.seconds.value, alone_cost=alone.cost.value, relaunch=relaunch),)


def phases_table(plan: GrowingPlan) -> Table | None:
    """The workers of each batch, where they change; None where no change pays."""
    found = plan.phases_at_knee
    return None if found is None or not found.changes else PLAN.table("worker-phases", found.phases, {
        PLAN.column("phase_batch", "global_batch"): lambda one: one.global_batch,
        PLAN.column("growing_workers", "workers"): lambda one: one.workers,
        Column("nodes", "nodes"): lambda one: one.nodes,
        PLAN.column("phase_start", "start"): lambda one: one.start,
        PLAN.column("phase_steps", "steps"): lambda one: value_cell(one.steps, whole),
        PLAN.column("phase_seconds", "seconds"): lambda one: bare_cell(one.seconds, duration),
        PLAN.column("phase_known", "known"): lambda one: one.mark},
        lambda one: plan.trials, notes=(PLAN.say("phases_by_knee"),), target=plan.target)


def job_lines(plan: GrowingPlan) -> tuple[str, ...]:
    """The jobs of Slurm that carry out the phases, JOB_SCRIPT being what trains; () where the workers do not change."""
    found = plan.phases_at_knee
    if found is None or not found.changes:
        return ()
    lines, schedule = [], json.dumps(plan.batches.pairs)
    jobs = [next(own) for _, own in groupby(found.phases, lambda one: one.workers)]     # their first phases
    for at, one in enumerate(jobs):
        each = plan.request.per_node or one.workers
        until = f" --steps {jobs[at + 1].start}" if at + 1 < len(jobs) else ""
        after = " --dependency=afterok:$job" if at else ""
        lines.append(f"job=$(sbatch --parsable{after} -N{one.nodes if plan.request.per_node else 1} "
                     f"--ntasks-per-node={min(each, one.workers)} JOB_SCRIPT OPTIONS "
                     f"--set batch_schedule='{schedule}' --checkpoint CHECKPOINTS --resume auto{until})")
    return tuple(lines)


def _time(value: Estimate) -> str:
    has_ends = 0 < value.low < value.high < math.inf
    return duration(value.value) + (f" ({duration(value.low)} to {duration(value.high)})" if has_ends else "")


def growing_table(plan: GrowingPlan) -> Table:
    left_out = [PLAN.say("growing_not_at", why=why, counts=list_first([workers for workers, _ in own], MOST_NAMED))
                for why, own in group_by(plan.left_out, lambda one: one[1]).items()]

    def over(name: str, batch: int, option: GrowingOption) -> Cell:
        beside = next((one for one in option.beside if one.global_batch == batch), None)
        return Cell("unknown", math.nan) if beside is None else value_cell(getattr(beside, f"{name}_ratio"), ratio)
    return PLAN.table("growing-batch", plan.options, {
        PLAN.column("growing_workers", "workers"): lambda one: one.workers,
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


def growing_values(plan: GrowingPlan) -> dict[str, object]:
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
