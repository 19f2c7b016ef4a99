"""The identity of a sweep in its folder, so that a different sweep is not resumed under its name.

    OUT/sweep.json      the sweep file as last settled, and its job
"""
from __future__ import annotations

import json
import os

from ..errors import UsageError
from ..plan.job import changes_of, note_version, refuse_changes
from ..plan.plan import differences
from ..plan.settings import key_of
from .file import COUNTS, Sweep
from .ledger import read_record, write_file
from .settings import FREE_SETTINGS, takes


def keep_record(out: str, sweep: Sweep, job: dict, accept: bool) -> tuple[dict[str, str], list[str]]:
    """Write OUT/sweep.json; returns the earlier jobs that count as this one, and notes.

    Raises UsageError if another sweep is there, or one of another job, unless it is to be accepted; LogError if the
    file cannot be read.
    """
    known = refuse_other(out, sweep)
    then = known.get("job") or {}
    accepted = refuse_changes(then, job, accept, _path(out), "Put it back, or give another --out")
    notes = [*note_version(then, job), *map("accepted: {}".format, changes_of(then, job))]
    record = json.loads(json.dumps({**sweep.record, "job": {**then, **job, "accepted": accepted}}))
    if known != record:
        write_file(_path(out), json.dumps(record, indent=1))
    return accepted, notes


def refuse_other(out: str, sweep: Sweep) -> dict:
    """The record in OUT, {} if there is none; raises UsageError if it is of another sweep."""
    path = _path(out)
    known = read_record(path)
    try:
        if known:
            check_same(known, sweep)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return known


def _path(out: str) -> str:
    return os.path.join(out, "sweep.json")


def check_same(recorded: dict, sweep: Sweep) -> None:
    """Raise UsageError naming the keys in which the sweep differs from the recorded one.

    A sweep may be resumed with other batch sizes, optimizers, numbers of trials, draws, repeats or workers, and with
    other settings that change no update.
    """
    then, now = {key: value for key, value in recorded.items() if key != "job"}, json.loads(json.dumps(sweep.record))
    common = {name: set(then.get(name, ())) & set(now[name]) for name in ("batch_sizes", "optimizers")}
    differ = [said for key, said in differences(then, now).items() if not _may_differ(key, common)]
    if differ:
        raise UsageError(f"{'; '.join(differ)}. What was searched so far would not be of one sweep; put it back, or "
                         "give another folder")


def _may_differ(key: str, common: dict[str, set]) -> bool:
    table, _, name = key.partition(".")
    if table == "batch":
        number, _, own = name.partition(".")
        return int(number) not in common["batch_sizes"] or _may_differ(own, common)
    name = name.rpartition(".")[0] if table == "space" else name
    if table in ("settings", "space") and not any(takes(optimizer, name) for optimizer in common["optimizers"]):
        return True
    return table in (*COUNTS, "batch_sizes", "optimizers", "repeats", "workers_per_trial") or (
        table == "settings" and key_of(name) in FREE_SETTINGS)
