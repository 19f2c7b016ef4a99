"""Learning-rate landscapes: steps and loss against the rate at each batch, and what describes the best rates.

    view = landscapes(about)
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ..analysis.best_points import DIVERGED, REACHED
from ..analysis.intervals import Estimate
from ..analysis.landscapes import ADAM, PEAK, POWER, RateLandscape, RateLandscapes, RateLaw, RateLaws, rate_landscapes
from ..analysis.rules import FEW, Exponent
from ..formatting.numbers import counted, exact, listed, number, percent, ratio, span
from .about import About
from .columns import BATCH, SHALLUE, STEPS, metric_name
from .drawing import (AMBER, BLUE, GREEN, INK, MUTED, ORANGE, PANEL_TICKS, TICKS, Axes, Figure, Look, arrows_of,
                      fraction, is_named, log2_axis, mark_estimate, shade, value_axis)
from .findings import finding_of
from .search.curve_figures import heading
from .table import Cell, Column, Row, Table, count_cell, interval_cell, number_cell, steps_cell
from .view import View, present

SURGE = "Li et al. 2024, arXiv 2405.14578"
NAMES = {"none": "a constant rate", "sqrt": "the square root of the batch", "linear": "the batch",
         ADAM: "adam_sqrt", POWER: "a power of the batch", PEAK: "a peak"}
MOST_PANELS = 9
BIN = 2.0                   # rates within this factor are in one row
WHY = {FEW: "too few met the target"}


def landscapes(about: About) -> View:
    """What there is to show of a workload's studies, whose fits are those of the learning-rate rules."""
    found = rate_landscapes(about.curve, about.costs)
    if found is None:
        return View()
    return View(finding_of(landscapes_said(found)), (landscapes_table(found), *present(laws_table(found))),
                (rates_table(found),), partial(landscape_figures, found))


def rate_said(found: RateLandscapes) -> str:
    """What is on the axis."""
    return "effective learning rate" if found.effective else "learning rate"


def landscapes_said(found: RateLandscapes) -> tuple[str, ...]:
    """Which law describes the best rates, in a sentence; () where too few are known."""
    if not found.laws.laws:
        return ()
    laws, name = found.laws, rate_said(found)
    if laws.peak is not None:
        return (f"The best {name} rises with the batch, then falls: its peak is at batch {_batches(laws.peak)}. For "
                "Adam, Li et al. 2024 expect it at the noise scale.",)
    if not laws.described_by:
        known = [one for one in found.batches if not one.rate.why]
        rates = ", ".join(f"{number(one.rate.best.value, 2)} at {one.global_batch:,}" for one in known)
        return (f"No power of the batch describes the best {name}: {rates}.",)
    ruled_out = [NAMES[law.name] for law in laws.laws if not law.describes and law.name not in (POWER, ADAM)]
    without = f", not by {listed(ruled_out, 'or')}" if ruled_out else ""
    described = listed([NAMES[name] for name in laws.described_by if name != ADAM], "or")
    return (f"The best {name} over {counted(len(laws.exponent.batches), 'batch', 'batches')} is described by "
            f"{described}{without}: its power is {_power(laws.exponent)}.",)


def _batches(peak: Estimate) -> str:
    return f"{exact(peak.value, 0)} ({exact(peak.low, 0)} to {exact(peak.high, 0)})"


def _power(exponent: Exponent) -> str:
    return f"{exponent.value:.2f} ({exponent.low:.2f} to {exponent.high:.2f})"


