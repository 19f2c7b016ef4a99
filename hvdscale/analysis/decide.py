"""A candidate decided against a baseline: better, worse, alike, or open, and how many runs more decide.

Runs that did not meet the target count up to where the first of these stopped, as in a restricted mean (Royston &
Parmar 2013). A diverged run counts as one that used up its budget, or as the worst value. All cells share the error
equally, as do the settings that a cell is the best of. Luck chose the best trial of a search: the repeats of its
setting decide."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import UsageError
from ..target import Target
from .budgets import Budget
from .compare import ComparedCell, Comparison, targets_of
from .decision.sequence import ALIKE, BETTER, DECISIONS, DRAWS, LEAST, OPEN, WORSE, Sides, smallest_difference
from .intervals import CONFIDENCE, NONE, Estimate, student_quantile
from .studies import best_value
from .published import read
from .steps import BEFORE, LAST, SECONDS, SPEED, STEPS, RunCell, RunToTarget, Samples, cells_by
from .trials import JobKey, Trial, by_workload

STEEPEST = 1.0      # the most of a logarithm that the spacing of evaluations is taken to leave open

# what so many runs see
RUNS = (1, 2, 3, 5, 10)
SHARES = (0.25, 0.5, 1.0)       # of the steps that all runs took: budgets
AVERAGED = 5                    # evaluations
MORE = (0, 1, 2, 5, 10)         # runs that may follow
P_VALUE, OUTCOMES = 0.05, 4000  # of MLPerf's check; of runs to come


class Decided:
    """A cell decided by one measure.

    unmet      runs of the baseline and of the candidate that did not meet
    reason     why it is so without a test
    ends       of the confidence sequence of candidate over baseline
    chance     of deciding so wrongly: here, or with a ledger ever with this baseline
    runs_more  quartiles, if the difference is what it seems; NaN: unknown
    smallest   difference, as a share, that these runs show at 80 %
    loss       expected, of taking what looks better now, as a share"""

    def __init__(self, comparison: Comparison, cell: ComparedCell, measure: str, within: float, share: float,
                 budget: Budget | None, both: bool) -> None:
        self.comparison, self.cell, self.measure, self.decision, self.reason = comparison, cell, measure, OPEN, ""
        self.ends, self.chance, self.runs_more, self.smallest, self.loss = NONE, 1.0, NONE, np.inf, np.nan
        pair = _unchosen(cell.baseline), _unchosen(cell.candidate)
        values, rough = _values(pair, comparison, measure, budget)
        values = [{seed: value for seed, value in one.items() if not np.isnan(value)} for one in values]
        common = [seed for seed in values[0] if seed in values[1]]
        before, after = (np.array([one[seed] for seed in (*common, *(one.keys() - {*common}))], float)
                         for one in values)
        with np.errstate(all="ignore"):
            self.sides = sides = Sides(np.log(before), np.log(after), len(common), rough)
        self.unmet = tuple(sum(run.steps == np.inf for run in one.runs) + len(one.diverged) for one in pair)
        every, target = np.concatenate([before, after]), comparison.target
        if measure == STEPS and target and _are_same(cell.baseline, cell.candidate, target.column):
            self.reason, self.decision, self.ends = "same", ALIKE, (1.0, 1.0)
            self.chance, self.runs_more, self.smallest = 0.0, (0.0, 0.0), 0.0
        elif (every <= 0).any():
            self.reason = "sign"
        elif min(sides.runs) < LEAST:
            searched = any(one.searched and runs < LEAST
                           for one, runs in zip((cell.baseline, cell.candidate), sides.runs))
            self.reason, self.runs_more = "search" if searched else "few", (LEAST - min(sides.runs), np.nan)
        elif measure in LAST and any(self.unmet) and np.ptp(every) == 0:
            self.reason = "unmet"
        else:
            share /= pair[0].settings * pair[1].settings
            error = (1 - comparison.tolerances.confidence) * share
            low, high = np.exp(sides.interval(error))
            self.ends, self.decision = (float(low), float(high)), DECISIONS[int(sides.decide(error, within))]
            self.chance = min(1.0, sides.chance(self.decision, within) / share)
            self.runs_more = sides.runs_more(error, within, both) if self.decision == OPEN else (0.0, 0.0)
            self.smallest, self.loss = sides.smallest(error), _expected_loss(sides)

    @property
    def ratio(self) -> Estimate:
        runs = min(self.sides.runs)
        value = float(np.exp(self.sides.difference)) if runs else np.nan
        return Estimate(1.0 if self.reason == "same" else value, *self.ends, runs)

    @property
    def hours(self) -> float:
        """Worker-hours of a run of the candidate; NaN: not timed."""
        seconds = [run.last_seconds for run in self.cell.candidate.runs]
        return self.cell.workers * float(np.mean(seconds or np.nan)) / 3600


def decide(comparisons: Sequence[Comparison], measure: str = STEPS, within: float = 0.02, share: float = 1.0,
           budget: Budget | None = None, both: bool = True) -> tuple[Decided, ...]:
    """Every cell decided by one measure: STEPS, SECONDS, SPEED or BEST, the metric at a budget.

    within  the share up to which both are alike
    share   of the error that this comparison may spend, see decision/sequence.py
    both    whether more runs can be of the baseline, too"""
    cells = [(one, cell) for one in comparisons for cell in one.cells]
    for one, _ in cells:
        if one.target is None and measure != SPEED:
            raise UsageError(f"{one.workload}: has no target to decide by; give --target, such as 'val/error<0.1', or "
                             "--by throughput")
    return tuple(Decided(*of, measure, within, share / len(cells), budget, both) for of in cells)


def worst(found: Sequence[Decided]) -> str:
    """What is decided of all: WORSE or OPEN where one cell is, else BETTER where one is."""
    return min((cell.decision for cell in found), key=(WORSE, OPEN, BETTER, ALIKE).index)


def _are_same(baseline: RunCell, candidate: RunCell, column: str) -> bool:
    """Whether all runs of the candidate are runs of the baseline once more: equal at every evaluation."""
    before, after = ({(run.trial.seed_key, run.trial.step.tobytes(), run.trial.metrics[column].tobytes())
                      for run in one.runs} for one in (baseline, candidate))
    return bool(after) and not candidate.diverged and after <= before


def _unchosen(cell: RunCell) -> RunCell:
    runs = tuple(run for run in cell.runs if not run.trial.sweep or run.trial.sweep["repeat"])
    return replace(cell, runs=runs, samples=Samples(runs), draws=(), settings=1) if cell.searched else cell


def _expected_loss(sides: Sides) -> float:
    """As that of a Decision."""
    before, after = (side[:, :runs].mean(1) for side, runs in zip(sides.draw(max(sides.runs)), sides.runs))
    freedom = min(sides.runs) - 1                   # so that the difference is by Student's t
    wider = np.sqrt(freedom / np.random.default_rng([0, 14]).chisquare(freedom, DRAWS))
    logs = np.column_stack([np.zeros(DRAWS), sides.difference + wider * (after - before)])
    return float(np.expm1(logs.mean(0).min() - logs.min(1).mean()))


def _up_to_target(pair: Sequence[RunCell], measure: str) -> tuple[list[dict[Any, float]], float]:
    """Steps or seconds, up to where all came."""
    unmet = [run for one in pair for run in one.runs if not run.met]
    ends = [getattr(run, LAST[measure]) for run in unmet if run.last_step]
    used = [trial.measurement.get("budget_steps", trial.last_step) * (
        1 if measure == STEPS else trial.global_batch / trial.examples_per_second)
        for trial in (*pair[0].diverged, *pair[1].diverged, *(run.trial for run in unmet))]
    found = [getattr(one.samples, measure) for one in pair]
    met = np.concatenate(found)
    cap = min(ends) if ends else max([*used, *met[np.isfinite(met)]], default=np.inf)
    values = [{**dict.fromkeys([trial.seed_key for trial in one.diverged], cap),
               **dict(zip(one.samples.seeds, np.where(np.isnan(own), own, np.minimum(own, cap))))}
              for one, own in zip(pair, found)]
    before = np.concatenate([getattr(one.samples, BEFORE[measure]) for one in pair])
    met, before = (side[np.isfinite(met) & (met > 0) & (met <= cap)] for side in (met, before))
    widths = np.log(met / np.maximum(np.nan_to_num(before), met * np.exp(-STEEPEST)))
    return values, float(np.mean(widths ** 2)) / 12 if len(widths) else 0.0


def _values(pair: Sequence[RunCell], comparison: Comparison, measure: str, budget: Budget | None
            ) -> tuple[list[dict[Any, float]], float]:
    """What is measured of both sides by seed, better if lower, BEST within the budget and the steps that all runs took;
    and the variance that its resolution adds."""
    target, runs = comparison.target, [run for one in pair for run in one.runs]
    if measure in LAST:
        return _up_to_target(pair, measure)
    if measure == SPEED or target is None:
        return [dict(zip(one.samples.seeds, 1 / one.samples.examples_per_second)) for one in pair], 0.0
    last = min((run.last_step for run in runs), default=0.0)
    if budget is not None:
        if budget.unit == "seconds":
            raise UsageError(f"--budget {budget}: give it in steps, epochs or examples")
        last = min(last, budget.limit(comparison.workload) / (1 if budget.unit == "steps" else pair[0].global_batch))
    first = np.array([value for run in runs for value in run.trial.metrics[target.column][:1]])
    lost = best_value(first, not target.minimizes)                  # as if it had learnt nothing
    values = [{**dict.fromkeys([trial.seed_key for trial in one.diverged], lost), **{run.trial.seed_key: float(
        np.nan_to_num(best_value(run.trial.metrics[target.column][run.trial.step <= last], target.minimizes), nan=lost))
        for run in one.runs}} for one in pair]
    every = np.unique(np.concatenate([[], *(run.trial.metrics[target.column] for run in runs)]).round(12))
    best, gaps, rough = [value for one in values for value in one.values()], np.diff(every[np.isfinite(every)]), 0.0
    if len({*best}) < len(best) and len(gaps):          # some are equal, such as errors over few examples
        rough = float(gaps.min() / np.nanmean(np.abs(best))) ** 2 / 12
    if target.minimizes:
        return values, rough
    return [{seed: 1 / value if value else -1.0 for seed, value in one.items()} for one in values], rough


class Floor:
    """Of one measure of a cell: the spread of its logarithm over its values by seed, and what RUNS of each see.

    slope     of its logarithm against that of steps; NaN: unknown
    hours     worker-hours of a run
    rough     variance that the spacing of evaluations adds
    smallest  differences that show, as shares
    in_steps  that of three runs as a share of the steps to get there; NaN: unknown"""

    def __init__(self, workload: JobKey, cell: RunCell, measure: str, values: np.ndarray, slope: float, hours: float,
                 rough: float = 0.0) -> None:
        self.workload, self.cell, self.measure, self.hours = workload, cell, measure, hours
        self.spread, freedom = float(np.sqrt(np.log(values).var(ddof=1) + rough)), len(values) - 1
        reached = float(student_quantile(freedom, cell.confidence))
        self.smallest = tuple(smallest_difference(reached, 2 * self.spread ** 2 / runs, freedom) for runs in RUNS)
        self.in_steps = float(np.expm1(np.log1p(self.smallest[2]) / abs(slope))) if abs(slope) > 1e-3 else np.nan


def floors(trials: Sequence[Trial], targets: Sequence[Target] = (), confidence: float = CONFIDENCE) -> list[Floor]:
    """Every measure of every cell with LEAST runs, at the targets or those of the runs' own plans."""
    found = []
    for workload, own in by_workload(trials).items():
        for target in targets_of(own, targets):
            runs = [RunToTarget(trial, target) for trial in own if target is None or target.column in trial.metrics]
            cells = map(_unchosen, cells_by([run for run in runs if run.conclusive], confidence).values())
            found += [Floor(workload, cell, *measure) for cell in cells if len(cell.samples.seeds) >= LEAST
                      for measure in _measures(cell, target)]
    return found


