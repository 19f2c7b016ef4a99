"""Every invariant of a log, looked at in turn: the first that is broken is named, with the row and the values met.

    check("runs/w8.h5")      raises LogError: runs/w8.h5: trial 7: evaluations/step goes from 400 to 300 at row 512; ...

Imports apply the rules for rows to what they read: ``faults_of_trials``, ``faults_of_rows`` and ``unfinished``.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..errors import LogError, UsageError
from ..formatting.numbers import counted
from ..plan.values import MOST
from ..target import Target
from .plan_text import read_plan
from .reader import Log, LogTable, read_log
from .schema import STEP_PARTS, Status

LEAST = {                   # that columns may hold
    "trials": {"id": 0, "global_batch": 1, "local_batch": 1, "accumulation": 1, "ghost_batch": 0, "workers": 1,
               "budget_steps": 0},
    "restarts": {"first_step": 0, "workers": 0, "time": 0},
    "evaluations": {"step": 0, "examples": 0, "train_seconds": 0},
    "steps": {"step": 1, "step_seconds": 0, **dict.fromkeys(STEP_PARTS, 0)},
}
FINITE = {"restarts": ("time",), "evaluations": ("train_seconds",), "steps": ("lr", "step_seconds")}
# what any analysis relies on: counts of at most MOST, and seconds
RELIED_ON = {"trials": ("global_batch", "workers", "budget_steps"), "evaluations": ("step", "train_seconds"),
             "steps": ("step", "step_seconds")}
# columns that rise from row to row of a trial, strictly or not
ORDERED = (("evaluations", "step", True), ("steps", "step", True), ("evaluations", "train_seconds", False),
           ("evaluations", "examples", False))
# column of /trials -> where the plan says the same
IN_PLAN = {
    **{name: ("problem", name) for name in ("global_batch", "ghost_batch", "seed", "optimizer", "dataset", "model")},
    "budget_steps": ("measurement", "budget_steps"), "local_batch": ("execution", "local_batch"),
    "accumulation": ("execution", "accumulate"), "workers": ("execution", "workers"),
    "metaparameters/learning_rate": ("problem", "peak_lr"),
    **{f"metaparameters/{name}": ("problem", name)
       for name in ("momentum", "weight_decay", "label_smoothing", "warmup_steps", "beta1", "beta2", "epsilon",
                    "trust_coefficient", "clip_norm")},
}


class Rows(dict[str, np.ndarray]):
    """Some rows of a table: arrays by column."""

    def __init__(self, name: str, rows: int, columns: Mapping[str, np.ndarray]) -> None:
        super().__init__(columns)
        self.name, self.rows = name, rows


AnyTable = LogTable | Rows


class Fault(NamedTuple):
    """All rows of a table that break one rule, if any, and what to say of each behind "trial 7": of the row and the
    words for its place, such as " at row 3"; "": the caller has named the place."""

    table: AnyTable
    rows: np.ndarray
    say: Callable[[int, str], str]

    def trial(self, row: int) -> int:
        return int(self.table["id" if self.table.name == "trials" else "trial"][row])


class UnsoundRows(LogError):
    """Rows of a table that break an invariant, True in ``wrong``; the message names the first. ``repair`` leaves them
    out."""

    def __init__(self, path: str, fault: Fault) -> None:
        row = int(fault.rows[0])
        super().__init__(f"{path}: trial {fault.trial(row)}{fault.say(row, f' at row {row}')}")
        self.table, self.wrong = fault.table.name, np.zeros(fault.table.rows, np.bool_)
        self.wrong[fault.rows] = True


def check(path: str | os.PathLike[str]) -> Log:
    """Raises LogError at the first invariant that the log breaks; the log, read, if it keeps them all."""
    log = read_log(path)
    try:
        for part in log.parts:
            for table, names in part.columns.items():
                for name in names:
                    spec = part.spec(table, name)
                    if not spec.unit or not spec.meaning:
                        raise LogError(f"{part.path}: {table}/{name} says no unit or no meaning")
                    if spec.type == "text" and part.file:               # else it was read
                        part.read(table, name)
        check_rows(log)
    except BaseException:
        log.close()
        raise
    return log


def check_rows(log: Log) -> None:
    """Raises UnsoundRows at the first invariant that the rows of a log, superseded ones left out, break."""
    trials, others = log.trials, log.tables[1:]
    for fault in chain(
            _identities(trials), _ended(trials), *(_unknown(trials, table) for table in others),
            [unstarted(trials, log.restarts["trial"])], *(_numbers(trials, table) for table in log.tables),
            *(_order(table) for table in others), _examples(trials, log.evaluations), _plans(trials)):
        if len(fault.rows):
            raise UnsoundRows(log.path, fault)


def refuse_unsound(log: Log, trials_only: bool = False) -> None:
    """LogError where a log's rows cannot be what was measured: two trials of one id, a status that there is not, counts
    below 1 or beyond MOST, negative steps or seconds. What any analysis relies on; ``check`` looks further."""
    tables = (log.trials,) if trials_only else (log.trials, log.evaluations, log.steps)
    for fault in chain(_identities(log.trials), *(_ranges(table, RELIED_ON[table.name]) for table in tables)):
        if len(fault.rows):
            raise UnsoundRows(log.path, fault)


def faults_of_trials(trials: AnyTable) -> Iterator[Fault]:
    return chain(_identities(trials), _numbers(None, trials), _ended(trials), _plans(trials))


def faults_of_rows(trials: AnyTable, table: AnyTable) -> Iterator[Fault]:
    """The rules for rows of another table, of these trials; of its columns there may be only some."""
    return chain(_unknown(trials, table), _numbers(trials, table), _order(table),
                 _examples(trials, table) if table.name == "evaluations" else ())


def refuse_row(where: str, **row: Any) -> None:
    """UsageError where a row of /trials, or one of /steps in trial 0, breaks a rule that ``check`` has for it alone."""
    rows = Rows(where, 1, {name: np.array([value]) for name, value in row.items()})
    for fault in faults_of_trials(rows) if where == "trials" else _numbers(None, rows):
        if len(fault.rows):
            raise UsageError(fault.say(0, "").removeprefix(":").strip())


def unfinished(trials: Rows, evaluations: Rows, stepped: np.ndarray, said: str = "its budget is") -> Iterator[Fault]:
    """COMPLETE trials whose evaluations are missing, or end more than one spacing before the budget, which ``said``
    names, with the target at which the trial stops not met.

    stepped     bool, of each trial: whether it has rows in /steps; one that was only timed needs no evaluation
    """
    order = np.argsort(evaluations["trial"], kind="stable")
    ids, first = np.unique(evaluations["trial"][order], return_index=True)
    rows_of = dict(zip(ids.tolist(), np.split(order, first[1:])))
    missing, early = np.zeros(trials.rows, bool), np.zeros(trials.rows, bool)
    budget, last = trials["budget_steps"], np.zeros(trials.rows, np.int64)
    for row in np.flatnonzero(trials["status"] == Status.COMPLETE).tolist():
        rows = rows_of.get(int(trials["id"][row]))
        if rows is None:
            missing[row] = not stepped[row]
            continue
        steps = evaluations["step"][rows]
        last[row] = steps[-1]
        if last[row] + np.diff(steps, prepend=0).max() < budget[row]:
            early[row] = not _may_end_early(trials["plan"][row], evaluations, rows[-1])
    yield Fault(trials, np.flatnonzero(missing), lambda row, at: " is COMPLETE, but has no evaluations")
    yield Fault(trials, np.flatnonzero(early), lambda row, at: (
        f" is COMPLETE and {said} {budget[row]} steps, but its evaluations end at step {last[row]}; if it was stopped, "
        "its status is INCOMPLETE"))


def _may_end_early(plan: str, evaluations: Rows, last: int) -> bool:
    """Whether a trial's budget is in seconds, or its last evaluation meets the target at which it stops."""
    try:
        measurement = read_plan(plan).get("measurement") or {}
    except LogError:                    # a fault of its own
        return False
    if measurement.get("budget_seconds") or not measurement.get("target") or measurement.get("keep_going"):
        return bool(measurement.get("budget_seconds"))
    target = Target.parse(measurement["target"])
    return target.column in evaluations and target.met_by(float(evaluations[target.column][last]))


