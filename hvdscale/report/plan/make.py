"""A plan of workers in sentences and tables.

    for plan in plans_of(group, request):
        page = plan_page(plan)          # .summary first, then .tables and .figures

The same plan as values is ``plan_values(plan)``, for JSON.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ... import __version__
from ...analysis.curves import curve_of
from ...analysis.growing_batch import GrowingPlan, growing_plans
from ...analysis.report_data import Group, Options, Section, analyse
from ...analysis.step_time import Links, timings_of
from ...analysis.steps_curve import StepsPoint, points_of, points_of_both
from ...analysis.studies import Study, studies_of
from ...analysis.trials import read_trials
from ...analysis.versions import versions_of
from ...analysis.worker_plan import NO_TIMES, NoPlan, Request, WorkerPlan, plans_of
from ...errors import LogError, UsageError
from ...formatting.lines import wrap
from ...formatting.numbers import counted, finite
from ...log.plan_text import OF_SEARCH
from ...log.segments import find_logs
from ...plan.batch_schedule import BatchSchedule
from ...target import Target
from ..defaults import PLAN_FORMATS
from ..drawing import Figure, render
from ..file_names import Path, section_name, target_name
from ..output import bullets, put_file as put, refuse_no_folder, titled
from ..runs import read
from ..table import Table, as_csv, as_text, as_values, trial_list
from .figures import EAGER, figures_of_plan
from .growing import growing_table, growing_values, said
from .tables import model_table, plan_table
from .words import advice, no_plan_said, not_joined_said, summary, title


@dataclass(frozen=True, eq=False)
class PlanPage:
    """A plan in words, tables and figures."""

    plan: WorkerPlan
    slug: str                       # for file names and anchors
    title: str
    summary: tuple[str, ...]        # the recommendation first
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


def make_plan(paths: Iterable[Path], targets: Sequence[Target], request: Request, *,
              out: Path | None = None, formats: Sequence[str] = PLAN_FORMATS, skip_broken: bool = False,
              links: Links | None = None, given: StepsPoint | None = None, noise_scale: float | None = None,
              trials: int | None = None, batch_schedule: BatchSchedule | None = None,
              times_from: Sequence[Path] = (), echo: Callable[[str], object] = print) -> tuple[WorkerPlan, ...]:
    """Print the plans of these logs, one a workload and target, and write their files under ``out`` where it is given.

    batch_schedule  a growing batch to predict, beside those that were run
    times_from      logs that alone give step times, those of ``paths`` then only steps; without any all do
    Raises UsageError or LogError, with what would help, where nothing can be planned. See plans_of and make.make.
    """
    refuse_no_folder(out)
    timed = set(find_logs(times_from))
    if times_from and not timed:
        raise LogError(f"--times-from: no logs (*.h5) in {', '.join(map(str, times_from))}")
    with read([*paths, *times_from], skip_broken=skip_broken) as runs:
        options = Options(confidence=request.confidence, trials=trials)
        versions = versions_of(runs.logs)
        ran = [trial if not times_from or trial.log in timed else trial.without_times()
               for log in runs.logs for trial in read_trials(log, versions.of) if not trial.branch]
        studies = studies_of(runs.logs, versions.of)
        groups = analyse(ran, targets, options)
        found = [plan for group in groups if not group.workload.batch_schedule
                 for plan in plans_of(group, request, links=links, given=given, noise_scale=noise_scale,
                                      steps=lambda section: steps_of(section, studies))]
        growing = tuple(growing_plans(groups, request, asked=batch_schedule, links=links,
                                      steps=lambda section: steps_of(section, studies)))
    plans = tuple(plan for plan in found if not isinstance(plan, NoPlan))
    refused = _refused([plan for plan in found if isinstance(plan, NoPlan)], groups, timed)
    if not plans and not growing:
        raise LogError("\n".join(refused) or "no run with a growing batch met a target, and there are no others; "
                       "--target gives an easier one")
    if plans and (request.deadline or request.budget) and all(plan.relative for plan in plans):
        raise UsageError("--deadline and --budget need times in seconds, and the steps to target are not known; "
                         "--steps S@B gives them at one batch")
    pages = [plan_page(plan) for plan in plans]
    skipped = (f"skipped: {message}" for message in runs.skipped)
    for message in (*skipped, *versions.notes, *runs.remarks, *refused, *_unused(plans, given, noise_scale)):
        echo(wrap(message) + "\n")
    for page in pages:
        for text in on_screen(page):
            echo(text)
    for plan in growing:
        table = growing_table(plan)
        echo(titled(f"{plan.workload}: batch {plan.batches}") + wrap(said(plan)) + "\n")
        echo((as_text(table, table.warnings) + "\n") * bool(table.rows) + bullets(table.notes))
    if out is not None:
        written = list(write(pages, out, formats, growing))
        echo(f"wrote {counted(len(written), 'file')}: {written[0]}" + (", and more beside it" * (len(written) > 1)))
    return plans


def _refused(plans: Sequence[NoPlan], groups: Sequence[Group], timed: Collection[str]) -> list[str]:
    """Why there are no plans; with ``timed`` logs for times alone, why these have none for the others."""
    only_times = {group.workload for group in groups if {trial.log for trial in group.trials} <= set(timed)}
    known = [group.workload for group in groups
             if timed and not group.workload.batch_schedule and timings_of(group.trials).found]
    return [not_joined_said(plan, known) if known and plan.why == NO_TIMES else no_plan_said(plan)
            for plan in plans if plan.workload not in only_times]


def _unused(plans: Sequence[WorkerPlan], given: StepsPoint | None, noise_scale: float | None) -> Iterator[str]:
    """What the user gave and no plan needs."""
    if given is not None and all(plan.target for plan in plans):
        yield "--steps is not used: runs here have a target, which gives the steps."
    if noise_scale is not None and not any(plan.curve.predicted for plan in plans):
        yield "--noise-scale is not used: the steps that were measured give B_crit."


def steps_of(section: Section, studies: Sequence[Study]) -> tuple[tuple[StepsPoint, ...], np.ndarray | None]:
    """(StepsPoints, draws of their fit or None) of a section: of repeats, or where searched of the studies."""
    searched = {trial.global_batch for trial in section.trials if any(map(trial.plan.get, OF_SEARCH))}
    own = [study for study in studies if study.workload == section.workload and study.global_batch in searched]
    curve = curve_of(own, section.target, section.options) if section.target else None
    return points_of_both(section, curve) if curve else points_of(section)


def on_screen(page: PlanPage) -> Iterator[str]:
    """A plan as pieces of plain text: the recommendation, the tables, what it is based on, and how to read them."""
    first = advice(page.plan)
    tables = [table for table in page.tables if table.rows and (table.name == "plan" or page.plan.uses_model)]
    yield titled(f"{page.plan.workload}: {page.title[0].lower()}{page.title[1:]}") + "".join(
        f"{wrap(said)}\n" for said in first)
    yield from (as_text(table, table.warnings) for table in tables[:1])
    if len(page.summary) > len(first):
        yield bullets(page.summary[len(first):])
    yield from (as_text(table, table.warnings) for table in tables[1:])
    if tables:
        yield titled("How to read this") + bullets(note for table in tables for note in table.notes)


def put_json(out: str, values: Mapping[str, object]) -> str:
    """Writes plan.json; gives its path."""
    whole = {"format": "hvdscale-plan", "version": 1, "creator": f"hvdscale {__version__}", **values}
    return put(os.path.join(out, "plan.json"), json.dumps(whole, indent=1, allow_nan=False) + "\n")


def write(pages: Sequence[PlanPage], out: Path, formats: Sequence[str] = PLAN_FORMATS,
          growing: Sequence[GrowingPlan] = ()) -> Iterator[str]:
    """Write the files of plans; yields their paths as they are done."""
    out = os.fspath(out)
    if "json" in formats:
        yield put_json(out, {"plans": [plan_values(page.plan) for page in pages],
                             "growing_batches": list(map(growing_values, growing))})
    for page in pages:
        if "csv" in formats:
            yield put(os.path.join(out, "tables", f"{page.slug}-plan.csv"),
                      as_csv(plan_table(page.plan, True), page.plan.target))
        for kind in ("svg", "png"):
            for figure in page.figures if kind in formats else ():
                yield put(os.path.join(out, "figures", f"{page.slug}-{figure.name}.{kind}"), render(figure, kind))
    for number_, plan in enumerate(growing if "csv" in formats else ()):
        name = f"{section_name(plan.workload, plan.target)}-growing-batch{f'-{number_}' * (number_ > 0)}.csv"
        yield put(os.path.join(out, "tables", name), as_csv(growing_table(plan), plan.target))


def plan_page(plan: WorkerPlan) -> PlanPage:
    """All there is to show of a plan."""
    return PlanPage(plan, slug(plan), title(plan), summary(plan), (plan_table(plan), model_table(plan)),
                    figures_of_plan(plan))


def slug(plan: WorkerPlan) -> str:
    """A name for files: its workload and target."""
    names = section_name(plan.workload, plan.target) if plan.workload else plan.target and target_name(plan.target)
    return names or "plan"


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
                    "knee": request.knee, "confidence": request.confidence},
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
        "chances_assumed": plan.assumed(),
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
