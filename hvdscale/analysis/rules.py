"""What a learning-rate rule costs: steps under it, from the tuned optimum of a small batch, against the tuned optimum
at every batch (Shallue et al. 2019, section 4.7; Goyal et al. 2017 for linear scaling).

    found = rules_of(curve)
    found.costs[0].points[3].loss       -> linear: steps over the tuned optimum's, with an interval
    found.costs[0].first_lost           -> the batch at which that first passes 1.2
    found.exponent                      -> of the best rate against the batch

What is scaled is the effective learning rate eta / (1 - momentum) where the momentum was searched too, else eta.

Steps under a rule are known from runs that were made with it, where the logs have them (they start near the tuned
optimum, and their repeats stand against those of the tuned point). Else the search's own trials tell: see
lr_response.py. That compares the rule's rate with the best one at the same batch, the other metaparameters as the
search drew them at both: a search of twenty trials in three dimensions has none that lies near a rule's point in all of
them, while those near in the rate alone have another best of others than the optimum has. What takes more steps than
the largest budget of the trials there was not seen: of such a loss only that is known, as a bound. Where the trials do
not bracket the best rate, or the rule's lies outside those tried, its loss is not known, and the trial that would tell
is named.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import stdtrit

from ..errors import UsageError
from ..plan import scaling
from ..plan.search_space import layer_of
from .base_rates import rates_of
from .interval_arithmetic import over, times
from .intervals import CONFIDENCE, Estimate
from .lr_response import Landscape, landscapes_of
from .steps import estimate
from .studies import Outcomes, Study, outcomes

TOLERANCE = 0.20            # a rule loses where it takes this share of steps more than the tuned optimum
NEAR = 1.5                  # a rate within this factor of another is near it
MOST_TRIALS = 150           # of a batch that a landscape is fitted to, the first by log and id
MOST_PLANS = 2000           # different ones of a batch, beyond which none is read for the rule that it was made with
KEPT, LOST, UNKNOWN = "kept", "lost", "unknown"
BASE, RUNS, FITTED = "base", "runs", "fitted"       # how the loss at a point is known
FEW, OPEN, OUTSIDE = "few", "open", "outside"       # why it is not: few trials met the target, the best rate is not
# bracketed by them, the rule's rate lies outside those tried


@dataclass(frozen=True)
class Rule:
    """A rule of hvdscale.plan.scaling, its factor at most ``cap``."""

    name: str
    cap: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The rule written as ``linear``, ``power:0.7`` or ``linear<=8``; UsageError for what is none."""
        name, capped, cap = text.replace(" ", "").partition("<=")
        try:
            scaling.exponent(name)
            rule = cls(name, float(cap) if capped else None)
            if capped and not 0 < rule.cap < np.inf:
                raise ValueError
        except (UsageError, ValueError):
            raise UsageError(f"rule {text!r} is none of linear, sqrt, none and power:P (P from -10 to 10, such as "
                             "power:0.7), with the largest factor, a number above 0, behind <= or not, such as "
                             "linear<=8") from None
        return rule

    def factor(self, batch_ratio: float) -> float:
        """On the rate, at so many times the base batch."""
        return scaling.lr_factor(self.name, batch_ratio, self.cap)

    def __str__(self) -> str:
        return self.name if self.cap is None else f"{self.name}<={self.cap:g}"


RULES = (Rule("linear"), Rule("sqrt"), Rule("none"), Rule("linear", 8.0))


@dataclass(frozen=True)
class Near:
    """The search's trials near a rate: how many, how many met the target, the fewest steps (inf: none), the trials."""

    trials: int
    met: int
    fewest: float
    keys: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Missing:
    """A run that would tell: the base's metaparameters at another batch, the rate scaled by the rule.

    rate    as scaled;  values  by metaparameter, learning_rate among them
    asked   what such a run is to be asked, by key of hvdscale.plan.settings; empty where the logs do not say
    """

    rule: Rule
    global_batch: int
    rate: float
    values: Mapping[str, float]
    asked: Mapping


