"""What is said of single trials: left out, slow, drifting, not learning; and their training curves."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

from ...analysis.report_data import Section
from ...analysis.search import covers
from ...analysis.timings import drift_of
from ...analysis.step_breakdown import MOST_ROWS, SKIPPED
from ...analysis.steps import SPEED, RunCell, RunToTarget, crossing_of
from ...analysis.studies import best_value, group_by
from ...analysis.trials import Trial
from ...formatting.numbers import capital, counted, in_brackets, list_first, listed, number, whole, written
from ...log.plan_text import count_nans
from ...log.schema import UNKNOWN_SEED, Status
from ...plan.batch_schedule import BatchSchedule
from ...plan.schedule import Schedule
from ...plan.search_space import STEPS_TO_TARGET
from ...target import Target
from ..document import Details, Figures, Finding, Part
from ..drawing import (CROWDED_COUNT, HOVER, INK, Axes, Figure, decimal_ticks, explain, is_named, label_axes,
                       power_ticks, shade)
from ..plan.words import describe_slowing
from ..subject import Subject
from ..table import Cell, Column, Table, keys_of, metric_name
from ..texts import GENERAL, SCALING, Cells
from .cells import CROWDED, settings_of, show_value

MOST_NAMED = 4      # trials, or runs
MOST_RUNS = 2000    # of the table that has a row for each
# axis, in short, and the column of the log, of what a curve is drawn against
ACROSS = {"step": ("steps", "steps", "step of /evaluations"),
          "tokens": ("training tokens", "tokens", "sums of tokens of /steps"),
          "train_seconds": ("training time (seconds, evaluation left out)", "time", "train_seconds of /evaluations")}


def irregular(subject: Subject) -> Iterator[Finding]:
    """Runs left out of the times, and seeds left out of the steps, that took far more than others of their setting;
    times that drift with the order of the runs, or differ between repeats of the series, but of a search; seeds whose
    runs, the same updates by their settings, met the target and did not."""
    slow = [f"{name_trials([run.trial])} at {counted(run.trial.workers, 'worker')}, batch {run.trial.global_batch:,}, "
            f"took {number(times, 2)}x as long" for run, times in subject.slow]
    ratios = {(cell.global_batch, seed[0]): ratio for cell in subject.cells for seed, ratio in cell.apart.items()}
    apart = [f"seed {written(seed)} at batch {batch:,} needed {number(times, 2)}x as many steps"
             for (batch, seed), times in ratios.items()]
    for kind, what, said in (("slow", "runs", slow), ("apart", "seeds", apart)):
        if said:
            yield SCALING.find(kind, None, (capital(list_first(said, MOST_NAMED)) + ".",), **{what: len(said)})

    cells = [cell for cell in subject.cells if cell.runs and not cell.searched]
    if slowing := [run.trial.slowing for cell in cells for run in cell.runs if run.trial.slowing > 0]:
        yield from describe_slowing(slowing)
    if drift := drift_of(cells, subject.options.confidence):
        a_run, warm = drift
        grew, *ends = (100 * abs(value - 1) for value in (a_run.value, a_run.low, a_run.high))
        paces = [(cell, one.scaled(1000 * cell.global_batch)) for cell, one in zip(cells, warm)]
        pace = "; ".join(f"{counted(cell.workers[0], 'worker')}, batch {cell.global_batch:,}: {number(ms.value)} ms"
                         f"{in_brackets(ms.low, ms.high)}" for cell, ms in paces if math.isfinite(ms.value))
        yield SCALING.find("drift", a_run, (SCALING.say("drift_pace", pace=pace),), runs=a_run.runs, grew=grew,
                           least=min(ends), most=max(ends), longer=a_run.value > 1)
    elif repeats := subject.pools.of(SPEED).of_repeats:
        yield GENERAL.find("repeats", **repeats)

    every = [run for cell in subject.cells if subject.target for run in cell.runs]
    for runs in group_by(every, lambda run: (run.trial.setting, run.trial.seed_key)).values():
        first, missed = runs[0].trial, [run.trial for run in runs if not run.met]
        if 0 < len(missed) < len(runs):
            yield SCALING.find("split_seed", None, (SCALING.say("split_seed_of", missed=name_trials(missed)),),
                               seed=str(first.seed), batch=first.global_batch, target=subject.target,
                               met=len(runs) - len(missed), runs=len(runs))


def unlearned(subject: Subject) -> Iterator[Finding]:
    """How many trials ended with no lower loss than they began with, by batch, and one of them."""
    judged = [trial for trial in subject.with_status(Status.COMPLETE) if trial.losses and len(trial.step)]
    trials = [trial for trial in judged if trial.losses and trial.losses.last >= trial.losses.first
              and not (subject.target and RunToTarget(trial, subject.target).met)]
    all_of, lost = (Counter(trial.global_batch for trial in some) for some in (judged, trials))
    where = "; ".join(f"batch {batch:,}: {count:,} of {all_of[batch]:,}" for batch, count in sorted(lost.items()))
    if trials and (losses := trials[0].losses):
        yield SCALING.find("unlearned", None, (SCALING.say("unlearned_of", trials=name_trials(trials)),),
                           trials=len(trials), where=where, several=len(trials) > 1, first=float(losses.first),
                           last=float(losses.last))


def schedules(section: Section) -> tuple[str, ...]:
    """The learning rate by step at each batch, as the plans settled it; of a search that met nothing no trial's."""
    found: dict[BatchSchedule, dict[str, None]] = {}
    for run in (run for cell in section.cells if cell.met or not section.searches for run in cell.runs):
        schedule = Schedule.of(run.trial.plan.get("problem") or {})
        if schedule:
            found.setdefault(run.trial.batches, {})[schedule.describe("{:.3g}".format)] = None
    other = any(search.objective != STEPS_TO_TARGET for search in section.searches)
    batches = "; ".join(f"{batches.in_brief()}: {' or '.join(found[batches])}" for batches in sorted(found))
    return (SCALING.say("schedules", target=section.target if other else None, batches=batches),) if found else ()


