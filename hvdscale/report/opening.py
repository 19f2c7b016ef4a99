"""Logs opened for a report or a plan: log files, directories of them, and folders of other programs' runs."""
from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from ..errors import LogError
from ..exchange.csv_tables import is_tables
from ..exchange.runs.formats import has_runs, is_archive
from ..exchange.runs.into_log import import_runs
from ..formatting.progress import Tell, quiet
from ..log.check import refuse_unsound, refuse_unsound_trials
from ..log.plan_text import refuse_wrong_plans
from ..log.reader import Log, read_log
from ..log.segments import expand, find_logs, refuse_none, refuse_outer
from ..system.files import scratch_folder
from .file_names import Path

CONTINUE = "--skip-broken (skip_broken=True in Python) continues without logs that cannot be read"
MOST_EVALUATIONS = 5_000_000        # in all logs, beyond which no trial is made of its own
LONG_BYTES = 100 << 20      # of a log, beyond which reading it takes a while


def open_logs(paths: Sequence[Path], skip_broken: bool, opened: ExitStack, tell: Tell = quiet
              ) -> tuple[list[Log], list[str]]:
    """(logs, messages about those skipped) of all logs among files and directories, open until ``opened`` closes.

    Raises LogError where a log cannot be read, unless it is to be skipped, and where there is nothing to report.
    """
    for path in expand(paths):
        refuse_outer(path)
    found = {path: _log_of_runs(path, opened) for path in expand(paths)}
    names = find_logs(log or path for path, log in found.items())
    shown = {log: path for path, log in found.items()}
    logs, skipped = [], []
    for at, name in enumerate(names, 1):
        tell(f"reading log {at} of {len(names)}: {name}",
             long=os.path.exists(name) and os.path.getsize(name) > LONG_BYTES)
        try:
            log = opened.enter_context(read_log(name))
            log.path = shown.get(name, name)
            (refuse_unsound if log.evaluations.rows <= MOST_EVALUATIONS else refuse_unsound_trials)(log)
            refuse_wrong_plans(log)
            logs.append(log)
            skipped += left_out_of(log)
        except LogError as error:
            if not skip_broken:
                rest = f"\n{CONTINUE}" if len(names) > 1 else ""
                raise LogError(f"{error}{rest}") from error
            skipped.append(str(error))
    refuse_none(names, paths)
    if not sum(log.trials.rows for log in logs):
        raise LogError(f"{', '.join(names)}: no trial that can be read, so there is nothing to report yet"
                       + "".join(f"\n{message}" for message in skipped))
    return logs, skipped


def _log_of_runs(path: str, opened: ExitStack) -> str | None:
    """The log, for as long as ``opened`` is, of a file or folder with runs of other programs; None of any other path.

    Raises LogError, naming the command that imports them, for tables and archives.
    """
    if not os.path.exists(path) or path.endswith(".h5") or os.path.isdir(path) and find_logs([path]):
        return None
    if is_tables(path) or is_archive(path):
        raise LogError(f"{path}: is no log; 'hvdscale-log import {path} LOG.h5' makes one of it, to report on")
    if not has_runs(path):
        return None
    log = os.path.join(opened.enter_context(scratch_folder()), "runs.h5")
    import_runs([path], log)
    return log


def left_out_of(log: Log, most: int = 10) -> list[str]:
    """Messages about the trials that an import left out of a log."""
    note = log.attributes.get("skipped")
    if not isinstance(note, dict) or not isinstance(note.get("count"), int) or not isinstance(note.get("first"), list):
        return []
    said = [f"{log.path}: left out when it was imported: {message}" for message in note["first"][:most]]
    rest = note["count"] - len(said)
    return said + [f"{log.path}: left out when it was imported: {rest:,} more"] * (rest > 0)
