"""Published curves of steps against the batch size, and how near measured ones come to them.

    for curve in curves:
        for published in load("shallue2019").curves:
            found = against(curve, published)       # a Fidelity, or a NoMatch that says why they cannot be compared

The pass marks are those proposed for a reproduction: steps within +-0.5 log2 of the published ones at 80 % of the batch
sizes, B_crit within a factor 2, intervals that hold the published steps at 80 %, and where two optimizers are ordered
in where their perfect scaling ends, a factor of 8 between them. A batch size that ran past the published steps without
meeting the target misses the first and the third; an estimate without an upper end never passes.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ..target import Target
from . import published as box
from .intervals import CONFIDENCE, Estimate

WITHIN_LOG2 = 0.5           # of the published steps, at
SHARE_WITHIN = 0.8          # of the batch sizes
B_CRIT_WITHIN = 2.0         # a factor either way
SHARE_COVERED = 0.8         # of the intervals
SIZE_WITHIN = 0.05          # training sets that differ by a larger share are other jobs


@dataclass(frozen=True, eq=False)
class Published:
    """One published curve: steps to a target at each batch size, arrays of shape (batches,).

    low, high  what each value may be off by: how it was read, or the spread of its mean and the spacing of evaluations
    trials     finite trials at each batch size, of which the best one counts; 0: a mean, not a best
    b_crit     and s_min, rms_log2: of the hyperbola S = s_min (1 + b_crit / B) fitted to these steps
    perfect    largest batch that scales perfectly, and the smallest that is useful to the full: one value each, two
               where it lies between them, none where it is not clear-cut
    """

    reference: str
    label: str
    dataset: str
    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    train_examples: int             # 0: not known
    target: Target
    batches: np.ndarray
    steps: np.ndarray
    low: np.ndarray
    high: np.ndarray
    trials: int
    b_crit: float
    s_min: float
    rms_log2: float
    perfect: tuple[float, ...]
    useful: tuple[float, ...]
    file: str

    def at(self, batch: float) -> tuple[float, float, float] | None:
        """(steps, low, high) at a batch size, between two published ones on a straight line in logarithms; None beyond
        them."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            return None
        x = np.log2(self.batches)
        return tuple(float(2 ** np.interp(np.log2(batch), x, np.log2(values)))
                     for values in (self.steps, self.low, self.high))


@dataclass(frozen=True)
class Job:
    """A published critical batch size and noise scale, one value or the ends of a range each."""

    label: str
    dataset: str
    unit: str
    b_crit: tuple[float, ...]
    noise_scale: tuple[float, ...]


@dataclass(frozen=True)
class Ordering:
    """Two optimizers of which perfect scaling ends earlier with the first."""

    label: str
    dataset: str
    models: tuple[str, ...]
    target: Target
    earlier: tuple[str, ...]
    later: tuple[str, ...]
    perfect: tuple[float, float]    # where it was published to end
    at_least: float                 # the factor between them that a reproduction must show


@dataclass(frozen=True, eq=False)
class Reference:
    """One publication."""

    name: str
    title: str
    source: str
    obtained: str
    estimate: str
    curves: tuple[Published, ...]
    jobs: tuple[Job, ...]
    orderings: tuple[Ordering, ...]


@dataclass(frozen=True)
class NoMatch:
    """Why a measured curve cannot be held against a published one of the same data set.

    base  where nothing but the target differs, on one metric: the smallest batch with steps on both sides, over which
          the shapes of the two curves can be laid beside each other; else None
    """

    label: str
    why: tuple[str, ...]
    curve: object
    published: Published
    base: int | None = None


@dataclass(frozen=True, eq=False)
class FidelityPoint:
    """One batch size, measured against published.

    log2_apart  log2 of measured over published steps; inf: not met, NaN: nor was it run for as long
    within      whether that is at most WITHIN_LOG2; None: it cannot be told
    covered     whether the interval, and what the published value may be off by, have steps in common; not where the
                target was not met for as long; None: one run, or an interval without an end that would tell
    """

    global_batch: int
    published: float
    low: float
    high: float
    interpolated: bool
    measured: Estimate
    log2_apart: float
    within: bool | None
    covered: bool | None
    point: object                   # the measured curve's


