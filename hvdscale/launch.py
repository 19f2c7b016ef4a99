"""The launchers that start a command on several workers: the command line each needs, what it tells its processes."""
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from .errors import UsageError, WorkersError

LAUNCHERS = ("horovodrun", "horovodrun-gloo", "mpirun", "srun")
# what each launcher tells a process of the number of processes it started
LAUNCHED = {"HOROVOD_SIZE": "horovodrun", "OMPI_COMM_WORLD_SIZE": "mpirun", "SLURM_STEP_NUM_TASKS": "srun",
            "PMI_SIZE": "mpirun"}


def find_launcher(wanted: str = "auto", environment: Mapping[str, str] = os.environ) -> str | None:
    """The launcher to use; None where there is none.

    Inside a Slurm allocation mpirun or srun, which need no ssh between the nodes; elsewhere horovodrun, which takes the
    transport that Horovod was built with. Raises UsageError for a name that is no launcher or not installed.
    """
    if wanted == "auto":
        candidates = ("mpirun", "srun", "horovodrun") if "SLURM_JOB_ID" in environment else ("horovodrun", "mpirun")
        return next((name for name in candidates if shutil.which(name, path=environment.get("PATH"))), None)
    if wanted not in LAUNCHERS:
        raise UsageError(f"--launcher {wanted} is none of auto, {', '.join(LAUNCHERS)}")
    if shutil.which(wanted.split("-")[0], path=environment.get("PATH")) is None:
        raise UsageError(f"--launcher {wanted}: there is no {wanted.split('-')[0]} on PATH")
    return wanted


def launch_command(launcher: str | None, workers: int, command: list[str], hosts: str | None = None) -> list[str]:
    """The command on so many workers, on this machine or on ``hosts`` (a:4,b:4).

    Raises WorkersError for several workers without a launcher.
    """
    count = ["-np", str(workers)]
    if launcher is None:
        if workers == 1:
            return command
        raise WorkersError(f"{workers} workers need a launcher, and neither horovodrun, mpirun nor srun is on PATH; "
                           "tools/setup installs the first two, and --workers 1 needs none")
    if launcher == "srun":
        return ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "-n", str(workers), *command]
    if launcher == "mpirun":
        # ranks bound to a core each would not have the threads that they are given
        room = ["--oversubscribe", "--bind-to", "none"] if _is_open_mpi() else []
        return ["mpirun", *room, *count, *(["-H", hosts] if hosts else []), *command]
    gloo = ["--gloo"] if launcher == "horovodrun-gloo" else []
    return ["horovodrun", *gloo, *count, "-H", hosts or f"localhost:{workers}", *command]


def launch_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment to launch in: Open MPI refuses to run as root unless told twice."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return {**environment, **allowed}


def _is_open_mpi() -> bool:
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, env=launch_environment())
    return "Open MPI" in said.stdout


def launched() -> tuple[str, int] | None:
    """The launcher that started this process and its number of processes; None without one."""
    for variable, launcher in LAUNCHED.items():
        if os.environ.get(variable, "").isdecimal():
            return launcher, int(os.environ[variable])
    return None


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on, by the system's numbers."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
