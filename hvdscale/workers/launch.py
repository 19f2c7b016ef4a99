"""The launchers that start a command on several workers: the command line each needs, and its variables."""

import contextlib
import ctypes
import importlib.util
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError, WorkersError
from ..formatting.numbers import counted
from ..system.ancestors import environment_of, find_process
from ..system.cores import usable_cores
from ..system.run_module import OURS, SAFE

MOST_PER_CORE = 16      # workers that one machine is asked to start: each loads torch, in seconds of a core
LOCAL_NAMES = ("localhost", "127.0.0.1", socket.gethostname())
LAUNCHERS = ("horovodrun", "horovodrun-gloo", "mpirun", "srun", "torchrun")
TASKS_OF_NODES = "SLURM_STEP_TASKS_PER_NODE"        # of all nodes of the step, this one the SLURM_NODEID-th
# the variable in which each launcher gives the number of processes it started (torchrun sets its own beside the
# others'), the launcher, and the variables of rank, local rank, local size, and those that identify the launch. A
# requeued Slurm job keeps its ids, and Open MPI 4 reuses namespaces, but mpirun's address is unique
VARIABLES = {
    "ROLE_WORLD_SIZE": ("torchrun", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    "HOROVOD_SIZE": ("horovodrun", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
                     ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")),
    "OMPI_COMM_WORLD_SIZE": ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")),
    "SLURM_STEP_NUM_TASKS": ("srun", "SLURM_PROCID", "SLURM_LOCALID", TASKS_OF_NODES,
                             ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
    "PMI_SIZE": ("mpirun", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ())}
LAUNCHED = {counted: variables[0] for counted, variables in VARIABLES.items()}
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "PRTE_", "ORTE_", "TORCHELASTIC_", "ROLE_", "GROUP_")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

MARK_OF_RANK = re.compile(r"\[\d+(?:,\d+)?\]<std(?:out|err)>:")         # horovodrun puts it before each line
# what launchers print of a job that failed begins with torchrun's log, a rule of Open MPI, or horovodrun's sentence
LAUNCHER_SPEAKS = re.compile(r"^(?:[EW]\d{4} [\d:.]+ \d+ \S*torch/distributed/|-{60,}$|Process (?:name: )?\d+)", re.M)
SHARED = "HVDSCALE_SHARED"      # variable that names a folder which all hosts of a launch share
THREAD_MULTIPLE = 3     # in Open MPI, MPICH and its derivatives
SEEN_SECONDS = 5        # by then all processes of a launch on one host have started


def find_launcher(wanted: str = "auto", environment: Mapping[str, str] = os.environ) -> str | None:
    """The launcher to use; None where there is none. Inside a Slurm allocation mpirun or srun, which need no ssh
    between the nodes; elsewhere horovodrun, which takes the transport that Horovod was built with. torchrun is the
    last, and the first outside of Slurm if there is no Horovod."""
    if wanted == "auto":
        candidates = ("mpirun", "srun", "horovodrun") if "SLURM_JOB_ID" in environment else ("horovodrun", "mpirun")
        last = "SLURM_JOB_ID" in environment or importlib.util.find_spec("horovod") is not None
        candidates = (*candidates, "torchrun") if last else ("torchrun", *candidates)
        return next((name for name in candidates if shutil.which(name, path=environment.get("PATH"))), None)
    if wanted not in LAUNCHERS:
        raise UsageError(f"--launcher {wanted} is none of auto, {', '.join(LAUNCHERS)}")
    if shutil.which(wanted.split("-")[0], path=environment.get("PATH")) is None:
        raise UsageError(f"--launcher {wanted}: there is no {wanted.split('-')[0]} on PATH")
    return wanted


def refuse_too_many(workers: int, launcher: str | None, hosts: str | None,
                    environment: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for more workers than there is room for, and for ``hosts`` that the launcher would ignore.
    Launchers do not say it well: horovodrun is silent for minutes, or shows a traceback. Without ``hosts`` in a Slurm
    allocation, this is for Slurm to judge."""
    here = 0                # of the workers, those on this machine
    if hosts and launcher == "srun":
        raise UsageError("--hosts and --launcher srun: Slurm's allocation determines the hosts; leave --hosts out")
    if hosts and launcher == "torchrun":
        raise UsageError("--hosts and --launcher torchrun: torchrun starts workers on this machine only; leave "
                         "--hosts out, or choose another launcher")
    if hosts:
        slots = sum(_slots(host) for host in hosts.split(","))
        if workers > slots:
            raise UsageError(f"--workers {workers}: --hosts {hosts} has room for {slots}; name more hosts, raise the "
                             "numbers behind them, or start fewer workers")
        here = sum(_slots(host) for host in hosts.split(",") if host.partition(":")[0] in LOCAL_NAMES)
    elif launcher is not None and "SLURM_JOB_ID" not in environment:
        here = workers
    if min(here, workers) > MOST_PER_CORE * (cores := len(usable_cores())):
        raise UsageError(f"--workers {workers}: this machine has {counted(cores, 'core')}, and at most "
                         f"{MOST_PER_CORE * cores} workers are started on it ({MOST_PER_CORE} a core), as each loads "
                         "PyTorch by itself. Start fewer, or name more machines by --hosts A:4,B:4; --accumulate makes "
                         "the same updates with fewer workers")


def most_workers(hosts: str | None, environment: Mapping[str, str] = os.environ) -> float:
    """How many workers have a core, or a slot of ``hosts``, each; inf: Slurm knows."""
    if hosts:
        return sum(_slots(host) for host in hosts.split(","))
    return math.inf if "SLURM_JOB_ID" in environment else len(usable_cores())


def _slots(host: str) -> int:
    """The number behind a host's name, or 1; raises UsageError."""
    name, colon, slots = host.partition(":")
    if not name or colon and not (slots.isdecimal() and int(slots)):
        raise UsageError(f"--hosts: {host!r} is no host and its number of workers, such as A:4")
    return int(slots or 1)


def launch_command(launcher: str | None, workers: int, command: list[str], hosts: str | None = None) -> list[str]:
    """The command on this number of workers, on this machine or on ``hosts`` (a:4,b:4); raises WorkersError."""
    count = ["-np", str(workers)]
    if launcher is None:
        if workers == 1:
            return command
        raise WorkersError(f"{workers} workers need a launcher, and neither horovodrun, mpirun, srun nor torchrun is "
                           "on PATH; torchrun comes with torch, and --workers 1 needs none")
    if launcher == "srun":
        return ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "-n", str(workers), *command]
    if launcher == "mpirun":
        # ranks bound to a core each would not have the threads that they are given
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, env=launch_environment())
        room = ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in said.stdout else []
        return ["mpirun", *room, *count, *(["-H", hosts] if hosts else []), *command]
    if launcher == "torchrun":
        return ["torchrun", "--standalone", "--nproc-per-node", str(workers), "--no-python", "--", *command]
    gloo = ["--gloo"] if launcher == "horovodrun-gloo" else []
    return ["horovodrun", *gloo, *count, "-H", hosts or f"localhost:{workers}", *command]


def launch_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment to launch in: Open MPI runs as root only if two variables allow it, and horovodrun, which starts
    processes by ``python -c``, does not import what lies in the working folder.

    Below TreeWidth nodes Slurm's PMIx skips its tree barrier, so that now and then a worker of srun crashes in
    MPI_Init, on a message from one that is already past it. The ring barrier has no such limit.
    """
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return {"SLURM_PMIX_FENCE": "ring", SAFE: OURS, **environment, **allowed}


def without_launcher() -> dict[str, str]:
    return {name: value for name, value in os.environ.items()
            if not name.startswith(OF_LAUNCHERS) and name not in OF_TORCHRUN}


def shared_folder() -> Path:
    return Path(os.environ.get(SHARED, "."))


def has_pmi() -> bool:
    return any(name.startswith(("PMIX_", "PMI_")) for name in os.environ)


def load_mpi():
    """mpi4py's MPI, where hvdscale or Horovod initializes and finalizes it."""
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    return MPI


def begin_mpi(library: str) -> None:
    """Initialize MPI; mpi4py would hold the GIL while it waits, so a process that never arrives would go unnoticed."""
    ctypes.CDLL(library).MPI_Init_thread(None, None, THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))


