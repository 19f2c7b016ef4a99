"""What the tables and figures say, in sentences: titles, notes, and the summary that a report opens with."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ...analysis.drift import drift_of
from ...analysis.grouping import group_by
from ...analysis.intervals import OWN_FROM, Estimate
from ...analysis.noise_against import best_known
from ...analysis.pooled_variance import SPEED, stand_out, updates
from ...analysis.report_data import Section
from ...analysis.search import Search
from ...analysis.speedup import WEAK, Series, SpeedupPoint, compare
from ...analysis.step_breakdown import MOST_ROWS
from ...analysis.steps import RunCell, run_of
from ...analysis.trials import Trial
from ...formatting.numbers import (capital, counted, exact, in_brackets, list_first, listed, number, percent, ratio,
                                   spread, whole)
from ...log.schema import Status
from ...plan.batch_schedule import BatchSchedule
from ...plan.schedule import Schedule
from ...plan.search_space import STEPS_TO_TARGET
from ...target import Target
from ..differences import problems_of_points, settings_tried
from ..findings import Finding, sentences_of
from ..search import words as search_words
from .crossings import crossings_found
from .ranks import rank_findings
from .regimes import regimes_found, trials_said

ONE_RUN = "*"       # marks a point with one run
CROWDED = "#"       # marks a worker count at which a host had fewer cores than workers

PRUNING = ("The fewest steps are as without pruning. What pruned trials cannot give: the best metric within the "
           "budget, the spread of final metrics, the median steps, how many would have met the target or diverged.")


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


def _parts_found(section: Section) -> list[Finding]:
    """Of the most workers: what a step waits for, beside the fewest workers."""
    if not section.parts:
        return []
    (few, before), (many, after) = section.parts[0], section.parts[-1]
    where = [counted(cell.workers[0], "worker") for cell in (many, few)]
    if few is not many and few.workers == many.workers:
        where = [f"{where[0]}, batch {many.batches.in_brief()}", f"batch {few.batches.in_brief()}"]
    said = (f"Median step at {where[0]}: {number(1000 * after.seconds)} ms (waiting {percent(after.communication)}, "
            f"data {percent(after.data)})")
    if many is not few:
        said += (f"; at {where[1]}: {number(1000 * before.seconds)} ms ({percent(before.communication)}, "
                 f"{percent(before.data)})")
    return [Finding(f"{said}.")]


def _noise_found(section: Section) -> list[Finding]:
    """Of the batch at which it is known best: the noise scale, and how it changed."""
    found = best_known(section.noise, lambda found: found[1])
    if found is None:
        return []
    cell, noise = found
    whole, quarters = noise.whole, noise.quarters
    said = f"Gradient noise scale at global batch {cell.batches.in_brief()}: "
    if not math.isfinite(whole.noise_scale):
        return [Finding(f"{said}not bounded by the {counted(whole.steps, 'step')} measured.")]
    said += f"{number(whole.noise_scale)} examples{in_brackets(whole.low, whole.high)}"
    if all(math.isfinite(one.noise_scale) for one in quarters):
        first, last = quarters[0], quarters[-1]
        changed = "grew" if first.high < last.low else "fell" if last.high < first.low else ""
        said += (f"; it {changed} from {number(first.noise_scale)} to {number(last.noise_scale)}" if changed else
                 "; no change over the quarters of the steps is sure")
    return [Finding(f"{said}.")]


def of_searches(section: Section, cells: Sequence[RunCell]) -> str:
    """What the steps are where those of each cell are the fewest of a search; empty where they are not."""
    cells = [cell for cell in cells if cell.runs]
    searched = section.target and cells and all(cell.searched for cell in cells)
    return f" ({search_words.best_of_each(section.options.confidence)})" if searched else ""


def series_notes(section: Section, series: Series) -> tuple[str, ...]:
    """How to read a series' table."""
    cells = [point.cell for point in series.points]
    grows = ("the global batch grows with the workers" if series.kind == WEAK
             else "the global batch stays, the share of a worker shrinks")
    paired = ["Ratios to the same updates are paired by seed."] * (len({updates(cell) for cell in cells}) < len(cells))
    return (f"{series.kind.capitalize()} scaling: {grows}. Ratios are to W = {series.baseline.workers[0]}.", *paired,
            *cell_notes(section, cells))


