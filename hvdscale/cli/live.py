"""hvdscale-log ls --watch: the rows of running trials, drawn again while their logs are written.

    follow(["runs"], every=5)

Logs are only ever read, a look at a time, so that the writer is not disturbed. What a look finds is as new as the
writer's last flush, about a second; over a network the server and the client decide when rows are seen.
"""
from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from ..analysis.trials import is_pruning
from ..errors import LogError
from ..formatting.lines import terminal_width
from ..formatting.numbers import counted, duration, number
from ..formatting.screen import Screen
from ..formatting.text_table import GrowingTable
from ..log.reader import Log, read_log
from ..log.schema import Status
from ..log.segments import candidates, find_logs
from ..system import lock
from .listing import HEADINGS, draw_of, line_of, plan_of, state_of, steps_done, target_of

WATCH_SECONDS = 5.0     # between looks
GRACE = 3               # looks at which nothing ran, after something had, until it is over: another run may follow
LIVE_HEADINGS = (*HEADINGS[:10], "target", "steps/s", "left", "study")
TIMED = LIVE_HEADINGS.index("steps/s")          # from here on a row changes with the time
Row = tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """What one look at a log found.

    files    what changes when its files do
    rows     of its RUNNING trials, under LIVE_HEADINGS
    ended    how each other trial did, such as "COMPLETE: target met"
    problem  why the log cannot be read now, or ""
    """

    files: object
    rows: Sequence[Row] = ()
    ended: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""


def follow(paths: Sequence[str], every: float = WATCH_SECONDS, out: TextIO | None = None,
           clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the running trials of the logs among files and folders, and of those that will come there, until all ended.

    every   seconds between looks; on a terminal each draws the rows again, elsewhere only those that have changed
    clock   seconds since 1970
    Raises LogError at the end if a log could not be read.
    """
    out = out or sys.stdout
    screen = Screen(out, out.isatty(), every=(0, 0))
    changed = GrowingTable(LIVE_HEADINGS, screen.say, width=terminal_width())
    looks: dict[str, Look] = {}
    told: set[object] = set()
    quiet = GRACE - 1                       # where all had ended before there is nothing to wait for
    while True:
        before, looks = looks, {path: _look(path, looks.get(path), clock()) for path in find_logs(paths, below=True)}
        news, rows = _news(before, looks), [row for look in looks.values() for row in look.rows]
        summary = _summary(looks.values()) if looks else f"no log (*.h5) in {', '.join(paths)} yet; waiting for one"
        for line in news:
            screen.say(line)
        if screen.terminal:
            screen.block([*_fitting(rows), summary], now=0)
        else:
            changed.add(row for row in rows if row[:TIMED] not in told)
            changed.flush()
            if summary not in told:
                screen.say(summary)
            told = {*(row[:TIMED] for row in rows), summary}
        quiet = quiet + 1 if _are_over(looks) and not news else int(_are_over(looks))
        if quiet >= GRACE:
            break
        sleep(every)
    broken = [path for path, look in looks.items() if look.problem]
    if broken:
        raise LogError(f"{counted(len(broken), 'log')} could not be read: {', '.join(broken)}")


def _look(path: str, before: Look | None, now: float) -> Look:
    """The look at a log in whatever state it is; the one before where its files are the same, and nothing runs."""
    files = None
    with contextlib.suppress(OSError):
        states = ((name, os.stat(name)) for name in (path, *(name for _, name in candidates(path))))
        files = [(name, state.st_mtime_ns, state.st_size, state.st_ino) for name, state in states]
    if before and files == before.files and not before.rows:
        return before
    try:
        with read_log(path) as log:
            running = log.trials["status"] == Status.RUNNING
            return Look(files, [_row(log, row, now) for row in np.flatnonzero(running)],
                        {int(log.trials["id"][row]): _ending(log, row) for row in np.flatnonzero(~running)})
    except LogError as error:
        return Look(files, problem=str(error) if os.path.exists(path) else f"{path}: is not there yet; waiting for it")


def _ending(log: Log, row: int) -> str:
    status, reason = log.trials["status"][row], log.trials["stop_reason"][row]
    name = "pruned" if status == Status.INCOMPLETE and is_pruning(reason) else state_of(log, row)
    return f"{name}: {reason}" if reason else name


def _row(log: Log, row: int, now: float) -> Row:
    trials, target, measurement = log.trials, target_of(log, row), plan_of(log, row).get("measurement") or {}
    trial, budget, seconds = int(trials["id"][row]), int(trials["budget_steps"][row]), measurement.get("budget_seconds")
    first, started = (log.restarts.of_trial(name, trial)[-1:] for name in ("first_step", "time"))
    step = max(steps_done(log, row), *first.tolist(), 0)
    alive = log.writer() is not None and len(first) and step > first[0] and now > started[0]
    rate = (step - first[0]) / (now - started[0]) if alive else np.nan          # by the clock, evaluations included
    if not budget and seconds:
        left = seconds - log.evaluations.of_trial("train_seconds", trial)[-1:].sum()
    else:
        left = (budget - step) / rate if budget else np.nan
    ends = bool(target) and not measurement.get("keep_going")
    time_left = duration(max(0.0, left), rough=True) if np.isfinite(left) else "-"
    if ends and np.isfinite(left):
        time_left = f"at most {time_left}"
    line = list(line_of(log, row))
    line[HEADINGS.index("steps") - 1] = f"{step:,}" + (f"/{budget:,}" if budget else "")
    return (log.path, *line, str(target) if ends else "-", number(rate) if alive else "-", time_left, draw_of(log, row))


def _news(before: Mapping[str, Look], looks: Mapping[str, Look]) -> list[str]:
    """What has ended or gone wrong since the look before, in lines; of what had ended at the first look, nothing."""
    news = [f"{path}: is gone" for path in before if path not in looks]
    for path, look in looks.items():
        old = before.get(path, Look(None))
        if look.problem and old.problem != look.problem:
            news.append(look.problem)
        if before:
            news += [f"{path}: trial {trial} {how}" for trial, how in look.ended.items() if trial not in old.ended]
    return news


def _summary(looks: Iterable[Look]) -> str:
    looks = list(looks)
    counts = Counter(how.partition(":")[0] for look in looks for how in look.ended.values())
    counts[Status.RUNNING.name] = sum(len(look.rows) for look in looks)
    ends = ", ".join(f"{count:,} {how}" for how, count in sorted(counts.items()) if count)
    return f"{counted(len(looks), 'log')}, {counted(counts.total(), 'trial')}" + (f": {ends}" if ends else "")


def _are_over(looks: Mapping[str, Look]) -> bool:
    """Whether there are logs, and none of them has a trial that runs, or a process that writes it."""
    return bool(looks) and all(not look.rows and os.path.exists(path) and not lock.holder(path)
                               and (look.ended or look.problem) for path, look in looks.items())


def _fitting(rows: Sequence[Row]) -> list[str]:
    """The table in the lines that the terminal has for it, none of them longer."""
    columns, height = shutil.get_terminal_size()
    lines: list[str] = []
    table = GrowingTable(LIVE_HEADINGS, lambda block: lines.extend(block.split("\n")), width=columns - 1)
    table.add(rows)
    table.flush()
    hidden = len(lines) - (height - 2)
    return lines if hidden <= 0 else [*lines[:height - 3], f"... and {hidden + 1:,} more lines"]