def _measures(cell: RunCell, target: Target | None) -> Iterator[tuple[Any, ...]]:
    runs = [run.trial for run in cell.runs]
    end = cell.workers[0] * float(np.mean([run.last_seconds for run in cell.runs])) / 3600
    for name in (STEPS, SECONDS, SPEED) if target else (SPEED,):
        values = getattr(cell.samples, name)
        if np.isfinite(values).all() and (values > 0).all():
            yield ("throughput", values, np.nan, end) if name == SPEED else (
                f"{name} to {target}", values, 1.0, end, _up_to_target((cell, cell), name)[1])
    last = min(trial.last_step for trial in runs)
    split = target.column.partition("/")[0] if target else "val"
    for column in [name for name in runs[0].metrics if name.startswith(f"{split}/")]:
        for share in SHARES:
            for count in (1, AVERAGED):
                now, half = ([_average(trial, column, part * last, count) for trial in runs]
                             for part in (share, share / 2))
                if np.isfinite(now).all() and min(now) > 0 and np.ptp(now) > 0:
                    fall = np.mean(np.log(now)) - np.log(np.mean(half)) if np.mean(half) > 0 else np.nan
                    name = f"{column} at {share * last:,.0f} steps{f', mean of {count}' if count > 1 else ''}"
                    yield name, np.array(now), float(fall) / np.log(2), share * end


