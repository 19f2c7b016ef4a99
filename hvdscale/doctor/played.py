"""Simulate one rank of several in this process: environment, Horovod, torch and host name answer as under a launcher.
There is no real group: code that communicates fails or hangs."""
from __future__ import annotations

import os
import platform
import socket

import torch

from ..workers.launch import without_launcher

# variables in which launchers, and programs made for them, give a process its rank and the number of processes
RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "PMI_RANK",
         "RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "PMI_SIZE",
         "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}      # of torch.distributed


def environment(rank: int, size: int) -> dict[str, str]:
    """The environment of a process that a launcher started with this rank and size."""
    return {**MEETING, **without_launcher(), **dict.fromkeys(RANKS, str(rank)), **dict.fromkeys(SIZES, str(size))}


def play(rank: int, size: int) -> None:
    """Make Horovod and torch.distributed report this rank and size, before the job's code is imported. As in a run,
    Horovod is already initialized if there are several workers, and torch.distributed once the job asks."""
    ranks = {"rank": rank, "local_rank": rank, "cross_rank": 0, "size": size, "local_size": size, "cross_size": 1}
    try:
        from horovod.common.basics import HorovodBasics
    except ImportError:
        pass
    else:
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
