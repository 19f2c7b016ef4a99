"""The critical batch along a run, by branches: a chapter with sentences, tables and figures.

    view = view_of_branches(branched, [(target, fit.b_crit)])
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..analysis.branches import NO_RAMP, Branched, BranchPoint, branched_of, excess_of, ramp_of
from ..analysis.interval_arithmetic import over
from ..analysis.intervals import Estimate
from ..analysis.noise_against import as_estimate
from ..analysis.trials import Trial
from ..formatting.numbers import counted, in_brackets, number, ratio, span, whole
from ..target import Target
from .about import AboutAll
from .columns import BATCH, MCCANDLISH, NOISE
from .drawing import (BLUE, GREEN, MUTED, ORANGE, PANEL_TICKS, Axes, Figure, arrows_of, log2_axis, mark_estimate,
                      value_axis)
from .findings import Finding
from .scaling.noise import is_bounded
from .table import Cell, Column, Row, Table, count_cell, interval_cell, number_cell
from .view import View

MERRILL = "Merrill et al. 2025, arXiv 2505.23971"
MOST_PANELS = 9
ASIDE = 1.04                # of the marks of noise scales, beside those of critical batches
FACTOR = Column("factor", "k", "1", "the branch's batch over the run's")
STEP = Column("step", "step", "steps", "steps of the run at the checkpoint")
SEEN = Column("examples", "examples seen", "examples", "examples of the run by then", spare=True)
Measured = Sequence[tuple[Target, Estimate]]        # critical batches fitted to steps to a target


def chapters_of_branches(branches: Sequence[Trial], whole: AboutAll) -> Iterator[tuple[str, View, str]]:
    """The title and view of each run with branches, beside the critical batches fitted to steps of the same workload,
    and the id of the run's log."""
    for run in branched_of(branches, whole.asked.branch_tolerance, whole.options.confidence):
        fits = [(about.target, about.curve.regimes.fit) for about in whole.abouts
                if about.workload == run.workload and about.curve]
        fits += [(section.target, section.batches.regimes.fit) for section in whole.repeats
                 if section.workload == run.workload and section.target and section.batches]
        yield title_of(run), view_of_branches(run, [(target, fit.b_crit) for target, fit in fits if fit]), run.base


def view_of_branches(found: Branched, measured: Measured = ()) -> View:
    """All there is to show of the branches of one run."""
    return View(tuple(findings(found, measured)), (points_table(found, measured),), (losses_table(found),),
                lambda: (critical_figure(found, measured), losses_figure(found)))


def title_of(found: Branched) -> str:
    """The title of its chapter."""
    return (f"Branched critical batch: {found.workload.dataset}/{found.workload.model}, {found.workload.optimizer}, "
            f"rule {found.rule}")


def _heading(found: Branched) -> str:
    return title_of(found).partition(": ")[2]


def findings(found: Branched, measured: Measured) -> Iterator[Finding]:
    """The critical batch along the run, then the noise scale and the fitted critical batch beside it."""
    said = [f"{critical_said(point.critical)} at step {point.step:,}" for point in found.points]
    ends = said if len(said) < 3 else [said[0], said[-1]]
    yield Finding(f"Critical batch along the run: {', then '.join(ends)} ({found.metric} within {found.tolerance} of "
                  f"the best smaller batch over {found.length:,} examples, rate by the rule {found.rule}).", (),
                  found.points[-1].critical)
    ratios = [one for one in map(_ratio, found.points) if math.isfinite(one.value)]
    if ratios:
        yield Finding(f"The noise scale is {_range([one.value for one in ratios])} times the critical batch there; "
                      f"the intervals allow 1 at {_count(ratios, 1.0)} of {counted(len(ratios), 'checkpoint')}.")
    ramp = ramp_of(found)
    if ramp:
        yield Finding(f"The batch can double where the lower end of the critical batch allows: {ramp}.",
                      (f"--set batch_schedule='{json.dumps(ramp.batches.pairs)}' --lr-rule {found.rule}",),
                      ramp.fewer_steps)
    else:
        yield Finding(NO_RAMP)
    for target, b_crit in measured:
        if is_bounded(b_crit):
            yield Finding(f"The steps to {target} give a critical batch of {_with_ends(b_crit)}; the interval of the "
                          f"local one reaches into it at {_overlaps(found, b_crit)} of "
                          f"{counted(len(found.points), 'checkpoint')}, that of the noise scale at "
                          f"{_overlaps(found, b_crit, noise=True)}.")


def critical_said(critical: Estimate) -> str:
    """``57 (40-80)``, ``at least 512``, ``at most 64``."""
    if math.isinf(critical.value):
        return f"at least {whole(critical.beyond)}{_least(critical)}"
    return _with_ends(critical)


def _least(critical: Estimate) -> str:
    """What an interval with a lower end alone adds."""
    return f" (> {whole(critical.low)})" if 0 < critical.low < critical.beyond else ""