def series_warnings(section: Section, series: Series) -> tuple[str, ...]:
    """Of a series' table."""
    cells, warnings = [point.cell for point in series.points], []
    tuned = _tuned(section, cells)
    searched = {one.name for found in tuned.values() for search in found for one in search.space}
    problems = problems_of_points(series.points, searched if len(tuned) == len(cells) else ())
    if problems:
        warnings.append(f"The points are not of one problem: {'; '.join(problems)}.")
    if section.target and not series.baseline.steps.met:
        warnings.append(f"The baseline, W = {series.baseline.workers[0]}, did not meet the target: ratios of steps and "
                        "seconds cannot be formed.")
    return (*warnings, *cell_warnings(section, cells))


def _batches_found(section: Section) -> list[Finding]:
    """Perfect scaling, the maximum useful batch and the fit through the steps."""
    if section.workload.batch_schedule:
        return []
    cells = [point.cell for point in section.batches.measured] if section.batches else []
    searched = [cell for cell in cells if cell.searched]
    return [*regimes_found(section.batches.regimes if section.batches else None, [cell.global_batch for cell in cells],
                           [cell.steps for cell in cells], [cell.met > 0 for cell in cells]),
            *map(Finding, trials_said(max((cell.best_of_n or 0 for cell in searched), default=None),
                                      {cell.global_batch: len(cell.draws) for cell in searched}, section.left_out,
                                      [cell.global_batch for cell in searched if cell.steps.extrapolated]))]


def findings(section: Section, planned: bool = False) -> tuple[Finding, ...]:
    """What a section found, what decides most first.

    planned  whether a plan has said which worker count is the fastest
    """
    found = []
    for series in section.series:
        found += _series_found(section, series, planned) if section.target else _throughput_found(section, series)
    found += [Finding(_alone_said(section, cell)) for cell in section.alone] if len(section.alone) <= 3 else []
    found += _slow_found(section)
    found += _drift_found(section)
    return (*found, *_split_seeds_found(section), *crossings_found(section), *_unlearned_found(section),
            *_growing_found(section),
            *_batches_found(section),
            *map(Finding, search_words.summary(section.searches)), *map(Finding, _other_targets_said(section)),
            *_parts_found(section), *rank_findings(section), *_noise_found(section))


def _slow_found(section: Section) -> list[Finding]:
    """Runs that are left out of the times, as they took far longer than the others of their setting."""
    if not section.slow:
        return []
    named = [f"{_named([run.trial])} at {counted(run.trial.workers, 'worker')}, batch {run.trial.global_batch:,}, took "
             f"{number(times, 2)}x as long" for run, times in section.slow]
    return [Finding(f"Left out of the times: {counted(len(named), 'run')} that took far longer than others of the same "
                    "setting. Times are those of a typical run.", (capital(list_first(named, 4)) + ".",))]


def _drift_found(section: Section) -> list[Finding]:
    """Times that drift with the order of the runs, and the pace of the last one; of repeats, not of a search."""
    cells = [cell for cell in section.cells if cell.runs and not cell.searched]
    drift = drift_of(cells, section.options.confidence)
    if drift is None:
        return []
    grew, *ends = (100 * abs(value - 1) for value in (drift.a_run.value, drift.a_run.low, drift.a_run.high))
    pace = "; ".join(f"{counted(cell.workers[0], 'worker')}, batch {cell.global_batch:,}: {number(ms.value)} ms"
                     f"{in_brackets(ms.low, ms.high)}" for cell, warm in zip(cells, drift.warm)
                     if math.isfinite((ms := warm.scaled(1000 * cell.global_batch)).value))
    return [Finding(f"Times drift: each of {drift.runs} runs took {number(grew)}% ({number(min(ends))}-"
                    f"{number(max(ends))}%) {'longer' if drift.a_run.value > 1 else 'less'} than the run before, "
                    "whatever its setting.",
                    (f"A step at the pace of the last run: {pace}. Counts that ran there and back, as hvdscale-scale "
                     "runs them, share a drift: their ratios hold nothing of it.",), drift.a_run)]


