"""The parts of a step on each rank, where every rank timed its own, and what they say of why workers wait.

The ranks leave a reduction together, so the one that waits least came to it last. What it waits is at most the transfer
that no backward pass hid; what the others wait beyond that, they wait for slower ranks.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..log.reader import Log
from ..log.schema import RANK_PARTS, rank_column
from .grouping import rows_of_each

ELSEWHERE = "elsewhere"                         # in no part: what a rank does beside training
NAMES = (*RANK_PARTS, ELSEWHERE)
SHARE = 0.1                                     # of a step, above which a part of it is named
WORK = ("forward", "backward", "optimizer")


@dataclass(frozen=True, eq=False)
class RankTimes:
    """The steps of a run.

    seconds   median of each of NAMES on each rank, arrays of shape (ranks,)
    transfer  median over steps of the shortest wait of a rank;  spread: of the longest less the shortest
    """

    seconds: dict[str, np.ndarray]
    transfer: float
    spread: float

    @property
    def ranks(self) -> int:
        return len(self.seconds["step"])

    @property
    def step(self) -> float:
        """Seconds of a step, mean over ranks."""
        return float(self.seconds["step"].mean())

    def mean(self, name: str) -> float:
        return float(self.seconds[name].mean())

    def outlier(self, names: Sequence[str]) -> tuple[int, float, float] | None:
        """The rank that spends more than SHARE of a step longer in these parts than the typical rank does, its seconds,
        and those of the typical one, their median; None where no rank does, or several do."""
        spent = np.sum([self.seconds[name] for name in names], axis=0)
        typical = float(np.median(spent)) if self.ranks > 2 else float(spent.min())
        slow = np.flatnonzero(spent - typical > SHARE * self.step)
        return (int(slow[0]), float(spent[slow[0]]), typical) if len(slow) == 1 and self.ranks > 1 else None


def read_ranks(log: Log) -> dict[int, RankTimes]:
    """The times of the ranks of every trial of a log, by trial id; {} where the ranks timed nothing."""
    table = log.steps
    ranks = sum(rank_column(rank, "step") in table.columns for rank in range(len(table.columns)))
    if not ranks or not table.rows:
        return {}
    parts = {name: np.array([table[rank_column(rank, name)] for rank in range(ranks)]) for name in RANK_PARTS}
    timed = np.flatnonzero(np.isfinite(parts["step"]).all(0))
    return {number: times_of({name: values[:, timed[rows]] for name, values in parts.items()})
            for number, rows in rows_of_each(table["trial"][timed]).items()}


def times_of(parts: dict[str, np.ndarray]) -> RankTimes:
    """Of the seconds of RANK_PARTS, arrays of shape (ranks, steps)."""
    inside = np.sum([values for name, values in parts.items() if name != "step"], axis=0)
    parts = {**parts, ELSEWHERE: np.maximum(parts["step"] - inside, 0.0)}
    waited = parts["waiting"]
    return RankTimes({name: np.median(values, axis=1) for name, values in parts.items()},
                     float(np.median(waited.min(0))), float(np.median(np.ptp(waited, axis=0))))


def mean_of(runs: Sequence[RankTimes]) -> RankTimes | None:
    """The mean over the runs of a cell; None without runs, or where their ranks differ in number."""
    if not runs or len({run.ranks for run in runs}) > 1:
        return None
    return RankTimes({name: np.mean([run.seconds[name] for run in runs], axis=0) for name in NAMES},
                     float(np.mean([run.transfer for run in runs])), float(np.mean([run.spread for run in runs])))
