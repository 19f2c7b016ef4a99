"""The time of a step: as measured, or by a model at worker counts and local batches that were not measured.

Several laws (step_laws) are fitted to the timings (step_fit). Laws that the timings refute, by an F test against the
law that fits best, are dropped. The draws of a prediction alternate between the remaining laws, and its interval is the
hull of theirs.

The laws are used up to four times the most workers that were timed, or sixteen times where the times are known to 2 %
or the network is given. Beyond that, laws that these timings do not refute may differ: the step time is open above.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from ..errors import UsageError
from ..formatting.numbers import counted
from ..log.schema import Status
from .drawn import Drawn, levels
from .grouping import group_by
from .intervals import Spread, geometric_mean, pooled, pooled_repeats
from .measured import Footprint, measured_of
from .slow_runs import slow_runs
from .step_fit import FitProblem, Observed
from .step_laws import LAWS, NAMES, PAUSES, POWERS, RING, Parameters, StepLaw
from .steps import RunCell, known, samples_of
from .trials import Trial

DRAWS = 400
ASSUMED_DEVIATION = 0.05    # of the logarithm of a step time, where nothing was timed twice
ASSUMED_FREEDOM = 2         # its degrees of freedom
SURE_WITHIN = 0.02          # standard deviation of the times up to which the reach is FAR rather than NEAR
NEAR, FAR = 4, 16           # reach of the laws, in multiples of the most workers timed
MODEL_DEVIATION = 0.01      # of any model, on top of the spread of the times
DETERMINED = 10             # a parameter is determined where its interval spans less than this factor,
POWER_DETERMINED = 3        # and a power where it spans less than this one
# how a value is known, from best to worst
MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = "measured", "interpolated", "extrapolated", "assumed"
MARKS = (MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED)


@dataclass(frozen=True, eq=False)
class Timing:
    """The step times of one configuration: a worker count, its nodes, a global batch and its passes."""

    workers: int
    per_node: int               # most workers on a node
    global_batch: int
    passes: int
    seconds: np.ndarray         # (runs,): each run's mean step
    crowded: bool               # more workers on a host than it has cores
    trials: tuple[tuple[str, int], ...]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.workers // self.per_node)

    @property
    def examples(self) -> float:
        """Examples per worker in one pass; a mean where the shares are uneven."""
        return self.global_batch / self.workers / self.passes

    @property
    def value(self) -> float:
        """The geometric mean over the runs."""
        return float(geometric_mean(self.seconds))


@dataclass(frozen=True)
class Machine:
    """What step times must have in common to be comparable."""

    device: str
    threads: int
    precision: str
    compression: str            # of the gradients in the allreduce; "": none

    @property
    def gradient_bytes(self) -> int:
        """Bytes per parameter in the allreduce."""
        return 2 if self.compression == "fp16" else 8 if self.precision == "fp64" else 4

    def __str__(self) -> str:
        threads = f", {counted(self.threads, 'thread')} a worker" if self.threads else ""
        rest = [self.precision, f"{self.compression} compression" if self.compression else ""]
        return ", ".join(filter(None, [(self.device or "an unnamed device") + threads, *rest]))


@dataclass(frozen=True, eq=False)
class Timings:
    """The timings of a workload on one machine, by workers and batch, and what was left out."""

    found: tuple[Timing, ...]
    machine: Machine | None
    others: tuple[Machine, ...]         # left out
    crowded: tuple[Timing, ...]         # left out, see timings_of
    measured: Footprint = Footprint()

    @property
    def per_node(self) -> int:
        """The most workers on a node."""
        return max((one.per_node for one in self.found), default=1)

    @property
    def most_local(self) -> int:
        """The most examples of a worker in one pass."""
        return max((int(np.ceil(one.examples)) for one in self.found + self.crowded), default=0)

    @cached_property
    def spread(self) -> Spread:
        """The spread of the logarithms of the times of one configuration, pooled over all."""
        return pooled_repeats([one.seconds for one in self.found])


@dataclass(frozen=True)
class Links:
    """The network between nodes as specified by the user, and the number of model parameters; None: as in the logs."""

    bytes_per_second: float
    latency_seconds: float
    parameters: float | None = None

    def seconds(self, machine: Machine, parameters: float = 0) -> tuple[float, float]:
        """h' and v'; raises UsageError where neither the user nor the logs (``parameters``) have the number."""
        if self.parameters is None and not parameters:
            raise UsageError("the network needs the number of the model's parameters, which no log here has; "
                             "--parameters gives it, such as 25.6M")
        count = parameters if self.parameters is None else self.parameters
        return self.latency_seconds, count * machine.gradient_bytes / self.bytes_per_second


@dataclass(frozen=True, eq=False)
class StepTime(Drawn):
    """Seconds per step, and how they are known. An ASSUMED one has links that no log has timed; StepTimes leaves them
    out."""

    mark: str
    laws: int = 1           # number of laws that the draws alternate between
    open: bool = False      # beyond the reach of the laws: no upper end


def timings_of(trials: Iterable[Trial]) -> Timings:
    """The timings of a workload's trials that completed or were pruned.

    Of several machines, the one with the most worker counts, then the most trials. Hosts with more workers than cores
    are left out if at least two worker counts remain, as their times do not transfer to another machine.
    """
    timed = [trial for trial in trials if (trial.status == Status.COMPLETE or trial.pruned)
             and 0 < trial.examples_per_second < np.inf]
    by_machine = group_by(timed, _read_machine)
    if not by_machine:
        return Timings((), None, (), ())
    machine = max(by_machine, key=lambda one: (len({t.workers for t in by_machine[one]}), len(by_machine[one])))
    found = _by_setting(by_machine[machine])
    free = tuple(one for one in found if not one.crowded)
    crowded = tuple(one for one in found if one.crowded)
    if len({one.workers for one in free}) < min(2, len({one.workers for one in found})):
        free, crowded = found, ()
    return Timings(free, machine, tuple(other for other in by_machine if other != machine), crowded,
                   measured_of(by_machine[machine]))


def _read_machine(trial: Trial) -> Machine:
    execution, problem = trial.execution, trial.plan.get("problem") or {}
    return Machine(str(execution.get("device") or "").split(":")[0], int(execution.get("threads") or 0),
                   str(problem.get("precision") or ""), str(problem.get("compression") or "").removeprefix("none"))


def _by_setting(trials: Iterable[Trial]) -> tuple[Timing, ...]:
    """The timings of trials, by workers, workers per node, batch and passes; without runs that are far too slow."""
    found: dict[tuple[int, int, int, int], list[tuple[Trial, float]]] = {}
    for trial in trials:
        per_node = min(trial.workers, int(trial.execution.get("local_workers") or trial.workers))
        for batch, seconds in trial.step_seconds_by_batch().items():
            setting = trial.workers, per_node, batch, trial.passes_at(batch)
            found.setdefault(setting, []).append((trial, seconds))
    slow = slow_runs([[seconds for _, seconds in runs] for runs in found.values()])
    typical = {key: [run for run, ratio in zip(runs, ratios) if ratio == 1]
               for (key, runs), ratios in zip(found.items(), slow)}
    return tuple(Timing(*key, np.array([seconds for _, seconds in typical[key]]),
                        any(one.crowded for one, _ in typical[key]), tuple(one.key for one, _ in typical[key]))
                 for key in sorted(typical))


@dataclass(frozen=True, eq=False)
class Fit:
    """A law fitted to timings.

    misses      root mean square of log(law / measured) at its best fit
    parameters  of each draw, arrays of shape (draws,); None where the timings refute the law
    """

    law: StepLaw
    misses: float
    parameters: Parameters | None

    @property
    def refuted(self) -> bool:
        return self.parameters is None


@dataclass(frozen=True, eq=False)
class StepModel:
    """The laws fitted to timings, and which links the timings leave unknown.

    fits             of each law, the best first
    within, between  whether the links within a node, and between nodes, were measured or given
    given            whether those between nodes were given
    settings         number of configurations in the fit
    reach            the laws are used up to this multiple of the most workers timed
    """

    fits: tuple[Fit, ...]
    within: bool
    between: bool
    given: bool
    settings: int
    draws: int
    reach: int

    @property
    def fitting(self) -> list[tuple[StepLaw, Parameters]]:
        """The laws that the timings do not refute, with their parameters."""
        return [(fit.law, fit.parameters) for fit in self.fits if fit.parameters is not None]

    @property
    def misses(self) -> float:
        """Root mean square of log(model / measured) of the law that fits best."""
        return next(fit.misses for fit in self.fits if not fit.refuted)

    def seconds(self, workers: int, per_node: int, examples: float, passes: int = 1) -> np.ndarray:
        """Draws of t, alternating between the laws that fit, each with the deviation of any model."""
        found = np.stack([law.seconds(parameters, workers, per_node, examples, passes)
                          for law, parameters in self.fitting], -1).ravel()[:self.draws]
        return found * np.exp(MODEL_DEVIATION * np.random.default_rng(0).permutation(
            scipy.special.ndtri(levels(self.draws))))

    def middle(self, draws: np.ndarray) -> float:
        """The median of draws of t; of the laws without pauses only, where one of them fits."""
        laws = [law for law, _ in self.fitting]
        plain = [at for at, law in enumerate(laws) if not law.pauses] or range(len(laws))
        return float(np.median(np.concatenate([draws[at::len(laws)] for at in plain])))

    def interval(self, name: str, confidence: float) -> tuple[float, float, float]:
        """(median, low, high) of a parameter over the draws of the laws that fit."""
        values = np.sort(np.concatenate([getattr(parameters, name) for _, parameters in self.fitting]))
        tail = (1 - confidence) / 2
        median, low, high = (float(values[round(level * (len(values) - 1))]) for level in (0.5, tail, 1 - tail))
        return median, low, high

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in use: those of links, and an overlap with them, only where links are known, the sharpness
        only where local batches differ, and those of pauses only where all laws that fit have them."""
        unused = {"overlap"} if not (self.within or self.between) else set()
        unused |= {"sharpness"} if all((one.sharpness == 1).all() for _, one in self.fitting) else set()
        unused |= set() if all(law.pauses for law, _ in self.fitting) else set(PAUSES)
        return tuple(name for name in NAMES if name not in unused
                     and any(getattr(one, name).any() for _, one in self.fitting))

    def is_given(self, name: str, confidence: float) -> bool:
        """Whether the user gave a parameter."""
        _, low, high = self.interval(name, confidence)
        return self.given and low == high

    def is_determined(self, name: str, confidence: float) -> bool:
        """Whether the timings or the user determine a parameter; if not, its draws are close to the prior's."""
        _, low, high = self.interval(name, confidence)
        return high < (POWER_DETERMINED if name in POWERS else DETERMINED) * low

    def knows(self, workers: int, per_node: int) -> bool:
        """Whether all links that these workers need are known."""
        return (self.within or min(workers, per_node) == 1) and (self.between or workers <= per_node)


