"""The best value of a metric under a budget of steps, epochs, examples or seconds, at each batch size.

    held = held_to(study, "val/error", True, Budget.parse("10 epochs"))       # each trial
    table = best_under(studies, "val/error", True, [Budget(10, "epochs"), Budget(5000, "steps")])

Each trial is held to a budget, so that those that ended before it are told, and the best has an interval; the published
table of results.py asks for the best value alone, of any number of trials.

A larger batch makes fewer steps of an epoch: what it loses under a budget of epochs it may have back under one of steps
(Shallue et al. 2019, section 4.7), so both are asked of the same trials.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import UsageError
from .best_of_n import smallest_interval
from .intervals import CONFIDENCE, Estimate
from .search import BestOf, best_of_n
from .studies import Study, best_metric
from .trials import Workload

AXES = {"steps": "step", "epochs": "examples", "examples": "examples", "seconds": "train_seconds"}
MEASURED, SHORT, DIVERGED, LOST = range(4)      # kinds of trials under a budget, see Held
OWN_BUDGET, OWN_TARGET, PRUNED = "budget", "target", "pruned"       # how a SHORT one may have ended


@dataclass(frozen=True, order=True)
class Budget:
    """So much training: ``Budget(10, "epochs")``."""

    amount: float
    unit: str           # a key of AXES

    @classmethod
    def parse(cls, text: str) -> Budget:
        """The budget written as ``10 epochs`` or ``5000steps``; UsageError for what is none."""
        found = re.fullmatch(r"\s*([\d.,_]*\d[\d.,_]*(?:[eE][+-]?\d+)?)\s*([a-z]+)\s*", text)
        try:
            amount, unit = float(found[1].replace(",", "")), found[2] + "s" * (not found[2].endswith("s"))
            if unit not in AXES or not 0 < amount < np.inf:
                raise ValueError
        except (TypeError, ValueError):
            raise UsageError(f"budget {text!r} is not a number above 0 and one of {', '.join(AXES)}, such as "
                             "'10 epochs'") from None
        return cls(amount, unit)

    @property
    def axis(self) -> str:
        """The column of /evaluations that it is measured along."""
        return AXES[self.unit]

    def limit(self, workload: Workload) -> float:
        """The largest value along its axis; UsageError where the size of an epoch is not in the logs."""
        if self.unit != "epochs":
            return self.amount
        if not workload.train_examples:
            raise UsageError(f"budget {self}: no log of {workload} says how many training examples it has; give the "
                             "budget in steps or examples")
        return self.amount * workload.train_examples

    def __str__(self) -> str:
        unit = self.unit[:-1] if self.amount == 1 else self.unit
        return f"{int(self.amount) if self.amount == int(self.amount) else self.amount:,} {unit}"


def common_budgets(studies: Sequence[Study]) -> tuple[Budget | None, Budget | None]:
    """The most epochs and the most steps that some feasible trial of every study of a workload has run, to two digits,
    rounded down; None where that is nothing, or the size of an epoch is not known."""
    furthest = [(_furthest(study), study) for study in studies]
    furthest = [(steps, study) for steps, study in furthest if steps]
    if not furthest:
        return None, None
    train_examples = furthest[0][1].workload.train_examples
    examples = min(steps * study.global_batch for steps, study in furthest)
    return (Budget(_rounded_down(examples / train_examples), "epochs") if train_examples else None,
            Budget(_rounded_down(min(steps for steps, _ in furthest)), "steps"))


def _furthest(study):
    counts = study.evaluations.counts
    rows = np.flatnonzero(study.feasible & (counts > 0))
    return float(study.evaluations.read("step")[study.evaluations.first[1:][rows] - 1].max(initial=0))


def _rounded_down(amount):
    size = 10.0 ** (np.floor(np.log10(amount)) - 1)
    return float(np.round(np.floor(amount / size * (1 + 1e-9)) * size, 9))


@dataclass(frozen=True, eq=False)
class Held:
    """Each trial of a study held to a budget: arrays of shape (trials,).

    value  the best value of the metric within the budget; NaN: none
    step   of the first evaluation with it
    kind   MEASURED: it spent the budget; SHORT: it ended before, see ``ends``, so that it is known only to reach the
           value or better; DIVERGED: INFEASIBLE; LOST: neither complete nor pruned
    """

    study: Study
    value: np.ndarray
    step: np.ndarray
    kind: np.ndarray

    @cached_property
    def searched(self) -> np.ndarray:
        """Bool: the feasible trials with a value, repeats of a winner left out."""
        return np.isin(self.kind, (MEASURED, SHORT)) & ~np.isnan(self.value) & ~self.study.repeat

    def ends(self, trials: Sequence[int]) -> set[str]:
        """How those of these trials that are SHORT ended: PRUNED, at their OWN_TARGET, or with their OWN_BUDGET spent;
        both of these where a log does not say which."""
        study, early, found, targets = self.study, ends_short(self.study, None), set(), {}
        for trial in trials:
            if self.kind[trial] != SHORT:
                continue
            text = study.plan_texts[trial]
            if text not in targets:
                asked = study.plan(trial).get("measurement") or {}
                targets[text] = bool(asked.get("target")) and not asked.get("keep_going")
            if study.pruned[trial]:
                found.add(PRUNED)
            elif targets[text] and not study.budget_steps[trial] > 0:
                found |= {OWN_TARGET, OWN_BUDGET}
            else:
                found.add(OWN_TARGET if targets[text] and early[trial] else OWN_BUDGET)
        return found


def held_to(study: Study, column: str, minimizes: bool, budget: Budget | None = None) -> Held:
    """A study's trials held to a budget; None: each as long as it was to run. KeyError without the metric."""
    within = () if budget is None else (budget.limit(study.workload), budget.axis)
    best = best_metric(study, column, minimizes, *within)
    kind = np.where(ends_short(study, budget), SHORT, MEASURED)
    kind[study.infeasible] = DIVERGED
    kind[~study.feasible & ~study.infeasible] = LOST
    return Held(study, best.value, best.step, kind.astype(np.int8))


