"""What the tables and figures say, in sentences: titles, notes, and the findings that a report opens with."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...analysis.drift import drift_of
from ...analysis.grouping import group_by
from ...analysis.intervals import OWN_FROM
from ...analysis.noise_against import as_estimate, best_known
from ...analysis.pooled_variance import stand_out, updates
from ...analysis.report_data import Section
from ...analysis.search import Search
from ...analysis.speedup import WEAK, Series, SpeedupPoint, compare
from ...analysis.step_breakdown import MOST_ROWS
from ...analysis.steps import SPEED, RunCell, run_of
from ...analysis.trials import Trial
from ...formatting.numbers import capital, counted, exact, in_brackets, list_first, listed, number, spread
from ...log.schema import Status
from ...plan.batch_schedule import BatchSchedule
from ...plan.schedule import Schedule
from ...plan.search_space import STEPS_TO_TARGET
from ...target import Target
from ..differences import problems_of_points, settings_tried
from ..findings import Finding, sentences_of
from ..search import words as search_words
from .crossings import find_early_crossing
from .ranks import rank_findings
from .regimes import SCALING, find_judged, find_trials

ONE_RUN = "*"       # marks a point with one run
CROWDED = "#"       # marks a worker count at which a host had fewer cores than workers
MOST_NAMED = 4      # trials, or runs
MOST_ALONE = 3      # points of no series that are told one by one


def series_name(series: Series) -> str:
    """For file names: weak-32, strong-256."""
    return f"{series.kind}-{exact(float(series.size)).replace(',', '')}"


def series_kind(series: Series) -> str:
    """``weak scaling, 32 examples a worker``."""
    size = exact(float(series.size))
    if series.kind == WEAK:
        return f"weak scaling, {size} examples a worker"
    batches = series.baseline.batches
    return f"strong scaling, global batch {size if batches.is_constant else batches.in_brief()}"


def workers_marked(cell: RunCell) -> str:
    """Its worker count, ``4#`` where its runs crowded their host."""
    return f"{cell.workers[0]}{CROWDED if cell.oversubscribed else ''}"


def of_searches(section: Section, cells: Sequence[RunCell]) -> str:
    """What the steps are where those of each cell are the fewest of a search; empty where they are not."""
    cells = [cell for cell in cells if cell.runs]
    searched = section.target and cells and all(cell.searched for cell in cells)
    return f" ({search_words.best_of_each(section.options.confidence)})" if searched else ""


# the findings, what decides most first

def findings(section: Section, planned: bool = False) -> tuple[Finding, ...]:
    """What a section found, what decides most first.

    planned  whether a plan has said which worker count is the fastest
    """
    timed = any(cell.examples_per_second.value == cell.examples_per_second.value for cell in section.alone)
    alone = section.alone if len(section.alone) <= (MOST_ALONE if timed else 1) else ()         # else the table says it
    return (*(found for series in section.series for found in (
                _find_speedup(section, series, planned) if section.target else _find_throughput(section, series))),
            *(_find_alone(section, cell) for cell in alone), *_find_slow(section), *_find_apart(section),
            *_find_drift(section), *_find_split_seeds(section), *find_early_crossing(section),
            *_find_unlearned(section), *_find_growing(section), *_find_batches(section),
            *search_words.find_next(section.searches), *_find_other_targets(section), *_find_parts(section),
            *rank_findings(section), *_find_noise(section))


def summary(section: Section) -> tuple[str, ...]:
    """The same in sentences, and the learning rates."""
    return (*sentences_of(findings(section)), *schedules(section))