def fit_steps(timings: Sequence[Timing], between: tuple[float, float] | None = None, spread: Spread | None = None,
              draws: int = DRAWS, seed: int = 0) -> StepModel:
    """The model of these timings; the same seed gives the same draws.

    between  h' and v' where they are given; also used for h and v where no links within a node were timed
    spread   of the logarithms of single runs' times; by default pooled over the timings
    """
    spread = pooled([one.seconds for one in timings]) if spread is None else spread
    observed = _observe(timings, between, spread)
    problems = [FitProblem(law, observed) for law in (LAWS if observed.timed or between else (RING,))]
    problems.sort(key=lambda one: one.misfit)
    best = problems[0]
    fitting = [one for one in problems if not one.worse(best)]
    random, share = np.random.default_rng([seed, 1]), -(-draws // len(fitting))
    fits = [Fit(one.law, float(np.sqrt(np.mean(one.misses ** 2))),
                one.draw(share, random, best.inflation) if one in fitting else None) for one in problems]
    given = between is not None
    within = given or max(min(one.workers, one.per_node) for one in timings) > 1
    between_known = given or max(one.nodes for one in timings) > 1
    deviation = np.median(observed.deviation) * np.sqrt(best.inflation)
    sure = spread.freedom > 0 and deviation <= SURE_WITHIN
    return StepModel(tuple(fits), within, between_known, given, len(timings), draws, FAR if given or sure else NEAR)


def _observe(timings: Sequence[Timing], between: tuple[float, float] | None, spread: Spread) -> Observed:
    deviation = spread.deviation if spread.freedom else ASSUMED_DEVIATION
    workers, per_node, examples, passes = (np.array([getattr(one, name) for one in timings], float)
                                           for name in ("workers", "per_node", "examples", "passes"))
    return Observed(workers, per_node, examples, passes, np.log([one.value for one in timings]),
                    np.hypot(deviation / np.sqrt([len(one.seconds) for one in timings]), MODEL_DEVIATION),
                    spread.freedom or ASSUMED_FREEDOM, between)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Step times at any worker count: measured where possible, else by the model."""

    timings: Timings
    model: StepModel
    cells: tuple[RunCell, ...] = ()        # of one worker count each: their runs replace the timings of theirs
    between: tuple[float, float] | None = None      # h' and v' as given

    @classmethod
    def of(cls, timings: Timings, links: Links | None = None, draws: int = DRAWS) -> StepTimes:
        """The model fitted to at least one timing."""
        between = links.seconds(timings.machine, timings.measured.parameters) if links and timings.machine else None
        return cls(timings, fit_steps(timings.found, between, timings.spread, draws), between=between)

    def of_cells(self, cells: Iterable[RunCell]) -> StepTimes:
        """The same model, with measured times taken from these cells."""
        return replace(self, cells=tuple(cells))

    @cached_property
    def _by_setting(self) -> dict[tuple[int, int, int, int], list[Timing]]:
        return group_by(self.timings.found, lambda one: (one.workers, one.nodes, one.global_batch, one.passes))

    @cached_property
    def _cells(self) -> dict[tuple[int, int], RunCell]:
        return {(cell.workers[0], cell.global_batch): cell for cell in self.cells}

    @cached_property
    def _ranges(self) -> list[tuple[float, float]]:
        values = zip(*((one.workers, one.per_node, one.nodes, one.examples) for one in self.timings.found))
        return [(min(ends), max(ends)) for ends in values]

    def timing_of(self, workers: int, per_node: int, global_batch: int, passes: int) -> Timing | None:
        """The timing of this configuration, with the most similar layout on as many nodes; None where there is none."""
        found = self._by_setting.get((workers, -(-workers // per_node), global_batch, passes), ())
        return min(found, key=lambda one: abs(one.per_node - min(workers, per_node)), default=None)

    def measured(self, workers: int, per_node: int, global_batch: int, passes: int) -> Timing | None:
        """The same, but where a cell has runs of this configuration, their step time, as in a report
        (RunCell.step_seconds)."""
        timing = self.timing_of(workers, per_node, global_batch, passes)
        cell = self._cells.get((workers, global_batch))
        if timing is None or cell is None:
            return timing
        runs = tuple(run for run in cell.runs if run.trial.key in timing.trials)
        speeds = known(samples_of(runs).examples_per_second)
        return replace(timing, seconds=cell.mean_batch / speeds, trials=tuple(run.trial.key for run in runs)
                       ) if len(speeds) else timing

    def cell_of(self, timing: Timing) -> RunCell | None:
        """The cell whose timed runs are all of this timing's configuration; None where there is none."""
        cell = self._cells.get((timing.workers, timing.global_batch))
        timed = tuple(run.trial.key for run in cell.runs if not np.isnan(run.examples_per_second)) if cell else ()
        return cell if timed == timing.trials else None

    def at(self, workers: int, per_node: int, global_batch: int, passes: int = 1) -> StepTime:
        """Seconds per step of ``workers``, ``per_node`` of them on a node."""
        timing = self.measured(workers, per_node, global_batch, passes)
        if timing is not None:
            return StepTime(timing.value, timing.value * np.exp(self._deviation(timing)), MEASURED)
        examples = global_batch / workers / passes
        draws = self.model.seconds(workers, per_node, examples, passes)
        mark = self.mark_of(workers, per_node, examples)
        return StepTime(self.model.middle(draws), draws, mark, len(self.model.fitting),
                        mark != ASSUMED and self._is_far(workers, per_node))

    def mark_of(self, workers: int, per_node: int, examples: float) -> str:
        """How the time of a configuration that was not measured is known."""
        if not self.model.knows(workers, per_node):
            return ASSUMED
        own = workers, min(workers, per_node), -(-workers // per_node), examples
        inside = all(low <= value <= high for value, (low, high) in zip(own, self._ranges))
        return INTERPOLATED if inside else EXTRAPOLATED

    def _is_far(self, workers: int, per_node: int) -> bool:
        """Whether it is beyond the reach of the laws: in workers and, unless links are given, in members per link."""
        own = workers, min(workers, per_node), -(-workers // per_node)
        limits = zip(own[:1] if self.model.given else own, self._ranges)
        return any(value > self.model.reach * most for value, (_, most) in limits)

    def _deviation(self, timing: Timing) -> np.ndarray:
        """Draws of the error of a timing's logarithm; that of the hours of repeats is common to all timings."""
        spread, size, (shared, repeats) = self.timings.spread, self.model.draws, self.timings.spread.shared
        key = timing.workers, timing.per_node, timing.global_batch, timing.passes

        def draw(freedom: float, variance: float | np.ndarray, *key: int) -> np.ndarray:
            deviates = scipy.special.stdtrit(freedom, levels(size)) * np.sqrt(variance / len(timing.seconds))
            return np.random.default_rng([0, 2, *key]).permutation(deviates)
        if shared:
            rest = repeats * (len(self.timings.found) - 1)
            return draw(rest, spread.variance - shared, *key) + draw(repeats, shared)
        return draw(*(spread.freedom, spread.variance) if spread.freedom else (np.inf, ASSUMED_DEVIATION ** 2), *key)
