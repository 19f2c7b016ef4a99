"""Import of MLPerf's reference convergence points (mlcommons/logging, rcp_checker/*/rcps_*.json).

    import_rcp("rcps_resnet.json", "resnet.h5")

A point lists how far runs with several seeds trained to the benchmark's target, at one batch size with one set of
hyperparameters; no other data of these runs exist. Each seed becomes a COMPLETE trial with the target TARGET and two
evaluations: one that does not meet it (val/converged = 0), then one that does (1). Assumptions:

- "samples to converge" are in examples. "Epochs to converge" are in epochs; in examples if the benchmark's largest
  value is at least 20,000 (bert and later language models); in steps for sd of MLPerf 3.1, where all seeds have the
  same value; in tokens for gpt3, 2,048 per sequence. ``unit`` overrides this.
- All values of a benchmark have the same unit: less than one step is an error.
- An epoch has TRAIN_EXAMPLES or ``train_examples`` examples; without either it is an error.
- Steps are examples over the point's batch size, rounded up.
- The previous evaluation is one spacing earlier. The spacing is the largest gap between neighbouring values of
  the point such that nine in ten values lie on one grid of it. In epochs, the benchmark's smallest spacing applies to
  all its points; in other units, to points whose values are all equal. Without a spacing there is no previous
  evaluation, and the interval of the crossing extends down to 0.
"""
from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..errors import LogError, UsageError
from ..log.plan_text import MOST
from ..log.schema import Status
from .archive_files import LARGEST_INT, WrongFile, file_bytes, json_object, parameter_name, refuse_deep, whole_number
from .imported import ImportedLog

TARGET = "val/converged>=1"
UNITS = ("epochs", "examples", "steps", "tokens")
VALUES = ("Epochs to converge", "samples to converge")
LARGEST = 4 << 20                   # bytes of a file
ON_GRID = 0.9                       # of the values; the others count as outliers
EXAMPLES_FROM = 20_000              # values from here on cannot be epochs
OWN_UNITS = {"gpt3": "tokens", "sd": "steps"}
TOKENS = 2048                       # of a sequence of gpt3
# sizes of the training sets: ImageNet; COCO images with annotations; others from the benchmarks' own logs
TRAIN_EXAMPLES = {"resnet": 1_281_167, "maskrcnn": 117_266, "deepcam": 121_266}
RENAMED = {"opt_base_learning_rate": "learning_rate", "opt_momentum": "momentum", "opt_weight_decay": "weight_decay",
           "opt_learning_rate_warmup_epochs": "warmup_epochs", "opt_learning_rate_warmup_steps": "warmup_steps"}


@dataclass(frozen=True)
class Point:
    """One reference point: its name in the file, values as written, and their unit."""

    name: str
    benchmark: str
    batch: int
    values: tuple[Fraction, ...]
    unit: str
    hyperparameters: dict
    about: dict

    @property
    def spacing(self) -> Fraction | None:
        """Steps between evaluations in the written unit; None if the values leave it open."""
        distinct = sorted(set(self.values))
        gaps = {after - before for before, after in zip(distinct, distinct[1:])}
        for gap in sorted(gaps, reverse=True):
            most = Counter(value % gap for value in self.values).most_common(1)[0][1]
            if most >= ON_GRID * len(self.values):
                return gap
        return None


def is_rcp(data: object) -> bool:
    return isinstance(data, dict) and bool(data) and all(
        isinstance(point, dict) and {"Benchmark", "BS"} <= point.keys() for point in data.values())


def import_rcp(source, out, *, unit: str | None = None, train_examples: int | None = None, overwrite: bool = False,
               take_over: bool = False) -> int:
    """Import a trial for each seed of each point into the new log ``out``; returns the number of trials.

    unit            of the values: one of UNITS; None: see above
    train_examples  in an epoch

    Raises LogError for an invalid file, UsageError for epochs of unknown size.
    """
    source = os.fspath(source)
    points = read_points(source, unit)
    trials = 0
    with ImportedLog(out, {"kind": "rcp", "from": source}, ("val/converged",), overwrite=overwrite,
                     take_over=take_over) as log:
        for point in points:
            trials += _add(log, source, point, _find_spacing(point, points), train_examples)
    return trials


def read_points(source: str, unit: str | None = None) -> list[Point]:
    """A file's points by benchmark and batch size; raises LogError."""
    try:
        data, _ = json_object(file_bytes(os.path.realpath(source), source, LARGEST), source)
        refuse_deep(data, source)
        if not is_rcp(data):
            raise WrongFile(f"{source}: is JSON, but no table of reference convergence points: each entry needs "
                            "Benchmark, BS and 'Epochs to converge'")
        points = [_point(source, name, entry, unit) for name, entry in data.items()]
    except WrongFile as error:
        raise LogError(str(error)) from None
    largest: dict[str, Fraction] = {}
    for point in points:
        largest[point.benchmark] = max(largest.get(point.benchmark, Fraction(0)), *point.values)
    points = [point if point.unit != "epochs" or unit or largest[point.benchmark] < EXAMPLES_FROM
              else replace(point, unit="examples") for point in points]
    return sorted(points, key=lambda point: (point.benchmark, point.batch))


