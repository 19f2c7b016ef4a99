"""What more workers bought: speedups and efficiencies along a series of worker counts, as README.rst defines them.
Their product holds exactly, since T = S B / x; B is the mean batch of the S steps where it changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from .intervals import CONFIDENCE, NONE, Estimate, hull_over_grid, mean_interval, mean_ratio, over, ratio_interval
from .steps import SECONDS, SPEED, STEPS, RunCell
from .studies import group_by

WEAK = "weak"       # the same number of examples per worker: B grows with W
STRONG = "strong"   # the same global batch


class SpeedupPoint:
    """A worker count of a series over the first. A ratio is NaN where it cannot be formed; where the target was not
    met, ``high`` is an upper bound. ``worker_ratio`` W / W0 is the ideal speedup."""

    def __init__(self, cell: RunCell, baseline: RunCell, confidence: float = CONFIDENCE) -> None:
        self.cell, self.workers, self.worker_ratio = cell, cell.workers[0], cell.workers[0] / baseline.workers[0]
        self.step_speedup, self.time_speedup = (divide(baseline, cell, name, confidence) for name in (STEPS, SECONDS))
        self.statistical_efficiency = self.step_speedup.scaled(baseline.mean_batch / cell.mean_batch)
        self.system_efficiency = divide(cell, baseline, SPEED, confidence).scaled(1 / self.worker_ratio)
        # x / x0: the time speedup if larger batches needed no more examples
        self.throughput_speedup = self.system_efficiency.scaled(self.worker_ratio)
        self.efficiency = self.time_speedup.scaled(1 / self.worker_ratio)


@dataclass(frozen=True, eq=False)
class Series:
    """Points of a WEAK or STRONG scaling at two or more worker counts, by worker count; the first is the baseline."""

    kind: str
    size: Fraction          # examples per worker per step, or the global batch
    points: tuple[SpeedupPoint, ...]


def series_of(cells: Iterable[RunCell], confidence: float = CONFIDENCE) -> tuple[Series, ...]:
    """Every weak and strong scaling series among cells that have one worker count each."""
    ordered = sorted(cells, key=lambda cell: (cell.workers, cell.global_batch))
    by_size = {WEAK: group_by(ordered, lambda cell: Fraction(cell.global_batch, cell.workers[0])),
               STRONG: group_by(ordered, lambda cell: Fraction(cell.global_batch))}
    return tuple(Series(kind, size, tuple(SpeedupPoint(cell, own[0], confidence) for cell in own))
                 for kind, groups in by_size.items() for size, own in sorted(groups.items()) if len(own) > 1)


def divide(above: RunCell, below: RunCell, name: str, confidence: float) -> Estimate:
    """The ratio of two cells' estimates of STEPS or SECONDS to target, or of SPEED; NaN where it cannot be formed."""
    top, bottom = getattr(above, name), getattr(below, name)
    runs = min(top.runs, bottom.runs)
    if above is below:
        return replace(Estimate.unknown(runs), value=1.0 if top.met and top.value > 0 else np.nan)
    most = top.value if np.isnan(top.high) else top.high
    if top.met and np.isinf(bottom.value) and bottom.low > 0:
        return Estimate(np.nan, 0.0, most / bottom.low, runs)
    if not (top.met and bottom.met) or 0 in (top.value, bottom.value):
        return Estimate.unknown(runs)
    if name != SPEED and (above.searched or below.searched):
        return over(top, bottom)
    value = top.value / bottom.value
    if np.isinf(top.high) or np.isinf(bottom.high):         # some repeats did not meet: ratios of the ends
        return Estimate(value, top.low / bottom.high, most / bottom.low if bottom.low > 0 else np.inf, runs)
    sides = [cell.samples.with_before(name) for cell in (above, below)]
    all_known = not np.isnan([*sides[0][0], *sides[1][0]]).any()
    if (name == SPEED and above.pools.of(SPEED).shared[0] > 0 or above.updates == below.updates) and all_known:
        low, high = mean_interval(sides[0][0] / sides[1][0], above.pools.of(name, True), confidence)
        return Estimate(value, float(low), float(high), runs)
    a, b = (side[:, ~np.isnan(side[0])] for side in sides)
    if min(a.shape[1], b.shape[1]) < 2:
        return Estimate(value, *NONE, runs)
    pools = [cell.pools.of(name).at(cell.global_batch) for cell in (above, below)]
    low, high = hull_over_grid(a, b, lambda one, other, _: ratio_interval(one, other, pools[0], confidence, pools[1]))
    shift = 1 if all_known else value / mean_ratio(a[0], b[0])      # seconds of some seeds, steps of all
    return Estimate(value, low * shift, high * shift, runs)