def _find_speedup(section: Section, series: Series, planned: bool) -> Iterator[Finding]:
    """What more workers buy, and at which the target was not met."""
    kind = _kind(section, series)
    timed = [point for point in series.points if point.time_speedup.value == point.time_speedup.value]
    if len(timed) > 1:
        best, last = min(timed, key=lambda point: point.cell.seconds.value), timed[-1]
        yield SCALING.find("speedup", last.time_speedup, series=kind, first=timed[0].workers, last=last.workers,
                           speedup=last.time_speedup, product=last.product.value, greater=_greater_loss(last))
        if best is not last and not planned:
            yield SCALING.find("shortest", best.cell.seconds, workers=best.workers, seconds=best.cell.seconds)
    unmet = [SCALING.say("unmet_at", workers=point.workers, met=point.cell.met or None,
                         seeds=len(point.cell.samples.seeds))
             for point in series.points if point.cell.runs and not point.cell.steps.met]
    if unmet:
        yield SCALING.find("unmet", series=kind, target=section.target, where=unmet)
    lost = [point.workers for point in series.points if not point.cell.runs]
    if lost:
        yield SCALING.find("all_diverged", series=kind, workers=lost)


def _kind(section: Section, series: Series) -> str:
    """``Weak scaling``, with its size where there are several such series."""
    several = sum(one.kind == series.kind for one in section.series) > 1
    return capital(series_kind(series) if several else f"{series.kind} scaling")


def _greater_loss(point: SpeedupPoint) -> str:
    statistical, system = point.statistical_efficiency.value, point.system_efficiency.value
    if not 0 < statistical * system < 0.95:
        return ""
    return "statistics" if statistical < system else "the system"


def _find_throughput(section: Section, series: Series) -> Iterator[Finding]:
    first, last = series.points[0], series.points[-1]
    speedup = last.throughput_speedup
    if speedup.value == speedup.value:
        yield SCALING.find("throughput", speedup, series=_kind(section, series), first=first.workers,
                           last=last.workers, speedup=speedup, efficiency=last.system_efficiency.value,
                           slow=first.cell.examples_per_second.value, fast=last.cell.examples_per_second.value)


def _find_alone(section: Section, cell: RunCell) -> Finding:
    """Of a point that is in no series."""
    where, speed = f"{counted(cell.workers[0], 'worker')}, global batch {cell.batches.in_brief()}", "no time is known"
    known = cell.examples_per_second.value == cell.examples_per_second.value
    if known:
        speed = f"{number(cell.examples_per_second.value)} examples per second"
    kind = ("alone_diverged" if not cell.runs else "alone_speed" if not section.target else
            "alone" if cell.steps.met else "alone_unmet")
    return SCALING.find(kind, where=where, target=section.target, speed=speed,
                        steps=cell.steps.value if cell.steps.met else cell.steps.beyond,
                        seconds=cell.seconds.value if known and kind == "alone" else None)


def _find_slow(section: Section) -> Iterator[Finding]:
    """Runs that are left out of the times, as they took far longer than the others of their setting."""
    named = [SCALING.say("slow_run", run=_named([run.trial]), workers=run.trial.workers, batch=run.trial.global_batch,
                         times=times) for run, times in section.slow]
    if named:
        yield SCALING.find("slow", None, (capital(list_first(named, MOST_NAMED)) + ".",), runs=len(named))


def _find_apart(section: Section) -> Iterator[Finding]:
    """Seeds that are left out of the steps, as they needed far more than the others of their setting."""
    found = {(cell.global_batch, seed[0]): ratio for cell in section.cells for seed, ratio in cell.apart.items()}
    named = [SCALING.say("apart_seed", seed=seed, batch=batch, times=times) for (batch, seed), times in found.items()]
    if named:
        yield SCALING.find("apart", None, (capital(list_first(named, MOST_NAMED)) + ".",), seeds=len(named))


def _find_drift(section: Section) -> Iterator[Finding]:
    """Times that drift with the order of the runs, and the pace of the last one; of repeats, not of a search."""
    cells = [cell for cell in section.cells if cell.runs and not cell.searched]
    drift = drift_of(cells, section.options.confidence)
    if drift is None:
        return
    grew, *ends = (100 * abs(value - 1) for value in (drift.a_run.value, drift.a_run.low, drift.a_run.high))
    paces = [(cell, warm.scaled(1000 * cell.global_batch)) for cell, warm in zip(cells, drift.warm)]
    pace = "; ".join(SCALING.say("drift_pace_at", workers=cell.workers[0], batch=cell.global_batch,
                                 ms=ms.value, ends=in_brackets(ms.low, ms.high))
                     for cell, ms in paces if math.isfinite(ms.value))
    yield SCALING.find("drift", drift.a_run, (SCALING.say("drift_pace", pace=pace),), runs=drift.runs, grew=grew,
                       least=min(ends), most=max(ends), longer=drift.a_run.value > 1)


