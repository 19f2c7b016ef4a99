"""Where ranks that the doctor starts meet: the variables of torchrun, and of horovodrun for scripts with Horovod."""
from __future__ import annotations

import contextlib
import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def meeting(script: str, workers: int) -> Iterator[list[dict[str, str]]]:
    """The variables of each rank, on this machine, while the script runs."""
    port = free_port()
    with rendezvous(script, workers) as horovods:
        yield [{**of_torchrun(rank, workers, rank, workers, port), **of_horovodrun(rank, workers, horovods)}
               for rank in range(workers)]


@contextlib.contextmanager
def rendezvous(script: str, workers: int) -> Iterator[int]:
    """The port at which Horovod's ranks on this machine meet over Gloo; 0 for a script without Horovod.

    Over MPI a rank could not end before the script does: mpirun takes that for a failure.
    """
    if importlib.util.find_spec("horovod") is None or "horovod" not in Path(script).read_text(errors="replace"):
        yield 0
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
    server = RendezvousServer(0)
    port = server.start()
    try:
        server.init(get_host_assignments(parse_hosts(f"localhost:{workers}"), workers))
        yield port
    finally:
        server.stop()


def of_torchrun(rank: int, size: int, local_rank: int, local_size: int, port: int) -> dict[str, str]:
    """As torchrun would have them on one machine."""
    told = dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=local_size, GROUP_RANK=0,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    return {name: str(value) for name, value in told.items()}


def of_horovodrun(rank: int, size: int, port: int) -> dict[str, str]:
    """As ``horovodrun --gloo`` would have them on one machine; none for port 0."""
    if not port:
        return {}
    told = dict(RANK=rank, SIZE=size, LOCAL_RANK=rank, LOCAL_SIZE=size, CROSS_RANK=0, CROSS_SIZE=1, CONTROLLER="gloo",
                CPU_OPERATIONS="gloo", HOSTNAME="localhost", GLOO_IFACE="lo", GLOO_RENDEZVOUS_ADDR="127.0.0.1",
                GLOO_RENDEZVOUS_PORT=port)
    return {f"HOROVOD_{name}": str(value) for name, value in told.items()}


def free_port() -> int:
    """One of this machine that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
