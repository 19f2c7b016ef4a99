"""All numbers of a report: trials in, one group of sections per workload out.

A section has one target, or none: then it is about throughput only.

The spread over repeats is pooled over the cells of a section, as two or three repeats per cell cannot estimate it.
Steps, seconds and examples per second each have a pool. Seeds of one setting that ran at several worker counts are the
same updates and must not count twice. So steps are pooled over batches; seconds, which depend on the steps, get the
degrees of freedom of one cell per setting. Ratios of such cells are paired by seed and have pools of their own. Runs
that did not meet the target count as beyond what they reached."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
import scipy

from ..errors import UsageError
from ..log.reader import Log
from ..log.schema import UNKNOWN_SEED, Status
from ..plan.batch_schedule import BatchSchedule
from ..plan.search_space import STEPS_TO_TARGET
from ..target import Target
from .curves import Curve, common_trials
from .defaults import Options
from .grouping import group_by
from .intervals import (OWN_FROM, Pools, Spread, crossed, joined, logarithms, pooled, pooled_censored, pooled_paired,
                        pooled_repeats)
from .jobs import Versions
from .noise import Noise
from .search import Search, searches_of
from .timings import seeds_apart, slow_runs
from .speedup import Series, series_of
from .step_breakdown import StepParts
from .steps import BEFORE, SECONDS, SPEED, STEPS, RunCell, RunToTarget, cells_by, known
from .studies import SeedKey, Study, are_ends_alone, studies_of
from .timings import HOURS, ran_in_a_row
from .trials import EVERY_STEP, JobKey, Trial, by_workload, read_trials

OF_STEPS = STEPS, BEFORE[STEPS]
OF_SECONDS = SECONDS, BEFORE[SECONDS]
ROUNDING = 1e-12        # a variance

T = TypeVar("T")


class Contents:
    """The trials and studies of logs that are open, and stay so, versions of one job apart; ``notes`` say what differs
    between versions. LogError where a plan's entries are of the wrong type."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs, self._versions = logs, Versions(logs)
        self.notes = self._versions.notes

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        return studies_of(self.logs, self._versions)

    @cached_property
    def trials(self) -> list[Trial]:
        """Every trial, each made of its own rows, branches of runs, too."""
        return [trial for log in self.logs for trial in read_trials(log, self._versions)]


@dataclass(frozen=True, eq=False)
class Section:
    """One workload measured against one target."""

    workload: JobKey
    target: Target | None
    options: Options = Options()
    trials: tuple[Trial, ...] = ()          # () where only columns of the evaluations are looked at, and all below
    series: tuple[Series, ...] = ()
    cells: tuple[RunCell, ...] = ()         # of one worker count and global batch each, in order
    batches: Curve | None = None            # over all worker counts; None without a target
    pools: Pools = Pools()                  # the spreads behind its intervals
    parts: tuple[tuple[RunCell, StepParts], ...] = ()   # by worker count; without those of an earlier section
    noise: tuple[tuple[RunCell, Noise], ...] = ()       # likewise
    searches: tuple[Search, ...] = ()       # studies with this target or a stricter one, and those of a metric
    slow: tuple[tuple[RunToTarget, float], ...] = ()    # runs that are in no time, and how many times as long they took
    synced: tuple[RunCell, ...] = ()        # by batch and Trial.sync; () where all are synchronous, or without target
    constant: tuple[RunCell, ...] = ()      # of a batch that changes: the same job at its smallest and largest batch

    @cached_property
    def alone(self) -> tuple[RunCell, ...]:
        """Cells that belong to no series."""
        inside = {id(point.cell) for one in self.series for point in one.points}
        return tuple(cell for cell in self.cells if id(cell) not in inside)

    def with_status(self, status: Status) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.status == status)

    def __str__(self) -> str:
        return f"{self.workload}: {self.target or 'throughput'}"


@dataclass(frozen=True, eq=False)
class JobResults:
    """A workload's trials, and a section for each target."""

    workload: JobKey
    trials: tuple[Trial, ...]
    sections: tuple[Section, ...]


def analyse(trials: Iterable[Trial], targets: Sequence[Target] = (), options: Options = Options()
            ) -> tuple[JobResults, ...]:
    """Trials by workload, without branches, against the targets, by default each its own; UsageError where none has a
    target's metric."""
    trials = tuple(trial for trial in trials if not trial.branch)
    refuse_unknown(targets, {name for trial in trials for name in trial.metrics})
    groups, seen = [], dict[tuple[JobKey, Target | None], Section]()
    for workload, found in by_workload(trials).items():         # the same job at a constant batch before others
        own, batches = [], BatchSchedule.of_pairs(workload.batch_schedule) if workload.batch_schedule else None
        for section in _sections(workload, found, targets, options):
            beside = seen.get((workload.at_constant_batch, section.target))
            if batches and beside:
                section = replace(section, constant=tuple(cell for cell in beside.cells if cell.global_batch in (
                    batches.smallest, batches.largest)))
            seen[workload, section.target] = section
            own.append(section)
        groups.append(JobResults(workload, found, tuple(own)))
    return tuple(groups)