def _split_seeds_found(section: Section) -> list[Finding]:
    """Seeds whose runs, the same updates by their settings, met the target and did not."""
    found = []
    for runs in section.split_seeds:
        first, missed = runs[0].trial, [run.trial for run in runs if not run.met]
        found.append(Finding(f"Seed {first.seed} at batch {first.global_batch:,} met {section.target} in "
                             f"{len(runs) - len(missed)} of {len(runs)} runs and counts as not met.",
                             (f"Not met by {_named(missed)}. Runs of one setting and seed should be the same updates: "
                              "compare their budgets, data and code.",)))
    return found


def _unlearned_found(section: Section) -> list[Finding]:
    """How many trials ended with no lower loss than they began with, by batch, and one of them."""
    trials = section.unlearned
    if not trials or trials[0].losses is None:
        return []
    all_of, lost = (Counter(trial.global_batch for trial in some) for some in (section.judged, trials))
    at = "; ".join(f"batch {batch:,}: {count:,} of {all_of[batch]:,}" for batch, count in sorted(lost.items()))
    first, last = (number(value, 4) for value in (trials[0].losses.first, trials[0].losses.last))
    return [Finding(f"Did not learn: the training loss of {counted(len(trials), 'trial')} did not fall ({at}), "
                    f"{'such as ' * (len(trials) > 1)}from {first} to {last}.",
                    ("A loss that did not fall is no lower over the last tenth of the steps than over the first: "
                     f"{_named(trials)}. A lower learning rate may help; fine-tuning or a GAN can rightly keep its "
                     "loss.",))]


def _growing_found(section: Section) -> list[Finding]:
    """What the growing batch bought at the most workers where a constant one ran, too."""
    pairs = [(cell, one) for cell in section.cells for one in section.constant if one.workers == cell.workers]
    found = []
    for cell, one in pairs:
        gained = compare(cell, one, section.options.confidence)
        if cell.workers == pairs[-1][0].workers and gained.time_speedup.value == gained.time_speedup.value:
            found.append(Finding(
                f"At {counted(cell.workers[0], 'worker')} the growing batch was {ratio(gained.time_speedup.value)}x as "
                f"fast{_ends(gained.time_speedup)} as the constant batch {one.global_batch:,}, on "
                f"{ratio(1 / gained.statistical_efficiency.value)}x the examples.", (), gained.time_speedup))
    return found


def summary(section: Section) -> tuple[str, ...]:
    """The same in sentences, and the learning rates."""
    return (*sentences_of(findings(section)), *schedules(section))


def _other_targets_said(section: Section) -> list[str]:
    """The fewest steps at each batch to the further targets of a sweep, a sentence each."""
    others = {text: Target.parse(text) for trial in section.trials for text in trial.sweep.get("targets", ())}
    others.pop(str(section.target), None)
    return [f"{target}, also a target of the sweep: {_fewest_said(section, target)}; "
            f"--target '{target}' has its tables." for target in others.values() if section.target]


def _fewest_said(section: Section, target: Target) -> str:
    fewest: dict[int, list[float]] = {}
    for trial in section.trials:
        if trial.status != Status.INFEASIBLE and not trial.sweep.get("repeat"):
            fewest.setdefault(trial.global_batch, []).append(run_of(trial, target).steps)
    return listed(f"{f'{min(steps):,.0f} steps' if math.isfinite(min(steps)) else 'not met'} at batch {batch:,}"
                  for batch, steps in sorted(fewest.items()))


def schedules(section: Section) -> tuple[str, ...]:
    """The learning rate as a function of the step at each batch, as the plans settled it in whatever unit was typed.

    Of a search that met nothing no trial is the best.
    """
    found: dict[BatchSchedule, dict[str, None]] = {}
    for run in (run for cell in section.cells if cell.met or not section.searches for run in cell.runs):
        schedule = Schedule.of(run.trial.plan.get("problem") or {})
        if schedule:
            found.setdefault(run.trial.batches, {})[schedule.describe("{:.3g}".format)] = None
    if not found:
        return ()
    said = (f"{batches.in_brief()}: {' or '.join(found[batches])}" for batches in sorted(found))
    other = any(search.objective != STEPS_TO_TARGET for search in section.searches) and section.target
    whose = f" of the trials with the fewest steps to {section.target}" if other else ""
    return (f"Learning rate by step{whose}, at batch {'; '.join(said)}.",)


