"""Import of the published archive's layout (Shallue et al. 2019); see archive_export for the other direction.

    import_archive("batch_science", "archive.h5")          a folder, or a .tar, .tar.gz, .tar.bz2 or .tar.xz of one

    DATASET/MODEL/OPTIMIZER/BATCH/study.json                        search space, train_steps
    DATASET/MODEL/OPTIMIZER/BATCH/TRIAL/metadata.json               status, parameters
    DATASET/MODEL/OPTIMIZER/BATCH/TRIAL/measurements.csv            step, split/metric, ...

DATASET may be two folders (solution_quality/mnist). Folder names identify a study, as several studies share a data set
name in study.json. In the log, trials of a study and their evaluations are consecutive, ordered by the archive's ids,
which ``source_trial`` keeps. A trial's plan is the study's (``archive.path``, and study.json as ``archive.study``). The
archive has no seeds. An export of an import has the same values.
"""
from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import resource_tracker

import numpy as np

from ..errors import LogError, UsageError
from ..log.schema import UNKNOWN_SEED, Status
from ..system.cores import usable_cores
from ..system.parent import end_with_parent
from .archive_files import (LARGEST, LARGEST_INT, Batch, TrialFiles, WrongFile, file_bytes, json_object, read_trials,
                            refuse_deep, refuse_large, whole_number)
from .imported import ImportedLog, beyond_errors, skipped_note
from .unpacking import unpacked

TRIALS, BYTES = 48, 4 << 20             # of one task of a reading process
ALONE = 1000                            # up to this many trials are read before processes would have started
LARGEST_STUDY = 4 << 30                 # bytes of a study's files in a tar file, held in memory
LARGEST_HEADER = 1 << 20                # bytes of an extended header, held in memory
EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE)
ROOT = "batch_science"                  # the published archive's top folder
GROUPS = ("mnist_subsets", "imagenet_subsets", "solution_quality")      # of data sets, in the published archive
FILES = ("metadata.json", "measurements.csv")
# sizes of the training sets, which are not in the archive (55,000, 45,000 and 30,301,028: README of the archive's
# subsets, effect-dps-public and the paper's figure 9)
TRAIN_EXAMPLES = {"mnist": 55000, "fashion_mnist": 55000, "cifar_10": 45000, "lm1b": 30301028, "mnist_55000": 55000,
                  "mnist_27500": 27500, "mnist_13750": 13750, "mnist_6875": 6875}


@dataclass
class Seen:
    """Progress of an import.

    trials, evaluations, studies  imported so far;  size: bytes of their files
    share                         of the work done
    wrong                         messages about wrong files, one each
    others                        files that do not belong to the layout
    notes                         on suspicious values
    """

    trials: int = 0
    evaluations: int = 0
    studies: int = 0
    size: int = 0
    share: float = 0.0
    wrong: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Study:
    """A study as found.

    file    study.json as bytes or a path; None: missing
    """

    folders: tuple[str, ...]
    where: str
    file: bytes | str | None
    trials: list[TrialFiles]
    wrong: list[str] = field(default_factory=list)


def import_archive(source, out, *, skip_broken: bool = False, overwrite: bool = False, take_over: bool = False,
                   progress: Callable[[Seen], None] = lambda seen: None, cores: int | None = None) -> Seen:
    """Import all trials of an archive into the new log ``out``, which is created only on success.

    skip_broken  skip wrong or missing files and report them; otherwise the first is a LogError
    cores        reading processes; None: all usable cores
    """
    source = os.fspath(source)
    found = _Folder(source) if os.path.isdir(source) else _Tar(source)
    seen = Seen()
    with ImportedLog(out, {"kind": "archive", "from": source}, overwrite=overwrite, take_over=take_over) as log:
        with _Readers(source, cores or len(usable_cores())) as readers:
            for study, plan, batch in _read(found, readers, seen, skip_broken):
                _add(log, study, plan, batch, seen)
                _report_wrong(batch.wrong, seen, skip_broken)
                seen.share = found.share(seen.trials + len(seen.wrong))
                progress(seen)
        if not seen.trials:
            raise LogError(seen.wrong[0] if seen.wrong else f"{source}: there is no study.json in it: no archive of "
                           "the layout dataset/model/optimizer/batch_size/study.json")
        seen.others, seen.notes = found.others, beyond_errors(log.errors)
        if seen.wrong:
            log.note("skipped", skipped_note(seen.wrong))
    return seen


