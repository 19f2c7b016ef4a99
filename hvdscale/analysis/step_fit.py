"""Fits of the laws of a step's time to timings.

Timings seldom tell all parameters of a law apart: weak scaling says nothing of a against b e, one node nothing of h'
and v', and few worker counts little of h against v. So all have wide priors on a logarithmic scale, and the uncertainty
is carried by draws: each is the least-squares fit to times disturbed by their own spread and to prior means disturbed
by theirs (randomize-then-optimize, Bardsley et al. 2014). What the timings settle agrees in all draws; what they do not
varies as widely as the prior, and so do the predictions that depend on it.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import leastsq
from scipy.special import expit, fdtri

from .step_laws import BETWEEN, FULL, NAMES, PARTIAL, WITHIN, Law, Parameters

SHARE = (0.0, 2.5)              # of a logit: a half, from 0.7 % to 99.3 %
TERM = (np.log(0.1), 2.5)       # in passes: a tenth, from 1/1,300 to 13
STARTS = (0.0, np.log(10), np.log(100))     # of the terms, from their prior means
OVERLAP = (0.0, 2.5)            # of the logit of 1 / p: 2, from 1.007 to 135
REFUTED_AT = 0.01               # chance of refuting a law that holds


@dataclass(frozen=True, eq=False)
class Observed:
    """What all laws are fitted to: the logarithms of the timings, and how far they may be off.

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
    def setting(self):
        return self.workers, self.per_node, self.examples, self.passes

    @cached_property
    def timed(self) -> dict[tuple[str, str], int]:
        """The links that were timed, with the most members that shared them."""
        counts = {WITHIN: int(np.minimum(self.workers, self.per_node).max()),
                  BETWEEN: 1 if self.between else int(np.ceil(self.workers / self.per_node).max())}
        return {names: count for names, count in counts.items() if count > 1}


