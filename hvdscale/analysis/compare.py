"""Comparison of two sets of logs, a baseline and a candidate: a regression test for convergence and speed.

Each workload, worker count and global batch that both have is a cell. Per cell, steps to target S, seconds to target T
and examples per second x are compared as ratios of geometric means, candidate over baseline. Samples are paired by seed
where the seeds agree, paired by draw where both are studies of one space, else independent. Searches without common
draws are compared by their median best-of-n (see best_of_n.py), with the quotient of their intervals. A target is met
somewhere between two evaluations, so the interval is the hull of the ratios with either side at its evaluation before.
Where all evaluations up to there are bit-identical, both are the same run, and the ratio is 1.

A ratio over all cells of a workload is formed too, from one ratio per cell, with the spread between cells. So single
runs at several worker counts or batch sizes can yield a verdict."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import UsageError
from ..formatting.numbers import list_first
from ..log.reader import Log, LogTable
from ..target import Target
from .intervals import (CONFIDENCE, NONE, UNKNOWN, Ends, Estimate, Spread, difference_interval, geometric_mean, hull,
                        hull_over_grid, mean_interval, mean_ratio, over, pooled, pooled_paired, ratio_interval)
from .studies import best_value, group_by
from .steps import BEFORE, SECONDS, SPEED, STEPS, RunCell, RunToTarget, cells_by
from .trials import JobKey, Trial, by_workload, read_trials

BEST = "best"
VERDICTS = OK, UNDECIDED, REGRESSION = "ok", "cannot tell", "regression"       # from good to bad
Run = tuple[Log, Trial]
Alone = Sequence[tuple[Trial, Trial]]         # runs without a partner, each with the first run of the other side


@dataclass(frozen=True)
class Tolerances:
    """How much worse a candidate may be, as shares. None: not judged."""

    steps: float = 0.10
    time: float | None = 0.25       # of seconds to target, and of examples per second
    metric: float | None = None     # in the metric's own unit
    confidence: float = CONFIDENCE

    def of(self, measure: str) -> float | None:
        return {STEPS: self.steps, BEST: self.metric}.get(measure, self.time)


@dataclass(frozen=True)
class Test:
    """One measure of one cell, or of all cells of a workload."""

    measure: str
    before: float               # of the baseline; NaN: unknown; inf: not met
    after: float                # of the candidate, likewise
    change: Estimate            # candidate over baseline; for BEST candidate minus baseline
    verdict: str | None         # None: not judged
    reason: str                 # for a verdict that is not OK


class ComparedCell:
    """A worker count and global batch that both have: their measurements, ready to be divided, paired by position where
    there are ``pairs``. If both were searched, each is at the best of as many trials as the smaller search has.

    pairing  "seed"; "draw": both studies made two draws or more that met in both; "search": the best of each search; or
             "": independent samples
    same     whether each pair is one run twice: equal evaluations up to the one that met"""

    tests: tuple[Test, ...] = ()

    def __init__(self, baseline: RunCell, candidate: RunCell, target: Target | None) -> None:
        if baseline.searched and candidate.searched:
            n = min(len(baseline.draws), len(candidate.draws))
            baseline, candidate = replace(baseline, best_of_n=n), replace(candidate, best_of_n=n)
        self.workers, self.global_batch = baseline.workers[0], baseline.global_batch
        self.baseline, self.candidate = baseline, candidate
        ours, theirs = ({(trial.setting, trial.seed_key): RunToTarget(trial, target) for trial in cell.considered
                         if target and trial.sweep and not trial.sweep.get("repeat")} for cell in (baseline, candidate))
        drawn = [(ours[key], theirs[key]) for key in ours if key in theirs and ours[key].met and theirs[key].met]
        self.pairs = drawn if len(drawn) > 1 else []
        self.pairing = "draw" if self.pairs else ""
        if not self.pairs and baseline.samples.seeds == candidate.samples.seeds:
            self.pairing = "seed"
            self.pairs = [(ours, theirs) for ours in baseline.runs for theirs in candidate.runs
                          if ours.trial.seed_key == theirs.trial.seed_key]
        self.same = bool(self.pairs) and target is not None and all(
            _same_course(ours, theirs, target.column) for ours, theirs in self.pairs)
        if self.pairing != "draw" and (baseline.searched or candidate.searched) and not self.same:
            self.pairing, self.pairs = "search", []

    def sides(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """Values, and values at the evaluation before, of the baseline and of the candidate, without NaN."""
        if self.pairing == "draw":
            sides = [np.array([[getattr(run, name) for run in own] for name in (measure, BEFORE[measure])])
                     for own in zip(*self.pairs)]
        else:
            sides = [cell.samples.with_before(measure) for cell in (self.baseline, self.candidate)]
        known = [~np.isnan(side).any(0) for side in sides]
        if self.pairs:
            known = [known[0] & known[1]] * 2
        baseline, candidate = (side[:, keep] for side, keep in zip(sides, known))
        return baseline, candidate

    def by_search(self, measure: str) -> bool:
        """Whether the ratio is that of the cells' estimates, at least one of which is the best of a search."""
        return self.pairing == "search" and measure != SPEED

    def is_single(self, measure: str) -> bool:
        """Whether one side is a single run, so that its spread is unknown."""
        if self.by_search(measure):
            return any(not cell.searched and len(cell.samples.seeds) < 2 for cell in (self.baseline, self.candidate))
        return min(len(side[0]) for side in self.sides(measure)) < 2

    def place(self, measure: str) -> Hashable:
        """Equal for cells with the same information: the same updates at several worker counts, except for speeds."""
        return (self.baseline.updates, self.candidate.updates), self.baseline.workers if measure == SPEED else None


