"""The critical batch along a run, by branches: a chapter with sentences, tables and figures."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...analysis.branches import NO_RAMP, BranchPoint, Branched, Excess, branched_of, ramp_of
from ...analysis.intervals import Estimate, over
from ...formatting.numbers import number, ratio, span, whole, written
from ...target import Target
from ..document import Details, Figures, Finding, Part
from ..drawing import (BLUE, GREEN, MUTED, ORANGE, PANEL_TICKS, Axes, arrows, draw_panels, ends_of, explain,
                       label_axes, log2_axis, mark_estimate, spread_evenly, value_axis)
from ..subject import Whole
from ..table import Cell, Table, cell_of, keys_of, known_cell
from ..texts import BRANCHES, Cells
from .batches import is_bounded

MOST_PANELS = 9
ASIDE = 1.04                # of the marks of noise scales, beside those of critical batches
Measured = Sequence[tuple[Target, Estimate]]        # critical batches fitted to steps to a target


def branched_runs(whole: Whole) -> Iterator[tuple[str, Iterable[Part], str]]:
    """Of each run with branches the title and parts, beside critical batches fitted to steps, and the id of its log."""
    for run in branched_of(whole.branches, whole.asked.branch_tolerance, whole.asked.confidence):
        fits = [(subject.goal, subject.curve.regimes.fit) for subject in whole.subjects
                if subject.workload == run.workload and subject.curve]
        fits += [(section.target, section.batches.regimes.fit) for section in whole.repeats
                 if section.workload == run.workload and section.target and section.batches]
        yield (f"Branched critical batch: {_heading(run)}",
               parts_of_branches(run, [(target, fit.b_crit) for target, fit in fits if fit]), run.base)


def parts_of_branches(found: Branched, measured: Measured = ()) -> Iterator[Part]:
    yield from findings(found, measured)
    yield critical_table(found, measured)
    yield Details(lambda: [losses_table(found)])
    points = spread_evenly(found.points, MOST_PANELS)
    draw = draw_panels(partial(_draw_losses, found), points, [f"step {point.step:,}" for point in points])
    words = {"run": _heading(found), **_words(found)}
    yield Figures(lambda: (
        BRANCHES.figure("branched-critical-batch", partial(_draw_critical, found, measured), found.keys, **words),
        BRANCHES.figure("branched-losses", draw, keys_of(points), len(points), **words)))


def _heading(found: Branched) -> str:
    return f"{found.workload.dataset}/{found.workload.model}, {found.workload.optimizer}, rule {found.rule}"


def _words(found: Branched) -> dict[str, Any]:
    return {"metric": found.metric, "tolerance": str(found.tolerance), "length": found.length, "rule": found.rule,
            "confidence": found.confidence}


def findings(found: Branched, measured: Measured) -> Iterator[Finding]:
    said = [f"{describe_critical(point.critical)} at step {point.step:,}" for point in found.points]
    yield BRANCHES.find("local", found.points[-1].critical, batches=", then ".join(
        said if len(said) < 3 else [said[0], said[-1]]), **_words(found))
    ratios = [one for one in map(_noise_over_critical, found.points) if math.isfinite(one.value)]
    if ratios:
        least, most = (end(one.value for one in ratios) for end in (min, max))
        yield BRANCHES.find("noise", least=least, most=most if ratio(least) != ratio(most) else None,
                            count=sum(one.low <= 1.0 <= one.high for one in ratios), checkpoints=len(ratios))
    ramp = ramp_of(found)
    if ramp:
        option = f"--set batch_schedule='{json.dumps(ramp.batches.pairs)}' --lr-rule {found.rule}"
        yield BRANCHES.find("ramp", ramp.fewer_steps, (option,), ramp=str(ramp))
    else:
        yield Finding(NO_RAMP)
    for target, b_crit in measured:
        if is_bounded(b_crit):          # how many intervals share a value with its own
            local, noise = (sum(one.low <= b_crit.high and b_crit.low <= one.high for one in along) for along in (
                [point.critical for point in found.points], map(_noise, found.points)))
            yield BRANCHES.find("measured", target=target, batch=b_crit, checkpoints=len(found.points), local=local,
                                noise=noise)


def describe_critical(critical: Estimate) -> str:
    """``57 (40-80)``, ``at least 512``, ``at most 64``."""
    if math.isinf(critical.value):
        return BRANCHES.say("open", least=critical.beyond,
                            low=critical.low if 0 < critical.low < critical.beyond else None)
    return written(critical, "whole")


def _noise(point: BranchPoint) -> Estimate:
    return point.noise or Estimate.unknown()


def _noise_over_critical(point: BranchPoint) -> Estimate:
    return over(_noise(point), point.critical) if math.isfinite(point.critical.value) else Estimate.unknown()


def _notes(found: Branched) -> tuple[str, ...]:
    orders = len(found.points[-1].losses)
    return (BRANCHES.say("branches", batch=found.base_batch, **_words(found)),
            BRANCHES.say("intervals", orders=orders, **_words(found)), BRANCHES.say("depends"),
            BRANCHES.say_if("one_order", orders < 2))


def critical_table(found: Branched, measured: Measured) -> Table:
    def critical(point: BranchPoint) -> Cell:
        one = point.critical
        if not math.isinf(one.value):
            return cell_of(one, write=whole)
        below = f"> {whole(one.low)}" if one.low > 0 else ""
        return Cell(f"> {whole(one.beyond)}", one.value, one.low, one.high, below)
    fitted: Cells = {BRANCHES.column("critical_batch", f"critical_batch_{at}", target=target):
                     partial(lambda b_crit, _: b_crit, b_crit) for at, (target, b_crit) in enumerate(measured, 1)}
    return BRANCHES.table("branched-critical-batch", found.points, {
        "step": lambda point: point.step, "examples": lambda point: point.examples,
        "local_critical_batch": critical, "loss_allowed": lambda point: point.allowed,
        "noise_scale": lambda point: known_cell(_noise(point)),
        "noise_over_local": lambda point: known_cell(_noise_over_critical(point), ratio), **fitted,
        "diverged": lambda point: len(point.diverged)},
        lambda point: point.keys, diverged=lambda point: point.diverged, notes=_notes(found),
        run=f"Branched critical batch: {_heading(found)}", **_words(found))


def losses_table(found: Branched) -> Table:
    rows = []
    for point in found.points:
        excess = Excess(point.losses, found.tolerance)
        for at, (mean, low, high) in enumerate(np.array([excess.mean, *excess.bands(found.confidence)]).T.tolist()):
            ends = "" if at == 0 or math.isnan(low) else f"{number(low)} to {number(high)}"
            ends = span(low, high) if at and low > 0 else ends
            rows.append((point, at, excess, Cell(number(mean), mean, low, high, ends)))
    return BRANCHES.table("branched-losses", rows, {
        "step": lambda row: row[0].step, "factor": lambda row: row[0].factors[row[1]],
        "global_batch": lambda row: row[0].factors[row[1]] * found.base_batch,
        "loss": lambda row: float(row[0].losses.mean(0)[row[1]]), "excess": itemgetter(3),
        "allowed": lambda row: row[2].allowed[row[1]], "within": lambda row: row[2].within[row[1]]},
        lambda row: row[0].keys[row[1]::len(row[0].factors)], notes=_notes(found), **_words(found))


def _draw_critical(found: Branched, measured: Measured, axes: Axes) -> None:
    noise = [(point, point.noise) for point in found.points if point.noise]
    bands = [(target, b_crit) for target, b_crit in measured if is_bounded(b_crit)]
    shown = [*(point.critical for point in found.points), *(scale for _, scale in noise)]
    value_axis(axes, "x", [point.examples for point in found.points])
    log2_axis(axes, "y", [found.base_batch, *(one.value for one in shown), *(one.beyond for one in shown),
                          *(one.value for _, one in bands)],
              ends_of([*shown, *(one for _, one in bands)]), arrows=arrows(shown))
    axes.axhline(found.base_batch, color=MUTED, linestyle=":", linewidth=1.2, label="batch of the run")
    for target, b_crit in bands:
        low, high = axes.get_ylim()
        axes.axhspan(max(b_crit.low, low), min(b_crit.high, high), color=GREEN, alpha=0.15, linewidth=0)
        axes.axhline(b_crit.value, color=GREEN, linewidth=1.2, label=f"B_crit of {target}")
    for point, scale in noise:
        mark_estimate(axes, point.examples, scale, ORANGE, "s", "noise scale", aside=ASIDE)
    for point in found.points:
        mark_estimate(axes, point.examples, point.critical, BLUE, "o", "critical batch")
    label_axes(axes, "examples seen by the run", "batch (examples)")


def _draw_losses(found: Branched, axes: Axes, point: BranchPoint) -> None:
    batches = [factor * found.base_batch for factor in point.factors]
    excess, means = Excess(point.losses, found.tolerance), point.losses.mean(0)
    log2_axis(axes, "x", batches, most=PANEL_TICKS)
    for row in point.losses:
        axes.plot(batches, np.where(np.isfinite(row), row, np.nan), color=MUTED, linewidth=0.7, alpha=0.6)
    explain(axes, "one order of the data", color=MUTED, linewidth=0.7, linestyle="-")
    axes.plot(batches, np.where(np.isfinite(means), means, np.nan), "o-", color=BLUE, linewidth=1.2, markersize=4.5,
              markeredgewidth=0, label="mean")
    axes.plot(batches[1:], (excess.best + excess.allowed)[1:], "--", color=GREEN, linewidth=1.2, label="allowed")
    label_axes(axes, "batch (examples)", found.metric)
