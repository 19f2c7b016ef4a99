"""Runs under a mapping, as trials of a new log.

    trials = settle(runs, mapping)              raises LogError that names all that lacks
    write(trials, "log.h5", mapping)

A trial is COMPLETE unless its last loss is not finite, or its files say that it crashed, was stopped or still runs.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np

from ...analysis.studies import group_by
from ...errors import LogError
from ...formatting.numbers import counted, list_first
from ...log.directions import better
from ...log.plan_text import MOST, is_whole
from ...log.schema import CUT_SHORT, LARGER, UNKNOWN_SEED, Status
from ...plan.values import did_you_mean
from ...target import SPLITS, metric_faults
from ..csv_file import repeats
from ..files import LARGEST_INT, is_number
from ..imported import ImportedLog, beyond_errors, imported_log
from . import trainer_state
from .formats import read_runs
from .guessing import LEFT_OUT, NAMES, STAMP, UNKNOWN, accounts, guess, say, setting_names
from .mapping import LOSS, RATE, SETTINGS, TIME_UNITS, WORKER_BATCH, RunMapping, count_of
from .run import PROGRAMS, FoundRun

Points = tuple[np.ndarray, np.ndarray]          # steps, and what was measured at each
COUNTS, LABELS = ("batch", "workers", "nodes", "accumulation"), ("dataset", "model", "optimizer")      # of settings
MOST_SHOWN = 80         # letters of a tag
LARGEST = 1e300         # of a metaparameter
PAUSE = 10.0, 0.1       # times as long as other steps, and share of a run
UPDATES = "train/n_updates"         # of stable-baselines3, which rows of evaluations lack
WORD, SHARE = (re.compile(PROGRAMS["patterns"][name]) for name in ("setting_text", "share"))
SHOWN = 3               # runs of which it is said how they are read
NONE: Points = (np.empty(0, np.int64), np.empty(0))


@dataclass
class FoundTrial:
    """A run as a trial; evaluations by column, steps by column of /steps."""

    run: FoundRun
    settings: Mapping[str, Any]
    points: Mapping[str, float]
    evaluations: dict[str, Points] = field(default_factory=dict)
    steps: dict[str, Points] = field(default_factory=dict)
    seconds: Points = NONE          # since the start, at the steps at which a time was logged
    repeats: int = 0                # rows that were left out, as their run went back over their steps
    restarted: str = ""             # what is said of a clock that fell
    fillers: set[str] = field(default_factory=set)      # tags with values that were not measured
    impossible: int = 0             # negative or infinite times, infinite rates, which are left out

    @property
    def batch(self) -> int:
        return int(self.settings["batch"])

    @cached_property
    def evaluated(self) -> np.ndarray:
        return np.unique(np.concatenate([NONE[0], *(steps for steps, _ in self.evaluations.values())]))

    def kept(self, values: np.ndarray, least: float = 0.0) -> np.ndarray:
        """Times or rates, NaN for those that are none, which are counted."""
        wrong = (values < least) | np.isinf(values)
        self.impossible += int(wrong.sum())
        return np.where(wrong, np.nan, values)

    def describe(self) -> str:
        seed, workers = self.settings.get("seed"), self.settings.get("workers")
        values = [f"{column} {_ends(found, 'g')}" for column, (_, found) in self.evaluations.items()]
        steps, at = self.evaluated, ""
        if len(steps):
            at = f" at {'steps' if len(steps) > 1 else 'step'} {_ends(steps, ',')}: {list_first(values, 3)}"
        return (f"{self.run.path} ({self.run.format}): batch {self.batch:,}, "
                f"{counted(workers, 'worker') if workers else 'workers unknown'}, "
                f"seed {UNKNOWN if seed is None else seed}; {counted(len(steps), 'evaluation')}{at}")


def _ends(values: np.ndarray, write: str) -> str:
    return " to ".join(format(value, write) for value in dict.fromkeys((values[0].item(), values[-1].item())))


def settle(runs: Sequence[FoundRun], mapping: RunMapping) -> list[FoundTrial]:
    """The trials. Raises LogError that names, all at once, what the mapping lacks, with the nearest names."""
    settings = [{name: source.of(run) for name in SETTINGS if (source := mapping.settings.get(name))} for run in runs]
    for found in settings:                      # "0,1,2" are three
        found |= {name: count_of(found[name]) or found[name] for name in COUNTS if name in found}
    if lacks := [*_lacking(runs, settings, mapping)]:
        raise LogError("\n".join([say("lacking"), *lacks]))
    for found in settings:
        found["seed"] = found["seed"] if is_whole(found.get("seed"), 0) else None
        if mapping.batch_per == WORKER_BATCH:
            found["batch"] *= math.prod(found.get(name) or 1 for name in ("workers", "accumulation"))
    trials = [_trial(run, found, mapping) for run, found in zip(runs, settings)]
    if not any(len(trial.evaluated) for trial in trials):
        raise LogError(say("no_value", tags=list_first(list(mapping.tags), 3), step=str(mapping.step)))
    return trials


def _lacking(runs: Sequence[FoundRun], settings: Sequence[Mapping[str, object]], mapping: RunMapping) -> Iterator[str]:
    tags = sorted({tag for run in runs for tag in run.series})
    there = f"there are the tags {list_first(tags, 12)}"
    if not mapping.step:
        yield say("no_step", near=did_you_mean("step", tags, there))
    if not mapping.tags:
        yield say("no_tags", there=there)
    columns = group_by(mapping.tags, lambda tag: mapping.tags[tag].column)
    for column, same in sorted(columns.items()):
        if any(len(run.series.keys() & {*same}) > 1 for run in runs):
            yield say("same_column", tags=", ".join(map(repr, same)), column=column)
    for split in SPLITS:
        names = {column.partition("/")[2] for column in columns if column.startswith(f"{split}/")}
        yield from (say("wrong_metric", fault=fault) for fault in metric_faults(sorted(names)))
    parameters = sorted({name for run in runs for name in run.parameters})
    there = f"parameters are {list_first(parameters, 12)}" if parameters else "the runs have no parameters"
    for name in (*COUNTS, *LABELS):
        wrong = [(run, found.get(name)) for run, found in zip(runs, settings) if (name in found or name == "batch") and
                 (not is_whole(found.get(name), 1) if name in COUNTS else found[name] is None)]
        if wrong:
            run, value = wrong[0]
            what = "not known" if value is None else f"{value!r}, not a whole number, 1 or more,"
            near = f"{did_you_mean('batch_size', parameters, there)}; --batch N says it" if name == "batch" else there
            yield say("setting", name=name, what=what, runs=len(wrong), path=run.path, near=near)
    if unit := mapping.evidence.get("step_unit"):
        yield f"  step_unit: {unit}"
    known = mapping.train_examples or mapping.within and all(run.epoch_steps for run in runs)
    if mapping.step_unit == "epochs" and not known:
        yield say("no_size")
    if mapping.step_unit == "tokens" and not mapping.tokens_per_example:
        yield say("no_tokens")


def _trial(run: FoundRun, settings: Mapping[str, object], mapping: RunMapping) -> FoundTrial:
    trial = FoundTrial(run, settings, {name: float(value) for name, source in mapping.metaparameters.items()
                                       if is_number(value := source.of(run)) and abs(value) < LARGEST})
    steps = _StepsDone(trial, mapping)

    def series(tag: str, scale: float = 1.0) -> Points | None:
        at, values, rows = steps.at(tag) if tag in run.series else (*NONE, NONE[0])
        if not len(at):
            return None
        end = len(at) - int(not mapping.keep and len(at) > 2 and at[-1] < at[-2])    # a last line names the best epoch
        back = np.arange(len(at)) >= end
        if (np.diff(at[:end]) <= 0).any():
            back[:end] = repeats(np.zeros(end, int), at[:end], mapping.keep or "last")
        rounded = (steps.counts[rows] % 1 > 0).any() and (np.diff(at) >= 0).all()        # of epochs such as 0.13
        if not (mapping.keep or rounded or tag == mapping.steps.get(RATE)) and back.sum() >= max(2, len(back) / 2):
            raise LogError(say("again", path=run.path, tag=tag, again=back.sum(), rows=len(back)))
        back |= rows < steps.begun
        trial.repeats += int(back.sum())
        fillers = _fillers(values, mapping.tags[tag].column) if tag in mapping.tags else back & False
        trial.fillers |= {tag} if fillers.any() else set()
        kept = ~(back | fillers)
        return (at[kept], values[kept] * scale) if kept.any() else None
    trial.evaluations = {metric.column: found for tag, metric in mapping.tags.items() if (found := series(tag))}
    trial.steps = {name: found for name, tag in mapping.steps.items() if (found := series(tag))}
    scale = TIME_UNITS[mapping.time_unit]
    if RATE in trial.steps:
        trial.steps[RATE] = trial.steps[RATE][0], trial.kept(trial.steps[RATE][1], -np.inf)
    if mapping.step_seconds and (each := series(mapping.step_seconds, scale)):
        ends = [at for column, (at, _) in trial.evaluations.items() if not column.startswith("train/")]
        longer = np.isin(each[0], np.concatenate([NONE[0], *ends])) & (each[1] > 2 * np.median(each[1]))
        trial.steps["step_seconds"] = each[0], trial.kept(np.where(longer, -1.0, each[1]))      # with an evaluation
    elif mapping.seconds in run.series:
        at, times, rows = steps.at(mapping.seconds)
        at, times = at[rows >= steps.begun], times[rows >= steps.begun]
        times, trial.restarted = _continued(trial.kept(times * scale, -np.inf), at)
        times = trial.kept(times)
        found, first = np.unique(at, return_index=True)
        trial.seconds = found, times[first]
    return trial


def _fillers(values: np.ndarray, column: str) -> np.ndarray:
    """Which values of an evaluation say that there was none: -1 of a loss or share, or 0 far from all others, if these
    are a number of rows apart, or if a loss follows or is all 0."""
    if (values == -1).any() and values[values != -1].min(initial=0) >= 0:
        return (values == -1) & bool(better(column) != LARGER or SHARE.search(column))
    sizes, gaps = np.abs(values[values != 0]), np.diff(there := np.flatnonzero(values))
    spaced = len(gaps) > 1 and gaps[0] > 1 and (gaps[:-1] == gaps[0]).all()
    before = "loss" in column.lower() and not values[:max(there, default=len(values))].all()
    far = len(there) == 0 or sizes.min() > 0.1 * np.median(sizes)
    return (values == 0) & bool(far and (spaced or before))


def _continued(times: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, str]:
    """(times since the start, what was taken for what): where a run was resumed, they go on from the last; rows between
    which a step took over PAUSE times as long as usual, in over that share of the run, have a pause between them."""
    times = times - (times[0] if len(times) and times[0] > STAMP else 0)
    falls = np.diff(times) < 0
    if not len(times) or falls.sum() > max(1, 0.1 * len(falls)):
        return np.full(len(times), np.nan), say("unsteady")
    before = np.where(falls, times[:-1], 0.0)
    times = times + np.concatenate([[0.0], np.cumsum(before)])[:len(times)]
    gaps, counts = np.diff(times), np.fmax(np.diff(steps), 1)
    usual = counts * np.median(gaps / counts) if len(gaps) > PAUSE[0] else np.inf
    paused = (gaps > PAUSE[0] * usual) & (gaps > PAUSE[1] * np.ptp(times))
    if paused.sum() == 1:
        times[1:] -= np.cumsum(np.where(paused, gaps - usual, 0.0))
    found = {"restarted": falls.any(), "paused": paused.sum() == 1}
    return times, "; ".join(say(kind) for kind, holds in found.items() if holds)


class _StepsDone:
    """The steps done at each row of a run. An evaluation in a row with a counter within its epoch is at the epoch's
    end, unless the epoch has several."""

    def __init__(self, trial: FoundTrial, mapping: RunMapping) -> None:
        run, batch = trial.run, trial.batch
        workers, passes = (int(trial.settings.get(name) or 1) for name in ("workers", "accumulation"))
        self.run, self.mapping = run, mapping
        self.each = {"examples": batch, "tokens": batch * (mapping.tokens_per_example or 1)}.get(mapping.step_unit, 1)
        self.length = run.epoch_steps if mapping.within else None
        counted = math.ceil((mapping.train_examples or 0) / batch)
        self.inner = 1.0            # that a counter within an epoch counts in a step
        if self.length and mapping.train_examples and any(
                math.isclose(self.length * share, mapping.train_examples, rel_tol=0.01) for share in (1, workers)):
            self.inner, self.length = batch / workers, counted      # examples of a worker, such as [12800/60000]
        elif self.length and not math.isclose(self.length, counted, rel_tol=0.02) and batch > workers * passes and not (
                run.spread(mapping.within) % (batch // (workers * passes)) > 0).any():
            raise LogError(say("examples_or_steps", path=run.path, within=mapping.within, length=self.length))
        if mapping.step_unit == "epochs":
            self.length = self.length or counted
        most = np.fmax.reduce(run.spread(mapping.within), initial=0) if mapping.within and not run.epoch_steps else 0
        if most > 1.02 * (self.length or most) + 1:
            raise LogError(say("too_far", path=run.path, within=mapping.within, most=most, length=self.length,
                               examples=mapping.train_examples, batch=batch))
        self.most = min(MOST, LARGEST_INT // batch) // (self.length or 1) if self.each == 1 else MOST
        self.counts = run.spread(mapping.step) if isinstance(mapping.step, str) else np.full(
            run.rows, float(mapping.step))
        if mapping.step == UPDATES:
            self.counts = np.fmax.accumulate(self.counts)
        used = run.series.keys() & {*mapping.tags, *mapping.steps.values()} if mapping.keep != "first" else ()
        self.begun = max((self._begins(run.series[tag].rows) for tag in used), default=0)

    def _begins(self, rows: np.ndarray) -> int:
        """The row from which on a tag was logged for the last time from its first count or before, as by a training
        that began again; but not its last row, which may name the best epoch."""
        counts = self.counts[rows]
        again = np.flatnonzero((counts[1:-1] < counts[:-2]) & (counts[1:-1] <= counts[:1])) + 1
        return int(rows[again[-1]]) if len(again) else 0

    def at(self, tag: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(steps, values, rows) of a tag, in order of rows, as far as these say a step; LogError for a wrong one."""
        (rows, values), mapping = self.run.series[tag], self.mapping
        known = ~np.isnan(self.counts[rows])
        rows, values = rows[known], values[known]
        count = self.counts[rows] + mapping.step_offset
        beyond = ~((count >= 0) & (count <= self.most))
        wrong = beyond | (count != np.floor(count)) if mapping.step_unit == "steps" else beyond
        if wrong.any():
            first = int(wrong.argmax())
            raise LogError(say("beyond" if beyond[first] else "no_whole", path=self.run.path, step=str(mapping.step),
                               count=self.counts[rows][first], most=self.most))
        if mapping.step_unit != "epochs":
            return np.ceil(count / self.each).astype(np.int64), values, rows
        steps = count * self.length
        column = mapping.tags[tag].column if tag in mapping.tags else "train/"
        if mapping.within and (column.startswith("train/") or len(np.unique(count)) < len(count)):
            inner = self.run.spread(mapping.within)
            if not column.startswith("train/"):         # after the steps that were counted before
                inner = inner[np.maximum.accumulate(np.where(np.isnan(inner), 0, np.arange(len(inner))))]
            inner = np.clip(inner[rows] / self.inner, 0, self.length)
            steps = np.where(np.isnan(inner), steps, (count - 1) * self.length + inner)
        return np.maximum(np.rint(steps), 0).astype(np.int64), values, rows