class Comparison:
    """One workload compared at one target; without a target, by throughput only.

    overall         tests over cells; empty where there is only one
    missing, added  (workers, batch) of the baseline without a finished candidate, and that only the candidate has
    changed_to      the candidate's workload, where that is another"""

    def __init__(self, workload: JobKey, target: Target | None, baseline: Mapping[tuple[int, int], RunCell],
                 candidate: Mapping[tuple[int, int], RunCell], tolerances: Tolerances, changed_to: JobKey | None
                 ) -> None:
        self.workload, self.target, self.tolerances, self.changed_to = workload, target, tolerances, changed_to
        self.cells = tuple(ComparedCell(baseline[key], candidate[key], target) for key in baseline if key in candidate)
        self.missing = tuple(key for key in baseline if key not in candidate)
        self.added = tuple(key for key in candidate if key not in baseline)
        measures = (STEPS, SECONDS, SPEED) if target else (SPEED,)
        pools = {measure: _pool(self.cells, measure) for measure in measures}
        for cell in self.cells:
            changes = [(one, _change(one, cell, pools[one], tolerances.confidence)) for one in measures]
            cell.tests = tuple(Test(one, getattr(cell.baseline, one).value, getattr(cell.candidate, one).value, change,
                                    *_judge(one, cell, change, tolerances.of(one))) for one, change in changes)
            if target and cell.baseline.runs and cell.candidate.runs:
                cell.tests += (_best_test(cell, target, tolerances),)
        self.overall: list[Test] = []
        for measure in measures:
            once = {one.place(measure): one for one in self.cells}
            ratios = list(filter(None, (_cell_ratios(measure, one) for one in once.values())))
            if len(ratios) > 1:
                value, low, high = np.array(ratios, float).T
                whole, least, most = (mean_interval(x, confidence=tolerances.confidence) for x in (value, low, high))
                ends = hull(whole, least if low.all() else (0.0, 0.0),
                            most if np.isfinite(high).all() else (np.inf, np.inf))
                ratio = Estimate(float(geometric_mean(value)), *ends, len(ratios))
                self.overall.append(Test(measure, np.nan, np.nan, ratio,
                                         *_judge_interval(measure, ratio, tolerances.of(measure))))
        tests = [*self.overall, *(test for cell in self.cells for test in cell.tests)]
        self.verdict = worst_of([UNDECIDED if self.missing else OK, *(test.verdict for test in tests)])


