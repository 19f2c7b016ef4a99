"""A batch that grows, beside constant ones: a table, and what it bought."""
from __future__ import annotations

import math

from collections.abc import Iterator
from functools import partial

from ...analysis.report_data import Section
from ...analysis.speedup import SpeedupPoint, compare
from ...analysis.steps import RunCell
from ...formatting.numbers import whole
from ...plan.batch_schedule import BatchSchedule
from ..document import Part
from ..subject import Subject
from ..table import BATCH, EXAMPLES, STATISTICAL, STEPS, TOKENS, Cell, Table
from ..texts import SCALING, Cells
from .cells import batch_cell, cell_notes, estimate_cell, met_cell, ratio_cell, table_of_cells, workers_cell


def _growing_table(section: Section) -> Table:
    """The runs whose batch grows beside those at its smallest and its largest batch."""
    rows: list[tuple[RunCell, SpeedupPoint | None, RunCell]] = []       # a cell, its ratios, and to what they are
    alone: list[int] = []
    for cell in section.cells:
        beside = [one for one in section.constant if one.workers == cell.workers]
        alone += [] if beside else cell.workers
        rows += [(cell, None, cell), *((one, compare(cell, one, section.options.confidence), cell) for one in beside)]

    def gained(row: tuple[RunCell, SpeedupPoint | None, RunCell], name: str) -> Cell:
        cell, point, grown = row
        return ratio_cell(getattr(point, name), grown, cell) if point else Cell("")
    tokens: Cells = {TOKENS: lambda row: estimate_cell(row[0].tokens, row[0])}
    batches = BatchSchedule.of_pairs(section.workload.batch_schedule)
    return table_of_cells("growing-batch", rows, {
        "workers": lambda row: workers_cell(row[0]), BATCH: lambda row: batch_cell(row[0]),
        "met": lambda row: met_cell(row[0]),
        STEPS: lambda row: estimate_cell(row[0].steps, row[0], whole),
        EXAMPLES: lambda row: estimate_cell(row[0].examples, row[0]),
        **(tokens if any(cell.tokens.runs for cell in section.cells) else {}),
        "seconds_to_target": lambda row: estimate_cell(row[0].seconds, row[0]),
        "worker_seconds": lambda row: estimate_cell(row[0].seconds.scaled(row[0].workers[0]), row[0]),
        "step_speedup": partial(gained, name="step_speedup"),
        SCALING.column("examples_ratio", STATISTICAL.key): partial(gained, name="statistical_efficiency"),
        "time_speedup": partial(gained, name="time_speedup")},
        what=section.target, gained=True, notes=(
            SCALING.say("growing_ratios", batches=str(batches)), SCALING.say(
                "growing_alone", workers=alone, smallest=batches.smallest, largest=batches.largest) if alone else "",
            *cell_notes(section, section.cells)))


def growing_batch(subject: Subject) -> Iterator[Part]:
    """What the growing batch bought at the most workers where a constant one ran, too, and by worker count."""
    section = subject.section
    if section.target and section.workload.batch_schedule:
        yield _growing_table(section)
    pairs = [(cell, one) for cell in section.cells for one in section.constant if one.workers == cell.workers]
    for cell, one in pairs:
        gained = compare(cell, one, section.options.confidence)
        speedup = gained.time_speedup
        if cell.workers == pairs[-1][0].workers and not math.isnan(speedup.value):
            yield SCALING.find("growing", speedup, workers=cell.workers[0], speedup=speedup, batch=one.global_batch,
                               examples=1 / gained.statistical_efficiency.value)
