"""Fits of the laws of step time to timings.

Timings rarely identify all parameters of a law. Weak scaling cannot separate a from b e, a single node says nothing
about h' and v', and few worker counts hardly separate h from v. So all parameters have wide priors on a logarithmic
scale, and draws represent the uncertainty. Each draw is the least-squares fit to times perturbed by their own spread
and to prior means perturbed by theirs (randomize-then-optimize, Bardsley et al. 2014). Parameters that the timings
determine agree in all draws. The others vary as widely as the prior, and so do predictions that depend on them.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from .step_laws import BETWEEN, FULL, NAMES, PARTIAL, WITHIN, Parameters, StepLaw

# priors: mean and standard deviation
RATIO = (0.0, 2.5)              # log of a / (b e): 1, from 1/150 to 150
TERM = (np.log(0.1), 2.5)       # log of a term, relative to a pass: a tenth, from 1/1,300 to 13
POWER = (0.0, 2.5)              # logit of 1 / p and of 1 / q: 2, from 1.007 to 135
PAUSED = (0.0, 2.5)             # log of the pauses in a step at the most workers: 1, from 1/150 to 150
SHARPEST = 8.0                  # logit at which q is 1.0003, or 3,000
STARTS = np.log(10) * np.linspace(-1, 2, 7)     # offsets of the terms from their prior means
REFUTED_AT = 0.01               # probability of refuting a law that holds


@dataclass(frozen=True, eq=False)
class Observed:
    """The data for all laws: the logarithms of the timings and their standard deviations, arrays of shape (timings,).

    between  h' and v' where they are given
    freedom  degrees of freedom of the deviation
    """

    workers: np.ndarray
    per_node: np.ndarray
    examples: np.ndarray
    passes: np.ndarray
    logs: np.ndarray
    deviation: np.ndarray
    freedom: float
    between: tuple[float, float] | None

    @property
    def setting(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The arguments of StepLaw.seconds after the parameters."""
        return self.workers, self.per_node, self.examples, self.passes

    @cached_property
    def timed(self) -> dict[tuple[str, str], int]:
        """The parameters of links that were timed, with the most members that shared them."""
        counts = {WITHIN: int(np.minimum(self.workers, self.per_node).max()),
                  BETWEEN: 1 if self.between else int(np.ceil(self.workers / self.per_node).max())}
        return {names: count for names, count in counts.items() if count > 1}


