"""Learning-rate landscapes: steps and loss against the rate at each batch, and what describes the best rates."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...analysis.search import DIVERGED, REACHED
from ...analysis.landscapes import ADAM, PEAK, POWER, RateLandscape, RateLandscapes
from ...analysis.studies import best_value
from ...analysis.rules import FEW
from ...formatting.numbers import exact, number, percent, ratio, span
from ..document import Figures, Finding, Part
from ..drawing import (AMBER, BLUE, GREEN, INK, MUTED, ORANGE, PANEL_TICKS, TICKS, Axes, Figure, Look, arrows,
                       decimal_ticks, draw_line, draw_panels, ends_of, heading, is_named, label_axes, log2_axis,
                       mark_estimate, shade, spread_evenly, value_axis)
from ..subject import Subject
from ..table import Cell, Table, cell_of, keys_of, metric_name, no_cell, steps_cell
from ..texts import LANDSCAPES, power_cell
from .rules import rate_words

MOST_PANELS = 9
LINES = {"none": (":", "constant"), "sqrt": ("-.", "square root"), "linear": ("--", "linear"), POWER: ("-", "power")}


def landscapes(subject: Subject) -> Iterator[Part]:
    if subject.costs:
        found = RateLandscapes(subject.curve, subject.costs)
        yield from (*find_law(found), landscapes_table(found), laws_table(found),
                    Figures(partial(landscape_figures, found)))


def _words(found: RateLandscapes) -> dict[str, Any]:
    return {**rate_words(found.costs.effective), "metric": metric_name(found.costs.target.column),
            "confidence": found.costs.confidence, "tolerance": percent(found.costs.tolerance)}


def find_law(found: RateLandscapes) -> tuple[Finding, ...]:
    laws, rate = found.laws, _words(found)["rate"]
    if not laws.laws:
        return ()
    if laws.peak is not None:
        batch = f"{exact(laws.peak.value, 0)} ({exact(laws.peak.low, 0)} to {exact(laws.peak.high, 0)})"
        return (LANDSCAPES.find("peak", laws.peak, rate=rate, batch=batch),)
    if not laws.described_by:
        rates = [f"{number(one.rate.best.value, 2)} at {one.global_batch:,}" for one in found.batches
                 if not one.rate.why]
        return (LANDSCAPES.find("no_power", rate=rate, rates=", ".join(rates)),)
    names = LANDSCAPES.words("law")
    ruled_out = [names[law.name] for law in laws.laws if not law.describes and law.name not in (POWER, ADAM)]
    return (LANDSCAPES.find("power", laws.exponent, rate=rate, batches=len(laws.exponent.batches), ruled_out=ruled_out,
                            laws=[names[name] for name in laws.described_by if name != ADAM], power=laws.exponent),)


def landscapes_table(found: RateLandscapes) -> Table:
    def best(one: RateLandscape) -> Cell:
        why = "too few met the target" if one.rate.why == FEW else "not bracketed"
        return no_cell(below=why) if one.rate.why else cell_of(one.rate.best)

    def within(one: RateLandscape) -> Cell:         # its value is the width of the range as a factor
        low, high = (math.nan, math.nan) if one.rate.why else one.width(found.costs.tolerance)
        return Cell(span(low, high) or "n/a", high / low, low, high)
    return LANDSCAPES.table("lr-landscape", found.batches, {
        "global_batch": lambda one: one.global_batch,
        "trials": lambda one: cell_of(len(one.space.x), f"{int((one.space.kind == REACHED).sum())} met"),
        "steps_to_target": lambda one: steps_cell(one.rate.steps), "tried_rate": lambda one: one.rate.tried,
        "best_rate": best, "rates_within": within,
        "best_value": lambda one: best_value(one.values, found.costs.target.minimizes)},
        lambda one: one.rate.keys, what=found.costs.target, **_words(found), notes=(
            LANDSCAPES.say("steps", **_words(found)), LANDSCAPES.say("best", **_words(found))))


def laws_table(found: RateLandscapes) -> Table | None:
    """What would describe the best rates, a peak last; None where too few batches have one."""
    laws, peak = found.laws, found.laws.peak
    if not laws.laws:
        return None
    rows: list[tuple[str, Cell, Cell, bool]] = []
    for law in laws.laws:           # its power has an interval where it was fitted
        fixed = Cell(f"{law.power.value:g}", law.power.value, math.nan, math.nan)
        rows.append((law.name, fixed if math.isnan(law.power.low) else power_cell(law.power),
                     Cell(f"x{ratio(law.deviation)}", law.deviation), law.describes))
    if peak is not None:
        where = Cell(f"peak at {exact(peak.value, 0)}", peak.value, peak.low, peak.high, span(peak.low, peak.high))
        rows.append((PEAK, where, Cell("n/a", math.nan), True))
    return LANDSCAPES.table("lr-laws", rows, {
        "law": lambda row: LANDSCAPES.words("law")[row[0]], LANDSCAPES.column("power_of_batch", "power"): itemgetter(1),
        "deviation": itemgetter(2), "describes": itemgetter(3)},
        lambda row: keys_of(one.space for one in found.batches), what=found.costs.target, **_words(found), notes=(
            LANDSCAPES.say("laws", **_words(found)),
            LANDSCAPES.say_if("adam", any(law.name == ADAM for law in laws.laws)),
            LANDSCAPES.say_if("peak_law", peak is not None)))


def landscape_figures(found: RateLandscapes) -> Iterator[Figure]:
    words = {"target": found.costs.target, "workload": heading(found.costs.workload), **_words(found)}
    fitted = spread_evenly([batch for batch in found.batches if batch.rate.landscape is not None], MOST_PANELS)
    known = [batch for batch in found.batches if not batch.rate.why]

    def figure(name: str, draw: Callable[..., None], batches: Sequence[RateLandscape], panels: int = 1) -> Figure:
        return LANDSCAPES.figure(name, draw, keys_of(batch.space for batch in batches), panels, **words)
    if fitted:
        draw = draw_panels(partial(_draw_landscape, found), fitted, [f"B = {one.global_batch:,}" for one in fitted])
        yield figure("lr-landscape", draw, fitted, len(fitted))
    yield figure("lr-landscape-loss", partial(_draw_losses, found), found.batches)
    if len(known) > 1:
        yield figure("lr-landscape-best", partial(_draw_best_rates, found, known), known)


def _draw_landscape(found: RateLandscapes, axes: Axes, one: RateLandscape) -> None:
    rates, space = one.rates, one.space
    low, value, high = one.steps(found.costs.confidence)
    top = 4 * float(space.steps[space.steps > 0].max(initial=one.rate.steps.value))
    value_axis(axes, "x", space.x.tolist(), PANEL_TICKS)
    log2_axis(axes, "y", [*space.steps.tolist(), one.rate.steps.value], most=PANEL_TICKS)
    if not one.rate.why:
        axes.axvspan(one.rate.best.low, one.rate.best.high, color=AMBER, alpha=0.25, linewidth=0,
                     label="best rate, its interval")
    axes.fill_between(rates, np.minimum(low, top), np.minimum(high, top), color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(rates, np.minimum(value, top), color=BLUE, linewidth=1.4, label="at the best others")
    unmet: Look = {"marker": "^", "markeredgecolor": ORANGE, "markerfacecolor": "none", "markersize": 4.5}
    looks: list[tuple[np.ndarray, Look, str]] = [
        (space.kind == DIVERGED, {"marker": "x", "color": MUTED, "markersize": 4}, "diverged"),
        (space.kind == REACHED, {"marker": "o", "color": INK, "markersize": 3.5, "markeredgewidth": 0}, "met"),
        (~np.isin(space.kind, (DIVERGED, REACHED)), unmet, "did not meet")]
    for rows, look, label in looks:
        axes.plot(space.x[rows], space.steps[rows], linestyle="", **look,
                  label=label if (space.steps[rows] > 0).any() else None)
    label_axes(axes, _words(found)["rate"], "steps to target S")


def _draw_losses(found: RateLandscapes, axes: Axes) -> None:
    value_axis(axes, "x", [rate for one in found.batches for rate in one.space.x])
    value_axis(axes, "y", [value for one in found.batches for value in one.values if np.isfinite(value)] or [1.0])
    for at, one in enumerate(found.batches):
        axes.plot(one.space.x, one.values, linestyle="", marker="o", markersize=4, markeredgewidth=0,
                  color=shade(at, len(found.batches)),
                  label=f"B = {one.global_batch:,}" if is_named(at, len(found.batches)) else None)
    axes.axhline(found.costs.target.value, color=MUTED, linestyle="--", linewidth=1, label=str(found.costs.target))
    label_axes(axes, _words(found)["rate"], f"best {metric_name(found.costs.target.column)}")


def _draw_best_rates(found: RateLandscapes, batches: Sequence[RateLandscape], axes: Axes) -> None:
    best, sizes = [batch.rate.best for batch in batches], [batch.global_batch for batch in batches]
    log2_axis(axes, "x", sizes)
    log2_axis(axes, "y", [one.value for one in best], ends_of(best), most=TICKS, arrows=arrows(best))
    decimal_ticks(axes.yaxis, axes.get_ylim())
    if found.laws.peak is not None:
        axes.axvspan(found.laws.peak.low, found.laws.peak.high, color=GREEN, alpha=0.12, linewidth=0)
        axes.axvline(found.laws.peak.value, color=GREEN, linewidth=1.2, label="peak")
    fits = [batch.rate.landscape for batch in batches]
    y, variance = np.array([[fit.best.mean(), fit.best.var()] for fit in fits if fit is not None]).T
    for law, (look, label) in ((law, LINES[law.name]) for law in found.laws.laws if law.name in LINES):
        power, fitted = law.power.value, law.name == POWER
        level = np.average(y - power * np.log(sizes), weights=1 / variance)         # as the fit is
        draw_line(axes, [(end, float(math.exp(level) * end ** power)) for end in (sizes[0], sizes[-1])],
                  BLUE if fitted else MUTED, look, 1.2, label=f"{label} {power:.2f}" if fitted else label)
    for one in batches:
        mark_estimate(axes, one.global_batch, one.rate.best, BLUE, "o", "best rate, fitted")
    axes.plot(sizes, [batch.rate.tried for batch in batches], linestyle="", marker="x", color=INK, markersize=5,
              label="best rate tried")
    label_axes(axes, "global batch B (examples)", _words(found)["rate"])