def remarks(trials: Sequence[FoundTrial], mapping: RunMapping, uses: Mapping[str, str]) -> dict[str, str]:
    """What was guessed, assumed and left out, by what it is about."""
    said: dict[str, str] = {}
    if "workers" not in mapping.settings:
        said["workers"] = say("workers", loaders=mapping.evidence.get("workers"))
    marks = [tag for trial in trials for tag in trial.run.series if tag.startswith((*NAMES["environment"],))]
    if mapping.step == UPDATES:
        said["steps"] = say("updates", step=UPDATES)
    elif marks and mapping.step_unit == "steps":
        said["steps"] = say("environment", mark=marks[0])
    elif mapping.step in NAMES["reports"] and mapping.step_unit == "steps":
        said["steps"] = say("reports", step=str(mapping.step))
    why = mapping.evidence.get("batch", "")
    said["batch"] = say("batch", why=why)
    batches, counts = ({trial.settings.get(name) for trial in trials} for name in ("batch", "workers"))
    if mapping.batch_per == WORKER_BATCH:
        assumed = [name for name in ("workers", "accumulation") if name not in mapping.settings]
        said["batch"] = say("batch_of_worker", why=why, ones=assumed)
    elif len(batches) == 1 and len(counts) > 1 and not why.endswith("--batch-per worker says otherwise"):
        said["batch"] = say("same_batch")
    said["search"] = say("search") if mapping.search is None and _searched(trials) else ""
    settings = group_by(trials, lambda trial: (
        _study(trial), trial.settings.get("workers"), trial.settings["seed"], *sorted(trial.points.items()),
        *trial.evaluations, *map(str, _config_of(trial.run, mapping).items())))
    if alike := next((own for own in settings.values() if len(own) > 1), None):
        known = (alike[0].points or _config_of(alike[0].run, mapping) or mapping.search is False
                 or alike[0].settings["seed"] is not None)
        said["repeats"] = say("repeats" if known else "no_repeats", one=alike[0].run.path, other=alike[1].run.path)
    said["metric"] = say("loss") if mapping.steps.get(LOSS) in mapping.tags else mapping.evidence.get("metric", "")
    said["overlap"] = say("overlap", again=sum(trial.repeats for trial in trials) or None, keep=mapping.keep or "last")
    said["fillers"] = say("fillers", columns=list_first(sorted({*chain(*(trial.fillers for trial in trials))}), 3))
    said["impossible"] = say("impossible", impossible=sum(trial.impossible for trial in trials) or None)
    said["times"] = mapping.evidence.get("step_seconds", "")
    if mapping.seconds and not mapping.step_seconds and mapping.seconds not in NAMES["timed"]:
        kind = say("proportional" if trials[0].run.format == trainer_state.NAME else "wall")
        said["times"] = "; ".join(dict.fromkeys([kind, *(one.restarted for one in trials if one.restarted)]))
    percents = [column for column in dict.fromkeys(column for trial in trials for column in trial.evaluations)
                if SHARE.search(column) and better(column) == LARGER and 1 < max(np.fmax.reduce(
                    trial.evaluations[column][1]) for trial in trials if column in trial.evaluations) <= 100]
    said["unit"] = say("unit", first=percents[:1], columns=list_first(percents, 3))
    said["steps"] = say("within", within=mapping.within) or said.get("steps", "")
    unclear = [metric.column for metric in mapping.tags.values() if not metric.direction]
    said["ways"] = say("ways", columns=list_first(unclear, 5))
    if short := [trial.run for trial in trials if trial.run.unfinished]:
        said["short"] = say("short", CUT_SHORT=CUT_SHORT, runs=len(short), path=short[0].path, why=short[0].unfinished)
    if blind := [trial.run for trial in trials if not len(trial.evaluated)]:
        said["blind"] = say("blind", runs=len(blind), path=blind[0].path)
    said["tags"] = say("tags", tags=list_first(sorted((tag for tag, use in uses.items() if use.startswith(
        LEFT_OUT)), key=lambda tag: not better(f"val/{tag}")), 8))
    return {name: text for name, text in said.items() if text}