def left_out(section: Section) -> Iterator[str]:
    """Which trials are in no estimate, and why."""
    target, diverged = section.target, section.with_status(Status.INFEASIBLE)
    met = [trial for trial in diverged if target and RunToTarget(trial, target).met]
    # of studies that stop at an easier target of their own, so that this one cannot judge them
    stopped = [trial for trial in section.trials if trial.sweep and target and not covers(trial.sweep, target)]
    pruned = [trial for trial in section.with_status(Status.INCOMPLETE) if trial.pruned and trial not in stopped]
    runs = [run for cell in section.cells for run in cell.runs]
    nans = group_by(((column, trial, count) for trial in section.trials if trial.status != Status.INFEASIBLE
                     for column, count in count_nans(trial.metrics, trial.measurement).items()), itemgetter(0))
    found: list[tuple[str, Sequence[Trial], Mapping[str, object]]] = [      # kind, trials, what else is said of them
        *(("ended_open", [trial for trial in section.with_status(status) if not trial.pruned],
           {"status": status.name}) for status in (Status.RUNNING, Status.INCOMPLETE)),
        ("cut_short", [trial for trial in section.trials if trial.cut_short], {}),
        ("unmeasured", [trial for trial in section.with_status(Status.COMPLETE)
                        if target and not len(trial.rows_with(target.column))], {"metric": target and target.column}),
        ("diverged", diverged, {"met": len(met) or None, "met_named": met and name_trials(met)}),
        *(("nan", own := [trial for _, trial, _ in rows], {
            "metric": column, "count": sum(count for *_, count in rows), "trials": name_trials(own),
            "evaluations": sum(len(trial.step) for trial in own)}) for column, rows in nans.items()),
        ("pruned", pruned, {"met": sum(RunToTarget(trial, target).met for trial in pruned) or None}),
        ("stopped", stopped, {"own": sorted({trial.sweep["targets"][-1] for trial in stopped}), "target": target}),
        ("parts_skipped", [run.trial for run in runs if run.trial.step_parts is SKIPPED], {"most": MOST_ROWS}),
        ("stopped_early", [run.trial for run in runs if not run.met and _stopped_at_target(run.trial)], {}),
        ("moved", [trial for trial in section.trials if len(trial.worker_counts) > 1], {})]
    for kind, trials, more in found:
        if trials:
            yield SCALING.say(kind, **{"trials": f"{len(trials):,} of {counted(len(section.trials), 'trial')}",
                                       "named": name_trials(trials), **more})


