"""How the workers of an elastic job meet: each has its place from horovodrun, and none sets off before all are there.

Horovod 0.28.1 would ask for the place inside ``hvd.init()`` and then wait there for workers that horovodrun has only
just started; one that never comes makes all the others abort. So the asking and the waiting are done here, and
``hvd.init()`` finds the places in the environment.

    rendezvous = Rendezvous()
    rendezvous.meet(first=True)         the place that horovodrun started this process with
    rendezvous.meet(first=False)        after a loss or a change of hosts: a new place

horovodrun's server keeps keys and values until it has given out new places. It answers the question for a place once
every worker has asked or is lost.
"""
from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException

from .errors import WorkerLostError, WorkerRemovedError

PLACE = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
         "HOROVOD_CROSS_SIZE")
MEET_SECONDS = 20.0         # rank 0 waits so long for the others before all ask again


class Rendezvous:
    """This worker's side of it.

    environment  what horovodrun told this process; where the place is kept
    """

    def __init__(self, environment=os.environ):
        self._environment = environment
        server = "{HOROVOD_GLOO_RENDEZVOUS_ADDR}:{HOROVOD_GLOO_RENDEZVOUS_PORT}".format(**environment)
        self._url = f"http://{server}/"
        self._slot = "{HOROVOD_HOSTNAME}:{HOROVOD_LOCAL_RANK}".format(**environment)

    def meet(self, first: bool) -> None:
        """Returns when all workers are there, each with its place in the environment.

        Raises WorkerRemovedError where this worker has no place any more, WorkerLostError where horovodrun has ended.
        """
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
            self._put(f"there/{rank}", b"yes")
            word = self._appears("there/all", 2 * MEET_SECONDS)
            if word is None:
                self._request("DELETE", f"there/{rank}")
            return word == b"yes"
        until = time.monotonic() + MEET_SECONDS
        there = all(self._appears(f"there/{other}", until - time.monotonic()) for other in range(1, size))
        self._put("there/all", b"yes" if there else b"no")
        return there

    def _appears(self, key: str, seconds: float) -> bytes | None:
        """The key's value as soon as it has one; None after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            value = self._request("GET", key)
            if value is not None or time.monotonic() > until:
                return value
            time.sleep(0.05)

    def _put(self, key: str, value: bytes) -> None:
        self._request("PUT", key, value)

    def _request(self, method: str, key: str, value: bytes | None = None) -> bytes | None:
        """The server's answer; None where it has no such key."""
        request = urllib.request.Request(self._url + key, data=value, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise WorkerLostError(f"horovodrun answers {error.code} to {method} {key}") from None
        except (OSError, HTTPException) as error:
            raise WorkerLostError(f"horovodrun has ended: {error}") from None
