"""Steps to a target by global batch, from studies or from repeats: one curve per workload and target, and how far it
scales perfectly (Shallue et al. 2019, section 4.1).

A search may be cut off by the rates that it tried: the best rate of a batch lies beyond all of them. So where steps
still fall over the upper (or lower) part of the rates tried at the largest (or smallest) batches, by rank correlations
that chance seldom exceeds together, do not rise again at the end, and few trials lie beyond the best ones, more may be
found farther out. Trials that diverged count as beyond; unmet ones are ranked by the best that they reached.

One setting under one seed is the same sequence of updates at any worker count: all of a batch share one row.

The regimes, see README.rst, are stated as batches that were run. Perfect scaling does not extend past a batch that
is certainly outside the tolerance; one whose interval leaves that open does not end it. The maximum useful batch is no
smaller than its end. Both compare with the smallest of several noisy values: on average the end of perfect scaling
comes out 0.2 to 0.6 of a doubling low, the maximum useful batch 0.2 to 0.8 high (ten batches; tools/coverage).

Their intervals are percentiles over draws of the steps at all batches, log-normal on each side of a value, and narrower
where the points lie closer to the fitted curve than their intervals claim. As draws scatter around values that scatter
themselves, those at twice the tails (5 % and 95 % for 95 %) cover what is claimed (tools/coverage)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..log.schema import Status
from ..target import Target
from .best_of_n import best_of
from .critical_batch_fit import REFUTED, CriticalBatchFit, fit_critical_batch
from .defaults import CONFIDENCE, RUN_DEVIATION, Options
from .intervals import Estimate, isotonic, logarithms, normal_quantile, rank_deviate
from .steps import RunCell, RunToTarget
from .studies import Study, best_metric, best_value, effective_rate, outcomes, rates_of, with_metric
from .trials import JobKey

BEYOND = 0.15               # the share of trials beyond the best one, at most, of a search that is cut off
FALLS = 1.64                # standard deviations of the rank correlations together
PART, LEAST = 0.4, 5        # of the trials, by rate, that are at its upper end; the fewest
DRAWS = 2000                # of the steps at all batches


@dataclass(frozen=True)
class BatchEstimate:
    """One of the global batches that were run, with its interval."""

    value: int | None           # None: no batch met the target
    low: float = np.nan         # NaN: the spread is unknown
    high: float = np.nan        # inf where it may be the largest batch that was run, or a larger one
    largest: bool = False       # whether it is the largest that was run, so that a larger one may be as good

    def __str__(self) -> str:
        return f"at least {self.value:,}" if self.largest else f"{self.value:,}"


class Regimes:
    """Where perfect scaling ends, where larger batches stop saving steps, and the curve fitted to all batches, smallest
    first; None: too few met. A batch that did not meet is in no regime.

    perfect  per batch: whether B S is within tolerance of the smallest B S"""

    def __init__(self, batches: Sequence[int], estimates: Sequence[Estimate], options: Options = Options()) -> None:
        steps, sizes = logarithms([one.value if one.met else np.inf for one in estimates]), logarithms(batches)
        self.options, self.fit = options, fit_critical_batch(batches, estimates, options.confidence)
        self.perfect_until = self.maximum_useful = BatchEstimate(None)
        perfect = _is_within(steps + sizes, options.perfect_within)
        self.perfect: tuple[bool, ...] = tuple(perfect.tolist())
        if not perfect.any():
            return

        # past a batch, counted from the first perfect one, where the lower end of B S is above the upper end of the
        # smallest B S plus the tolerance; an interval from the evaluation grid alone makes nothing certain
        ends = np.array([(one.low, one.high) if one.met and one.runs > 1 else (0, np.inf) for one in estimates])
        low, high = (ends * np.asarray(batches, float)[:, None]).T
        smallest = np.argmin([one.value * batch if one.met else np.inf for batch, one in zip(batches, estimates)])
        certainly_not = low > high[smallest] * (1 + options.perfect_within)
        past = np.logical_or.accumulate(certainly_not & (np.arange(len(perfect)) > perfect.argmax()))

        logs = np.vstack([steps, _draw_log_steps(steps, estimates, options.confidence, batches, self.fit)])
        inside = _is_within(logs + sizes, options.perfect_within)
        inside[0] &= ~past
        until = len(batches) - 1 - inside[:, ::-1].argmax(1)
        useful = np.maximum(until, _is_within(logs, options.useful_within).argmax(1))
        self.perfect_until, self.maximum_useful = (_estimate_batch(batches, chosen.tolist(), options.confidence)
                                                   for chosen in (until, useful))


def _estimate_batch(batches: Sequence[int], chosen: list[int], confidence: float) -> BatchEstimate:
    """The batch of the first index, with an interval from the others, which are draws of it, if any."""
    value, last, largest = int(batches[chosen[0]]), len(batches) - 1, chosen[0] == len(batches) - 1
    if len(chosen) == 1:
        return BatchEstimate(value, largest=largest)
    low, high = np.sort(chosen[1:])[[int(share * (DRAWS - 1)) for share in (1 - confidence, confidence)]].tolist()
    return BatchEstimate(value, float(min(value, batches[low])),
                         np.inf if high == last else float(max(value, batches[high])), largest)


def _is_within(logs: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether each value is finite and within tolerance of the smallest along the last axis."""
    return np.isfinite(logs) & (logs <= logs.min(-1, keepdims=True, initial=np.inf) + np.log1p(tolerance) + 1e-12)


