"""Import of the published archive's layout (Shallue et al. 2019); see ``export`` for the other direction.

    import_archive("batch_science", "archive.h5")          a folder, or a .tar, .tar.gz, .tar.bz2 or .tar.xz of one

DATASET/MODEL/OPTIMIZER/BATCH/ has study.json and TRIAL/metadata.json, measurements.csv. DATASET may be two folders.
Folder names identify a study, as several studies share a data set name in study.json. In the log, trials of a study and
their evaluations are consecutive, ordered by the archive's ids.
"""
from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from ...analysis.studies import group_by
from ...errors import LogError
from ...log.check import Rows, faults_of_rows, unfinished
from ...log.plan_text import MOST, format_value
from ...log.schema import UNKNOWN_SEED, Status
from ...target import ALIASES
from ..csv_file import CsvText
from ..files import (LARGEST_INT, METRIC, RENAMED, WrongFile, as_float, file_bytes, is_number, json_of, parameter_name,
                     text_of, whole_number)
from ..imported import ImportedLog, Seen, beyond_errors, imported_log, skipped_note
from .sources import LARGEST, ArchiveStudy, Folder, Tar, TrialFiles, is_folder

TRIALS = 48                             # that are read at once
# the archive's parameters that are always numbers
NUMBERS = ("learning_rate", "momentum", "label_smoothing", *RENAMED)
STATUSES = {status.name: status for status in Status if status != Status.RUNNING}
# sizes of the training sets, which are not in the archive (55,000, 45,000 and 30,301,028: README of the archive's
# subsets, effect-dps-public and the paper's figure 9)
TRAIN_EXAMPLES = {"mnist": 55000, "fashion_mnist": 55000, "cifar_10": 45000, "lm1b": 30301028, "mnist_55000": 55000,
                  "mnist_27500": 27500, "mnist_13750": 13750, "mnist_6875": 6875}


def import_archive(source, out, *, skip_broken: bool = False, progress: Callable[[float], None] = lambda share: None,
                   **how: bool) -> Seen:
    """Import all trials of an archive into the new log ``out``, see ``new_log``; ``skip_broken``: skip and report what
    is wrong, which is else a LogError."""
    source = os.fspath(source)
    found = Folder(source) if os.path.isdir(source) else Tar(source)
    seen = Seen()

    def leave_out(wrong: list[str]):
        if wrong and not skip_broken:
            raise LogError(f"{wrong[0]}; --skip-broken leaves out what is wrong")
        seen.wrong += wrong
    with imported_log(out, {"kind": "archive", "from": source}, **how) as log:
        for study in found.studies():
            leave_out(study.wrong)
            try:
                plan = _plan(study)
            except WrongFile as error:
                leave_out([str(error)] * max(1, len(study.trials)))
                continue
            seen.studies += 1
            # a COMPLETE trial took all steps, unless it may have stopped at a target: then those of its metadata.json
            early = plan["archive"]["study"].get("early_stopping")
            for first in range(0, len(study.trials), TRIALS):
                trials, wrong = read_trials(study.trials[first:first + TRIALS],
                                            0 if early else plan["measurement"]["budget_steps"])
                _add(log, study, plan, trials, seen)
                leave_out(wrong)
                progress(found.share())
        if not seen.trials:
            raise LogError(seen.wrong[0] if seen.wrong else f"{source}: there is no study.json in it: no archive of "
                           "the layout dataset/model/optimizer/batch_size/study.json")
        seen.others, seen.notes = found.others, beyond_errors(log.errors)
        if seen.wrong:
            log.file.note("skipped", skipped_note(seen.wrong))
    return seen


