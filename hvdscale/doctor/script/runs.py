"""Runs of the script on one worker and on several, each in a copy of the working folder; what ended them early."""
from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from ...errors import HvdscaleError, UsageError
from ...formatting.numbers import counted, listed
from ...system.cores import describe_load
from ...watch import runner
from ...watch.lines import is_own
from ...watch.place import SHARE, await_path
from ...watch.remarks import PROCESSES
from ...watch.runner import ENDED, FAILED, RUNNING, STOPPED, ScriptRequest, after, describe_failure
from ...workers.launch import Process
from .record import LEFT_OUT, SCRATCH, Record, State, least, load, state_of

RANK = "hvdscale.doctor.script.rank"
STANDS = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)
WAITING = re.compile(r"torch/(distributed|nn/parallel|autograd)/|/horovod/|/watch/collectives")   # of the innermost
LOST = re.compile(r"Connection (closed|reset) by|remote (worker|process)|Broken pipe")
DIED = "its process died: it was killed, was out of memory, or called os._exit"
UNLIKE = "the ranks' collectives have different sizes"
MISMATCH = "op.preamble.length <= op.nbytes"         # by which Gloo ends a process
OF_OTHERS = "a rank makes a call that another one leaves out, as where only some ranks evaluate, stop or skip"
LARGEST = 512 << 20                     # bytes that are copied, at most
MOST_BESIDE = 1000                      # files and folders beside it that are linked to
ABOVE = 2                               # folders above it from which the script may import


@dataclass(frozen=True)
class Run:
    records: list[Record]       # one a rank
    place: Path                 # where the ranks left them, and what they printed
    workplace: Workplace
    written: list[str]
    late: bool                  # it ran out of time

    @property
    def workers(self) -> int:
        return len(self.records)


class ScriptError(HvdscaleError):
    """The script ended with an error of its own; ``traceback`` is what it printed. It may ``need_more`` workers, if it
    made no update and had the time for it."""

    def __init__(self, message: str, traceback: str, need_more: bool = False):
        super().__init__(message)
        self.traceback, self.need_more = traceback, need_more


def run_here(asked: ScriptRequest, workers: int, place: Path) -> Run:
    """Run the script with all its ranks on this machine; raises ScriptError. ``place`` is a new folder."""
    try:
        return checked(asked, run_ranks(asked, workers, place, make_workplace(Path.cwd(), place / "folder")))
    except ScriptError as error:
        if workers > 1 and "mpi4py" in _text_of(Path(asked.script)):
            raise ScriptError(f"{error}. The script asks MPI for its ranks, which made a world of one of each: start "
                              f"it by mpirun -np {workers} hvdscale-doctor script ...", error.traceback) from None
        raise


def run_ranks(asked: ScriptRequest, workers: int, place: Path, workplace: Workplace, module: str = RANK, **task: int
              ) -> Run:
    """Run all ranks, whether the script fails or not; ``task``: of theirs."""
    place.mkdir(exist_ok=True)
    return _collect(workers, place, workplace, runner.run_here(asked, workers, module, place, workplace.folder, **task))


def run_launched(asked: ScriptRequest, process: Process, place: Path) -> Run | None:
    """Run the script as this rank of a launch; rank 0 gets all ranks' records, once they are there, others None. The
    place is the same folder on all ranks, which rank 0 makes."""
    if process.rank:
        await_path(place / runner.TASK, asked.seconds, SHARE)
        original, folder = Path.cwd(), copy_of(Path.cwd(), place / "folder")
        _run_rank(asked, process, place, folder if folder.exists() else original)
        return None
    place.mkdir()
    workplace, on_one_host = make_workplace(Path.cwd(), place / "folder"), process.local_size == process.size
    with runner.rendezvous(asked.script, process.size) if on_one_host else contextlib.nullcontext(0) as horovods:
        runner.write_task(asked, place, port=runner.free_port(), horovods=horovods)
        end = _run_rank(asked, process, place, workplace.folder)
    return checked(asked, _collect(process.size, place, workplace, end))


