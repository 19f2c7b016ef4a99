"""Gradient noise scales: tables, findings, a figure, and beside the critical batch."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from ...analysis.intervals import Estimate, over
from ...analysis.noise import LEAST_STEPS, Noise, NoiseAgainst, NoiseScale, best_known, noise_against
from ...analysis.report_data import Section
from ...analysis.steps import RunCell
from ...formatting.numbers import exact, listed, number, ratio, span
from ..document import Details, Figures, Finding, Part
from ..drawing import Axes, is_named, is_positive, label_axes, log2_axis, mark_estimate, shade
from ..subject import Subject
from ..table import Cell, Table, keys_of, known_cell
from ..texts import SCALING, Cells
from .batches import as_fitted
from .cells import table_of_cells

UNBOUNDED = "?"     # a noise scale whose |G|^2 came out as 0 or less


def noise_scales(subject: Subject) -> Iterator[Part]:
    """Of the batch at which it is known best: the noise scale, and how it changed."""
    yield from _noise_tables(subject)
    if any(len(_windows(noise)) > 1 for _, noise in subject.noise):
        shown = [(cell, _windows(noise)) for cell, noise in subject.noise if _windows(noise)]
        yield Figures(lambda: [SCALING.figure("noise-scale", partial(_draw_noise, shown), keys_of(
            cell for cell, _ in shown), confidence=subject.options.confidence)])
    found = best_known(subject.noise)
    if found is None:
        return
    batch, whole, quarters = found[0].batches.in_brief(), found[1].whole, found[1].quarters
    if not math.isfinite(whole.noise_scale):
        yield SCALING.find("noise_open", batch=batch, steps=whole.steps)
        return
    first, last = quarters[0], quarters[-1]
    known = all(math.isfinite(one.noise_scale) for one in quarters)
    changed = known and ("grew" if first.high < last.low else "fell" if last.high < first.low else "")
    yield SCALING.find("noise", whole.estimate, batch=batch, scale=whole.estimate, changed=changed, open=known,
                       first=first.noise_scale, last=last.noise_scale)


def _noise_tables(section: Section) -> Iterator[Table]:
    shown = [scale for _, noise in section.noise for scale in (noise.whole, *noise.quarters)]
    few = any(scale.steps < LEAST_STEPS for scale in shown)
    rows = [(cell, noise, noise.whole) for cell, noise in section.noise]
    yield table_of_cells("noise-scale", rows, "workers global_batch", {
        "workers": lambda row: row[0].workers[0], "runs": lambda row: len(row[0].samples.seeds),
        "measured_steps": lambda row: row[2].steps, "noise_scale": lambda row: _scale_cell(row[2]),
        **_quarters(lambda at, row: _scale_cell(row[1].quarters[at])),
        "grad_sqnorm": lambda row: row[2].grad_sqnorm, "cov_trace": lambda row: row[2].cov_trace},
        of=itemgetter(0), what=section.target, notes=(
            SCALING.say("noise_scale"), SCALING.say("noise_intervals", confidence=section.options.confidence),
            SCALING.say("noise_no_end") if any(math.isinf(scale.high) for scale in shown) else "",
            SCALING.say("noise_negative", mark=UNBOUNDED) if any(
                math.isinf(scale.noise_scale) for scale in shown) else "",
            SCALING.say("noise_few", least=LEAST_STEPS) if few else ""))


def _quarters(fill: Callable[[int, Any], Cell]) -> Cells:
    return {SCALING.column("noise_scale_quarter", f"noise_scale_quarter_{at + 1}", word=word): partial(fill, at)
            for at, word in enumerate(("first", "second", "third", "last"))}


def _scale_cell(scale: NoiseScale) -> Cell:
    shown = UNBOUNDED if math.isinf(scale.noise_scale) else number(scale.noise_scale)
    return Cell(shown, scale.noise_scale, scale.low, scale.high, span(scale.low, scale.high))


def _draw_noise(found: Sequence[tuple[RunCell, Sequence[NoiseScale]]], axes: Axes) -> None:
    scales = [scale for _, own in found for scale in own]
    ends = [end for s in scales for end in (s.low, s.high if math.isfinite(s.high) else 2 * s.noise_scale)]
    log2_axis(axes, "y", [scale.noise_scale for scale in scales], ends)      # twice the value: room for an arrow
    for at, (cell, own) in enumerate(found):
        color, middles = shade(at, len(found)), [(scale.first_step + scale.last_step) / 2 for scale in own]
        label = f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" if is_named(at, len(found)) else None
        axes.plot(middles, [scale.noise_scale for scale in own], "o-", color=color, linewidth=1, markersize=5,
                  markeredgewidth=0, label=label)
        for middle, scale in zip(middles, own):
            mark_estimate(axes, middle, scale.estimate, color, "o", None)
            axes.plot([scale.first_step, scale.last_step], [scale.noise_scale] * 2, color=color, linewidth=1.4,
                      alpha=0.35)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: exact(value))
    label_axes(axes, "steps", "noise scale (examples)")


def _windows(noise: Noise) -> list[NoiseScale]:
    return [quarter for quarter in noise.quarters if is_positive(quarter.noise_scale) and not math.isnan(quarter.low)]


def beside_critical(subject: Subject) -> Iterator[Part]:
    """The noise scale beside the critical batch; of repeats, where that was fitted."""
    curve = subject.curve if subject.held else subject.batches
    fit = curve.regimes.fit if curve else None
    if fit or subject.held:
        found = noise_against(subject.target, subject.noise, fit.b_crit if fit else None)
        yield find_noise(found)
        yield Details(lambda: [noise_against_table(found)])


def find_noise(found: NoiseAgainst) -> Finding:
    if found.chosen is None:
        return SCALING.find("noise_unknown")
    (cell, noise), one_end, low, high = found.chosen, one_ended(found.b_crit), found.ratio.low, found.ratio.high
    verdict: str | None = f"surely too {'large' if low > 1 else 'small'} a guess"
    if math.isnan(low):
        verdict = None if one_end else "with no interval for the ratio"
    elif low <= 1 <= high:
        verdict = "the intervals leave open whether they differ"
    elif low >= 0.5 and high <= 2:
        verdict = "within a factor of 2"
    return SCALING.find(
        "noise_against", scale=noise.whole.estimate, batch=cell.global_batch,
        steps=f"the steps to {found.target}" if found.target else "the steps", open=not is_bounded(found.b_crit),
        one_end=one_end, ratio=found.ratio, critical=as_fitted(found.b_crit) if is_bounded(found.b_crit) else None,
        verdict=verdict)


def is_bounded(b_crit: Estimate) -> bool:
    """Whether a critical batch has an end at all: NaN and the interval from 0 to inf have none."""
    return b_crit.low > 0 or b_crit.high < math.inf


def one_ended(b_crit: Estimate) -> str:
    """``at least 250``, ``at most 250`` of a critical batch whose interval has one end alone; empty of any other."""
    if math.isinf(b_crit.high):
        return f"at least {number(b_crit.low, 2)}"
    return f"at most {number(b_crit.high, 2)}" if b_crit.low == 0 else ""


def noise_against_table(found: NoiseAgainst) -> Table:
    b_crit = known_cell(found.b_crit)
    return SCALING.table("noise-against", found.measured, {
        "global_batch": lambda row: row[0].global_batch,
        "noise_scale": lambda row: known_cell(row[1].whole.estimate),
        **_quarters(lambda at, row: known_cell(row[1].quarters[at].estimate)), "critical_batch": lambda row: b_crit,
        "noise_over_critical": lambda row: known_cell(over(row[1].whole.estimate, found.b_crit), ratio)},
        lambda row: row[0].keys,
        notes=(SCALING.say("noise_of_all"), SCALING.say("noise_published")), what=found.target)
