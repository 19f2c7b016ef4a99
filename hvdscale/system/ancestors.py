"""The processes above this one, as /proc shows them."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class SystemProcess:
    """A process, recognized by the moment of its start, as another may get its number."""

    pid: int
    parent: int
    started: str        # in clock ticks since boot; "" where /proc hides it

    def runs(self) -> bool:
        """Whether it has not ended; a zombie has."""
        found = find_process(self.pid)
        return found is not None and found.started == self.started or not self.started and os.getppid() == self.pid


def find_process(pid: int) -> SystemProcess | None:
    """The process of that number; None where none runs, or /proc hides it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else SystemProcess(pid, int(parent), rest[17])


@cache
def _of_this_process() -> Iterator[float]:
    own = find_process(os.getpid())
    if own and own.started:
        yield time.clock_gettime(time.CLOCK_BOOTTIME) - int(own.started) / os.sysconf("SC_CLK_TCK")


def startup_seconds() -> float:
    """Since this process started, when first asked: what comes later is no start-up, NaN, as where /proc hides it."""
    return next(_of_this_process(), math.nan)


def ancestors() -> Iterator[SystemProcess]:
    """This process's parent, its parent, and so on, without the first process of the system or container."""
    pid = os.getppid()
    while pid > 1:
        found = find_process(pid) or SystemProcess(pid, 0, "")
        yield found
        pid = found.parent


def environment_of(pid: int) -> dict[str, str]:
    """What a process's environment was at its start; empty where it belongs to somebody else."""
    entries = (entry.partition("=") for entry in _words(pid, "environ"))
    return {name: value for name, _, value in entries}


def command_of(pid: int) -> list[str]:
    """A process's command line; empty where /proc hides it."""
    return _words(pid, "cmdline")


def _words(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return os.fsdecode(file.read()).split("\0")[:-1]
    except OSError:
        return []
