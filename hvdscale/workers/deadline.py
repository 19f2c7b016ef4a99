"""A deadline that the kernel keeps: a process that does not put it off is killed, also when it is stopped (SIGSTOP)."""
from __future__ import annotations

import ctypes
import signal

CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0        # time.h, signal.h


class _Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("room", ctypes.c_char * 48)]


class _Interval(ctypes.Structure):
    _fields_ = [("every", ctypes.c_long), ("every_nanoseconds", ctypes.c_long), ("seconds", ctypes.c_long),
                ("nanoseconds", ctypes.c_long)]


class Deadline:
    """None until ``put_off`` is called first; does nothing where the system has no POSIX timers."""

    def __init__(self):
        self._timer = ctypes.c_void_p()
        self._libc = ctypes.CDLL(None)
        event = _Event(None, signal.SIGKILL, SIGEV_SIGNAL)
        try:
            failed = self._libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))
        except AttributeError:
            failed = True
        self._works = not failed

    def put_off(self, seconds: float) -> None:
        """SIGKILL comes this many seconds from now, unless it is put off again."""
        if self._works:
            interval = _Interval(0, 0, int(seconds), int(seconds % 1 * 1e9))
            self._libc.timer_settime(self._timer, 0, ctypes.byref(interval), None)
