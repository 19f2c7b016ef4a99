"""All numbers of a report: trials in, one group of sections per workload out.

A section has one target, or none: then it is about throughput only.

The spread over repeats is pooled over the cells of a section, as two or three repeats per cell cannot estimate it.
Steps, seconds and examples per second each have a pool. Seeds of one setting that ran at several worker counts are the
same updates and must not count twice. So steps are pooled over batches; seconds, which depend on the steps, get the
degrees of freedom of one cell per setting. Ratios of such cells are paired by seed and have pools of their own. Runs
that did not meet the target count as beyond what they reached."""

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import scipy

from ..errors import UsageError
from ..log.schema import UNKNOWN_SEED, Status
from ..plan.search_space import STEPS_TO_TARGET
from ..target import Target
from .curves import Curve, common_trials
from .defaults import Options
from .intervals import (OWN_FROM, Pools, Spread, crossed, joined, logarithms, pooled, pooled_censored, pooled_paired,
                        pooled_repeats)
from .noise import Noise
from .search import Search, searches_of
from .speedup import Series, series_of
from .step_breakdown import StepParts
from .steps import BEFORE, SECONDS, SPEED, STEPS, RunCell, RunToTarget, cells_by, known
from .studies import are_ends_alone, group_by
from .timings import HOURS, ran_in_a_row, seeds_apart, slow_runs
from .trials import EVERY_STEP, JobKey, Trial, by_workload

OF_STEPS = STEPS, BEFORE[STEPS]
OF_SECONDS = SECONDS, BEFORE[SECONDS]
ROUNDING = 1e-12        # a variance

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Section:
    """One workload measured against one target."""

    workload: JobKey
    target: Target | None
    options: Options = Options()
    trials: tuple[Trial, ...] = ()          # () where only columns of the evaluations are looked at, and all below
    series: tuple[Series, ...] = ()
    cells: tuple[RunCell, ...] = ()         # of one worker count and global batch each, in order
    alone: tuple[RunCell, ...] = ()         # those that belong to no series
    batches: Curve | None = None            # over all worker counts; None without a target
    pools: Pools = Pools()                  # the spreads behind its intervals
    parts: tuple[tuple[RunCell, StepParts], ...] = ()   # by worker count; without those of an earlier section
    noise: tuple[tuple[RunCell, Noise], ...] = ()       # likewise
    searches: tuple[Search, ...] = ()       # studies with this target or a stricter one, and those of a metric
    slow: tuple[tuple[RunToTarget, float], ...] = ()    # runs that are in no time, and how many times as long they took
    synced: tuple[RunCell, ...] = ()        # by batch and Trial.sync; () where all are synchronous, or without target
    constant: tuple[RunCell, ...] = ()      # of a batch that changes: the same job at its smallest and largest batch

    def with_status(self, status: Status) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.status == status)


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
    if targets:
        refuse_unknown(targets, {name for trial in trials for name in trial.metrics})
    groups, seen = [], dict[tuple[JobKey, Target | None], Section]()
    for workload, found in by_workload(trials).items():         # the same job at a constant batch before others
        own, batches = [], [batch for _, batch in workload.batch_schedule]
        for section in _sections(workload, found, targets, options):
            if batches and (beside := seen.get((replace(workload, batch_schedule=()), section.target))):
                section = replace(section, constant=tuple(
                    cell for cell in beside.cells if cell.global_batch in (min(batches), max(batches))))
            seen[workload, section.target] = section
            own.append(section)
        groups.append(JobResults(workload, found, tuple(own)))
    return tuple(groups)


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
    parse, alone = lru_cache(None)(Target.parse), are_ends_alone((trial.global_batch, trial.step) for trial in trials)
    pairs = dict.fromkeys(targets, trials) or group_by(
        (trial for trial in trials if trial.target), lambda trial: parse(trial.target))
    for target, found in pairs.items() if not alone else ():
        about = tuple(trial for trial in found if target.column in trial.metrics
                      and (len(trial.step) or trial.status != Status.COMPLETE))
        if about:
            used.update(trial.key for trial in about)
            yield _section(workload, target, about, options, shown)
    rest = tuple(trial for trial in trials if trial.key not in used)
    if rest:
        yield _section(workload, None, rest, options, shown)


