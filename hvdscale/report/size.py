"""Laws over size: what the workloads of a report say of larger ones, in findings, tables and a figure.

    view = view_of_laws(laws_of(groups, studies, sizes))
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ..analysis.intervals import Estimate
from ..analysis.size.borrowed import BorrowedLaw, LawCost, costs_of
from ..analysis.size.laws import QUANTITIES, CellResult, SizeLaws
from ..analysis.size.power_law import REACH, PowerLaw
from ..formatting.numbers import counted, in_brackets, listed, number, ratio
from .columns import metric_name
from .drawing import (BLUE, INK, MUTED, PANEL_TICKS, TICKS, Axes, Figure, decimal_ticks, is_known, mark_estimate,
                      value_axis)
from .findings import Finding, finding_of
from .table import Cell, Column, Row, Table, TrialKeys, interval_cell, number_cell
from .view import View, present

ZHANG = "Zhang et al. 2024, arXiv 2410.21676"
STEPLAW = "Li et al. 2025, arXiv 2503.04715"
AHEAD = 8.0                 # times beyond the largest size that the figure shows


def view_of_laws(found: SizeLaws, rules: Sequence[BorrowedLaw] = ()) -> View:
    """What there is to show of laws over size, and of what rules from elsewhere cost."""
    costs = [(rule, costs_of(rule, found)) for rule in rules]
    findings = [finding for key, law in found.quantities.items()
                for finding in finding_of(law_said(key, law), _first_exponent(law))]
    if not findings:
        findings = [Finding("No law over size: no workload has a critical batch or a best batch. A target, or a search "
                            "over six batches at one budget, gives them.")]
    findings += [Finding(rule_said(rule, own)) for rule, own in costs]
    tables = [laws_table(found)] * bool(found.quantities) + [
        costs_table(found, rule, own, at) for at, (rule, own) in enumerate(costs)]
    return View(tuple(findings), tuple(tables), present(cells_table(found)),
                partial(_figures, found))


def law_said(key: str, law: PowerLaw) -> tuple[str, ...]:
    """A law in sentences, the exponents first."""
    words = QUANTITIES[key][0]
    left_out = _left_out_said(law)
    if law.why:
        return (f"No law of the {words} over size: {counted(len(law.points), 'cell')} with an interval "
                f"{'is' if len(law.points) == 1 else 'are'} too few.", *left_out)
    powers = [f"{name}^{power_said(one)}" for name, one in law.exponents.items()]
    grow = "grow" if QUANTITIES[key][1] == "steps" else "grows"
    said = [f"The {words} {grow} as {' x '.join(powers)} over {counted(len(law.points), 'cell')}"
            + (", but the law does not describe them: they lie further from it than their intervals allow (p = "
               f"{law.lack_of_fit:.2g})." if law.lacks_fit else ".")]
    if law.path:
        said.append(f"{listed([law.names[0], *law.path])} cannot be told apart: in these cells one follows from the "
                    "other. The power is along that path; cells off it would separate them.")
    return (*said, *left_out)


def power_said(one: Estimate) -> str:
    """``0.47 (0.31 to 0.63)``."""
    return f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"


def _left_out_said(law: PowerLaw) -> tuple[str, ...]:
    if not law.left_out:
        return ()
    labels = [f"{one.label} ({', '.join(map(number, one.sizes))})" for one in law.left_out]
    return (f"Left out, as their intervals are open on one side: {listed(labels[:6])}"
            f"{' and others' * (len(labels) > 6)}.",)


def _first_exponent(law: PowerLaw) -> Estimate | None:
    return next(iter(law.exponents.values()), None)


def rule_said(rule: BorrowedLaw, costs: Sequence[LawCost]) -> str:
    """What a rule costs at worst."""
    known = [(one, estimate, words) for one in costs for estimate, words in (
        (one.loss, "more loss than the best"), (one.examples, "times the fewest examples")) if estimate]
    beyond = [one.cell.cell.label for one in costs if one.outside]
    outside = f" Outside the values that were run, so that nothing is known: {listed(beyond[:6])}." if beyond else ""
    if not known:
        return f"What '{rule.text}' costs is unknown: no cell has losses or steps there.{outside}"
    words = known[0][2]
    worst, estimate, _ = max((one for one in known if one[2] == words), key=lambda one: one[1].value)
    unit, shown = ("%", estimate.scaled(100)) if words.startswith("more") else ("", estimate)
    return (f"'{rule.text}' costs at most {number(shown.value, 2)}{unit}{in_brackets(shown.low, shown.high)} {words}, "
            f"at {_sizes_said(worst)}, where it names {number(worst.value)}{_best_said(worst)}.{outside}")


def _sizes_said(one: LawCost) -> str:
    return f"{one.cell.cell.label} ({', '.join(map(number, one.cell.cell.sizes))})"


def _best_said(one: LawCost) -> str:
    return f" and {number(one.best.value)} is best" if one.best and one.best.met else ""


def costs_table(found: SizeLaws, rule: BorrowedLaw, costs: Sequence[LawCost], at: int = 0) -> Table:
    """A cell a row: what the rule names there, what is best, and what the difference costs."""
    losses, steps = any(one.loss or one.outside for one in costs), any(one.steps for one in costs)
    columns = (Column("workload", "workload"), *(Column(name, name) for name in found.names),
               Column("rule", f"{rule.of} by rule", "1", rule.text), Column("best", f"best {rule.of}"),
               *[Column("loss", "more loss, %", "%", "lowest loss there over the lowest of all")] * losses,
               *[Column("steps", "x fewest steps", "1", "S / S_min"),
                 Column("examples", "x fewest examples", "1", "B S / E_min")] * steps)
    rows = []
    for one in costs:
        cells = [Cell(one.cell.cell.label), *map(number_cell, one.cell.cell.sizes), number_cell(one.value),
                 interval_cell(one.best or Estimate.unknown())]
        cells += [Cell("outside") if one.outside else interval_cell(
            (one.loss or Estimate.unknown()).scaled(100))] * losses
        cells += [interval_cell(part or Estimate.unknown(), ratio) for part in (one.steps, one.examples)] * steps
        rows.append(Row(tuple(cells), _trials(one.cell), ()))
    return Table(f"size-rule{f'-{at + 1}' * bool(at)}", f"What '{rule.text}' costs", columns, tuple(rows),
                 ("A best batch from steps is that of 20% more examples than the fewest.",) * steps)


def laws_table(found: SizeLaws) -> Table:
    """A law a row: its powers, its factor and whether it describes the cells."""
    columns = (Column("quantity", "of"), *(
        Column(f"power_{name}", f"power of {name}", "1", f"a of y = c ... {name}^a; '-': not in the law", ZHANG)
        for name in found.names),
        Column("factor", "factor", "1", "c, with sizes as they are"), Column("cells", "cells"),
        Column("lack_of_fit", "p of lack of fit", "1", "F test of the residuals against the points' own intervals"))
    rows = []
    for key, law in found.quantities.items():
        powers = [_power_cell(law, name) for name in found.names]
        rows.append(Row((Cell(QUANTITIES[key][0]), *powers, number_cell(law.factor),
                         Cell(str(len(law.points)), len(law.points)), number_cell(law.lack_of_fit)), (), ()))
    budget = f" within {found.budget}" if found.budget else " within each trial's own budget"
    compared = (f"Best batch and rate: lowest {metric_name(found.metric[0])}{budget}.",) * (
        "best_batch" in found.quantities) if found.metric else ()
    return Table("size-laws", "Laws over size", columns, tuple(rows),
                 (f"Intervals: {found.confidence:.0%}, from the cells' own intervals and their distance from the law.",
                  *compared))


def _power_cell(law: PowerLaw, name: str) -> Cell:
    one = law.exponents.get(name)
    if one is None:
        return Cell("same path" if name in law.path else "constant" if name in law.constant else "-")
    return Cell(f"{one.value:.2f}", one.value, one.low, one.high, f"{one.low:.2f} to {one.high:.2f}")


def cells_table(found: SizeLaws) -> Table | None:
    """A cell a row: its sizes and what was measured there."""
    if not found.cells:
        return None
    columns = (Column("workload", "workload"), *(Column(name, name) for name in found.names), *(
        Column(key, QUANTITIES[key][0], QUANTITIES[key][1]) for key in found.quantities))
    rows = tuple(Row((Cell(one.cell.label), *map(number_cell, one.cell.sizes), *(
        interval_cell(one.estimate(key) or Estimate.unknown()) for key in found.quantities)), _trials(one), ())
        for one in found.cells)
    return Table("size-cells", "Cells of the laws over size", columns, rows, (f"Intervals: {found.confidence:.0%}.",))


def _trials(one: CellResult) -> TrialKeys:
    """One trial a batch, as what a cell is of."""
    return tuple(study.key(0) for study in one.cell.studies if len(study))


def _figures(found: SizeLaws) -> Iterator[Figure]:
    laws = {key: law for key, law in found.quantities.items() if not law.why}
    if not laws:
        return
    trials = tuple(key for one in found.cells for key in _trials(one))

    def draw(*axes: Axes) -> None:
        for one, (key, law) in zip(axes, laws.items()):
            _draw_law(one, law, PANEL_TICKS if len(laws) > 1 else TICKS)
            one.set_ylabel(f"{QUANTITIES[key][0]}{f' ({unit})' if (unit := QUANTITIES[key][1]) != '1' else ''}")
            if len(laws) > 1:
                one.set_title(QUANTITIES[key][0])
    others = found.names[1:]
    yield Figure("size-laws", f"Laws over {listed(found.names)}",
                 "Points: what was measured in each cell, with its interval. Line and band: the law with its "
                 f"{found.confidence:.0%} interval; dashed beyond the largest size."
                 + (f" At the middle of {listed(others)} on a log scale." if others else ""),
                 "y = c N^a D^b, least squares on logarithms", f"{ZHANG}; {STEPLAW}", trials, draw, len(laws))


def _draw_law(axes: Axes, law: PowerLaw, most: int) -> None:
    name = law.names[0]
    at = law.asked.index(name)
    known = sorted({one.sizes[at] for one in law.points})
    middle = {other: float(np.exp(np.mean([math.log(one.sizes[law.asked.index(other)]) for one in law.points])))
              for other in law.asked}
    end = known[-1] * min(AHEAD, REACH)
    for low, high, style in ((known[0], known[-1], "-"), (known[-1], end, "--")):
        along = np.geomspace(low, high, 60)
        band = [law.at({**middle, name: size}) for size in along.tolist()]
        measured = style == "-"
        axes.fill_between(along, [one.low for one in band], [one.high for one in band], color=BLUE,
                          alpha=0.2 if measured else 0.08, linewidth=0)
        axes.plot(along, [one.value for one in band], style, color=BLUE, linewidth=1.4,
                  label="law" if measured else "extrapolated")
    axes.axvline(known[-1], color=MUTED, linewidth=0.8, linestyle=":")
    for one in law.points:
        mark_estimate(axes, one.sizes[at], one.estimate, INK, "o", "measured")
    ends = [end for one in law.points if is_known(one.estimate) for end in (one.estimate.low, one.estimate.high)
            if 0 < end < math.inf]
    far = law.at({**middle, name: end}).value
    value_axis(axes, "y", [*ends, far], most)
    axes.set_xscale("log")
    axes.set_xlim(known[0] / 1.3, end * 1.3)
    decimal_ticks(axes.xaxis, (known[0], end), most)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 1))
    axes.set_xlabel(name)
