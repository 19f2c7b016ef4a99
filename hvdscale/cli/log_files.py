"""hvdscale-log ls, show, check, merge and repair."""

import contextlib
import json
import os
import time

import click
import numpy as np

from ..errors import HvdscaleError, LogError
from ..formatting.numbers import byte_size, counted
from ..formatting.screen import terminal_width, wrap
from ..formatting.text_table import GrowingTable, aligned
from ..log.check import check as check_log
from ..log.merge import merge as merge_logs
from ..log.plan_text import count_nans, read_plan
from ..log.reader import Log, open_log, read_log
from ..log.repair import repair as repair_log
from ..log.schema import UNKNOWN_SEED
from ..log.segments import logs_in
from ..system.forked import map_on_cores
from .common import echo, format_counts, paths, take_over_option, width_option
from .listing import (HEADINGS, MOST_ROWS, WATCH_SECONDS, draw_of, ends_of, follow, has_workers, lines_of, plan_of,
                      short_number, state_of, target_of)


class ListCommand(click.Command):
    """``--watch`` without a number looks every WATCH_SECONDS."""

    def parse_args(self, ctx, args):
        at = args.index("--watch") + 1 if "--watch" in args else 0
        if at and not "".join(args[at:at + 1]).replace(".", "", 1).isdecimal():
            args = [*args[:at], str(WATCH_SECONDS), *args[at:]]
        return super().parse_args(ctx, args)


@click.command("ls", cls=ListCommand)
@click.argument("logs", nargs=-1, shell_complete=paths)
@click.option("--all", "everything", is_flag=True, help="name every trial, however many a log holds")
@click.option("--watch", "every", type=click.FloatRange(0.1, 86400), metavar="[SECONDS]",
              shell_complete=paths,      # of LOGS, which follow where no number does
              help=f"follow running trials, and logs that will come in the folders and below, until all have ended; "
                   f"look every SECONDS, or {WATCH_SECONDS:g}. Writers are not disturbed; over a network file system "
                   "rows may be seen late")
@width_option
def list_logs(logs, everything, every):
    """List the trials of LOGS, one line each: how they ended, what they ran, how far they came. Default: runs/, or the
    current folder."""
    logs = logs or (["runs"] if os.path.isdir("runs") else ["."])
    if every is not None:
        return follow(logs, every)
    table, bad = GrowingTable(HEADINGS, echo, width=terminal_width()), []

    def lines(path):
        with open_log(path) as log:
            return lines_of(log, everything)
    for found in _of_each(lines, logs_in(logs), bad):
        table.add(found)
    table.flush()
    _raise_all(bad)


@click.command()
@click.argument("path", metavar="LOG", shell_complete=paths)
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
            rows = [HEADINGS[1:], *(line[1:] for line in lines_of(log, False))]
            shown = rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]
            echo("\n".join(aligned(shown, range(len(shown[0])), terminal_width())))
            rest = "" if len(ids) <= MOST_ROWS else f", hvdscale-log ls {path} --all lists every one"
            echo("\n" + wrap(f"hvdscale-log show {path} --trial N shows one of them{rest}", whole=True))
            return
        if len(ids) == 0:
            echo("no trial has begun")
            return
        if trial is not None and trial not in ids:
            there = f"{len(ids)}, from {ids.min()} to {ids.max()}"
            if len(ids) <= MOST_ROWS:
                there = ", ".join(map(str, ids))
            raise LogError(f"{path}: there is no trial {trial}; there are {there}")
        row = 0 if trial is None else int(np.argmax(ids == trial))
        echo()
        _echo_rows(_trial(log, row))
        if plan:
            text = log.trials["plan"][row]
            with contextlib.suppress(ValueError, RecursionError):
                text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            echo(f"\nplan\n{text}")
        echo("\n" + _table(log, log.evaluations, ids[row], evaluations))
        if steps:
            echo("\n" + _table(log, log.steps, ids[row], True))


@click.command()
@click.argument("logs", nargs=-1, required=True, shell_complete=paths)
def check(logs):
    """Verify that logs keep every rule, and name the first one broken. Exit code 1 if any log breaks one."""
    bad = []

    def checked(path):
        with check_log(path) as log:
            return f"{path}: ok: {format_counts({table.name: table.rows for table in log.tables})}"
    for said in _of_each(checked, logs_in(logs), bad):
        echo(said)
    _raise_all(bad)


@click.command()
@click.argument("logs", nargs=-1, required=True, shell_complete=paths)
@click.option("--out", required=True, metavar="FILE", shell_complete=paths, help="the file to write")
@click.option("--overwrite", is_flag=True, help="replace FILE where it exists")
@take_over_option
def merge(logs, out, overwrite, take_over):
    """Copy the trials of several logs into one file.

    Trials whose number is taken get another; /trials/source records where each came from.
    """
    merged = merge_logs(logs_in(logs), out, overwrite, take_over)
    for log, changed in merged:
        note = f", {counted(changed, 'trial')} under another number" if changed else ""
        echo(f"{log.path}: {format_counts({table.name: table.rows for table in log.tables})}{note}")
    echo(f"{out}: {counted(len(merged), 'log')}, {byte_size(os.path.getsize(out))}")