def _find_split_seeds(section: Section) -> Iterator[Finding]:
    """Seeds whose runs, the same updates by their settings, met the target and did not."""
    for runs in section.split_seeds:
        first, missed = runs[0].trial, [run.trial for run in runs if not run.met]
        yield SCALING.find("split_seed", None, (SCALING.say("split_seed_of", missed=_named(missed)),),
                           seed=str(first.seed), batch=first.global_batch, target=section.target,
                           met=len(runs) - len(missed), runs=len(runs))


def _find_unlearned(section: Section) -> Iterator[Finding]:
    """How many trials ended with no lower loss than they began with, by batch, and one of them."""
    trials = section.unlearned
    if not trials or trials[0].losses is None:
        return
    all_of, lost = (Counter(trial.global_batch for trial in some) for some in (section.judged, trials))
    yield SCALING.find("unlearned", None, (SCALING.say("unlearned_of", trials=_named(trials)),), trials=len(trials),
                       where="; ".join(f"batch {batch:,}: {count:,} of {all_of[batch]:,}"
                                       for batch, count in sorted(lost.items())),
                       several=len(trials) > 1, first=float(trials[0].losses.first), last=float(trials[0].losses.last))


def _find_growing(section: Section) -> Iterator[Finding]:
    """What the growing batch bought at the most workers where a constant one ran, too."""
    pairs = [(cell, one) for cell in section.cells for one in section.constant if one.workers == cell.workers]
    for cell, one in pairs:
        gained = compare(cell, one, section.options.confidence)
        speedup = gained.time_speedup
        if cell.workers == pairs[-1][0].workers and speedup.value == speedup.value:
            yield SCALING.find("growing", speedup, workers=cell.workers[0], speedup=speedup, batch=one.global_batch,
                               examples=1 / gained.statistical_efficiency.value)


def _find_batches(section: Section) -> Iterator[Finding]:
    """Perfect scaling, the maximum useful batch and the fit through the steps."""
    if section.workload.batch_schedule:
        return
    cells = [point.cell for point in section.batches.measured] if section.batches else []
    searched = [cell for cell in cells if cell.searched]
    yield from find_judged(section.batches) if section.batches else ()
    yield from find_trials(max((cell.best_of_n or 0 for cell in searched), default=None),
                           {cell.global_batch: len(cell.draws) for cell in searched}, section.left_out,
                           [cell.global_batch for cell in searched if cell.steps.extrapolated])


def _find_other_targets(section: Section) -> Iterator[Finding]:
    """The further targets of a sweep, and the fewest steps to each at every batch."""
    others = {text: Target.parse(text) for trial in section.trials for text in trial.sweep.get("targets", ())}
    others.pop(str(section.target), None)
    said = []
    for target in others.values() if section.target else ():
        fewest: dict[int, list[float]] = {}
        for trial in section.trials:
            if trial.status != Status.INFEASIBLE and not trial.sweep.get("repeat"):
                fewest.setdefault(trial.global_batch, []).append(run_of(trial, target).steps)
        said.append(SCALING.say("other_target", target=target, fewest=[SCALING.say(
            "other_target_at", steps=f"{min(steps):,.0f}" if math.isfinite(min(steps)) else None, batch=batch)
            for batch, steps in sorted(fewest.items())]))
    if said:
        yield SCALING.find("other_targets", None, said, targets=list(others.values()), target=[*others.values()][-1])


def _find_parts(section: Section) -> Iterator[Finding]:
    """Of the most workers: what a step waits for, beside the fewest workers."""
    if not section.parts:
        return
    (few, before), (many, after) = section.parts[0], section.parts[-1]
    where, there = (counted(cell.workers[0], "worker") for cell in (many, few))
    if few is not many and few.workers == many.workers:
        where, there = f"{where}, batch {many.batches.in_brief()}", f"batch {few.batches.in_brief()}"
    yield SCALING.find("parts", where=where, ms=1000 * after.seconds, waiting=after.communication, data=after.data,
                       there=there if few is not many else None, ms_there=1000 * before.seconds,
                       waiting_there=before.communication, data_there=before.data)


def _find_noise(section: Section) -> Iterator[Finding]:
    """Of the batch at which it is known best: the noise scale, and how it changed."""
    found = best_known(section.noise, lambda found: found[1])
    if found is None:
        return
    batch, whole, quarters = found[0].batches.in_brief(), found[1].whole, found[1].quarters
    if not math.isfinite(whole.noise_scale):
        yield SCALING.find("noise_open", batch=batch, steps=whole.steps)
        return
    first, last = quarters[0], quarters[-1]
    known = all(math.isfinite(one.noise_scale) for one in quarters)
    changed = known and ("grew" if first.high < last.low else "fell" if last.high < first.low else "")
    yield SCALING.find("noise", as_estimate(whole), batch=batch, scale=as_estimate(whole), changed=changed, open=known,
                       first=first.noise_scale, last=last.noise_scale)


def schedules(section: Section) -> tuple[str, ...]:
    """The learning rate as a function of the step at each batch, as the plans settled it in whatever unit was typed.

    Of a search that met nothing no trial is the best.
    """
    found: dict[BatchSchedule, dict[str, None]] = {}
    for run in (run for cell in section.cells if cell.met or not section.searches for run in cell.runs):
        schedule = Schedule.of(run.trial.plan.get("problem") or {})
        if schedule:
            found.setdefault(run.trial.batches, {})[schedule.describe("{:.3g}".format)] = None
    other = any(search.objective != STEPS_TO_TARGET for search in section.searches)
    batches = "; ".join(f"{batches.in_brief()}: {' or '.join(found[batches])}" for batches in sorted(found))
    return (SCALING.say("schedules", target=section.target if other else None, batches=batches),) * bool(found)


# the warnings of a section

def left_out(section: Section) -> tuple[str, ...]:
    """Which trials are in no estimate, and why."""
    return tuple(_left_out(section))


def _left_out(section: Section) -> Iterator[str]:
    def some(trials: Sequence[Trial]) -> dict[str, str]:
        return {"trials": f"{len(trials):,} of {counted(len(section.trials), 'trial')}", "named": _named(trials)}
    for status in (Status.RUNNING, Status.INCOMPLETE):
        trials = [trial for trial in section.with_status(status) if not trial.pruned]
        if trials:
            yield SCALING.say("ended_open", status=status.name, **some(trials))
    if section.unmeasured and section.target:
        yield SCALING.say("unmeasured", metric=section.target.column, **some(section.unmeasured))
    diverged, met = section.with_status(Status.INFEASIBLE), section.met_before_diverging
    if diverged:
        yield SCALING.say("diverged", met=len(met) or None, met_named=_named(met), **some(diverged))
    yield from _describe_nans(section)
    told = [trial for trial in section.pruned if trial not in section.not_covered]
    if told:
        before = sum(run_of(trial, section.target).met for trial in told) if section.target else 0
        yield SCALING.say("pruned", met=before or None, **some(told))
    if section.not_covered:
        own = sorted({trial.sweep["targets"][-1] for trial in section.not_covered})
        yield SCALING.say("stopped", own=own, target=section.target, **some(section.not_covered))
    if section.parts_skipped:
        yield SCALING.say("parts_skipped", most=MOST_ROWS)
    if section.stopped_early:
        yield SCALING.say("stopped_early", named=_named(section.stopped_early))
    moved = [trial for trial in section.trials if len(trial.worker_counts) > 1]
    if moved:
        yield SCALING.say("moved", named=_named(moved))


