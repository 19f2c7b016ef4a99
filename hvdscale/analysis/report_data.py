"""All of a report's numbers: logs in, one group of sections a workload out.

    for group in analyse(logs, targets=[Target.parse("val/error<0.01")]):
        for section in group.sections: ...

A section holds one target, or none: then it is about throughput alone.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UsageError
from ..log.schema import Status
from ..target import Target
from .best_of_n import common_trials
from .cell_steps import noise_of, parts_of
from .intervals import CONFIDENCE, Pools
from .noise import Noise
from .pooled_variance import pools_of
from .regimes import PERFECT_WITHIN, USEFUL_WITHIN, Batches, batches_of
from .search import STEPS, Search, searches_of, tells_of
from .speedup import Series, outside, series_of
from .step_breakdown import SKIPPED, StepParts
from .steps import Cell, cell_of, first_met, run_of
from .trials import Trial, Workload, by_workload


@dataclass(frozen=True)
class Options:
    """What the user may set."""

    perfect_within: float = PERFECT_WITHIN
    useful_within: float = USEFUL_WITHIN
    confidence: float = CONFIDENCE
    trials: int | None = None           # of each search that batches are compared at; None: as many as the smallest has


@dataclass(frozen=True, eq=False)
class Section:
    """One workload held against one target."""

    workload: Workload
    target: Target | None
    trials: tuple[Trial, ...]           # that the section is about
    series: tuple[Series, ...]
    alone: tuple[Cell, ...]             # cells in no series
    batches: Batches | None             # None without a target
    pools: Pools                        # the spreads that its intervals stand on
    parts: tuple[tuple[Cell, StepParts], ...]   # by worker count; only what no section of the group before has
    noise: tuple[tuple[Cell, Noise], ...]       # likewise
    searches: tuple[Search, ...]        # studies to the target, or to one that is stricter; those of a metric likewise
    options: Options
    left_out: tuple[tuple[int, int], ...] = ()  # (batch, feasible trials) of searches with fewer than were asked for

    @property
    def cells(self):
        """The cells by worker count, each once."""
        found = {id(point.cell): point.cell for one in self.series for point in one.points}
        return tuple(sorted((*found.values(), *self.alone), key=lambda cell: (cell.workers, cell.global_batch)))

    @property
    def parts_skipped(self):
        """Whether a cell's steps were too many to be read for their parts."""
        return any(run.trial.step_parts is SKIPPED for cell in self.cells for run in cell.runs)

    def with_status(self, status) -> tuple[Trial, ...]:
        """Its trials of one status."""
        return tuple(trial for trial in self.trials if trial.status == status)

    @property
    def met_before_diverging(self):
        """INFEASIBLE trials that had met the target before."""
        return tuple(trial for trial in self.with_status(Status.INFEASIBLE)
                     if self.target and first_met(trial.metrics[self.target.column], self.target) >= 0)

    @property
    def stopped_early(self):
        """COMPLETE trials that ended at a target of their own before this one was met."""
        return tuple(run.trial for cell in self.cells for run in cell.runs if not run.met and _stopped(run.trial))

    @property
    def pruned(self) -> tuple[Trial, ...]:
        """Trials that a search has stopped."""
        return tuple(trial for trial in self.with_status(Status.INCOMPLETE) if trial.pruned)

    @property
    def strictest(self) -> Target | None:
        """The strictest target of its metric at which a trial was to stop, so that nothing is known beyond; None: none
        was."""
        own = [Target.parse(trial.target) for trial in self.trials if trial.target
               and not trial.measurement.get("keep_going")]
        found = [one for one in own if self.target and one.column == self.target.column]
        return min(found, key=lambda one: one.value if one.minimizes else -one.value, default=None)

    @property
    def untold(self) -> tuple[Trial, ...]:
        """Trials of studies whose trials stopped, at a target of their own, before they could tell of this one."""
        return tuple(trial for trial in self.trials
                     if trial.sweep and self.target and not tells_of(trial.sweep, self.target))

    def __str__(self):
        return f"{self.workload}: {self.target or 'throughput'}"


@dataclass(frozen=True, eq=False)
class Group:
    """A workload's trials, and a section for each target."""

    workload: Workload
    trials: tuple[Trial, ...]
    sections: tuple[Section, ...]


def analyse(trials, targets=(), options=Options()) -> tuple[Group, ...]:
    """Trials grouped by workload and held against the targets, or each against its own where none is given.

    Raises UsageError where no trial has a target's metric.
    """
    refuse_unknown(targets, {name for trial in trials for name in trial.metrics})
    return tuple(Group(workload, found, tuple(_sections(workload, found, targets, options)))
                 for workload, found in by_workload(trials).items())


def refuse_unknown(targets, known) -> None:
    """Raise UsageError where a target's metric is none of those known."""
    for target in targets:
        if target.column not in known:
            raise UsageError(f"target {str(target)!r}: no log has {target.column}; the metrics there: "
                             f"{', '.join(sorted(known)) or 'none'}")


