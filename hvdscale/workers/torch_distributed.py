"""Workers joined by torch.distributed: Gloo between CPUs, NCCL between GPUs. Needs neither Horovod nor a compiler.

torchrun has a store by which its workers find each other. Under mpirun and srun rank 0 opens one, and its address
reaches the others through mpi4py, or else through a file in a folder that all share. Who reaches the store or the
workers can have them run code, as values are gathered by pickle: on one host, all of them listen on loopback alone.
"""

import contextlib
import hashlib
import os
import re
import socket
import time
import uuid
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..errors import WorkersError
from ..system.files import write_whole
from ..system.inputs import read_own
from .group import APART, POLL_SECONDS, Deadline, JoinedWorkers, connected, shut, tcp_sockets
from .launch import SHARED, Process, begin_mpi, has_pmi, load_mpi, shared_folder

KILLED_AFTER = 1.25                 # stall times; by then the other workers have said for whom they wait
LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
APPEARS_SECONDS, MEET_SECONDS = 0.1, 0.005          # between looks for it; whether all ranks of a group are there


class TorchWorkers(JoinedWorkers):
    """The workers that a launcher started, joined by torch.distributed in its default process group; they find each
    other through the store. One that is stopped for longer than the stall time is killed by a kernel timer, as not
    every launcher does it."""

    transport, _broken = "torch", RuntimeError

    def __init__(self, store: dist.Store, place: Process, stall_seconds: float):
        self.rank, self.size, self.local_rank, self.local_size = (
            place.rank, place.size, place.local_rank, place.local_size)
        self._store, self._stall_seconds, self._deadline = store, stall_seconds, Deadline()
        self._begin()
        self.watch(lambda reason: None)

    def _cause(self, error):
        """Without Gloo's source file before, and its advice after it."""
        return re.sub(r"^\[[^]]*\] |\. This is typically .*", "", super()._cause(error).splitlines()[0])

    def _begin(self) -> None:
        before = tcp_sockets()
        with self._collective("forming the group"):
            store = meet(self._store, self.rank, self.size)
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", store=store,
                                    rank=self.rank, world_size=self.size,
                                    timeout=timedelta(seconds=APART * self._stall_seconds))     # the watch is sooner
        self._connections = connected(tcp_sockets() - before)

    def start_sum_(self, tensor, name):
        if self.size == 1:
            return lambda: None
        with self._collective(name):
            work = dist.all_reduce(tensor, group=self._members, async_op=True)

        def wait():
            with self._collective(name):
                while tensor.is_cuda and not work.is_completed():       # NCCL's wait returns before the sum is there
                    time.sleep(POLL_SECONDS)
                work.wait()
        return wait

    def broadcast_(self, tensor, name, root=0):
        with self._collective(name):
            dist.broadcast(tensor, self._first + root, group=self._members)
        return tensor

    def gather(self, value, name):
        values = [None] * self.size
        with self._collective(name):
            dist.all_gather_object(values, value, group=self._members)
        return values

    def _unite(self, ranks):
        return dist.new_group(ranks)

    def versions(self):
        return {"allreduce": "torch.distributed over " + ("NCCL" if torch.cuda.is_initialized() else "Gloo")}

    def abandon(self):
        shut(self._connections)         # else the group waits for its last collective
        self._shut_down()

    def _shut_down(self) -> None:
        self._connections = frozenset()
        if dist.is_initialized():
            with self._collective("the end of the process group"):
                dist.destroy_process_group()

    def _tend(self) -> None:
        self._deadline.put_off(KILLED_AFTER * self._stall_seconds)


def find_store(process: Process, stall_seconds: float) -> dist.Store:
    timeout, one_host = timedelta(seconds=APART * stall_seconds), process.local_size == process.size
    if one_host and LOOPBACK_INTERFACE in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    try:
        if process.launcher == "torchrun":
            return next(dist.rendezvous("env://", timeout=timeout))[0]
        if process.size == 1:
            return dist.HashStore()
        store, address = None, ""
        if process.rank == 0:
            host = LOOPBACK if one_host else socket.gethostname()
            store = _open_store(host, timeout)
            address = f"{host}:{store.port}"
        address = _pass_by_mpi(process, address) or _pass_by_file(process, address, (APART - 1) * stall_seconds)
        host, _, port = address.rpartition(":")
        return store or dist.TCPStore(host, int(port), None, False, timeout, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise WorkersError(f"rank {process.rank} of {process.size}: {process.launcher}'s processes cannot find each "
                           f"other: {str(error).strip().splitlines()[0]}") from None


def _open_store(host: str, timeout: timedelta) -> dist.TCPStore:
    """A store at a free port: on loopback alone if that is the host, else on all addresses."""
    if host != LOOPBACK:
        return dist.TCPStore(host, 0, None, True, timeout, wait_for_workers=False)
    with socket.create_server((host, 0)) as listening:
        return dist.TCPStore(host, listening.getsockname()[1], None, True, timeout, wait_for_workers=False,
                             master_listen_fd=os.dup(listening.fileno()))


def meet(store: dist.Store, rank: int, size: int) -> dist.Store:
    """The part of the store for a group that begins now, once all its ranks are there. torchrun keeps its store when it
    starts the workers again, with the addresses of the earlier ones. So rank 0 names the group, and lists those who
    came to it: a rank that is not listed has read the name of an earlier one."""
    me = uuid.uuid4().hex
    if rank == 0:
        store.set("group", me)
        there = [store.get(f"{me}/{other}").decode() for other in range(1, size)]      # each as soon as it is there
        store.set(f"{me}/there", ",".join(there))
        return dist.PrefixStore(me, store)
    group = ""
    while not (store.check([f"{group}/there"]) and me in store.get(f"{group}/there").decode()):
        if group != (newest := store.get("group").decode()):
            group = newest
            store.set(f"{group}/{rank}", me)
        time.sleep(MEET_SECONDS)
    return dist.PrefixStore(group, store)


def _pass_by_mpi(process: Process, address: str) -> str:
    """Rank 0's address, through MPI; "" where mpi4py is missing or joins other processes than were started."""
    if process.launcher == "srun" and not has_pmi():
        return ""
    try:
        MPI = load_mpi()
    except (ImportError, RuntimeError):
        return ""
    begin_mpi(MPI.__file__)
    address = MPI.COMM_WORLD.bcast(address) if MPI.COMM_WORLD.Get_size() == process.size else ""
    MPI.Finalize()              # from here on mpirun only looks at how the process ends
    return address


def _pass_by_file(process: Process, address: str, seconds: float) -> str:
    """Rank 0's address, through a file in the shared folder; raises WorkersError where there is none in time."""
    path = _address_file(process)
    try:
        if process.rank == 0:
            write_whole(path, address, sync=False)
        until = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > until:
                raise FileNotFoundError(0, f"rank 0 has left no address there within {seconds:g} s")
            time.sleep(APPEARS_SECONDS)
        return read_own(path)
    except OSError as error:
        raise WorkersError(f"rank {process.rank} of {process.size} on {socket.gethostname()} cannot find the others "
                           f"through {path.parent.resolve()}: {error.strerror}. {SHARED}=FOLDER names another, which "
                           "all nodes share; torchrun, or mpi4py, needs none") from None


def _address_file(process: Process) -> Path:
    return shared_folder() / f".hvdscale-{hashlib.sha256(process.job.encode()).hexdigest()[:16]}"


def forget_address(process: Process) -> None:
    with contextlib.suppress(OSError):
        _address_file(process).unlink()
