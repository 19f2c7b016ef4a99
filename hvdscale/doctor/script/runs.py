"""Runs of the script on one worker and on several: processes started, awaited and ended in any case.

They meet by the variables of torchrun, and of horovodrun for scripts with Horovod.
"""
from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import HvdscaleError
from ...formatting.numbers import counted, listed
from ...system.files import write_whole
from ...watch.lines import is_own
from ...watch.spawning import PROCESSES
from ...workers.launch import Process
from ..played import bare
from .child import ScriptRequest, fork, output_of, stack_of
from .folder import Workplace, copy_of, make_workplace
from .place import POLL_SECONDS, await_path
from .record import ENDED, FAILED, RUNNING, STOPPED, Record, load

GRACE_SECONDS = 15.0            # that the other ranks have once one has ended
STACK_SECONDS = 0.5             # that a rank has to write where it stands
STANDS = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)
WAITING = re.compile(r"torch/(distributed|nn/parallel|autograd)/|/horovod/")      # of the innermost call
MISMATCH = "op.preamble.length <= op.nbytes"         # by which Gloo ends a process
OF_OTHERS = "a rank makes a call that another one leaves out, as where only some ranks evaluate, stop or skip"


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


def run_here(asked: ScriptRequest, workers: int, place: Path) -> Run:
    """Run the script with all its ranks on this machine; raises ScriptError. ``place`` is a new folder."""
    workplace, records = _open(place)
    with meeting(asked.script, workers) as variables:
        started = {fork(asked, Process(None, rank, workers, rank, workers, ""), workplace.folder, records,
                        {**bare(), **each}): rank for rank, each in enumerate(variables)}
        late = _await(started, asked.seconds)
    return _collect(asked, workers, workplace, records, late)


def run_launched(asked: ScriptRequest, process: Process, place: Path) -> Run | None:
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
        until = time.monotonic() + GRACE_SECONDS
        while len(list(records.glob("*.ended"))) < process.size and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    return _collect(asked, process.size, workplace, records, late)


def _run_rank(asked: ScriptRequest, process: Process, workplace: Workplace, records: Path, place: Path) -> bool:
    """Run the script as this rank; whether it ran out of time."""
    port, horovods = map(int, (place / "ready").read_text().split())
    environment = {**of_torchrun(process.rank, process.size, process.local_rank, process.local_size, port),
                   **os.environ, **of_horovodrun(process.rank, process.size, horovods)}
    started = {fork(asked, process, workplace.folder, records, environment): process.rank}
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
                for child in running:
                    os.kill(child, signal.SIGUSR1)              # where it stands
                time.sleep(STACK_SECONDS)
                break
            time.sleep(POLL_SECONDS)
    finally:
        for child in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)                # its loader workers, too
        for child in running:
            os.waitpid(child, 0)
    return late


def _collect(asked: ScriptRequest, workers: int, workplace: Workplace, folder: Path, late: bool) -> Run:
    """The records of all ranks; raises ScriptError where one failed, or none made an update."""
    records = [load(folder, rank, workers) for rank in range(workers)]
    for record in records:
        drew = folder / f"rank{record.rank}.drew"
        record.drew_in_workers = frozenset(drew.read_text().splitlines() if drew.exists() else ())
    failed = _first_failure(records, folder)
    on = f"on {counted(workers, 'worker')}"
    unlike = any(MISMATCH in output_of(folder, record.rank) for record in records)
    if unlike and failed is None:                   # the rank that did not see it waits, or ended first
        failed = next((record for record in records if not record.updates), None)
    if failed is not None:
        last = f"the ranks' collectives have different sizes: {OF_OTHERS}" if unlike else _error_of(failed)
        if any(record.state == ENDED for record in records):
            last += f". Another rank had ended: {OF_OTHERS}"
        said = failed.error if failed.error.startswith("Traceback") else output_of(folder, failed.rank)
        raise ScriptError(f"{asked.script} {on}, rank {failed.rank}, {_after(failed)}: {last}",
                          said.replace(str(workplace.folder), str(workplace.original)))
    waiting = _waiting(records, folder)
    if waiting:
        last = min(records, key=lambda record: record.made)
        raise ScriptError(f"{asked.script} {on} hangs {_after(last)}: {waiting}; {OF_OTHERS}", "")
    if not all(record.updates for record in records):
        counts = ", ".join(f"rank {record.rank} made {len(record.updates)}" for record in records)
        why = f"within {asked.seconds:g} s ({counts}); --seconds allows more" if late else \
            "before it ended: no torch.optim.Optimizer made a step"
        own = next((f"; not followed: {one}" for one in records[0].remarks if one.startswith(PROCESSES)), "")
        raise ScriptError(f"{asked.script} {on} made no update {why}{own}", output_of(folder, 0))
    return Run(records, workplace, workplace.written(), late)


