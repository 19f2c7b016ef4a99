"""The doctor's child processes: the job as other ranks see it, and a job that stalls on purpose.

They run in the background while the other checks run. This module is also their main program:

    hvdscale.doctor.children digest WORKLOAD      stdin: the rank to simulate; stdout: its digest as JSON
    hvdscale.doctor.children stop SECONDS         under a launcher: rank 1 stops, rank 0 waits for it
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial

from ..errors import HvdscaleError
from ..system.forked import ending_with_this_process
from ..system.cores import describe_load
from ..system.run_module import module_command
from ..workers.launch import find_launcher, launch_command, launch_environment, without_launcher
from .communication import refusing_collectives
from .finding import JOB, Finding
from .played import environment, on_host, play
from .probe_step import Sample, make_sample
from .ranks import Entry, broken, digest, same_on_ranks

MODULE = "hvdscale.doctor.children"
PATIENCE = 60.0             # seconds that a child may take
STALL_SECONDS = 3.0
JOINED = "joined"


class Child:
    """A background process in its own process group; its output goes to an unnamed temporary file."""

    def __init__(self, command: list[str], environment: dict[str, str], given: str = ""):
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._output, stderr=subprocess.STDOUT,
                                         text=True, env=environment, start_new_session=True,
                                         preexec_fn=ending_with_this_process(signal.SIGTERM))
        self._started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(given)
            self._process.stdin.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """End it and its children if they are running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def result(self) -> tuple[bool, str]:
        """Whether it ended by itself within PATIENCE seconds of its start, and what it has printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._started + PATIENCE - time.monotonic()))
        self._output.seek(0)
        return self._process.returncode is not None, self._output.read()


@dataclass(frozen=True)
class JobRequest:
    """What the children check: the job as the user typed it, and the number of examples in their step."""

    name: str
    layers: list[dict]
    wanted: int

    def played(self, rank: int, size: int) -> Child:
        """A process that simulates this rank in a group of this size."""
        command = module_command(MODULE, "digest", self.name)
        return Child(command, environment(rank, size), json.dumps([rank, size, self.layers, self.wanted]))

    def twice(self, size: int) -> list[dict[str, Entry]]:
        """The digests of two processes that both simulate rank 0 in a group of this size."""
        with self.played(0, size) as one, self.played(0, size) as another:
            return [_digest_of(one), _digest_of(another)]


def same_when_played(asked: JobRequest, played: list[Child], sample: Sample, mine: dict[str, Entry]) -> Finding:
    """Whether two ranks that are played agree, and agree with this process, a single worker."""
    ranks, seen = [_digest_of(child) for child in played], JOB.sentence("ranks compared", "played")
    if TOO_LONG in ranks:
        return JOB.finding("ranks", "late", seconds=PATIENCE, load=describe_load() or None)
    return same_on_ranks(sample, ranks, partial(asked.twice, 2), seen, alone=mine)


def begin_stall() -> Child | str:
    """A small job of two workers, one of which stalls, in the background; or why there is none."""
    try:
        if launcher := find_launcher():
            command = module_command(MODULE, "stop", str(STALL_SECONDS))
            return Child(launch_command(launcher, 2, command), launch_environment(without_launcher()))
        return "this check needs horovodrun or mpirun, and neither is on PATH"
    except (HvdscaleError, OSError) as error:
        return f"no two workers can be started here: {error}"


def stall(child: Child | str) -> Finding:
    """Whether the other worker ended the job that ``begin_stall`` began, and said why."""
    if isinstance(child, str):
        return JOB.finding("stall", "no_launcher", reason=child)
    ended, output = child.result()
    output = re.sub(r"\[\d+(,\d+)?\]<std(out|err)>:", "", output)        # horovodrun marks lines
    reason = re.search(f"has waited {STALL_SECONDS:g} s for the other workers|a worker was lost", output)
    if (load := describe_load()) and (JOINED not in output or not ended or not reason):
        return JOB.finding("stall", "busy", load=load)
    if JOINED not in output:
        lines = output.strip().splitlines() or ["no output"]
        return JOB.finding("stall", "not_started", line=lines[-1][:200])
    kind = "ended" if reason else "silent"
    return JOB.finding("stall", kind if ended else "endless", seconds=STALL_SECONDS, reason=repr(reason and reason[0]))


TOO_LONG = broken(f"it took longer than {PATIENCE:g} s")


def _digest_of(child: Child) -> dict[str, Entry]:
    ended, output = child.result()
    if not ended:
        return TOO_LONG
    last = (output.strip().splitlines() or ["no output"])[-1]
    try:
        return {what: Entry(*entry) for what, entry in json.loads(last).items()}
    except (ValueError, AttributeError, TypeError):
        return broken(last)


@refusing_collectives()
def _digest(name: str) -> None:
    rank, size, layers, wanted = json.loads(sys.stdin.read())
    play(rank, size)                        # before the job's modules are imported
    from ..training.prepare import prepare
    from ..update.model import make_model
    from ..workers.group import SingleWorker
    try:
        job = prepare(name, layers, SingleWorker())
        if rank:                            # only after load, which may find its files by the host name
            on_host(f"{socket.gethostname()}-{rank}")
            if not job.settings.init_from:
                job = replace(job, model=make_model(job.workload, job.plan, job.device))
        found = digest(make_sample(job, wanted, 1))
    except HvdscaleError as error:
        found = broken(str(error))
    print(json.dumps(found))


def _stop(seconds: float) -> None:
    import torch

    from ..errors import WorkerLostError
    from ..workers.transport import form
    workers = form(seconds)
    try:
        workers.sum_(torch.ones(1), "first")
        print(JOINED, flush=True)
        if workers.rank == 1:
            time.sleep(PATIENCE)
        workers.sum_(torch.ones(1), "second")
    except WorkerLostError as lost:         # Horovod's own stall check came first
        print(lost, flush=True)
        os._exit(lost.exit_code)


if __name__ == "__main__":
    _digest(sys.argv[2]) if sys.argv[1] == "digest" else _stop(float(sys.argv[2]))
