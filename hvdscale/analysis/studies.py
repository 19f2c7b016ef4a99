"""Studies as columns: the trials of one workload at one global batch, from one or more logs. A study has one entry per
trial, and reads its evaluations as rows.Evaluations does; the logs must stay open while it is used."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UsageError
from ..log import directions
from ..log.check import refuse_unsound
from ..log.plan_text import OF_SEARCH, read_plan
from ..log.reader import Log
from ..log.schema import LARGER, SMALLER, Status
from ..target import Target
from .jobs import ONE_VERSION, JobKey, Versions
from .rows import Evaluations, Kept, SeedKey, SourceRows, TrialRows, seed_key

OTHER_WAY = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, eq=False)
class Study:
    """The trials of one workload at one global batch, ordered by log, then by id: arrays of shape (trials,)."""

    workload: JobKey
    global_batch: int
    logs: tuple[str, ...]       # paths
    log: np.ndarray             # index into logs
    id: np.ndarray
    status: np.ndarray          # int8, log.schema.Status
    pruned: np.ndarray          # bool: INCOMPLETE because its search stopped it
    repeat: np.ndarray          # bool: a search's winner under another seed; not part of the search
    seed: np.ndarray
    budget_steps: np.ndarray    # 0: the budget is not in steps
    metaparameters: Mapping[str, np.ndarray]    # float64 by name; NaN: the trial has none
    evaluations: Evaluations = field(repr=False)
    plan_texts: np.ndarray = field(repr=False)

    @cached_property
    def infeasible(self) -> np.ndarray:
        return self.status == Status.INFEASIBLE

    @cached_property
    def feasible(self) -> np.ndarray:
        """Whether a trial was finite up to its stop: COMPLETE, or pruned."""
        return (self.status == Status.COMPLETE) | self.pruned

    @cached_property
    def searched(self) -> np.ndarray:
        """Whether a study's best is taken over a trial: it is feasible, and not a repeat of the winner."""
        return self.feasible & ~self.repeat

    def metaparameter(self, name: str) -> np.ndarray:
        """Of each trial; NaN: it has none."""
        return self.metaparameters.get(name, np.full(len(self), np.nan))

    def key(self, trial: int) -> tuple[str, int]:
        return self.logs[self.log[trial]], int(self.id[trial])

    def seed_key(self, trial: int) -> SeedKey:
        return seed_key(int(self.seed[trial]), self.key(trial))

    def plan(self, trial: int) -> Mapping[str, Any]:
        """A trial's plan: all that was settled before its first step; empty where its log has none."""
        return read_plan(self.plan_texts[trial])

    def __len__(self) -> int:
        return len(self.id)

    def __str__(self) -> str:
        return f"{self.workload}, batch {self.global_batch:,}"


def studies_of(logs: Iterable[Log], versions: Versions = ONE_VERSION) -> tuple[Study, ...]:
    """Every study of these logs, by workload, then by global batch; LogError where the trials of a log contradict each
    other or a plan's entries are mistyped. Evaluations.read raises it where a trial has a step twice."""
    kept = Kept()
    found: dict[tuple[JobKey, int], list[tuple[TrialRows, np.ndarray, SourceRows]]] = {}
    for log in sorted(logs, key=lambda log: log.path):
        refuse_unsound(log, trials_only=True)
        rows = TrialRows(log, versions)
        groups = rows.by_study()
        for own, source in zip(groups, rows.sources_of(groups)):
            key = rows.workload(own[0]), int(rows.global_batch[own[0]])
            found.setdefault(key, []).append((rows, own, source))
    return tuple(_study(*key, found[key], kept) for key in sorted(found))


def _study(workload: JobKey, global_batch: int, parts: Sequence[tuple[TrialRows, np.ndarray, SourceRows]], kept: Kept
           ) -> Study:
    """parts     the trials of each log: all its rows, those of the study, and where their evaluations are"""
    names = sorted({name for rows, *_ in parts for name in rows.metaparameters})
    columns = {name: np.concatenate([getattr(rows, name)[own] for rows, own, _ in parts])
               for name in ("id", "status", "pruned", "repeat", "seed", "budget_steps")}
    return Study(
        workload, global_batch, tuple(rows.path for rows, *_ in parts),
        np.repeat(np.arange(len(parts)), [len(own) for _, own, _ in parts]), **columns,
        metaparameters={name: np.concatenate([rows.metaparameter(name)[own] for rows, own, _ in parts])
                        for name in names},
        plan_texts=np.concatenate([rows.table["plan"][own] for rows, own, _ in parts]), evaluations=Evaluations(
            [source for *_, source in parts], [(rows.path, rows.id[own]) for rows, own, _ in parts], kept))


def are_searched(studies: Sequence[Study]) -> bool:
    """Whether the trials are draws of metaparameters, rather than repeats of one setting."""
    return any(study.plan(0).get(part) for study in studies if len(study) for part in OF_SEARCH)


def are_ends_alone(trials: Iterable[tuple[int, np.ndarray]]) -> bool:
    """Whether a fixed budget is all that trials, (global batch, steps of evaluations), show, not how many steps a
    target takes: each was evaluated once after step 0, all at the same step or after the same examples to 1 %."""
    found = [(batch, steps[steps > 0]) for batch, steps in trials]
    if len(found) <= len({batch for batch, _ in found}) or any(len(steps) != 1 for _, steps in found):
        return False
    spent = np.array([(float(steps[0]), batch * float(steps[0])) for batch, steps in found])
    return bool((spent.max(0) <= spent.min(0) * [1, 1.01]).any())


