"""How long a step takes: as measured, and by a model at worker counts and local batches that were not measured.

W workers, g of them on each of m nodes, pass e examples each through the model in k passes:

    pass        c = a + b e / k                                    a: fixed part, b: seconds an example
    allreduce   s = ring(g; h, v) + ring(m; h', v'),   ring(n; h, v) = 2 (n - 1) (h + v / n)
    step        t = (k - 1) c + (c^p + s^p)^(1/p)                  p = 1: one after the other; large: the longer one

A ring over n moves 2 (n - 1) / n of the gradient's bytes in 2 (n - 1) hops (Patarasuk and Yuan 2009): h is the seconds
of a hop, v those of all bytes on one link, within a node and (primed) between nodes. The overlap p, from 1 to 10, is
that of Qiao et al. 2021 (Pollux, arXiv 2008.12260).

Logs seldom tell all seven apart: weak scaling says nothing of a against b e, one node nothing of h' and v', and few
worker counts little of h against v. So all have wide priors on a logarithmic scale, and the uncertainty is carried by
draws: each is the least-squares fit to times disturbed by their own spread and to prior means disturbed by theirs
(randomize-then-optimize, Bardsley et al. 2014). What the logs settle agrees in all draws; what they do not varies as
widely as the prior, and so do the predictions that hang on it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from scipy.optimize import leastsq
from scipy.special import expit, ndtri, stdtrit

from ..log.schema import Status
from .intervals import Spread, geometric_mean, pooled
from .steps import Cell, known, samples_of

DRAWS = 400
ASSUMED_DEVIATION = 0.05    # of the logarithm of a step time, where nothing was timed twice
MODEL_DEVIATION = 0.01      # beside the spread of the times: no model is better
TOLD_APART = 10             # a parameter is told by the logs where its interval spans less than this factor,
OVERLAP_TOLD = 3            # and the overlap, which goes from 1 to 10 only, where it spans less than this one
# how a value is known, from best to worst
MEASURED, INTERPOLATED, EXTRAPOLATED, BOUNDED = "measured", "interpolated", "extrapolated", "bound"
MARKS = (MEASURED, INTERPOLATED, EXTRAPOLATED, BOUNDED)


@dataclass(frozen=True, eq=False)
class Timing:
    """The step times of one way of running: a worker count, its nodes, a global batch and its passes."""

    workers: int
    per_node: int               # workers on a node, at most
    global_batch: int
    passes: int
    seconds: np.ndarray         # (runs,): each run's mean step
    crowded: bool               # more workers on a host than it has cores
    trials: tuple[tuple[str, int], ...]

    @property
    def nodes(self):
        return -(-self.workers // self.per_node)

    @property
    def examples(self):
        """Of a worker in one pass; a mean where the shares are uneven."""
        return self.global_batch / self.workers / self.passes

    @property
    def value(self):
        return float(geometric_mean(self.seconds))


@dataclass(frozen=True)
class Machine:
    """What must agree for step times to be compared."""

    device: str
    threads: int
    precision: str
    compression: str            # of what is reduced; "" or none

    @property
    def gradient_bytes(self):
        """Of one parameter, in the allreduce."""
        return 2 if self.compression == "fp16" else 8 if self.precision == "fp64" else 4

    def __str__(self):
        threads = f", {self.threads} thread{'s' * (self.threads != 1)} a worker" if self.threads else ""
        rest = [self.precision, f"{self.compression} compression" if self.compression else ""]
        return ", ".join(filter(None, [(self.device or "an unnamed device") + threads, *rest]))


@dataclass(frozen=True, eq=False)
class Timings:
    """The timings of a workload on one machine, by workers and batch, and what was left out of them."""

    found: tuple[Timing, ...]
    machine: Machine | None
    others: tuple[Machine, ...]         # whose times are left out
    crowded: tuple[Timing, ...]         # left out: see timings_of

    @property
    def per_node(self):
        """The most workers that a node held."""
        return max((one.per_node for one in self.found), default=1)

    @property
    def most_local(self):
        """The most examples that a worker passed through the model at once."""
        return max((int(np.ceil(one.examples)) for one in self.found + self.crowded), default=0)

    @cached_property
    def spread(self) -> Spread:
        """Of the logarithms of the times of one way of running, pooled over all."""
        return pooled([one.seconds for one in self.found])


@dataclass(frozen=True)
class Links:
    """The network between nodes as the user knows it, and how many parameters the model has."""

    bytes_per_second: float
    latency_seconds: float
    parameters: float

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """h' and v'."""
        return self.latency_seconds, self.parameters * machine.gradient_bytes / self.bytes_per_second


@dataclass(frozen=True, eq=False)
class Parameters:
    """a, b, h, v, h', v' in seconds, and p: numbers, or arrays of shape (draws,)."""

    fixed: np.ndarray
    example: np.ndarray
    hop: np.ndarray
    volume: np.ndarray
    node_hop: np.ndarray
    node_volume: np.ndarray
    overlap: np.ndarray


NAMES = tuple(field.name for field in fields(Parameters))
WITHIN, BETWEEN = ("hop", "volume"), ("node_hop", "node_volume")


@dataclass(frozen=True)
class StepTime:
    """Seconds a step: a value, draws of it, and how it is known. Of a BOUNDED one they leave out links, which would add
    to each."""

    value: float
    draws: np.ndarray
    mark: str


def timings_of(trials) -> Timings:
    """The timings among a workload's trials that ran to an end or were stopped by their search.

    Of several machines the one with the most worker counts, then the most trials. Hosts with more workers than cores
    are left out while two worker counts or more remain: their times would not be those of another machine.
    """
    by_machine: dict[Machine, list] = {}
    for trial in trials:
        ended = trial.status == Status.COMPLETE or trial.pruned
        if ended and 0 < trial.examples_per_second < np.inf:
            by_machine.setdefault(_machine(trial), []).append(trial)
    if not by_machine:
        return Timings((), None, (), ())
    machine = max(by_machine, key=lambda one: (len({t.workers for t in by_machine[one]}), len(by_machine[one])))
    found = _by_setting(by_machine[machine])
    free = tuple(one for one in found if not one.crowded)
    crowded = tuple(one for one in found if one.crowded)
    if len({one.workers for one in free}) < min(2, len({one.workers for one in found})):
        free, crowded = found, ()
    return Timings(free, machine, tuple(other for other in by_machine if other != machine), crowded)


def _machine(trial):
    execution, problem = trial.execution, trial.plan.get("problem") or {}
    return Machine(str(execution.get("device") or "").split(":")[0], int(execution.get("threads") or 0),
                   str(problem.get("precision") or ""),
                   str(problem.get("compression") or "").removeprefix("none"))


def _by_setting(trials):
    """Timings of trials, by workers, workers a node, batch and passes."""
    found: dict[tuple, list] = {}
    for trial in trials:
        execution = trial.execution
        per_node = min(trial.workers, int(execution.get("local_workers") or trial.workers))
        key = trial.workers, per_node, trial.global_batch, int(execution.get("accumulate") or 1)
        found.setdefault(key, []).append(trial)
    return tuple(Timing(*key, np.array([one.global_batch / one.examples_per_second for one in found[key]]),
                        any(_is_crowded(one) for one in found[key]), tuple(one.key for one in found[key]))
                 for key in sorted(found))


def _is_crowded(trial):
    return trial.execution.get("local_workers", 0) > trial.execution.get("cores", np.inf)


def step_seconds(parameters: Parameters, workers, per_node, examples, passes=1):
    """t of the module's text; ``examples`` are a worker's in one pass. Broadcasts over all arguments."""
    inside, nodes = np.minimum(workers, per_node), np.ceil(np.asarray(workers) / per_node)
    one_pass = parameters.fixed + parameters.example * examples
    allreduce = (_ring(parameters.hop, parameters.volume, inside)
                 + _ring(parameters.node_hop, parameters.node_volume, nodes))
    longer, shorter = np.maximum(one_pass, allreduce), np.minimum(one_pass, allreduce)
    with np.errstate(under="ignore"):
        both = longer * (1 + (shorter / longer) ** parameters.overlap) ** (1 / parameters.overlap)
    return (passes - 1) * one_pass + both


def _ring(hop, volume, count):
    return 2 * (count - 1) * (hop + volume / count)


@dataclass(frozen=True, eq=False)
class StepModel:
    """The model fitted to timings: its parameters in every draw, and what the timings leave unknown.

    within, between  whether the links within a node, and between nodes, were measured or given
    given            whether those between nodes were given
    misses           root mean square of log(model / measured) at the best fit; NaN where there is nothing to miss
    settings         how many ways of running it was fitted to
    """

    parameters: Parameters
    within: bool
    between: bool
    given: bool
    misses: float
    settings: int

    def interval(self, name, confidence):
        """(median, low, high) of a parameter over the draws; NaN where it was not fitted."""
        values = getattr(self.parameters, name)
        tail = (1 - confidence) / 2
        return tuple(map(float, np.quantile(values, (0.5, tail, 1 - tail))))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it has: those of links only where they are known, and of an overlap with them."""
        return tuple(name for name in NAMES if getattr(self.parameters, name).any()
                     and (name != "overlap" or self.within or self.between))

    def is_given(self, name, confidence):
        """Whether the user gave a parameter."""
        _, low, high = self.interval(name, confidence)
        return self.given and low == high

    def is_told(self, name, confidence):
        """Whether the timings or the user tell a parameter: if not, its draws are nearly those of the prior."""
        _, low, high = self.interval(name, confidence)
        return high < (OVERLAP_TOLD if name == "overlap" else TOLD_APART) * low

    def knows(self, workers, per_node):
        """Whether all links that these workers need are known."""
        return (self.within or min(workers, per_node) == 1) and (self.between or workers <= per_node)


