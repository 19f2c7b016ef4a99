"""This process's TCP connections: a transport that waits for a lost worker stops waiting once they are shut."""
from __future__ import annotations

import contextlib
import os
import socket

Sockets = frozenset[tuple[int, str]]


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
    """Shut those that are still open."""
    for number, _ in sockets & tcp_sockets():
        with contextlib.suppress(OSError), _copy(number) as copy:
            copy.shutdown(socket.SHUT_RDWR)


def _copy(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))
