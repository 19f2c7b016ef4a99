"""The spread over repeats, pooled over the cells of a section, as two or three repeats per cell cannot estimate it.

Steps, seconds and examples per second each have a pool. Seeds of one setting that ran at several worker counts are the
same updates and must not count twice. So steps are pooled over batches; seconds, which depend on the steps, get the
degrees of freedom of one cell per setting. Ratios of such cells are paired by seed and have pools of their own. Runs
that did not meet the target count as beyond what they reached."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from ..log.schema import UNKNOWN_SEED
from .grouping import group_by
from .intervals import (OWN_FROM, Pools, Spread, crossed, joined, logarithms, pooled, pooled_censored, pooled_paired,
                        pooled_repeats)
from .steps import BEFORE, SECONDS, SPEED, STEPS, RunCell, known
from .timings import HOURS, ran_in_a_row
from .trials import SeedKey

OF_STEPS = STEPS, BEFORE[STEPS]
OF_SECONDS = SECONDS, BEFORE[SECONDS]
ROUNDING = 1e-12        # a variance


def pools_of(cells: Sequence[RunCell], by_batch: Sequence[RunCell] = ()) -> Pools:
    """The pools of a section's cells, of one worker count each; ``by_batch`` are those over all worker counts."""
    cell: dict[str, Spread] = {}
    batches, seeds = [one.global_batch for one in by_batch], {one.samples.seeds for one in by_batch}
    alike = len(seeds) == 1 and not any(number == UNKNOWN_SEED for number, *_ in seeds.pop())
    for name in OF_STEPS:
        spread = pooled_censored(_measured(by_batch, name), _reached(by_batch, "last_step"), batches)
        samples = [getattr(one.samples, name) for one in by_batch]
        cell[name] = crossed(spread, samples, batches) if alike else spread
    cell |= {name: _pool_settings(cells, name) for name in OF_SECONDS}
    cell[SPEED] = pooled_repeats(_measured(cells, SPEED))
    groups = [group for group in group_by(cells, updates).values() if len(group) > 1]
    paired = {name: pooled_paired(_tables(groups, name)) for name in (*OF_STEPS, *OF_SECONDS, SPEED)}
    if cell[SPEED].shared[0]:
        paired[SPEED] = pooled_paired([_measured(cells, SPEED)])
    if ran_in_a_row([run.trial for one in cells for run in one.runs]):
        for pools, sides in ((cell, 1), (paired, 2)):
            pools |= {name: replace(pools[name], apart=sides * HOURS ** 2) for name in (*OF_SECONDS, SPEED)}
    return Pools(cell, paired)


def stand_out(cells: Sequence[RunCell], name: str) -> list[RunCell]:
    """Cells that use the pool although their own spread exceeds that of the others (one-sided F test, 1 %)."""
    found = []
    for cell in cells:
        samples = _measured([cell], name)
        others = [other for other in cells if other is not cell]
        own, rest = pooled(samples), pooled(_measured(others, name), [one.global_batch for one in others] if
                                            name in OF_STEPS else ()).at(cell.global_batch)
        if own.freedom and rest.freedom and len(samples[0]) < OWN_FROM:
            met, before = logarithms(cell.samples.with_before(name))
            grid = np.nan_to_num((met - before) ** 2).mean() / 12 + ROUNDING        # of evaluations
            if own.variance > (rest.variance + grid) * scipy.special.fdtri(own.freedom, rest.freedom, 0.99):
                found.append(cell)
    return found


def updates(cell: RunCell) -> tuple[str, tuple[SeedKey, ...]]:
    """Equal for cells with the same sequences of updates: one setting under the same seeds."""
    return cell.setting, cell.samples.seeds


def _pool_settings(cells: Sequence[RunCell], name: str) -> Spread:
    parts, batches = [], []
    for group in group_by(cells, lambda cell: cell.setting).values():
        samples = _measured(group, name)
        spread = pooled_censored(samples, _reached(group, "last_seconds"))
        freedom = min(spread.freedom, max(map(len, samples)) - 1)
        parts.append((spread.variance * freedom, freedom))
        batches.append(group[0].global_batch)
    return joined(parts, batches)


def _tables(groups: Sequence[Sequence[RunCell]], name: str) -> list[np.ndarray]:
    """One table per group, a row per cell and a column per seed: the seeds that all its cells measured."""
    tables = [np.array([getattr(cell.samples, name) for cell in group]) for group in groups]
    whole = [table[:, ~np.isnan(table).any(0)] for table in tables]
    return [table for table in whole if table.size]


def _reached(cells: Sequence[RunCell], name: str) -> list[float]:
    """The least that a run of each cell which did not meet the target reached."""
    return [min((getattr(run, name) for run in cell.runs if not run.met), default=np.inf) for cell in cells]


def _measured(cells: Sequence[RunCell], name: str) -> list[np.ndarray]:
    return [known(getattr(cell.samples, name)) for cell in cells]