def _describe_nans(section: Section) -> Iterator[str]:
    """The metrics that were NaN, each in a sentence; those of trials that diverged are no news."""
    found: dict[str, list[tuple[Trial, int]]] = {}
    for trial in section.trials:
        for column, count in trial.nan_counts.items() if trial.status != Status.INFEASIBLE else ():
            found.setdefault(column, []).append((trial, count))
    for column, those in found.items():
        yield SCALING.say("nan", metric=column, count=sum(count for _, count in those),
                          evaluations=sum(len(trial.step) for trial, _ in those),
                          trials=_named([trial for trial, _ in those]))


# the notes and warnings of a table

def series_notes(section: Section, series: Series) -> tuple[str, ...]:
    """How to read a series' table."""
    cells = [point.cell for point in series.points]
    paired = len({updates(cell) for cell in cells}) < len(cells)
    return (SCALING.say("series", weak=series.kind == WEAK, workers=series.baseline.workers[0]),
            *[SCALING.say("paired")] * paired, *cell_notes(section, cells))


def series_warnings(section: Section, series: Series) -> tuple[str, ...]:
    """Of a series' table."""
    cells = [point.cell for point in series.points]
    tuned = _tuned(section, cells)
    searched = {one.name for found in tuned.values() for search in found for one in search.space}
    problems = "; ".join(problems_of_points(series.points, searched if len(tuned) == len(cells) else ()))
    unmet = section.target and not series.baseline.steps.met
    return (*[SCALING.say("problems", problems=problems)] * bool(problems),
            *[SCALING.say("baseline_unmet", workers=series.baseline.workers[0])] * bool(unmet),
            *cell_warnings(section, cells))


def cell_notes(section: Section, cells: Sequence[RunCell], times: bool = True) -> tuple[str, ...]:
    """How to read a table of these cells."""
    repeated = [cell for cell in cells if not cell.searched]
    notes = list(_interval_notes(section, repeated, times))
    if any(0 < cell.met < len(cell.samples.seeds) for cell in repeated) and section.target:
        notes.append(SCALING.say("some_unmet"))
    tuned = _tuned(section, cells)
    if tuned:
        notes.append(search_words.tuned_at_each([search for found in tuned.values() for search in found],
                                                section.options.confidence))
    passes = _untimed_passes(cells) if times else ()
    if passes and max(passes):
        notes.append(SCALING.say("warmup", passes=spread(passes)))
    return tuple(notes)


def cell_warnings(section: Section, cells: Sequence[RunCell], times: bool = True) -> tuple[str, ...]:
    """Of a table of these cells."""
    return tuple(_cell_warnings(section, cells, times))


def _cell_warnings(section: Section, cells: Sequence[RunCell], times: bool) -> Iterator[str]:
    repeated = [cell for cell in cells if not cell.searched]
    if any(len(cell.samples.seeds) == 1 for cell in repeated):
        yield SCALING.say("one_run", mark=ONE_RUN, target=section.target)
    met = [run for cell in repeated for run in cell.runs if run.met]
    first = sum(math.isnan(run.steps_before) for run in met)
    if first:
        yield SCALING.say("first_evaluation", first=first, runs=len(met))
    yield from _spread_warnings(section, repeated, times)
    tuned = _tuned(section, cells)
    tried = [cell for cell in cells if cell.settings > 1 and id(cell) not in tuned]
    if tried:
        yield SCALING.say("settings", settings=settings_tried(tried), target=section.target, batches=[
            f"{cell.global_batch:,} ({cell.settings:,})" for cell in tried])
    if times:
        yield from crowded_warnings(cells)
        passes = _untimed_passes(cells)
        if passes and not max(passes) and any(cell.examples_per_second.runs for cell in cells):
            yield SCALING.say("no_warmup")


def _untimed_passes(cells: Sequence[RunCell]) -> set[int]:
    return {run.trial.execution.get("untimed_passes") or 0 for cell in cells for run in cell.runs}


