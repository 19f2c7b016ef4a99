"""The best value of a metric under a budget of steps, epochs, examples or seconds, at each batch size.

Each trial is measured under the budget, trials that ended early are marked, and the best has an interval.

A larger batch takes fewer steps per epoch. What it loses under a budget of epochs it may regain under one of steps
(Shallue et al. 2019, section 4.7), so the same trials are measured under both; also on the map of Masters & Luschi
(2018, arXiv 1804.07612, section 2): a metric over the batch size m and the base rate, the learning rate per example
eta / m. They give every batch the same epochs, and find batches of 2 to 32 best."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np

from ..errors import UsageError
from ..plan import lengths
from .best_of_n import BestOf, best_of_n, smallest_interval
from .intervals import CONFIDENCE, Estimate
from .studies import Study, best_metric, last_measured, rates_of, scales_with_momentum, take, with_metric
from .trials import JobKey

POOR = 0.75                 # the share of values with a color of their own; worse ones look alike
AXES = {"steps": "step", "epochs": "examples", "examples": "examples", "seconds": "train_seconds"}


class TrialKind(IntEnum):
    """How a trial did under a budget."""

    MEASURED = 0        # it spent the budget
    SHORT = 1           # it ended earlier, so that its value is a bound; see EarlyEnd
    DIVERGED = 2
    LOST = 3            # neither complete nor pruned


LEAST_EARLY = 3         # trials that ended before the longest, for a habit to be seen
EarlyEnd = Enum("EarlyEnd", "OWN_BUDGET OWN_TARGET PRUNED")        # why a SHORT trial ended


@dataclass(frozen=True, order=True)
class Budget:
    """An amount of training: ``Budget(10, "epochs")``."""

    amount: float
    unit: str           # a key of AXES

    @classmethod
    def parse(cls, text: str) -> Budget:
        """The budget written as ``10 epochs`` or ``5000steps``; UsageError for anything else."""
        found = lengths.read(text.replace(",", "").replace("_", ""))
        if not found or found.unit not in AXES or type(found.amount) not in (int, float) or not (
                0 < found.amount < np.inf):
            raise UsageError(f"budget {text!r} is not a number above 0 and one of {', '.join(AXES)}, such as "
                             "'10 epochs'")
        return cls(float(found.amount), found.unit)

    def limit(self, workload: JobKey) -> float:
        """The largest value of its column of AXES; UsageError where the size of an epoch is not in the logs."""
        if self.unit != "epochs":
            return self.amount
        if not workload.train_examples:
            raise UsageError(f"budget {self}: no log of {workload} has its number of training examples; give the "
                             "budget in steps or examples")
        return self.amount * workload.train_examples

    def __str__(self) -> str:
        unit = self.unit[:-1] if self.amount == 1 else self.unit
        return f"{int(self.amount) if self.amount == int(self.amount) else self.amount:,} {unit}"


def common_budgets(studies: Sequence[Study]) -> tuple[Budget | None, Budget | None]:
    """The most epochs and the most steps that some feasible trial of every study of a workload ran, rounded down to two
    digits; None where no trial ran, or where the size of an epoch is unknown."""
    furthest = []               # by study the last step of any feasible trial, and the examples until then
    for study in studies:
        evaluations = study.evaluations
        rows = evaluations.first[1:][study.feasible & (evaluations.counts > 0)] - 1
        if last := float(evaluations.read("step")[rows].max(initial=0)):
            furthest.append((last, last * study.global_batch))
    if not furthest:
        return None, None
    (steps, examples), train_examples = map(min, zip(*furthest)), studies[0].workload.train_examples
    return (Budget(_round_down(examples / train_examples), "epochs") if train_examples else None,
            Budget(_round_down(steps), "steps"))


def _round_down(amount: float) -> float:
    size = 10.0 ** (np.floor(np.log10(amount)) - 1)
    return float(np.round(np.floor(amount / size * (1 + 1e-9)) * size, 9))


def stop_at_success(study: Study, column: str, minimizes: bool) -> np.ndarray:
    """Whether each trial ended at its first success, by the metric alone, as logs from elsewhere do not say why trials
    ended: with a value better than any trial had before its end, if most that ended before the longest did so."""
    evaluations, step = study.evaluations, study.evaluations.read("step")
    values = evaluations.read(column) * (1 if minimizes else -1)
    ends = last_measured(evaluations, values, evaluations.first[1:])
    earlier = np.repeat(study.feasible, evaluations.counts) & (step > 0)
    earlier[ends[ends >= 0]] = False
    met = study.feasible & (take(values, ends) < np.fmin.reduce(values[earlier], initial=np.nan))
    steps = np.where(study.feasible, take(step, ends), np.nan)
    early = steps < np.fmax.reduce(steps, initial=0)
    return met & (np.sum(early) >= LEAST_EARLY) & (2 * np.sum(met & early) > np.sum(early))


def ends_short(study: Study, budget: Budget | None) -> np.ndarray:
    """Whether each trial ended before it spent the budget (None: its own, in steps); False where it has no budget. It
    did if its search stopped it, or if one more evaluation at the spacing of the last two fits in the budget."""
    evaluations = study.evaluations
    limit = study.budget_steps if budget is None else np.full(len(study), budget.limit(study.workload))
    short, at = study.pruned.copy(), np.flatnonzero(evaluations.counts > 0)
    if not len(at):
        return short
    along = evaluations.read("step" if budget is None else AXES[budget.unit])
    last, first = evaluations.first[1:][at] - 1, evaluations.first[:-1][at]
    gap = along[last] - np.where(last > first, along[np.maximum(last - 1, 0)], 0.0)
    within = (along[last] + gap <= limit[at]) & (limit[at] > 0)
    short[at] = study.pruned[at] & (budget is None or along[last] < limit[at]) | within
    return short


class BudgetPoint:
    """The trials of a study, so of one batch, under a budget (None: each under its own), and the best of them. KeyError
    without the metric.

    values, steps  by trial the best of the metric within the budget, and of the first evaluation with it; NaN: none
    kind, stopped  by trial a TrialKind, and see stop_at_success
    rows, costs    the feasible trials with a value, without repeats of a winner; their values, negated where larger
                   ones are better
    trial          with the best value, the first of equals; None: there is none"""

    def __init__(self, study: Study, column: str, minimizes: bool, budget: Budget | None = None,
                 confidence: float = CONFIDENCE) -> None:
        self.study, self.global_batch, self.minimizes = study, study.global_batch, minimizes
        limits = (budget.limit(study.workload), AXES[budget.unit]) if budget else ()
        self.values, self.steps = best_metric(study, column, minimizes, *limits)
        self.stopped = stop_at_success(study, column, minimizes)
        short = ends_short(study, budget) | self.stopped & (budget is None)
        self.kind = np.select([study.infeasible, ~study.feasible, short],
                              [TrialKind.DIVERGED, TrialKind.LOST, TrialKind.SHORT], TrialKind.MEASURED)
        self.rows = np.flatnonzero((self.kind <= TrialKind.SHORT) & ~np.isnan(self.values) & ~study.repeat)
        self.costs, self.feasible = self.values[self.rows] * (1 if minimizes else -1), len(self.rows)
        self.trial = int(self.rows[self.costs.argmin()]) if self.feasible else None
        self.value, self.step = np.nan, np.nan
        if self.trial is not None:
            self.value, self.step = float(self.values[self.trial]), float(self.steps[self.trial])
        self.short = int((self.kind[self.rows] == TrialKind.SHORT).sum())      # that ended before they spent the budget
        self.diverged = int(((self.kind == TrialKind.DIVERGED) & ~study.repeat).sum())
        # whether the best one did, so that it might have improved further
        self.best_is_short = self.trial is not None and bool(self.kind[self.trial] == TrialKind.SHORT)
        self.confidence = confidence

    @cached_property
    def best(self) -> Estimate:
        """The median best of its feasible trials; NaN without any."""
        return best_value_of(self.values[self.rows], self.minimizes, self.confidence
                             ) if self.feasible else Estimate.unknown()

    @cached_property
    def curve(self) -> tuple[BestOf, ...]:
        return best_of_n(self.costs.tolist(), negated=not self.minimizes)

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return tuple(map(self.study.key, sorted(self.rows.tolist(), key=lambda row: (row != self.trial, row))))

    def ends(self, trials: Sequence[int]) -> set[EarlyEnd]:
        """Why the SHORT ones of these trials ended: PRUNED, at their OWN_TARGET or with their OWN_BUDGET spent; both of
        these where a log does not have the budget in steps."""
        early = ends_short(self.study, None)
        found: set[EarlyEnd] = set()
        for trial in trials:
            if self.kind[trial] != TrialKind.SHORT:
                continue
            measurement = self.study.plan(trial).get("measurement") or {}
            if self.study.pruned[trial]:
                found.add(EarlyEnd.PRUNED)
            elif self.stopped[trial]:
                found.add(EarlyEnd.OWN_TARGET)
            elif not measurement.get("target") or measurement.get("keep_going"):
                found.add(EarlyEnd.OWN_BUDGET)
            elif self.study.budget_steps[trial] > 0:
                found.add(EarlyEnd.OWN_TARGET if early[trial] else EarlyEnd.OWN_BUDGET)
            else:
                found |= {EarlyEnd.OWN_TARGET, EarlyEnd.OWN_BUDGET}
        return found


class BestUnder:
    """The best value of a metric under each budget (rows[i]) at each batch (rows[i][j]) of one workload."""

    def __init__(self, studies: Sequence[Study], column: str, minimizes: bool, budgets: Sequence[Budget | None],
                 confidence: float) -> None:
        self.workload, self.column, self.minimizes = studies[0].workload, column, minimizes
        self.budgets, self.confidence = tuple(budgets), confidence
        self.rows = tuple(tuple(BudgetPoint(study, column, minimizes, budget, confidence) for study in studies)
                          for budget in budgets)


def best_under(studies: Sequence[Study], column: str, minimizes: bool, budgets: Sequence[Budget | None],
               confidence: float = CONFIDENCE) -> BestUnder | None:
    """The studies of one workload, by batch, under each budget; None where none has the metric."""
    studies = with_metric(studies, column)
    return BestUnder(studies, column, minimizes, budgets, confidence) if studies and budgets else None


def best_value_of(values: np.ndarray, minimizes: bool, confidence: float = CONFIDENCE) -> Estimate:
    """The best value with the interval of the median best of as many trials, on a log scale if all are above 0."""
    value = float(values.min() if minimizes else values.max())
    if len(values) < 2:
        return Estimate(value, np.nan, np.nan, len(values))
    by_ratio, sign = values.min() > 0, 1 if minimizes else -1
    ends = sign * np.array(smallest_interval(sign * (np.log(values) if by_ratio else values), confidence))
    low, high = np.sort(np.exp(ends) if by_ratio else ends)
    return Estimate(value, min(float(low), value), max(float(high), value), len(values))


class BaseRates:
    """Every trial of a workload on the map: arrays of shape (trials,), by batch, then in the study's order.

    effective     whether the rate is eta / (1 - momentum), else eta, per example
    study, trial  indices into studies, and into that study
    rate          per example, above 0
    value         the best of the metric at any evaluation within the budget; NaN: none
    kind          MEASURED, SHORT (ended before it spent the budget), DIVERGED
    best          index of the best value of each batch among MEASURED and SHORT, where there is any"""

    def __init__(self, studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None) -> None:
        parts = []
        for at, study in enumerate(studies):
            point, rates = BudgetPoint(study, column, minimizes, budget), rates_of(study) / study.global_batch
            rows = np.flatnonzero(~np.isnan(rates) & (point.kind != TrialKind.LOST) & ~study.repeat)
            parts.append((np.full(len(rows), at), rows, np.full(len(rows), study.global_batch), rates[rows],
                          np.where(point.kind == TrialKind.DIVERGED, np.nan, point.values)[rows], point.kind[rows]))
        self.workload, self.column, self.minimizes, self.budget = studies[0].workload, column, minimizes, budget
        self.studies, self.effective = studies, any(scales_with_momentum(study) for study in studies)
        self.study, self.trial, self.global_batch, self.rate, self.value, self.kind = map(np.concatenate, zip(*parts))
        self.log2_rate, self.batches = np.log2(self.rate), tuple(np.unique(self.global_batch).tolist())
        has_value = (self.kind <= TrialKind.SHORT) & ~np.isnan(self.value)
        cost = np.where(has_value, self.value if minimizes else -self.value, np.inf)
        rows_of = [np.flatnonzero(self.global_batch == batch) for batch in self.batches]
        self.best = tuple(int(at) for rows in rows_of if cost[at := rows[cost[rows].argmin()]] < np.inf)

    def key(self, point: int) -> tuple[str, int]:
        return self.studies[self.study[point]].key(self.trial[point])


def both_readings(studies: Sequence[Study], column: str, minimizes: bool) -> tuple[BaseRates | None, BaseRates | None]:
    """The maps of one workload under the most epochs, and the most steps, that some trial of every batch ran."""
    epochs, steps = (base_rates_of(studies, column, minimizes, budget) if budget else None
                     for budget in common_budgets(studies))
    return epochs, steps


def base_rates_of(studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None = None
                  ) -> BaseRates | None:
    """The map of the studies of one workload; None where no trial has a learning rate and the metric."""
    studies = with_metric(studies, column)
    found = BaseRates(studies, column, minimizes, budget) if studies else None
    return found if found and len(found.rate) else None


def value_range(maps: Sequence[BaseRates]) -> tuple[float, float]:
    """The best value of all these maps, and the worst with a color of its own, see POOR."""
    values = np.concatenate([one.value for one in maps])
    values, minimizes = values[np.isfinite(values)], maps[0].minimizes
    return (float(values.min() if minimizes else values.max()),
            float(np.quantile(values, POOR if minimizes else 1 - POOR)))