def left_out(section: Section) -> tuple[str, ...]:
    """Which trials are in no estimate, and why."""
    said = []
    for status in (Status.RUNNING, Status.INCOMPLETE):
        trials = [trial for trial in section.with_status(status) if not trial.pruned]
        if trials:
            said.append(f"Left out: {_of_all(trials, section)} {status.name} ({_named(trials)}).")
    if section.unmeasured and section.target:
        said.append(f"{section.target.column} was never measured in {_of_all(section.unmeasured, section)} "
                    f"({_named(section.unmeasured)}), in no estimate.")
    diverged, met = section.with_status(Status.INFEASIBLE), section.met_before_diverging
    if diverged:
        said.append(f"Diverged: {_of_all(diverged, section)} INFEASIBLE ({_named(diverged)})"
                    + (f", {len(met)} of them after meeting the target ({_named(met)}): counted apart, in no estimate."
                       if met else ", in no estimate."))
    said += _nans_said(section)
    said += _pruned_said(section)
    if section.parts_skipped:
        said.append(f"Where a step's time goes is left out of logs with more than {MOST_ROWS:,} steps.")
    if section.stopped_early:
        said.append(f"Stopped at a target of their own before this one was met: {_named(section.stopped_early)}; run "
                    "them with keep_going, or with this target, to know their steps.")
    moved = [trial for trial in section.trials if len(trial.worker_counts) > 1]
    if moved:
        said.append(f"Changed their worker count on the way: {_named(moved)}; their times and speeds are left out, "
                    "their steps are not.")
    return tuple(said)


def _nans_said(section: Section) -> list[str]:
    """The metrics that were NaN, each in a sentence; those of trials that diverged are no news."""
    found: dict[str, list[tuple[Trial, int]]] = {}
    for trial in section.trials:
        for column, count in trial.nan_counts.items() if trial.status != Status.INFEASIBLE else ():
            found.setdefault(column, []).append((trial, count))
    return [f"{column} was NaN at {sum(count for _, count in those):,} of "
            f"{counted(sum(len(trial.step) for trial, _ in those), 'evaluation')} of {_named([t for t, _ in those])}; "
            "NaN never meets a target." for column, those in found.items()]


def _of_all(trials: Sequence[Trial], section: Section) -> str:
    """``3 of 20 trials``."""
    return f"{len(trials):,} of {counted(len(section.trials), 'trial')}"


def _pruned_said(section: Section) -> list[str]:
    """What the trials that a search has stopped leave unknown."""
    pruned, untold = section.pruned, section.not_covered
    if not pruned and not untold:
        return []
    told = [trial for trial in pruned if trial not in untold]
    met = [run_of(trial, section.target).met for trial in told] if section.target else []
    said = []
    if told:
        rest = f"; {sum(met)} of them had met this target before, which counts here" if any(met) else ""
        said.append(
            f"Pruned: {_of_all(told, section)} INCOMPLETE ({_named(told)}), stopped once they could not be among "
            f"those with the fewest steps{rest}. {PRUNING}")
    if untold:
        own = listed(sorted({trial.sweep["targets"][-1] for trial in untold}), "or")
        said.append(f"Stopped by a search for the fewest steps to {own}: {_of_all(untold, section)} "
                    f"({_named(untold)}). It is not known which of them would have met {section.target} first, so the "
                    "steps here may be more than the fewest; search with this target to know them.")
    return said


