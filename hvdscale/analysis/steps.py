"""Steps, time and throughput to a target: of a trial, and of the repeats in one cell of a table.

Steps to target (Shallue et al. 2019, section 4.1): steps done at the first evaluation that meets the target. Over
repeats the geometric mean is taken of steps S, seconds T and examples a second x alike, because T = S B / x then holds
for the means exactly, B being the global batch.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..log.schema import Status
from .best_of_n import best_of
from .intervals import (CONFIDENCE, NONE, UNKNOWN, Estimate, Pools, geometric_mean, geometric_median, mean_interval,
                        quotient)
from .trials import Trial


def first_met(measured, target):
    """Index of the first evaluation that meets the target; -1 if none does.

    measured  float array, shape (evals,), in order of steps; NaN (a diverged evaluation) never meets
    target    see Target.met_by, the only place where the comparison is written
    """
    met = target.met_by(np.asarray(measured, float))
    at = int(met.argmax()) if len(met) else 0
    return at if len(met) and met[at] else -1


@dataclass(frozen=True, eq=False)
class Run:
    """A trial held against a target, or against none: then it only shows how fast it went."""

    trial: Trial
    steps: float                # to target; inf (censored): not met in last_step; NaN: no target
    steps_before: float         # at the evaluation before, which did not meet; 0 where it was the first
    seconds: float              # spent in those steps, evaluation left out
    seconds_before: float
    last_step: int
    last_seconds: float
    examples_per_second: float  # over the steps to target; over all where it was not met

    @property
    def met(self):
        return bool(np.isfinite(self.steps))

    @property
    def ended(self):
        """Whether it went as far as it was to: to its budget or target; one that a search has stopped, to this target.
        """
        return self.trial.status == Status.COMPLETE or self.trial.pruned and self.met


def run_of(trial: Trial, target=None) -> Run:
    """How one trial fared against a target."""
    last_seconds = float(trial.train_seconds[-1]) if len(trial.step) else np.nan
    rest = trial.last_step, last_seconds, trial.examples_per_second
    if target is None:
        return Run(trial, *[np.nan] * 4, *rest)
    at = first_met(trial.metrics[target.column], target)
    if at < 0:
        return Run(trial, *[np.inf] * 4, *rest)
    steps, seconds = float(trial.step[at]), float(trial.train_seconds[at])
    before = (float(trial.step[at - 1]), float(trial.train_seconds[at - 1])) if at else (0.0, 0.0)
    speed = trial.global_batch * steps / seconds if steps > 0 and seconds > 0 else trial.examples_per_second
    return Run(trial, steps, before[0], seconds, before[1], *rest[:2], speed)


@dataclass(frozen=True, eq=False)
class Samples:
    """What the repeats of a setting measured: arrays of shape (seeds,), in order of seed.

    Runs of one seed are the same updates and count once: each entry is their geometric mean, of seconds and speeds over
    those that were timed; NaN where none was.
    """

    seeds: np.ndarray
    steps: np.ndarray
    steps_before: np.ndarray
    seconds: np.ndarray
    seconds_before: np.ndarray
    examples_per_second: np.ndarray


def samples_of(runs) -> Samples:
    """The samples of runs of one setting."""
    seeds, at = np.unique([run.trial.seed for run in runs], return_inverse=True)

    def over_seeds(name):
        values = np.array([getattr(run, name) for run in runs], float)
        if len(seeds) == len(runs):
            return values[np.argsort(at)]
        return np.array([_mean_of_known(values[at == seed]) for seed in range(len(seeds))])
    names = ("steps", "steps_before", "seconds", "seconds_before", "examples_per_second")
    return Samples(seeds, *map(over_seeds, names))


def known(values):
    """Those that were measured."""
    return values[~np.isnan(values)]


def _mean_of_known(values):
    values = known(np.asarray(values, float))
    return geometric_mean(values) if len(values) else np.nan


def estimate(values, before, reached, pool=UNKNOWN, pool_before=UNKNOWN, confidence=CONFIDENCE) -> Estimate:
    """Estimate of steps (or seconds) to target from repeats.

    values   float array, shape (repeats,): at the evaluation that met; inf where none did
    before   float array, shape (repeats,): at the evaluation before
    reached  where values is inf, how far that repeat went, as far as it is known; shape (up to unmet,)
    pool     the Spread shared with other cells, and pool_before that of ``before``
    """
    met = np.isfinite(values)
    if met.all():
        return _all_met(values, before, pool, pool_before, confidence)
    beyond = float(np.min(reached)) if len(reached) else np.nan
    if not met.any():
        return Estimate(np.inf, beyond, np.inf, len(values), beyond)
    return Estimate(geometric_median(values), float(np.min(before[met])), np.inf, len(values), beyond)


def _all_met(values, before, pool, pool_before, confidence):
    mean, mean_before = float(geometric_mean(values)), float(geometric_mean(before))
    if len(values) == 1:
        # the evaluation grid is all that is known of the spread
        return Estimate(mean, mean_before, mean, 1, before=mean_before)
    if mean == 0:
        return Estimate(0.0, 0.0, float(np.max(values)), len(values))       # no logarithm: all that was seen
    low, high = mean_interval(values, pool, confidence)
    low_before, _ = mean_interval(before, pool_before, confidence) if mean_before > 0 else (0.0, None)
    return Estimate(mean, float(min(low, low_before)), float(high), len(values), before=mean_before)


@dataclass(frozen=True, eq=False)
class Cell:
    """Trials at one global batch, and at one worker count or at any: the setting that stands for them."""

    global_batch: int
    workers: tuple[int, ...]        # one, or for a table by batch all that ran it
    runs: tuple[Run, ...]           # that ended, of the setting that stands for the cell
    diverged: tuple[Trial, ...]     # INFEASIBLE, of that setting
    settings: int                   # tried in this cell
    considered: tuple[Trial, ...]   # every trial of the cell that ended
    setting: str
    samples: Samples
    confidence: float
    pools: Pools                    # the spreads that it shares with the other cells of its section
    draws: tuple[Run, ...] = ()     # feasible trials of the search that the setting comes from, pruned ones too
    best_of_n: int | None = None    # how many of them its steps are the best of; None: all

    @property
    def searched(self) -> bool:
        """Whether its steps are the fewest of a search."""
        return bool(self.draws) and not np.isnan(self.draws[0].steps)

    @property
    def met(self):
        """How many of the seeds met the target."""
        return int(np.isfinite(self.samples.steps).sum())

    @cached_property
    def steps(self) -> Estimate:
        """S: steps to target; of a search the median best of best_of_n of its trials, see best_of_n.best_of."""
        if self.searched:
            return best_of(*(np.array([getattr(run, name) for run in self.draws], float)
                             for name in ("steps", "steps_before", "last_step")),
                           pruned=[run.trial.pruned for run in self.draws], n=self.best_of_n,
                           confidence=self.confidence)
        return self._to_target("steps", [run.last_step for run in self.runs if not run.met])

    @cached_property
    def seconds(self) -> Estimate:
        """T: seconds to target; of a search its steps at the speed of the setting."""
        if self.searched:
            return self._at_speed()
        found = self._to_target("seconds", [run.last_seconds for run in self.runs if not run.met])
        all_met = self.met == len(self.samples.seeds)
        if not self.steps.met or all_met and self.all_timed or found.value == 0:
            return found
        # the steps of all seeds at the mean speed, so that T = S B / x still holds
        value = self.global_batch * self.steps.value / self.examples_per_second.value
        if all_met:         # not all timed: the interval is that of those that were
            return found.scaled(value / found.value)
        return Estimate(value, found.low, found.high, found.runs, found.beyond)

    @property
    def all_timed(self):
        """Whether the seconds of every seed are known."""
        return not np.isnan(self.samples.seconds).any()

    @cached_property
    def examples_per_second(self) -> Estimate:
        """x: over the steps to target."""
        values = known(self.samples.examples_per_second)
        if not len(values):
            return Estimate(np.nan, *NONE, 0)
        low, high = mean_interval(values, self.pools.of("examples_per_second"), self.confidence)
        return Estimate(float(geometric_mean(values)), float(low), float(high), len(values))

    def _at_speed(self):
        """S B / x, with the interval of S and of x; of S alone where the spread of x is not known."""
        speed, steps = self.examples_per_second, self.steps.scaled(self.global_batch)
        if not speed.runs:
            return Estimate(np.nan, *NONE, 0)
        ends = quotient(steps, speed) if speed.low == speed.low else (steps.low / speed.value, steps.high / speed.value)
        return Estimate(steps.value / speed.value, *ends, steps.runs, steps.beyond / speed.value)

    def _to_target(self, name, reached):
        values, before = getattr(self.samples, name), getattr(self.samples, f"{name}_before")
        timed = ~np.isnan(values)
        if not timed.any():
            return Estimate(np.nan, *NONE, 0)
        values, before, reached = values[timed], before[timed], known(np.array(reached, float))
        return estimate(values, before, reached, self.pools.of(name), self.pools.of(f"{name}_before"), self.confidence)

    @property
    def step_seconds(self):
        """Seconds a step at the mean speed: B / x."""
        speed = self.examples_per_second
        return Estimate(*(self.global_batch / value if value else np.nan for value in
                          (speed.value, speed.high, speed.low)), speed.runs)

    @cached_property
    def oversubscribed(self):
        """Whether its trials ran with more workers on a host than it has cores: their times say little."""
        return any(trial.crowded for trial in self.considered)


def cell_of(runs, confidence=CONFIDENCE, pools=Pools()) -> Cell:
    """The cell of runs at one global batch, those that diverged included; unfinished ones take no part.

    Several settings: the one with the fewest steps to target stands for the cell, or without a target the one with the
    most examples a second; ties go to the first log and trial id. Of settings that were searched, it is the one of the
    trial with the fewest steps: repeats of that trial do not speak against it. Trials that a search has pruned only say
    that they need more steps.
    """
    ended = sorted((run for run in runs if run.ended or run.trial.status == Status.INFEASIBLE),
                   key=lambda run: run.trial.key)
    settings = {}
    for run in ended:
        settings.setdefault(run.trial.setting, []).append(run)
    setting = min(settings, key=lambda setting: _rank(settings[setting]))       # min keeps the first of equals
    best = tuple(run for run in settings[setting] if run.ended)
    return Cell(ended[0].trial.global_batch, tuple(sorted({run.trial.workers for run in ended})), best,
                tuple(run.trial for run in settings[setting] if run.trial.status == Status.INFEASIBLE),
                len(settings), tuple(run.trial for run in ended), setting, samples_of(best), confidence, pools,
                _draws(runs, best))


def _draws(runs, best):
    """Of the search that drew the best setting, the trials that were finite up to their stop, one a draw, in order."""
    drawn = [run.trial.study for run in best if run.trial.sweep and not run.trial.sweep["repeat"]]
    found = {run.trial.sweep["draw"]: run for run in runs if drawn and run.trial.study == drawn[0]
             and not run.trial.sweep["repeat"] and (run.trial.status == Status.COMPLETE or run.trial.pruned)}
    return tuple(found[number] for number in sorted(found))


def _rank(runs):
    """What makes a setting stand for its cell: the smallest of these."""
    runs = [run for run in runs if run.ended]
    if not runs:
        return np.inf, np.inf
    searched = [run.steps for run in runs if run.trial.sweep and not run.trial.sweep["repeat"]]
    if searched and not np.isnan(searched).any():
        return min(searched), 0 if np.isfinite(min(searched)) else min(run.last_step for run in runs)
    if len(runs) == 1:
        value, met = runs[0].steps, runs[0].met
    else:
        samples = samples_of(runs)
        met = int(np.isfinite(samples.steps).sum())
        value = geometric_mean(samples.steps) if met in (0, len(samples.steps)) else geometric_median(samples.steps)
    if np.isnan(value):         # no target
        value = -_mean_of_known([run.examples_per_second for run in runs])
    return (np.inf if np.isnan(value) else value), -met