@dataclass(frozen=True, eq=False)
class RulePoint:
    """One rule at one batch.

    rate     that the rule asks for
    loss     its steps over those of the tuned optimum, with an interval; NaN: not known; inf, with ``beyond``: only
             known to be more than that, since so many steps are more than any trial there was to run, its runs did not
             meet the target, or the rate lies outside those tried, where it is no smaller than at their end
    how      BASE, RUNS or FITTED; FEW, OPEN: why the loss is not known; OUTSIDE: a bound at most is known
    verdict  LOST: surely more than the tolerance; KEPT: surely not; else UNKNOWN
    steps    of the tuned optimum times the loss, and as it only known to be more where it is inf
    keys     the trials behind it
    missing  the run that would tell, where the verdict is UNKNOWN
    """

    global_batch: int
    rate: float
    loss: Estimate
    how: str
    verdict: str
    steps: Estimate
    near: Near
    keys: tuple[tuple[str, int], ...]
    missing: Missing | None


@dataclass(frozen=True)
class FirstLost:
    """The smallest batch at which a rule loses more than the tolerance: None: at none tried; the first at which that is
    not excluded, and the first at which it is sure (inf: at none)."""

    value: int | None
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class RuleCost:
    """One rule at every tuned batch from the base on."""

    rule: Rule
    points: tuple[RulePoint, ...]
    tolerance: float

    @property
    def first_lost(self) -> FirstLost:
        """Where it first loses more than the tolerance; see FirstLost."""
        above = [point for point in self.points if point.loss.value > 1 + self.tolerance]
        open_from = [point for point in self.points if point.verdict != KEPT]
        sure = [point for point in self.points if point.verdict == LOST]
        return FirstLost(above[0].global_batch if above else None,
                         open_from[0].global_batch if open_from else np.inf,
                         sure[0].global_batch if sure else np.inf)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The runs that would narrow where it first loses: between the batches at which it is not excluded and sure."""
        lost = self.first_lost
        return tuple(point.missing for point in self.points
                     if point.missing is not None and lost.low <= point.global_batch <= lost.high)


@dataclass(frozen=True, eq=False)
class BestRate:
    """The best rate at one batch: of its best trial, and as fitted (NaN: not known) with its interval."""

    global_batch: int
    tried: float
    best: Estimate
    landscape: Landscape | None
    why: str                    # FEW or OPEN where it is not known; empty
    keys: tuple[tuple[str, int], ...]       # the best trial, then the others


@dataclass(frozen=True)
class Exponent:
    """P of a best rate in proportion to B^P, with its interval, over ``batches``; NaN where fewer than three tell."""

    value: float
    low: float
    high: float
    batches: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RuleCosts:
    """What rules cost one workload to one target.

    effective    whether the rate is eta / (1 - momentum)
    base         the study of the smallest tuned batch, base_trial its best trial, base_rate that one's rate
    costs_from_fitted   as ``costs``, but started from the fitted best rate of the base; where base_rate lies outside
                 its interval, else empty
    exponent     over every batch;  exponent_perfect  over those that scale perfectly, to perfect_until; None: not known
    """

    workload: object
    target: object
    effective: bool
    tolerance: float
    confidence: float
    base: Study = field(repr=False)
    base_trial: int
    base_rate: float
    costs: tuple[RuleCost, ...]
    costs_from_fitted: tuple[RuleCost, ...]
    rates: tuple[BestRate, ...]             # by tuned batch, as the points of each rule
    tuned_steps: tuple[Estimate, ...]       # likewise: of the tuned optimum
    exponent: Exponent
    exponent_perfect: Exponent | None
    perfect_until: float | None

    @property
    def base_batch(self) -> int:
        return self.base.global_batch


def rules_of(curve, rules: Sequence[Rule] = RULES, tolerance=TOLERANCE) -> RuleCosts | None:
    """The cost of each rule along a curve of tuned batches; None where fewer than two batches were tuned.

    curve  see curves.Curve
    """
    effective = _momentum_searched(curve)
    batches = [_Batch(point, curve, effective) for point in curve.points if len(point.study)]
    tuned = [batch for batch in batches if batch.tuned]
    if len(tuned) < 2:
        return None
    for batch, landscape in zip(tuned, landscapes_of([batch.intervals for batch in tuned])):
        batch.landscape = landscape
    base = tuned[0]

    def costs_from(rate):
        return tuple(RuleCost(rule, tuple(batch.under(rule, base, rate, tolerance) for batch in tuned), tolerance)
                     for rule in rules)
    rates = tuple(batch.best_rate() for batch in tuned)
    until = getattr(getattr(curve.regimes, "perfect_until", None), "value", None)
    until = None if until is None or np.isnan(until) else float(until)
    perfect = None if until is None else exponent_of(rates, until, curve.confidence)
    start, fitted = rates[0].tried, rates[0].best
    beside = fitted.low > start or fitted.high < start
    return RuleCosts(curve.workload, curve.target, effective, tolerance, curve.confidence, base.study, base.best, start,
                     costs_from(start), costs_from(fitted.value) if beside else (), rates,
                     tuple(batch.point.steps for batch in tuned),
                     exponent_of(rates, np.inf, curve.confidence), perfect, until)


def exponent_of(rates: Sequence[BestRate], until=np.inf, confidence=CONFIDENCE) -> Exponent:
    """The slope of log best rate against log batch, over batches up to ``until``.

    Each batch weighs by the variance of its own best rate and by what the batches scatter about the line beyond that
    (DerSimonian & Laird 1986); the interval is Hartung & Knapp's (2001), Student's t with batches - 2 degrees of
    freedom.
    """
    known = [one for one in rates if one.global_batch <= until and np.isfinite(one.best.value)]
    batches = tuple(one.global_batch for one in known)
    if len(known) < 3:
        return Exponent(np.nan, np.nan, np.nan, batches)
    x = np.log(batches)
    y, variance = np.array([[one.landscape.best.mean(), one.landscape.best.var()] for one in known]).T
    weight = 1 / variance
    _, left, slack = _line(x, y, weight)
    between = max(0.0, (left - (len(x) - 2)) / slack)
    weight = 1 / (variance + between)
    slope, left, _ = _line(x, y, weight)
    spread = (weight * (x - np.average(x, weights=weight)) ** 2).sum()
    half = stdtrit(len(x) - 2, 0.5 + confidence / 2) * np.sqrt(max(1.0, left / (len(x) - 2)) / spread)
    return Exponent(float(slope), float(slope - half), float(slope + half), batches)


def _line(x, y, weight):
    """(slope, weighted squares left, what a variance of 1 between batches would add to them) of a weighted line."""
    design = np.stack([np.ones_like(x), x])
    inverse = np.linalg.inv(design * weight @ design.T)
    found = inverse @ (design * weight @ y)
    slack = weight.sum() - np.trace(inverse @ (design * weight ** 2 @ design.T))
    return found[1], float((weight * (y - found @ design) ** 2).sum()), slack


def _momentum_searched(curve):
    """Whether the momentum differs between the trials of a batch."""
    found = [point.study.metaparameters.get("momentum") for point in curve.points]
    return any(len(np.unique(values[~np.isnan(values)])) > 1 for values in found if values is not None)


class _Batch:
    """A batch of the curve: its trials' rates, how they fared, and their landscape."""

    def __init__(self, point, curve, effective):
        self.point, self.study, self.best, self.confidence = point, point.study, point.best, curve.confidence
        self.reached: Outcomes = outcomes(self.study, curve.target)
        lr = self.study.metaparameters.get("learning_rate", np.full(len(self.study), np.nan))
        self.rate = rates_of(self.study) if effective else np.where(lr > 0, lr, np.nan)
        self.made_by = _made_by(self.study)
        known = (self.study.feasible | self.study.infeasible) & ~self.study.repeat & ~np.isnan(self.rate)
        known[list(self.made_by)] = False
        self.searched = np.flatnonzero(known)
        self.landscape: Landscape | None = None

    @property
    def tuned(self):
        """Whether there is an optimum to hold a rule against: a target met before the first step has none."""
        return self.best is not None and self.point.steps.met and self.point.steps.value > 0 and not np.isnan(
            self.rate[self.best]) and len(np.unique(self.rate[self.searched])) > 1

    @property
    def budget(self):
        """The most steps that a trial of it was to run, or ran."""
        return float(max(self.study.budget_steps.max(initial=0), self.reached.last_step.max(initial=0)))

    @property
    def intervals(self):
        """Of its trials what landscape_of takes."""
        rows = self.searched[:MOST_TRIALS]
        steps = np.where(self.study.infeasible[rows], np.inf, self.reached.steps[rows])
        beyond = np.where(self.study.infeasible[rows], self.budget, self.reached.last_step[rows])
        return np.log(self.rate[rows]), np.where(np.isfinite(steps), self.reached.before[rows], beyond), steps

    @property
    def why(self):
        """Why its best rate is not known; empty where it is."""
        return FEW if self.landscape is None else "" if self.landscape.bracketed else OPEN

    def best_rate(self):
        best = Estimate(*[np.nan] * 3, len(self.searched)) if self.why else self.landscape.optimum(self.confidence)
        rows = [self.best, *(row for row in self.searched[:MOST_TRIALS].tolist() if row != self.best)]
        return BestRate(self.study.global_batch, float(self.rate[self.best]), best, self.landscape, self.why,
                        tuple(map(self.study.key, rows)))

    def under(self, rule, base, start, tolerance) -> RulePoint:
        """The rule here, started from a rate at the base, with the other metaparameters of its best trial."""
        rate = start * rule.factor(self.study.global_batch / base.study.global_batch)
        if self is base:
            return RulePoint(self.study.global_batch, rate, Estimate(1.0, 1.0, 1.0, 1), BASE, KEPT, self.point.steps,
                             self._near(rate), (self.study.key(self.best),), None)
        loss, how, keys = self._loss(rule, base, rate, tolerance)
        verdict = LOST if loss.low > 1 + tolerance else KEPT if loss.high <= 1 + tolerance else UNKNOWN
        steps = times(self.point.steps, loss)
        return RulePoint(self.study.global_batch, rate, loss, how, verdict, steps, self._near(rate), keys,
                         self._missing(rule, rate, base, start) if verdict == UNKNOWN else None)

    def _loss(self, rule, base, rate, tolerance):
        """(loss, how it is known or why not, trials)."""
        ratio = self.study.global_batch / base.study.global_batch       # at which a cap may not be reached
        runs = [trial for trial, made in self.made_by.items() if made.factor(ratio) == rule.factor(ratio)
                and abs(np.log(self.rate[trial] / rate)) <= np.log(NEAR) and self.study.feasible[trial]]
        if runs:
            tuned = [row for row in np.flatnonzero(self._same_point()).tolist() if row not in self.made_by]
            known = self._steps_of(tuned)
            known = self.point.steps if np.isnan(known.low) else known
            return over(self._steps_of(runs), known), RUNS, tuple(map(self.study.key, [*runs, *tuned]))
        keys = tuple(map(self.study.key, self.searched[:MOST_TRIALS]))
        if self.why:
            return Estimate(*[np.nan] * 3, 0), self.why, keys
        nearest = float(np.clip(np.log(rate), self.landscape.lowest, self.landscape.highest))
        loss = self._seen(self.landscape.loss(nearest, self.confidence))
        if self.landscape.tried(np.log(rate)):
            return loss, FITTED, keys
        if loss.low > 1 + tolerance:            # further out it is no smaller
            return Estimate(np.inf, loss.low, np.inf, loss.runs, loss.low), OUTSIDE, keys
        return Estimate(*[np.nan] * 3, 0), OUTSIDE, keys

    def _seen(self, loss):
        """A fitted loss, as far as the trials can tell: no end of it lies beyond the largest budget over the best."""
        most = self.budget / self.point.steps.value
        if loss.value <= most:
            return replace(loss, high=loss.high if loss.high <= most else np.inf)
        return Estimate(np.inf, min(loss.low, most), np.inf, loss.runs, most)

    def _steps_of(self, trials):
        """Over the seeds of one setting, one trial each; no interval where there is one seed."""
        trials = np.array(trials)[np.unique(self.study.seed[trials], return_index=True)[1]]
        met = np.isfinite(self.reached.steps[trials])
        found = estimate(self.reached.steps[trials], self.reached.before[trials], self.reached.last_step[trials][~met],
                         confidence=self.confidence)
        return found if len(trials) > 1 else replace(found, low=np.nan, high=np.nan)

    def _same_point(self):
        """Bool: the feasible trials with the metaparameters of the best one: its repeats, and itself."""
        alike = self.study.feasible.copy()
        for values in self.study.metaparameters.values():
            alike &= (values == values[self.best]) | (np.isnan(values) & np.isnan(values[self.best]))
        return alike

    def _near(self, rate):
        rows = self.searched[np.abs(np.log(self.rate[self.searched] / rate)) <= np.log(NEAR)]
        steps = np.where(self.study.feasible[rows], self.reached.steps[rows], np.inf)
        return Near(len(rows), int(np.isfinite(steps).sum()), float(steps.min(initial=np.inf)),
                    tuple(map(self.study.key, rows)))

    def _missing(self, rule, rate, base, start):
        values = {name: float(column[base.best]) for name, column in base.study.metaparameters.items()
                  if not np.isnan(column[base.best])}
        budgets = [float(batch.study.budget_steps[batch.best]) for batch in (base, self)]
        scaled = {name: round(value * budgets[1] / budgets[0]) for name, value in values.items()
                  if name.endswith("_steps") and all(budgets)}      # of a schedule: the same share of the budget
        asked = dict(self.study.plan(self.best).get("asked") or {})
        if asked:
            point = (base.study.plan(base.best).get("sweep") or {}).get("point") or {}
            asked |= layer_of(point)
            asked |= {name: value for name, value in scaled.items() if name in asked}
            asked |= {"lr": float(values["learning_rate"] * start / base.rate[base.best]),
                      "base_batch": base.study.global_batch, "lr_rule": rule.name,
                      "target": str(self.reached.target), **({"max_lr_factor": rule.cap} if rule.cap else {})}
        factor = float(rate / base.rate[base.best])
        values |= scaled | {"learning_rate": values["learning_rate"] * factor}
        return Missing(rule, self.study.global_batch, float(rate), values, asked)


def _made_by(study):
    """The rule of each trial that was made with one, by trial."""
    first = {text: trial for trial, text in reversed(list(enumerate(study.plan_texts)))}
    if len(first) > MOST_PLANS:
        return {}
    rules = {text: _rule_of(study.plan(trial)) for text, trial in first.items()}
    return {trial: rules[text] for trial, text in enumerate(study.plan_texts) if rules[text] is not None}


def _rule_of(plan):
    """The rule that a run was made with; None for a search's trial, and where the plan does not say."""
    problem = plan.get("problem") or {}
    name, batch, base = (problem.get(key) for key in ("lr_rule", "global_batch", "base_batch"))
    if plan.get("sweep") or not isinstance(name, str) or name == scaling.TUNED or not (batch and base):
        return None
    try:
        full = scaling.lr_factor(name, batch / base)
    except UsageError:
        return None
    factor = problem.get("lr_factor") or full
    return Rule(name, factor if factor < full * 0.999 else None) if batch > base else None
