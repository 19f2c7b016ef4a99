"""Figures of what a search found: the best metaparameters by batch, and the trials in their space.

    figure = best_figure([curve], EFFECTIVE)            # with the linear and the square root heuristic
    figure = trials_figure(curve)                       # every batch of a curve a panel
    figure = budgets_figure(curve)                      # under a budget of steps and one of epochs
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...analysis.best_points import (DIVERGED, EFFECTIVE, LEARNING_RATE, MOMENTUM, REACHED, STOPPED, BestOfTrials,
                                     BestPoint, Space, best_points, many_valued, space_of)
from ...analysis.curves import Curve, CurvePoint
from ...analysis.regimes import USEFUL_WITHIN
from ...analysis.search import BestOf
from ...analysis.studies import Study
from ...analysis.trials import Workload
from ...formatting.numbers import counted, exact, percent
from ...target import Target
from ..columns import SHALLUE
from ..drawing import (AMBER, BLUE, INK, MOST_MARKS, MUTED, ORANGE, PANEL_TICKS, TICKS, Figure, Look, arrows_of,
                       decimal_ticks, fraction, is_named, is_positive, log2_axis, mark_estimate, set_ticks, shade)
from ..file_names import slug
from .curve_figures import heading, labels_of, plain, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

TITLES = {LEARNING_RATE: "learning rate", MOMENTUM: "momentum", EFFECTIVE: "effective learning rate"}
AXES = {LEARNING_RATE: "learning rate \N{GREEK SMALL LETTER ETA}",
        MOMENTUM: "1 - momentum", EFFECTIVE: "learning rate / (1 - momentum)"}
FORMULAS = {EFFECTIVE: "\N{GREEK SMALL LETTER ETA} / (1 - momentum)"}
MOST_PANELS = 9
BUDGET_BATCHES = 3          # panels in a row of budgets_figure
SPARE = 2                   # the budgets are so many times what the middle batch's best trial needed
LEAST = 3                   # trials in a panel


Bests = tuple[Curve, str, list[BestPoint]]      # a curve, its label or panel's title, and the best at each batch


def best_figure(curves: Sequence[Curve], what: str = EFFECTIVE, *, labels: Sequence[str] | None = None, title: str = "",
                name: str = "") -> Figure | None:
    """The best value of a metaparameter at each batch; with one curve the heuristics beside it.

    what  LEARNING_RATE, MOMENTUM (as 1 - momentum) or EFFECTIVE, or the name of another metaparameter above 0
    None where fewer than two batches have one.
    """
    labels = labels_of(curves) if labels is None else list(map(plain, labels))
    found = [(curve, label, points) for curve, label in zip(curves, labels)
             for points in [_above_zero(best_points(curve, what), what)] if len(points) > 1]
    if not found:
        return None
    title = title or (f"Best {TITLES.get(what, what.replace('_', ' '))} by batch\n"
                      f"{heading(_shared(curve for curve, *_ in found))}")

    def draw(axes: Axes) -> None:
        _draw_best(axes, found, what)
    return _best_record(found, what, title, name or f"best-{slug(what)}", draw, 1)


def best_panels(panels: Iterable[tuple[str, Curve]], what: str = EFFECTIVE, *, title: str = "",
                name: str = "") -> Figure | None:
    """A panel (title, curve) each; those with fewer than two batches are left out, None where none is left."""
    found = [(curve, plain(panel), points) for panel, curve in panels
             for points in [_above_zero(best_points(curve, what), what)] if len(points) > 1]
    if not found:
        return None

    def draw(*axes: Axes) -> None:
        for one, (curve, panel, points) in zip(axes, found):
            _draw_best(one, [(curve, panel, points)], what, len(found) > 1)
            if len(found) > 1:
                one.set_title(panel)
    title = title or f"Best {TITLES.get(what, what)} by batch"
    return _best_record(found, what, title if len(found) > 1 else f"{title}\n{found[0][1]}",
                        name or f"best-{slug(what)}-panels", draw, len(found))


def _best_record(found: Sequence[Bests], what: str, title: str, name: str, draw: Callable[..., None],
                 panels: int) -> Figure:
    said = [f"The {TITLES.get(what, what.replace('_', ' '))} of the trial that met the target in the fewest steps, "
            "against the global batch; bars span the trials that needed at most "
            f"{percent(USEFUL_WITHIN)} more steps than it."]
    if what == MOMENTUM:
        said.append("The axis is 1 - momentum: lower is more momentum.")
    elif panels > 1 or len(found) == 1:
        said.append("From the smallest batch that met the target, the dashed line grows as the batch, the dotted one "
                    "as its square root.")
    target = {str(curve.target) for curve, *_ in found}
    said += [f"Target: {min(target)}."] if len(target) == 1 else []
    keys = dict.fromkeys(key for *_, points in found for point in points for key in point.keys)
    return Figure(name, title, " ".join(said), FORMULAS.get(what, f"{AXES.get(what, what)} of the best trial"),
                  f"{SHALLUE}, section 4.6", tuple(keys), draw, panels)


def _above_zero(points: Iterable[BestPoint], what: str) -> list[BestPoint]:
    """The points that a logarithmic axis has a place for."""
    return [point for point in points if is_positive(_on_axis(point.value, what))]


def _on_axis(value: float, what: str) -> float:
    return 1 - value if what == MOMENTUM else value


def _draw_best(axes: Axes, found: Sequence[Bests], what: str, paneled: bool = False) -> None:
    batches = [point.global_batch for *_, points in found for point in points]
    values = [_on_axis(point.value, what) for *_, points in found for point in points]
    ends = [_on_axis(end, what) for *_, points in found for point in points for end in (point.low, point.high)]
    most = PANEL_TICKS if paneled else TICKS
    log2_axis(axes, "x", batches, most=most)
    heuristics = []
    if len(found) == 1 and what != MOMENTUM:
        first, last = found[0][2][0], found[0][2][-1]
        ratio = last.global_batch / first.global_batch
        heuristics = [("--", "linear heuristic", first.value * ratio),
                      (":", "square root heuristic", first.value * math.sqrt(ratio))]
        for dashes, label, end in heuristics:
            axes.plot([first.global_batch, last.global_batch], [first.value, end], dashes, color=MUTED, linewidth=1.3,
                      label=label)
    log2_axis(axes, "y", values, ends + [end for *_, end in heuristics], most=most)
    axes.yaxis.set_major_formatter(fraction)
    for at, (_, label, points) in enumerate(found):
        color, marker = (BLUE, "o") if len(found) == 1 else style_of(at, len(found))
        axes.plot([p.global_batch for p in points], [_on_axis(p.value, what) for p in points], marker=marker,
                  color=color, linewidth=1, markersize=5.5, markeredgewidth=0,
                  label=f"best {TITLES.get(what, what)}" if len(found) == 1 else
                  label if is_named(at, len(found)) else None)
        for point in points:
            axes.plot([point.global_batch] * 2, [_on_axis(point.low, what), _on_axis(point.high, what)], color=color,
                      linewidth=1.4, alpha=0.6)
    axes.set_xlabel("global batch B (examples)")
    axes.set_ylabel(AXES.get(what, what.replace("_", " ")))


def trials_figure(curve: Curve, *, x: str = LEARNING_RATE, y: str | None = None, title: str = "",
                  name: str = "trials") -> Figure | None:
    """The trials of each batch of a curve in the space of two metaparameters, up to MOST_PANELS batches.

    y  by default the momentum, else another one that was searched, else the steps to the target
    """
    y = y or second(curve, x)
    points = _spread([point for point in curve.searched if _placed(point.study, x, y) >= LEAST], MOST_PANELS)
    panels = [(f"B = {point.global_batch:,}", point.study, curve.target, math.inf) for point in points]
    return scatter(panels, x, y, title=title or f"Trials to {curve.target}\n{heading(curve.workload)}", name=name)


def budgets_figure(curve: Curve, *, x: str = LEARNING_RATE, y: str | None = None, steps: float | None = None,
                   epochs: float | None = None, title: str = "", name: str = "trials-budgets") -> Figure | None:
    """The same under a budget of steps, above, and one of epochs, below, at a small, a middle and a large batch.

    steps, epochs  by default SPARE times what the best trial of the middle batch needed, to two digits, so that there
                   the two budgets are about one; None where the size of an epoch is not known, or no batch met the
                   target
    """
    y = y or second(curve, x)
    points = _spread([point for point in curve.searched if _placed(point.study, x, y) >= LEAST], BUDGET_BATCHES)
    middle = next((point for point in points[len(points) // 2:] + points if point.steps.met and point.steps.value > 0),
                  None)
    examples = curve.workload.train_examples
    if middle is not None and examples:
        steps = steps or math.ceil(float(f"{SPARE * middle.steps.value:.2g}"))
        epochs = epochs or float(f"{SPARE * middle.steps.value * middle.global_batch / examples:.2g}")
    if y is None or len(points) < 2 or not examples or steps is None or epochs is None:
        return None
    panels = [(f"B = {point.global_batch:,}, {exact(steps)} steps", point.study, curve.target, steps)
              for point in points]
    panels += [(f"B = {point.global_batch:,}, {counted_epochs(epochs)}", point.study, curve.target,
                epochs * examples / point.global_batch) for point in points]
    title = title or f"Trials to {curve.target} under budgets of steps and of epochs\n{heading(curve.workload)}"
    return scatter(panels, x, y, title=title, name=name)


def counted_epochs(epochs: float) -> str:
    """``1 epoch``, ``2.5 epochs``."""
    return counted(1, "epoch") if epochs == 1 else f"{epochs:,.4g} epochs"


def second(curve: Curve, x: str = LEARNING_RATE) -> str | None:
    """The metaparameter to go with the one on the x axis: the momentum where it was searched; None: there is none."""
    names = [name for name in many_valued([point.study for point in curve.searched]) if name != x]
    return MOMENTUM if MOMENTUM in names else names[0] if names else None


def _placed(study: Study, x: str, y: str | None) -> int:
    """How many trials of a study have both metaparameters."""
    names = [name for name in (x, y) if name is not None]
    if any(name not in study.metaparameters for name in names):
        return 0
    ended = (study.feasible | study.infeasible) & ~study.repeat
    return int((ended & np.all([np.isfinite(study.metaparameters[name]) for name in names], axis=0)).sum())


def _spread(points: list[CurvePoint], most: int) -> list[CurvePoint]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def scatter(panels: Iterable[tuple[str, Study, Target, float]], x: str, y: str | None, *, title: str,
            name: str = "trials") -> Figure | None:
    """Trials by two metaparameters: (title, study, target, most steps) a panel.

    y  None: the steps to the target, those that did not meet it where they were last seen
    None where no panel has a trial.
    """
    found = [(plain(panel), space_of(study, target, x, y or x, most)) for panel, study, target, most in panels]
    found = [(panel, space) for panel, space in found if len(space.x)]
    if not found:
        return None

    def draw(*axes: Axes) -> None:
        for one, (panel, space) in zip(axes, found):
            if len(found) > 1:
                one.set_title(panel)
            _draw_space(one, space, found, x, y, len(found) > 1)
    said = [f"One mark a trial: its {x.replace('_', ' ')} and its "
            f"{'steps to the target' if y is None else y.replace('_', ' ')}."]
    said.append("Discs met the target within the budget, triangles did not, dots were stopped by their search before "
                "that was known, crosses diverged; the star is the trial with the fewest steps.")
    if y == MOMENTUM:
        said.append("Along each pale line the effective learning rate, learning rate / (1 - momentum), is the same; "
                    "from one to the next it grows tenfold.")
    keys = dict.fromkeys(key for _, space in found for key in space.keys)
    return Figure(name, title if len(found) > 1 else f"{title}\n{found[0][0]}", " ".join(said),
                  "met: the first evaluation that meets the target, at most at the budget's last step",
                  f"{SHALLUE}, section 4.7", tuple(keys), draw, len(found))


MARKS: tuple[tuple[int | None, Look, str], ...] = (     # kind, look, and its name
    (DIVERGED, {"marker": "x", "color": MUTED, "markersize": 4.5, "markeredgewidth": 1.1}, "diverged"),
    (STOPPED, {"marker": ".", "color": MUTED, "markersize": 7, "markeredgewidth": 0}, "stopped by the search"),
    (None, {"marker": "^", "markeredgecolor": ORANGE, "markerfacecolor": "none", "markersize": 5.5}, "did not meet"),
    (REACHED, {"marker": "o", "color": BLUE, "markersize": 5.5, "markeredgewidth": 0}, "met the target"))


def _draw_space(axes: Axes, space: Space, found: Sequence[tuple[str, Space]], x: str, y: str | None,
                paneled: bool) -> None:
    every_x = np.concatenate([one.x for _, one in found])
    across = _on_axes(space.x, x)
    up = space.steps if y is None else _on_axes(space.y, y)
    every_y = np.concatenate([one.steps if y is None else _on_axes(one.y, y) for _, one in found])
    _scale(axes, "x", _on_axes(every_x, x), paneled)
    if y is None:
        log2_axis(axes, "y", every_y[every_y > 0].tolist(), most=PANEL_TICKS if paneled else TICKS)
    else:
        _scale(axes, "y", every_y, paneled)
    if x == LEARNING_RATE and y == MOMENTUM:
        _same_effective_rates(axes)
    known = [kind for kind, *_ in MARKS if kind is not None]
    crowded = len(every_x) > MOST_MARKS
    for kind, look, label in MARKS:
        at = np.flatnonzero(space.kind == kind if kind is not None else ~np.isin(space.kind, known))
        axes.plot(across[at], up[at], linestyle="", **look, rasterized=crowded)
        if any((one.kind == kind).any() if kind is not None else not np.isin(one.kind, known).all()
               for _, one in found):
            axes.plot([], [], linestyle="", **look, label=label)
    if space.best is not None:
        star: Look = {"marker": "*", "markersize": 12, "markerfacecolor": AMBER, "markeredgecolor": INK,
                      "markeredgewidth": 0.9, "linestyle": ""}
        axes.plot(across[space.best], up[space.best], **star, zorder=4)
        axes.plot([], [], **{**star, "markersize": 9}, label="fewest steps")
    axes.set_xlabel(AXES.get(x, x.replace("_", " ")))
    axes.set_ylabel("steps to target S" if y is None else AXES.get(y, y.replace("_", " ")))


def _on_axes(values: np.ndarray, name: str) -> np.ndarray:
    return 1 - values if name == MOMENTUM else values


def _scale(axes: Axes, which: str, values: np.ndarray, paneled: bool) -> None:
    """A logarithmic axis where the values are positive and spread over more than a factor 8, else a plain one."""
    low, high = float(values.min()), float(values.max())
    axis = getattr(axes, f"{which}axis")
    if low > 0 and high > 8 * low:
        margin = (high / low) ** 0.06
        getattr(axes, f"set_{which}scale")("log")
        getattr(axes, f"set_{which}lim")(low / margin, high * margin)
        decimal_ticks(axis, (low, high), PANEL_TICKS if paneled else TICKS)
        return
    margin = 0.06 * (high - low) or 0.5 * abs(low) or 0.5
    getattr(axes, f"set_{which}lim")(low - margin, high + margin)
    axis.set_major_locator(_few(PANEL_TICKS if paneled else TICKS))
    axis.set_major_formatter(lambda value, _: f"{value:,.4g}")


def _few(most: int) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator
    return MaxNLocator(most)


def _same_effective_rates(axes: Axes) -> None:
    """Pale lines along which learning rate / (1 - momentum) is a power of 10."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if min(left, low) <= 0:
        return
    look: Look = {"color": MUTED, "alpha": 0.35, "linewidth": 0.7, "zorder": 1}
    for power in range(math.floor(math.log10(left / high)), math.ceil(math.log10(right / low)) + 1):
        axes.plot([left, right], [left / 10 ** power, right / 10 ** power], **look)
    axes.plot([], [], **look, label="equal effective rate")


