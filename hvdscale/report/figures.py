"""Figures as records, drawn by matplotlib when they are asked for: importing this module does not import it.

    for figure in figures_of(section):
        svg = render(figure, "svg")

Marks: a disc stands on two runs or more, a diamond on one; an open triangle was not met and points to where the value
lies. Colours are Okabe and Ito's (2008), worker counts viridis, so that none is told by red against green.
"""
from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..analysis.search import STEPS
from . import words
from .numbers import exact, percent
from .tables import MCCANDLISH, POLLUX, SHALLUE, keys_of

INK, MUTED, GRID = "#222222", "#767676", "#dddddd"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
ON_DARK = {INK: "#e6e6e6", MUTED: "#9a9a9a", GRID: "#363b42", BLUE: "#5fb4ea", ORANGE: "#ff9a57", GREEN: "#3ecb9f"}
SHADES = 60             # of viridis, for curves
SIZE = (4.8, 3.7)       # inches: a column of a paper, half a page on a screen
MOST_NAMED = 8          # entries of a legend
MOST_BARS = 10
SMALL = 0.15            # an efficiency below it is shown on a log scale

STYLE = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "lines.linewidth": 1.6, "svg.fonttype": "none",
}


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure: what it shows in words, its formula and source, the trials behind it, and how it is drawn."""

    name: str                   # for file names and anchors
    title: str                  # a line or two
    caption: str
    formula: str
    source: str
    trials: tuple[tuple[str, int], ...]
    draw: Callable              # of a matplotlib Axes

    @property
    def alt(self):
        """A text for those who do not see it."""
        return f"{', '.join(self.title.splitlines())}. {self.caption}"


def figures_of(section) -> tuple[Figure, ...]:
    """Every figure of a section that has something to show."""
    figures = []
    if section.batches and sum(bool(point.cell.runs) for point in section.batches.points) > 1:
        figures.append(_steps_figure(section))
    for series in section.series:
        if any(point.cell.runs for point in series.points):
            figures += [_speedup_figure(section, series), _efficiency_figure(section, series)]
        parts = _parts_of(section, series)
        if 1 < len(parts) <= MOST_BARS:
            figures.append(_parts_figure(series, parts))
    if any(len(_windows(noise)) > 1 for _, noise in section.noise):
        figures.append(_noise_figure(section))
    for objective in dict.fromkeys(search.objective for search in section.searches):
        searches = [search for search in section.searches if search.objective == objective and len(_bests(search)) > 1]
        figures += [_best_of_n_figure(searches)] if searches else []
    metric = _metric(section)
    for across in ("step", "seconds") if metric else ():
        if any(_has_curve(run, metric, across) for cell in section.cells for run in cell.runs):
            figures.append(_curve_figure(section, metric, across))
    return tuple(figures)


@lru_cache(maxsize=100)
def render(figure: Figure, format: str) -> bytes:
    """The figure as ``svg`` or ``png``, the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": figure.name}):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        axes = canvas.add_subplot()
        axes.set_title(figure.title)
        figure.draw(axes)
        _legend(canvas, axes)
        out = io.BytesIO()
        canvas.savefig(out, format=format, dpi=200, metadata={"Date": None} if format == "svg" else None)
    if format == "svg":                 # text stays text, in a font that every machine has
        return out.getvalue().replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif")
    return out.getvalue()


def colors_on_dark() -> dict[str, str]:
    """For each colour of the figures, the one that takes its place on a dark page."""
    return ON_DARK | {_viridis(0.85 * at / SHADES): _viridis(0.35 + 0.65 * at / SHADES) for at in range(SHADES + 1)}


def _viridis(share):
    from matplotlib import colormaps
    return "#" + "".join(f"{round(255 * part):02x}" for part in colormaps["viridis"](share)[:3])


