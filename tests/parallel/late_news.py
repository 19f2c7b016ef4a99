"""Two workers of srun, of which rank 0 is the last to learn that they are complete.

    srun -N2 --mpi=pmix python -m tests.parallel.late_news FILE     rank 1 joins once rank 0 has made the file
"""
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from hvdscale.workers.transport import form
from tests.parallel.launched_job import until

C = ctypes.CDLL(None)
C.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
C.signal.restype = ctypes.c_void_p


def pmix_thread():
    """The thread that hears of the others, or None before it is there."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "wchan").read_text() in ("ep_poll", "do_epoll_wait"):        # which, the kernel's version tells
            return int(task.name)


def hear_late(rank_1_joins):
    until(pmix_thread)
    time.sleep(1)                           # until this rank has told that it waits for the others
    C.signal(signal.SIGQUIT, ctypes.cast(C.sleep, ctypes.c_void_p))        # of as many seconds as the signal's number
    C.tgkill(os.getpid(), pmix_thread(), signal.SIGQUIT)
    rank_1_joins.touch()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    if os.environ["PMIX_RANK"] == "0":
        threading.Thread(target=hear_late, args=[file], daemon=True).start()
    else:
        until(file.exists)
    workers = form(stall_seconds=60)
    assert workers.sum_(torch.ones(1), "both").item() == workers.size == 2
    workers.leave()
    os._exit(0)
