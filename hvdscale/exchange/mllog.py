"""Import of MLPerf training logs: files with ``:::MLLOG {...}`` lines, as mlcommons/logging writes them.

    import_mllog("results/h100/bert", "bert.h5")        result_*.txt there, or one file: a trial each

A trial is a file with a ``run_start``. Its evaluations are the lines ``eval_accuracy`` (or ``eval_error``). Their
metadata say after how many examples: ``samples_count``, else ``epoch_num``, else ``step_num``. An epoch has
``train_samples``; from 20,000 on ``epoch_num`` counts examples, as bert's does. The value becomes
``val/eval_accuracy``, or the metric that the metadata name. As for reference points, ``val/converged`` is 1 at the last
evaluation of a run that ended with success, and else 0. So both can be reported on together, with the target
``val/converged>=1``.

Seconds are those since ``run_start`` without the intervals from ``eval_start`` to ``eval_stop``. The lines do not say
how many workers there were: without ``workers`` they count as 1, and seconds are left out. Files of export_mllog say
more, in a line ``hvdscale_trial``: workers, metrics and targets come back as they were.
"""
from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import LogError
from ..log.plan_text import MOST
from ..log.schema import Status
from ..target import SPLITS
from .archive_files import LARGEST_INT, WrongFile, parameter_name, whole_number
from .imported import ImportedLog
from .mlperf_rcp import EXAMPLES_FROM, RENAMED, TARGET, TRAIN_EXAMPLES

TOKEN = ":::MLLOG "
RESULT = re.compile(r"result_\d+\.txt")
OWN = "hvdscale_trial"              # the key of the line that only our own files have
EVALUATED = ("eval_accuracy", "eval_error")
CONVERGED = "val/converged"
METRIC = re.compile(rf"(?:{'|'.join(SPLITS)})/[\w.+-]+", re.ASCII)
LONGEST = 1 << 20                   # characters of a line
PARAMETERS = {**RENAMED, "opt_learning_rate_decay_steps": "decay_steps"}
# keys whose values are no metaparameters
OTHERS = ("seed", "global_batch_size", "gradient_accumulation_steps", "train_samples", "eval_samples", "max_steps", OWN)


@dataclass
class Run:
    """What one file says of a run. Evaluations by examples: (step or None, seconds, values by metric)."""

    path: str
    given: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    evaluations: dict[int, tuple[int | None, float, dict[str, float]]] = field(default_factory=dict)
    started: float | None = None        # milliseconds
    ended: str | None = None            # the status of run_stop

    @property
    def own(self) -> Mapping[str, Any]:
        """What our own files say beside the keys of MLPerf."""
        return self.given.get(OWN) or {}


@dataclass(frozen=True)
class Imported:
    """The number of trials, whether their workers were assumed, and messages about files left out."""

    trials: int
    assumed: bool
    wrong: tuple[str, ...]


def is_mllog(path: str) -> bool:
    """Whether a file has such lines near its start, or a directory holds files named like results."""
    if os.path.isdir(path):
        return any(RESULT.fullmatch(name) for _, _, names in os.walk(path) for name in names)
    with open(path, encoding="utf-8", errors="replace") as file:
        return TOKEN in file.read(LONGEST)


def import_mllog(source, out, *, workers: int | None = None, train_examples: int | None = None,
                 skip_broken: bool = False, overwrite: bool = False, take_over: bool = False) -> Imported:
    """Import each run into the new log ``out``.

    workers         of all runs, where it is known
    train_examples  in an epoch, where a file does not say it

    Raises LogError for a wrong file, unless it is skipped, and where there is no run.
    """
    source, wrong, trials, assumed = os.fspath(source), [], 0, False
    about = {"kind": "mllog", "from": source}
    with ImportedLog(out, about, overwrite=overwrite, take_over=take_over) as log:
        for path in _files(source):
            try:
                run = read_run(path, train_examples)
                if run:
                    assumed |= _add(log, run, workers, train_examples)
                    trials += 1
            except WrongFile as error:
                if not skip_broken:
                    raise LogError(str(error)) from None
                wrong.append(str(error))
        if not trials:
            raise LogError(f"{source}: no run of MLPerf: no file there has {TOKEN}lines with the key run_start"
                           + "".join(f"\n{message}" for message in wrong[:3]))
    return Imported(trials, assumed, tuple(wrong))