def cell_notes(section: Section, cells: Sequence[RunCell], times: bool = True) -> tuple[str, ...]:
    """How to read a table of these cells."""
    repeated = [cell for cell in cells if not cell.searched]
    notes = _interval_notes(section, repeated, times)
    if any(0 < cell.met < len(cell.samples.seeds) for cell in repeated) and section.target:
        notes.append("Where some seeds did not meet the target: the median over all seeds, open upwards.")
    tuned = _tuned(section, cells)
    if tuned:
        notes.append(search_words.tuned_at_each([search for found in tuned.values() for search in found],
                                                section.options.confidence))
    passes = _untimed_passes(cells) if times else ()
    if passes and max(passes):
        notes.append(f"{spread(passes)} warm-up passes ran before each clock started; no time includes them.")
    return tuple(notes)


def cell_warnings(section: Section, cells: Sequence[RunCell], times: bool = True) -> tuple[str, ...]:
    """Of a table of these cells."""
    warnings, repeated = [], [cell for cell in cells if not cell.searched]
    if any(len(cell.samples.seeds) == 1 for cell in repeated):
        shown = " Below its steps: the evaluation before, which did not meet." * bool(section.target)
        warnings.append(f"{ONE_RUN} one run: there is no interval; the spread between runs is unknown.{shown}")
    met = [run for cell in repeated for run in cell.runs if run.met]
    first = sum(math.isnan(run.steps_before) for run in met)
    if first:
        warnings.append(f"{first:,} of {counted(len(met), 'run')} met the target at the first evaluation in the log: "
                        "they may have met it sooner, so those intervals have no lower end.")
    warnings += _spread_warnings(section, repeated, times)
    tuned = _tuned(section, cells)
    tried = [cell for cell in cells if cell.settings > 1 and id(cell) not in tuned]
    if tried:
        which = "fewest steps to target" if section.target else "most examples a second"
        warnings.append(f"{settings_tried(tried)} were tried at batch " + listed(
            f"{cell.global_batch:,} ({cell.settings:,})" for cell in tried) + f": the row is the one with the {which}, "
            "and its interval does not include that choice.")
    if times:
        warnings += crowded_warnings(cells)
        passes = _untimed_passes(cells)
        timed = any(cell.examples_per_second.runs for cell in cells)
        warnings += ["No warm-up passes were left out of the times."] * (bool(passes) and not max(passes) and timed)
    return tuple(warnings)


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


def _interval_notes(section: Section, cells: Sequence[RunCell], times: bool) -> list[str]:
    """What intervals claim and are based on."""
    repeats = {len(cell.samples.seeds) for cell in cells} - {0, 1}
    freedom = degrees_of_freedom(section, times)
    if not repeats or not freedom:
        return []
    said = f"Intervals: the {section.options.confidence:.0%} interval of the geometric mean over repeats, "
    if min(repeats) >= OWN_FROM:
        return [said + "from the spread of each point's own logs."]
    notes = [said + f"from the spread of the logs pooled over the points: {_freedom(freedom)}"
             + (f"; points of {OWN_FROM} repeats or more use their own." if max(repeats) >= OWN_FROM else ".")]
    spread = section.pools.of("steps")
    if spread.growth > 0 and min(repeats) < OWN_FROM:
        at = [float(spread.at(cell.global_batch).deviation) for cell in cells]
        notes.append(f"The spread of steps seems to grow with the batch, from {percent(min(at))} to "
                     f"{percent(max(at))}; intervals follow it.")
    if min(freedom.values()) <= 2:
        notes.append("So few leave the intervals wide; one more repeat narrows them most.")
    return notes


