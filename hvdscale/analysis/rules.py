"""The cost of a learning-rate scaling rule: steps under the rule, scaled from the tuned optimum of a small batch, over
steps at the tuned optimum of each batch (Shallue et al. 2019, section 4.7; Goyal et al. 2017 for linear scaling).

The rule scales the effective learning rate eta / (1 - momentum) where the momentum was searched too, else eta.

Steps under a rule come from runs made with it, where the logs have any that start near the tuned optimum. Their repeats
are compared with those of the tuned point. Otherwise steps come from the search's own trials, see lr_response.py. That
compares the rule's rate with the best rate at the same batch, with the other metaparameters drawn alike. Nearby trials
would not do. Twenty trials in three dimensions have none near a rule's point in all of them, and those with a similar
rate differ in the others. Losses beyond the largest budget of the trials cannot be observed and are reported as a
bound. Where the trials do not bracket the best rate, or the rule's rate lies outside those tried, the loss is unknown,
and the missing run is named.

adam_sqrt (Malladi et al. 2022, arXiv 2205.10287) is for adam and adamw alone. The search's trials have other betas than
it, so only runs made with it show its cost."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import PlanError, UsageError
from ..log.plan_text import read_plan
from ..plan import scaling
from ..plan.search_space import layer_of
from ..plan.settings import DECAYS_PER_STEP
from ..system.forked import map_on_cores
from .search import MOMENTUM, is_varied
from .curves import BatchEstimate, Curve, CurvePoint
from .defaults import CONFIDENCE, RULE_WITHIN, RULES as RULE_NAMES
from .intervals import Estimate, over, student_quantile, times
from .lr_response import Landscape, landscapes_of, trials_confirm
from .steps import estimate, known
from .studies import rates_of

NEAR = 1.5                  # rates within this factor are near each other
MOST_TRIALS = 150           # of a batch in a landscape's fit, the first by log and id
MOST_PLANS = 2000           # distinct plans of a batch, above which none is searched for the rule of its run
KEPT, LOST, UNKNOWN = "kept", "lost", "unknown"
BASE, RUNS, FITTED = "base", "runs", "fitted"       # how the loss at a point is known
# why it is unknown: few trials met the target; they do not bracket the best rate; the rule's rate lies outside them;
# the rule scales betas and no run was made with it; it leaves a beta no decay
FEW, OPEN, OUTSIDE, UNTRIED, BEYOND = "few", "open", "outside", "untried", "beyond"
OF_ADAM = ("adam", "adamw")         # the optimizers that rules which scale betas are for


@dataclass(frozen=True)
class Rule:
    """A rule of hvdscale.plan.scaling with a factor of at most ``cap``."""

    name: str
    cap: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The rule written as ``linear``, ``power:0.7`` or ``linear<=8``; UsageError for anything else."""
        name, capped, text_of_cap = text.replace(" ", "").partition("<=")
        try:
            if name not in scaling.EXPONENTS:
                scaling.exponent(name)
            cap = float(text_of_cap) if capped else None
            if cap is not None and not 0 < cap < np.inf:
                raise ValueError
        except (UsageError, ValueError):
            raise UsageError(f"rule {text!r} is none of linear, sqrt, none and power:P (P from -10 to 10, such as "
                             f"power:0.7), nor {' or '.join(scaling.SCALED_BETAS)}; after it, <= and a number above 0 "
                             "may limit the factor, such as linear<=8") from None
        return cls(name, cap)

    def factor(self, batch_ratio: float) -> float:
        return scaling.lr_factor(self.name, batch_ratio, self.cap)

    @property
    def scales_betas(self) -> tuple[str, ...]:
        return scaling.SCALED_BETAS.get(self.name, ())

    def __str__(self) -> str:
        return self.name if self.cap is None else f"{self.name}<={self.cap:g}"


RULES = tuple(map(Rule.parse, RULE_NAMES))