def landscapes_table(found: RateLandscapes) -> Table:
    """By batch: the best rate, the rates that lose little, and the fewest steps and best loss."""
    rate, tolerance = rate_said(found), percent(found.tolerance)
    columns = (
        BATCH, Column("trials", "trials", "1", "of the search, without repeats; below: how many met the target"), STEPS,
        Column("tried_rate", f"best {rate} tried", "1", f"{_formula(found)} of the trial with the fewest steps",
               SHALLUE),
        Column("best_rate", "best rate, fitted", "1", "median of the posterior of the best rate", "", "fitted"),
        Column("rates_within", f"rates within {tolerance}", "1", f"between which the median loss is at most "
               f"{tolerance} more steps than at the best rate"),
        Column("best_value", f"best {metric_name(found.target.column)}", "1", "of any trial at any evaluation",
               SHALLUE, "best metric"))
    rows = tuple(Row((
        count_cell(one.global_batch), count_cell(len(one.space.x), f"{int((one.space.kind == REACHED).sum())} met"),
        steps_cell(one.steps), number_cell(one.rate.tried), _best_cell(one), _width_cell(one, found.tolerance),
        number_cell(_best_value(one.values, found.target.minimizes))), one.rate.keys, ()) for one in found.batches)
    return Table("lr-landscape", f"Learning-rate landscapes: {found.target}", columns, rows, (
        f"Steps as a function of the {rate}, fitted to all trials of a batch: those that did not meet the target count "
        "as needing more steps than they ran. The other metaparameters are as drawn; at the best others, all steps of "
        "a batch are smaller by one factor.",
        f"Best rate: {found.confidence:.0%} interval; n/a: too few trials met the target, or the trials do not bracket "
        "the best rate."))


def _formula(found: RateLandscapes) -> str:
    return "lr / (1 - momentum)" if found.effective else "lr"


def _best_cell(one: RateLandscape) -> Cell:
    why = WHY.get(one.rate.why, "not bracketed") if one.rate.why else ""
    return Cell("n/a", math.nan, math.nan, math.nan, why) if why else interval_cell(one.rate.best)


def _width_cell(one: RateLandscape, tolerance: float) -> Cell:
    low, high = (math.nan, math.nan) if one.rate.why else one.width(tolerance)
    return Cell(span(low, high) or "n/a", ratio_of(low, high), low, high)


def ratio_of(low: float, high: float) -> float:
    """The width of a range as a factor."""
    return high / low


def _best_value(values: np.ndarray, minimizes: bool) -> float:
    known = values[np.isfinite(values)]
    return float(known.min() if minimizes else known.max()) if len(known) else math.nan


def laws_table(found: RateLandscapes) -> Table | None:
    """What would describe the best rates; None where too few batches have one."""
    laws = found.laws
    if not laws.laws:
        return None
    columns = (Column("law", "best rate follows"), Column("power", "power of the batch", "1", "P of rate = c B^P"),
               Column("deviation", "off by", "1", "weighted root mean square of log(best rate / law), as a factor"),
               Column("describes", "describes them", "1", "whether the sum of the squares of log(best rate / law) over "
                      "the variances of the best rates is below the quantile of chi-squared, or a power describes them "
                      "whose interval holds the law's; and there is no peak"))
    rows = [_law_row(found, law) for law in laws.laws]
    if laws.peak is not None:
        peak = Cell(f"peak at {exact(laws.peak.value, 0)}", laws.peak.value, laws.peak.low, laws.peak.high,
                    span(laws.peak.low, laws.peak.high))
        rows.append(Row((Cell(NAMES[PEAK]), peak, Cell("n/a", math.nan), Cell("yes")), _keys(found.batches), ()))
    return Table("lr-laws", f"What describes the best {rate_said(found)}s: {found.target}", columns, tuple(rows), (
        f"The fitted power has its {found.confidence:.0%} interval (Hartung and Knapp 2001), batches weighted by how "
        "well their best rate is known. A law describes the best rates if it lies no farther off than their intervals "
        "let expect.", *_notes_on(laws)))


def _notes_on(laws: RateLaws) -> Iterator[str]:
    if any(law.name == ADAM for law in laws.laws):
        yield ("adam_sqrt has the rate of the square root; its betas and epsilon, which no search along the rate "
               "tries, are not judged here.")
    if laws.peak is not None:
        yield (f"Peak ({SURGE}): some best rate is surely above that of a smaller and of a larger batch; with one peak "
               "it lies between the nearest of these.")


def _law_row(found: RateLandscapes, law: RateLaw) -> Row:
    power, fitted = law.power, law.power.low == law.power.low
    cell = (Cell(f"{power.value:.2f}", power.value, power.low, power.high, f"{power.low:.2f} to {power.high:.2f}")
            if fitted else Cell(f"{power.value:g}", power.value, math.nan, math.nan))
    return Row((Cell(NAMES[law.name]), cell, Cell(f"x{ratio(law.deviation)}", law.deviation),
                Cell("yes" if law.describes else "no")), _keys(found.batches), ())


