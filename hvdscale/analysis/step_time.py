"""The time of a step: as measured, or by a model at worker counts and local batches that were not measured.

The laws, of a pass, an allreduce, a wait and a step, and their symbols stand in README.rst under "Step times";
``examples`` is its e. With q = 1 a pass takes a + b e; with a large q it takes a until its examples fill the device,
and then b e. The overlap p is that of Qiao et al. 2021 (Pollux, arXiv 2008.12260). t is the mean step. A step waits for
its slowest worker, so the wait saturates where some worker pauses in nearly every step. M replicas that are
synchronized every H steps take (s(W) + o r) / H more, s for the exchange of the weights and o for each of the r
replicas of a worker, and the hops of s(W) for the losses and votes that each step sums.

The model is draws of that law with all its parts, given the timings. In the prior each part is as likely as it is in
practice. An allreduce over MEMBERS takes a share of a pass that is log-normal, within a node and between nodes; and a
pass takes a fixed share, uniform, of its time whatever its examples. Links that no log has timed are drawn from that
prior, those between nodes not much faster than those that were timed within one.

Few workers pause for long, but mean times hardly distinguish such a wait, which saturates, from slow links. So an
interval is a hull: by the prior of practice, LIKELY, and, unless the timings refute it, of a wait that is SATURATING.
"""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..errors import UsageError
from .decision.draws import DRAWS as MODEL_DRAWS, Drawn, Measured, hull, levels, sample_posterior
from .intervals import Spread, pooled
from .steps import RunCell, Samples, known
from .timings import HOURS, Machine, Place, Timing, Timings
from .trials import EVERY_STEP

DRAWS = 400                 # of a value
ASSUMED_DEVIATION = 0.05    # of the logarithm of a step time, where nothing was timed twice
# that a job slows down after the first steps, where no long run was timed: its probability, and the mean of log t
SLOWS = (0.20, 0.10)
# how a value is known, from best to worst
MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = "measured", "interpolated", "extrapolated", "assumed"
MARKS = (MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED)

# the prior of the model
MEMBERS = 8.0
LINKS_WITHIN, LINKS_BETWEEN = (0.12, 1.3), (0.18, 1.2)  # share of a pass for an allreduce: median, deviation of the log
SLOWER = 0.7    # deviation of the log of how much slower than those within a node, if these were timed, others are
KINDS = (0.45, 0.9)                     # probability of a ring; of a ring or a tree
OVERLAPS = (0.5, 0.85)                  # of an allreduce that begins after the pass; of that or one in part behind it
SHARPNESSES = (0.6, 0.95)               # of a pass that is a + b e; of that or one that fills the device by degrees
FULLY = 1e3                             # a power as good as infinite
# Of waits: the probability of workers that do not pause; passes of a pause, and share of steps, by median and deviation
# of the logarithm; the mean of the normal deviate of the fixed share of a pass. Those of practice, and long ones.
LIKELY = 0.85, (0.4, 1.0), (0.02, 1.5), 0.0
SATURATING = 0.0, (2.0, 0.8), (0.03, 1.0), -1.0
MOST_PAUSING = 0.9
# that something else slows workers down beyond those timed (a slow node, another switch, storage): its probability,
# and the mean of log t that it adds by doubling
OTHER = (0.10, 0.15)
SPREAD, LACK = 0.8, (0.015, 0.8)        # see Measured
LEVEL = 2.0                             # standard deviation of the logarithm of a pass, around the fastest timing
LEAST = 0.002                           # standard deviation of a timing
OUTER = 0.3, 1.5                        # in passes: median, deviation of the logarithm
UNKNOWNS = 14                           # and the one of OUTER, where replicas were timed

DETERMINED, POWER_DETERMINED = 10, 3    # a parameter, or a power, is where its interval spans less than this factor
REFUTED_AT = 0.01                       # the probability of a law below which the timings refute it
REFUTED_BY = 20                         # how many times as likely the timings are by LIKELY if they refute SATURATING


# a, b, h, v, h', v' in seconds, p, q, l, r, and o in seconds: numbers, or arrays of shape (draws, 1)
Parameters = namedtuple("Parameters", """fixed example hop volume node_hop node_volume overlap sharpness pause pausing
                                         outer""", defaults=(0.0,))
