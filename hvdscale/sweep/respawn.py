"""A parent process that replaces a killed child, such as one that ran out of memory during a trial.

    guard(process, note)    returns in the child, which does the work; this process exits after the last child

A child that exits during a trial, as by ``os._exit`` in the user's code, counts as killed. A launcher ends all
processes of a launch when one is killed; it sees only the waiting parent.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

from ..errors import ExitCode
from ..system.hangup import STOPPING, heed
from ..system.forked import ending_with_this_process
from ..workers.launch import Process

MOST = 20                   # killed children
LOOK_SECONDS = 0.1          # between looks at a child, when signals are heard


def guard(process: Process, note: Callable[[int], bool]) -> int:
    """Continue in a child process; returns the number of earlier ones. Call before any thread. ``note`` is called with
    the process id of a child that has ended, and returns whether it ended during a trial."""
    parent = os.getppid()
    for before in range(MOST):
        die_with_this = ending_with_this_process()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)      # until both processes have set their handlers
        child = os.fork()
        handlers = heed(partial(_pass_on, child)) if child else {}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        if not child:
            os.setpgid(0, 0)            # leaves the terminal's signals to the parent
            die_with_this()
            return before
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            select.select([], [], [], LOOK_SECONDS)     # not for ever: a signal just before would be heard after it
        for number, handler in handlers.items():
            signal.signal(number, handler)
        status = ended[1]
        if os.getppid() != parent:      # the launcher has ended
            os._exit(ExitCode.FAILED)
        if not note(child) and os.WIFEXITED(status):        # the launch's exit code is rank 0's
            os._exit(os.WEXITSTATUS(status) if process.rank == 0 else 0)
        sys.stderr.write(f"rank {process.rank}: process {child} {_describe_end(status)}; another takes its place\n")
        sys.stderr.flush()
        time.sleep(1)
    sys.stderr.write(f"Error: rank {process.rank}: {MOST} processes were killed\n")
    os._exit(1 if process.rank == 0 else 0)


def _describe_end(status: int) -> str:
    if os.WIFEXITED(status):
        return f"ended itself in the midst of a trial (exit code {os.WEXITSTATUS(status)})"
    killed_by = signal.Signals(os.WTERMSIG(status))
    return f"was killed by {killed_by.name}{' (out of memory?)' if killed_by == signal.SIGKILL else ''}"


def _pass_on(child: int, number: int, frame: object) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
