"""Runs of the script on one worker and on several: processes started, awaited and ended in any case."""
from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from ...errors import HvdscaleError
from ...formatting.numbers import counted
from ...system.cores import usable_cores
from ...system.files import write_whole
from ...watch.spawning import PROCESSES
from ...workers.launch import Process
from ..played import bare
from .child import Task, fork, output_of
from .folder import Workplace, copy_of, make_workplace
from .meeting import free_port, meeting, of_horovodrun, of_torchrun, rendezvous
from .place import POLL_SECONDS, await_path
from .record import FAILED, RUNNING, Record, load

GRACE_SECONDS = 15.0            # that the other ranks have once one has ended
# where a worker's batch, that of all together, and the number of workers are in the script's arguments
LOCAL, GLOBAL, WORKERS = "{local}", "{global}", "{workers}"


@dataclass(frozen=True)
class Asked:
    """What is to be examined.

    batch    the global batch, for LOCAL and GLOBAL in the arguments; None: these are taken as they are
    updates  to watch before the epoch is cut short;  seconds  that a run may take
    """

    script: str
    arguments: tuple[str, ...]
    batch: int | None
    workers: int
    updates: int
    seconds: float

    def arguments_on(self, workers: int) -> tuple[str, ...]:
        marked = {WORKERS: workers}
        if self.batch is not None:
            marked.update({LOCAL: self.batch // workers, GLOBAL: self.batch})
        return tuple(reduce(lambda one, mark: one.replace(mark, str(marked[mark])), marked, one)
                     for one in self.arguments)


@dataclass(frozen=True)
class Run:
    """One run: a record of each rank, what was written, and whether it ran out of time."""

    records: list[Record]
    workplace: Workplace
    written: list[str]
    late: bool

    @property
    def workers(self) -> int:
        return len(self.records)


class ScriptError(HvdscaleError):
    """The script ended with an error of its own; ``traceback`` is what it printed."""

    def __init__(self, message: str, traceback: str):
        super().__init__(message)
        self.traceback = traceback


def run_here(asked: Asked, workers: int, place: Path) -> Run:
    """Run the script with all its ranks on this machine; raises ScriptError. ``place`` is a new folder."""
    workplace, records = _open(place)
    task = _task(asked, workers, workplace, records, workers)
    with meeting(asked.script, workers) as variables:
        started = {fork(task, rank, workers, workers, {**bare(), **each}): rank for rank, each in enumerate(variables)}
        late = _await(started, asked.seconds)
    return _collect(asked, workers, workplace, records, late)


def run_launched(asked: Asked, process: Process, place: Path) -> Run | None:
    """Run the script as this rank of a launch; rank 0 gets all ranks' records, once they are there, others None.

    place  the same folder on all ranks, which rank 0 makes
    """
    if process.rank:
        workplace, records = _find(place, asked.seconds)
        _run_rank(asked, process, workplace, records, place)
        return None
    workplace, records = _open(place)
    on_one_host = process.local_size == process.size
    with rendezvous(asked.script, process.size) if on_one_host else contextlib.nullcontext(0) as horovods:
        write_whole(place / "ready", f"{free_port()} {horovods}", sync=False)
        late = _run_rank(asked, process, workplace, records, place)
        _await_files(records, "ended", process.size, GRACE_SECONDS)
    return _collect(asked, process.size, workplace, records, late)


def _run_rank(asked: Asked, process: Process, workplace: Workplace, records: Path, place: Path) -> bool:
    """Run the script as this rank; whether it ran out of time."""
    port, horovods = map(int, (place / "ready").read_text().split())
    environment = {**of_torchrun(process.rank, process.size, process.local_rank, process.local_size, port),
                   **os.environ, **of_horovodrun(process.rank, process.size, horovods)}
    started = {fork(_task(asked, process.size, workplace, records, process.local_size), process.rank, process.size,
                    process.local_size, environment): process.rank}
    late = _await(started, asked.seconds, records)
    (records / f"rank{process.rank}.ended").touch()
    return late


def _open(place: Path) -> tuple[Workplace, Path]:
    records = place / "records"
    records.mkdir(parents=True)
    return make_workplace(Path.cwd(), place / "folder"), records


def _find(place: Path, seconds: float) -> tuple[Workplace, Path]:
    """What rank 0 has opened; raises HvdscaleError where it has not in time."""
    await_path(place / "ready", seconds)
    original, folder = Path.cwd(), copy_of(Path.cwd(), place / "folder")
    return Workplace(original, folder if folder.exists() else original, folder.exists(), {}), place / "records"


def _task(asked: Asked, workers: int, workplace: Workplace, records: Path, local_workers: int) -> Task:
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, len(usable_cores()) // max(asked.workers, local_workers)))
    return Task(asked.script, asked.arguments_on(workers), workplace.folder, records, asked.updates, threads)


def _await(started: Mapping[int, int], seconds: float, records: Path | None = None) -> bool:
    """Wait until all processes have ended; whether they ran out of time. Once one has, the others have GRACE_SECONDS.

    records  where ranks of other processes leave word that they have ended; None: all are in ``started``
    """
    running, until = dict(started), time.monotonic() + seconds
    latest, late = until, False
    try:
        while running:
            for child in list(running):
                if os.waitpid(child, os.WNOHANG)[0]:
                    del running[child]
                    until = min(until, time.monotonic() + GRACE_SECONDS)
            if records is not None and next(records.glob("*.ended"), None):
                until = min(until, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > until:
                late = until == latest
                break
            time.sleep(POLL_SECONDS)
    finally:
        for child in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)                # its loader workers, too
        for child in running:
            os.waitpid(child, 0)
    return late


def _await_files(records: Path, ending: str, size: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while len(list(records.glob(f"*.{ending}"))) < size and time.monotonic() < until:
        time.sleep(POLL_SECONDS)


def _collect(asked: Asked, workers: int, workplace: Workplace, folder: Path, late: bool) -> Run:
    """The records of all ranks; raises ScriptError where one failed, or none made an update."""
    records = [load(folder, rank, workers) for rank in range(workers)]
    for record in records:
        drew = folder / f"rank{record.rank}.drew"
        record.drew_in_workers = frozenset(drew.read_text().splitlines() if drew.exists() else ())
    failed = _first_failure(records, folder)
    on = f"on {counted(workers, 'worker')}"
    if failed is not None:
        made = f"after {counted(len(failed.updates), 'update')}" if failed.updates else "before its first update"
        last = (failed.error.strip().splitlines() or ["it was killed"])[-1]
        said = failed.error if failed.error.startswith("Traceback") else output_of(folder, failed.rank)
        raise ScriptError(f"{asked.script} {on}, rank {failed.rank}, {made}: {last}",
                          said.replace(str(workplace.folder), str(workplace.original)))
    if not all(record.updates for record in records):
        counts = ", ".join(f"rank {record.rank} made {len(record.updates)}" for record in records)
        why = f"within {asked.seconds:g} s ({counts}); --seconds allows more" if late else \
            "before it ended: no torch.optim.Optimizer made a step"
        own = next((f"; not followed: {one}" for one in records[0].remarks if one.startswith(PROCESSES)), "")
        raise ScriptError(f"{asked.script} {on} made no update {why}{own}", output_of(folder, 0))
    return Run(records, workplace, workplace.written(), late)


def _first_failure(records: list[Record], folder: Path) -> Record | None:
    """The record of the rank that failed first: the others lose their connection to it."""
    failed = [record for record in records if record.state == FAILED]
    stopped = any(record.state not in (FAILED, RUNNING) for record in records)
    if not failed or stopped and all(record.updates for record in records):
        return None
    return min(failed, key=lambda record: (folder / f"rank{record.rank}.record").stat().st_mtime_ns)