def _steps_figure(section):
    batches = section.batches
    points = [point for point in batches.points if point.cell.runs]

    def draw(axes):
        met = [point for point in points if point.cell.steps.met and point.cell.steps.value > 0]
        _log2(axes, "x", [point.global_batch for point in points])
        steps = [point.cell.steps for point in points]
        seen = [value for one in steps for value in (one.value, one.beyond)]
        if met:
            first = met[0]
            ends = [point.global_batch for point in points]
            line = [first.cell.steps.value * first.global_batch / end for end in (ends[0], ends[-1])]
            axes.plot([ends[0], ends[-1]], line, "--", color=MUTED, linewidth=1.2, label="perfect scaling")
            seen += line
        _log2(axes, "y", seen, [end for one in steps for end in (one.low, one.high)])
        if batches.maximum_useful:
            axes.axvline(batches.maximum_useful, color=GREEN, linestyle=":",
                         label=f"maximum useful batch, {batches.maximum_useful:,}")
        axes.plot([p.global_batch for p in met], [p.cell.steps.value for p in met], color=BLUE, linewidth=1)
        for point in points:
            _mark(axes, point.global_batch, point.cell.steps, BLUE, "o", "steps to target")
        axes.set_xlabel("global batch B (examples)")
        axes.set_ylabel("steps to target S")
    return Figure(
        "steps-batch", f"Steps to {section.target}",
        "Steps to target against the global batch, both axes in powers of 2, over all worker counts. Bars are "
        f"{section.options.confidence:.0%} intervals over seeds; along the dashed line the batch doubles and the steps "
        "halve.",
        "S at the first evaluation that meets the target, geometric mean over seeds; perfect scaling: S1 B1 / B from "
        "the smallest batch that met it", SHALLUE, _keys(point.cell for point in points), draw)


def _speedup_figure(section, series):
    points = [point for point in series.points if point.cell.runs]

    def draw(axes):
        shown = [point for point in points if _known(point.throughput_speedup)]
        timed = [point for point in points if _known(point.time_speedup)]
        workers = [point.workers for point in points]
        ideal = [point.worker_ratio for point in points]
        _log2(axes, "x", workers)
        ratios = [ratio for point in points for ratio in (point.throughput_speedup, point.time_speedup)]
        _log2(axes, "y", [1, *ideal, *(ratio.value for ratio in ratios)],
              [end for ratio in ratios for end in (ratio.low, ratio.high)])
        axes.yaxis.set_major_formatter(_fraction)
        axes.plot(workers, ideal, "--", color=MUTED, linewidth=1.2, label="ideal")
        system = [point.throughput_speedup.value for point in shown]
        axes.fill_between([p.workers for p in shown], system, [p.worker_ratio for p in shown], color=ORANGE,
                          alpha=0.15, linewidth=0, label="lost to the system")
        if section.target:
            both = [point for point in timed if _known(point.throughput_speedup)]
            axes.fill_between([p.workers for p in both], [p.time_speedup.value for p in both],
                              [p.throughput_speedup.value for p in both], color=BLUE, alpha=0.15, linewidth=0,
                              label="lost to statistics")
        axes.plot([p.workers for p in shown], system, color=ORANGE, linewidth=1)
        for point in shown:
            _mark(axes, point.workers, point.throughput_speedup, ORANGE, "s", "examples per second")
        if section.target:
            axes.plot([p.workers for p in timed], [p.time_speedup.value for p in timed], color=BLUE, linewidth=1)
            for point in points:
                _mark(axes, point.workers, point.time_speedup, BLUE, "o", "time to target")
        axes.set_xlabel("workers W")
        axes.set_ylabel(f"speedup over {series.points[0].workers} worker{'s' * (series.points[0].workers > 1)}")
    what = f"Speedup to {section.target}" if section.target else "Speedup in examples per second"
    lost = (" The band above the squares is lost to the system, the band below to statistics; on this scale the two "
            "add up to all that is lost." if section.target else "")
    return Figure(
        f"speedup-{words.series_name(series)}", f"{what}\n{words.series_kind(series)}",
        f"Speedup against workers, both axes in powers of 2; {words.series_kind(series)}. Bars are "
        f"{section.options.confidence:.0%} intervals.{lost}",
        "T0 / T (time to target) and x / x0 (examples per second)", POLLUX,
        _keys(point.cell for point in points), draw)