@click.command()
@click.argument("path", metavar="LOG", shell_complete=paths)
@take_over_option
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


def _of_each(function, paths, bad: list[str]):
    """The function of each log, in order, as they come; what is wrong with others is added to ``bad``."""
    def attempt(path):
        try:
            return function(path), ""
        except HvdscaleError as error:
            return None, str(error)
    for result, error in map_on_cores(attempt, paths):
        if error:
            bad.append(error)
        else:
            yield result


def _raise_all(errors: list[str]):
    for error in errors[:-1]:
        echo(f"Error: {error}", err=True)
    if errors:
        raise LogError(errors[-1])


def _echo_rows(lines: list[str]) -> None:
    for line in lines:
        word = line[:13] if line.startswith("  ") else ""
        echo(wrap(line[len(word):], word, whole=True))


def _heading(log: Log) -> list[str]:
    attributes = log.attributes
    versions = ", ".join(f"{name} {version}" for name, version in (attributes.get("versions") or {}).items())
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
    trials, plan = log.trials, plan_of(log, row)
    value = {name: trials[name][row] for name in trials}
    reason = f": {value['stop_reason']}" if value["stop_reason"] else ""
    measurement, shares = plan.get("measurement") or {}, ", on a number of workers that is not known"
    if has_workers(value.get("source")):
        passes = f" x {value['accumulation']} passes" if value["accumulation"] > 1 else ""
        shares = (f" = {counted(value['workers'], 'worker')} x {value['local_batch']}{passes}, ghost batch "
                  f"{value['ghost_batch']}")
    seconds = measurement.get("budget_seconds")
    budget = "not known" if seconds is None else f"{short_number(seconds)} s"
    if value["budget_steps"]:
        budget = f"{value['budget_steps']} steps"
    settings = [f"{name.split('/', 1)[1]} {short_number(value[name])}" for name in trials
                if name.startswith("metaparameters/") and not np.isnan(value[name])]
    lines = [f"trial {value['id']}: {state_of(log, row)}{reason}",
             f"  workload   {value['dataset']}/{value['model']}",
             f"  batch      {value['global_batch']}{shares}",
             f"  optimizer  {value['optimizer']}: {', '.join(settings)}",
             f"  budget     {budget}, target {target_of(log, row) or 'none'}, "
             f"seed {'unknown' if value['seed'] == UNKNOWN_SEED else value['seed']}"]
    try:
        read_plan(trials["plan"][row])
    except LogError as error:
        lines.append(f"  plan       not used: {error}")
    evaluated = log.evaluations["trial"] == value["id"]
    nans = count_nans({name: log.evaluations[name][evaluated] for name in log.evaluations if "/" in name}, measurement)
    lines += [f"  NaN        {name} at {count} of {counted(int(evaluated.sum()), 'evaluation')}"
              for name, count in nans.items()]
    if draw_of(log, row):
        lines.append(f"  study      {draw_of(log, row)}")
    if value.get("source"):
        how = "imported" if '"imported"' in value["source"] else "merged"
        lines.append(f"  {how:10} from trial {value['source_trial']} of {_source(value['source'])}")
    if asked := plan.get("asked"):
        lines.append(f"  asked      {json.dumps(asked, ensure_ascii=False)}")
    return lines + _restarts(log, value["id"])


def _source(text: str) -> str:
    try:
        return str(json.loads(text)["path"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return text


def _restarts(log: Log, trial: int) -> list[str]:
    table, lines = log.restarts, []
    for row in np.flatnonzero(table["trial"] == trial):
        if np.isnan(table["time"][row]):
            continue                            # imported trials have no restarts
        when = f"{table['time'][row]:g} s after 1970"
        with contextlib.suppress(ValueError, OverflowError, OSError):
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(table["time"][row]))
        before = f", after: {table['previous_end'][row]}" if table["previous_end"][row] else ""
        lines.append(f"  {'resumed' if table['first_step'][row] else 'started':10} {when} at step "
                     f"{table['first_step'][row]} on {counted(table['workers'][row], 'worker')} "
                     f"({table['device'][row]}, {table['host'][row]}){before}")
    return lines


def _table(log: Log, table, trial: int, everything: bool) -> str:
    rows = np.flatnonzero(table["trial"] == trial)
    if len(rows) == 0:
        return f"no {table.name}"
    names = [name for name in table if name != "trial" and not (
        table[name].dtype.kind == "f" and np.isnan(table[name][rows]).all())]
    lines = ends_of(len(rows), everything, lambda at: tuple(short_number(table[name][rows[at]]) for name in names),
                    lambda hidden: (f"({hidden} more)", *[""] * (len(names) - 1)))
    return "\n".join([table.name, *aligned([tuple(names), *lines], width=terminal_width())])
