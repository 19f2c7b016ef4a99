"""Steps, time and throughput to a target: of a trial, and of the repeats in one cell of a table.

Steps to target (Shallue et al. 2019, section 4.1): steps done at the first evaluation that meets the target. Over
repeats the geometric mean is taken of steps S, seconds T and examples a second x alike, because T = S B / x then holds
for the means exactly, B being the global batch.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..log.schema import Status
from .intervals import CONFIDENCE, NONE, geometric_mean, geometric_median, mean_interval
from .trials import Trial


def first_met(measured, target):
    """Index of the first of ``measured`` that meets the target; -1 if none does. NaN never meets."""
    met = np.flatnonzero(target.met_by(np.asarray(measured, float)))
    return int(met[0]) if len(met) else -1


def steps_to_target(step, measured, target):
    """Steps done at the first evaluation that meets the target; inf (censored) if none does.

    step      int array, shape (evals,), increasing
    measured  float array, shape (evals,); NaN (a diverged evaluation) never meets
    target    see Target.met_by, the only place where the comparison is written
    """
    at = first_met(measured, target)
    return float(step[at]) if at >= 0 else np.inf


@dataclass(frozen=True, eq=False)
class Run:
    """A trial held against a target, or against none: then it only shows how fast it went."""

    trial: Trial
    steps: float                # to target; inf: not met in last_step; NaN: no target
    steps_before: float         # at the evaluation before, which did not meet; 0 where it was the first
    seconds: float              # spent in those steps, evaluation left out
    seconds_before: float
    last_step: int
    last_seconds: float
    examples_per_second: float  # over the steps to target; over all where it was not met

    @property
    def met(self):
        return bool(np.isfinite(self.steps))


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


@dataclass(frozen=True)
class Estimate:
    """A value over repeats with its interval, both inf-aware.

    value  geometric mean; with unmet runs the median that counts them as inf; inf: most did not meet; NaN: not measured
    low    ends of the interval; NaN where one run leaves nothing to say
    high   inf where a run did not meet
    runs   repeats that count as independent: seeds
    beyond where not met: the value is above this, the least that an unmet run reached; else NaN
    """

    value: float
    low: float
    high: float
    runs: int
    beyond: float = np.nan

    @property
    def met(self):
        return bool(np.isfinite(self.value))

    def scaled(self, factor):
        """The estimate of ``factor`` times the quantity."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.runs, self.beyond * factor)


@dataclass(frozen=True, eq=False)
class Samples:
    """What the repeats of a setting measured: arrays of shape (seeds,), in order of seed.

    Runs of one seed are the same updates and count once: each entry is their geometric mean.
    """

    seeds: np.ndarray
    steps: np.ndarray
    steps_before: np.ndarray
    seconds: np.ndarray
    seconds_before: np.ndarray
    examples_per_second: np.ndarray


def samples_of(runs) -> Samples:
    """The samples of runs of one setting."""
    seeds = np.unique([run.trial.seed for run in runs])

    def over_seeds(name):
        return np.array([geometric_mean([getattr(run, name) for run in runs if run.trial.seed == seed])
                         for seed in seeds])
    names = ("steps", "steps_before", "seconds", "seconds_before", "examples_per_second")
    return Samples(seeds, *map(over_seeds, names))


def estimate(values, before, reached, confidence=CONFIDENCE) -> Estimate:
    """Estimate of steps (or seconds) to target from repeats.

    values   float array, shape (repeats,): at the evaluation that met; inf where none did
    before   float array, shape (repeats,): at the evaluation before
    reached  where values is inf, how far that repeat went; shape (unmet,)
    """
    if np.isnan(values).any():
        return Estimate(np.nan, *NONE, len(values))
    met = np.isfinite(values)
    if met.all():
        return _all_met(values, before, confidence)
    beyond = float(np.min(reached))
    if not met.any():
        return Estimate(np.inf, beyond, np.inf, len(values), beyond)
    return Estimate(geometric_median(values), float(np.min(before[met])), np.inf, len(values), beyond)