def _efficiency_figure(section, series):
    points = [point for point in series.points if point.cell.runs]
    kinds = [("system_efficiency", ORANGE, "s", "system efficiency", 1.0)]
    if section.target:
        kinds = [("statistical_efficiency", GREEN, "^", "statistical efficiency", 1 / 1.04),
                 ("system_efficiency", ORANGE, "s", "system efficiency", 1.04),
                 ("product", BLUE, "o", "their product", 1.0)]

    def draw(axes):
        _log2(axes, "x", [point.workers for point in points])
        axes.axhline(1, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
        tops = [1.0]
        for name, color, marker, label, aside in kinds:
            known = [point for point in points if _known(getattr(point, name))]
            axes.plot([p.workers * aside for p in known], [getattr(p, name).value for p in known], color=color,
                      linewidth=1)
            for point in points:
                ratio = getattr(point, name)
                tops += [end for end in (ratio.value, ratio.high) if math.isfinite(end)]
                _mark(axes, point.workers * aside, ratio, color, marker, label)
        values = [getattr(p, k[0]).value for p in points for k in kinds if _known(getattr(p, k[0]))]
        if values and min(values) < SMALL:
            axes.set_yscale("log")
            ends = [max(min(values) / 4, getattr(p, k[0]).low) for p in points for k in kinds]
            axes.set_ylim(min([*values, *ends]) / 1.3, 1.3 * min(max(tops), 4 * max(values)))
            _decimal_ticks(axes.yaxis, axes.get_ylim())
        else:
            axes.set_ylim(0, 1.08 * min(max(tops), 2 * max([1, *values])))
        axes.set_xlabel("workers W")
        axes.set_ylabel("efficiency")
    what = f"Efficiency to {section.target}" if section.target else "Efficiency in examples per second"
    return Figure(
        f"efficiency-{words.series_name(series)}", f"{what}\n{words.series_kind(series)}",
        f"Statistical efficiency, system efficiency and their product against workers; {words.series_kind(series)}."
        if section.target else f"System efficiency against workers; {words.series_kind(series)}.",
        "(S0 B0) / (S B) and (x / x0) / (W / W0)", POLLUX, _keys(point.cell for point in points), draw)


def _parts_of(section, series):
    """(cell, parts) of the points of a series whose steps were timed in parts."""
    found = {id(cell): parts for cell, parts in section.parts}
    return [(point.cell, found[id(point.cell)]) for point in series.points if id(point.cell) in found]


def _parts_figure(series, parts):
    cells = [cell for cell, _ in parts]

    def draw(axes):
        bottoms = [0.0] * len(parts)
        for name, color, label in (("compute", BLUE, "computing"), ("data", GREEN, "getting data"),
                                   ("communication", ORANGE, "waiting for communication, and its share")):
            heights = [1000 * one.seconds * getattr(one, name) for _, one in parts]
            axes.bar(range(len(parts)), heights, bottom=bottoms, width=0.62, color=color, label=label, linewidth=0)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        for at, (_, one) in enumerate(parts):
            axes.annotate(percent(one.communication), (at, 1000 * one.seconds), xytext=(0, 2),
                          textcoords="offset points", ha="center", va="bottom", fontsize=8)
        _ticks(axes.xaxis, range(len(parts)))
        axes.xaxis.set_major_formatter(lambda at, _: f"{cells[round(at)].workers[0]}")
        axes.grid(False, axis="x")
        axes.set_ylim(0, 1.1 * max(bottoms))
        axes.set_xlabel("workers W")
        axes.set_ylabel("milliseconds a step (median)")
    return Figure(
        f"step-time-{words.series_name(series)}", f"Where a step's time goes\n{words.series_kind(series)}",
        f"The median step on rank 0 and its parts against workers; {words.series_kind(series)}. Waiting for the "
        "allreduce includes waiting for slower workers.",
        "median of step_seconds, geometric mean over runs; parts: their mean share of a step, times it", "",
        _keys(cells), draw)


def _noise_figure(section):
    found = [(cell, _windows(noise)) for cell, noise in section.noise if _windows(noise)]

    def draw(axes):
        scales = [scale for _, scales in found for scale in scales]
        ends = [end for s in scales for end in (s.low, s.high if math.isfinite(s.high) else 2 * s.noise_scale)]
        _log2(axes, "y", [scale.noise_scale for scale in scales], ends)      # twice the value: room for an arrow
        low, high = axes.get_ylim()
        for at, (cell, scales) in enumerate(found):
            color = _shade(at, len(found))
            middles = [(scale.first_step + scale.last_step) / 2 for scale in scales]
            label = f"W = {words.listed_workers(cell)}, B = {cell.global_batch:,}" if _named(at, len(found)) else None
            axes.plot(middles, [scale.noise_scale for scale in scales], "o-", color=color, linewidth=1, markersize=5,
                      markeredgewidth=0, label=label)
            for middle, scale in zip(middles, scales):
                unbounded = math.isinf(scale.high)
                axes.plot([middle, middle], [max(scale.low, low), scale.noise_scale if unbounded else
                                             min(scale.high, high)], color=color, linewidth=1.4, alpha=0.75)
                if unbounded:
                    _arrow(axes, middle, scale.noise_scale, color, 1)
                axes.plot([scale.first_step, scale.last_step], [scale.noise_scale] * 2, color=color, linewidth=1.4,
                          alpha=0.35)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: exact(value))
        axes.set_xlabel("steps")
        axes.set_ylabel("noise scale (examples)")
    return Figure(
        "noise-scale", "Gradient noise scale in training",
        "The noise scale over each quarter of the measured steps, which a pale line spans; one colour a worker count "
        f"and global batch. Bars are {section.options.confidence:.0%} intervals, cut off at the edge; one with an "
        "arrow has no upper end: its steps do not tell |G|^2 from 0. Quarters in which |G|^2 or tr(Sigma) came out "
        "below 0 have no point.",
        "tr(Sigma) / |G|^2, each averaged over the quarter first", MCCANDLISH,
        _keys(cell for cell, _ in found), draw)