class FitProblem:
    """The least-squares problem of one law. Each unknown has a normal prior:

    - at the median local batch, the logarithm of the seconds of a pass, which times determine, and of a / (b e), which
      they may not;
    - for each kind of link that was timed, the logarithms of the seconds for hops and for bytes at the most workers;
    - for a law with partial overlap, the logit of 1 / p;
    - where local batches differ, the logit of 1 / q;
    - for a law with pauses, the logarithms of the wait at the most workers, in passes, and of the pauses there.
    """

    def __init__(self, law: StepLaw, observed: Observed) -> None:
        self.law, self.observed, self.deviation = law, observed, observed.deviation
        self.examples = float(np.exp(np.median(np.log(observed.examples))))
        pass_log = float(np.median(observed.logs - np.log(observed.passes)))
        self.terms = [(name, factor(count)) for names, count in observed.timed.items()
                      for name, factor in zip(names, (law.hops, law.volumes)) if factor(count)]
        self.powers = ["overlap"] * (law.overlap == PARTIAL) + ["sharpness"] * (len(set(observed.examples)) > 1)
        self.most = float(observed.workers.max())
        self.centre, self.width = np.array([(pass_log, 3.0), RATIO, *[(pass_log + TERM[0], TERM[1])] * len(self.terms),
                                            *[POWER] * len(self.powers), *(TERM, PAUSED) * law.pauses]).T

    def natural(self, unknowns: np.ndarray) -> Parameters:
        """The parameters for unknowns of shape (..., unknowns); each has shape (..., 1)."""
        column = [unknowns[..., at, None] for at in range(unknowns.shape[-1])]
        one_pass = np.exp(column[0])
        values = {"overlap": np.full_like(one_pass, np.inf if self.law.overlap == FULL else 1.0),
                  "sharpness": np.ones_like(one_pass)}
        values |= {name: 1 / scipy.special.expit(logit)
                   for name, logit in zip(self.powers, column[2 + len(self.terms):])}
        if self.law.pauses:
            pauses = np.exp(column[-1])
            values |= {"pause": np.exp(column[-2]) / -np.expm1(-pauses), "pausing": -np.expm1(-pauses / self.most)}
        power, ratio = values["sharpness"], column[1]
        values["fixed"], by_examples = (one_pass * np.exp(scipy.special.log_expit(power * log) / power)
                                        for log in (ratio, -ratio))
        values["example"] = by_examples / self.examples
        values |= {name: np.exp(log) / factor for (name, factor), log in zip(self.terms, column[2:])}
        for names in (BETWEEN, WITHIN):
            if self.observed.between and names not in self.observed.timed:
                values |= {name: np.full_like(one_pass, seconds) for name, seconds in zip(names, self.observed.between)}
        return Parameters(**{name: values.get(name, np.zeros_like(one_pass)) for name in NAMES})

    def model(self, unknowns: np.ndarray) -> np.ndarray:
        """Logarithms of the times under the law, shape (..., timings)."""
        return np.log(self.law.seconds(self.natural(unknowns), *self.observed.setting))

    def residuals(self, unknowns: np.ndarray, logs: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Standardized residuals: of the times, then of the prior; shape (..., timings + unknowns)."""
        return np.concatenate([(self.model(unknowns) - logs) / self.deviation, (unknowns - centre) / self.width], -1)

    def slopes(self, unknowns: np.ndarray) -> np.ndarray:
        """The Jacobian of the residuals: shape (..., timings + unknowns, unknowns)."""
        size = unknowns.shape[-1]
        moved = self.model(unknowns[..., None, :] + 1e-5 * np.eye(size))
        times = (moved - self.model(unknowns)[..., None, :]) / 1e-5 / self.deviation
        prior = np.broadcast_to(np.diag(1 / self.width), (*unknowns.shape, size))
        return np.concatenate([np.swapaxes(times, -1, -2), prior], -2)

    @cached_property
    def best(self) -> np.ndarray:
        """The unknowns that fit best. An allreduce hidden behind a pass has no slope, so longer ones are tried as
        starting points too."""
        is_term = np.zeros(len(self.centre))
        is_term[2:2 + len(self.terms)] = 1
        starts = self.centre + np.outer(STARTS if self.terms else [0.0], is_term)
        found, residuals = self.fit(starts, self.observed.logs, self.centre, within=1e-5, most=200)
        return found[np.argmin((residuals ** 2).sum(1))]

    @cached_property
    def misses(self) -> np.ndarray:
        """Logarithm of times under the law over measured times, at the best fit."""
        return self.model(self.best) - self.observed.logs

    @cached_property
    def misfit(self) -> float:
        """The sum of squares of ``misses`` over the observed standard deviations."""
        return float(np.sum((self.misses / self.observed.deviation) ** 2))

    @cached_property
    def freedom(self) -> float:
        """The residual degrees of freedom of the timings at the best fit."""
        slopes = self.slopes(self.best)
        times = slopes[:len(self.observed.logs)]
        return len(times) - float(np.trace(times @ np.linalg.pinv(slopes.T @ slopes) @ times.T))

    @property
    def inflation(self) -> float:
        """The factor on the observed variance where the law misses by more than that; at least 1."""
        return max(1.0, self.misfit / self.freedom) if self.freedom >= 1 else 1.0

    def worse(self, best: FitProblem) -> bool:
        """Whether this law fits significantly worse than the best one (F test)."""
        freedom = max(1.0, self.freedom)
        allowed = freedom * scipy.special.fdtri(freedom, self.observed.freedom, 1 - REFUTED_AT)
        return self.misfit - best.misfit > best.inflation * allowed

    def draw(self, draws: int, random: np.random.Generator, inflation: float = 1.0) -> Parameters:
        """The parameters that fit perturbed times and priors best, each of shape (draws,).

        The variance of the times is multiplied by ``inflation``. A third each of the draws are of a pass as straight
        and as sharp as the timings allow, and half of those of a law with pauses are of long ones: predictions are
        monotonic in both, so that their ends are those of the interval.
        """
        self.deviation = self.observed.deviation * np.sqrt(inflation)
        start, freedom = self.best, self.observed.freedom
        # Student's t, limited to the central 98 % at one degree of freedom
        scale = np.minimum(np.sqrt(freedom / random.chisquare(freedom, (draws, 1))), 40.0)
        logs = self.observed.logs + scale * self.deviation * random.standard_normal((draws, len(self.observed.logs)))
        centre = self.centre + self.width * random.standard_normal((draws, len(start)))
        if "sharpness" in self.powers:
            at = 2 + len(self.terms) + self.powers.index("sharpness")
            centre[0::3, at], centre[1::3, at] = SHARPEST, -SHARPEST
        if self.law.pauses:
            centre[::2, -2] = self.centre[-2] + 2 * self.width[-2]
        unknowns, _ = self.fit(np.tile(start, (draws, 1)), logs, centre)
        return Parameters(**{name: values[:, 0] for name, values in vars(self.natural(unknowns)).items()})

    def fit(self, unknowns: np.ndarray, logs: np.ndarray, centre: np.ndarray, within: float = 1e-3,
            most: int = 60) -> tuple[np.ndarray, np.ndarray]:
        """The least-squares fits to ``logs`` and ``centre`` from these starts, all at once, and their residuals.

        unknowns  shape (fits, unknowns); logs and centre one for each fit, or one for all
        within    a fit ends once a step is at most this share of the prior's width, or gains less than this

        Levenberg-Marquardt (Marquardt 1963).
        """
        size, unknowns = len(unknowns), unknowns.copy()
        logs, centre = (np.broadcast_to(one, (size, one.shape[-1])) for one in (logs, centre))
        damping, residuals, active = np.full(size, 1e-2), self.residuals(unknowns, logs, centre), np.arange(size)
        for _ in range(most):
            slopes = self.slopes(unknowns[active])
            square = np.einsum("drp,drq->dpq", slopes, slopes)
            square += damping[active, None, None] * square * np.eye(unknowns.shape[1])
            downhill = -np.einsum("drp,dr->dp", slopes, residuals[active])
            step = np.linalg.solve(square, downhill[..., None])[..., 0]
            moved = self.residuals(unknowns[active] + step, logs[active], centre[active])
            gain = (residuals[active] ** 2).sum(1) - (moved ** 2).sum(1)
            better = gain >= 0
            unknowns[active[better]] += step[better]
            residuals[active[better]] = moved[better]
            damping[active] = np.clip(np.where(better, damping[active] / 5, damping[active] * 4), 1e-9, 1e9)
            active = active[(np.abs(step / self.width).max(1) > within) & ~(better & (gain < within))]
            if not len(active):
                break
        return unknowns, residuals
