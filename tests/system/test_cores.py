"""Waits for a core: those for other processes, and not those for a process's own threads."""
import time
from types import SimpleNamespace

import pytest

from hvdscale.system import cores


@pytest.mark.parametrize("usable, workers, used, waited, share", [
    (2, 2, 2.0, 3.0, 0.6),                          # of 5 s
    (2, 2, 5.0, 2.0, 0.0),                          # a thread of its own had the core
    (2, 2, 4.0, 2.0, 0.2), (2, 1, 5.0, 2.0, 0.4), (2, 1, 10.0, 2.0, 0.0),
    (1, 2, 4.0, 0.5, 0.1)])                         # a launcher has bound each of two to a core
def test_what_is_waited_while_own_threads_have_its_part_of_the_cores_does_not_count(
        monkeypatch, usable, workers, used, waited, share):
    reads = iter([(10.0, 1.0, 7.0), (15.0, 1.0 + used, 7.0 + waited)])
    monkeypatch.setattr(cores, "usable_cores", lambda: frozenset(range(usable)))
    monkeypatch.setattr(cores.CoreClock, "_read", lambda self: next(reads))
    assert cores.CoreClock(workers).share() == pytest.approx(share)


def test_looks_at_it_are_a_tenth_of_a_second_apart_and_then_a_fifth_of_all_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cores, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=time.process_time))
    clock, looks = cores.CoreClock(1), []
    for at in range(1, 1001):
        now[0] = at / 100
        if clock.is_due():
            assert 0 <= clock.share() <= 1
            looks.append(at)
    assert looks[:2] == [11, 22] and looks[-1] > 800 and len(looks) < 20
