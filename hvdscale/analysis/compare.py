"""Two sets of logs, a baseline and a candidate, held against each other: a gate for convergence.

    for comparison in compare_trials(read_trials(a), read_trials(b)):
        print(comparison.verdict, [(cell.workers, cell.verdict) for cell in comparison.cells])

Each workload, worker count and global batch that both have is a cell. In it steps to target S, seconds to target T and
examples a second x are compared as ratios, candidate over baseline, of geometric means, with the intervals of
analysis.intervals: paired by seed where the seeds are the same, over the draws that both met where both are studies of
one space, else of two independent samples. Of searches without a draw in common it is the ratio of their median
best-of-n (see minimum), with the quotient of their intervals. An evaluation shows only that the target was met since
the one before, so the interval is the hull of the ratios with either side at its evaluation before; where all
evaluations up to there are equal to the last bit, it is the same run, and the ratio 1.

A regression is certain: the whole interval lies beyond the tolerance. Where the interval spans it, or there is none, it
cannot be told. Over all cells of a workload a ratio is formed as well, from one a cell, whose spread is that between
cells: so single runs at several worker counts or batch sizes tell together.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from ..errors import UsageError
from ..log.schema import Status
from ..target import Target
from .intervals import (CONFIDENCE, NONE, Estimate, geometric_mean, hull, mean_interval, paired_ratio_interval, pooled,
                        pooled_paired, quotient, ratio_interval)
from .pooled_variance import SPEED
from .steps import Cell, cell_of, run_of
from .trials import Trial, Workload, by_workload

STEPS, SECONDS, BEST = "steps", "seconds", "best"
MEASURES = (STEPS, SECONDS, SPEED)
OK, UNTOLD, REGRESSION = "ok", "cannot tell", "regression"      # verdicts, from good to bad


@dataclass(frozen=True)
class Tolerances:
    """How much worse a candidate may be: shares, but ``metric``, which is in the metric's own unit; None: not judged.

    time is that of seconds to target and of examples a second alike.
    """

    steps: float = 0.10
    time: float | None = 0.25
    metric: float | None = None
    confidence: float = CONFIDENCE

    def of(self, measure) -> float | None:
        """The tolerance of one of MEASURES, or BEST."""
        return {STEPS: self.steps, BEST: self.metric}.get(measure, self.time)


@dataclass(frozen=True)
class Test:
    """One measure of one cell, or of all cells of a workload.

    before, after  of the baseline and the candidate; NaN: not known; inf: not met
    change         candidate over baseline; of BEST candidate minus baseline
    """

    measure: str
    before: float
    after: float
    change: Estimate
    verdict: str | None         # None: not judged
    reason: str                 # of a verdict that is not OK


@dataclass(frozen=True, eq=False)
class ComparedCell:
    """A worker count and global batch that both have."""

    workers: int
    global_batch: int
    baseline: Cell
    candidate: Cell
    pairing: str                # "seed", "draw", "search": the best of either search, or "": independent samples
    tests: tuple[Test, ...]
    horizon: int                # steps within which the best metric is taken

    @property
    def verdict(self) -> str:
        """The worst of its tests'."""
        return _worst(self.tests)


@dataclass(frozen=True, eq=False)
class Comparison:
    """One workload held against one target, or against none: then about throughput alone."""

    workload: Workload
    target: Target | None
    cells: tuple[ComparedCell, ...]
    overall: tuple[Test, ...]                   # over cells; empty where there is but one
    missing: tuple[tuple[int, int], ...]        # (workers, batch) of the baseline that the candidate has not ended
    added: tuple[tuple[int, int], ...]          # that the candidate alone has
    tolerances: Tolerances

    @property
    def verdict(self) -> str:
        """The worst of its cells and of all together; a missing cell cannot be told."""
        return max([*(cell.verdict for cell in self.cells), _worst(self.overall), *([UNTOLD] if self.missing else [])],
                   key=(OK, UNTOLD, REGRESSION).index, default=UNTOLD)

    @property
    def judged(self) -> int:
        """How many tests have a verdict."""
        return sum(test.verdict is not None for tests in (*(cell.tests for cell in self.cells), self.overall)
                   for test in tests)


