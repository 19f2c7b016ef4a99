"""The figures of a section.

    for figure in figures_of(section):
        svg = drawing.render(figure, "svg")
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...analysis.best_points import BestOfTrials
from ...analysis.intervals import Estimate
from ...analysis.noise import Noise, NoiseScale
from ...analysis.curves import BatchPoint, Curve
from ...analysis.report_data import Section
from ...analysis.speedup import Series, SpeedupPoint
from ...analysis.step_breakdown import StepParts
from ...analysis.steps import RunToTarget, RunCell
from ...formatting.numbers import counted, exact, listed, percent
from ..columns import metric_name
from ..drawing import (BLUE, GREEN, INK, MUTED, ORANGE, Axes, Figure, decimal_ticks, draw_arrow, draw_line, ends_of,
                       explain_crowded, fraction, is_known, is_named, is_positive, label_axes, log2_axis, mark_estimate,
                       power_ticks, set_ticks, shade)
from ..search.figures import best_of_figure
from ..table import keys_of
from . import words
from .ranks import rank_figure
from .regimes import SCALING

MOST_BARS = 10
SMALL = 0.15            # an efficiency below it is shown on a log scale


def figures_of(section: Section) -> Iterator[Figure]:
    """Every figure of a section that has something to show."""
    run = [point for point in section.batches.measured if point.cell.runs] if section.batches else []
    if section.batches and len(run) > 1:
        yield _repeats_figure(section, section.batches, run)
    parts_of = {id(cell): parts for cell, parts in section.parts}
    for series in section.series:
        if any(point.cell.runs for point in series.points):
            yield from (_speedup_figure(section, series), _efficiency_figure(section, series))
        parts = [(point.cell, parts_of[id(point.cell)]) for point in series.points if id(point.cell) in parts_of]
        if 1 < len(parts) <= MOST_BARS:
            yield _parts_figure(series, parts)
    yield from filter(None, [rank_figure(section)])
    if any(len(_windows(noise)) > 1 for _, noise in section.noise):
        yield _noise_figure(section)
    for objective in dict.fromkeys(search.objective for search in section.searches):
        figure = best_of_figure([
            BestOfTrials(search.global_batch, search.objective, search.target, search.curve,
                         tuple(draw.trial.key for draw in search.feasible if draw.trial))
            for search in section.searches if search.objective == objective])
        yield from [figure] if figure else []
    metric = _metric(section)
    for across in ACROSS:
        if metric and any(_has_curve(run, metric, across) for cell in section.cells for run in cell.runs):
            yield _training_figure(section, metric, across)


def _repeats_figure(section: Section, curve: Curve, points: Sequence[BatchPoint]) -> Figure:
    """Steps to target by global batch over repeats of one setting; curve_figures has that of searches."""

    def draw(axes: Axes) -> None:
        met = [point for point in points if point.cell.steps.met and point.cell.steps.value > 0]
        log2_axis(axes, "x", [point.global_batch for point in points])
        steps = [point.cell.steps for point in points]
        seen = [value for one in steps for value in (one.value, one.beyond)]
        if met:
            first, ends = met[0], (points[0].global_batch, points[-1].global_batch)
            line = [first.cell.steps.value * first.global_batch / end for end in ends]
            draw_line(axes, zip(ends, line), MUTED, "--", 1.2, label="perfect scaling")
            seen += line
        log2_axis(axes, "y", seen, ends_of(steps))
        useful = curve.regimes.maximum_useful.value
        if useful:
            axes.axvline(useful, color=GREEN, linestyle=":", label=f"maximum useful batch, {useful:,}")
        draw_line(axes, ((point.global_batch, point.cell.steps.value) for point in met), BLUE)
        for point in points:
            mark_estimate(axes, point.global_batch, point.cell.steps, BLUE, "o", "steps to target")
        label_axes(axes, "global batch B (examples)", "steps to target S")
    return SCALING.figure("steps-batch", draw, keys_of(point.cell for point in points), target=section.target,
                          confidence=section.options.confidence)


def _speedup_figure(section: Section, series: Series) -> Figure:
    points = [point for point in series.points if point.cell.runs]

    def draw(axes: Axes) -> None:
        shown = [point for point in points if is_known(point.throughput_speedup)]
        workers = [point.workers for point in points]
        ideal = [point.worker_ratio for point in points]
        log2_axis(axes, "x", workers)
        ratios = [ratio for point in points for ratio in (point.throughput_speedup, point.time_speedup)]
        log2_axis(axes, "y", [1, *ideal, *(ratio.value for ratio in ratios)], ends_of(ratios))
        axes.yaxis.set_major_formatter(fraction)
        draw_line(axes, zip(workers, ideal), MUTED, "--", 1.2, label="ideal")
        axes.fill_between([p.workers for p in shown], [p.throughput_speedup.value for p in shown],
                          [p.worker_ratio for p in shown], color=ORANGE, alpha=0.15, linewidth=0,
                          label="lost to the system")
        if section.target:
            both = [point for point in shown if is_known(point.time_speedup)]
            axes.fill_between([p.workers for p in both], [p.time_speedup.value for p in both],
                              [p.throughput_speedup.value for p in both], color=BLUE, alpha=0.15, linewidth=0,
                              label="lost to statistics")
        _plot_ratio(axes, points, "throughput_speedup", ORANGE, "s", "examples per second")
        if section.target:
            _plot_ratio(axes, points, "time_speedup", BLUE, "o", "time to target")
        label_axes(axes, "workers W", f"speedup over {counted(series.points[0].workers, 'worker')}")
    return _series_figure("speedup", section, series, draw)


def _series_figure(kind: str, section: Section, series: Series, draw: Callable[..., None]) -> Figure:
    """A figure of what the worker counts of a series reach."""
    cells = [point.cell for point in series.points if point.cell.runs]
    return SCALING.figure(kind, draw, keys_of(cells), target=section.target, name=words.series_name(series),
                          series=words.series_kind(series), confidence=section.options.confidence,
                          crowded=any(cell.oversubscribed for cell in cells))


def _efficiency_figure(section: Section, series: Series) -> Figure:
    points = [point for point in series.points if point.cell.runs]
    kinds = [("system_efficiency", ORANGE, "s", "system efficiency", 1.0)]
    if section.target:
        kinds = [("statistical_efficiency", GREEN, "^", "statistical efficiency", 1 / 1.04),
                 ("system_efficiency", ORANGE, "s", "system efficiency", 1.04),
                 ("product", BLUE, "o", "their product", 1.0)]

    def draw(axes: Axes) -> None:
        log2_axis(axes, "x", [point.workers for point in points])
        axes.axhline(1, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
        for kind in kinds:
            _plot_ratio(axes, points, *kind)
        ratios: list[Estimate] = [getattr(point, name) for point in points for name, *_ in kinds]
        tops = [1.0, *(end for one in ratios for end in (one.value, one.high) if math.isfinite(end))]
        values = [one.value for one in ratios if is_known(one)]
        if values and min(values) < SMALL:
            axes.set_yscale("log")
            ends = [max(min(values) / 4, one.low) for one in ratios]
            axes.set_ylim(min([*values, *ends]) / 1.3, 1.3 * min(max(tops), 4 * max(values)))
            decimal_ticks(axes.yaxis, axes.get_ylim())
        else:
            axes.set_ylim(0, 1.08 * min(max(tops), 2 * max([1, *values])))
        label_axes(axes, "workers W", "efficiency")
    return _series_figure("efficiency", section, series, draw)


def _plot_ratio(axes: Axes, points: Sequence[SpeedupPoint], name: str, color: str, marker: str, label: str,
                aside: float = 1.0) -> None:
    """A line through a ratio at each worker count, with marks; statistics do not depend on the host."""
    found: list[tuple[SpeedupPoint, Estimate]] = [(point, getattr(point, name)) for point in points]
    draw_line(axes, ((point.workers * aside, ratio.value) for point, ratio in found if is_known(ratio)), color)
    for point, ratio in found:
        mark_estimate(axes, point.workers, ratio, color, marker, label,
                      name != "statistical_efficiency" and point.cell.oversubscribed, aside)


def _parts_figure(series: Series, parts: Sequence[tuple[RunCell, StepParts]]) -> Figure:
    cells = [cell for cell, _ in parts]

    def draw(axes: Axes) -> None:
        bottoms = [0.0] * len(parts)
        for name, color, label in (("compute", BLUE, "computing"), ("data", GREEN, "getting data"),
                                   ("communication", ORANGE, "waiting for communication, and its share")):
            heights = [1000 * one.seconds * getattr(one, name) for _, one in parts]
            axes.bar(range(len(parts)), heights, bottom=bottoms, width=0.62, color=color, label=label, linewidth=0)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        for at, (_, one) in enumerate(parts):
            axes.annotate(percent(one.communication), (at, 1000 * one.seconds), xytext=(0, 2),
                          textcoords="offset points", ha="center", va="bottom", fontsize=8)
        set_ticks(axes.xaxis, range(len(parts)))
        axes.xaxis.set_major_formatter(lambda at, _: words.workers_marked(cells[round(at)]))
        if any(cell.oversubscribed for cell in cells):
            explain_crowded(axes)
        axes.grid(False, axis="x")
        axes.set_ylim(0, 1.1 * max(bottoms))
        label_axes(axes, "workers W", "milliseconds a step (median)")
    return SCALING.figure("step-time", draw, keys_of(cells), name=words.series_name(series),
                          series=words.series_kind(series))


def _noise_figure(section: Section) -> Figure:
    found = [(cell, _windows(noise)) for cell, noise in section.noise if _windows(noise)]

    def draw(axes: Axes) -> None:
        scales = [scale for _, scales in found for scale in scales]
        ends = [end for s in scales for end in (s.low, s.high if math.isfinite(s.high) else 2 * s.noise_scale)]
        log2_axis(axes, "y", [scale.noise_scale for scale in scales], ends)      # twice the value: room for an arrow
        low, high = axes.get_ylim()
        for at, (cell, scales) in enumerate(found):
            color = shade(at, len(found))
            middles = [(scale.first_step + scale.last_step) / 2 for scale in scales]
            label = f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" if is_named(at, len(found)) else None
            axes.plot(middles, [scale.noise_scale for scale in scales], "o-", color=color, linewidth=1, markersize=5,
                      markeredgewidth=0, label=label)
            for middle, scale in zip(middles, scales):
                unbounded = math.isinf(scale.high)
                axes.plot([middle, middle], [max(scale.low, low), scale.noise_scale if unbounded else
                                             min(scale.high, high)], color=color, linewidth=1.4, alpha=0.75)
                if unbounded:
                    draw_arrow(axes, middle, scale.noise_scale, color, 1)
                axes.plot([scale.first_step, scale.last_step], [scale.noise_scale] * 2, color=color, linewidth=1.4,
                          alpha=0.35)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: exact(value))
        label_axes(axes, "steps", "noise scale (examples)")
    return SCALING.figure("noise-scale", draw, keys_of(cell for cell, _ in found),
                          confidence=section.options.confidence)


def _windows(noise: Noise) -> list[NoiseScale]:
    """The quarters that have a noise scale to show."""
    return [quarter for quarter in noise.quarters if is_positive(quarter.noise_scale) and quarter.low == quarter.low]


# axis, in short, and the column of the log, of what a curve is drawn against
ACROSS = {"step": ("steps", "steps", "step of /evaluations"),
          "tokens": ("training tokens", "tokens", "sums of tokens of /steps"),
          "seconds": ("training time (seconds, evaluation left out)", "time", "train_seconds of /evaluations")}


def _training_figure(section: Section, metric: str, across: str) -> Figure:
    drawn = {id(cell): [run for run in cell.runs if _has_curve(run, metric, across)] for cell in section.cells}
    cells = [cell for cell in section.cells if drawn[id(cell)]]
    label, short, column = ACROSS[across]
    name = metric_name(metric)

    def draw(axes: Axes) -> None:
        ends, values = [], []
        for at, cell in enumerate(cells):
            color = shade(at, len(cells))
            crowded = across == "seconds" and cell.oversubscribed
            if crowded:
                explain_crowded(axes)
            for index, run in enumerate(drawn[id(cell)]):
                x = _across(run, across)
                axes.plot(x, run.trial.metrics[metric], color=color, linewidth=1, alpha=0.9,
                          linestyle="--" if crowded else "-", label=f"W = {listed(cell.workers)}"
                          f"{words.CROWDED * crowded}, B = {cell.global_batch:,}"
                          if index == 0 and is_named(at, len(cells)) else None)
                ends.append(x[-1])
                values += [value for value in run.trial.metrics[metric] if math.isfinite(value)]
        starts = [x[x > 0][0] for cell in cells for run in drawn[id(cell)] for x in [_across(run, across)]
                  if (x > 0).any()]
        _curve_axes(axes, section, metric, starts, ends, values, across)
        label_axes(axes, label, name)
    return SCALING.figure("curve", draw, keys_of(cells), across=across, metric_name=name, metric=metric, short=short,
                          label=label, column=column)


def _curve_axes(axes: Axes, section: Section, metric: str, starts: Sequence[float], ends: Sequence[float],
                values: list[float], across: str) -> None:
    goal = [section.target.value] if section.target and section.target.column == metric else []
    positive = [value for value in values + goal if value > 0]
    if positive and min(values + goal) > 0 and max(positive) > 8 * min(positive):
        axes.set_yscale("log")
        decimal_ticks(axes.yaxis, (min(positive), max(positive)))
    if starts and max(ends) > 3 * min(ends) > 0:
        axes.set_xscale("log", base=2 if across == "step" else 10, nonpositive="mask")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.1)
        if across == "step":
            power_ticks(axes.xaxis, min(starts), max(ends))
        else:
            decimal_ticks(axes.xaxis, (min(starts), max(ends)))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: exact(value))
    for value in goal:
        axes.axhline(value, color=INK, linestyle="--", linewidth=1.1, label=f"target {section.target}")


def _across(run: RunToTarget, across: str) -> np.ndarray:
    if across == "tokens":
        return np.full(len(run.trial.step), np.nan) if run.trial.tokens is None else run.trial.tokens
    return run.trial.step if across == "step" else run.trial.train_seconds


def _metric(section: Section) -> str | None:
    """The metric whose curves are shown: the target's, else the first there is of validation, test or training."""
    if section.target:
        return section.target.column
    names = {name for cell in section.cells for run in cell.runs for name in run.trial.metrics
             if _has_curve(run, name)}
    ordered = sorted(names, key=lambda name: (("val", "test", "train").index(name.split("/")[0]), "error" not in name,
                                              name))
    return ordered[0] if ordered else None


def _has_curve(run: RunToTarget, metric: str, across: str = "step") -> bool:
    """Whether a run was evaluated twice, at times that are known, so that there is a curve to draw."""
    where = _across(run, across)
    return metric in run.trial.metrics and len(where) > 1 and math.isfinite(where[-1])