def show_ends_alone(studies: Sequence[Study]) -> bool:
    return are_ends_alone((study.global_batch, steps) for study in studies for steps in np.split(
        study.evaluations.read("step"), study.evaluations.first[1:-1]))


def with_metric(studies: Iterable[Study], column: str) -> tuple[Study, ...]:
    """The studies whose logs have a metric, by global batch."""
    return tuple(sorted((study for study in studies if column in study.evaluations.columns),
                        key=attrgetter("global_batch")))


def is_measured(studies: Sequence[Study], column: str) -> bool:
    return any(not np.isnan(study.evaluations.read(column)).all() for study in with_metric(studies, column))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Each trial of a study measured against a target: arrays of shape (trials,)."""

    target: Target
    steps: np.ndarray           # done at the first evaluation that meets it; inf: never (censored at last_step)
    before: np.ndarray          # at the last evaluation before that measured the metric; NaN: unknown, or never met
    last_step: np.ndarray       # at the last evaluation that measured the metric; NaN: there was none
    row: np.ndarray             # of the evaluation that meets it; -1: never

    @property
    def met(self) -> np.ndarray:
        return self.row >= 0


def outcomes(study: Study, target: Target) -> Outcomes:
    """Each trial measured against a target, see Target.met_by; kept for many views. KeyError without its metric."""
    evaluations = study.evaluations
    if target not in evaluations.outcomes:
        values, step = evaluations.read(target.column), evaluations.read("step")
        row = _first_in_trial(target.met_by(values), evaluations.first)
        steps, before = take(step, row, np.inf), take(step, last_measured(evaluations, values, row))
        last = take(step, last_measured(evaluations, values, evaluations.first[1:]))
        evaluations.outcomes[target] = Outcomes(target, steps, np.where(steps == 0, 0.0, before), last, row)
    return evaluations.outcomes[target]


def last_measured(evaluations: Evaluations, values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The last row of each trial, before the given one (-1: no row), at which a metric was measured; -1: none."""
    measured = np.flatnonzero(~np.isnan(values))
    found = np.append(measured, -1)[np.searchsorted(measured, before) - 1]
    return np.where(found >= evaluations.first[:-1], found, -1)


def best_metric(study: Study, column: str, minimizes: bool, most: float = np.inf, along: str = "step"
                ) -> tuple[np.ndarray, np.ndarray]:
    """(the best value of each trial up to ``most`` steps, or other units, the first step with it): float64, shape
    (trials,); NaN: none. KeyError without the metric."""
    evaluations = study.evaluations
    values = evaluations.read(column)
    if most < np.inf:
        values = np.where(evaluations.read(along) <= most, values, np.nan)
    best, some = np.full(len(study), np.nan), evaluations.counts > 0
    if some.any():
        best[some] = (np.fmin if minimizes else np.fmax).reduceat(values, evaluations.first[:-1][some])
    row = _first_in_trial(values == np.repeat(best, evaluations.counts), evaluations.first)
    return best, take(evaluations.read("step"), row)


def _first_in_trial(chosen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The first chosen row of each trial; -1: none. chosen: bool, shape (rows,)."""
    rows = np.append(np.flatnonzero(chosen), len(chosen))
    found = rows[np.searchsorted(rows, first[:-1])]
    return np.where(found < first[1:], found, -1)


def take(values: np.ndarray, rows: np.ndarray, missing: float = np.nan) -> np.ndarray:
    """values[rows], or ``missing`` where the row is -1."""
    found = np.full(len(rows), missing)
    found[rows >= 0] = values[rows[rows >= 0]]
    return found


def better(column: str, sources: Sequence[Log | Study]) -> str:
    """SMALLER or LARGER, as logs or studies declare for the column ``split/metric``, else by its name; "": unknown."""
    specs = [source.evaluations.specs.get(column) for source in sources]
    declared = {spec.better for spec in specs if spec} - {""}
    if len(declared) == 1:
        return declared.pop()
    return "" if declared else directions.better(column)


def best_value(values: np.ndarray, minimizes: bool) -> float:
    """The best of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    best = finite.min(initial=np.inf) if minimizes else finite.max(initial=-np.inf)
    return float(best) if len(finite) else np.nan


def check_direction(target: Target, logs: Sequence[Log]) -> None:
    """Raise UsageError for a target that a metric meets by getting worse; unknown metrics pass."""
    way = better(target.column, logs)
    if way and target.minimizes != (way == SMALLER):
        meant = replace(target, comparison=OTHER_WAY[target.comparison])
        raise UsageError(f"target {str(target)!r}: a {way} {target.column} is better, but this target asks for a "
                         f"{LARGER if way == SMALLER else SMALLER} one; write {str(meant)!r}")


def scales_with_momentum(study: Study) -> bool:
    """Whether its trials have momentum, so that the effective learning rate is eta / (1 - momentum)."""
    return bool(np.nan_to_num(study.metaparameter("momentum")).any())


def rates_of(study: Study) -> np.ndarray:
    """The effective learning rate eta / (1 - momentum) of each trial, eta without momentum; NaN: unknown."""
    return effective_rate(study.metaparameter("learning_rate"), np.nan_to_num(study.metaparameter("momentum")))


def effective_rate(lr: ArrayLike, momentum: ArrayLike) -> np.ndarray:
    """eta / (1 - momentum); NaN where that is not above 0 and finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.asarray(lr, float) / (1 - np.asarray(momentum, float))
    return np.where((rate > 0) & np.isfinite(rate), rate, np.nan)