def _run_rank(asked: ScriptRequest, process: Process, place: Path, folder: Path) -> runner.RunEnd:
    """Run the script as this rank, which meets the others by the ports of the task."""
    task, (rank, size) = runner.read_task(place), (process.rank, process.size)
    environment = {**runner.of_torchrun(rank, size, process.local_rank, process.local_size, task["port"]),
                   **os.environ, **runner.of_horovodrun(rank, size, task["horovods"])}
    return runner.run_launched(asked, process, RANK, place, environment, folder)


def _collect(workers: int, place: Path, workplace: Workplace, end: runner.RunEnd) -> Run:
    records = [load(place, rank, workers) for rank in range(workers)]
    for record in records:
        record.drew_in_workers = frozenset(_text_of(runner.file_of(place, record.rank, "drew")).splitlines())
    return Run(records, place, workplace, workplace.written(), end.late)


def _text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def checked(asked: ScriptRequest, run: Run) -> Run:
    """The run; raises ScriptError where a rank failed, or none made an update."""
    if error := find_error(asked, run):
        raise error
    return run


def find_error(asked: ScriptRequest, run: Run) -> ScriptError | None:
    """What a rank failed with, or that none made an update."""
    records, workplace = run.records, run.workplace
    printed = [_text_of(runner.file_of(run.place, record.rank, "stderr")) for record in records]
    idle = [f"rank {record.rank}" for record in records if not record.updates]
    unlike = any(MISMATCH in text for text in printed)
    failed = _first_failure(run, unlike)
    if failed is not None:
        last = f"{UNLIKE}: {OF_OTHERS}" if unlike else runner.line_of_error(failed.error)
        if any(record.state == ENDED for record in records):
            last += f". Another rank had ended: {OF_OTHERS}"
        said = failed.error if failed.error.startswith("Traceback") else printed[failed.rank]
        if "FileNotFoundError" in last and workplace.copied:
            last += (f". The script ran in a copy of {workplace.original}, with what lies beside it; start the "
                     "doctor in a folder above that has all its files")
        message, said = (text.replace(str(workplace.folder), str(workplace.original)) for text in (
            describe_failure(asked, run.workers, failed.rank, failed.made, last), said))
        return ScriptError(message, said, not failed.made)
    on = f"{asked.script} on {counted(run.workers, 'worker')}"
    if waiting := _waiting(run):
        return ScriptError(f"{on} hangs {after(least(records))}: {waiting}; {OF_OTHERS}", "")
    if idle:
        counts = ", ".join(f"rank {record.rank} made {len(record.updates)}" for record in records)
        why = "before it ended: no torch.optim.Optimizer made a step"
        if run.late:
            why = f"within {asked.seconds:g} s ({counts}); --seconds allows more"
        elif len(idle) < len(records):
            why = f"on {listed(idle)} ({counts}); only steps of torch.optim's optimizers on all ranks can be compared"
        lines = [*filter(str.strip, (_text_of(run.place / "rank0.stdout") + printed[0]).splitlines())]
        why += f"; the last that it printed: {lines[-1].strip()[:200]!r}" if lines else ""
        why += f"; {busy}" if run.late and (busy := describe_load()) else ""
        own = next((f"; not followed: {one}" for one in records[0].remarks if one.startswith(PROCESSES)), "")
        return ScriptError(f"{on} made no update {why}{own}", printed[0], not run.late)
    return None


def _waiting(run: Run) -> str:
    """Where ranks that had not ended stood, if each waited for others elsewhere, or for an ended one; else empty."""
    running, found = [record.rank for record in run.records if record.state == RUNNING], {}
    for rank in running:
        frames = STANDS.findall(_text_of(runner.file_of(run.place, rank, "stack")))
        own = [f"{os.path.basename(file)}:{line}" for file, line in frames if is_own(file)]
        if not own or not WAITING.search(frames[0][0]):
            return ""
        found[rank] = own[0]
    ended = [f"rank {record.rank} has ended" for record in run.records if record.state == ENDED]
    stopped = any(record.state == STOPPED for record in run.records)
    if not running or stopped or len({*found.values()}) < 2 and not ended:
        return ""
    return listed([*(f"rank {rank} waits at {line}" for rank, line in found.items()), *ended])


