"""The rows of hvdscale-log ls, a line a trial from the few columns that it shows: once, or with --watch those of
running trials, drawn again while their logs are written.

Logs are only ever read, a look at a time, so that the writer is not disturbed. What a look finds is as new as the
writer's last flush, about a second; over a network the server and the client decide when rows are seen.
"""

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

from ..errors import HvdscaleError, LogError
from ..formatting.numbers import byte_size, counted, duration, number
from ..formatting.screen import Screen, printable, terminal_width
from ..formatting.text_table import GrowingTable
from ..log.directions import better
from ..log.plan_text import read_plan
from ..log.reader import Log, read_log
from ..log.schema import LARGER, PRUNED, SMALLER, Status
from ..log.segments import candidates, find_logs
from ..system import lock
from ..target import Target

HEADINGS = ("log", "trial", "status", "workload", "batch", "workers", "steps", "metric", "last", "best", "size",
            "study")
MOST_ROWS = 12      # shown of a long table: half from its start, half from its end
UNKNOWN_WAY = "direction unknown"       # of a metric of which nothing says whether small or large values are good
WATCH_SECONDS = 5.0     # between looks
GRACE = 3               # looks at which nothing ran, after something had, until it is over: another run may follow
LIVE_HEADINGS = (*HEADINGS[:10], "target", "steps/s", "left", "study")
TIMED = LIVE_HEADINGS.index("steps/s")          # from here on a row changes with the time
Row = tuple[str, ...]


def lines_of(log: Log, everything: bool) -> list[tuple]:
    """One line per trial of a log; of many only the first and last ones."""
    name, size = log.path, byte_size(log.size) + (f" in {len(log.segments)} files" if len(log.segments) > 1 else "")
    rows = log.trials.rows
    if rows == 0:
        return [(name, "-", state_of(log, None), *"-" * 7, size, "")]

    def line(row: int) -> tuple:
        return (name if row == 0 else "", *line_of(log, row), size if row == 0 else "", draw_of(log, row))
    return ends_of(rows, everything, line, lambda hidden: ("", "...", f"{hidden} more", *[""] * 9))


def line_of(log: Log, row: int) -> tuple:
    trials, target = log.trials, target_of(log, row)
    metrics = [name for name in log.evaluations if "/" in name]
    validation = [name for name in metrics if name.startswith("val/")]
    wanted = ([target.column] if target else []) + ["val/error", *validation, *metrics]
    metric = next((name for name in wanted if name in metrics), None)           # the one that decides
    values = log.evaluations.of_trial(metric, trials["id"][row]) if metric else np.empty(0)
    measured, best = values[~np.isnan(values)], "-"
    if len(measured):
        way = log.evaluations.owners[metric].spec("evaluations", metric).better or better(metric)
        if target and target.column == metric:
            way = SMALLER if target.minimizes else LARGER
        ends = {SMALLER: measured.min(), LARGER: measured.max()}
        best = short_number(ends[way]) if way else UNKNOWN_WAY
    return (str(trials["id"][row]), state_of(log, row),
            printable(f"{trials['dataset'][row]}/{trials['model'][row]}", lines=False),
            str(trials["global_batch"][row]),
            str(trials["workers"][row]) if has_workers(trials["source"][row]) else "-", str(steps_done(log, row)),
            metric or "-", short_number(values[-1]) if len(values) else "-", best)


def draw_of(log: Log, row: int) -> str:
    """The trial's study, draw and point; empty for a trial without a study."""
    sweep = plan_of(log, row).get("sweep")
    if not isinstance(sweep, dict):
        return ""
    repeat = f" repeat {sweep['repeat']}" if sweep.get("repeat") else ""
    point = ", ".join(f"{name} {short_number(value) if isinstance(value, (int, float)) else value}"
                      for name, value in (sweep.get("point") or {}).items())
    return printable(f"{sweep.get('study')} draw {sweep.get('draw')}{repeat}: {point}", lines=False)


def state_of(log: Log, row: int | None) -> str:
    """The status; a RUNNING trial without a live writer was interrupted."""
    status = Status.RUNNING if row is None else log.trials["status"][row]
    if status == Status.RUNNING:
        return "running" if log.writer() else "interrupted"
    return Status(status).name if status in list(Status) else f"status {status}"


def steps_done(log: Log, row: int) -> int:
    trial = log.trials["id"][row]
    steps = np.concatenate([table.of_trial("step", trial) for table in (log.steps, log.evaluations)])
    return int(steps.max()) if len(steps) else 0


def plan_of(log: Log, row: int) -> dict:
    try:
        return read_plan(log.trials["plan"][row])
    except LogError:
        return {}


def target_of(log: Log, row: int) -> Target | None:
    try:
        return Target.parse(plan_of(log, row)["measurement"]["target"])
    except (KeyError, TypeError, HvdscaleError):
        return None


def has_workers(source) -> bool:
    """Whether a trial's number of workers is known; archives, reference points and some tables do not record it."""
    return not any(mark in str(source) for mark in ('"imported": "archive"', '"imported": "rcp"', '"workers": null'))


def short_number(value) -> str:
    return str(value) if isinstance(value, (int, np.integer)) else f"{value:.5g}"


def ends_of(rows: int, everything: bool, line: Callable[[int], tuple], gap: Callable[[int], tuple]) -> list[tuple]:
    """The lines of a table's rows; of a long one only the first and last with a gap, unless ``everything``."""
    if everything or rows <= MOST_ROWS:
        return [*map(line, range(rows))]
    half = MOST_ROWS // 2
    return [*map(line, range(half)), gap(rows - 2 * half), *map(line, range(rows - half, rows))]


@dataclass(frozen=True)
class Look:
    """What one look at a log found."""

    files: object                       # what changes when its files do
    rows: Sequence[Row] = ()            # of its RUNNING trials, under LIVE_HEADINGS
    ended: Mapping[int, str] = field(default_factory=dict)      # how each other trial did: "COMPLETE: target met"
    problem: str = ""                   # why the log cannot be read now


def follow(paths: Sequence[str], every: float = WATCH_SECONDS, out: TextIO | None = None,
           clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the running trials of the logs among files and folders, and of those that will come there, until all ended:
    a look every so many seconds, which on a terminal draws the rows again, elsewhere only those that have changed.
    ``clock`` has seconds since 1970. Raises LogError at the end if a log could not be read."""
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
            ended = {}
            for row in np.flatnonzero(~running):
                status, reason = log.trials["status"][row], log.trials["stop_reason"][row]
                how = "pruned" if status == Status.INCOMPLETE and reason.startswith(PRUNED) else state_of(log, row)
                ended[int(log.trials["id"][row])] = f"{how}: {reason}" if reason else how
            return Look(files, [_row(log, row, now) for row in np.flatnonzero(running)], ended)
    except LogError as error:
        return Look(files, problem=str(error) if os.path.exists(path) else f"{path}: is not there yet; waiting for it")


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
    columns, height = shutil.get_terminal_size()
    lines: list[str] = []
    table = GrowingTable(LIVE_HEADINGS, lambda block: lines.extend(block.split("\n")), width=columns - 1)
    table.add(rows)
    table.flush()
    hidden = len(lines) - (height - 2)
    return lines if hidden <= 0 else [*lines[:height - 3], f"... and {hidden + 1:,} more lines"]
