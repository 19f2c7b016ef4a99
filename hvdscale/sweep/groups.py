"""Split the processes of one launch into groups that each run their own trials.

    cores = cores_of_launch(place())
    group = form_group(workers_per_trial=2, stall_seconds=120, cores=cores)
    ...
    os._exit(leave(group, code, others_gone))

A launcher ends all processes if one fails; Open MPI also if one that initialized MPI exits without finalizing it. With
``mpirun --enable-recovery`` the others continue, but mpirun then always exits with 0. torchrun cannot let them be.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from torch.distributed import PrefixStore, Store

from ..errors import UsageError, WorkerLostError, WorkersError
from ..workers.group import JoinedWorkers, SingleWorker, Workers, starting
from ..workers.horovod import HorovodWorkers, check_joined, load_horovod
from ..workers.launch import Process, begin_mpi, load_mpi, place
from ..workers.orphans import refuse_launcher_in_torchrun, stop_without_launcher
from ..workers.torch_distributed import TorchWorkers, find_store, forget_address
from ..workers.transport import choose

POLL_SECONDS = 0.1


class LaunchGroup(JoinedWorkers):
    """A group of several processes of a launch, whatever joins them, which can form again."""

    _active = True

    def reform(self):
        """Form the group again after an error of one rank that interrupted a collective; all ranks must call it. If one
        does not, the others end after the stall time."""
        self.abandon()
        self._form()
        self._active, self._groups = True, {}

    def abandon(self):
        if self._active:
            self._active = False
            super().abandon()

    def leave(self):
        with contextlib.suppress(WorkerLostError):          # the work is done
            if self._active:
                self.gather(None, "leave")
        self.abandon()


class HorovodGroup(LaunchGroup, HorovodWorkers):
    """A group of several processes of a launch, all of which ``mpi`` (mpi4py's, initialized) joins; rank and size are
    within the group, the local ones within the launch."""

    def __init__(self, hvd, mpi, stall_seconds: float, process: Process, size: int, cores: frozenset[int]):
        self._mpi, self._process, self._cores = mpi, process, cores
        self._comm = mpi.COMM_WORLD.Split(process.rank // size, process.rank)
        self._neighbours = [pid for host, pid in self._comm.allgather((socket.gethostname(), os.getpid()))
                            if host == socket.gethostname() and pid != os.getpid()]
        hvd.init(comm=self._comm)
        super().__init__(hvd, stall_seconds)

    def _take_place(self):
        super()._take_place()
        self.local_rank, self.local_size = self._process.local_rank, self._process.local_size

    def _form(self):
        with self._collective("forming the group again"):
            self._hvd.init(comm=self._comm)

    def leave(self):
        super().leave()
        with self._collective("the end of MPI"):
            self._mpi.Finalize()

    def _end(self):
        # the launcher would wait for a stopped process forever
        for pid in self._neighbours:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        super()._end()


class TorchGroup(LaunchGroup, TorchWorkers):
    """A group that torch.distributed joins. The groups share a store; ``launch``: this process in the launch."""

    def __init__(self, store: Store, launch: Process, stall_seconds: float, size: int, cores: frozenset[int]):
        self._cores = cores
        own = PrefixStore(f"trials{launch.rank // size}", store)
        super().__init__(own, replace(launch, rank=launch.rank % size, size=size), stall_seconds)

    _form = TorchWorkers._begin


def form_group(workers_per_trial: int, stall_seconds: float, cores: frozenset[int], transport: str = "auto") -> Workers:
    """This process's group of consecutive ranks, which may use these cores of its host: see cores_of_launch. From now
    on the process stops when its launcher has ended. Raises UsageError if the processes do not divide into such groups,
    WorkersError if they cannot be joined."""
    refuse_launcher_in_torchrun()
    stop_without_launcher(stall_seconds)
    process = place()
    if process.size % workers_per_trial:
        below = process.size - process.size % workers_per_trial
        fitting = " or ".join(str(size) for size in (below, below + workers_per_trial) if size)
        raise UsageError(
            f"workers_per_trial = {workers_per_trial} needs that many processes for each trial, and this one was "
            f"started alone: start mpirun -np {workers_per_trial} (or a multiple of it), or srun --mpi=pmix"
            if process.launcher is None else
            f"{process.launcher} started {process.size} processes, which make no groups of workers_per_trial = "
            f"{workers_per_trial}: start {fitting}, or set workers_per_trial to a divisor of {process.size}")
    if workers_per_trial == 1:
        return SingleWorker(process.local_rank, process.local_size, cores)      # which needs neither MPI nor Horovod
    if choose(transport, process.launcher) == "torch":
        with starting(stall_seconds, "torch.distributed"):
            return TorchGroup(find_store(process, stall_seconds), process, stall_seconds, workers_per_trial, cores)

    splits = f"workers_per_trial = {workers_per_trial}: MPI splits processes into groups"
    if process.launcher == "horovodrun":
        raise WorkersError(f"{splits}, and horovodrun --gloo starts them without; use mpirun -np {process.size}, or "
                           "workers_per_trial = 1")
    hvd = load_horovod(process.launcher, process.size, stall_seconds)
    if not hvd.mpi_built():
        raise WorkersError(f"{splits}, and Horovod was built without it; build it with HOROVOD_WITH_MPI=1, or set "
                           "workers_per_trial = 1")
    with starting(stall_seconds, "Horovod"):
        mpi = _begin_mpi(hvd)
        check_joined(process.launcher, process.size, mpi.COMM_WORLD.Get_size())
        group = HorovodGroup(hvd, mpi, stall_seconds, process, workers_per_trial, cores)
    check_joined(process.launcher, workers_per_trial, group.size)
    return group


def _begin_mpi(hvd):
    # otherwise MPI_Finalize waits for the processes of all groups
    os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")
    try:
        MPI = load_mpi()
    except ImportError as error:
        raise WorkersError(f"mpi4py, which splits processes into groups, cannot be imported ({error}): install it (pip "
                           "install mpi4py), or set workers_per_trial = 1") from None
    begin_mpi(hvd.mpi_lib_v2.__file__)
    if not MPI.Is_initialized():
        raise WorkersError("mpi4py and Horovod do not use one MPI: build both against the same one, or set "
                           "workers_per_trial = 1")
    return MPI


def leave(group: Workers, code: int, others_gone: Callable[[], bool]) -> int:
    """Leave the launch without harm to its other groups; returns the exit code for os._exit. Only the launch's first
    process returns ``code``, once ``others_gone``; the others return 0."""
    group.leave()
    if place().rank:
        return 0
    while not others_gone():
        time.sleep(POLL_SECONDS)
    forget_address(place())
    return code
