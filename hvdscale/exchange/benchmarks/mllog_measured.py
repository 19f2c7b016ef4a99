"""What the run of a log is under the table of benchmarks: its evaluations by steps and examples, in columns.

    measured = Measured(read_run(path), Wanted(workers=8))
    measured.rows, measured.notes           its evaluations in order, and what had to be assumed
"""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...formatting.numbers import counted
from ...log.plan_text import MOST
from ..files import LARGEST_INT, METRIC, WrongFile, parameter_name, whole_number
from .mllog_lines import COUNTERS, EVALUATED, Evaluation, MllogRun, is_number
from .table import RENAMED, Benchmark, are_alike, find_benchmark

CONVERGED = "val/converged"
PARAMETERS = {**RENAMED, "opt_learning_rate_decay_steps": "decay_steps"}
SAME = 1e-4                         # relative difference of values that are one measurement, written twice


@dataclass(frozen=True)
class Wanted:
    """What a user says of the runs."""

    workers: int | None = None
    per_node: int | None = None                     # of the workers
    unit: str | None = None                         # of epoch_num
    train_examples: int | None = None               # in an epoch
    names: Mapping[str, str] = field(default_factory=dict)          # dataset, model, optimizer instead of the files'


@dataclass
class EvaluatedRow:
    """An evaluation: steps and examples before it, seconds of training, and values by column."""

    step: int
    examples: int
    seconds: float
    values: dict[str, float]