def _draw_log_steps(log_steps: np.ndarray, estimates: Sequence[Estimate], confidence: float,
                    batches: Sequence[int], fit: CriticalBatchFit | None) -> np.ndarray:
    """Draws of log S, shape (DRAWS, batches); none: the spread is unknown; of one run each it is RUN_DEVIATION. An open
    side is as wide as the widest known one of those that met. A batch that did not is drawn around what its runs
    reached; inf: unknown. As values scatter themselves, those that met are drawn around what falls and is nearest to
    them, unless the largest batches surely rise; and midway to the curve, where they do not refute it."""
    beyond = logarithms([np.inf if np.isnan(estimate.beyond) else estimate.beyond for estimate in estimates])
    met = np.isfinite(log_steps)
    reached = np.where(met, log_steps, beyond)
    with np.errstate(invalid="ignore"):
        wide = np.abs(logarithms([(estimate.low, estimate.high) for estimate in estimates]) - reached[:, None])
    wide[[estimate.runs < 2 for estimate in estimates]] = np.nan          # the evaluation grid is not a spread
    if all(estimate.runs == 1 for estimate in estimates if estimate.met):
        wide[met] = max(RUN_DEVIATION, fit.rms_log2 * np.log(2) if fit else 0.0) * normal_quantile(confidence)
        wide[:, 0] = np.fmax(wide[:, 0], reached - logarithms([estimate.before for estimate in estimates]))
    known = np.isfinite(wide)
    if not known[met].any():
        return np.empty((0, len(estimates)))
    narrower = float(np.fmin(1.0, fit.spread)) if fit else 1.0
    wide = narrower * np.where(known, wide, wide[met][known[met]].max()) / normal_quantile(confidence)
    deviate = np.random.Generator(np.random.Philox(key=0)).standard_normal((DRAWS, len(estimates)))
    if not fit or not fit.left_out:
        reached[met] = -isotonic(-reached[None, met])[0]
        curve = logarithms(fit.steps(batches)) if fit and fit.lack_of_fit > REFUTED else np.nan
        reached = np.where(np.isnan(curve) | ~met, reached, (reached + curve) / 2)
    return reached + deviate * np.where(deviate < 0, wide[:, 0], wide[:, 1])


class CurvePoint:
    """One global batch that was searched, against a target, at the best of n of its trials (None: all): its feasible
    trials, without repeats of the winner. Where nothing was pruned, the fewest steps of these are those of the
    published analysis (batch_science/measurement_utils.py of Shallue et al. 2019): of the earliest measurement beyond
    the goal, ties by trial id. INFEASIBLE trials that met the target before they diverged do not count.

    best        index into the study of the trial with the fewest steps, the first of equals; None: none met
    fewest      its steps, inf: none met; ``before``, at the evaluation before, NaN: unknown, or none met
    beyond      where none met, the fewest steps at which a trial last measured the metric; NaN: none did, or one met
    trials      the number of feasible ones; ``pruned`` of them were
    infeasible  the number that diverged, and ``met_before_diverging`` of them"""

    def __init__(self, study: Study, target: Target, confidence: float = CONFIDENCE, n: int | None = None) -> None:
        self.study, self.target, self.confidence, self.n = study, target, confidence, n
        self.reached = reached = outcomes(study, target)
        met, diverged = study.searched & reached.met, study.infeasible & ~study.repeat
        steps = np.where(met, reached.steps, np.inf)
        self.global_batch, self.best = study.global_batch, int(steps.argmin()) if met.any() else None
        self.fewest, self.before = float(steps.min(initial=np.inf)), np.nan
        self.keys: tuple[tuple[str, int], ...] = ()
        if self.best is not None:
            self.before, self.keys = float(reached.before[self.best]), (study.key(self.best),)
        self.beyond = np.nan if met.any() else float(np.fmin.reduce(reached.last_step[study.searched], initial=np.nan))
        self.trials, self.met, self.pruned, self.infeasible, self.met_before_diverging = (int(one.sum()) for one in (
            study.searched, met, study.searched & study.pruned, diverged, diverged & reached.met))

    @cached_property
    def steps(self) -> Estimate:
        """The median best of n feasible trials, extrapolated where there are fewer; inf: not met."""
        reached, feasible = self.reached, np.flatnonzero(self.study.searched)
        if not len(feasible):
            return Estimate.unknown()
        return best_of(reached.steps[feasible], reached.before[feasible], reached.last_step[feasible],
                       pruned=self.study.pruned[feasible], n=self.n, confidence=self.confidence)

    @property
    def value(self) -> float:
        """The metric where the best trial met the target; NaN: none met."""
        if self.best is None:
            return np.nan
        return float(self.study.evaluations.read(self.target.column)[self.reached.row[self.best]])


