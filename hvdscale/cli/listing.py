"""The rows of hvdscale-log ls: a line a trial, from the few columns that it shows.

    table.add(lines_of(log, everything=False))          under HEADINGS
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..analysis.metric_direction import better
from ..errors import HvdscaleError, LogError
from ..formatting.escaping import printable
from ..formatting.numbers import byte_size
from ..log.plan_text import read_plan
from ..log.reader import Log
from ..log.schema import LARGER, SMALLER, Status
from ..target import Target

HEADINGS = ("log", "trial", "status", "workload", "batch", "workers", "steps", "metric", "last", "best", "size",
            "study")
MOST_ROWS = 12      # shown of a long table: half from its start, half from its end
UNKNOWN_WAY = "direction unknown"       # of a metric of which nothing says whether small or large values are good


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
    metric = _metric(log, target)
    values = log.evaluations.of_trial(metric, trials["id"][row]) if metric else np.empty(0)
    measured = values[~np.isnan(values)]
    return (str(trials["id"][row]), state_of(log, row),
            printable(f"{trials['dataset'][row]}/{trials['model'][row]}", lines=False),
            str(trials["global_batch"][row]),
            str(trials["workers"][row]) if has_workers(trials["source"][row]) else "-", str(steps_done(log, row)),
            metric or "-", short_number(values[-1]) if len(values) else "-",
            _best(log, target, metric, measured) if len(measured) else "-")


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


def _metric(log: Log, target: Target | None) -> str | None:
    """The decisive metric: the target's, else the validation error, else the first one."""
    metrics = [name for name in log.evaluations if "/" in name]
    validation = [name for name in metrics if name.startswith("val/")]
    wanted = ([target.column] if target else []) + ["val/error", *validation, *metrics]
    return next((name for name in wanted if name in metrics), None)


def _best(log: Log, target: Target | None, metric: str, measured) -> str:
    """The best value: as the trial's target has it, else as the log declares the metric, else by the metric's name."""
    way = better(metric, [log])
    if target and target.column == metric:
        way = SMALLER if target.minimizes else LARGER
    if not way:
        return UNKNOWN_WAY
    return short_number(measured.min() if way == SMALLER else measured.max())


def has_workers(source) -> bool:
    """Whether a trial's number of workers is known; archives, reference points and some tables do not record it."""
    return not any(mark in str(source) for mark in ('"imported": "archive"', '"imported": "rcp"', '"workers": null'))


def short_number(value) -> str:
    return str(value) if isinstance(value, (int, np.integer)) else f"{value:.5g}"


def ends_of(rows: int, everything: bool, line: Callable[[int], tuple], gap: Callable[[int], tuple]) -> list[tuple]:
    """The lines of a table's rows; of a long one only the first and last, unless ``everything``.

    line, gap   the line of a row, and that in place of so many
    """
    if everything or rows <= MOST_ROWS:
        return [*map(line, range(rows))]
    half = MOST_ROWS // 2
    return [*map(line, range(half)), gap(rows - 2 * half), *map(line, range(rows - half, rows))]
