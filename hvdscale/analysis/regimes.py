"""How many steps each global batch needs, and how far that scales perfectly (Shallue et al. 2019, section 4.1).

The worker count is an execution detail: one setting under one seed is the same sequence of updates at any, so all
worker counts of a batch enter one row, and a seed counts once.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .intervals import CONFIDENCE
from .speedup import Ratio, step_speedup
from .steps import Cell, Estimate

PERFECT_WITHIN = 0.25       # B S may be this share above the smallest B S
USEFUL_WITHIN = 0.20        # S may be this share above the fewest steps


@dataclass(frozen=True, eq=False)
class BatchPoint:
    """One global batch."""

    cell: Cell
    examples: Estimate                  # B S: to target
    statistical_efficiency: Ratio       # against the smallest batch
    perfect: bool                       # B S within tolerance of the smallest B S

    @property
    def global_batch(self):
        return self.cell.global_batch


@dataclass(frozen=True, eq=False)
class Batches:
    """Every global batch of a workload, smallest first."""

    points: tuple[BatchPoint, ...]
    perfect_within: float
    useful_within: float
    maximum_useful: int | None          # smallest B whose S is within useful_within of the fewest; None: none met


def batches_of(cells, perfect_within=PERFECT_WITHIN, useful_within=USEFUL_WITHIN, confidence=CONFIDENCE) -> Batches:
    """The table by batch of cells that have one global batch each, over all worker counts."""
    cells = sorted(cells, key=lambda cell: cell.global_batch)
    met = [cell for cell in cells if cell.steps.met]
    examples = [cell.global_batch * cell.steps.value for cell in met]
    perfect = {cell.global_batch for cell, needed in zip(met, examples)
               if needed <= (1 + perfect_within) * min(examples)}
    fewest = min((cell.steps.value for cell in met), default=np.nan)
    useful = [cell.global_batch for cell in met if cell.steps.value <= (1 + useful_within) * fewest]
    points = tuple(BatchPoint(cell, cell.steps.scaled(cell.global_batch), _efficiency(cell, cells[0], confidence),
                              cell.global_batch in perfect) for cell in cells)
    return Batches(points, perfect_within, useful_within, min(useful, default=None))


def _efficiency(cell, smallest, confidence):
    return step_speedup(cell, smallest, confidence).scaled(smallest.global_batch / cell.global_batch)
