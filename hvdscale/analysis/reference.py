"""Published curves of steps against the batch size, and how close measured ones come to them.

The pass marks are those proposed for a reproduction. Steps are within +-0.5 log2 of the published ones at 80 % of the
batch sizes. B_crit is within a factor of 2. Intervals contain the published steps at 80 %. Where the published ends of
perfect scaling of two optimizers differ, they differ by at least a factor of 8. A batch size that ran past the
published steps without meeting the target fails the first and the third; an estimate without an upper end never passes.

The fewest steps fall with the number of trials. So a search is held against the published one at equal trials: its own
trials show how the best of n falls with n, and what the best of the published number would have been."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..target import Target
from . import published as box
from .curves import Curve, CurvePoint
from .intervals import CONFIDENCE, student_quantile
from .steps import RunCell

WITHIN_LOG2 = 0.5           # of the published steps, at
SHARE_WITHIN = 0.8          # of the batch sizes
B_CRIT_WITHIN = 2.0         # a factor either way
SHARE_COVERED = 0.8         # of the intervals
SIZE_WITHIN = 0.05          # training sets whose sizes differ by a larger share are not comparable


class PublishedCurve:
    """One published curve, of steps or of means of runs in epochs or examples: steps to a target at each batch size, an
    entry of the file of a publication with what all its curves share.

    steps, low, high  arrays of shape (batches,); the ends are the uncertainty of reading it off, or of its mean and the
                      spacing of evaluations, ``every``
    trials            finite ones at each batch size, of which the best counts; 0: a mean, not a best
    b_crit, s_min, rms_log2     of the hyperbola fitted to these steps"""

    def __init__(self, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        one = {"train_examples": 0, "file": "", **shared, **own}            # of an unknown number of examples
        self.label, self.dataset, self.models, self.optimizers, self.train_examples, self.file = itemgetter(
            "label", "dataset", "models", "optimizers", "train_examples", "file")(one)
        self.target, self.trials = Target.parse(one["target"]), 0
        self.b_crit, self.s_min, self.rms_log2 = itemgetter("b_crit", "s_min", "rms_log2")(one["fit"])
        self.batches, mean, *rest = np.array(one["values"], float).T
        if one["kind"] == "steps":
            self.trials, off = one["trials"], 2.0 ** one["within_log2"]
            self.steps, self.low, self.high = mean, mean / off, mean * off
        else:
            runs, variation = rest
            half = student_quantile(runs - 1, CONFIDENCE) * variation / 100 / np.sqrt(runs)
            unit = (one["train_examples"] if one["kind"] == "epochs" else 1) / self.batches
            self.steps, self.low = unit * mean, unit * (mean * (1 - half) - one["every"])
            self.high = unit * mean * (1 + half)

    def at(self, batch: float) -> tuple[float, float, float] | None:
        """(steps, low, high) at a batch size, interpolated linearly in logarithms; None beyond the published range."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            return None
        steps, low, high = (float(2 ** np.interp(np.log2(batch), np.log2(self.batches), np.log2(values)))
                            for values in (self.steps, self.low, self.high))
        return steps, low, high


class Reference:
    """The publication of this name; UsageError that lists the publications where the name is unknown.

    jobs        with a critical batch size and a noise scale: one value, or the ends of a range; as its file has them
    orderings   of two optimizers, of which the first leaves perfect scaling at smaller batches; likewise"""

    def __init__(self, name: str) -> None:
        record = box.read(name)
        self.name, self.estimate = name, record.get("estimate", "")
        self.title, self.source, self.obtained = itemgetter("title", "source", "obtained")(record)
        self.curves = tuple(PublishedCurve(record, one) for one in record.get("curve", ()))
        self.jobs, self.orderings = ([SimpleNamespace(**one) for one in record.get(kind, ())]
                                     for kind in ("job", "ordering"))


@dataclass(frozen=True)
class NoMatch:
    """Why a measured curve cannot be compared with a published one of the same data set."""

    why: tuple[str, ...]
    curve: Curve
    published: PublishedCurve
    base: int | None = None     # where only the target's value differs: the smallest batch with steps on both sides


class FidelityPoint:
    """One batch size of a measured curve, beside (steps, low, high) published there.

    equal      the best of as many trials as published, extrapolated where the search had fewer
    log2_apart of equal over published steps; inf: not met; NaN: not met, and not run that long
    within     whether its size is at most WITHIN_LOG2; None: unknown
    covered    whether the interval and the uncertainty of the published value overlap; False where the target was not
               met in that many steps; None: one run, or an open interval that leaves it undecided"""

    def __init__(self, curve: Curve, published: PublishedCurve, point: CurvePoint | RunCell,
                 at: tuple[float, float, float]) -> None:
        self.point, self.global_batch, self.measured = point, point.global_batch, point.steps
        self.published, self.low, self.high = at
        self.interpolated = point.global_batch not in published.batches
        self.equal = steps = point.steps
        if isinstance(point, CurvePoint) and published.trials not in (0, curve.n):
            self.equal = steps = CurvePoint(point.study, point.target, point.confidence, published.trials).steps
        self.log2_apart = math.log2(steps.value / self.published) if steps.met and steps.value > 0 else math.inf
        self.within: bool | None = abs(self.log2_apart) <= WITHIN_LOG2
        if not steps.met and not steps.beyond > self.published * 2 ** WITHIN_LOG2:
            self.log2_apart, self.within = math.nan, None
        self.covered: bool | None = None
        if self.within is not None and steps.runs > 1 and not math.isnan(steps.low) and not math.isnan(steps.high):
            if not steps.met or steps.low > self.high:
                self.covered = False
            elif math.isfinite(steps.high):
                self.covered = steps.high >= self.low


