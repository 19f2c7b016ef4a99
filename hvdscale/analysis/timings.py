"""What logs measured of a job on a machine: the times of a step and, under ``measured`` of the plan, the model's
parameters, peak memory and the power of GPUs (of a script; of hvdscale's trainer the parameters). And what disturbs
times and steps: runs and seeds that took far longer than others of their setting, and times that drift.

A run counts as slow where it took over LEAST times as long as the fastest of its setting, and longer than the mean of
the others by more than their spread explains: Student's t for the next value of a sample (one-sided, shared out over
all runs by Bonferroni). The spread is that of the runs that are not slow, pooled over the settings. Where more than one
run in FEWEST seems slow, or most of a setting, times scatter, and none is slow.

Times drift as where a machine grows warm: run i, in the order of their starts, takes exp(m_c + d i) seconds a step at
setting c, and exp(h_k) times that in pass k over the settings, as passes ran at other hours. The slope d is estimated
by least squares, with Student's intervals, from repeats; of passes, from those that go there and back. Where one change
behind some run explains the times better by a tenth, they do not drift."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from ..errors import UsageError
from ..formatting.numbers import byte_size, counted
from ..log.schema import Status
from .intervals import CONFIDENCE, Estimate, geometric_mean, logarithms, pooled, pooled_repeats, student_quantile
from .steps import RunCell
from .studies import group_by
from .trials import EVERY_STEP, Sync, Trial, parameters_of

HOURS = 0.10        # by which times are taken to differ between hours, where repeats of a setting ran in a row

# of slow runs and drifts
LEAST = 1.5             # times as long as the fastest
FEWEST = 4              # as many runs for each that seems slow
SLOW_AT = 0.01          # probability of any slow run where there is none
LEAST_FREEDOM = 3       # of the spread of the others, or of a drift's residuals, below which nothing is said
LEAST_CHANGE = 0.03     # of a drift, over all runs, below which nothing is said


class Footprint:
    """Of a worker, as these trials measured it: the model's parameters (0: not known), by local batch the most bytes of
    memory that it took, and the watts of its GPU, the mean over runs (NaN: not known)."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.parameters = max((int(trial.measured.get("parameters") or parameters_of(trial.plan)) for trial in trials),
                              default=0)
        watts = [np.mean(trial.measured["watts"]) for trial in trials if trial.measured.get("watts")]
        self.watts = float(np.mean(watts)) if watts else np.nan
        self.memory: dict[int, int] = {}
        for trial in trials:
            local, peak = int(trial.execution.get("local_batch") or 0), trial.measured.get("peak_memory_bytes")
            if local and peak:
                self.memory[local] = max(self.memory.get(local, 0), *peak)

    def most_local(self, limit: float) -> int:
        """Examples of a worker that ``limit`` bytes hold. Memory is a line through the smallest and the largest local
        batch; of one alone it is taken as proportional to the examples, the most that it can be at larger ones. Raises
        UsageError where no log measured memory, or one example is too many."""
        if not self.memory:
            raise UsageError("--memory: no log here measured how much memory a worker takes, as those of "
                             "hvdscale-scale script do; --max-local-batch N says how many examples it holds")
        (first, least), (last, most) = min(self.memory.items()), max(self.memory.items())
        each = (most - least) / (last - first) if last > first and most > least else most / last
        found = int(last + (limit - most) / each)
        if found < 1 or len(self.memory) == 1 and found < first:
            raise UsageError(f"--memory: {byte_size(int(limit))} a worker are less than the {byte_size(least)} of "
                             f"{first:,} examples, the fewest that were measured; time smaller batches")
        return found


