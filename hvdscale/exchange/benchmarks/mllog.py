"""Import of MLPerf training logs: files with ``:::MLLOG {...}`` lines, as mlcommons/logging writes them; see the guide.

    import_mllog("results/h100/bert", "bert.h5")        result_*.txt there, or one file: a trial each

How far a run was is said by ``samples_count``, else ``step_num``, else ``epoch_num``. As for reference points,
``val/converged`` is 1 where a run that ended with success met the benchmark's targets (at its last evaluation in the
open division, or where none meets them), and else 0. Where a file has several attempts at a run, because the job was
restarted, the last that was evaluated or ended counts.

    run = read_run("bert/result_0.txt")     as its lines describe it; None where no line has the key run_start
    measured = Measured(run, Wanted(workers=8))        its evaluations by steps and examples, in columns
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import LogError
from ...formatting.numbers import list_first
from ...log.plan_text import MOST, is_whole
from ...log.schema import UNKNOWN_SEED, Status
from ...system.inputs import open_input, refusal
from ..files import LARGEST_INT, METRIC, WrongFile, json_of, parameter_name, whole_number
from ..imported import ImportedLog, Seen, imported_log
from .mlperf_rcp import TARGET
from .table import RENAMED, Benchmark, are_alike, find_benchmark, optimizer_of, say

TOKEN, OLDER = ":::MLLOG ", ":::MLPv0."
EVALUATED = ("eval_accuracy", "eval_error")
COUNTERS = ("samples_count", "step_num", "epoch_num")
LONGEST = 1 << 20                   # characters of a line
TRAINING = ("block_start", "block_stop", "epoch_start", "epoch_stop")
CONVERGED = "val/converged"
PARAMETERS = {**RENAMED, "opt_learning_rate_decay_steps": "decay_steps"}
RESULT = re.compile(r"result_\d+\.txt")


@dataclass(frozen=True)
class Evaluation:
    where: str                      # for messages
    key: str
    values: Mapping[str, float]     # by the name of the metric; "": the key's own
    about: Mapping[str, Any]        # its metadata
    time: float                     # milliseconds, as all times here


@dataclass
class MllogRun:
    """One attempt at a run."""

    path: str
    started: float
    given: dict[str, Any]           # the value of each key, of several lines the first
    attempts: int                   # that the file has, up to this one
    later: dict[str, Any] = field(default_factory=dict)                     # of keys after run_start
    evaluations: list[Evaluation] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)         # for evaluations, up to training again
    reached: dict[tuple[str, float], float] = field(default_factory=dict)   # time at a counter's value, by both
    block: tuple[float, float] | None = None        # first epoch of the first block of training, and its epochs
    pause: float | None = None
    trained: bool = False           # whether it got past run_start
    stopped: float | None = None
    ended: str | None = None        # the status of run_stop

    def train_seconds(self, time: float) -> float:
        """Since run_start, without pauses; NaN after run_stop, as nothing was trained then."""
        if self.stopped is not None and time > self.stopped + 1000:
            return math.nan
        paused = sum(max(min(end, time) - max(start, self.started), 0) for start, end in self.pauses)
        return (time - self.started - paused) / 1000


def read_run(path: str) -> MllogRun | None:
    """The run of a file, None where it has none; raises WrongFile for lines that contradict the format."""
    attempts: list[MllogRun] = []
    before: dict[str, Any] = {}
    for where, line in _lines(path):
        key, time = line["key"], line["time_ms"]
        if key == "run_start" and (not attempts or attempts[-1].trained):
            before = {**before, **(attempts[-1].later if attempts else {})}
            attempts.append(MllogRun(path, time, before, len(attempts) + 1))
        elif attempts:
            _take(attempts[-1], where, line)
        elif key != "run_start":
            before.setdefault(key, line.get("value"))
    if not attempts:
        return None
    run = next((one for one in reversed(attempts) if one.evaluations or one.ended is not None), attempts[-1])
    run.given = {**run.later, **run.given}
    return run


def _take(run: MllogRun, where: str, line: Mapping[str, Any]) -> None:
    key, value, about, time = line["key"], line.get("value"), line["metadata"], line["time_ms"]
    if key in (*EVALUATED, "eval_start", "epoch_stop", "block_start"):
        for name in COUNTERS:
            if is_number(about.get(name)):
                run.reached[name, about[name]] = min(time, run.reached.get((name, about[name]), math.inf))
    run.trained = run.trained or key in (*EVALUATED, *TRAINING, "eval_start", "run_stop")
    if key in ("eval_start", "eval_stop", *TRAINING) and run.pause is not None:
        if key not in ("block_stop", "epoch_stop"):     # at these, training went on beside the evaluation
            run.pauses.append((run.pause, time))
        run.pause = None
    if key == "eval_start":
        run.pause = time
    elif key == "block_start":
        block = about.get("first_epoch_num"), about.get("epoch_count")
        run.block = run.block or (block if all(map(is_number, block)) else None)
    elif key == "run_stop":
        run.stopped, run.ended = time, str(about.get("status", ""))
    elif key in EVALUATED:
        run.evaluations.append(Evaluation(where, key, _values(where, key, value, about), about, time))
    else:
        run.later.setdefault(key, value)


def _values(where: str, key: str, value: Any, about: Mapping[str, Any]) -> dict[str, float]:
    given = value if isinstance(value, dict) else {str(about.get("metric") or ""): value}
    wrong = [one for one in given.values() if one is not None and not isinstance(one, (int, float))]
    if wrong or not given:
        raise WrongFile(f"{where}: {key} is {str((wrong or [value])[0])[:40]!r}, not a number")
    return {name: math.nan if one is None else float(one) for name, one in given.items()}


def _lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line for messages, the object) of each line, whatever precedes it."""
    try:
        with open_input(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
                text = str(line, "utf-8", "replace")
                if OLDER in text:
                    raise WrongFile(say("older", path=path, line=str(number)))
                if TOKEN not in text:
                    continue
                where, text = f"{path}:{number}", text.partition(TOKEN)[2].strip()
                found = json_of(text, where, dict)
                if not isinstance(found.get("key"), str) or not is_number(found.get("time_ms")):
                    raise WrongFile(say("no_line", where=where, text=repr(text[:40])))
                found["metadata"] = found.get("metadata") if isinstance(found.get("metadata"), dict) else {}
                yield where, found
    except OSError as error:
        raise WrongFile(f"{path}: {refusal(error)}") from None


def is_number(value: Any) -> bool:
    """Whether it is a number, neither a flag nor beyond the integers that a float holds exactly."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53


@dataclass(frozen=True)
class Wanted:
    """What a user says of the runs."""

    workers: int | None = None
    per_node: int | None = None                     # of the workers
    unit: str | None = None                         # of epoch_num
    train_examples: int | None = None               # in an epoch
    names: Mapping[str, str] = field(default_factory=dict)          # dataset, model, optimizer instead of the files'


class Measured:
    """A run with its evaluations in columns; raises WrongFile where it contradicts the table or itself. ``benchmark``
    is the table's entry, ``counting`` the same for this file's counter; ``steps``, ``examples`` and ``seconds`` of
    training are those before each evaluation."""

    def __init__(self, run: MllogRun, wanted: Wanted) -> None:
        self.run, self.wanted = run, wanted
        self.notes = [say("attempts", attempts=run.attempts)] if run.attempts > 1 else []
        if run.given.get("submission_benchmark") == "minigo":
            raise WrongFile(say("minigo", path=run.path))
        self.batch = whole_number(run.given.get("global_batch_size"), 1, run.path, "global_batch_size")
        self.said_size = _size(run.given.get("train_samples"))
        self.epochs = [one.about["epoch_num"] for one in run.evaluations if _counter(one)[0] == "epoch_num"]
        sizes = (self.said_size, self.said_size * self.batch) if self.said_size else ()
        self.benchmark = found = find_benchmark(
            str(run.given.get("submission_benchmark") or "mlperf"), max(self.epochs, default=0), sizes,
            unit=wanted.unit, examples=wanted.train_examples)
        if found.largest_batch and self.batch >= found.largest_batch and not wanted.train_examples:
            raise WrongFile(say("batch_of_tokens", path=run.path, batch=self.batch, benchmark=found.name))
        self.counting = self._find_counting()
        rows = self._find_rows()
        if not rows and run.ended == "success":
            raise WrongFile(f"{run.path}: ended with success, but has no line {EVALUATED[0]}")
        self.steps, self.examples = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        self.columns = {name: np.array([values.get(name, math.nan) for *_, values in rows])
                        for name in sorted({name for *_, values in rows for name in values})}
        self.columns[CONVERGED] = converged = self._find_converged()
        self.seconds = seconds = np.array([row[2] for row in rows], float)
        if converged.any() and run.stopped is not None:         # an evaluation that ended the run
            first = int(converged.argmax())
            seconds[first] = np.fmin(seconds[first], run.train_seconds(run.stopped))
        later = np.fmin.accumulate(np.append(seconds, math.inf)[:0:-1])[::-1]
        seconds[seconds > later] = math.nan
        if np.isnan(seconds).any():
            self.notes.append(say("late"))

    def _find_counting(self) -> Benchmark:
        size = self.benchmark.examples
        if not self.wanted.train_examples and (size is None or are_alike(self.said_size or 0, size)):
            size = self.said_size
        found, said = replace(self.benchmark, examples=size), self.said_size
        if self.epochs and found.unit == "epochs" and said and size and not (
                are_alike(said, size) or are_alike(said * self.batch, size)):
            self.notes.append(say("other_size", said=said, size=size))
        if not self.epochs or self.wanted.unit:
            return found
        last = max(self.epochs)
        if found.unit == "examples" and last < self.batch:
            return self._read_otherwise(found, last)
        if found.unit == "epochs" and found.most_epochs < last - found.first:
            raise WrongFile(say("too_many_epochs", path=self.run.path, last=last, benchmark=found.name,
                                most=found.most_epochs + found.first))
        if not found.known:
            self.notes.append(say("unknown", benchmark=found.name, size=size))
        if found.unit != "epochs":
            return found
        # with the number of its first epoch, where the file shows that it is not the table's
        if found.first == 0 and self.run.block == (0, self.epochs[0] + 1):
            self.notes.append(say("from_0"))
            return replace(found, first=-1)
        if min(self.epochs) < found.first:
            self.notes.append(say("begins", first=min(self.epochs)))
            return replace(found, first=0)
        return found

    def _read_otherwise(self, found: Benchmark, last: float) -> Benchmark:
        """The counter of bert, which may stay at 1, for the one epoch that the run is, or count steps."""
        said = self.said_size or 0
        if last == 1 and said >= self.batch:
            self.notes.append(say("stays_at_1"))
            self.run.evaluations, self.run.reached = self.run.evaluations[-1:], {}
            return replace(found, unit="epochs", examples=said)
        if said / 4 <= last * self.batch <= 1.01 * said:
            self.notes.append(say("counts_steps", last=last))
            return replace(found, unit="steps")
        raise WrongFile(say("less_than_a_batch", path=self.run.path, last=last, batch=self.batch, benchmark=found.name))

    def _find_rows(self) -> list[tuple[int, int, float, dict[str, float]]]:
        """(steps, examples, seconds, values by column) of the evaluations, in order."""
        rows: dict[int, tuple[int, int, float, dict[str, float]]] = {}
        repeated = 0
        keys = {evaluation.key for evaluation in self.run.evaluations}
        for one in self.run.evaluations:
            name, value = _counter(one)
            examples = self._examples_at(one, name, value)
            values = {self._column(one.key, metric, keys): number for metric, number in one.values.items()}
            *_, seconds, before = rows.get(examples, (math.nan, {}))
            again = any(not np.isclose(number, before.get(metric, number), 1e-4, 0, equal_nan=True)
                        for metric, number in values.items())
            if again or examples not in rows:
                seconds = self.run.train_seconds(one.time if again else self.run.reached.get((name, value), one.time))
            repeated += again
            step = one.about.get("step_num")
            if not isinstance(step, int) or not 0 <= step <= MOST:
                step = -(-examples // self.batch)
            rows[examples] = step, examples, seconds, {**before, **values}
        if repeated:
            self.notes.append(say("repeated", repeated=int(repeated)))
        found = sorted(rows.values(), key=lambda row: row[:2])
        steps = [step for step, *_ in found]
        if len({*steps}) < len(steps):
            raise WrongFile(f"{self.run.path}: two evaluations lie within one step of {self.batch} examples")
        if max(steps, default=0) > MOST or max(rows, default=0) > LARGEST_INT:
            raise WrongFile(f"{self.run.path}: has more steps or examples than 64 bits can count")
        return found

    def _examples_at(self, one: Evaluation, name: str, value: float) -> int:
        if not name:
            raise WrongFile(say("no_counter", where=one.where, key=one.key))
        if value < 0:
            raise WrongFile(f"{one.where}: {name} is {value:g}, which is below 0")
        if name != "epoch_num":
            return round(value) if name == "samples_count" else round(value * self.batch)
        found = self.counting.examples_at(value, self.batch)
        if found is None:
            raise WrongFile(say("no_size", where=one.where, key=one.key))
        return max(round(found), 0)

    def _column(self, key: str, metric: str, keys: set[str]) -> str:
        """The column of a value: by the name that its line gives it, else by the table or the key."""
        if metric:
            return metric if METRIC.fullmatch(metric) else f"val/{re.sub(r'[^A-Za-z0-9_.+-]', '_', metric)}"
        return self.benchmark.metric if key == max(keys) else f"val/{key}"

    def _find_converged(self) -> np.ndarray:
        """1 at the evaluations that met the targets, if the run ended with success; else 0."""
        converged, goals = np.zeros(len(self.steps)), self.benchmark.goals
        if self.run.ended != "success":
            return converged
        if self.run.given.get("submission_division") != "open" and goals:
            measured = [self.columns.get(goal.column, converged * math.nan) for goal in goals]
            met = np.all([goal.met_by(values) for goal, values in zip(goals, measured)], axis=0)
            if met.any():
                return met.astype(float)
            self.notes.append(say("unmet", targets=self.benchmark.targets))
        converged[-1:] = 1.0
        return converged


def _counter(one: Evaluation) -> tuple[str, float]:
    """The counter of an evaluation and its value; ("", 0) where there is none."""
    return next(((name, one.about[name]) for name in COUNTERS if is_number(one.about.get(name))), ("", 0))


def _size(value: Any) -> int | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return int(value) if is_number(value) and value >= 1 else None


def is_mllog(path: str) -> bool:
    """Whether a file has such lines near its start, or a folder has files named like results."""
    if os.path.isdir(path):
        return any(RESULT.fullmatch(name) for _, _, names in os.walk(path) for name in names)
    with open_input(path) as file:
        head = file.read(LONGEST)
        return any(token.encode() in head for token in (TOKEN, OLDER))


def import_mllog(source, out, wanted: Wanted = Wanted(), *, skip_broken: bool = False, **how: bool) -> Seen:
    """Import each run into the new log ``out``; LogError for a wrong file, unless it is skipped, and without a run."""
    source, seen = os.fspath(source), Seen()
    notes: dict[str, list[str]] = {}
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
    paths.sort(key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])
    with imported_log(out, {"kind": "mllog", "from": source}, **how) as log:
        for path in paths if os.path.isdir(source) else [source]:
            try:
                if run := read_run(path):
                    _add(log, measured := Measured(run, wanted))
                    seen.trials += 1
                    for note in measured.notes:
                        notes.setdefault(note, []).append(path)
            except WrongFile as error:
                if not skip_broken:
                    raise WrongFile(f"{error}; --skip-broken leaves the file out") from None
                seen.wrong.append(str(error))
        if not seen.trials:
            raise LogError(f"{source}: no run of MLPerf: " + (
                "\n".join(["each file with one is wrong, such as", *seen.wrong[:3]]) if seen.wrong else
                f"no file there has {TOKEN}lines with the key run_start"))
    seen.notes = [f"{list_first(paths, 1)}: {note}" for note, paths in notes.items()]
    return seen


def _add(log: ImportedLog, measured: Measured) -> None:
    run, wanted, benchmark, workers = measured.run, measured.wanted, measured.benchmark, measured.wanted.workers
    status, reason = Status.COMPLETE, "the target of the benchmark was met"
    if run.ended != "success":
        status = Status.INCOMPLETE
        reason = "no run_stop" if run.ended is None else f"run_stop: {run.ended or 'no status'}"
    counts = {name: value for name, value in run.given.items() if is_whole(value, 0)}
    budget = counts.get("max_steps") or int(measured.steps.max(initial=0))
    plan = {"problem": {"train_examples": benchmark.examples} if benchmark.examples else {},
            "measurement": {"budget_steps": budget, "target": TARGET},
            **({"execution": {"local_workers": wanted.per_node}} if wanted.per_node else {}),
            "mllog": {key: value for key, value in run.given.items() if value is None or isinstance(value, (int, str))
                      or isinstance(value, float) and math.isfinite(value)}}
    parameters: dict[str, float] = {}           # what the table takes for settings
    for key in sorted(filter(benchmark.is_setting, run.given), key=lambda key: key not in PARAMETERS):
        if is_number(run.given[key]):
            parameters.setdefault(PARAMETERS.get(key) or parameter_name(key, run.path), float(run.given[key]))
    log.better |= benchmark.better
    ids = log.trials([parameters], {
        "status": status, "stop_reason": reason, "dataset": benchmark.name, "model": "reference",
        "optimizer": optimizer_of(run.given, benchmark), "seed": counts.get("seed", UNKNOWN_SEED),
        "global_batch": measured.batch, "accumulation": counts.get("gradient_accumulation_steps") or 1,
        "workers": workers or 1, "budget_steps": budget, "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": run.path, "imported": "mllog"}), **wanted.names},
        run.started / 1000 if workers and run.started else math.nan)
    log.evaluations(ids, [len(measured.steps)], measured.steps, measured.examples, measured.columns,
                    measured.seconds if workers else math.nan)
