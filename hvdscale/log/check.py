"""Every invariant of a log, looked at in turn: the first that is broken is named, with the row and the values met.

    check("runs/w8.h5")      raises LogError: runs/w8.h5: trial 7: evaluations/step goes from 400 to 300 at row 512; ...

First the files: columns, types, units, rows, texts. Then what the rows say, superseded ones left out.
"""
from __future__ import annotations

import json
import math

import numpy as np

from ..errors import LogError
from .files import first_line, open_file, read_attribute, reading
from .plan_text import read_plan
from .reader import SCHEMA, Log, column_type, read_log
from .schema import TABLES, Status, metaparameter_column, metric_column

MOST = 2 ** 53              # steps, examples, workers: beyond, a float64 does not hold them
NOT_NEGATIVE = {
    "trials": ("id", "global_batch", "local_batch", "accumulation", "ghost_batch", "workers", "budget_steps"),
    "restarts": ("first_step", "workers", "time"),
    "evaluations": ("step", "examples", "train_seconds"),
    "steps": ("step", "step_seconds", "data_seconds", "compute_seconds", "communication_seconds"),
}
FINITE = {"restarts": ("time",), "evaluations": ("train_seconds",), "steps": ("lr", "step_seconds")}
# column of /trials -> where the plan says the same
IN_PLAN = {
    "global_batch": ("problem", "global_batch"), "ghost_batch": ("problem", "ghost_batch"), "seed": ("problem", "seed"),
    "optimizer": ("problem", "optimizer"), "dataset": ("problem", "dataset"), "model": ("problem", "model"),
    "budget_steps": ("measurement", "budget_steps"), "local_batch": ("execution", "local_batch"),
    "accumulation": ("execution", "accumulate"), "workers": ("execution", "workers"),
    "metaparameters/learning_rate": ("problem", "peak_lr"), "metaparameters/momentum": ("problem", "momentum"),
    "metaparameters/weight_decay": ("problem", "weight_decay"),
    "metaparameters/label_smoothing": ("problem", "label_smoothing"),
    "metaparameters/warmup_steps": ("problem", "warmup_steps"),
    **{f"metaparameters/{name}": ("problem", name)
       for name in ("beta1", "beta2", "epsilon", "trust_coefficient", "clip_norm")},
}


def check(path) -> Log:
    """Raises LogError at the first invariant that the log breaks; the log, read, if it keeps them all."""
    log = read_log(path)
    for segment in log.segments:
        with open_file(segment.path) as file, reading(segment.path):
            _check_file(segment.path, file)
    for rule in (_trials, _references, _numbers, _time_order, _examples, _plans):
        rule(log)
    return log


def _check_file(path, file):
    """Columns, their types and units, and that what was committed is there."""
    for table in TABLES:
        group = file[table]
        rows = int(group["committed_rows"][0])
        for column in SCHEMA[table]:
            if column.name not in group and not column.optional:
                raise LogError(f"{path}: {table} has no column {column.name}")
        for name in _columns(group):
            _check_column(path, table, name, group[name], rows)


def _columns(group):
    names = []
    group.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
    return [name for name in names if name != "committed_rows"]


def _check_column(path, table, name, dataset, rows):
    spec = next((c for c in SCHEMA[table] if c.name == name), None)
    if spec is None and "/" in name:
        spec = metaparameter_column(name.split("/", 1)[1]) if table == "trials" else metric_column(name)
    kind, unit = column_type(dataset), read_attribute(dataset.attrs.get("unit"))
    if spec and kind != spec.type:
        raise LogError(f"{path}: {table}/{name} holds {kind} entries ({dataset.dtype}) where {spec.type} belongs")
    if unit is None or not dataset.attrs.get("meaning"):
        raise LogError(f"{path}: {table}/{name} says no unit or no meaning")
    if spec and unit != spec.unit:
        raise LogError(f"{path}: {table}/{name} is in {unit} where {spec.unit} belongs")
    if len(dataset) < rows:
        raise LogError(f"{path}: {table}/{name} has {len(dataset)} rows where {rows} were committed")
    if kind == "text":
        _check_spans(path, f"{table}/{name}", dataset[:rows], len(dataset.file["text"]))


