"""Steps, time and throughput to a target, for a trial and for the repeats in one cell of a table.

Steps to target (Shallue et al. 2019, section 4.1): steps done at the first evaluation that meets the target. Over
repeats, steps S, seconds T and examples per second x are averaged by geometric means. T = S B / x, with the global
batch B (the mean batch of the S steps where it changes), then holds exactly for the means."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..log.schema import Status
from ..target import Target
from .best_of_n import best_of
from .defaults import FIRST, LASTING
from .intervals import (CONFIDENCE, NONE, UNKNOWN, Estimate, Pools, Spread, geometric_mean, geometric_median,
                        isotonic, mean_interval, mean_ratio, over, student_quantile)
from .noise import Noise, noise_of
from .step_breakdown import NAMES, StepParts, mean_of
from .studies import SeedKey, group_by
from .trials import Trial

PAST = 1.5          # a run that went on to this many times the steps of its first crossing shows the lasting one
SINCE = 0.25        # the power is fitted from this share of those steps on
LEAST = 4           # evaluations, below which no power is fitted
FARTHEST = 2.0      # times the run's steps, beyond which a power says nothing
NEAR, ENOUGH = 0.4, 6       # the share of those steps from which on evaluations show their course; of how many
NORMAL = 1.65       # the median second difference, without its sign, of normal values of deviation 1


@dataclass(frozen=True)
class Crossing:
    """Where a run that met its target meets it for good: its lasting crossing."""

    steps: float            # inf: not by the end of the run; NaN: unknown
    before: float           # at the evaluation before; NaN: none
    modelled: bool          # whether a power of the steps was fitted
    after: int              # evaluations after the first that met
    met_after: int          # of them, those that met
    later: float        # see _beside_course; NaN: unknown, or evaluated later
    beyond: float


def lasting_crossing(step: np.ndarray, measured: np.ndarray, target: Target) -> Crossing | None:
    """The lasting crossing of a run, from arrays of shape (evals,) without NaN; None where no evaluation met the
    target. A power of the steps that does not meet it, or of too few evaluations, has unknown steps."""
    met = target.met_by(measured)
    if not met.any():
        return None
    first, steps = int(met.argmax()), np.nan
    modelled = bool(step[-1] < PAST * step[first])
    if modelled:            # log(metric) as a line in log(steps)
        use = (step >= SINCE * step[first]) & (step > 0) & np.isfinite(measured) & (measured > 0)
        if use.sum() >= LEAST and target.value > 0:
            slope, level = np.polyfit(np.log(step[use]), np.log(measured[use]), 1)
            if slope != 0 and (slope < 0) == target.minimizes:
                steps = float(np.exp(np.clip((np.log(target.value) - level) / slope, -700, 700)))
        steps = steps if steps <= FARTHEST * step[-1] else np.nan
    else:
        fitted = target.met_by(_improving(measured, target))
        steps = float(step[fitted.argmax()]) if fitted.any() else np.inf
    beside = _beside_course(step, measured, target) if first == len(met) - 1 else (np.nan, np.nan)
    return Crossing(steps, float(max(step[step < steps], default=np.nan)), modelled, len(met) - first - 1,
                    int(met[first + 1:].sum()), *beside)


def _beside_course(step: np.ndarray, measured: np.ndarray, target: Target) -> tuple[float, float]:
    """Of the last evaluation, beside a parabola in logarithms of what those shortly before lack (to 1, if the metric
    rises): how many times its steps the parabola takes to the target; how many deviations it lies beyond that."""
    near = step >= NEAR * step[-1]
    values, goal = (measured[near], target.value) if target.minimizes else (1 - measured[near], 1 - target.value)
    if near.sum() <= ENOUGH or goal <= 0 or not (np.isfinite(values) & (values > 0)).all():
        return np.nan, np.nan
    logs = np.log(values / goal)
    _, slope, level = np.polyfit(np.log(step[near] / step[-1])[:-1], logs[:-1], 2)      # at that evaluation
    scatter = float(np.median(np.abs(np.diff(logs[:-1], 2)))) / NORMAL
    return float(np.exp(np.clip(level / max(-slope, 1e-9), -9, 9))), float((level - logs[-1]) / max(scatter, 1e-9))


def _improving(measured: np.ndarray, target: Target) -> np.ndarray:
    """The best fit to the curve that never gets worse; infinite values count as the worst finite one."""
    finite = np.isfinite(measured)
    if not finite.any():
        return measured
    positive = bool((measured[finite] > 0).all())
    sign = -1.0 if target.minimizes else 1.0
    values = np.where(finite, measured, sign * np.min(sign * measured[finite]))
    fitted = sign * isotonic(sign * (np.log(values) if positive else values)[None])[0]
    return np.exp(fitted) if positive else fitted


class RunToTarget:
    """A trial measured against a target, at the first evaluation that met it or, if known, as if it had met it at its
    lasting crossing, with seconds in between interpolated. Without a target it only shows throughput.

    steps       to target; inf (censored): not met by last_step; NaN: no target. ``steps_before``: at the evaluation
                before, which did not meet; NaN: unknown, the first one met
    seconds     spent in those steps, evaluation left out; ``seconds_before``
    last_step   that measured the target's metric, NaN: none did; without a target, the trial's; ``last_seconds``
    examples_per_second, tokens_per_example     over the steps to target, or over all steps where it was not met; NaN of
                tokens: the loss counts examples
    measured    whether any evaluation measured the target's metric; True without a target
    ended       whether it reached its budget or target, with the metric measured, or was pruned after it met this one
    conclusive  whether it ended or diverged; another pruned trial only shows that it needs more steps"""

    def __init__(self, trial: Trial, target: Target | None = None, crossing: str = FIRST) -> None:
        self.trial = trial
        rows = np.arange(len(trial.step)) if target is None else trial.rows_with(target.column)
        step, clock = ([*values[rows].astype(float).tolist(), np.nan] for values in (trial.step, trial.train_seconds))
        last, self.last_seconds = step[len(rows) - 1], clock[len(rows) - 1]         # NaN, at the end, of no evaluation
        self.last_step = trial.last_step if target is None else last
        self.steps = self.steps_before = self.seconds = self.seconds_before = np.nan if target is None else np.inf
        self.examples_per_second, at = trial.examples_per_second, -1
        met = np.flatnonzero(target.met_by(trial.metrics[target.column][rows]) if target else [])
        if len(met):
            at = int(met[0])
            self.steps, self.seconds = step[at], clock[at]
            self.steps_before, self.seconds_before = (step[at - 1], clock[at - 1]) if self.steps > 0 else (0.0, 0.0)
            if self.steps > 0 and self.seconds > 0:
                self.examples_per_second = trial.batches.examples_before(self.steps) / self.seconds
            at = rows[at]
        self.tokens_per_example = np.nan
        if trial.tokens is not None and len(trial.step) and trial.step[at] > 0:
            self.tokens_per_example = float(trial.tokens[at] / trial.batches.examples_before(int(trial.step[at])))
        lasting = crossing_of(trial, target) if target and crossing == LASTING else None
        if lasting and np.isinf(lasting.steps):
            self.steps = self.steps_before = self.seconds = self.seconds_before = np.inf
            self.examples_per_second = trial.examples_per_second
        elif lasting and not np.isnan(lasting.steps):
            self.steps, self.steps_before = lasting.steps, lasting.before
            seconds, before = np.interp([self.steps, self.steps_before], step[:-1], clock[:-1]).tolist()
            self.seconds = seconds * max(1.0, self.steps / last)
            self.seconds_before = np.nan if np.isnan(self.steps_before) else before
            if self.seconds > 0:
                self.examples_per_second = trial.batches.examples_before(self.steps) / self.seconds
        self.met, self.measured = bool(np.isfinite(self.steps)), not np.isnan(self.last_step)
        self.ended = trial.status == Status.COMPLETE and self.measured or trial.pruned and self.met
        self.conclusive = self.ended or trial.status == Status.INFEASIBLE

    def untimed(self) -> RunToTarget:
        found = copy(self)
        found.seconds = found.seconds_before = found.examples_per_second = np.nan
        return found


def crossing_of(trial: Trial, target: Target) -> Crossing | None:
    """A trial's lasting crossing; None where it did not meet the target."""
    rows = trial.rows_with(target.column)
    return lasting_crossing(trial.step[rows].astype(float), trial.metrics[target.column][rows], target)


