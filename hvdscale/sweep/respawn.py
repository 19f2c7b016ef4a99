"""A parent process that replaces a killed child, such as one that ran out of memory during a trial.

    guard(process, note)    returns in the child, which does the work; this process exits after the last child

A child that exits during a trial, as by ``os._exit`` in the user's code, counts as killed. A launcher ends all
processes of a launch when one is killed; it sees only the waiting parent.
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
MOST = 20                   # killed children
PR_SET_PDEATHSIG = 1        # sys/prctl.h


def guard(process: Process, note: Callable[[int], bool] = lambda pid: False) -> int:
    """Continue in a child process; call before starting threads. Without fork, continue in this process.

    note  called with the process id of a child that has ended; returns whether it ended during a trial

    Returns the number of earlier children.
    """
    if not hasattr(os, "fork"):
        return 0
    if process.launcher == "torchrun":          # a killed agent leaves its workers alive
        _signal_at_death_of_parent(signal.SIGTERM)
    for before in range(MOST):
        child = _Child()
        parent = os.getpid()
        if child.fork():
            _die_with(parent)
            return before
        status = child.wait()
        if not note(child.pid) and os.WIFEXITED(status):        # the launch's exit code is rank 0's
            os._exit(os.WEXITSTATUS(status) if process.rank == 0 else 0)
        sys.stderr.write(f"rank {process.rank}: process {child.pid} {_describe_end(status)}; another takes its place\n")
        sys.stderr.flush()
        time.sleep(1)
    sys.stderr.write(f"Error: rank {process.rank}: {MOST} processes were killed\n")
    os._exit(1 if process.rank == 0 else 0)


def _describe_end(status: int) -> str:
    """How a process ended, from the status of ``os.waitpid``."""
    if os.WIFEXITED(status):
        return f"ended itself in the midst of a trial (exit code {os.WEXITSTATUS(status)})"
    killed_by = signal.Signals(os.WTERMSIG(status))
    return f"was killed by {killed_by.name}{' (out of memory?)' if killed_by == signal.SIGKILL else ''}"


class _Child:
    """A child to which this process forwards signals."""

    def fork(self) -> bool:
        """Whether this is the child. Signals are blocked until both processes have set their handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self.pid = os.fork()
            if self.pid:
                self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
            return not self.pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    def wait(self) -> int:
        """Wait for the end; returns the status."""
        status = os.waitpid(self.pid, 0)[1]
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return status

    def _pass_on(self, number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _die_with(parent: int) -> None:
    """Die with the parent, and leave the terminal's signals to it."""
    os.setpgid(0, 0)
    if _signal_at_death_of_parent(signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)


def _signal_at_death_of_parent(number: int) -> bool:
    """Have the kernel send this process the signal then; False where it is not Linux."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    except (OSError, AttributeError):
        return False
    return True