def _read(found, readers, seen, skip_broken) -> Iterator[tuple[Study, dict, Batch]]:
    """Batches of trials in order, each with its study and plan; several are read in parallel."""
    waiting: deque = deque()
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
        for trials in _split_into_tasks(study.trials):
            waiting.append((study, plan, readers.submit(trials, steps)))
            while len(waiting) > readers.ahead:
                yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting):
    study, plan, batch = waiting.popleft()
    return study, plan, batch()


def _report_wrong(wrong, seen, skip_broken):
    if wrong and not skip_broken:
        raise LogError(f"{wrong[0]}; --skip-broken leaves out what is wrong")
    seen.wrong += wrong


def _split_into_tasks(trials):
    piece, size = [], 0
    for trial in trials:
        more = len(trial.measurements) if isinstance(trial.measurements, bytes) else 0
        if piece and (len(piece) == TRIALS or size + more > BYTES):
            yield piece
            piece, size = [], 0
        piece.append(trial)
        size += more
    if piece:
        yield piece


class _Readers:
    """Processes that read trials; started only for many trials and more than one core. They end with this process."""

    def __init__(self, source: str, cores: int):
        self.ahead, self._source, self._cores, self._trials = 0, source, cores, 0
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, trials, budget_steps: int) -> Callable[[], Batch]:
        """A function that returns the batch; after the loss of a reading process leaving ``with`` raises LogError."""
        self._trials += len(trials)
        if self._pool is None and self._cores > 1 and self._trials > ALONE:
            resource_tracker.ensure_running()                                   # its start would reset the mask
            self._pool = ProcessPoolExecutor(self._cores, multiprocessing.get_context("spawn"), end_with_parent)
            self.ahead = 2 * self._cores
        if self._pool is None:
            return lambda: read_trials(trials, budget_steps)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])        # the processes ignore Ctrl-C
        try:
            return self._pool.submit(read_trials, trials, budget_steps).result
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if kind is BrokenProcessPool:
            raise LogError(f"{self._source}: a process that read it was lost; the machine may be out of "
                           "memory") from error


def _plan(study: Study) -> dict:
    """The plan of all trials of a study; raises WrongFile for an invalid study.json."""
    name = f"{study.where}/study.json"
    data, _ = json_object(file_bytes(study.file, name), name)
    refuse_deep(data, name)
    batch = whole_number(data.get("batch_size"), 1, name, "batch_size")
    steps = whole_number(data.get("train_steps", 0), 0, name, "train_steps")
    if not isinstance(data.get("parameter_configs", {}), dict):
        raise WrongFile(f"{name}: parameter_configs is not an object")
    folders = list(study.folders[-5:])
    above = ("dataset", "model", "optimizer", "batch_size")[:max(0, 4 - len(folders))]      # source is a subfolder
    folders = [_folder(data.get(key), name, key) for key in above] + folders
    for folder in folders:
        if not is_folder(folder):
            raise WrongFile(f"{name}: {folder!r} above it is not a valid name for a data set, model or optimizer")
    if folders[-1] != str(batch):
        raise WrongFile(f"{name}: batch_size is {batch} in the folder {folders[-1]}")
    train_examples = TRAIN_EXAMPLES.get(folders[-4])
    return {"problem": {"train_examples": train_examples} if train_examples else {},
            "measurement": {"budget_steps": steps},
            "archive": {"path": "/".join(folders), "study": data}}


def _folder(value, name, key) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not is_folder(str(value)):
        raise WrongFile(f"{name}: {key} is {value!r}, which names no folder")
    return str(value)


def is_folder(name: str) -> bool:
    """Whether a name can be a folder of an archive and contains no path."""
    return bool(re.fullmatch(r"[\w+-][\w.+@=, -]*", name)) and len(name.encode()) < 256