def _windows(noise):
    """The quarters that have a noise scale to show."""
    return [quarter for quarter in noise.quarters if _positive(quarter.noise_scale) and quarter.low == quarter.low]


def _best_of_n_figure(searches):
    objective, target = searches[0].objective, searches[0].target
    what = "steps to target" if objective == STEPS else f"best {objective}"

    def draw(axes):
        values = [one.low for search in searches for one in search.curve if math.isfinite(one.low)]
        _log2(axes, "x", [one.n for search in searches for one in search.curve])
        _powers(axes.xaxis, *axes.get_xlim())
        if min(values) > 0:
            _log2(axes, "y", values)
        for at, search in enumerate(searches):
            color = _shade(at, len(searches))
            known = _bests(search)
            axes.plot([one.n for one in known], [one.low for one in known], "o-", color=color, linewidth=1,
                      markersize=4, markeredgewidth=0,
                      label=f"B = {search.global_batch:,}" if _named(at, len(searches)) else None)
            unknown = [one for one in search.curve if not one.known and math.isfinite(one.low)]
            axes.plot([one.n for one in unknown], [one.low for one in unknown], "^", color=color, markersize=5,
                      markerfacecolor="none", markeredgewidth=1)
            if unknown:
                axes.plot([], [], "^", color=MUTED, markersize=5, markerfacecolor="none", markeredgewidth=1,
                          label="not known: above")
        axes.set_xlabel("trials n")
        axes.set_ylabel(f"{what}, median best of n")
    return Figure(
        "best-of-n" if objective == STEPS else f"best-of-n-{objective.replace('/', '-')}",
        f"What more trials found{f': {target}' if target else ''}",
        f"The median, over all subsets of n of a study's feasible trials, of the best {objective} among them, against "
        "n; one colour a global batch. A line that still falls at its right end calls for more trials. "
        "Where most subsets met nothing there is no point; where pruned trials leave the median open, an open triangle "
        "stands at what it must be above.",
        "median of min over the C(N, n) subsets of n of N feasible trials", "",
        tuple(draw.trial.key for search in searches for draw in search.feasible), draw)


def _bests(search):
    """The points of a search's curve that are known."""
    return [one for one in search.curve if one.known and math.isfinite(one.low)]