STEPS, SECONDS, SPEED = "steps", "seconds", "examples_per_second"       # what is measured: fields of Samples
LAST = {STEPS: "last_step", SECONDS: "last_seconds"}
BEFORE = {STEPS: "steps_before", SECONDS: "seconds_before", SPEED: SPEED}      # at the evaluation before


class Samples:
    """The measurements of a setting's repeats: arrays of shape (seeds,), in order of seed; NaN: not measured. Runs of
    one seed are the same updates and count once, by their geometric mean over those that were measured."""

    def __init__(self, runs: Sequence[RunToTarget]) -> None:
        by_seed = group_by(runs, lambda run: run.trial.seed_key)
        self.seeds = tuple(sorted(by_seed))
        self.steps, self.steps_before, self.seconds, self.seconds_before, self.examples_per_second = (
            np.array([_mean_of_known([getattr(run, name) for run in by_seed[seed]]) for seed in self.seeds], float)
            for name in (STEPS, BEFORE[STEPS], SECONDS, BEFORE[SECONDS], SPEED))

    def with_before(self, name: str) -> np.ndarray:
        """A measurement and that at the evaluation before: shape (2, seeds)."""
        return np.array([getattr(self, name), getattr(self, BEFORE[name])])


def known(values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, float)
    return values[~np.isnan(values)]