def launched() -> tuple[str, int] | None:
    counted = _counted()
    return counted and (LAUNCHED[counted], int(os.environ[counted]))


def _counted() -> str | None:
    return next((variable for variable in LAUNCHED if os.environ.get(variable, "").isdecimal()), None)


def under_torchrun() -> bool:
    return _counted() == "ROLE_WORLD_SIZE"


@dataclass(frozen=True)
class Process:
    """This process among those that its launcher started."""

    launcher: str | None
    rank: int
    size: int
    local_rank: int         # among those on its host
    local_size: int
    job: str                # identifies the launch: the same for all its processes, and for no others


def place() -> Process:
    """This process, read from its launcher's variables; needs no MPI. Raises WorkersError where they give no rank."""
    if (counted := _counted()) is None:
        return Process(None, 0, 1, 0, 1, f"{socket.gethostname()}:{os.getpid()}")
    launcher, *names, _ = VARIABLES[counted]
    size, job = int(os.environ[counted]), _job(counted, os.environ, os.getppid())
    rank, local_rank, local_size = (_read_number(launcher, size, name) for name in names) if size > 1 else (0, 0, 1)
    return Process(launcher, rank, size, local_rank, local_size, job)


def _job(counted: str, environment: Mapping[str, str], parent: int) -> str:
    launcher, *_, names = VARIABLES[counted]
    said = [environment[name] for name in names if environment.get(name)] or [f"{socket.gethostname()}:{parent}"]
    return ":".join([launcher, *said])


