"""Processes that must not outlive the one that they work for."""
from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1        # sys/prctl.h


def end_with_parent(*_: object) -> None:
    """End this process of multiprocessing when the one that it works for ends, in whatever way."""
    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)
    threading.Thread(target=wait, daemon=True).start()


def ending_with_this_process(number: int = signal.SIGKILL) -> Callable[[], None]:
    """What a child calls first after the fork: the kernel then sends it the signal when the thread that forked it ends.

    Does nothing where the system is not Linux.
    """
    parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

    def begin() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, number)
            if os.getppid() != parent:
                os._exit(1)
    return begin