def _add(log: ImportedLog, study: Study, plan: dict, batch: Batch, seen: Seen):
    *dataset, model, optimizer, size = plan["archive"]["path"].split("/")
    size, count = int(size), len(batch.ids)
    if len(batch.step) and int(batch.step.max()) > LARGEST_INT // size:
        raise LogError(f"{study.where}: {batch.step.max()} steps of {size} examples are more than 64 bits can count")
    status = np.array(batch.status, np.int8)
    ids = log.trials({
        "status": status, "stop_reason": [f"the archive says {Status(s).name}" for s in batch.status],
        "dataset": "/".join(dataset), "model": model, "optimizer": optimizer, "global_batch": size,
        "seed": UNKNOWN_SEED, "source_trial": np.array(batch.ids, np.int64),
        "budget_steps": plan["measurement"]["budget_steps"],
        "plan": [json.dumps(plan, ensure_ascii=False)] * count,
        "source": json.dumps({"path": plan["archive"]["path"], "imported": "archive"}, ensure_ascii=False),
        "metadata": batch.metadata}, batch.points)
    log.evaluations(ids, batch.rows, batch.step, batch.step * size, batch.columns)
    seen.trials += count
    seen.evaluations += len(batch.step)
    seen.size += batch.size


class _Folder:
    """An archive in a folder. Links are not followed: one from elsewhere must not expose other files of this machine.
    """

    def __init__(self, root: str):
        self.root, self.others = root, []
        self._found = sorted(self._study_folders(), key=lambda found: _order(found[0]))
        if not self._found:
            raise LogError(f"{root}: there is no study.json in it: no archive of the layout "
                           "dataset/model/optimizer/batch_size/study.json, and no trials.csv: no tables")
        self.trials = sum(1 for _, path in self._found for entry in os.scandir(path) if _is_folder(entry))

    def share(self, done: int) -> float:
        """The share of the work done after this many trials."""
        return done / self.trials if self.trials else 1.0

    def studies(self) -> Iterator[Study]:
        for folders, path in self._found:
            where = os.path.join(self.root, *folders)
            study = Study(_inner(folders), where, os.path.join(path, "study.json"), [])
            for entry in os.scandir(path):
                if not _is_folder(entry):
                    if entry.name != "study.json":
                        self.others.append(os.path.join(where, entry.name) + " (a link)" * entry.is_symlink())
                elif _trial_id(entry.name) is None:
                    study.wrong.append(f"{where}/{entry.name}: is not a trial number")
                else:
                    study.trials.append(self._trial(where, entry))
            study.trials.sort(key=lambda trial: trial.id)
            yield study

    def _trial(self, where, entry) -> TrialFiles:
        return TrialFiles(f"{where}/{entry.name}", int(entry.name), *(os.path.join(entry.path, name) for name in FILES))

    def _study_folders(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Folders with a study.json, up to six levels deep, and folders of trials that lack it."""
        waiting = [((), self.root)]
        while waiting:
            folders, path = waiting.pop()
            try:
                entries = list(os.scandir(path))
            except OSError as error:
                raise LogError(f"{path}: cannot be read: {error.strerror}") from error
            names = [entry.name for entry in entries if _is_folder(entry)]
            if any(entry.name == "study.json" for entry in entries) or _holds_trials(path, names):
                yield folders, path
            elif len(folders) < 6:
                self.others += [f"{entry.path} (a link)" for entry in entries if entry.is_symlink()]
                waiting += [((*folders, name), os.path.join(path, name)) for name in names]


def _is_folder(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _holds_trials(path, names) -> bool:
    return any(_trial_id(name) is not None and os.path.isfile(os.path.join(path, name, "metadata.json"))
               for name in names[:3])


def _trial_id(name: str) -> int | None:
    return int(name) if re.fullmatch(r"0|[1-9][0-9]{0,17}", name) else None


def _inner(folders):
    """The folders below the archive's top folder."""
    while folders and folders[0] in (".", ROOT):
        folders = folders[1:]
    return folders


def _order(folders):
    """Sort key: workload, then batch size as a number."""
    batch = _trial_id(folders[-1]) if folders else None
    return folders[:-1], batch if batch is not None else 0, folders


class _Tar:
    """An archive in a tar file, read once from start to end without unpacking to disk."""

    def __init__(self, path: str):
        self.path, self.others = path, []
        try:
            self._raw = open(path, "rb")
        except OSError as error:
            raise UsageError(f"{path}: cannot be opened: {error.strerror}") from error
        self._size = os.path.getsize(path)

    def share(self, done: int) -> float:
        """The share of the file read so far."""
        return 1.0 if self._raw.closed or not self._size else self._raw.tell() / self._size

    def studies(self) -> Iterator[Study]:
        """Each study once all its members were read; LogError if they are not contiguous."""
        try:
            with (self._raw, unpacked(self._raw) as file,
                  tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as tar):
                yield from self._of(tar)
        except (tarfile.TarError, EOFError, OSError, RecursionError, TypeError, ValueError) as error:      # of headers
            raise LogError(f"{self.path}: is not a tar file, or is damaged: {error}") from error
        except Exception as error:                      # zlib.error, lzma.LZMAError: without a common base
            if type(error).__module__ not in ("zlib", "_lzma", "lzma"):
                raise
            raise LogError(f"{self.path}: is damaged: {error}") from error

    def _of(self, tar):
        study, done = None, set()
        while (member := tar.next()) is not None:
            tar.members.clear()                     # tarfile would keep all of them
            place = self._place(member)
            if place is None:
                continue
            folders, trial, name = place
            if study is None or study.folders != folders:
                if study is not None:
                    done.add(study.folders)
                    yield study.finish(self.path)
                if folders in done:
                    raise LogError(f"{self.path}: the files of {'/'.join(folders)} are not contiguous in it; unpack "
                                   "it, and import the folder")
                study = _TarStudy(folders)
            study.take(self, tar, member, trial, name)
        if study is not None:
            yield study.finish(self.path)

    def _place(self, member) -> tuple[tuple[str, ...], str, str] | None:
        """(folders of the study, trial or "", file name); None for a file that does not belong to the layout."""
        if member.isdir():
            return None
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        name = parts[-1] if parts else ""
        depth = 1 if name == "study.json" else 2
        if name not in LARGEST or len(parts) <= depth:
            self.others.append(f"{self.path}: {member.name}")
            return None
        folders = _inner(tuple(parts[:-depth]))
        if len(folders) == 5 and folders[0] not in GROUPS and not member.name.startswith("./"):
            folders = folders[1:]               # the tar file contains the folder itself
        return folders[-5:], parts[-2] if depth == 2 else "", name


class _Member(tarfile.TarInfo):
    """A member of a tar file; an invalid or huge header is an error, not the end of the file."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        """As in tarfile, but ReadError if the file ends without a block of zeros."""
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}; it is cut off, or was changed") from error
        if found.type in EXTENDED and found.size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {found.size} bytes")
        return found


class _TarStudy:
    def __init__(self, folders):
        self.folders, self._size = folders, 0
        self._file, self._trials, self._wrong = None, {}, []

    def take(self, source, tar, member, trial, name):
        """Read a member; invalid ones are noted."""
        full = f"{source.path}: {member.name}"
        try:
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise WrongFile(f"{full}: leads out of the archive")
            if not member.isreg() or member.issparse():
                raise WrongFile(f"{full}: is not a regular file, but a link or the like")
            if trial and _trial_id(trial) is None:
                raise WrongFile(f"{full}: {trial} is not a trial number")
            refuse_large(member.size, full)
            holder = self._trials.setdefault(int(trial), {}) if trial else {}
            if name in holder or (not trial and self._file is not None):
                raise WrongFile(f"{full}: is there twice")
        except WrongFile as error:
            self._wrong.append(str(error))
            return
        self._size += member.size
        if self._size > LARGEST_STUDY:
            raise LogError(f"{source.path}: the files of {'/'.join(self.folders)} have more than {LARGEST_STUDY >> 30} "
                           "GiB, too many to hold at once; unpack it, and import the folder")
        data = tar.extractfile(member).read()
        if trial:
            holder[name] = data
        else:
            self._file = data

    def finish(self, source: str) -> Study:
        where = f"{source}: {'/'.join(self.folders)}"
        trials = [TrialFiles(f"{where}/{trial}", trial, *(files.get(name) for name in FILES))
                  for trial, files in sorted(self._trials.items())]
        return Study(self.folders, where, self._file, trials, self._wrong)