def _plan(study: ArchiveStudy) -> dict:
    """The plan of all trials of a study; raises WrongFile for an invalid study.json."""
    name = f"{study.where}/study.json"
    data = json_of(text_of(study.file, name, LARGEST["study.json"], follow=False), name, dict)
    batch = whole_number(data.get("batch_size"), 1, name, "batch_size")
    steps = whole_number(data.get("train_steps", 0), 0, name, "train_steps")
    if not isinstance(data.get("parameter_configs", {}), dict):
        raise WrongFile(f"{name}: parameter_configs is not an object")
    folders = list(study.folders[-5:])
    above = ("dataset", "model", "optimizer", "batch_size")[:max(0, 4 - len(folders))]      # source is a subfolder
    for key in above:
        if type(data.get(key)) not in (str, int) or not is_folder(str(data[key])):
            raise WrongFile(f"{name}: {key} is {data.get(key)!r}, which names no folder")
    folders = [str(data[key]) for key in above] + folders
    for folder in folders:
        if not is_folder(folder):
            raise WrongFile(f"{name}: {folder!r} above it is not a valid name for a data set, model or optimizer")
    if folders[-1] != str(batch):
        raise WrongFile(f"{name}: batch_size is {batch} in the folder {folders[-1]}")
    train_examples = TRAIN_EXAMPLES.get(folders[-4])
    return {"problem": {"train_examples": train_examples} if train_examples else {},
            "measurement": {"budget_steps": steps}, "archive": {"path": "/".join(folders), "study": data}}


def _add(log: ImportedLog, study: ArchiveStudy, plan: dict, trials: list[ReadTrial], seen: Seen):
    *dataset, model, optimizer, folder = plan["archive"]["path"].split("/")
    size, step = int(folder), np.concatenate([np.empty(0, np.int64), *(trial.step for trial in trials)])
    if step.max(initial=0) > LARGEST_INT // size:
        raise LogError(f"{study.where}: {step.max()} steps of {size} examples are more than 64 bits can count")
    ids = log.trials([trial.point for trial in trials], {
        "status": [one.status for one in trials], "budget_steps": plan["measurement"]["budget_steps"], "model": model,
        "stop_reason": [f"the archive says {one.status.name}" for one in trials], "dataset": "/".join(dataset),
        "optimizer": optimizer, "global_batch": size, "seed": UNKNOWN_SEED, "source_trial": [one.id for one in trials],
        "source": json.dumps({"path": plan["archive"]["path"], "imported": "archive"}, ensure_ascii=False),
        "plan": json.dumps(plan, ensure_ascii=False), "metadata": [trial.text for trial in trials]})
    log.evaluations(ids, [len(trial.step) for trial in trials], step, step * size, {
        name: np.concatenate([trial.values[name] if name in trial.values else np.full(len(trial.step), np.nan)
                              for trial in trials])
        for name in dict.fromkeys(name for one in trials for name in one.values)})
    seen.trials += len(trials)
    seen.evaluations += len(step)


def read_trials(trials: Sequence[TrialFiles], budget_steps: int = 0) -> tuple[list[ReadTrial], list[str]]:
    """The trials with valid files, in order, and messages about the others; ``budget_steps``: of a COMPLETE trial; 0:
    those that its metadata.json has."""
    wrong: list[str] = []
    found: list[ReadTrial] = []
    for trial in trials:
        try:
            found.append(ReadTrial(trial))
        except WrongFile as error:
            wrong.append(str(error))
    for same in group_by(found, lambda one: (one.header, one.separator)).values():      # at once, which is faster
        numbers = same[0].numbers(*same[1:])
        for one, end in zip(same, np.cumsum([one.rows for one in same])):
            one.read(None if numbers is None else numbers[end - one.rows:end])
    _apply_rules([one for one in found if not one.wrong], budget_steps)
    return [one for one in found if not one.wrong], wrong + [one.wrong for one in found if one.wrong]


@functools.lru_cache(64)
def column_names(header: tuple[str, ...]) -> list[str]:
    """The log's names of a file's columns: ALIASES, unless the log's own name occurs too; raises WrongFile."""
    found = []
    for name in header:
        split, _, metric = name.partition("/")
        alias = f"{split}/{ALIASES.get(metric, metric)}"
        if name != "step" and not METRIC.fullmatch(name):
            raise WrongFile(f"{name!r} is neither step nor split/metric, such as val/error (letters, digits, . + - _)")
        found.append(alias if metric and alias not in header else name)
        if found.count(found[-1]) > 1:
            raise WrongFile(f"two columns are named {name!r}")
    return found


