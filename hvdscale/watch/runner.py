"""Runs of an unmodified script: its ranks are started, awaited, and ended in any case.

    asked = ScriptRequest("train.py", ("--batch", "{local}"), updates=4, seconds=300, threads=1, batch=8)
    run_here(asked, 2, "hvdscale.doctor.script.rank", place, folder)        both ranks on this machine, as by torchrun
    run_launched(asked, process, "hvdscale.scaling.rank", place)            the rank of a launch that this process is

Each rank is an interpreter of its own, see rank.py. ``place`` is a folder that the ranks share.
"""

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..formatting.numbers import counted
from ..system.cores import usable_cores
from ..system.run_module import module_command
from ..workers.launch import Process, without_launcher

LOCAL, GLOBAL, WORKERS, RANK = "{local}", "{global}", "{workers}", "{rank}"
MARK = re.compile(r"\{\{\w+\}\}|\{[^\W\d]\w*\}")            # doubled braces are those of the script
TASK, MADE = "task.json", "made"        # MADE: the updates that rank 0 has made, a second ago
RECORD, TRACE = "record", "trace.json.gz"       # of a rank: see file_of
EXITED = "it ended with exit code"
RUNNING, STOPPED, ENDED, FAILED = "running", "stopped", "ended", "failed"       # states of a rank
TRACED = 5                      # updates of a profile
GRACE_SECONDS = 15.0            # that the other ranks have once one has ended, and a launcher to end its workers
STACK_SECONDS = 0.5             # that a rank has to write where it stands
POLL_SECONDS, LOOK_SECONDS = 0.02, 0.2


@dataclass(frozen=True)
class ScriptRequest:
    """A script, and what is to be watched of it."""

    script: str
    arguments: tuple[str, ...]          # LOCAL, GLOBAL and WORKERS: a worker's batch, that of all, the worker count
    updates: int                        # to watch after the first warm_up
    seconds: float                      # that a run may take
    threads: int                        # of each worker
    warm_up: int = 0
    batch: int | None = None            # examples of a worker's update; this or global_batch, or neither
    global_batch: int | None = None
    seeded: bool = False                # each rank's generators are seeded by its rank before the script begins
    module: bool = False                # the script runs as python -m would run it
    profile: bool = False               # updates after those that are watched are traced
    still: bool = False                 # random numbers are held still: see generators.py

    def local_batch(self, workers: int) -> int | None:
        return self.global_batch // workers if self.global_batch else self.batch

    def arguments_on(self, workers: int) -> tuple[str, ...]:
        local, marked = self.local_batch(workers), {WORKERS: workers}
        if local is not None:
            marked |= {LOCAL: local, GLOBAL: self.global_batch or local * workers}
        return fill(self.arguments, marked)

    def command(self, workers: int, module: str, place: Path) -> list[str]:
        return module_command(module, os.path.abspath(place), self.script, *self.arguments_on(workers))


def fill(arguments: Sequence[str], values: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(MARK.sub(lambda found: str(values.get(found[0], found[0])), one) for one in arguments)


def arguments_of_rank(arguments: Sequence[str], rank: int) -> list[str]:
    """Those of arguments_on as a rank's script has them."""
    return [re.sub(r"\{(\{\w+\})\}", r"\1", one) for one in fill(arguments, {RANK: rank})]


class RunEnd(NamedTuple):
    """How the process ended that was waited for, the first of several."""

    code: int
    late: bool          # the run was out of time


def threads_of(workers: int) -> int:
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, len(usable_cores()) // workers))


def write_task(asked: ScriptRequest, place: Path, **more: int) -> None:
    from ..system.files import write_whole                      # which a rank does without
    write_whole(place / TASK, json.dumps({**vars(asked), **more}), sync=False)


def read_task(place: Path) -> dict[str, int]:
    return json.loads((place / TASK).read_text())


def run_here(asked: ScriptRequest, workers: int, module: str, place: Path, folder: Path, **more: int) -> RunEnd:
    """Run the script with all its ranks on this machine, in the folder ``folder``; ``more``: of their task."""
    write_task(asked, place, **more)
    command, port = asked.command(workers, module, place), free_port()
    with rendezvous(asked.script, workers) as horovods:
        started = [_start(command, asked, {**without_launcher(), **of_torchrun(rank, workers, rank, workers, port),
                                           "ROLE_WORLD_SIZE": str(workers), **of_horovodrun(rank, workers, horovods)},
                          place / f"rank{rank}", folder) for rank in range(workers)]
        return await_end(started, asked.seconds, place)


def run_launched(asked: ScriptRequest, process: Process, module: str, place: Path, environment: Mapping[str, str],
                 folder: Path | None = None, output: str | None = None, look: Callable[[], object] | None = None
                 ) -> RunEnd:
    """Run the script as the rank of a launch that this process is; rank 0 also waits for the end of the others.

    output  the file that takes what the rank prints, which has all its time; None: files in ``place``, and 15 s more
            once another rank has ended
    """
    started = _start(asked.command(process.size, module, place), asked, environment,
                     output or place / f"rank{process.rank}", folder)
    end = await_end([started], asked.seconds, place if output is None else None, look=look)
    file_of(place, process.rank, "ended").touch()
    until = time.monotonic() + GRACE_SECONDS
    while process.rank == 0 and len(list(place.glob("*.ended"))) < process.size and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return end


def run_command(command: list[str], asked: ScriptRequest, environment: Mapping[str, str], output: str,
                look: Callable[[], object]) -> RunEnd:
    """Run a launcher's command, which starts the ranks and is asked to end them where the time is up."""
    started = _start(command, asked, environment, output, number=signal.SIGTERM)
    return await_end([started], asked.seconds, ending=(signal.SIGTERM, GRACE_SECONDS), look=look)


def _start(command: list[str], asked: ScriptRequest, environment: Mapping[str, str], output: str | Path,
           folder: Path | None = None, number: int = signal.SIGKILL) -> subprocess.Popen:
    """Start a command in a process group of its own; it gets the signal when this process ends. A text as ``output``
    names the file that takes the command and all that it prints, a path the files of its stdout and stderr."""
    from ..system.forked import ending_with_this_process       # likewise
    with contextlib.ExitStack() as files:
        if isinstance(output, str):
            out, error = files.enter_context(open(output, "a", encoding="utf-8")), subprocess.STDOUT
            out.write(shlex.join(command) + "\n")
            out.flush()
        else:
            out, error = (files.enter_context(open(f"{output}.{name}", "w")) for name in ("stdout", "stderr"))
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=error, cwd=folder,
                                env={**environment, "OMP_NUM_THREADS": str(asked.threads)}, start_new_session=True,
                                preexec_fn=ending_with_this_process(number))