def _say_value(table: AnyTable, name: str, must: str, row: int, at: str) -> str:
    return f": {table.name}/{name} is {table[name][row]}{at}, and must {must}"


def _ranges(table: AnyTable, names: Iterable[str]) -> Iterator[Fault]:
    """Counts and times in these columns are not too small; those that any analysis relies on are not absurd, either."""
    for name in filter(table.__contains__, names if table.rows else ()):
        least, values = LEAST[table.name][name], table[name]
        why = ": it counts its own step" if (table.name, name) == ("steps", "step") else ""
        must = f"be at least 1{why}" if least else "not be negative"
        yield Fault(table, np.flatnonzero(values < least), partial(_say_value, table, name, must))
        if name in RELIED_ON.get(table.name, ()):
            timed = name.endswith("seconds")
            must = "be a time, or NaN: not measured" if timed else f"be no more than {MOST:,}"
            absurd = np.isinf(values) if timed else values > MOST
            yield Fault(table, np.flatnonzero(absurd), partial(_say_value, table, name, must))


def _identities(trials: AnyTable) -> Iterator[Fault]:
    """Ids are unique and statuses valid."""
    ids, firsts = np.unique(trials["id"], return_index=True)
    if len(ids) < trials.rows:
        yield Fault(trials, np.flatnonzero(~np.isin(np.arange(trials.rows), firsts)), lambda row, at: (
            f" is in trials twice, at rows {firsts[ids == trials['id'][row]][0]} and {row}" if at else
            " is in trials twice"))
    status = trials["status"]
    yield Fault(trials, np.flatnonzero(~np.isin(status, list(Status))), lambda row, at: (
        f": status is {status[row]}; there are {', '.join(f'{int(s)} {s.name}' for s in Status)}"))


