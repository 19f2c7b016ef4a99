"""Close studies: one log each from the logs of the worker groups, with every trial as if run in sequence, a summary of
the search, and tuned.toml.

    close_one(states, print)        a study that is done
    collect("runs/sweep", "sgd-b32", lambda: [DrawResult(7, pieces=(("node1.h5", 3),), ...), ...], {})

Rows are ordered by trial, then step, so the log does not depend on which group ran which trial.
"""
from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.search import Search, searches_of
from ..analysis.trials import read_trials
from ..errors import LogError
from ..log.compact_file import CompactFile
from ..log.files import refuse_taken
from ..log.merge import joined, show, source_of
from ..log.reader import Log, LogTable, absent, current_rows, read_log
from ..log.schema import SOURCE, TABLES, LogColumn, columns
from ..report.views.searches import lines
from ..system.files import temporary_name, writing
from ..system.lock import WAIT_SECONDS, Lock
from ..system.outputs import refuse_foreign, refuse_shared
from .farm import SweepState
from .file import Sweep
from .ledger import DrawResult
from .studies import Study
from .tuned import TUNED, write_tuned

LOGS = "logs"                                   # folder of the groups' logs in the sweep's folder
LOCK_ATTEMPTS = round(60 / WAIT_SECONDS)        # a minute, as another job may collect the same study
NAMED = 12                                      # trials listed in an error
STEP_COLUMNS = {"restarts": "first_step", "evaluations": "step", "steps": "step"}
PIECE = np.dtype([("id", "i8"), ("number", "i8"), ("attempt", "i8"), ("last", "?"), ("stop_step", "i8"),
                  ("status", "i1"), ("reason", "O")])


@dataclass(frozen=True)
class TableRows:
    """Rows of a table: its columns, their values, and the attempt at the trial that wrote each row."""

    specs: list[LogColumn]
    values: dict[str, np.ndarray]
    attempt: np.ndarray


def close_one(states: SweepState, say: Callable[[str], object], begun: bool = False) -> bool:
    """Close a study that is done, and print what it found; False if there is none. Raises LogError.

    begun  where none is done, close one that has results
    """
    left = [study for study in states.studies.values() if study.name not in states.closed]
    study = next((study for study in left if states.of(study).done and not states.open(study)), None)
    if study is None and begun:
        study = next((study for study in left if states.ledger.results(study.name)), None)
    if study is None:
        return False
    states.closed.add(study.name)
    out = states.ledger.out
    path = collect(out, study.name, lambda: _choose(states, study), {"sweep": json.dumps(study.sweep.record)},
                   {"trials": study.spec.trials, "max_draws": study.spec.max_draws})
    searches = searches_in(path)
    said = [line for search in searches for line in lines(search)]
    if not said:
        results = states.ledger.results(study.name)
        reason = results[max(results)].reason if results else "none has ended"
        said = [f"{study.name}: no trial has begun; {reason}"]
    say("\n".join(said))
    write_best(out, study.sweep, {study.name: searches})
    return True


def _choose(states: SweepState, study: Study) -> list[DrawResult]:
    """The study's trials with rows, and the repeats of its winner."""
    results = states.ledger.results(study.name)
    repeats = [results[number] for number in states.repeats(study) if number in results]
    return [one for one in (*states.of(study).results, *repeats) if one.pieces]


def searches_in(path: str) -> tuple[Search, ...]:
    """The searches in a study's log; raises LogError."""
    with read_log(path) as log:
        return searches_of(read_trials(log))