def await_end(started: Sequence[subprocess.Popen], seconds: float, place: Path | None = None,
              ending: tuple[int, float] = (signal.SIGUSR1, STACK_SECONDS), look: Callable[[], object] | None = None
              ) -> RunEnd:
    """Wait until all processes have ended, and ``look`` meanwhile. Once one has, or a rank left word of it in
    ``place``, the others have GRACE_SECONDS. Those whose time is up get the signal of ``ending``, and are killed after
    its seconds."""
    latest = until = time.monotonic() + seconds
    looked = -float("inf")
    try:
        while any(process.poll() is None for process in started) and (now := time.monotonic()) <= until:
            if any(process.returncode is not None for process in started) or place and any(place.glob("*.ended")):
                until = min(until, now + GRACE_SECONDS)
            if look is not None and now - looked > LOOK_SECONDS:
                look()
                looked = now
            time.sleep(POLL_SECONDS)
        late = any(process.returncode is None for process in started) and until == latest
    finally:
        end(started, *ending)
    return RunEnd(started[0].returncode, late)


def end(started: Sequence[subprocess.Popen], number: int, seconds: float) -> None:
    running, until = [process for process in started if process.poll() is None], time.monotonic() + seconds
    for process in running:
        process.send_signal(number)
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    for last in (signal.SIGSTOP, signal.SIGKILL):       # all are stopped before one can see that another is gone
        for process in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, last)            # its loader workers, too
    for process in started:
        process.wait()


def file_of(place: Path, rank: int, kind: str) -> Path:
    """What a rank leaves in the place: its RECORD, stack, TRACE, stdout, stderr and so on."""
    return place / f"rank{rank}.{kind}"


def first_to_fail(place: Path, failed: Iterable[int]) -> int | None:
    """The rank that failed first: the others lose their connection to it."""
    return min(failed, key=lambda rank: file_of(place, rank, RECORD).stat().st_mtime_ns, default=None)


def describe_failure(asked: ScriptRequest, workers: int, rank: int, made: int, error: str) -> str:
    return f"{asked.script} on {counted(workers, 'worker')}, rank {rank}, {after(made)}: {error}"


def after(made: int) -> str:
    return f"after {counted(made, 'update')}" if made else "before its first update"


def line_of_error(traceback: str) -> str:
    """The line of a traceback that names the error, and where it was raised."""
    from .lines import is_own                                   # it needs torch
    lines = traceback.strip().splitlines() or ["it was killed"]
    error = next((line for line in reversed(lines) if re.match(r"[\w.]+: ", line)), lines[-1])
    places = re.findall(r'^  File "(.+)", line (\d+)', traceback, re.M)
    return error + ["", *(f" ({os.path.basename(file)}:{line})" for file, line in places if is_own(file))][-1]


@contextlib.contextmanager
def rendezvous(script: str, workers: int) -> Iterator[int]:
    """The port at which Horovod's ranks on this machine meet over Gloo; 0 for a script without Horovod. Over MPI a rank
    could not end before the script does: mpirun takes that for a failure."""
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
    return {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{local_rank}", "GROUP_RANK": "0",
            "LOCAL_WORLD_SIZE": f"{local_size}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}


def of_horovodrun(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables of a rank on one machine, as ``horovodrun --gloo`` sets them; none for port 0."""
    if not port:
        return {}
    given = dict(RANK=rank, SIZE=size, LOCAL_RANK=rank, LOCAL_SIZE=size, CROSS_RANK=0, CROSS_SIZE=1, CONTROLLER="gloo",
                 CPU_OPERATIONS="gloo", HOSTNAME="localhost", GLOO_IFACE="lo", GLOO_RENDEZVOUS_ADDR="127.0.0.1",
                 GLOO_RENDEZVOUS_PORT=port)
    return {f"HOROVOD_{name}": str(value) for name, value in given.items()}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
