"""A plan of workers, or for a size that nobody has run: printed, and written as a page, tables and figures."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from ...analysis.curves import curve_of
from ...analysis.growing_batch import GrowingPlan, growing_plans
from ...analysis.jobs import Versions
from ...analysis.next_runs import next_runs
from ...analysis.report_data import Options, Section, analyse
from ...analysis.size.laws import QUANTITIES, SizeLaws
from ...analysis.size.sizes import REACH, WIDEST, Size, SizePrediction
from ...analysis.step_time import MEASURED, REFUTED_AT, Links
from ...analysis.timings import Place, Timing, timings_of
from ...analysis.steps_curve import StepsPoint, points_of
from ...analysis.studies import Study, group_by, studies_of
from ...analysis.trials import EVERY_STEP, JobKey, Trial, read_trials
from ...analysis.worker_plan import NO_TIMES, NoPlan, Option, Request, WorkerPlan, plans_of
from ...errors import LogError, UsageError
from ...formatting.numbers import capital, listed, number, whole
from ...log.plan_text import OF_SEARCH
from ...log.segments import find_logs
from ...plan.batch_schedule import BatchSchedule
from ...target import Target
from .. import FORMATS
from ..document import (Chapter, Details, Document, Figures, Finding, LogFacts, Page, Path, describe_imports, facts_of,
                        section_name, sentences_of, unique)
from ..output import WORKLOAD, give_out, refuse_no_folder
from ..pages import open_logs
from ..table import Table, as_values, cell_of, encode, pick, trial_list
from ..texts import PLAN
from ..views.size import describe_law, parts_of_laws
from .views import figures_of_plan, growing_table, model_table, phases_table, plan_table
from .words import (ROLES, WITHIN, advice, describe_growing, describe_next, describe_no_join, describe_no_plan,
                    describe_phases, find_basis, job_lines, title)

BATCHES = ("overhead", "best_batch")        # of the sizes' laws the first that is predicted gives the workers
WRITE = {"best_rate": number}               # others are whole numbers
Predictions = Mapping[str, SizePrediction]


@np.errstate(over="ignore")         # what is beyond the largest float counts as inf
def make_plan(paths: Iterable[Path], targets: Sequence[Target], request: Request, *,
              out: Path | None = None, formats: Sequence[str] = FORMATS, skip_broken: bool = False,
              links: Links | None = None, given: StepsPoint | None = None, noise_scale: float | None = None,
              trials: int | None = None, batch_schedule: BatchSchedule | None = None,
              times_from: Sequence[Path] = (), notes: Sequence[str] = (), whole: bool = False,
              echo: Callable[[str], object] = print) -> tuple[WorkerPlan, ...]:
    """Print the plans of these logs, one a workload and target, and write their files under ``out`` where it is given.

    batch_schedule  a growing batch to predict, beside those that were run
    times_from      logs that alone give step times, those of ``paths`` then only steps; without any all do
    notes, whole    what is said first; to print every table, and how to read them
    Raises UsageError or LogError, with what would help, where nothing can be planned. See plans_of and make.make.
    """
    refuse_no_folder(out)
    timed = set(find_logs(times_from))
    if times_from and not timed:
        raise LogError(f"--times-from: no logs (*.h5) in {', '.join(map(str, times_from))}")
    with ExitStack() as opened:
        opened_logs, skipped = open_logs([*paths, *times_from], skip_broken, opened)
        versions = Versions(opened_logs)
        ran = [trial if not times_from or trial.log in timed else trial.without_times() for log in opened_logs
               for trial in read_trials(log, versions) if not trial.branch]
        ran, joined = join_scripts(ran, timed)
        groups = analyse(ran, targets, Options(confidence=request.confidence, trials=trials))
        startups = np.concatenate([np.empty(0), *(log.restarts["startup_seconds"] for log in opened_logs
                                                  if not times_from or log.path in timed)])
        if request.relaunch is None and len(seconds := startups[startups > 0]):
            request = replace(request, relaunch=float(np.median(seconds)), starts=len(seconds))
        steps = partial(steps_of, studies=studies_of(opened_logs, versions))
        found = [plan for group in groups if not group.workload.batch_schedule for plan in plans_of(
            group, request, links=links, given=given, noise_scale=noise_scale, steps=steps)]
        growing = tuple(growing_plans(groups, request, asked=batch_schedule, links=links, steps=steps))
        logs = tuple(map(facts_of, opened_logs))
    plans = tuple(plan for plan in found if not isinstance(plan, NoPlan))
    only_times = {group.workload for group in groups if {trial.log for trial in group.trials} <= timed}
    known = [group.workload for group in groups
             if timed and not group.workload.batch_schedule and timings_of(group.trials).found]
    refused = [describe_no_join(plan, known) if known and plan.why == NO_TIMES else describe_no_plan(plan)
               for plan in found if isinstance(plan, NoPlan) and plan.workload not in only_times]
    if not plans and not growing:
        raise LogError("\n".join(refused) or "no run with a growing batch met a target; --target gives an easier one")
    if plans and (request.deadline or request.budget) and all(plan.relative for plan in plans):
        raise UsageError("--deadline and --budget need times in seconds, and the steps to target are not known; "
                         "--steps S@B gives them at one batch")
    unused = [PLAN.say("unused", option=option, **{why: True}) for option, why, asked, used in (
        ("--steps", "target", given, not all(plan.target for plan in plans)),
        ("--noise-scale", "noise", noise_scale, any(plan.curve.predicted for plan in plans)),
        ("--trials", "search", plans and trials, any(point.searched for plan in plans for point in plan.curve.points)),
        ("--accumulate", "fits", plans and request.accumulate,
         any(one.passes > 1 for plan in plans for one in plan.options)),
        ("--batch-schedule", "met", batch_schedule, growing), ("--format", "out", tuple(formats) != FORMATS, out),
        ("--relaunch", "grows", request.relaunch and not request.starts, growing)) if asked and not used]
    notes = *notes, *joined, *versions.notes, *describe_imports(logs), *refused, *unused
    give_out(document_of_plans(plans, growing, logs, skipped, notes, request.confidence), out, formats, echo, whole)
    for line in [line for plan in growing for line in job_lines(plan)]:
        echo(line)
    return plans


def join_scripts(trials: Sequence[Trial], timed: Collection[str]) -> tuple[list[Trial], list[str]]:
    """(the trials, what to say of it): those of a script among ``timed`` logs become trials of the others' workload, as
    a script's log cannot say what it trains. Raises UsageError where the others are of several."""
    scripts = {trial.workload: script for trial in trials if trial.log in timed
               and (script := (trial.plan.get("problem") or {}).get("script"))}
    others = {trial.workload for trial in trials if trial.log not in timed}
    if not scripts or not others:
        return list(trials), []
    if len(others) > 1:
        raise UsageError(f"--times-from: a script's log does not say what it trains, so the times of "
                         f"{listed(scripts.values())} cannot be given to one of {len(others)} workloads: "
                         f"{listed(sorted(map(str, others)), 'and')}; plan for the logs of one of them")
    [workload] = others
    return [trial.but(workload=workload) if trial.workload in scripts and trial.log in timed else trial
            for trial in trials], [PLAN.say("scripts", scripts=list(scripts.values()), workload=str(workload))]