def best_of_figure(found: Sequence[BestOfTrials]) -> Figure | None:
    """The median best of n trials against n, one line a batch; None where none has two points."""
    found = [one for one in found if len(known_bests(one.curve)) > 1]
    if not found:
        return None
    objective, target = found[0].objective, found[0].target
    what = "steps to target" if objective == "steps" else f"best {objective}"
    ranged = [one.best for one in found if one.best is not None and one.best.met]
    bars = (f" The bar at the right end of a line is the {found[0].confidence:.0%} interval of the median best of "
            "searches of as many trials; fewer trials have none, being part of the same ones." if ranged else
            " No interval is drawn: all points are of the same trials.")

    def draw(axes: Axes) -> None:
        values = [one.low for trials in found for one in trials.curve if math.isfinite(one.low)]
        log2_axis(axes, "x", [one.n for trials in found for one in trials.curve])
        set_ticks(axes.xaxis, [2 ** at for at in range(max(one.n for t in found for one in t.curve).bit_length())])
        if min(values) > 0:
            log2_axis(axes, "y", values, [end for one in ranged for end in (one.low, one.high)],
                      arrows=[arrow for one in ranged for arrow in arrows_of(one)])
        for at, trials in enumerate(found):
            _draw_best_of(axes, trials, shade(at, len(found)),
                          f"B = {trials.global_batch:,}" if is_named(at, len(found)) else None)
        axes.set_xlabel("trials n")
        axes.set_ylabel(f"{what}, median best of n")
    return Figure(
        "best-of-n" if objective == "steps" else f"best-of-n-{objective.replace('/', '-')}",
        f"What more trials found{f': {target}' if target else ''}",
        "The median, over all subsets of n of a study's feasible trials, of the "
        f"{'fewest ' * (objective == 'steps')}{what} among them, against n; one colour a global batch. A line that "
        "still gets better at its right end calls for more trials. Where most subsets met nothing there is no point; "
        f"where pruned trials leave the median open, an open triangle stands at what it must be above.{bars}",
        "median of min over the C(N, n) subsets of n of N feasible trials", "",
        tuple(key for trials in found for key in trials.keys), draw)


