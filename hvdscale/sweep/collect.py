"""Close studies: one log each from the logs of the worker groups, with every trial as if run in sequence, a summary of
the search, and tuned.toml.

    close_one(states, print)        a study that is done
    collect("runs/sweep", "sgd-b32", lambda: [DrawResult(7, pieces=(("node1.h5", 3),), ...), ...], {})

Rows are ordered by trial, then step, so the log does not depend on which group ran which trial.

tuned.toml has the best point of each global batch, with its evidence, for hvdscale-train --lr-rule tuned: of each batch
[global_batch.256] as ``settings.tuned_for`` reads it, with what is TUNABLE of the best trial, searched or set; and
[evidence.256]: trial, steps, interval and place in the space.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..analysis.search import Search, searches_of
from ..analysis.trials import read_trials
from ..errors import LogError
from ..formatting.numbers import list_first
from ..formatting.toml import escape, key_as_toml, value_as_toml
from ..log.compact_file import CompactFile
from ..log.files import refuse_taken
from ..log.merge import joined, show, source_of
from ..log.reader import Log, LogTable, absent, current_rows, read_log
from ..log.schema import SOURCE, TABLES, LogColumn, columns
from ..plan.batch_schedule import BatchSchedule
from ..plan.scaling import SCALED_BETAS
from ..plan.schedule import FALLING
from ..plan.search_space import STEPS_TO_TARGET
from ..plan.settings import TUNABLE, key_of, stored_names
from ..report.views.searches import lines
from ..system.files import temporary_name, writing
from ..system.lock import WAIT_SECONDS, Lock
from ..system.outputs import Kind, refuse_foreign, refuse_shared, replace_own
from .farm import SweepState
from .file import Sweep, name_in_files
from .ledger import DrawResult
from .settings import TEXTS

LOGS = "logs"                                   # folder of the groups' logs in the sweep's folder
LOCK_ATTEMPTS = round(60 / WAIT_SECONDS)        # a minute, as another job may collect the same study
NAMED = 12                                      # trials listed in an error
PIECE = np.dtype([("id", "i8"), ("number", "i8"), ("attempt", "i8"), ("last", "?"), ("stop_step", "i8"),
                  ("status", "i1"), ("reason", "O")])
# further keys that change updates; they belong to the problem, so tables of tuned values may not set them
OF_PROBLEM = ("last_batch", "precision", "compression", "loss_scale", "group_by_group", "unused_parameters",
              "init_from", "train_subset", "data_args", "batch_schedule", "batch_schedule_lr")
TUNED = Kind("a file of hvdscale-tune", lambda head: head.startswith(b"# Metaparameters tuned"))
NOTES = {**TEXTS["notes"],
         **{name: unit for key in sorted(TUNABLE) for name, unit in stored_names(key).items() if unit}}
TableRows = tuple[list[LogColumn], dict[str, np.ndarray]]       # by column; "attempt": at the trial that wrote the row


def close_one(states: SweepState, say: Callable[[str], object], begun: bool = False) -> bool:
    """Close a study that is done, or if ``begun`` one with results, print what it found, and write tuned.toml for all
    studies with a log, and one file an optimizer if there are several; False if there is none."""
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
    closed = searches_in(path)
    if not (said := [line for search in closed for line in lines(search)]):
        results = states.ledger.results(study.name)
        said = [f"{study.name}: no trial has begun; {results[max(results)].reason if results else 'none has ended'}"]
    say("\n".join(said))

    tuned = tuned_files(out, study.sweep)
    with Lock.take(tuned[""], attempts=LOCK_ATTEMPTS):
        found: dict[str, list[Search]] = {"": []}
        for spec in study.sweep.studies:
            path = os.path.join(out, f"{spec.name}.h5")
            if os.path.exists(path):
                searches = closed if spec.name == study.name else searches_in(path)
                found[""] += searches
                found.setdefault(spec.optimizer, []).extend(searches)
        for optimizer in sorted(tuned.keys() & found.keys()):
            write_tuned(tuned[optimizer], found[optimizer])
    return True


def searches_in(path: str) -> tuple[Search, ...]:
    with read_log(path) as log:
        return searches_of(read_trials(log))


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
                failures.append(f"{path}: has no trial {list_first(sorted(lost['id']), NAMED)}, "
                                f"which {study} needs as {list_first(sorted(lost['number']), NAMED)}")
        except LogError as error:
            failures.append(f"{error}; with it {study} loses trial {list_first(sorted(wanted['number']), NAMED)}")
    if failures:
        raise LogError("\n".join(failures) + "\nPut back what is missing and repair what is damaged; or remove the "
                       f"files of these trials in {os.path.join(out, 'trials', study)}, and they are run again")
    return shares


def _select_pieces(log: Log, table: LogTable, pieces) -> TableRows:
    """A log's rows of pieces that count, with the trials' numbers, status and reason."""
    of_trials = table.name == "trials"
    ids = table.read("id" if of_trials else "trial")
    place = np.minimum(np.searchsorted(pieces["id"], ids), len(pieces) - 1)
    counts = pieces["last"][place] if of_trials else (
        table.read({"restarts": "first_step"}.get(table.name, "step")) <= pieces["stop_step"][place])
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
        [(trial[at], step[at]) for at in rows], [(restarts["trial"][at], restarts["first_step"][at]) for at in begun])]
    return kept[np.lexsort((step[kept], trial[kept]))]


def write_tuned(path: str, searches: Sequence[Search]) -> None:
    """Write the file atomically; of several optimizers at a global batch the best counts. Raises LogError."""
    replace_own(path, tuned_toml(searches, os.path.dirname(path)), LogError)


def tuned_toml(searches: Sequence[Search], folder: str = "") -> str:
    """The file's text, with logs named relative to ``folder``, the file's folder."""
    by_batch: dict[int, list[Search]] = {}
    for search in searches:
        problems = (draw.trial.plan["problem"] for draw in search.draws if draw.trial)
        batch = BatchSchedule.of_problem(next(problems, {}), search.global_batch).first     # by which it is looked up
        by_batch.setdefault(batch, []).append(search)
    plans = [draw.trial.plan for search in searches for draw in search.draws if draw.trial]
    names = {plan["problem"]["workload"] for plan in plans}
    entries = [_entry(batch, by_batch[batch], folder) for batch in sorted(by_batch)]
    usage, asked = "# Metaparameters tuned per global batch by hvdscale-tune.", plans[0]["asked"] if plans else {}
    if "workload" in asked:
        usage += (f" To use them, with a budget and a target:\n# hvdscale-train {escape(asked['workload'])} "
                  "--global-batch N --lr-rule tuned --metaparameters FILE")
    if not any(_best(found) for found in by_batch.values()):
        entries.append("[global_batch]\n")
    return "\n".join([f"{usage}\n", *(f"workload = {value_as_toml(name)}\n" for name in names), *entries])


def tuned_keys(search: Search) -> dict:
    """The best trial's TUNABLE values, as keys of hvdscale-train, except the workload's defaults."""
    plan = search.best.trial.plan
    asked, problem = plan["asked"], plan["problem"]
    keys = {name: asked[name] for name in sorted(asked) if key_of(name) in TUNABLE}
    keys["lr"] = problem["peak_lr"]
    if "adamw_lr" in keys:
        keys["adamw_lr"] = problem["adamw_lr"]
    if problem["lr_rule"] in SCALED_BETAS:      # the rule tuned scales nothing
        keys |= {name: problem[name] for name in (*SCALED_BETAS[problem["lr_rule"]], "epsilon")}
    if problem["decay"] in FALLING and "decay_end" not in map(key_of, asked):
        keys["decay_steps"] = problem["decay_steps"]    # derived from the budget, which may change
    if problem.get("plateau"):
        keys["decay_metric"] = problem["plateau"]["metric"]     # by default the target's, which may change
    return {name: keys[name] for name in dict.fromkeys(("optimizer", "lr", *keys)) if name in keys}


def _best(searches):
    found = [search for search in searches if search.best]
    return min(found, key=lambda search: -search.best.value if search.maximizes else search.best.value, default=None)


def _entry(batch, searches, folder):
    if (search := _best(searches)) is None:
        goals = [f"met {one.target}" if one.objective == STEPS_TO_TARGET else f"has a {one.objective}"
                 for one in searches]
        return "".join(f"# [global_batch.{batch}]: {escape(one.study)}: {len(one.feasible)} feasible of "
                       f"{len(one.draws)} drawn, none of which {escape(goal)}\n"
                       for one, goal in zip(searches, goals))
    asked = search.best.trial.plan["asked"]
    others = {name: asked[name] for key in OF_PROBLEM for name in asked if key_of(name) == key}
    comment = [f"# its trials also had, which must be set again: {value_as_toml(others)[1:-1]}"] if others else []
    return "\n".join([f"[global_batch.{batch}]", *comment, *_lines(tuned_keys(search)), "", f"[evidence.{batch}]",
                      *_lines(_evidence(search, folder)), ""])


def _evidence(search, folder):
    best = search.best
    evidence = {"study": search.study, "log": os.path.relpath(best.trial.log, folder or "."), "trial": best.trial.id}
    if search.objective == STEPS_TO_TARGET:
        evidence |= {"target": str(search.target), "steps": int(best.value)}
        evidence |= {"steps_before": int(best.before)} if best.before >= 0 else {}
    else:
        evidence |= {"objective": search.objective, "value": best.value, "at_step": int(best.step)}
    if search.repeats:
        repeats = "repeat_steps" if search.objective == STEPS_TO_TARGET else "repeat_values"
        evidence[repeats] = list(search.repeat_values)
    return evidence | {
        "feasible": len(search.feasible), "draws": len(search.draws), "diverged_share": search.diverged_share,
        "finished": search.done, "position": {bound.parameter.name: bound.position for bound in search.bounds},
        "near_bounds": [bound.parameter.name for bound in search.bounds if bound.near]}


def _lines(table: Mapping) -> Iterable[str]:
    for name, value in table.items():
        line = f"{key_as_toml(name)} = {value_as_toml(value)}"
        yield f"{line:<30}  # {NOTES[name]}" if name in NOTES else line