def _with_ends(estimate: Estimate) -> str:
    return f"{whole(estimate.value)}{in_brackets(estimate.low, estimate.high, whole)}"


def _ratio(point: BranchPoint) -> Estimate:
    """Noise scale over critical batch."""
    if point.noise is None or not math.isfinite(point.critical.value):
        return Estimate.unknown()
    return over(as_estimate(point.noise), point.critical)


def _range(values: Sequence[float]) -> str:
    low, high = ratio(min(values)), ratio(max(values))
    return low if low == high else f"{low} to {high}"


def _count(estimates: Sequence[Estimate], value: float) -> int:
    return sum(one.low <= value <= one.high for one in estimates)


def _overlaps(found: Branched, b_crit: Estimate, noise: bool = False) -> int:
    """How many intervals share a value with that of the critical batch."""
    ends = [(as_estimate(point.noise) if point.noise else Estimate.unknown()) if noise else point.critical
            for point in found.points]
    return sum(one.low <= b_crit.high and b_crit.low <= one.high for one in ends)


def points_table(found: Branched, measured: Measured = ()) -> Table:
    """By checkpoint: the critical batch, the noise scale, and the critical batch fitted to steps."""
    columns = (
        STEP, SEEN,
        Column("local_critical_batch", "critical batch", "examples", "k B of the largest k whose loss is within "
               "the tolerance of the smallest loss of any smaller k; k interpolated linearly to where the excess "
               "reaches it", MERRILL, "critical"),
        Column("loss_allowed", "loss allowed", "1", "the tolerance beside the smallest loss", MERRILL),
        NOISE, Column("noise_over_local", "noise scale / critical", "1", "noise scale over critical batch"),
        *(Column(f"critical_batch_{at}", "measured B_crit", "examples", "E_min / S_min of the curve fitted to the "
                 f"steps to {target}", MCCANDLISH.replace(", appendix A.1", ""))
          for at, (target, _) in enumerate(measured, 1)),
        Column("diverged", "diverged", "1", "branches that diverged", spare=True))
    rows = tuple(Row((
        count_cell(point.step), count_cell(point.examples), _critical_cell(point.critical),
        number_cell(point.allowed), _noise_cell(point), _ratio_cell(_ratio(point)),
        *(interval_cell(b_crit) for _, b_crit in measured), count_cell(len(point.diverged))),
        point.keys, point.diverged) for point in found.points)
    return Table("branched-critical-batch", f"{title_of(found)}, {found.length:,} examples a branch", columns, rows,
                 notes(found))


def notes(found: Branched) -> tuple[str, ...]:
    """How to read the tables."""
    orders = len(found.points[-1].losses)
    few = ("One order of the data a factor: there is no interval.",) if orders < 2 else ()
    return (f"Branches start from checkpoints of one run at batch {found.base_batch:,}, at k times its batch, with the "
            f"rate by the rule {found.rule}, then constant. Losses are {found.metric}, smoothed over the evaluations "
            "of a branch.",
            f"Intervals: {found.confidence:.0%}, over {counted(orders, 'order')} of the data, paired. < : batches "
            "below the run's were not tried; > : all batches passed.",
            "The critical batch at a point depends on the tolerance and on the examples of a branch; B_crit is of the "
            "whole way to a target, with the rate tuned at each batch. --branch-tolerance sets another one.", *few)


def _critical_cell(critical: Estimate) -> Cell:
    if math.isinf(critical.value):
        below = f"> {whole(critical.low)}" if critical.low > 0 else ""
        return Cell(f"> {whole(critical.beyond)}", critical.value, critical.low, critical.high, below)
    return interval_cell(critical, whole)


def _noise_cell(point: BranchPoint) -> Cell:
    if point.noise is None or not math.isfinite(point.noise.noise_scale):
        return Cell("n/a", math.nan, math.nan, math.nan)
    return interval_cell(as_estimate(point.noise))


def _ratio_cell(estimate: Estimate) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell("n/a", math.nan, math.nan, math.nan)
    return interval_cell(estimate, ratio)


def losses_table(found: Branched) -> Table:
    """By checkpoint and factor: the loss, and its excess over the best smaller batch."""
    columns = (STEP, FACTOR, BATCH,
               Column("loss", "loss", "1", f"{found.metric} at the end of the branch: exponential moving average over "
                      "its evaluations, weight 0.5; mean over orders", MERRILL),
               Column("excess", "excess", "1", "over the smallest mean loss of any smaller k; Student's t interval of "
                      "the paired difference", MERRILL),
               Column("allowed", "allowed", "1", "the tolerance there", MERRILL),
               Column("within", "within", "1", "whether the excess is at most the tolerance", MERRILL))
    return Table("branched-losses", f"Losses of the branches: {found.metric}", columns,
                 tuple(row for point in found.points for row in _loss_rows(found, point)), notes(found))