def analyse_studies(studies: Iterable[Study], targets_of: Callable[[Sequence[Study]], Sequence[Target | None]],
                    options: Options = Options()) -> tuple[JobResults, ...]:
    """Likewise of studies of which no trial is made of its own: sections of the workloads' targets without trials."""
    return tuple(JobResults(workload, (), tuple(Section(workload, target, options) for target in targets_of(own)))
                 for workload, own in group_by(studies, lambda study: study.workload).items())


def refuse_unknown(targets: Iterable[Target], known: Collection[str]) -> None:
    """Raise UsageError for a target whose metric is not among the known ones."""
    for target in targets:
        if target.column not in known:
            raise UsageError(f"target {str(target)!r}: no log has {target.column}; the metrics there: "
                             f"{', '.join(sorted(known)) or 'none'}")


def _sections(workload: JobKey, trials: Sequence[Trial], targets: Sequence[Target], options: Options
              ) -> Iterator[Section]:
    """One for each given target, or else for each target in the trials' own plans, of the trials that have its metric
    and were evaluated or may still be; none where no trial shows how many steps a target takes. One of all others."""
    used: set[tuple[str, int]] = set()
    shown: set[Hashable] = set()                # by earlier sections of the group
    pairs: Mapping[Target, Sequence[Trial]] = dict.fromkeys(targets, trials)
    if not targets:
        parse = lru_cache(None)(Target.parse)
        pairs = group_by((trial for trial in trials if trial.target), lambda trial: parse(trial.target))
    if are_ends_alone((trial.global_batch, trial.step) for trial in trials):
        pairs = {}
    for target, found in pairs.items():
        about = tuple(trial for trial in found if target.column in trial.metrics
                      and (len(trial.step) or trial.status != Status.COMPLETE))
        if about:
            used.update(trial.key for trial in about)
            yield _section(workload, target, about, options, shown)
    rest = tuple(trial for trial in trials if trial.key not in used)
    if rest:
        yield _section(workload, None, rest, options, shown)


def _find_slow(cells: Iterable[RunCell]) -> list[tuple[RunToTarget, float]]:
    """The runs of cells that took far longer than the others of theirs, and how many times as long."""
    cells = [cell for cell in cells if not cell.searched]
    ratios = slow_runs([[1 / run.examples_per_second if run.examples_per_second > 0 else math.nan for run in cell.runs]
                        for cell in cells])
    return [(run, float(ratio)) for cell, own in zip(cells, ratios) for run, ratio in zip(cell.runs, own) if ratio > 1]


def _find_apart(cells: Iterable[RunCell]) -> dict[tuple[int, str], dict[SeedKey, float]]:
    """By batch and setting, the seeds that needed far more steps than the others, and how many times as many."""
    cells = [cell for cell in cells if not cell.searched]
    ratios = seeds_apart([cell.samples.steps for cell in cells])
    return {(cell.global_batch, cell.setting): {seed: float(ratio) for seed, ratio in zip(cell.samples.seeds, own)
                                                if ratio > 1} for cell, own in zip(cells, ratios)}


def _section(workload: JobKey, target: Target | None, trials: tuple[Trial, ...], options: Options,
             shown: set[Hashable]) -> Section:
    """Searches are all compared at the same number of trials, see common_trials."""
    held = (RunToTarget(trial, target, options.crossing) for trial in trials if trial.status != Status.RUNNING)
    runs = [run for run in held if run.conclusive or run.trial.pruned]
    cells, by_batch, synced = _cells(runs, options)
    slow = _find_slow(cells)
    if slow:
        slow_ones = {id(run) for run, _ in slow}
        cells, by_batch, synced = _cells([run.untimed() if id(run) in slow_ones else run for run in runs], options)
    apart = _find_apart(synced or by_batch)
    cells, by_batch, synced = ([cell.without_apart(apart.get((cell.global_batch, cell.setting), {})) for cell in found]
                               for found in (cells, by_batch, synced))
    pools = pools_of(cells, by_batch)
    counts = {cell.global_batch: cell.trials for cell in by_batch if cell.trials}
    n, left_out = common_trials(counts, options.trials) if counts else (options.trials, {})
    least = options.trials or min((cell.trials for cell in synced if cell.trials), default=0)
    given = (cells, pools, n), (by_batch, pools, n), (synced, pools_of(synced, synced), least)
    cells, by_batch, synced = ([replace(cell, pools=pool, best_of_n=min(most or 0, len(cell.draws)) or None)
                                for cell in found] for found, pool, most in given)
    batches = None
    compared = [cell for cell in by_batch if cell.global_batch not in left_out]
    if target is not None and compared and not workload.batch_schedule:
        batches = Curve(workload, target, compared, options, n, tuple(left_out.items()))
    parts, noise = (_take_new(shown, (((name, frozenset(one.keys)), (one, found)) for one in cells
                                      if (found := getattr(one, name)))) for name in ("parts", "noise"))
    searches: tuple[Search, ...] = ()
    if any(trial.sweep for trial in trials):
        searches = _take_new(shown, ((one if one.objective == STEPS_TO_TARGET else (one.study, one.space), one)
                                     for one in searches_of(trials, target, options.confidence)))
    return Section(workload, target, options, trials, series_of(cells, options.confidence), tuple(cells), batches,
                   pools, parts, noise, searches, tuple(slow), tuple(synced if target else ()))