def _ended(trials: AnyTable) -> Iterator[Fault]:
    """Whoever has ended says why, and a trial's workers carry its batch."""
    status = trials["status"]
    silent = (status != Status.RUNNING) & (trials["stop_reason"] == "")
    yield Fault(trials, np.flatnonzero(silent), lambda row, at: (
        f": is {Status(status[row]).name}, but its stop_reason is empty"))
    covered = trials["global_batch"] <= trials["local_batch"] * trials["accumulation"] * trials["workers"]
    yield Fault(trials, np.flatnonzero(~covered), lambda row, at: (
        ": {} x local batch {} x accumulation {} is less than the global batch {}".format(
            counted(int(trials["workers"][row]), "worker"),
            *(int(trials[name][row]) for name in ("local_batch", "accumulation", "global_batch")))))


def _unknown(trials: AnyTable, table: AnyTable) -> Iterator[Fault]:
    """Every row's trial is in /trials."""
    yield Fault(table, np.flatnonzero(~np.isin(table["trial"], trials["id"])), lambda row, at: (
        f" has a row in {table.name}{at and f' ({at[4:]})'}, but none in trials"))


def unstarted(trials: AnyTable, started: np.ndarray) -> Fault:
    """Trials that have no row in /restarts; ``started``: those that have."""
    return Fault(trials, np.flatnonzero(~np.isin(trials["id"], started)), lambda row, at: " has no row in restarts")


def _numbers(trials: AnyTable | None, table: AnyTable) -> Iterator[Fault]:
    """Counts and times are in their ranges, and what is always measured is finite."""
    yield from _ranges(table, LEAST[table.name])
    for name in filter(table.__contains__, FINITE.get(table.name, ())):
        wrong = ~np.isfinite(table[name])
        if trials is not None and wrong.any():  # unknown of trials from elsewhere, and of restarts that repair put in
            imported = trials["id"][np.array(['"imported"' in text for text in trials["source"].tolist()], bool)]
            wrong &= ~(np.isnan(table[name]) & (np.isin(table["trial"], imported) | (table.name == "restarts")))
        yield Fault(table, np.flatnonzero(wrong), partial(_say_value, table, name, "be finite"))


def _order(table: AnyTable) -> Iterator[Fault]:
    """Within each trial steps increase from row to row, and seconds and examples do not fall."""
    def say(name: str, row: int, at: str) -> str:
        before = np.flatnonzero(table["trial"][:row] == table["trial"][row])[-1]
        return (f": {table.name}/{name} goes from {table[name][before]} to {table[name][row]}{at}; two runs may have "
                "been given one trial id")
    for where, name, strict in ORDERED:
        rows = disordered(table, name, strict) if where == table.name and name in table else ()
        if len(rows):
            yield Fault(table, np.sort(rows), partial(say, name))


def disordered(table: AnyTable, name: str, strict: bool) -> np.ndarray:
    """Rows before which the column falls, within a trial; if ``strict``, also those before which it stays the same."""
    order = np.argsort(table["trial"], kind="stable")
    trial, values = table["trial"][order], table[name][order]
    falls = values[1:] <= values[:-1] if strict else values[1:] < values[:-1]
    return order[1:][(trial[1:] == trial[:-1]) & falls]


def _examples(trials: AnyTable, table: AnyTable) -> Iterator[Fault]:
    """No evaluation has seen more examples than its steps hold."""
    known = np.flatnonzero(np.isin(table["trial"], trials["id"]))
    if not len(known) or "examples" not in table:
        return
    order = np.argsort(trials["id"])
    batch = np.zeros(table.rows, np.int64)
    batch[known] = trials["global_batch"][order][np.searchsorted(trials["id"][order], table["trial"][known])]
    wrong = table["examples"] > table["step"] * batch
    yield Fault(table, np.flatnonzero(wrong & (batch > 0)), lambda row, at: (
        f": evaluations/examples is {table['examples'][row]}{at}, more than {table['step'][row]} steps of {batch[row]} "
        "hold"))


def _plans(trials: AnyTable) -> Iterator[Fault]:
    """Each plan is JSON and says what the columns say."""
    columns = {name: trials[name] for name in IN_PLAN if name in trials}
    wrong: dict[int, str] = {}
    for row, text in enumerate(trials["plan"]):
        try:
            plan = read_plan(text, must_be_json=True)
            for name, said in contradictions({name: columns[name][row] for name in columns}, plan):
                where = ".".join(IN_PLAN[name])
                wrong.setdefault(row, f"trials/{name} is {columns[name][row]}, but its plan says {said!r} ({where})")
        except LogError as error:
            wrong[row] = str(error)
    if wrong:
        yield Fault(trials, np.array(list(wrong)), lambda row, at: f": {wrong[row]}")


def contradictions(values: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The columns among a trial's ``values`` that its plan contradicts, each with what the plan says."""
    for name, value in values.items():
        part, key = IN_PLAN[name]
        planned = plan[part].get(key) if isinstance(plan.get(part), dict) else None
        if isinstance(planned, (int, float)) and not isinstance(value, str):
            agree = math.isclose(value, planned, rel_tol=1e-12) or math.isnan(value)
        else:
            agree = planned is None or value == planned
        if not agree:
            yield name, planned
