"""What a growing batch buys, by worker count: a sentence, a table, and values for JSON."""
from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import groupby

from ...analysis.growing_batch import GrowingOption, GrowingPlan, Phase, Phases
from ...analysis.worker_plan import Value
from ...formatting.numbers import (counted, duration, finite, in_brackets, list_first, listed, number, ratio, span,
                                   whole)
from ..table import Cell, Column, Row, Table, trial_list
from .words import price_said

MOST_NAMED = 4
RATIOS = ("steps", "examples", "time and cost")


def said(plan: GrowingPlan) -> str:
    """The worker count with the least time, beside the constant batches there."""
    best = plan.fastest
    if best is None:
        return f"Nothing known of this batch at these worker counts: {plan.left_out[0][1]}."
    took = f"{duration(best.seconds.value)}{_ends(best.seconds)}"
    beside = " and ".join(f"{ratio(one.seconds_ratio.value)}x as fast"
                          f"{in_brackets(one.seconds_ratio.low, one.seconds_ratio.high, ratio)} as the constant batch "
                          f"{one.global_batch:,}" for one in best.beside)
    how = "predicted from the constant batches" if plan.predicted else best.mark
    return (f"Fastest at {counted(best.workers, 'worker')}: {took}, {how}. " +
            (f"It is {beside}." if beside else
             "No steps are known at a constant smallest or largest batch, so what it buys is not."))


def phases_said(plan: GrowingPlan) -> tuple[str, ...]:
    """Which workers pay at each batch, beside the same workers all along."""
    found, alone = plan.phases_at_knee, plan.knee
    if found is None or alone is None or len(found.phases) < 2:
        return ()
    relaunch, starts = plan.request.relaunch, plan.request.starts
    counted_in = "relaunching not counted in; --relaunch says how long it takes" if relaunch is None else (
        f"{duration(relaunch)} for each relaunch counted in" + (
            f", the median start-up of {counted(starts, 'run')} here, without the queue" if starts else ""))
    if not found.changes:
        return (f"No change of workers with the batch pays ({counted_in}): "
                f"{counted(found.phases[0].workers, 'worker')} throughout.",)
    ways = ", ".join(f"{counted(own[0].workers, 'worker')} at batch {listed(f'{one.global_batch:,}' for one in own)}"
                     for own in _jobs(found))
    return (f"Workers by phase: {ways}: {duration(found.seconds.value)}{_ends(found.seconds)}, cost "
            f"{number(found.cost.value)}; with {counted(alone.workers, 'worker')} throughout "
            f"{duration(alone.seconds.value)}, cost {number(alone.cost.value)} ({counted_in}).",)


def _jobs(found: Phases) -> list[list[Phase]]:
    """Phases that follow each other on the same workers, together."""
    return [list(own) for _, own in groupby(found.phases, lambda one: one.workers)]


def phases_table(plan: GrowingPlan) -> Table | None:
    """The workers of each batch, where they change; None where no change pays."""
    found = plan.phases_at_knee
    if found is None or not found.changes:
        return None
    columns = (Column("global_batch", "batch", "examples"), Column("workers", "workers"), Column("nodes", "nodes"),
               Column("start", "from step", "steps"), Column("steps", "steps", "steps"),
               Column("seconds", "time", "seconds", "steps in it x t, relaunching left out"), Column("known", "known"))
    rows = tuple(Row((*(Cell(f"{value:,}", value) for value in (one.global_batch, one.workers, one.nodes, one.start)),
                      _cell(one.steps, whole),
                      Cell(duration(one.seconds.value), one.seconds.value, one.seconds.low, one.seconds.high),
                      Cell(one.mark)), plan.trials, ()) for one in found.phases)
    return Table("worker-phases", f"Workers by phase: {plan.target}", columns, rows, (
        "Workers by phase: those with the least cost x time over all phases together. A run resumes at another worker "
        "count with the same updates.",), plan.target)


def job_lines(plan: GrowingPlan) -> tuple[str, ...]:
    """The jobs of Slurm that carry out the phases, each after the one before; () where the workers do not change."""
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
                     f"--ntasks-per-node={min(each, one.workers)} slurm/train.sbatch OPTIONS "
                     f"--set batch_schedule='{schedule}' --checkpoint CHECKPOINTS --resume auto{until})")
    return tuple(lines)


