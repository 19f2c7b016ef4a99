"""The worker group: rank, size, sums over workers, and what all transports share.

    workers = form(stall_seconds=120)              see transport.py
    workers.sum_(tensor, "gradients")              in place, the same on all ranks afterwards
    with workers.together("loading the data"):     an error on one rank is the same error on all
        ...

A worker that waits for a lost one is freed by its TCP connections, which are shut so that the transport stops waiting;
the others are freed from one that stopped by a deadline of the kernel, which kills a process that does not put it off.
"""
from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping

import torch

from ..errors import TRACEBACK, HvdscaleError, WorkerLostError, WorkersError, describe_raised, is_of_user_code
from ..formatting.screen import say
from ..system.cores import usable_cores
from ..system.hangup import heeding_stops

POLL_SECONDS = 5e-5     # between looks at whether a sum is there; Linux adds 50 us
APART = 5       # stall times by which workers may start apart, as with imports from a slow file system
Sockets = frozenset[tuple[int, str]]
CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0        # time.h, signal.h


class Workers:
    """The workers of a job, seen from one of them: rank, size and collectives. These are of one worker."""

    rank, size, local_rank, local_size = 0, 1, 0, 1
    transport = "single"        # what joins the workers: single, horovod or torch
    elastic = False             # whether they can form a new group after a WorkerLostError: see elastic.py
    _cores: frozenset[int] | None = None

    def cores(self) -> frozenset[int]:
        """The cores of this host that this worker may use; in a group of a sweep, those of all its local workers."""
        return usable_cores() if self._cores is None else self._cores

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

    def divide(self, size: int) -> Workers:
        """The group of ``size`` neighbouring ranks that this worker is in; a collective."""
        return self

    def versions(self) -> dict[str, str]:
        return {}

    def watch(self, lost: Callable[[str], None]) -> None:
        """If a collective lasts longer than the stall time, call ``lost`` with the reason and end the process. A
        further call replaces ``lost``."""

    def check(self) -> None:
        """Raise WorkerLostError where a worker is known to be lost; for long work without a collective."""

    def leave(self) -> None:
        """The last collective: no rank leaves before all are done."""

    def abandon(self) -> None:
        """Leave the others, whose next collective then fails on them."""

    @contextlib.contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """An error that any rank raises inside is raised on all, naming the ranks; a collective. For an error that is
        not hvdscale's own, one of the ranks that raised it prints the traceback. Where the user's own code raised it,
        its line is named, and TRACEBACK asks for the traceback."""
        error, trace = None, ""
        try:
            with heeding_stops():
                yield
        except HvdscaleError as raised:
            error = raised
        except (Exception, SystemExit) as raised:
            said, own = describe_raised(raised), is_of_user_code(raised)
            error = HvdscaleError(f"{doing}: {said}" + f"; {TRACEBACK}=1 prints the traceback" * own)
            trace = "" if own and not os.environ.get(TRACEBACK) else traceback.format_exc()
        errors = self.gather(error and (type(error), str(error)), f"errors/{doing}")
        if trace and str(error) not in [other[1] for other in errors[:self.rank] if other]:
            say(trace.rstrip("\n"), err=True)
        if any(errors):
            raise _joined(errors)

    def raise_together(self, doing: str, error: Exception | None) -> None:
        """Raise an error that this rank has met before, if any, on all ranks; a collective."""
        with self.together(doing):
            if error is not None:
                raise error


class SingleWorker(Workers):
    """A worker without others, which may have its place on a host among workers of other groups."""

    def __init__(self, local_rank: int = 0, local_size: int = 1, cores: frozenset[int] | None = None):
        self.local_rank, self.local_size, self._cores = local_rank, local_size, cores


