"""The worker group: rank, size, sums over workers. The only module that imports Horovod.

    workers = form(stall_seconds=120)
    workers.sum_(tensor, "gradients")              in place, the same on all ranks afterwards
    with workers.together("loading the data"):     an error on one rank is the same error on all
        ...
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from ..errors import HvdscaleError, WorkerLostError, WorkersError, describe_raised
from ..system.cores import usable_cores
from .deadline import Deadline
from .launch import launched
from .rendezvous import Rendezvous

POLL_SECONDS = 5e-5     # between looks at whether a sum is there; Linux adds 50 us
APART = 5       # stall times by which workers may start apart, as with imports from a slow file system


class Workers:
    """The workers of a job, seen from one of them: rank, size and collectives. The defaults are those of one worker."""

    rank, size, local_rank, local_size = 0, 1, 0, 1
    elastic = False             # whether ``reform`` can follow a WorkerLostError
    hosts_changed = False       # whether horovodrun has notified an elastic job's rank 0

    def cores(self) -> frozenset[int]:
        """The cores of this host that this worker may use; in a group of a sweep, those of all its local workers."""
        return usable_cores()

    def sum_(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The sum over workers, in place."""
        return tensor

    def start_sum_(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        """Begin the sum over workers, in place; the function returned waits for it."""
        return lambda: None

    def broadcast_(self, tensor: torch.Tensor, name: str, root: int = 0) -> torch.Tensor:
        """The root's values, in place."""
        return tensor

    def gather(self, value, name: str) -> list:
        """Every rank's value, in rank order."""
        return [value]

    def versions(self) -> dict[str, str]:
        """Versions of the transport."""
        return {}

    def watch(self, lost: Callable[[str], None]) -> None:
        """If a collective lasts longer than the stall time, call ``lost`` with the reason and end the process.

        A further call replaces ``lost``.
        """

    def check(self) -> None:
        """Raise WorkerLostError where a worker is known to be lost; for long work without a collective."""

    def reform(self) -> None:
        """Leave the old group and join the new one, with a new rank and size.

        Raises WorkerRemovedError where this worker is no longer part of the job, WorkerLostError where horovodrun
        has ended.
        """
        raise NotImplementedError

    def leave(self) -> None:
        """The last collective: no rank leaves before all are done."""

    def abandon(self) -> None:
        """Leave the others, whose next collective then fails on them."""

    @contextlib.contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """An error that any rank raises inside is raised on all, naming the ranks; a collective.

        For an error that is not hvdscale's own, one of the ranks that raised it prints the traceback.
        """
        error, trace = None, ""
        try:
            yield
        except HvdscaleError as raised:
            error = raised
        except Exception as raised:
            error, trace = HvdscaleError(f"{doing}: {describe_raised(raised)}"), traceback.format_exc()
        errors = self.gather(error and (type(error), str(error)), f"errors/{doing}")
        if trace and str(error) not in [other[1] for other in errors[:self.rank] if other]:
            print(trace, end="", file=sys.stderr, flush=True)
        if any(errors):
            raise _joined(errors)


class SingleWorker(Workers):
    """One worker without a launcher: the same operations, with nothing to do."""


def _joined(errors: list) -> HvdscaleError:
    """One error for those of the ranks (None: no error), the same on all."""
    kind, first = next(e for e in errors if e)
    ranks = [r for r, e in enumerate(errors) if e and e[1] == first]
    if len(ranks) == len(errors):
        return kind(first)
    others = [f"rank {r}: {e[1]}" for r, e in enumerate(errors) if e and e[1] != first]
    return kind("\n".join([f"rank {', '.join(map(str, ranks))} of {len(errors)}: {first}", *others]))


class HorovodWorkers(Workers):
    """The workers that a launcher started, joined by Horovod (MPI, Gloo or NCCL).

    A thread watches from the start: where a collective lasts longer than the stall time, it ends the process.
    """

    _lost: Callable[[str], None] | None = None          # what the watching thread calls, once there is one
    _waiting: tuple[str, float] | None = None
    _giving_up = threading.RLock()      # held while it does, so that the collective cannot end after all

    def __init__(self, hvd, stall_seconds: float):
        self._hvd, self._stall_seconds = hvd, stall_seconds
        self._take_place()
        self.watch(lambda reason: None)

    def _take_place(self) -> None:
        self.rank, self.size = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()

    def sum_(self, tensor, name):
        self.start_sum_(tensor, name)()
        return tensor

    def start_sum_(self, tensor, name):
        if self.size == 1:
            return lambda: None
        with self._collective(name):
            handle = self._hvd.allreduce_async_(tensor, op=self._hvd.Sum, name=name)

        def wait():
            with self._collective(name):
                while not self._hvd.poll(handle):       # Horovod's own wait spins, on the core that its thread needs
                    time.sleep(POLL_SECONDS)
                self._hvd.synchronize(handle)
        return wait

    def broadcast_(self, tensor, name, root=0):
        with self._collective(name):
            return self._hvd.broadcast_(tensor, root_rank=root, name=name)

    def gather(self, value, name):
        with self._collective(name):
            return self._hvd.allgather_object(value, name=name)

    def versions(self):
        return {"horovod": sys.modules["horovod"].__version__, "allreduce": self._transport()}

    def _transport(self) -> str:
        if not self._hvd.mpi_enabled():
            return "Gloo"
        import mpi4py
        mpi4py.rc.initialize = mpi4py.rc.finalize = False       # Horovod does both
        from mpi4py import MPI
        return MPI.Get_library_version().splitlines()[0].split(",")[0]

    def leave(self):
        self.gather(None, "leave")
        self._shut_down()

    def abandon(self):
        self._shut_down()

    def _shut_down(self) -> None:
        with self._collective("the end of Horovod"):
            self._hvd.shutdown()

    @contextlib.contextmanager
    def _collective(self, name: str):
        self._waiting = (name, time.monotonic())
        try:
            yield
        except self._hvd.HorovodInternalError as error:
            raise WorkerLostError(f"rank {self.rank} of {self.size}: a worker was lost during {name!r}: "
                                  f"{str(error).strip()}") from None
        finally:
            with self._giving_up:
                self._waiting = None

    def watch(self, lost):
        watched, self._lost = self._lost, lost
        if watched is None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        # Horovod's own stall check sees a rank that never asks for a collective, not one that stops inside it
        while True:
            time.sleep(min(1.0, self._stall_seconds / 4))
            with self._giving_up:
                reason = self._stalled(self._stall_seconds)
                if reason:
                    self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        try:
            print(f"Error: {reason}", file=sys.stderr, flush=True)
            self._lost(reason)
        finally:                    # whatever becomes of the message
            self._end()

    def _end(self) -> None:
        """End this process."""
        os._exit(1)

    def _stalled(self, seconds: float) -> str:
        """The collective that this rank has waited in for that long, in words; empty if there is none."""
        waiting = self._waiting
        if waiting is None or time.monotonic() - waiting[1] <= seconds:
            return ""
        return (f"rank {self.rank} of {self.size} on {socket.gethostname()} has waited {seconds:g} s for the other "
                f"workers in {waiting[0]!r}; one of them has stopped or is lost")


class ElasticWorkers(HorovodWorkers):
    """The workers of `horovodrun --host-discovery-script`: when some are lost, or hosts change, the rest
    form a new group.

    horovodrun assigns new ranks once every worker has asked for one or ended, so none may linger. A worker that waits
    longer than the stall time closes all connections; the collectives of the others then fail too, and all of them ask.
    A worker that is stopped, or cut off without noticing for the stall time, is killed by a kernel timer.
    """

    elastic = True

    def __init__(self, hvd, stall_seconds: float):
        self._hvd, self._stall_seconds = hvd, stall_seconds
        self._connections = frozenset()
        self._rendezvous = Rendezvous(stall_seconds)
        self._listen()
        threading.Thread(target=self._keep_deadline, args=(Deadline(),), daemon=True).start()
        self._join(first=True)

    def _listen(self) -> None:
        from horovod.runner.elastic.worker import WorkerNotificationManager
        manager = WorkerNotificationManager()
        manager.init()
        manager.register_listener(self)

    def on_hosts_updated(self, timestamp, result) -> None:
        """Called by horovodrun's notification thread."""
        self.hosts_changed = True

    def _join(self, first: bool) -> None:
        self.hosts_changed = False
        self._rendezvous.meet(first)
        before = _tcp_sockets()
        self._hvd.init()
        os.environ["HOROVOD_ELASTIC"] = "0"         # at the next init Horovod takes the place found here
        self._connections = _tcp_sockets() - before
        self._take_place()

    def reform(self):
        self.abandon()
        self._join(first=False)

    def abandon(self):
        connections, self._connections = self._connections, frozenset()
        self._hvd.shutdown()
        _shut(connections)          # Horovod leaves some open, and a rank that waits for this one would keep waiting

    def leave(self):
        super().leave()
        self._connections = frozenset()

    def check(self):
        if self._is_cut_off():
            raise WorkerLostError(f"rank {self.rank} of {self.size}: a worker was lost")

    def watch(self, lost):
        """The deadline is kept from the start."""

    def _is_cut_off(self) -> bool:
        return not self._connections <= _tcp_sockets()

    def _keep_deadline(self, deadline: Deadline) -> None:
        while True:
            connections, cut_off = self._connections, self._is_cut_off()
            if self._waiting or not cut_off:
                deadline.put_off(self._stall_seconds)
            reason = self._stalled(self._stall_seconds)
            if reason and not cut_off:
                print(f"Note: {reason}", file=sys.stderr, flush=True)
            if reason or cut_off:
                _shut(connections)
            time.sleep(min(1.0, self._stall_seconds / 4))


def _tcp_sockets() -> frozenset[tuple[int, str]]:
    """This process's TCP sockets, as file number and name; none where there is no /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{number}")
                if name.startswith("socket:") and _family(number) in (socket.AF_INET, socket.AF_INET6):
                    found.add((number, name))
    return frozenset(found)


def _family(number: int) -> int:
    with socket.socket(fileno=os.dup(number)) as copy:
        return copy.family


def _shut(sockets: frozenset[tuple[int, str]]) -> None:
    """Shut those that are still open."""
    for number, _ in sockets & _tcp_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)


def form(stall_seconds: float) -> Workers:
    """The worker group of this process.

    Raises WorkersError under a launcher where Horovod cannot be imported or joins fewer processes than were started:
    each would train alone.
    """
    started = launched()
    hvd = started and load_horovod(*started, stall_seconds)
    if not hvd:
        return SingleWorker()
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        return ElasticWorkers(hvd, stall_seconds)
    with starting(stall_seconds):
        hvd.init()
    check_joined(*started, hvd.size())
    return HorovodWorkers(hvd, stall_seconds)


@contextlib.contextmanager
def starting(stall_seconds: float) -> Iterator[None]:
    """End a process that waits longer than five stall times for the others to start."""
    seconds = APART * stall_seconds

    def give_up():
        print(f"Error: a worker on {socket.gethostname()} has waited {seconds:g} s for the others to start; one has "
              f"stopped, or is slower: --set stall_seconds={2 * stall_seconds:g} waits longer", file=sys.stderr,
              flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load_horovod(launcher: str, processes: int, stall_seconds: float):
    """Horovod, after the variables that it and MPI read are set; None where one process is there and no Horovod.

    Raises WorkersError for several processes that it could not join.
    """
    # two threads of each process wait by spinning, Horovod's and the main one: on a shared core one must yield
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # Horovod acts on its stall shutdown only if it is above the warning
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(stall_seconds / 2))))
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(stall_seconds))))
    try:
        import horovod.torch as hvd
    except ImportError as error:
        if processes == 1:
            return None
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod cannot be imported ({error}): "
                           f"they would be {processes} separate runs. Install it (tools/setup builds it), or start one "
                           f"process without {launcher}") from None
    if launcher == "srun" and processes > 1 and _is_open_mpi_without_pmi():
        raise WorkersError(f"srun started {processes} processes without PMIx, by which Open MPI would join them: they "
                           f"would be {processes} separate runs. Use srun --mpi=pmix, or mpirun inside the allocation")
    return hvd


def check_joined(launcher: str, processes: int, joined: int) -> None:
    """Raise WorkersError where not all processes that were started are joined."""
    if joined != processes:
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod joins {joined}: {launcher} and "
                           "Horovod do not use one MPI (`horovodrun --check-build` shows Horovod's; under srun try "
                           "--mpi=pmix)")


def _is_open_mpi_without_pmi() -> bool:
    """Whether MPI_Init would end this process of srun without a helpful message; other MPIs can join without PMI."""
    if any(name.startswith(("PMIX_", "PMI_")) for name in os.environ):
        return False
    try:
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except ImportError:
        return False
    return "Open MPI" in MPI.Get_library_version()


def device(wanted: str, local_rank: int) -> torch.device:
    """The device of a local rank: its GPU where there is one and ``wanted`` is auto or cuda; raises WorkersError."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise WorkersError("device = 'cuda', but torch sees no GPU here; choose auto or cpu")
    found = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def keep_freed_memory() -> None:
    """Have glibc keep the memory that a step frees for the next step.

    By default it returns large arrays to the system and faults them in again, page by page, at every step.
    """
    mmap_threshold, trim_threshold = -3, -1         # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 * 2**20)    # its maximum
        libc.mallopt(trim_threshold, 2**31 - 1)