def _check_spans(path, what, spans, size):
    bad = (spans < 0).any(axis=1) | (spans.sum(axis=1) > size)
    if bad.any():
        row = int(bad.argmax())
        raise LogError(f"{path}: {what}: the text of row {row} stands at bytes {spans[row, 0]} to {spans[row].sum()}, "
                       f"outside /text with its {size} bytes")


def refuse_unsound(log):
    """LogError where a log's rows cannot be what was measured: two trials of one id, a status that there is not, counts
    below 1 or beyond MOST, negative steps or seconds, one step evaluated twice. What any analysis stands on; ``check``
    looks further.
    """
    refuse_unsound_trials(log)
    for table, where, names in ((log.evaluations, "evaluations", ("step",)), (log.steps, "steps", ("step",))):
        _refuse_out_of_range(log, table, where, names)
    for table, where, name in ((log.evaluations, "evaluations", "train_seconds"), (log.steps, "steps", "step_seconds")):
        if table.rows:
            _refuse(log, table, name, (table[name] < 0) | np.isinf(table[name]), "be a time, or NaN: not measured",
                    where)
    _refuse_twice(log)


def refuse_unsound_trials(log):
    """The same of /trials alone."""
    _identities(log)
    for name in ("global_batch", "workers"):
        _refuse(log, log.trials, name, log.trials[name] < 1, "be at least 1", "trials")
    _refuse_out_of_range(log, log.trials, "trials", ("global_batch", "workers", "budget_steps"))


def _refuse_out_of_range(log, table, where, names):
    for name in names:
        if table.rows:
            _refuse(log, table, name, table[name] < 0, "not be negative", where)
            _refuse(log, table, name, table[name] > MOST, f"be no more than {MOST:,}", where)


def _refuse_twice(log):
    """Each step of a trial is evaluated once, in whatever order the rows stand."""
    trial, step = log.evaluations["trial"], log.evaluations["step"]
    if not len(trial) or (((trial[1:] == trial[:-1]) & (step[1:] > step[:-1])) | (trial[1:] > trial[:-1])).all():
        return
    order = np.lexsort((step, trial))
    same = (trial[order][1:] == trial[order][:-1]) & (step[order][1:] == step[order][:-1])
    if same.any():
        at = int(same.argmax())
        raise LogError(f"{log.path}: trial {trial[order[at]]}: evaluations/step is {step[order[at]]} twice, at rows "
                       f"{order[at]} and {order[at + 1]}; two runs may have been given one trial id")


def _identities(log):
    """Ids are unique and statuses valid."""
    trials = log.trials
    ids, counts = np.unique(trials["id"], return_counts=True)
    if (counts > 1).any():
        trial = ids[counts > 1][0]
        rows = np.flatnonzero(trials["id"] == trial)
        raise LogError(f"{log.path}: trial {trial} stands in trials twice, at rows {rows[0]} and {rows[1]}")
    status = trials["status"]
    wrong = ~np.isin(status, [int(s) for s in Status])
    if wrong.any():
        row = int(wrong.argmax())
        raise LogError(f"{log.path}: trial {trials['id'][row]}: status is {status[row]}; "
                       f"there are {', '.join(f'{int(s)} {s.name}' for s in Status)}")


def _trials(log):
    """Ids are unique, statuses valid, and whoever has ended says why."""
    trials = log.trials
    _identities(log)
    status = trials["status"]
    silent = (status != Status.RUNNING) & (trials["stop_reason"] == "")
    if silent.any():
        row = int(silent.argmax())
        raise LogError(f"{log.path}: trial {trials['id'][row]}: is {Status(status[row]).name}, "
                       "but its stop_reason is empty")
    covered = trials["global_batch"] <= trials["local_batch"] * trials["accumulation"] * trials["workers"]
    if not covered.all():
        row = int((~covered).argmax())
        values = [int(trials[c][row]) for c in ("workers", "local_batch", "accumulation", "global_batch")]
        raise LogError(f"{log.path}: trial {trials['id'][row]}: {values[0]} workers x local batch {values[1]} x "
                       f"accumulation {values[2]} is less than the global batch {values[3]}")


def _references(log):
    """Every row's trial stands in /trials, and every trial has a row in /restarts."""
    ids = log.trials["id"]
    for table in log.tables[1:]:
        unknown = ~np.isin(table["trial"], ids)
        if unknown.any():
            row = int(unknown.argmax())
            raise LogError(f"{log.path}: trial {table['trial'][row]} has a row in {table.name} (row {row}), "
                           "but none in trials")
    unstarted = ~np.isin(ids, log.restarts["trial"])
    if unstarted.any():
        raise LogError(f"{log.path}: trial {ids[unstarted.argmax()]} has no row in restarts")