class JoinedWorkers(Workers):
    """The workers that a launcher started, joined by a transport. From the start a thread watches, and ends the process
    where a collective lasts longer than the stall time.

    _unite(ranks)  the transport's group of some of the workers, of which this need not be one; a collective of all
    _shut_down()   ends the transport
    """

    _lost: Callable[[str], None] | None = None          # what the watching thread calls, once there is one
    _waiting: tuple[str, float] | None = None
    _giving_up = threading.RLock()      # held while it does, so that the collective cannot end after all
    _stall_seconds: float

    _broken: type[Exception]            # what the transport raises in a collective where a worker is lost
    _first, _members = 0, None          # of a group of some of the workers: its first rank, and as the transport has it
    _groups: Mapping[int, Workers] = {}         # that this worker is in, by size

    def divide(self, size):
        if size in (1, self.size):
            return self if size == self.size else SingleWorker()
        if size not in self._groups:
            group = copy.copy(self)
            group._first = self.rank - self.rank % size
            group.rank, group.size = self.rank - group._first, size
            group._collective = self._collective            # for which this object watches
            with self._collective("dividing the workers"):
                runs = [list(range(first, first + size)) for first in range(0, self.size, size)]
                group._members = [self._unite(run) for run in runs][self.rank // size]
            self._groups = {**self._groups, size: group}
        return self._groups[size]

    def _cause(self, error: Exception) -> str:
        return str(error).strip()

    def sum_(self, tensor, name):
        self.start_sum_(tensor, name)()
        return tensor

    def leave(self):
        self.gather(None, "leave")
        self._shut_down()

    def abandon(self):
        self._shut_down()

    @contextlib.contextmanager
    def _collective(self, name: str):
        self._waiting = (name, time.monotonic())
        try:
            yield
        except self._broken as error:
            raise WorkerLostError(f"rank {self.rank} of {self.size}: a worker was lost during {name!r}: "
                                  f"{self._cause(error)}") from None
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
            self._tend()
            time.sleep(min(1.0, self._stall_seconds / 4))
            with self._giving_up:
                if reason := self._stalled(self._stall_seconds):
                    self._give_up(reason)

    def _tend(self) -> None:
        """Called by the watching thread, several times within the stall time."""

    def _give_up(self, reason: str) -> None:
        try:
            say(f"Error: {reason}", err=True)
            self._lost(reason)
        finally:                    # whatever becomes of the message
            self._end()

    def _end(self) -> None:
        os._exit(1)

    def _stalled(self, seconds: float) -> str:
        """The collective that this rank has waited in for that long, in words; empty if there is none."""
        waiting = self._waiting
        if waiting is None or time.monotonic() - waiting[1] <= seconds:
            return ""
        return (f"rank {self.rank} of {self.size} on {socket.gethostname()} has waited {seconds:g} s for the other "
                f"workers in {waiting[0]!r}; one of them has stopped or is lost")


def _joined(errors: list) -> HvdscaleError:
    """One error for those of the ranks (None: no error), the same on all."""
    kind, first = next(e for e in errors if e)
    ranks = [r for r, e in enumerate(errors) if e and e[1] == first]
    if len(ranks) == len(errors):
        return kind(first)
    others = [f"rank {r}: {e[1]}" for r, e in enumerate(errors) if e and e[1] != first]
    return kind("\n".join([f"rank {', '.join(map(str, ranks))} of {len(errors)}: {first}", *others]))


@contextlib.contextmanager
def starting(stall_seconds: float, over: str) -> Iterator[None]:
    """End a process that waits longer than five stall times for the others to start; ``over``: their transport."""
    seconds = APART * stall_seconds

    def give_up():
        say(f"Error: a worker on {socket.gethostname()} has waited {seconds:g} s for the others to start; one has "
            f"stopped, joins another transport than {over}, or is slower: --set stall_seconds="
            f"{2 * stall_seconds:g} waits longer", err=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    """Have glibc keep the memory that a step frees for the next step. By default it returns large arrays to the system
    and faults them in again, page by page, at every step."""
    mmap_threshold, trim_threshold = -3, -1         # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 * 2**20)    # its maximum
        libc.mallopt(trim_threshold, 2**31 - 1)


def tcp_sockets() -> Sockets:
    """This process's TCP sockets, as file number and name; none where there is no /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{number}")
                if name.startswith("socket:"):
                    with _copy(number) as copy:
                        if copy.family in (socket.AF_INET, socket.AF_INET6):
                            found.add((number, name))
    return frozenset(found)


def connected(sockets: Sockets) -> Sockets:
    """Those that do not listen: Gloo aborts the process where its listener is shut."""
    found = set()
    for one in sockets:
        with _copy(one[0]) as copy:
            if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(one)
    return frozenset(found)


def shut(sockets: Sockets) -> None:
    for number, _ in sockets & tcp_sockets():
        with contextlib.suppress(OSError), _copy(number) as copy:
            copy.shutdown(socket.SHUT_RDWR)


def _copy(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))


class _Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("room", ctypes.c_char * 48)]


class Deadline:
    """None until ``put_off`` is called first; does nothing where the system has no POSIX timers."""

    def __init__(self):
        self._libc, self._timer = ctypes.CDLL(None), ctypes.c_void_p()
        self._works = hasattr(self._libc, "timer_create") and not self._libc.timer_create(
            CLOCK_MONOTONIC, ctypes.byref(_Event(None, signal.SIGKILL, SIGEV_SIGNAL)), ctypes.byref(self._timer))

    def put_off(self, seconds: float) -> None:
        if self._works:         # no interval, then the value: each in seconds and nanoseconds
            interval = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
            self._libc.timer_settime(self._timer, 0, ctypes.byref(interval), None)