def compare_trials(baseline: Sequence[Trial], candidate: Sequence[Trial], targets: Sequence[Target] = (),
                   tolerances: Tolerances = Tolerances()) -> tuple[Comparison, ...]:
    """The candidate's trials compared with the baseline's, by workload and target, by default those of the baseline's
    own plans; where both have one workload, of one data set, these are compared. UsageError, listing the trials of
    both, where they have no cell in common."""
    before, after = by_workload(baseline), by_workload(candidate)
    found, jobs, changed = [], [*before, *after], None
    if len(before) == len(after) == 1 and jobs[0] != jobs[1] and jobs[0].dataset == jobs[1].dataset:
        after, changed = {jobs[0]: after[jobs[1]]}, jobs[1]
    for workload, trials in before.items():
        for target in targets_of(trials, targets):
            cells, others = (_cells(own, target, tolerances) for own in (trials, after.get(workload, ())))
            if cells:
                found.append(Comparison(workload, target, cells, others, tolerances, changed))
    if not any(comparison.cells for comparison in found):
        ours, theirs = (list_first(dict.fromkeys(
            f"{trial.workload} at W = {trial.workers}, B = {trial.global_batch:,}" for trial in trials), 4, "; ")
            or "nothing" for trials in (baseline, candidate))
        raise UsageError(f"nothing to compare: the baseline has {ours}; the candidate {theirs}"
                         f"{'; compared at ' if targets else ''}{', '.join(map(str, targets))}")
    return tuple(found)


def targets_of(trials: Sequence[Trial], targets: Sequence[Target]) -> list[Target | None]:
    """These targets; without any those of the trials' own plans, or None."""
    return [*dict.fromkeys(targets or [Target.parse(trial.target) for trial in trials if trial.target])] or [None]


def _cells(trials: Iterable[Trial], target: Target | None, tolerances: Tolerances) -> dict[tuple[int, int], RunCell]:
    """Cells by (workers, global batch) of the trials that ended and, with a target, have its metric."""
    runs = [RunToTarget(trial, target) for trial in trials if target is None or target.column in trial.metrics]
    return cells_by([run for run in runs if run.conclusive or run.trial.pruned], tolerances.confidence)


def _same_course(ours: RunToTarget, theirs: RunToTarget, column: str) -> bool:
    """Whether two runs met the target at the same evaluation, with every evaluation up to there equal."""
    one, other = (np.array([trial.step, trial.metrics[column]])[:, trial.step <= ours.steps]
                  for trial in (ours.trial, theirs.trial))
    return ours.met and ours.steps == theirs.steps and np.array_equal(one, other, equal_nan=True)


def _pool(samples: Sequence[ComparedCell], measure: str) -> dict[str, list[Spread]]:
    """The pooled spread within cells of "paired" ratios and of samples "apart", as read and an evaluation before."""
    once = {one.place(measure): one.sides(measure) for one in samples if measure == SPEED or not one.same}
    pairs = {sample.place(measure) for sample in samples if sample.pairs}
    tables = [np.array(sides) for place, sides in once.items() if place in pairs and len(sides[0][0]) > 1]
    return {"paired": [pooled_paired([values for values in (table[:, at] for table in tables)
                                      if (values > 0).all() and np.isfinite(values).all()]) for at in (0, 1)],
            "apart": [pooled([side[at] for place, sides in once.items() if place not in pairs for side in sides])
                      for at in (0, 1)]}


