"""hvdscale-log: list, show, check, merge and repair logs; import and export results."""
from __future__ import annotations

import json
import os
import time
from functools import partial

import click
import numpy as np

from ..analysis.metric_direction import better
from ..errors import HvdscaleError, LogError
from ..formatting.lines import terminal_width, wrap
from ..formatting.numbers import byte_size, counted
from ..formatting.text_table import GrowingTable, aligned
from ..log.check import check as check_log
from ..log.merge import merge as merge_logs
from ..log.nans import count_nans
from ..log.plan_text import read_plan
from ..log.reader import Log, open_log, read_log
from ..log.repair import repair as repair_log
from ..log.schema import SMALLER, UNKNOWN_SEED, Status
from ..log.segments import find_logs
from ..system.forked import map_on_cores
from ..target import Target
from . import completion, exchange
from .common import Group, echo, format_counts, version_option, width_option

MOST_ROWS = 12      # shown of a long table: half from its start, half from its end


@click.group(cls=Group, context_settings=dict(help_option_names=["-h", "--help"], max_content_width=110))
@version_option
def main():
    """List, show, check, merge and repair hvdscale's logs; import others' results, export logs.

    A log may be closed, being written, or left by a killed process; its segments are read as one. A folder means all
    logs in it.
    """


@main.command("ls")
@click.argument("logs", nargs=-1, shell_complete=completion.paths)
@click.option("--all", "everything", is_flag=True, help="name every trial, however many a log holds")
@width_option
def list_logs(logs, everything):
    """List the trials of LOGS, one line each: how they ended, what they ran, how far they came. Default: runs/, or the
    current folder.
    """
    paths = find_logs(logs or (["runs"] if os.path.isdir("runs") else ["."]))
    if not paths:
        raise LogError(f"{' '.join(logs) or 'here'}: there is no log")
    table, bad = GrowingTable(HEADINGS, echo, width=terminal_width()), []
    for lines in _of_each(partial(_lines_of, everything), paths, bad):
        table.add(lines)
    table.flush()
    _raise_all(bad)


@main.command()
@click.argument("path", metavar="LOG", shell_complete=completion.paths)
@click.option("--trial", type=int, help="the trial to show, where a log holds several")
@click.option("--plan", is_flag=True, help="the whole plan")
@click.option("--evaluations", is_flag=True, help="every evaluation")
@click.option("--steps", is_flag=True, help="every step")
@width_option
def show(path, trial, plan, evaluations, steps):
    """Show a log: the run, its restarts and evaluations, and why it ended."""
    with read_log(path) as log:
        _echo_rows(_heading(log))
        ids = log.trials["id"]
        if trial is None and len(ids) > 1:
            echo(_align([HEADINGS[1:]] + [line[1:] for line in _lines(log, False)], terminal_width()))
            rest = "" if len(ids) <= MOST_ROWS else f", hvdscale-log ls {path} --all lists every one"
            echo("\n" + wrap(f"hvdscale-log show {path} --trial N shows one of them{rest}", whole=True))
            return
        if len(ids) == 0:
            echo("no trial has begun")
            return
        if trial is not None and trial not in ids:
            raise LogError(f"{path}: there is no trial {trial}; there are {_list_ids(ids)}")
        row = 0 if trial is None else int(np.flatnonzero(ids == trial)[0])
        echo()
        _echo_rows(_trial(log, row))
        if plan:
            echo("\nplan\n" + _plan_text(log.trials["plan"][row]))
        echo("\n" + _table(log, log.evaluations, ids[row], evaluations))
        if steps:
            echo("\n" + _table(log, log.steps, ids[row], True))


@main.command()
@click.argument("logs", nargs=-1, required=True, shell_complete=completion.paths)
def check(logs):
    """Verify that logs keep every rule, and name the first one broken. Exit code 1 if any log breaks one."""
    bad = []
    for said in _of_each(_checked, find_logs(logs), bad):
        echo(said)
    _raise_all(bad)


