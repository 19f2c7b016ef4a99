"""Steps to target S at any global batch, for plans: as measured, or by draws given what was measured.

S = S_min (1 + (B_crit / B)^p)^(1/p), see critical_batch_fit. In the prior, B_crit is log-normal around REACH times the
smallest batch that was run, with a longer tail above: batches are chosen where they still pay, and B_crit is 2 times
the smallest of the published curves (Llama 3.1 8B in MLPerf), 50 times (BERT), and 600 times the 32 examples a worker
that ResNet-50 is often run with (Shallue et al. 2019). Where the gradient noise scale was measured and there is no fit,
it is around that instead, and p is 1 (McCandlish et al. 2018, arXiv 1812.06162), which is a prediction; else the shape
p is log-uniform in SHAPES."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import scipy
from numpy.typing import ArrayLike

from .critical_batch_fit import OWN_FREEDOM, SettingPoint, fit_critical_batch, steps_at
from .curves import Curve
from .defaults import RUN_DEVIATION
from .decision.draws import DRAWS as MODEL_DRAWS, Drawn, Measured, levels, quantiles, sample_posterior
from .intervals import CONFIDENCE, UNKNOWN, Estimate, Spread, normal_quantile
from .report_data import Section
from .step_time import ASSUMED, DRAWS, EXTRAPOLATED, INTERPOLATED, MARKS, MEASURED
from .steps import RunCell
from .trials import EVERY_STEP, Sync

PREDICTED = "predicted"         # from the gradient noise scale
NOISE_WITHIN = 4.0              # B_crit / noise scale is within this factor for most workloads (McCandlish et al. 2018)
LOWEST = 10.0                   # an interval open below (met at the first evaluation) is assumed to end at a tenth
ORDER = (*MARKS[:3], PREDICTED, ASSUMED)

# the prior
REACH, REACH_DEVIATION = 3.0, 1.2       # B_crit over the smallest batch: median, standard deviation of the logarithm
TAIL = 0.3                              # how much the logarithm grows with the square of a deviation above the median
SHAPES = (0.8, 8.0)                     # ends of p
SPREAD, LACK = 0.6, (0.03, 0.7)         # see Measured
LEVEL = 1.0                             # standard deviation of log S at the middle batch
LEAST = 0.005                           # standard deviation


@dataclass(frozen=True)
class StepsPoint:
    """Steps to target at one global batch."""

    global_batch: int
    steps: Estimate
    seeds: int = 0                          # number that ran the setting; 0: unknown
    met: int = 0                            # number of them that met the target
    searched: bool = False                  # the steps are the fewest of a search, whichever seeds met
    trials: tuple[tuple[str, int], ...] = ()
    spread: Spread = UNKNOWN                # of log S between runs of a setting
    late: tuple[float, ...] = ()            # of the seeds that stand apart, how many times the steps of the others

    @property
    def unmet(self) -> float:
        """The share of the seeds that did not meet the target."""
        return 1 - self.met / self.seeds if self.seeds else 0.0


@dataclass(frozen=True, eq=False)
class StepsAt(Drawn):
    """S at one batch."""

    mark: str                           # how it is known, of ORDER
    point: StepsPoint | None = None     # where it was measured; None: it was not

    def interval(self, confidence: float) -> tuple[float, float]:
        """The ends of its interval: as measured, else quantiles of the draws."""
        return (self.point.steps.low, self.point.steps.high) if self.point else quantiles(self.draws, confidence)


class StepsCurve:
    """S at any batch. Without points, S is in units of S_min; without B_crit too, of S itself.

    fit    draws of the fit to the points (CriticalBatchFit.draws); None: there is none
    noise  else draws of B_crit from the noise scale, any number; None: unknown
    sync   of other replicas, whose draws are independent"""

    def __init__(self, points: Sequence[StepsPoint], fit: ArrayLike | None = None, *, noise: ArrayLike | None = None,
                 confidence: float = CONFIDENCE, sync: Sync = EVERY_STEP) -> None:
        self.key = () if sync == EVERY_STEP else sync
        self.points = tuple(sorted(points, key=lambda point: point.global_batch))
        critical = noise if fit is None else np.asarray(fit)[:, 1]
        self.critical_draws = None if critical is None else np.asarray(critical, float)
        self.predicted, self.confidence = fit is None and noise is not None, confidence
        self.by_batch = {point.global_batch: point for point in self.points}        # whether they met or not
        self.relative = not self.points                     # whether S is only known up to a factor
        self.met = tuple(point for point in self.points if point.steps.met and point.steps.value > 0)
        self.batches = np.array([point.global_batch for point in self.met], float)
        deviations, freedom = [], 0.0
        for point in self.met:          # by its runs, by its interval, or assumed
            setting, own = SettingPoint(point.global_batch, point.steps, confidence), point.spread.freedom
            deviation, counted = setting.deviation, own or OWN_FREEDOM
            if not np.isfinite(deviation):
                deviation, counted = RUN_DEVIATION, own
            if own and not point.searched:
                grid = setting.half_grid if np.isfinite(setting.half_grid) else 0.0
                deviation = float(np.sqrt(point.spread.variance / max(point.steps.runs, 1) + grid ** 2 / 3))
            deviations.append(deviation)
            freedom = max(freedom, counted)
        self.measured = Measured(np.log([point.steps.value for point in self.met]), np.maximum(deviations, LEAST),
                                 freedom, SPREAD, LACK)
        self.middle = float(np.exp(np.log(self.batches).mean())) if self.met else 1.0
        self.level = float(self.measured.logs.mean()) if self.met else 0.0
        # mean and standard deviation of log B_crit in the prior
        self.centre, self.width = float(np.log(REACH * self.batches.min())) if self.met else 0.0, REACH_DEVIATION
        if self.critical_draws is not None and self.predicted:
            low, middle, high = np.quantile(self.critical_draws, (0.16, 0.5, 0.84), method="nearest")
            ends = np.log(np.clip([low, high], middle / 100, middle * 100))
            self.centre, self.width = float(np.log(middle)), float(np.diff(ends)[0] / 2)

    @cached_property
    def critical(self) -> Estimate | None:
        """B_crit; None where it is unknown."""
        if self.critical_draws is None:
            return None
        tail = (1 - self.confidence) / 2
        with np.errstate(invalid="ignore"):             # between two that are inf
            low, high = np.quantile(self.critical_draws, (tail, 1 - tail), method="hazen")
        return Estimate(float(np.median(self.critical_draws)), float(low), np.inf if np.isnan(high) else float(high), 0)

    def log_law(self, unknowns: np.ndarray, batches: np.ndarray) -> np.ndarray:
        """log S at batches, shape (draws, batches)."""
        above = 0.0 if self.predicted else TAIL * np.maximum(unknowns[:, 1:2], 0) ** 2
        critical = np.exp(self.centre + self.width * (unknowns[:, 1:2] + above))
        low, high = (0.0, 0.0) if self.predicted else np.log(SHAPES)
        shape = np.exp(low + (high - low) * scipy.special.ndtr(unknowns[:, 2:3]))
        if self.relative:               # in units of S_min
            return np.log(steps_at(batches, critical, critical, shape))
        rest = np.log(steps_at(batches, 1.0, critical, shape) / steps_at(self.middle, 1.0, critical, shape))
        return self.level + LEVEL * unknowns[:, :1] + rest

    @cached_property
    def unknowns(self) -> np.ndarray:
        """Draws of the parameters, standard normal in the prior, shape (MODEL_DRAWS, 5)."""
        law = partial(self.log_law, batches=self.batches)
        return sample_posterior(partial(self.measured.log_likelihood, law, 3), 5, MODEL_DRAWS, *self.key)[0]

    def log_steps(self, batches: Sequence[int] | np.ndarray) -> np.ndarray:
        """Draws of log S at batches, shape (MODEL_DRAWS, batches); the same at a batch that is there twice, 0 at all
        where nothing is known of S."""
        if self.relative and self.critical_draws is None:
            return np.zeros((MODEL_DRAWS, len(batches)))
        each, back = np.unique(np.asarray(batches, float), return_inverse=True)
        own = {batch: at for at, batch in enumerate(self.batches)}
        return self.measured.draw(self.log_law(self.unknowns, each), self.log_law(self.unknowns, self.batches),
                                  np.array([own.get(batch, -1) for batch in each]),
                                  np.random.default_rng([0, 10, *self.key]), *self.unknowns[:, 3:5].T)[:, back]

    def mark_of(self, batch: int) -> str | None:
        """How S is known at a batch without a point; None where the target may not be met at all: no point met, or
        one on this side of them did not."""
        if self.relative:
            return MEASURED if self.critical_draws is None else PREDICTED
        if not self.met:
            return None
        first, last = self.met[0].global_batch, self.met[-1].global_batch
        if first < batch < last:
            return INTERPOLATED
        lost = [point.global_batch for point in self.points if point not in self.met]
        if max(lost, default=0) > last if batch > last else min(lost, default=first) < first:
            return None
        return PREDICTED if self.predicted else EXTRAPOLATED

    def at(self, batch: int) -> StepsAt:
        """S at a global batch; inf where the target may not be met at all."""
        if point := self.by_batch.get(batch):
            return self.of_point(point)
        if self.mark_of(batch) is None:
            return StepsAt(np.inf, np.full(DRAWS, np.inf), EXTRAPOLATED)
        return self.by_law(batch, self.log_steps([batch])[:, 0])

    def by_law(self, batch: int, logs: np.ndarray) -> StepsAt:
        """S at a batch without a point, from draws of its logarithm."""
        return StepsAt(float(np.exp(logs.mean())), np.exp(logs[:DRAWS]), self.mark_of(batch) or EXTRAPOLATED)

    def of_point(self, point: StepsPoint) -> StepsAt:
        """S as measured: log-normal on each side of the value, as wide as its interval."""
        estimate = point.steps
        if not estimate.met or estimate.value == 0:
            return StepsAt(estimate.value, np.full(DRAWS, estimate.value), MEASURED, point)
        random = np.random.default_rng([0, 4, point.global_batch, *self.key])
        deviate = random.permutation(scipy.special.ndtri(levels(DRAWS)))
        low, high = (estimate.value if np.isnan(end) else end for end in (estimate.low, estimate.high))
        down = np.log(estimate.value / max(low, estimate.value / LOWEST))
        up = np.log(high / estimate.value) if high < np.inf else down
        drawn = estimate.value * np.exp(deviate / normal_quantile(self.confidence) * np.where(deviate < 0, down, up))
        if np.isinf(high):
            drawn[deviate > -scipy.special.ndtri(max(point.unmet, (1 - self.confidence) / 2))] = np.inf
        elif point.unmet:           # of a search: whether a seed meets is independent of the fewest steps
            drawn[random.permutation(levels(DRAWS)) < point.unmet] = np.inf
        return StepsAt(estimate.value, drawn, MEASURED, point)


PointsAndFit = tuple[tuple[StepsPoint, ...], "np.ndarray | None"]       # points, draws of the fit through them or None
StepsOf = Callable[[Section], PointsAndFit]         # of a section with a target


def points_of(section: Section, searched: Curve | None = None) -> PointsAndFit:
    """(points, draws of the fit or None) of a section's table by batch: those judged, or all if none is. Where some
    batches were searched, their points are those of that curve, with the seeds of the best trial; the fit is through
    all."""
    curve = section.batches
    found = {point.global_batch: point_of_cell(point) for point in (curve.judged or curve.points if curve else ())
             if isinstance(point, RunCell) and point.runs}
    if searched is None:
        return tuple(found.values()), curve.regimes.fit.draws() if curve and curve.regimes.fit else None
    points = []
    for one in searched.judged or searched.points:
        point = StepsPoint(one.global_batch, one.steps, searched=True, trials=one.keys)
        beside = found.pop(point.global_batch, None)
        if beside and set(point.trials) & set(beside.trials):       # of the setting of the search's best trial
            point = replace(point, seeds=beside.seeds, met=beside.met, spread=beside.spread, late=beside.late)
        points.append(point)
    points += [point for batch, point in found.items() if batch not in searched.batches]
    points.sort(key=lambda point: point.global_batch)
    whole = fit_critical_batch([point.global_batch for point in points], [point.steps for point in points],
                               section.options.confidence)
    return tuple(points), whole.draws() if whole else None


def point_of_cell(cell: RunCell) -> StepsPoint:
    seeds = {*cell.samples.seeds} | ({trial.seed_key for trial in cell.diverged} if not cell.searched else set())
    return StepsPoint(cell.global_batch, cell.steps, len(seeds), cell.met, cell.searched, cell.keys,
                      cell.pools.of("steps").at(cell.global_batch), tuple(cell.apart.values()))


def noise_draws(scale: float, low: float = np.nan, high: float = np.nan, confidence: float = CONFIDENCE,
                draws: int = DRAWS) -> np.ndarray:
    """Draws of B_crit, within a factor NOISE_WITHIN of a noise scale with its interval; shape (draws,)."""
    random = np.random.default_rng([0, 6])
    measured, model = (random.permutation(scipy.special.ndtri(levels(draws))) / normal_quantile(confidence)
                       for _ in range(2))
    factors = NOISE_WITHIN if low == 0 else scale / low, NOISE_WITHIN if np.isinf(high) else high / scale
    down, up = np.fmax(np.log(factors), 0.0)            # 0 for an end that is unknown
    return scale * np.exp(measured * np.where(measured < 0, down, up) + model * np.log(NOISE_WITHIN))
