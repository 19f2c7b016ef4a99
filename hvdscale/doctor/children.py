"""Child processes of the doctor's: the job as another rank would load and build it, and a job that stops on purpose.

They run beside the other checks, which wait for them last. Run as a module it is such a child:

    python -m hvdscale.doctor.children digest WORKLOAD      the layers of settings as JSON on stdin; a digest on stdout
    python -m hvdscale.doctor.children stop SECONDS         under a launcher: rank 1 stops, rank 0 waits for it
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from ..errors import HvdscaleError
from ..launch import find_launcher, launch_command, launch_environment
from .examples import same_on_ranks
from .finding import FAILED, NOT_APPLICABLE, PASSED, Finding

# how launchers, and programs made for them, tell a process its rank, and the number of processes
RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "RANK",
         "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "WORLD_SIZE",
         "LOCAL_WORLD_SIZE")
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "PRTE_", "ORTE_")
PATIENCE = 60.0             # seconds that a child may take
STALL_SECONDS = 3.0
JOINED = "joined"


class Child:
    """A process of its own process group, in the background; its output goes to a file that has no name."""

    def __init__(self, command: list[str], environment: dict[str, str], given: str = ""):
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._output, stderr=subprocess.STDOUT,
                                         text=True, env=environment, start_new_session=True)
        self._started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(given)
            self._process.stdin.close()

    def ended(self, seconds: float) -> bool:
        """Whether it has ended of itself, so many seconds from its start; after that it is killed."""
        try:
            self._process.wait(max(0.0, self._started + seconds - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self) -> None:
        """End it, and what it has started, where they run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def output(self) -> str:
        """All that it has printed."""
        self._output.seek(0)
        return self._output.read()


class OtherRank:
    """The job, loaded and built by processes that are told to be rank 0 and rank 1 of two."""

    def __init__(self, name: str, layers: list[dict]):
        command = [sys.executable, "-m", __name__, "digest", name]
        self._children = [
            Child(command, {**os.environ, **dict.fromkeys(RANKS, str(rank)), **dict.fromkeys(SIZES, "2")},
                  json.dumps(layers)) for rank in range(2)]

    def finding(self) -> Finding:
        """Whether the two have found the same."""
        looked_at = "sizes, parameters and examples in two processes, told to be rank 0 and rank 1"
        if not all([child.ended(PATIENCE) for child in self._children]):
            return Finding("ranks", NOT_APPLICABLE, f"loading the job took longer than {PATIENCE:g} s; run under a "
                           "launcher the doctor compares the ranks themselves")
        return same_on_ranks([_last_json(child.output) for child in self._children], looked_at)

    def kill(self) -> None:
        """End what still runs."""
        for child in self._children:
            child.kill()


class Stop:
    """A small job of two workers, one of which stops: does the other end it, and say why?"""

    def __init__(self):
        self._child, self._reason = None, ""
        try:
            launcher = find_launcher()
            if launcher is None:
                self._reason = "it takes horovodrun or mpirun, and neither is on PATH"
                return
            command = [sys.executable, "-m", __name__, "stop", str(STALL_SECONDS)]
            bare = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
            self._child = Child(launch_command(launcher, 2, command), launch_environment(bare))
        except (HvdscaleError, OSError) as error:
            self._reason = f"no two workers can be started here: {error}"

    def finding(self) -> Finding:
        """Whether it has ended, in time and with a word why."""
        name = "stall"
        if self._child is None:
            return Finding(name, NOT_APPLICABLE, self._reason)
        ended = self._child.ended(PATIENCE)
        output = re.sub(r"\[\d+(,\d+)?\]<std(out|err)>:", "", self._child.output)        # horovodrun marks lines
        reason = re.search(f"has waited {STALL_SECONDS:g} s for the other workers|a worker was lost", output)
        looked_at = f"a job of 2 workers beside this one, of which one stops, with stall_seconds={STALL_SECONDS:g}"
        if JOINED not in output:
            lines = output.strip().splitlines() or ["it said nothing"]
            return Finding(name, NOT_APPLICABLE, f"no two workers can be started from here: {lines[-1][:200]}")
        if ended and reason:
            return Finding(name, PASSED, f"{looked_at}: it ended, and said why ({reason[0]!r})")
        return Finding(name, FAILED, looked_at, "it ended without the reason" if ended else "it has not ended",
                       cause="the launcher does not end the other workers when one has ended",
                       remedy="use horovodrun or mpirun, or srun with --kill-on-bad-exit=1")

    def kill(self) -> None:
        """End what still runs."""
        if self._child is not None:
            self._child.kill()


def _last_json(output: str) -> dict[str, str]:
    lines = output.strip().splitlines() or ["nothing was said"]
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {"error": lines[-1]}


def _digest(name: str) -> None:
    from ..job import prepare
    from ..workers import Lone
    from .examples import digest
    try:
        print(json.dumps(digest(prepare(name, json.loads(sys.stdin.read()), Lone()))))
    except HvdscaleError as error:
        print(json.dumps({"error": str(error)}))


def _stop(seconds: float) -> None:
    import torch

    from ..errors import WorkerLostError
    from ..workers import form
    workers = form(seconds)
    try:
        workers.sum_(torch.ones(1), "first")
        print(JOINED, flush=True)
        if workers.rank == 1:
            time.sleep(PATIENCE)
        workers.sum_(torch.ones(1), "second")
    except WorkerLostError as lost:         # where Horovod's own check is the first
        print(lost, flush=True)
        os._exit(lost.exit_code)


if __name__ == "__main__":
    _digest(sys.argv[2]) if sys.argv[1] == "digest" else _stop(float(sys.argv[2]))