def fit_steps(timings: Sequence[Timing], between: tuple[float, float] | None = None, spread: Spread | None = None,
              draws=DRAWS, seed=0) -> StepModel:
    """The model of these timings; the same seed gives the same draws.

    between  h' and v' where they are given; where no links within a node were timed they stand for h and v as well
    spread   of the logarithms of single runs' times; by default pooled over the timings
    """
    problem = _Problem(timings, between, pooled([one.seconds for one in timings]) if spread is None else spread)
    best, spent = problem.best()
    residuals = problem.model(best) - problem.logs
    freedom = len(timings) - spent
    misfit = np.sum((residuals / problem.deviation) ** 2)
    if freedom >= 1 and misfit > freedom:           # the model misses by more than the times spread
        problem.deviation = problem.deviation * np.sqrt(misfit / freedom)
    found = problem.natural(problem.disturbed(best, draws, np.random.default_rng([seed, 1])))
    given = between is not None
    within = given or max(min(one.workers, one.per_node) for one in timings) > 1
    return StepModel(Parameters(**{name: getattr(found, name)[:, 0] for name in NAMES}), within,
                     given or max(one.nodes for one in timings) > 1, given,
                     float(np.sqrt(np.mean(residuals ** 2))), len(timings))


class _Problem:
    """The least-squares problem. Its unknowns, each with a normal prior, are at the median local batch the logarithm of
    a pass and the fixed part's share of it (logit), so that what times settle and what they may not are apart; for each
    kind of link that was timed the logarithms of a hop and of what all bytes take at the most workers; and the overlap.
    """

    SHARE = (0.0, 2.5)              # of a logit: a half, from 0.7 % to 99.3 %
    HOP = (np.log(2e-5), 2.0)       # seconds: 20 us, from 0.4 us to 1 ms
    VOLUME = (np.log(0.2), 2.5)     # in passes: a fifth, from 1/700 to 27
    OVERLAP = (-1.5, 1.5)           # of p: 2.6, from 1.1 to 8.2

    def __init__(self, timings, between, spread):
        self.logs = np.log([one.value for one in timings])
        self.at = [np.array([getattr(one, name) for one in timings], float)
                   for name in ("workers", "per_node", "examples", "passes")]
        self.freedom = spread.freedom
        deviation = spread.deviation if spread.freedom else ASSUMED_DEVIATION
        self.deviation = np.hypot(deviation / np.sqrt([len(one.seconds) for one in timings]), MODEL_DEVIATION)
        self.given = between
        self.examples = float(np.exp(np.median(np.log(self.at[2]))))
        pass_log = float(np.median(self.logs - np.log(self.at[3])))
        self.counts = {WITHIN: max(min(one.workers, one.per_node) for one in timings),
                       BETWEEN: 1 if between else max(one.nodes for one in timings)}
        self.timed = [names for names, count in self.counts.items() if count > 1]
        priors = [(pass_log, 3.0), self.SHARE]
        for _ in self.timed:
            priors += [self.HOP, (pass_log + self.VOLUME[0], self.VOLUME[1])]
        self.centre, self.width = np.array([*priors, self.OVERLAP]).T

    def natural(self, unknowns) -> Parameters:
        """Parameters of unknowns of shape (..., unknowns), each of shape (..., 1)."""
        column = [unknowns[..., at, None] for at in range(unknowns.shape[-1])]
        one_pass, share = np.exp(column[0]), expit(column[1])
        values = {"fixed": one_pass * share, "example": one_pass * (1 - share) / self.examples}
        for at, names in enumerate(self.timed):
            count = self.counts[names]
            hop, part = np.exp(column[2 + 2 * at]), np.exp(column[3 + 2 * at])
            values |= dict(zip(names, (hop, part * count / (2 * (count - 1)))))
        for names in (BETWEEN, WITHIN) if self.given else ():
            for name, seconds in zip(names, self.given):
                values.setdefault(name, np.full_like(one_pass, seconds))
        values["overlap"] = 1 + 9 * expit(column[-1])
        return Parameters(**{name: values.get(name, np.zeros_like(one_pass)) for name in NAMES})

    def model(self, unknowns):
        """Logarithms of the model's times, shape (..., timings)."""
        return np.log(step_seconds(self.natural(unknowns), *self.at))

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

    def best(self):
        """The unknowns that fit best, and the degrees of freedom that the times gave up for them."""
        found, *_ = leastsq(self.residuals, self.centre, args=(self.logs, self.centre), full_output=True,
                            Dfun=lambda unknowns, *_: self.slopes(unknowns))
        slopes = self.slopes(found)
        times = slopes[:len(self.logs)]
        return found, float(np.trace(times @ np.linalg.pinv(slopes.T @ slopes) @ times.T))

    def disturbed(self, start, draws, random, most=60):
        """The unknowns that fit best to disturbed times and priors, one row a draw: what leastsq would find for each,
        by the same method (Levenberg-Marquardt) over all at once."""
        scale = 1.0
        if self.freedom:            # Student's t, to the 98 % that hold for one degree of freedom
            scale = np.minimum(np.sqrt(self.freedom / random.chisquare(self.freedom, (draws, 1))), 40.0)
        logs = self.logs + scale * self.deviation * random.standard_normal((draws, len(self.logs)))
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
        return unknowns


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Step times at any worker count: measured where they were, else by the model."""

    timings: Timings
    model: StepModel
    seed: int = 0
    cells: tuple[Cell, ...] = ()        # of one worker count each: their runs tell what their way of running took

    @classmethod
    def of(cls, timings: Timings, links: Links | None = None, draws=DRAWS, seed=0) -> StepTimes:
        """Fits the model; timings hold at least one."""
        between = links.seconds(timings.machine) if links else None
        return cls(timings, fit_steps(timings.found, between, timings.spread, draws, seed), seed)

    def of_cells(self, cells) -> StepTimes:
        """Measured times as those of cells held against a target; the model stays that of all runs."""
        return replace(self, cells=tuple(cells))

    @cached_property
    def _by_setting(self):
        found: dict[tuple, list[Timing]] = {}
        for one in self.timings.found:
            found.setdefault((one.workers, one.nodes, one.global_batch, one.passes), []).append(one)
        return found

    @cached_property
    def _cells(self):
        return {(cell.workers[0], cell.global_batch): cell for cell in self.cells}

    @cached_property
    def _ranges(self):
        values = zip(*((one.workers, one.per_node, one.nodes, one.examples) for one in self.timings.found))
        return [(min(ends), max(ends)) for ends in values]

    def measured(self, workers, per_node, global_batch, passes) -> Timing | None:
        """The timing of this way of running, on as many nodes, of the most alike layout; None where there is none.

        Where a cell has runs of this way, it is their step, as a report states it (Cell.step_seconds).
        """
        found = self._by_setting.get((workers, -(-workers // per_node), global_batch, passes))
        if not found:
            return None
        timing = min(found, key=lambda one: abs(one.per_node - min(workers, per_node)))
        cell = self._cells.get((workers, global_batch))
        runs = tuple(run for run in cell.runs if run.trial.key in timing.trials) if cell else ()
        speeds = known(samples_of(runs).examples_per_second) if runs else runs
        return replace(timing, seconds=global_batch / speeds, trials=tuple(run.trial.key for run in runs)
                       ) if len(speeds) else timing

    def cell_of(self, timing) -> Cell | None:
        """The cell whose runs are all of this timing's way of running; None where there is none."""
        cell = self._cells.get((timing.workers, timing.global_batch))
        return cell if cell and tuple(run.trial.key for run in cell.runs) == timing.trials else None

    def at(self, workers, per_node, global_batch, passes=1) -> StepTime:
        """Seconds a step of ``workers``, ``per_node`` of them on a node."""
        timing = self.measured(workers, per_node, global_batch, passes)
        if timing is not None:
            return StepTime(timing.value, timing.value * np.exp(self._deviation(timing)), MEASURED)
        examples = global_batch / workers / passes
        draws = step_seconds(self.model.parameters, workers, per_node, examples, passes)
        if not self.model.knows(workers, per_node):
            mark = BOUNDED
        else:
            own = workers, min(workers, per_node), -(-workers // per_node), examples
            inside = all(low <= value <= high for value, (low, high) in zip(own, self._ranges))
            mark = INTERPOLATED if inside else EXTRAPOLATED
        return StepTime(float(np.median(draws)), draws, mark)

    def _deviation(self, timing):
        """Draws of the error of the logarithm of a timing."""
        random = np.random.default_rng([self.seed, 2, timing.workers, timing.per_node, timing.global_batch,
                                        timing.passes])
        spread, size = self.timings.spread, len(self.model.parameters.fixed)
        if spread.freedom:
            deviates = stdtrit(spread.freedom, levels(size)) * spread.deviation / np.sqrt(len(timing.seconds))
        else:
            deviates = ASSUMED_DEVIATION * ndtri(levels(size))
        return random.permutation(deviates)


def levels(draws):
    """Evenly spread probabilities, so that draws made of them have the median and the spread that they should."""
    return (np.arange(draws) + 0.5) / draws
