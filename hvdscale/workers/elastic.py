"""The workers of an elastic job, joined by Horovod over Gloo: horovodrun assigns the ranks, and all wait until all are
there.

Horovod 0.28.1 would ask for the place inside ``hvd.init()`` and then wait there for workers that horovodrun has only
just started; one that never comes makes all the others abort. So the asking and the waiting are done here, and
``hvd.init()`` finds the places in the environment.

    rendezvous = Rendezvous(stall_seconds=120)
    rendezvous.meet(first=True)         the place that horovodrun started this process with
    rendezvous.meet(first=False)        after a loss or a change of hosts: a new place

horovodrun's server keeps keys and values until it has given out new places. It answers the question for a place once
every worker has asked or is lost.
"""

import contextlib
import os
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException

from ..errors import ExitCode, WorkerLostError
from ..formatting.screen import say
from .group import Deadline, shut, tcp_sockets
from .horovod import HorovodWorkers

PLACE = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
         "HOROVOD_CROSS_SIZE")
MEET_SECONDS = 20.0         # how long rank 0 waits for the others before all ask again


class WorkerRemovedError(WorkerLostError):
    """This worker's host was removed from the job, which continues without it."""

    exit_code = ExitCode.DONE


class ElasticWorkers(HorovodWorkers):
    """The workers of `horovodrun --host-discovery-script`: if some are lost, or hosts change, the rest form a new one.
    horovodrun assigns new ranks once every worker has asked for one or ended, so none may linger. A worker that waits
    longer than the stall time closes all connections; the collectives of the others then fail too, and all of them ask.
    A worker that is stopped, or cut off without noticing for the stall time, is killed by a kernel timer."""

    elastic = True
    hosts_changed = False       # whether horovodrun has notified rank 0

    def __init__(self, hvd, stall_seconds: float):
        from horovod.runner.elastic.worker import WorkerNotificationManager
        self._hvd, self._stall_seconds = hvd, stall_seconds
        self._connections = frozenset()
        self._rendezvous = Rendezvous(stall_seconds)
        manager = WorkerNotificationManager()
        manager.init()
        manager.register_listener(self)
        threading.Thread(target=self._keep_deadline, args=(Deadline(),), daemon=True).start()
        self._join(first=True)

    def on_hosts_updated(self, timestamp, result) -> None:          # called by horovodrun's notification thread
        self.hosts_changed = True

    def _join(self, first: bool) -> None:
        self.hosts_changed = False
        self._rendezvous.meet(first)
        before = tcp_sockets()
        self._hvd.init()
        os.environ["HOROVOD_ELASTIC"] = "0"         # at the next init Horovod takes the place found here
        self._connections = tcp_sockets() - before
        self._take_place()

    def reform(self) -> None:
        """Leave the old group and join the new one, with a new rank and size. Raises WorkerRemovedError if this worker
        is no longer part of the job, WorkerLostError if horovodrun has ended."""
        self.abandon()
        self._join(first=False)

    def abandon(self):
        connections, self._connections = self._connections, frozenset()
        self._hvd.shutdown()
        shut(connections)          # Horovod leaves some open, and a rank that waits for this one would keep waiting

    def leave(self):
        super().leave()
        self._connections = frozenset()

    def check(self):
        if self._is_cut_off():
            raise WorkerLostError(f"rank {self.rank} of {self.size}: a worker was lost")

    def watch(self, lost):
        """The deadline is kept from the start."""

    def _is_cut_off(self) -> bool:
        return not self._connections <= tcp_sockets()

    def _keep_deadline(self, deadline: Deadline) -> None:
        while True:
            connections, cut_off = self._connections, self._is_cut_off()
            if self._waiting or not cut_off:
                deadline.put_off(self._stall_seconds)
            reason = self._stalled(self._stall_seconds)
            if reason and not cut_off:
                say(f"Note: {reason}", err=True)
            if reason or cut_off:
                shut(connections)
            time.sleep(min(1.0, self._stall_seconds / 4))


class Rendezvous:
    """This worker's side; the new rank is written to ``environment``, the variables set by horovodrun, of which a node
    that is silent for the stall time is lost."""

    def __init__(self, stall_seconds: float, environment=os.environ):
        self._stall_seconds, self._environment = stall_seconds, environment
        self._server = "{HOROVOD_GLOO_RENDEZVOUS_ADDR}:{HOROVOD_GLOO_RENDEZVOUS_PORT}".format(**environment)
        self._slot = "{HOROVOD_HOSTNAME}:{HOROVOD_LOCAL_RANK}".format(**environment)

    def meet(self, first: bool) -> None:
        """Returns when all workers are there, each with its place in the environment; raises as ``reform`` does."""
        if not first:
            self._ask()
        while not self._all_there():
            self._ask()

    def _ask(self) -> None:
        place = self._request("GET", f"rank_and_size/{self._slot}").decode().split(",")
        if int(place[0]) < 0:
            raise WorkerRemovedError(f"{self._slot} is no longer part of the job")
        self._environment.update(zip(PLACE, place))

    def _all_there(self) -> bool:
        """Whether rank 0 saw all workers: its word is every worker's, whenever it is read."""
        rank, size = (int(self._environment[name]) for name in PLACE[:2])
        if rank:
            self._request("PUT", f"there/{rank}", b"yes")
            word = self._appears("there/all", 2 * MEET_SECONDS)
            if word is None:
                self._request("DELETE", f"there/{rank}")
            return word == b"yes"
        until = time.monotonic() + MEET_SECONDS
        there = all(self._appears(f"there/{other}", until - time.monotonic()) for other in range(1, size))
        self._request("PUT", "there/all", b"yes" if there else b"no")
        return there

    def _appears(self, key: str, seconds: float) -> bytes | None:
        """The key's value as soon as it has one; None after this many seconds."""
        until = time.monotonic() + seconds
        while True:
            value = self._request("GET", key)
            if value is not None or time.monotonic() > until:
                return value
            time.sleep(0.05)

    def _request(self, method: str, key: str, value: bytes | None = None) -> bytes | None:
        try:
            with contextlib.closing(HTTPConnection(self._server, timeout=self._stall_seconds)) as connection:
                connection.connect()
                # the answer may take any time, while the kernel of the other node is heard of
                connection.sock.settimeout(None)
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                seconds = max(1, int(self._stall_seconds / 4))
                for option, number in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 3),
                                       ("TCP_USER_TIMEOUT", int(self._stall_seconds * 1000))):
                    if hasattr(socket, option):         # not everywhere
                        connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)
                connection.request(method, f"/{key}", value)
                answer = connection.getresponse()
                text = answer.read()
        except (OSError, HTTPException) as error:
            raise WorkerLostError(f"horovodrun has ended: {error}") from None
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise WorkerLostError(f"horovodrun answers {answer.status} to {method} {key}")
        return text