def write_best(out: str, sweep: Sweep, known: Mapping[str, Sequence[Search]]) -> None:
    """Write tuned.toml for all studies with a log, and one file per optimizer if there are several; raises LogError.

    known  searches by study, so that these logs are not read again
    """
    tuned = tuned_files(out, sweep)[0]
    with Lock.take(tuned, attempts=LOCK_ATTEMPTS):
        by_optimizer: dict[str, list[Search]] = {}
        for spec in sweep.studies:
            path = os.path.join(out, f"{spec.name}.h5")
            if os.path.exists(path):
                by_optimizer.setdefault(spec.name.rpartition("-b")[0], []).extend(
                    known[spec.name] if spec.name in known else searches_in(path))
        write_tuned(tuned, [search for found in by_optimizer.values() for search in found])
        for optimizer, found in by_optimizer.items() if len(sweep.optimizers) > 1 else ():
            write_tuned(os.path.join(out, f"tuned-{optimizer}.toml"), found)


def tuned_files(out: str, sweep: Sweep) -> list[str]:
    """The paths of tuned.toml and, of several optimizers, of one for each."""
    names = sweep.optimizers if len(sweep.optimizers) > 1 else ()
    return [os.path.join(out, f"{name}.toml") for name in ("tuned", *(f"tuned-{name}" for name in names))]


def refuse_foreign_results(path: str, out: str, sweep: Sweep) -> None:
    """UsageError or LogError where a result of the sweep whose file is at ``path`` would replace another file."""
    tuned = tuned_files(out, sweep)
    refuse_shared([("SWEEP.toml", path), *(("--out", one) for one in tuned)])
    for one in tuned:
        refuse_foreign(one, TUNED)
    for study in sweep.studies:
        refuse_taken(os.path.join(out, f"{study.name}.h5"))


def collect(out: str, study: str, choose: Callable[[], Iterable[DrawResult]], attributes: Mapping,
            wanted: Mapping = {}) -> str:
    """Rewrite OUT/STUDY.h5 from the logs in OUT/logs named by the trials' pieces; returns its path.

    choose      returns the results of the trials, as the study counts them, whatever the groups' logs say; called under
                the lock, so that the last process to collect the study has all trials
    wanted      current values for "sweep" in every trial's plan, such as the number of trials

    Columns are the union over these logs, NaN where a log lacks one; ``source`` and ``source_trial`` say where a
    trial's last piece is. ``attributes`` become root attributes. The logs may be live. Raises LogError naming the lost
    trials if a log is missing, damaged or lacks one, and if another process has been writing OUT/STUDY.h5 for a minute.
    """
    path = os.path.join(out, f"{study}.h5")
    with Lock.take(path, attempts=LOCK_ATTEMPTS), writing(path):
        shares = _read_all(out, study, _pieces(choose()))
        for share in shares:
            plans = [json.loads(text) for text in share["trials"].values.get("plan", ())]
            share["trials"].values["plan"] = np.array([
                json.dumps({**plan, "sweep": {**plan.get("sweep", {}), **wanted}}) for plan in plans], object)
        root = {"id": uuid.uuid4().hex, "segment": 0, "segments": 1, "merged": len(shares), **attributes}
        tables = {name: _concatenate(name, [share[name] for share in shares]) for name in TABLES}
        with CompactFile(temporary := temporary_name(path), root) as file:
            for name, order in _in_sequence(**tables).items():
                for spec in tables[name].specs:
                    file.add_column(name, spec)
                    file.add(name, spec.name, tables[name].values[spec.name][order])
        show(temporary, path, ())
    return path


def _pieces(chosen) -> dict[str, np.ndarray]:
    """The pieces in each group's log, by file name: arrays of PIECE sorted by id."""
    rows: dict[str, list[tuple]] = {}
    for trial in chosen:
        for attempt, (log, number) in enumerate(trial.pieces):
            rows.setdefault(log, []).append((number, trial.number, attempt, attempt == len(trial.pieces) - 1,
                                             trial.last_step, trial.status, trial.reason))
    return {log: np.array(sorted(rows[log]), PIECE) for log in sorted(rows)}