@main.command()
@click.argument("logs", nargs=-1, required=True, shell_complete=completion.paths)
@click.option("--out", required=True, metavar="FILE", shell_complete=completion.paths, help="the file to write")
@click.option("--overwrite", is_flag=True, help="replace FILE where it exists")
@click.option("--take-over", is_flag=True, help="write even where the file system refuses locks")
def merge(logs, out, overwrite, take_over):
    """Copy the trials of several logs into one file.

    Trials whose number is taken get another; /trials/source records where each came from.
    """
    merged = merge_logs(find_logs(logs), out, overwrite, take_over)
    for log, changed in merged:
        note = f", {counted(changed, 'trial')} under another number" if changed else ""
        echo(f"{log.path}: {format_counts({table.name: table.rows for table in log.tables})}{note}")
    echo(f"{out}: {counted(len(merged), 'log')}, {byte_size(os.path.getsize(out))}")


@main.command()
@click.argument("path", metavar="LOG", shell_complete=completion.paths)
@click.option("--take-over", is_flag=True, help="write even where the file system refuses locks")
def repair(path, take_over):
    """Replace an interrupted or damaged log by what can be saved.

    The result passes hvdscale-log check; contradictory rows are left out. The damaged files are kept as *.broken. If
    nothing can be saved, everything stays as it is and the exit code is 1.
    """
    done = repair_log(path, take_over)
    if done is None:
        echo(f"{path}: nothing to repair")
        return
    echo(f"{path}: kept {format_counts(done.kept)}")
    for what in done.lost or ["nothing"]:
        echo(f"lost: {what}")
    for what in done.restored:
        echo(f"restored: {what}")
    echo(f"as it was: {', '.join(done.originals)}")


exchange.add_to(main)

HEADINGS = ("log", "trial", "status", "workload", "batch", "workers", "steps", "metric", "last", "best", "size",
            "study")
UNKNOWN_WAY = "direction unknown"       # of a metric of which nothing says whether small or large values are good


def _of_each(function, paths, bad: list[str]):
    """The function of each log, in order, as they come; what is wrong with others is added to ``bad``."""
    for result, error in map_on_cores(partial(_try, function), paths):
        if error:
            bad.append(error)
        else:
            yield result


def _raise_all(errors: list[str]):
    """Print all errors but the last, and raise that."""
    for error in errors[:-1]:
        echo(f"Error: {error}", err=True)
    if errors:
        raise LogError(errors[-1])


def _try(function, path):
    """(result, ""), or (None, what went wrong)."""
    try:
        return function(path), ""
    except HvdscaleError as error:
        return None, str(error)


def _checked(path) -> str:
    with check_log(path) as log:
        return f"{path}: ok: {format_counts({table.name: table.rows for table in log.tables})}"


def _lines_of(everything: bool, path) -> list[tuple]:
    with open_log(path) as log:
        return _lines(log, everything)


def _lines(log: Log, everything: bool) -> list[tuple]:
    """One line per trial of a log; of many only the first and last ones."""
    name, size = log.path, byte_size(log.size) + (f" in {len(log.segments)} files" if len(log.segments) > 1 else "")
    rows = log.trials.rows
    if rows == 0:
        return [(name, "-", _state(log, None), *"-" * 7, size, "")]
    shown = range(rows) if everything else _ends(rows)
    lines, before = [], -1
    for row in shown:
        if row > before + 1:
            lines.append(("", "...", f"{row - before - 1} more", *[""] * 9))
        first = not lines
        lines.append((name if first else "", *_line(log, row), size if first else "", _draw(log, row)))
        before = row
    return lines


def _line(log: Log, row: int) -> tuple:
    trials, metric = log.trials, _metric(log, row)
    values = log.evaluations.of_trial(metric, trials["id"][row]) if metric else np.empty(0)
    measured = values[~np.isnan(values)]
    return (str(trials["id"][row]), _state(log, row), f"{trials['dataset'][row]}/{trials['model'][row]}",
            str(trials["global_batch"][row]),
            str(trials["workers"][row]) if _has_workers(trials["source"][row]) else "-", str(_steps_done(log, row)),
            metric or "-", _number(values[-1]) if len(values) else "-",
            _best(log, row, metric, measured) if len(measured) else "-")