class RulePoint:
    """One rule at one batch, scaled from a rate at the base with the other metaparameters of its best trial.

    loss     its steps over those of the tuned optimum; NaN: unknown. inf: only the lower bound ``beyond`` is known.
             Then the loss exceeds the budget of the trials, its runs did not meet the target, or the rate lies outside
             those tried (the loss is at least that at their end)
    how      BASE, RUNS, FITTED; OUTSIDE: at most a bound is known; else why the loss is unknown
    verdict  LOST: certainly more than the tolerance; KEPT: certainly not; else UNKNOWN
    steps    of the tuned optimum times the loss; a lower bound where the loss is
    near     the search's trials near the rate; ``near_met`` of them met the target, in ``near_fewest``, inf: none met
    missing  whether a run would decide it, of these ``values`` and, as far as logs have them, settings ``asked``"""

    def __init__(self, batch: TunedBatch, rule: Rule, base: TunedBatch, start: float, tolerance: float) -> None:
        self.rule, self.global_batch = rule, batch.global_batch
        self.rate = start * rule.factor(self.global_batch / base.global_batch)
        rows = batch.searched[np.abs(np.log(batch.rate[batch.searched] / self.rate)) <= np.log(NEAR)]
        near = np.where(batch.study.feasible[rows], batch.reached.steps[rows], np.inf)
        self.near, self.near_met = tuple(map(batch.study.key, rows)), int(np.isfinite(near).sum())
        self.near_fewest = float(near.min(initial=np.inf))
        self.steps, self.loss, self.how = batch.steps, Estimate(1.0, 1.0, 1.0, 1), BASE
        self.keys: tuple[tuple[str, int], ...] = (batch.study.key(batch.row),)
        if batch is not base:
            self.loss, self.how, self.keys = batch.find_loss(rule, base, self.rate, tolerance)
            self.steps = times(self.steps, self.loss)
        self.verdict = KEPT if self.loss.high <= 1 + tolerance else UNKNOWN
        if self.loss.low > 1 + tolerance:
            self.verdict = LOST
        self.missing = self.verdict == UNKNOWN and self.how != BEYOND
        if self.missing:
            self.values, self.asked = _plan_missing(batch, rule, self.rate, base, start)


def _plan_missing(batch: TunedBatch, rule: Rule, rate: float, base: TunedBatch, start: float
                  ) -> tuple[dict[str, float], dict[str, Any]]:
    """(values by metaparameter, including learning_rate; settings by key of hvdscale.plan.settings, {}: in no log) of a
    run that would measure a loss: the base's metaparameters at another batch, with the rate scaled by the rule."""
    values = {name: float(column[base.row]) for name, column in base.study.metaparameters.items()
              if not np.isnan(column[base.row])}
    budgets = [float(each.study.budget_steps[each.row]) for each in (base, batch)]
    scaled = {name: round(value * budgets[1] / budgets[0]) for name, value in values.items()
              if name.endswith("_steps") and all(budgets)}      # of a schedule: keep the share of the budget
    asked = dict(batch.study.plan(batch.row).get("asked") or {})
    if asked:
        asked |= layer_of((base.study.plan(base.row).get("sweep") or {}).get("point") or {})
        asked |= {name: value for name, value in scaled.items() if name in asked}
        asked |= {"lr": float(values["learning_rate"] * start / base.rate[base.row]),
                  "base_batch": base.global_batch, "lr_rule": rule.name,
                  "target": str(batch.point.target), **({"max_lr_factor": rule.cap} if rule.cap else {})}
        for name in (*rule.scales_betas, "epsilon") if rule.scales_betas else ():
            asked.pop(f"{name}_half_life", None)        # given as it is at the base
            asked |= {name: values[name]} if name in values else {}
    factor, ratio = float(rate / base.rate[base.row]), batch.global_batch / base.global_batch
    values |= scaled | {"learning_rate": values["learning_rate"] * factor} | {
        name: value for name, value in base.moments_under(rule, ratio).items() if name in values}
    half_lives = {name: asked.get(f"{name}_half_life") for name in DECAYS_PER_STEP if name in values}
    values |= {name: scaling.decay_of(one, batch.global_batch) for name, one in half_lives.items() if one}
    if asked.get("decay_timescale") and "weight_decay" in values:
        values["weight_decay"] *= ratio / factor
    return values, asked