def _read_number(launcher: str, size: int, name: str) -> int:
    said = os.environ.get(name, "")
    with contextlib.suppress(ValueError, IndexError):
        if name != TASKS_OF_NODES:
            return int(said)
        tasks = [int(tasks) for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", said)       # such as 2(x3),1
                 for _ in range(int(times or 1))]
        return tasks[int(os.environ["SLURM_NODEID"])]
    raise WorkersError(f"{launcher} started {size} processes, but does not give this one its rank: {name} "
                       f"is {said!r}, not a number. Start them with mpirun, srun, horovodrun or torchrun")


def killed_process(said: str) -> str:
    """The process whose death ended a job, by what its launcher said: ``process 0 was killed by signal 9 (SIGKILL)``;
    "" where none was killed."""
    found = (re.search(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)", said)
             or re.search(r"Root Cause .*\n.*\n.*\n.*\n +rank +: (\d+) .*\n +exitcode +: (-\d+|1[3-9]\d)\b", said)
             or re.search(r"^Process (?:name: )?(\d+)(?: exit with status code |\nExit code: )(-\d+|1[3-9]\d)\b",
                          said, re.M))
    if not found:
        return ""
    number = abs(int(found[2])) % 128                           # a shell adds 128, Python puts a minus before
    name = {Signal.value: Signal.name for Signal in signal.Signals}.get(number, "unknown")
    why = ", as the kernel does where memory runs out" if number == signal.SIGKILL else ""
    return f"process {found[1]} was killed by signal {number} ({name}){why}"


def on_terminal(out) -> bool:
    """Whether output reaches a terminal unchanged: launchers give workers pseudo-terminals, and prefix lines."""
    if not out.isatty() or launched() is None:
        return out.isatty()
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    return False


def last_words(said: str) -> str:
    """The last line that a job printed before its launcher spoke of its end; "" for none."""
    lines = LAUNCHER_SPEAKS.split(MARK_OF_RANK.sub("", said), maxsplit=1)[0].splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def cores_of_launch(process: Process) -> frozenset[int]:
    """The cores of this host that the processes of the launch may use together. A launcher may bind each process to its
    own cores. Without MPI they cannot exchange these, so /proc is read. Processes that it does not show, such as those
    in other containers, are not counted."""
    end, counted = time.monotonic() + SEEN_SECONDS, _counted()
    while True:
        found: dict[int, frozenset[int]] = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if counted else ():
            with contextlib.suppress(OSError, ValueError):          # it has ended, or belongs to somebody else
                environment, other = environment_of(pid), find_process(pid)
                rank = int(environment.get(VARIABLES[counted][1], ""))
                if other is not None and _job(counted, environment, other.parent) == process.job:
                    cores = frozenset(os.sched_getaffinity(pid))
                    found[rank] = min(found.get(rank, cores), cores, key=len)   # a script around it may be free to roam
        by_rank = {process.rank: usable_cores(), **found}
        if len(by_rank) >= process.local_size or time.monotonic() > end:
            return frozenset().union(*by_rank.values())
        time.sleep(0.1)
