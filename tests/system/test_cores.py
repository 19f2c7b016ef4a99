"""Waits for a core: those for other processes, and not those for a process's own threads."""
import os

import pytest

from hvdscale.system import cores


@pytest.mark.parametrize("share, used, waited, lost", [
    (1, 2.0, 3.0, 3.0),                 # of 5 s: 2 computed, 3 without a core
    (1, 5.0, 2.0, 0.0),                 # a thread of its own had the core
    (1, 4.0, 2.0, 1.0), (2, 5.0, 2.0, 2.0), (2, 12.0, 2.0, 0.0)])
def test_what_is_waited_while_own_threads_use_its_share_of_the_cores_does_not_count(
        monkeypatch, share, used, waited, lost):
    clock = {"monotonic": 0.0, "process_time": 0.0, "waited": 0}
    monkeypatch.setattr(cores, "_schedule_file", lambda pid: 0)
    monkeypatch.setattr(os, "pread", lambda *_: b"9 %d 9" % clock["waited"])
    monkeypatch.setattr(cores, "time", type("Time", (), {
        name: staticmethod(lambda name=name: clock[name]) for name in ("monotonic", "process_time")}))
    timed = cores.CoreClock(share)
    clock.update(monotonic=5.0, process_time=used, waited=int(waited * 1e9))
    assert timed.lap() == pytest.approx(lost) and timed.lap() == 0


def test_a_process_alone_waits_for_none_and_no_kernel_that_counts_is_needed(monkeypatch):
    def missing(pid):
        raise FileNotFoundError
    monkeypatch.setattr(cores, "_schedule_file", missing)
    assert cores.CoreClock(1).lap() == 0