def known_bests(curve: Iterable[BestOf]) -> list[BestOf]:
    """The points of a best-of-n curve that are known."""
    return [one for one in curve if one.known and math.isfinite(one.low)]


def _draw_best_of(axes: Axes, trials: BestOfTrials, color: str, label: str | None) -> None:
    known = known_bests(trials.curve)
    axes.plot([one.n for one in known], [one.low for one in known], "o-", color=color, linewidth=1, markersize=4,
              markeredgewidth=0, label=label)
    if trials.best is not None and trials.best.met:
        mark_estimate(axes, trials.curve[-1].n, trials.best, color, "o", None)
    unknown = [one for one in trials.curve if not one.known and math.isfinite(one.low)]
    look: Look = {"linestyle": "", "marker": "^", "markersize": 5, "markerfacecolor": "none", "markeredgewidth": 1}
    axes.plot([one.n for one in unknown], [one.low for one in unknown], color=color, **look)
    if unknown:
        axes.plot([], [], color=MUTED, **look, label="not known: above")


def _shared(curves: Iterable[Curve]) -> Workload | str:
    """What the curves' workloads share, in words."""
    curves = list(curves)
    if len({curve.workload for curve in curves}) == 1:
        return curves[0].workload
    names = {f"{curve.workload.dataset}/{curve.workload.model}" for curve in curves}
    return f"{exact(len(curves))} workloads" if len(names) > 1 else min(names)
