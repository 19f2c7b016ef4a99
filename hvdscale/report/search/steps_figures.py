"""Figures of steps to target against batch size: of one curve, and of families of them.

    figure = steps_figure([curve])
    figure = steps_figure(curves, kind=NORMALISED)          # models, optimizers, data sets, targets in one

Records are analysis.curves.Curve. Several panels make one figure, as in the paper.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...formatting.numbers import listed, number
from ..columns import MCCANDLISH, SHALLUE
from ..drawing import (BLUE, GREEN, HUES, INK, MARKERS, MUTED, PANEL_TICKS, TICKS, Figure, arrows_of, fraction,
                       is_named, is_positive, log2_axis, mark_estimate, shade)

STEPS, NORMALISED, EXAMPLES = "steps", "normalised", "examples"     # kinds of figures
LONGEST, LONGEST_TITLE = 44, 60     # letters of a label, of a line of a title
OWN_LINES = 3               # curves without an order that have each a line of perfect scaling of their own
ASIDE = 0.4                 # of the space between batches, over which the marks of several curves are spread

AXES = {STEPS: "steps to target S", EXAMPLES: "B S over its fewest"}
NAMES = {STEPS: "Steps to target", NORMALISED: "Steps to target, normalised",
         EXAMPLES: "Examples to target, normalised"}
FORMULAS = {
    STEPS: "S: fewest steps at the first evaluation that meets the target, over trials; perfect scaling: S1 B1 / B "
           "from the smallest batch that met it",
    NORMALISED: "S(B) / S(B0), B0: the smallest batch at which every curve of the panel met its target; perfect "
                "scaling: B0 / B",
    EXAMPLES: "B S(B) / min of B S(B) over the batches of a curve; perfect scaling: 1",
}
SAID = {
    STEPS: "along a dashed line the batch doubles and the steps halve",
    NORMALISED: "each curve is divided by its own steps at the smallest batch that all have; along the dashed line the "
                "batch doubles and the steps halve",
    EXAMPLES: "each curve is divided by the fewest examples that it needed at any batch; along the dashed line no "
              "example is wasted",
}


def steps_figure(curves: Sequence, *, kind=STEPS, labels: Sequence[str] | None = None, title="", name="",
                 ordered=False) -> Figure | None:
    """Steps to target against batch size, of one curve or of a family in one figure; None where no batch was met.

    kind     STEPS; NORMALISED: over the steps at the smallest batch that all met; EXAMPLES: B S over its fewest
    labels   one a curve; by default what tells them apart
    ordered  whether the curves have an order, which shades of one scale then show
    """
    panels, empty = _with_something([(title, curves, labels, ordered)], kind)
    if not panels:
        return None
    [(_, curves, labels, _)] = panels
    return _figure(panels, empty, kind, title or _title(curves, kind), name or f"{kind}-batch",
                   lambda axes: _draw(axes, curves, labels, kind, ordered))


def steps_panels(panels: Sequence[tuple], *, kind=STEPS, title="", name="") -> Figure | None:
    """As many panels of steps_figure: (title, curves, labels, ordered) each; labels None: what tells the curves apart.

    Panels without anything to show are left out; None where none is left.
    """
    panels, empty = _with_something(panels, kind)
    if not panels:
        return None
    if len(panels) == 1:
        title = f"{title or NAMES[kind]}\n{heading(panels[0][0])}"

    def draw(axes):
        for one, (panel, curves, labels, ordered) in zip(axes if len(panels) > 1 else [axes], panels):
            _draw(one, curves, labels, kind, ordered, len(panels) > 1)
            if len(panels) > 1:
                targets = {str(curve.target) for curve in curves}
                one.set_title("\n".join([plain(panel), *(map(plain, targets) if len(targets) == 1 else ())]))
    return _figure(panels, empty, kind, title or NAMES[kind], name or f"{kind}-batch-panels", draw)


def targets_figure(curves: Sequence, **rest) -> Figure | None:
    """The curves of one workload to several targets in one figure, easy to strict."""
    if len({curve.target for curve in curves}) < 2:
        return None
    curves = sorted(curves, key=lambda curve: -curve.target.value if curve.target.minimizes else curve.target.value)
    rest = {"title": f"Steps to several targets\n{heading(curves[0].workload)}", "name": "steps-batch-targets"} | rest
    return steps_figure(curves, labels=[str(curve.target) for curve in curves], ordered=True, **rest)


def labels_of(curves: Sequence) -> list[str]:
    """For each curve what tells it apart from the others: of data set, model, optimizer, examples and target."""
    parts = [_parts(curve) for curve in curves]
    differ = [at for at in range(len(parts[0])) if len({part[at] for part in parts}) > 1] if parts else []
    return [plain(" ".join(filter(None, (part[at] for at in differ))) or str(curve.target))
            for part, curve in zip(parts, curves)]


def _parts(curve):
    workload = curve.workload
    args = "" if workload.model_args in ("", "{}") else workload.model_args
    size = f"{workload.train_examples:,} examples" if workload.train_examples else ""
    return (workload.dataset, workload.model, args.replace('"', ""), workload.optimizer, size, str(curve.target))


def plain(text, longest=LONGEST) -> str:
    """A name as a figure can bear it: printable, no longer than that many letters, and in a legend whatever it is."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text))
    if len(text) > longest:
        text = f"{text[:longest // 2]}\N{HORIZONTAL ELLIPSIS}{text[-longest // 2 + 1:]}"
    return f" {text}" if text.startswith("_") else text          # matplotlib hides labels that begin with it