class ReadTrial(CsvText):
    """A trial's two files: what is wrong with them, or ""; step (int64), values (float64 by column of the log) and the
    lines of the rows; of metadata.json text, id, status, steps, and as point the numeric "parameters", under our
    names."""

    def __init__(self, trial: TrialFiles):
        data = file_bytes(trial.measurements, f"{trial.folder}/measurements.csv", LARGEST["measurements.csv"])
        super().__init__(data, f"{trial.folder}/measurements.csv")
        self.wrong = ""
        if not data.strip():
            raise WrongFile(f"{self.name}: is empty, without even a header")
        if self.cut:
            raise WrongFile(self.cut_off())
        try:
            self.names = column_names(self.header)
        except WrongFile as error:
            raise WrongFile(f"{self.name}:1: {error}") from None
        if "step" not in self.names:
            raise WrongFile(f"{self.name}:1: there is no column step")
        self._read_metadata(trial)

    def read(self, numbers: np.ndarray | None) -> None:
        """Set step, values and places, or what is wrong; ``numbers``: the cells, if they were read."""
        try:
            columns, self.places = self.columns(["int" if name == "step" else "float" for name in self.names], None,
                                                numbers)
        except WrongFile as error:
            self.wrong = str(error)
            return
        self.values = dict(zip(self.names, columns.values()))
        self.step = self.values.pop("step")

    def _read_metadata(self, trial: TrialFiles) -> None:
        name = f"{trial.folder}/metadata.json"
        self.text = text_of(trial.metadata, name, LARGEST["metadata.json"], follow=False)
        data = json_of(self.text, name, dict)
        self.id = whole_number(data.get("trial_id"), 0, name, "trial_id", LARGEST_INT)
        if self.id != trial.id:
            raise WrongFile(f"{name}: trial_id is {self.id} in the folder of trial {trial.id}")
        if data.get("status") not in [*STATUSES]:
            raise WrongFile(f"{name}: status is {format_value(data.get('status'))}, not one of {', '.join(STATUSES)}")
        self.status = STATUSES[data["status"]]
        steps = data.get("steps")
        self.steps = steps if type(steps) is int and 0 <= steps <= MOST else None
        parameters = data.get("parameters", {})
        if not isinstance(parameters, dict):
            raise WrongFile(f"{name}: parameters is {format_value(parameters)}, not an object")
        self.point = {}
        for key, value in parameters.items():
            number = is_number(value)
            if (number or key in NUMBERS) and not (number and abs(value) < math.inf):
                raise WrongFile(f"{name}: {key} is {format_value(value)}, not a finite number")
            if number:
                self.point[parameter_name(key, name)] = as_float(value, f"{name}: {key}")


def _apply_rules(found: list[ReadTrial], budget_steps: int):
    """Mark files whose evaluations break the rules of a log, and COMPLETE trials that were not evaluated to their end;
    one of 0 steps was only timed, so that an archive has no evaluations of it."""
    ids = np.arange(len(found))
    rows = np.array([len(one.step) for one in found], int)
    first = np.cumsum(rows) - rows
    trials = Rows("trials", len(ids), {
        "id": ids, "status": np.array([one.status for one in found], int), "plan": ["{}"] * len(ids),
        "budget_steps": np.array([budget_steps or one.steps or 0 for one in found], np.int64)})
    evaluations = Rows("evaluations", int(rows.sum()), {
        "trial": np.repeat(ids, rows), "step": np.concatenate([np.empty(0, int), *(one.step for one in found)])})
    timed = np.array([one.steps == 0 for one in found], bool)
    said = "its budget is" if budget_steps else "its metadata.json says"
    for fault in chain(faults_of_rows(trials, evaluations), unfinished(trials, evaluations, timed, said)):
        for row in fault.rows.tolist():
            one, at = found[fault.trial(row)], row - first[fault.trial(row)]
            where = f":{one.places[at]}" if fault.table is evaluations else f": trial {one.id}"
            one.wrong = one.wrong or f"{one.name}{where}{fault.say(row, '')}"
