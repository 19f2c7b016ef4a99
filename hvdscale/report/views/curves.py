"""Figures of steps to target against batch size, of searches: one curve, and families of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import Curve, CurvePoint, Regimes
from ...analysis.intervals import Estimate
from ...formatting.numbers import number
from ..drawing import (BLUE, GREEN, HUES, INK, MARKERS, MUTED, PANEL_TICKS, TICKS, Axes, Figure, Look, arrows,
                       draw_arrow, draw_line, draw_panels, ends_of, explain, fraction, is_named, is_positive,
                       label_axes, log2_axis, mark_estimate, shade)
from ..table import as_shown
from ..texts import SEARCH

STEPS, NORMALISED, EXAMPLES = "steps", "normalised", "examples"     # kinds of figures
LONGEST, LONGEST_TITLE = 44, 60     # letters of a label, of a line of a title
OWN_LINES = 3               # curves without an order that have each a line of perfect scaling of their own
ASIDE = 0.4                 # of the space between batches, over which the marks of several curves are spread
AXES = {STEPS: "steps to target S", EXAMPLES: "examples to target / the fewest"}
ScaledPoint = tuple[CurvePoint, Estimate]                   # and its steps as this kind of figure shows them
PerfectLine = tuple[str, Sequence[float], Sequence[float]]  # colour, batches, values


@dataclass(frozen=True, eq=False)
class CurvePanel:
    """Curves in one pair of axes; ordered: shades of one scale show it; labels, by default what distinguishes them."""

    title: str
    curves: Sequence[Curve]
    labels: Sequence[str] | None = None
    ordered: bool = False
    base: int | None = None         # the smallest batch at which all curves that met anything did; None: there is none


def curves_figure(curves: Sequence[Curve], *, kind: str = STEPS, labels: Sequence[str] | None = None, title: str = "",
                  name: str = "", ordered: bool = False) -> Figure | None:
    """Steps to target against batch size, of one curve or of a family in one figure; None where no batch was met. kind:
    STEPS; NORMALISED: over the steps at the smallest batch that all met; EXAMPLES: B S over its fewest."""
    panels, empty = _with_something([CurvePanel(title, curves, labels, ordered)], kind)
    if not panels:
        return None
    first, one_workload = panels[0].curves[0], len({curve.workload for curve in panels[0].curves}) == 1
    goal = "several targets" if one_workload else "target"
    if len({curve.target for curve in panels[0].curves}) == 1:
        goal = str(first.target)
    own = f"{'Examples' if kind == EXAMPLES else 'Steps'} to {goal}{'' if kind == STEPS else ', normalised'}"
    own += f"\n{heading(first.workload)}" if one_workload else ""
    return _figure(panels, empty, kind, title or own, name or f"{kind}-batch")


def curve_panels(panels: Iterable[CurvePanel], title: str, *, kind: str = STEPS) -> Figure | None:
    panels, empty = _with_something(panels, kind)
    return _figure(panels, empty, kind, title if len(panels) > 1 else f"{title}\n{heading(panels[0].title)}",
                   f"{kind}-batch-panels") if panels else None


def targets_figure(curves: Sequence[Curve]) -> Figure | None:
    """The curves of one workload to several targets in one figure, easy to strict."""
    if len({curve.target for curve in curves}) < 2:
        return None
    curves = sorted(curves, key=lambda curve: -curve.target.value if curve.target.minimizes else curve.target.value)
    return curves_figure(curves, labels=[str(curve.target) for curve in curves], ordered=True,
                         title=f"Steps to several targets\n{heading(curves[0].workload)}", name="steps-batch-targets")


def labels_of(curves: Sequence[Curve]) -> list[str]:
    """For each curve what distinguishes it from the others: of data set, model, optimizer, examples and target."""
    parts = []
    for curve in curves:
        workload = curve.workload
        args = "" if workload.model_args in ("", "{}") else workload.model_args.replace('"', "")
        size = f"{workload.train_examples:,} examples" if workload.train_examples else ""
        parts.append((workload.dataset, workload.model, args, workload.optimizer, size, str(curve.target)))
    differ = [at for at, values in enumerate(zip(*parts)) if len({*values}) > 1]
    return [plain(" ".join(filter(None, (part[at] for at in differ))) or part[-1]) for part in parts]


def plain(text: object, longest: int = LONGEST) -> str:
    """A name as a figure can show it: printable, no longer than that many letters, and in a legend whatever it is."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text))
    if len(text) > longest:
        text = f"{text[:longest // 2]}\N{HORIZONTAL ELLIPSIS}{text[-longest // 2 + 1:]}"
    return f" {text}" if text.startswith("_") else text          # matplotlib hides labels that begin with it


def heading(text: object) -> str:
    return plain(text, LONGEST_TITLE)