def compare_trials(baseline: Sequence[Trial], candidate: Sequence[Trial], targets: Sequence[Target] = (),
                   tolerances=Tolerances()) -> tuple[Comparison, ...]:
    """The candidate's trials held against the baseline's, by workload and target.

    targets  none: those of the baseline's own plans
    Raises UsageError where no cell of the baseline is in the candidate, naming what either has.
    """
    before, after = by_workload(baseline), by_workload(candidate)
    found = []
    for workload, trials in before.items():
        own = dict.fromkeys(Target.parse(trial.target) for trial in trials if trial.target)
        for target in dict.fromkeys(targets) or own or (None,):
            cells = _cells(trials, target, tolerances)
            if cells:
                found.append(_compared(workload, target, cells, _cells(after.get(workload, ()), target, tolerances),
                                       tolerances))
    if not any(comparison.cells for comparison in found):
        raise UsageError(f"nothing to compare: the baseline has {_listed(baseline)}; the candidate {_listed(candidate)}"
                         f"{'; held against ' if targets else ''}{', '.join(map(str, targets))}")
    return tuple(found)


def _cells(trials, target, tolerances) -> dict[tuple[int, int], Cell]:
    """Cells by (workers, global batch) of the trials that ended and, with a target, were evaluated for it."""
    groups = {}
    for trial in trials:
        if trial.status != Status.RUNNING and (target is None or target.column in trial.metrics):
            run = run_of(trial, target)
            if _is_told(run) or trial.pruned:
                groups.setdefault((trial.workers, trial.global_batch), []).append(run)
    return {key: cell_of(groups[key], tolerances.confidence) for key in sorted(groups)
            if any(map(_is_told, groups[key]))}


def _is_told(run):
    """Whether a cell may stand on it; what its search has pruned only says that it needs more steps."""
    return run.ended or run.trial.status == Status.INFEASIBLE


def _listed(trials, most=4):
    """What trials there are, for a message."""
    seen = dict.fromkeys(f"{trial.workload} at W = {trial.workers}, B = {trial.global_batch:,}" for trial in trials)
    return "; ".join(list(seen)[:most]) + (f" and {len(seen) - most} more" if len(seen) > most else "") or "nothing"


def _compared(workload, target, before, after, tolerances):
    samples = [_Samples(*_at_common_trials(before[key], after[key]), target) for key in before if key in after]
    pools = {measure: _Pools(samples, measure) for measure in MEASURES}
    cells = tuple(_compared_cell(one, target, pools, tolerances) for one in samples)
    return Comparison(workload, target, cells, _overall(samples, target, tolerances),
                      tuple(key for key in before if key not in after),
                      tuple(key for key in after if key not in before), tolerances)


def _at_common_trials(*cells):
    """The cells, where all were searched each at the best of as many trials as the smallest search has."""
    if not all(cell.searched for cell in cells):
        return cells
    n = min(len(cell.draws) for cell in cells)
    return tuple(replace(cell, best_of_n=n) for cell in cells)


def _columns(measure):
    """A measure, and where it has one, the column of it at the evaluation before."""
    return (measure,) if measure == SPEED else (measure, f"{measure}_before")


class _Samples:
    """What two cells measured, ready to be divided: of each measure the values of both, paired by position if
    ``pairs``."""

    def __init__(self, baseline: Cell, candidate: Cell, target):
        self.baseline, self.candidate, self.target = baseline, candidate, target
        self.pairs = _same_draws(baseline, candidate, target) if target else []
        self.pairing = "draw" if self.pairs else ""
        if not self.pairs and np.array_equal(baseline.samples.seeds, candidate.samples.seeds):
            self.pairing = "seed"
            self.pairs = [(ours, theirs) for ours in baseline.runs for theirs in candidate.runs
                          if ours.trial.seed == theirs.trial.seed]
        if self.pairing != "draw" and (baseline.searched or candidate.searched) and not self.same:
            self.pairing, self.pairs = "search", []

    @property
    def same(self) -> bool:
        """Whether each pair is one run twice: equal evaluations up to the one that met."""
        return bool(self.pairs) and self.target is not None and all(
            _same_course(ours, theirs, self.target.column) for ours, theirs in self.pairs)

    def sides(self, measure):
        """((values, values at the evaluation before) of the baseline, those of the candidate), as far as measured."""
        names = _columns(measure)
        if self.pairing == "draw":
            sides = [np.array([[getattr(run, name) for run in own] for name in names]) for own in zip(*self.pairs)]
        else:
            sides = [np.array([getattr(cell.samples, name) for name in names])
                     for cell in (self.baseline, self.candidate)]
        known = [~np.isnan(side).any(0) for side in sides]
        if self.pairs:
            known = [known[0] & known[1]] * 2
        return tuple((side[0, keep], side[-1, keep]) for side, keep in zip(sides, known))

    def by_search(self, measure):
        """Whether the ratio is that of the cells' own estimates, of which one at least is the best of a search."""
        return self.pairing == "search" and measure != SPEED

    def is_single(self, measure):
        """Whether one run stands for either side, so that nothing is known of its spread."""
        if self.by_search(measure):
            return any(not cell.searched and len(cell.samples.seeds) < 2 for cell in (self.baseline, self.candidate))
        return min(len(side[0]) for side in self.sides(measure)) < 2

    def place(self, measure):
        """Equal for cells that say the same: of those of the same updates, at several worker counts, one counts, but
        for their speeds."""
        updates = tuple((cell.setting, tuple(cell.samples.seeds)) for cell in (self.baseline, self.candidate))
        return updates, self.baseline.workers if measure == SPEED else None


