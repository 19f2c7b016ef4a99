"""The spread over repeats, pooled over the cells of a section: two or three repeats a cell hardly tell their own.

Steps, seconds and examples a second each have a pool. What is counted twice says nothing new: seeds of one setting that
ran at several worker counts are the same updates, so steps are pooled over batches, and seconds, which hold them, have
the degrees of freedom of one cell a setting. Ratios of such cells are paired by seed and have pools of their own.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import fdtri

from .intervals import OWN_FROM, UNKNOWN, Spread, joined, pooled, pooled_paired

STEPS = ("steps", "steps_before")
SECONDS = ("seconds", "seconds_before")
SPEED = "examples_per_second"


@dataclass(frozen=True)
class Pools:
    """Pooled spreads by name of what was measured, a field of steps.Samples: of one cell, and of a ratio by seed."""

    cell: Mapping[str, Spread] = field(default_factory=dict)
    paired: Mapping[str, Spread] = field(default_factory=dict)

    def of(self, name) -> Spread:
        """The spread of a cell's repeats; UNKNOWN where no cell has two."""
        return self.cell.get(name, UNKNOWN)

    def of_paired(self, name) -> Spread:
        """The spread of a ratio of two cells of the same updates."""
        return self.paired.get(name, UNKNOWN)


def pools_of(cells, by_batch=()) -> Pools:
    """The pools of a section: of its cells that have one worker count each, and of those by global batch over all."""
    cell = {name: pooled(_measured(by_batch, name)) for name in STEPS}
    cell |= {name: _once_a_setting(cells, name) for name in SECONDS}
    cell[SPEED] = pooled(_measured(cells, SPEED))
    groups = [group for group in _grouped(cells, updates).values() if len(group) > 1]
    paired = {name: pooled_paired(_tables(groups, name)) for name in (*STEPS, *SECONDS, SPEED)}
    return Pools(cell, paired)


def stand_out(cells, name, level=0.01) -> list:
    """Cells whose own spread is too large to be that of the others (one-sided F test), and yet a pool stands for it."""
    found = []
    for cell in cells:
        samples = _measured([cell], name)
        own, rest = pooled(samples), pooled(_measured([other for other in cells if other is not cell], name))
        if own.freedom and rest.freedom and len(samples[0]) < OWN_FROM:
            if own.variance > rest.variance * fdtri(own.freedom, rest.freedom, 1 - level):
                found.append(cell)
    return found


def updates(cell):
    """Equal for cells that hold the same sequences of updates: one setting under the same seeds."""
    return cell.setting, tuple(cell.samples.seeds)


def _once_a_setting(cells, name):
    parts = []
    for group in _grouped(cells, lambda cell: cell.setting).values():
        samples = _measured(group, name)
        spread = pooled(samples)
        freedom = min(spread.freedom, max(map(len, samples)) - 1)
        parts.append((spread.variance * freedom, freedom))
    return joined(parts)


def _tables(groups, name):
    """A table a group, one cell a row and one seed a column: the seeds that all its cells measured."""
    tables = [np.array(_by_seed(group, name)) for group in groups]
    whole = [table[:, ~np.isnan(table).any(0)] for table in tables]
    return [table for table in whole if table.size]


def _measured(cells, name):
    return [values[~np.isnan(values)] for values in _by_seed(cells, name)]


def _by_seed(cells, name):
    return [getattr(cell.samples, name) for cell in cells]


def _grouped(cells, key):
    groups = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups
