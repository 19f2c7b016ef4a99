"""What the steps of a run show: where their time goes, getting data, computing, and waiting for communication, as rank
0 measured them, and on each rank, where every rank timed its own; and whether the run learned, by its training loss.

For a trial: the mean step, of which each part is a share, so that they add up to it. For a cell: the geometric mean of
its runs' steps, and the mean of their shares. RunCell.parts are those of a cell.

The ranks leave a reduction together, so the one that waits least came to it last. What it waits is at most the transfer
that no backward pass hid; what the others wait beyond that, they wait for slower ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..log.reader import Log
from ..log.schema import RANK_PARTS, STEP_PARTS, rank_column
from .defaults import PROBE_STEPS
from .studies import rows_of_each

MOST_ROWS = 2_000_000       # of /steps in one log, above which its steps are not read
LEAST_STEPS = 20            # with a finite loss, below which nothing is said of it
LONG = 10 * PROBE_STEPS     # steps of a run from which it shows whether its first ones are typical
NAMES = tuple(name.removesuffix("_seconds") for name in STEP_PARTS)
ELSEWHERE = "elsewhere"                         # in no part: what a rank does beside training
RANK_NAMES = (*RANK_PARTS, ELSEWHERE)
SHARE = 0.1                                     # of a step, above which a part of it is named
REGULAR = 0.8                                   # of the pauses, as many steps from one to the next
WORK = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Pause:
    """What makes some steps of a rank take over twice its typical one: saving, logging, a slow disk."""

    rank: int
    part: str
    seconds: float          # of such a step in that part, beyond what it typically takes
    steps: int
    every: int              # steps from one to the next; 0: not regular
    share: float            # of the rank's time


class RankTimes:
    """What each rank spends in the steps of a run: ``seconds`` has the mean of each of RANK_NAMES, ``typical`` the
    median step, arrays of shape (ranks,).

    transfer  mean over steps of the shortest wait of a rank
    spread    of the longest less the shortest
    pause     the longest of these"""

    def __init__(self, seconds: dict[str, np.ndarray], typical: np.ndarray, transfer: float, spread: float,
                 pauses: Iterable[Pause] = ()) -> None:
        self.seconds, self.typical, self.transfer, self.spread = seconds, typical, transfer, spread
        self.ranks, self.step = len(seconds["step"]), float(seconds["step"].mean())
        self.pause = max(pauses, key=lambda one: one.share, default=None)

    def mean(self, name: str) -> float:
        return float(self.seconds[name].mean())

    def outlier(self, names: Sequence[str]) -> tuple[int, float, float] | None:
        """The rank that spends more than SHARE of a step longer in these parts than the typical rank does, its seconds,
        and those of the typical one, their median; None where no rank does, or several do."""
        return find_outlier(np.sum([self.seconds[name] for name in names], axis=0), self.step)


def find_outlier(spent: np.ndarray, step: float) -> tuple[int, float, float] | None:
    """The same of the seconds that each rank spent, shape (ranks,), in steps of so many."""
    typical = float(np.median(spent)) if len(spent) > 2 else float(spent.min())
    slow = np.flatnonzero(spent - typical > SHARE * step)
    return (int(slow[0]), float(spent[slow[0]]), typical) if len(slow) == 1 and len(spent) > 1 else None


def times_of(parts: dict[str, np.ndarray]) -> RankTimes:
    """Of the seconds of RANK_PARTS, shape (ranks, steps); of pauses the longest over SHARE, waiting for one is none."""
    inside = np.sum([values for name, values in parts.items() if name != "step"], axis=0)
    parts = {**parts, ELSEWHERE: np.maximum(parts["step"] - inside, 0.0)}
    waited, typical, pauses = parts["waiting"], np.median(parts["step"], axis=1), []
    for name, values in parts.items():
        for rank, seconds in enumerate(values if name not in ("step", "waiting") else ()):
            beyond = seconds - np.median(seconds)
            long = np.flatnonzero(beyond > typical[rank])
            if len(long):
                apart = np.diff(long)
                regular = len(long) > 2 and np.mean(apart == np.median(apart)) > REGULAR
                pauses.append(Pause(rank, name, float(beyond[long].mean()), len(long), int(np.median(apart)) if regular
                                    else 0, float(beyond[long].sum() / parts["step"][rank].sum())))
    return RankTimes({name: values.mean(1) for name, values in parts.items()}, typical, float(waited.min(0).mean()),
                     float(np.ptp(waited, axis=0).mean()), [pause for pause in pauses if pause.share > SHARE])


def mean_of(runs: Sequence[RankTimes]) -> RankTimes | None:
    """The mean over the runs of a cell, with the longest pause of one; None where their ranks differ in number."""
    if len({run.ranks for run in runs}) > 1:
        return None
    return RankTimes({name: np.mean([run.seconds[name] for run in runs], axis=0) for name in RANK_NAMES},
                     np.mean([run.typical for run in runs], axis=0), float(np.mean([run.transfer for run in runs])),
                     float(np.mean([run.spread for run in runs])), [run.pause for run in runs if run.pause])


@dataclass(frozen=True)
class StepParts:
    """The steps of one trial, or of the runs of one cell."""

    steps: int              # timed in parts
    seconds: float          # of the mean step
    data: float             # shares of a step, adding up to 1
    compute: float
    communication: float
    ranks: RankTimes | None = None      # where every rank timed its own


SKIPPED = StepParts(0, np.nan, np.nan, np.nan, np.nan)      # more steps than MOST_ROWS


def read_parts(log: Log) -> dict[int, StepParts]:
    """The parts of every trial whose steps were timed in parts, by id; all SKIPPED where a log has over MOST_ROWS."""
    table = log.steps
    if not table.rows or STEP_PARTS[-1] not in table.columns:
        return {}
    if table.rows > MOST_ROWS:
        return dict.fromkeys(map(int, log.trials["id"]), SKIPPED)
    seconds, trial = table["step_seconds"], table["trial"]
    parts = np.array([table[name] for name in STEP_PARTS])
    whole = np.isfinite(parts).all(0) & (seconds > 0)
    seconds, trial, parts = seconds[whole], trial[whole], parts[:, whole]
    ids, at, count = np.unique(trial, return_inverse=True, return_counts=True)
    means, sums = np.bincount(at, seconds) / count, np.array([np.bincount(at, part) for part in parts])
    numbers, ranks = ids.tolist(), dict[int, RankTimes]()
    most = sum(rank_column(rank, "step") in table.columns for rank in range(len(table.columns)))
    by_rank = {name: np.array([table[rank_column(rank, name)] for rank in range(most)]) for name in RANK_PARTS}
    for number, rows in rows_of_each(table["trial"]).items() if most else ():
        timed = np.isfinite(by_rank["step"][:, rows])
        own = timed.any(1)                              # trials of a merged log may have other numbers of ranks
        if own.any() and (both := timed[own].all(0)).any():
            ranks[number] = times_of({name: values[own][:, rows[both]] for name, values in by_rank.items()})
    columns = count.tolist(), means.tolist(), *(sums / sums.sum(0)).tolist(), map(ranks.get, numbers)
    return {number: StepParts(*values) for number, values in zip(numbers, zip(*columns))}


@dataclass(frozen=True)
class LossCourse:
    """The mean loss of the first and of the last ``steps`` steps of a run, a tenth of those with a finite loss."""

    first: float
    last: float
    steps: int


def read_steps(log: Log) -> dict[int, dict[str, Any]]:
    """What the steps of each trial show, as a Trial has it, by id; {} of logs with over MOST_ROWS."""
    if not 0 < log.steps.rows <= MOST_ROWS:
        return {}
    seconds, loss, waits = (log.steps[name] for name in ("step_seconds", "loss", "without_core_seconds"))
    found = {}
    for number, rows in rows_of_each(log.steps["trial"]).items():
        last = rows[np.isfinite(waits[rows])][-1:]                  # its share is that of all the time until then
        own = seconds[rows]
        is_long = len(own) >= LONG and own.min() > 0
        finite, losses = loss[rows][np.isfinite(loss[rows])], None
        if len(finite) >= LEAST_STEPS:
            tenth = len(finite) // 10
            losses = LossCourse(float(finite[:tenth].mean()), float(finite[-tenth:].mean()), tenth)
        found[number] = {"losses": losses, "waited": float(np.sum(waits[last] / seconds[last])),
                         "slowing": float(own.mean() / own[:PROBE_STEPS].mean()) if is_long else np.nan}
    return found
