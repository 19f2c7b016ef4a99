"""Child processes: a function of many items on all cores, and none that outlives the process that it works for."""

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..errors import HvdscaleError
from .cores import usable_cores

PR_SET_PDEATHSIG = 1        # sys/prctl.h
AGAIN_SECONDS = 1.0     # after which a pool is asked for new processes
LEAST = 4           # items that are worth a process of their own
MOST_AT_ONCE = 16   # items that a process takes at a time: of thousands of small ones, passing each on is the work
Item = TypeVar("Item")
_work: tuple[Callable, Sequence] = (lambda item: item, ())      # of the parent, as its children see it


def map_on_cores(function: Callable[[Item], Any], items: Sequence[Item]) -> Iterator[Any]:
    """The function of each item, in order; the results must be picklable. Forked children compute them where there are
    several cores and many items; what they change stays with them, and they end with this process. Raises what the
    function raises, and HvdscaleError if a child was killed."""
    global _work
    processes = min(len(usable_cores()), len(items) // LEAST)
    if processes < 2:
        yield from map(function, items)
        return
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor     # slow
    _work = function, items
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), end_with_parent)
    together = max(1, min(len(items) // (8 * processes), MOST_AT_ONCE))
    found = pool.map(_compute, range(len(items)), chunksize=together)
    watching = _watch(pool)
    try:
        yield from found
    except BrokenProcessPool:
        raise HvdscaleError(f"one of {processes} processes was killed (out of memory?); try again with fewer cores, "
                            "such as under taskset -c 0") from None
    finally:
        pool.shutdown(cancel_futures=True)
        watching.join()


def _watch(pool: Any) -> threading.Thread:
    """A thread that has all processes of a concurrent.futures pool end once one has failed, so that the pool is found
    to be broken; it begins after the first task.

    One that is killed while it writes a result leaves half of it, and CPython's pool waits for the rest for ever. The
    thread ends after the shutdown: a process forked beside it would close its pipes again.
    """
    from multiprocessing.connection import wait
    results = pool._result_queue._writer

    def watch() -> None:
        processes: dict[int, Any] = {}
        while True:
            processes |= pool._processes or {}      # a pool that spawns has more as tasks come, and none in the end
            running = [process for process in processes.values() if process.exitcode is None]
            if not running or any(process.exitcode for process in processes.values()):
                break
            wait([one.sentinel for one in running], AGAIN_SECONDS)
        if running:
            for one in running:
                one.kill()
            results.close()
    thread = threading.Thread(target=watch, daemon=True, name="watching a pool")
    thread.start()
    return thread


def _compute(at: int) -> Any:
    function, items = _work
    return function(items[at])


def end_with_parent(*_: object) -> None:
    """End this process of multiprocessing when the one that it works for ends, in whatever way."""
    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)
    threading.Thread(target=wait, daemon=True).start()


def ending_with_this_process(number: int = signal.SIGKILL) -> Callable[[], None]:
    """What a child calls first after the fork: the kernel of Linux then sends it the signal when the thread that forked
    it ends."""
    parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

    def begin() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, number)
            if os.getppid() != parent:
                os._exit(1)
    return begin
