"""Workers of an elastic job set off together or not at all; the server is one that answers as horovodrun's does."""
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hvdscale.errors import WorkersError
from hvdscale.workers import elastic
from hvdscale.workers.elastic import PLACE, Rendezvous, WorkerRemovedError
from tests.conftest import may_be_alone


class Launcher(ThreadingHTTPServer):
    """Keeps keys; in each of the rounds (n, slots) it gives these slots their places once n workers have asked."""

    def __init__(self, rounds):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rounds, self.store, self.asked, self.number = rounds, {}, 0, 0
        self.condition = threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def place(self, slot):
        with self.condition:
            number = self.number
            asking, slots = self.rounds[number]
            self.asked += 1
            if self.asked == asking:
                self.store, self.asked, self.number = {}, 0, number + 1
                self.condition.notify_all()
            self.condition.wait_for(lambda: self.number > number)
        rank = slots.index(slot) if slot in slots else -1
        return ",".join(map(str, [rank, len(slots), 0, 1, rank, len(slots)])).encode()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        _, scope, key = self.path.split("/")
        value = self.server.place(key) if scope == "rank_and_size" else self.server.store.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self):
        self.server.store[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_DELETE(self):
        self.server.store.pop(self.path, None)
        self._answer(200, b"")

    def _answer(self, status, value):
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, *_):
        pass


@pytest.fixture
def meet(monkeypatch):
    """Workers on threads, by slot: (first, delay) -> each one's rank and size, or its error."""
    monkeypatch.setattr(elastic, "MEET_SECONDS", 0.5)

    def meet(workers, rounds, started_with):
        server, met = Launcher(rounds), {}

        def worker(slot, first, delay):
            time.sleep(delay)
            host, local_rank = slot.split(":")
            mine = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_HOSTNAME": host,
                    "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port), "HOROVOD_LOCAL_RANK": local_rank,
                    "HOROVOD_RANK": str(started_with.index(slot)), "HOROVOD_SIZE": str(len(started_with))}
            try:
                Rendezvous(9, mine).meet(first)
                met[slot] = tuple(int(mine[name]) for name in PLACE[:2])
            except WorkersError as error:
                met[slot] = type(error)
        threads = [threading.Thread(target=worker, args=(slot, *how)) for slot, how in workers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        server.shutdown()
        server.server_close()
        return met
    return meet


STARTED, AGAIN = (True, 0), (False, 0)


@pytest.mark.parametrize("workers, rounds, started_with, met", [
    ({"a:0": STARTED, "b:0": STARTED, "b:1": STARTED}, [], ["a:0", "b:0", "b:1"],
     {"a:0": (0, 3), "b:0": (1, 3), "b:1": (2, 3)}),                            # they keep the places they were given
    ({"b:0": AGAIN, "c:0": AGAIN}, [(2, ["b:0", "c:0"])], ["a:0", "b:0", "c:0"], {"b:0": (0, 2), "c:0": (1, 2)}),
    ({"a:0": AGAIN, "b:0": AGAIN}, [(2, ["a:0", "b:0", "new:0"]), (2, ["a:0", "b:0"])], ["a:0", "b:0"],
     {"a:0": (0, 2), "b:0": (1, 2)}),                                           # one that never comes is left out
    ({"a:0": AGAIN, "b:0": AGAIN}, [(2, ["a:0"])], ["a:0", "b:0"], {"a:0": (0, 1), "b:0": WorkerRemovedError})])
def test_workers_get_their_places_at_the_start_and_after_a_loss(meet, workers, rounds, started_with, met):
    assert meet(workers, rounds, started_with) == met


@pytest.mark.parametrize("late", ["a:0", "b:0", "c:0"])
def test_a_late_process_meets_the_others_in_the_next_round(meet, late):
    slots = ["a:0", "b:0", "c:0"]
    assert meet({slot: (True, 1.2 * (slot == late)) for slot in slots}, [(3, slots)], slots) == {
        "a:0": (0, 3), "b:0": (1, 3), "c:0": (2, 3)}


def test_without_horovodrun_it_is_an_error():
    environment = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "9",
                   "HOROVOD_HOSTNAME": "a", "HOROVOD_LOCAL_RANK": "0"}
    with pytest.raises(WorkersError, match="horovodrun has ended: .*refused"):
        Rendezvous(9, environment).meet(first=False)


FAR_SERVER = """
import socket, subprocess, time
while subprocess.run("ip addr add 198.18.254.2/24 dev far && ip link set far up", shell=True).returncode:
    time.sleep(0.05)
with socket.create_server(("198.18.254.2", 80)) as server:
    print("listens", flush=True)
    with server.accept()[0] as asked:
        asked.recv(1)
        print("asked", flush=True)
        time.sleep(60)
"""


def test_a_silent_horovodrun_node_is_noticed_within_the_stall_time():
    if not may_be_alone():
        pytest.skip("needs the right to make networks, and ip (Debian: apt install iproute2)")
    with subprocess.Popen(["unshare", "--net", sys.executable, "-c", FAR_SERVER], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as server:
        while os.readlink(f"/proc/{server.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        ip(f"ip link add near type veth peer name far netns {server.pid}")
        try:
            ip("ip addr add 198.18.254.1/24 dev near; ip link set near up")
            assert server.stdout.readline() == "listens\n"
            cut = []

            def cut_off():
                server.stdout.readline()
                ip(f"nsenter -t {server.pid} -n ip link set far down")
                cut.append(time.monotonic())
            threading.Thread(target=cut_off).start()
            environment = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "198.18.254.2", "HOROVOD_GLOO_RENDEZVOUS_PORT": "80",
                           "HOROVOD_HOSTNAME": "a", "HOROVOD_LOCAL_RANK": "0"}
            with pytest.raises(WorkersError, match="horovodrun has ended: "):
                Rendezvous(4, environment).meet(first=False)
            assert cut and time.monotonic() - cut[0] < 2 * 4
        finally:
            server.kill()               # the cable goes with its network


def ip(commands):
    subprocess.run(["sh", "-ec", commands], check=True)