POWERS = ("overlap", "sharpness")
PAUSES = ("pause", "pausing")
WITHIN, BETWEEN = ("hop", "volume"), ("node_hop", "node_volume")


@dataclass(frozen=True)
class StepLaw:
    """How long an allreduce over n, a number or an array, takes: the number of ``hops`` by n, and how many times the
    whole gradient passes a link, ``volumes``."""

    name: str
    hops: Callable[[Any], Any]
    volumes: Callable[[Any], Any]

    def seconds(self, parameters: Parameters, workers: ArrayLike, per_node: ArrayLike, examples: ArrayLike,
                passes: ArrayLike = 1, *sync: ArrayLike) -> np.ndarray:
        """t of the laws; ``examples`` are a worker's in one pass. Broadcasts over all arguments."""
        replicas, every = sync or EVERY_STEP
        one_pass = _norm(parameters.fixed, parameters.example * examples, parameters.sharpness)
        links = []          # the seconds of an allreduce's hops and of its bytes, within a replica and over all workers
        for count in (np.maximum(1, np.asarray(workers) // replicas), np.asarray(workers)):
            inside, nodes = np.minimum(count, per_node), np.ceil(count / per_node)
            links.append((self.hops(inside) * parameters.hop + self.hops(nodes) * parameters.node_hop,
                          self.volumes(inside) * parameters.volume + self.volumes(nodes) * parameters.node_volume))
        (hops, volumes), (all_hops, all_volumes) = links
        outer = parameters.outer * np.maximum(1, np.asarray(replicas) // workers)
        apart = np.where(np.asarray(every) > 0, all_hops + (all_hops + all_volumes + outer) / np.maximum(every, 1), 0.0)
        wait = parameters.pause * one_pass * (1 - (1 - parameters.pausing) ** np.asarray(workers))
        return (np.asarray(passes) - 1) * one_pass + _norm(one_pass, hops + volumes, parameters.overlap) + wait + apart


def _norm(one: np.ndarray, other: np.ndarray, power: np.ndarray) -> np.ndarray:
    """(one^power + other^power)^(1/power)."""
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    with np.errstate(under="ignore"):
        return longer * (1 + (shorter / longer) ** power) ** (1 / power)


LAWS = RING, TREE, LINEAR = (StepLaw("ring", lambda count: 2 * (count - 1), lambda count: 2 * (count - 1) / count),
                             StepLaw("tree", lambda count: 2 * np.log2(count), lambda count: 2 * (count - 1) / count),
                             StepLaw("linear latency", lambda count: count - 1, lambda count: 0 * count))


@dataclass(frozen=True)
class Links:
    """The network between nodes as specified by the user, and the number of model parameters; None: as in the logs."""

    bytes_per_second: float
    latency_seconds: float
    parameters: float | None = None

    def seconds(self, machine: Machine, parameters: float = 0) -> tuple[float, float]:
        """h' and v'; raises UsageError where neither the user nor the logs (``parameters``) have the number."""
        count = parameters if self.parameters is None else self.parameters
        if not count:
            raise UsageError("the network needs the number of the model's parameters, which no log here has; "
                             "--parameters gives it, such as 25.6M")
        each = 2 if machine.compression == "fp16" else {"fp64": 8}.get(machine.precision, 4)    # bytes of a gradient
        return self.latency_seconds, count * each / self.bytes_per_second


@dataclass(frozen=True, eq=False)
class StepTime(Drawn):
    """Seconds per step, and how they are known, of MARKS; an ASSUMED one has links that no log has timed."""

    mark: str


class StepModel:
    """Draws of the law's parameters given timings, and of step times.

    between  h' and v' where they are given; also those of h and v where no links within a node were timed
    waits    in the prior: LIKELY or SATURATING"""

    def __init__(self, timings: Timings, between: tuple[float, float] | None = None,
                 waits: tuple[Any, ...] = LIKELY) -> None:
        self.timings, self.links, self.waits = timings, between, waits
        # of each timing workers, per node, examples a pass, passes, M and H
        self.settings = np.array([(one.workers, one.per_node, one.place.examples, one.passes, *one.sync)
                                  for one in timings.found], float).T
        runs, spread = np.array([len(one.seconds) for one in timings.found]), timings.spread
        deviation = spread.deviation if spread.freedom else ASSUMED_DEVIATION
        self.measured = Measured(np.log([one.value for one in timings.found]),
                                 np.hypot(np.maximum(deviation / np.sqrt(runs), LEAST), HOURS * timings.in_a_row),
                                 spread.freedom, SPREAD, LACK)
        self.examples = float(np.exp(np.log(self.settings[2]).mean()))
        self.level = float((self.measured.logs - np.log(self.settings[3])).min())
        workers, per_node = self.settings[:2]
        self.apart = bool(self.settings[-1].any())          # whether replicas were timed
        self.timed_within = bool((np.minimum(workers, per_node) > 1).any())
        given = BETWEEN if self.timed_within else (*BETWEEN, *WITHIN)
        self.given = dict(zip(given, 2 * between)) if between else {}
        # whether the links within a node, and between nodes, were timed or given
        self.within = bool(self.given) or self.timed_within
        self.between = bool(self.given) or bool((workers > per_node).any())

    def parameters(self, unknowns: np.ndarray) -> tuple[StepLaw, Parameters]:
        """The law of each draw, and its parameters of shape (draws, 1)."""
        share, (steady, pause, pausing, fixed) = scipy.special.ndtr(unknowns), self.waits
        kind, one_pass = np.digitize(share[:, 5], KINDS), np.exp(self.level + LEVEL * unknowns[:, :1])

        def by_kind(name: str) -> Callable[[Any], Any]:
            return lambda count: np.stack([getattr(law, name)(np.atleast_1d(count)) for law in LAWS])[kind]
        law = StepLaw("any", by_kind("hops"), by_kind("volumes"))
        # a power is 1, or finite, with these probabilities; between the two its inverse is uniform
        sharpness, overlap = (1 / np.maximum(1 - np.clip((share[:, at, None] - one) / (finite - one), 0, 1), 1 / FULLY)
                              for at, (one, finite) in ((2, SHARPNESSES), (6, OVERLAPS)))
        ratio = scipy.special.logit(scipy.special.ndtr(unknowns[:, 1:2] + fixed))       # of a to b e

        within, between = (prior[0] * np.exp(prior[1] * unknowns[:, at, None]) for at, prior in (
            (3, LINKS_WITHIN), (9, LINKS_BETWEEN)))
        if self.timed_within and not self.between:
            between = np.maximum(between, within * np.exp(SLOWER * unknowns[:, 9, None]))
        links: dict[str, np.ndarray] = {}
        hops, volumes = law.hops(MEMBERS), law.volumes(MEMBERS)
        for names, passes, at in ((WITHIN, within, 4), (BETWEEN, between, 10)):     # of an allreduce over MEMBERS
            of_hops = np.where(volumes > 0, share[:, at, None], 1.0)        # of a law without bytes all are hops
            own = of_hops * passes / hops, (1 - of_hops) * passes / np.maximum(volumes, 1e-9)
            links |= {name: one * one_pass for name, one in zip(names, own)}
        links |= {name: np.full_like(one_pass, value) for name, value in self.given.items()}

        return law, Parameters(
            **links, fixed=one_pass * np.exp(scipy.special.log_expit(sharpness * ratio) / sharpness),
            example=one_pass * np.exp(scipy.special.log_expit(-sharpness * ratio) / sharpness) / self.examples,
            sharpness=sharpness, overlap=overlap,
            pause=np.where(share[:, 7:8] < steady, 0.0, pause[0] * np.exp(pause[1] * unknowns[:, 8:9])),
            pausing=np.minimum(pausing[0] * np.exp(pausing[1] * unknowns[:, 11:12]), MOST_PAUSING),
            outer=one_pass * OUTER[0] * np.exp(OUTER[1] * unknowns[:, 14:15]) if self.apart else 0.0)

    def log_law(self, unknowns: np.ndarray, settings: np.ndarray) -> np.ndarray:
        """Logarithms of step times, shape (draws, settings), at (workers, per node, examples a pass, passes, M, H)."""
        law, parameters = self.parameters(unknowns)
        return np.log(law.seconds(parameters, *settings))

    @cached_property
    def posterior(self) -> tuple[np.ndarray, float]:
        """(draws of the parameters, standard normal in the prior, shape (draws, UNKNOWNS); the logarithm of how likely
        the timings are)."""
        law = partial(self.log_law, settings=self.settings)
        return sample_posterior(partial(self.measured.log_likelihood, law, 12), UNKNOWNS + self.apart, MODEL_DRAWS)

    def log_seconds(self, per_node: int, places: Sequence[Place]) -> np.ndarray:
        """Draws of log t, shape (draws, places), so many workers a node."""
        settings = np.array([(place.workers, per_node, place.examples, place.passes, *place.sync)
                             for place in places], float).reshape(-1, 6).T
        own, (unknowns, _) = [self.timings.at(place, per_node) for place in places], self.posterior
        random = np.random.default_rng([0, 11])
        slower = (random.random((MODEL_DRAWS, 1)) < OTHER[0]) * random.exponential(OTHER[1], (MODEL_DRAWS, 1))
        doublings = np.log2(np.maximum(settings[0] / self.settings[0].max(), 1))
        return self.measured.draw(
            self.log_law(unknowns, settings) + slower * doublings, self.log_law(unknowns, self.settings),
            np.array([self.timings.found.index(one) if one else -1 for one in own]), random, *unknowns[:, 12:14].T)

    @cached_property
    def saturating(self) -> StepModel:
        """The same where waits are SATURATING; the model itself where the timings refute that."""
        other = StepModel(self.timings, self.links, SATURATING)
        return other if other.posterior[1] > self.posterior[1] - np.log(REFUTED_BY) else self

    @property
    def laws(self) -> dict[str, float]:
        """The probability of each of LAWS by name; empty where no links were timed or given."""
        if not (self.within or self.between):
            return {}
        kinds = np.digitize(scipy.special.ndtr(self.posterior[0][:, 5]), KINDS)
        return {law.name: float(np.mean(kinds == at)) for at, law in enumerate(LAWS)}

    @cached_property
    def misses(self) -> float:
        """Root mean square of log(model / measured)."""
        logs = self.log_law(self.posterior[0], self.settings).mean(0)
        return float(np.sqrt(np.mean((logs - self.measured.logs) ** 2)))

    def interval(self, name: str, confidence: float) -> tuple[float, float, float]:
        """(median, low, high) of a parameter over the draws."""
        tail, drawn = (1 - confidence) / 2, getattr(self.parameters(self.posterior[0])[1], name)
        if name in POWERS:
            drawn = np.where(drawn < FULLY, drawn, np.inf)
        median, low, high = np.quantile(drawn, (0.5, tail, 1 - tail), method="nearest").tolist()
        return median, low, high

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in use: those of links, and an overlap with them, only where links are known, the sharpness
        only where local batches differ, and those of pauses only where it is likely that workers pause."""
        pauses = np.median(self.parameters(self.posterior[0])[1].pause) > 0
        used = {**dict.fromkeys(WITHIN, self.within), **dict.fromkeys(BETWEEN, self.between), "outer": self.apart,
                **dict.fromkeys(PAUSES, pauses), "overlap": self.within or self.between,
                "sharpness": len({*self.settings[2]}) > 1}
        return tuple(name for name in Parameters._fields if used.get(name, True))

    def is_determined(self, name: str, confidence: float) -> bool:
        """Whether the timings or the user determine a parameter; if not, its draws are close to the prior's."""
        _, low, high = self.interval(name, confidence)
        return high < (POWER_DETERMINED if name in POWERS else DETERMINED) * low

    def mark_of(self, workers: int, per_node: int, examples: float) -> str:
        """How the time of a configuration that was not measured is known."""
        if not ((self.within or min(workers, per_node) == 1) and (self.between or workers <= per_node)):
            return ASSUMED
        own = workers, min(workers, per_node), -(-workers // per_node), examples
        timed = np.array([(one.workers, one.per_node, one.nodes, one.place.examples) for one in self.timings.found])
        return INTERPOLATED if (timed.min(0) <= own).all() and (own <= timed.max(0)).all() else EXTRAPOLATED


class StepTimes:
    """Step times at any worker count: measured where possible, else by the model of at least one timing; the runs of
    ``cells``, by workers and batch, replace the timings of theirs."""

    def __init__(self, timings: Timings, links: Links | None = None) -> None:
        between = links.seconds(timings.machine, timings.measured.parameters) if links and timings.machine else None
        self.timings, self.model = timings, StepModel(timings, between)
        self.cells: Mapping[tuple[int, int], RunCell] = {}

    def measured(self, place: Place, per_node: int) -> tuple[Timing | None, RunCell | None]:
        """The timing of this configuration, by the runs of a cell where it has some, so that it is as a report has it;
        and the cell where all its timed runs are of this configuration."""
        timing, cell = self.timings.at(place, per_node), self.cells.get((place.workers, place.global_batch))
        if timing is None or cell is None:
            return timing, None
        runs = tuple(run for run in cell.runs if run.trial.key in timing.trials)
        speeds = known(Samples(runs).examples_per_second)
        if len(speeds):
            timing = Timing(place.workers, timing.per_node, place.global_batch, place.passes,
                            cell.mean_batch / speeds * (timing.slowed or 1.0), timing.crowded,
                            tuple(run.trial.key for run in runs), timing.slowed, place.sync)
        timed = tuple(run.trial.key for run in cell.runs if not np.isnan(run.examples_per_second))
        return timing, cell if timed == timing.trials else None

    def at(self, place: Place, per_node: int) -> StepTime:
        """Seconds per step with so many workers a node, as measured or by the model."""
        timing, _ = self.measured(place, per_node)
        if timing is not None:
            return self.of_timing(timing)
        return self.by_model(place, per_node, self.model.log_seconds(per_node, [place])[:, 0])

    def by_model(self, place: Place, per_node: int, logs: np.ndarray) -> StepTime:
        """Likewise where it was not measured, from the model's draws of the logarithm."""
        mark = self.model.mark_of(place.workers, per_node, place.examples)
        later = self.later if all(one.slowed for one in self.timings.found) else 1.0
        others = self.model.saturating.log_seconds(per_node, [place])[:DRAWS, 0]
        return StepTime(float(np.exp(logs.mean())), np.exp(hull(logs[:DRAWS], others)) * later, mark)

    @cached_property
    def later(self) -> np.ndarray:
        """Draws of what a step takes in whole runs over the time of the first steps, or what is made of that."""
        random = np.random.default_rng([0, 12])
        if not self.timings.slowing:
            return np.exp((random.random(DRAWS) < SLOWS[0]) * random.exponential(SLOWS[1], DRAWS))
        logs, spread = np.log(self.timings.slowing), pooled([self.timings.slowing])
        if len(logs) < 3:
            spread = Spread(max(logs.mean() ** 2 / 4, np.ptp(logs) ** 2), np.inf)
        deviates = random.permutation(scipy.special.stdtrit(spread.freedom, levels(DRAWS)))
        return np.exp(deviates * spread.deviation * np.sqrt(1 + 1 / len(logs)))

    def of_timing(self, timing: Timing) -> StepTime:
        """A measured one; the error of the hours of repeats is common to all timings."""
        spread, (shared, repeats) = self.timings.spread, self.timings.spread.shared
        key = (timing.workers, timing.per_node, timing.global_batch, timing.passes,
               *(timing.sync if timing.sync != EVERY_STEP else ()))
        # (degrees of freedom, variance of a run, key) of each part of the error
        parts = [(spread.freedom, spread.variance, key) if spread.freedom else (np.inf, ASSUMED_DEVIATION ** 2, key)]
        if shared:
            parts = [(repeats * (len(self.timings.found) - 1), spread.variance - shared, key), (repeats, shared, ())]
        logs = sum(np.random.default_rng([0, 2, *own]).permutation(
            scipy.special.stdtrit(freedom, levels(DRAWS)) * np.sqrt(variance / len(timing.seconds)))
            for freedom, variance, own in parts)
        if self.timings.in_a_row:
            logs = logs + HOURS * np.random.default_rng([0, 13, *key]).permutation(scipy.special.ndtri(levels(DRAWS)))
        return StepTime(timing.value, timing.value * np.exp(logs) * (self.later if timing.slowed else 1.0), MEASURED)