def heading(text) -> str:
    """A name as a line of a title can bear it."""
    return plain(text, LONGEST_TITLE)


def style_of(at, count, ordered=False):
    """(colour, marker) of the one at ``at`` of ``count`` curves."""
    if ordered or count > len(HUES):
        return shade(at, count), MARKERS[at % len(MARKERS)]
    return HUES[at], MARKERS[at]


def _with_something(panels, kind):
    """(the panels that have a point to show, their labels written out; what has none)."""
    found, empty = [], []
    for title, curves, labels, ordered in panels:
        labels = labels_of(curves) if labels is None else list(map(plain, labels))
        scales = _scales(curves, kind)
        kept = [(curve, label) for curve, label in zip(curves, labels) if _met(curve) and is_positive(scales(curve))]
        if kept:
            found.append((title, tuple(curve for curve, _ in kept), [label for _, label in kept], ordered))
            empty += [label for curve, label in zip(curves, labels) if label not in found[-1][2]]
        else:
            empty.append(plain(title or "all"))
    return found, empty


def _figure(panels, empty, kind, title, name, draw):
    curves = [curve for _, found, *_ in panels for curve in found]
    several = max(len(found) for _, found, *_ in panels) > 1
    crowded = max(len(found) for _, found, *_ in panels) > len(HUES)
    estimates = [point.steps for curve in curves for point in curve.points]
    unmet = any(not one.met for one in estimates)
    source = f"{SHALLUE}, section 4"
    said = [f"{NAMES[kind]}{',' * (kind != STEPS)} against the global batch, both axes in powers of 2; {SAID[kind]}."]
    if several:
        said.append(f"One colour and mark a curve{'' if crowded else '; marks at one batch are set apart sideways'}.")
    if not crowded:
        said.append(f"Bars are {curves[0].confidence:.0%} intervals of the median best of searches of as many trials"
                    + (", not of what they are divided by." if kind != STEPS else "."))
    if not crowded and any(one.low == 0 or one.met and math.isinf(one.high) for one in estimates):
        said.append("An arrow stands where an interval has no end.")
    if unmet and not crowded:
        said.append("An open triangle stands where the target was not met, at the steps that it must be above.")
    if not several and kind == STEPS:
        said.append("Vertical lines are the end of perfect scaling and the maximum useful batch, their bands the "
                    "intervals.")
        if any(map(_has_fit, curves)):
            said.append("The thin line is the curve S_min (1 + (B_crit / B)^p)^(1/p), fitted midway between the "
                        "evaluation that met the target and the one before.")
            source = f"{source}; {MCCANDLISH}"
    if len(panels) > 1 and not several:
        said.append(f"Targets: {listed(f'{title}: {found[0].target}' for title, found, *_ in panels)}.")
    if empty:
        said.append(f"Without a batch to show: {listed(empty)}.")
    keys = dict.fromkeys(key for curve in curves for point in curve.points for key in _keys(point))
    return Figure(name, title, " ".join(said), FORMULAS[kind], source, tuple(keys), draw, len(panels))