def style_of(at: int, count: int, ordered: bool = False) -> tuple[str, str]:
    """(colour, marker) of the one at ``at`` of ``count`` curves."""
    if ordered or count > len(HUES):
        return shade(at, count), MARKERS[at % len(MARKERS)]
    return HUES[at], MARKERS[at]


def _with_something(panels: Iterable[CurvePanel], kind: str) -> tuple[list[CurvePanel], list[str]]:
    """(the panels that have a point to show, their labels written out; what has none)."""
    found, empty = [], []
    for panel in panels:
        labels = labels_of(panel.curves) if panel.labels is None else list(map(plain, panel.labels))
        batches = [{point.global_batch for point in _met(curve)} for curve in panel.curves if _met(curve)]
        base = min(set.intersection(*batches), default=None) if batches else None
        kept = [(curve, label) for curve, label in zip(panel.curves, labels)
                if _met(curve) and is_positive(_scale(curve, kind, base))]
        named = [label for _, label in kept]
        if kept:
            found.append(replace(panel, curves=[curve for curve, _ in kept], labels=named, base=base))
        empty += [label for label in labels if label not in named] if kept else [plain(panel.title or "all")]
    return found, empty


def _figure(panels: Sequence[CurvePanel], empty: Sequence[str], kind: str, title: str, name: str) -> Figure:
    curves = [curve for panel in panels for curve in panel.curves]
    estimates = [as_shown(point.steps) for curve in curves for point in curve.points]
    most = max(len(panel.curves) for panel in panels)
    few, alone = most <= len(HUES), most == 1 and kind == STEPS
    keys: dict[tuple[str, int], None] = {}
    for point in (point for curve in curves for point in curve.searched):       # those that ended, its best first
        ended = (point.study.feasible & ~point.study.repeat).nonzero()[0].tolist()
        keys |= dict.fromkeys([*point.keys, *map(point.study.key, ended)])
    titles = []
    for panel in panels:
        targets = {str(curve.target) for curve in panel.curves}
        titles.append("\n".join(map(plain, [panel.title, *(targets if len(targets) == 1 else ())])))
    return SEARCH.figure(
        "steps", draw_panels(lambda axes, panel: _draw(axes, panel, kind, len(panels) > 1), panels, titles),
        tuple(keys), len(panels), name=name, title=title, scaled=kind != STEPS, examples=kind == EXAMPLES,
        several=most > 1, few=few, confidence=curves[0].confidence,
        arrows=few and any(one.low == 0 or one.met and math.isinf(one.high) for one in estimates),
        unmet=few and any(not one.met for one in estimates), regimes=alone, fit=alone and any(map(_drawn_fit, curves)),
        targets=[f"{panel.title}: {panel.curves[0].target}" for panel in panels] if len(panels) > 1 == most else [],
        empty=list(empty))


def _met(curve: Curve) -> list[CurvePoint]:
    return [point for point in curve.searched if point.steps.met and point.steps.value > 0]


def _scale(curve: Curve, kind: str, base: int | None) -> float:
    """What the steps of a curve are multiplied with in this kind of figure; NaN: they cannot be shown."""
    if kind == STEPS:
        return 1.0
    if kind == EXAMPLES:
        return 1 / min(point.global_batch * point.steps.value for point in _met(curve))
    return next((1 / point.steps.value for point in _met(curve) if point.global_batch == base), math.nan)