def _files(source: str) -> list[str]:
    if not os.path.isdir(source):
        return [source]
    return sorted((os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names),
                  key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])


def read_run(path: str, train_examples: int | None = None) -> Run | None:
    """The run of a file, None where it has none; raises WrongFile for lines that contradict the format."""
    run, paused, pause = Run(path), 0.0, None
    for where, line in _lines(path):
        key, value, about, time = line["key"], line.get("value"), line["metadata"], line["time_ms"]
        if key == "run_start" and run.started is None:
            run.started = time
        elif key == "run_stop":
            run.ended = str(about.get("status", ""))
        elif key == "eval_start":
            pause = time
        elif key == "eval_stop" and pause is not None:
            paused, pause = paused + time - pause, None
        elif key in EVALUATED or METRIC.fullmatch(key):
            seconds = math.nan if run.started is None else ((pause or time) - run.started - paused) / 1000
            _evaluate(run, where, key, value, about, seconds, train_examples)
        else:
            _take(run, path, key, value)
    return run if run.started is not None else None


def _lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line for messages, the object) of each line, whatever precedes it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(iter(lambda: file.readline(LONGEST), ""), 1):
                if TOKEN in text:
                    yield f"{path}:{number}", _object(f"{path}:{number}", text.partition(TOKEN)[2])
    except OSError as error:
        raise WrongFile(f"{path}: cannot be read: {error.strerror}") from None