def _point(source, name, entry, unit) -> Point:
    where = f"{source}: {name}"
    benchmark, batch = entry["Benchmark"], whole_number(entry["BS"], 1, where, "BS")
    if not isinstance(benchmark, str) or not benchmark:
        raise WrongFile(f"{where}: Benchmark is {benchmark!r}, which is not a name")
    key = next((key for key in VALUES if key in entry), VALUES[0])
    values = entry.get(key)
    if not isinstance(values, list) or not values:
        raise WrongFile(f"{where}: {key} is {str(values)[:40]}, not a list of numbers")
    if unit is None:
        unit = "examples" if key == VALUES[1] else OWN_UNITS.get(benchmark, "epochs")
    hyperparameters = entry.get("Hyperparams", {})
    if not isinstance(hyperparameters, dict):
        raise WrongFile(f"{where}: Hyperparams is not an object")
    about = {name: value for name, value in entry.items() if name not in (*VALUES, "Hyperparams", "Benchmark", "BS")}
    return Point(name, benchmark, batch, tuple(_positive(value, where, key) for value in values), unit,
                 hyperparameters, about)


def _positive(value, where, key) -> Fraction:
    """The number as written: 0.85 is 85/100."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST_INT:
        raise WrongFile(f"{where}: {key} has {value!r}, not a positive number")
    return Fraction(str(value))


def _find_spacing(point, points) -> Fraction | None:
    if point.spacing is not None and point.unit != "epochs":
        return point.spacing
    alike = [other.spacing for other in points if other.benchmark == point.benchmark and other.unit == point.unit]
    return min((spacing for spacing in alike if spacing is not None), default=None)


def _add(log, source, point, spacing, train_examples) -> int:
    count = len(point.values)
    size = train_examples or TRAIN_EXAMPLES.get(point.benchmark)
    factor = _examples_per_unit(source, point, size)
    if point.unit != "epochs" and min(point.values) * factor < point.batch:
        raise LogError(f"{source}: {point.name}: has {float(min(point.values)):g} {point.unit} to converge, less than "
                       f"one step of {point.batch} examples; all values must be of one unit: correct the file, or give "
                       "the unit with --unit")
    spacing_steps = math.ceil(spacing * factor / point.batch) if spacing else 0
    steps = [math.ceil(value * factor / point.batch) for value in point.values]
    examples = [min(round(value * factor), step * point.batch) for value, step in zip(point.values, steps)]
    if max(examples) > LARGEST_INT or max(steps) > MOST:
        raise LogError(f"{source}: {point.name}: {max(examples)} examples are more than 64 bits can count")
    numbers = {RENAMED.get(name, parameter_name(name, source)): float(value)
               for name, value in point.hyperparameters.items()
               if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300}
    optimizer = point.hyperparameters.get("optimizer") or point.hyperparameters.get("opt_name") or "reference"
    plan = {"problem": {"reference": point.name, **({"train_examples": size} if size else {})},
            "measurement": {"budget_steps": max(steps), "target": TARGET, "eval_every": spacing_steps or None},
            "rcp": {"name": point.name, "unit": point.unit, "hyperparameters": point.hyperparameters, **point.about}}
    ids = log.trials({
        "status": np.full(count, Status.COMPLETE, np.int8), "stop_reason": "the target of the benchmark was met",
        "dataset": point.benchmark, "model": "reference", "optimizer": str(optimizer), "global_batch": point.batch,
        "seed": np.arange(count), "budget_steps": max(steps), "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": point.name, "imported": "rcp"})}, [numbers] * count)
    rows, step, seen, met = [], [], [], []
    for last, total in zip(steps, examples):
        before = last - spacing_steps
        with_before = bool(spacing_steps) and before > 0
        rows.append(1 + with_before)
        step += [before] * with_before + [last]
        seen += [before * point.batch] * with_before + [total]
        met += [0.0] * with_before + [1.0]
    log.evaluations(ids, rows, np.array(step), np.array(seen), {"val/converged": np.array(met)})
    return count


def _examples_per_unit(source, point, train_examples) -> Fraction:
    if point.unit == "epochs" and train_examples is None:
        raise UsageError(f"{source}: {point.benchmark} counts epochs, and how many examples one has is not known: give "
                         "--train-examples N, or --unit where they are none")
    return {"epochs": Fraction(train_examples or 0), "examples": Fraction(1), "steps": Fraction(point.batch),
            "tokens": Fraction(1, TOKENS)}[point.unit]