class Problem:
    """The least-squares problem of one law. Its unknowns, each with a normal prior, are at the median local batch the
    logarithm of a pass and the fixed part's share of it (logit), so that what times settle and what they may not are
    apart; for each kind of link that was timed the logarithms of what hops and bytes take at the most workers; and of
    a law with overlap the logit of 1 / p.
    """

    def __init__(self, law: Law, observed: Observed):
        self.law, self.observed, self.deviation = law, observed, observed.deviation
        self.examples = float(np.exp(np.median(np.log(observed.examples))))
        pass_log = float(np.median(observed.logs - np.log(observed.passes)))
        self.terms = [(name, factor(count)) for names, count in observed.timed.items()
                      for name, factor in zip(names, (law.hops, law.volumes)) if factor(count)]
        priors = [(pass_log, 3.0), SHARE, *[(pass_log + TERM[0], TERM[1])] * len(self.terms)]
        self.centre, self.width = np.array([*priors, *[OVERLAP] * (law.overlap == PARTIAL)]).T

    def natural(self, unknowns) -> Parameters:
        """Parameters of unknowns of shape (..., unknowns), each of shape (..., 1)."""
        column = [unknowns[..., at, None] for at in range(unknowns.shape[-1])]
        one_pass, share = np.exp(column[0]), expit(column[1])
        values = {"fixed": one_pass * share, "example": one_pass * (1 - share) / self.examples,
                  "overlap": 1 / expit(column[-1]) if self.law.overlap == PARTIAL else
                  np.full_like(one_pass, np.inf if self.law.overlap == FULL else 1.0)}
        values |= {name: np.exp(log) / factor for (name, factor), log in zip(self.terms, column[2:])}
        given = self.observed.between
        for names in (BETWEEN, WITHIN) if given else ():
            if names not in self.observed.timed:
                values |= {name: np.full_like(one_pass, seconds) for name, seconds in zip(names, given)}
        return Parameters(**{name: values.get(name, np.zeros_like(one_pass)) for name in NAMES})

    def model(self, unknowns):
        """Logarithms of the law's times, shape (..., timings)."""
        return np.log(self.law.seconds(self.natural(unknowns), *self.observed.setting))

    def residuals(self, unknowns, logs, centre):
        """Over their deviations: of the times, then of the prior; shape (..., timings + unknowns)."""
        return np.concatenate([(self.model(unknowns) - logs) / self.deviation, (unknowns - centre) / self.width], -1)

    def slopes(self, unknowns):
        """Of the residuals, by each unknown: shape (..., timings + unknowns, unknowns)."""
        size = unknowns.shape[-1]
        moved = self.model(unknowns[..., None, :] + 1e-5 * np.eye(size))
        times = (moved - self.model(unknowns)[..., None, :]) / 1e-5 / self.deviation
        prior = np.broadcast_to(np.diag(1 / self.width), (*unknowns.shape, size))
        return np.concatenate([np.swapaxes(times, -1, -2), prior], -2)

    @cached_property
    def best(self):
        """The unknowns that fit best. An allreduce that a pass hides has no slope, so longer ones are starts too."""
        args = self.observed.logs, self.centre
        is_term = np.zeros(len(self.centre))
        is_term[2:2 + len(self.terms)] = 1
        starts = [self.centre + log * is_term for log in (STARTS if self.terms else STARTS[:1])]
        found = [leastsq(self.residuals, start, args=args, full_output=True,
                         Dfun=lambda unknowns, *_: self.slopes(unknowns))[0] for start in starts]
        return min(found, key=lambda unknowns: np.sum(self.residuals(unknowns, *args) ** 2))

    @cached_property
    def misses(self):
        """Logarithm of the law's times over the timings, at the best fit."""
        return self.model(self.best) - self.observed.logs

    @cached_property
    def misfit(self):
        """The sum of squares of what the best fit misses, over the deviations as observed."""
        return float(np.sum((self.misses / self.observed.deviation) ** 2))

    @cached_property
    def freedom(self):
        """The degrees of freedom that the best fit leaves of the timings."""
        slopes = self.slopes(self.best)
        times = slopes[:len(self.observed.logs)]
        return len(times) - float(np.trace(times @ np.linalg.pinv(slopes.T @ slopes) @ times.T))

    @property
    def inflation(self):
        """How many times the variance is that of the deviations as observed, where the law misses by more."""
        return max(1.0, self.misfit / self.freedom) if self.freedom >= 1 else 1.0

    def worse(self, best: Problem) -> bool:
        """Whether this law fits worse than the best one by more than the spread of the times makes likely (F test)."""
        freedom = max(1.0, self.freedom)
        allowed = freedom * fdtri(freedom, self.observed.freedom, 1 - REFUTED_AT)
        return self.misfit - best.misfit > best.inflation * allowed

    def disturbed(self, draws, random, inflation=1.0, most=60) -> Parameters:
        """Parameters that fit best to disturbed times and priors, each of shape (draws,): what leastsq would find for
        each, by the same method (Levenberg-Marquardt) over all at once; the times' variance is inflated."""
        self.deviation = self.observed.deviation * np.sqrt(inflation)
        start, freedom = self.best, self.observed.freedom
        # Student's t, to the 98 % that hold for one degree of freedom
        scale = np.minimum(np.sqrt(freedom / random.chisquare(freedom, (draws, 1))), 40.0)
        logs = self.observed.logs + scale * self.deviation * random.standard_normal((draws, len(self.observed.logs)))
        centre = self.centre + self.width * random.standard_normal((draws, len(start)))
        unknowns, damping = np.tile(start, (draws, 1)), np.full(draws, 1e-2)
        residuals = self.residuals(unknowns, logs, centre)
        active = np.arange(draws)
        for _ in range(most):
            slopes = self.slopes(unknowns[active])
            square = np.einsum("drp,drq->dpq", slopes, slopes)
            square += damping[active, None, None] * square * np.eye(len(start))
            downhill = -np.einsum("drp,dr->dp", slopes, residuals[active])
            step = np.linalg.solve(square, downhill[..., None])[..., 0]
            moved = self.residuals(unknowns[active] + step, logs[active], centre[active])
            better = (moved ** 2).sum(1) <= (residuals[active] ** 2).sum(1)
            unknowns[active[better]] += step[better]
            residuals[active[better]] = moved[better]
            damping[active] = np.clip(np.where(better, damping[active] / 5, damping[active] * 4), 1e-9, 1e9)
            active = active[np.abs(step / self.width).max(1) > 1e-3]
            if not len(active):
                break
        return Parameters(**{name: values[:, 0] for name, values in vars(self.natural(unknowns)).items()})