def _stopped_at_target(trial: Trial) -> bool:
    own = Target.parse(trial.target) if trial.target and not trial.measurement.get("keep_going") else None
    return own is not None and own.column in trial.metrics and RunToTarget(trial, own).met


def name_trial(trial: Trial) -> str:
    """``w8.h5:1``, or the file that another program wrote of it."""
    return trial.plan.get("file") or f"{trial.log}:{trial.id}"


def name_trials(trials: Sequence[Trial]) -> str:
    """``w8.h5:1, 2; w16.h5:1 and 3 more``: a log once, then its trials."""
    by_log = group_by(trials[:MOST_NAMED], lambda trial: trial.plan.get("file") or trial.log)
    named = "; ".join(log if "file" in own[0].plan else f"{log}:{', '.join(str(trial.id) for trial in own)}"
                      for log, own in by_log.items())
    return named + (f" and {len(trials) - MOST_NAMED:,} more" if len(trials) > MOST_NAMED else "")


def runs(subject: Subject) -> Iterator[Part]:
    """Training curves, and for files a row a trial."""
    yield Figures(partial(training, subject))
    if 1 < len(subject.trials) <= MOST_RUNS:
        yield Details(lambda: [runs_table(subject)])


def runs_table(section: Section) -> Table:
    """A row a trial, with what distinguishes its setting, and what it reached."""
    target = section.target
    settings = settings_of(trial.setting for trial in section.trials)
    cells: Cells = {
        SCALING.column("run"): lambda run: Cell(name_trial(run.trial), name_trial(run.trial)),
        "workers": lambda run: run.trial.workers, "global_batch": lambda run: run.trial.global_batch,
        "seed": lambda run: Cell("unknown" if run.trial.seed == UNKNOWN_SEED else str(run.trial.seed), run.trial.seed)}
    for name in next(iter(settings.values()), ()):
        shown = {setting: Cell(show_value(value := own[name]), value if isinstance(value, (int, float, str)) else None)
                 for setting, own in settings.items()}
        cells[Column(name, name.replace("_", " "), formula="of the run's setting")] = partial(
            lambda shown, run: shown[run.trial.setting], shown)
    cells["status"] = lambda run: Cell(run.trial.status.name, run.trial.status.name)
    if target:
        cells |= {"run_steps": lambda run: Cell(whole(run.steps) if run.met else "not met", run.steps),
                  "run_seconds": lambda run: run.seconds if run.met else Cell("not met", run.seconds),
                  "lasting_steps": lambda run: getattr(crossing_of(run.trial, target), "steps", math.nan),
                  "run_best": lambda run: best_value(run.trial.metrics[target.column], target.minimizes)}
    found = [RunToTarget(trial, target, section.options.crossing) for trial in section.trials]
    return SCALING.table("runs", found, cells, lambda run: (run.trial.key,), metric=target.column if target else "")


