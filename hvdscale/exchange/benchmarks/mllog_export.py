"""Export of a log as MLPerf's training logs: lines ``:::MLLOG {...}``, which mlcommons/logging's tools parse.

    export_mllog("w8.h5", "w8")         the folder w8: result_0.txt for trial 0, ...

A file has the batch, seed and metaparameters of its trial, then run_start, a block of training before each evaluation,
and the evaluations. The metric of the trial's target is eval_accuracy; the others go by their names. run_stop says
success where the target was met, else aborted. Times are the trial's start and its training seconds, evaluation left
out. The line ``hvdscale_trial`` has what MLPerf has no key for. A submission needs more: who submits it, and on what.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...log.plan_text import plan_at
from ...log.reader import Log
from ...log.schema import UNKNOWN_SEED, Status
from ...target import Target
from ..exported import exporting, metaparameters_of, row_of, start_seconds
from .mllog_lines import OWN, TOKEN
from .mllog_measured import PARAMETERS

POINT, START, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
NAMES = {ours: theirs for theirs, ours in reversed(PARAMETERS.items())}


def export_mllog(path, out, progress: Callable[[float], None] = lambda share: None) -> int:
    """Write a file for each trial into the new folder ``out``, see ``exporting``; returns their number."""
    with exporting(path, out) as (log, folder):
        ids = log.trials["id"].tolist()
        for row, trial in enumerate(ids):
            with open(os.path.join(folder, f"result_{trial}.txt"), "w", encoding="utf-8") as file:
                file.writelines(f"{TOKEN}{json.dumps(event)}\n" for event in _events(log, row))
            progress((row + 1) / len(ids))
        return len(ids)


def _events(log: Log, row: int) -> Iterator[dict[str, Any]]:
    """The lines of one trial, in order."""
    trial = int(log.trials["id"][row])
    plan = plan_at(log.path, trial, log.trials["plan"][row])
    start = start_seconds(log, trial)
    target = (plan.get("measurement") or {}).get("target") or None
    yield from (_event(start, POINT, key, value) for key, value in _settings(log, row, plan, target).items())
    yield _event(start, START, "run_start")
    last = start
    size = (plan.get("problem") or {}).get("train_examples") or math.inf
    for last, event in _evaluations(log, trial, start, Target.parse(target) if target else None, size):
        yield event
    if log.trials["status"][row] != Status.RUNNING:
        yield _event(last, END, "run_stop", None, {"status": "success" if _is_met(log, trial, target) else "aborted"})


def _settings(log: Log, row: int, plan: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """What was settled before the run, by MLPerf's keys."""
    one = row_of(log, row)
    benchmark = one["dataset"] if one["model"] == "reference" else f"{one['dataset']}/{one['model']}"
    size = (plan.get("problem") or {}).get("train_examples")
    own = {"id": one["id"], "dataset": one["dataset"], "model": one["model"], "workers": one["workers"],
           "target": target, "status": Status(one["status"]).name, "stop_reason": one["stop_reason"]}
    found = {"submission_benchmark": benchmark, OWN: own,
             **({"seed": one["seed"]} if one["seed"] != UNKNOWN_SEED else {}),
             "global_batch_size": one["global_batch"], "gradient_accumulation_steps": one["accumulation"],
             "opt_name": one["optimizer"], **({"train_samples": size} if size else {}),
             **({"max_steps": one["budget_steps"]} if one["budget_steps"] else {})}
    for name, value in metaparameters_of(one).items():
        found.setdefault(NAMES.get(name, name), value)
    return found


def _evaluations(log: Log, trial: int, start: float, target: Target | None, train_examples: float
                 ) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds since 1970, line) of each evaluation and of the training before it."""
    table = log.evaluations
    step, examples, seconds = (table.of_trial(name, trial).tolist() for name in ("step", "examples", "train_seconds"))
    metrics = {name: table.of_trial(name, trial) for name in table if "/" in name}
    metrics = {name: values.tolist() for name, values in metrics.items() if not np.isnan(values).all()}
    main = target.column if target else next(iter(metrics), "")
    before = 0
    for at, seen in enumerate(examples):
        time = start + _known(seconds[at])
        if seen > before:
            block = {"samples_count": before}
            yield time, _event(start + _known(seconds[at - 1]) if at else start, START, "block_start", None, block)
            yield time, _event(time, END, "block_stop", None, block)
        epochs = {"epoch_num": seen / train_examples} if math.isfinite(train_examples) else {}
        place = {"samples_count": seen, "step_num": step[at], **epochs}
        yield time, _event(time, START, "eval_start", None, place)
        for name, values in metrics.items():
            if not math.isnan(values[at]):
                key, about = ("eval_accuracy", {**place, "metric": name}) if name == main else (name, place)
                yield time, _event(time, POINT, key, values[at], about)
        yield time, _event(time, END, "eval_stop", None, place)
        before = seen


def _known(seconds: float) -> float:
    """The seconds; 0 for NaN, where none were measured."""
    return seconds if seconds == seconds else 0.0


def _is_met(log: Log, trial: int, target: str | None) -> bool:
    if not target:
        return False
    found = Target.parse(target)
    return found.column in log.evaluations and bool(
        found.met_by(log.evaluations.of_trial(found.column, trial)).any())


def _event(seconds: float, kind: str, key: str, value: Any = None, about: Mapping[str, Any] | None = None
           ) -> dict[str, Any]:
    return {"namespace": "", "time_ms": round(1000 * seconds), "event_type": kind, "key": key, "value": value,
            "metadata": dict(about or {})}