def _read_all(out, study, pieces) -> list[dict[str, TableRows]]:
    """Each log's rows by table, with one log open at a time; the error names all logs that fail."""
    shares, failures = [], []
    for name, wanted in pieces.items():
        path = os.path.join(out, LOGS, name)
        try:
            with read_log(path) as log:
                shares.append({table.name: _select_pieces(log, table, wanted) for table in log.tables})
                lost = wanted[~np.isin(wanted["id"], log.trials["id"])]
            if len(lost):
                failures.append(f"{path}: has no trial {_list_numbers(lost['id'])}, "
                                f"which {study} needs as {_list_numbers(lost['number'])}")
        except LogError as error:
            failures.append(f"{error}; with it {study} loses trial {_list_numbers(wanted['number'])}")
    if failures:
        raise LogError("\n".join(failures) + "\nPut back what is missing and repair what is damaged; or remove the "
                       f"files of these trials in {os.path.join(out, 'trials', study)}, and they are run again")
    return shares


def _list_numbers(numbers) -> str:
    named = ", ".join(map(str, sorted(numbers.tolist())[:NAMED]))
    return named if len(numbers) <= NAMED else f"{named}, ... ({len(numbers)} in all)"


def _select_pieces(log: Log, table: LogTable, pieces) -> TableRows:
    """A log's rows of these pieces, with the trials' numbers, status and reason."""
    rows, piece = _rows(table, pieces)
    values = {name: table.read(name)[rows] for name in table.specs} if len(rows) else {}
    if table.name == "trials":
        values |= {"id": piece["number"], "status": piece["status"], "stop_reason": piece["reason"]}
        values |= {spec.name: kept[rows] for spec, kept in zip(SOURCE, source_of(log))}
    else:
        values["trial"] = piece["number"]
    return TableRows(list(table.specs.values()), values, piece["attempt"])


def _rows(table: LogTable, pieces) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows of pieces that count, and each row's piece."""
    ids = table.read("id" if table.name == "trials" else "trial")
    place = np.minimum(np.searchsorted(pieces["id"], ids), len(pieces) - 1)
    taken = pieces["id"][place] == ids
    if table.name == "trials":
        taken &= pieces["last"][place]
    else:
        taken &= table.read(STEP_COLUMNS[table.name]) <= pieces["stop_step"][place]
    rows = np.flatnonzero(taken)
    return rows, pieces[place[rows]]


def _concatenate(name: str, shares: list[TableRows]) -> TableRows:
    """The rows of all logs; without trials, no rows of the columns that every log has."""
    specs = joined(name, [share.specs for share in shares] or [columns()[name]])
    if name == "trials":
        specs += SOURCE
    parts = [share for share in shares if len(share.attempt)] or [TableRows([], {}, np.empty(0, np.int64))]
    values = {spec.name: np.concatenate([part.values.get(spec.name, absent(spec.type, len(part.attempt)))
                                         for part in parts]) for spec in specs}
    return TableRows(specs, values, np.concatenate([part.attempt for part in parts]))


def _in_sequence(trials, restarts, evaluations, steps) -> dict[str, np.ndarray]:
    """By table, indices of the rows not superseded by a later attempt, ordered by trial and step."""
    attempts = range(trials.attempt.max(initial=0) + 1)
    return {"trials": np.argsort(trials.values["id"]),
            "restarts": np.lexsort((restarts.attempt, restarts.values["trial"])),
            "evaluations": _current(evaluations, restarts, attempts), "steps": _current(steps, restarts, attempts)}


def _current(table: TableRows, restarts: TableRows, attempts: range) -> np.ndarray:
    """The rows that count: those from the first step of a later attempt on are superseded, as in a log's segments."""
    trial, step = table.values["trial"], table.values["step"]
    rows = [np.flatnonzero(table.attempt == attempt) for attempt in attempts]
    begun = [np.flatnonzero(restarts.attempt == attempt) for attempt in attempts]
    kept = np.concatenate(rows)[current_rows(
        [(trial[at], step[at]) for at in rows],
        [(restarts.values["trial"][at], restarts.values["first_step"][at]) for at in begun])]
    return kept[np.lexsort((step[kept], trial[kept]))]