def _change(measure: str, samples: ComparedCell, pools: Mapping[str, Sequence[Spread]], confidence: float) -> Estimate:
    before, after = (getattr(side, measure) for side in (samples.baseline, samples.candidate))
    runs = min(before.runs, after.runs)
    if measure == STEPS and samples.same:
        return Estimate(1.0, 1.0, 1.0, runs)
    if samples.by_search(measure):
        return over(after, before) if before.met and after.met and before.value > 0 else Estimate.unknown(runs)
    (a, _), (b, _) = baseline, candidate = samples.sides(measure)
    if not len(a) or not len(b) or min(a.min(), b.min()) <= 0:
        return Estimate.unknown(runs)
    if np.isinf([*a, *b]).any():            # some runs did not meet: of the medians, between the ratios of the ends
        if not before.met or not before.low > 0:
            return Estimate.unknown(runs)
        return Estimate(after.value / before.value if after.met else np.nan, after.low / before.high,
                        after.high / before.low, runs)
    if samples.is_single(measure) and (measure == SPEED or samples.same):
        return Estimate(mean_ratio(b, a), *NONE, runs)

    def interval(above: np.ndarray, below: np.ndarray, at: int) -> Ends:
        if min(len(above), len(below)) < 2:         # so that only the grid limits it
            return (mean_ratio(above, below),) * 2
        return (mean_interval(above / below, pools["paired"][at], confidence) if samples.pairs else
                ratio_interval(above, below, pools["apart"][at], confidence))
    ends: Ends = interval(b, a, 0) if samples.same else hull_over_grid(candidate, baseline, interval)
    return Estimate(mean_ratio(b, a), *ends, len(a) if samples.pairing == "draw" else runs)


def _judge(measure: str, samples: ComparedCell, change: Estimate, tolerance: float | None) -> tuple[str | None, str]:
    """(verdict, reason) of a ratio; (None, "") without a tolerance."""
    baseline, candidate = samples.baseline, samples.candidate
    if tolerance is None:
        return None, ""
    if not baseline.runs:
        return UNDECIDED, "every trial of the baseline diverged"
    if not candidate.runs:
        return REGRESSION, "every trial diverged"
    before, after = baseline.steps, candidate.steps
    if measure != SPEED and not (before.met and after.met):
        verdict, reason = UNDECIDED, "neither met the target"
        if after.met:
            verdict, reason = OK, ""
        elif before.met and after.beyond >= before.value:
            verdict, reason = REGRESSION, "the target was not met"
        elif before.met:
            reason = "not met, but it stopped before the baseline's steps"
        return verdict if measure == STEPS else UNDECIDED, reason
    if measure == STEPS and len(candidate.diverged) > len(baseline.diverged):
        return UNDECIDED, f"{len(candidate.diverged)} diverged, {len(baseline.diverged)} in the baseline"
    if math.isnan(change.value):
        return UNDECIDED, "not measured"
    if samples.is_single(measure) and not (measure == STEPS and samples.same):
        return UNDECIDED, "one run, that of the best trial" if samples.pairing == "search" else "one run"
    return _judge_interval(measure, change, tolerance)


def _judge_interval(measure: str, change: Estimate, tolerance: float | None, minimizes: bool = True
                    ) -> tuple[str | None, str]:
    """(verdict, reason) of an interval that must not be above the tolerance; (None, "") without one."""
    if tolerance is None:
        return None, ""
    low, high = change.low, change.high
    limit = tolerance if measure == BEST else 1 + tolerance
    if measure == SPEED:                        # more is better
        low, high = (1 / end if end else np.inf for end in (high, low))
    elif not minimizes:
        low, high = -high, -low
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED, "no interval"
    if low > limit:
        return REGRESSION, "beyond the tolerance"
    return (OK, "") if high <= limit else (UNDECIDED, "the interval spans the tolerance")


def _best_test(samples: ComparedCell, target: Target, tolerances: Tolerances) -> Test:
    """Of the best metric over the steps that all runs took; both sides have runs."""
    runs = samples.baseline.runs, samples.candidate.runs
    horizon = int(min(run.last_step for run in (*runs[0], *runs[1])))
    by_seed = [{run.trial.seed_key: best_value(run.trial.metrics[target.column][run.trial.step <= horizon],
                                               target.minimizes) for run in own} for own in runs]
    a, b = (np.array([own[seed] for seed in sorted(own)]) for own in by_seed)
    sides = [values[np.isfinite(values)] for values in ([b - a] if samples.pairing == "seed" else [b, a])]
    change = Estimate.unknown()
    if all(map(len, sides)):            # Student's interval where they are paired by position, else Welch's
        low, high = difference_interval(sides, [UNKNOWN] * len(sides), tolerances.confidence)
        change = Estimate(float(sides[0].mean() - sum(one.mean() for one in sides[1:])), float(low), float(high),
                          min(map(len, sides)))
    before, after = (float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for values in (a, b))
    return Test(BEST, before, after, change, *_judge_interval(BEST, change, tolerances.metric, target.minimizes))


