"""Items are worked off on all cores, in order; errors and killed processes end it at once."""
import os
import signal
import subprocess
import sys
import time

import pytest

from hvdscale.errors import HvdscaleError
from hvdscale.system import forked
from hvdscale.system.ancestors import find_process
from hvdscale.system.forked import map_on_cores


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(forked, "usable_cores", lambda: frozenset(range(4)))


def test_results_come_in_order_from_several_processes_but_few_from_here():
    found = list(map_on_cores(lambda item: (item * item, os.getpid()), range(40)))
    assert [square for square, _ in found] == [item * item for item in range(40)]
    assert os.getpid() not in {process for _, process in found} and len({process for _, process in found}) > 1
    assert set(map_on_cores(lambda item: os.getpid(), range(3))) == {os.getpid()}          # few


def test_an_error_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        list(map_on_cores(lambda item: 1 / (item - 20), range(40)))


def test_a_killed_process_ends_it_with_one_error():
    with pytest.raises(HvdscaleError, match="processes was killed"):
        list(map_on_cores(lambda item: item == 20 and os.kill(os.getpid(), signal.SIGKILL), range(40)))


def test_it_can_be_left_early():
    results = map_on_cores(lambda item: item, range(400))
    assert next(results) == 0
    results.close()


def test_many_pools_one_after_another_close_no_pipe_of_the_next():
    code = r"""if True:
        from hvdscale.system import forked
        forked.usable_cores = lambda: frozenset(range(2))
        for _ in range(60):
            assert list(forked.map_on_cores(str, range(40))) == [str(item) for item in range(40)]
            results = forked.map_on_cores(lambda item: bytes(100_000), range(40))
            assert len(next(results)) == 100_000
            results.close()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_processes_end_with_the_one_that_started_them_even_if_that_is_killed():
    code = r"""if True:
        import os, time
        from hvdscale.system import forked
        forked.usable_cores = lambda: frozenset(range(4))
        def work(item):
            os.write(1, b"%d\n" % os.getpid())        # at once: print may write the line's end apart
            time.sleep(60)
        list(forked.map_on_cores(work, range(40)))
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        children = [int(parent.stdout.readline()) for _ in range(4)]
        parent.kill()
    until = time.monotonic() + 10
    while any(map(find_process, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(find_process, children))
