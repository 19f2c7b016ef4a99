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

from .errors import HvdscaleError, WorkerLostError, WorkersError
from .launch import launched


class Lone:
    """One worker without a launcher: the same operations, with nothing to do."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def sum_(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The sum over workers, in place."""
        return tensor

    def start_sum_(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        """Begin the sum over workers, in place; the call of what comes back waits for it."""
        return lambda: None

    def broadcast_(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Rank 0's values, in place."""
        return tensor

    def gather(self, value, name: str) -> list:
        """Every rank's value, in rank order."""
        return [value]

    def versions(self) -> dict[str, str]:
        """Versions of what joins the workers."""
        return {}

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call ``lost`` with the reason, then end the process, once a collective lasts longer than the stall time."""

    def leave(self) -> None:
        """The last collective: no rank goes before all are done."""

    def abandon(self) -> None:
        """Leave the others, whose next collective then fails on them."""

    @contextlib.contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """An error that any rank raises inside is raised on all, naming the ranks; a collective."""
        error = None
        try:
            yield
        except HvdscaleError as raised:
            error = raised
        except Exception as raised:
            traceback.print_exc()
            error = HvdscaleError(f"{doing}: {type(raised).__name__}: {raised}")
        errors = self.gather(error and (type(error), str(error)), f"errors/{doing}")
        if any(errors):
            raise _joined(errors)


def _joined(errors: list) -> HvdscaleError:
    """One error for those of the ranks (None: no error), the same on all."""
    kind, first = next(e for e in errors if e)
    ranks = [r for r, e in enumerate(errors) if e and e[1] == first]
    if len(ranks) == len(errors):
        return kind(first)
    others = [f"rank {r}: {e[1]}" for r, e in enumerate(errors) if e and e[1] != first]
    return kind("\n".join([f"rank {', '.join(map(str, ranks))} of {len(errors)}: {first}", *others]))


class Horovod(Lone):
    """The workers that a launcher started, joined by Horovod (MPI, Gloo or NCCL)."""

    def __init__(self, hvd, stall_seconds: float):
        self._hvd, self._stall_seconds = hvd, stall_seconds
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        self._waiting: tuple[str, float] | None = None

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
                self._hvd.synchronize(handle)
        return wait

    def broadcast_(self, tensor, name):
        with self._collective(name):
            return self._hvd.broadcast_(tensor, root_rank=0, name=name)

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
        self._hvd.shutdown()

    def abandon(self):
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
            self._waiting = None

    def watch(self, lost):
        threading.Thread(target=self._watch, args=(lost,), daemon=True).start()

    def _watch(self, lost):
        # Horovod's own stall check sees a rank that never asks for a collective, not one that stops inside it
        while True:
            time.sleep(min(1.0, self._stall_seconds / 4))
            waiting = self._waiting
            if waiting and time.monotonic() - waiting[1] > self._stall_seconds:
                reason = (f"rank {self.rank} of {self.size} on {socket.gethostname()} has waited "
                          f"{self._stall_seconds:g} s for the other workers in {waiting[0]!r}; one of them has "
                          "stopped or is lost")
                print(f"Error: {reason}", file=sys.stderr, flush=True)
                lost(reason)
                os._exit(1)


def form(stall_seconds: float) -> Lone:
    """The worker group of this process.

    Raises WorkersError under a launcher where Horovod cannot be imported or joins fewer processes than were started:
    they would be so many lone runs.
    """
    started = launched()
    if started is None:
        return Lone()
    launcher, processes = started
    # each process has two threads that wait by spinning, Horovod's and its own: on a shared core one must let go
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # Horovod acts on its stall shutdown only if it is above the warning
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(stall_seconds / 2))))
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(stall_seconds))))
    try:
        import horovod.torch as hvd
    except ImportError as error:
        if processes == 1:
            return Lone()
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod cannot be imported ({error}): "
                           f"they would be {processes} lone runs. Install it (tools/setup builds it), or start one "
                           f"process without {launcher}") from None
    if launcher == "srun" and processes > 1 and _is_open_mpi_without_pmi():
        raise WorkersError(f"srun started {processes} processes without PMIx, by which Open MPI would join them: they "
                           f"would be {processes} lone runs. Use srun --mpi=pmix, or mpirun inside the allocation")
    hvd.init()
    if hvd.size() != processes:
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod joins {hvd.size()}: {launcher} and "
                           "Horovod do not use one MPI (`horovodrun --check-build` shows Horovod's; under srun try "
                           "--mpi=pmix)")
    return Horovod(hvd, stall_seconds)


def _is_open_mpi_without_pmi() -> bool:
    """Whether MPI_Init would end this process of srun, with no word that helps; other MPIs can join without PMI."""
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
    """Have the C library keep what a step frees for the next one, where it is glibc.

    It would hand large arrays back to the system and get them anew, page by page, at every step.
    """
    mmap_threshold, trim_threshold = -3, -1         # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 * 2**20)    # the most that it takes
        libc.mallopt(trim_threshold, 2**31 - 1)
