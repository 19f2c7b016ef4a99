"""Laws over size: what the workloads of a report say of larger ones, in findings, tables and a figure."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ...analysis.intervals import Estimate
from ...analysis.size.laws import QUANTITIES, BorrowedLaw, CellResult, LawCost, SizeLaws, costs_of
from ...analysis.size.sizes import REACH, PowerLaw
from ...formatting.numbers import in_brackets, number, ratio, written
from ..document import Details, Figures, Finding, Part
from ..drawing import (BLUE, INK, MUTED, PANEL_TICKS, TICKS, Axes, decimal_ticks, draw_panels, ends_of,
                       is_positive, label_axes, mark_estimate, value_axis)
from ..subject import Whole
from ..table import Cell, Column, Table, TrialKeys, cell_of, metric_name
from ..texts import SIZE, Cells, power_cell

AHEAD = 8.0                 # times beyond the largest size that the figure shows
MOST_NAMED = 6              # cells


def laws_over_size(whole: Whole) -> Iterator[Part]:
    budget = next(iter(whole.asked.budgets), None)
    return parts_of_laws(SizeLaws(whole.groups, whole.studies, whole.asked.sizes, budget, whole.asked),
                         whole.asked.laws)


def parts_of_laws(found: SizeLaws, rules: Sequence[BorrowedLaw] = ()) -> Iterator[Part]:
    def power(name: str, row: tuple[str, PowerLaw]) -> Cell | str:
        law = row[1]
        if name in law.exponents:
            return power_cell(law.exponents[name])
        return "same path" if name in law.path else "constant" if name in law.constant else "-"
    yield from [describe_law(key, law) for key, law in found.quantities.items()] or [SIZE.find("none")]
    if found.quantities:
        compared = "best_batch" in found.quantities and found.metric
        yield SIZE.table("size-laws", found.quantities.items(), {
            "quantity": lambda row: QUANTITIES[row[0]][0],
            **{SIZE.column("power", f"power_{name}", size=name): partial(power, name) for name in found.names},
            "factor": lambda row: row[1].factor, "cells": lambda row: len(row[1].points),
            "lack_of_fit": lambda row: row[1].lack_of_fit}, notes=[
                SIZE.say("intervals", confidence=found.confidence, law=True),
                SIZE.say("compared", metric=metric_name(compared[0]), budget=found.budget) if compared else ""])
    for at, rule in enumerate(rules):
        costs = costs_of(rule, found)
        yield describe_rule(rule, costs)
        yield costs_table(found, rule, costs, at)
    if found.cells:
        cells = _size_columns(found) | {Column(key, *QUANTITIES[key][:2]): partial(
            lambda key, one: one.estimates.get(key, Estimate.unknown()), key) for key in found.quantities}
        yield Details(lambda: [SIZE.table("size-cells", found.cells, cells, _trials, notes=[
            SIZE.say("intervals", confidence=found.confidence)])])
    laws = [(key, law) for key, law in found.quantities.items() if law.exponents]
    draw = draw_panels(lambda axes, one: _draw_law(axes, one[0], one[1], PANEL_TICKS if len(laws) > 1 else TICKS), laws,
                       [QUANTITIES[key][0] for key, _ in laws])
    trials = tuple(key for one in found.cells for key in _trials(one))
    yield Figures(lambda: [SIZE.figure("size-laws", draw, trials, len(laws), sizes=found.names, others=found.names[1:],
                                       confidence=found.confidence)] if laws else [])


def describe_law(key: str, law: PowerLaw) -> Finding:
    quantity, unit = QUANTITIES[key][:2]
    labels = [f"{one.label} ({', '.join(map(number, one.sizes))})" for one in law.left_out]
    more = [SIZE.say("left_out", cells=labels[:MOST_NAMED], more=len(labels) > MOST_NAMED)] if labels else []
    if not law.exponents:
        return SIZE.find("few_cells", None, more, quantity=quantity, cells=len(law.points), one=len(law.points) == 1)
    if law.path:
        more = [SIZE.say("path", sizes=[law.names[0], *law.path]), *more]
    powers = " x ".join(f"{name}^{written(one, 'power')}" for name, one in law.exponents.items())
    return SIZE.find("law", next(iter(law.exponents.values()), None), more, quantity=quantity, plural=unit == "steps",
                     powers=powers, cells=len(law.points), p=f"{law.lack_of_fit:.2g}" if law.lacks_fit else None)


def describe_rule(rule: BorrowedLaw, costs: Sequence[LawCost]) -> Finding:
    """What a rule costs at worst: in loss where that is known, else in examples."""
    beyond = [cost.cell.cell.label for cost in costs if cost.outside]
    outside = SIZE.say_if("outside", beyond, cells=beyond[:MOST_NAMED])
    of_loss = next((cost.loss is not None for cost in costs if cost.loss or cost.examples), False)
    known = [(cost, estimate) for cost in costs if (estimate := cost.loss if of_loss else cost.examples)]
    if not known:
        return SIZE.find("rule_unknown", rule=rule.text, outside=outside)
    worst, estimate = max(known, key=lambda one: one[1].value)
    shown = estimate.scaled(100) if of_loss else estimate
    return SIZE.find("rule_cost", rule=rule.text, cost=number(shown.value, 2), unit="%" if of_loss else "",
                     ends=in_brackets(shown.low, shown.high), loss=of_loss, named=worst.value, outside=outside,
                     where=f"{worst.cell.cell.label} ({', '.join(map(number, worst.cell.cell.sizes))})",
                     best=worst.best.value if worst.best and worst.best.met else None)


def _size_columns(found: SizeLaws) -> Cells:
    return {"workload": lambda one: one.cell.label, **{SIZE.column("size", name, size=name): partial(
        lambda at, one: float(one.cell.sizes[at]), at) for at, name in enumerate(found.names)}}


def costs_table(found: SizeLaws, rule: BorrowedLaw, costs: Sequence[LawCost], at: int) -> Table:
    unknown = Estimate.unknown()
    cells: Cells = {key: partial(lambda fill, one: fill(one.cell), fill) for key, fill in _size_columns(found).items()}
    cells |= {"rule": lambda one: one.value, "best": lambda one: one.best or unknown}
    if any(cost.loss or cost.outside for cost in costs):
        cells["loss"] = lambda one: "outside" if one.outside else (one.loss or unknown).scaled(100)
    if steps := any(cost.steps for cost in costs):
        cells |= {name: partial(lambda name, one: cell_of(getattr(one, name) or unknown, write=ratio), name)
                  for name in ("steps", "examples")}
    return SIZE.table("size-rule", costs, cells, lambda one: _trials(one.cell),
                      file=f"size-rule-{at + 1}" if at else "size-rule",
                      notes=[SIZE.say_if("from_steps", steps)], rule=rule.text, text=rule.text, of=rule.of)


def _trials(one: CellResult) -> TrialKeys:
    return tuple(study.key(0) for study in one.cell.studies if len(study))


def _draw_law(axes: Axes, key: str, law: PowerLaw, most: int) -> None:
    name, (quantity, unit) = law.names[0], QUANTITIES[key][:2]
    at = law.asked.index(name)
    known = sorted({point.sizes[at] for point in law.points})
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
    ends = list(filter(is_positive, ends_of(one.estimate for one in law.points if is_positive(one.estimate.value))))
    value_axis(axes, "y", [*ends, law.at({**middle, name: end}).value], most)
    axes.set_xscale("log")
    axes.set_xlim(known[0] / 1.3, end * 1.3)
    decimal_ticks(axes.xaxis, (known[0], end), most)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 1))
    label_axes(axes, name, quantity if unit == "1" else f"{quantity} ({unit})")
