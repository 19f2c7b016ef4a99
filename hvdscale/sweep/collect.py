"""Close studies: one log each from the logs of the worker groups, with every trial as if run in sequence, a summary of
the search, and tuned.toml.

    close_one(states, print)        a study that is done
    collect("runs/sweep", "sgd-b32", lambda: [DrawResult(7, pieces=(("node1.h5", 3),), ...), ...], {})

Rows are ordered by trial, then step, so the log does not depend on which group ran which trial.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from .file import Sweep, name_in_files
from .ledger import DrawResult
from .tuned import TUNED, write_tuned

LOGS = "logs"                                   # folder of the groups' logs in the sweep's folder
LOCK_ATTEMPTS = round(60 / WAIT_SECONDS)        # a minute, as another job may collect the same study
NAMED = 12                                      # trials listed in an error
STEP_COLUMNS = {"restarts": "first_step", "evaluations": "step", "steps": "step"}
PIECE = np.dtype([("id", "i8"), ("number", "i8"), ("attempt", "i8"), ("last", "?"), ("stop_step", "i8"),
                  ("status", "i1"), ("reason", "O")])
TableRows = tuple[list[LogColumn], dict[str, np.ndarray]]       # by column; "attempt": at the trial that wrote the row


def close_one(states: SweepState, say: Callable[[str], object], begun: bool = False) -> bool:
    """Close a study that is done, or if ``begun`` one with results, and print what it found; False if there is none."""
    left = [study for study in states.studies.values() if study.name not in states.closed]
    study = next((study for study in left if states.of(study).done and not states.open(study)), None)
    if study is None and begun:
        study = next((study for study in left if states.ledger.results(study.name)), None)
    if study is None:
        return False
    states.closed.add(study.name)
    out = states.ledger.out

    def choose() -> list[DrawResult]:
        results = states.ledger.results(study.name)
        repeats = [results[number] for number in states.repeats(study) if number in results]
        return [one for one in (*states.of(study).results, *repeats) if one.pieces]
    path = collect(out, study.name, choose, {"sweep": json.dumps(study.sweep.record)},
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


def searches_in(path: str) -> tuple[Search, ...]:
    with read_log(path) as log:
        return searches_of(read_trials(log))


def write_best(out: str, sweep: Sweep, known: Mapping[str, Sequence[Search]]) -> None:
    """Write tuned.toml for all studies with a log, and one file an optimizer if there are several; the logs of
    ``known`` searches are not read again."""
    tuned = tuned_files(out, sweep)
    with Lock.take(tuned[""], attempts=LOCK_ATTEMPTS):
        found: dict[str, list[Search]] = {"": []}
        for spec in sweep.studies:
            path = os.path.join(out, f"{spec.name}.h5")
            if os.path.exists(path):
                searches = known[spec.name] if spec.name in known else searches_in(path)
                found[""] += searches
                found.setdefault(spec.optimizer, []).extend(searches)
        for optimizer, searches in found.items():
            if optimizer in tuned:
                write_tuned(tuned[optimizer], searches)


def tuned_files(out: str, sweep: Sweep) -> dict[str, str]:
    """The path of tuned.toml by "" and, of several optimizers, of one for each."""
    several = sweep.optimizers if len(sweep.optimizers) > 1 else ()
    return {"": os.path.join(out, "tuned.toml"),
            **{name: os.path.join(out, f"tuned-{name_in_files(name)}.toml") for name in several}}


def refuse_foreign_results(path: str, out: str, sweep: Sweep) -> None:
    """UsageError or LogError where a result of the sweep whose file is at ``path`` would replace another file."""
    tuned = tuned_files(out, sweep).values()
    refuse_shared([("SWEEP.toml", path), *(("--out", one) for one in tuned)])
    for one in tuned:
        refuse_foreign(one, TUNED)
    for study in sweep.studies:
        refuse_taken(os.path.join(out, f"{study.name}.h5"))


def collect(out: str, study: str, choose: Callable[[], Iterable[DrawResult]], attributes: Mapping,
            wanted: Mapping = {}) -> str:
    """Rewrite OUT/STUDY.h5 from the logs in OUT/logs, which may be live, named by the trials' pieces; returns its path.

    choose  returns the results of the trials, as the study counts them, whatever the groups' logs say; called under the
            lock, so that the last process to collect the study has all trials
    wanted  current values for "sweep" in every trial's plan;  attributes: further root attributes

    Raises LogError naming the lost trials if a log is missing, damaged or lacks one, and if another process has been
    writing OUT/STUDY.h5 for a minute.
    """
    path = os.path.join(out, f"{study}.h5")
    with Lock.take(path, attempts=LOCK_ATTEMPTS), writing(path):
        pieces: dict[str, list[tuple]] = {}         # in each group's log
        for trial in choose():
            for attempt, (log, number) in enumerate(trial.pieces):
                pieces.setdefault(log, []).append((number, trial.number, attempt, attempt == len(trial.pieces) - 1,
                                                   trial.last_step, trial.status, trial.reason))
        shares = _read_all(out, study, {log: np.array(sorted(pieces[log]), PIECE) for log in sorted(pieces)})
        for share in shares:
            _, trials = share["trials"]
            plans = [json.loads(text) for text in trials.get("plan", ())]
            trials["plan"] = np.array([
                json.dumps({**plan, "sweep": {**plan.get("sweep", {}), **wanted}}) for plan in plans], object)
        root = {"id": uuid.uuid4().hex, "segment": 0, "segments": 1, "merged": len(shares), **attributes}
        tables = {name: _concatenate(name, [share[name] for share in shares]) for name in TABLES}
        rows = {name: values for name, (_, values) in tables.items()}
        with CompactFile(temporary := temporary_name(path), root) as file:
            for name, (specs, values) in tables.items():
                order = _in_sequence(name, rows)
                for spec in specs:
                    file.add_column(name, spec)
                    file.add(name, spec.name, values[spec.name][order])
        show(temporary, path, ())
    return path


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
    """A log's rows of pieces that count, with the trials' numbers, status and reason."""
    of_trials = table.name == "trials"
    ids = table.read("id" if of_trials else "trial")
    place = np.minimum(np.searchsorted(pieces["id"], ids), len(pieces) - 1)
    counts = pieces["last"][place] if of_trials else (
        table.read(STEP_COLUMNS[table.name]) <= pieces["stop_step"][place])
    rows = np.flatnonzero((pieces["id"][place] == ids) & counts)
    piece = pieces[place[rows]]
    values = {name: table.read(name)[rows] for name in table.specs} if len(rows) else {}
    if of_trials:
        values |= {"id": piece["number"], "status": piece["status"], "stop_reason": piece["reason"]}
        values |= {spec.name: kept[rows] for spec, kept in zip(SOURCE, source_of(log))}
    else:
        values["trial"] = piece["number"]
    return list(table.specs.values()), {**values, "attempt": piece["attempt"]}


def _concatenate(name: str, shares: list[TableRows]) -> TableRows:
    """The rows of all logs; without trials, no rows of the columns that every log has."""
    specs = joined(name, [specs for specs, _ in shares] or [columns()[name]])
    if name == "trials":
        specs += SOURCE
    parts = [values for _, values in shares if len(values["attempt"])] or [{"attempt": np.empty(0, np.int64)}]
    values = {spec.name: np.concatenate([part.get(spec.name, absent(spec.type, len(part["attempt"])))
                                         for part in parts]) for spec in specs}
    return specs, {**values, "attempt": np.concatenate([part["attempt"] for part in parts])}


def _in_sequence(name: str, tables: dict[str, dict[str, np.ndarray]]) -> np.ndarray:
    """Indices of a table's rows that count, ordered by trial and step: those from the first step of a later attempt on
    are superseded, as in a log's segments."""
    table, restarts = tables[name], tables["restarts"]
    if name == "trials":
        return np.argsort(table["id"])
    if name == "restarts":
        return np.lexsort((table["attempt"], table["trial"]))
    trial, step = table["trial"], table["step"]
    attempts = range(tables["trials"]["attempt"].max(initial=0) + 1)
    rows = [np.flatnonzero(table["attempt"] == attempt) for attempt in attempts]
    begun = [np.flatnonzero(restarts["attempt"] == attempt) for attempt in attempts]
    kept = np.concatenate(rows)[current_rows(
        [(trial[at], step[at]) for at in rows],
        [(restarts["trial"][at], restarts["first_step"][at]) for at in begun])]
    return kept[np.lexsort((step[kept], trial[kept]))]