def _cell_ratios(measure: str, samples: ComparedCell) -> tuple[float, float, float] | None:
    """Candidate over baseline: as read, with the candidate and with the baseline an evaluation before; None: unmet."""
    if measure == STEPS and samples.same:
        return 1.0, 1.0, 1.0
    if samples.by_search(measure):                  # where seconds are proportional to steps
        before, after = (getattr(side, measure) for side in (samples.baseline, samples.candidate))
        if not (before.met and after.met and before.value > 0):
            return None
        value = after.value / before.value
        moved = [np.nan_to_num(cell.steps.before / cell.steps.value) for cell in (samples.candidate, samples.baseline)]
        return value, value * moved[0], value / moved[1] if moved[1] > 0 else np.inf
    (a, a_before), (b, b_before) = samples.sides(measure)
    if not len(a) or not len(b) or np.isinf([*a, *b]).any() or min(a.min(), b.min()) <= 0:
        return None
    value = mean_ratio(b, a)
    if samples.same:
        return value, value, value
    return value, mean_ratio(b_before, a), mean_ratio(b, a_before) if a_before.min() > 0 else np.inf


def worst_of(verdicts: Iterable[str | None]) -> str:
    return max(filter(None, verdicts), key=VERDICTS.index, default=OK)


@dataclass(frozen=True)
class Difference:
    """After how many steps two runs differ first, in which column, and the value of either; NaN: it has none."""

    step: int
    column: str
    before: float
    after: float


class Pair:
    """Two runs of one setting and seed, the columns that both have, and where they differ first; None: nowhere."""

    def __init__(self, ours: Run, theirs: Run) -> None:
        self.baseline, self.candidate = ours[1], theirs[1]
        self.columns: list[str] = []
        found = []
        for name in ("steps", "evaluations"):
            tables: list[LogTable] = [getattr(log, name) for log, _ in (ours, theirs)]
            names = ["step", *(column for column in tables[0] if column in tables[1].columns
                               and column not in ("trial", "step") and not column.endswith("seconds"))]
            self.columns += [f"{name}/{column}" for column in names]
            sides = [np.array([table.of_trial(column, trial.id) for column in names], np.float64)
                     for table, (_, trial) in zip(tables, (ours, theirs))]
            rows = max(side.shape[1] for side in sides)
            before, after = (np.pad(side, ((0, 0), (0, rows - side.shape[1])), constant_values=np.nan)
                             for side in sides)
            differ = (before.view(np.int64) != after.view(np.int64)) & ~(np.isnan(before) & np.isnan(after))
            if differ.any():
                row = int(differ.any(0).argmax())
                column = int(differ[:, row].argmax())
                found.append(Difference(int(np.nanmin([before[0, row], after[0, row]])), f"{name}/{names[column]}",
                                        float(before[column, row]), float(after[column, row])))
        self.difference = min(found, key=lambda one: one.step, default=None)


def runs_of(logs: Iterable[Log]) -> list[Run]:
    """Every trial of open logs; raises UsageError for one that was not exact."""
    found = [(log, trial) for log in logs for trial in read_trials(log)]
    for _, trial in found:
        if not trial.problem.get("exact"):
            raise UsageError(f"{trial.log}: trial {trial.id} did not run with exact = true, so its last bits depend on "
                             "the workers; leave --equal out, or train it with --set exact=true")
    return found


def pair_exact(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[list[Pair], Alone]:
    """Each run of the candidate beside the baseline's first of that setting and seed; the runs without a partner."""
    before, after = (group_by(runs, lambda run: (run[1].workload, run[1].setting, run[1].seed_key))
                     for runs in (baseline, candidate))
    alone = [(trial, others[0][1]) for ours, theirs, others in ((before, after, candidate), (after, before, baseline))
             for key, runs in ours.items() if key not in theirs for _, trial in runs]
    return [Pair(before[key][0], run) for key, runs in after.items() if key in before for run in runs], alone
