"""Workers joined by Horovod: MPI, Gloo or NCCL."""

import contextlib
import os
import sys
import time

from ..errors import WorkersError
from .group import POLL_SECONDS, JoinedWorkers
from .launch import has_pmi, load_mpi


class HorovodWorkers(JoinedWorkers):
    """The workers that a launcher started, joined by Horovod."""

    transport = "horovod"
    _broken = property(lambda self: self._hvd.HorovodInternalError)

    def __init__(self, hvd, stall_seconds: float):
        self._hvd, self._stall_seconds = hvd, stall_seconds
        self._take_place()
        self.watch(lambda reason: None)

    def _take_place(self) -> None:
        self.rank, self.size = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()

    def start_sum_(self, tensor, name):
        if self.size == 1:
            return lambda: None
        with self._collective(name):
            handle = self._hvd.allreduce_async_(tensor, op=self._hvd.Sum, name=name, process_set=self._set)

        def wait():
            with self._collective(name):
                while not self._hvd.poll(handle):       # Horovod's own wait spins, on the core that its thread needs
                    time.sleep(POLL_SECONDS)
                self._hvd.synchronize(handle)
        return wait

    def broadcast_(self, tensor, name, root=0):
        with self._collective(name):
            return self._hvd.broadcast_(tensor, root_rank=self._first + root, name=name, process_set=self._set)

    def gather(self, value, name):
        with self._collective(name):
            if self._members is None:
                return self._hvd.allgather_object(value, name=name)
            return [self._hvd.broadcast_object(value, self._first + rank, f"{name}/{rank}", self._members)
                    for rank in range(self.size)]       # as allgather_object is of all processes alone

    @property
    def _set(self):
        return self._members or self._hvd.global_process_set

    def _unite(self, ranks):
        return self._hvd.add_process_set(ranks)

    def versions(self):
        mpi = load_mpi().Get_library_version().splitlines()[0].split(",")[0] if self._hvd.mpi_enabled() else ""
        return {"horovod": sys.modules["horovod"].__version__, "allreduce": mpi or "Gloo"}

    def _shut_down(self) -> None:
        with self._collective("the end of Horovod"):
            self._hvd.shutdown()


def load_horovod(launcher: str, processes: int, stall_seconds: float):
    """Horovod, after the variables that it and MPI read are set; None where one process is there and no Horovod. Raises
    WorkersError for several processes that it could not join."""
    # two threads of each process wait by spinning, Horovod's and the main one: on a shared core one must yield
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    if os.environ.get("HOROVOD_CONTROLLER") != "gloo":          # whose looks take the time of computing
        # milliseconds between looks for sums that all ranks want; the usual 1 ms waits for more to sum at once
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.25")
    # Horovod acts on its stall shutdown only if it is above the warning
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(stall_seconds / 2))))
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(stall_seconds))))
    try:
        import horovod.torch as hvd
    except ImportError as error:
        if processes == 1:
            return None
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod cannot be imported ({error}): "
                           f"they would be {processes} separate runs. Install it, start them by torchrun, or start one "
                           f"process without {launcher}") from None
    if launcher == "srun" and processes > 1 and not has_pmi():
        with contextlib.suppress(ImportError):          # Open MPI ends the process then, without a helpful message
            if "Open MPI" in load_mpi().Get_library_version():
                raise WorkersError(
                    f"srun started {processes} processes without PMIx, by which Open MPI would join them: they would "
                    f"be {processes} separate runs. Use srun --mpi=pmix, or mpirun inside the allocation")
    return hvd


def check_joined(launcher: str, processes: int, joined: int) -> None:
    if joined != processes:
        raise WorkersError(f"{launcher} started {processes} processes, but Horovod joins {joined}: {launcher} and "
                           "Horovod do not use one MPI (`horovodrun --check-build` shows Horovod's; under srun try "
                           "--mpi=pmix)")