def _keys(point):
    """The trials that a point stands on: those that ended, its best first."""
    study = point.study
    rows = [row for row in (study.feasible & ~study.repeat).nonzero()[0].tolist() if row != point.best]
    return [study.key(row) for row in ([] if point.best is None else [point.best]) + rows]


def _title(curves, kind):
    first = curves[0]
    one_target = len({curve.target for curve in curves}) == 1
    what = "Steps" if kind != EXAMPLES else "Examples"
    tail = ", normalised" if kind != STEPS else ""
    if len({curve.workload for curve in curves}) == 1:
        return f"{what} to {first.target if one_target else 'several targets'}{tail}\n{heading(first.workload)}"
    return f"{what} to {first.target}{tail}" if one_target else f"{what} to target{tail}"


def _met(curve):
    return [point for point in curve.points if point.steps.met and point.steps.value > 0]


def _scales(curves, kind):
    """What the steps of a curve are multiplied with in this kind of figure; NaN: they cannot be shown."""
    if kind == STEPS:
        return lambda curve: 1.0
    if kind == EXAMPLES:
        return lambda curve: 1 / min((point.global_batch * point.steps.value for point in _met(curve)),
                                     default=math.nan)
    base = _common(curves)
    return lambda curve: next((1 / point.steps.value for point in _met(curve) if point.global_batch == base), math.nan)


def _common(curves):
    """The smallest batch at which all curves that met anything did; None: there is none."""
    batches = [{point.global_batch for point in _met(curve)} for curve in curves if _met(curve)]
    return min(set.intersection(*batches), default=None) if batches else None


def _draw(axes, curves, labels, kind, ordered, paneled=False):
    scales = _scales(curves, kind)
    shown = [(curve, [(point, _scaled(point, scales(curve), kind)) for point in curve.points]) for curve in curves]
    batches = sorted({point.global_batch for _, points in shown for point, _ in points})
    ends = batches[0], batches[-1]
    log2_axis(axes, "x", batches, most=PANEL_TICKS if paneled else TICKS)
    lines = _perfect(shown, kind, ends, ordered)
    _vertical_axis(axes, [one for _, points in shown for _, one in points], lines, kind)
    if len(curves) == 1 and kind == STEPS:
        _regimes(axes, curves[0], ends, paneled)
    for color, across, line in lines:
        axes.plot(across, line, "--", color=color, linewidth=1.1, alpha=0.75 if color != MUTED else 1)
    axes.plot([], [], "--", color=MUTED, linewidth=1.1, label="perfect scaling")
    gap = min((after / before for before, after in zip(batches, batches[1:])), default=2) ** ASIDE
    for at, ((curve, points), label) in enumerate(zip(shown, labels)):
        color, marker = (BLUE, "o") if len(curves) == 1 else style_of(at, len(curves), ordered)
        if len(curves) == 1:
            label = "examples to target" if kind == EXAMPLES else "steps to target"
        label = label if is_named(at, len(curves)) else None
        if len(curves) > len(HUES):         # a crowd: what lies where, and no more
            _draw_line(axes, points, 1, color, marker=marker, markersize=3, label=label, alpha=0.8)
        else:
            _draw_curve(axes, points, gap ** ((at + 0.5) / len(curves) - 0.5), color, marker, label)
    axes.set_xlabel("global batch B (examples)")
    axes.set_ylabel(AXES.get(kind) or f"steps / steps at B = {_common(curves):,}")


