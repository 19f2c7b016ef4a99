"""A process that outlives its child: where a trial's process is killed, as for want of memory, another takes its place.

    guard(process, note)    returns in the child, which does the work; this process ends as the last child does

A child that ends by itself in the midst of a trial, as by ``os._exit`` in the user's code, counts as killed.

A launcher ends all processes of a launch when one is killed. To it the one that waits here is the one that counts.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

from ..workers.launch import Process

PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
MOST = 20                   # children that may be killed
PR_SET_PDEATHSIG = 1        # sys/prctl.h


def guard(process: Process, note: Callable[[int], bool] = lambda pid: False) -> int:
    """Go on in a child; to be called before there are threads. Where there is no fork, go on as it is.

    note  called with the process id of a child that has ended; says whether it ended in the midst of a trial

    Returns how many children were there before.
    """
    if not hasattr(os, "fork"):
        return 0
    for before in range(MOST):
        child = _Child()
        parent = os.getpid()
        if child.fork():
            _die_with(parent)
            return before
        status = child.wait()
        if not note(child.pid) and os.WIFEXITED(status):        # a launch has its rank 0's code
            os._exit(os.WEXITSTATUS(status) if process.rank == 0 else 0)
        sys.stderr.write(f"rank {process.rank}: process {child.pid} {_end_said(status)}; another takes its place\n")
        sys.stderr.flush()
        time.sleep(1)
    sys.stderr.write(f"Error: rank {process.rank}: {MOST} processes were killed\n")
    os._exit(1 if process.rank == 0 else 0)


def _end_said(status: int) -> str:
    """How a process ended, by what ``os.waitpid`` gave."""
    if os.WIFEXITED(status):
        return f"ended itself in the midst of a trial (exit code {os.WEXITSTATUS(status)})"
    killed_by = signal.Signals(os.WTERMSIG(status))
    return f"was killed by {killed_by.name}{' (out of memory?)' if killed_by == signal.SIGKILL else ''}"


class _Child:
    """A child, to which this process passes signals on."""

    def fork(self) -> bool:
        """Whether this is the child. Signals wait until both processes have their own ways with them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self.pid = os.fork()
            if self.pid:
                self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
            return not self.pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    def wait(self) -> int:
        """Its status, once it has ended."""
        status = os.waitpid(self.pid, 0)[1]
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return status

    def _pass_on(self, number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _die_with(parent: int) -> None:
    """Be killed when the parent is, and leave the terminal's signals to it."""
    os.setpgid(0, 0)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return                          # not Linux
    if os.getppid() != parent:
        os._exit(1)