def _keys(batches: Sequence[RateLandscape]) -> tuple[tuple[str, int], ...]:
    return tuple(key for one in batches for key in one.space.keys)


def rates_table(found: RateLandscapes) -> Table:
    """By batch and rate, in bins of a factor BIN: trials, the fewest steps, the best loss, and the fitted steps."""
    columns = (BATCH, Column("rate", rate_said(found), "1", f"{_formula(found)}: the middle of a bin of a factor "
                             f"{BIN:g}"),
               Column("trials", "trials", "1", "in the bin; below: how many met the target"),
               Column("fewest_steps", "fewest steps", "steps", "to the target, of the trials in the bin"),
               Column("steps", "steps, fitted", "steps", "at the best other metaparameters: steps of the tuned optimum "
                      "times the fitted loss at the middle of the bin"),
               Column("value", f"best {metric_name(found.target.column)}", "1", "of the trials in the bin", "",
                      "best metric"))
    return Table("lr-landscape-rates", f"Steps and loss against the {rate_said(found)}: {found.target}", columns,
                 tuple(row for one in found.batches for row in _rate_rows(found, one)), ())


def _rate_rows(found: RateLandscapes, one: RateLandscape) -> Iterator[Row]:
    bins = np.floor(np.log(one.space.x) / math.log(BIN)).astype(int)
    places = np.unique(bins)
    rates = BIN ** (places + 0.5)
    for at, rate, (low, value, high) in zip(places, rates, one.steps_at(rates, found.confidence).T):
        rows = np.flatnonzero(bins == at)
        met = one.space.steps[rows][one.space.kind[rows] == REACHED]
        yield Row((count_cell(one.global_batch), number_cell(rate), count_cell(len(rows), f"{len(met)} met"),
                   number_cell(float(met.min()) if len(met) else math.nan),
                   interval_cell(Estimate(float(value), float(low), float(high), len(one.space.x))),
                   number_cell(_best_value(one.values[rows], found.target.minimizes))),
                  tuple(one.space.keys[row] for row in rows), ())


def landscape_figures(found: RateLandscapes) -> tuple[Figure, ...]:
    """The landscapes by batch, and the best rates with the laws."""
    fitted = [one for one in found.batches if one.rate.landscape is not None]
    known = [one for one in found.batches if not one.rate.why]
    return (*([_landscapes_figure(found, fitted)] if fitted else []), _losses_figure(found),
            *([_best_rates_figure(found, known)] if len(known) > 1 else []))


def _landscapes_figure(found: RateLandscapes, batches: Sequence[RateLandscape]) -> Figure:
    if len(batches) > MOST_PANELS:
        batches = [batches[round(at * (len(batches) - 1) / (MOST_PANELS - 1))] for at in range(MOST_PANELS)]

    def draw(*axes: Axes) -> None:
        for panel, one in zip(axes, batches):
            _draw_landscape(panel, found, one, f"B = {one.global_batch:,}" if len(batches) > 1 else "")
    return Figure(
        "lr-landscape", f"Steps to {found.target} against the {rate_said(found)}\n{heading(found.workload)}",
        "One mark a trial: discs met the target, triangles did not within the steps shown, crosses "
        "diverged. The curve has the steps at the best other metaparameters, the pale band its "
        f"{found.confidence:.0%} interval, the amber one that of the best rate.",
        "steps of the tuned optimum times the fitted loss", f"{SHALLUE}, section 4.7", _keys(batches), draw,
        len(batches))


def _draw_landscape(axes: Axes, found: RateLandscapes, one: RateLandscape, title: str) -> None:
    rates, space = one.rates(), one.space
    low, value, high = one.steps_at(rates, found.confidence)
    top = 4 * float(space.steps[space.steps > 0].max(initial=one.steps.value))
    value_axis(axes, "x", space.x.tolist(), PANEL_TICKS)
    log2_axis(axes, "y", [*space.steps.tolist(), one.steps.value], most=PANEL_TICKS)
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
        axes.plot(space.x[rows], space.steps[rows], linestyle="", **look, label=label if rows.any() else None)
    axes.set_xlabel(rate_said(found))
    axes.set_ylabel("steps to target S")
    if title:
        axes.set_title(title)


