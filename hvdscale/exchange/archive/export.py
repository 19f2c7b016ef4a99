"""Export of a log in the published archive's layout (see ``read``).

    export_archive("sweep.h5", "folder")

Imported archives are restored, value by value. Other trials keep their ids, in a study for each data set, model (with
arguments that the sweep does not search), optimizer and batch, with ``early_stopping`` where a COMPLETE trial ended
before ``train_steps``. RUNNING becomes INCOMPLETE. Times, steps, restarts and plans have no place in the layout.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...analysis.studies import group_by
from ...errors import LogError
from ...log.plan_text import plan_at
from ...log.reader import Log
from ...log.schema import Status
from ...target import ALIASES
from ..exported import exporting
from ..files import LARGEST_INT, RENAMED
from ..imported import Seen
from .read import STATUSES
from .sources import is_folder

PUBLISHED = {ours: theirs for theirs, ours in RENAMED.items()}      # names of metaparameters
METRICS = {ours: theirs for theirs, ours in ALIASES.items()}
SCALES = {"linear": "LINEAR_SCALE", "log": "LOG_SCALE", "reverse_log": "REVERSE_LOG_SCALE"}
TEXT = "utf-8", "replace", ""       # JSON may escape lone surrogates; line feeds stay
SEARCHED = {"lr": "learning_rate", **PUBLISHED}                     # names in a sweep's space


def export_archive(path, out, progress: Callable[[float], None] = lambda share: None) -> Seen:
    """Export the log's trials into the new folder ``out``, see ``exporting``; LogError for what names no folder."""
    with exporting(path, out) as (log, root):
        done, trials = Seen(), _Trials(log)
        taken: dict[str, str] = {}
        for rows in group_by(range(len(trials.ids)), trials.study_of).values():
            found = _evaluations_of(log, trials.ids[rows].tolist())
            last = [int(step[-1]) if len(step) else 0 for step, _ in found.values()]
            folder, text = trials.study(rows, last)
            if taken.setdefault(folder, text) != text:
                raise LogError(f"{log.path}: two studies of the log belong in {folder}; export them one by one")
            study = Path(root, folder)
            study.mkdir(parents=True, exist_ok=True)
            (study / "study.json").write_text(text, *TEXT)
            for row, end in zip(rows, last):
                trial = study / str(log.trials["source_trial" if trials.published[row] else "id"][row])
                if trial.exists():
                    raise LogError(f"{log.path}: {folder} has two trials {trial.name}; export them one by one")
                trial.mkdir()
                (trial / "metadata.json").write_text(trials.metadata(row, end), *TEXT)
                (trial / "measurements.csv").write_text(_measurements_text(*found[int(trials.ids[row])]), *TEXT)
                done.trials += 1
                done.own += not trials.published[row]
            done.studies += 1
            progress(done.trials / len(trials.ids))
        return done