@dataclass(frozen=True)
class PassMark:
    """One pass mark: what is asked, what was found, in numbers; passed is None where it cannot be told.

    bound  "at least" or "at most" where no more is known of what was found
    """

    name: str
    wanted: float
    found: float
    passed: bool | None
    bound: str = ""


@dataclass(frozen=True, eq=False)
class Fidelity:
    """A measured curve against a published one."""

    curve: object
    published: Published
    points: tuple[FidelityPoint, ...]
    beyond: tuple[int, ...]         # batch sizes measured outside the published ones
    remarks: tuple[str, ...]        # in what else the two differ
    marks: tuple[PassMark, ...]

    def counted(self, name) -> tuple[int, int]:
        """(how many, of how many that tell) of ``within`` or ``covered``."""
        told = [getattr(point, name) for point in self.points if getattr(point, name) is not None]
        return sum(told), len(told)


def load(name: str) -> Reference:
    """The publication of this name; UsageError, with those there are, where there is none."""
    record = box.read(name)
    return Reference(name, record["title"], record["source"], record["obtained"], record.get("estimate", ""),
                     tuple(_published(name, record, one) for one in record.get("curve", ())),
                     tuple(Job(one["label"], one["dataset"], one["unit"], tuple(map(float, one["b_crit"])),
                               tuple(map(float, one["noise_scale"]))) for one in record.get("job", ())),
                     tuple(map(_ordering, record.get("ordering", ()))))


def against(curve, published: Published) -> Fidelity | NoMatch | None:
    """A measured curve (analysis.curves.Curve) held against a published one; None where they are of different jobs.

    Where dataset and model agree and something decisive else does not, a NoMatch says what.
    """
    workload = curve.workload
    if workload.dataset != published.dataset or workload.model not in published.models:
        return None
    barring, remarks = _differences(curve, published)
    if barring:
        other_goal = len(barring) == 1 and not _same_goal(curve.target, published.target)
        return NoMatch(published.label, tuple(barring), curve, published,
                       _base(curve, published) if other_goal else None)
    found, beyond = [], []
    for point in curve.points:
        at = published.at(point.global_batch)
        if at is None:
            beyond.append(point.global_batch)
        else:
            found.append(_point(point, at, point.global_batch not in published.batches))
    return Fidelity(curve, published, tuple(found), tuple(beyond), tuple(remarks), _marks(curve, published, found))


def ordering_of(curves: Sequence, ordering: Ordering) -> PassMark | None:
    """Whether perfect scaling ends as much earlier with one optimizer as published; None unless both were measured."""
    def end(optimizers):
        ends = [curve.regimes.perfect_until.value for curve in curves
                if curve.workload.dataset == ordering.dataset and curve.workload.model in ordering.models
                and curve.workload.optimizer in optimizers and _same_goal(curve.target, ordering.target)]
        return next((float(value) for value in ends if value is not None and value == value), None)
    earlier, later = end(ordering.earlier), end(ordering.later)
    if earlier is None or later is None:
        return None
    return PassMark(ordering.label, ordering.at_least, later / earlier, later / earlier >= ordering.at_least)


def jobs_of(reference: Reference, workload) -> tuple[Job, ...]:
    """The published critical batch sizes on a workload's data set."""
    return tuple(job for job in reference.jobs if job.dataset == workload.dataset)


def _published(name, record, one):
    target = Target.parse(one["target"])
    kind = one.get("kind", record["kind"])
    if kind == "steps":
        batches, steps = (np.array(list(part), float) for part in (one["steps"].keys(), one["steps"].values()))
        off = 2.0 ** record["within_log2"]
        low, high = steps / off, steps * off
    else:
        batches, steps, low, high = _of_means(one, kind)
    order = np.argsort(batches)
    trials = 0 if kind != "steps" else one.get("trials", record["trials"])
    return Published(name, one["label"], one["dataset"], tuple(one["models"]), tuple(one["optimizers"]),
                     one["train_examples"], target, batches[order], steps[order], low[order], high[order], trials,
                     float(one["b_crit"]), float(one["s_min"]), float(one["rms_log2"]),
                     tuple(map(float, one.get("perfect", ()))), tuple(map(float, one.get("useful", ()))),
                     one.get("file", ""))


