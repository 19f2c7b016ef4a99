"""Steps at the lasting crossing beside those at the first evaluation that met the target, by global batch.

    crossings_table(section), crossings_found(section)
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
from ...formatting.numbers import in_brackets, percent, whole
from ..columns import BATCH
from ..findings import Finding
from ..table import Cell, Column, Row, Table, count_cell, keys_of, number_cell

HELD = Column("crossing", "steps to target", "steps", "S of the other tables, at the crossing that was asked for")
LASTS = Column("lasting_steps", "lasting crossing", "steps", "where the isotonic regression of the run's metric meets "
               "the target, of runs that went on to 1.5 times their steps; else where a power of the steps, fitted to "
               "the metric, meets it; geometric mean over runs", "Bartholomew 1959, Biometrika 46")
MODELLED = Column("modelled", "by a model", "runs", "runs whose lasting crossing is a fitted power: they ended "
                  "too early")
AFTER = Column("evaluations_after", "evaluations after", "evaluations",
               "after the first that met the target, of all runs")
MET_AFTER = Column("met_after", "of them met", "evaluations", "that met it, too")


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
    rows = tuple(Row((count_cell(cell.global_batch), Cell(whole(cell.steps.value), cell.steps.value),
                      number_cell(_lasting(found)), count_cell(sum(one.modelled for one in found)),
                      count_cell(sum(one.after for one in found)), count_cell(sum(one.met_after for one in found))),
                     keys_of(cell), ()) for cell, found in _by_batch(section))
    return (Table("crossings", f"First and lasting crossing: {section.target}",
                  (BATCH, HELD, LASTS, MODELLED, AFTER, MET_AFTER), rows, (
                      "Noise in the metric makes the first evaluation that meets a target early, and the earlier "
                      "the more evaluations there are. --crossing lasting has all tables of runs by the lasting "
                      "crossing.",)),
            ) if rows else ()


def crossings_found(section: Section) -> list[Finding]:
    """Where the first crossing was early by more than its interval: the batch at which by most."""
    early = [(cell.steps.value / lasting, cell, found, lasting) for cell, found in _by_batch(section)
             for lasting in [_lasting(found)] if lasting > cell.steps.high] if section.options.crossing == FIRST else []
    if not early:
        return []
    share, cell, found, lasting = min(early, key=lambda one: one[0])
    after, met = sum(one.after for one in found), sum(one.met_after for one in found)
    where = f"at {whole(lasting)}" if np.isfinite(lasting) else "not within its runs"
    counts = (f"; of {after:,} evaluations after the first that met, {met:,} did ({percent(met / after)})" if after
              else "")
    model = any(one.modelled for one in found)
    more = ["--crossing lasting has all tables by the lasting crossing."]
    more += ["It is a model's: the runs ended before 1.5 times their steps. keep_going, which trains past the target, "
             "would decide."] * model
    return [Finding(f"Batch {cell.global_batch:,} met {section.target} early, by noise: first at "
                    f"{whole(cell.steps.value)} steps{in_brackets(cell.steps.low, cell.steps.high)}, for good {where}"
                    f"{' (a model)' * model}{counts}.", tuple(more))]


def crossing_said(options: Options) -> tuple[str, ...]:
    """What the lasting crossing, where it was asked for, does not apply to."""
    return ("Runs meet their target at the lasting crossing; a run for which it is unknown, at its first. Curves, "
            "rules and budgets of searches keep the first.",) * (options.crossing == LASTING)