def _same_draws(baseline, candidate, target):
    """Pairs of runs of the draws that both studies made and that met in both; [] of fewer than two."""
    ours, theirs = ({(trial.setting, trial.seed): run_of(trial, target) for trial in cell.considered
                     if trial.sweep and not trial.sweep.get("repeat")} for cell in (baseline, candidate))
    found = [(ours[key], theirs[key]) for key in ours if key in theirs and ours[key].met and theirs[key].met]
    return found if len(found) > 1 else []


def _same_course(ours, theirs, column):
    """Whether two runs met the target at one evaluation, and every evaluation up to there is equal."""
    if not ours.met or ours.steps != theirs.steps:
        return False
    courses = [(trial.step[:count], trial.metrics[column][:count]) for trial in (ours.trial, theirs.trial)
               for count in [int(np.searchsorted(trial.step, ours.steps, "right"))]]
    return all(np.array_equal(one, other, equal_nan=True) for one, other in zip(*courses))


class _Pools:
    """The spread of a measure within cells, pooled over all of them: of ratios by pairs, and of independent samples;
    as read, and at the evaluation before."""

    def __init__(self, samples, measure):
        once = {one.place(measure): one.sides(measure) for one in samples if measure == SPEED or not one.same}
        pairs = {one.place(measure) for one in samples if one.pairs}
        self.paired = [pooled_paired([np.array([side[at] for side in sides]) for place, sides in once.items()
                                      if place in pairs and len(sides[0][0]) > 1 and _positive(sides, at)])
                       for at in (0, 1)]
        self.apart = [pooled([side[at] for place, sides in once.items() if place not in pairs for side in sides])
                      for at in (0, 1)]


def _positive(sides, at):
    return all((side[at] > 0).all() and np.isfinite(side[at]).all() for side in sides)


def _compared_cell(samples, target, pools, tolerances):
    tests = [_test(measure, samples, pools, tolerances) for measure in (MEASURES if target else (SPEED,))]
    horizon, best = _best_test(samples, target, tolerances) if target else (0, None)
    return ComparedCell(samples.baseline.workers[0], samples.baseline.global_batch, samples.baseline, samples.candidate,
                        samples.pairing, tuple(tests if best is None else [*tests, best]), horizon)


def _test(measure, samples, pools, tolerances):
    before, after = (_estimate(cell, measure) for cell in (samples.baseline, samples.candidate))
    change = _change(measure, samples, pools[measure], tolerances.confidence)
    tolerance = tolerances.of(measure)
    verdict, reason = (None, "") if tolerance is None else _judge(measure, samples, change, tolerance)
    return Test(measure, before.value, after.value, change, verdict, reason)


def _estimate(cell, measure):
    return getattr(cell, SPEED if measure == SPEED else measure)