def _object(where: str, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongFile(f"{where}: what follows {TOKEN}is not JSON: {text.strip()[:40]!r}; correct the line, or leave "
                        "the file out with --skip-broken") from None
    if not isinstance(line, dict) or not isinstance(line.get("key"), str) or not _is_number(line.get("time_ms")):
        raise WrongFile(f"{where}: a line has an object with key, a text, and time_ms, a number, not "
                        f"{text.strip()[:40]!r}")
    line["metadata"] = line.get("metadata") if isinstance(line.get("metadata"), dict) else {}
    return line


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53


def _take(run: Run, path: str, key: str, value: Any) -> None:
    """Keep the value of a key; of several lines the first counts."""
    if key in run.given:
        return
    run.given[key] = value
    if key not in OTHERS and _is_number(value):
        run.parameters[PARAMETERS.get(key) or parameter_name(key, path)] = float(value)


def _evaluate(run: Run, where: str, key: str, value: Any, about: Mapping[str, Any], seconds: float,
              train_examples: int | None) -> None:
    if value is not None and not isinstance(value, (int, float)):
        raise WrongFile(f"{where}: {key} is {str(value)[:40]!r}, not a number")
    examples = _examples(run, where, key, about, train_examples)
    name = str(about.get("metric") or "") if key in EVALUATED else key
    name = name if METRIC.fullmatch(name) else f"val/{re.sub(r'[^A-Za-z0-9_.+-]', '_', name) or EVALUATED[0]}"
    step = about.get("step_num")
    step = step if isinstance(step, int) and 0 <= step <= MOST else None
    kept = run.evaluations.setdefault(examples, (step, seconds, {}))[2]
    kept[name] = math.nan if value is None else float(value)


def _examples(run: Run, where: str, key: str, about: Mapping[str, Any], train_examples: int | None) -> int:
    """The examples seen at an evaluation."""
    found = {name: about[name] for name in ("samples_count", "epoch_num", "step_num") if _is_number(about.get(name))}
    if not found:
        raise WrongFile(f"{where}: {key} does not say how far the run was: its metadata need samples_count, epoch_num "
                        "or step_num")
    name, value = next(iter(found.items()))
    if value < 0:
        raise WrongFile(f"{where}: {name} is {value:g}, which is below 0")
    if name == "step_num":
        return round(value * _batch(run))
    if name == "samples_count" or value >= EXAMPLES_FROM:
        return round(value)
    size = _size(run, train_examples)
    if not size:
        raise WrongFile(f"{where}: {key} counts epochs, and how many examples one has is not known: give "
                        "--train-examples N")
    return round(value * size)


def _size(run: Run, train_examples: int | None) -> int | None:
    """The examples of an epoch, where they are known."""
    given = run.given.get("train_samples")
    benchmark = str(run.given.get("submission_benchmark"))
    return train_examples or (int(given) if _is_number(given) and given >= 1 else TRAIN_EXAMPLES.get(benchmark))


def _batch(run: Run) -> int:
    return whole_number(run.given.get("global_batch_size"), 1, run.path, "global_batch_size")


def _add(log: ImportedLog, run: Run, workers: int | None, train_examples: int | None) -> bool:
    """Add the trial of a run; gives whether its workers had to be assumed."""
    batch, own = _batch(run), run.own
    known = workers or _whole(own.get("workers"))
    rows = sorted((_step(step, examples, batch), examples, seconds, values)
                  for examples, (step, seconds, values) in run.evaluations.items())
    if not rows and run.ended == "success":
        raise WrongFile(f"{run.path}: ended with success, but has no line {EVALUATED[0]}")
    steps = [row[0] for row in rows]
    if len(set(steps)) < len(steps):
        raise WrongFile(f"{run.path}: two evaluations lie within one step of {batch} examples")
    if max(steps, default=0) > MOST or max((row[1] for row in rows), default=0) > LARGEST_INT:
        raise WrongFile(f"{run.path}: has more steps or examples than 64 bits can count")
    status, reason = _end(run)
    budget = _whole(run.given.get("max_steps")) or max(steps, default=0)
    size = _size(run, train_examples)
    target = own.get("target", TARGET) if own else TARGET
    benchmark = str(run.given.get("submission_benchmark") or "mlperf")
    plan = {"problem": {"train_examples": size} if size else {},
            "measurement": {"budget_steps": budget, **({"target": str(target)} if target else {})},
            "mllog": {key: value for key, value in run.given.items() if key != OWN and _is_plain(value)}}
    seed = _whole(run.given.get("seed")) or 0
    start = run.started / 1000 if known and run.started else math.nan
    ids = log.trials({
        "status": np.full(1, status, np.int8), "stop_reason": reason, "dataset": str(own.get("dataset") or benchmark),
        "model": str(own.get("model") or "reference"), "optimizer": str(run.given.get("opt_name") or "reference"),
        "global_batch": batch, "seed": seed, "budget_steps": budget, "workers": known or 1,
        "accumulation": _whole(run.given.get("gradient_accumulation_steps")) or 1,
        "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": run.path, "imported": "mllog"})}, [run.parameters], start)
    names = sorted({name for row in rows for name in row[3]})
    values = {name: np.array([row[3].get(name, math.nan) for row in rows]) for name in names}
    if not own:
        values[CONVERGED] = np.array([float(run.ended == "success" and row is rows[-1]) for row in rows])
    log.evaluations(ids, [len(rows)], np.array(steps, np.int64), np.array([row[1] for row in rows], np.int64), values,
                    np.array([row[2] for row in rows], float) if known else None)
    return not known


def _step(step: int | None, examples: int, batch: int) -> int:
    return -(-examples // batch) if step is None else step


def _end(run: Run) -> tuple[Status, str]:
    """The status of the trial, and why it ended."""
    if run.own:
        found = {status.name: status for status in Status}.get(str(run.own.get("status")), Status.INCOMPLETE)
        if found != Status.RUNNING:
            return found, str(run.own.get("stop_reason") or f"run_stop: {run.ended}")
    if run.ended == "success":
        return Status.COMPLETE, "the target of the benchmark was met"
    return Status.INCOMPLETE, f"run_stop: {run.ended or 'no status'}" if run.ended is not None else "no run_stop"


def _whole(value: Any) -> int | None:
    """An integer from 0 on, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INT else None


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, str)) or isinstance(value, float) and math.isfinite(value)
