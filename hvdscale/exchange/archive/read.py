"""Import of the published archive's layout (Shallue et al. 2019); see ``export`` for the other direction.

    import_archive("batch_science", "archive.h5")          a folder, or a .tar, .tar.gz, .tar.bz2 or .tar.xz of one

DATASET/MODEL/OPTIMIZER/BATCH/ has study.json and TRIAL/metadata.json, measurements.csv. DATASET may be two folders.
Folder names identify a study, as several studies share a data set name in study.json. In the log, trials of a study and
their evaluations are consecutive, ordered by the archive's ids.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import LogError
from ...log.schema import UNKNOWN_SEED
from ..files import LARGEST_INT, WrongFile, json_of, text_of, whole_number
from ..imported import ImportedLog, Seen, beyond_errors, skipped_note
from .sources import ArchiveStudy, Folder, Tar, is_folder
from .trial_files import LARGEST, ReadTrial, pieces, read_trials

TRIALS, BYTES = 48, 4 << 20             # that are read at once
# sizes of the training sets, which are not in the archive (55,000, 45,000 and 30,301,028: README of the archive's
# subsets, effect-dps-public and the paper's figure 9)
TRAIN_EXAMPLES = {"mnist": 55000, "fashion_mnist": 55000, "cifar_10": 45000, "lm1b": 30301028, "mnist_55000": 55000,
                  "mnist_27500": 27500, "mnist_13750": 13750, "mnist_6875": 6875}


def import_archive(source, out, *, skip_broken: bool = False, overwrite: bool = False, take_over: bool = False,
                   progress: Callable[[float], None] = lambda share: None) -> Seen:
    """Import all trials of an archive into the new log ``out``, which is created only on success; ``skip_broken``: skip
    and report what is wrong, which is else a LogError."""
    source = os.fspath(source)
    found = Folder(source) if os.path.isdir(source) else Tar(source)
    seen = Seen()
    with ImportedLog(out, {"kind": "archive", "from": source}, overwrite=overwrite, take_over=take_over) as log:
        for study, plan, (trials, wrong) in _read(found, seen, skip_broken):
            _add(log, study, plan, trials, seen)
            _report_wrong(wrong, seen, skip_broken)
            progress(found.share())
        if not seen.trials:
            raise LogError(seen.wrong[0] if seen.wrong else f"{source}: there is no study.json in it: no archive of "
                           "the layout dataset/model/optimizer/batch_size/study.json")
        seen.others, seen.notes = found.others, beyond_errors(log.errors)
        if seen.wrong:
            log.note("skipped", skipped_note(seen.wrong))
    return seen


def _read(found, seen, skip_broken) -> Iterator[tuple[ArchiveStudy, dict, tuple[list[ReadTrial], list[str]]]]:
    """Each batch of trials, in order, with its study and plan."""
    for study in found.studies():
        _report_wrong(study.wrong, seen, skip_broken)
        try:
            plan = _plan(study)
        except WrongFile as error:
            _report_wrong([str(error)] * max(1, len(study.trials)), seen, skip_broken)
            continue
        seen.studies += 1
        # a COMPLETE trial took all steps, unless it may have stopped at a target: then those of its metadata.json
        steps = 0 if plan["archive"]["study"].get("early_stopping") else plan["measurement"]["budget_steps"]
        for trials in pieces(study.trials, BYTES, lambda one: max(
                BYTES // TRIALS, len(one.measurements) if isinstance(one.measurements, bytes) else 0)):
            yield study, plan, read_trials(trials, steps)


def _report_wrong(wrong, seen, skip_broken):
    if wrong and not skip_broken:
        raise LogError(f"{wrong[0]}; --skip-broken leaves out what is wrong")
    seen.wrong += wrong


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
            "measurement": {"budget_steps": steps},
            "archive": {"path": "/".join(folders), "study": data}}


def _add(log: ImportedLog, study: ArchiveStudy, plan: dict, trials: list[ReadTrial], seen: Seen):
    *dataset, model, optimizer, folder = plan["archive"]["path"].split("/")
    size, step = int(folder), np.concatenate([np.empty(0, np.int64), *(one.step for one in trials)])
    if step.max(initial=0) > LARGEST_INT // size:
        raise LogError(f"{study.where}: {step.max()} steps of {size} examples are more than 64 bits can count")
    ids = log.trials([one.point for one in trials], {
        "status": [one.status for one in trials],
        "stop_reason": [f"the archive says {one.status.name}" for one in trials],
        "dataset": "/".join(dataset), "model": model, "optimizer": optimizer, "global_batch": size,
        "seed": UNKNOWN_SEED, "source_trial": [one.id for one in trials],
        "budget_steps": plan["measurement"]["budget_steps"],
        "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": plan["archive"]["path"], "imported": "archive"}, ensure_ascii=False),
        "metadata": [one.text for one in trials]})
    log.evaluations(ids, [one.rows for one in trials], step, step * size, {
        name: np.concatenate([one.values[name] if name in one.values else np.full(one.rows, np.nan) for one in trials])
        for name in dict.fromkeys(name for one in trials for name in one.values)})
    seen.trials += len(trials)
    seen.evaluations += len(step)