class Curve:
    """The points of a workload and target by batch, of studies or of cells over all worker counts, each at the best of
    n where searched (None: of none), and the regimes of those that are ``judged``: at the batches that are ``whole``,
    whose searches are not cut off, one behind the other.

    left_out  (batch, feasible trials) of those with fewer than asked for
    cut       up to, or from, which batch on searches are cut off; {}: none is
    perfect   by judged batch, whether B S is within tolerance of the smallest B S, or "open": perfect scaling ends
              before it, but not surely; {}: unknown

    Without the smallest batch, the fewest examples are unknown, and so is perfect scaling. The maximum useful batch is,
    too, where it may be the first of those judged: a smaller one may be as good."""

    def __init__(self, workload: JobKey, target: Target, points: Iterable[RunCell | CurvePoint],
                 options: Options = Options(), n: int | None = None, left_out: tuple[tuple[int, int], ...] = ()
                 ) -> None:
        self.workload, self.target, self.confidence, self.n = workload, target, options.confidence, n
        self.left_out, self.points = left_out, tuple(sorted(points, key=lambda point: point.global_batch))
        self.batches = tuple(point.global_batch for point in self.points)
        self.searched = tuple(point for point in self.points if isinstance(point, CurvePoint))
        self.cells = tuple(point for point in self.points if isinstance(point, RunCell))
        self.keys = tuple(key for point in self.searched for key in point.keys)
        self.whole = self.batches
        if self.searched or any(cell.draws or cell.settings >= LEAST for cell in self.cells):
            self.whole = list_whole(self.batches, [_ends_of_cell(one, target) if isinstance(one, RunCell) else
                                                   _ends_of_point(one) for one in self.points])
        first = self.whole[0] if self.whole else np.inf
        below = [batch for batch in self.batches if batch < first]
        above = [batch for batch in self.batches if batch > first and batch not in self.whole]
        self.cut = {**({"until": max(below)} if below else {}), **({"start": min(above)} if above else {})}
        self.judged = tuple(point for point in self.points if point.global_batch in self.whole)
        self.regimes = Regimes(self.whole, [point.steps for point in self.judged], options)
        if below:
            self.regimes.perfect_until, self.regimes.perfect = BatchEstimate(None), ()
            if not (self.judged and self.regimes.maximum_useful.low > first):
                self.regimes.maximum_useful = BatchEstimate(None)
        until = self.regimes.perfect_until
        self.perfect: dict[int, bool | str] = {
            batch: "open" if not inside and (until.value or np.inf) < batch <= until.high else inside
            for batch, inside in zip(self.whole, self.regimes.perfect)}


def curve_of(studies: Sequence[Study], target: Target, options: Options = Options()) -> Curve | None:
    """The curve of one workload's studies, all at one n, see common_trials; None: no study has the target's metric."""
    studies = with_metric(studies, target.column)
    if not studies:
        return None
    n, left_out = common_trials({study.global_batch: int(study.searched.sum()) for study in studies}, options.trials)
    points = [CurvePoint(study, target, options.confidence, n) for study in studies
              if study.global_batch not in left_out]
    return Curve(studies[0].workload, target, points, options, n, tuple(left_out.items()))


