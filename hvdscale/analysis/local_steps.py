"""Steps to target S of M replicas against H, the steps between their synchronizations: the axis of the batch once more.

A run to the target exchanges N = S / H times, and N against H is what S is against the batch B. Replicas that exchange
often lose nothing, as is proved of local SGD up to some H (Stich 2018, arXiv 1805.09767): S does not change, N H is
constant, as B S is under perfect scaling. Replicas that exchange seldom come, in each round, as far as they get alone,
so that a longer one gains nothing: N is constant, as S is on its plateau. With N = N_min (1 + (H_crit / H)^p)^(1/p),
see critical_batch_fit, that is

    S = S_often (1 + (H / H_crit)^p)^(1/p)          S_often = N_min H_crit: the steps of replicas that exchange often
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..target import Target
from .defaults import Options
from .grouping import group_by
from .intervals import Estimate, geometric_mean, mean_interval, pooled
from .regimes import Regimes, regimes_of
from .steps import RunCell
from .studies import best_value
from .trials import EVERY_STEP


def by_replicas(cells: Sequence[RunCell]) -> list[list[RunCell]]:
    """Of a section's cells by Trial.sync those of one M at one global batch, by H; first where most H ran."""
    apart = [cell for cell in cells if cell.sync != EVERY_STEP]
    return sorted(group_by(apart, lambda cell: (cell.global_batch, cell.sync[0])).values(), key=lambda own: -len(own))


def exchanges(cell: RunCell) -> Estimate:
    """N; of synchronous training S."""
    return cell.steps.scaled(1 / (cell.sync[1] or 1))


def regimes_over_sync(cells: Sequence[RunCell], options: Options = Options()) -> Regimes:
    """Of N against H."""
    return regimes_of([cell.sync[1] for cell in cells], list(map(exchanges, cells)), options)


def best_within(cells: Sequence[RunCell], target: Target, confidence: float) -> tuple[int, list[Estimate]]:
    """(the steps that all runs of these cells have run, the best of the target's metric within them: means over seeds).
    """
    steps = int(min((run.last_step for cell in cells for run in cell.runs if run.measured), default=0))
    values = [np.array([best_value(run.trial.metrics[target.column][run.trial.step <= steps], target.minimizes)
                        for run in cell.runs if run.measured]) for cell in cells]
    pool, found = pooled(values), []
    for own in values:
        low, high = mean_interval(own, pool, confidence)
        found.append(Estimate(float(geometric_mean(own)) if len(own) else np.nan, float(low), float(high), len(own)))
    return steps, found