def steps_of(section: Section, studies: Sequence[Study]) -> tuple[tuple[StepsPoint, ...], np.ndarray | None]:
    """(StepsPoints, draws of their fit or None) of a section: of repeats, or where searched of the studies."""
    searched = {trial.global_batch for trial in section.trials if any(map(trial.plan.get, OF_SEARCH))}
    own = [study for study in studies if study.workload == section.workload and study.global_batch in searched]
    return points_of(section, curve_of(own, section.target, section.options) if section.target else None)


def document_of_plans(plans: Sequence[WorkerPlan], growing: Sequence[GrowingPlan], logs: Sequence[LogFacts],
                      skipped: Sequence[str], notes: Sequence[str], confidence: float) -> Document:
    taken: set[str] = set()

    def page(plan: WorkerPlan, workload: JobKey) -> Page:
        name = unique(section_name(workload, plan.target) or "plan", (workload, plan.target), taken)
        return Page((*find_basis(plan), plan_table(plan) if plan.options else None,
                     plan_table(plan, synced=True) if plan.synced else None,
                     model_table(plan) if any(option.step_time.mark != MEASURED for option in plan.options) else None,
                     Details(lambda: [plan_table(plan, True)]), Figures(lambda: figures_of_plan(plan))),
                    slug=name, title=title(plan), target=plan.target, verdict=advice(plan))

    def chapter(plan: GrowingPlan) -> Chapter:
        table, heading = growing_table(plan), f"{plan.workload}: batch {plan.batches}"
        said = map(Finding, (describe_growing(plan), *describe_phases(plan)))
        return Chapter((*said, table if table.rows else None, phases_table(plan)), target=plan.target,
                       slug=unique(section_name(plan.workload, plan.target), heading, taken), title=heading)
    pages = tuple((workload, tuple(page(plan, workload) for plan in own))
                  for workload, own in group_by(plans, lambda plan: plan.workload).items() if workload)
    return Document(pages, tuple(logs), tuple(skipped), confidence, tuple(map(chapter, growing)), tuple(notes),
                    "plan", values=lambda: {"plans": list(map(plan_values, plans)),
                                            "growing_batches": list(map(growing_values, growing))})


def decision_values(plan: WorkerPlan) -> dict[str, object]:
    """For JSON: each choice with its expected loss and chances, where the fastest may lie, and what to measure next."""
    few, many = plan.decision.fastest_workers if plan.options else (None, None)
    found = next_runs(plan)
    return {
        **{name: option and {
            **pick(option, "workers global_batch accumulation=passes"), **_sync(option), "expected_loss":
                plan.decision.loss(option.at, weight),
            **{f"chance_within_{100 * share:.0f}_percent": plan.decision.chance(option.at, share, weight)
               for share in (0.05, WITHIN)}}
           for name, option, weight in zip(ROLES, (plan.fastest, plan.cheapest, plan.knee),
                                           (math.inf, 0.0, plan.request.knee))},
        "fastest_at_least_workers": few, "fastest_at_most_workers": many, "most_workers_measured": plan.most_measured,
        "next": found and {
            "runs": [{**pick(run.place, "workers global_batch passes"), **pick(run, "seeds"), **_sync(run.place)}
                     for run in found.runs],
            **pick(found, "worker_hours expected_loss=loss expected_loss_after=loss_after"),
            "said": describe_next(found)}}


def _sync(one: Option | Place | Timing) -> dict[str, int]:
    return dict(zip(("replicas", "sync_every"), one.sync if one.sync != EVERY_STEP else ()))


def plan_values(plan: WorkerPlan) -> dict[str, object]:
    request, workload = plan.request, plan.workload
    roles = zip(ROLES, (plan.fastest, plan.cheapest, plan.knee))
    return {
        "workload": workload and pick(workload, WORKLOAD),
        **pick(plan, "target relative"),
        "summary": (*advice(plan), *sentences_of(find_basis(plan))),
        "request": pick(request, "price per_node deadline_seconds=deadline budget local_batch global_batch "
                        "max_local_batch accumulate knee confidence runs power"),
        **{name: option and option.workers for name, option in roles},
        "pareto_front": [option.workers for option in plan.front],
        "within": [option.workers for option in plan.within()],
        "knee_formula": f"least cost x time^{request.knee:g}; Eager, Zahorjan and Lazowska 1989",
        "tables": [as_values(plan_table(plan, True)), as_values(model_table(plan)),
                   *([as_values(plan_table(plan, synced=True))] if plan.synced else [])],
        **_step_values(plan),
        "assumed": plan.assumed,
        "decision": decision_values(plan),
        "step_times": _time_values(plan),
        "left_out": [{"workers": workers, "why": why} for workers, why in plan.left_out]}


def _step_values(plan: WorkerPlan) -> dict[str, object]:
    critical, source = plan.curve.critical, "noise scale" if plan.curve.predicted else "fit"
    steps = [{"global_batch": point.global_batch, **encode(point.steps), "seeds": point.seeds or None,
              "seeds_met": point.met if point.seeds else None, "trials": trial_list(point.trials)}
             for point in plan.curve.points]
    return {"steps": steps, "critical_batch": critical and {**pick(critical, "low high median=value"), "from": source}}


def _time_values(plan: WorkerPlan) -> dict[str, object]:
    times = plan.times
    return {
        **pick(times.timings, "machine"),
        **pick(times.model, "misses"),
        "laws": [{"name": law, "probability": share, "refuted": share < REFUTED_AT}
                 for law, share in times.model.laws.items()],
        "timings": [{**pick(one, "workers nodes global_batch accumulation=passes seconds=value"),
                     "runs": len(one.seconds), **_sync(one), **pick(one, "crowded"),
                     "trials": trial_list(one.trials)} for one in times.timings.found]}


def growing_values(plan: GrowingPlan) -> dict[str, object]:
    beside = "global_batch steps seconds cost steps_ratio examples_ratio seconds_ratio"
    return {**pick(plan, "workload target"), "batch_schedule": plan.batches.pairs, **pick(plan, "predicted"),
            "summary": " ".join((describe_growing(plan), *describe_phases(plan))),
            "worker_phases": [{**pick(one, "seconds cost changes"), "phases": [
                pick(phase, "global_batch workers start known=mark") for phase in one.phases]} for one in plan.phases],
            "jobs": [*job_lines(plan)], "options": [
                {**pick(option, "workers nodes known=mark steps examples seconds cost"),
                 "beside": [pick(one, beside) for one in option.beside]} for option in plan.options],
            "left_out": [{"workers": workers, "why": why} for workers, why in plan.left_out],
            "trials": trial_list(plan.trials)}