def _spread_warnings(section: Section, cells: Sequence[RunCell], times: bool) -> list[str]:
    """At which points the spread is so large that pooling it misleads."""
    repeats = {len(cell.samples.seeds) for cell in cells} - {0, 1}
    if not repeats or min(repeats) >= OWN_FROM or not degrees_of_freedom(section, times):
        return []
    names = {"steps": "steps", SPEED: "examples per second"} if times else {"steps": "steps"}
    return [f"{capital(what)} spread far more at "
            + listed(f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" for cell in found)
            + " than elsewhere: intervals there are too narrow, elsewhere too wide."
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
    if not crowded:
        return []
    counts = sorted({(trial.execution["local_workers"], trial.execution["cores"]) for trial in crowded})
    shared = any(trial.workers < trial.execution["local_workers"] for trial in crowded)
    others = ", other trials' workers included" * shared
    return [f"{CROWDED} more workers than cores on the host ({listed([f'{n} on {cores}' for n, cores in counts])}"
            f"{others}): times and speeds there do not transfer to a real cluster; step counts do."]


def _series_found(section: Section, series: Series, planned: bool) -> list[Finding]:
    kind = _kind(section, series)
    timed = [point for point in series.points if point.time_speedup.value == point.time_speedup.value]
    found = _timed_found(kind, timed, planned) if len(timed) > 1 else []
    unmet = [point for point in series.points if point.cell.runs and not point.cell.steps.met]
    if unmet:
        found.append(Finding(f"{kind}: {section.target} was not met at {listed(map(_unmet_at, unmet))}."))
    lost = [point.workers for point in series.points if not point.cell.runs]
    if lost:
        found.append(Finding(f"{kind}: every trial diverged at W = {listed(lost)}."))
    return found


def _kind(section: Section, series: Series) -> str:
    """``Weak scaling``, with its size where there are several such series."""
    several = sum(one.kind == series.kind for one in section.series) > 1
    return capital(series_kind(series) if several else f"{series.kind} scaling")


def _unmet_at(point: SpeedupPoint) -> str:
    some = f" by most seeds ({point.cell.met} of {len(point.cell.samples.seeds)} did)" if point.cell.met else ""
    return f"W = {point.workers}{some}"


def _timed_found(kind: str, points: Sequence[SpeedupPoint], planned: bool) -> list[Finding]:
    first, last = points[0], points[-1]
    best = min(points, key=lambda point: point.cell.seconds.value)
    speedup = last.time_speedup
    found = [Finding(f"{kind}, {first.workers} to {last.workers} workers: {ratio(speedup.value)}x the speed"
                     f"{_ends(speedup)}, {ratio(last.product.value)} of ideal{_greater_loss(last)}.", (), speedup)]
    if best is not last and not planned:
        found.append(Finding(f"The shortest time was at {counted(best.workers, 'worker')}: "
                             f"{number(best.cell.seconds.value)} s.", (), best.cell.seconds))
    return found


def _greater_loss(point: SpeedupPoint) -> str:
    statistical, system = point.statistical_efficiency.value, point.system_efficiency.value
    if not 0 < statistical * system < 0.95:
        return ""
    return f", most lost to {'statistics' if statistical < system else 'the system'}"


def _throughput_found(section: Section, series: Series) -> list[Finding]:
    first, last = series.points[0], series.points[-1]
    speedup = last.throughput_speedup
    if speedup.value != speedup.value:
        return []
    speeds = [number(point.cell.examples_per_second.value) for point in (first, last)]
    return [Finding(f"{_kind(section, series)}, {first.workers} to {last.workers} workers: {ratio(speedup.value)}x the "
                    f"examples per second{_ends(speedup)}, {' to '.join(speeds)}; system efficiency "
                    f"{ratio(last.system_efficiency.value)}.", (), speedup)]


def _alone_said(section: Section, cell: RunCell) -> str:
    where = f"{counted(cell.workers[0], 'worker')}, global batch {cell.batches.in_brief()}"
    if not cell.runs:
        return f"{capital(where)}: every trial diverged."
    known = cell.examples_per_second.value == cell.examples_per_second.value
    speed = f"{number(cell.examples_per_second.value)} examples per second" if known else "no time is known"
    if not section.target:
        return f"{capital(where)}: {speed}."
    if not cell.steps.met:
        return f"With {where}, {section.target} was not met within {whole(cell.steps.beyond)} steps."
    took = f"With {where}, {section.target} took {whole(cell.steps.value)} steps"
    return f"{took} and {number(cell.seconds.value)} s, at {speed}." if known else f"{took}; {speed}."


def _ends(value: Estimate) -> str:
    return in_brackets(value.low, value.high, ratio)


def _named(trials: Sequence[Trial], most: int = 4) -> str:
    by_log = group_by(trials[:most], lambda trial: trial.log)
    more = f" and {len(trials) - most:,} more" * (len(trials) > most)
    return "; ".join(f"{log}:{', '.join(str(trial.id) for trial in own)}" for log, own in by_log.items()) + more
