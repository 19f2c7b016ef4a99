"""Logs that are being written, followed in the terminal: what each running trial has done, and how much is left.

    follow(["runs"], every=5)

Logs are only ever read, a look at a time, so that the writer is not disturbed. What a look finds is as new as the
writer's last flush, about a second; over a network the server and the client decide when rows are seen.
"""
from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

import numpy as np

from ..analysis.trials import is_pruning
from ..errors import LogError
from ..formatting import screen
from ..formatting.numbers import counted, duration, number
from ..log import segments
from ..log.plan_text import read_plan
from ..log.reader import Log, Table, read_log
from ..log.schema import Status
from ..system import lock
from ..target import Target
from .defaults import WATCH_SECONDS
from .file_names import Path

GRACE = 3               # looks at which nothing ran, after something had, until it is over: another run may follow
WINDOW_SECONDS = 60.0   # over which steps a second are taken
RECENT = 4096           # rows at the end of a table that are looked at
MOST_METRICS = 2        # beside the target's
MOST_ENDED = 5          # trials of a log that ended otherwise than COMPLETE, up to which the first look names them
Clock = Callable[[], float]
Columns = Mapping[str, np.ndarray]        # the newest rows of a trial, by column
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "davfs", "fuse.sshfs", "fuse.s3fs")


@dataclass(frozen=True)
class Running:
    """A RUNNING trial as its log shows it. ``rate`` is in steps a second, as logged; NaN: not known yet."""

    id: int
    what: str                       # dataset/model, workers and global batch
    step: int
    budget_steps: int               # 0: the budget is in seconds
    seconds: float                  # trained, at the newest evaluation
    budget_seconds: float           # NaN: the budget is in steps
    rate: float
    measured: str                   # the newest evaluation's metrics
    target: str                     # that ends it; empty: its budget does


@dataclass(frozen=True)
class Look:
    """What one look at a log found."""

    counts: Counter[str] = field(default_factory=Counter)        # trials by status; pruned ones apart
    running: tuple[Running, ...] = ()
    ended: dict[int, str] = field(default_factory=dict)     # how each other trial ended, in words
    problem: str = ""                                       # why the log cannot be read now
    missing: bool = False                                   # it is not there yet
    writer: str = ""                                        # the living process that writes it

    @property
    def over(self) -> bool:
        """Whether nothing more is to come, as far as can be seen."""
        return not self.writer and not self.running and not self.missing and (bool(self.counts) or bool(self.problem))


def follow(paths: Iterable[Path], every: float = WATCH_SECONDS, out: TextIO | None = None,
           clock: Clock = time.monotonic, sleep: Callable[[float], None] = time.sleep,
           terminal: bool | None = None) -> None:
    """Show the logs among files and directories, and those that will come there, until all their trials have ended.

    every       seconds between looks
    terminal    redraw in place; else append a line for what has changed. None: as ``out`` is
    """
    out = out or sys.stdout
    shown = Screen(out, out.isatty() if terminal is None else terminal)
    watch = Watch(paths, clock)
    for note in watch.notes():
        shown.say(note)
    shown.show(*watch.look())
    quiet = GRACE if watch.over else 0                  # all had ended before: there is nothing to wait for
    while quiet < GRACE:
        sleep(every)
        news, lines = watch.look()
        shown.show(news, lines)
        quiet = 0 if not watch.over else 1 if news else quiet + 1
    shown.end(watch.summary())
    if watch.broken:
        raise LogError(f"{counted(len(watch.broken), 'log')} could not be read: {', '.join(watch.broken)}")


