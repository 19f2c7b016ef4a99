"""Processes that simulate other ranks: the job as these see it, loaded in the background while other checks run.

This module is also their main program; its argument is a rank, the number of ranks and a JobRequest, and it prints its
digest, both as JSON.
"""
from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import HvdscaleError
from ..system.cores import describe_load
from ..system.forked import ending_with_this_process
from ..system.run_module import module_command
from ..watch.runner import end
from .communication import refusing_collectives
from .finding import JOB, Finding
from .played import environment, on_host, play
from .probe_step import Sample, make_sample
from .ranks import Entry, broken, digest, same_on_ranks

MODULE = "hvdscale.doctor.children"
PATIENCE = 60.0             # seconds that a child may take once it is asked for its digest
TOO_LONG = broken(f"it took longer than {PATIENCE:g} s")


@dataclass(frozen=True)
class JobRequest:
    """What the children check: the job as the user typed it, and the number of examples in their step."""

    name: str
    layers: list[dict]
    wanted: int

    @contextlib.contextmanager
    def played(self, ranks: list[int], size: int) -> Iterator[list[subprocess.Popen]]:
        """Processes that simulate these ranks in a group of this size, ended if they are running in the end."""
        started = [subprocess.Popen(
            module_command(MODULE, json.dumps([rank, size, self.name, self.layers, self.wanted])),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(rank, size), start_new_session=True, preexec_fn=ending_with_this_process(signal.SIGTERM))
            for rank in ranks]
        try:
            yield started
        finally:
            end(started, signal.SIGKILL, 0.0)
            for child in started:
                child.stdout.close()


def same_when_played(played: list[subprocess.Popen], sample: Sample, mine: dict[str, Entry]) -> Finding:
    """Whether two ranks that are played agree, and agree with this process, a single worker."""
    ranks, seen = [*map(_digest_of, played)], JOB.sentence("ranks compared", "played")
    if TOO_LONG in ranks:
        return JOB.finding("ranks", "late", seconds=PATIENCE, load=describe_load() or None)
    return same_on_ranks(sample, ranks, seen, alone=mine)


def _digest_of(child: subprocess.Popen) -> dict[str, Entry]:
    try:
        output, _ = child.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return TOO_LONG
    last = (output.strip().splitlines() or ["no output"])[-1]
    try:
        return {what: Entry(*entry) for what, entry in json.loads(last).items()}
    except (ValueError, AttributeError, TypeError):
        return broken(last)


@refusing_collectives()
def _digest(rank: int, size: int, name: str, layers: list[dict], wanted: int) -> dict[str, Entry]:
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
        return digest(make_sample(job, wanted))
    except HvdscaleError as error:
        return broken(str(error))


if __name__ == "__main__":
    print(json.dumps(_digest(*json.loads(sys.argv[1]))))