def _tuned(section: Section, cells: Sequence[RunCell]) -> dict[int, list[Search]]:
    """The searches behind cells of which every setting was one drawn by them, by the cell's id."""
    found = {}
    for cell in cells if section.target else ():
        behind = [search for search in section.searches if search.global_batch == cell.global_batch]
        drawn = {draw.trial.setting for search in behind for draw in search.draws if draw.trial}
        if behind and all(trial.setting in drawn for trial in cell.considered):
            found[id(cell)] = behind
    return found


def _interval_notes(section: Section, cells: Sequence[RunCell], times: bool) -> Iterator[str]:
    """What intervals claim and are based on."""
    repeats = {len(cell.samples.seeds) for cell in cells} - {0, 1}
    freedom = degrees_of_freedom(section, times)
    if not repeats or not freedom:
        return
    own = min(repeats) >= OWN_FROM
    yield SCALING.say("intervals", confidence=section.options.confidence, own=own, freedom=_freedom(freedom),
                      own_from=OWN_FROM if max(repeats) >= OWN_FROM else None)
    spread = section.pools.of("steps")
    if not own and spread.growth > 0:
        at = [float(spread.at(cell.global_batch).deviation) for cell in cells]
        yield SCALING.say("spread_grows", least=min(at), most=max(at))
    if not own and min(freedom.values()) <= 2:
        yield SCALING.say("few_repeats")


def _spread_warnings(section: Section, cells: Sequence[RunCell], times: bool) -> list[str]:
    """At which points the spread is so large that pooling it misleads."""
    repeats = {len(cell.samples.seeds) for cell in cells} - {0, 1}
    if not repeats or min(repeats) >= OWN_FROM or not degrees_of_freedom(section, times):
        return []
    names = {"steps": "steps", SPEED: "examples per second"} if times else {"steps": "steps"}
    return [SCALING.say("stands_out", what=what, where=[
        f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" for cell in found])
            for name, what in names.items() for found in [stand_out(cells, name)] if found]


def degrees_of_freedom(section: Section, times: bool = True) -> dict[str, int]:
    """Of the pooled spreads of a section, those that are known: steps, seconds, examples per second."""
    names = (["steps"] if section.target else []) + ((["seconds"] if section.target else []) + [SPEED] if times else [])
    return {name: section.pools.of(name).freedom for name in names if section.pools.of(name).freedom}


def _freedom(degrees: Mapping[str, int]) -> str:
    """``6 degrees of freedom`` or ``4 degrees of freedom for steps and 6 for seconds``."""
    if len(set(degrees.values())) == 1:
        return counted(next(iter(degrees.values())), "degree") + " of freedom"
    (first, count), *rest = ((name.replace("_", " "), count) for name, count in degrees.items())
    said = [first, *(f"{other} for {name}" for name, other in rest)]
    return f"{counted(count, 'degree')} of freedom for {listed(said)}"


def crowded_warnings(cells: Sequence[RunCell]) -> list[str]:
    """Which hosts had more workers than cores."""
    crowded = [trial for cell in cells for trial in cell.considered if trial.crowded]
    counts = sorted({(trial.execution["local_workers"], trial.execution["cores"]) for trial in crowded})
    shared = any(trial.workers < trial.execution["local_workers"] for trial in crowded)
    return [SCALING.say("crowded", mark=CROWDED, shared=shared, counts=[f"{n} on {cores}" for n, cores in counts])
            ] * bool(crowded)


def _named(trials: Sequence[Trial]) -> str:
    """``w8.h5:1, 2; w16.h5:1 and 3 more``: a log once, then its trials."""
    by_log = group_by(trials[:MOST_NAMED], lambda trial: trial.log)
    more = f" and {len(trials) - MOST_NAMED:,} more" * (len(trials) > MOST_NAMED)
    return "; ".join(f"{log}:{', '.join(str(trial.id) for trial in own)}" for log, own in by_log.items()) + more