def _draw(axes: Axes, panel: CurvePanel, kind: str, paneled: bool) -> None:
    curves, ordered, base = panel.curves, panel.ordered, panel.base
    shown = [[(point, as_shown(point.steps).scaled(
        _scale(curve, kind, base) * (point.global_batch if kind == EXAMPLES else 1))) for point in curve.searched]
        for curve in curves]
    estimates = [one for points in shown for _, one in points]
    batches = sorted({point.global_batch for points in shown for point, _ in points})
    log2_axis(axes, "x", batches, most=PANEL_TICKS if paneled else TICKS)
    lines = _perfect(shown, kind, (batches[0], batches[-1]), ordered, base)
    lowest = min(one.value for one in estimates if one.met) / 4
    seen = [one.value for one in estimates if one.met] + [one.beyond for one in estimates if not one.met]
    log2_axis(axes, "y", seen + [end for _, _, line in lines for end in line if end > lowest], ends_of(estimates),
              arrows=arrows(estimates))
    if kind != STEPS:
        axes.yaxis.set_major_formatter(fraction)
    if len(curves) == 1 and kind == STEPS:
        mark_regimes(axes, curves[0].regimes, paneled)
        fit = _drawn_fit(curves[0])
        if fit:
            along = [batches[0] * (batches[-1] / batches[0]) ** (at / 60) for at in range(61)]
            fitted = f"fit: S_min {number(fit.s_min.value, 2)}, B_crit {number(fit.b_crit.value, 2)}"
            draw_line(axes, ((batch, fit.steps(batch)) for batch in along), MUTED, width=0.9,
                      label="fit" if paneled else fitted)
    for color, across, line in lines:
        axes.plot(across, line, "--", color=color, linewidth=1.1, alpha=0.75 if color != MUTED else 1)
    explain(axes, "perfect scaling", linestyle="--", color=MUTED, linewidth=1.1)
    gap = min((after / before for before, after in zip(batches, batches[1:])), default=2) ** ASIDE
    labels = panel.labels or ()
    if len(curves) == 1:
        labels = ["examples to target" if kind == EXAMPLES else "steps to target"]
    for at, (points, name) in enumerate(zip(shown, labels)):
        color, marker = (BLUE, "o") if len(curves) == 1 else style_of(at, len(curves), ordered)
        label = name if is_named(at, len(curves)) else None
        if len(curves) > len(HUES):         # a crowd: what lies where, and no more
            _draw_line(axes, points, 1, color, marker=marker, markersize=3, label=label, alpha=0.8)
        else:
            _draw_curve(axes, points, gap ** ((at + 0.5) / len(curves) - 0.5), color, marker, label)
    label_axes(axes, "global batch B (examples)", AXES.get(kind) or f"steps / steps at B = {base:,}")


def _drawn_fit(curve: Curve) -> CriticalBatchFit | None:
    """The fitted curve, where both of its ends are seen, so that there is one to draw."""
    fit = curve.regimes.fit
    return fit if fit is not None and is_positive(fit.b_crit.value) else None


def _perfect(shown: Sequence[Sequence[ScaledPoint]], kind: str, ends: tuple[int, int], ordered: bool,
             base: int | None) -> list[PerfectLine]:
    """The lines of perfect scaling; normalised curves share the batch ``base``."""
    if kind == EXAMPLES:
        return [(MUTED, ends, [1, 1])]
    if kind == NORMALISED and base:
        return [(MUTED, ends, [base / end for end in ends])]
    starts = []
    for at, points in enumerate(shown):
        first, one = next((point, one) for point, one in points if one.met and one.value > 0)
        starts.append((first.global_batch * one.value, first.global_batch, style_of(at, len(shown), ordered)[0]))
    starts = starts if len(starts) <= OWN_LINES and not ordered else [max(starts)]
    return [(MUTED if len(starts) == 1 else color, [batch, ends[1]], [start / batch, start / ends[1]])
            for start, batch, color in starts]


def _draw_curve(axes: Axes, points: Sequence[ScaledPoint], aside: float, color: str, marker: str, label: str | None
                ) -> None:
    _draw_line(axes, points, aside, color)
    lost: Look = {"linestyle": "", "marker": "x", "markersize": 6}
    for point, one in points:
        mark_estimate(axes, point.global_batch, one, color, marker, label, aside=aside)
        if not point.trials and point.infeasible:
            axes.plot([point.global_batch * aside], axes.get_ylim()[1:], color=color, clip_on=False, **lost)
            explain(axes, "not met: all diverged", color=MUTED, **lost)


def _draw_line(axes: Axes, points: Sequence[ScaledPoint], aside: float, color: str, **look: Any) -> None:
    values = [one.value if one.met and one.value > 0 else math.nan for _, one in points]
    axes.plot([point.global_batch * aside for point, _ in points], values, color=color, linewidth=1, **look)


def mark_regimes(axes: Axes, regimes: Regimes, paneled: bool = False, intervals: bool = True,
                 names: tuple[str, str] = ("end of perfect scaling", "maximum useful batch")) -> None:
    """Vertical lines at the end of perfect scaling and the maximum useful batch, with bands for known intervals; an
    arrow where that is the largest batch that ran, as it may lie at a larger one."""
    for color, where, what, up in ((INK, regimes.perfect_until, names[0], 0.9),
                                   (GREEN, regimes.maximum_useful, names[1], 0.97)):
        if where.value is None:
            continue
        (low, high), is_last = axes.get_xlim(), where.largest
        label = what if paneled else f"{what}: {'≥ ' * is_last}{where.value:,}"
        if intervals and where.low < where.high:
            axes.axvspan(max(low, where.low), min(high, where.high), color=color, alpha=0.07, linewidth=0)
            axes.fill_between([], [], color=MUTED, alpha=0.2, linewidth=0, label="bands: their intervals")
        if is_last:
            draw_arrow(axes, where.value, up, color, 0, 1, "axes fraction")
            explain(axes, label, marker=">", color=color, markersize=5)
        else:
            axes.axvline(where.value, color=color, linestyle=":", linewidth=1.2, label=label)