def _ends(value: Value) -> str:
    return f" ({duration(value.low)} to {duration(value.high)})" if 0 < value.low < value.high < math.inf else ""


def growing_table(plan: GrowingPlan) -> Table:
    """By worker count: the growing batch, and its ratios to the constant ones."""
    ends = sorted({plan.batches.smallest, plan.batches.largest})
    columns = [Column("workers", "workers"), Column("steps_to_target", "steps", "steps"),
               Column("examples_to_target", "examples", "examples"),
               Column("seconds_to_target", "time to target", "seconds", "sum over the pieces of n_i t(W, B_i)"),
               Column("cost", "cost", "1", "nodes x T x price of a node-hour; each node whole"),
               *(Column(f"{what.split()[0]}_ratio_{batch}", f"{what}, {batch:,} / growing", "1",
                        "of the constant batch over the growing one", spare=what != RATIOS[-1])
                 for batch in ends for what in RATIOS),
               Column("known", "known", "1", "as the worst known of the steps and the step times")]
    steps = ("Steps predicted: a step at batch B is 1 / S(B) of the way, as if the critical batch were constant over "
             "training. Where it grows, a growing batch needs less." if plan.predicted else
             "Steps as measured with this schedule; they do not depend on the workers.")
    reasons = dict.fromkeys(why for _, why in plan.left_out)
    left_out = [f"Not at W = {list_first([w for w, other in plan.left_out if other == why], MOST_NAMED)}: {why}."
                for why in reasons]
    rows = tuple(Row(tuple(_cells(option, ends)), plan.trials, ()) for option in plan.options)
    return Table("growing-batch", f"What a growing batch buys: {plan.target}", tuple(columns), rows, (
        f"Batch {plan.batches}. Ratios above 1: the growing batch needs less than the constant one at these workers.",
        steps, price_said(plan.request), *left_out), plan.target)


def _cells(option: GrowingOption, ends: list[int]) -> Iterator[Cell]:
    yield Cell(f"{option.workers:,}", option.workers)
    yield _cell(option.steps, whole)
    yield _cell(option.examples)
    yield Cell(duration(option.seconds.value), option.seconds.value, option.seconds.low, option.seconds.high)
    yield _cell(option.cost)
    beside = {one.global_batch: one for one in option.beside}
    for batch in ends:
        one = beside.get(batch)
        for value in (one.steps_ratio, one.examples_ratio, one.seconds_ratio) if one else (None,) * 3:
            yield Cell("unknown", math.nan) if value is None else _cell(value, ratio)
    yield Cell(option.mark)


def _cell(value: Value, write=number) -> Cell:
    ends = span(value.low, value.high, write) if value.low < value.high else ""
    return Cell(write(value.value), value.value, value.low, value.high, ends)


def growing_values(plan: GrowingPlan) -> dict[str, object]:
    """A plan for JSON."""
    def values(one: Value) -> dict[str, float | None]:
        return {"value": finite(one.value), "low": finite(one.low), "high": finite(one.high)}

    def option_values(option: GrowingOption) -> dict[str, object]:
        return {"workers": option.workers, "nodes": option.nodes, "known": option.mark,
                **{name: values(getattr(option, name)) for name in ("steps", "examples", "seconds", "cost")},
                "beside": [{"global_batch": one.global_batch, **{
                    name: values(getattr(one, name)) for name in
                    ("steps", "seconds", "cost", "steps_ratio", "examples_ratio", "seconds_ratio")}}
                    for one in option.beside]}
    return {"workload": str(plan.workload), "target": str(plan.target), "batch_schedule": plan.batches.pairs,
            "predicted": plan.predicted, "summary": " ".join((said(plan), *phases_said(plan))),
            "worker_phases": [{"seconds": values(one.seconds), "cost": values(one.cost), "changes": one.changes,
                               "phases": [{"global_batch": phase.global_batch, "workers": phase.workers,
                                           "start": phase.start, "known": phase.mark} for phase in one.phases]}
                              for one in plan.phases],
            "jobs": job_lines(plan), "options": list(map(option_values, plan.options)),
            "left_out": [{"workers": workers, "why": why} for workers, why in plan.left_out],
            "trials": trial_list(plan.trials)}