def _section(workload: JobKey, target: Target | None, trials: tuple[Trial, ...], options: Options,
             shown: set[Hashable]) -> Section:
    """Searches are all compared at the same number of trials, see common_trials."""
    held = (RunToTarget(trial, target, options.crossing) for trial in trials)
    slow, cells, by_batch, synced = _cells([run for run in held if run.conclusive or run.trial.pruned], options)
    pools = pools_of(cells, by_batch)
    counts = {cell.global_batch: cell.trials for cell in by_batch if cell.trials}
    n, left_out = common_trials(counts, options.trials) if counts else (options.trials, {})
    least = options.trials or min((cell.trials for cell in synced if cell.trials), default=0)
    given = (cells, pools, n), (by_batch, pools, n), (synced, pools_of(synced, synced), least)
    cells, by_batch, synced = ([replace(cell, pools=pool, best_of_n=min(most or 0, len(cell.draws)) or None)
                                for cell in found] for found, pool, most in given)

    batches, compared = None, [cell for cell in by_batch if cell.global_batch not in left_out]
    if target is not None and compared and not workload.batch_schedule:
        batches = Curve(workload, target, compared, options, n, tuple(left_out.items()))
    series = series_of(cells, options.confidence)
    inside = {id(point.cell) for one in series for point in one.points}
    parts = _take_new(shown, ((("parts", frozenset(one.keys)), (one, found)) for one in cells if (found := one.parts)))
    noise = _take_new(shown, ((("noise", frozenset(one.keys)), (one, one.noise)) for one in cells
                              if any(run.trial.noise for run in one.runs)))
    searches: tuple[Search, ...] = ()
    if any(trial.sweep for trial in trials):
        searches = _take_new(shown, ((one if one.objective == STEPS_TO_TARGET else (one.study, one.space), one)
                                     for one in searches_of(trials, target, options.confidence)))
    return Section(workload, target, options, trials, series, tuple(cells),
                   tuple(cell for cell in cells if id(cell) not in inside), batches, pools, parts, noise, searches,
                   slow, tuple(synced if target else ()))


def _take_new(shown: set[Hashable], found: Iterable[tuple[Hashable, T]]) -> tuple[T, ...]:
    """Those whose key is not in ``shown`` yet; adds it."""
    new = []
    for key, one in found:
        if key not in shown:
            shown.add(key)
            new.append(one)
    return tuple(new)


def _cells(runs: Sequence[RunToTarget], options: Options
           ) -> tuple[tuple[tuple[RunToTarget, float], ...], list[RunCell], list[RunCell], list[RunCell]]:
    """(the runs that took far longer than the others of their cell, and how many times as long; the cells of one worker
    count and global batch each; those by global batch; unless all are synchronous those by global batch and Trial.sync)
    without the times of these runs, and without the steps of the seeds that needed far more than the others."""
    cells = cells_by(runs, options.confidence)
    repeats = [cell for cell in cells.values() if not cell.searched]
    ratios = slow_runs([[1 / run.examples_per_second if run.examples_per_second > 0 else math.nan for run in cell.runs]
                        for cell in repeats])
    slow = {run: float(ratio) for cell, own in zip(repeats, ratios) for run, ratio in zip(cell.runs, own) if ratio > 1}
    if slow:
        runs = [run.untimed() if run in slow else run for run in runs]
        cells = cells_by(runs, options.confidence)
    by_batch = cells_by(runs, options.confidence, ("global_batch",))
    apart = any(run.trial.sync != EVERY_STEP for run in runs)
    synced = cells_by(runs, options.confidence, ("global_batch", "sync")) if apart else {}

    repeats = [cell for cell in (synced or by_batch).values() if not cell.searched]
    ratios = seeds_apart([cell.samples.steps for cell in repeats])
    late = {cell.alike: {seed: float(ratio) for seed, ratio in zip(cell.samples.seeds, own) if ratio > 1}
            for cell, own in zip(repeats, ratios) if (own > 1).any()}
    cells, by_batch, synced = ({key: cell.without_apart(late[cell.alike]) if cell.alike in late else cell
                                for key, cell in found.items()} for found in (cells, by_batch, synced))
    return tuple(slow.items()), [*cells.values()], [*by_batch.values()], [*synced.values()]


def pools_of(cells: Sequence[RunCell], by_batch: Sequence[RunCell] = ()) -> Pools:
    """The pools of a section's cells, of one worker count each; ``by_batch`` are those over all worker counts."""
    cell: dict[str, Spread] = {}
    batches, seeds = [one.global_batch for one in by_batch], {one.samples.seeds for one in by_batch}
    alike = len(seeds) == 1 and not any(number == UNKNOWN_SEED for number, *_ in seeds.pop())
    # the least that a run of each cell which did not meet the target reached
    reached = [min((run.last_step for run in one.runs if not run.met), default=np.inf) for one in by_batch]
    for name in OF_STEPS:
        spread = pooled_censored(_measured(by_batch, name), reached, batches)
        cell[name] = crossed(spread, [getattr(one.samples, name) for one in by_batch], batches) if alike else spread
    settings = group_by(cells, lambda cell: cell.alike).values()
    for name in OF_SECONDS:
        parts = []
        for group in settings:
            samples = _measured(group, name)
            reached = [min((run.last_seconds for run in one.runs if not run.met), default=np.inf) for one in group]
            spread = pooled_censored(samples, reached)
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
        samples, others = _measured([cell], name), [other for other in cells if other is not cell]
        own, rest = pooled(samples), pooled(_measured(others, name), [one.global_batch for one in others] if
                                            name in OF_STEPS else ()).at(cell.global_batch)
        if own.freedom and rest.freedom and len(samples[0]) < OWN_FROM:
            met, before = logarithms(cell.samples.with_before(name))
            grid = np.nan_to_num((met - before) ** 2).mean() / 12 + ROUNDING        # of evaluations
            if own.variance > (rest.variance + grid) * scipy.special.fdtri(
                    own.freedom, rest.freedom, 1 - 0.01 / len(cells)):
                found.append(cell)
    return found


def _measured(cells: Sequence[RunCell], name: str) -> list[np.ndarray]:
    return [known(getattr(cell.samples, name)) for cell in cells]