class RuleCost:
    """One rule at every tuned batch from the base on.

    first_lost  the smallest batch at which it loses more than the tolerance (None: at none tried), between the first at
                which that is not excluded and the first at which it is certain (inf: at none)
    missing     the points whose runs would narrow that, at batches from ``low`` to ``high``"""

    def __init__(self, rule: Rule, points: tuple[RulePoint, ...], tolerance: float) -> None:
        self.rule, self.points = rule, points
        self.first_lost = lost = BatchEstimate(
            next((one.global_batch for one in points if one.loss.value > 1 + tolerance), None),
            next((one.global_batch for one in points if one.verdict != KEPT), np.inf),
            next((one.global_batch for one in points if one.verdict == LOST), np.inf))
        self.missing = [point for point in points if point.missing and lost.low <= point.global_batch <= lost.high]


@dataclass(frozen=True)
class Exponent:
    """P of a best rate proportional to B^P, with its interval, over ``batches``; NaN for fewer than three."""

    value: float
    low: float
    high: float
    batches: tuple[int, ...]


class RuleCosts:
    """The cost of rules along a curve of tuned batches.

    effective           whether the rate is eta / (1 - momentum)
    rates               by tuned batch, as the points of each rule; ``base``: that of the smallest
    costs               from the base's rate that was tried; ``costs_from_fitted``: from the fitted one, where the one
                        tried is outside its interval
    exponent            over all batches; ``exponent_perfect``: over those of perfect scaling, None: unknown"""

    def __init__(self, curve: Curve, tuned: Sequence[TunedBatch], rules: Sequence[Rule], tolerance: float) -> None:
        self.workload, self.target, self.confidence = curve.workload, curve.target, curve.confidence
        self.tolerance, self.effective = tolerance, tuned[0].effective
        self.rates, self.base, until = tuned, tuned[0], curve.regimes.perfect_until.value
        self.exponent = exponent_of(self.rates, np.inf, curve.confidence)
        self.exponent_perfect = None if until is None else exponent_of(self.rates, until, curve.confidence)

        def costs_from(rate: float) -> tuple[RuleCost, ...]:
            return tuple(RuleCost(rule, tuple(RulePoint(batch, rule, tuned[0], rate, tolerance) for batch in tuned),
                                  tolerance) for rule in rules)
        tried, fitted = self.base.tried, self.base.best
        self.costs = costs_from(tried)
        self.costs_from_fitted = costs_from(fitted.value) if fitted.low > tried or fitted.high < tried else ()


def rules_along(curves: Sequence[Curve], rules: Sequence[Rule] = RULES, tolerance: float = RULE_WITHIN
                ) -> Iterator[RuleCosts | None]:
    """The cost of each rule along each of these curves of tuned batches, while all cores fit the landscapes of those
    that follow; rules that scale betas are for adam and adamw alone. None where fewer than two batches were tuned, or
    no rule is for their optimizer."""
    suited = [[rule for rule in rules if not rule.scales_betas or curve.workload.optimizer in OF_ADAM]
              for curve in curves]
    tuned = []
    for curve, own in zip(curves, suited):
        effective = is_varied([point.study for point in curve.searched], MOMENTUM)
        batches = [TunedBatch(point, curve, effective) for point in curve.searched if own and len(point.study)]
        batches = [batch for batch in batches if batch.tuned]
        tuned.append(batches if len(batches) > 1 else [])
    fitted = map_on_cores(landscapes_of, [[batch.intervals for batch in batches] for batches in tuned])
    for curve, own, batches, landscapes in zip(curves, suited, tuned, fitted):
        for batch, landscape in zip(batches, landscapes):
            batch.settle(landscape)
        yield RuleCosts(curve, batches, own, tolerance) if batches else None