def _all_met(values, before, confidence):
    mean, mean_before = float(geometric_mean(values)), float(geometric_mean(before))
    if len(values) == 1:
        return Estimate(mean, mean_before, mean, 1)         # the evaluation grid is all that is known of the spread
    if mean == 0:
        return Estimate(0.0, 0.0, float(np.max(values)), len(values))       # no logarithm: all that was seen
    low, high = mean_interval(values, confidence)
    low_before, _ = mean_interval(before, confidence) if mean_before > 0 else (0.0, None)
    return Estimate(mean, float(min(low, low_before)), float(high), len(values))


@dataclass(frozen=True, eq=False)
class Cell:
    """Trials at one global batch, and at one worker count or at any: the setting that stands for them."""

    global_batch: int
    workers: tuple[int, ...]        # one, or for a table by batch all that ran it
    runs: tuple[Run, ...]           # COMPLETE, of the setting that stands for the cell
    diverged: tuple[Trial, ...]     # INFEASIBLE, of that setting
    settings: int                   # tried in this cell
    considered: tuple[Trial, ...]   # every trial of the cell that ended
    setting: str
    samples: Samples
    steps: Estimate
    seconds: Estimate
    examples_per_second: Estimate

    @property
    def met(self):
        """How many of the seeds met the target."""
        return int(np.isfinite(self.samples.steps).sum())

    @property
    def step_seconds(self):
        """Seconds a step at the mean speed: B / x."""
        speed = self.examples_per_second
        return Estimate(*(self.global_batch / value if value else np.nan for value in
                          (speed.value, speed.high, speed.low)), speed.runs)

    @property
    def oversubscribed(self):
        """Whether its trials ran with more workers on a host than it has cores: their times say little."""
        return any(trial.execution.get("local_workers", 0) > trial.execution.get("cores", np.inf)
                   for trial in self.considered)


def cell_of(trials, target=None, confidence=CONFIDENCE) -> Cell:
    """The cell of trials at one global batch; unfinished trials take no part.

    Several settings: the one with the fewest steps to target stands for the cell, or without a target the one with the
    most examples a second; ties go to the first log and trial id.
    """
    ended = sorted((trial for trial in trials if trial.status in (Status.COMPLETE, Status.INFEASIBLE)),
                   key=lambda trial: trial.key)
    settings = {}
    for trial in ended:
        settings.setdefault(trial.setting, []).append(trial)
    cells = [_setting_cell(repeats, target, confidence) for repeats in settings.values()]
    best = min(cells, key=lambda cell: _rank(cell, target))     # min keeps the first of equals
    workers = tuple(sorted({trial.workers for trial in ended}))
    return replace(best, workers=workers, settings=len(settings), considered=tuple(ended))


def _rank(cell, target):
    if not cell.runs:
        return np.inf, np.inf
    value = -cell.examples_per_second.value if target is None else cell.steps.value
    return (np.inf if np.isnan(value) else value), -cell.met


def _setting_cell(repeats, target, confidence):
    runs = tuple(run_of(trial, target) for trial in repeats if trial.status == Status.COMPLETE)
    diverged = tuple(trial for trial in repeats if trial.status == Status.INFEASIBLE)
    batch, workers = repeats[0].global_batch, (repeats[0].workers,)
    samples = samples_of(runs)
    unmeasured = Estimate(np.nan, *NONE, len(samples.seeds))
    steps = seconds = speed = unmeasured
    if runs:
        speeds = samples.examples_per_second
        low, high = mean_interval(speeds, confidence)
        speed = Estimate(float(geometric_mean(speeds)), float(low), float(high), len(speeds))
    if runs and target is not None:
        unmet = [run for run in runs if not run.met]
        steps = estimate(samples.steps, samples.steps_before, [run.last_step for run in unmet], confidence)
        seconds = estimate(samples.seconds, samples.seconds_before, [run.last_seconds for run in unmet], confidence)
        if len(unmet) and steps.met:        # the median run's steps at the mean speed, so that T = S B / x still holds
            seconds = Estimate(batch * steps.value / speed.value, seconds.low, seconds.high, seconds.runs,
                               seconds.beyond)
    return Cell(batch, workers, runs, diverged, 1, tuple(repeats), repeats[0].setting, samples, steps, seconds, speed)
