"""The run in a file of MLPerf's training logs, as its ``:::MLLOG {...}`` lines describe it.

    run = read_run("bert/result_0.txt")             None where no line has the key run_start

Where a file has several attempts at a run, because the job was restarted, the last that was evaluated or ended counts.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...system.inputs import open_input, refusal
from ..files import WrongFile, json_of

TOKEN, OLDER = ":::MLLOG ", ":::MLPv0."
EVALUATED = ("eval_accuracy", "eval_error")
COUNTERS = ("samples_count", "step_num", "epoch_num")
LONGEST = 1 << 20                   # characters of a line
TRAINING = ("block_start", "block_stop", "epoch_start", "epoch_stop")


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
                    raise WrongFile(f"{path}:{number}: is in the line format of rounds 0.5 and 0.6 ({OLDER}...), "
                                    f"which is older than {TOKEN}and is not read")
                if TOKEN not in text:
                    continue
                where, text = f"{path}:{number}", text.partition(TOKEN)[2].strip()
                found = json_of(text, where, dict)
                if not isinstance(found.get("key"), str) or not is_number(found.get("time_ms")):
                    raise WrongFile(f"{where}: a line has an object with key, a text, and time_ms, a number, not "
                                    f"{text[:40]!r}")
                found["metadata"] = found.get("metadata") if isinstance(found.get("metadata"), dict) else {}
                yield where, found
    except OSError as error:
        raise WrongFile(f"{path}: {refusal(error)}") from None


def is_number(value: Any) -> bool:
    """Whether it is a number, neither a flag nor beyond the integers that a float holds exactly."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53
