"""Which ports a job holds open: the launcher's own, and no others; in tests nobody else reaches those."""
import contextlib
import os
import re
from pathlib import Path

import psutil
import pytest

from tests.conftest import may_be_alone

LISTENS = "0A"


def listening(pid):
    """Addresses and ports on which a process listens, as the kernel writes them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                sockets[f"socket:[{words[9]}]"] = words[1]
    held = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.append(os.readlink(descriptor))
    return [sockets[name] for name in held if name in sockets]


def assert_no_worker_listens(job):
    assert re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", listening(job.process.pid)[0])       # the launcher's own are seen
    assert [listening(job.of_rank(rank)) for rank in (0, 1)] == [[], []]


def test_what_tests_start_has_a_network_of_its_own():
    if not may_be_alone():
        pytest.skip("needs the right to make one, and ip (Debian: apt install iproute2)")
    assert psutil.net_if_addrs().keys() == {"lo", "alone"}