class Watch:
    """The logs that are followed, and what was seen of them before."""

    def __init__(self, paths: Iterable[Path], clock: Clock = time.monotonic) -> None:
        self._paths, self._clock = [os.fspath(path) for path in paths], clock
        self._looks: dict[str, Look] = {}
        self._signatures: dict[str, tuple[object, ...]] = {}
        # (time, step) of each running trial, the newest last
        self._steps: dict[tuple[str, int], deque[tuple[float, int]]] = {}
        self._first = True

    def notes(self) -> list[str]:
        """What is to be known of these paths before."""
        kinds = sorted({kind for path in self._paths for kind in [file_system(path)] if kind in NETWORK})
        return [f"note: on {', '.join(kinds)} what is shown may be old or, for a moment, unreadable; the writer is not "
                "disturbed, and the log itself is whole. A local or a parallel file system shows it at once."] * bool(
                    kinds)

    def look(self) -> tuple[list[str], list[str]]:
        """(lines of what has ended or gone wrong since the last look, lines on the present state)."""
        before, self._looks = self._looks, {}
        for path in self._found():
            self._looks[path] = self._look_at(path, before.get(path))
        news = [line for path, look in self._looks.items() for line in self._news(path, look, before.get(path))]
        news += [f"{path}: is gone" for path in before if path not in self._looks]
        self._first = False
        return news, [line for path, look in self._looks.items() for line in self._lines(path, look)] or [
            f"no log (*.h5) in {', '.join(self._paths)} yet; waiting for one"]

    @property
    def over(self) -> bool:
        """Whether there are logs, and none of them has a trial that runs or a process that writes it."""
        return bool(self._looks) and all(look.over for look in self._looks.values())

    @property
    def broken(self) -> list[str]:
        """The logs that could not be read at the last look."""
        return [path for path, look in self._looks.items() if look.problem]

    def summary(self) -> str:
        """All trials by how they ended."""
        total = sum((look.counts for look in self._looks.values()), Counter())
        ends = f": {_counts(total)}" if total else ""
        return f"{counted(len(self._looks), 'log')}, {counted(sum(total.values()), 'trial')}{ends}"

    def _found(self) -> list[str]:
        names = []
        for path in self._paths:
            names += sorted(glob.glob(os.path.join(glob.escape(path), "**", "*.h5"), recursive=True)) if os.path.isdir(
                path) else [path]
        return list(dict.fromkeys(map(segments.first_of, names)))

    def _look_at(self, path: str, before: Look | None) -> Look:
        """The look at one log; the one before where the files are still the same."""
        signature = _signature(path)
        if before and not before.running and not before.problem and signature == self._signatures.get(path):
            return replace(before, writer=_writer(path))
        self._signatures[path] = signature
        return look_at(path)

    def _news(self, path: str, look: Look, before: Look | None) -> Iterator[str]:
        if look.problem and not look.missing and (before is None or before.problem != look.problem):
            yield look.problem
        ended = {trial: said for trial, said in look.ended.items() if before is None or trial not in before.ended}
        if self._first:                 # long ago: only what is not as it should be, and not of many
            ended = {trial: said for trial, said in ended.items() if not said.startswith(Status.COMPLETE.name)}
            ended = ended if len(ended) <= MOST_ENDED else {}
        for trial, said in ended.items():
            yield f"{path}: trial {trial} {said}"

    def _lines(self, path: str, look: Look) -> list[str]:
        if look.problem:
            return [look.problem if look.missing else f"{path}: cannot be read now"]
        idle = "" if look.writer or not look.running else "; no process that can be seen from here writes it"
        lines = [f"{path}: {_counts(look.counts) or 'no trial yet'}{idle}"]
        return lines + [f"  {self._line(path, trial)}" for trial in look.running]

    def _line(self, path: str, trial: Running) -> str:
        rate = self._rate(path, trial)
        done = f"step {trial.step:,}" + (f"/{trial.budget_steps:,}" if trial.budget_steps else "")
        speed = f"{number(rate)} steps/s" if rate > 0 else ""
        left = _left(trial, rate)
        goal = f"until {trial.target}" if trial.target else ""
        return "  ".join(filter(None, (f"trial {trial.id}", done, trial.measured, speed, left, goal, trial.what)))

    def _rate(self, path: str, trial: Running) -> float:
        """Steps a second by the clock, evaluations included; as logged until the clock has seen some."""
        seen = self._steps.setdefault((path, trial.id), deque())
        now = self._clock()
        if seen and trial.step < seen[-1][1]:           # restarted, or resumed from a checkpoint
            seen.clear()
        if not seen or trial.step > seen[-1][1]:
            seen.append((now, trial.step))
        while len(seen) > 2 and now - seen[0][0] > WINDOW_SECONDS:
            seen.popleft()
        if len(seen) < 2:
            return trial.rate
        (then, first), (last, newest) = seen[0], seen[-1]
        return (newest - first) / max(last - then, 1e-9)


class Screen:
    """Where it is shown: a block that is redrawn, under lines that stay; without a terminal only lines."""

    def __init__(self, out: TextIO, terminal: bool) -> None:
        self._screen = screen.Screen(out, terminal, every=(0, 0))
        self._told: set[str] = set()
        self.say = self._screen.say                     # a line that stays

    def show(self, news: Sequence[str], lines: list[str]) -> None:
        """What a look found: lines that stay, and the present state."""
        self._screen.erase()
        for line in news:
            self.say(line)
        if self._screen.terminal:
            columns, rows = shutil.get_terminal_size()
            lines = [row for line in lines for row in _folded(line, columns - 1)]       # one letter more would wrap
            hidden = len(lines) - (rows - 2)
            if hidden > 0:
                lines = [*lines[:rows - 3], f"... and {hidden + 1:,} more lines"]
        else:
            lines, self._told = [line for line in lines if line not in self._told], set(lines)
        if lines:
            self._screen.block(lines, now=0)

    def end(self, summary: str) -> None:
        """The last line."""
        self._screen.keep()
        self.say(summary)


def _folded(line: str, width: int) -> list[str]:
    """A line as rows of no more than ``width`` letters, broken where its parts are two spaces apart."""
    rows: list[str] = []
    for part in re.split(r"(?<=\S)  (?=\S)", line):
        if rows and len(rows[-1]) + 2 + len(part) <= width:
            rows[-1] += f"  {part}"
        else:
            rows.append(f"    {part}" if rows else part)
    return [row[:width] for row in rows]