def _average(trial: Trial, column: str, step: float, count: int) -> float:
    """The mean of the last evaluations up to a step; NaN: fewer."""
    rows = trial.rows_with(column)
    values = trial.metrics[column][rows[trial.step[rows] <= step]][-count:]
    return float(np.mean(values)) if len(values) == count else np.nan


def chances_to_pass(cell: RunCell, workload: JobKey) -> dict[int, float]:
    """The chance that runs pass MLPerf's convergence check after MORE runs; {}: no published batches around this one.
    They must not converge faster than the reference: their mean, without the fastest and the slowest, is at least its
    mean less a one-sided t-test's quantile at P_VALUE. Runs to come share an unknown mean and spread."""
    curve = next((one for one in read("mlperf")["curve"] if one["file"].endswith(f"/rcps_{workload.dataset}.json")
                  or one["dataset"] == workload.dataset and workload.model in one["models"]), {"values": [[0]]})
    batches, *columns = np.array(curve["values"], float).T
    examples, batch, runs = cell.samples.steps * cell.global_batch, cell.global_batch, len(cell.samples.steps)
    if runs < LEAST or not batches[0] <= batch <= batches[-1] or not np.isfinite(examples).all():
        return {}
    mean, reference, variation = (np.interp(batch, batches, column) for column in columns)
    unit = curve["train_examples"] if curve.get("kind") == "epochs" else 1
    random, chances = np.random.default_rng([0, 15]), {}
    spread = np.std(examples) * np.sqrt(runs / random.chisquare(runs - 1, (OUTCOMES, 1)))
    drawn = np.mean(examples) + spread * (random.standard_normal((OUTCOMES, 1)) / runs ** 0.5
                                          + random.standard_normal((OUTCOMES, max(MORE))))
    for more in MORE:
        every = np.sort(np.column_stack([np.broadcast_to(examples, (OUTCOMES, runs)), drawn[:, :more]]), 1)[:, 1:-1]
        counts = np.array([every.shape[1], reference - 2])
        half = student_quantile(counts.sum() - 2, 1 - 2 * P_VALUE) * np.sqrt((1 / counts).sum())
        chances[more] = float(np.mean(every.mean(1) >= unit * mean * (1 - variation / 100 * half)))
    return chances