def _numbers(log):
    """Counts and times are not negative, batches and workers at least 1, and what is always measured is finite."""
    imported = _imported(log)
    for table in log.tables:
        for name in NOT_NEGATIVE[table.name]:
            _refuse(log, table, name, table[name] < 0, "not be negative")
        for name in FINITE.get(table.name, ()):
            wrong = ~np.isfinite(table[name])
            if wrong.any():         # of trials from elsewhere a time may be unknown
                wrong &= ~(np.isnan(table[name]) & np.isin(table["trial"], imported))
            _refuse(log, table, name, wrong, "be finite")
    for name in ("global_batch", "local_batch", "accumulation", "workers"):
        _refuse(log, log.trials, name, log.trials[name] == 0, "be at least 1")
    _refuse(log, log.steps, "step", log.steps["step"] == 0, "be at least 1: it counts its own step")


def _imported(log) -> np.ndarray:
    """Ids of the trials whose source says that they were imported, not logged."""
    sources = log.trials["source"]
    known = {text: '"imported"' in text for text in set(sources.tolist())}
    return log.trials["id"][np.array([known[text] for text in sources.tolist()], bool)]


def _refuse(log, table, name, wrong, what, where=None):
    if wrong.any():
        where = where or table.name
        row = int(wrong.argmax())
        trial = table["id" if where == "trials" else "trial"][row]
        raise LogError(f"{log.path}: trial {trial}: {where}/{name} is {table[name][row]} at row {row}, and must {what}")


def _time_order(log):
    """Within each trial steps increase from row to row, and seconds and examples do not fall."""
    for table, name, strict in ((log.evaluations, "step", True), (log.steps, "step", True),
                                (log.evaluations, "train_seconds", False), (log.evaluations, "examples", False)):
        order = np.argsort(table["trial"], kind="stable")
        trial, values = table["trial"][order], table[name][order]
        same = trial[1:] == trial[:-1]
        wrong = same & (values[1:] <= values[:-1] if strict else values[1:] < values[:-1])
        if wrong.any():
            at = int(np.flatnonzero(wrong)[order[1:][wrong].argmin()])
            raise LogError(f"{log.path}: trial {trial[at]}: {table.name}/{name} goes from {values[at]} to "
                           f"{values[at + 1]} at row {order[at + 1]}; two runs may have been given one trial id")


def _examples(log):
    """No evaluation has seen more examples than its steps hold."""
    table, trials = log.evaluations, log.trials
    order = np.argsort(trials["id"])
    batch = trials["global_batch"][order][np.searchsorted(trials["id"][order], table["trial"])] if table.rows else 0
    wrong = table["examples"] > table["step"] * batch
    if wrong.any():
        row = int(wrong.argmax())
        raise LogError(f"{log.path}: trial {table['trial'][row]}: evaluations/examples is {table['examples'][row]} at "
                       f"row {row}, more than {table['step'][row]} steps of {batch[row]} hold")


def _plans(log):
    """Each plan is JSON and says what the columns say."""
    trials = log.trials
    columns = {name: trials[name] for name in IN_PLAN if name in trials}
    for row, text in enumerate(trials["plan"]):
        where = f"{log.path}: trial {trials['id'][row]}"
        plan = _parse(where, text)
        for name, values in columns.items():
            part, key = IN_PLAN[name]
            planned = plan[part].get(key) if isinstance(plan.get(part), dict) else None
            if planned is not None and not _agree(values[row], planned):
                raise LogError(f"{where}: trials/{name} is {values[row]}, but its plan says {planned!r} ({part}.{key})")


def _parse(where, text) -> dict:
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LogError(f"{where}: plan is not JSON: {first_line(error)}") from error
    if not isinstance(plan, dict):
        raise LogError(f"{where}: plan is JSON, but no object: {text[:40]!r}")
    try:
        return read_plan(text)
    except LogError as error:
        raise LogError(f"{where}: {error}") from error


def _agree(column, planned) -> bool:
    if isinstance(planned, (int, float)) and not isinstance(column, str):
        return math.isclose(column, planned, rel_tol=1e-12) or column != column
    return column == planned
