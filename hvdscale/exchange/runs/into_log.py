"""Runs under a mapping, as trials of a new log.

    trials = settle(runs, mapping)              raises LogError that names all that lacks
    write(trials, "log.h5", mapping)

A trial counts as COMPLETE where the files do not say how a run ended, as INFEASIBLE where its last loss is not finite,
and as INCOMPLETE where it crashed, was stopped or still runs.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...analysis.grouping import group_by
from ...errors import LogError
from ...formatting.numbers import counted, list_first
from ...log.plan_text import MOST, is_whole
from ...log.schema import UNKNOWN_SEED, Status
from ...plan.values import did_you_mean
from ...target import SPLITS, metric_faults
from ..csv_tables import ASSUMED
from ..imported import ImportedLog, beyond_errors
from .formats import read_runs
from .mapping import LOSS, RATE, REPORTS, SETTINGS, TIMED, UNKNOWN, WORKER_BATCH, RunMapping, guess, way_of
from .run import FoundRun

COUNTS, NAMES = ("batch", "workers", "nodes", "accumulation"), ("dataset", "model", "optimizer")      # of settings
SHOWN = 3               # runs of which it is said how they are read
WALL = "seconds are wall times since the start of each run, so that they include evaluations"
PROPORTIONAL = "seconds are in proportion to steps, from the time of the whole training without its evaluations"


@dataclass
class FoundTrial:
    """A run as a trial.

    evaluations  by column, values by step;  steps: the same of loss and lr, and of the seconds of a step
    repeats      rows that were left out, as their run went back over their steps
    """

    run: FoundRun
    settings: Mapping[str, Any]
    points: Mapping[str, float]
    evaluations: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    seconds: Callable[[int], float] = lambda step: math.nan
    repeats: int = 0

    @property
    def batch(self) -> int:
        """The global batch."""
        return int(self.settings["batch"])

    @property
    def evaluated(self) -> list[int]:
        """Steps at which anything was measured."""
        return sorted({step for found in self.evaluations.values() for step in found})

    def describe(self) -> str:
        """How the run is read, in a line."""
        seed, workers = self.settings.get("seed"), self.settings.get("workers")
        values = [f"{column} {_ends(list(found.values()), 'g')}" for column, found in self.evaluations.items() if found]
        steps, at = self.evaluated, ""
        if steps:
            at = f" at {'steps' if len(steps) > 1 else 'step'} {_ends(steps, ',')}: {list_first(values, 3)}"
        return (f"{self.run.path} ({self.run.format}): batch {self.batch}, "
                f"{counted(workers, 'worker') if workers else 'workers unknown'}, "
                f"seed {UNKNOWN if seed is None else seed}; {counted(len(steps), 'evaluation')}{at}")


def _ends(values: Sequence[float], write: str) -> str:
    return " to ".join(format(value, write) for value in dict.fromkeys((values[0], values[-1])))


def settle(runs: Sequence[FoundRun], mapping: RunMapping) -> list[FoundTrial]:
    """The trials. Raises LogError that names, all at once, what the mapping lacks, with the nearest names."""
    settings = [{name: mapping.settings[name].of(run) for name in SETTINGS if name in mapping.settings} for run in runs]
    lacks = [*_lacking_tags(runs, mapping), *_lacking_settings(runs, settings), *_lacking_sizes(mapping)]
    if lacks:
        raise LogError("\n".join(["these runs do not say all; hvdscale-log import RUNS LOG --dry-run prints what was "
                                  "guessed as a file, and --map takes it, edited. It lacks:", *lacks]))
    for found in settings:
        found |= {"seed": found["seed"] if is_whole(found.get("seed"), 0) else None,
                  "batch": _global_batch(found, mapping)}
    return [_trial(run, found, mapping) for run, found in zip(runs, settings)]


def _global_batch(settings: Mapping[str, Any], mapping: RunMapping) -> int:
    shares = math.prod(settings.get(name) or 1 for name in ("workers", "accumulation"))
    return int(settings["batch"] * shares if mapping.batch_per == WORKER_BATCH else settings["batch"])


def _lacking_tags(runs: Sequence[FoundRun], mapping: RunMapping) -> Iterable[str]:
    tags = sorted({tag for run in runs for tag in run.tags})
    there = f"there are the tags {list_first(tags, 12)}"
    if not mapping.step:
        yield (f"  step: no tag is named like a step: {did_you_mean('step', tags, there)}; a number, such as 2000, is "
               "that of every run")
    if not mapping.tags:
        yield f"  tags: none is named like a metric of a split, such as val/error or eval_loss: {there}"
    columns = [metric.column for metric in mapping.tags.values()]
    for column in sorted({one for one in columns if columns.count(one) > 1}):
        same = [tag for tag, metric in mapping.tags.items() if metric.column == column]
        yield f"  tags: {', '.join(map(repr, same))} all are {column}; name one of them under [tags]"
    for split in SPLITS:
        names = {column.partition("/")[2] for column in columns if column.startswith(f"{split}/")}
        yield from (f"  tags: {fault}; name under [tags] what is to be read" for fault in metric_faults(sorted(names)))


def _lacking_settings(runs: Sequence[FoundRun], settings: Sequence[Mapping[str, object]]) -> Iterable[str]:
    parameters = sorted({name for run in runs for name in run.parameters})
    there = f"parameters are {list_first(parameters, 12)}" if parameters else "the runs have no parameters"
    for name in (*COUNTS, *NAMES):
        wrong = [(run, found.get(name)) for run, found in zip(runs, settings) if (name in found or name == "batch") and
                 (not is_whole(found.get(name), 1) if name in COUNTS else found[name] is None)]
        if wrong:
            run, value = wrong[0]
            what = "not known" if value is None else f"{value!r}, not a whole number, 1 or more,"
            near = did_you_mean("batch_size", parameters, there) if name == "batch" else there
            yield f"  {name}: {what} of {counted(len(wrong), 'run')}, such as {run.path}: {near}"


def _lacking_sizes(mapping: RunMapping) -> Iterable[str]:
    if mapping.step_unit == "epochs" and not mapping.train_examples:
        yield "  train_examples: steps are in epochs; how many examples has the training set? --set-size N says it, too"
    if mapping.step_unit == "tokens" and not mapping.tokens_per_example:
        yield "  tokens_per_example: steps are in tokens; how many has an example?"


def _trial(run: FoundRun, settings: Mapping[str, object], mapping: RunMapping) -> FoundTrial:
    points = {name: value for name, source in mapping.metaparameters.items()
              if isinstance(value := source.of(run), (int, float))}
    trial = FoundTrial(run, settings, {name: float(value) for name, value in points.items()})
    at = [_steps_done(run, row, mapping, trial.batch) for row in run.rows]

    def series(tag: str) -> dict[int, float]:
        found, repeats = _series(((step, row[tag]) for step, row in zip(at, run.rows)
                                  if step is not None and tag in row), mapping.keep)
        trial.repeats += repeats
        return found
    trial.evaluations = {metric.column: found for tag, metric in mapping.tags.items() if (found := series(tag))}
    trial.steps = {name: found for name, tag in mapping.steps.items() if (found := series(tag))}
    if mapping.step_seconds:
        trial.steps["step_seconds"] = series(mapping.step_seconds)
    trial.seconds = _times(run, at, mapping, trial.steps.get("step_seconds"))
    return trial


def _steps_done(run: FoundRun, row: Mapping[str, float], mapping: RunMapping, batch: int) -> int | None:
    """The steps done when a row was logged; None where it does not say. Raises LogError for a number that is none."""
    logged = row.get(mapping.step) if isinstance(mapping.step, str) else mapping.step
    if logged is None:
        return None
    count = logged + mapping.step_offset
    if not 0 <= count <= MOST:
        raise LogError(f"{run.path}: {mapping.step} is {logged:g}, not a count from 0 to {MOST:,}")
    if mapping.step_unit == "epochs":
        return round(count * math.ceil((mapping.train_examples or 0) / batch))
    if mapping.step_unit != "steps":
        return math.ceil(count / batch / ((mapping.tokens_per_example or 1) if mapping.step_unit == "tokens" else 1))
    if count != int(count):
        raise LogError(f"{run.path}: {mapping.step} is {logged:g}, not a whole number of steps; step_unit "
                       "says what it counts")
    return int(count)


def _series(points: Iterable[tuple[int, float]], keep: str) -> tuple[dict[int, float], int]:
    """Values by rising step, and how many were left out where the points go back."""
    found: dict[int, float] = {}
    last, repeats = -1, 0
    for step, value in points:
        if step <= last:
            repeats += 1
            if keep == "first":
                continue
            while found and next(reversed(found)) >= step:
                found.popitem()
        found[step], last = value, step
    return found, repeats


def _times(run: FoundRun, at: Sequence[int | None], mapping: RunMapping, each: Mapping[int, float] | None
           ) -> Callable[[int], float]:
    """Seconds until a step: from the times of single steps, else the first time at which the step was logged."""
    if each:
        steps, seconds = np.array([0, *each]), np.array([0.0, *np.cumsum(np.diff([0, *each]) * list(each.values()))])
        rate = list(each.values())[-1]
        return lambda step: float(np.interp(step, steps, seconds) + max(0, step - steps[-1]) * rate)
    times: dict[int, float] = {}
    for step, row in zip(at, run.rows):
        if step is not None and mapping.seconds in row:
            times.setdefault(step, row[mapping.seconds])
    return lambda step: times.get(step, math.nan)


def remarks(trials: Sequence[FoundTrial], mapping: RunMapping) -> dict[str, str]:
    """What was guessed, assumed and left out, by what it is about."""
    said = {}
    if "workers" not in mapping.settings:
        said["workers"] = ASSUMED.replace("a column workers in trials.csv says otherwise",
                                          "workers in the mapping says otherwise")
    if mapping.step in REPORTS and mapping.step_unit == "steps":
        said["steps"] = (f"{mapping.step} counts reports, which are taken for steps; step_unit in the mapping says "
                         "otherwise, such as epochs")
    batches, counts = ({trial.settings.get(name) for trial in trials} for name in ("batch", "workers"))
    if mapping.batch_per == WORKER_BATCH:
        assumed = [name for name in ("workers", "accumulation") if name not in mapping.settings]
        ones = f"; 1 is assumed of {' and '.join(assumed)}" if assumed else ""
        said["batch"] = (f"batch is {mapping.settings['batch'].parameter or 'that'} of a worker, times workers and "
                         f"accumulation{ones}; the mapping says otherwise")
    elif len(batches) == 1 and len(counts) > 1:
        said["batch"] = ("the batch is taken for that of a step over all workers, the same at every worker count; "
                         f'batch_per = "{WORKER_BATCH}" in the mapping takes it for that of a worker')
    if mapping.search is None and _searched(trials):
        said["search"] = ("a search, guessed: metaparameters vary within a batch; search = false in the mapping says "
                          "otherwise")
    alike = next((own for own in group_by(trials, _setting).values() if len(own) > 1), None)
    if alike:
        said["repeats"] = (f"taken for repeats of one setting: runs alike in all that is read, such as "
                           f"{alike[0].run.path} and {alike[1].run.path}; if they are not, name what differs under "
                           "[metaparameters] in the mapping")
    if mapping.steps.get(LOSS) in mapping.tags:
        said["metric"] = ("no metric of a validation set: the training loss of single steps is held against targets; "
                          "--crossing lasting of a report does not take a lucky step for the target")
    repeats = sum(trial.repeats for trial in trials)
    if repeats:
        said["overlap"] = f"left out: {repeats:,} values that repeat steps of their run (keep = {mapping.keep!r})"
    if mapping.seconds and not mapping.step_seconds and mapping.seconds not in TIMED:
        said["times"] = PROPORTIONAL if trials[0].run.counts_done and mapping.seconds == "seconds" else WALL
    return said


def _searched(trials: Sequence[FoundTrial]) -> set[tuple]:
    """The workloads and batches in which metaparameters vary."""
    points: dict[tuple, set] = {}
    for trial in trials:
        points.setdefault(_study(trial), set()).add(tuple(sorted(trial.points.items())))
    return {study for study, found in points.items() if len(found) > 1}


def _setting(trial: FoundTrial) -> tuple:
    return *_study(trial), *(trial.settings.get(name) for name in ("workers", "seed")), *sorted(trial.points.items())


def _study(trial: FoundTrial) -> tuple:
    return tuple(trial.settings.get(name) for name in (*NAMES, "batch"))


def write(trials: Sequence[FoundTrial], out: str | os.PathLike[str], mapping: RunMapping, sources: Sequence[str], *,
          overwrite: bool = False, take_over: bool = False) -> list[str]:
    """The new log ``out`` of these trials, which is created only on success; returns remarks on suspicious values."""
    said, searched = remarks(trials, mapping), _searched(trials)
    with ImportedLog(out, {"kind": "runs", "from": list_first(sources, 3), **said}, overwrite=overwrite,
                     take_over=take_over) as log:
        log.better |= {metric.column: way for metric in mapping.tags.values() if (way := way_of(metric))}
        for trial in trials:
            search = _study(trial) in searched if mapping.search is None else mapping.search
            _add(log, trial, mapping, search)
        return [*said.values(), *beyond_errors(log.errors)]


def _add(log: ImportedLog, trial: FoundTrial, mapping: RunMapping, search: bool) -> None:
    workers, nodes, passes = (int(trial.settings.get(name) or 1) for name in ("workers", "nodes", "accumulation"))
    plan = {"problem": {"train_examples": mapping.train_examples} if mapping.train_examples else {},
            "execution": {"local_workers": workers // nodes} if nodes > 1 else {},
            **({"search": True} if search else {})}
    assumed = {} if trial.settings.get("workers") else {"workers": None}
    source = {"path": trial.run.path, "imported": "runs", **assumed}
    loss = next(reversed(trial.steps.get(LOSS, {0: 0.0}).values()))
    status = Status.INCOMPLETE if trial.run.unfinished else Status.COMPLETE
    if not math.isfinite(loss):
        status = Status.INFEASIBLE
    reason = {Status.COMPLETE: "the run's files say no more", Status.INFEASIBLE: f"the last loss is {loss}",
              Status.INCOMPLETE: f"its state is {trial.run.unfinished}"}[status]
    seed = trial.settings.get("seed")
    ids = log.trials({
        "status": np.full(1, status, np.int8), "global_batch": trial.batch, "accumulation": passes,
        "local_batch": -(-trial.batch // (workers * passes)),
        "stop_reason": reason,
        **{name: str(trial.settings[name]) for name in NAMES},
        "seed": UNKNOWN_SEED if seed is None else seed, "budget_steps": 0, "workers": workers,
        "plan": json.dumps(plan), "source": json.dumps(source, ensure_ascii=False)}, [trial.points])
    steps = np.array(trial.evaluated, np.int64)
    seconds = np.array([trial.seconds(step) for step in steps.tolist()], float)
    rising = np.where(np.isnan(seconds), np.nan, np.fmax.accumulate(seconds))       # those of a resumed run might fall
    log.evaluations(ids, [len(steps)], steps, steps * trial.batch, {
        column: _column(found, steps) for column, found in trial.evaluations.items()}, rising)
    rows = np.array(sorted(step for step in trial.steps.get(LOSS, ()) if step > 0), np.int64)
    for name, values in {"trial": np.repeat(ids, len(rows)), "step": rows, **{
            name: _column(trial.steps.get(name, {}), rows) for name in (LOSS, RATE, "step_seconds")}}.items():
        log.add("steps", name, values)


def _column(found: Mapping[int, float], steps: np.ndarray) -> np.ndarray:
    return np.array([found.get(step, math.nan) for step in steps.tolist()], float)


def import_runs(sources: Sequence[str], out: str | os.PathLike[str]) -> list[str]:
    """The new log ``out`` of the runs at these paths, as they are guessed to be meant; returns remarks.

    Raises LogError where there is none, a file is wrong, or they do not say all.
    """
    runs = read_runs(sources)
    mapping = guess(runs)
    return write(settle(runs, mapping), out, mapping, sources)


def shown(trials: Sequence[FoundTrial], mapping: RunMapping) -> str:
    """How the first runs are read, and the mapping as a file to edit."""
    lines = [f"# {trial.describe()}" for trial in trials[:SHOWN]]
    if len(trials) > SHOWN:
        lines.append(f"# and {counted(len(trials) - SHOWN, 'more run')}")
    return "\n".join([*lines, "", mapping.as_toml()])