def _loss_rows(found: Branched, point: BranchPoint) -> Iterator[Row]:
    excess = excess_of(point.losses, found.tolerance)
    lower, upper = excess.bands(found.confidence)
    means, width = point.losses.mean(0), len(point.factors)
    for at, factor in enumerate(point.factors):
        mean, low, high = float(excess.mean[at]), float(lower[at]), float(upper[at])
        ends = span(low, high) if at and low > 0 else f"{number(low)} to {number(high)}" if at and low == low else ""
        yield Row((
            count_cell(point.step), count_cell(factor), count_cell(factor * found.base_batch),
            number_cell(float(means[at])), Cell(number(mean), mean, low, high, ends), number_cell(excess.allowed[at]),
            Cell("yes" if excess.within[at] else "no")), point.keys[at::width], ())


def critical_figure(found: Branched, measured: Measured = ()) -> Figure:
    """The critical batch and the noise scale against the examples seen, and fitted critical batches as bands."""
    noise = [(point, as_estimate(point.noise)) for point in found.points if point.noise]

    def draw(axes: Axes) -> None:
        shown = [*(point.critical for point in found.points), *(scale for _, scale in noise)]
        bands = [b_crit for _, b_crit in measured if is_bounded(b_crit)]
        value_axis(axes, "x", [point.examples for point in found.points])
        log2_axis(axes, "y", [found.base_batch, *(one.value for one in shown), *(one.beyond for one in shown),
                              *(one.value for one in bands)],
                  [end for one in (*shown, *bands) for end in (one.low, one.high)],
                  arrows=[arrow for one in shown for arrow in arrows_of(one)])
        axes.axhline(found.base_batch, color=MUTED, linestyle=":", linewidth=1.2, label="batch of the run")
        for target, b_crit in measured:
            if is_bounded(b_crit):
                axes.axhspan(max(b_crit.low, axes.get_ylim()[0]), min(b_crit.high, axes.get_ylim()[1]), color=GREEN,
                             alpha=0.15, linewidth=0)
                axes.axhline(b_crit.value, color=GREEN, linewidth=1.2, label=f"B_crit of {target}")
        for point, scale in noise:
            mark_estimate(axes, point.examples, scale, ORANGE, "s", "noise scale", aside=ASIDE)
        for point in found.points:
            mark_estimate(axes, point.examples, point.critical, BLUE, "o", "critical batch")
        axes.set_xlabel("examples seen by the run")
        axes.set_ylabel("batch (examples)")
    return Figure(
        "branched-critical-batch", f"Critical batch along the run\n{_heading(found)}",
        f"The largest batch whose {found.metric} after {found.length:,} examples is within {found.tolerance} of the "
        "best smaller batch, from checkpoints of one run, and the gradient noise scale there. Bars are "
        f"{found.confidence:.0%} intervals. An open triangle is the largest batch tried, which passed, too.",
        "k B; k: the largest within the tolerance of the best smaller k", MERRILL, found.keys, draw)


def losses_figure(found: Branched) -> Figure:
    """The loss of each branch against its batch, one panel a checkpoint."""
    points = found.points
    if len(points) > MOST_PANELS:
        points = tuple(points[round(at * (len(points) - 1) / (MOST_PANELS - 1))] for at in range(MOST_PANELS))

    def draw(*axes: Axes) -> None:
        for one, point in zip(axes, points):
            _draw_losses(one, found, point, f"step {point.step:,}" if len(points) > 1 else "")
    return Figure(
        "branched-losses", f"Losses of branches by batch\n{_heading(found)}",
        f"{found.metric} at the end of each branch of {found.length:,} examples against its batch: thin lines are "
        "orders of the data, discs their means. Along the dashed line the loss is the tolerance above the best "
        "smaller batch.", "exponential moving average of the evaluations of a branch, weight 0.5", MERRILL,
        tuple(key for point in points for key in point.keys), draw, len(points))


def _draw_losses(axes: Axes, found: Branched, point: BranchPoint, title: str) -> None:
    batches = [factor * found.base_batch for factor in point.factors]
    excess, means = excess_of(point.losses, found.tolerance), point.losses.mean(0)
    log2_axis(axes, "x", batches, most=PANEL_TICKS)
    for row in point.losses:
        axes.plot(batches, np.where(np.isfinite(row), row, np.nan), color=MUTED, linewidth=0.7, alpha=0.6)
    axes.plot([], [], color=MUTED, linewidth=0.7, label="one order of the data")
    axes.plot(batches, np.where(np.isfinite(means), means, np.nan), "o-", color=BLUE, linewidth=1.2, markersize=4.5,
              markeredgewidth=0, label="mean")
    axes.plot(batches[1:], (excess.best + excess.allowed)[1:], "--", color=GREEN, linewidth=1.2, label="allowed")
    axes.set_xlabel("batch (examples)")
    axes.set_ylabel(found.metric)
    if title:
        axes.set_title(title)