def _curve_figure(section, metric, across):
    drawn = {id(cell): [run for run in cell.runs if _has_curve(run, metric, across)] for cell in section.cells}
    cells = [cell for cell in section.cells if drawn[id(cell)]]
    label = {"step": "steps", "seconds": "training time (seconds, evaluation left out)"}[across]
    name = words.metric_name(metric)

    def draw(axes):
        ends, values = [], []
        for at, cell in enumerate(cells):
            color = _shade(at, len(cells))
            for index, run in enumerate(drawn[id(cell)]):
                x = _across(run, across)
                axes.plot(x, run.trial.metrics[metric], color=color, linewidth=1, alpha=0.9,
                          label=f"W = {words.listed_workers(cell)}, B = {cell.global_batch:,}"
                          if index == 0 and _named(at, len(cells)) else None)
                ends.append(x[-1])
                values += [value for value in run.trial.metrics[metric] if math.isfinite(value)]
        starts = [x[x > 0][0] for cell in cells for run in drawn[id(cell)] for x in [_across(run, across)]
                  if (x > 0).any()]
        _curve_axes(axes, section, metric, starts, ends, values, across)
        axes.set_xlabel(label)
        axes.set_ylabel(name)
    return Figure(
        f"curve-{across}", f"{name[0].upper()}{name[1:]} against {'steps' if across == 'step' else 'time'}",
        f"{metric} at every evaluation against {label}: one line a run, one colour a worker count and global batch.",
        f"{metric} and {'step' if across == 'step' else 'train_seconds'} of /evaluations", "", _keys(cells), draw)


def _shade(at, count):
    """The colour of the one at ``at`` of ``count`` lines."""
    return _viridis(0.85 * round(SHADES * at / max(1, count - 1)) / SHADES)


def _named(at, count):
    """Whether the legend names it: MOST_NAMED of them, evenly spread."""
    return at in {round(place * (count - 1) / max(1, min(MOST_NAMED, count) - 1)) for place in range(MOST_NAMED)}


def _curve_axes(axes, section, metric, starts, ends, values, across):
    goal = [section.target.value] if section.target and section.target.column == metric else []
    positive = [value for value in values + goal if value > 0]
    if positive and min(values + goal) > 0 and max(positive) > 8 * min(positive):
        axes.set_yscale("log")
        _decimal_ticks(axes.yaxis, (min(positive), max(positive)))
    if starts and max(ends) > 3 * min(ends) > 0:
        axes.set_xscale("log", base=2 if across == "step" else 10, nonpositive="mask")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        if across == "step":
            _powers(axes.xaxis, min(starts), max(ends))
        else:
            _decimal_ticks(axes.xaxis, (min(starts), max(ends)))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: exact(value))
    for value in goal:
        axes.axhline(value, color=INK, linestyle="--", linewidth=1.1, label=f"target {section.target}")


def _mark(axes, x, estimate, color, marker, label):
    """One point with its interval; see the module's text for the marks."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if _known(estimate):
        if low == low and high == high and high > low:
            top = high if math.isfinite(high) else value
            axes.plot([x, x], [low if low > 0 else value, top], color=color, linewidth=1.4, alpha=0.75)
            if math.isinf(high):
                _arrow(axes, x, value, color, 1)
            if low == 0:
                _arrow(axes, x, value, color, -1)
        one = estimate.runs < 2
        axes.plot([x], [value], linestyle="", marker="D" if one else marker, color=color,
                  markersize=5 if one else 5.5, markeredgewidth=0, zorder=3)
        axes.plot([], [], linestyle="", marker=marker, color=color, markersize=5.5, markeredgewidth=0, label=label)
        if one:
            axes.plot([], [], linestyle="", marker="D", color=MUTED, markersize=5, markeredgewidth=0, label="one run")
        return
    beyond = getattr(estimate, "beyond", math.nan)
    if math.isfinite(beyond) and beyond > 0:            # above this
        _open(axes, x, beyond, color, "^", 1)
    elif math.isfinite(high) and high > 0:              # below this
        _open(axes, x, high, color, "v", -1)


def _open(axes, x, y, color, marker, way):
    _arrow(axes, x, y, color, way)
    look = {"linestyle": "", "marker": marker, "markersize": 6.5, "markerfacecolor": "none", "markeredgewidth": 1.3}
    axes.plot([x], [y], **look, markeredgecolor=color, zorder=3)
    axes.plot([], [], **look, markeredgecolor=MUTED, label="not met: above" if way > 0 else "not met: below")


def _arrow(axes, x, y, color, way):
    arrow = axes.annotate("", xy=(x, y), xytext=(0, 20 * way), textcoords="offset points",
                          arrowprops={"arrowstyle": "<-", "color": color, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 4})
    arrow.arrow_patch.set_clip_on(True)
    arrow.arrow_patch.set_clip_box(axes.bbox)


def _known(estimate):
    return _positive(estimate.value)


def _positive(value):
    return math.isfinite(value) and value > 0


def _legend(canvas, axes):
    """One legend under the axes, each entry once, so that it covers nothing."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
    names = sorted(handles, key=lambda name: name.startswith(("one run", "not ")))       # what marks mean comes last
    if handles:
        canvas.legend([handles[name] for name in names], names, loc="outside lower center", ncols=2, handlelength=1.8,
                      columnspacing=1.6, labelspacing=0.35)