def exponent_of(rates: Sequence[TunedBatch], until: float = np.inf, confidence: float = CONFIDENCE) -> Exponent:
    """The slope of log best rate over log batch, for batches up to ``until``, weighted by the variance of their own
    rate plus that of the scatter around the line beyond it (DerSimonian & Laird 1986). The interval is Hartung &
    Knapp's (2001): Student's t with batches - 2 degrees of freedom."""
    known = [(rate.global_batch, rate.landscape.best) for rate in rates
             if rate.landscape and rate.global_batch <= until and np.isfinite(rate.best.value)]
    batches = tuple(batch for batch, _ in known)
    if len(known) < 3:
        return Exponent(np.nan, np.nan, np.nan, batches)
    x = np.log(batches)
    y, variance = np.array([[best.mean(), best.var()] for _, best in known]).T
    weight = 1 / variance
    _, left, slack = _fit_line(x, y, weight)
    weight = 1 / (variance + max(0.0, (left - (len(x) - 2)) / slack))
    slope, left, _ = _fit_line(x, y, weight)
    spread = (weight * (x - np.average(x, weights=weight)) ** 2).sum()
    half = student_quantile(len(x) - 2, confidence) * np.sqrt(max(1.0, left / (len(x) - 2)) / spread)
    return Exponent(float(slope), float(slope - half), float(slope + half), batches)


def _fit_line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    """(slope, weighted residual squares, what a variance of 1 between batches would add to them) of a weighted line."""
    design = np.stack([np.ones_like(x), x])
    inverse = np.linalg.inv(design * weight @ design.T)
    found, slack = inverse @ (design * weight @ y), weight.sum() - np.trace(inverse @ (design * weight ** 2 @ design.T))
    return found[1], float((weight * (y - found @ design) ** 2).sum()), slack