def _mean_of_known(values: Sequence[float]) -> float:
    """The geometric mean of those that are not NaN; a single value as it is."""
    if len(values) == 1:
        return values[0]
    some = known(values)
    return float(geometric_mean(some)) if len(some) else np.nan


def estimate(values: np.ndarray, before: np.ndarray, reached: Sequence[float] | np.ndarray, pool: Spread = UNKNOWN,
             pool_before: Spread = UNKNOWN, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate of steps (or seconds) to target from repeats, arrays of shape (repeats,).

    values   at the evaluation that met; inf where none did
    before   at the evaluation before; NaN: unknown, so that the lower end is 0
    reached  the last step (or second) of repeats that did not meet, where known"""
    met, reached = np.isfinite(values), known(reached)
    if not met.all():
        beyond = float(np.min(reached)) if len(reached) else np.nan
        low = float(np.nan_to_num(np.min(before[met]))) if met.any() else beyond
        least = np.where(met, before, beyond)       # as if the others had met there: a mean that is surely no larger
        if len(least) > 1 and pool_before.freedom and np.min(least) > 0:
            low = min(low, float(mean_interval(least, pool_before, confidence)[0]))
        return Estimate(geometric_median(values), low, np.inf, len(values), beyond)
    mean = float(geometric_mean(values))
    if mean == 0:
        return Estimate(0.0, 0.0, float(np.max(values)), len(values), before=0.0)   # no logarithm: their range
    some = ~np.isnan(before)
    mean_before = mean * mean_ratio(before[some], values[some]) if some.any() else np.nan
    if len(values) == 1:                # whose spacing of evaluations is no spread between runs
        return Estimate(mean, *NONE, 1, before=mean_before)
    (luck, freedom), (low, high) = pool.shared, mean_interval(values, pool, confidence)
    low_before, _ = mean_interval(before, pool_before, confidence) if np.min(before) > 0 else (0.0, None)
    return Estimate(mean, float(min(low, low_before)), float(high), len(values), before=mean_before,
                    shared=float(student_quantile(freedom, confidence) * np.sqrt(luck / len(values))) if luck else 0.0)


@dataclass(eq=False)
class RunCell:
    """The trials at one global batch, at one worker count or over all: those of the best setting.

    global_batch, batches   the largest, where it changes, and all; ``sync`` of the cells by Trial.sync
    workers   one, or in a table by batch every count that ran it
    diverged  INFEASIBLE trials of the best setting
    keys      of the trials that its estimates come from
    alike     equal for repeats; ``updates``: for the same settings and seeds, so the same updates and evaluations
    searched  whether its steps are the fewest of a search's trials; ``trials``: its feasible ones, 0 of repeats
    met       the number of seeds that met the target
    tokens_per_example      that the loss counts in the steps to target; NaN: it counts examples"""

    runs: tuple[RunToTarget, ...]           # that ended, of the best setting
    considered: tuple[Trial, ...]   # every trial of the cell that ended or diverged, at least one
    setting: str                    # of the first of its trials
    settings: int                   # tried in this cell, apart from the spacing of evaluations
    samples: Samples
    confidence: float
    pools: Pools = Pools()          # the spreads shared with the other cells of its section
    draws: tuple[RunToTarget, ...] = ()     # feasible trials of the search that drew the setting, pruned ones too
    best_of_n: int | None = None    # the number of them that its steps are the best of; None: all
    apart: Mapping[SeedKey, float] = field(default_factory=dict)    # see without_apart

    def __post_init__(self) -> None:
        first, chosen = self.considered[0], next(one for one in self.considered if one.setting == self.setting)
        self.alike, own = chosen.alike, [trial for trial in self.considered if trial.alike == chosen.alike]
        self.global_batch, self.batches, self.sync = first.global_batch, first.batches, first.sync
        self.workers = tuple(sorted({trial.workers for trial in self.considered}))
        self.diverged = tuple(trial for trial in own if trial.status == Status.INFEASIBLE)
        self.keys = tuple(run.trial.key for run in self.runs)
        self.updates = self.alike, frozenset((run.trial.setting, run.trial.seed_key) for run in self.runs)
        self.searched = bool(self.draws) and not np.isnan(self.draws[0].steps)
        self.trials = len(self.draws) if self.searched else 0
        self.met = int(np.isfinite(self.samples.steps).sum()) + len(self.apart)
        tokens = known([run.tokens_per_example for run in self.runs])
        self.tokens_per_example = float(np.mean(tokens)) if len(tokens) else np.nan
        self.oversubscribed = any(trial.crowded for trial in self.considered)

    def without_apart(self, apart: Mapping[SeedKey, float]) -> RunCell:
        """The cell as estimated without the steps of these seeds, which needed so many times as many as the others."""
        own = {seed: ratio for seed, ratio in apart.items() if seed in self.samples.seeds}
        out, samples = [seed in own for seed in self.samples.seeds], copy(self.samples)
        vars(samples).update({name: np.where(out, np.nan, getattr(samples, name))
                              for each in (STEPS, SECONDS) for name in (each, BEFORE[each])})
        return replace(self, apart=own, samples=samples)

    @cached_property
    def steps(self) -> Estimate:
        """S: steps to target; for a search the median best-of-n of its trials, see best_of_n.best_of."""
        if self.searched:
            found = np.array([(run.steps, run.steps_before, run.last_step) for run in self.draws], float).T
            return best_of(*found, pruned=[run.trial.pruned for run in self.draws], n=self.best_of_n,
                           confidence=self.confidence)
        return self._estimate_to_target(STEPS)

    @property
    def mean_batch(self) -> float:
        """The mean batch over the steps to target, or over all steps where it was not met."""
        steps = self.steps.value
        return self.batches.mean_before(steps if np.isfinite(steps) else max(
            known([run.last_step for run in self.runs]), default=0))

    @cached_property
    def examples(self) -> Estimate:
        return self.steps.mapped(self.batches.examples_before)

    @cached_property
    def seconds(self) -> Estimate:
        """T: seconds to target; for a search, its steps at the speed of the best setting."""
        if self.searched:       # with the intervals of both; with that of S alone where the spread of x is unknown
            speed, steps = self.examples_per_second, self.examples
            if not speed.runs:
                return Estimate.unknown()
            if np.isnan(speed.low):
                speed = replace(speed, low=speed.value, high=speed.value)
            return replace(over(steps, speed), runs=steps.runs)
        found = self._estimate_to_target(SECONDS)
        all_met, all_timed = self.met == len(self.samples.seeds), not np.isnan(self.samples.seconds).any()
        if not self.steps.met or all_met and all_timed or found.value == 0:
            return found
        # steps of all seeds at the mean speed: T = S B / x still holds
        value = self.batches.examples_before(self.steps.value) / self.examples_per_second.value
        if all_met:         # some seeds were not timed: the interval of the others, shifted
            return found.scaled(value / found.value)
        return Estimate(value, found.low, found.high, found.runs, found.beyond)

    @cached_property
    def examples_per_second(self) -> Estimate:
        """x, over the steps to target."""
        values = known(self.samples.examples_per_second)
        if not len(values):
            return Estimate.unknown()
        low, high = mean_interval(values, self.pools.of(SPEED), self.confidence)
        return Estimate(float(geometric_mean(values)), float(low), float(high), len(values))

    @cached_property
    def parts(self) -> StepParts | None:
        """Where the time of its runs' steps went; None where no run has them."""
        found = [run.trial.step_parts for run in self.runs if run.trial.step_parts and run.trial.step_parts.steps]
        if not found:
            return None
        data, compute, communication = (float(np.mean([getattr(one, name) for one in found])) for name in NAMES)
        ranks = [one.ranks for one in found if one.ranks]
        return StepParts(sum(one.steps for one in found), float(geometric_mean([one.seconds for one in found])), data,
                         compute, communication, mean_of(ranks) if ranks else None)

    @cached_property
    def noise(self) -> Noise:
        """The noise scale of its runs, one per seed, where some measured it."""
        by_seed = group_by((run.trial for run in self.runs if run.trial.noise), lambda trial: trial.seed_key)
        return noise_of([noise for own in by_seed.values() if (noise := own[0].noise)], self.confidence)

    def _estimate_to_target(self, name: str) -> Estimate:
        reached = [getattr(run, LAST[name]) for run in self.runs if not run.met]
        values, before = self.samples.with_before(name)
        timed = ~np.isnan(values)
        if not timed.any():
            return Estimate.unknown()
        return estimate(values[timed], before[timed], reached, self.pools.of(name).at(self.global_batch),
                        self.pools.of(BEFORE[name]).at(self.global_batch), self.confidence)

    @property
    def step_seconds(self) -> Estimate:
        """Seconds a step at the mean speed: B / x, with the mean batch where it changes."""
        speed = self.examples_per_second
        value, low, high = (self.mean_batch / one if one else np.nan for one in (speed.value, speed.high, speed.low))
        return Estimate(value, low, high, speed.runs)


def cell_of(runs: Sequence[RunToTarget], confidence: float = CONFIDENCE) -> RunCell:
    """The cell of runs at one global batch, including those that diverged; unfinished ones are ignored. Of several
    settings, the best one represents the cell: the fewest steps to target or, without a target, the most examples per
    second. Ties go to the first log and trial id. In a search, the best setting is that of the single trial with the
    fewest steps, whatever its repeats needed."""
    ended = sorted((run for run in runs if run.conclusive), key=lambda run: run.trial.key)
    settings = list(group_by(ended, lambda run: run.trial.alike).values())
    own = min(settings, key=_rank)          # min keeps the first of equals
    best = tuple(run for run in own if run.ended)
    drawn = next((run.trial.study for run in best if run.trial.sweep and not run.trial.sweep["repeat"]), None)
    draws = {run.trial.sweep["draw"]: run for run in runs if drawn and run.trial.study == drawn
             and not run.trial.sweep["repeat"] and (run.trial.status == Status.COMPLETE or run.trial.pruned)}
    return RunCell(best, tuple(run.trial for run in ended), own[0].trial.setting, len(settings), Samples(best),
                   confidence, draws=tuple(draws[number] for number in sorted(draws)))


def cells_by(runs: Iterable[RunToTarget], confidence: float, names: Sequence[str] = ("workers", "global_batch")
             ) -> dict[Any, RunCell]:
    """The cells of runs by these attributes of trials, in order; without those that have no conclusive run."""
    groups = group_by(sorted(runs, key=lambda run: run.trial.workers), lambda run: attrgetter(*names)(run.trial))
    return {key: cell_of(own, confidence) for key, own in sorted(groups.items(), key=itemgetter(0))
            if any(run.conclusive for run in own)}


def _rank(runs: Sequence[RunToTarget]) -> tuple[float, float]:
    """The sort key of a setting's runs; the smallest represents the cell."""
    runs = [run for run in runs if run.ended]
    if not runs:
        return np.inf, np.inf
    searched = [run.steps for run in runs if run.trial.sweep and not run.trial.sweep["repeat"]]
    if searched and not np.isnan(searched).any():
        return min(searched), 0 if np.isfinite(min(searched)) else min(run.last_step for run in runs)
    steps = Samples(runs).steps
    met = int(np.isfinite(steps).sum())
    value = float(geometric_mean(steps)) if met in (0, len(steps)) else geometric_median(steps)
    if np.isnan(value):         # no target
        value = -_mean_of_known([run.examples_per_second for run in runs])
    return (np.inf if np.isnan(value) else value), -met