def other_targets(subject: Subject) -> Iterator[Finding]:
    """The further targets of a sweep, and the fewest steps to each at every batch."""
    others = {text: Target.parse(text) for trial in subject.trials for text in trial.sweep.get("targets", ())}
    others.pop(str(subject.target), None)
    drawn = [trial for trial in subject.trials if trial.status != Status.INFEASIBLE and not trial.sweep.get("repeat")]
    by_batch, said = sorted(group_by(drawn, lambda trial: trial.global_batch).items()), []
    for target in others.values():
        fewest = [(batch, min(RunToTarget(trial, target).steps for trial in own)) for batch, own in by_batch]
        said.append(f"{target}: " + listed(
            f"{f'{steps:,.0f} steps' if math.isfinite(steps) else 'not met'} at batch {batch:,}"
            for batch, steps in fewest) + ".")
    if said:
        yield SCALING.find("other_targets", None, said, targets=list(others.values()), target=[*others.values()][-1])


def training(subject: Subject) -> Iterator[Figure]:
    """Of the target's metric, else of the first there is of validation, test or training, an error before others."""
    names = {name for cell in subject.cells for run in cell.runs for name in run.trial.metrics if _has_curve(run, name)}
    metric = subject.target.column if subject.target else min(names, default="", key=lambda name: (
        ("val", "test", "train").index(name.split("/")[0]), "error" not in name, name))
    for across, (label, short, column) in ACROSS.items() if metric else ():
        drawn = [(cell, [run for run in cell.runs if _has_curve(run, metric, across)]) for cell in subject.cells]
        drawn = [(cell, runs) for cell, runs in drawn if runs]
        if drawn:
            yield SCALING.figure("curve", partial(_draw_curves, subject, metric, across, drawn),
                                 keys_of(cell for cell, _ in drawn), metric=metric,
                                 name=f"curve-{across.removeprefix('train_')}",
                                 metric_name=metric_name(metric), short=short, label=label, column=column)


def _draw_curves(section: Section, metric: str, across: str, drawn: Sequence[tuple[RunCell, Sequence[RunToTarget]]],
                 axes: Axes) -> None:
    goal = [section.target.value] if section.target and section.target.column == metric else []
    starts, ends, values = [], [], [*goal]
    for at, (cell, runs) in enumerate(drawn):
        crowded = across == "train_seconds" and cell.oversubscribed
        name = f"W = {listed(cell.workers)}{CROWDED if crowded else ''}, B = {cell.global_batch:,}"
        if crowded:
            explain(axes, CROWDED_COUNT)
        for index, run in enumerate(runs):
            x, y = getattr(run.trial, across), run.trial.metrics[metric]
            axes.plot(x, y, color=shade(at, len(drawn)), linewidth=1, alpha=0.9, linestyle="--" if crowded else "-",
                      gid=f"{HOVER}{name}, seed {run.trial.seed}: {name_trial(run.trial)}",
                      label=None if index or not is_named(at, len(drawn)) else name)
            starts += x[x > 0][:1].tolist()
            ends.append(x[-1])
            values += [value for value in y if math.isfinite(value)]
    if values and min(values) > 0 and max(values) > 8 * min(values):
        axes.set_yscale("log")
        decimal_ticks(axes.yaxis, (min(values), max(values)))
    if starts and max(ends) > 3 * min(ends) > 0:
        axes.set_xscale("log", base=2 if across == "step" else 10, nonpositive="mask")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        if across == "step":
            power_ticks(axes.xaxis, min(starts), max(ends))
        else:
            decimal_ticks(axes.xaxis, (min(starts), max(ends)))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    for value in goal:
        axes.axhline(value, color=INK, linestyle="--", linewidth=1.1, label=f"target {section.target}")
    label_axes(axes, ACROSS[across][0], metric_name(metric))


def _has_curve(run: RunToTarget, metric: str, across: str = "step") -> bool:
    """Whether a run was evaluated twice, at times that are known, so that there is a curve to draw."""
    where = getattr(run.trial, across)
    return where is not None and metric in run.trial.metrics and len(where) > 1 and math.isfinite(where[-1])
