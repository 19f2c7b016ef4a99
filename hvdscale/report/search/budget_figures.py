"""Figures of a metric under budgets: the best value by batch, and Masters & Luschi's map of base rates.

    figure = best_under_figure([steps, epochs])         # records of analysis.budgets.best_under, a panel each
    figure = base_rate_figure(epochs, steps)            # records of analysis.base_rates.base_rates_of
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ...analysis.base_rates import BaseRates, value_range
from ...analysis.budgets import BestUnder, BudgetPoint, TrialKind
from ...analysis.quality import Quality
from ...analysis.shares import Tolerance
from ...formatting.numbers import number
from ..columns import metric_name
from ..drawing import (INK, MARKERS, MOST_MARKS, MUTED, PANEL_TICKS, SHADES, TICKS, Axes, Axis, Figure, Look, draw_bar,
                       draw_panels, ends_of, explain, is_named, is_positive, label_axes, log2_axis, set_ticks, shade,
                       value_axis)
from ..file_names import column_name
from ..table import keys_of
from .budgets import best_ends, describe_ends
from .curve_figures import ASIDE, heading, plain
from .words import SEARCH

LEVELS = 5                  # of the scale of colours that the legend names
CELL = ((-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5), (-1, -0.5))        # a mark twice as wide as high
SUPERSCRIPT = str.maketrans("-0123456789", "\N{SUPERSCRIPT MINUS}⁰¹²³⁴⁵⁶⁷⁸⁹")


def best_under_figure(*records: BestUnder | None, title: str = "") -> Figure | None:
    """The best value of a metric at each batch, a line a budget, a panel a record; None where none has a value."""
    found = [one for one in records if one is not None and any(_valued(row) for row in one.rows)]
    if not found:
        return None
    metrics = {metric_name(one.column) for one in found}
    title = title or f"Best {min(metrics)} under budgets\n{heading(found[0].workload)}"

    short = any(point.best_is_short for one in found for row in one.rows for point in row)

    def draw(*axes: Axes) -> None:
        if short:
            explain(axes[0], "open: the best trial ended earlier", marker="o", color=MUTED, markersize=5.5,
                    markerfacecolor="none")
        draw_panels(draw_one, found, [plain(_heading(record, found)) for record in found])(*axes)

    def draw_one(axes: Axes, record: BestUnder) -> None:
        _draw_best_under(axes, record, len(found) > 1)
        alike = [other for other in found if other.column == record.column]         # have one scale
        value_axis(axes, "y", [point.best.value for other in alike for row in other.rows for point in _valued(row)],
                   PANEL_TICKS if len(found) > 1 else TICKS)
    points = [point for one in found for row in one.rows for point in row]
    return SEARCH.figure("best-under-budgets", draw, keys_of(points), len(found), title=title,
                         metrics=" or ".join(sorted(metrics)), confidence=found[0].confidence,
                         ends=describe_ends(best_ends(points)) if short else "")


def best_batch_figure(found: Quality, tolerance: Tolerance) -> Figure | None:
    """The best value at each batch with the valley fitted to them, and which batches do as well; None without one."""
    if found.valley is None:
        return None
    valley, metric, sign = found.valley, metric_name(found.column), 1 if found.minimizes else -1
    points = [found.points[at] for at in found.compared]

    def draw(axes: Axes) -> None:
        log2_axis(axes, "x", list(valley.batches), most=TICKS)
        along = np.geomspace(valley.batches[0], valley.batches[-1], 300)
        axes.axvspan(*valley.within(tolerance), color=shade(2, 3), alpha=0.2, linewidth=0, label=f"within {tolerance}")
        for point, value in zip(points, found.best):
            draw_bar(axes, point.global_batch, point.best.low, point.best.high, MUTED)
            axes.plot([point.global_batch], [value], linestyle="", marker="o", color=INK, markersize=5.5)
        axes.plot(along, sign * valley.at(along), color=shade(0, 3), linewidth=1.4, label="fitted")
        axes.axvline(valley.best.value, color=shade(0, 3), linewidth=1, linestyle=":", label="best batch")
        value_axis(axes, "y", ends_of(point.best for point in points), TICKS)
        label_axes(axes, "global batch B (examples)", metric)
    return SEARCH.figure("best-batch", draw, keys_of(points),
                         name=column_name(found.column), metric=metric, workload=heading(found.workload), n=found.n,
                         confidence=found.confidence, tolerance=str(tolerance))


def _heading(record: BestUnder, found: Sequence[BestUnder]) -> str:
    units = {budget.unit for budget in record.budgets if budget is not None}
    what = f"budgets of {' and '.join(sorted(units))}" if units else "each trial's own budget"
    return what if len({one.workload for one in found}) == 1 else f"{record.workload.dataset}: {what}"


def _valued(row: Iterable[BudgetPoint]) -> list[BudgetPoint]:
    return [point for point in row if math.isfinite(point.best.value)]


def _draw_best_under(axes: Axes, record: BestUnder, paneled: bool) -> None:
    rows = sorted(((budget, _valued(row)) for budget, row in zip(record.budgets, record.rows)),
                  key=lambda one: one[0].amount if one[0] else 0)
    batches = sorted({point.global_batch for _, row in rows for point in row})
    log2_axis(axes, "x", batches, most=PANEL_TICKS if paneled else TICKS)
    gap = min((after / before for before, after in zip(batches, batches[1:])), default=2) ** ASIDE
    for at, (budget, row) in enumerate(rows):
        color, marker = shade(at, len(rows)), MARKERS[at % len(MARKERS)]
        aside = gap ** ((at + 0.5) / len(rows) - 0.5)
        x, y = [point.global_batch * aside for point in row], [point.best.value for point in row]
        axes.plot(x, y, color=color, linewidth=1)
        look: Look = {"linestyle": "", "marker": marker, "color": color, "markersize": 5.5}
        for point, across in zip(row, x):
            if point.best.low == point.best.low and point.best.high > point.best.low:
                draw_bar(axes, across, point.best.low, point.best.high, color, 0.6)
            axes.plot([across], [point.best.value], **look,
                      **({"markerfacecolor": "none"} if point.best_is_short else {"markeredgewidth": 0}))
        if row and is_named(at, len(rows)):
            explain(axes, str(budget or "its own budget"), **look, markeredgewidth=0)
    label_axes(axes, "global batch B (examples)", metric_name(record.column))


def base_rate_figure(*records: BaseRates | None) -> Figure | None:
    """The map of a metric over batch and base rate, a panel a record; None where no trial has a value.

    Trials lie where their own rate lies, on a grid or not; one scale of colours for all panels.
    """
    maps = [one for one in records if one is not None and np.isfinite(one.value).any()]
    if not maps:
        return None
    metric = metric_name(maps[0].column)
    scale = _Scale(*value_range(maps))

    def draw(*axes: Axes) -> None:
        draw_panels(lambda one, record: _draw_map(one, record, scale, maps), maps,
                    [str(record.budget or "each trial's own budget") for record in maps])(*axes)
        for share in np.linspace(0, 1, LEVELS):
            explain(axes[0], f"{metric} {scale.words(share)}", marker=CELL, markersize=9, markeredgewidth=0,
                    color=scale.at(share))
    rate = "\N{GREEK SMALL LETTER ETA} / (1 - momentum)" if maps[0].effective else "\N{GREEK SMALL LETTER ETA}"
    keys = dict.fromkeys(one.key(at) for one in maps for at in range(len(one.rate)))
    return SEARCH.figure("base-rates", draw, tuple(keys), len(maps), metric=metric, rate=rate,
                         budget=str(maps[0].budget) if len(maps) == 1 and maps[0].budget else "",
                         workload=heading(maps[0].workload),
                         short=any((one.kind == TrialKind.SHORT).any() for one in maps))


class _Scale:
    """Colours of values: dark is good. What is worse than ``worst`` has its colour."""

    def __init__(self, best: float, worst: float) -> None:
        self.best, self.worst = best, worst
        self.by_ratio = min(self.best, self.worst) > 0 and max(self.best, self.worst) > 4 * min(self.best, self.worst)

    def share(self, value: float) -> float:
        """0: the best, 1: as bad as the scale shows."""
        best, at, worst = map(math.log, (self.best, value, self.worst)) if self.by_ratio and value > 0 else (
            self.best, value, self.worst)
        return min(max((at - best) / (worst - best), 0.0), 1.0) if worst != best else 0.0

    def at(self, share: float) -> str:
        """The colour of a share."""
        return shade(round(share * SHADES), SHADES + 1)

    def words(self, share: float) -> str:
        """The value of a share."""
        value = (self.best * (self.worst / self.best) ** share if self.by_ratio else
                 self.best + share * (self.worst - self.best))
        return number(value, 2 if self.by_ratio else 3) + (" or worse" if share == 1 else "")


def _draw_map(axes: Axes, record: BaseRates, scale: _Scale, maps: Sequence[BaseRates]) -> None:
    rates = np.concatenate([one.rate for one in maps])
    log2_axis(axes, "x", record.batches, most=PANEL_TICKS if len(maps) > 1 else TICKS)
    log2_axis(axes, "y", rates.tolist())
    _two_to_the(axes.yaxis, *axes.get_ylim(), PANEL_TICKS if len(maps) > 1 else TICKS)
    lost = record.kind == TrialKind.DIVERGED
    look: Look = {"linestyle": "", "marker": "x", "color": MUTED, "markersize": 4.5, "markeredgewidth": 1}
    crowded = sum(len(one.rate) for one in maps) > MOST_MARKS
    axes.plot(record.global_batch[lost], record.rate[lost], **look, rasterized=crowded)
    if lost.any():
        explain(axes, "diverged", **look)
    shares = np.array([scale.share(value) if math.isfinite(value) else math.nan for value in record.value])
    marks: dict[tuple[str, int], list[int]] = {}            # of one look: drawn together
    for at in np.argsort(-shares, kind="stable"):           # the better lie on top
        if is_positive(record.rate[at]) and not lost[at] and shares[at] == shares[at]:
            marks.setdefault((scale.at(shares[at]), 5 if record.kind[at] == TrialKind.SHORT else 10), []).append(at)
    for (color, size), rows in marks.items():
        axes.plot(record.global_batch[rows], record.rate[rows], linestyle="", marker=CELL, markeredgewidth=0,
                  color=color, markersize=size, rasterized=crowded)
    best = list(record.best)
    frame: Look = {"linestyle": "", "marker": CELL, "markerfacecolor": "none", "markeredgecolor": INK,
                   "markersize": 13, "markeredgewidth": 1.2}
    axes.plot(record.global_batch[best], record.rate[best], **frame)
    explain(axes, "best of its batch", **{**frame, "markersize": 10})
    label_axes(axes, "global batch B (examples)",
               "learning rate / ((1 - momentum) B)" if record.effective else "learning rate / B")


def _two_to_the(axis: Axis, low: float, high: float, most: int) -> None:
    """Ticks at powers of 2, written as such."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    powers = range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))
    set_ticks(axis, [2.0 ** at for at in powers],
              lambda value: f"2{str(round(math.log2(value))).translate(SUPERSCRIPT)}")