def _searched(trials: Sequence[FoundTrial]) -> set[tuple]:
    return {study for study, own in group_by(trials, _study).items() if any(one.points != own[0].points for one in own)}


def _study(trial: FoundTrial) -> tuple:
    return tuple(trial.settings.get(name) for name in (*LABELS, "batch"))


def write(trials: Sequence[FoundTrial], out: str | os.PathLike[str], mapping: RunMapping, sources: Sequence[str],
          **how: bool) -> list[str]:
    """The new log ``out`` of these trials, see ``new_log``; returns remarks on suspicious values."""
    uses = accounts([trial.run for trial in trials], mapping)
    said, searched = remarks(trials, mapping, uses), _searched(trials)
    uses = {name[:MOST_SHOWN]: use for name, use in islice(uses.items(), 150)}
    about = {"kind": "runs", "from": list_first(sources, 3), **said, "uses": uses}
    with imported_log(out, about, **how) as log:
        log.better |= {metric.column: metric.direction for metric in mapping.tags.values() if metric.direction}
        for trial in trials:
            _add(log, trial, mapping, _study(trial) in searched or None if mapping.search is None else mapping.search)
        return [*said.values(), *beyond_errors(log.errors)]


def _add(log: ImportedLog, trial: FoundTrial, mapping: RunMapping, search: bool | None) -> None:
    workers, nodes, passes = (int(trial.settings.get(name) or 1) for name in ("workers", "nodes", "accumulation"))
    problem = {"train_examples": mapping.train_examples, "config": _config_of(trial.run, mapping)}
    plan = {"problem": {name: value for name, value in problem.items() if value},
            "execution": {"local_workers": workers // nodes} if nodes > 1 else {},
            "file": trial.run.path, **({} if search is None else {"search": search})}
    assumed = {} if trial.settings.get("workers") else {"workers": None}
    source = {"path": trial.run.path, "imported": "runs", **assumed}
    loss = trial.steps.get(LOSS, ((), [0.0]))[1][-1]
    status = Status.INCOMPLETE if trial.run.unfinished else Status.COMPLETE
    if not math.isfinite(loss):
        status = Status.INFEASIBLE
    reason = {Status.COMPLETE: "the run's files say no more", Status.INFEASIBLE: f"the last loss is {loss}",
              Status.INCOMPLETE: f"{CUT_SHORT}: {trial.run.unfinished}"}[status]
    seed = trial.settings.get("seed")
    ids = log.trials([trial.points], {
        "status": status, "stop_reason": reason, "global_batch": trial.batch, "accumulation": passes,
        "local_batch": -(-trial.batch // (workers * passes)), **{name: str(trial.settings[name]) for name in LABELS},
        "workers": workers, "budget_steps": 0, "seed": UNKNOWN_SEED if seed is None else seed,
        "plan": json.dumps(plan), "source": json.dumps(source, ensure_ascii=False)})
    steps = trial.evaluated
    log.evaluations(ids, [len(steps)], steps, steps * trial.batch, {
        column: _column(found, steps) for column, found in trial.evaluations.items()}, _seconds(trial, steps))
    rows = trial.steps.get(LOSS, NONE)[0]
    rows = rows[rows > 0]
    log.file.add("steps", "trial", np.repeat(ids, len(rows)))
    log.file.add("steps", "step", rows)
    for name in (LOSS, RATE, "step_seconds"):
        log.file.add("steps", name, _column(trial.steps.get(name, NONE), rows))


def _config_of(run: FoundRun, mapping: RunMapping) -> dict[str, Any]:
    """What else was set, so that runs of different settings are no repeats; of a run of one row in its columns, too."""
    sources = (*mapping.settings.values(), *mapping.metaparameters.values())
    used = {mapping.step, mapping.seconds, *mapping.steps.values(), *mapping.tags}
    gone = {*(run.series if run.rows > 1 else used), *setting_names(), *(source.parameter for source in sources)}

    def is_setting(name: str, value: Any) -> bool:
        words, last = {*re.split("[^a-z]+", name.lower())}, name.rpartition(".")[2]
        known = WORD.fullmatch(value) if isinstance(value, str) else value is not None and abs(value) < LARGEST
        return bool(known) and not (words & {*NAMES["no_setting"]} or {name.lower(), last} & gone or "." in name and (
            last in run.parameters) or name in run.series and better(f"val/{name}"))
    return {name: value for name, value in run.parameters.items() if is_setting(name, value)}


def _column(found: Points, steps: np.ndarray) -> np.ndarray:
    """The values at some steps, NaN where there is none; both steps rise."""
    column = np.full(len(steps), np.nan)
    _, there, of_found = np.intersect1d(steps, found[0], assume_unique=True, return_indices=True)
    column[there] = found[1][of_found]
    return column


def _seconds(trial: FoundTrial, steps: np.ndarray) -> np.ndarray:
    """Seconds until some steps: from the times of single steps, else the first time at which the step was logged."""
    at, each = trial.steps.get("step_seconds", NONE)
    at, each = at[known := ~np.isnan(each)], each[known]
    if not len(at):
        found = _column(trial.seconds, steps)
        falling = np.fmax.accumulate(found) > found                 # such as those of steps that were taken again
        return np.where(falling, np.nan, found)
    ends = np.concatenate([[0.0], np.cumsum(np.diff(at, prepend=0) * each)])
    return np.interp(steps, np.concatenate([[0], at]), ends) + np.maximum(0, steps - at[-1]) * each[-1]


def import_runs(sources: Sequence[str], out: str | os.PathLike[str]) -> list[str]:
    """The new log ``out`` of the runs at these paths, as they are guessed to be meant; returns remarks. Raises LogError
    where there is none, a file is wrong, or they do not say all."""
    mapping = guess(runs := read_runs(sources))
    return write(settle(runs, mapping), out, mapping, sources)


def shown(trials: Sequence[FoundTrial], mapping: RunMapping, whole: bool = False) -> str:
    """How the first runs are read, and the mapping as a file to edit; ``whole``: with what every tag is used for."""
    lines = [f"# {trial.describe()}" for trial in trials[:SHOWN]]
    if len(trials) > SHOWN:
        lines.append(f"# and {counted(len(trials) - SHOWN, 'more run')}")
    found = accounts([trial.run for trial in trials], mapping) if whole else {}
    return "\n".join([*lines, "", mapping.as_toml(), *(f"# {tag[:MOST_SHOWN]}: {use}" for tag, use in found.items())])
