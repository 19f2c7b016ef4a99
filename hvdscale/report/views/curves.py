"""Figures of searches: steps to target against batch size, of one curve and families; the best metaparameters by
batch and the trials in their space; every kind of figure of one workload's curves, or of several workloads'."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ...analysis.search import (DIVERGED, EFFECTIVE, LEARNING_RATE, MISSED, MOMENTUM, REACHED, STOPPED, BestOfTrials,
                                BestPoint, Space, best_of_trials, best_points, is_varied, many_valued, split_by)
from ...analysis.budgets import Budget, best_under, both_readings
from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import Curve, CurvePoint, Regimes, curve_of
from ...analysis.defaults import USEFUL_WITHIN, Options
from ...analysis.intervals import Estimate
from ...analysis.studies import Study, group_by
from ...formatting.numbers import counted, exact, number, round_number
from ...target import Target
from ..document import section_name, slug
from ..drawing import (AMBER, ASIDE, BLUE, GREEN, HUES, INK, MARKERS, MOST_MARKS, MUTED, ORANGE, PANEL_TICKS, TICKS,
                       Axes, Figure, Look, arrows, decimal_ticks, draw_arrow, draw_line, draw_panels, ends_of, explain,
                       fraction, heading, is_named, is_positive, label_axes, log2_axis, mark_estimate, plain, shade,
                       spread_evenly, value_axis)
from ..table import as_shown, keys_of
from ..texts import SEARCH
from .budgets import base_rate_figure, best_under_figure

STEPS, NORMALISED, EXAMPLES = "steps", "normalised", "examples"     # kinds of figures
OWN_LINES = 3               # curves without an order that have each a line of perfect scaling of their own
AXES = {STEPS: "steps to target S", EXAMPLES: "examples to target / the fewest"}
ScaledPoint = tuple[CurvePoint, Estimate]                   # and its steps as this kind of figure shows them
PerfectLine = tuple[str, Sequence[float], Sequence[float]]  # colour, batches, values
EARLIER = (64, 16, 4, 1)        # the largest budget of steps and of epochs that every batch has, over these
MOST_PANELS = 9
BUDGET_BATCHES = 3          # panels in a row of budgets_figure
SPARE = 2                   # the budgets are this many times what the middle batch's best trial needed
LEAST = 3                   # trials in a panel
Values = TypeVar("Values", float, np.ndarray)
MARKS: tuple[tuple[int, Look, str], ...] = (     # kind, look, and its name
    (DIVERGED, {"marker": "x", "color": MUTED, "markersize": 4.5, "markeredgewidth": 1.1}, "diverged"),
    (STOPPED, {"marker": ".", "color": MUTED, "markersize": 7, "markeredgewidth": 0}, "stopped by the search"),
    (MISSED, {"marker": "^", "markeredgecolor": ORANGE, "markerfacecolor": "none", "markersize": 5.5}, "did not meet"),
    (REACHED, {"marker": "o", "color": BLUE, "markersize": 5.5, "markeredgewidth": 0}, "met the target"))


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
    workloads, targets = ({getattr(curve, name) for curve in panels[0].curves} for name in ("workload", "target"))
    own = SEARCH.say("curves", examples=kind == EXAMPLES, target=len(targets) == 1 and min(targets, key=str),
                     workload=len(workloads) == 1 and heading(min(workloads)), scaled=kind != STEPS)
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
    lowest = min(estimate.value for estimate in estimates if estimate.met) / 4
    seen = [one.value for one in estimates if one.met] + [one.beyond for one in estimates if not one.met]
    log2_axis(axes, "y", seen + [end for _, _, line in lines for end in line if end > lowest], ends_of(estimates),
              arrows=arrows(estimates))
    if kind != STEPS:
        axes.yaxis.set_major_formatter(fraction)
    if len(curves) == 1 and kind == STEPS:
        mark_regimes(axes, curves[0].regimes, paneled)
        if fit := _drawn_fit(curves[0]):
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


# What searches found

def best_panels(panels: Iterable[tuple[str, Curve]], what: str = EFFECTIVE, *, title: str = "",
                name: str = "") -> Figure | None:
    """The best value of a metaparameter at each batch, and the heuristics, a panel (title, curve) each; without those
    of fewer than two batches, None where none is left."""
    found = [(panel, curve, [point for point in best_points(curve, what) if is_positive(_on_axis(point.value, what))])
             for panel, curve in panels]
    if not (found := [(panel, curve, points) for panel, curve, points in found if len(points) > 1]):
        return None
    most = PANEL_TICKS if len(found) > 1 else TICKS
    word, axis = (SEARCH.words(kind).get(what, what) for kind in ("metaparameter", "axis"))
    targets = {str(curve.target) for _, curve, _ in found}
    return SEARCH.figure("best", draw_panels(lambda axes, points: _draw_best(axes, points, what, word, axis, most),
                                             [points for *_, points in found], [panel for panel, *_ in found]),
                         keys_of(point for *_, points in found for point in points), len(found),
                         name=name or f"best-{slug(what)}-panels", title=title or f"Best {word} by batch",
                         panel=found[0][0] if len(found) == 1 else "", what=word, within=USEFUL_WITHIN,
                         momentum=what == MOMENTUM, target=min(targets) if len(targets) == 1 else "",
                         formula=SEARCH.words("formula").get(what, f"{axis} of the best trial"))


def _on_axis(value: Values, name: str) -> Values:
    """Momentum is shown as its distance from 1."""
    return 1 - value if name == MOMENTUM else value


def _draw_best(axes: Axes, points: Sequence[BestPoint], what: str, word: str, axis: str, most: int) -> None:
    first, ratio = points[0], points[-1].global_batch / points[0].global_batch
    log2_axis(axes, "x", [point.global_batch for point in points], most=most)
    heuristics = [] if what == MOMENTUM else [("--", "linear heuristic", first.value * ratio),
                                              (":", "square root heuristic", first.value * math.sqrt(ratio))]
    for dashes, label, end in heuristics:
        draw_line(axes, ((first.global_batch, first.value), (points[-1].global_batch, end)), MUTED, dashes, 1.3,
                  label=label)
    values = [_on_axis(point.value, what) for point in points]
    log2_axis(axes, "y", values, [*(_on_axis(end, what) for point in points for end in (point.low, point.high)),
                                  *(end for *_, end in heuristics)], most=most)
    decimal_ticks(axes.yaxis, axes.get_ylim(), most)
    axes.plot([point.global_batch for point in points], values, marker="o", color=BLUE, linewidth=1, markersize=5.5,
              markeredgewidth=0, label=f"best {word}")
    for point in points:
        ends = [(point.global_batch, _on_axis(end, what)) for end in (point.low, point.high)]
        draw_line(axes, ends, BLUE, width=1.4, alpha=0.6)
    label_axes(axes, "global batch B (examples)", axis)


def trials_figure(curve: Curve) -> Figure | None:
    """The trials of each batch of a curve by learning rate and a second metaparameter, up to MOST_PANELS batches."""
    y = second(curve)
    panels = [(f"B = {point.global_batch:,}", point.study, curve.target, math.inf)
              for point in _spread(curve, y, MOST_PANELS)]
    return scatter(panels, y, title=f"Trials to {curve.target}\n{heading(curve.workload)}")


def budgets_figure(curve: Curve, *, steps: float | None = None, epochs: float | None = None, title: str = ""
                   ) -> Figure | None:
    """The same under a budget of steps, above, and one of epochs, below, at a small, a middle and a large batch.

    By default SPARE times what the best trial of the middle batch needed, to two digits, so that there the two are
    about one; None where the size of an epoch is not known, or no batch met the target.
    """
    y, examples = second(curve), curve.workload.train_examples
    points = _spread(curve, y, BUDGET_BATCHES)
    middle = next((point for point in points[len(points) // 2:] + points if point.steps.met and point.steps.value > 0),
                  None)
    if middle is not None and examples:
        steps = steps or math.ceil(float(f"{SPARE * middle.steps.value:.2g}"))
        epochs = epochs or float(f"{SPARE * middle.steps.value * middle.global_batch / examples:.2g}")
    if y is None or len(points) < 2 or not examples or steps is None or epochs is None:
        return None
    counted_epochs = counted(1, "epoch") if epochs == 1 else f"{epochs:,.4g} epochs"
    panels = [(f"B = {point.global_batch:,}, {exact(steps)} steps", point.study, curve.target, steps)
              for point in points]
    panels += [(f"B = {point.global_batch:,}, {counted_epochs}", point.study, curve.target,
                epochs * examples / point.global_batch) for point in points]
    title = title or f"Trials to {curve.target} under budgets of steps and of epochs\n{heading(curve.workload)}"
    return scatter(panels, y, title=title, name="trials-budgets")


def second(curve: Curve) -> str | None:
    """The metaparameter to go with the learning rate: the momentum where it was searched; None: there is none."""
    names = [name for name in many_valued([point.study for point in curve.searched]) if name != LEARNING_RATE]
    return MOMENTUM if MOMENTUM in names else next(iter(names), None)


def _spread(curve: Curve, y: str | None, most: int) -> list[CurvePoint]:
    """At most that many points with trials to show, evenly spread, the first and the last among them."""
    def placed(study: Study) -> int:
        names = [LEARNING_RATE] if y is None else [LEARNING_RATE, y]
        if any(name not in study.metaparameters for name in names):
            return 0
        known = np.isfinite([study.metaparameters[name] for name in names]).all(0)
        return int(((study.feasible | study.infeasible) & ~study.repeat & known).sum())
    return spread_evenly([point for point in curve.searched if placed(point.study) >= LEAST], most)


def scatter(panels: Iterable[tuple[str, Study, Target, float]], y: str | None, *, title: str,
            name: str = "trials") -> Figure | None:
    """Trials by learning rate and a second metaparameter y, or (None) the steps to the target, where those that did not
    meet it were last seen: (title, study, target, most steps) a panel. None where no panel has a trial."""
    found = [(plain(panel), Space(study, target, LEARNING_RATE, y or LEARNING_RATE, most))
             for panel, study, target, most in panels]
    if not (found := [(panel, space) for panel, space in found if len(space.x)]):
        return None
    titles, spaces = [panel for panel, _ in found], [space for _, space in found]
    return SEARCH.figure(
        "trials", draw_panels(lambda axes, space: _draw_space(axes, space, spaces, y), spaces, titles),
        keys_of(spaces), len(found), name=name, title=title,
        panel=titles[0] if len(found) == 1 else "", second=y.replace("_", " ") if y else "", momentum=y == MOMENTUM)


def _draw_space(axes: Axes, space: Space, spaces: Sequence[Space], y: str | None) -> None:
    most = PANEL_TICKS if len(spaces) > 1 else TICKS
    across, up = space.x, space.steps if y is None else _on_axis(space.y, y)
    every_x = np.concatenate([one.x for one in spaces])
    every_y = np.concatenate([one.steps if y is None else _on_axis(one.y, y) for one in spaces])
    value_axis(axes, "x", every_x, most)
    if y is None:
        log2_axis(axes, "y", every_y[every_y > 0].tolist(), most=most)
    else:
        value_axis(axes, "y", every_y, most)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if y == MOMENTUM and min(left, low) > 0:        # along which learning rate / (1 - momentum) is a power of 10
        pale: Look = {"color": MUTED, "alpha": 0.35, "linewidth": 0.7, "zorder": 1}
        for power in range(math.floor(math.log10(left / high)), math.ceil(math.log10(right / low)) + 1):
            axes.plot([left, right], [left / 10 ** power, right / 10 ** power], **pale)
        explain(axes, "equal effective rate", **pale, linestyle="-")
    for kind, look, label in MARKS:
        at = space.kind == kind
        axes.plot(across[at], up[at], linestyle="", **look, rasterized=len(every_x) > MOST_MARKS)
        if any((one.kind == kind).any() for one in spaces):
            explain(axes, label, **look)
    if space.best is not None:
        star: Look = {"marker": "*", "markersize": 12, "markerfacecolor": AMBER, "markeredgecolor": INK,
                      "markeredgewidth": 0.9, "linestyle": ""}
        axes.plot(across[space.best], up[space.best], **star, zorder=4)
        explain(axes, "fewest steps", **{**star, "markersize": 9})
    names = SEARCH.words("axis")
    label_axes(axes, names[LEARNING_RATE], "steps to target S" if y is None else names.get(y, y.replace("_", " ")))


def best_of_figure(found: Sequence[BestOfTrials]) -> Figure | None:
    """The median best of n trials against n, one line a batch; None where none has two points."""
    if not (found := [one for one in found if sum(best.known and math.isfinite(best.low) for best in one.curve) > 1]):
        return None
    objective, target = found[0].objective, found[0].target
    what = "steps to target" if objective == "steps" else f"best {objective}"
    ranged = [as_shown(one.best) for one in found if one.best is not None and one.best.met]
    above: Look = {"linestyle": "", "marker": "^", "markersize": 5, "markerfacecolor": "none", "markeredgewidth": 1}

    def draw(axes: Axes) -> None:
        values = [one.low for trials in found for one in trials.curve if math.isfinite(one.low)]
        log2_axis(axes, "x", [one.n for trials in found for one in trials.curve])
        if min(values) > 0:
            log2_axis(axes, "y", values, ends_of(ranged), arrows=arrows(ranged))
        for at, trials in enumerate(found):
            color, known = shade(at, len(found)), [one for one in trials.curve if one.known and math.isfinite(one.low)]
            unknown = [one for one in trials.curve if not one.known and math.isfinite(one.low)]
            draw_line(axes, ((one.n, one.low) for one in known), color, "o-", markersize=4, markeredgewidth=0,
                      label=f"B = {trials.global_batch:,}" if is_named(at, len(found)) else None)
            if trials.best is not None and trials.best.met:
                mark_estimate(axes, trials.curve[-1].n, as_shown(trials.best), color, "o", None)
            axes.plot([one.n for one in unknown], [one.low for one in unknown], color=color, **above)
            if unknown:
                explain(axes, "not known: above", color=MUTED, **above)
        label_axes(axes, "trials n", f"{what}, median best of n")
    of_steps = objective == "steps"
    return SEARCH.figure("best-of-n", draw, tuple(key for trials in found for key in trials.keys), target=target,
                         name="best-of-n" if of_steps else f"best-of-n-{objective.replace('/', '-')}",
                         what=f"fewest {what}" if of_steps else what,
                         confidence=found[0].confidence if ranged else None)


def workload_figures(curves: Sequence[Curve], options: Options = Options(), shared: bool = True,
                     asked: Sequence[Budget] = ()) -> Iterator[Figure | None]:
    """Every kind of figure of the curves of one workload, one a target, the main one first; None: without its data.

    shared   also those that are the same whichever target of its metric is the main one
    asked    budgets; else round ones in steps and in epochs that every batch bears
    """
    main = curves[0]
    yield curves_figure([main])
    yield curves_figure([main], kind=EXAMPLES)
    yield targets_figure(curves)
    studies, column, minimizes = [point.study for point in main.searched], main.target.column, main.target.minimizes
    for name in sorted({name for study in studies for name in study.metaparameters}):
        yield split_figure(main, name, options)
    for what in (LEARNING_RATE, MOMENTUM, EFFECTIVE):
        if what != MOMENTUM or is_varied(studies, MOMENTUM):
            yield best_panels([(heading(main.workload), main)], what, name=f"best-{slug(what)}")
    yield trials_figure(main)
    of_unit = group_by(sorted(asked), lambda budget: budget.unit)
    steps, epochs = (of_unit[unit][-1].amount if unit in of_unit else None for unit in ("steps", "epochs"))
    yield budgets_figure(main, steps=steps, epochs=epochs)
    yield best_of_figure([best_of_trials(study, main.target, options.confidence) for study in studies])
    if shared:
        maps = both_readings(studies, column, minimizes)
        groups = {one.budget.unit: _earlier(one.budget) for one in maps[::-1] if one and one.budget}
        groups |= {unit: of_unit[unit] for unit in dict.fromkeys(budget.unit for budget in asked)}
        yield best_under_figure(*(best_under(studies, column, minimizes, budgets, options.confidence)
                                  for budgets in groups.values()))
        yield base_rate_figure(*maps)


def _earlier(budget: Budget) -> list[Budget]:
    """Round budgets up to this one, of whole steps."""
    least = 1.0 if budget.unit == "steps" else 0.0
    amounts = [max(least, round_number(budget.amount / share)) for share in EARLIER if share > 1]
    return [Budget(amount, budget.unit) for amount in dict.fromkeys((*amounts, budget.amount))
            if amount <= budget.amount]


def split_figure(curve: Curve, by: str, options: Options, title: str = "") -> Figure | None:
    """The curve once for each value of a metaparameter that was a choice."""
    word = by.replace("_", " ")
    found = {f"{word} {value:g}": curve_of(part, curve.target, options)
             for value, part in split_by([point.study for point in curve.searched], by).items()}
    curves = {label: one for label, one in found.items() if one is not None}
    return curves_figure(list(curves.values()), labels=list(curves), ordered=True, name=f"{STEPS}-batch-{slug(by)}",
                         title=title or f"Steps to {curve.target} by {word}\n{heading(curve.workload)}")


def family_figures(curves: Sequence[Curve]) -> Iterator[Figure | None]:
    """Curves of several workloads that differ in one thing, to one target, raw and normalised; data sets, each to its
    own target, only normalised."""
    blank: dict[str, dict[str, Any]] = {
        "dataset": {"dataset": "", "train_examples": 0}, "train_examples": {"train_examples": 0},
        "model": {"model": "", "model_args": ""}, "optimizer": {"optimizer": ""}}
    for attribute, title in SEARCH.words("family").items():
        of_data = attribute == "dataset"
        families = group_by(curves, lambda curve: (
            replace(curve.workload, **blank[attribute]), None if of_data else curve.target))
        for alike, family in families.items():
            if len({getattr(curve.workload, attribute) for curve in family}) < 2:
                continue
            name = f"{attribute.replace('_', '-')}s-{section_name(*alike)}"
            family = sorted(family, key=lambda curve: getattr(curve.workload, attribute))
            said = f"{title}: " + ("each to its target" if of_data else plain(family[0].target))
            for kind in (NORMALISED, EXAMPLES) if of_data else (STEPS, NORMALISED):
                yield curves_figure(family, kind=kind, title=said + ("" if kind == STEPS else ", normalised"),
                                    name=f"{name}-{kind}", ordered=attribute == "train_examples")