@dataclass(frozen=True)
class PassMark:
    name: str
    wanted: float
    found: float
    passed: bool | None     # None: undecided
    bound: str = ""         # "at least" or "at most" where ``found`` is only a bound


class Fidelity:
    """A measured curve against a published one; ``beyond``: batch sizes measured outside the published ones;
    ``remarks``: other differences between the two."""

    def __init__(self, curve: Curve, published: PublishedCurve, remarks: Sequence[str]) -> None:
        self.curve, self.published, self.remarks = curve, published, tuple(remarks)
        found = [(point, published.at(point.global_batch)) for point in curve.points]
        self.points = tuple(FidelityPoint(curve, published, point, at) for point, at in found if at)
        self.beyond = tuple(point.global_batch for point, at in found if at is None)

    def counted(self, name: str) -> tuple[int, int]:
        """(number that pass, number decided) of the points' ``within`` or ``covered``."""
        decided = [getattr(point, name) for point in self.points if getattr(point, name) is not None]
        return sum(decided), len(decided)

    @property
    def marks(self) -> tuple[PassMark, PassMark, PassMark]:
        def mark(label: str, name: str, wanted: float) -> PassMark:
            passed, decided = self.counted(name)
            found = passed / decided if decided else math.nan
            return PassMark(label, wanted, found, found >= wanted if decided else None)
        return (mark("steps", "within", SHARE_WITHIN), _mark_critical_batch(self.curve, self.published),
                mark("intervals", "covered", SHARE_COVERED))


def against(curve: Curve, published: PublishedCurve) -> Fidelity | NoMatch | None:
    """A measured curve compared with a published one; None where dataset or model differ, else a NoMatch says what."""
    workload, goal, theirs = curve.workload, curve.target, published.target
    if workload.dataset != published.dataset or workload.model not in published.models:
        return None
    reasons, remarks = list[str](), list[str]()         # differences that rule out a comparison, other ones
    alike = (goal.column, goal.minimizes) == (theirs.column, theirs.minimizes)
    if workload.optimizer not in published.optimizers:
        reasons.append(f"published for {published.optimizers[0]}, here {workload.optimizer}")
    if goal != theirs:          # which may differ in < and <=
        (remarks if alike and goal.value == theirs.value else reasons).append(f"published to {theirs}, here to {goal}")
    sizes = workload.train_examples, published.train_examples
    if all(sizes) and sizes[0] != sizes[1]:
        text = f"published with {sizes[1]:,} training examples, here {sizes[0]:,}"
        (reasons if abs(sizes[0] - sizes[1]) > SIZE_WITHIN * sizes[1] else remarks).append(text)
    if workload.model_args not in ("", "{}", "null"):
        remarks.append(f"the model has other arguments here: {workload.model_args}")
    if not reasons:
        return Fidelity(curve, published, remarks)

    other_value = len(reasons) == 1 and alike and goal.value != theirs.value
    both = [point.global_batch for point in curve.points if other_value
            and point.steps.met and point.steps.value > 0 and published.at(point.global_batch)]
    return NoMatch(tuple(reasons), curve, published, min(both) if len(both) > 1 else None)


def ordering_of(curves: Sequence[Curve], ordering: SimpleNamespace) -> PassMark | None:
    """Whether perfect scaling ends earlier with one optimizer by the published factor; None: one was not measured."""
    goal = Target.parse(ordering.target)

    def end(optimizers: Sequence[str]) -> float | None:
        ends = [curve.regimes.perfect_until.value for curve in curves
                if curve.workload.dataset == ordering.dataset and curve.workload.model in ordering.models
                and curve.workload.optimizer in optimizers and (curve.target.column, curve.target.value) == (
                    goal.column, goal.value) and curve.target.minimizes == goal.minimizes]
        return next((float(value) for value in ends if value is not None), None)
    earlier, later = end(ordering.earlier), end(ordering.later)
    if earlier is None or later is None:
        return None
    return PassMark(ordering.label, ordering.at_least, later / earlier, later / earlier >= ordering.at_least)


def _mark_critical_batch(curve: Curve, published: PublishedCurve) -> PassMark:
    """B_crit over the published one. A fit with an open end can show that it is too far off, never that it is close."""
    fit = curve.regimes.fit
    if fit is None:
        return PassMark("b_crit", B_CRIT_WITHIN, math.nan, None)
    value, low, high = (end / published.b_crit for end in (fit.b_crit.value, fit.b_crit.low, fit.b_crit.high))
    if math.isinf(high):
        return PassMark("b_crit", B_CRIT_WITHIN, low, False if low > B_CRIT_WITHIN else None, "at least")
    if low == 0:
        return PassMark("b_crit", B_CRIT_WITHIN, high, False if high < 1 / B_CRIT_WITHIN else None, "at most")
    return PassMark("b_crit", B_CRIT_WITHIN, value, 1 / B_CRIT_WITHIN <= value <= B_CRIT_WITHIN)