def _error_of(record: Record) -> str:
    """The line of its traceback that names the error."""
    lines = record.error.strip().splitlines() or ["it was killed"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+: ", line)), lines[-1])


def _after(record: Record) -> str:
    return f"after {counted(record.made, 'update')}" if record.made else "before its first update"


def _waiting(records: list[Record], folder: Path) -> str:
    """Where the ranks stood that had not ended, if each of them waited for others, at another line or for a rank that
    has ended; else empty."""
    running, found = [record.rank for record in records if record.state == RUNNING], {}
    for rank in running:
        path = stack_of(folder, rank)
        frames = STANDS.findall(path.read_text() if path.exists() else "")
        own = [f"{os.path.basename(file)}:{line}" for file, line in frames if is_own(file)]
        if not own or not WAITING.search(frames[0][0]):
            return ""
        found[rank] = own[0]
    ended = [f"rank {record.rank} has ended" for record in records if record.state == ENDED]
    stopped = any(record.state == STOPPED for record in records)
    if not running or stopped or len({*found.values()}) < 2 and not ended:
        return ""
    return listed([*(f"rank {rank} waits at {line}" for rank, line in found.items()), *ended])


def _first_failure(records: list[Record], folder: Path) -> Record | None:
    """The record of the rank that failed first: the others lose their connection to it."""
    failed = [record for record in records if record.state == FAILED]
    stopped = any(record.state == STOPPED or record.state == ENDED and any(
        one.cut is not None for one in record.iterations) for record in records)
    if not failed or stopped and all(record.updates for record in records):
        return None
    return min(failed, key=lambda record: (folder / f"rank{record.rank}.record").stat().st_mtime_ns)


@contextlib.contextmanager
def meeting(script: str, workers: int) -> Iterator[list[dict[str, str]]]:
    """The variables of each rank, on this machine, while the script runs."""
    port = free_port()
    with rendezvous(script, workers) as horovods:
        yield [{**of_torchrun(rank, workers, rank, workers, port), **of_horovodrun(rank, workers, horovods)}
               for rank in range(workers)]


@contextlib.contextmanager
def rendezvous(script: str, workers: int) -> Iterator[int]:
    """The port at which Horovod's ranks on this machine meet over Gloo; 0 for a script without Horovod.

    Over MPI a rank could not end before the script does: mpirun takes that for a failure.
    """
    if importlib.util.find_spec("horovod") is None or "horovod" not in Path(script).read_text(errors="replace"):
        yield 0
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
    server = RendezvousServer(0)
    port = server.start()
    try:
        server.init(get_host_assignments(parse_hosts(f"localhost:{workers}"), workers))
        yield port
    finally:
        server.stop()


def of_torchrun(rank: int, size: int, local_rank: int, local_size: int, port: int) -> dict[str, str]:
    """As torchrun would have them on one machine."""
    given = dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=local_size, GROUP_RANK=0,
                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    return {name: str(value) for name, value in given.items()}


def of_horovodrun(rank: int, size: int, port: int) -> dict[str, str]:
    """As ``horovodrun --gloo`` would have them on one machine; none for port 0."""
    if not port:
        return {}
    given = dict(RANK=rank, SIZE=size, LOCAL_RANK=rank, LOCAL_SIZE=size, CROSS_RANK=0, CROSS_SIZE=1, CONTROLLER="gloo",
                 CPU_OPERATIONS="gloo", HOSTNAME="localhost", GLOO_IFACE="lo", GLOO_RENDEZVOUS_ADDR="127.0.0.1",
                 GLOO_RENDEZVOUS_PORT=port)
    return {f"HOROVOD_{name}": str(value) for name, value in given.items()}


def free_port() -> int:
    """One of this machine that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