class Place(NamedTuple):
    """Where a step runs, but for how workers lie on nodes: so many workers, at a batch, in passes, with replicas."""

    workers: int
    global_batch: int
    passes: int = 1
    sync: Sync = EVERY_STEP

    @property
    def local_batch(self) -> int:
        """The most examples of a worker in one pass."""
        return -(-self.global_batch // (self.workers * self.passes))

    @property
    def examples(self) -> float:
        """Examples per worker in one pass; a mean where the shares are uneven."""
        return self.global_batch / self.workers / self.passes


class Timing:
    """The step times of one configuration: a worker count, its nodes, a global batch, its passes and its replicas.

    per_node  most workers on a node
    seconds   each run's mean step, shape (runs,); ``value``: their mean
    crowded   more workers on a host than it has cores
    slowed    what seconds of the first steps alone were multiplied by; 0: they are of whole runs"""

    def __init__(self, workers: int, per_node: int, global_batch: int, passes: int, seconds: np.ndarray, crowded: bool,
                 trials: tuple[tuple[str, int], ...], slowed: float = 0.0, sync: Sync = EVERY_STEP) -> None:
        self.place = Place(workers, global_batch, passes, sync)
        self.workers, self.global_batch, self.passes, self.sync = self.place
        self.per_node, self.nodes = per_node, -(-workers // per_node)
        self.seconds, self.value = seconds, float(geometric_mean(seconds))
        self.crowded, self.trials, self.slowed = crowded, trials, slowed


@dataclass(frozen=True)
class Machine:
    """What step times must have in common to be comparable."""

    device: str
    threads: int
    precision: str
    compression: str            # of the gradients in the allreduce, or of what replicas exchange; "": none

    def __str__(self) -> str:
        threads = f", {counted(self.threads, 'thread')} a worker" if self.threads else ""
        rest = [self.precision, f"{self.compression} compression" if self.compression else ""]
        return ", ".join(filter(None, [(self.device or "an unnamed device") + threads, *rest]))


class Timings:
    """The timings of a workload on one machine, by workers and batch, and what was left out.

    trials      that were timed
    others      machines that were left out
    crowded     timings that were, see timings_of
    placed      whether the logs say which workers shared a node
    slowing     of long runs, the mean step over that of their first
    in_a_row    whether all repeats of each setting ran one right after the other
    most_local  the most examples of a worker in one pass
    spread      of the logarithms of the times of one configuration, pooled over all"""

    def __init__(self, found: tuple[Timing, ...], machine: Machine | None, others: tuple[Machine, ...] = (),
                 crowded: tuple[Timing, ...] = (), trials: Sequence[Trial] = (), slowing: tuple[float, ...] = (),
                 in_a_row: bool = False) -> None:
        self.found, self.machine, self.others, self.crowded, self.trials = found, machine, others, crowded, trials
        self.placed = all(trial.workers == 1 or trial.execution.get("local_workers") for trial in trials)
        self.slowing, self.in_a_row = slowing, in_a_row
        self.per_node = max((one.per_node for one in found), default=1)
        self.most_local = max((one.place.local_batch for one in found + crowded), default=0)
        self.spread = pooled_repeats([one.seconds for one in found])

    @cached_property
    def measured(self) -> Footprint:
        return Footprint(self.trials)

    def at(self, place: Place, per_node: int) -> Timing | None:
        """The timing of this configuration, with the most similar layout on as many nodes; None where there is none."""
        found = [one for one in self.found if one.place == place and one.nodes == -(-place.workers // per_node)]
        return min(found, key=lambda one: abs(one.per_node - min(place.workers, per_node)), default=None)


def timings_of(trials: Iterable[Trial], per_node: int | None = None) -> Timings:
    """The timings of a workload's trials that completed or were pruned. ``per_node``: workers of a node in logs that do
    not say; None: there all shared one.

    Of several machines, the one with the most worker counts, then the most trials. Hosts with more workers than cores
    are left out if at least two worker counts remain, as their times do not transfer to another machine. Runs that
    are far too slow are left out, too."""
    timed = [trial for trial in trials if (trial.status == Status.COMPLETE or trial.pruned)
             and 0 < trial.examples_per_second < np.inf]
    by_machine = group_by(timed, _read_machine)
    if not by_machine:
        return Timings((), None)
    machine = max(by_machine, key=lambda one: (len({t.workers for t in by_machine[one]}), len(by_machine[one])))
    others, timed = tuple(other for other in by_machine if other != machine), by_machine[machine]
    slowing = tuple(trial.slowing for trial in timed if trial.slowing > 0)
    slower = float(geometric_mean(slowing)) if slowing else 1.0     # by which probes are taken to slow down, too

    settings: dict[tuple[int, int, int, int, Sync], list[tuple[Trial, float]]] = {}
    for trial in timed:
        on_node = min(trial.workers, int(trial.execution.get("local_workers") or per_node or trial.workers))
        for batch, passes, seconds in trial.step_times():
            setting = trial.workers, on_node, batch, passes, trial.sync
            settings.setdefault(setting, []).append((trial, seconds * slower if trial.is_probe else seconds))
    found, slow = [], slow_runs([[seconds for _, seconds in runs] for runs in settings.values()])
    for (setting, runs), ratios in sorted(zip(settings.items(), slow), key=lambda one: one[0][0]):
        own, typical = zip(*(run for run, ratio in zip(runs, ratios) if ratio == 1))
        found.append(Timing(*setting[:4], np.array(typical), any(one.crowded for one in own), tuple(
            one.key for one in own), slower if all(one.is_probe for one in own) else 0.0, setting[-1]))

    free, crowded = (tuple(one for one in found if one.crowded == way) for way in (False, True))
    if len({one.workers for one in free}) < min(2, len({one.workers for one in found})):
        free, crowded = tuple(found), ()
    return Timings(free, machine, others, crowded, timed, slowing, ran_in_a_row(timed))


def ran_in_a_row(trials: Sequence[Trial]) -> bool:
    """Whether several settings have repeats, over an hour or more, and no other run came between those of one."""
    known = sorted((trial.started, trial.workers, trial.global_batch, *trial.sync) for trial in trials)
    settings = [setting for _, *setting in known]
    changes = 1 + sum(one != other for one, other in zip(settings, settings[1:]))
    return 1 < len({tuple(one) for one in settings}) == changes < len(known) and known[-1][0] - known[0][0] >= 3600


def _read_machine(trial: Trial) -> Machine:
    execution, problem = trial.execution, trial.problem
    compression = str(problem.get("compression") or "").removeprefix("none")
    return Machine(trial.gpu or str(execution.get("device") or "").split(":")[0], int(execution.get("threads") or 0),
                   str(problem.get("precision") or ""),
                   compression or str((problem.get("local_steps") or {}).get("exchange") or ""))


def slow_runs(samples: Sequence[Sequence[float] | np.ndarray]) -> list[np.ndarray]:
    """Of each setting's seconds, shape (runs,), how many times as long a slow run took as the others; 1: not slow. NaN,
    a run that was not timed, is never slow."""
    logs = [logarithms(sample) for sample in samples]
    slow = [log > np.nanmin(log, initial=np.inf) + np.log(LEAST) for log in logs]
    runs = sum(np.count_nonzero(~np.isnan(log)) for log in logs)
    if sum(map(np.count_nonzero, slow)) * FEWEST > runs:
        return [np.ones(len(log)) for log in logs]
    while True:
        others = [one[~(out | np.isnan(one))] for one, out in zip(logs, slow)]
        spread = pooled([np.exp(other) for other in others])
        if spread.freedom < LEAST_FREEDOM:
            return [np.ones(len(log)) for log in logs]
        most = scipy.special.stdtrit(spread.freedom, 1 - SLOW_AT / runs) * spread.deviation
        excess = [own - (rest.mean() if len(rest) else 0.0) for own, rest in zip(logs, others)]
        surely = [out & (own > most * np.sqrt(1 + 1 / max(1, len(rest))))
                  for out, own, rest in zip(slow, excess, others)]
        if all((now == before).all() for now, before in zip(surely, slow)):
            return [np.exp(np.where(out & (2 * out.sum() <= len(out)), own, 0.0)) for out, own in zip(slow, excess)]
        slow = surely


def seeds_apart(samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Likewise of each setting's steps to target, shape (seeds,): never one that did not meet (inf), nor where fewer
    than two others of its setting did."""
    met = [np.where(np.isinf(sample), np.nan, sample) for sample in samples]
    return [ratios if np.count_nonzero(~np.isnan(one) & (ratios == 1)) > 1 else np.ones(len(one))
            for one, ratios in zip(met, slow_runs(met))]


def drift_of(cells: Sequence[RunCell], confidence: float = CONFIDENCE) -> tuple[Estimate, list[Estimate]] | None:
    """(the factor by which a step takes longer with each run, by cell seconds an example at the pace of the last run);
    None where the repeats of cells show none, or too little."""
    timed = [(at, run.trial.started, 1 / run.examples_per_second) for at, cell in enumerate(cells) for run in cell.runs
             if run.examples_per_second > 0 and np.isfinite(run.trial.started)]
    if len({when for _, when, _ in timed}) < len(timed) or len(timed) < LEAST_FREEDOM + 2:
        return None                             # of runs that started together the order is not known
    cell, started, seconds = map(np.array, zip(*timed))
    place, logs = np.argsort(np.argsort(started, kind="stable")).astype(float), np.log(seconds)
    count = np.bincount(cell, minlength=len(cells))
    with np.errstate(invalid="ignore"):
        middle, level = (np.bincount(cell, values, len(cells)) / count for values in (place, logs))
    repeat = np.array([np.count_nonzero(place[cell == at] < own) for at, own in zip(cell, place)])
    passes = np.eye(len(timed))[repeat] * (np.diff(repeat[place.argsort()]) >= 0).all()
    design = np.hstack([np.eye(len(cells))[cell], passes])
    within, rest = (own - design @ np.linalg.lstsq(design, own, rcond=None)[0] for own in (place, logs))
    freedom, squares = len(timed) - int(np.linalg.matrix_rank(design)) - 1, float(within @ within)
    if freedom < LEAST_FREEDOM or squares < 1e-9:
        return None
    jumps = (place > np.arange(len(timed) - 1)[:, None]).T.astype(float)    # one change, behind each of the runs
    jumps -= design @ np.linalg.lstsq(design, jumps, rcond=None)[0]
    if ((jumps.T @ rest) ** 2 > 1.1 * float(within @ rest) ** 2 / squares * (jumps ** 2).sum(0) + 1e-9).any():
        return None
    slope = float(within @ rest) / squares
    variance = float(((rest - slope * within) ** 2).sum()) / freedom
    with_hours = float(((logs - level[cell] - slope * (place - middle[cell])) ** 2).sum()) / (
        len(timed) - np.count_nonzero(count) - 1)
    quantile = float(student_quantile(freedom, confidence))

    def estimate(value: float, error: float, runs: int) -> Estimate:
        half = quantile * np.sqrt(error)
        return Estimate(float(np.exp(value)), float(np.exp(value - half)), float(np.exp(value + half)), runs)
    if abs(slope) <= quantile * np.sqrt(variance / squares) or abs(slope) * (len(timed) - 1) < LEAST_CHANGE:
        return None
    left = len(timed) - 1 - middle
    warm = [estimate(level[at] + slope * left[at], with_hours / count[at] + variance * left[at] ** 2 / squares,
                     int(count[at])) if count[at] else Estimate.unknown() for at in range(len(cells))]
    return estimate(slope, variance / squares, len(timed)), warm
