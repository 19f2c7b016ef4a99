"""The map of Masters & Luschi: a metric over the batch size m and the base rate, the learning rate per example eta / m
(2018, arXiv 1804.07612, section 2).

They give every batch the same epochs and find batches of 2 to 32 best. At the same number of steps, larger batches
catch up (Shallue et al. 2019, section 4.7). Both readings come from one log."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .budgets import Budget, TrialKind, common_budgets, outcomes_under
from .studies import Study, with_metric
from .trials import JobKey

POOR = 0.75                 # the share of values with a color of their own; worse ones look alike


@dataclass(frozen=True, eq=False)
class BaseRates:
    """Every trial of a workload on the map: arrays of shape (trials,), by batch, then in the study's order."""

    workload: JobKey
    column: str
    minimizes: bool
    budget: Budget | None
    effective: bool             # whether the rate is eta / (1 - momentum), else eta, per example
    studies: tuple[Study, ...]
    study: np.ndarray           # index into studies
    trial: np.ndarray           # and into that study
    global_batch: np.ndarray
    rate: np.ndarray            # per example, above 0
    value: np.ndarray           # the best of the metric at any evaluation within the budget; NaN: none
    kind: np.ndarray            # MEASURED, SHORT (ended before it spent the budget), DIVERGED
    best: tuple[int, ...]       # index of the best value of each batch among MEASURED and SHORT, where there is any

    @property
    def log2_rate(self) -> np.ndarray:
        return np.log2(self.rate)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(np.unique(self.global_batch).tolist())

    def key(self, point: int) -> tuple[str, int]:
        return self.studies[self.study[point]].key(self.trial[point])


def both_readings(studies: Sequence[Study], column: str, minimizes: bool) -> tuple[BaseRates | None, BaseRates | None]:
    """The maps of one workload under the most epochs, and the most steps, that some trial of every batch ran."""
    epochs, steps = (base_rates_of(studies, column, minimizes, budget) if budget else None
                     for budget in common_budgets(studies))
    return epochs, steps


def base_rates_of(studies: Sequence[Study], column: str, minimizes: bool, budget: Budget | None = None
                  ) -> BaseRates | None:
    """The map of the studies of one workload; None where no trial has a learning rate and the metric."""
    studies = with_metric(studies, column)
    effective = any(scales_with_momentum(study) for study in studies)
    parts = [_place(at, study, column, minimizes, budget) for at, study in enumerate(studies)]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return None
    study, trial, batch, rate, value, kind = map(np.concatenate, zip(*parts))
    has_value = np.isin(kind, (TrialKind.MEASURED, TrialKind.SHORT)) & ~np.isnan(value)
    cost = np.where(has_value, value if minimizes else -value, np.inf)
    best = [rows[cost[rows].argmin()] for rows in (np.flatnonzero(batch == one) for one in np.unique(batch))]
    return BaseRates(studies[0].workload, column, minimizes, budget, effective, studies, study, trial, batch, rate,
                     value, kind, tuple(int(at) for at in best if cost[at] < np.inf))


def value_range(maps: Sequence[BaseRates]) -> tuple[float, float]:
    """The best value of all these maps, and the worst with a color of its own, see POOR."""
    values = np.concatenate([one.value for one in maps])
    values, minimizes = values[np.isfinite(values)], maps[0].minimizes
    return (float(values.min() if minimizes else values.max()),
            float(np.quantile(values, POOR if minimizes else 1 - POOR)))


def scales_with_momentum(study: Study) -> bool:
    """Whether its trials have momentum, so that the effective learning rate is eta / (1 - momentum)."""
    return bool(np.nan_to_num(study.metaparameter("momentum")).any())


def rates_of(study: Study) -> np.ndarray:
    """The effective learning rate eta / (1 - momentum) of each trial, eta without momentum; NaN: unknown."""
    return effective_rate(study.metaparameter("learning_rate"), np.nan_to_num(study.metaparameter("momentum")))


def effective_rate(lr: ArrayLike, momentum: ArrayLike) -> np.ndarray:
    """eta / (1 - momentum); NaN where that is not above 0 and finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.asarray(lr, float) / (1 - np.asarray(momentum, float))
    return np.where((rate > 0) & np.isfinite(rate), rate, np.nan)


def _place(at: int, study: Study, column: str, minimizes: bool, budget: Budget | None) -> tuple[np.ndarray, ...]:
    outcomes = outcomes_under(study, column, minimizes, budget)
    rate = rates_of(study) / study.global_batch
    rows = np.flatnonzero(~np.isnan(rate) & (outcomes.kind != TrialKind.LOST) & ~study.repeat)
    value = np.where(outcomes.kind == TrialKind.DIVERGED, np.nan, outcomes.value)[rows]
    return (np.full(len(rows), at), rows, np.full(len(rows), study.global_batch), rate[rows], value,
            outcomes.kind[rows])