def _log2(axes, which, values, ends=()):
    """A base 2 axis that holds the positive values, with a margin, and ticks at powers of 2.

    Ends of intervals are held as far as they lie within a factor 4 of the values: two runs may leave them far away.
    """
    values = [value for value in values if math.isfinite(value) and value > 0] or [1]
    ends = [end for end in ends if math.isfinite(end) and end > 0]
    low = min(values + [max(end, min(values) / 4) for end in ends])
    high = max(values + [min(end, max(values) * 4) for end in ends])
    getattr(axes, f"set_{which}scale")("log", base=2)
    margin = 2 ** (0.06 * max(1.5, math.log2(high / low)) + 0.1)
    getattr(axes, f"set_{which}lim")(low / margin, high * margin)
    if which == "x":
        _ticks(axes.xaxis, _apart(sorted(set(values))))
    else:
        _powers(axes.yaxis, low / margin, high * margin)


def _apart(values, most=9):
    """Of what was measured, the values to name: the smallest, and each that is far enough from the one before."""
    gap = (values[-1] / values[0]) ** (1 / most)
    named = values[:1]
    for value in values[1:]:
        if value >= 0.99 * gap * named[-1]:
            named.append(value)
    return named


def _powers(axis, low, high, most=9):
    """Ticks at powers of 2; at round numbers where there are fewer than two powers between low and high."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    if last > first:
        return _ticks(axis, [2.0 ** at for at in range(first, last + 1, math.ceil((last - first + 1) / most))])
    size = 10 ** math.floor(math.log10(high - low))
    size *= 1 if high - low > 4 * size else 0.5 if high - low > 2 * size else 0.2
    return _ticks(axis, [size * at for at in range(math.ceil(low / size), math.floor(high / size) + 1)])


def _ticks(axis, values):
    axis.set_major_locator(_fixed(values))
    axis.set_minor_locator(_fixed([]))
    axis.set_major_formatter(lambda value, _: exact(value) if value >= 1 else f"{value:.3g}")


def _fraction(value, _=None):
    """``4``, ``0.8``, and a power of 2 below 1 as ``1/8``."""
    if 0 < value < 1 and math.log2(value) == round(math.log2(value)):
        return f"1/{1 / value:,.0f}"
    return exact(value) if value >= 1 else f"{value:.3g}"


def _decimal_ticks(axis, ends):
    """Ticks at 1, 2, 5 times powers of 10; at the powers alone where there are many between the ends."""
    from matplotlib.ticker import LogLocator
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if ends[1] < 1000 * ends[0] else (1,)))
    axis.set_minor_locator(_fixed([]))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _fixed(ticks):
    from matplotlib.ticker import FixedLocator
    return FixedLocator(ticks)


def _across(run, across):
    return run.trial.step if across == "step" else run.trial.train_seconds


def _metric(section):
    """The metric whose curves are shown: the target's, else the first there is of validation, test or training."""
    if section.target:
        return section.target.column
    names = {name for cell in section.cells for run in cell.runs for name in run.trial.metrics
             if _has_curve(run, name)}
    ordered = sorted(names, key=lambda name: (("val", "test", "train").index(name.split("/")[0]), "error" not in name,
                                              name))
    return ordered[0] if ordered else None


def _has_curve(run, metric, across="step"):
    """Whether a run was evaluated twice, at times that are known, so that there is a curve to draw."""
    where = _across(run, across)
    return metric in run.trial.metrics and len(where) > 1 and math.isfinite(where[-1])


def _keys(cells):
    return tuple(dict.fromkeys(key for cell in cells for key in keys_of(cell)))