# Of a size that nobody has run, from laws over smaller ones

def make_size_plan(paths: Iterable[Path], targets: Sequence[Target], wanted: Mapping[str, float],
                   sizes: Sequence[Size], *, options: Options = Options(), local_batch: int | None = None,
                   skip_broken: bool = False, out: Path | None = None, formats: Sequence[str] = (),
                   whole: bool = False, echo: Callable[[str], object] = print) -> Predictions:
    """Print what laws over the logs' sizes predict at another size, and write it under ``out`` where that is given.

    wanted       the size to plan for, by name; sizes: where the logs' own sizes of these names come from
    local_batch  examples a worker; None: the most in the logs
    Raises UsageError or LogError, with what would help, where there is no law.
    """
    refuse_no_folder(out)
    with ExitStack() as opened:
        opened_logs, skipped = open_logs(list(paths), skip_broken, opened)
        versions = Versions(opened_logs)
        most = max((int(np.max(log.trials["local_batch"])) for log in opened_logs if log.trials.rows), default=0)
        trials = [trial for log in opened_logs for trial in read_trials(log, versions)]
        found = SizeLaws(analyse(trials, targets, options), studies_of(opened_logs, versions), sizes, options=options)
        logs = tuple(map(facts_of, opened_logs))
    if not (known := {key: law for key, law in found.quantities.items() if law.exponents}):
        why = [describe_law(key, law).said for key, law in found.quantities.items()]
        raise LogError(" ".join(why) or PLAN.say("size_none", sizes=list(wanted)))
    predictions = {key: law.predict(wanted) for key, law in known.items()}
    table = prediction_table(predictions, local_batch or most, options.confidence)
    laws, law = parts_of_laws(found), next(iter(known.values()))
    far = max(prediction.extrapolated for prediction in predictions.values())
    end = "largest" if any(value > law.measured(name).max() for name, value in wanted.items()) else "smallest"
    reasons = group_by(((key, one) for key, one in predictions.items() if one.refused), lambda row: PLAN.say(
        f"size_{row[1].refused}", times=row[1].extrapolated, reach=REACH, widest=WIDEST))
    said = [PLAN.say("size_reach", inside=far <= 1, times=far, end=end), *(
        f"No {listed([QUANTITIES[key][0] for key, _ in refused], 'or')}: {why}." for why, refused in reasons.items())]
    chapter = Chapter((*map(Finding, said), table, *(one for one in laws if not isinstance(one, Finding))), slug="plan",
                      title=", ".join(f"{name} {number(value)}" for name, value in wanted.items()))

    def values() -> dict[str, object]:
        return {"predictions": [{"quantity": key, "sizes": dict(one.sizes), "beyond": dict(one.beyond),
                                 "refused": one.refused, **encode(one.estimate)} for key, one in predictions.items()],
                "tables": [as_values(one) for one in (*chapter.tables, *chapter.details)]}
    give_out(Document((), logs, tuple(skipped), options.confidence, (chapter,), tuple(versions.notes), "plan",
                      values=values), out, formats, echo, whole)
    return predictions


def prediction_table(predictions: Predictions, local_batch: int, confidence: float) -> Table:
    rows = [(capital(QUANTITIES[key][0]), cell_of(one.estimate, write=WRITE.get(key, whole)),
             "refused" if one.refused else "measured range" if one.extrapolated <= 1 else
             f"{number(one.extrapolated, 2)} x beyond") for key, one in predictions.items()]
    batch = next((predictions[key].estimate for key in BATCHES
                  if key in predictions and not predictions[key].refused), None)
    if batch is not None and local_batch:
        held = batch.mapped(lambda one: one if math.isnan(one) else max(1.0, float(-(-one // local_batch))))
        rows.append(("Workers for that batch", cell_of(held, write=whole), f"at {local_batch:,} examples each"))
    notes = (PLAN.say("size_intervals", confidence=confidence),)
    return PLAN.table("size-prediction", rows, notes=notes, cells={
        "quantity": lambda row: row[0], PLAN.column("predicted", "value"): lambda row: row[1],
        "basis": lambda row: row[2]})