def _first_failure(run: Run, unlike: bool) -> Record | None:
    """The record of the rank that failed first; None where that follows from the watcher's own end of an epoch or of a
    rank, which others go on without. ``unlike``: whether collectives of different sizes ended a process."""
    cut = any(record.was_cut for record in run.records)
    stopped = any(record.state == STOPPED or record.state == ENDED and record.was_cut for record in run.records)
    failed = {record.rank for record in run.records if record.state == FAILED}
    lost = {rank for rank in failed if LOST.search(run.records[rank].error)}       # what follows from another's end
    if cut and unlike or stopped and (failed == lost or all(record.updates for record in run.records)):
        return None
    for record in run.records if failed and failed == lost else ():
        if run.late and record.rank in lost:
            record.state = RUNNING
        elif record.state == RUNNING and not (run.late or _text_of(runner.file_of(run.place, record.rank, "stack"))):
            record.error = DIED
            return record
    rank = runner.first_to_fail(run.place, failed - lost or (() if run.late else lost))
    if rank is None and unlike:             # the rank that did not see it waits, or ended first
        rank = next((record.rank for record in run.records if not record.updates), None)
    return None if rank is None else run.records[rank]


@dataclass(frozen=True)
class Workplace:
    """Where the script runs."""

    original: Path
    folder: Path
    copied: bool                # it is a copy of ``original``, which is left as it is; else it is ``original`` itself
    before: State

    def written(self) -> list[str]:
        """The files that the script has written or removed here."""
        now = state_of(self.folder)
        return sorted(name for name in {*now, *self.before} if now.get(name) != self.before.get(name))


def make_workplace(original: Path, place: Path) -> Workplace:
    """A copy of the folder at a new place; the folder itself where it is larger than LARGEST. Links stay links, so
    large data may be linked to; .git and .venv are linked to, as is what lies beside the folder, and what Python can
    import from the folders above. Raises UsageError where something cannot be copied."""
    before = state_of(original)
    if sum(size for size, _ in before.values()) > LARGEST:
        return Workplace(original, original, False, before)
    folder = copy_of(original, place)
    folder.parent.mkdir(parents=True)
    try:
        shutil.copytree(original, folder, symlinks=True, ignore=partial(_ignored, place))
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise UsageError(f"{path}: cannot be copied: {why}; run the script in a folder of its own") from None
    for name in LEFT_OUT:
        if (original / name).exists() and not (folder / name).is_symlink():
            (folder / name).symlink_to(original / name)
    for above, copy in zip(original.parents[:ABOVE], folder.parents):
        with contextlib.suppress(OSError), os.scandir(above) as beside:
            for one in islice(beside, MOST_BESIDE):
                near = above == original.parent and not one.name.startswith(".")
                package = one.name.isidentifier() and os.path.isfile(os.path.join(one.path, "__init__.py"))
                if (near or package or one.name.endswith(".py")) and not (copy / one.name).exists():
                    (copy / one.name).symlink_to(one.path)
    return Workplace(original, folder, True, state_of(folder))


def copy_of(original: Path, place: Path) -> Path:
    """Where the copy of a folder is made, below folders that are named as those above the original."""
    return place.joinpath(*original.parts[1:][-ABOVE - 1:])


def _ignored(place: Path, folder: str, names: list[str]) -> list[str]:
    """Names that are not copied: those left out, the copy itself, and what is neither file nor folder nor link."""
    own = {place, *(above for above in place.parents if above.name.startswith((SCRATCH, "hvdscale-")))}
    paths = [Path(folder, name) for name in names]
    plain = {one for one in paths if one.is_symlink() or os.access(one, os.R_OK) and (one.is_dir() or one.is_file())}
    return [path.name for path in paths
            if path.name in LEFT_OUT or path.name.startswith(SCRATCH) or path in own or path not in plain]