class TunedBatch:
    """A batch of the curve: its trials' rates, their outcomes, and the best rate.

    row     of its best trial; -1: none
    tuned   whether there is an optimum to compare a rule with; a target met before the first step has none
    budget  the most steps that a trial took or was allowed
    steps   of the tuned optimum
    tried   the rate of the best trial; ``best`` as fitted, NaN: unknown, ``why``: FEW or OPEN, else empty
    keys    the best trial, then the others"""

    def __init__(self, point: CurvePoint, curve: Curve, effective: bool) -> None:
        self.point, self.study, self.confidence, self.effective = point, point.study, curve.confidence, effective
        self.row, self.reached = -1 if point.best is None else point.best, point.reached
        self.global_batch, self.steps = point.global_batch, point.steps
        lr = self.study.metaparameter("learning_rate")
        self.rate = rates_of(self.study) if effective else np.where(lr > 0, lr, np.nan)
        plans = dict.fromkeys(self.study.plan_texts.tolist())
        rules = {text: _read_rule(read_plan(text)) for text in plans if len(plans) <= MOST_PLANS}
        self.made_by = {trial: rule for trial, text in enumerate(self.study.plan_texts) if (rule := rules.get(text))}
        searched = (self.study.feasible | self.study.infeasible) & ~self.study.repeat & ~np.isnan(self.rate)
        searched[list(self.made_by)] = False
        self.searched, self.tried = np.flatnonzero(searched), float(self.rate[self.row])
        self.tuned = self.row >= 0 and self.steps.met and self.steps.value > 0 and not np.isnan(
            self.tried) and len(np.unique(self.rate[self.searched])) > 1
        self.budget = float(max(self.study.budget_steps.max(initial=0), *known(self.reached.last_step), 0))
        rows = self.searched[:MOST_TRIALS]
        steps = np.where(self.study.infeasible[rows], np.inf, self.reached.steps[rows])
        beyond = np.where(self.study.infeasible[rows], self.budget, self.reached.last_step[rows])
        before = np.where(np.isfinite(steps), self.reached.before[rows], beyond)
        self.intervals = np.log(self.rate[rows]), np.where(np.isnan(before), 0.0, before), steps
        self.keys = tuple(map(self.study.key, dict.fromkeys([self.row, *rows.tolist()])))

    def settle(self, landscape: Landscape | None) -> None:
        """With the landscape of its trials."""
        self.landscape, self.why = landscape, OPEN if landscape else FEW
        self.best = Estimate.unknown(len(self.searched))
        if landscape and landscape.bracketed:
            self.best, self.why = landscape.optimum(self.confidence), ""

    def find_loss(self, rule: Rule, base: TunedBatch, rate: float, tolerance: float
                  ) -> tuple[Estimate, str, tuple[tuple[str, int], ...]]:
        """(loss, how it is known or why not, trials)."""
        ratio = self.global_batch / base.global_batch       # rules may agree below their caps
        runs = [trial for trial, made in self.made_by.items() if made.scales_betas == rule.scales_betas
                and made.factor(ratio) == rule.factor(ratio) and self.study.feasible[trial]
                and abs(np.log(self.rate[trial] / rate)) <= np.log(NEAR)]
        if runs:
            alike = self.study.feasible.copy()          # the best trial and its repeats, of the same metaparameters
            for values in self.study.metaparameters.values():
                alike &= (values == values[self.row]) | (np.isnan(values) & np.isnan(values[self.row]))
            tuned = [row for row in np.flatnonzero(alike).tolist() if row not in self.made_by]
            known = self._estimate_steps(tuned) if tuned else self.steps  # a rule's own run may be the best
            known = self.steps if np.isnan(known.low) else known
            return over(self._estimate_steps(runs), known), RUNS, tuple(map(self.study.key, [*runs, *tuned]))
        keys = tuple(map(self.study.key, self.searched[:MOST_TRIALS]))
        if rule.scales_betas:
            return Estimate.unknown(), UNTRIED if base.moments_under(rule, ratio) else BEYOND, keys
        if self.why or self.landscape is None:
            return Estimate.unknown(), self.why, keys
        nearest = float(np.clip(np.log(rate), self.landscape.lowest, self.landscape.highest))
        loss, most = self.landscape.loss(nearest, self.confidence), self.budget / self.steps.value
        if loss.value > most:           # trials can show at most the largest budget over the fewest steps
            loss = Estimate(np.inf, min(loss.low, most), np.inf, loss.runs, most)
        elif loss.high > most:
            loss = replace(loss, high=np.inf)
        if loss.low > 1 + tolerance and not trials_confirm(self.landscape, nearest, *self.intervals, 1 + tolerance):
            loss = replace(loss, low=1 + tolerance)
        if self.landscape.tried(np.log(rate)):
            return loss, FITTED, keys
        if loss.low > 1 + tolerance:            # farther out it is no smaller
            return Estimate(np.inf, loss.low, np.inf, loss.runs, loss.low), OUTSIDE, keys
        return Estimate.unknown(), OUTSIDE, keys

    def _estimate_steps(self, trials: Sequence[int]) -> Estimate:
        """Steps over the seeds of one setting, one trial each; without an interval for one seed."""
        of_seed = {self.study.seed_key(trial): trial for trial in reversed(trials)}
        rows = np.array([of_seed[seed] for seed in sorted(of_seed)])
        met = np.isfinite(self.reached.steps[rows])
        found = estimate(self.reached.steps[rows], self.reached.before[rows], self.reached.last_step[rows][~met],
                         confidence=self.confidence)
        return found if len(rows) > 1 else replace(found, low=np.nan, high=np.nan)

    def moments_under(self, rule: Rule, batch_ratio: float) -> dict[str, float]:
        """The rule's beta1, beta2 and epsilon from those of the best trial (NaN: not logged); {} where it has none, or
        a beta would have no decay left."""
        if not rule.scales_betas:
            return {}
        moments = {name: float(self.study.metaparameter(name)[self.row]) for name in ("beta1", "beta2", "epsilon")}
        try:
            return scaling.scale_moments(rule.name, batch_ratio, moments, rule.cap)
        except PlanError:
            return {}


def _read_rule(plan: Mapping[str, Any]) -> Rule | None:
    """The rule that a run used; None for a search's trial, and where the plan does not have it."""
    problem = plan.get("problem") or {}
    name, batch, base = (problem.get(key) for key in ("lr_rule", "global_batch", "base_batch"))
    if plan.get("sweep") or not isinstance(name, str) or name == scaling.TUNED or not (batch and base) or batch <= base:
        return None
    try:
        full = scaling.lr_factor(name, batch / base)
    except UsageError:
        return None
    factor = problem.get("lr_factor") or full
    return Rule(name, factor if factor < full * 0.999 else None)