def look_at(path: str) -> Look:
    """One look at a log, whatever state it is in."""
    writer = _writer(path)
    try:
        with read_log(path) as log:
            status, ids = log.trials["status"], log.trials["id"]
            running = tuple(_running(log, int(row)) for row in np.flatnonzero(status == Status.RUNNING))
            reasons = log.trials["stop_reason"]
            ended = {int(ids[row]): f"{Status(status[row]).name}{': ' * bool(reasons[row])}{reasons[row]}"
                     for row in np.flatnonzero(status != Status.RUNNING)}
            counts = Counter("pruned" if one == Status.INCOMPLETE and is_pruning(reason) else Status(one).name
                             for one, reason in zip(status, reasons))
            return Look(counts, running, ended, writer=writer)
    except LogError as error:
        missing = not os.path.exists(path)
        problem = f"{path}: is not there yet; waiting for it" if missing else str(error)
        return Look(problem=problem, missing=missing, writer=writer)


def file_system(path: str) -> str:
    """The type of the file system that a path lies on, such as ext4 or nfs4; "" where it is unknown."""
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    found = [(point, kind) for point, kind in mounts if real == point or real.startswith(point.rstrip("/") + "/")]
    return max(found, key=lambda one: len(one[0]), default=("", ""))[1]


def _running(log: Log, row: int) -> Running:
    trials = log.trials
    number_, batch, workers, budget = (int(trials[name][row]) for name in ("id", "global_batch", "workers",
                                                                           "budget_steps"))
    plan = read_plan(trials["plan"][row])
    measurement = plan.get("measurement") or {}
    metrics = [name for name in log.evaluations.columns if "/" in name]
    evaluations = _rows_of(log.evaluations, number_, ("step", "train_seconds", *metrics))
    steps = _rows_of(log.steps, number_, ("step", "step_seconds"))
    first = log.restarts["first_step"][log.restarts["trial"] == number_]
    last = [int(values["step"][-1]) for values in (evaluations, steps) if len(values["step"])]
    where = "" if not plan.get("sweep") else f" {plan['sweep'].get('study', '')} draw {plan['sweep'].get('draw', '')}"
    return Running(number_, f"{trials['dataset'][row]}/{trials['model'][row]}{where} W={workers} B={batch:,}",
                   max([*last, *first.tolist()[-1:]], default=0), budget,
                   float(evaluations["train_seconds"][-1]) if len(evaluations["step"]) else 0.0,
                   float(measurement.get("budget_seconds") or np.nan), _logged_rate(evaluations, steps),
                   _measured(evaluations, measurement.get("target")),
                   "" if measurement.get("keep_going") else str(measurement.get("target") or ""))


def _rows_of(table: Table, trial: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    ends = max(0, table.rows - RECENT), table.rows
    mine = table.read_rows("trial", *ends) == trial
    return {name: table.read_rows(name, *ends)[mine] for name in names if name in table.columns}


def _logged_rate(evaluations: Columns, steps: Columns) -> float:
    """Steps a second while training, by the newest steps, else by the newest evaluation; NaN: neither is known."""
    recent = steps.get("step_seconds", np.empty(0))[-50:]
    if len(recent) and np.nansum(recent) > 0:
        return float(len(recent) / np.nansum(recent))
    if len(evaluations["step"]) and evaluations["train_seconds"][-1] > 0:
        return float(evaluations["step"][-1] / evaluations["train_seconds"][-1])
    return np.nan


def _measured(evaluations: Columns, target: str | None) -> str:
    """``val/error 0.021, val/cross_entropy 0.08 at 300``: the target's metric first."""
    if not len(evaluations["step"]):
        return ""
    known = [name for name, values in evaluations.items() if "/" in name and values[-1] == values[-1]]
    first = [Target.parse(target).column] if target else []
    rest = sorted((name for name in known if name not in first),
                  key=lambda name: (("val", "test", "train").index(name.split("/")[0]), name))
    first = [name for name in first if name in evaluations]
    shown = [*first, *rest][:max(len(first), MOST_METRICS)]
    values = ", ".join(f"{name} {number(float(evaluations[name][-1]))}" for name in shown)
    return f"{values} at {int(evaluations['step'][-1]):,}" if values else ""


def _left(trial: Running, rate: float) -> str:
    """What is left of the budget, which a target may cut short."""
    if trial.budget_steps and rate > 0:
        left = (trial.budget_steps - trial.step) / rate
    elif trial.budget_seconds == trial.budget_seconds:
        left = trial.budget_seconds - trial.seconds
    else:
        return ""
    return f"{'at most ' if trial.target else ''}{duration(max(0.0, left), rough=True)} left"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _writer(path: str) -> str:
    """The living process that writes a log, in words; "" where none can be seen."""
    owner = lock.holder(path)
    return lock.describe(owner) if owner is not None else ""


def _signature(path: str) -> tuple[object, ...]:
    """What changes when a log's files do."""
    names = [path, *(name for _, name in segments.candidates(path))]
    found: list[tuple[object, ...]] = []
    for name in names:
        try:
            state = os.stat(name)
            found.append((name, state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:
            found.append((name,))
    return tuple(found)