def _of_means(one, kind):
    """Batches, steps and their ends from means of runs in epochs or examples, read at evaluations ``every`` so many."""
    rows = np.array([[float(batch), *value] for batch, value in one["values"].items()])
    batches, mean, runs, variation = rows.T
    half = stdtrit(runs - 1, 0.5 + CONFIDENCE / 2) * variation / 100 / np.sqrt(runs)
    unit = one["train_examples"] if kind == "epochs" else 1
    return (batches, *(unit * values / batches for values in (mean, mean * (1 - half) - one["every"],
                                                              mean * (1 + half))))


def _ordering(one):
    return Ordering(one["label"], one["dataset"], tuple(one["models"]), Target.parse(one["target"]),
                    tuple(one["earlier"]), tuple(one["later"]), tuple(map(float, one["perfect"])),
                    float(one["at_least"]))


def _differences(curve, published):
    """(what bars a comparison, what must only be said) in words."""
    workload, barring, remarks = curve.workload, [], []
    if workload.optimizer not in published.optimizers:
        barring.append(f"published for {published.optimizers[0]}, here {workload.optimizer}")
    if not _same_goal(curve.target, published.target):
        barring.append(f"published to {published.target}, here to {curve.target}")
    elif curve.target != published.target:
        remarks.append(f"published to {published.target}, here to {curve.target}")
    sizes = workload.train_examples, published.train_examples
    if all(sizes) and sizes[0] != sizes[1]:
        said = f"published with {sizes[1]:,} training examples, here {sizes[0]:,}"
        (barring if abs(sizes[0] - sizes[1]) > SIZE_WITHIN * sizes[1] else remarks).append(said)
    if workload.model_args not in ("", "{}", "null"):
        remarks.append(f"the model has arguments of its own here: {workload.model_args}")
    return barring, remarks


def _same_goal(one, other):
    """Whether two targets ask the same but for equality."""
    return (one.column, one.minimizes, one.value) == (other.column, other.minimizes, other.value)


def _base(curve, published):
    """The smallest of two batches or more with steps of both curves, of one metric; None: there is none."""
    if (curve.target.column, curve.target.minimizes) != (published.target.column, published.target.minimizes):
        return None
    both = [point.global_batch for point in curve.points
            if point.steps.met and point.steps.value > 0 and published.at(point.global_batch)]
    return min(both) if len(both) > 1 else None


def _point(point, at, interpolated):
    published, low, high = at
    steps = point.steps
    apart = math.log2(steps.value / published) if steps.met and steps.value > 0 else math.inf
    within = abs(apart) <= WITHIN_LOG2
    if not steps.met and not steps.beyond > published * 2 ** WITHIN_LOG2:
        apart, within = math.nan, None
    return FidelityPoint(point.global_batch, published, low, high, interpolated, steps, apart, within,
                         None if within is None else _covered(steps, low, high), point)


def _covered(steps, low, high):
    """Whether an interval meets low to high; see FidelityPoint."""
    if steps.runs < 2 or math.isnan(steps.low) or math.isnan(steps.high):
        return None
    if not steps.met or steps.low > high:
        return False
    return bool(steps.high >= low) if math.isfinite(steps.high) else None


def _marks(curve, published, points):
    def share(name, wanted, said):
        told = [getattr(point, name) for point in points if getattr(point, name) is not None]
        found = sum(told) / len(told) if told else math.nan
        return PassMark(said, wanted, found, found >= wanted if told else None)
    return (share("within", SHARE_WITHIN, "steps"), _critical_batch_mark(curve, published),
            share("covered", SHARE_COVERED, "intervals"))


def _critical_batch_mark(curve, published):
    """B_crit over the published one. A fit with an open end shows that it is too far away, never that it is near."""
    fit = getattr(curve.regimes, "fit", None)
    if fit is None:
        return PassMark("b_crit", B_CRIT_WITHIN, math.nan, None)
    value, low, high = (end / published.b_crit for end in (fit.b_crit.value, fit.b_crit.low, fit.b_crit.high))
    if math.isinf(high):
        return PassMark("b_crit", B_CRIT_WITHIN, low, False if low > B_CRIT_WITHIN else None, "at least")
    if low == 0:
        return PassMark("b_crit", B_CRIT_WITHIN, high, False if high < 1 / B_CRIT_WITHIN else None, "at most")
    return PassMark("b_crit", B_CRIT_WITHIN, value, 1 / B_CRIT_WITHIN <= value <= B_CRIT_WITHIN)
