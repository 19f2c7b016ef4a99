"""What frees a worker that waits for a lost one, and the others from one that stopped: TCP connections, which are shut
so that the transport stops waiting, and a deadline of the kernel, which kills a process that does not put it off."""

import contextlib
import ctypes
import os
import signal
import socket

Sockets = frozenset[tuple[int, str]]
CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0        # time.h, signal.h


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
        event = _Event(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._works = hasattr(self._libc, "timer_create") and not self._libc.timer_create(
            CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def put_off(self, seconds: float) -> None:
        if self._works:         # no interval, then the value: each in seconds and nanoseconds
            interval = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
            self._libc.timer_settime(self._timer, 0, ctypes.byref(interval), None)