def _change(measure, samples, pool, confidence) -> Estimate:
    """Candidate over baseline."""
    before, after = (_estimate(cell, measure) for cell in (samples.baseline, samples.candidate))
    runs = min(before.runs, after.runs)
    if measure == STEPS and samples.same:
        return Estimate(1.0, 1.0, 1.0, runs)
    if samples.by_search(measure):
        known = before.met and after.met and before.value > 0
        return Estimate(after.value / before.value, *quotient(after, before), runs) if known else Estimate(
            np.nan, *NONE, runs)
    (a, _), (b, _) = sides = samples.sides(measure)
    if not len(a) or not len(b) or min(a.min(), b.min()) <= 0:
        return Estimate(np.nan, *NONE, runs)
    if np.isinf([*a, *b]).any():
        return _ends_ratio(before, after, runs)
    if samples.is_single(measure) and (measure == SPEED or samples.same):
        return Estimate(_mean_ratio(a, b), *NONE, runs)
    corners = [_interval(a, b, pool, samples, 0, confidence)]
    if measure != SPEED and not samples.same:
        corners += _grid_corners(sides, pool, samples, confidence)
    return Estimate(_mean_ratio(a, b), *hull(*corners), len(a) if samples.pairing == "draw" else runs)


def _ends_ratio(before, after, runs):
    """The ratio where some runs did not meet: of the medians, between the ends' own ratios."""
    if not before.met or not before.low > 0:
        return Estimate(np.nan, *NONE, runs)
    low, high = after.low / before.high, after.high / before.low
    return Estimate(after.value / before.value if after.met else np.nan, low, high, runs)


def _grid_corners(sides, pool, samples, confidence):
    """The intervals with either side at its evaluation before."""
    (a, a_before), (b, b_before) = sides
    return [_interval(a, b_before, pool, samples, 1, confidence) if b_before.min() > 0 else (0.0, 0.0),
            _interval(a_before, b, pool, samples, 1, confidence) if a_before.min() > 0 else (np.inf, np.inf)]


def _interval(under, over, pool, samples, at, confidence):
    """The interval of over / under; of one run on either side the ratio itself: then the grid is all that is known."""
    if min(len(over), len(under)) < 2:
        return (_mean_ratio(under, over),) * 2
    if samples.pairs:
        return tuple(map(float, paired_ratio_interval(over, under, pool.paired[at], confidence)))
    return tuple(map(float, ratio_interval(over, under, pool.apart[at], confidence)))


def _mean_ratio(under, over):
    return float(geometric_mean(over) / geometric_mean(under))


def _judge(measure, samples, change, tolerance):
    """(verdict, reason) of a ratio."""
    baseline, candidate = samples.baseline, samples.candidate
    if not baseline.runs:
        return UNTOLD, "every trial of the baseline diverged"
    if not candidate.runs:
        return REGRESSION, "every trial diverged"
    if measure != SPEED and samples.target is not None:
        unmet = _judge_unmet(baseline.steps, candidate.steps)
        if unmet:
            return unmet if measure == STEPS else (UNTOLD, unmet[1])
    lost = len(candidate.diverged) > len(baseline.diverged) and measure == STEPS
    if lost:
        return UNTOLD, f"{len(candidate.diverged)} diverged, {len(baseline.diverged)} in the baseline"
    if math.isnan(change.value):
        return UNTOLD, "not measured"
    one = samples.is_single(measure) and not (measure == STEPS and samples.same)
    doubt = "" if not one else "one run, that of the best trial" if samples.pairing == "search" else "one run"
    return judge(change, tolerance, measure == SPEED, doubt)


def _judge_unmet(before, after):
    """(verdict, reason) where either side did not meet the target by most of its runs; None where both did."""
    if not before.met:
        return (OK, "") if after.met else (UNTOLD, "neither met the target")
    if after.met:
        return None
    if after.beyond >= before.value:
        return REGRESSION, "the target was not met"
    return UNTOLD, "not met, but it stopped before the baseline's steps"


def judge(change: Estimate, tolerance: float, more_is_better=False, doubt="") -> tuple[str, str]:
    """(verdict, reason) of a ratio.

    doubt  why its interval does not tell, whatever it is; "": it does
    """
    low, high = change.low, change.high
    if more_is_better:
        low, high = (1 / end if end else np.inf for end in (high, low))
    return (UNTOLD, doubt) if doubt else _against(low, high, 1 + tolerance)


def _against(low, high, limit):
    """(verdict, reason) of what must not be above a limit."""
    if math.isnan(low) or math.isnan(high):
        return UNTOLD, "no interval"
    if low > limit:
        return REGRESSION, "beyond the tolerance"
    return (OK, "") if high <= limit else (UNTOLD, "the interval spans the tolerance")