def _vertical_axis(axes, estimates, lines, kind):
    lowest = min(one.value for one in estimates if one.met) / 4
    seen = [one.value for one in estimates if one.met] + [one.beyond for one in estimates if not one.met]
    log2_axis(axes, "y", seen + [end for _, _, line in lines for end in line if end > lowest],
              [end for one in estimates for end in (one.low, one.high)],
              arrows=[arrow for one in estimates for arrow in arrows_of(one)])
    if kind != STEPS:
        axes.yaxis.set_major_formatter(fraction)


def _scaled(point, scale, kind):
    return point.steps.scaled(scale * (point.global_batch if kind == EXAMPLES else 1))


def _perfect(shown, kind, ends, ordered):
    """(colour, batches, values) of the lines of perfect scaling."""
    if kind == EXAMPLES:
        return [(MUTED, ends, [1, 1])]
    if kind == NORMALISED:
        base = _common([curve for curve, _ in shown])
        return [(MUTED, ends, [base / end for end in ends])]
    starts = []
    for at, (_, points) in enumerate(shown):
        first, one = next((point, one) for point, one in points if one.met and one.value > 0)
        starts.append((first.global_batch * one.value, first.global_batch, style_of(at, len(shown), ordered)[0]))
    starts = starts if len(starts) <= OWN_LINES and not ordered else [max(starts)]
    return [(MUTED if len(starts) == 1 else color, [batch, ends[1]], [start / batch, start / ends[1]])
            for start, batch, color in starts]


def _draw_curve(axes, points, aside, color, marker, label):
    _draw_line(axes, points, aside, color)
    top = axes.get_ylim()[1]
    for point, one in points:
        mark_estimate(axes, point.global_batch * aside, one, color, marker, label)
        if not point.trials and point.infeasible:
            look = {"linestyle": "", "marker": "x", "markersize": 6}
            axes.plot([point.global_batch * aside], [top], color=color, clip_on=False, **look)
            axes.plot([], [], color=MUTED, label="not met: all diverged", **look)


def _draw_line(axes, points, aside, color, **look):
    """A line through the batches that met, broken where one did not."""
    values = [one.value if one.met and one.value > 0 else math.nan for _, one in points]
    axes.plot([point.global_batch * aside for point, _ in points], values, color=color, linewidth=1, **look)


def _regimes(axes, curve, ends, paneled):
    """The fitted curve, the end of perfect scaling and the maximum useful batch, each with its interval."""
    regimes = curve.regimes
    for color, where, what in ((INK, regimes.perfect_until, "end of perfect scaling"),
                               (GREEN, regimes.maximum_useful, "maximum useful batch")):
        if where.value is not None:
            low, high = axes.get_xlim()
            if where.low < where.high:              # an interval is known
                axes.axvspan(max(low, where.low), min(high, where.high), color=color, alpha=0.07, linewidth=0)
                axes.fill_between([], [], color=MUTED, alpha=0.2, linewidth=0, label="bands: their intervals")
            axes.axvline(where.value, color=color, linestyle=":", linewidth=1.2,
                         label=what if paneled else f"{what}: {where.value:,}")
    if _has_fit(curve):
        ratio = ends[1] / ends[0]
        batches = [ends[0] * ratio ** (at / 60) for at in range(61)]
        axes.plot(batches, [regimes.fit.steps(batch) for batch in batches], color=MUTED, linewidth=0.9,
                  label="fit" if paneled else f"fit: S_min {number(regimes.fit.s_min.value, 2)}, B_crit "
                  f"{number(regimes.fit.b_crit.value, 2)}")


def _has_fit(curve):
    """Whether both ends of the fitted curve are seen, so that there is a curve to draw."""
    return curve.regimes.fit is not None and is_positive(curve.regimes.fit.b_crit.value)