class _Trials:
    """The trials of a log by row; ``published``: the text of a metadata.json, "" of one that is not from an archive."""

    def __init__(self, log: Log):
        self.path, self._table = log.path, (table := log.trials)
        self.ids = table["id"]
        self.published = table["metadata"] if "metadata" in table else np.full(len(self.ids), "", object)
        self._plans = [plan_at(log.path, trial, text) for trial, text in zip(self.ids.tolist(), table["plan"])]
        self._points = {name.partition("/")[2]: table[name] for name in table if name.startswith("metaparameters/")}

    def study_of(self, row: int) -> tuple:
        """What a trial shares with those of its study alone."""
        if isinstance(self._plans[row].get("archive"), Mapping):
            return (self._table["plan"][row],)
        return (*(self._table[name][row] for name in ("dataset", "model", "optimizer", "global_batch")),
                json.dumps(self._model_args(row)))

    def study(self, rows, last) -> tuple[str, str]:
        """A study's folder and the text of its study.json; last: the step of each trial's last evaluation."""
        plan = self._plans[rows[0]]
        published = plan.get("archive")
        if isinstance(published, Mapping) and {"path", "study"} <= published.keys():
            folder, study = str(published["path"]), published["study"]
        else:
            batch = int(self._table["global_batch"][rows[0]])
            dataset, model, optimizer = (str(self._table[name][rows[0]]) for name in ("dataset", "model", "optimizer"))
            model += "".join(f",{name}={value}" for name, value in self._model_args(rows[0]).items())
            sweep = plan.get("sweep") or {}
            steps = max(int(self._table["budget_steps"][row]) for row in rows)
            early = any(end < steps and self._table["status"][row] == Status.COMPLETE for row, end in zip(rows, last))
            folder, study = f"{dataset}/{model}/{optimizer}/{batch}", {
                "batch_size": batch, "dataset": dataset, "early_stopping": early or bool(sweep.get("prune_keep")),
                "model": model, "optimizer": optimizer, "train_steps": steps,
                "parameter_configs": dict(map(_config, sweep.get("space", ())))}
        if not all(map(is_folder, folder.split("/"))):
            raise LogError(f"{self.path}: {folder!r} cannot be the folder of a study: names of letters, digits and "
                           "+ - _ . , = @ are; --as csv takes any name")
        return folder, json.dumps(study, indent=2, sort_keys=True) + "\n"

    def metadata(self, row, steps: int) -> str:
        if self.published[row]:
            return self.published[row]
        status = Status(self._table["status"][row]).name
        found = {PUBLISHED.get(name, name): float(values[row]) for name, values in self._points.items()}
        point = {name: int(value) if value.is_integer() and abs(value) <= LARGEST_INT else value
                 for name, value in found.items() if not math.isnan(value)}
        return json.dumps({
            "_internal_study_name": str((self._plans[row].get("sweep") or {}).get("study", "")),
            "_internal_trial_id": int(self.ids[row]), "parameters": point,
            "status": status if status in STATUSES else Status.INCOMPLETE.name, "steps": steps,
            "trial_id": int(self.ids[row])}, indent=2, sort_keys=True) + "\n"

    def _model_args(self, row) -> dict:
        plan = self._plans[row]
        searched = {parameter.get("name") for parameter in (plan.get("sweep") or {}).get("space", ())}
        args = (plan.get("problem") or {}).get("model_args") or {}
        if not isinstance(args, Mapping):
            raise LogError(f"{self.path}: trial {self.ids[row]}: its plan's model_args are not an object; an archive "
                           "names a model by them, --as csv does not")
        return {name: value for name, value in sorted(args.items()) if f"model_args.{name}" not in searched}


def _evaluations_of(log: Log, ids: Sequence[int]) -> dict[int, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """(steps, values by column) by trial of one study, in the columns of which some of them has any value."""
    table = log.evaluations
    names = [name for name in table if "/" in name and table.specs[name].type == "float"]
    found = {trial: {name: table.of_trial(name, trial) for name in names} for trial in ids}
    measured = [name for name in names if not all(np.isnan(one[name]).all() for one in found.values())] or names
    return {trial: (table.of_trial("step", trial), {name: one[name] for name in measured})
            for trial, one in found.items()}


def _config(parameter) -> tuple[str, dict]:
    name = SEARCHED.get(parameter["name"], parameter["name"])
    if parameter["type"] == "discrete":
        return name, {"feasible_points": parameter["values"], "type": "DISCRETE"}
    return name, {"max_value": parameter["high"], "min_value": parameter["low"], "type": parameter["type"].upper(),
                  "scale": SCALES.get(parameter.get("scale"), "")}


def _measurements_text(step: np.ndarray, columns: Mapping[str, np.ndarray]) -> str:
    """measurements.csv of one trial; what was not measured is an empty cell."""
    header, cells = ["step"], [map(str, step.tolist())]
    for column, values in columns.items():
        split, _, metric = column.partition("/")
        published = f"{split}/{METRICS.get(metric, metric)}" if metric else split
        header.append(column if published in columns else published)
        cells.append(["" if math.isnan(value) else repr(value) for value in values.tolist()])
    return "".join(",".join(row) + "\n" for row in (header, *zip(*cells)))
