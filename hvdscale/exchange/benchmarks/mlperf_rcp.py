"""Import of MLPerf's reference convergence points (mlcommons/logging, rcp_checker/*/rcps_*.json); see the guide.

    import_rcp("rcps_resnet.json", "resnet.h5")

Each seed of a point is a COMPLETE trial with the target TARGET: an evaluation that does not meet it (val/converged = 0)
a spacing before one that does (1). Without a spacing there is none, and the crossing's interval extends down to 0.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ...errors import LogError, UsageError
from ...log.plan_text import MOST
from ...log.schema import UNKNOWN_SEED, Status
from ..files import LARGEST_INT, WrongFile, is_number, json_of, parameter_name, text_of, whole_number
from ..imported import imported_log
from .table import RENAMED, Benchmark, find_benchmark, optimizer_of, say

TARGET = "val/converged>=1"
VALUES = ("Epochs to converge", "samples to converge")
LARGEST = 4 << 20                   # bytes of a file
ON_GRID = 0.9                       # of the values; the others count as outliers
OUTLIER = 4                         # times the median of a point or more, or so many times less


@dataclass(frozen=True)
class ReferencePoint:
    """One reference point: its name in the file, values as written, in the benchmark's unit."""

    name: str
    benchmark: Benchmark
    batch: int
    values: tuple[Fraction, ...]
    hyperparameters: dict
    about: dict

    @property
    def median(self) -> Fraction:
        return sorted(self.values)[len(self.values) // 2]

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


def import_rcp(source, out, *, unit: str | None = None, train_examples: int | None = None,
               names: Mapping[str, str] = {}, **how: bool) -> tuple[int, list[str]]:
    """Import a trial for each seed of each point into the new log ``out``; returns the number of trials, and notes.
    LogError for an invalid file, UsageError for epochs of unknown size.

    unit    of the values; None: see above;  train_examples: in an epoch;  names: dataset, model, optimizer instead
    """
    source = os.fspath(source)
    points, trials = read_points(source, unit, train_examples), 0
    with imported_log(out, {"kind": "rcp", "from": source}, **how) as log:
        for point in points:
            spacings = [other.spacing for other in points if other.benchmark == point.benchmark and other.spacing]
            spacing = point.spacing if point.benchmark.unit != "epochs" else None
            trials += _add(log, source, point, spacing or min(spacings, default=None), names)
    return trials, [say("outlier", path=source, point=point.name, value=float(value), median=float(point.median))
                    for point in points for value in point.values
                    if not point.median / OUTLIER < value < point.median * OUTLIER]


def read_points(source: str, unit: str | None = None, train_examples: int | None = None) -> list[ReferencePoint]:
    """A file's points by benchmark and batch size; raises LogError."""
    data = json_of(text_of(source, most=LARGEST), source, dict)
    if not data or not all(isinstance(entry, dict) and {"Benchmark", "BS"} <= entry.keys() for entry in data.values()):
        raise WrongFile(say("no_points", path=source))
    given = [_values(f"{source}: {name}", entry) for name, entry in data.items()]
    largest: dict[str, Fraction] = {}
    for entry, (key, values) in zip(data.values(), given):
        largest[entry["Benchmark"]] = max(largest.get(entry["Benchmark"], Fraction(0)), *values)
    points = []
    for (name, entry), (key, values) in zip(data.items(), given):
        most = largest[entry["Benchmark"]]
        benchmark = find_benchmark(entry["Benchmark"], float(most), examples=train_examples, unit=unit or (
            "examples" if key == VALUES[1] else None))
        if benchmark.unit == "epochs" and most >= benchmark.examples_from:
            benchmark = replace(benchmark, unit="examples")
        about = {one: value for one, value in entry.items() if one not in (*VALUES, "Hyperparams", "Benchmark", "BS")}
        points.append(ReferencePoint(name, benchmark, entry["BS"], values, entry.get("Hyperparams", {}), about))
    return sorted(points, key=lambda point: (point.benchmark.name, point.batch))


def _values(where, entry) -> tuple[str, tuple[Fraction, ...]]:
    """The key and the values of an entry that has all that a point needs; raises WrongFile."""
    whole_number(entry["BS"], 1, where, "BS")
    if not isinstance(entry["Benchmark"], str) or not entry["Benchmark"]:
        raise WrongFile(f"{where}: Benchmark is {entry['Benchmark']!r}, which is not a name")
    if not isinstance(entry.get("Hyperparams", {}), dict):
        raise WrongFile(f"{where}: Hyperparams is not an object")
    key = next((key for key in VALUES if key in entry), VALUES[0])
    values = entry.get(key)
    if not isinstance(values, list) or not values:
        raise WrongFile(f"{where}: {key} is {str(values)[:40]}, not a list of numbers")
    for value in values:
        if not is_number(value) or not 0 < value <= LARGEST_INT:
            raise WrongFile(f"{where}: {key} has {value!r}, not a positive number")
    return key, tuple(Fraction(str(value)) for value in values)         # as written: 0.85 is 85/100


def _add(log, source, point, spacing, names) -> int:
    count, benchmark = len(point.values), point.benchmark
    size, unit = benchmark.examples, benchmark.unit
    if unit == "epochs" and not size:
        raise UsageError(say("no_size_of_points", path=source, benchmark=benchmark.name))
    seen_at = [benchmark.examples_at(value, point.batch) for value in point.values]
    if min(seen_at) < (point.batch if unit != "epochs" else 1):
        raise LogError(say("less_than_a_step", path=source, point=point.name, least=float(min(point.values)),
                           unit=unit, batch=point.batch))
    spacing_steps = math.ceil(replace(benchmark, first=0).examples_at(spacing or 0, point.batch) / point.batch)
    steps = [math.ceil(value / point.batch) for value in seen_at]
    examples = [min(round(value), step * point.batch) for value, step in zip(seen_at, steps)]
    if max(examples) > LARGEST_INT or max(steps) > MOST:
        raise LogError(f"{source}: {point.name}: {max(examples)} examples are more than 64 bits can count")
    numbers = {RENAMED.get(name, parameter_name(name, source)): float(value)
               for name, value in point.hyperparameters.items() if is_number(value) and abs(value) < 1e300}
    plan = {"problem": {"reference": point.name, **({"train_examples": size} if size else {})},
            "measurement": {"budget_steps": max(steps), "target": TARGET, "eval_every": spacing_steps or None},
            "rcp": {"name": point.name, "unit": unit, "hyperparameters": point.hyperparameters, **point.about}}
    ids = log.trials([numbers] * count, {
        "status": Status.COMPLETE, "stop_reason": "the target of the benchmark was met",
        "dataset": benchmark.name, "model": "reference", "optimizer": optimizer_of(point.hyperparameters, benchmark),
        "global_batch": point.batch, "seed": UNKNOWN_SEED, "source_trial": np.arange(count), "budget_steps": max(steps),
        "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": point.name, "imported": "rcp"}), **names})
    rows = []
    for last, total in zip(steps, examples):
        if spacing_steps:
            before = max(0, last - spacing_steps)
            rows.append((before, before * point.batch, 0.0))
        rows.append((last, total, 1.0))
    step, seen, met = map(np.array, zip(*rows))
    log.evaluations(ids, [len(rows) // count] * count, step, seen, {"val/converged": met})
    return count