def common_trials(counts: Mapping[int, int], asked: int | None = None) -> tuple[int | None, dict[int, int]]:
    """(n, batches left out with their counts): the number of trials to compare every batch at. The fewest steps of n
    trials fall with n, so comparing batches at different n would distort the curve. n is the smallest count of feasible
    trials by batch, or the number asked for; batches with fewer are then left out. None: there are no trials."""
    if asked is not None:
        return asked, {batch: count for batch, count in counts.items() if count < asked}
    return min((count for count in counts.values() if count), default=None), {}


def ends_of(rates: np.ndarray, steps: np.ndarray, diverged: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """At the upper and the lower end of one batch's rates: the share of trials beyond the best one, and how much steps
    rise over that end, in standard deviations of chance. None: nothing ranks the trials, or they are too few.
    ``values``: the best that each feasible trial reached, the less the better; NaN: unknown, as where it was
    stopped."""
    known = np.isfinite(steps) | ~np.isnan(values)
    if not known.any() or len(rates) < LEAST:
        return None
    met, ranks = np.isfinite(steps), np.full(len(steps), np.inf)
    ranks[known] = np.unique(np.where(met, [steps, np.zeros(len(steps))], [steps, values])[:, known], axis=1,
                             return_inverse=True)[1]
    best, every, found = rates[ranks.argmin()], np.append(rates, diverged), []
    for way in (1, -1):
        end = np.argsort(-way * rates)[:max(LEAST, round(PART * len(rates)))]
        falls = 0.0 if _rises_again(way * rates[end], steps[end]) else rank_deviate(way * rates[end], ranks[end])
        found.append((np.mean(way * every > way * best), falls))
    return np.array(found)


def _rises_again(rates: np.ndarray, steps: np.ndarray) -> bool:
    """Whether steps rise at the largest rate, by a standard error or more, by a parabola in logarithms."""
    met = np.isfinite(steps) & (steps > 0)
    if len(np.unique(rates[met])) < LEAST - 1:
        return False
    (_, slope, _), errors = np.polyfit(rates[met] - rates.max(), np.log(steps[met]), 2, cov=True)
    return bool(slope > np.sqrt(errors[1, 1]))


def list_whole(batches: Sequence[int], ends: Sequence[np.ndarray | None]) -> tuple[int, ...]:
    """The batches without the last, cut off at the upper end of the rates, and the first, cut off at the lower end."""
    upper, lower = ([None if end is None else end[way] for end in ends] for way in (0, 1))
    return tuple(batches[_count_cut(lower[::-1]):len(ends) - _count_cut(upper)])


def _count_cut(ends: Sequence[np.ndarray | None]) -> int:
    for at, own in enumerate(ends):
        if own is not None and own[0] <= BEYOND and own[1] < 0:
            shares, deviates = np.array([one for one in ends[at:] if one is not None]).T
            if shares.mean() <= BEYOND and all(deviates[-count:].sum() < -falls * np.sqrt(count) for count, falls in (
                    (len(deviates), FALLS), (-(-len(deviates) // 2), FALLS / 2))):
                return len(ends) - at
    return 0


def _ends_of_point(point: CurvePoint) -> np.ndarray | None:
    study, rates, target = point.study, np.log(rates_of(point.study)), point.target
    searched, diverged = (one & ~study.repeat & ~np.isnan(rates) for one in (study.feasible, study.infeasible))
    values = best_metric(study, target.column, target.minimizes)[0] * (1 if target.minimizes else -1)
    return ends_of(rates[searched], point.reached.steps[searched], rates[diverged],
                   np.where(study.pruned, np.nan, values)[searched])


def _ends_of_cell(cell: RunCell, target: Target) -> np.ndarray | None:
    diverged = [trial for trial in cell.considered if trial.status == Status.INFEASIBLE]
    runs = [run for run in cell.draws or (RunToTarget(trial, target) for trial in cell.considered)
            if run.measured and run.trial.status != Status.INFEASIBLE]
    of_runs, of_diverged = (np.log([effective_rate(trial.problem.get("peak_lr") or np.nan,
                                                   trial.problem.get("momentum") or 0.0) for trial in trials])
                            for trials in ([run.trial for run in runs], diverged))
    if np.isnan(of_runs).any() or not cell.draws and len(np.unique(of_runs)) < LEAST:
        return None
    values = np.array([np.nan if run.trial.pruned else best_value(run.trial.metrics[target.column], target.minimizes)
                       for run in runs]) * (1 if target.minimizes else -1)
    return ends_of(of_runs, np.array([run.steps for run in runs]), of_diverged, values)
