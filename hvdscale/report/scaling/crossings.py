"""Steps at the lasting crossing beside those at the first evaluation that met the target, by global batch.

    crossings_table(section), find_early_crossing(section)
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...analysis.crossing import Crossing
from ...analysis.defaults import FIRST, LASTING
from ...analysis.intervals import geometric_mean
from ...analysis.report_data import Options, Section
from ...analysis.steps import RunCell
from ...analysis.steps import crossing_of
from ...formatting.numbers import whole
from ..columns import BATCH
from ..findings import Finding
from ..table import Cell, Table, count_cell, number_cell
from .regimes import SCALING


def _crossings(section: Section, cell: RunCell) -> list[Crossing]:
    """Those of a cell's runs that met; empty for a search, whose steps are the fewest of many runs."""
    target = section.target
    if target is None or cell.searched:
        return []
    found = (crossing_of(run.trial, target) for run in cell.runs)
    return [one for one in found if one is not None]


def _lasting(found: Sequence[Crossing]) -> float:
    """The geometric mean over runs; NaN where it is unknown for one, inf where one did not last."""
    return float(geometric_mean([one.steps for one in found]))


def _by_batch(section: Section) -> list[tuple[RunCell, list[Crossing]]]:
    points = section.batches.measured if section.batches else ()
    return [(point.cell, found) for point in points if (found := _crossings(section, point.cell))]


def crossings_table(section: Section) -> tuple[Table, ...]:
    """A row a batch, for files; () where no run met the target."""
    rows = _by_batch(section)
    return (SCALING.table("crossings", rows, {
        BATCH: lambda row: count_cell(row[0].global_batch),
        "crossing": lambda row: Cell(whole(row[0].steps.value), row[0].steps.value),
        "lasting_steps": lambda row: number_cell(_lasting(row[1])),
        "modelled": lambda row: count_cell(sum(one.modelled for one in row[1])),
        "evaluations_after": lambda row: count_cell(sum(one.after for one in row[1])),
        "met_after": lambda row: count_cell(sum(one.met_after for one in row[1]))},
        lambda row: row[0].keys, notes=(SCALING.say("crossing_noise"),), what=section.target),) if rows else ()


def find_early_crossing(section: Section) -> list[Finding]:
    """Where the first crossing was early by more than its interval: the batch at which by most."""
    early = [(cell.steps.value / lasting, cell, found, lasting) for cell, found in _by_batch(section)
             for lasting in [_lasting(found)] if lasting > cell.steps.high] if section.options.crossing == FIRST else []
    if not early:
        return []
    _, cell, found, lasting = min(early, key=lambda one: one[0])
    after, met = sum(one.after for one in found), sum(one.met_after for one in found)
    model = any(one.modelled for one in found)
    more = [SCALING.say("early_option"), *[SCALING.say("early_model")] * model]
    return [SCALING.find("early", None, more, batch=cell.global_batch, target=section.target, first=cell.steps,
                         lasting=lasting if np.isfinite(lasting) else None, model=model, after=after or None, met=met,
                         share=met / after if after else None)]


def describe_crossing(options: Options) -> tuple[str, ...]:
    """What the lasting crossing, where it was asked for, does not apply to."""
    return (SCALING.say("lasting"),) * (options.crossing == LASTING)