def ends_short(study: Study, budget: Budget | None) -> np.ndarray:
    """Whether each trial ended before the budget (None: its own, in steps) was spent: another evaluation, as far from
    the last as that is from the one before, would have lain within it. Not known to: where there is no budget."""
    evaluations = study.evaluations
    limit = study.budget_steps if budget is None else np.full(len(study), budget.limit(study.workload))
    short = study.pruned.copy()
    at = np.flatnonzero(evaluations.counts > 0)
    if not len(at):
        return short
    along = evaluations.read("step" if budget is None else budget.axis)
    last, first = evaluations.first[1:][at] - 1, evaluations.first[:-1][at]
    gap = along[last] - np.where(last > first, along[np.maximum(last - 1, 0)], 0.0)
    within = (along[last] + gap <= limit[at]) & (limit[at] > 0)
    short[at] = (study.pruned[at] & (along[last] < limit[at])) | within
    if budget is None:
        short |= study.pruned
    return short


@dataclass(frozen=True, eq=False)
class Point:
    """One batch under one budget.

    best      the median best of its feasible trials, with its interval; NaN without any
    trial     of the best value itself, index into the study, the first of equals; None: none
    value     that value
    step      of the first evaluation with it
    """

    global_batch: int
    held: Held
    best: Estimate
    trial: int | None
    value: float
    step: float
    minimizes: bool

    @cached_property
    def curve(self) -> tuple[BestOf, ...]:
        """The median best of n of its feasible trials, n = 1, 2, ..., all; empty without any."""
        return curve_of_n(self.held.value[self.held.searched], self.minimizes)

    @property
    def feasible(self) -> int:
        """Trials that the best is taken over."""
        return int(self.held.searched.sum())

    @property
    def short(self) -> int:
        """Of them those that ended before the budget was spent."""
        return int((self.held.searched & (self.held.kind == SHORT)).sum())

    @property
    def diverged(self) -> int:
        """Trials that diverged."""
        return int(((self.held.kind == DIVERGED) & ~self.held.study.repeat).sum())

    @property
    def best_is_short(self) -> bool:
        """Whether the best value is of a trial that ended before the budget was spent: it might have bettered it."""
        return self.trial is not None and self.held.kind[self.trial] == SHORT

    @property
    def keys(self):
        """The trials behind it, the best one first."""
        rows = np.flatnonzero(self.held.searched)
        return tuple(map(self.held.study.key, sorted(rows.tolist(), key=lambda row: (row != self.trial, row))))


@dataclass(frozen=True, eq=False)
class BestUnder:
    """The best of a metric under each budget (rows[i]) at each batch (rows[i][j]) of one workload."""

    workload: Workload
    column: str
    minimizes: bool
    budgets: tuple[Budget | None, ...]
    rows: tuple[tuple[Point, ...], ...]
    confidence: float


def best_under(studies: Sequence[Study], column: str, minimizes: bool, budgets: Sequence[Budget | None],
               confidence=CONFIDENCE) -> BestUnder | None:
    """The studies of one workload, by batch, under each of the budgets; None where none has the metric."""
    studies = [study for study in sorted(studies, key=lambda study: study.global_batch)
               if column in study.evaluations.columns]
    if not studies or not budgets:
        return None
    rows = tuple(tuple(point_of(held_to(study, column, minimizes, budget), minimizes, confidence)
                       for study in studies) for budget in budgets)
    return BestUnder(studies[0].workload, column, minimizes, tuple(budgets), rows, confidence)


def point_of(held: Held, minimizes: bool, confidence=CONFIDENCE) -> Point:
    """The best of the trials of a study that were held to a budget."""
    rows = np.flatnonzero(held.searched)
    values = held.value[rows]
    if not len(rows):
        unknown = Estimate(np.nan, np.nan, np.nan, 0)
        return Point(held.study.global_batch, held, unknown, None, np.nan, np.nan, minimizes)
    at = int(values.argmin() if minimizes else values.argmax())
    return Point(held.study.global_batch, held, best_value_of(values, minimizes, confidence), int(rows[at]),
                 float(values[at]), float(held.step[rows[at]]), minimizes)


def curve_of_n(values: np.ndarray, minimizes: bool) -> tuple[BestOf, ...]:
    """The median best of n of these values, n = 1, 2, ..., all."""
    found = best_of_n((values if minimizes else -values).tolist(), [False] * len(values))
    return found if minimizes else tuple(BestOf(one.n, -one.high, -one.low) for one in found)


def best_value_of(values: np.ndarray, minimizes: bool, confidence=CONFIDENCE) -> Estimate:
    """The median best of as many trials as there are values, with its interval, see best_of_n.py: on a log scale where
    all are above 0, else on a linear one."""
    value = float(values.min() if minimizes else values.max())
    if len(values) < 2:
        return Estimate(value, np.nan, np.nan, len(values))
    by_ratio, sign = values.min() > 0, 1 if minimizes else -1
    ends = smallest_interval(sign * (np.log(values) if by_ratio else values), confidence=confidence)
    low, high = sorted(np.exp(sign * end) if by_ratio else sign * end for end in ends)
    return Estimate(value, min(float(low), value), max(float(high), value), len(values))