def _sections(workload, trials, targets, options):
    held, shown = set(), {"parts": set(), "noise": set(), "searches": set()}
    for target, about in _by_target(trials, targets):
        held.update(trial.key for trial in about)
        yield _section(workload, target, about, options, shown)
    rest = tuple(trial for trial in trials if trial.key not in held)
    if rest:
        yield _section(workload, None, rest, options, shown)


def _by_target(trials, targets):
    """(target, trials to hold against it) for each target given; where none is, for each in the trials' own plans."""
    if targets:
        pairs = [(target, trials) for target in dict.fromkeys(targets)]
    else:
        own = {}
        for trial in trials:
            if trial.target:
                own.setdefault(trial.target, []).append(trial)
        pairs = _by_meaning(own)
    for target, about in pairs:
        about = tuple(trial for trial in about if _bears_on(trial, target))
        if about:
            yield target, about


def _by_meaning(trials_by_text):
    """(target, trials) of trials by a target's text: two texts may say the same."""
    found = {}
    for text, trials in trials_by_text.items():
        found.setdefault(Target.parse(text), []).extend(trials)
    return found.items()


def _bears_on(trial, target):
    """Whether a trial tells of a target: it was evaluated, or has not come so far."""
    return target.column in trial.metrics and (len(trial.step) > 0 or trial.status != Status.COMPLETE)


def cells_of(trials, target, options=Options()) -> tuple[list[Cell], list[Cell], Pools]:
    """Trials of one workload held against a target: the cells of one worker count and global batch each, those by
    global batch over all worker counts, and the spreads that they share. Searches are all compared at as many trials,
    see best_of_n.common_trials."""
    runs = [run for run in (run_of(trial, target) for trial in trials if trial.status != Status.RUNNING)
            if _shows(run) or run.trial.pruned]
    cells, by_batch = _cells(runs, options)
    pools = pools_of(cells, by_batch)
    n, _ = common_trials(_draws_by_batch(by_batch), options.trials)
    return *([replace(cell, pools=pools, best_of_n=n and min(n, len(cell.draws)) or None) for cell in found]
             for found in (cells, by_batch)), pools


def _draws_by_batch(cells):
    return {cell.global_batch: len(cell.draws) for cell in cells if cell.searched}


def _section(workload, target, trials, options, shown):
    cells, by_batch, pools = cells_of(trials, target, options)
    series = series_of(cells, options.confidence)
    batches = None
    _, left_out = common_trials(_draws_by_batch(by_batch), options.trials)
    if target is not None:
        by_batch = [cell for cell in by_batch if cell.global_batch not in left_out]
        batches = batches_of(by_batch, options.perfect_within, options.useful_within, options.confidence)
    parts = _not_shown(shown["parts"], cells, parts_of)
    noise = _not_shown(shown["noise"], cells, lambda cell: noise_of(cell, options.confidence))
    return Section(workload, target, trials, series, outside(cells, series), batches, pools, parts, noise,
                   _searches(shown["searches"], trials, target, options), options, tuple(left_out.items()))


def _searches(shown, trials, target, options):
    """The studies to tell of beside a target; those of another objective once in a group."""
    found = []
    for search in searches_of(trials, target, options.confidence):
        name = search.study, search.space
        if search.objective == STEPS or name not in shown:
            found.append(search)
            shown.add(name)
    return tuple(found)


def _not_shown(shown, cells, measured):
    """(cell, what was measured of its steps); leaves out cells of runs that are in ``shown``, and adds the others."""
    found = []
    for cell in cells:
        runs, value = frozenset(run.trial.key for run in cell.runs), measured(cell)
        if value and runs not in shown:
            shown.add(runs)
            found.append((cell, value))
    return tuple(found)


def _shows(run):
    """Whether a run makes a cell."""
    return run.ended or run.trial.status == Status.INFEASIBLE


def _cells(runs, options):
    """The cells of one worker count and global batch each, and those by global batch over all worker counts."""
    found = {}
    for run in runs:
        found.setdefault((run.trial.workers, run.trial.global_batch), []).append(run)
    cells = {key: cell_of(found[key], options.confidence) for key in sorted(found) if any(map(_shows, found[key]))}
    by_batch = []
    for batch in sorted({batch for _, batch in cells}):
        keys = [key for key in found if key[1] == batch]
        by_batch.append(cells[keys[0]] if len(keys) == 1 else
                        cell_of([run for key in sorted(keys) for run in found[key]], options.confidence))
    return list(cells.values()), by_batch


def _stopped(trial):
    """Whether a trial ended at its own target."""
    if not trial.target or trial.measurement.get("keep_going"):
        return False
    own = Target.parse(trial.target)
    return own.column in trial.metrics and first_met(trial.metrics[own.column], own) >= 0
