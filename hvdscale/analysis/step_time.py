"""The time of a step: as measured, or by a model at worker counts and local batches that were not measured.

The model is draws of the law of step_laws with all its parts, given the timings and what is known of networks. In the
prior each part is as likely as it is in practice: an allreduce by a ring or a tree, or linear in the members; hidden
behind the pass or not; workers that pause. An allreduce over MEMBERS takes a share of a pass that is log-normal, within
a node and between nodes; and a pass takes a fixed share, uniform, of its time whatever its examples. Links that no log
has timed are drawn from that prior, those between nodes not much faster than those that were timed within one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from ..errors import UsageError
from ..formatting.numbers import counted
from ..log.schema import Status
from .decision.draws import DRAWS as MODEL_DRAWS, Drawn, Measured, levels, sample_posterior
from .grouping import group_by
from .intervals import Spread, geometric_mean, pooled, pooled_repeats
from .measured import Footprint, measured_of
from .slow_runs import slow_runs
from .step_laws import BETWEEN, LAWS, NAMES, PAUSES, POWERS, WITHIN, Parameters, StepLaw
from .steps import RunCell, known, samples_of
from .trials import Trial

DRAWS = 400                 # of a value
ASSUMED_DEVIATION = 0.05    # of the logarithm of a step time, where nothing was timed twice
HOURS = 0.10                # likewise between hours, where all repeats of a setting ran one right after the other
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
STEADY = 0.85                           # of workers that do not pause
PAUSE, PAUSING = (0.4, 1.0), (0.02, 1.5)        # in passes; share of steps: medians, deviations of the logarithm
MOST_PAUSING = 0.9
# that something else slows workers down beyond those timed (a slow node, another switch, storage): its probability,
# and the mean of log t that it adds by doubling
OTHER = (0.10, 0.15)
SPREAD, LACK = 0.8, (0.015, 0.8)        # see Measured
LEVEL = 2.0                             # standard deviation of the logarithm of a pass, around the fastest timing
LEAST = 0.002                           # standard deviation of a timing
UNKNOWNS = 14

DETERMINED, POWER_DETERMINED = 10, 3    # a parameter, or a power, is where its interval spans less than this factor
REFUTED_AT = 0.01                       # the probability of a law below which the timings refute it


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
    slowed: float = 0.0         # what seconds of the first steps alone were multiplied by; 0: they are of whole runs

    @property
    def nodes(self) -> int:
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
        return 2 if self.compression == "fp16" else {"fp64": 8}.get(self.precision, 4)

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
    placed: bool = True                 # whether the logs say which workers shared a node
    slowing: tuple[float, ...] = ()     # of long runs, the mean step over that of their first
    in_a_row: bool = False              # whether all repeats of each setting ran one right after the other

    @property
    def per_node(self) -> int:
        return max((one.per_node for one in self.found), default=1)

    @property
    def most_local(self) -> int:
        """The most examples of a worker in one pass."""
        return max((int(np.ceil(one.examples)) for one in self.found + self.crowded), default=0)

    @cached_property
    def spread(self) -> Spread:
        """The spread of the logarithms of the times of one configuration, pooled over all."""
        return pooled_repeats([one.seconds for one in self.found])

    @cached_property
    def later(self) -> np.ndarray:
        """Draws of what a step takes in whole runs over the time of the first steps, or what is made of that."""
        random = np.random.default_rng([0, 12])
        if not self.slowing:
            return np.exp((random.random(DRAWS) < SLOWS[0]) * random.exponential(SLOWS[1], DRAWS))
        logs, spread = np.log(self.slowing), pooled([self.slowing])
        if len(logs) < 3:
            spread = Spread(max(logs.mean() ** 2 / 4, np.ptp(logs) ** 2), np.inf)
        deviates = random.permutation(scipy.special.stdtrit(spread.freedom, levels(DRAWS)))
        return np.exp(deviates * spread.deviation * np.sqrt(1 + 1 / len(logs)))

    def at(self, workers: int, per_node: int, global_batch: int, passes: int) -> Timing | None:
        """The timing of this configuration, with the most similar layout on as many nodes; None where there is none."""
        setting = workers, -(-workers // per_node), global_batch, passes
        found = [one for one in self.found if (one.workers, one.nodes, one.global_batch, one.passes) == setting]
        return min(found, key=lambda one: abs(one.per_node - min(workers, per_node)), default=None)


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
    """Seconds per step, and how they are known, of MARKS; an ASSUMED one has links that no log has timed."""

    mark: str


def timings_of(trials: Iterable[Trial], per_node: int | None = None) -> Timings:
    """The timings of a workload's trials that completed or were pruned.

    per_node  workers of a node in logs that do not say; None: there all shared one

    Of several machines, the one with the most worker counts, then the most trials. Hosts with more workers than cores
    are left out if at least two worker counts remain, as their times do not transfer to another machine."""
    timed = [trial for trial in trials if (trial.status == Status.COMPLETE or trial.pruned)
             and 0 < trial.examples_per_second < np.inf]
    by_machine = group_by(timed, _read_machine)
    if not by_machine:
        return Timings((), None, (), ())
    machine = max(by_machine, key=lambda one: (len({t.workers for t in by_machine[one]}), len(by_machine[one])))
    slowing = tuple(trial.slowing for trial in by_machine[machine] if trial.slowing > 0)
    found = _by_setting(by_machine[machine], float(geometric_mean(slowing)) if slowing else 1.0, per_node)
    free = tuple(one for one in found if not one.crowded)
    crowded = tuple(one for one in found if one.crowded)
    if len({one.workers for one in free}) < min(2, len({one.workers for one in found})):
        free, crowded = found, ()
    return Timings(free, machine, tuple(other for other in by_machine if other != machine), crowded,
                   measured_of(by_machine[machine]),
                   all(one.workers == 1 or one.execution.get("local_workers") for one in by_machine[machine]),
                   slowing, _ran_in_a_row(by_machine[machine]))


def _ran_in_a_row(trials: Sequence[Trial]) -> bool:
    """Whether several settings have repeats, over an hour or more, and no other run came between those of one."""
    known = sorted((trial.started, trial.workers, trial.global_batch) for trial in trials)
    settings = [setting for _, *setting in known]
    changes = 1 + sum(one != other for one, other in zip(settings, settings[1:]))
    several = len({tuple(one) for one in settings})
    return 1 < several == changes < len(known) and known[-1][0] - known[0][0] >= 3600


def _read_machine(trial: Trial) -> Machine:
    execution, problem = trial.execution, trial.plan.get("problem") or {}
    return Machine(str(execution.get("device") or "").split(":")[0], int(execution.get("threads") or 0),
                   str(problem.get("precision") or ""), str(problem.get("compression") or "").removeprefix("none"))


def _by_setting(trials: Iterable[Trial], slowing: float, unplaced: int | None) -> tuple[Timing, ...]:
    """The timings of trials, by workers, workers per node, batch and passes; without runs that are far too slow. Those
    that timed a few steps are taken to slow down as long runs do."""
    found: dict[tuple[int, int, int, int], list[tuple[Trial, float]]] = {}
    for trial in trials:
        per_node = min(trial.workers, int(trial.execution.get("local_workers") or unplaced or trial.workers))
        for batch, seconds in trial.step_seconds_by_batch().items():
            setting = trial.workers, per_node, batch, trial.passes_at(batch)
            found.setdefault(setting, []).append((trial, seconds * slowing if trial.is_probe else seconds))
    slow = slow_runs([[seconds for _, seconds in runs] for runs in found.values()])
    typical = {key: [run for run, ratio in zip(runs, ratios) if ratio == 1]
               for (key, runs), ratios in zip(found.items(), slow)}
    return tuple(Timing(*key, np.array([seconds for _, seconds in typical[key]]),
                        any(one.crowded for one, _ in typical[key]), tuple(one.key for one, _ in typical[key]),
                        slowing if all(one.is_probe for one, _ in typical[key]) else 0.0) for key in sorted(typical))


class StepModel:
    """Draws of the law's parameters given timings, and of step times.

    between  h' and v' where they are given; also those of h and v where no links within a node were timed"""

    def __init__(self, timings: Timings, between: tuple[float, float] | None = None, draws: int = MODEL_DRAWS) -> None:
        self.timings, self.draws = timings, draws
        self.settings = _settings([(one.workers, one.per_node, one.examples, one.passes) for one in timings.found])
        runs, spread = np.array([len(one.seconds) for one in timings.found]), timings.spread
        deviation = spread.deviation if spread.freedom else ASSUMED_DEVIATION
        self.measured = Measured(np.log([one.value for one in timings.found]),
                                 np.hypot(np.maximum(deviation / np.sqrt(runs), LEAST), HOURS * timings.in_a_row),
                                 spread.freedom, SPREAD, LACK)
        self.examples = float(np.exp(np.log(self.settings[2]).mean()))
        self.level = float((self.measured.logs - np.log(self.settings[3])).min())
        workers, per_node = self.settings[:2]
        self.timed_within = bool((np.minimum(workers, per_node) > 1).any())
        self.given = {} if between is None else dict(zip(BETWEEN, between))
        if between is not None and not self.timed_within:
            self.given |= dict(zip(WITHIN, between))
        # whether the links within a node, and between nodes, were timed or given
        self.within = bool(self.given) or self.timed_within
        self.between = bool(self.given) or bool((workers > per_node).any())

    def parameters(self, unknowns: np.ndarray) -> tuple[StepLaw, Parameters]:
        """The law of each draw, and its parameters of shape (draws, 1)."""
        share = scipy.special.ndtr(unknowns)
        kind, ratio = share[:, 5:6], scipy.special.logit(share[:, 1:2])         # of a to b e

        def by_kind(name: str) -> Callable[[Any], Any]:
            ring, tree, linear = (getattr(law, name) for law in LAWS)
            return lambda count: np.where(kind < KINDS[0], ring(count), np.where(
                kind < KINDS[1], tree(count), linear(count)))
        law = StepLaw("any", by_kind("hops"), by_kind("volumes"))
        sharpness = _power(share[:, 2:3], *SHARPNESSES)
        one_pass = np.exp(self.level + LEVEL * unknowns[:, :1])
        within, between = (prior[0] * np.exp(prior[1] * unknowns[:, at, None]) for at, prior in (
            (3, LINKS_WITHIN), (9, LINKS_BETWEEN)))
        if self.timed_within and not self.between:
            between = np.maximum(between, within * np.exp(SLOWER * unknowns[:, 9, None]))
        links = dict(zip((*WITHIN, *BETWEEN), (seconds * one_pass for passes, at in ((within, 4), (between, 10))
                                               for seconds in _link(law, passes, share[:, at, None]))))
        links |= {name: np.full_like(one_pass, value) for name, value in self.given.items()}
        return law, Parameters(
            **links, fixed=one_pass * np.exp(scipy.special.log_expit(sharpness * ratio) / sharpness),
            example=one_pass * np.exp(scipy.special.log_expit(-sharpness * ratio) / sharpness) / self.examples,
            sharpness=sharpness, overlap=_power(share[:, 6:7], *OVERLAPS),
            pause=np.where(share[:, 7:8] < STEADY, 0.0, PAUSE[0] * np.exp(PAUSE[1] * unknowns[:, 8:9])),
            pausing=np.minimum(PAUSING[0] * np.exp(PAUSING[1] * unknowns[:, 11:12]), MOST_PAUSING))

    def log_law(self, unknowns: np.ndarray, settings: np.ndarray) -> np.ndarray:
        """Logarithms of step times, shape (draws, settings), at (workers, per node, examples a pass, passes)."""
        law, parameters = self.parameters(unknowns)
        return np.log(law.seconds(parameters, *settings))

    @cached_property
    def unknowns(self) -> np.ndarray:
        """Draws of the parameters, standard normal in the prior, shape (draws, UNKNOWNS)."""
        def log_likelihood(unknowns: np.ndarray) -> np.ndarray:
            return self.measured.log_likelihood(self.log_law(unknowns, self.settings), unknowns[:, 12], unknowns[:, 13])
        return sample_posterior(log_likelihood, UNKNOWNS, self.draws)

    def log_seconds(self, per_node: int, places: Sequence[tuple[int, int, int]]) -> np.ndarray:
        """Draws of log t, shape (draws, places), at (workers, global batch, passes), so many workers a node."""
        settings = _settings([(workers, per_node, batch / workers / passes, passes)
                              for workers, batch, passes in places])
        own = [self.timings.at(workers, per_node, batch, passes) for workers, batch, passes in places]
        random = np.random.default_rng([0, 11])
        slower = (random.random((self.draws, 1)) < OTHER[0]) * random.exponential(OTHER[1], (self.draws, 1))
        doublings = np.log2(np.maximum(settings[0] / self.settings[0].max(), 1))
        return self.measured.draw(
            self.log_law(self.unknowns, settings) + slower * doublings, self.log_law(self.unknowns, self.settings),
            np.array([self.timings.found.index(one) if one else -1 for one in own]), self.unknowns[:, 12],
            self.unknowns[:, 13], random)

    @property
    def laws(self) -> dict[str, float]:
        """The probability of each of LAWS by name; empty where no links were timed or given."""
        if not (self.within or self.between):
            return {}
        kinds = np.digitize(scipy.special.ndtr(self.unknowns[:, 5]), KINDS)
        return {law.name: float(np.mean(kinds == at)) for at, law in enumerate(LAWS)}

    @cached_property
    def misses(self) -> float:
        """Root mean square of log(model / measured)."""
        return float(np.sqrt(np.mean((self.log_law(self.unknowns, self.settings).mean(0) - self.measured.logs) ** 2)))

    @cached_property
    def _drawn(self) -> Parameters:
        return self.parameters(self.unknowns)[1]

    def interval(self, name: str, confidence: float) -> tuple[float, float, float]:
        """(median, low, high) of a parameter over the draws."""
        tail, drawn = (1 - confidence) / 2, getattr(self._drawn, name)
        if name in POWERS:
            drawn = np.where(drawn < FULLY, drawn, np.inf)
        median, low, high = np.quantile(drawn, (0.5, tail, 1 - tail), method="nearest").tolist()
        return median, low, high

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in use: those of links, and an overlap with them, only where links are known, the sharpness
        only where local batches differ, and those of pauses only where it is likely that workers pause."""
        used = {WITHIN: self.within, BETWEEN: self.between, ("overlap",): self.within or self.between,
                ("sharpness",): len({*self.settings[2]}) > 1, PAUSES: np.median(self._drawn.pause) > 0}
        unused = {name for names, are_used in used.items() if not are_used for name in names}
        return tuple(name for name in NAMES if name not in unused)

    def is_determined(self, name: str, confidence: float) -> bool:
        """Whether the timings or the user determine a parameter; if not, its draws are close to the prior's."""
        _, low, high = self.interval(name, confidence)
        return high < (POWER_DETERMINED if name in POWERS else DETERMINED) * low

    def mark_of(self, workers: int, per_node: int, examples: float) -> str:
        """How the time of a configuration that was not measured is known."""
        if not ((self.within or min(workers, per_node) == 1) and (self.between or workers <= per_node)):
            return ASSUMED
        own = workers, min(workers, per_node), -(-workers // per_node), examples
        timed = np.array([(one.workers, one.per_node, one.nodes, one.examples) for one in self.timings.found])
        inside = (timed.min(0) <= own).all() and (own <= timed.max(0)).all()
        return INTERPOLATED if inside else EXTRAPOLATED


def _settings(rows: list[tuple[float, ...]]) -> np.ndarray:
    return np.array(rows, float).reshape(-1, 4).T


def _link(law: StepLaw, passes: np.ndarray, of_hops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a hop, all bytes) of an allreduce over MEMBERS, in passes as it is; of a law without bytes all are hops."""
    volumes = law.volumes(MEMBERS)
    hops = np.where(volumes > 0, of_hops, 1.0)
    return hops * passes / law.hops(MEMBERS), (1 - hops) * passes / np.maximum(volumes, 1e-9)


def _power(share: np.ndarray, one: float, finite: float) -> np.ndarray:
    """A power that is 1, and finite, with these probabilities; between the two its inverse is uniform."""
    return 1 / np.maximum(1 - np.clip((share - one) / (finite - one), 0, 1), 1 / FULLY)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Step times at any worker count: measured where possible, else by the model."""

    timings: Timings
    model: StepModel
    cells: tuple[RunCell, ...] = ()        # of one worker count each: their runs replace the timings of theirs

    @classmethod
    def of(cls, timings: Timings, links: Links | None = None) -> StepTimes:
        """By the model of at least one timing."""
        between = links.seconds(timings.machine, timings.measured.parameters) if links and timings.machine else None
        return cls(timings, StepModel(timings, between))

    def of_cells(self, cells: Iterable[RunCell]) -> StepTimes:
        """The same model, with measured times taken from these cells."""
        return replace(self, cells=tuple(cells))

    @cached_property
    def _cells(self) -> dict[tuple[int, int], RunCell]:
        return {(cell.workers[0], cell.global_batch): cell for cell in self.cells}

    def measured(self, workers: int, per_node: int, global_batch: int, passes: int) -> Timing | None:
        """The timing of this configuration; where a cell has runs of it, their step time, as a report has it."""
        timing = self.timings.at(workers, per_node, global_batch, passes)
        cell = self._cells.get((workers, global_batch))
        if timing is None or cell is None:
            return timing
        runs = tuple(run for run in cell.runs if run.trial.key in timing.trials)
        speeds = known(samples_of(runs).examples_per_second)
        return replace(timing, seconds=cell.mean_batch / speeds * (timing.slowed or 1.0),
                       trials=tuple(run.trial.key for run in runs)) if len(speeds) else timing

    def cell_of(self, timing: Timing) -> RunCell | None:
        """The cell whose timed runs are all of this timing's configuration; None where there is none."""
        cell = self._cells.get((timing.workers, timing.global_batch))
        timed = tuple(run.trial.key for run in cell.runs if not np.isnan(run.examples_per_second)) if cell else ()
        return cell if timed == timing.trials else None

    def at(self, workers: int, per_node: int, global_batch: int, passes: int = 1) -> StepTime:
        """Seconds per step of ``workers``, ``per_node`` of them on a node."""
        timing = self.measured(workers, per_node, global_batch, passes)
        if timing is not None:
            return self.of_timing(timing)
        return self.by_model(workers, per_node, global_batch, passes, self.model.log_seconds(
            per_node, [(workers, global_batch, passes)])[:, 0])

    def by_model(self, workers: int, per_node: int, global_batch: int, passes: int, logs: np.ndarray) -> StepTime:
        """That of a configuration that was not measured, from the model's draws of its logarithm."""
        mark = self.model.mark_of(workers, per_node, global_batch / workers / passes)
        later = self.timings.later if all(one.slowed for one in self.timings.found) else 1.0
        return StepTime(float(np.exp(logs.mean())), np.exp(logs[:DRAWS]) * later, mark)

    def of_timing(self, timing: Timing) -> StepTime:
        """A measured one; the error of the hours of repeats is common to all timings."""
        spread, (shared, repeats) = self.timings.spread, self.timings.spread.shared
        key = timing.workers, timing.per_node, timing.global_batch, timing.passes

        def draw(freedom: float, variance: float | np.ndarray, *key: int) -> np.ndarray:
            deviates = scipy.special.stdtrit(freedom, levels(DRAWS)) * np.sqrt(variance / len(timing.seconds))
            return np.random.default_rng([0, 2, *key]).permutation(deviates)
        if shared:
            rest = repeats * (len(self.timings.found) - 1)
            logs = draw(rest, spread.variance - shared, *key) + draw(repeats, shared)
        else:
            known = (spread.freedom, spread.variance) if spread.freedom else (np.inf, ASSUMED_DEVIATION ** 2)
            logs = draw(*known, *key)
        if self.timings.in_a_row:
            logs = logs + HOURS * np.random.default_rng([0, 13, *key]).permutation(scipy.special.ndtri(levels(DRAWS)))
        later = self.timings.later if timing.slowed else 1.0
        return StepTime(timing.value, timing.value * np.exp(logs) * later, MEASURED)