class Measured:
    """A run with its evaluations in columns; raises WrongFile where it contradicts the table or itself. ``benchmark``
    is the table's entry, ``counting`` the same for this file's counter."""

    def __init__(self, run: MllogRun, wanted: Wanted) -> None:
        self.run, self.wanted, self.workers = run, wanted, wanted.workers
        self.notes: list[str] = []
        if run.attempts > 1:
            self.notes.append(f"has {run.attempts} lines run_start, as after a restart; only the last attempt that was "
                              "evaluated or ended counts")
        if run.given.get("submission_benchmark") == "minigo":
            raise WrongFile(f"{run.path}: minigo is not read: it learns from games that it plays, so that it has no "
                            "training set")
        self.batch = whole_number(run.given.get("global_batch_size"), 1, run.path, "global_batch_size")
        self.said_size = _size(run.given.get("train_samples"))
        self.epochs = [one.about["epoch_num"] for one in run.evaluations if _counter(one)[0] == "epoch_num"]
        sizes = (self.said_size, self.said_size * self.batch) if self.said_size else ()
        self.benchmark = found = find_benchmark(
            str(run.given.get("submission_benchmark") or "mlperf"), max(self.epochs, default=0), sizes,
            unit=wanted.unit, examples=wanted.train_examples)
        if found.largest_batch and self.batch >= found.largest_batch and not wanted.train_examples:
            raise WrongFile(f"{run.path}: global_batch_size {self.batch:,} of {found.name} counts tokens, and how many "
                            "an epoch has is not known: give --set-size N in tokens")
        self.counting = self._find_counting()
        self.rows = self._find_rows()
        if not self.rows and run.ended == "success":
            raise WrongFile(f"{run.path}: ended with success, but has no line {EVALUATED[0]}")
        self.columns = {name: np.array([row.values.get(name, math.nan) for row in self.rows])
                        for name in sorted({name for row in self.rows for name in row.values})}
        self.columns[CONVERGED] = self._find_converged()
        self._correct_seconds()

    @property
    def parameters(self) -> dict[str, float]:
        """Its metaparameters: what the table takes for settings."""
        keys = sorted(filter(self.benchmark.is_setting, self.run.given), key=lambda key: key not in PARAMETERS)
        found: dict[str, float] = {}
        for key in keys:
            if is_number(self.run.given[key]):
                found.setdefault(PARAMETERS.get(key) or parameter_name(key, self.run.path), float(self.run.given[key]))
        return found

    def _find_counting(self) -> Benchmark:
        size = self.benchmark.examples
        if not self.wanted.train_examples and (size is None or are_alike(self.said_size or 0, size)):
            size = self.said_size
        found, said = replace(self.benchmark, examples=size), self.said_size
        if self.epochs and found.unit == "epochs" and said and size and not (
                are_alike(said, size) or are_alike(said * self.batch, size)):
            self.notes.append(f"train_samples is {said:,}; assumed: a training set of {size:,} examples, as "
                              "elsewhere; --set-size N says otherwise")
        if not self.epochs or self.wanted.unit:
            return found
        last = max(self.epochs)
        if found.unit == "examples" and last < self.batch:
            return self._read_otherwise(found, last)
        if found.unit == "epochs" and found.most_epochs < last - found.first:
            raise WrongFile(f"{self.run.path}: epoch_num ends at {last:g}, and {found.name} takes at most "
                            f"{found.most_epochs + found.first:g} epochs; --unit says what it counts")
        if not found.known:
            self.notes.append(f"{found.name} is not in the table of benchmarks; assumed: epoch_num counts " + (
                f"epochs of {size:,} examples" if size else "examples"))
        if found.unit != "epochs":
            return found
        # with the number of its first epoch, where the file shows that it is not the table's
        if found.first == 0 and self.run.block == (0, self.epochs[0] + 1):
            self.notes.append("its first epoch has the number 0, so that it trained one epoch more than epoch_num")
            return replace(found, first=-1)
        if min(self.epochs) < found.first:
            self.notes.append(f"epoch_num begins at {min(self.epochs):g}; assumed: it counts from 0, unlike elsewhere")
            return replace(found, first=0)
        return found

    def _read_otherwise(self, found: Benchmark, last: float) -> Benchmark:
        """The counter of bert, which may stay at 1, for the one epoch that the run is, or count steps."""
        said = self.said_size or 0
        if last == 1 and said >= self.batch:
            self.notes.append("epoch_num stays at 1; assumed: the last evaluation came after train_samples examples. "
                              "The others are left out, as nothing says where they were")
            self.run.evaluations, self.run.reached = self.run.evaluations[-1:], {}
            return replace(found, unit="epochs", examples=said)
        if said / 4 <= last * self.batch <= 1.01 * said:
            self.notes.append(f"epoch_num ends at {last:g}, less than a batch; assumed: it counts steps")
            return replace(found, unit="steps")
        raise WrongFile(f"{self.run.path}: epoch_num ends at {last:g}, less than a batch of {self.batch:,}, though "
                        f"{found.name} counts examples; --unit says what it counts")

    def _find_rows(self) -> list[EvaluatedRow]:
        rows: dict[int, EvaluatedRow] = {}
        repeated = 0
        keys = {one.key for one in self.run.evaluations}
        for one in self.run.evaluations:
            name, value = _counter(one)
            examples = self._examples_at(one, name, value)
            values = {self._column(one.key, metric, keys): number for metric, number in one.values.items()}
            row, time = rows.get(examples), self.run.reached.get((name, value), one.time)
            before = row.values if row else {}
            if row and not all(np.isclose(number, row.values.get(metric, number), SAME, 0, equal_nan=True)
                               for metric, number in values.items()):
                repeated, row, time = repeated + 1, None, one.time
            seconds = row.seconds if row else self.run.train_seconds(time)
            step = one.about.get("step_num")
            if not isinstance(step, int) or not 0 <= step <= MOST:
                step = -(-examples // self.batch)
            rows[examples] = EvaluatedRow(step, examples, seconds, {**before, **values})
        if repeated:
            self.notes.append(f"{counted(repeated, 'evaluation')} at a place that had one before; the last counts")
        found = sorted(rows.values(), key=lambda row: (row.step, row.examples))
        if any(row.step == before.step for before, row in zip(found, found[1:])):
            raise WrongFile(f"{self.run.path}: two evaluations lie within one step of {self.batch} examples")
        if any(row.step > MOST or row.examples > LARGEST_INT for row in found):
            raise WrongFile(f"{self.run.path}: has more steps or examples than 64 bits can count")
        return found

    def _examples_at(self, one: Evaluation, name: str, value: float) -> int:
        if not name:
            raise WrongFile(f"{one.where}: {one.key} does not say how far the run was: its metadata need "
                            "samples_count, epoch_num or step_num")
        if value < 0:
            raise WrongFile(f"{one.where}: {name} is {value:g}, which is below 0")
        if name != "epoch_num":
            return round(value) if name == "samples_count" else round(value * self.batch)
        found = self.counting.examples_at(value, self.batch)
        if found is None:
            raise WrongFile(f"{one.where}: {one.key} counts epochs, and how many examples one has is not known: give "
                            "--set-size N")
        return max(round(found), 0)

    def _column(self, key: str, metric: str, keys: set[str]) -> str:
        """The column of a value: by the name that its line gives it, else by the table or the key."""
        if metric:
            return metric if METRIC.fullmatch(metric) else f"val/{re.sub(r'[^A-Za-z0-9_.+-]', '_', metric)}"
        return self.benchmark.metric if key == max(keys) else f"val/{key}"

    def _correct_seconds(self) -> None:
        """Take the seconds of run_stop for an evaluation that ended the run, and NaN for others after training."""
        met = self.columns[CONVERGED]
        if met.any() and self.run.stopped is not None:
            first = self.rows[int(met.argmax())]
            first.seconds = float(np.fmin(first.seconds, self.run.train_seconds(self.run.stopped)))
        least = math.inf
        for row in reversed(self.rows):
            row.seconds = row.seconds if row.seconds <= least else math.nan
            least = np.fmin(least, row.seconds)
        if any(math.isnan(row.seconds) for row in self.rows):
            self.notes.append("some evaluations ran once training was over; the seconds before them are not known")

    def _find_converged(self) -> np.ndarray:
        """1 at the evaluations that met the targets, if the run ended with success; else 0."""
        converged = np.zeros(len(self.rows))
        if self.run.ended != "success" or not self.rows:
            return converged
        goals = () if self.run.given.get("submission_division") == "open" else self.benchmark.goals
        met = [all(goal.met_by(row.values.get(goal.column, math.nan)) for goal in goals) for row in self.rows]
        if goals and any(met):
            return np.array(met, float)
        if goals:
            self.notes.append(f"ended with success, though no evaluation meets {' and '.join(self.benchmark.targets)}; "
                              "its last one counts")
        converged[-1] = 1.0
        return converged


def _counter(one: Evaluation) -> tuple[str, float]:
    """The counter of an evaluation and its value; ("", 0) where there is none."""
    return next(((name, one.about[name]) for name in COUNTERS if is_number(one.about.get(name))), ("", 0))


def _size(value: Any) -> int | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return int(value) if is_number(value) and value >= 1 else None


def as_whole(value: Any) -> int | None:
    """An integer from 0 on, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INT else None
