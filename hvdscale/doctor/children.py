"""Processes that simulate other ranks: the job as these see it, loaded in the background while other checks run; and
collectives of the job's own code, which no check can run, as it calls the job on one rank at a time.

This module is also their main program; its argument is a rank, the number of ranks and a job as it was typed, and it
prints its digest, both as JSON. Environment, Horovod, torch and host name answer as under a launcher, but for a group.
"""
from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from ..errors import CommunicationError, HvdscaleError
from ..system.cores import describe_load
from ..system.forked import ending_with_this_process
from ..system.run_module import module_command
from ..watch import collectives
from ..watch.lines import OURS, TORCH
from ..watch.patches import Patches
from ..watch.runner import end
from ..workers.launch import without_launcher
from .finding import JOB, Finding
from .probe_step import Sample, make_sample
from .ranks import Entry, broken, digest, same_on_ranks

MODULE = "hvdscale.doctor.children"
PATIENCE = 60.0             # seconds that a child may take once it is asked for its digest
TOO_LONG = broken(f"it took longer than {PATIENCE:g} s")
# variables in which launchers, and programs made for them, give a process its rank and the number of processes
RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "PMI_RANK",
         "RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "PMI_SIZE",
         "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}      # of torch.distributed
OF_TORCH = (*collectives.COMBINE, "broadcast", "broadcast_object_list", "scatter", "barrier", "recv", "irecv",
            "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
OF_HOROVOD = (*collectives.OF_HOROVOD, "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
              "broadcast_object", "barrier")
TRANSPORTS = (os.path.join(TORCH, "distributed", ""), f"{os.sep}horovod{os.sep}", __file__)    # not the job's own
CANNOT = ("the doctor calls it on one rank at a time, so the others would never answer; for how to write and test it, "
          "see 'Losses over the global batch' in the guide to workloads")


@contextlib.contextmanager
def simulated(name: str, layers: list[dict], wanted: int) -> Iterator[list[subprocess.Popen]]:
    """Processes that simulate both ranks of two, for the job as the user typed it and a step of ``wanted`` examples;
    ended if they are running in the end."""
    started = [subprocess.Popen(
        module_command(MODULE, json.dumps([rank, 2, name, layers, wanted])), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(rank, 2), start_new_session=True,
        preexec_fn=ending_with_this_process(signal.SIGTERM)) for rank in (0, 1)]
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


@contextlib.contextmanager
def refusing_collectives() -> Iterator[None]:
    """Have a collective that the job calls raise a CommunicationError, which names it and the job's function."""
    patches = Patches()

    def follow(module: ModuleType, names: tuple[str, ...] = OF_HOROVOD) -> None:
        for name in names:
            if hasattr(module, name):
                patches.replace(module, name, _refusing)
    try:
        for owner in (dist, distributed_c10d, _functional_collectives):
            follow(owner, OF_TORCH)
        patches.when_imported("horovod.torch", follow)
        yield
    finally:
        patches.undo()


def _refusing(original):
    def communicate(*args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back and any(room in frame.f_code.co_filename for room in TRANSPORTS):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(OURS):
            return original(*args, **options)
        raise CommunicationError(f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}: "
                                 f"{frame.f_code.co_qualname} calls {original.__name__}; {CANNOT}")
    return communicate


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


def environment(rank: int, size: int) -> dict[str, str]:
    """The environment of a process that a launcher started with this rank and size."""
    return {**MEETING, **without_launcher(), **dict.fromkeys(RANKS, str(rank)), **dict.fromkeys(SIZES, str(size))}


def play(rank: int, size: int) -> None:
    """Make Horovod and torch.distributed report this rank and size, before the job's code is imported. As in a run,
    Horovod is already initialized if there are several workers, and torch.distributed once the job asks."""
    ranks = {"rank": rank, "local_rank": rank, "cross_rank": 0, "size": size, "local_size": size, "cross_size": 1}
    with contextlib.suppress(ImportError):
        from horovod.common.basics import HorovodBasics
        for name, value in {**ranks, "is_initialized": size > 1, "init": None, "shutdown": None}.items():
            setattr(HorovodBasics, name, _answer(value))
    begun = []
    for name, value in {"get_rank": rank, "get_world_size": size, "get_node_local_rank": rank}.items():
        setattr(torch.distributed, name, _answer(value))
    torch.distributed.init_process_group = lambda *_, **__: begun.append(True)
    torch.distributed.is_initialized = lambda: bool(begun)


def on_host(name: str) -> None:
    system = os.uname()
    os.uname = _answer(os.uname_result((system.sysname, name, *system[2:])))
    socket.gethostname = platform.node = _answer(name)


def _answer(value):
    return lambda *_, **__: value


if __name__ == "__main__":
    print(json.dumps(_digest(*json.loads(sys.argv[1]))))
