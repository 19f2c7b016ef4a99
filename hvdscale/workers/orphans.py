"""A worker stops when its launcher has ended: a launcher that is killed, or whose terminal is closed, may leave it.

    stop_without_launcher(stall_seconds)        a thread watches from now on

A launcher is the nearest process above a worker without the variables that it gave the worker: mpirun or its daemon on
this host, torchrun's agent, slurmstepd. Scripts and shells between are not. A launcher may have been started by
another, such as torchrun by srun; then all are watched.
"""

import contextlib
import os
import signal
import threading
import time

from ..errors import WorkersError
from ..formatting.screen import say
from ..system.ancestors import SystemProcess, ancestors, command_of, environment_of
from .launch import LAUNCHED

POLL_SECONDS = 0.2
OF_HOROVODRUN = ("-c mpirun --allow-run-as-root --tag-output -np ", "-c mpirun -l -np ")        # Open MPI's, MPICH's


def find_launchers() -> list[tuple[str, tuple[SystemProcess, ...]]]:
    """The launchers above this process, the nearest first: name, and the processes that must run. None for the first
    process of a container, whose end is that of all others."""
    variables = [variable for variable in LAUNCHED if os.environ.get(variable, "").isdecimal()]
    above = list(ancestors()) if variables else []
    given, found = [environment_of(process.pid) for process in above], {}
    for variable in variables:
        at = next((at for at, environment in enumerate(given) if variable not in environment), None)
        if at is not None:
            # horovodrun runs each worker by a shell, or becomes a shell that runs mpirun
            runs_worker = variable == "HOROVOD_SIZE" and command_of(above[at].pid)[1:2] == ["-c"]
            parents = [parent for parent in above[at + 1:at + 2]
                       if runs_worker or " ".join(command_of(parent.pid)[1:3]).startswith(OF_HOROVODRUN)]
            found.setdefault(at, (LAUNCHED[variable], (above[at], *parents)))
    return [found[at] for at in sorted(found)]


LAUNCHERS = find_launchers()        # now: later they may have ended


def refuse_launcher_in_torchrun() -> None:
    """Raise WorkersError where torchrun started another launcher: its workers would have the places of torchrun's."""
    names = [name for name, _ in LAUNCHERS]
    if "torchrun" in names[1:]:
        raise WorkersError(f"torchrun started {names[0]}, which started this process, and each of them gives it a "
                           f"rank: start hvdscale's commands by torchrun or by {names[0]} alone")


def stop_without_launcher(stall_seconds: float) -> None:
    """Once the launcher has ended, send this process SIGTERM, and end it if it still runs after the stall time."""
    if watched := [process for _, processes in LAUNCHERS for process in processes]:
        threading.Thread(target=_watch, args=(watched, stall_seconds), daemon=True).start()


def _watch(watched: list[SystemProcess], stall_seconds: float) -> None:
    while all(process.runs() for process in watched):
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(OSError):
        say("Note: the launcher has ended, so this worker stops", err=True)
    os.kill(os.getpid(), signal.SIGTERM)
    for name, (nearest, *others) in LAUNCHERS:      # horovodrun has ended, but not mpirun, which signals all hosts
        if name == "mpirun" and others and nearest.runs() and os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0":
            with contextlib.suppress(OSError):
                os.kill(nearest.pid, signal.SIGUSR1)
    time.sleep(stall_seconds)
    os._exit(1)
