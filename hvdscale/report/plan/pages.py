"""Plans as pages, and as values for JSON.

    document = document_of_plans(plans, growing, logs, skipped, notes, confidence)
    give_out(document, lambda: {"plans": list(map(plan_values, plans))}, out, formats, echo)
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ... import __version__
from ...analysis.grouping import group_by
from ...analysis.growing_batch import GrowingPlan
from ...analysis.next_runs import next_runs
from ...analysis.report_data import JobResults
from ...analysis.trials import JobKey
from ...analysis.worker_plan import WorkerPlan
from ...formatting.numbers import counted, finite
from ..document import Chapter, Document, LogFacts, Page
from ..file_names import Path, section_name, unique
from ..findings import Finding
from ..output import on_screen, write
from ..table import as_values, trial_list
from ..view import present
from .figures import EAGER, figures_of_plan
from .growing import describe_growing, describe_phases, growing_table, phases_table
from .tables import model_table, plan_table
from .words import WITHIN, advice, describe_next, find_basis, summary, title


def document_of_plans(plans: Sequence[WorkerPlan], growing: Sequence[GrowingPlan], logs: Sequence[LogFacts],
                      skipped: Sequence[str], notes: Sequence[str], confidence: float) -> Document:
    """A page for each plan, and a chapter for each growing batch."""
    taken: set[str] = set()
    pages = tuple((JobResults(workload, (), ()), tuple(_page(plan, workload, taken) for plan in own))
                  for workload, own in group_by(plans, lambda plan: plan.workload).items() if workload)
    return Document(pages, tuple(logs), tuple(skipped), confidence,
                    tuple(_chapter(plan, taken) for plan in growing), tuple(notes), "Scaling plan")


def _page(plan: WorkerPlan, workload: JobKey, taken: set[str]) -> Page:
    name = unique(section_name(workload, plan.target) or "plan", (workload, plan.target), taken)
    tables = [plan_table(plan)] * bool(plan.options) + [model_table(plan)] * plan.uses_model
    return Page(find_basis(plan), tuple(tables), (plan_table(plan, True),),
                lambda: figures_of_plan(plan), slug=name, title=title(plan), target=plan.target, verdict=advice(plan))


def _chapter(plan: GrowingPlan, taken: set[str]) -> Chapter:
    table, title = growing_table(plan), f"{plan.workload}: batch {plan.batches}"
    name = unique(section_name(plan.workload, plan.target), title, taken)
    return Chapter(tuple(map(Finding, (describe_growing(plan), *describe_phases(plan)))),
                   ((table,) * bool(table.rows) + present(phases_table(plan))), slug=name, target=plan.target,
                   title=title)


def give_out(document: Document, values: Callable[[], Mapping[str, object]], out: Path | None,
             formats: Sequence[str], echo: Callable[[str], object], whole: bool = False) -> None:
    """Print a plan, and write it under ``out`` where that is given, as plan.json with these values and the rest."""
    for text in on_screen(document, whole):
        echo(text)
    if out is None:
        return
    head = {"format": "hvdscale-plan", "version": 1, "creator": f"hvdscale {__version__}"}
    written = list(write(document, out, formats, name="plan", values=lambda: {**head, **values()}))
    echo(f"wrote {counted(len(written), 'file')}: {written[-1]}" + (", and more beside it" * (len(written) > 1)))


def decision_values(plan: WorkerPlan) -> dict[str, object]:
    """For JSON: each choice with its expected loss and chances, where the fastest may lie, and what to measure next."""
    few, many = plan.decision.fastest_workers if plan.options else (None, None)
    found = next_runs(plan)
    return {
        **{name: option and {
            "workers": option.workers, "global_batch": option.global_batch, "accumulation": option.passes,
            "expected_loss": plan.decision.loss(option.at, weight),
            **{f"chance_within_{100 * share:.0f}_percent": plan.decision.chance(option.at, share, weight)
               for share in (0.05, WITHIN)}}
           for name, option, weight in (("fastest", plan.fastest, math.inf), ("cheapest", plan.cheapest, 0.0),
                                        ("knee", plan.knee, plan.request.knee))},
        "fastest_at_least_workers": few, "fastest_at_most_workers": many, "most_workers_measured": plan.most_measured,
        "next": found and {
            "runs": [vars(run) for run in found.runs], "worker_hours": found.worker_hours,
            "expected_loss": found.loss, "expected_loss_after": found.loss_after, "said": describe_next(found)}}


def plan_values(plan: WorkerPlan) -> dict[str, object]:
    """A plan for JSON: every option with its interval, what to take, and what it is based on."""
    request, workload = plan.request, plan.workload
    return {
        "workload": workload and {name: getattr(workload, name) for name in (
            "dataset", "model", "model_args", "optimizer", "train_examples")},
        "target": str(plan.target) if plan.target else None, "relative": plan.relative,
        "summary": summary(plan),
        "request": {"price": request.price, "per_node": request.per_node, "deadline_seconds": request.deadline,
                    "budget": request.budget, "local_batch": request.local_batch, "global_batch": request.global_batch,
                    "max_local_batch": request.max_local_batch, "accumulate": request.accumulate,
                    "knee": request.knee, "confidence": request.confidence, "runs": request.runs,
                    "power": request.power},
        **{name: option and option.workers for name, option in (
            ("fastest", plan.fastest), ("cheapest", plan.cheapest), ("knee", plan.knee))},
        "pareto_front": [option.workers for option in plan.front],
        "within": [option.workers for option in plan.within()],
        "knee_formula": f"least cost x time^{request.knee:g}; {EAGER}",
        "tables": [as_values(plan_table(plan, True)), as_values(model_table(plan))],
        "steps": [{"global_batch": point.global_batch, "value": finite(point.steps.value),
                   "low": finite(point.steps.low), "high": finite(point.steps.high),
                   "seeds": point.seeds or None, "seeds_met": point.met if point.seeds else None,
                   "trials": trial_list(point.trials)} for point in plan.curve.points],
        "critical_batch": None if plan.curve.critical_ends is None else {
            **dict(zip(("low", "high"), map(finite, plan.curve.critical_ends))),
            "median": finite(plan.curve.critical_batch), "from": "noise scale" if plan.curve.predicted else "fit"},
        "assumed": plan.assumed, "decision": decision_values(plan),
        "step_times": {
            "machine": str(plan.times.timings.machine), "misses": finite(plan.times.model.misses),
            "laws": [{"name": str(fit.law), "refuted": fit.refuted, "misses": finite(fit.misses)}
                     for fit in plan.times.model.fits],
            "reach": plan.times.model.reach,
            "timings": [{"workers": one.workers, "nodes": one.nodes, "global_batch": one.global_batch,
                         "accumulation": one.passes, "seconds": one.value, "runs": len(one.seconds),
                         "crowded": one.crowded, "trials": trial_list(one.trials)}
                        for one in plan.times.timings.found]},
        "left_out": [{"workers": workers, "why": why} for workers, why in plan.left_out],
    }