def _draw(log: Log, row: int) -> str:
    """The trial's study, draw and point; empty for a trial without a study."""
    sweep = _plan(log, row).get("sweep")
    if not isinstance(sweep, dict):
        return ""
    repeat = f" repeat {sweep['repeat']}" if sweep.get("repeat") else ""
    point = ", ".join(f"{name} {_number(value) if isinstance(value, (int, float)) else value}"
                      for name, value in (sweep.get("point") or {}).items())
    return f"{sweep.get('study')} draw {sweep.get('draw')}{repeat}: {point}"


def _state(log: Log, row: int | None) -> str:
    """The status; a RUNNING trial without a live writer was interrupted."""
    status = Status.RUNNING if row is None else log.trials["status"][row]
    if status == Status.RUNNING:
        return "running" if log.writer() else "interrupted"
    return Status(status).name if status in list(Status) else f"status {status}"


def _steps_done(log: Log, row: int) -> int:
    trial = log.trials["id"][row]
    steps = np.concatenate([table.of_trial("step", trial) for table in (log.steps, log.evaluations)])
    return int(steps.max()) if len(steps) else 0


def _plan(log: Log, row: int) -> dict:
    try:
        return read_plan(log.trials["plan"][row])
    except LogError:
        return {}


def _plan_text(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _plan_error(log: Log, row: int) -> list[str]:
    """A line on what is wrong with a trial's plan, if anything."""
    try:
        read_plan(log.trials["plan"][row])
    except LogError as error:
        return [f"  plan       not used: {error}"]
    return []


def _target(log: Log, row: int) -> Target | None:
    try:
        return Target.parse(_plan(log, row)["measurement"]["target"])
    except (KeyError, TypeError, HvdscaleError):
        return None


def _metric(log: Log, row: int) -> str | None:
    """The decisive metric: the target's, else the validation error, else the first one."""
    target, metrics = _target(log, row), [name for name in log.evaluations if "/" in name]
    validation = [name for name in metrics if name.startswith("val/")]
    wanted = ([target.column] if target else []) + ["val/error", *validation, *metrics]
    return next((name for name in wanted if name in metrics), None)


def _best(log: Log, row: int, metric: str, measured) -> str:
    """The best value: as the trial's target has it, else as the log declares the metric, else by the metric's name."""
    target = _target(log, row)
    if target and target.column == metric:
        return _number(measured.min() if target.minimizes else measured.max())
    way = better(metric, [log])
    return _number(measured.min() if way == SMALLER else measured.max()) if way else UNKNOWN_WAY


def _echo_rows(lines: list[str]) -> None:
    """Print lines of which most are a word and what it is."""
    for line in lines:
        word = line[:13] if line.startswith("  ") else ""
        echo(wrap(line[len(word):], word, whole=True))


def _heading(log: Log) -> list[str]:
    attributes = log.attributes
    versions = attributes.get("versions") or {}
    versions = ", ".join(f"{name} {version}" for name, version in versions.items())
    files = counted(len(log.segments), "file")
    lines = [f"{log.path}: log, schema version {attributes['version']}, {byte_size(log.size)} in {files}",
             f"  made by    {attributes.get('creator', 'unknown')} on {attributes.get('host', 'an unknown host')}",
             f"  versions   {versions}"]
    if attributes.get("commit"):
        lines.append(f"  commit     {attributes['commit']}")
    if attributes.get("merged"):
        lines.append(f"  merged     from {counted(attributes['merged'], 'log')}")
    for when, changed in (attributes.get("changes") or {}).items():
        lines.append(f"  {when:10} {json.dumps(changed)}")
    return lines


def _trial(log: Log, row: int) -> list[str]:
    trials, plan = log.trials, _plan(log, row)
    value = {name: trials[name][row] for name in trials}
    reason = f": {value['stop_reason']}" if value["stop_reason"] else ""
    settings = [f"{name.split('/', 1)[1]} {_number(value[name])}" for name in trials
                if name.startswith("metaparameters/") and not np.isnan(value[name])]
    lines = [f"trial {value['id']}: {_state(log, row)}{reason}",
             f"  workload   {value['dataset']}/{value['model']}",
             f"  batch      {value['global_batch']}{_shares(value)}",
             f"  optimizer  {value['optimizer']}: {', '.join(settings)}",
             f"  budget     {_budget(value['budget_steps'], plan)}, target {_target(log, row) or 'none'}, "
             f"seed {'unknown' if value['seed'] == UNKNOWN_SEED else value['seed']}"]
    lines += _plan_error(log, row)
    evaluated = log.evaluations["trial"] == value["id"]
    nans = count_nans({name: log.evaluations[name][evaluated] for name in log.evaluations if "/" in name},
                      plan.get("measurement") or {})
    lines += [f"  NaN        {name} at {count} of {counted(int(evaluated.sum()), 'evaluation')}"
              for name, count in nans.items()]
    if _draw(log, row):
        lines.append(f"  study      {_draw(log, row)}")
    if value.get("source"):
        how = "imported" if '"imported"' in value["source"] else "merged"
        lines.append(f"  {how:10} from trial {value['source_trial']} of {_source(value['source'])}")
    asked = plan.get("asked")
    if asked:
        lines.append(f"  asked      {json.dumps(asked, ensure_ascii=False)}")
    return lines + _restarts(log, value["id"])


def _budget(steps, plan) -> str:
    seconds = (plan.get("measurement") or {}).get("budget_seconds")
    return f"{steps} steps" if steps else "not known" if seconds is None else f"{_number(seconds)} s"


def _shares(value) -> str:
    if not _has_workers(value.get("source")):
        return ", on a number of workers that is not known"
    passes = f" x {value['accumulation']} passes" if value["accumulation"] > 1 else ""
    return (f" = {counted(value['workers'], 'worker')} x {value['local_batch']}{passes}, ghost batch "
            f"{value['ghost_batch']}")


def _has_workers(source) -> bool:
    """Whether a trial's number of workers is known; archives, reference points and some tables do not record it."""
    return not any(mark in str(source) for mark in ('"imported": "archive"', '"imported": "rcp"', '"workers": null'))


def _source(text: str) -> str:
    """The path of a trial's original log; the text itself if it is not JSON."""
    try:
        return str(json.loads(text)["path"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return text


def _restarts(log: Log, trial: int) -> list[str]:
    table, lines = log.restarts, []
    for row in np.flatnonzero(table["trial"] == trial):
        if np.isnan(table["time"][row]):
            continue                            # imported trials have no restarts
        when = _moment(table["time"][row])
        before = f", after: {table['previous_end'][row]}" if table["previous_end"][row] else ""
        lines.append(f"  {'resumed' if table['first_step'][row] else 'started':10} {when} at step "
                     f"{table['first_step'][row]} on {counted(table['workers'][row], 'worker')} "
                     f"({table['device'][row]}, {table['host'][row]}){before}")
    return lines


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s after 1970"


def _table(log: Log, table, trial: int, everything: bool) -> str:
    """A table's rows of one trial, without the middle unless ``everything``."""
    rows = np.flatnonzero(table["trial"] == trial)
    if len(rows) == 0:
        return f"no {table.name}"
    names = [name for name in table if name != "trial" and not _empty(table[name][rows])]
    lines, before = [tuple(names)], -1
    for at in range(len(rows)) if everything else _ends(len(rows)):
        if at > before + 1:
            lines.append((f"({at - before - 1} more)", *[""] * (len(names) - 1)))
        lines.append(tuple(_number(table[name][rows[at]]) for name in names))
        before = at
    return "\n".join([table.name, *aligned(lines, width=terminal_width())])


def _empty(values) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).all())


def _ends(rows: int) -> list[int]:
    """Indices of the rows to show: all of a short table, the first and last of a long one."""
    if rows <= MOST_ROWS:
        return list(range(rows))
    return [*range(MOST_ROWS // 2), *range(rows - MOST_ROWS // 2, rows)]


def _align(rows, width=None) -> str:
    rows = rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]
    return "\n".join(aligned(rows, range(len(rows[0])), width))


def _number(value) -> str:
    return str(value) if isinstance(value, (int, np.integer)) else f"{value:.5g}"


def _list_ids(ids) -> str:
    return ", ".join(map(str, ids)) if len(ids) <= MOST_ROWS else f"{len(ids)}, from {ids.min()} to {ids.max()}"


if __name__ == "__main__":
    main()