def _take_new(shown: set[Hashable], found: Iterable[tuple[Hashable, T]]) -> tuple[T, ...]:
    """Those whose key is not in ``shown`` yet; adds it."""
    new = []
    for key, one in found:
        if key not in shown:
            shown.add(key)
            new.append(one)
    return tuple(new)


def _cells(runs: Sequence[RunToTarget], options: Options) -> tuple[list[RunCell], ...]:
    """The cells of one worker count and global batch each; over all worker counts those by global batch and, unless all
    trials are synchronous, those by global batch and Trial.sync."""
    apart = runs if any(run.trial.sync != EVERY_STEP for run in runs) else ()
    return tuple([*cells_by(own, options.confidence, names).values()] for own, names in (
        (runs, ("workers", "global_batch")), (runs, ("global_batch",)), (apart, ("global_batch", "sync"))))


def pools_of(cells: Sequence[RunCell], by_batch: Sequence[RunCell] = ()) -> Pools:
    """The pools of a section's cells, of one worker count each; ``by_batch`` are those over all worker counts."""
    cell: dict[str, Spread] = {}
    batches, seeds = [one.global_batch for one in by_batch], {one.samples.seeds for one in by_batch}
    alike = len(seeds) == 1 and not any(number == UNKNOWN_SEED for number, *_ in seeds.pop())
    for name in OF_STEPS:
        spread = pooled_censored(_measured(by_batch, name), _reached(by_batch, "last_step"), batches)
        samples = [getattr(one.samples, name) for one in by_batch]
        cell[name] = crossed(spread, samples, batches) if alike else spread
    settings = group_by(cells, lambda cell: cell.setting).values()
    for name in OF_SECONDS:
        parts = []
        for group in settings:
            samples = _measured(group, name)
            spread = pooled_censored(samples, _reached(group, "last_seconds"))
            freedom = min(spread.freedom, max(map(len, samples)) - 1)
            parts.append((spread.variance * freedom, freedom))
        cell[name] = joined(parts, [group[0].global_batch for group in settings])
    cell[SPEED] = pooled_repeats(_measured(cells, SPEED))
    paired = {}
    same_updates = [group for group in group_by(cells, lambda cell: cell.updates).values() if len(group) > 1]
    for name in (*OF_STEPS, *OF_SECONDS, SPEED):        # by tables, a row a cell, of the seeds that all cells measured
        tables = [np.array([getattr(cell.samples, name) for cell in group]) for group in same_updates]
        whole = [table[:, ~np.isnan(table).any(0)] for table in tables]
        paired[name] = pooled_paired([table for table in whole if table.size])
    if cell[SPEED].shared[0]:
        paired[SPEED] = pooled_paired([_measured(cells, SPEED)])
    if ran_in_a_row([run.trial for one in cells for run in one.runs]):
        for pools, sides in ((cell, 1), (paired, 2)):
            pools |= {name: replace(pools[name], apart=sides * HOURS ** 2) for name in (*OF_SECONDS, SPEED)}
    return Pools(cell, paired)


def stand_out(cells: Sequence[RunCell], name: str) -> list[RunCell]:
    """Cells that use the pool although their own spread exceeds that of the others (one-sided F test, 1 % for all)."""
    found = []
    for cell in cells:
        samples = _measured([cell], name)
        others = [other for other in cells if other is not cell]
        own, rest = pooled(samples), pooled(_measured(others, name), [one.global_batch for one in others] if
                                            name in OF_STEPS else ()).at(cell.global_batch)
        if own.freedom and rest.freedom and len(samples[0]) < OWN_FROM:
            met, before = logarithms(cell.samples.with_before(name))
            grid = np.nan_to_num((met - before) ** 2).mean() / 12 + ROUNDING        # of evaluations
            if own.variance > (rest.variance + grid) * scipy.special.fdtri(
                    own.freedom, rest.freedom, 1 - 0.01 / len(cells)):
                found.append(cell)
    return found


def _reached(cells: Sequence[RunCell], name: str) -> list[float]:
    """The least that a run of each cell which did not meet the target reached."""
    return [min((getattr(run, name) for run in cell.runs if not run.met), default=np.inf) for cell in cells]


def _measured(cells: Sequence[RunCell], name: str) -> list[np.ndarray]:
    return [known(getattr(cell.samples, name)) for cell in cells]