def _losses_figure(found: RateLandscapes) -> Figure:
    metric = metric_name(found.target.column)

    def draw(axes: Axes) -> None:
        value_axis(axes, "x", [rate for one in found.batches for rate in one.space.x])
        values = [value for one in found.batches for value in one.values if np.isfinite(value)]
        value_axis(axes, "y", values or [1.0])
        for at, one in enumerate(found.batches):
            axes.plot(one.space.x, one.values, linestyle="", marker="o", markersize=4, markeredgewidth=0,
                      color=shade(at, len(found.batches)),
                      label=f"B = {one.global_batch:,}" if is_named(at, len(found.batches)) else None)
        axes.axhline(found.target.value, color=MUTED, linestyle="--", linewidth=1, label=str(found.target))
        axes.set_xlabel(rate_said(found))
        axes.set_ylabel(f"best {metric}")
    return Figure(
        "lr-landscape-loss", f"Best {metric} against the {rate_said(found)}\n{heading(found.workload)}",
        f"The best {metric} of each trial at any of its evaluations; one colour a batch. Trials that a search stopped, "
        "or that ended at their target, might have become better.", "best over the evaluations of a trial",
        f"{SHALLUE}, section 4.7", _keys(found.batches), draw)


def _best_rates_figure(found: RateLandscapes, batches: Sequence[RateLandscape]) -> Figure:
    best, ends = [one.rate.best for one in batches], (batches[0].global_batch, batches[-1].global_batch)

    def draw(axes: Axes) -> None:
        log2_axis(axes, "x", [one.global_batch for one in batches])
        log2_axis(axes, "y", [one.value for one in best], [end for one in best for end in (one.low, one.high)],
                  most=TICKS, arrows=[arrow for one in best for arrow in arrows_of(one)])
        axes.yaxis.set_major_formatter(fraction)
        if found.laws.peak is not None:
            axes.axvspan(found.laws.peak.low, found.laws.peak.high, color=GREEN, alpha=0.12, linewidth=0)
            axes.axvline(found.laws.peak.value, color=GREEN, linewidth=1.2, label="peak")
        for law, (look, label) in ((law, LINES[law.name]) for law in found.laws.laws if law.name in LINES):
            axes.plot(ends, _line(batches, law.power.value, ends), look, color=BLUE if law.name == POWER else MUTED,
                      linewidth=1.2, label=f"{label}{f' {law.power.value:.2f}' * (law.name == POWER)}")
        for one in batches:
            mark_estimate(axes, one.global_batch, one.rate.best, BLUE, "o", "best rate, fitted")
        axes.plot([one.global_batch for one in batches], [one.rate.tried for one in batches], linestyle="", marker="x",
                  color=INK, markersize=5, label="best rate tried")
        axes.set_xlabel("global batch B (examples)")
        axes.set_ylabel(rate_said(found))
    return Figure(
        "lr-landscape-best", f"Best {rate_said(found)}, fitted: {found.target}\n{heading(found.workload)}",
        f"The fitted best rate of each batch with its {found.confidence:.0%} interval, and the rate of its best trial. "
        "Lines are the laws, each through the best rates as well as its power lets it.",
        "rate = c B^P; P = 0, 1/2, 1, and fitted", f"{SHALLUE}, section 4.6; {SURGE}", _keys(batches), draw)


LINES = {"none": (":", "constant"), "sqrt": ("-.", "square root"), "linear": ("--", "linear"), POWER: ("-", "power")}


def _line(batches: Sequence[RateLandscape], power: float, ends: tuple[int, int]) -> list[float]:
    """The law of this power at both ends, weighted as the fit is."""
    fits = [one.rate.landscape for one in batches]
    y, variance = np.array([[fit.best.mean(), fit.best.var()] for fit in fits if fit is not None]).T
    x = np.log([one.global_batch for one in batches])
    level = np.average(y - power * x, weights=1 / variance)
    return [float(math.exp(level) * end ** power) for end in ends]