def _best_test(samples, target, tolerances):
    """(horizon, Test) of the best metric within the steps that all runs took; None where one side has no run."""
    runs = samples.baseline.runs, samples.candidate.runs
    if not all(runs):
        return 0, None
    horizon = min(run.last_step for run in (*runs[0], *runs[1]))
    by_seed = [{run.trial.seed: _best(run.trial, target, horizon) for run in own} for own in runs]
    a, b = (np.array([own[seed] for seed in sorted(own)]) for own in by_seed)
    paired = samples.pairing == "seed"
    change = _difference(a, b, paired, tolerances.confidence)
    before, after = (float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for values in (a, b))
    worse = (change.low, change.high) if target.minimizes else (-change.high, -change.low)
    verdict = (None, "") if tolerances.metric is None else _against(*worse, tolerances.metric)
    return horizon, Test(BEST, before, after, change, *verdict)


def _best(trial, target, horizon):
    """The best value of the target's metric in the first ``horizon`` steps; NaN: none."""
    values = trial.metrics[target.column][trial.step <= horizon]
    values = values[np.isfinite(values)]
    return np.nan if not len(values) else float(values.min() if target.minimizes else values.max())


def _difference(a, b, paired, confidence) -> Estimate:
    """mean(b) - mean(a) with Student's interval where they are paired by position, else Welch's."""
    samples = [b - a] if paired else [b, a]
    samples = [values[np.isfinite(values)] for values in samples]
    runs = min(map(len, samples))
    if not runs:
        return Estimate(np.nan, *NONE, 0)
    value = float(samples[0].mean() - (0 if paired else samples[1].mean()))
    if runs < 2:
        return Estimate(value, *NONE, runs)
    parts = [values.var(ddof=1) / len(values) for values in samples]
    spread = sum(part ** 2 / (len(values) - 1) for part, values in zip(parts, samples))
    freedom = sum(parts) ** 2 / spread if spread > 0 else sum(map(len, samples)) - len(samples)
    half = float(stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(sum(parts)))
    return Estimate(value, value - half, value + half, runs)


def _overall(samples, target, tolerances):
    """The tests of all cells together, where there are at least two."""
    tests = []
    for measure in (MEASURES if target else (SPEED,)):
        once = {one.place(measure): one for one in samples}
        ratios = [found for one in once.values() for found in [_cell_ratios(measure, one)] if found]
        if len(ratios) > 1:
            value, low, high = np.array(ratios, float).T
            ends = hull(mean_interval(value, confidence=tolerances.confidence),
                        mean_interval(low, confidence=tolerances.confidence) if low.all() else (0.0, 0.0),
                        mean_interval(high, confidence=tolerances.confidence) if np.isfinite(high).all() else
                        (np.inf, np.inf))
            change = Estimate(float(geometric_mean(value)), *ends, len(ratios))
            tolerance = tolerances.of(measure)
            verdict = (None, "") if tolerance is None else judge(change, tolerance, measure == SPEED)
            tests.append(Test(measure, np.nan, np.nan, change, *verdict))
    return tuple(tests)


def _cell_ratios(measure, samples):
    """Candidate over baseline of one cell: as read, with the candidate and with the baseline at the evaluation before;
    None where either did not meet or was not timed."""
    if measure == STEPS and samples.same:
        return 1.0, 1.0, 1.0
    if samples.by_search(measure):
        return _search_ratios(measure, samples)
    (a, a_before), (b, b_before) = samples.sides(measure)
    if not len(a) or not len(b) or np.isinf([*a, *b]).any() or min(a.min(), b.min()) <= 0:
        return None
    value = _mean_ratio(a, b)
    if measure == SPEED or samples.same:
        return value, value, value
    low = _mean_ratio(a, b_before) if b_before.min() > 0 else 0.0
    return value, low, _mean_ratio(a_before, b) if a_before.min() > 0 else np.inf


def _search_ratios(measure, samples):
    """The same of searches; seconds go with the steps."""
    before, after = (_estimate(cell, measure) for cell in (samples.baseline, samples.candidate))
    if not (before.met and after.met and before.value > 0):
        return None
    value = after.value / before.value
    moved = [np.nan_to_num(cell.steps.before / cell.steps.value) for cell in (samples.candidate, samples.baseline)]
    return value, value * moved[0], value / moved[1] if moved[1] > 0 else np.inf


def _worst(tests):
    """The worst verdict of those that were judged."""
    return max((test.verdict for test in tests if test.verdict is not None), key=(OK, UNTOLD, REGRESSION).index,
               default=OK)
